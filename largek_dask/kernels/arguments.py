"""Check and convert the arrays that searches read and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import Table, readonly
from largek_dask.kernels.compiling import check_now

_CONVERTED_VALUES = 1 << 16
"""Number of values per block of converted rows; a block fits the second-level cache."""
LONG_WORK = 1 << 31
"""Maximum number of multiply-adds between two checks for a stop, about a tenth of a second."""
_LEAST_ROWS = 1_024
"""Minimum number of rows between two checks, so that rows share each reading of the centres."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


def check_rows(x: Table, n_features: int) -> int:
    """Return the number of rows; raise ParameterError if x has the wrong shape."""
    if len(x.shape) != 2 or x.shape[1] != n_features:
        raise ParameterError(
            f"rows must have {n_features} features, as the centres do; got shape {x.shape}."
        )
    return len(x)


def stretches(n: int, row_work: int) -> Iterator[slice]:
    """Yield slices of n rows, and check for a stop before each; a row takes ``row_work``."""
    step = max(_LEAST_ROWS, LONG_WORK // max(1, row_work))
    for begin in range(0, n, step):
        check_now()
        yield slice(begin, min(begin + step, n))


def converted(x: Array, dtype: np.dtype[Any], row_work: int = 0) -> Iterator[tuple[slice, Array]]:
    """Yield slices of rows with their values as read-only C-ordered blocks of type ``dtype``.

    Blocks are short enough for checks for a stop, if each row takes ``row_work`` multiply-adds.
    """
    if x.dtype == dtype and x.flags.c_contiguous:
        for rows in stretches(len(x), row_work):
            yield rows, readonly(x[rows])
        return
    step = max(64, _CONVERTED_VALUES // x.shape[1])
    for begin in range(0, len(x), step):
        check_now()
        rows = slice(begin, min(begin + step, len(x)))
        yield rows, readonly(np.ascontiguousarray(x[rows], dtype))


def output(given: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Check and return ``given``, or return a new array if ``given`` is None."""
    if given is None:
        return np.empty(shape, dtype)
    if given.shape != shape or given.dtype != dtype or not given.flags.c_contiguous:
        raise ParameterError(
            f"the output array must be a C-ordered {dtype} array of shape {shape}; "
            f"got a {given.dtype} array of shape {given.shape}."
        )
    return given


def two_outputs(n: int, dtype: np.dtype[Any]) -> tuple[Labels, Array, Labels, Array]:
    """Return new arrays for the labels and distances of the two nearest centres of n rows."""
    return np.empty(n, np.int32), np.empty(n, dtype), np.empty(n, np.int32), np.empty(n, dtype)
