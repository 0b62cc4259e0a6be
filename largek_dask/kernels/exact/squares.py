"""Squared lengths of rows, and exact sums of the squares of each feature."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.exact.numbers import BLOCK_VALUES, N_LIMBS, ExactSums
from largek_dask.kernels.exact.scan import scan_floats, scan_weighted
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import NATIVE, native_blocks

_ALL = readonly(np.empty(0, np.int64))


class FeatureSquares:
    """Exact weighted sum, and maximum, of ``(x - shift)^2`` for each feature of dense rows."""

    __slots__ = ("largest", "shift", "sums")

    def __init__(self, shift: NDArray[Any]) -> None:
        self.shift = shift.astype(np.float64)
        self.sums = ExactSums(len(shift))
        self.largest: NDArray[np.float64] = np.zeros(len(shift))
        """(d,) largest square of each feature, among rows of positive weight."""

    @property
    def nbytes(self) -> int:
        return int(self.sums.nbytes + self.largest.nbytes + self.shift.nbytes)

    def add(self, x: NDArray[Any], weight: NDArray[np.float64] | None) -> None:
        """Add (n, d) rows; rows of weight 0 are ignored."""
        if weight is not None and not weight.all():
            x, weight = x[weight > 0], weight[weight > 0]
        limbs = np.zeros((N_LIMBS, len(self.shift)), np.int64)
        least = np.full(len(self.shift), np.inf)
        step = max(1, BLOCK_VALUES // len(self.shift))
        for begin in range(0, len(x), step):
            at = slice(begin, begin + step)
            squares = readonly(np.square(x[at].astype(np.float64) - self.shift))
            if weight is None:
                scan_floats(squares, limbs, least, self.largest)
            else:
                scan_weighted(squares, readonly(weight[at]), limbs, least, self.largest)
        self.sums.add_table(limbs)

    def merge(self, other: FeatureSquares) -> FeatureSquares:
        """Add sums about the same ``shift`` in place, and return ``self``."""
        self.sums.merge(other.sums)
        self.largest = np.maximum(self.largest, other.largest)
        return self


def row_squares(
    x: Table, shift: NDArray[Any], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return (n,) squared norms of ``x - shift`` in float64, for all rows or for ``rows``.

    Squares are added to eight partial sums in turn, because additions to a single sum would have to
    wait for each other.
    """
    chosen = _ALL if rows is None else readonly(rows)
    out = np.empty(len(x) if rows is None else len(rows))
    if isinstance(x, SparseBlock):
        check_origin(shift)
        _sparse_squares(*x.parts(), chosen, out)
        return out
    about = shift.astype(np.float64)
    if rows is not None and x.dtype not in NATIVE:
        return row_squares(x[rows], shift)
    for part, block in native_blocks(x):
        _row_squares(block, about, chosen, out if rows is not None else out[part])
    return out


def check_origin(shift: NDArray[Any]) -> None:
    """Raise ValueError unless the origin is 0, since omitted values of sparse rows are 0."""
    if shift.any():
        raise ValueError("the origin of sparse rows must be 0")


@njit
def _sparse_squares(data, indices, indptr, rows, out):
    lanes = np.empty(8)
    for i in range(out.shape[0]):
        row = rows[i] if rows.shape[0] > 0 else i
        lanes[:] = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            lanes[indices[p] & 7] += np.float64(data[p]) * np.float64(data[p])
        out[i] = _joined(lanes)


@njit
def _row_squares(x, shift, rows, out):
    """Process four rows at a time, which takes 40 % of the time of single rows."""
    n, d = out.shape[0], x.shape[1]
    whole = d // 8 * 8
    lanes = np.empty((4, 8))
    for begin in range(0, n, 4):
        # An incomplete group of four repeats the last row.
        i, j, k, m = begin, min(begin + 1, n - 1), min(begin + 2, n - 1), min(begin + 3, n - 1)
        if rows.shape[0] > 0:
            i, j, k, m = rows[i], rows[j], rows[k], rows[m]
        lanes[:] = 0.0
        for f in range(0, whole, 8):
            for q in range(8):
                about = shift[f + q]
                s, t = np.float64(x[i, f + q]) - about, np.float64(x[j, f + q]) - about
                u, v = np.float64(x[k, f + q]) - about, np.float64(x[m, f + q]) - about
                lanes[0, q] += s * s
                lanes[1, q] += t * t
                lanes[2, q] += u * u
                lanes[3, q] += v * v
        for f in range(whole, d):
            q, about = f - whole, shift[f]
            s, t = np.float64(x[i, f]) - about, np.float64(x[j, f]) - about
            u, v = np.float64(x[k, f]) - about, np.float64(x[m, f]) - about
            lanes[0, q] += s * s
            lanes[1, q] += t * t
            lanes[2, q] += u * u
            lanes[3, q] += v * v
        for row in range(min(4, n - begin)):
            out[begin + row] = _joined(lanes[row])


@njit
def _joined(lanes):
    low = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    return low + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
