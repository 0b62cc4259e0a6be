"""Rows of ``.npy`` files."""

from __future__ import annotations

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


class NpyRows(SlicedRows):
    """Rows of a ``.npy`` file, which is memory-mapped if local and loaded if remote."""

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
    """Return the array of a ``.npy`` file, memory-mapped if local and loaded if remote.

    Raises DataError if it is missing, damaged, or holds Python objects.
    """
    try:
        if is_local(location):
            return np.lib.format.open_memmap(location, mode="r")
        return retry_io(lambda: _loaded(location, storage_options))
    except FileNotFoundError as error:
        raise DataError(f"{location} does not exist: check the address.") from error
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        raise DataError(f"{location} cannot be read: {_reason(error)}; save it again.") from error
    except OSError as error:
        raise DataError(
            f"{location} cannot be opened: {error}; check the address and permissions."
        ) from error


def _reason(error: Exception) -> str:
    """Explain an error of numpy, without numpy's advice to allow pickles."""
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it contains Python objects instead of numbers; save x.astype(float) instead"
    return f"it is truncated or not a numpy file ({error})"


def _loaded(location: str, storage_options: Mapping[str, Any] | None) -> Any:
    fs, path = filesystem(location, storage_options)
    with fs.open(path, "rb") as file:
        return np.load(file, allow_pickle=False)
