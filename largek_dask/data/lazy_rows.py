"""Rows of lazy collections: dask arrays, dask DataFrames. Never computed as a whole.

A chunk is one block of the collection, or several small ones that follow each other. Blocks are
computed one at a time by Dask's scheduler, and are released before the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.columns import (
    Selection,
    chosen_columns,
    first_difference,
    listed,
    names_of,
)
from largek_dask.data.frame_rows import frame_dtype, frame_values
from largek_dask.data.memory_rows import ArrayColumn, refuse_masked_rows
from largek_dask.data.rows import (
    MAX_CHUNK_ROWS,
    Column,
    Rows,
    check_table_shape,
    difference,
    native_dtype,
    refuse_masked,
    table_from_lengths,
)
from largek_dask.errors import DataError

__all__ = ["BlockRows", "DaskColumn", "dask_array_rows", "dask_frame_rows"]


class BlockRows(Rows):
    """Rows of a dask array or dask DataFrame; see the module's docstring."""

    def __init__(
        self, blocks: _ArrayBlocks | _FrameBlocks, *, weight: Column | None = None
    ) -> None:
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
            with naming_block(f"{self._blocks.part} {block} ({self.name_chunk(i)})"):
                self._blocks.fill(block, out[at : at + length])
            at += length
        return out


@contextmanager
def naming_block(block: str) -> Iterator[None]:
    """Name the block of a collection in all errors that computing or checking it raises."""
    try:
        yield
    except MemoryError:
        raise
    except DataError as error:
        raise DataError(f"{block}: {error}") from None
    except Exception as error:
        # the graph is the user's: anything can be raised in it
        raise DataError(
            f"{block} could not be computed: {type(error).__name__}: {error}; compute() that block "
            "alone, and mend what fails there."
        ) from error


def _group(lengths: list[int], max_rows: int) -> list[list[int]]:
    """Group consecutive blocks of together up to ``max_rows`` rows; one block may be larger.

    Blocks without rows are included: that they are empty is verified when they are computed.
    """
    groups: list[list[int]] = []
    size = 0
    for block, length in enumerate(lengths):
        if groups and (size == 0 or length == 0 or size + length <= max_rows):
            groups[-1].append(block)
            size += length
        else:
            groups.append([block])
            size = length
    return groups


class _ArrayBlocks:
    """Blocks of a dask array; blocks along the columns are put side by side."""

    part = "block"

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
        with naming_block(f"{self.part} {block} of the dask array"):
            return int(counted.compute()[0, 0])

    def fill(self, block: int, out: NDArray[Any]) -> None:
        """Compute one block of rows into ``out``, one column block after the other."""
        for j, (begin, end) in enumerate(pairwise(self._columns)):
            part = self._array.blocks[block, j].compute()
            refuse_masked_rows(part)
            # blocks may be sparse matrices
            part = np.asarray(part.tocsr().toarray() if hasattr(part, "tocsr") else part)
            _check_declared(part, (len(out), end - begin), self.dtype)
            out[:, begin:end] = part
            del part


def _check_declared(x: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    native_dtype(x.dtype, "it")
    if told := difference(x, shape, dtype):
        raise DataError(
            f"it {told}; give map_blocks (or from_delayed) the shape (chunks=) and the dtype= of "
            f"what its function returns: here {x.shape} and {x.dtype}."
        )


def _count_rows(block: Any) -> NDArray[np.int64]:
    return np.array([[block.shape[0]]], np.int64)


class _FrameBlocks:
    part = "partition"

    def __init__(self, frame: Any) -> None:
        self.dtype = frame_dtype(frame)
        self.n_features = len(frame.columns)
        self.names = names_of(frame.columns)
        self._frame = frame
        self.lengths = [self._length(b) for b in range(frame.npartitions)]

    def _length(self, block: int) -> int:
        with naming_block(f"{self.part} {block} of the dask DataFrame"):
            return len(self._frame.partitions[block])

    def fill(self, block: int, out: NDArray[Any]) -> None:
        if not len(out):
            # it was counted; pandas knows no types of columns without rows
            return
        part = self._in_order(self._frame.partitions[block].compute())
        kind = frame_dtype(part)
        if not np.can_cast(kind, self.dtype):
            raise DataError(
                f"it holds {kind} instead of {self.dtype}, which would change its numbers; give "
                f"{META}"
            )
        values = frame_values(part, self.dtype)
        if told := difference(values, out.shape, self.dtype):
            raise DataError(f"it {told}: its graph is not the same each time; give {META}")
        out[:] = values

    def _in_order(self, part: Any) -> Any:
        if not hasattr(part, "columns"):
            raise DataError(f"it is a {type(part).__name__}, not a DataFrame; give {META}")
        declared = self._frame.columns
        if part.columns.equals(declared):
            return part
        if part.columns.is_unique and set(part.columns) == set(declared):
            return part[list(declared)]
        at = first_difference(
            list(map(str, declared)), list(map(str, part.columns)), "there", "in its metadata"
        )
        raise DataError(
            f"it has other columns ({listed(map(str, part.columns))}) than the dask DataFrame "
            f"declares: {at}; give {META}"
        )


META = (
    "map_partitions (or from_delayed, from_map) the meta= of what its function returns, or convert "
    "the columns in that function."
)


def dask_array_rows(array: Any, *, weight: Column | None = None) -> BlockRows:
    """Return rows of a dask array; lengths are computed if they are unknown."""
    return BlockRows(_ArrayBlocks(array), weight=weight)


def dask_frame_rows(
    frame: Any, *, selection: Selection | None = None, weight: Column | None = None
) -> BlockRows:
    """Return rows of a dask DataFrame, whose partitions are computed once to count their rows."""
    labels = list(map(str, frame.columns))
    places = chosen_columns(labels, selection, "the DataFrame")
    frame = frame[[frame.columns[place] for place in places]] if selection else frame
    blocks = _FrameBlocks(frame)
    rows = BlockRows(blocks, weight=weight)
    return rows if blocks.names is None else rows.with_names(blocks.names)


class DaskColumn:
    """Row weights in a one-dimensional dask array, computed block by block."""

    def __init__(self, values: Any) -> None:
        if len(values.shape) != 1:
            raise DataError(f"sample_weight has shape {values.shape}; give one number per row.")
        native_dtype(values.dtype, "sample_weight")
        refuse_masked_weights(values._meta)
        self._values = values
        self._bounds = np.concatenate([[0], np.cumsum(values.chunks[0])]).astype(int).tolist()
        self.n_rows = int(values.shape[0])

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        """Return the values of the rows ``start`` to ``stop``."""
        parts = [np.empty(0)]
        for block, (begin, end) in enumerate(pairwise(self._bounds)):
            if begin < stop and end > start:
                rows = slice(max(start - begin, 0), stop - begin)
                with naming_block(f"block {block} of sample_weight"):
                    parts.append(self._compute(block, end - begin)[rows])
        return np.concatenate(parts)

    def _compute(self, block: int, length: int) -> NDArray[np.float64]:
        part = self._values.blocks[block].compute()
        refuse_masked_weights(part)
        part = np.asarray(part)
        _check_declared(part, (length,), native_dtype(part.dtype, "it"))
        return part.astype(np.float64, copy=False)


def dask_column(values: Any) -> Column:
    """Return row weights of a dask array or Series; of unknown length, they are computed now."""
    values = getattr(values, "to_dask_array", lambda: values)()
    if any(np.isnan(n) for n in values.shape):
        return ArrayColumn(values.compute())
    return DaskColumn(values)


def refuse_masked_weights(values: Any) -> None:
    """Refuse weights under a mask."""
    refuse_masked(values, "sample_weight is", "da.ma.filled(sample_weight, 0)")
