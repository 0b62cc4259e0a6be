"""Write rows in memory to a temporary Zarr store that workers can open."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np
import zarr
from fsspec.core import url_to_fs
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.csr_rows import CSRRows
from largek_dask.data.rows import Column, Rows
from largek_dask.data.store_writer import CSRWriter
from largek_dask.data.stores import check_space, is_local, normalize, open_node
from largek_dask.data.zarr_rows import ZarrColumn, ZarrRows
from largek_dask.errors import OutputError


class SpilledRows(ZarrRows):
    """Rows copied from another :class:`Rows`, in the same chunks, so that results are identical."""

    def __init__(
        self,
        array: Any,
        location: str,
        weight: Column | None,
        chunk_table: NDArray[np.int64],
        shuffled: bool,
    ) -> None:
        largest = int(np.diff(chunk_table).max())
        super().__init__(array, location=location, weight=weight, chunk_rows=largest)
        self.shuffled = shuffled
        self.chunk_table = np.array(chunk_table)
        self.chunk_table.flags.writeable = False

    def stretch(self, i: int, begin: int, end: int) -> tuple[int, int]:
        """Return the range of the whole chunk, which is stored in one piece."""
        start, stop = self.chunk_rows(i)
        return 0, stop - start

    def describe_source(self, location: str | None) -> str:
        """Return a description that does not name the temporary store, for error messages."""
        return "the data"

    def __reduce__(self) -> tuple[Any, ...]:
        how = np.array(self.chunk_table), self.shuffled
        return _reopen, (SpilledRows, self.location, self.weight is not None, *how)


class SpilledCSR(CSRRows):
    """Sparse rows copied from another :class:`Rows`, in chunks of equal length."""

    def __init__(self, group: Any, location: str, weight: Column | None, chunk_rows: int) -> None:
        super().__init__(group, location=location, weight=weight, chunk_rows=chunk_rows)

    def describe_source(self, location: str | None) -> str:
        """Return a description that does not name the temporary store, for error messages."""
        return "the data"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (SpilledCSR, self.location, self.weight is not None, self._chunk_rows)


def _reopen(kind: type[Any], location: str, weighted: bool, *how: Any) -> Any:
    weight = ZarrColumn(open_node(f"{location}-weight"), "of the data") if weighted else None
    return kind(open_node(location), location, weight, *how)


def spill_folder() -> str:
    """Return a new folder, in ``largek.passes.spill-folder`` if set, else a temporary folder."""
    parent = config.get("passes.spill-folder")
    if parent is None:
        return tempfile.mkdtemp(prefix="largek-")
    return f"{normalize(parent)}/largek-{uuid4().hex}"


def spill(rows: Rows, folder: str) -> SpilledRows | SpilledCSR:
    """Write rows chunk by chunk to ``folder``, which workers can reach, and open them there.

    Raises OutputError if there is too little space, or the folder is not writable.
    """
    location = f"{folder}/rows.zarr"
    largest = int(np.diff(rows.chunk_table).max())
    try:
        if is_local(folder):
            os.makedirs(folder, exist_ok=True)
            advice = "set largek.passes.spill-folder to a larger one, or ingest the data"
            check_space(folder, rows.nbytes, "the rows, which workers read there,", advice)
        _write(rows, location, largest)
    except BaseException as error:
        with suppress(OSError):
            remove_spilled(folder)
        if not isinstance(error, OSError) or isinstance(error, OutputError):
            raise
        raise OutputError(
            f"rows in memory cannot be written to {folder} for the workers: {error}; "
            "set largek.passes.spill-folder to a writable folder or URL."
        ) from error
    found: SpilledRows | SpilledCSR = (
        _reopen(SpilledCSR, location, rows.weight is not None, largest)
        if rows.is_sparse
        else _reopen(
            SpilledRows, location, rows.weight is not None, rows.chunk_table, rows.shuffled
        )
    )
    return found


def _write(rows: Rows, location: str, largest: int) -> None:
    options: dict[str, Any] = {"compressors": None, "filters": None}
    if rows.is_sparse:
        sparse = CSRWriter(location, n_features=rows.n_features, dtype=rows.dtype)
        for index in range(rows.n_chunks):
            sparse.append(rows.read(index))
        sparse.finish({}, is_scratch=True)
    else:
        shape, chunks = rows.shape, (largest, rows.n_features)
        array = zarr.create_array(location, shape=shape, chunks=chunks, dtype=rows.dtype, **options)
        for index in range(rows.n_chunks):
            start, stop = rows.chunk_rows(index)
            array[start:stop] = rows.read(index)
    if rows.weight is not None:
        weight = zarr.create_array(
            f"{location}-weight", shape=rows.shape[:1], chunks=(largest,), dtype="f8", **options
        )
        for index in range(rows.n_chunks):
            start, stop = rows.chunk_rows(index)
            weight[start:stop] = np.asarray(rows.read_weight(index))


def remove_spilled(folder: str) -> None:
    """Remove the files that :func:`spill` wrote, if they still exist."""
    fs, path = url_to_fs(folder)
    if fs.exists(path):
        fs.rm(path, recursive=True)
