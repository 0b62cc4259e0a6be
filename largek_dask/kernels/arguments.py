"""Checks and conversions of the arrays that searches take and make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import Table, readonly

__all__ = ["check_lists", "check_rows", "converted", "no_outputs", "output", "two_outputs"]

# values of one converted block of rows: a few thousand rows, within the second-level cache
_CONVERTED_VALUES = 1 << 16

Array = NDArray[Any]
Labels = NDArray[np.int32]


def check_lists(n: int, k: int, row_offsets: Array, list_offsets: Array, lists: Array) -> None:
    """Refuse segments of n rows, and lists of k centres, that do not fit."""
    for name, offsets, end in (
        ("row_offsets", row_offsets, n),
        ("list_offsets", list_offsets, len(lists)),
    ):
        if (
            len(offsets) < 1
            or offsets[0] != 0
            or offsets[-1] != end
            or (np.diff(offsets) < 0).any()
        ):
            raise ParameterError(f"{name} must rise from 0 to {end}.")
    if len(row_offsets) != len(list_offsets):
        raise ParameterError(
            f"{len(row_offsets) - 1} segments of rows need as many lists, "
            f"got {len(list_offsets) - 1}."
        )
    if ((np.diff(list_offsets) == 0) & (np.diff(row_offsets) > 0)).any():
        raise ParameterError("a segment with rows has an empty list of centres.")
    if len(lists) and not 0 <= lists.min() <= lists.max() < k:
        raise ParameterError(f"lists must name centres 0 to {k - 1}.")
    ascending = np.diff(lists) > 0
    ascending[list_offsets[(list_offsets > 0) & (list_offsets < len(lists))] - 1] = True
    if not ascending.all():
        raise ParameterError("every list of centres must be ascending, without repetition.")


def check_rows(x: Table, n_features: int) -> int:
    """Return the number of rows; refuse rows of another number of features."""
    if len(x.shape) != 2 or x.shape[1] != n_features:
        raise ParameterError(
            f"rows must have {n_features} features like the centres, got shape {x.shape}."
        )
    return len(x)


def converted(x: Array, dtype: np.dtype[Any]) -> Iterator[tuple[slice, Array]]:
    """Yield C-ordered read-only blocks of the rows in the compute dtype; one if it is that."""
    if len(x) == 0:
        return
    if x.dtype == dtype and x.flags.c_contiguous:
        yield slice(0, len(x)), readonly(x)
        return
    step = max(64, _CONVERTED_VALUES // x.shape[1])
    for begin in range(0, len(x), step):
        rows = slice(begin, min(begin + step, len(x)))
        yield rows, readonly(np.ascontiguousarray(x[rows], dtype))


def output(given: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the given array to write to, if it fits, or a new one."""
    if given is None:
        return np.empty(shape, dtype)
    if given.shape != shape or given.dtype != dtype or not given.flags.c_contiguous:
        raise ParameterError(
            f"an output array must be C-ordered {dtype} of shape {shape}, "
            f"got {given.dtype} of shape {given.shape}."
        )
    return given


def no_outputs(dtype: np.dtype[Any]) -> tuple[Labels, Array]:
    """Return empty labels and values, which are not needed."""
    return np.empty(0, np.int32), np.empty(0, dtype)


def two_outputs(n: int, dtype: np.dtype[Any]) -> tuple[Labels, Array, Labels, Array]:
    """Return arrays for labels and values of the nearest and second nearest centre of n rows."""
    return np.empty(n, np.int32), np.empty(n, dtype), np.empty(n, np.int32), np.empty(n, dtype)
