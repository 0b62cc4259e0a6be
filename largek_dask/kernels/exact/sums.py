"""Exact sums of rows per cluster, independent of the order of addition.

Sums are integers on a fixed-point grid, which is chosen once per job. So removing a row exactly
undoes adding the row, and results do not depend on chunking, the number of workers or restarts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.exact.fixed_point import LOW_SCALE, FixedPoint
from largek_dask.kernels.exact.movement import center_terms
from largek_dask.kernels.exact.squares import check_origin
from largek_dask.kernels.exact.sum_loops import changes, merge_low, refusal, weights_of
from largek_dask.kernels.rows import native_blocks
from largek_dask.kernels.threads import shared, split


class ClusterSums:
    """Exact sums and weights of the rows of k clusters.

    Parameters
    ----------
    n_clusters, n_features : int
    grid : FixedPoint
        Chosen for the rows that will be added.
    """

    __slots__ = ("_low", "_low_weights", "_weights", "grid", "sums")

    def __init__(self, n_clusters: int, n_features: int, grid: FixedPoint) -> None:
        if grid.shift.shape != (n_features,):
            raise ValueError(f"the grid has {len(grid.shift)} features, expected {n_features}")
        self.grid = grid
        self.sums: NDArray[np.int64] = np.zeros((n_clusters, n_features), np.int64)
        """(k, d) sums of ``weight * (x - shift)`` in whole steps of 2^-grid.bits."""
        self._weights: NDArray[np.int64] = np.zeros(n_clusters, np.int64)
        # Low limbs of wide sums are in [0, 2^50).
        n_low = n_clusters if grid.wide else 0
        self._low: NDArray[np.int64] = np.zeros((n_low, n_features), np.int64)
        self._low_weights: NDArray[np.int64] = np.zeros(n_low, np.int64)

    @classmethod
    def of(
        cls, sums: NDArray[np.int64], weights: NDArray[np.int64], grid: FixedPoint
    ) -> ClusterSums:
        """Create an accumulator from a copy of the :meth:`limbs` of another accumulator."""
        out = cls(sums.shape[-2], sums.shape[-1], grid)
        if grid.wide:
            out.sums[:], out._low[:] = sums
            out._weights[:], out._low_weights[:] = weights
        else:
            out.sums[:], out._weights[:] = sums, weights
        return out

    def limbs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return sums (k, d) and weights (k,), or (2, k, d) and (2, k) if sums have two limbs."""
        if not self.grid.wide:
            return self.sums, self._weights
        return np.stack([self.sums, self._low]), np.stack([self._weights, self._low_weights])

    def part(self, clusters: slice) -> ClusterSums:
        """Return a copy with only some of the clusters."""
        sums, weights = self.limbs()
        return ClusterSums.of(sums[..., clusters, :], weights[..., clusters], self.grid)

    @property
    def totals(self) -> NDArray[Any]:
        """(k, d) sums of ``weight * (x - shift)`` in steps of 2^-grid.bits; float64 if wide."""
        return _joined(self.sums, self._low) if self.grid.wide else self.sums

    @property
    def weights(self) -> NDArray[Any]:
        """(k,) total weights in steps of 2^-grid.weight_bits; float64 if wide."""
        return _joined(self._weights, self._low_weights) if self.grid.wide else self._weights

    @property
    def nbytes(self) -> int:
        """Bytes of the sums."""
        high = self.sums.nbytes + self._weights.nbytes
        return high + self._low.nbytes + self._low_weights.nbytes

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) total weight of each cluster's rows."""
        return self.weights.astype(np.float64) * 2.0**-self.grid.weight_bits

    def add(
        self, x: Table, labels: NDArray[np.int32], weight: NDArray[np.float64] | None = None
    ) -> None:
        """Add (n, d) rows to the clusters of their labels; rows with label -1 are skipped.

        Raises
        ------
        ValueError
            If the grid cannot represent a weight: a fraction on a grid of integer weights, or a
            weight that is too large or too small for other grids. Then nothing is added. The same
            holds for ``move``.
        """
        nowhere = np.full(len(labels), -1, np.int32)
        self.move(x, nowhere, labels, weight)

    def move(
        self,
        x: Table,
        old_labels: NDArray[np.int32],
        new_labels: NDArray[np.int32],
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        """Move rows whose labels have changed to their new clusters; other rows are not read."""
        grid = self.grid
        known, kind = weights_of(weight, len(x), grid)
        old, new = readonly(old_labels), readonly(new_labels)
        scales = 2.0**grid.bits, 2.0**grid.weight_bits
        totals, low = (self.sums, self._weights), (self._low, self._low_weights)
        blocks: Iterable[tuple[slice, Any]]
        if isinstance(x, SparseBlock):
            check_origin(grid.shift)
            blocks = [(slice(None), x.parts())]
        else:
            shift = grid.shift.astype(np.float64)
            blocks = ((at, (block, shift)) for at, block in native_blocks(x))
        run = changes(isinstance(x, SparseBlock), grid.wide)
        refused = -1
        for at, rows in blocks:
            refused = run(rows, old[at], new[at], known[at], kind, *scales, totals, low)
            if refused >= 0:
                refused += at.start or 0
                break
        if refused >= 0:
            self.move(x[:refused], new[:refused], old[:refused], known[:refused])
            raise refusal(refused, known, grid)

    def merge(self, other: ClusterSums) -> ClusterSums:
        """Add an accumulator with the same grid in place, and return ``self``."""
        self.sums += other.sums
        self._weights += other._weights
        if self.grid.wide:
            merge_low(self.sums, self._low, other._low)
            merge_low(self._weights, self._low_weights, other._low_weights)
        return self

    def means(self, fallback: NDArray[Any], n_threads: int = 1) -> NDArray[Any]:
        """Return (k, d) means in data coordinates, in the compute dtype.

        An empty cluster takes its centre from ``fallback``.
        """
        return self._means(fallback, self.grid.shift.dtype, n_threads)

    def means_float64(self, fallback: NDArray[Any]) -> NDArray[np.float64]:
        """Return (k, d) means in float64, not rounded to the compute dtype."""
        return self._means(fallback, np.dtype(np.float64))

    def _means(
        self, fallback: NDArray[Any], dtype: np.dtype[Any], n_threads: int = 1
    ) -> NDArray[Any]:
        out, totals, weights = np.empty(self.sums.shape, dtype), self.totals, self.weights
        step, shift = 2.0 ** (self.grid.weight_bits - self.grid.bits), self.grid.shift.astype("f8")
        rows, n_parts = split(n_threads, *out.shape)
        _write_means(n_threads, n_parts, rows, totals, weights, step, shift, out)
        empty = weights <= 0
        out[empty] = fallback[empty]
        return out

    def cost(self, centers: NDArray[Any], squares: float, n_threads: int = 1) -> float:
        """Return the weighted sum of squared distances of the added rows to their centres.

        Parameters
        ----------
        centers : (k, d)
            Centres in data coordinates; they need not be the means.
        squares : float
            Sum of ``weight * ||x - shift||^2`` of the same rows.

        Notes
        -----
        ``sum w ||x - shift||^2 - 2 sum_j c_j . S_j + sum_j W_j ||c_j||^2`` loses digits if
        clusters are tight compared with the extent of the data; the sum of the squared distances
        themselves is more precise.
        """
        dot, norm = center_terms(centers, self.grid.shift, self.totals, n_threads)
        # Add in order, unlike the sums of numpy.
        linear = np.cumsum(dot)[-1] * 2.0**-self.grid.bits
        return max(0.0, float(squares - 2.0 * linear + np.cumsum(norm * self.counts)[-1]))


def _joined(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.float64]:
    out: NDArray[np.float64] = high + low * (1 / LOW_SCALE)
    return out


@shared
def _write_means(part, thread, rows, totals, weights, step, shift, out):
    for j in range(part * rows, min((part + 1) * rows, out.shape[0])):
        if weights[j] > 0:
            weight = np.float64(weights[j])
            for f in range(out.shape[1]):
                out[j, f] = np.float64(totals[j, f]) / weight * step + shift[f]
