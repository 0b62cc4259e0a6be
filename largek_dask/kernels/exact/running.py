"""Running means of clusters, moved by the sums of one batch in a single walk over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.jit import njit, readonly

__all__ = ["moved_means"]


def moved_means(
    means: NDArray[np.float64], sums: ClusterSums, share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (k, d) ``means`` moved towards the means of ``sums`` by a share of the way.

    Parameters
    ----------
    means : (k, d)
    sums : ClusterSums
        Sums of the batch.
    share : (k,)
        0 for a cluster that stays as it is; such a cluster may be without rows.
    """
    grid = sums.grid
    out = np.empty_like(means)
    _move(
        readonly(np.ascontiguousarray(means)), readonly(sums.totals), readonly(sums.weights),
        readonly(share), 2.0 ** (grid.weight_bits - grid.bits), grid.shift.astype(np.float64), out,
    )  # fmt: skip
    return out


@njit
def _move(means, sums, weights, share, step, shift, out):
    for j in range(means.shape[0]):
        part, weight = share[j], np.float64(weights[j])
        if part == 0.0:
            for f in range(means.shape[1]):
                out[j, f] = means[j, f]
        else:
            for f in range(means.shape[1]):
                mean = np.float64(sums[j, f]) / weight * step + shift[f]
                out[j, f] = means[j, f] + part * (mean - means[j, f])
