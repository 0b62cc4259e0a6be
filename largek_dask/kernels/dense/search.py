"""Drivers of the dense micro-kernels: packed rows against blocks of centres.

Made by factories, one for each register tile and compute dtype, compiled when first asked for.
Blocks are chosen so that what is used again stays near: a block of centres in the second-level
cache while several panels pass over it, a panel (or, for long rows, a block of its features) in
the first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from largek_dask.kernels.dense.doubts import choose, margin
from largek_dask.kernels.dense.panels import (
    PAD,
    Dtype,
    Kernel,
    inner,
    pack_rows,
    real_arrays,
    workspace_type,
)
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import BLOCK, NUMBERED, SCORES, TWO, Micro, Tile

if numba.config.DISABLE_JIT:
    from largek_dask.kernels.emit.standins import (
        clear,
        conclude,
        frozen,
        scan,
        settle,
        square_lengths,
    )
else:
    from largek_dask.kernels.emit.dense import scan
    from largek_dask.kernels.emit.rows import clear, conclude, frozen, settle, square_lengths

__all__ = ["scores", "search"]

FETCHED = 1 << 15
"""Most numbers of a block of rows that is fetched ahead: more would push out what is in use."""
CHAINS = 4
"""In which squared lengths are summed where they only tell how far the scores can be relied on."""
LITTLE = 1 << 19
"""Rows in doubt times centres times features that are decided at once, by all centres."""


@cache
def _sweep_products(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """Packed panels against all centres; running winners in `values` and `labels`.

    The second smallest score is always found: it tells whether the smallest is certain to be.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres = tile.vectors * lanes, tile.centres
    ranks, size = 2, centres * width
    spec = Micro(centres, tile.vectors, lanes, mode).code

    @inner
    def sweep(
        panels: Any, count: Any, centers: Any, d: Any, starts: Any, n_tiles: Any,
        blocks: Any, values: Any, labels: Any, sums: Any, rows: Any, later: Any,
    ) -> None:  # fmt: skip
        for t in range(0, n_tiles, blocks[1]):
            tiles, first = min(blocks[1], n_tiles - t), t * centres
            for p in range(count):
                at, own = p * d * width, p * ranks * width
                # while a panel meets its first centres, its rows of the next block come near
                soon = later + at if t == 0 and later >= 0 else -1
                scan(
                    spec, panels, at, centers, d, 0, d, starts, first, tiles,
                    values, labels, own, sums, p * blocks[1] * size, rows, soon,
                )  # fmt: skip

    return sweep


@cache
def _sweep_divided(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """The same of rows that are longer than a block of features."""
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres = tile.vectors * lanes, tile.centres
    ranks, size = 2, centres * width
    opening = Micro(centres, tile.vectors, lanes, SCORES).code
    going_on = Micro(centres, tile.vectors, lanes, SCORES, carry=True).code
    closing = Micro(centres, tile.vectors, lanes, mode, carry=True).code

    @inner
    def sweep(
        panels: Any, count: Any, centers: Any, d: Any, starts: Any, n_tiles: Any,
        blocks: Any, values: Any, labels: Any, sums: Any, rows: Any, later: Any,
    ) -> None:  # fmt: skip
        for t in range(0, n_tiles, blocks[1]):
            tiles, first = min(blocks[1], n_tiles - t), t * centres
            for f in range(0, d, blocks[2]):
                length = min(blocks[2], d - f)
                for p in range(count):
                    at, own = (p * d + f) * width, p * ranks * width
                    kept = p * blocks[1] * size
                    # while a panel meets its first centres, its rows of the next block come near
                    soon = later + at if t == 0 and later >= 0 else -1
                    if f == 0:
                        scan(
                            opening, panels, at, centers, d, f, length, starts, first, tiles,
                            values, labels, own, sums, kept, rows, soon,
                        )  # fmt: skip
                    elif f + length < d:
                        scan(
                            going_on, panels, at, centers, d, f, length, starts, first, tiles,
                            values, labels, own, sums, kept, rows, soon,
                        )  # fmt: skip
                    else:
                        scan(
                            closing, panels, at, centers, d, f, length, starts, first, tiles,
                            values, labels, own, sums, kept, rows, soon,
                        )  # fmt: skip

    return sweep


@cache
def _sweep_differences(tile: Tile, dtype: Dtype, mode: int, direct: int) -> Kernel:
    """The same in the direct form."""
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres, ranks = tile.vectors * lanes, tile.centres, 2 if mode == TWO else 1
    spec = Micro(centres, tile.vectors, lanes, mode, direct).code

    @inner
    def sweep(
        panels: Any, count: Any, centers: Any, d: Any, starts: Any, n_tiles: Any,
        blocks: Any, values: Any, labels: Any, sums: Any, rows: Any, later: Any,
    ) -> None:  # fmt: skip
        for t in range(0, n_tiles, blocks[1]):
            tiles, first = min(blocks[1], n_tiles - t), t * centres
            for p in range(count):
                at, own = p * d * width, p * ranks * width
                scan(
                    spec, panels, at, centers, d, 0, d, starts, first, tiles,
                    values, labels, own, sums, 0, rows, -1,
                )  # fmt: skip

    return sweep


@inner
def _name(lists: Any, list_at: Any, labels: Any, first: Any, m: Any) -> None:
    """Centres instead of places in a list."""
    for i in range(first, first + m):
        if labels[i] >= 0:
            labels[i] = lists[list_at + labels[i]]


@cache
def _choose(dtype: Dtype, two: bool) -> Kernel:
    """Write which of all or of the listed centres is nearest to a row."""
    real = dtype.type

    @inner
    def write(
        rows: Any, i: Any, given: Any, d: Any, starts: Any, lists: Any, begin: Any, end: Any,
        labels_out: Any, values_out: Any, second_labels_out: Any, second_out: Any,
    ) -> None:  # fmt: skip
        label, square, second_label, second_square = choose(
            rows, i * d, given, d, starts, -1, real(0), lists, begin, end
        )
        labels_out[i] = label
        if values_out.size > 0:
            values_out[i] = square
        if two:
            second_labels_out[i], second_out[i] = second_label, second_square

    return write


@cache
def _decide(dtype: Dtype, width: int, two: bool) -> Kernel:
    """Rows of a panel whose nearest centre is in doubt: decided within their list, or noted."""
    write = _choose(dtype, two)

    @inner
    def decide(
        rows: Any, first: Any, m: Any, given: Any, d: Any, starts: Any, lists: Any, list_at: Any,
        length: Any, values: Any, own: Any, norms: Any, rounding: Any,
        doubtful: Any, limits: Any, n_doubtful: Any, labels_out: Any, values_out: Any,
        second_labels_out: Any, second_out: Any,
    ) -> Any:  # fmt: skip
        for q in range(m):
            best, second = np.float64(values[own + q]), np.float64(values[own + width + q])
            square = np.float64(norms[q])
            limit = best + margin(best, square, rounding)
            if second > limit:
                continue
            if two:  # the second nearest is to be among those in question as well
                limit = second + margin(second, square, rounding)
            if lists.size > 0:
                write(
                    rows, first + q, given, d, starts, lists, list_at, list_at + length,
                    labels_out, values_out, second_labels_out, second_out,
                )  # fmt: skip
            else:
                doubtful[n_doubtful], limits[n_doubtful] = first + q, limit
                n_doubtful += 1
        return n_doubtful

    return decide


@cache
def _assign(tile: Tile, dtype: Dtype, mode: int, direct: int, divided: bool) -> Kernel:
    """Rows ``begin .. end`` against all given centres, through a workspace made once."""
    width, real = tile.vectors * tile.lanes_of(dtype.itemsize), dtype.type
    # (`product` by a name of its own: what numba can tell never to run is not compiled)
    two, numbered, blockwise, product = mode == TWO, mode == NUMBERED, mode == BLOCK, not direct
    ranks, nobody = (1, 0) if direct and not two else (2, -1)
    pack = pack_rows(dtype, width)
    if direct:
        sweep = _sweep_differences(tile, dtype, mode, direct)
    else:
        sweep = (_sweep_divided if divided else _sweep_products)(tile, dtype, mode)
    centres, doubts = tile.centres, _decide(dtype, width, two)

    @inner
    def assign(
        rows: Any, begin: Any, end: Any, d: Any, shift: Any, centers: Any, starts: Any,
        n_tiles: Any, blocks: Any, space: Any, given: Any,
        lists: Any, list_at: Any, length: Any, coarse: Any, rounding: Any, doubtful: Any,
        limits: Any, n_doubtful: Any, labels_out: Any, values_out: Any, second_labels_out: Any,
        second_out: Any,
    ) -> Any:  # fmt: skip
        panels, spare, norms, values, labels, sums, _, _, columns = space
        a, b = real(coarse[0]), real(coarse[1])
        c, e, f = real(coarse[2]), real(coarse[3]), real(coarse[4])
        for block in range(begin, end, blocks[0] * width):
            total = min(blocks[0] * width, end - block)
            count = (total + width - 1) // width
            for p in range(count):
                m = min(width, total - p * width)
                own = p * ranks * width
                pack(rows, block + p * width, m, d, shift, panels, p * width * d, spare)
                clear(width, ranks, nobody, values, labels, own)
            later = -1
            if block + total < end and blocks[0] * width * d <= FETCHED:
                later = (block + total) * d
            sweep(
                panels, count, centers, d, starts, n_tiles, blocks, values, labels, sums, rows,
                later,
            )  # fmt: skip
            for p in range(count):
                first, own = block + p * width, p * ranks * width
                m = min(width, total - p * width)
                certain = m
                if numbered:
                    square_lengths(width, CHAINS, panels, p * width * d, width, d, norms)
                    certain = conclude(width, centres, values, labels, own, norms, m, a, b, c, e, f)
                elif product:
                    square_lengths(width, 1, panels, p * width * d, width, d, norms)
                    certain = 0  # (counted: a branch would keep the loop out of vectors)
                    for q in range(m):
                        gap = values[own + width + q] - values[own + q]
                        square = max(values[own + q] + norms[q], real(0))
                        certain += gap > min(a + b * norms[q], c + e * norms[q] + f * square)
                if blockwise:
                    for q in range(m):
                        labels[own + q] = settle(
                            centres, panels, p * width * d + q, width, columns, d, starts,
                            labels[own + q], values[own + q],
                        )  # fmt: skip
                for q in range(m):
                    # scores that overflow, or NaN, leave no winner
                    labels_out[first + q] = max(labels[own + q], 0)
                if two:
                    for q in range(m):
                        second_labels_out[first + q] = labels[own + width + q]
                if lists.size > 0:
                    _name(lists, list_at, labels_out, first, m)
                for q in range(m if values_out.size > 0 else 0):
                    values_out[first + q] = max(values[own + q] + norms[q], real(0))
                    if two:
                        second_out[first + q] = max(values[own + width + q] + norms[q], real(0))
                if product and certain < m:
                    n_doubtful = doubts(
                        rows, first, m, given, d, starts, lists, list_at, length, values, own,
                        norms, rounding, doubtful, limits, n_doubtful, labels_out,
                        values_out, second_labels_out, second_out,
                    )  # fmt: skip
        return n_doubtful

    return assign


def _arguments(dtype: Dtype) -> tuple[Any, ...]:
    """The types of what a :func:`search` is called with."""
    offsets = types.Array(types.int64, 1, "C", readonly=True)
    outputs = [types.Array(types.int32, 1, "C"), types.Array(numba.from_dtype(dtype), 1, "C")] * 2
    return (
        *real_arrays(dtype, 2, 2, 1, 2, 1),
        offsets,
        offsets,
        types.Array(types.int32, 1, "C", readonly=True),
        types.UniTuple(types.int64, 3),
        workspace_type(dtype),
        types.UniTuple(types.float64, 5),
        types.UniTuple(types.float64, 4),
        types.int64,
        types.Array(types.int64, 1, "C"),
        types.Array(types.float64, 1, "C"),
        *outputs,
    )


@inner
def _side_by_side(
    lists: Any, first: Any, length: Any, room: Any, centers: Any, starts: Any, d: Any, copies: Any,
    copied_starts: Any,
) -> None:  # fmt: skip
    """Copy the centres of a list and what their scores start from, up to whole tiles."""
    for m in range(length, room):
        copied_starts[m] = np.inf
        for f in range(d):
            copies[m * d + f] = 0
    for m in range(length):
        copied_starts[m] = starts[lists[first + m]]
        for f in range(d):
            copies[m * d + f] = centers[lists[first + m], f]


@inner
def _transpose(block: Any, n_centers: Any, d: Any, columns: Any) -> None:
    """Write centres in blocks of `PAD`, feature by feature."""
    for m in range(n_centers):
        for f in range(d):
            columns[(m // PAD * d + f) * PAD + m % PAD] = block[m * d + f]


@cache
def search(tile: Tile, dtype: Dtype, mode: int, direct: int, divided: bool) -> Kernel:
    """Nearest centre of every row, among all centres or among listed ones, or nearest two of all.

    Parameters
    ----------
    tile, dtype : Tile, dtype
    mode : int
        `TWO`: the second nearest too. Else in the direct form `BEST`, or `BLOCK`, which finds the
        same winners in two steps and is faster for many centres; otherwise `PAIR`, or `NUMBERED`,
        which is faster but where distances are wanted.
    direct : int
        The number of features if (x - c)² itself is summed, at most `DIRECT_FEATURES`; else 0.
    divided : bool
        Rows are longer than a block of features: three more micro-kernels, for its parts.

    Returns
    -------
    callable
        ``run(x, given, shift, centers, starts, row_offsets, list_offsets, lists, blocks,
        space, coarse, rounding, at_once, doubtful, limits, labels, values, second_labels,
        second)``, which returns how many rows are left in doubt (:mod:`.doubts`) because they are
        too many to be decided `at_once`: `doubtful` and `limits` have room for all rows. `given`
        are the centres as they are, `centers` what a row's features are multiplied with. With no
        `lists` at all, and always with `TWO`, every row meets every centre. A list's centres are
        copied side by side first: what that costs, every panel of its rows gets back. Of the
        outputs, values of length 0 are not wanted.
    """
    assign, centres = _assign(tile, dtype, mode, direct, divided), tile.centres
    write, blockwise, product = _choose(dtype, mode == TWO), mode == BLOCK, not direct

    @njit(_arguments(dtype))
    def run(
        x: Any, given: Any, shift: Any, centers: Any, starts: Any, row_offsets: Any,
        list_offsets: Any, lists: Any, blocks: Any, space: Any,
        coarse: Any, rounding: Any, at_once: Any, doubtful: Any, limits: Any, labels: Any,
        values: Any, second_labels: Any, second: Any,
    ) -> Any:  # fmt: skip
        n, d = x.shape
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        whole = given.reshape(given.size)
        _, _, _, _, _, _, copies, copied_starts, columns = space
        n_doubtful = 0
        for s in range(row_offsets.size - 1):
            begin, end, first = row_offsets[s], row_offsets[s + 1], list_offsets[s]
            length = list_offsets[s + 1] - first
            n_tiles = (length + centres - 1) // centres
            block, block_starts = flat, starts
            if lists.size > 0 and begin < end:
                _side_by_side(
                    lists, first, length, n_tiles * centres, centers, starts, d, copies,
                    copied_starts,
                )  # fmt: skip
                block, block_starts = frozen(copies), frozen(copied_starts)
            if blockwise:
                _transpose(block, n_tiles * centres, d, columns)
            n_doubtful = assign(
                rows, begin, end, d, shift, block, block_starts, n_tiles, blocks, space, whole,
                lists, first, length, coarse, rounding, doubtful, limits, n_doubtful, labels,
                values, second_labels, second,
            )  # fmt: skip
        if product:
            k = given.shape[0]
            if n_doubtful * k * d <= at_once:
                for q in range(n_doubtful):
                    write(
                        rows, doubtful[q], whole, d, starts, lists, 0, k, labels, values,
                        second_labels, second,
                    )  # fmt: skip
                n_doubtful = 0
        return n_doubtful

    return run


@cache
def scores(tile: Tile, dtype: Dtype, direct: int) -> Kernel:
    """Scores of every row and every centre; in the direct form they are squared distances.

    The direct form takes any number of features here (`SOME`).
    """
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    centres = tile.centres
    spec = Micro(centres, tile.vectors, tile.lanes_of(dtype.itemsize), SCORES, direct).code
    pack = pack_rows(dtype, width)

    @njit(
        (
            *real_arrays(dtype, 2, 1, 2, 1),
            workspace_type(dtype),
            types.Array(numba.from_dtype(dtype), 2, "C"),
        )
    )
    def run(x: Any, shift: Any, centers: Any, starts: Any, space: Any, out: Any) -> None:
        n, d = x.shape
        k = out.shape[1]
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        panel, spare, _, values, labels, _, sums, _, _ = space
        tiles = sums.size // (centres * width)
        for begin in range(0, n, width):
            m = min(width, n - begin)
            pack(rows, begin, m, d, shift, panel, 0, spare)
            for first in range(0, k, tiles * centres):
                count = min(tiles * centres, k - first)
                scan(
                    spec, panel, 0, flat, d, 0, d, starts, first, (count + centres - 1) // centres,
                    values, labels, 0, sums, 0, rows, -1,
                )  # fmt: skip
                for q in range(m):
                    for j in range(count):
                        out[begin + q, first + j] = sums[j * width + q]

    return run
