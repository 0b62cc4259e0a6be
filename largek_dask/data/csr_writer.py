"""Writing sparse rows into a CSR group of a Zarr store, in the layout that AnnData reads.

As in :mod:`~largek_dask.data.store_writer`, the attribute ``largek.complete`` becomes true in the
last write, and what is written is read back and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from largek_dask.data.store_writer import fresh_store, publish_store
from largek_dask.data.stores import ATTRIBUTE
from largek_dask.errors import DataError, OutputError
from largek_dask.kernels.blocks import SparseBlock

__all__ = ["CSRWriter"]

CHUNK_VALUES = 1 << 20
"""Stored numbers of a chunk."""


class CSRWriter:
    """Writes blocks of sparse rows in order into a new CSR group (Zarr v3, with checksums).

    Parameters
    ----------
    out : str
        Normalized path or URL; a Zarr store that is there is removed.
    dtype : numpy.dtype
        Of the numbers; their columns are int32.

    Raises
    ------
    OutputError
        It cannot be written.
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
        """Rows taken so far."""
        self._n_stored = 0
        try:
            self._group = zarr.create_group(
                fresh_store(out, storage_options),
                attributes={ATTRIBUTE: {"format": 1, "complete": False}},
            )
            kinds = {"data": dtype, "indices": np.dtype(np.int32), "indptr": np.dtype(np.int64)}
            self._arrays = {name: _Grown(self._group, name, kind) for name, kind in kinds.items()}
            self._arrays["indptr"].append(np.zeros(1, np.int64))
        except Exception as error:
            # drivers raise errors of their own kinds
            raise OutputError(
                f"{out} cannot be written: {error}; check space and permissions there."
            ) from error

    def append(self, block: SparseBlock) -> None:
        """Take the next rows.

        Raises
        ------
        OutputError
            They could not be written, or do not read back as they were.
        """
        stored = block.stored
        offsets = self._n_stored + block.indptr[1:] - block.indptr[0]
        parts = {"data": block.data[stored], "indices": block.indices[stored], "indptr": offsets}
        self._write(parts, whole=True)
        self.n_written += len(block)
        self._n_stored += stored.stop - stored.start

    def _write(self, parts: Mapping[str, NDArray[Any]], whole: bool) -> None:
        try:
            for name, part in parts.items():
                self._arrays[name].append(part)
                self._arrays[name].flush(whole=whole)
        except OutputError:
            raise
        except Exception as error:
            # disk full, no access, codec or driver errors of any kind
            raise OutputError(
                f"rows from {self.n_written} on could not be written to {self.out}: {error}; "
                "check space and permissions there."
            ) from error

    def finish(self, notes: Mapping[str, Any], *, is_scratch: bool = False) -> None:
        """Write what is left, then declare the store complete with these notes, in one write.

        Parameters
        ----------
        is_scratch : bool
            Do not wait until it is on the disk: it need not survive a power failure.

        Raises
        ------
        DataError
            No rows came.
        """
        if self.n_written == 0:
            raise DataError(
                f"the source of {self.out} has no rows, so there is nothing to cluster: give "
                "another one."
            )
        self._write({name: np.empty(0, a.dtype) for name, a in self._arrays.items()}, whole=False)
        attributes = {
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": [self.n_written, self.n_features],
            ATTRIBUTE: notes,
        }
        publish_store(self._group, self.out, attributes, is_scratch=is_scratch)


class _Grown:
    """A Zarr array of one dimension that grows by whole chunks."""

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
        """Take values; a copy, since the caller may reuse its arrays."""
        self._waiting.append(np.array(values, self.dtype))
        self._n_waiting += len(values)

    def flush(self, *, whole: bool) -> None:
        """Write what is waiting; of the last chunk nothing unless it is full, if ``whole``."""
        if whole and self._n_waiting < CHUNK_VALUES:
            return
        values = np.concatenate(self._waiting)
        end = len(values) // CHUNK_VALUES * CHUNK_VALUES if whole else len(values)
        start = self._array.shape[0]
        self._array.resize((start + end,))
        self._array[start : start + end] = values[:end]
        found = np.asarray(self._array[start : start + end])
        if found.tobytes() != values[:end].tobytes():
            raise OutputError(
                f"{self._array.store_path} does not read back as it was written: "
                "the storage is faulty, use another one."
            )
        self._waiting, self._n_waiting = [values[end:]], len(values) - end
