"""Exact sums of rows a cluster: no order of adding changes a bit.

Centroid sums are integers on one fixed-point grid chosen once a job. So removing a row undoes
adding it, and neither the chunking, nor the number of workers, nor a restart changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.rows import native_blocks
from largek_dask.kernels.sparse import SparseBlock, Table
from largek_dask.kernels.squares import Squares, check_origin

__all__ = ["ClusterSums", "FixedPoint"]

_MAGIC = 6755399441055744.0  # 1.5 * 2^52
_MAGIC_BITS = 0x4338000000000000  # its bit pattern
_ONES, _INTEGERS, _REALS = 0, 1, 2  # what row weights are
_MAX_INTEGER_TOTAL = 36
_NO_WEIGHT = readonly(np.empty(0))


@dataclass(frozen=True, eq=False, slots=True)
class FixedPoint:
    """The grid of a job's sums: ``x - shift`` in steps of 2^-bits, weights of 2^-weight_bits.

    Overflow is impossible. Let A = max|x - shift|, W the total weight, N the number of rows, and
    2^a, 2^v, 2^m the powers of two not below A, W and the largest weight.

    * A row is rounded to ``q = round((x - shift) 2^bits)`` with ``bits <= 50 - a``, so
      ``|q| <= 2^50``, inside the range |q| < 2^51 where adding 1.5 * 2^52 in float64 rounds to the
      nearest integer.
    * Rows of weight 1 and of integer weight w add ``w q``: with ``bits <= 61 - v - a`` the total is
      at most ``W (A 2^bits + 1/2) <= 2^61 + 2^(v-1) < 2^62``, since integer weights are taken as
      such only if v <= 36 (which also leaves a row 25 bits); the total of the weights is below
      2^36.
    * Other weights add ``round(w (x - shift) 2^bits)`` with ``bits <= 50 - m - a`` (the same magic
      range) and ``bits <= 60 - v - a``: a total of at most ``2^60 (1 + 2^-51) + N / 2 < 2^62`` for
      N < 2^61. The weights themselves, ``round(w 2^weight_bits)`` with
      ``weight_bits <= min(50 - m, 60 - v)``, likewise.
    * Integer data with an integer shift need no rounding: bits = 0 whenever ``A <= 2^50`` and
      ``W A <= 2^62``.

    A cluster's sum is the sum over a subset of the rows, so it is bounded alike. What is met on
    the way (rows added twice before one is removed, partial sums of any order) may wrap around:
    addition modulo 2^64 is associative and commutative, so the final value is right whenever it
    is in range. The bounds hold for the rows the grid was chosen for, and only for them.
    """

    shift: NDArray[Any]
    """(d,) origin in the coordinates of the data, compute dtype."""
    bits: int
    """A feature counts steps of 2^-bits."""
    weight_bits: int
    """A weight counts steps of 2^-weight_bits; 0 for integer weights."""
    integer_weights: bool
    """Weights are integers (of a total up to 2^36): a row of weight w is w equal rows."""

    @classmethod
    def choose(
        cls,
        shift: NDArray[Any],
        max_abs: float,
        *,
        n_rows: int,
        total_weight: float | None = None,
        max_weight: float = 1.0,
        integer_weights: bool = True,
        integer_data: bool = False,
    ) -> FixedPoint:
        """The finest grid that cannot overflow.

        Parameters
        ----------
        shift : (d,) compute dtype
        max_abs : float
            max|x - shift| over the rows that count, finite.
        n_rows : int
            Rows that count.
        total_weight, max_weight : float
            Sum (rounded) and maximum of their weights; the sum is ``n_rows`` by default.
        integer_weights : bool
            Every weight is an integer.
        integer_data : bool
            Every row, and the shift, is made of integers.
        """
        total = float(n_rows) if total_weight is None else total_weight
        a, v, m = _power(max_abs), _power(total), _power(max_weight)
        integer_weights = integer_weights and v <= _MAX_INTEGER_TOTAL
        if integer_weights:
            weight_bits = 0
            bits = 0 if integer_data and a <= 50 and a + v <= 62 else min(50 - a, 61 - v - a)
        else:
            weight_bits = _clip(min(50 - m, 60 - v))
            bits = min(50 - m - a, 60 - v - a)
        return cls(shift, _clip(bits), weight_bits, integer_weights)


def _power(value: float) -> int:
    """The least e with value <= 2^e (0 for 0); one more where value was rounded down."""
    return int(np.frexp(value)[1]) if value > 0 else 0


def _clip(bits: int) -> int:
    """So that 2^bits and 2^-bits are ordinary float64."""
    return max(-1000, min(1000, bits))


class ClusterSums:
    """Exact sums and weights of the rows of k clusters.

    Parameters
    ----------
    n_clusters, n_features : int
    grid : FixedPoint
        Chosen for the rows that will be added.
    """

    __slots__ = ("_weights", "grid", "sums")

    def __init__(self, n_clusters: int, n_features: int, grid: FixedPoint) -> None:
        if grid.shift.shape != (n_features,):
            raise ValueError(f"the grid has {len(grid.shift)} features, not {n_features}")
        self.grid = grid
        self.sums: NDArray[np.int64] = np.zeros((n_clusters, n_features), np.int64)
        """(k, d) sums of ``weight * (x - shift)`` in steps of 2^-grid.bits."""
        self._weights: NDArray[np.int64] = np.zeros(n_clusters, np.int64)

    @classmethod
    def of(
        cls, sums: NDArray[np.int64], weights: NDArray[np.int64], grid: FixedPoint
    ) -> ClusterSums:
        """An accumulator that goes on from copies of another one's ``sums`` and ``weights``."""
        out = cls(sums.shape[0], sums.shape[1], grid)
        out.sums += sums
        out._weights += weights
        return out

    @property
    def weights(self) -> NDArray[np.int64]:
        """(k,) total weights in steps of 2^-grid.weight_bits."""
        return self._weights

    @property
    def nbytes(self) -> int:
        """Bytes of the sums."""
        return self.sums.nbytes + self._weights.nbytes

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) total weight of each cluster's rows."""
        return self._weights.astype(np.float64) * 2.0**-self.grid.weight_bits

    def add(
        self, x: Table, labels: NDArray[np.int32], weight: NDArray[np.float64] | None = None
    ) -> None:
        """Add (n, d) rows to the clusters of their labels; label -1 leaves a row out."""
        self._change(x, None, labels, weight)

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
        """Add another accumulator of the same grid into this one, which is returned."""
        self.sums += other.sums
        self._weights += other._weights
        return self

    def means(self, fallback: NDArray[Any]) -> NDArray[Any]:
        """(k, d) means in the coordinates of the data, compute dtype.

        Empty clusters keep their row of ``fallback``.
        """
        return self.means_float64(fallback).astype(self.grid.shift.dtype)

    def means_float64(self, fallback: NDArray[Any]) -> NDArray[np.float64]:
        """(k, d) means before they are rounded to the compute dtype."""
        weights = self._weights[:, None]
        step = 2.0 ** (self.grid.weight_bits - self.grid.bits)
        # in place: of sparse rows the centres are what is large
        means: NDArray[np.float64] = self.sums / np.maximum(weights, 1)
        means *= step
        means += self.grid.shift.astype(np.float64)
        empty = self._weights <= 0
        means[empty] = fallback[empty]
        return means

    def cost(self, centers: NDArray[Any], squares: Squares) -> float:
        """Inertia of the rows added here if each belongs to its label's row of ``centers``.

        Parameters
        ----------
        centers : (k, d)
            In the coordinates of the data; they need not be the means.
        squares : Squares
            Sum of ``weight * ||x - shift||^2`` of the same rows.

        Notes
        -----
        ``sum w ||x - shift||^2 - 2 sum_j c_j . S_j + sum_j W_j ||c_j||^2`` loses digits where
        clusters are tight beside the extent of the data; the exact figure is the sum of the
        distances themselves.
        """
        linear, quadratic = _cost_terms(
            readonly(np.ascontiguousarray(centers)),
            self.grid.shift.astype(np.float64),
            self.sums,
            self._weights,
            2.0**-self.grid.bits,
            2.0**-self.grid.weight_bits,
        )
        return max(0.0, float(squares.value - 2.0 * linear + quadratic))

    def _change(self, x: Any, old: Any, new: Any, weight: Any) -> None:
        if weight is None:
            kind = _ONES
        else:
            kind = _INTEGERS if self.grid.integer_weights else _REALS
        nowhere = readonly(np.full(len(x) if old is None or new is None else 0, -1, np.int32))
        old = nowhere if old is None else readonly(old)
        new = nowhere if new is None else readonly(new)
        weight = _NO_WEIGHT if weight is None else readonly(weight)
        scales = 2.0**self.grid.bits, 2.0**self.grid.weight_bits
        totals = self.sums, self._weights
        if isinstance(x, SparseBlock):
            check_origin(self.grid.shift)
            stored = readonly(x.data), readonly(x.indices), readonly(x.indptr)
            _change_sparse(*stored, old, new, weight, kind, *scales, *totals)
            return
        shift = self.grid.shift.astype(np.float64)
        for rows, block in native_blocks(x):
            _change(block, old[rows], new[rows], weight[rows], kind, shift, *scales, *totals)


@njit
def _change(
    x: Any,
    old: Any,
    new: Any,
    weight: Any,
    kind: Any,
    shift: Any,
    scale: Any,
    weight_scale: Any,
    sums: Any,
    weights: Any,
) -> None:
    """Take rows out of their old clusters and put them into their new ones."""
    n, d = x.shape
    row = np.empty(d, np.int64)
    for i in range(n):
        a, b = old[i], new[i]
        if a == b:
            continue
        if kind == _REALS:
            w = np.float64(weight[i] * weight_scale + _MAGIC).view(np.int64) - _MAGIC_BITS
            for f in range(d):
                t = weight[i] * (np.float64(x[i, f]) - shift[f]) * scale + _MAGIC
                row[f] = np.float64(t).view(np.int64) - _MAGIC_BITS
        else:
            for f in range(d):
                t = (np.float64(x[i, f]) - shift[f]) * scale + _MAGIC
                row[f] = np.float64(t).view(np.int64) - _MAGIC_BITS
            w = np.int64(weight_scale if kind == _ONES else weight[i])
            if kind == _INTEGERS:
                for f in range(d):
                    row[f] *= w
        if a >= 0:
            weights[a] -= w
            for f in range(d):
                sums[a, f] -= row[f]
        if b >= 0:
            weights[b] += w
            for f in range(d):
                sums[b, f] += row[f]


@njit
def _change_sparse(
    data: Any,
    indices: Any,
    indptr: Any,
    old: Any,
    new: Any,
    weight: Any,
    kind: Any,
    scale: Any,
    weight_scale: Any,
    sums: Any,
    weights: Any,
) -> None:
    """As `_change` about the origin, where numbers that are not stored add nothing."""
    for i in range(indptr.shape[0] - 1):
        a, b = old[i], new[i]
        if a == b:
            continue
        if kind == _REALS:
            w = np.float64(weight[i] * weight_scale + _MAGIC).view(np.int64) - _MAGIC_BITS
        else:
            w = np.int64(weight_scale if kind == _ONES else weight[i])
        if a >= 0:
            weights[a] -= w
        if b >= 0:
            weights[b] += w
        for p in range(indptr[i], indptr[i + 1]):
            value = np.float64(data[p])
            if kind == _REALS:
                t = weight[i] * value * scale + _MAGIC
                steps = np.float64(t).view(np.int64) - _MAGIC_BITS
            else:
                t = value * scale + _MAGIC
                steps = (np.float64(t).view(np.int64) - _MAGIC_BITS) * w
            if a >= 0:
                sums[a, indices[p]] -= steps
            if b >= 0:
                sums[b, indices[p]] += steps


@njit
def _cost_terms(
    centers: Any, shift: Any, sums: Any, weights: Any, step: Any, weight_step: Any
) -> Any:
    """``sum_j c_j . S_j`` and ``sum_j W_j ||c_j||^2`` about the shift, in order."""
    linear, quadratic = 0.0, 0.0
    for j in range(centers.shape[0]):
        dot, norm = 0.0, 0.0
        for f in range(centers.shape[1]):
            c = np.float64(centers[j, f]) - shift[f]
            dot += c * np.float64(sums[j, f])
            norm += c * c
        linear += dot
        quadratic += norm * (np.float64(weights[j]) * weight_step)
    return linear * step, quadratic
