"""Exact sums of rows per cluster: no order of adding changes a bit.

Centroid sums are integers on one fixed-point grid chosen once per job. So removing a row undoes
adding it, and neither the chunking, nor the number of workers, nor a restart changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.exact.fixed_point import LOW_SCALE, FixedPoint
from largek_dask.kernels.exact.movement import center_terms
from largek_dask.kernels.exact.squares import check_origin
from largek_dask.kernels.exact.sum_loops import (
    adding,
    change,
    changes,
    first_refused,
    merge_low,
    refusal,
    rounding,
    weights_of,
)
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import native_blocks

__all__ = ["ClusterSums", "FixedPoint", "RoundedRows"]


@dataclass(frozen=True, slots=True, eq=False)
class RoundedRows:
    """``weight * (x - shift)`` of rows, and their weights, in whole steps of a grid.

    Rounding a row costs several times as much as adding it. Rows that are labelled by one partition
    after the other are rounded once, a block at a time that stays in the processor's cache.
    """

    steps: NDArray[np.int64]
    """(n, d)"""
    weights: NDArray[np.int64]
    """(n,)"""
    low_steps: NDArray[np.int64]
    """(n, d) rest below whole steps, in a wide grid; else (0, d)."""
    low_weights: NDArray[np.int64]
    """(n,) or (0,)"""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.steps)

    @classmethod
    def of(
        cls, x: NDArray[Any], weight: NDArray[np.float64] | None, grid: FixedPoint
    ) -> RoundedRows:
        """Round (n, d) rows of any real type.

        Parameters
        ----------
        x : (n, d)
            Rows of weight 0 may hold anything: they add nothing.
        weight : (n,) float64 or None
            None: every row weighs 1.
        grid : FixedPoint
            Chosen for these rows.

        Raises
        ------
        ValueError
            A weight that the grid cannot represent (see ``ClusterSums.add``).
        """
        n, d = x.shape
        n_low = n if grid.wide else 0
        steps, low_steps = np.empty((n, d), np.int64), np.empty((n_low, d), np.int64)
        weights, low_weights = np.empty(n, np.int64), np.empty(n_low, np.int64)
        known, kind = weights_of(weight, n, grid)
        scales = 2.0**grid.bits, 2.0**grid.weight_bits
        refused = int(first_refused(known, kind, scales[1], grid.wide))
        if refused >= 0:
            raise refusal(refused, known, grid)
        shift, run = grid.shift.astype(np.float64), rounding(grid.wide)
        for at, block in native_blocks(x):
            out = (part[at] for part in (steps, weights, low_steps, low_weights))
            run(block, known[at], kind, shift, *scales, *out)
        return cls(steps, weights, low_steps, low_weights)


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
            raise ValueError(f"the grid has {len(grid.shift)} features, not {n_features}")
        self.grid = grid
        self.sums: NDArray[np.int64] = np.zeros((n_clusters, n_features), np.int64)
        """(k, d) sums of ``weight * (x - shift)`` in whole steps of 2^-grid.bits."""
        self._weights: NDArray[np.int64] = np.zeros(n_clusters, np.int64)
        # low limb of wide sums, in [0, 2^50)
        n_low = n_clusters if grid.wide else 0
        self._low: NDArray[np.int64] = np.zeros((n_low, n_features), np.int64)
        self._low_weights: NDArray[np.int64] = np.zeros(n_low, np.int64)

    @classmethod
    def of(
        cls, sums: NDArray[np.int64], weights: NDArray[np.int64], grid: FixedPoint
    ) -> ClusterSums:
        """Return an accumulator that continues from copies of another one's :meth:`limbs`."""
        out = cls(sums.shape[-2], sums.shape[-1], grid)
        if grid.wide:
            out.sums[:], out._low[:] = sums
            out._weights[:], out._low_weights[:] = weights
        else:
            out.sums[:], out._weights[:] = sums, weights
        return out

    def limbs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all arrays to keep: sums (k, d) and weights (k,); for wide ones two of each."""
        if not self.grid.wide:
            return self.sums, self._weights
        return np.stack([self.sums, self._low]), np.stack([self._weights, self._low_weights])

    def part(self, clusters: slice) -> ClusterSums:
        """Return a copy for some of the clusters."""
        sums, weights = self.limbs()
        return ClusterSums.of(sums[..., clusters, :], weights[..., clusters], self.grid)

    @property
    def totals(self) -> NDArray[Any]:
        """(k, d) sums of ``weight * (x - shift)`` in steps of 2^-grid.bits; wide ones rounded."""
        return _joined(self.sums, self._low) if self.grid.wide else self.sums

    @property
    def weights(self) -> NDArray[Any]:
        """(k,) total weights in steps of 2^-grid.weight_bits; wide ones rounded."""
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
        """Add (n, d) rows to the clusters of their labels; label -1 leaves a row out.

        Raises
        ------
        ValueError
            A weight that is no whole number of the grid's steps, to the precision required of rows
            of any weight: for integer weights a fraction, else one too large or too small for the
            rows of the grid. Nothing is added then. The same holds for ``remove`` and ``move``.
        """
        self._change(x, None, labels, weight)

    def add_rounded(self, rows: RoundedRows, labels: NDArray[np.int32], first: int = 0) -> None:
        """Add rows that are rounded to this grid to clusters ``first + label``; -1: to none.

        As :meth:`add` does, to the bit.

        Raises
        ------
        IndexError
            A label that names no cluster.
        """
        if len(rows) != len(labels):
            raise ValueError(f"{len(rows)} rows need as many labels, got {len(labels)}")
        if len(labels) and first + int(labels.max()) >= len(self.sums):
            raise IndexError(f"labels must name one of {len(self.sums) - first} clusters")
        parts = (rows.steps, rows.weights, rows.low_steps, rows.low_weights, labels)
        totals, low = (self.sums, self._weights), (self._low, self._low_weights)
        adding(self.grid.wide)(*(readonly(part) for part in parts), first, totals, low)

    def remove(
        self, x: Table, labels: NDArray[np.int32], weight: NDArray[np.float64] | None = None
    ) -> None:
        """Undo an :meth:`add` of the same arguments."""
        self._change(x, labels, None, weight)

    def move(
        self,
        x: Table,
        old_labels: NDArray[np.int32],
        new_labels: NDArray[np.int32],
        weight: NDArray[np.float64] | None = None,
    ) -> None:
        """Move the rows whose label differs; the others are not read."""
        self._change(x, old_labels, new_labels, weight)

    def merge(self, other: ClusterSums) -> ClusterSums:
        """Add another accumulator of the same grid to this one, and return it."""
        self.sums += other.sums
        self._weights += other._weights
        if self.grid.wide:
            merge_low(self.sums, self._low, other._low)
            merge_low(self._weights, self._low_weights, other._low_weights)
        return self

    def means(self, fallback: NDArray[Any]) -> NDArray[Any]:
        """Return (k, d) means in the coordinates of the data, compute dtype.

        Empty clusters keep their row of ``fallback``.
        """
        return self._means(fallback, self.grid.shift.dtype)

    def means_float64(self, fallback: NDArray[Any]) -> NDArray[np.float64]:
        """Return (k, d) means before they are rounded to the compute dtype."""
        return self._means(fallback, np.dtype(np.float64))

    def _means(self, fallback: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.empty(self.sums.shape, dtype)
        weights = self.weights
        _write_means(
            self.totals, weights, 2.0 ** (self.grid.weight_bits - self.grid.bits),
            self.grid.shift.astype(np.float64), out,
        )  # fmt: skip
        empty = weights <= 0
        out[empty] = fallback[empty]
        return out

    def cost(self, centers: NDArray[Any], squares: float) -> float:
        """Return the inertia of the rows added here if each belongs to its label's ``centers``.

        Parameters
        ----------
        centers : (k, d)
            In the coordinates of the data; they need not be the means.
        squares : float
            Sum of ``weight * ||x - shift||^2`` of the same rows.

        Notes
        -----
        ``sum w ||x - shift||^2 - 2 sum_j c_j . S_j + sum_j W_j ||c_j||^2`` loses digits if
        clusters are tight compared with the extent of the data; the exact figure is the sum of the
        distances themselves.
        """
        dot, norm = center_terms(centers, self.grid.shift, self.totals)
        # (added in order)
        linear = np.cumsum(dot)[-1] * 2.0**-self.grid.bits
        return max(0.0, float(squares - 2.0 * linear + np.cumsum(norm * self.counts)[-1]))

    def _change(self, x: Any, old: Any, new: Any, weight: Any) -> None:
        grid = self.grid
        known, kind = weights_of(weight, len(x), grid)
        nowhere = readonly(np.full(len(x) if old is None or new is None else 0, -1, np.int32))
        old = nowhere if old is None else readonly(old)
        new = nowhere if new is None else readonly(new)
        scales = 2.0**grid.bits, 2.0**grid.weight_bits
        refused = -1
        totals, low = (self.sums, self._weights), (self._low, self._low_weights)
        if isinstance(x, SparseBlock):
            check_origin(grid.shift)
            run = changes(True, grid.wide)
            refused = run(x.parts(), old, new, known, kind, *scales, totals, low)
        else:
            shift = grid.shift.astype(np.float64)
            for at, block in native_blocks(x):
                dense = old[at], new[at], known[at], kind
                if grid.wide:
                    run = changes(False, True)
                    refused = run((block, shift), *dense, *scales, totals, low)
                else:
                    refused = change(block, *dense, shift, *scales, *totals)
                if refused >= 0:
                    refused += at.start
                    break
        if refused >= 0:
            self._change(x[:refused], new[:refused], old[:refused], known[:refused])
            raise refusal(refused, known, grid)


def _joined(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return both limbs as one number."""
    out: NDArray[np.float64] = high + low * (1 / LOW_SCALE)
    return out


@njit
def _write_means(totals, weights, step, shift, out):
    """Write means of all clusters with weight: with sparse rows, centres are the large arrays."""
    for j in range(out.shape[0]):
        if weights[j] > 0:
            weight = np.float64(weights[j])
            for f in range(out.shape[1]):
                out[j, f] = np.float64(totals[j, f]) / weight * step + shift[f]
