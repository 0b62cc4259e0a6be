"""Squared lengths of rows, and sums of them without any rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.rows import NATIVE, native_blocks

__all__ = ["Squares", "check_origin", "row_squares"]

_ALL = readonly(np.empty(0, np.int64))


class Squares(ExactSums):
    """Sums of squared distances or norms, without rounding: one far outlier hides nothing.

    ``add``, ``remove``, ``merge``, ``value`` and ``values`` are those of :class:`ExactSums`; no
    grid is needed, since no value is too large or too small for it.
    """

    __slots__ = ()

    def add_squares(
        self, x: Table, shift: NDArray[Any], weight: NDArray[np.float64] | None = None
    ) -> None:
        """Add ``weight * ||x - shift||^2`` of (n, d) rows, as :func:`row_squares` finds them."""
        self.add(row_squares(x, shift), weight)


def row_squares(
    x: Table, shift: NDArray[Any], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """(n,) squared norms of ``x - shift`` in float64, of all rows or of ``rows``.

    Features are added in order to eight sums, by their number modulo eight: one sum would wait
    for the addition before, feature after feature.
    """
    chosen = _ALL if rows is None else readonly(rows)
    out = np.empty(len(x) if rows is None else len(rows))
    if isinstance(x, SparseBlock):
        check_origin(shift)
        _sparse_squares(readonly(x.data), readonly(x.indices), readonly(x.indptr), chosen, out)
        return out
    about = shift.astype(np.float64)
    if rows is not None and x.dtype not in NATIVE:
        return row_squares(x[rows], shift)
    for part, block in native_blocks(x):
        _row_squares(block, about, chosen, out if rows is not None else out[part])
    return out


def check_origin(shift: NDArray[Any]) -> None:
    """Refuse sparse rows about anything but 0.

    Of sparse rows the numbers that are not stored are 0, and must stay so.
    """
    if shift.any():
        raise ValueError("sparse rows are summed about 0 only")


@njit
def _sparse_squares(data: Any, indices: Any, indptr: Any, rows: Any, out: Any) -> None:
    lanes = np.empty(8)
    for i in range(out.shape[0]):
        row = rows[i] if rows.shape[0] > 0 else i
        lanes[:] = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            lanes[indices[p] & 7] += np.float64(data[p]) * np.float64(data[p])
        out[i] = _joined(lanes)


@njit
def _row_squares(x: Any, shift: Any, rows: Any, out: Any) -> None:
    d = x.shape[1]
    whole = d // 8 * 8
    lanes = np.empty(8)
    for i in range(out.shape[0]):
        row = rows[i] if rows.shape[0] > 0 else i
        s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for f in range(0, whole, 8):
            t0 = np.float64(x[row, f]) - shift[f]
            t1 = np.float64(x[row, f + 1]) - shift[f + 1]
            t2 = np.float64(x[row, f + 2]) - shift[f + 2]
            t3 = np.float64(x[row, f + 3]) - shift[f + 3]
            t4 = np.float64(x[row, f + 4]) - shift[f + 4]
            t5 = np.float64(x[row, f + 5]) - shift[f + 5]
            t6 = np.float64(x[row, f + 6]) - shift[f + 6]
            t7 = np.float64(x[row, f + 7]) - shift[f + 7]
            s0 += t0 * t0
            s1 += t1 * t1
            s2 += t2 * t2
            s3 += t3 * t3
            s4 += t4 * t4
            s5 += t5 * t5
            s6 += t6 * t6
            s7 += t7 * t7
        lanes[0], lanes[1], lanes[2], lanes[3] = s0, s1, s2, s3
        lanes[4], lanes[5], lanes[6], lanes[7] = s4, s5, s6, s7
        for f in range(whole, d):
            difference = np.float64(x[row, f]) - shift[f]
            lanes[f - whole] += difference * difference
        out[i] = _joined(lanes)


@njit
def _joined(lanes: Any) -> Any:
    """Eight sums in one, in a fixed order."""
    low = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    return low + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
