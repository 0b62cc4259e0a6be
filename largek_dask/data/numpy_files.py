"""Rows of ``.npy`` files, local (mapped into memory) or anywhere fsspec reaches."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column
from largek_dask.data.storage_errors import retry_io
from largek_dask.data.stores import filesystem, is_local
from largek_dask.errors import DataError

__all__ = ["NpyRows", "open_npy"]


class NpyRows(SlicedRows):
    """Rows of a ``.npy`` file; pickles as its address.

    A local file is mapped into memory; of a remote one, every chunk is one request for a range of
    bytes. A remote file in Fortran order is loaded.
    """

    def __init__(
        self,
        location: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        chunk_table: NDArray[np.int64] | None = None,
        weight: Column | None = None,
    ) -> None:
        self.storage_options = dict(storage_options) if storage_options else None
        super().__init__(
            open_npy(location, self.storage_options),
            location=location,
            chunk_table=chunk_table,
            weight=weight,
        )

    def _stamps(self) -> list[str]:
        location = str(self.location)
        if is_local(location):
            status = os.stat(location)
            stamp = f"{status.st_size}-{status.st_mtime_ns}"
        else:
            fs, path = filesystem(location, self.storage_options)
            stamp = str(fs.ukey(path))
        return [stamp] * self.n_chunks

    def __reduce__(self) -> tuple[Any, ...]:
        how: dict[str, Any] = {"storage_options": self.storage_options, "weight": self.weight}
        return partial(NpyRows, chunk_table=np.array(self.chunk_table), **how), (self.location,)


def open_npy(location: str, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the array of a ``.npy`` file: an object with shape, dtype and slices of rows.

    Mapped into memory, read by ranges of rows, or (remote, not of two dimensions or in Fortran
    order) loaded. Raises DataError if it is missing, damaged, or holds Python objects.
    """
    try:
        if is_local(location):
            return np.lib.format.open_memmap(location, mode="r")
        return _open_remote(location, storage_options)
    except FileNotFoundError as error:
        raise DataError(f"{location} does not exist: check the address.") from error
    except (ValueError, EOFError, OverflowError) as error:
        raise DataError(f"{location} cannot be read: {_reason(error)}; save it again.") from error
    except OSError as error:
        raise DataError(
            f"{location} cannot be opened: {error}; check the address and permissions."
        ) from error


def _reason(error: Exception) -> str:
    """Return numpy's reason, without its advice to allow pickles."""
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it holds Python objects, not numbers; save x.astype(float) instead"
    return f"it is truncated or not a file of numpy ({error})"


def _open_remote(location: str, storage_options: Mapping[str, Any] | None) -> Any:
    fs, path = filesystem(location, storage_options)
    with fs.open(path, "rb") as file:
        shape, fortran, dtype = _header(file, fs.size(path))
        if fortran or len(shape) != 2:
            file.seek(0)
            return np.load(file, allow_pickle=False)
        return _RemoteSlices(fs, path, shape, dtype, file.tell())


def _header(file: Any, size: int | None) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of an open ``.npy`` file of ``size`` bytes (None: unknown).

    Raises ValueError if it holds less than its header claims, before anything is allocated.
    """
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"format version {version}")
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("Python objects in dtype")
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (size is not None and needed > size - file.tell()):
        raise ValueError(f"its header says shape {shape} of {dtype}, and it has {size} bytes")
    return shape, fortran, dtype


class _RemoteSlices:
    """Rows of a remote ``.npy`` file in C order, by ranges of bytes."""

    def __init__(
        self, fs: Any, path: str, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._fs = fs
        self._path = path
        self._offset = offset

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        row_bytes = self.shape[1] * self.dtype.itemsize
        begin, end = (self._offset + row * row_bytes for row in (rows.start, rows.stop))
        data = retry_io(lambda: self._fs.cat_file(self._path, start=begin, end=end))
        if len(data) != end - begin:
            raise DataError(
                f"rows {rows.start} to {rows.stop - 1} of {self._path} cannot be read: "
                f"{len(data)} bytes are there instead of {end - begin}; save it again."
            )
        return np.frombuffer(data, self.dtype).reshape(-1, self.shape[1])
