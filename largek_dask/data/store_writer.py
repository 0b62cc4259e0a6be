"""Writing a store of rows that is refused as data until its last byte is there.

The attribute ``largek.complete`` is false from the first write on and becomes true in the last
one, a single small file. Every chunk is read back and compared before the next is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec

from largek_dask.data.durable import declare, make_folders, sync_folder, sync_tree
from largek_dask.data.stores import ATTRIBUTE, filesystem, is_local, is_there, remote_store
from largek_dask.errors import DataError, OutputError, ParameterError

__all__ = [
    "StoreWriter",
    "fresh_store",
    "publish_store",
    "refuse_existing",
    "refuse_file",
    "remove_store",
    "unfinished",
]

_ZARR_FILES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


FILES = (
    ".csv", ".feather", ".gz", ".h5", ".h5ad", ".hdf5", ".joblib", ".json", ".npy", ".npz",
    ".parquet", ".pickle", ".pkl", ".pq", ".pt", ".safetensors", ".tsv", ".txt", ".xlsx", ".zip",
)  # fmt: skip
"""Ends of names that say of which kind a single file is."""


def refuse_file(out: str) -> None:
    """Refuse a store's name that says that it is a file of another format.

    Raises
    ------
    ParameterError
        It does; the message says what to call the store.
    """
    stem, suffix = os.path.splitext(out)
    if suffix.lower() in FILES:
        raise ParameterError(
            f"{out} would be a Zarr store, which is a folder, and not a {suffix} file, which is "
            f"not written here; call it {stem}.zarr."
        )


def refuse_existing(
    out: str, storage_options: Mapping[str, Any] | None = None, *, force: bool = False
) -> None:
    """Refuse an output that exists, or with ``force`` one that is no Zarr store.

    Raises
    ------
    OutputError
        The message says what is in the way. Nothing has been touched.
    """
    try:
        fs, path = filesystem(out, storage_options)
        # another process may have written since this one listed
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
            f"{out} cannot be looked at: {error}; check that it may be read."
        ) from error
    if not exists:
        return
    if not force and names is not None and "zarr.json" in names and _is_unfinished(fs, path):
        raise OutputError(
            f"{out} is an unfinished store: the program that wrote it was stopped before the end, "
            "unless it is still writing. Overwrite it with --force (force=True) or remove it."
        )
    if not force:
        raise OutputError(
            f"{out} exists already; nothing was changed. Overwrite it with --force "
            "(force=True) or choose another output."
        )
    if names is None or (names and not set(names) & set(_ZARR_FILES)):
        raise OutputError(
            f"{out} exists and is not a Zarr store, so force does not replace it; "
            "nothing was changed. Remove it yourself or choose another output."
        )


def _is_unfinished(fs: Any, path: str) -> bool:
    """Whether a store says that its writing has not ended, or says nothing any more."""
    try:
        notes = json.loads(fs.cat_file(f"{path}/zarr.json"))["attributes"][ATTRIBUTE]
        return notes.get("complete") is False
    except ValueError:
        # Empty or torn: it was not written.
        return True
    except (OSError, KeyError, TypeError, AttributeError):
        # Whoever wrote that says nothing.
        return False


@contextmanager
def unfinished(out: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Remove a store that a writer has just begun, unless it is finished inside the block.

    What a failed call leaves would be in the way of the next one. A kill leaves it all the same;
    :func:`refuse_existing` says then what it is.
    """
    try:
        yield
    except BaseException as error:
        try:
            remove_store(out, storage_options)
        except Exception as kept:
            # The same storage that has failed, most likely: what matters is why.
            error.add_note(f"What had been written to {out} could not be removed: {kept}")
        raise


def remove_store(out: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Remove a Zarr store, if there is one."""
    fs, path = filesystem(out, storage_options)
    if not is_there(fs, path):
        return
    # its own description first: a kill in between must not leave a store that looks whole
    for name in _ZARR_FILES:
        if is_there(fs, f"{path}/{name}"):
            fs.rm(f"{path}/{name}")
    if is_local(out) and os.path.isdir(path):
        sync_folder(path)
    if is_there(fs, path):
        fs.rm(path, recursive=True)


def fresh_store(out: str, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Remove a Zarr store, if there is one, to make another one there of what is returned."""
    remove_store(out, storage_options)
    if not is_local(out):
        return remote_store(out, storage_options, read_only=False)
    make_folders(os.path.dirname(out))
    return out


def publish_store(
    node: Any, out: str, notes: Mapping[str, Any], *, is_scratch: bool = False
) -> None:
    """Declare a store complete, in one write, after all of its data are on the disk.

    Parameters
    ----------
    node : zarr.Array or zarr.Group
        The store.
    out : str
        Its path or URL.
    notes : mapping
        Its attributes; :data:`ATTRIBUTE` holds those of this package.
    is_scratch : bool
        Do not wait for the disk.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    own = {"format": 1, "complete": True, **notes.get(ATTRIBUTE, {})}
    try:
        if is_local(out) and not is_scratch:
            sync_tree(out)
        declare(node, {**notes, ATTRIBUTE: own})
    except Exception as error:
        # drivers raise errors of their own kinds
        raise OutputError(
            f"{out} cannot be written: {error}; check space and permissions there."
        ) from error


class StoreWriter:
    """Writes rows in order into a new Zarr v3 array.

    Floats are stored without compressor (they hardly shrink, and plain bytes read at the speed
    of the disk), integers with blosc-lz4; both with a checksum (crc32c) that every reader of Zarr
    verifies.

    Parameters
    ----------
    out : str
        Normalized path or URL.
    n_rows : int or None
        None where only the end of the stream tells.
    chunk_rows : int
        Rows of a chunk; of a shard where ``inner_rows`` is given.
    inner_rows : int, optional
        Rows of the chunks inside a shard; divides ``chunk_rows``.
    force : bool
        Replace a Zarr store that is there.

    Raises
    ------
    OutputError
        ``out`` exists, or cannot be written.
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
        force: bool = False,
    ) -> None:
        refuse_existing(out, storage_options, force=force)
        _check_space(out, n_rows, n_features, dtype)
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
        try:
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
        except Exception as error:
            # drivers raise errors of their own kinds
            raise OutputError(
                f"{out} cannot be written: {error}; check space and permissions there."
            ) from error

    @property
    def n_written(self) -> int:
        """Rows taken so far."""
        return self._written + self._filled

    def append(self, block: NDArray[Any]) -> None:
        """Take the next rows; whole chunks are written and read back.

        Raises
        ------
        OutputError
            A chunk could not be written, or does not read back as it was.
        """
        at = 0
        while at < len(block):
            take = min(len(block) - at, self._chunk_rows - self._filled)
            # float64 beyond float32's range becomes inf, which the statistics count as bad rows
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
        try:
            if stop > self._array.shape[0]:
                self._array.resize((stop, self.n_features))
            self._array[start:stop] = rows
            found = np.asarray(self._array[start:stop])
        except Exception as error:
            # disk full, no access, codec or driver errors of any kind
            raise OutputError(
                f"rows {start} to {stop - 1} could not be written to {self.out}: {error}; check "
                "space and permissions there."
            ) from error
        if not _same_bytes(found, rows):
            raise OutputError(
                f"rows {start} to {stop - 1} of {self.out} do not read back as they were written: "
                "the storage is faulty, use another one."
            )
        self._written, self._filled = stop, 0

    def finish(self, notes: Mapping[str, Any]) -> None:
        """Write what is left, then declare the store complete with these notes, in one write.

        Raises
        ------
        DataError
            No rows came, or another number than was announced.
        """
        self._flush()
        if self._written == 0:
            raise DataError(
                f"the source of {self.out} has no rows, so there is nothing to cluster: give "
                "another one."
            )
        if self._n_rows is not None and self._written != self._n_rows:
            raise DataError(
                f"the source of {self.out} gave {self._written} rows instead of {self._n_rows}; "
                "it was changed meanwhile: ingest it again."
            )
        publish_store(self._array, self.out, {ATTRIBUTE: notes})


def _same_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Compared as bits, so that NaN equals itself."""
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return bool((a.view(bits) == b.view(bits)).all())


def _check_space(out: str, n_rows: int | None, n_features: int, dtype: np.dtype[Any]) -> None:
    """Refuse at the start what a local disk cannot hold (floats are stored as they are)."""
    if n_rows is None or dtype.kind != "f" or not is_local(out):
        return
    folder = os.path.dirname(out)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    needed = n_rows * n_features * dtype.itemsize
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"{out} needs {needed / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB free."
        )
