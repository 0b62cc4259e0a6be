"""Rows of lazy collections: dask arrays, dask DataFrames, xarray. Never computed as a whole.

A chunk is one block of the collection, or several small ones that follow each other. Blocks are
computed one at a time, each by a call of its own, by whatever scheduler Dask would use anyway,
and are let go before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.cf_attributes import decoded
from largek_dask.data.columns import Selection, names_of, not_told_from_index
from largek_dask.data.frame_rows import chosen_columns, frame_dtype, frame_values, may_be_index
from largek_dask.data.memory_rows import ArrayColumn, SlicedRows, refuse_masked_rows
from largek_dask.data.rows import (
    MAX_CHUNK_ROWS,
    Column,
    Rows,
    check_table_shape,
    native_dtype,
    refuse_masked,
    table_from_lengths,
)
from largek_dask.errors import DataError

__all__ = ["BlockRows", "DaskColumn", "XarrayRows", "dask_array_rows", "dask_frame_rows"]


class _Blocks(Protocol):
    """A collection cut into blocks of rows."""

    n_features: int
    dtype: np.dtype[Any]
    lengths: list[int]

    def fill(self, block: int, out: NDArray[Any]) -> None:
        """Compute one block into ``out`` of shape (length of the block, d)."""


class BlockRows(Rows):
    """Rows of a dask array or dask DataFrame; see the module's first lines."""

    def __init__(self, blocks: _Blocks, *, weight: Column | None = None) -> None:
        self._blocks = blocks
        row_bytes = max(1, blocks.n_features * blocks.dtype.itemsize)
        budget = int(config.get("data.read-chunk-bytes")) // row_bytes
        self._groups = _group(blocks.lengths, min(max(1, budget), MAX_CHUNK_ROWS))
        super().__init__(
            n_features=blocks.n_features,
            dtype=blocks.dtype,
            chunk_table=table_from_lengths(
                [sum(blocks.lengths[b] for b in group) for group in self._groups]
            ),
            weight=weight,
        )

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.n_features), self.dtype)
        at = 0
        for block in self._groups[i]:
            length = self._blocks.lengths[block]
            try:
                self._blocks.fill(block, out[at : at + length])
            except MemoryError:
                raise
            except Exception as error:
                # the graph is the user's: anything can be raised in it
                raise DataError(
                    f"block {block} of the lazy data ({self.name_chunk(i)}) could not be "
                    f"computed: {type(error).__name__}: {error}; compute() that block alone, and "
                    "mend what fails there."
                ) from error
            at += length
        return out


def _group(lengths: list[int], max_rows: int) -> list[list[int]]:
    """Consecutive blocks with rows, together up to ``max_rows`` (one block may be larger)."""
    groups: list[list[int]] = []
    size = 0
    for block, length in enumerate(lengths):
        if length == 0:
            continue
        if groups and size + length <= max_rows:
            groups[-1].append(block)
            size += length
        else:
            groups.append([block])
            size = length
    return groups


class _ArrayBlocks:
    """Blocks of a dask array; blocks along the columns are put side by side."""

    def __init__(self, array: Any) -> None:
        check_table_shape(array.shape, "the dask array")
        refuse_masked_rows(array._meta)
        if any(np.isnan(c) for c in array.chunks[1]):
            raise DataError(
                "the dask array has an unknown number of columns; call compute_chunk_sizes() first."
            )
        self.dtype = native_dtype(array.dtype, "the dask array")
        self.n_features = int(array.shape[1])
        self._array = array
        self._columns = np.concatenate([[0], np.cumsum(array.chunks[1])]).astype(int).tolist()
        if any(np.isnan(c) for c in array.chunks[0]):
            self.lengths = [self._length(b) for b in range(array.numblocks[0])]
        else:
            self.lengths = [int(c) for c in array.chunks[0]]

    def _length(self, block: int) -> int:
        part = self._array.blocks[block, 0]
        counted = part.map_blocks(_count_rows, chunks=((1,), (1,)), dtype=np.int64)
        return int(counted.compute()[0, 0])

    def fill(self, block: int, out: NDArray[Any]) -> None:
        """Compute one block of rows into ``out``, one column block after the other."""
        for j in range(len(self._columns) - 1):
            part = self._array.blocks[block, j].compute()
            refuse_masked_rows(part)
            # blocks may be sparse matrices
            part = part.toarray() if hasattr(part, "toarray") else part
            out[:, self._columns[j] : self._columns[j + 1]] = part
            del part


def _count_rows(block: Any) -> NDArray[np.int64]:
    return np.array([[block.shape[0]]], np.int64)


class _FrameBlocks:
    """Partitions of a dask DataFrame."""

    def __init__(self, frame: Any) -> None:
        self.dtype = frame_dtype(frame)
        self.n_features = len(frame.columns)
        self.names = names_of(frame.columns)
        self._frame = frame
        self.lengths = [len(frame.partitions[b]) for b in range(frame.npartitions)]

    def fill(self, block: int, out: NDArray[Any]) -> None:
        """Compute one partition into ``out``."""
        out[:] = frame_values(self._frame.partitions[block].compute(), self.dtype)


def dask_array_rows(array: Any, *, weight: Column | None = None) -> BlockRows:
    """Rows of a dask array; only lengths are computed here, and only where they are unknown."""
    return BlockRows(_ArrayBlocks(array), weight=weight)


def dask_frame_rows(
    frame: Any, *, selection: Selection | None = None, weight: Column | None = None
) -> BlockRows:
    """Rows of a dask DataFrame; its partitions are computed once here to count their rows.

    Raises
    ------
    DataError
        Columns are not numbers, or the first is called as an index is and holds whole numbers.
    """
    labels = list(map(str, frame.columns))
    places = chosen_columns(labels, selection, "the DataFrame")
    frame = frame[[frame.columns[place] for place in places]] if selection else frame
    if may_be_index(labels, places, selection) and frame_dtype(frame[labels[:1]]).kind in "iu":
        raise not_told_from_index(labels[0], "the DataFrame", "and holds whole numbers")
    blocks = _FrameBlocks(frame)
    rows = BlockRows(blocks, weight=weight)
    return rows if blocks.names is None else rows.with_names(blocks.names)


class XarrayRows(SlicedRows):
    """Rows of an xarray.DataArray that Dask does not hold; lazily indexed files stay lazy."""

    def __init__(self, array: Any, *, weight: Column | None = None) -> None:
        super().__init__(decoded(array, "the DataArray"), weight=weight)
        self._array = array

    def _find_names(self) -> Sequence[str] | None:
        return names_in_xarray(self._array)


def names_in_xarray(array: Any) -> Sequence[str] | None:
    """The labels of the second dimension of an xarray.DataArray, where they are text."""
    dimension = array.dims[1] if len(array.dims) == 2 else None
    if dimension not in array.coords or array.coords[dimension].dtype.kind not in "UOT":
        return None
    return names_of(array.coords[dimension].values.tolist())


class DaskColumn:
    """Row weights in a one-dimensional dask array, computed range by range."""

    def __init__(self, values: Any) -> None:
        if len(values.shape) != 1:
            raise DataError(f"sample_weight has shape {values.shape}; give one number per row.")
        native_dtype(values.dtype, "sample_weight")
        refuse_masked(values._meta, "sample_weight is", "da.ma.filled(sample_weight, 0)")
        self._values = values
        self.n_rows = int(values.shape[0])

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        """The values of the rows ``start`` to ``stop`` as float64."""
        return np.asarray(self._values[start:stop].compute(), np.float64)


def dask_column(values: Any) -> Column:
    """Row weights from a dask array or Series; of unknown length, they are computed now."""
    values = getattr(values, "to_dask_array", lambda: values)()
    if any(np.isnan(n) for n in values.shape):
        return ArrayColumn(values.compute())
    return DaskColumn(values)
