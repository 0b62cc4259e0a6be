"""Missing and packed numbers as CF attributes describe them, decoded as xarray does.

``scale_factor`` and ``add_offset`` pack numbers into small integers, ``_FillValue`` and
``missing_value`` are numbers that stand for none, ``_Unsigned`` is the sign of integers.
``valid_min``, ``valid_max`` and ``valid_range`` hide nothing.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.errors import DataError

__all__ = ["ATTRIBUTES", "CFDecoding", "decoded"]

MISSING = ("missing_value", "_FillValue")
PACKING = ("scale_factor", "add_offset")
ATTRIBUTES = (*MISSING, *PACKING, "_Unsigned")
DIMENSIONS = ("_ARRAY_DIMENSIONS", "_NCZARR_ATTR", "_nczarr_attrs", "_nczarr_array")
"""Attributes by which xarray and netCDF know a Zarr array of theirs."""


@dataclass(frozen=True, slots=True)
class CFDecoding:
    """Decode stored numbers to those that they represent; missing ones become NaN."""

    dtype: np.dtype[Any]
    """Type of decoded numbers."""
    stored: np.dtype[Any]
    """Type of stored numbers, with the sign that ``_Unsigned`` gives them."""
    missing: tuple[Any, ...]
    """Stored numbers that stand for a missing one."""
    scale: Any
    """Factor of stored numbers, of the type of the attribute; None for 1."""
    offset: Any
    """Number added after scaling; None for 0."""

    @classmethod
    def of(cls, array: Any, where: str) -> CFDecoding | None:
        """Return the decoding of a Zarr array or HDF5 dataset; None if it is not encoded.

        Raises DataError, which names the attribute, if one is not a number.
        """
        dtype = np.dtype(array.dtype)
        if dtype.kind not in "iuf":
            return None
        disk = np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")
        scale, offset = (_scalar(array.attrs.get(name), name, where) for name in PACKING)
        named = {name: _numbers(_missing_of(array, name), name, where) for name in MISSING}
        if disk.kind == "f":
            stored = disk
        else:
            named = {name: values for name, values in named.items() if not np.isnan(values).all()}
            stored = _with_sign(disk, array.attrs.get("_Unsigned"))
        values = [value for values in named.values() for value in values if not np.isnan(value)]
        missing = dict.fromkeys(_as_stored(value, disk, stored) for value in values)
        missing.pop(None, None)
        packed = scale is not None or offset is not None
        kind = stored
        # NaN alone is in floats, which xarray does not widen then.
        if packed and (values or not any(named.values())):
            kind = _float_of(stored, scale, offset)
        elif values and stored.kind in "iu":
            kind = np.dtype(np.float32 if stored.itemsize <= 2 else np.float64)
        if not missing and not packed and kind == disk:
            return None
        return cls(kind, stored, tuple(missing), scale, offset)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Decode stored numbers, which may be in either byte order."""
        native = np.asarray(x)
        native = native.astype(native.dtype.newbyteorder("="), copy=False)
        if native.dtype.kind != self.stored.kind:
            native = native.view(self.stored)
        out = native.astype(self.dtype)
        for value in self.missing:
            out[native == value] = np.nan
        if self.scale is not None:
            out *= self.scale
        if self.offset is not None:
            out += self.offset
        return out

    def __str__(self) -> str:
        """Describe the numbers that stand for missing ones; "" if there are none."""
        if not self.missing:
            return ""
        values = ", ".join(map(str, self.missing))
        return f"its attributes say that {values} stands for a missing number"


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


def _missing_of(array: Any, name: str) -> Any:
    """Return an attribute's value; in Zarr v2 xarray keeps ``_FillValue`` as the fill value."""
    value = array.attrs.get(name)
    if value is not None or name != "_FillValue" or not isinstance(array, zarr.Array):
        return value
    if array.metadata.zarr_format != 2:
        return None
    fill = array.metadata.fill_value
    if any(attribute in array.attrs for attribute in DIMENSIONS):
        return fill
    # By itself Zarr gives every array the fill value 0, which then hides nothing.
    return fill if fill and any(attribute in array.attrs for attribute in PACKING) else None


def _numbers(value: Any, name: str, where: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, (str, bytes)):
        return [_number_of(value, name, where)]
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind in "SUO":
        return [number for part in array.tolist() for number in _numbers(str(part), name, where)]
    return list(array)


def _number_of(text: str | bytes, name: str, where: str) -> float:
    """Parse a number that is written as text, or as xarray encodes floats for Zarr v3."""
    try:
        return float(text)
    except ValueError:
        try:
            return float(np.frombuffer(base64.b64decode(text, validate=True), "<f8", 1)[0])
        except (binascii.Error, ValueError):
            raise _no_number(text, name, where) from None


def _scalar(value: Any, name: str, where: str) -> Any:
    """Return the one number of an attribute, in its own type; None if there is none."""
    if value is None:
        return None
    array = np.asarray(value).reshape(-1)
    if len(array) != 1 or array.dtype.kind not in "iuf":
        raise _no_number(value, name, where)
    if not np.isfinite(array[0]):
        raise _no_number(value, name, where)
    return value if isinstance(value, (int, float, np.number)) else array[0]


def _no_number(value: Any, name: str, where: str) -> DataError:
    return DataError(
        f"{where} has the attribute {name} = {value!r}, which is not a number: give it one, or "
        "remove it; numbers that stand for missing ones, or that are packed, cannot be told "
        "without it."
    )


def _with_sign(disk: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Return the type of integers with the sign that the attribute ``_Unsigned`` gives."""
    array = np.asarray("" if unsigned is None else unsigned).reshape(-1)
    text = array[0].decode() if isinstance(array[0], bytes) else str(array[0])
    kind = {"true": "u", "false": "i"}.get(text.lower(), disk.kind)
    return np.dtype(f"{kind}{disk.itemsize}")


def _as_stored(value: Any, disk: np.dtype[Any], stored: np.dtype[Any]) -> Any:
    """Return a number as it would be stored; None if it cannot be."""
    if stored.kind == "f":
        with np.errstate(over="ignore"):
            number = np.asarray(value).astype(stored)[()]
        return number if np.isfinite(number) == np.isfinite(value) else None
    if not np.isfinite(value) or value != int(value):
        return None
    for kind in (stored, disk):
        if np.iinfo(kind).min <= int(value) <= np.iinfo(kind).max:
            return np.array(int(value), kind).view(stored)[()]
    return None


def _float_of(stored: np.dtype[Any], scale: Any, offset: Any) -> np.dtype[Any]:
    """Return the type into which xarray decodes packed numbers."""
    kinds = {np.asarray(value).dtype for value in (scale, offset) if value is not None}
    kind = kinds.pop()
    wide = np.dtype(np.float64)
    if kinds or kind not in (np.float32, np.float64):
        return wide
    if offset is None:
        return kind
    if scale is None or (stored.kind in "iu" and stored.itemsize == 4):
        return wide
    return kind
