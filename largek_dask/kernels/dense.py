"""Drivers of the dense micro-kernels: rows into panels, panels against blocks of centres.

Made by factories, one for each register tile and compute dtype, compiled when first asked for.
Blocks are chosen so that what is used again stays near: a block of centres in the second-level
cache while several panels pass over it, a panel (or, for long rows, a block of its features) in
the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import BEST, BLOCK, SCORES, TWO, Micro, Tile

if numba.config.DISABLE_JIT:
    from largek_dask.kernels.standins import fma, scan, square_distance, transpose
else:
    from largek_dask.kernels.emitted import fma, scan, square_distance, transpose

__all__ = ["PAD", "Blocking", "blocking", "list_search", "scores", "search", "square_distances", "square_norms"]

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


def _inputs(dtype: Dtype, ndims: tuple[int, ...]) -> list[Any]:
    real = numba.from_dtype(dtype)
    return [types.Array(real, n, "C", readonly=True) for n in ndims]


@cache
def _pack_rows(dtype: Dtype, width: int) -> Kernel:
    """Rows to a transposed panel of `width` lanes, less the shift."""
    side = 32 // dtype.itemsize

    @njit
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

    @njit
    def pack(
        rows: Any, row: Any, count: Any, d: Any, shift: Any, panel: Any, at: Any, spare: Any
    ) -> None:
        if count == width and (row + width - 1) * d + max(d, side) <= rows.size:
            fill(rows, row * d, d, shift, panel, at)
        else:
            # the tail goes through a copy, so that its numbers take the same way as all others
            spare[: count * d] = rows[row * d : (row + count) * d]
            spare[count * d :] = 0
            fill(spare, 0, d, shift, panel, at)

    return pack


@cache
def _row_norms(width: int) -> Kernel:
    """Squared norms of a panel's rows, features in order."""

    @njit
    def norms(panel: Any, at: Any, d: Any, out: Any) -> None:
        for p in range(width):
            out[p] = 0
        for f in range(d):
            for p in range(width):
                value = panel[at + f * width + p]
                out[p] += value * value

    return norms


@cache
def _sweep(tile: Tile, dtype: Dtype, mode: int, features: int) -> Kernel:
    """Packed panels against all centres; running winners in `values` and `labels`."""
    centres, lanes = tile.centres, tile.lanes_of(dtype.itemsize)
    width = tile.vectors * lanes
    ranks = 2 if mode == TWO else 1
    direct = features > 0
    whole = Micro(centres, tile.vectors, lanes, mode, direct, False, features).code
    opening = Micro(centres, tile.vectors, lanes, SCORES).code
    going_on = Micro(centres, tile.vectors, lanes, SCORES, carry=True).code
    closing = Micro(centres, tile.vectors, lanes, mode, carry=True).code
    size = centres * width

    if direct:

        @njit
        def sweep(
            panels: Any, count: Any, centers: Any, d: Any, starts: Any, n_tiles: Any,
            blocks: Any, values: Any, labels: Any, sums: Any,
        ) -> None:  # fmt: skip
            for t in range(0, n_tiles, blocks[1]):
                tiles = min(blocks[1], n_tiles - t)
                for p in range(count):
                    scan(
                        whole, panels, p * width * d, centers, d, 0, d, starts, t * centres,
                        tiles, values, labels, p * ranks * width, sums, 0,
                    )  # fmt: skip

        return sweep

    @njit
    def sweep_long(
        panels: Any, count: Any, centers: Any, d: Any, starts: Any, n_tiles: Any,
        blocks: Any, values: Any, labels: Any, sums: Any,
    ) -> None:  # fmt: skip
        for t in range(0, n_tiles, blocks[1]):
            tiles = min(blocks[1], n_tiles - t)
            for feature in range(0, d, blocks[2]):
                length = min(blocks[2], d - feature)
                for p in range(count):
                    at = (p * d + feature) * width
                    own = p * ranks * width
                    first, kept = t * centres, p * blocks[1] * size
                    if length == d:
                        scan(
                            whole, panels, at, centers, d, feature, length, starts, first,
                            tiles, values, labels, own, sums, kept,
                        )  # fmt: skip
                    elif feature == 0:
                        scan(
                            opening, panels, at, centers, d, feature, length, starts, first,
                            tiles, values, labels, own, sums, kept,
                        )  # fmt: skip
                    elif feature + length < d:
                        scan(
                            going_on, panels, at, centers, d, feature, length, starts, first,
                            tiles, values, labels, own, sums, kept,
                        )  # fmt: skip
                    else:
                        scan(
                            closing, panels, at, centers, d, feature, length, starts, first,
                            tiles, values, labels, own, sums, kept,
                        )  # fmt: skip

    return sweep_long


@cache
def _winners(tile: Tile, dtype: Dtype, features: int) -> Kernel:
    """After `BLOCK`: which centre of the winning tile it was, from the same sums again."""
    centres = tile.centres
    width = tile.vectors * tile.lanes_of(dtype.itemsize)

    @njit
    def winners(
        panels: Any, at: Any, centers: Any, starts: Any, n_tiles: Any, labels: Any, own: Any
    ) -> None:
        for p in range(width):
            first = labels[own + p] * centres
            best, winner = starts[first], first
            for j in range(first, first + centres):
                score = starts[j]
                for f in range(features):
                    gap = centers[j * features + f] - panels[at + f * width + p]
                    score = fma(gap, gap, score)
                if j == first or score < best:
                    best, winner = score, j
            labels[own + p] = winner

    return winners


@cache
def _assign(tile: Tile, dtype: Dtype, mode: int, features: int) -> Kernel:
    """Rows ``begin .. end`` against all given centres, through a workspace made once."""
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    ranks = 2 if mode == TWO else 1
    direct, blockwise = features > 0, mode == BLOCK
    real = dtype.type
    pack, norms_of = _pack_rows(dtype, width), _row_norms(width)
    sweep = _sweep(tile, dtype, mode, features)
    resolve = _winners(tile, dtype, features)

    @njit
    def assign(
        rows: Any, begin: Any, end: Any, d: Any, shift: Any, centers: Any, starts: Any,
        n_tiles: Any, blocks: Any, space: Any, labels_out: Any, values_out: Any,
        second_labels_out: Any, second_out: Any,
    ) -> None:  # fmt: skip
        panels, spare, norms, values, labels, sums = space
        for block in range(begin, end, blocks[0] * width):
            total = min(blocks[0] * width, end - block)
            count = (total + width - 1) // width
            for p in range(count):
                m = min(width, total - p * width)
                pack(rows, block + p * width, m, d, shift, panels, p * width * d, spare)
                own = p * ranks * width
                for q in range(own, own + ranks * width):
                    values[q] = np.inf
                    labels[q] = 0 if q < own + width else -1
            sweep(panels, count, centers, d, starts, n_tiles, blocks, values, labels, sums)
            for p in range(count):
                first, own = block + p * width, p * ranks * width
                m = min(width, total - p * width)
                if blockwise:
                    resolve(panels, p * width * d, centers, starts, n_tiles, labels, own)
                for q in range(m):
                    labels_out[first + q] = labels[own + q]
                if ranks == 2:
                    for q in range(m):
                        second_labels_out[first + q] = labels[own + width + q]
                if values_out.size > 0:
                    if not direct:
                        norms_of(panels, p * width * d, d, norms)
                    for q in range(m):
                        values_out[first + q] = max(values[own + q] + norms[q], real(0))
                    if ranks == 2:
                        for q in range(m):
                            score = values[own + width + q]
                            second_out[first + q] = max(score + norms[q], real(0))

    return assign


@cache
def _workspace(tile: Tile, dtype: Dtype, mode: int) -> Callable[..., Any]:
    """Scratch arrays of one call: panels, tail rows, norms, winners, carried accumulators."""
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    side = 32 // dtype.itemsize
    ranks = 2 if mode == TWO else 1
    size = tile.centres * width
    real = dtype.type
    # labels as wide as values: one mask serves both
    label = np.int32 if dtype.itemsize == 4 else np.int64

    @njit
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


def _outputs(dtype: Dtype) -> list[Any]:
    return [types.Array(types.int32, 1, "C"), types.Array(numba.from_dtype(dtype), 1, "C")] * 2


@cache
def search(tile: Tile, dtype: Dtype, mode: int, features: int) -> Kernel:
    """Nearest centre (`BEST`, `BLOCK`) or nearest two (`TWO`) of every row.

    Parameters
    ----------
    tile, dtype : Tile, dtype
    mode : {BEST, BLOCK, TWO}
        `BLOCK` finds what `BEST` finds, faster for many centres of few features; direct form only.
    features : int
        Number of features where the direct form is used (unrolled), else 0.

    Returns
    -------
    callable
        ``run(x, shift, centers, starts, n_tiles, blocks, labels, values, second_labels, second)``;
        value arrays of length 0 are not wanted.
    """
    assign, workspace = _assign(tile, dtype, mode, features), _workspace(tile, dtype, mode)

    @njit(
        types.void(
            *_inputs(dtype, (2, 1, 2, 1)), types.int64, types.UniTuple(types.int64, 3),
            *_outputs(dtype),
        )  # fmt: skip
    )
    def run(
        x: Any, shift: Any, centers: Any, starts: Any, n_tiles: Any, blocks: Any,
        labels: Any, values: Any, second_labels: Any, second: Any,
    ) -> None:  # fmt: skip
        n, d = x.shape
        assign(
            x.reshape(n * d), 0, n, d, shift, centers.reshape(centers.size), starts, n_tiles,
            blocks, workspace(d, blocks), labels, values, second_labels, second,
        )  # fmt: skip

    return run


@cache
def list_search(tile: Tile, dtype: Dtype, mode: int, features: int) -> Kernel:
    """As :func:`search`, every segment of rows against its own list of centres.

    A list's centres are copied side by side first: what that costs is read back by every panel.
    """
    assign, workspace = _assign(tile, dtype, mode, features), _workspace(tile, dtype, mode)
    centres, real, two = tile.centres, dtype.type, mode == TWO
    offsets = types.Array(types.int64, 1, "C", readonly=True)
    members = types.Array(types.int32, 1, "C", readonly=True)

    @njit(
        types.void(
            *_inputs(dtype, (2, 1, 2, 1)), offsets, offsets, members,
            types.UniTuple(types.int64, 3), *_outputs(dtype),
        )  # fmt: skip
    )
    def run(
        x: Any, shift: Any, centers: Any, starts: Any, row_offsets: Any, list_offsets: Any,
        lists: Any, blocks: Any, labels: Any, values: Any, second_labels: Any, second: Any,
    ) -> None:  # fmt: skip
        n, d = x.shape
        rows = x.reshape(n * d)
        longest = 0
        for s in range(row_offsets.size - 1):
            longest = max(longest, list_offsets[s + 1] - list_offsets[s])
        size = (longest + centres - 1) // centres * centres
        block, block_starts = np.zeros(size * d, real), np.empty(size, real)
        space = workspace(d, blocks)
        for s in range(row_offsets.size - 1):
            begin, end, first = row_offsets[s], row_offsets[s + 1], list_offsets[s]
            length = list_offsets[s + 1] - first
            if begin == end:
                continue
            n_tiles = (length + centres - 1) // centres
            for m in range(length):
                block_starts[m] = starts[lists[first + m]]
                for f in range(d):
                    block[m * d + f] = centers[lists[first + m], f]
            block_starts[length : n_tiles * centres] = np.inf
            assign(
                rows, begin, end, d, shift, block, block_starts, n_tiles, blocks, space,
                labels, values, second_labels, second,
            )  # fmt: skip
            for i in range(begin, end):
                labels[i] = lists[first + labels[i]]
                if two and second_labels[i] >= 0:
                    second_labels[i] = lists[first + second_labels[i]]

    return run


@cache
def scores(tile: Tile, dtype: Dtype, features: int) -> Kernel:
    """Squared distances of every row to every centre."""
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    centres, real, direct = tile.centres, dtype.type, features > 0
    spec = Micro(
        centres, tile.vectors, tile.lanes_of(dtype.itemsize), SCORES, direct, False, features
    ).code
    pack, norms_of = _pack_rows(dtype, width), _row_norms(width)
    workspace = _workspace(tile, dtype, BEST)

    @njit(
        types.void(
            *_inputs(dtype, (2, 1, 2, 1)), types.int64,
            types.Array(numba.from_dtype(dtype), 2, "C"),
        )  # fmt: skip
    )
    def run(x: Any, shift: Any, centers: Any, starts: Any, tiles: Any, out: Any) -> None:
        n, d = x.shape
        k = out.shape[1]
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        panel, spare, norms, values, labels, _ = workspace(d, (1, 1, d))
        sums = np.empty(tiles * centres * width, real)
        for begin in range(0, n, width):
            m = min(width, n - begin)
            pack(rows, begin, m, d, shift, panel, 0, spare)
            if not direct:
                norms_of(panel, 0, d, norms)
            for first in range(0, k, tiles * centres):
                count = min(tiles * centres, k - first)
                scan(
                    spec, panel, 0, flat, d, 0, d, starts, first, (count + centres - 1) // centres,
                    values, labels, 0, sums, 0,
                )  # fmt: skip
                for q in range(m):
                    for j in range(count):
                        out[begin + q, first + j] = max(sums[j * width + q] + norms[q], real(0))

    return run


@cache
def square_distances(dtype: Dtype) -> Kernel:
    """Exact squared distance of every row to its own centre."""

    @njit(
        types.void(
            *_inputs(dtype, (2, 2)), types.Array(types.int32, 1, "C", readonly=True),
            types.Array(types.float64, 1, "C"),
        )  # fmt: skip
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

    @njit(types.void(*_inputs(dtype, (2,)), types.Array(types.float64, 1, "C")))
    def run(x: Any, out: Any) -> None:
        n, d = x.shape
        rows, zero = x.reshape(n * d), np.zeros(d, x.dtype)
        for i in range(n):
            out[i] = square_distance(rows, i * d, zero, 0, d)

    return run
