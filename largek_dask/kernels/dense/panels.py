"""Panels: rows packed for the tile, the blocks a pass is cut into, and exact distances of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.dense.doubts import Rounding
from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.tile import DIRECT_FEATURES, Tile

if numba.config.DISABLE_JIT:
    from largek_dask.kernels.emit.standins import square_distance, transpose
else:
    from largek_dask.kernels.emit.rows import square_distance, transpose

__all__ = [
    "PAD",
    "Blocking",
    "DenseForm",
    "blocking",
    "blockwise",
    "center_factors",
    "dense_form",
    "direct_form",
    "inner",
    "pack_rows",
    "real_arrays",
    "square_distances",
    "workspace",
    "workspace_type",
]

PAD = 8
"""Centres are padded to a multiple of this, which every tile divides."""

CACHE_LINE = 64

Array = NDArray[Any]
Dtype = np.dtype[Any]
Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Blocking:
    """How a pass over rows and centres is cut; it changes speed, never a bit."""

    panels: int
    """Panels packed together."""
    tiles: int
    """Tiles of centres that one panel meets before the next panel takes its place."""
    features: int
    """Features of one block; accumulators wait in memory between blocks."""

    def as_tuple(self) -> tuple[int, int, int]:
        """For compiled code."""
        return self.panels, self.tiles, self.features


@cache
def blocking(tile: Tile, itemsize: int, n_features: int, n_centers: int) -> Blocking:
    """Blocks for `n_centers` centres of `n_features` features of `itemsize` bytes.

    Measured on a CPU with 32 KB and 512 KB of first- and second-level cache: the optimum is flat,
    except that a few panels must share what is read of many large centres. Where all centres
    stay near, few panels at a time leave room for the rows that come next.
    """
    width = tile.vectors * tile.lanes_of(itemsize)
    features = n_features if n_features <= 1024 else 512
    per_tile = tile.centres * features * itemsize
    tiles = max(1, min(-(-n_centers // tile.centres), (128 << 10) // per_tile))
    panel = width * features * itemsize
    panels = max(2 if features == n_features else 4, min(16, (192 << 10) // panel))
    if tiles * tile.centres >= n_centers and features == n_features:
        panels = max(1, min(16, (16 << 10) // panel))
    return Blocking(panels=panels, tiles=tiles, features=features)


def blockwise(n_rows: int, n_features: int, n_centers: int) -> bool:
    """Whether to look for the winning tile first and for its centre afterwards.

    It halves the price of comparing, which few features do not hide, and costs a look back at
    one tile for every row and a transposed copy of the centres: direct form only.
    """
    return n_features <= DIRECT_FEATURES and n_centers >= 256 and n_rows >= 256


def inner(function: Kernel) -> Kernel:
    """Compile a function that only other kernels call: without an entry from Python."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def real_arrays(dtype: Dtype, *ndims: int) -> list[Any]:
    """Types of read-only arrays of rows' numbers; writable ones are taken too."""
    real = numba.from_dtype(dtype)
    return [types.Array(real, n, "C", readonly=True) for n in ndims]


@cache
def pack_rows(dtype: Dtype, width: int) -> Kernel:
    """Rows to a transposed panel of `width` lanes, less the shift."""
    side = 32 // dtype.itemsize

    @inner
    def fill(rows: Any, rows_at: Any, d: Any, shift: Any, panel: Any, at: Any) -> None:
        for r in range(0, width, side):
            for f in range(0, d - side + 1, side):
                transpose(rows, rows_at + r * d + f, d, shift, f, panel, at + f * width + r, width)
            if d % side != 0:
                # the last block overlaps the one before it and writes the same numbers again; of
                # rows shorter than a block it reads on into the next row and writes beyond the
                # panel, where the next panel will stand
                f = max(d - side, 0)
                transpose(rows, rows_at + r * d + f, d, shift, f, panel, at + f * width + r, width)

    @inner
    def pack(
        rows: Any, row: Any, count: Any, d: Any, shift: Any, panel: Any, at: Any, spare: Any
    ) -> None:
        if count == width and (row + width - 1) * d + max(d, side) <= rows.size:
            fill(rows, row * d, d, shift, panel, at)
        else:
            # the tail goes through a copy, so that its numbers take the same way as all others
            # (loops: numba compiles a slice assignment with all the text of its error message)
            for q in range(count * d):
                spare[q] = rows[row * d + q]
            for q in range(count * d, spare.size):
                spare[q] = 0
            fill(spare, 0, d, shift, panel, at)

    return pack


class _Spaces(threading.local):
    """The scratch arrays that a thread used last, by what they are for."""

    def __init__(self) -> None:
        self.kept: dict[Any, tuple[Any, ...]] = {}


_spaces = _Spaces()


def workspace(
    tile: Tile, dtype: Dtype, two: bool, n_features: int, blocks: Blocking, sizes: tuple[int, int]
) -> tuple[Any, ...]:
    """Scratch arrays of one call, on cache lines: a vector across two of them is read twice.

    Panels, tail rows, norms, winning values and labels, carried accumulators; and, for `sizes`
    centres each, copies of listed centres with what their scores start from, and transposed ones.
    Each thread keeps its last two sets, one for a pass and one for its rows in doubt: fresh memory
    would cost a page fault every 4 KB, which for a chunk of 1 MB and 50 centres took a third of the
    time.
    """
    key, kept = (tile, dtype, two, n_features, blocks, sizes), _spaces.kept
    space = kept.pop(key, None) or _new_workspace(*key)
    kept[key] = space
    if len(kept) > 2:
        del kept[next(iter(kept))]
    return space


def _new_workspace(
    tile: Tile, dtype: Dtype, two: bool, n_features: int, blocks: Blocking, sizes: tuple[int, int]
) -> tuple[Any, ...]:
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    side = 32 // dtype.itemsize
    winners = blocks.panels * width * (2 if two or n_features > DIRECT_FEATURES else 1)
    carried = blocks.panels * blocks.tiles * tile.centres * width
    listed, transposed = (-(-size // PAD) * PAD for size in sizes)
    return (
        _aligned(blocks.panels * width * n_features + side * width, dtype),
        _aligned(width * n_features + side, dtype),
        _aligned(width, dtype),
        _aligned(winners, dtype),
        _aligned(winners, label_dtype(dtype)),
        _aligned(carried if n_features > blocks.features else 0, dtype),
        _aligned(listed * n_features, dtype),
        _aligned(listed, dtype),
        _aligned(transposed * n_features, dtype),
    )


def label_dtype(dtype: Dtype) -> Dtype:
    """Of running winners: as wide as the scores, so that one mask serves both."""
    return np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)


def workspace_type(dtype: Dtype) -> Any:
    """What :func:`workspace` returns, for a signature."""
    real, label = (
        types.Array(numba.from_dtype(kind), 1, "C") for kind in (dtype, label_dtype(dtype))
    )
    return types.Tuple((real, real, real, real, label, real, real, real, real))


def _aligned(size: int, dtype: Dtype) -> Any:
    buffer = np.zeros(size * dtype.itemsize + CACHE_LINE, np.uint8)
    skipped = -buffer.ctypes.data % CACHE_LINE
    return buffer[skipped : skipped + size * dtype.itemsize].view(dtype)


@cache
def square_distances(dtype: Dtype) -> Kernel:
    """Exact squared distance of every row to its own centre."""

    @njit(
        (
            *real_arrays(dtype, 2, 2),
            types.Array(types.int32, 1, "C", readonly=True),
            types.Array(types.float64, 1, "C"),
        )
    )
    def run(x: Any, centers: Any, labels: Any, out: Any) -> None:
        n, d = x.shape
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        for i in range(n):
            out[i] = square_distance(rows, i * d, flat, labels[i] * d, d)

    return run


@cache
def center_factors(dtype: Dtype) -> Kernel:
    """Factors -2 (c - shift) and squared lengths, in float64, of all centres."""

    @njit(
        (
            *real_arrays(dtype, 2, 1),
            types.Array(numba.from_dtype(dtype), 2, "C"),
            types.Array(types.float64, 1, "C"),
        )
    )
    def run(centers: Any, shift: Any, factors: Any, lengths: Any) -> None:
        k, d = centers.shape
        flat, origin = factors.reshape(factors.size), np.zeros(d, shift.dtype)
        for j in range(k):
            for f in range(d):
                factors[j, f] = centers[j, f] - shift[f]
            lengths[j] = square_distance(flat, j * d, origin, 0, d)
            for f in range(d):
                # twice a number is exact, and taken here it is taken once
                factors[j, f] *= -2

    return run


@dataclass(frozen=True, slots=True, eq=False)
class DenseForm:
    """What dense rows are compared with. All arrays are read-only."""

    factors: Array
    """(k padded, d) what a row's features are multiplied with, or (direct form) compared with."""
    starts: Array
    """(k padded,) what a score starts from: the norm, or 0; infinity for padding."""
    offsets: Array
    """(d padded,) what packing takes off a row."""
    rounding: Rounding
    """What the scores of the product form are worth."""
    numbered: Rounding
    """The same, where their lowest bits are numbers of centres."""


def direct_form(centers: Array) -> DenseForm:
    """The form of (k, d) centres for sums (x - c)² of any number of features."""
    return _form(centers, np.zeros(centers.shape[1], centers.dtype), True)


def dense_form(centers: Array, shift: Array) -> DenseForm:
    """The form of (k, d) centres about a (d,) shift, both read-only and of one dtype."""
    return _form(centers, shift, centers.shape[1] <= DIRECT_FEATURES)


def _form(centers: Array, shift: Array, direct: bool) -> DenseForm:
    (k, d), dtype = centers.shape, centers.dtype
    padded = -(-k // PAD) * PAD
    factors, starts = np.zeros((padded, d), dtype), np.full(padded, np.inf, dtype)
    offsets, norms = np.zeros(-(-d // 8) * 8, dtype), np.empty(k)
    center_factors(dtype)(centers, shift, factors[:k], norms)
    if direct:
        factors[:k], starts[:k] = centers, 0
    else:
        with np.errstate(over="ignore"):
            starts[:k], offsets[:d] = norms, shift
    longest = float(norms.max())
    return DenseForm(
        readonly(factors),
        readonly(starts),
        readonly(offsets),
        Rounding.of(dtype, d, longest),
        # a number takes PAD - 1 units in the last place at most, each as much as two roundings
        Rounding.of(dtype, d + 2 * (PAD - 1), longest),
    )
