"""Missing and packed numbers as CF attributes describe them, decoded by xarray.

``scale_factor`` and ``add_offset`` pack numbers into small integers, ``_FillValue`` and
``missing_value`` are numbers that stand for none, ``_Unsigned`` is the sign of integers.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.errors import DataError, MissingDependencyError

__all__ = ["ATTRIBUTES", "CFDecoding", "decoded"]

MISSING = ("missing_value", "_FillValue")
PACKING = ("scale_factor", "add_offset")
ATTRIBUTES = (*MISSING, *PACKING, "_Unsigned")
DIMENSIONS = ("_ARRAY_DIMENSIONS", "_NCZARR_ATTR", "_nczarr_attrs", "_nczarr_array")
"""Attributes by which xarray and netCDF know a Zarr array of theirs."""


@dataclass(frozen=True, slots=True)
class CFDecoding:
    """Decode stored numbers to those that they represent; missing ones become NaN."""

    attributes: Mapping[str, Any]
    dtype: np.dtype[Any]
    """Type of decoded numbers."""

    @classmethod
    def of(cls, array: Any, where: str) -> CFDecoding | None:
        """Return the decoding of a Zarr array or HDF5 dataset; None if it is not encoded.

        Raises DataError if xarray cannot decode by the attributes.
        """
        kind = np.dtype(array.dtype)
        if kind.kind not in "iuf":
            return None
        try:
            found = {
                name: value for name in ATTRIBUTES if (value := _value(array, name)) is not None
            }
            if not found or (kind.kind == "f" and set(found) <= {*MISSING} and not _numbers(found)):
                return None
            dtype = cls(found, kind)(np.empty((0, 1), kind)).dtype
        except ImportError as error:
            raise MissingDependencyError(
                f"{where} has attributes of the CF conventions ({', '.join(found)}), which xarray "
                "decodes: pip install xarray."
            ) from error
        except Exception as error:
            # xarray raises errors of many classes.
            attributes = {name: array.attrs[name] for name in ATTRIBUTES if name in array.attrs}
            raise DataError(
                f"{where} has the attributes {attributes}, by which xarray cannot decode its "
                f"numbers: {error}; give them numbers, or remove them."
            ) from error
        plain = dtype == kind.newbyteorder("=") and not _numbers(found)
        return None if plain and found.keys().isdisjoint(PACKING) else cls(found, dtype)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Decode stored numbers, which may be in either byte order."""
        from xarray import Variable
        from xarray.conventions import decode_cf_variable

        dims = tuple(map(str, range(x.ndim)))
        stored = Variable(dims, np.asarray(x), dict(self.attributes))
        return np.asarray(decode_cf_variable("rows", stored, decode_times=False).values)

    def __str__(self) -> str:
        """Describe the numbers that stand for missing ones; "" if there are none."""
        values = ", ".join(map(str, _numbers(self.attributes)))
        return f"its attributes say that {values} stands for a missing number" if values else ""


def _numbers(attributes: Mapping[str, Any]) -> list[Any]:
    """Return the numbers that stand for missing ones, without NaN."""
    values = [np.ravel(attributes[name]) for name in MISSING if name in attributes]
    return list(dict.fromkeys(value for some in values for value in some if value == value))


class _Decoded:
    """An array that decodes the stored rows that are asked for."""

    def __init__(self, array: Any, decoding: CFDecoding) -> None:
        self.shape = array.shape
        self.dtype = decoding.dtype
        self.missing_note = str(decoding)
        self._array = array
        self._decoding = decoding

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._decoding(self._array[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def decoded(array: Any, where: str) -> Any:
    """Return an array in a file as its attributes mean it, and anything else unchanged."""
    if not (hasattr(array, "attrs") and hasattr(array, "dtype") and hasattr(array, "chunks")):
        return array
    decoding = CFDecoding.of(array, where)
    return array if decoding is None else _Decoded(array, decoding)


def _value(array: Any, name: str) -> Any:
    """Return an attribute as xarray has it in memory; None without it."""
    value = array.attrs.get(name)
    if value is None and name == "_FillValue" and isinstance(array, zarr.Array):
        return _fill_value(array)
    if isinstance(value, np.ndarray) and value.size == 1:
        # netCDF writes each attribute as an array of one number.
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode()
    return _parsed(value) if isinstance(value, str) and name in MISSING else value


def _fill_value(array: zarr.Array[Any]) -> Any:
    """Return the fill value of an array in Zarr v2, as which xarray keeps ``_FillValue``."""
    if array.metadata.zarr_format != 2:
        return None
    fill = array.metadata.fill_value
    if any(attribute in array.attrs for attribute in DIMENSIONS):
        return fill
    # By itself Zarr gives every array the fill value 0, which then hides nothing.
    return fill if fill and any(attribute in array.attrs for attribute in PACKING) else None


def _parsed(text: str) -> float:
    """Return a number that is written as text, or as xarray encodes floats for Zarr v3."""
    try:
        return float(text)
    except ValueError:
        return float(np.frombuffer(base64.b64decode(text, validate=True), "<f8", 1)[0])
