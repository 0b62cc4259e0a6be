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

FEATURES = ("band", "bands", "channel", "variable", "feature", "wavelength", "time")
"""Usual names of a dimension along which features lie."""


def variable_of(dataset: Any, component: str | None) -> Any:
    """Return the array of this name in an xarray.Dataset, or raise DataError with advice."""
    if component in dataset.variables:
        return dataset[component]
    if component is not None:
        raise DataError(
            f"the xarray.Dataset has no array {component!r}; pass component= one of "
            f"{listed(map(str, dataset.data_vars))}."
        )
    tables = [str(name) for name, array in dataset.data_vars.items() if array.ndim == 2]
    ways = [f"component= one of {', '.join(tables)}"] if tables else []
    dims = {array.dims for array in dataset.data_vars.values()}
    if len(dims) == 1 and (all_dims := dims.pop()):
        feature = _unused("feature", all_dims)
        ways.append(
            f"dataset.to_dataarray({feature!r})" + _one_row_each(all_dims, feature, all_dims)
        )
    shown = " or ".join(ways) or "component= the name of one, and make a table of it"
    raise DataError(f"an xarray.Dataset holds several arrays; pass {shown}.")


def xarray_rows(array: Any, weight: Column | None = None) -> Rows:
    """Return rows of an xarray.DataArray, or raise DataError with advice on how to stack it."""
    dims = tuple(array.dims)
    if len(dims) > 2:
        feature = next((dim for dim in dims if dim in FEATURES), dims[0])
        others = tuple(dim for dim in dims if dim != feature)
        raise DataError(
            f"the xarray.DataArray has {len(dims)} dimensions {dims}, but rows are a (rows, "
            f"columns) table; use array{_one_row_each(others, feature, dims)}, or "
            f"array.stack({_unused('feature', dims)}={dims[1:]!r}) for a row of each {dims[0]!r}."
        )
    if len(dims) == 1:
        raise DataError(
            f"the xarray.DataArray has one dimension {dims}, but rows are a (rows, columns) table; "
            "use array.to_numpy().reshape(-1, 1) for one column."
        )
    if array.chunks is None:
        return XarrayRows(array, weight=weight)
    data, decoding = array.data, CFDecoding.of(array, "the DataArray")
    if decoding is not None:
        data = data.map_blocks(decoding, dtype=decoding.dtype)
    return dask_array_rows(data, weight=weight).with_names(names_in_xarray(array))


def _one_row_each(dims: tuple[Any, ...], feature: Any, all_dims: tuple[Any, ...]) -> str:
    """Return code that makes a row of each place along some dimensions."""
    if len(dims) == 1:
        return f".transpose({dims[0]!r}, {feature!r}) for a row of each {dims[0]!r}"
    row = _unused("row", all_dims)
    return f".stack({row}={dims!r}).transpose({row!r}, {feature!r}) for a row of each {dims!r}"


def _unused(name: str, dims: Sequence[Any]) -> str:
    while name in dims:
        name += "s"
    return name


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
