"""Rows of xarray's arrays, and what to do with those that are no tables."""

from __future__ import annotations

from typing import Any

from largek_dask.data.cf_attributes import refuse_encoded
from largek_dask.data.columns import names_of
from largek_dask.data.lazy_rows import BlockRows
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, Rows
from largek_dask.errors import DataError


def xarray_rows(array: Any, weight: Column | None = None) -> Rows:
    """Return rows of an xarray.DataArray; raise DataError unless it has two dimensions.

    Files that are indexed lazily stay lazy. Labels of the second dimension, if they are texts, are
    names of columns.
    """
    dims = tuple(array.dims)
    if len(dims) != 2:
        example = dims[1:] or ("DIMENSION",)
        raise DataError(
            f"the xarray.DataArray has {len(dims)} dimensions {dims}, but rows are a (rows, "
            f"columns) table; stack those of a row, as by array.stack(row={example!r}), and put "
            "them first with transpose('row', ...); array.to_numpy().reshape(-1, 1) is one column."
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
