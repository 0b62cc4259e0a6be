"""Rows of a CSR matrix in a Zarr group, in the layout that AnnData writes.

The group contains ``data``, ``indices`` and ``indptr``, and has the attribute ``shape``
(``h5sparse_shape`` in older files).
"""

from __future__ import annotations

import hashlib
from typing import Any, Unpack

import numpy as np

from largek_dask import config
from largek_dask.data.cf_attributes import refuse_encoded
from largek_dask.data.csr_blocks import block_of, check_columns, sparse_bytes
from largek_dask.data.rows import MAX_CHUNK_ROWS, native_dtype
from largek_dask.data.storage_errors import reading, retry_io
from largek_dask.data.stored_rows import Address, StoredRows, name_node
from largek_dask.data.stores import check_complete, list_stamps, read_stored
from largek_dask.errors import DataError
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.rows import compute_dtype

MIN_CHUNK_ROWS = 256


def is_sparse_group(group: Any) -> bool:
    return all(name in group for name in ("data", "indices", "indptr"))


class CSRRows(StoredRows):
    """Rows of a CSR matrix in a Zarr or HDF5 group.

    If neither the call nor the store gives ``chunk_rows``, a chunk has about
    ``largek.data.read-chunk-bytes`` bytes and at least 256 rows. ``address`` locates the group (see
    ``stored_rows.Address``). Raises DataError if the layout is CSC or the arrays do not match.
    """

    kind = "the CSR group"
    is_sparse = True

    def __init__(
        self, group: Any, *, chunk_rows: int | None = None, **address: Unpack[Address]
    ) -> None:
        what = name_node(self.kind, address.get("location"), address.get("column"))
        self._notes = check_complete(group, what)
        attributes = group.attrs
        kind = str(attributes.get("encoding-type", attributes.get("h5sparse_format", "csr")))
        if "csc" in kind:
            raise DataError(
                f"{what} is stored by columns (CSC) and cannot be read row by row; "
                "write it as CSR, e.g. adata.X = adata.X.tocsr()."
            )
        shape = attributes.get("shape", attributes.get("h5sparse_shape"))
        if shape is None or len(shape) != 2:
            raise DataError(
                f"{what} is a CSR group without the attribute 'shape'; add shape = [rows, columns]."
            )
        self._data, self._indices, self._indptr = (
            group[name] for name in ("data", "indices", "indptr")
        )
        n_rows, n_features = int(shape[0]), int(shape[1])
        if self._indptr.shape != (n_rows + 1,) or self._data.shape != self._indices.shape:
            raise DataError(
                f"{what} is not a valid CSR matrix: for shape {tuple(shape)}, indptr has "
                f"{self._indptr.shape[0]} values, data has {self._data.shape[0]}, and indices has "
                f"{self._indices.shape[0]}; write the group again."
            )
        check_columns(n_features, what)
        refuse_encoded(self._data, what)
        dtype = compute_dtype(native_dtype(self._data.dtype, what))
        self._nbytes = sparse_bytes(n_rows, int(self._data.shape[0]), dtype)
        if chunk_rows is None:
            chunk_rows = self._notes.get("chunk_rows")
        if chunk_rows is None:
            budget = int(config.get("data.read-chunk-bytes"))
            wanted = budget // max(1, self._nbytes // max(1, n_rows))
            chunk_rows = min(max(wanted, MIN_CHUNK_ROWS), MAX_CHUNK_ROWS)
        super().__init__(
            group, shape=(n_rows, n_features), dtype=dtype, chunk_rows=chunk_rows, **address
        )

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def _load(self, i: int, start: int, stop: int) -> SparseBlock:
        with reading(self.name_chunk(i)):
            return retry_io(lambda: self._load_once(start, stop))

    def _load_once(self, start: int, stop: int) -> SparseBlock:
        complete = self._is_complete
        indptr = read_stored(self._indptr, start, stop + 1, complete=complete).astype(np.int64)
        begin, end = int(indptr[0]), int(indptr[-1])
        if not 0 <= begin <= end <= self._data.shape[0]:
            raise ValueError(
                "indptr must start at 0, never decrease, and end at the number of stored values"
            )
        data, indices = (
            read_stored(array, begin, end, complete=complete)
            for array in (self._data, self._indices)
        )
        return block_of(data, indices, indptr - begin, self.n_features)

    def _stamps(self) -> list[str] | None:
        if self.location is None:
            return None
        # All chunks share one stamp, because only indptr shows which stored chunks contain a row.
        listed = list_stamps(self.location, self.column, self.storage_options)
        text = "\n".join(f"{key} {stamp}" for key, stamp in sorted(listed.items()))
        return [hashlib.sha256(text.encode()).hexdigest()[:12]] * self.n_chunks
