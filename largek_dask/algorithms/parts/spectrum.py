"""Lower bounds of the objective of any partition, from the spectrum of the scatter matrix.

The between-cluster scatter matrix of l clusters has rank at most l - 1, so its trace is at most the
sum of the l - 1 largest eigenvalues. The objective of k-means is then at least the sum of all other
eigenvalues (C. Ding and X. He, "K-means clustering via principal component analysis", ICML 2004,
theorem 3.1; H. Zha et al., "Spectral relaxation for k-means clustering", NIPS 2001).

For more than d clusters the bound is 0. Bounds of all rounding errors are subtracted.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.kernels.spectrum import ScatterSums, eigenvalues

MOST_FEATURES = 256
"""Maximum number of features for which bounds are computed; the scatter matrix takes d^2 / 2
products per row."""

Floats = NDArray[np.float64]


def lower_bounds(passes: Passes, n_clusters: int) -> Floats:
    """Return (k,) lower bounds of the k-means objective for 1 to k clusters, in one pass.

    Bounds do not increase with the number of clusters. For one cluster, the bound is the objective
    minus the rounding error. Bounds are 0 for more than d clusters. For sparse rows or more than
    ``MOST_FEATURES`` features, all bounds are 0 and no pass is made.
    """
    d = passes.n_features
    if passes.is_sparse or d > MOST_FEATURES:
        return np.zeros(n_clusters)
    total: ScatterSums = passes.reduce(
        scatter_chunk,
        passes.statistics.shift,
        start=partial(ScatterSums, d),
        combine=ScatterSums.merge,
    )
    return spectral_bounds(*total.matrix(), n_clusters)


def scatter_chunk(chunk: Chunk, total: ScatterSums, shift: NDArray[Any]) -> None:
    total.add(chunk.x, chunk.weight, shift)


def scatter_sums(x: NDArray[Any], weight: Floats | None, shift: NDArray[Any]) -> ScatterSums:
    """Return the scatter sums of rows (n, d) in memory, bit-identical to those of a pass."""
    total = ScatterSums(x.shape[1])
    total.add(x, weight, shift)
    return total


def spectral_bounds(scatter: Floats, error: float, n_clusters: int) -> Floats:
    """Return (k,) sums of all eigenvalues but the 0, ..., k - 1 largest, minus error bounds.

    ``scatter`` (d, d) is relative to the mean, and ``error`` bounds the Frobenius norm of its
    error. The sums are nonnegative and do not increase.
    """
    d = len(scatter)
    out = np.zeros(n_clusters)
    if not np.isfinite(error) or not np.isfinite(scatter).all():
        return out
    values, own = eigenvalues(scatter)
    off = error + own
    left, size = 0.0, 0.0
    for i in range(d - 1, -1, -1):
        left += values[i]
        size += abs(values[i])
        if i < n_clusters:
            # Cauchy-Schwarz bound for these eigenvalues, plus the rounding error of their sum.
            lost = sqrt(d - i) * off + (d - i) * 2.0**-52 * size
            out[i] = max(0.0, left - lost * (1 + 2.0**-20))
    # A bound for more clusters also holds for fewer.
    return np.maximum.accumulate(out[::-1])[::-1].copy()
