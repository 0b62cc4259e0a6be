"""Rows of dask arrays, dask DataFrames and xarray arrays, loaded one chunk at a time.

A chunk is one block of the collection, or several small consecutive blocks. Dask's scheduler
computes one block at a time, and each block is released before the next one is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.cf_attributes import refuse_encoded
from largek_dask.data.columns import Selection, chosen_columns, names_of
from largek_dask.data.frame_rows import frame_dtype, frame_values
from largek_dask.data.memory_rows import ArrayColumn, SlicedRows
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


class BlockRows(Rows):
    """Rows of a dask array; unknown block lengths are computed.

    In messages, ``part`` names a block and ``what`` names the collection.
    """

    def __init__(
        self, array: Any, *, weight: Column | None = None, part: str = "block", what: str = "array"
    ) -> None:
        what = f"the dask {what}"
        check_table_shape(array.shape, what)
        refuse_masked(array._meta)
        if any(np.isnan(c) for c in array.chunks[1]):
            raise DataError(
                f"{what} has an unknown number of columns; call compute_chunk_sizes() first."
            )
        dtype, n_features = native_dtype(array.dtype, what), int(array.shape[1])
        self._array, self._part = array, part
        self._columns = np.concatenate([[0], np.cumsum(array.chunks[1])]).astype(int).tolist()
        self._lengths = [
            self._count(block, what) if np.isnan(length) else int(length)
            for block, length in enumerate(array.chunks[0])
        ]
        budget = int(config.get("data.read-chunk-bytes")) // max(1, n_features * dtype.itemsize)
        self._groups = _group(self._lengths, min(max(1, budget), MAX_CHUNK_ROWS))
        lengths = [sum(self._lengths[b] for b in group) for group in self._groups]
        super().__init__(
            n_features=n_features,
            dtype=dtype,
            chunk_table=table_from_lengths(lengths),
            weight=weight,
        )

    def _count(self, block: int, what: str) -> int:
        part = self._array.blocks[block, 0].to_delayed().item()
        with naming_block(f"{self._part} {block} of {what}"):
            return int(part.shape[0].compute())

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.n_features), self.dtype)
        at = 0
        for block in self._groups[i]:
            length = self._lengths[block]
            with naming_block(f"{self._part} {block} ({self.name_chunk(i)})"):
                self._fill(block, out[at : at + length])
            at += length
        return out

    def _fill(self, block: int, out: NDArray[Any]) -> None:
        for j, (begin, end) in enumerate(pairwise(self._columns)):
            part = self._array.blocks[block, j].compute()
            refuse_masked(part)
            # A block may be a sparse matrix.
            part = np.asarray(part.tocsr().toarray() if hasattr(part, "tocsr") else part)
            _check_declared(part, (len(out), end - begin), self.dtype)
            out[:, begin:end] = part
            del part


@contextmanager
def naming_block(block: str) -> Iterator[None]:
    """Add the name of a block to all errors that are raised for this block."""
    try:
        yield
    except MemoryError:
        raise
    except DataError as error:
        raise DataError(f"{block}: {error}") from None
    except Exception as error:
        # The user's dask graph may raise errors of any class.
        raise DataError(
            f"{block} could not be computed: {type(error).__name__}: {error}; call compute() on "
            "this block to find the cause."
        ) from error


def _group(lengths: list[int], max_rows: int) -> list[list[int]]:
    """Group consecutive blocks, with up to ``max_rows`` rows or a single block per group.

    Groups include empty blocks, because computing a block verifies that it is empty.
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


def _check_declared(x: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    native_dtype(x.dtype, "it")
    if problem := difference(x, shape, dtype):
        raise DataError(
            f"the result {problem}; set chunks= and dtype= of map_blocks (or from_delayed) to "
            f"match the output of the function, which has shape {x.shape} and dtype {x.dtype}."
        )


def dask_frame_rows(
    frame: Any, *, selection: Selection | None = None, weight: Column | None = None
) -> Rows:
    """Return rows of a dask DataFrame; computes each partition to count its rows."""
    labels = list(map(str, frame.columns))
    places = chosen_columns(labels, selection, "the DataFrame")
    frame = frame[[frame.columns[place] for place in places]] if selection else frame
    dtype, columns = frame_dtype(frame), frame.columns
    lengths = []
    for block in range(frame.npartitions):
        with naming_block(f"partition {block} of the dask DataFrame"):
            lengths.append(len(frame.partitions[block]))
    values = partial(_values_of, columns=columns, dtype=dtype)
    array = frame.map_partitions(values, meta=np.empty((0, len(columns)), dtype))
    array._chunks = (tuple(lengths), (len(columns),))
    rows = BlockRows(array, weight=weight, part="partition", what="DataFrame")
    return rows.with_names(names_of(columns))


def _values_of(part: Any, columns: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert a partition, whose columns may be in a different order, to an array."""
    if not len(part):
        # pandas may not know the column types of a partition without rows.
        return np.empty((0, len(columns)), dtype)
    if not part.columns.equals(columns):
        part = part[list(columns)]
    kind = frame_dtype(part)
    if not np.can_cast(kind, dtype):
        raise DataError(
            f"the dtype is {kind}, which cannot be converted to the declared {dtype} without loss; "
            "set meta= of map_partitions (or from_map) to the dtype that the function returns"
        )
    return frame_values(part, dtype)


def xarray_rows(array: Any, weight: Column | None = None) -> Rows:
    """Return rows of an xarray.DataArray; raise DataError unless it has two dimensions.

    Data that xarray opened lazily are not loaded. String labels of the second dimension become
    column names.
    """
    dims = tuple(array.dims)
    if len(dims) != 2:
        example = dims[1:] or ("DIMENSION",)
        raise DataError(
            f"the xarray.DataArray has {len(dims)} dimensions {dims}, but a table of rows has two; "
            f"combine the dimensions of the rows with array.stack(row={example!r}), and move 'row' "
            "to the front with transpose('row', ...). For a single column, use "
            "array.to_numpy().reshape(-1, 1)."
        )
    refuse_encoded(array, "the DataArray")
    rows: Rows = (
        SlicedRows(array, weight=weight)
        if array.chunks is None
        else BlockRows(array.data, weight=weight)
    )
    labels = array.coords.get(dims[1])
    is_text = labels is not None and labels.dtype.kind in "UOT"
    return rows.with_names(names_of(labels.values.tolist()) if is_text else None)


def dask_column(values: Any) -> Column:
    """Compute row weights given as a dask array or Series."""
    values = getattr(values, "to_dask_array", lambda: values)()
    return ArrayColumn(values.compute())
