"""Rows of xarray's arrays, and what to do with those that are no tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from largek_dask.data.cf_attributes import CFDecoding, decoded
from largek_dask.data.columns import listed, names_of
from largek_dask.data.lazy_rows import dask_array_rows
from largek_dask.data.memory_rows import SlicedRows
from largek_dask.data.rows import Column, Rows
from largek_dask.errors import DataError

__all__ = ["variable_of", "xarray_rows"]


def variable_of(dataset: Any, component: str | None) -> Any:
    """Return the array of this name in an xarray.Dataset, or raise DataError."""
    if component in dataset.variables:
        return dataset[component]
    names = listed(map(str, dataset.data_vars))
    if component is not None:
        raise DataError(
            f"the xarray.Dataset has no array {component!r}; pass component= one of {names}."
        )
    raise DataError(
        f"an xarray.Dataset holds several arrays ({names}); pass component= the name of one, or "
        "dataset.to_dataarray('feature') with all other dimensions stacked to rows."
    )


def xarray_rows(array: Any, weight: Column | None = None) -> Rows:
    """Return rows of an xarray.DataArray; raise DataError unless it has two dimensions."""
    dims = tuple(array.dims)
    if len(dims) != 2:
        example = dims[1:] or ("DIMENSION",)
        raise DataError(
            f"the xarray.DataArray has {len(dims)} dimensions {dims}, but rows are a (rows, "
            f"columns) table; stack those of a row, as by array.stack(row={example!r}), and put "
            "them first with transpose('row', ...); array.to_numpy().reshape(-1, 1) is one column."
        )
    if array.chunks is None:
        return XarrayRows(array, weight=weight)
    data, decoding = array.data, CFDecoding.of(array, "the DataArray")
    if decoding is not None:
        data = data.map_blocks(decoding, dtype=decoding.dtype)
    return dask_array_rows(data, weight=weight).with_names(names_in_xarray(array))


class XarrayRows(SlicedRows):
    """Rows of an xarray.DataArray that Dask does not hold; lazily indexed files stay lazy."""

    def __init__(self, array: Any, *, weight: Column | None = None) -> None:
        super().__init__(decoded(array, "the DataArray"), weight=weight)
        self._array = array

    def _find_names(self) -> Sequence[str] | None:
        return names_in_xarray(self._array)


def names_in_xarray(array: Any) -> Sequence[str] | None:
    """Return the labels of the second dimension of an xarray.DataArray, if they are text."""
    dimension = array.dims[1] if len(array.dims) == 2 else None
    if dimension not in array.coords or array.coords[dimension].dtype.kind not in "UOT":
        return None
    return names_of(array.coords[dimension].values.tolist())
