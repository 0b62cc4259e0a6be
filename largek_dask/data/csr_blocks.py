"""Convert CSR matrices to blocks with sorted, unique columns, as the kernels require."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import DataError
from largek_dask.kernels.blocks import SparseBlock, readonly
from largek_dask.kernels.rows import compute_dtype

MAX_COLUMNS = 2**31 - 1


def check_columns(n_features: int, what: str) -> None:
    """Raise DataError if there are too many columns for 32-bit indices."""
    if n_features > MAX_COLUMNS:
        raise DataError(
            f"{what} has {n_features:,} columns; sparse rows may have up to {MAX_COLUMNS:,}."
        )


def sparse_bytes(n_rows: int, n_stored: int, dtype: np.dtype[Any]) -> int:
    """Return the size of a :class:`SparseBlock` in bytes."""
    return n_stored * (dtype.itemsize + 4) + (n_rows + 1) * 8


def block_of(data: Any, indices: Any, indptr: Any, n_features: int) -> SparseBlock:
    """Return CSR arrays as a block; arrays are copied only if they must be converted.

    Numbers are converted to the compute dtype and indices to 32 bits. Columns are sorted, and
    duplicates are added up in stored order. Raises ValueError if the arrays are not a CSR matrix
    with ``n_features`` columns.
    """
    data, indices, indptr = np.asarray(data), np.asarray(indices), np.asarray(indptr, np.int64)
    lengths = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != len(data) or (lengths < 0).any():
        raise ValueError(
            "indptr must start at 0, never decrease, and end at the number of stored values"
        )
    if len(indices) and not 0 <= indices.min() <= indices.max() < n_features:
        raise ValueError(f"a column index is outside the range 0 to {n_features - 1}")
    indices = np.ascontiguousarray(indices, np.int32)
    # Values too large for the compute dtype become inf and are reported as bad rows.
    data = np.ascontiguousarray(data, compute_dtype(data.dtype))
    ascending = np.diff(indices) > 0
    edges = indptr[1:-1]
    edges = edges[(edges > 0) & (edges < len(indices))]
    ascending[edges - 1] = True
    if not ascending.all():
        data, indices, indptr = _in_order(data, indices, lengths)
    return SparseBlock(readonly(data), readonly(indices), readonly(indptr), n_features)


def _in_order(
    data: NDArray[Any], indices: NDArray[np.int32], lengths: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int64]]:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((indices, rows))  # stable
    rows, indices = rows[order], indices[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(rows) > 0) | (np.diff(indices) > 0)
    totals = np.zeros(int(first.sum()))
    np.add.at(totals, np.cumsum(first) - 1, data[order].astype(np.float64))
    counts = np.bincount(rows[first], minlength=len(lengths))
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return totals.astype(data.dtype), indices[first], indptr
