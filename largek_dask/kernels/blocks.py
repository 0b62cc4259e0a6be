"""Rows in memory: dense arrays, or blocks of sparse ones (CSR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.jit import njit

Array = NDArray[Any]
Scalar = TypeVar("Scalar", bound=np.generic)


def readonly(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a read-only view, so that kernels are compiled for read-only arrays alone."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False)
class SparseBlock:
    """Some rows of a CSR matrix; within a row columns ascend, each at most once.

    Takes a slice, a mask or an array of row numbers as an index, like the array it stands for; a
    single row number gives that row with all its zeros.
    """

    data: Array
    """(n_stored,) numbers."""
    indices: NDArray[np.int32]
    """(n_stored,) their columns."""
    indptr: NDArray[np.int64]
    """(n + 1,) start of each row's numbers."""
    n_features: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns (n, d)."""
        return len(self), self.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all three arrays."""
        return self.data.nbytes + self.indices.nbytes + self.indptr.nbytes

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def stored(self) -> slice:
        """Slice of `data` and `indices` that holds the numbers of these rows."""
        return slice(int(self.indptr[0]), int(self.indptr[-1]))

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int | np.integer):
            return self[[rows]].toarray()[0]
        if isinstance(rows, slice) and rows.step in (None, 1):
            begin, end, _ = rows.indices(len(self))
            indptr = self.indptr[begin : max(begin, end) + 1]
            return SparseBlock(self.data, self.indices, indptr, self.n_features)
        chosen = np.arange(len(self))[rows]
        indptr = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(self.indptr[chosen + 1] - self.indptr[chosen], out=indptr[1:])
        data, indices = np.empty(indptr[-1], self.dtype), np.empty(indptr[-1], np.int32)
        numbers, columns, begins = self.parts()
        into = readonly(chosen), readonly(indptr), _as_bits(data), indices
        _copy_rows(_as_bits(numbers), columns, begins, *into)
        return SparseBlock(data, indices, indptr, self.n_features)

    def parts(self, dtype: Any = None) -> tuple[Array, Array, Array]:
        """Return read-only numbers, in another type if one is given, columns and starts of rows."""
        data = self.data.astype(self.dtype if dtype is None else dtype, copy=False)
        return readonly(data), readonly(self.indices), readonly(self.indptr)

    def astype(self, dtype: Any, copy: bool = False) -> SparseBlock:
        """Return the same rows in another type; for the same type a copy only on request."""
        if self.data.dtype == dtype and not copy:
            return self
        return SparseBlock(self.data.astype(dtype), self.indices, self.indptr, self.n_features)

    def toarray(self) -> Array:
        """Return (n, d) rows with all their zeros."""
        out = np.zeros(self.shape, self.dtype)
        out[self.row_numbers(), self.indices[self.stored]] = self.data[self.stored]
        return out

    def row_numbers(self) -> NDArray[np.int64]:
        """Return (n_stored,) row of every stored number."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def with_rows_zero(self, rows: NDArray[np.bool_]) -> SparseBlock:
        """Return the same rows with zeros stored where the mask is set."""
        data = self.data.copy()
        data[self.stored][rows[self.row_numbers()]] = 0
        return SparseBlock(data, self.indices, self.indptr, self.n_features)


def _as_bits(data: Array) -> Array:
    """View the same memory as unsigned integers: there is one kernel for all types of a size."""
    return data.view(f"u{data.dtype.itemsize}")


@njit
def _copy_rows(data, indices, indptr, rows, into, out, columns):
    """Copy stored numbers of some rows, one row after the other."""
    for i in range(rows.shape[0]):
        begin, at = indptr[rows[i]], into[i]
        for p in range(into[i + 1] - at):
            out[at + p] = data[begin + p]
            columns[at + p] = indices[begin + p]


Table = Array | SparseBlock
"""Rows: a dense (n, d) array, or sparse."""


def dense_rows(x: Table) -> Array:
    """Return the rows as a dense (n, d) array."""
    return x.toarray() if isinstance(x, SparseBlock) else x


def sparse_rows(x: Array) -> SparseBlock:
    """Return the rows of a dense (n, d) array as sparse ones."""
    x = readonly(np.ascontiguousarray(x))
    indptr, columns = np.zeros(len(x) + 1, np.int64), np.empty(x.size + 1, np.int32)
    # Pages of `columns` that are not written to take no memory.
    _find_stored(x, indptr, columns)
    data = np.empty(indptr[-1], x.dtype)
    _take_stored(x, readonly(indptr), readonly(columns), data)
    return SparseBlock(data, columns[: indptr[-1]].copy(), indptr, x.shape[1])


@njit
def _find_stored(x, indptr, columns):
    n = 0
    for j in range(x.shape[0]):
        for f in range(x.shape[1]):
            # Always written: a branch takes longer if many numbers are not 0.
            columns[n] = f
            n += x[j, f] != 0
        indptr[j + 1] = n


@njit
def _take_stored(x, indptr, columns, out):
    for j in range(x.shape[0]):
        for p in range(indptr[j], indptr[j + 1]):
            out[p] = x[j, columns[p]]


def rows_at(x: Table, places: NDArray[Any]) -> Any:
    """Return ``x[places]``; for dense rows ``take`` is several times faster than indexing."""
    return x[places] if isinstance(x, SparseBlock) else x.take(places, axis=0)


def stack_rows(parts: Sequence[Table]) -> Table:
    """Concatenate rows, in read-only arrays."""
    blocks = [part for part in parts if isinstance(part, SparseBlock)]
    if not blocks:
        return readonly(np.concatenate([dense_rows(part) for part in parts]))
    # A dense part among sparse ones has no rows.
    lengths = np.concatenate([np.diff(part.indptr) for part in blocks])
    return SparseBlock(
        readonly(np.concatenate([part.data[part.stored] for part in blocks])),
        readonly(np.concatenate([part.indices[part.stored] for part in blocks])),
        readonly(np.concatenate([[0], np.cumsum(lengths)])),
        blocks[0].n_features,
    )
