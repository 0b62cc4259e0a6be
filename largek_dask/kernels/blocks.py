"""Rows in memory: dense arrays, or blocks of sparse rows (CSR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.jit import njit
from largek_dask.kernels.threads import on_slices

Array = NDArray[Any]
Scalar = TypeVar("Scalar", bound=np.generic)


def readonly(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return a read-only view, so that kernels are compiled only for read-only arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, eq=False)
class SparseBlock:
    """Rows of a CSR matrix, with ascending and unique column indices within each row.

    A block is indexed like a dense array: by a slice, a mask or an array of row numbers. A single
    row number returns that row as a dense array.
    """

    data: Array
    """(n_stored,) stored values."""
    indices: NDArray[np.int32]
    """(n_stored,) column index of each stored value."""
    indptr: NDArray[np.int64]
    """(n + 1,) start of each row in ``data`` and ``indices``."""
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
        """Total size of the three arrays, in bytes."""
        return self.data.nbytes + self.indices.nbytes + self.indptr.nbytes

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def stored(self) -> slice:
        """Slice of ``data`` and ``indices`` that holds the values of these rows."""
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
        """Return read-only values (as ``dtype`` if given), column indices and row starts."""
        data = self.data.astype(self.dtype if dtype is None else dtype, copy=False)
        return readonly(data), readonly(self.indices), readonly(self.indptr)

    def astype(self, dtype: Any, copy: bool = False) -> SparseBlock:
        """Return the rows with values of type ``dtype``, without a copy if possible."""
        if self.data.dtype == dtype and not copy:
            return self
        return SparseBlock(self.data.astype(dtype), self.indices, self.indptr, self.n_features)

    def toarray(self) -> Array:
        """Return the rows as a dense (n, d) array."""
        out = np.zeros(self.shape, self.dtype)
        out[self.row_numbers(), self.indices[self.stored]] = self.data[self.stored]
        return out

    def row_numbers(self) -> NDArray[np.int64]:
        """Return the (n_stored,) row number of every stored value."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def with_rows_zero(self, rows: NDArray[np.bool_]) -> SparseBlock:
        """Return a copy in which all stored values of the masked rows are 0."""
        data = self.data.copy()
        data[self.stored][rows[self.row_numbers()]] = 0
        return SparseBlock(data, self.indices, self.indptr, self.n_features)


def _as_bits(data: Array) -> Array:
    """View values as unsigned integers, so that all types of one size share a kernel."""
    return data.view(f"u{data.dtype.itemsize}")


@njit
def _copy_rows(data, indices, indptr, rows, into, out, columns):
    for i in range(rows.shape[0]):
        begin, at = indptr[rows[i]], into[i]
        for p in range(into[i + 1] - at):
            out[at + p] = data[begin + p]
            columns[at + p] = indices[begin + p]


Table = Array | SparseBlock
"""(n, d) dense or sparse rows."""


def dense_rows(x: Table) -> Array:
    """Return the rows as a dense (n, d) array."""
    return x.toarray() if isinstance(x, SparseBlock) else x


def sparse_rows(x: Array) -> SparseBlock:
    """Convert a dense (n, d) array to sparse rows."""
    x = readonly(np.ascontiguousarray(x))
    indptr, columns = np.zeros(len(x) + 1, np.int64), np.empty(x.size + 1, np.int32)
    # Pages of `columns` that are never written use no memory.
    _find_stored(x, indptr, columns)
    data = np.empty(indptr[-1], x.dtype)
    _take_stored(x, readonly(indptr), readonly(columns), data)
    return SparseBlock(data, columns[: indptr[-1]].copy(), indptr, x.shape[1])


@njit
def _find_stored(x, indptr, columns):
    n = 0
    for j in range(x.shape[0]):
        for f in range(x.shape[1]):
            # Write unconditionally: a branch is slower if many values are not 0.
            columns[n] = f
            n += x[j, f] != 0
        indptr[j + 1] = n


@njit
def _take_stored(x, indptr, columns, out):
    for j in range(x.shape[0]):
        for p in range(indptr[j], indptr[j + 1]):
            out[p] = x[j, columns[p]]


def rows_at(x: Table, places: NDArray[Any], n_threads: int = 1) -> Any:
    """Return ``x[places]``; for dense rows ``take`` is several times faster than indexing."""
    if isinstance(x, SparseBlock):
        return x[places]
    out = np.empty((len(places), x.shape[1]), x.dtype)
    # With mode "clip", numpy needs no buffer.
    on_slices(n_threads, lambda at: x.take(places[at], 0, out[at], "clip"), *out.shape)
    return out


def stack_rows(parts: Sequence[Table]) -> Table:
    """Concatenate blocks of rows into read-only arrays."""
    blocks = [part for part in parts if isinstance(part, SparseBlock)]
    if not blocks:
        return readonly(np.concatenate([dense_rows(part) for part in parts]))
    # If any part is sparse, every dense part is empty.
    lengths = np.concatenate([np.diff(part.indptr) for part in blocks])
    return SparseBlock(
        readonly(np.concatenate([part.data[part.stored] for part in blocks])),
        readonly(np.concatenate([part.indices[part.stored] for part in blocks])),
        readonly(np.concatenate([[0], np.cumsum(lengths)])),
        blocks[0].n_features,
    )
