"""Rows of a Zarr array, read in groups of stored chunks; errors name the chunk."""

from __future__ import annotations

import hashlib
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.cf_attributes import refuse_encoded
from largek_dask.data.direct_chunks import DirectChunks
from largek_dask.data.missing_chunks import warn_of_missing
from largek_dask.data.rows import MAX_CHUNK_ROWS, check_table_shape, native_dtype
from largek_dask.data.storage_errors import reading, retry_io
from largek_dask.data.stored_rows import Address, StoredRows, name_node
from largek_dask.data.stores import check_complete, fill_value, list_stamps, read_stored
from largek_dask.errors import DataError

DAMAGED = "the chunk is damaged or its storage is unreachable: write it again, or try later."


def group_chunks(storage_rows: int, row_bytes: int, shard_rows: int | None = None) -> int:
    """Return the number of rows of a group of stored chunks that are read together.

    A group has up to ``largek.data.read-chunk-bytes`` bytes and 65,536 rows, but at least one
    stored chunk. Groups are aligned with shards, so that no group spans parts of two shards.
    """
    budget = int(config.get("data.read-chunk-bytes"))
    group = max(1, min(budget // max(1, storage_rows * row_bytes), MAX_CHUNK_ROWS // storage_rows))
    if shard_rows is not None:
        inner = shard_rows // storage_rows
        if group >= inner:
            group -= group % inner
        else:
            group = max(m for m in range(1, group + 1) if inner % m == 0)
    return storage_rows * group


class ZarrRows(StoredRows):
    """Rows of a two-dimensional Zarr array (v2 or v3) in any storage that fsspec supports.

    Small stored chunks are read in groups (:func:`group_chunks`). A missing chunk is read as fill
    values, as the Zarr format defines, but is an error in a store that ``ingest`` wrote.
    ``shuffled`` is True for stores written with ``shuffle``. ``address`` locates the array (see
    ``stored_rows.Address``).
    """

    kind = "the Zarr array"

    def __init__(
        self, array: Any, *, chunk_rows: int | None = None, **address: Unpack[Address]
    ) -> None:
        what = name_node(self.kind, address.get("location"), address.get("column"))
        check_table_shape(array.shape, what, "dask.array.from_zarr(x)")
        refuse_encoded(array, what)
        dtype = native_dtype(array.dtype, what)
        self._notes = check_complete(array, what)
        self.shuffled = self._notes.get("shuffle") is not None
        self._array = array
        self._direct = DirectChunks.of(array)
        if chunk_rows is None:
            stored = max(1, array.chunks[0])
            shard_rows = None if array.shards is None else array.shards[0]
            chunk_rows = group_chunks(stored, array.shape[1] * dtype.itemsize, shard_rows)
        super().__init__(array, shape=array.shape, dtype=dtype, chunk_rows=chunk_rows, **address)

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        with reading(self.name_chunk(i), DAMAGED):
            return retry_io(lambda: self._load_once(start, stop))

    def _load_once(self, start: int, stop: int) -> NDArray[Any]:
        if self._direct is not None:
            return self._load_direct(self._direct, start, stop)
        return read_stored(self._array, start, stop, complete=self._is_complete)

    def stretch(self, i: int, begin: int, end: int) -> tuple[int, int]:
        # Zarr cannot read less than a stored chunk (in shards, an inner chunk).
        start, stop = self.chunk_rows(i)
        size = max(1, self._array.chunks[0])
        first = (start + begin) // size * size
        last = -(-(start + end) // size) * size
        return max(first, start) - start, min(last, stop) - start

    def read_part(self, i: int, begin: int, end: int) -> Any:
        start, _ = self.chunk_rows(i)
        if begin == end:
            return self._checked(i, np.empty((0, self.n_features), self.dtype), 0)
        return self._checked(i, self._load(i, start + begin, start + end), end - begin)

    def _load_direct(self, direct: DirectChunks, start: int, stop: int) -> NDArray[Any]:
        size = self._array.chunks[0]
        first, last = start // size, (stop - 1) // size
        out: NDArray[Any] | None = None
        for row, stored in enumerate(direct.read(first, last + 1), first):
            if stored is None and self._is_complete:
                raise ValueError(f"{direct.name(row)} is missing")
            begin, end = max(row * size, start), min((row + 1) * size, stop)
            if stored is not None:
                stored = stored[begin - row * size : end - row * size]
                # A view keeps its whole chunk in memory, so return a view only of a whole chunk.
                if first == last and (begin == row * size and end in (begin + size, self.n_rows)):
                    return stored
            if out is None:
                out = np.empty((stop - start, self.n_features), self._array.dtype)
            out[begin - start : end - start] = fill_value(self._array) if stored is None else stored
        assert out is not None
        return out

    def _stamps(self) -> list[str] | None:
        if self.location is None:
            return None
        size, width = self._array.shards or self._array.chunks
        n_columns = -(-self.n_features // width)
        encode = self._array.metadata.encode_chunk_key
        listed = list_stamps(self.location, self.column, self.storage_options)
        stamps = []
        for i in range(self.n_chunks):
            start, stop = self.chunk_rows(i)
            digest = hashlib.sha256()
            for row in range(start // size, (stop - 1) // size + 1):
                for column in range(n_columns):
                    digest.update(listed.get(encode((row, column)), "-").encode())
            stamps.append(digest.hexdigest()[:12])
        return stamps


class ZarrColumn:
    """Row weights in a one-dimensional Zarr array, or in an array with a single column."""

    def __init__(self, array: Any, where: str) -> None:
        self._is_complete = bool(check_complete(array, where).get("complete"))
        shape = tuple(array.shape)
        if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
            raise DataError(f"sample_weight {where} has shape {shape}; give one number per row.")
        native_dtype(array.dtype, f"sample_weight {where}")
        refuse_encoded(array, f"sample_weight {where}")
        self._array = array
        self._where = where
        self.n_rows = int(shape[0])

    def warn_of_missing(self) -> None:
        """Warn of missing chunks, unless the metadata mark the store as complete."""
        if not self._is_complete:
            warn_of_missing(self._array, f"sample_weight {self._where}")

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        with reading(f"sample_weight {self._where}, rows {start} to {stop - 1},"):
            values = retry_io(
                lambda: read_stored(self._array, start, stop, complete=self._is_complete)
            )
        return values.astype(np.float64, copy=False).reshape(-1)


def own_weights(group: Any, where: str) -> ZarrColumn | None:
    """Return the row weights that a group names in its metadata, or None."""
    # Without this entry, an array called "weights" may have another meaning.
    name = check_complete(group, where).get("weights")
    if name is None:
        return None
    if name not in group:
        raise DataError(
            f"{where} does not contain {name!r}, the array of row weights; write the store again."
        )
    return ZarrColumn(group[name], f"{where}/{name}")
