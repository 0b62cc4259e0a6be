"""Read rows from files of arrays: ``.npy``, and formats of vector search benchmarks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, check_table_shape, native_dtype
from largek_dask.data.storage_errors import retry_io
from largek_dask.data.stores import file_stamp, filesystem, is_local
from largek_dask.data.table_files import BIN, VECS, TableFiles
from largek_dask.errors import DataError


class MappedRows(SlicedRows):
    """Rows of array files; local files are memory-mapped, and remote files are loaded.

    Raises DataError if a file is missing or damaged, or if files differ in dtype or width.
    """

    def __init__(
        self,
        files: TableFiles,
        *,
        storage_options: Mapping[str, Any] | None = None,
        chunk_table: NDArray[np.int64] | None = None,
        weight: Column | None = None,
    ) -> None:
        self._files = files
        self.storage_options = dict(storage_options) if storage_options else None
        urls, options = files.urls, self.storage_options
        super().__init__(
            open_array(urls[0], options) if len(urls) == 1 else _Joined(urls, options),
            location=files.location or files.urls[0],
            chunk_table=chunk_table,
            weight=weight,
        )

    def describe_source(self, location: str | None) -> str:
        return self._files.where

    def _stamps(self) -> list[str]:
        stamps = [file_stamp(url, self.storage_options) for url in self._files.urls]
        return ["+".join(stamps)] * self.n_chunks

    def __reduce__(self) -> tuple[Any, ...]:
        how: dict[str, Any] = {"storage_options": self.storage_options, "weight": self.weight}
        return partial(MappedRows, chunk_table=np.array(self.chunk_table), **how), (self._files,)


class _Joined:
    """Concatenated arrays of several files; local files are only open while they are read."""

    def __init__(self, urls: Sequence[str], options: Mapping[str, Any] | None) -> None:
        self._options = options
        self._arrays: list[tuple[str, Any]] = []
        first, begins = None, [0]
        for url in urls:
            array = open_array(url, options)
            check_table_shape(array.shape, url)
            native_dtype(array.dtype, url)
            if array.shape[0] == 0:
                continue
            first = first or (url, array.shape[1], array.dtype)
            if (array.shape[1], array.dtype) != first[1:]:
                raise DataError(
                    f"{url} has {array.shape[1]} columns of {array.dtype}, and {first[0]} has "
                    f"{first[1]} of {first[2]}; all files must have the same width and dtype."
                )
            self._arrays.append((url, None if is_local(url) else array))
            begins.append(begins[-1] + array.shape[0])
        _, width, self.dtype = first or (url, array.shape[1], array.dtype)
        self.shape = begins[-1], width
        self._begins = np.array(begins)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, last = np.searchsorted(self._begins, [rows.start, rows.stop - 1], "right") - 1
        parts = []
        for i in range(first, last + 1):
            url, array = self._arrays[i]
            begin, end = self._begins[i : i + 2].tolist()
            if array is None:
                array = open_array(url, self._options)
            if array.shape[0] != end - begin:
                raise DataError(f"{url} has changed since it was opened; open it again.")
            parts.append(array[max(0, rows.start - begin) : min(end, rows.stop) - begin])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Vectors:
    """Vectors in a file that stores the length of each vector (int32) before its values."""

    def __init__(self, data: NDArray[np.uint8], dtype: str, url: str) -> None:
        self.dtype = np.dtype(dtype)
        self._url = url
        width = int(data[:4].view("<i4")[0]) if data.size else 0
        n_bytes = 4 + width * self.dtype.itemsize
        if data.size and (width < 1 or data.size % n_bytes):
            raise ValueError(f"{data.size} bytes do not contain whole vectors of length {width}")
        self._rows = data.reshape(-1, n_bytes)
        self.shape = len(self._rows), width

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        part = self._rows[rows]
        widths = part[:, :4].view("<i4")[:, 0]
        if (wrong := widths != self.shape[1]).any():
            at = int(wrong.argmax())
            raise DataError(
                f"row {rows.start + at} of {self._url} has length {widths[at]}, but the first row "
                f"{self.shape[1]}; the file is damaged, or its rows have different lengths."
            )
        return np.asarray(part[:, 4:].view(self.dtype))


def open_array(url: str, storage_options: Mapping[str, Any] | None) -> Any:
    """Memory-map the array in a local file, or load the array in a remote file.

    The format is determined by the suffix, and is ``.npy`` for unknown suffixes. Raises DataError
    if the file is missing or damaged, or contains Python objects.
    """
    suffix = os.path.splitext(url)[1].lower()
    try:
        if suffix in VECS:
            return _Vectors(_bytes_of(url, storage_options), VECS[suffix], url)
        if suffix in BIN:
            return _matrix(_bytes_of(url, storage_options), np.dtype(BIN[suffix]))
        if is_local(url):
            return np.lib.format.open_memmap(url, mode="r")
        return retry_io(lambda: _loaded(url, storage_options))
    except FileNotFoundError as error:
        raise DataError(f"{url} does not exist; check the address.") from error
    except (ValueError, EOFError, OverflowError, MemoryError, SyntaxError, TokenError) as error:
        raise DataError(f"{url} cannot be read: {_reason(error)}; save it again.") from error
    except OSError as error:
        raise DataError(
            f"{url} cannot be opened ({error}); check the address and permissions."
        ) from error


def _reason(error: Exception) -> str:
    """Explain an error without numpy's advice to set ``allow_pickle``."""
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it contains Python objects instead of numbers; save x.astype(float) instead"
    return f"it is truncated or not a file of this format ({error})"


def _bytes_of(url: str, storage_options: Mapping[str, Any] | None) -> NDArray[np.uint8]:
    if is_local(url):
        empty = os.path.getsize(url) == 0
        return np.zeros(0, np.uint8) if empty else np.memmap(url, np.uint8, "r")
    fs, path = filesystem(url, storage_options)
    return np.frombuffer(retry_io(lambda: fs.cat_file(path)), np.uint8)


def _matrix(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the matrix in a file that starts with the matrix shape (two uint32 numbers)."""
    n, d = (int(number) for number in data[:8].view("<u4")) if data.size >= 8 else (0, 0)
    if data.size != 8 + n * d * dtype.itemsize:
        raise ValueError(f"it has {data.size} bytes, but its header declares {n} x {d} {dtype}")
    return data[8:].view(dtype).reshape(n, d)


def _loaded(url: str, storage_options: Mapping[str, Any] | None) -> Any:
    fs, path = filesystem(url, storage_options)
    with fs.open(path, "rb") as file:
        return np.load(file, allow_pickle=False)
