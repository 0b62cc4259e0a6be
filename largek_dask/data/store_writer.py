"""Write stores of dense rows, sparse rows (CSR, as in AnnData), and rows with weights.

A store cannot be opened as data before it is complete. Its attribute ``largek.complete`` is false
at first. The last write, of a single small file, sets the attribute to true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec

from largek_dask.data.durable import declare, make_folders, sync_folder, sync_tree
from largek_dask.data.rows import MAX_CHUNK_ROWS
from largek_dask.data.storage_errors import writing
from largek_dask.data.stores import (
    ATTRIBUTE,
    check_space,
    filesystem,
    is_local,
    is_there,
    normalize,
    remote_store,
)
from largek_dask.errors import DataError, OutputError, ParameterError
from largek_dask.kernels.blocks import SparseBlock

_ZARR_FILES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
CHUNK_VALUES = 1 << 20
WEIGHTS = "weights"
FILES = (
    ".csv", ".feather", ".gz", ".h5", ".h5ad", ".hdf5", ".joblib", ".json", ".npy", ".npz",
    ".parquet", ".pickle", ".pkl", ".pq", ".pt", ".safetensors", ".tsv", ".txt", ".xlsx", ".zip",
)  # fmt: skip
"""Suffixes that the name of a store must not have."""


def refuse_file(out: str) -> None:
    """Raise ParameterError if the name of a store has the suffix of another file format."""
    stem, suffix = os.path.splitext(out)
    if suffix.lower() in FILES:
        raise ParameterError(
            f"{out} has the suffix {suffix}, but a Zarr store is a folder; use a name such as "
            f"{stem}.zarr."
        )


def check_output(
    out: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> str:
    """Return the normalized URL of a new store, after checking that nothing exists there.

    Raises OutputError if it exists, or with ``force`` if it is not a Zarr store.
    """
    out = normalize(out)
    refuse_file(out)
    try:
        fs, path = filesystem(out, storage_options)
        # Another process may have changed the folder since it was last listed.
        fs.invalidate_cache()
        exists = is_there(fs, path)
        names = (
            [os.path.basename(p.rstrip("/")) for p in fs.ls(path, detail=False)]
            if (exists and fs.isdir(path))
            else None
        )
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise OutputError(
            f"{out} cannot be accessed: {error}; check the address and permissions."
        ) from error
    if not exists:
        return out
    if not force:
        raise OutputError(
            f"{out} already exists; nothing was changed. Overwrite it with --force (force=True) or "
            "choose another output."
        )
    if names is None or (names and not set(names) & set(_ZARR_FILES)):
        raise OutputError(
            f"{out} exists and is not a Zarr store, so force does not replace it; "
            "nothing was changed. Remove it yourself or choose another output."
        )
    return out


@contextmanager
def unfinished(out: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Remove a new store if an error is raised inside the ``with`` block."""
    try:
        yield
    except BaseException as error:
        try:
            remove_store(out, storage_options)
        except Exception as failed:
            # The removal most likely failed for the same reason, so only the first error is raised.
            error.add_note(f"The incomplete store {out} could not be removed: {failed}")
        raise


def remove_store(out: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Remove a Zarr store, if there is one."""
    fs, path = filesystem(out, storage_options)
    if not is_there(fs, path):
        return
    # Remove metadata first, so that an interrupted removal leaves no store that looks complete.
    for name in _ZARR_FILES:
        if is_there(fs, f"{path}/{name}"):
            fs.rm(f"{path}/{name}")
    if is_local(out) and os.path.isdir(path):
        sync_folder(path)
    if is_there(fs, path):
        fs.rm(path, recursive=True)


def fresh_store(out: str, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Remove any Zarr store at ``out``, and return the location for a new store."""
    remove_store(out, storage_options)
    if not is_local(out):
        return remote_store(out, storage_options, read_only=False)
    make_folders(os.path.dirname(out))
    return out


def publish_store(
    node: Any, out: str, notes: Mapping[str, Any], *, is_scratch: bool = False
) -> None:
    """Mark a store as complete, in one write, after syncing all of its data to the disk.

    ``notes`` are the attributes of the store, which contain the metadata of this package under the
    key :data:`ATTRIBUTE`. A scratch store is not synced. Raises OutputError if the attributes
    cannot be written.
    """
    own = {"format": 1, "complete": True, **notes.get(ATTRIBUTE, {})}
    with writing(out):
        if is_local(out) and not is_scratch:
            sync_tree(out)
        declare(node, {**notes, ATTRIBUTE: own})


def _new_group(out: str, storage_options: Mapping[str, Any] | None) -> zarr.Group:
    return zarr.create_group(
        fresh_store(out, storage_options), attributes={ATTRIBUTE: {"format": 1, "complete": False}}
    )


def _refuse_no_rows(n_written: int, out: str) -> None:
    if n_written == 0:
        raise DataError(f"the source of {out} has no rows; choose a source with at least one row.")


class StoreWriter:
    """Write rows in order into a new Zarr v3 array.

    Floats are stored uncompressed, because compression hardly reduces their size and would slow
    down reading. Integers are compressed by blosc-lz4. All chunks have a checksum (crc32c). Raises
    OutputError if the store cannot be written.

    ``out`` is a normalized path or URL; an existing Zarr store there is removed. ``n_rows`` is None
    if the number of rows is not known in advance. If ``inner_rows`` is given, each chunk is a shard
    of smaller chunks; ``inner_rows`` must divide ``chunk_rows``.
    """

    def __init__(
        self,
        out: str,
        *,
        n_features: int,
        dtype: np.dtype[Any],
        n_rows: int | None,
        chunk_rows: int,
        inner_rows: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        # Integers are compressed, so their size on disk is unknown.
        if n_rows is not None and dtype.kind == "f" and is_local(out):
            check_space(out, n_rows * n_features * dtype.itemsize, "the rows")
        self.out = out
        self.n_features = n_features
        self.dtype = dtype
        self._n_rows = n_rows
        self._chunk_rows = chunk_rows
        self._written = 0
        self._buffer = np.empty((chunk_rows, n_features), dtype)
        self._filled = 0
        checksum = Crc32cCodec()
        compressors = (
            [checksum]
            if dtype.kind == "f"
            else [BloscCodec(cname="lz4", clevel=5, typesize=dtype.itemsize), checksum]
        )
        inner_rows = chunk_rows if inner_rows is None else inner_rows
        with writing(out):
            self._array = zarr.create_array(
                fresh_store(out, storage_options),
                shape=(n_rows or 0, n_features),
                dtype=dtype,
                chunks=(inner_rows, n_features),
                shards=None if inner_rows == chunk_rows else (chunk_rows, n_features),
                compressors=compressors,
                fill_value=0,
                attributes={ATTRIBUTE: {"format": 1, "complete": False}},
                config={"write_empty_chunks": True},
            )

    @property
    def n_written(self) -> int:
        """Number of rows appended so far."""
        return self._written + self._filled

    def append(self, block: NDArray[Any]) -> None:
        """Append rows, and write all chunks that are full."""
        at = 0
        while at < len(block):
            take = min(len(block) - at, self._chunk_rows - self._filled)
            # float64 values too large for float32 become inf, and their rows count as bad rows.
            with np.errstate(over="ignore"):
                self._buffer[self._filled : self._filled + take] = block[at : at + take]
            self._filled += take
            at += take
            if self._filled == self._chunk_rows:
                self._flush()

    def _flush(self) -> None:
        if not self._filled:
            return
        start, stop = self._written, self._written + self._filled
        rows = self._buffer[: self._filled]
        with writing(f"{self.out} (rows {start} to {stop - 1})"):
            if stop > self._array.shape[0]:
                self._array.resize((stop, self.n_features))
            self._array[start:stop] = rows
        self._written, self._filled = stop, 0

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Write the remaining rows, and mark the store as complete with the metadata ``notes``.

        Raises DataError if there are no rows, or if their number is not ``n_rows``.
        """
        self._flush()
        _refuse_no_rows(self._written, self.out)
        if self._n_rows is not None and self._written != self._n_rows:
            raise DataError(
                f"the source of {self.out} has {self._written} rows instead of {self._n_rows}, so "
                "it has changed since it was opened; ingest it again."
            )
        publish_store(self._array, self.out, {ATTRIBUTE: notes})


class CSRWriter:
    """Write blocks of sparse rows in order into a new CSR group (Zarr v3, with checksums).

    ``out`` is a normalized path or URL; an existing Zarr store there is removed. ``dtype`` is the
    type of the stored numbers; column indices are int32. Raises OutputError if the store cannot be
    written.
    """

    def __init__(
        self,
        out: str,
        *,
        n_features: int,
        dtype: np.dtype[Any],
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.out = out
        self.n_features = n_features
        self.n_written = 0
        self._n_stored = 0
        with writing(out):
            self._group = _new_group(out, storage_options)
            kinds = {"data": dtype, "indices": np.dtype(np.int32), "indptr": np.dtype(np.int64)}
            self._arrays = {name: _Grown(self._group, name, kind) for name, kind in kinds.items()}
            self._arrays["indptr"].append(np.zeros(1, np.int64))

    def append(self, block: SparseBlock) -> None:
        """Append rows, and write all chunks that are full."""
        stored = block.stored
        offsets = self._n_stored + block.indptr[1:] - block.indptr[0]
        parts = {"data": block.data[stored], "indices": block.indices[stored], "indptr": offsets}
        self._write(parts, whole=True)
        self.n_written += len(block)
        self._n_stored += stored.stop - stored.start

    def _write(self, parts: Mapping[str, NDArray[Any]], whole: bool) -> None:
        with writing(f"{self.out} (rows from {self.n_written} on)"):
            for name, part in parts.items():
                self._arrays[name].append(part)
                self._arrays[name].flush(whole=whole)

    def finish(self, notes: Mapping[str, Any], *, is_scratch: bool = False) -> None:
        """Write the remaining rows, and mark the store as complete with the metadata ``notes``."""
        _refuse_no_rows(self.n_written, self.out)
        self._write({name: np.empty(0, a.dtype) for name, a in self._arrays.items()}, whole=False)
        attributes = {
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": [self.n_written, self.n_features],
            ATTRIBUTE: notes,
        }
        publish_store(self._group, self.out, attributes, is_scratch=is_scratch)


class _Grown:
    def __init__(self, group: Any, name: str, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._array = group.create_array(
            name,
            shape=(0,),
            chunks=(CHUNK_VALUES,),
            dtype=dtype,
            compressors=[Crc32cCodec()],
            fill_value=0,
            config={"write_empty_chunks": True},
        )
        self._waiting: list[NDArray[Any]] = []
        self._n_waiting = 0

    def append(self, values: NDArray[Any]) -> None:
        """Append a copy of the values, because the caller may reuse the array."""
        self._waiting.append(np.array(values, self.dtype))
        self._n_waiting += len(values)

    def flush(self, *, whole: bool) -> None:
        """Write the buffered values; if ``whole`` is True, write only full chunks."""
        if whole and self._n_waiting < CHUNK_VALUES:
            return
        values = np.concatenate(self._waiting)
        end = len(values) // CHUNK_VALUES * CHUNK_VALUES if whole else len(values)
        start = self._array.shape[0]
        self._array.resize((start + end,))
        self._array[start : start + end] = values[:end]
        self._waiting, self._n_waiting = [values[end:]], len(values) - end


def write_weighted_rows(
    out: str | os.PathLike[str],
    x: NDArray[Any],
    weights: NDArray[np.float64],
    rows: NDArray[np.int64],
    notes: Mapping[str, Any],
    *,
    feature_names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    force: bool = False,
) -> None:
    """Write rows and their weights to a store that :func:`~largek_dask.open_rows` can open.

    The store is a group with the arrays ``X`` (the rows), ``weights``, and ``rows`` (indices in the
    original table). Its attribute ``largek.weights`` names the array of weights. Raises OutputError
    if ``out`` cannot be written, or if ``out`` exists and ``force`` is False.
    """
    target = check_output(out, storage_options, force=force)
    with writing(target):
        group = _new_group(target, storage_options)
    named = {} if feature_names is None else {"feature_names": list(feature_names)}
    columns = {"X": x, WEIGHTS: weights[:, None], "rows": rows[:, None]}
    with unfinished(target, storage_options):
        for name, values in columns.items():
            writer = StoreWriter(
                f"{target}/{name}",
                n_features=values.shape[1],
                dtype=values.dtype,
                n_rows=len(values),
                chunk_rows=min(len(values), MAX_CHUNK_ROWS),
                storage_options=storage_options,
            )
            writer.append(values)
            writer.finish(named if name == "X" else {})
        publish_store(group, target, {ATTRIBUTE: {**notes, "weights": WEIGHTS}})
