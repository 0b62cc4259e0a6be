"""Reject arrays with CF-encoded numbers, which only xarray can decode."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import zarr

from largek_dask.errors import DataError

MISSING = ("missing_value", "_FillValue")
PACKING = ("scale_factor", "add_offset", "_Unsigned")
DIMENSIONS = ("_ARRAY_DIMENSIONS", "_NCZARR_ATTR", "_nczarr_attrs", "_nczarr_array")
"""Attributes by which an array written by xarray or netCDF is recognised."""


def refuse_encoded(array: Any, where: str) -> None:
    """Raise DataError if a Zarr, HDF5 or xarray array has packed or missing numbers.

    Arrays that use NaN for missing numbers are accepted, and so are all other kinds of sources.
    """
    if not (hasattr(array, "attrs") and hasattr(array, "chunks")):
        return
    known = {name: array.attrs[name] for name in (*MISSING, *PACKING) if name in array.attrs}
    if isinstance(array, zarr.Array) and array.metadata.zarr_format == 2:
        # In Zarr v2, xarray uses the fill value of the array itself for missing numbers.
        fill = array.metadata.fill_value
        if fill is not None and any(name in array.attrs for name in DIMENSIONS):
            known.setdefault("_FillValue", fill)
    found = {name: value for name, value in known.items() if name in PACKING or not _is_nan(value)}
    if found and np.dtype(array.dtype).kind in "iuf":
        raise DataError(
            f"{where} contains packed numbers or placeholders for missing values "
            f"({', '.join(f'{name}={value}' for name, value in found.items())}); decode it with "
            "xarray first (xarray.open_zarr, open_dataset or decode_cf), and pass the result."
        )


def _is_nan(value: Any) -> bool:
    """Return True if an attribute is NaN as a number, text or base64 (xarray with Zarr v3)."""
    try:
        if isinstance(value, str) and value != "NaN":
            value = np.frombuffer(base64.b64decode(value, validate=True), "<f8")
        return bool(np.isnan(np.asarray(value, np.float64)).all())
    except (ValueError, TypeError):
        return False
