"""Extrapolate cluster means from expected changes, and move means part of the way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.jit import njit

LEAST_SHARE = 0.3
"""A cluster moves to its plain mean if its expected weight is at most this fraction of its current
weight."""


class ExpectedChange:
    """Expected change of sums and weights due to rows that were not visited recently.

    The estimate is an exponentially weighted mean of the changes per round, times a factor.

    Parameters
    ----------
    sums : (k, d) float64
        Relative to the grid's shift.
    weights : (k,) float64
    """

    __slots__ = ("live", "sums", "weights")

    def __init__(self, sums: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        self.sums = sums
        self.weights = weights
        self.live: NDArray[np.bool_] = (weights != 0) | sums.any(axis=1)
        """(k,) mask of clusters with expected changes."""

    @classmethod
    def nothing(cls, k: int, d: int) -> ExpectedChange:
        return cls(np.zeros((k, d)), np.zeros(k))

    def clear(self) -> None:
        self.sums[self.live] = 0.0
        self.weights[:] = 0.0
        self.live[:] = False

    def move(
        self,
        centers: NDArray[Any],
        sums: ClusterSums,
        change: ClusterSums | None,
        touched: NDArray[np.bool_],
        smoothing: float,
        factor: float,
    ) -> None:
        """Add the changes of one round, and write the expected means to ``centers``.

        The expected changes of sums, A, are updated by ``A <- (1 - smoothing) A + smoothing factor
        change``, and the expected changes of weights, alpha, in the same way. The mean is ``(S + A)
        / (v + alpha)``, or the plain mean ``S / v`` if no change is expected or if the cluster
        would lose most of its weight. A cluster without weight keeps its centre. All computation is
        in float64.

        Parameters
        ----------
        centers : (k, d)
            Updated for clusters that are ``touched`` or have expected changes.
        sums : ClusterSums
            S and v, including ``change``.
        change : ClusterSums or None
            None if there is no change and none is expected (``factor`` is 0).
        touched : (k,) bool
            Clusters that the round has changed; ``change`` is 0 elsewhere.
        smoothing, factor : float
        """
        grid = sums.grid
        expects = change is not None and factor != 0
        changed = change if change is not None else sums
        _move(
            readonly(sums.totals), readonly(sums.weights), readonly(changed.totals),
            readonly(changed.weights), readonly(touched), 1.0 - smoothing if expects else 0.0,
            smoothing * factor if expects else 0.0, 2.0**-grid.bits, 2.0**-grid.weight_bits,
            grid.shift.astype(np.float64), self.sums, self.weights, self.live, centers,
        )  # fmt: skip


@njit
def _move(
    sums, weights, changes, weight_changes, touched, kept, gain, step, weight_step, shift, ahead,
    weights_ahead, live, centers,
):  # fmt: skip
    for j in range(sums.shape[0]):
        if not (touched[j] or live[j]):
            continue
        if gain != 0.0 or live[j]:
            expected = kept * weights_ahead[j] + gain * (
                np.float64(weight_changes[j]) * weight_step
            )
            any_expected = expected != 0.0
            weights_ahead[j] = expected
            for f in range(sums.shape[1]):
                coming = kept * ahead[j, f] + gain * (np.float64(changes[j, f]) * step)
                any_expected |= coming != 0.0
                ahead[j, f] = coming
            live[j] = any_expected
        if weights[j] <= 0:
            continue
        weight = np.float64(weights[j]) * weight_step
        total = weight + weights_ahead[j]
        if live[j] and total > LEAST_SHARE * weight:
            for f in range(sums.shape[1]):
                mean = (np.float64(sums[j, f]) * step + ahead[j, f]) / total
                centers[j, f] = mean + shift[f]
        else:
            # Results must be bit-identical to those of `ClusterSums.means_float64`.
            divisor, scale = np.float64(weights[j]), step / weight_step
            for f in range(sums.shape[1]):
                centers[j, f] = np.float64(sums[j, f]) / divisor * scale + shift[f]


def moved_means(
    means: NDArray[np.float64], sums: ClusterSums, share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return (k, d) means, each moved part of the way to the cluster mean of ``sums``.

    Parameters
    ----------
    means : (k, d)
    sums : ClusterSums
        Sums of the batch.
    share : (k,)
        Fraction of the way; 0 for clusters that do not move, such as clusters without rows.
    """
    grid = sums.grid
    out = np.empty_like(means)
    _move_means(
        readonly(np.ascontiguousarray(means)), readonly(sums.totals), readonly(sums.weights),
        readonly(share), 2.0 ** (grid.weight_bits - grid.bits), grid.shift.astype(np.float64), out,
    )  # fmt: skip
    return out


@njit
def _move_means(means, sums, weights, share, step, shift, out):
    for j in range(means.shape[0]):
        part, weight = share[j], np.float64(weights[j])
        if part == 0.0:
            for f in range(means.shape[1]):
                out[j, f] = means[j, f]
        else:
            for f in range(means.shape[1]):
                mean = np.float64(sums[j, f]) / weight * step + shift[f]
                out[j, f] = means[j, f] + part * (mean - means[j, f])
