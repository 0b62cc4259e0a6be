"""Panels: rows packed for the tile, the blocks a pass is cut into, and exact distances of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import Tile

if numba.config.DISABLE_JIT:
    from largek_dask.kernels.standins import square_distance, transpose
else:
    from largek_dask.kernels.emitted_rows import square_distance, transpose

__all__ = [
    "PAD",
    "Blocking",
    "blocking",
    "inner",
    "pack_rows",
    "real_arrays",
    "row_norms",
    "square_distances",
    "square_norms",
    "workspace_of",
]

PAD = 8
"""Centres are padded to a multiple of this, which every tile divides."""

Dtype = np.dtype[Any]
Kernel = Callable[..., None]


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

    Measured on a CPU with 32 KB and 512 KB of first- and second-level cache; the optimum is flat.
    """
    width = tile.vectors * tile.lanes_of(itemsize)
    features = n_features if n_features <= 1024 else 512
    per_tile = tile.centres * features * itemsize
    tiles = max(1, min(-(-n_centers // tile.centres), (128 << 10) // per_tile))
    panels = max(1, min(16, (192 << 10) // (width * features * itemsize)))
    return Blocking(panels=panels, tiles=tiles, features=features)


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


@cache
def row_norms(width: int) -> Kernel:
    """Squared norms of a panel's rows, features in order."""

    @inner
    def norms(panel: Any, at: Any, d: Any, out: Any) -> None:
        for p in range(width):
            out[p] = 0
        for f in range(d):
            for p in range(width):
                value = panel[at + f * width + p]
                out[p] += value * value

    return norms


@cache
def workspace_of(tile: Tile, dtype: Dtype, two: bool) -> Callable[..., Any]:
    """Scratch arrays of one call: panels, tail rows, norms, winners, carried accumulators."""
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    side = 32 // dtype.itemsize
    ranks = 2 if two else 1
    size = tile.centres * width
    real = dtype.type
    # labels as wide as values: one mask serves both
    label = np.int32 if dtype.itemsize == 4 else np.int64

    @inner
    def workspace(d: Any, blocks: Any) -> Any:
        return (
            np.empty(blocks[0] * width * d + side * width, real),
            np.empty(width * d + side, real),
            np.zeros(width, real),
            np.empty(blocks[0] * ranks * width, real),
            np.empty(blocks[0] * ranks * width, label),
            np.empty(blocks[0] * blocks[1] * size if d > blocks[2] else 1, real),
        )

    return workspace


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
def square_norms(dtype: Dtype) -> Kernel:
    """Squared length of every row, summed in float64 in a fixed order."""

    @njit((*real_arrays(dtype, 2), types.Array(types.float64, 1, "C")))
    def run(x: Any, out: Any) -> None:
        n, d = x.shape
        rows, zero = x.reshape(n * d), np.zeros(d, x.dtype)
        for i in range(n):
            out[i] = square_distance(rows, i * d, zero, 0, d)

    return run
