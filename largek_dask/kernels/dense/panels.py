"""Pack rows into panels and centres into forms for the kernels, and choose block sizes."""

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

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense.doubts import Rounding
from largek_dask.kernels.emit import square_distance, transpose
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import DIRECT_FEATURES, Tile

PAD = 8
"""Centres are padded to a multiple of this number; every tile size divides it."""

NEAR = 256 << 10
"""Maximum size in bytes of a block of centres that stays in the cache."""

CACHE_LINE = 64

Array = NDArray[Any]
Dtype = np.dtype[Any]
Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Blocking:
    """Sizes of the blocks of a pass over rows and centres, which affect speed but not results."""

    panels: int
    """Number of panels packed together."""
    tiles: int
    """Number of tiles of centres that are compared with a panel before the next panel."""
    features: int
    """Number of features per block; accumulators are stored between blocks."""

    def as_tuple(self) -> tuple[int, int, int]:
        """Return the fields as a tuple for compiled code."""
        return self.panels, self.tiles, self.features


@cache
def blocking(tile: Tile, itemsize: int, n_features: int, n_centers: int) -> Blocking:
    """Choose blocks for `n_centers` centres of `n_features` features of `itemsize` bytes.

    Sizes were tuned on CPUs with first- and second-level caches of 32 KB and 512 KB, and of 48 KB
    and 2 MB. Speed is not sensitive to the sizes, except that several panels must share each
    reading of many large centres. If all centres fit the cache, few panels are used, which leaves
    room for the next rows.
    """
    width = tile.vectors * tile.lanes_of(itemsize)
    features = n_features if n_features <= 1024 else 512
    tiles, per_tile = -(-n_centers // tile.centres), tile.centres * features * itemsize
    panel = width * features * itemsize
    if tiles * per_tile <= NEAR:
        panels = max(1, min(16, (16 << 10) // panel))
    else:
        tiles = max(1, min(tiles, (128 << 10) // per_tile))
        panels = max(2 if features == n_features else 4, min(16, (192 << 10) // panel))
    return Blocking(panels=panels, tiles=tiles, features=features)


def blockwise(n_rows: int, n_features: int, n_centers: int) -> bool:
    """Return True if the best tile should be found first, and the centre in the tile afterwards.

    In the direct form, two steps halve the cost of comparisons, which matters with few features. In
    return, one tile per row is searched twice, and a transposed copy of the centres is needed.
    """
    return n_features <= DIRECT_FEATURES and n_centers >= 256 and n_rows >= 256


def inner(function: Kernel) -> Kernel:
    """Compile a function that only other kernels call, and that allocates no array.

    The function cannot be called from Python. It does not count references, because counting for a
    dozen arrays would take as long as packing a panel.
    """
    return njit(internal=True, refcounts=False)(function)


def real_arrays(dtype: Any, *ndims: int) -> list[Any]:
    """Return the numba types of input arrays, which may be read-only or writable."""
    return [array.copy(readonly=True) for array in outputs(dtype, *ndims)]


def outputs(dtype: Any, *ndims: int) -> list[Any]:
    """Return the numba types of C-ordered output arrays."""
    return [types.Array(numba.from_dtype(np.dtype(dtype)), n, "C") for n in ndims]


@cache
def _fill(dtype: Dtype, width: int, lengths: int) -> Kernel:
    """Compile a function that fills a panel and, if `lengths` is 1, updates squared lengths."""
    side = 32 // dtype.itemsize
    # In the widest panels, double the number of rows that are transposed together.
    count = 2 * side if width == 6 * side else side

    @inner
    def fill(rows, rows_at, stride, first, size, shift, panel, at, norms, own):
        # Process all rows for a few features at a time, so that writes are contiguous.
        for f in range(0, size - side + 1, side):
            for r in range(0, width, count):
                transpose(
                    lengths, count, rows, rows_at + r * stride + f, stride, shift, first + f, 0,
                    side, panel, at + f * width + r, width, norms, own + r,
                )  # fmt: skip
        left = size % side
        if left != 0:
            # The last block overlaps the previous block and writes the same numbers again.
            # Blocks longer than a row write beyond the panel, where the next panel will be.
            f = max(size - side, 0)
            begin = side - left if f > 0 else 0
            for r in range(0, width, count):
                transpose(
                    lengths, count, rows, rows_at + r * stride + f, stride, shift, first + f, begin,
                    begin + left, panel, at + f * width + r, width, norms, own + r,
                )  # fmt: skip

    return fill


@cache
def pack_block(dtype: Dtype, width: int, lengths: int) -> Kernel:
    """Compile a function that packs features of rows, minus the shift, into a transposed panel.

    ``pack(rows, row, count, d, first, size, shift, panel, at, spare, norms, own)`` packs features
    ``first .. first + size`` of `count` rows with `d` features. If `lengths` is 1, the squares of
    these features are added in order to ``norms[own : own + width]``, by fused multiply-adds. The
    norms start from 0 if `first` is 0.
    """
    side, fill = 32 // dtype.itemsize, _fill(dtype, width, lengths)

    @inner
    def pack(rows, row, count, d, first, size, shift, panel, at, spare, norms, own):
        if lengths and first == 0:
            for q in range(width):
                norms[own + q] = 0
        begin = row * d + first
        if count == width and begin + (width - 1) * d + max(size, side) <= rows.size:
            fill(rows, begin, d, first, size, shift, panel, at, norms, own)
        else:
            # Copy the last rows, so that the same code packs them.
            # Use loops: for slice assignments, numba would also compile error messages.
            for q in range(count):
                for f in range(size):
                    spare[q * size + f] = rows[begin + q * d + f]
            for q in range(count * size, width * size + side):
                spare[q] = 0
            fill(spare, 0, size, first, size, shift, panel, at, norms, own)

    return pack


@cache
def pack_rows(dtype: Dtype, width: int) -> Kernel:
    """Compile a function that packs whole rows into a transposed panel, without norms."""
    block = pack_block(dtype, width, 0)

    @inner
    def pack(rows, row, count, d, shift, panel, at, spare):
        block(rows, row, count, d, 0, d, shift, panel, at, spare, panel, 0)

    return pack


class _Workspaces(threading.local):
    """Most recently used scratch arrays of a thread, keyed by the arguments of `workspace`."""

    def __init__(self) -> None:
        self.kept: dict[Any, tuple[Any, ...]] = {}


_workspaces = _Workspaces()


def workspace(
    tile: Tile, dtype: Dtype, two: bool, n_features: int, blocks: Blocking, sizes: tuple[int, int]
) -> tuple[Any, ...]:
    """Return scratch arrays for one call, aligned to cache lines.

    The arrays contain panels, the last rows, norms, winning values, winning labels and
    accumulators, copies of ``sizes[0]`` listed centres with their initial scores, and copies of
    ``sizes[1]`` transposed centres. Each thread keeps its last two sets of arrays, since fresh
    memory would cost a page fault per 4 KB: a third of the time for a chunk of 1 MB and 50 centres.
    """
    return tuple(array[0] for array in workspaces(1, tile, dtype, two, n_features, blocks, sizes))


def workspaces(n_threads: int, *given: Any) -> tuple[Any, ...]:
    """Return the arrays of :func:`workspace` for several threads, one row for each thread."""
    key, kept = (n_threads, *given), _workspaces.kept
    space = kept.pop(key, None) or _new_workspaces(*key)
    kept[key] = space
    if len(kept) > 2:
        del kept[next(iter(kept))]
    return space


def _new_workspaces(
    n_threads: int,
    tile: Tile,
    dtype: Dtype,
    two: bool,
    n_features: int,
    blocks: Blocking,
    sizes: tuple[int, int],
) -> tuple[Any, ...]:
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    side = 32 // dtype.itemsize
    winners = blocks.panels * width * (2 if two or n_features > DIRECT_FEATURES else 1)
    # Add one tile for the narrow tiles at the end.
    carried = blocks.panels * (blocks.tiles + 1) * tile.centres * width
    listed, transposed = (-(-size // PAD) * PAD for size in sizes)
    lengths = (
        blocks.panels * width * n_features + side * width,
        width * n_features + side,
        blocks.panels * width,
        winners,
        winners,
        carried if n_features > blocks.features else 0,
        listed * n_features,
        listed,
        transposed * n_features,
    )
    kinds = (*[dtype] * 4, label_dtype(dtype), *[dtype] * 4)
    return tuple(
        rows_of_lines(n_threads, length, kind) for length, kind in zip(lengths, kinds, strict=True)
    )


def rows_of_lines(n_rows: int, size: int, dtype: Dtype) -> Any:
    """Return an (n_rows, at least ``size``) array, whose rows begin at cache lines."""
    line = CACHE_LINE // dtype.itemsize
    padded = -(-size // line) * line
    return aligned(n_rows * padded, dtype).reshape(n_rows, padded)


def label_dtype(dtype: Dtype) -> Dtype:
    """Return the integer type of the same width as scores, so that masks fit both types."""
    return np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)


def workspace_type(dtype: Dtype) -> Any:
    """Return the numba type of the result of :func:`workspace`."""
    (real,), (label,) = outputs(dtype, 1), outputs(label_dtype(dtype), 1)
    return types.Tuple((real, real, real, real, label, real, real, real, real))


def aligned(size: int, dtype: Dtype) -> Any:
    buffer = np.zeros(size * dtype.itemsize + CACHE_LINE, np.uint8)
    skipped = -buffer.ctypes.data % CACHE_LINE
    return buffer[skipped : skipped + size * dtype.itemsize].view(dtype)


@cache
def square_distances(dtype: Dtype) -> Kernel:
    """Compile a kernel that computes float64 squared distances of rows to their centres."""

    @njit((*real_arrays(dtype, 2, 2), *real_arrays("i4", 1), *outputs("f8", 1)))
    def run(x, centers, labels, out):
        n, d = x.shape
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        for i in range(n):
            out[i] = square_distance(rows, i * d, flat, labels[i] * d, d)

    return run


@cache
def center_factors(dtype: Dtype) -> Kernel:
    """Compile a kernel that computes factors -2 (c - shift) and float64 squared lengths."""

    @njit((*real_arrays(dtype, 2, 1), *outputs(dtype, 2), *outputs("f8", 1)))
    def run(centers, shift, factors, lengths):
        k, d = centers.shape
        flat, origin = factors.reshape(factors.size), np.zeros(d, shift.dtype)
        for j in range(k):
            for f in range(d):
                factors[j, f] = centers[j, f] - shift[f]
            lengths[j] = square_distance(flat, j * d, origin, 0, d)
            for f in range(d):
                # Scaling by -2 is exact, and is done once instead of for every row.
                factors[j, f] *= -2

    return run


@dataclass(frozen=True, slots=True, eq=False)
class DenseForm:
    """Centres in the form used for dense rows. All arrays are read-only."""

    factors: Array
    """(padded k, d) factors -2 (c - shift); in the direct form, the centres."""
    starts: Array
    """(padded k,) initial scores: squared lengths, or 0 in the direct form; infinity for
    padding."""
    offsets: Array
    """(padded d,) shift to subtract from rows; padded, since blocks may begin at any feature."""
    rounding: Rounding
    """Bounds on the rounding errors of product-form scores."""
    numbered: Rounding
    """Bounds on rounding errors if the lowest bits of scores contain the number of a centre."""


def direct_form(centers: Array) -> DenseForm:
    """Return the dense form of (k, d) centres for sums (x - c)² of any number of features."""
    return _form(centers, np.zeros(centers.shape[1], centers.dtype), True)


def dense_form(centers: Array, shift: Array) -> DenseForm:
    """Return the dense form of read-only (k, d) centres relative to a read-only (d,) shift."""
    return _form(centers, shift, centers.shape[1] <= DIRECT_FEATURES)


def _form(centers: Array, shift: Array, direct: bool) -> DenseForm:
    (k, d), dtype = centers.shape, centers.dtype
    padded = -(-k // PAD) * PAD
    factors, starts = np.empty((padded, d), dtype), np.full(padded, np.inf, dtype)
    factors[k:] = 0
    offsets, norms = np.zeros(-(-d // 8) * 8 + 8, dtype), np.empty(k)
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
        # Numbering changes a score by at most PAD - 1 units, which count as two roundings each.
        Rounding.of(dtype, d + 2 * (PAD - 1), longest),
    )
