"""Convert, check and normalize rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.errors import DataError
from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.jit import njit

_BLOCK_VALUES = 1 << 16
NATIVE = frozenset(np.dtype(t) for t in ("float32", "float64", "uint8", "int16"))
# Exponent bits by item size. All of these bits are set only in NaN and infinity.
_EXPONENTS = {2: np.int16(0x7C00), 4: np.int32(0x7F800000), 8: np.int64(0x7FF0000000000000)}


def compute_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the compute dtype for rows of the given type.

    The compute dtype is float32 for float16, float32, bool and integers of up to 16 bits, and
    float64 for float64 and larger integers.

    Raises
    ------
    DataError
        For all other types (complex, object, text, dates).
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize <= 2):
        return np.dtype(np.float32)
    if dtype.kind in "iu":
        return np.dtype(np.float64)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    raise DataError(
        f"rows of type {dtype} are not a table of numbers: convert them to float32, float64 or "
        "integers"
    )


def native_blocks(x: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield blocks ``(rows, x[rows])`` in a type for which kernels are compiled.

    Rows of type float32, float64, uint8 or int16 are yielded unchanged in one block, and bool rows
    are viewed as uint8. Rows of other types are converted to the compute dtype in several blocks.
    Blocks are read-only.
    """
    if x.dtype in NATIVE or x.dtype == np.bool_:
        yield slice(0, len(x)), readonly(x.view(np.uint8) if x.dtype == np.bool_ else x)
        return
    dtype = compute_dtype(x.dtype)
    step = max(1, _BLOCK_VALUES // max(1, x.shape[1]))
    for begin in range(0, len(x), step):
        rows = slice(begin, begin + step)
        yield rows, readonly(x[rows].astype(dtype))


def finite_rows(x: Table) -> NDArray[np.bool_]:
    """Return an (n,) mask of the rows without NaN or infinity."""
    finite = np.ones(len(x), np.bool_)
    if isinstance(x, SparseBlock):
        wrong = ~np.isfinite(x.data[x.stored])
        if wrong.any():
            finite[x.row_numbers()[wrong]] = False
        return finite
    if x.dtype.kind == "f":
        bits, mask = x.view(f"i{x.itemsize}"), _EXPONENTS[x.itemsize]
        if not _all_finite(readonly(bits.reshape(-1)), mask):
            _finite_rows(readonly(bits), mask, finite)
    return finite


@njit
def _all_finite(bits, mask):
    # A maximum of integers is vectorized, unlike a loop with an early exit.
    highest = mask & 0
    for i in range(bits.shape[0]):
        highest = max(highest, bits[i] & mask)
    return highest < mask


@njit
def _finite_rows(bits, mask, finite):
    for i in range(bits.shape[0]):
        highest = mask & 0
        for f in range(bits.shape[1]):
            highest = max(highest, bits[i, f] & mask)
        finite[i] = highest < mask


def normalize_rows(x: Table) -> Any:
    """Return (n, d) rows of unit Euclidean length in the compute dtype.

    Rows of zeros remain zero, and rows with NaN or infinity become NaN. Squares are summed in
    float64 in feature order, so results are bit-identical on every machine.
    """
    dtype = compute_dtype(x.dtype)
    if isinstance(x, SparseBlock):
        data = np.empty(len(x.data), dtype)
        _normalize_sparse(readonly(x.data), readonly(x.indptr), data)
        return SparseBlock(data, x.indices, x.indptr, x.n_features)
    out = np.empty(x.shape, dtype)
    for rows, block in native_blocks(x):
        _normalize_rows(block, out[rows])
    return out


@njit
def _normalize_rows(x, out):
    for i in range(x.shape[0]):
        _normalize(x[i], out[i])


@njit
def _normalize_sparse(data, indptr, out):
    for i in range(indptr.shape[0] - 1):
        begin, end = indptr[i], indptr[i + 1]
        _normalize(data[begin:end], out[begin:end])


@njit
def _normalize(x, out):
    largest = 0.0
    for f in range(x.shape[0]):
        largest = max(largest, abs(np.float64(x[f])))
    # Scale by a power of two, which is exact, so that squares neither overflow nor underflow.
    scale = 1.0
    if largest > 1e100:
        scale = 2.0**-600
    elif largest < 1e-100:
        scale = 2.0**600
    total = 0.0
    for f in range(x.shape[0]):
        value = np.float64(x[f]) * scale
        total += value * value
    norm = np.sqrt(total)
    for f in range(x.shape[0]):
        out[f] = np.float64(x[f]) * scale / norm if total != 0.0 else 0.0
