"""Drivers of the dense micro-kernels: packed rows against blocks of centres.

Factories make one for each register tile and compute dtype, compiled when it is first needed.
Blocks are chosen so that data used again stay in cache: a block of centres in the second-level
cache while several panels pass over it, a panel (or, for long rows, a block of its features) in
the first.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any

import numpy as np
from numba import types

from largek_dask.kernels.dense.doubts import choose, margin
from largek_dask.kernels.dense.panels import (
    CACHE_LINE,
    PAD,
    Dtype,
    Kernel,
    inner,
    outputs,
    pack_block,
    pack_rows,
    real_arrays,
    workspace_type,
)
from largek_dask.kernels.emit import as_readonly, decode_labels, find_score, reset_winners, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import BLOCK, FEW, NUMBERED, SCORES, TWO, Micro, Tile

__all__ = ["scores", "search"]

# Arguments of compiled functions; Python calls none with them, which would take longer.
Listed = namedtuple("Listed", "lists at length")
Doubts = namedtuple("Doubts", "coarse rounding rows limits")
Out = namedtuple("Out", "labels values second_labels second")

FETCHED, FETCHED_WIDE = 5 << 13, 1 << 17
"""Maximum numbers of a block of rows that is prefetched: more would displace data in use. On CPUs
with vectors as wide as cache lines, second-level caches are larger."""
LITTLE = 1 << 19
"""Rows in doubt times centres times features that are decided at once, by all centres."""


@cache
def _pack(dtype: Dtype, width: int, lengths: int) -> Kernel:
    """Compile packing all panels of a block of rows."""
    pack = pack_block(dtype, width, lengths)

    @inner
    def pack_all(rows, block, total, d, shift, panels, spare, norms):
        for p in range(0, total, width):
            count = min(width, total - p)
            pack(rows, block + p, count, d, 0, d, shift, panels, p * d, spare, norms, p)

    return pack_all


@cache
def _sweep_products(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """Compile rows against all centres; winners in `values` and `labels`, lengths in `norms`.

    The second smallest score is always found: it shows whether the smallest is certain.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres = tile.vectors * lanes, tile.centres
    ranks, pack = 2, _pack(dtype, width, 1)
    whole = Micro(centres, tile.vectors, lanes, mode).code
    few = Micro(FEW, tile.vectors, lanes, mode).code

    @inner
    def sweep(rows, block, total, d, shift, centers, starts, n_tiles, n_few, blocks, space, later):
        panels, spare, norms, values, labels, sums, _, _, _ = space
        pack(rows, block, total, d, shift, panels, spare, norms)
        for t in range(0, max(n_tiles, 1), blocks[1]):
            tiles = min(blocks[1], n_tiles - t)
            for p in range(0, total, width):
                # while a panel meets its first centres, its rows of the next block come near
                soon = later + p * d if t == 0 and later >= 0 else -1
                scan(
                    whole, panels, p * d, centers, d, 0, d, starts, t * centres, tiles,
                    values, labels, p * ranks, sums, 0, rows, soon,
                )  # fmt: skip
                if t + tiles == n_tiles and n_few > 0:
                    scan(
                        few, panels, p * d, centers, d, 0, d, starts, n_tiles * centres, n_few,
                        values, labels, p * ranks, sums, 0, rows, -1 if n_tiles > 0 else soon,
                    )  # fmt: skip

    return sweep


@cache
def _sweep_divided(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """Compile the same for rows that are longer than a block of features.

    If all centres are met at once, a block of features is packed when it is its turn: whole
    panels of long rows would leave the cache before they are used.
    """
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    pack, pack_all = pack_block(dtype, width, 1), _pack(dtype, width, 1)
    meet, size = _meet_block(tile, dtype, mode), tile.centres * width

    @inner
    def sweep(rows, block, total, d, shift, centers, starts, n_tiles, n_few, blocks, space, later):
        panels, spare, norms, values, labels, sums, _, _, _ = space
        in_turn = n_tiles <= blocks[1]
        if not in_turn:
            pack_all(rows, block, total, d, shift, panels, spare, norms)
        for t in range(0, max(n_tiles, 1), blocks[1]):
            tiles = min(blocks[1], n_tiles - t)
            few = n_few if t + tiles == n_tiles else 0
            for f in range(0, d, blocks[2]):
                length = min(blocks[2], d - f)
                for p in range(0, total, width):
                    at, soon = p * d + f * width, -1
                    if in_turn:
                        count, at = min(width, total - p), 0
                        pack(
                            rows, block + p, count, d, f, length, shift, panels, 0, spare, norms, p
                        )
                        if later >= 0:
                            # as many of the next rows, each time, as have been packed now
                            soon = later + f * total + p * length
                    meet(
                        panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values,
                        labels, p, sums, p // width * (blocks[1] + 1) * size, rows, soon,
                    )  # fmt: skip

    return sweep


@cache
def _meet_block(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """Compile a block of features of a panel against some centres."""
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres = tile.vectors * lanes, tile.centres
    ranks, size = 2, centres * width
    opening = Micro(centres, tile.vectors, lanes, SCORES).code
    going_on = Micro(centres, tile.vectors, lanes, SCORES, carry=True).code
    closing = Micro(centres, tile.vectors, lanes, mode, carry=True).code
    few_opening = Micro(FEW, tile.vectors, lanes, SCORES).code
    few_going_on = Micro(FEW, tile.vectors, lanes, SCORES, carry=True).code
    few_closing = Micro(FEW, tile.vectors, lanes, mode, carry=True).code

    @inner
    def meet(
        panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values, labels, p, sums,
        kept, rows, soon,
    ):  # fmt: skip
        own, first, last = p * ranks, t * centres, n_tiles * centres
        after = kept + tiles * size
        if f == 0:
            scan(
                opening, panels, at, centers, d, f, length, starts, first, tiles,
                values, labels, own, sums, kept, rows, soon,
            )  # fmt: skip
            scan(
                few_opening, panels, at, centers, d, f, length, starts, last, few,
                values, labels, own, sums, after, rows, -1,
            )  # fmt: skip
        elif f + length < d:
            scan(
                going_on, panels, at, centers, d, f, length, starts, first, tiles,
                values, labels, own, sums, kept, rows, soon,
            )  # fmt: skip
            scan(
                few_going_on, panels, at, centers, d, f, length, starts, last, few,
                values, labels, own, sums, after, rows, -1,
            )  # fmt: skip
        else:
            scan(
                closing, panels, at, centers, d, f, length, starts, first, tiles,
                values, labels, own, sums, kept, rows, soon,
            )  # fmt: skip
            scan(
                few_closing, panels, at, centers, d, f, length, starts, last, few,
                values, labels, own, sums, after, rows, -1,
            )  # fmt: skip

    return meet


@cache
def _sweep_differences(tile: Tile, dtype: Dtype, mode: int, direct: int) -> Kernel:
    """Compile the same in the direct form, without lengths."""
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres, ranks = tile.vectors * lanes, tile.centres, 2 if mode == TWO else 1
    spec, pack = Micro(centres, tile.vectors, lanes, mode, direct).code, _pack(dtype, width, 0)

    @inner
    def sweep(rows, block, total, d, shift, centers, starts, n_tiles, n_few, blocks, space, later):
        panels, spare, norms, values, labels, sums, _, _, _ = space
        pack(rows, block, total, d, shift, panels, spare, norms)
        for t in range(0, n_tiles, blocks[1]):
            tiles = min(blocks[1], n_tiles - t)
            for p in range(0, total, width):
                scan(
                    spec, panels, p * d, centers, d, 0, d, starts, t * centres, tiles,
                    values, labels, p * ranks, sums, 0, rows, -1,
                )  # fmt: skip

    return sweep


@inner
def _name(lists, list_at, labels, first, m):
    """Replace places in a list by centres."""
    for i in range(first, first + m):
        if labels[i] >= 0:
            labels[i] = lists[list_at + labels[i]]


@cache
def _choose(dtype: Dtype, two: bool) -> Kernel:
    """Compile writing which of all or of the listed centres is nearest to a row."""
    real = dtype.type

    @inner
    def write(rows, i, given, d, starts, lists, begin, end, out):
        label, square, second_label, second_square = choose(
            rows, i * d, given, d, starts, -1, real(0), lists, begin, end
        )
        out.labels[i] = label
        if out.values.size > 0:
            out.values[i] = square
        if two:
            out.second_labels[i], out.second[i] = second_label, second_square

    return write


@cache
def _decide(dtype: Dtype, width: int, two: bool) -> Kernel:
    """Compile deciding rows of a panel in doubt within their list, or noting them."""
    write = _choose(dtype, two)

    @inner
    def decide(
        rows, first, m, given, d, starts, listed, values, own, norms, at, doubts, n_doubtful, out
    ):
        rounding, lists = doubts.rounding, listed.lists
        for q in range(m):
            best, second = np.float64(values[own + q]), np.float64(values[own + width + q])
            square = np.float64(norms[at + q])
            limit = best + margin(best, square, rounding)
            if second > limit:
                continue
            if two:  # the second nearest is to be among those in question as well
                limit = second + margin(second, square, rounding)
            if lists.size > 0:
                end = listed.at + listed.length
                write(rows, first + q, given, d, starts, lists, listed.at, end, out)
            else:
                doubts.rows[n_doubtful], doubts.limits[n_doubtful] = first + q, limit
                n_doubtful += 1
        return n_doubtful

    return decide


@cache
def _squares(dtype: Dtype) -> tuple[Kernel, Kernel]:
    """Compile, for a panel, counting rows without doubt, and squared distances from scores."""
    real = dtype.type

    @inner
    def count(best, second, lengths, m, a, b, c, e, f):
        certain = 0  # (counted: a branch would keep the loop out of vectors)
        for q in range(m):
            square = max(best[q] + lengths[q], real(0))
            limit = min(a + b * lengths[q], c + e * lengths[q] + f * square)
            certain += second[q] - best[q] > limit
        return certain

    @inner
    def write(scores, lengths, out):
        for q in range(out.size):
            out[q] = max(scores[q] + lengths[q], real(0))

    return count, write


@cache
def _assign(tile: Tile, dtype: Dtype, mode: int, direct: int, divided: bool) -> Kernel:
    """Compile rows ``begin .. end`` against all given centres, with a workspace made once."""
    width, real = tile.vectors * tile.lanes_of(dtype.itemsize), dtype.type
    # (`product` has its own name: numba does not compile what it knows never to run)
    two, numbered, blockwise, product = mode == TWO, mode == NUMBERED, mode == BLOCK, not direct
    ranks, nobody = (1, 0) if direct and not two else (2, -1)
    if direct:
        sweep = _sweep_differences(tile, dtype, mode, direct)
    else:
        sweep = (_sweep_divided if divided else _sweep_products)(tile, dtype, mode)
    centres, decide, (count, write) = tile.centres, _decide(dtype, width, two), _squares(dtype)
    fetched = FETCHED_WIDE if tile.lanes_of(1) >= CACHE_LINE else FETCHED
    fetched *= 2 if divided else 1  # a part of them with each block of features

    @inner
    def assign(
        rows, begin, end, d, shift, centers, starts, n_tiles, n_few, blocks, space, given, listed,
        doubts, n_doubtful, out,
    ):  # fmt: skip
        panels, _, norms, values, labels, _, _, _, columns = space
        a, b = real(doubts.coarse[0]), real(doubts.coarse[1])
        c, e, f = real(doubts.coarse[2]), real(doubts.coarse[3]), real(doubts.coarse[4])
        for block in range(begin, end, blocks[0] * width):
            total = min(blocks[0] * width, end - block)
            for p in range(0, total, width):
                reset_winners(width, ranks, nobody, values, labels, p * ranks)
            later = -1
            if block + total < end and blocks[0] * width * d <= fetched:
                later = (block + total) * d
            sweep(
                rows, block, total, d, shift, centers, starts, n_tiles, n_few, blocks, space, later
            )
            for p in range(0, total, width):
                first, own = block + p, p * ranks
                m = min(width, total - p)
                certain = m
                # (slices: an index that might be negative is gathered)
                best, lengths = values[own : own + width], norms[p : p + width]
                second, winners = values[own + width :], labels[own : own + width]
                if numbered:
                    certain = decode_labels(width, values, labels, own, norms, p, m, a, b, c, e, f)
                elif product:
                    certain = count(best, second, lengths, m, a, b, c, e, f)
                if blockwise:
                    for q in range(m):
                        winners[q] = find_score(
                            centres, panels, p * d + q, width, columns, d, starts, winners[q],
                            best[q],
                        )  # fmt: skip
                found = out.labels[first : first + m]
                for q in range(m):
                    # scores that overflow, or NaN, leave no winner
                    found[q] = max(winners[q], 0)
                if two:
                    found, runners_up = out.second_labels[first:], labels[own + width :]
                    for q in range(m):
                        found[q] = runners_up[q]
                if listed.lists.size > 0:
                    _name(listed.lists, listed.at, out.labels, first, m)
                if out.values.size > 0:
                    write(best, lengths, out.values[first : first + m])
                    if two:
                        write(second, lengths, out.second[first : first + m])
                if product and certain < m:
                    n_doubtful = decide(
                        rows, first, m, given, d, starts, listed, values, own, norms, p, doubts,
                        n_doubtful, out,
                    )  # fmt: skip
        return n_doubtful

    return assign


def _arguments(dtype: Dtype) -> tuple[Any, ...]:
    """Return the types of the arguments of a :func:`search`."""
    blocks, bounds = types.UniTuple(types.int64, 3), types.UniTuple(types.float64, 5)
    return (
        *real_arrays(dtype, 2, 2, 1, 2, 1), *real_arrays("i8", 1, 1), *real_arrays("i4", 1),
        blocks, workspace_type(dtype), bounds, types.UniTuple(types.float64, 4), types.int64,
        *outputs("i8", 1), *outputs("f8", 1), *[*outputs("i4", 1), *outputs(dtype, 1)] * 2,
    )  # fmt: skip


@inner
def _side_by_side(lists, first, length, room, centers, starts, d, copies, copied_starts):
    """Copy the centres of a list and the starts of their scores, up to whole tiles."""
    for m in range(length, room):
        copied_starts[m] = np.inf
        for f in range(d):
            copies[m * d + f] = 0
    for m in range(length):
        copied_starts[m] = starts[lists[first + m]]
        for f in range(d):
            copies[m * d + f] = centers[lists[first + m], f]


@inner
def _transpose(block, n_centers, d, columns):
    """Write centres in blocks of `PAD`, feature by feature."""
    for m in range(n_centers):
        for f in range(d):
            columns[(m // PAD * d + f) * PAD + m % PAD] = block[m * d + f]


@cache
def search(tile: Tile, dtype: Dtype, mode: int, direct: int, divided: bool) -> Kernel:
    """Compile finding the nearest centre of every row, of all or listed ones, or two of all.

    Parameters
    ----------
    tile, dtype : Tile, dtype
    mode : int
        `TWO`: the second nearest too. Else in the direct form `BEST`, or `BLOCK`, which finds the
        same winners in two steps and is faster for many centres; otherwise `PAIR`, or `NUMBERED`,
        which is faster unless distances are needed.
    direct : int
        Number of features if (x - c)² itself is summed, at most `DIRECT_FEATURES`; else 0.
    divided : bool
        Rows are longer than a block of features: three more micro-kernels, for its parts.

    Returns
    -------
    callable
        ``run(x, given, shift, centers, starts, row_offsets, list_offsets, lists, blocks,
        space, coarse, rounding, at_once, doubtful, limits, labels, values, second_labels,
        second)``, which returns how many rows are left in doubt (:mod:`.doubts`) because they are
        too many to be decided `at_once`: `doubtful` and `limits` have room for all rows. `given`
        are the centres as they are, `centers` the factors of a row's features. With no
        `lists` at all, and always with `TWO`, every row meets every centre. A list's centres are
        copied side by side first, which pays with every panel of its rows. Outputs of length 0 are
        not written.
    """
    assign, centres, few = _assign(tile, dtype, mode, direct, divided), tile.centres, FEW
    write, blockwise, product = _choose(dtype, mode == TWO), mode == BLOCK, not direct

    @njit(_arguments(dtype), refcounts=False)
    def run(
        x, given, shift, centers, starts, row_offsets, list_offsets, lists, blocks, space, coarse,
        rounding, at_once, doubtful, limits, labels, values, second_labels, second,
    ):  # fmt: skip
        n, d = x.shape
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        whole = given.reshape(given.size)
        _, _, _, _, _, _, copies, copied_starts, columns = space
        doubts, n_doubtful = Doubts(coarse, rounding, doubtful, limits), 0
        out = Out(labels, values, second_labels, second)
        for s in range(row_offsets.size - 1):
            begin, end, first = row_offsets[s], row_offsets[s + 1], list_offsets[s]
            length = list_offsets[s + 1] - first
            n_tiles, n_few = (length + centres - 1) // centres, 0
            if product and 0 < length % centres <= centres // 2:
                n_tiles, n_few = length // centres, (length % centres + few - 1) // few
            block, block_starts = flat, starts
            if lists.size > 0 and begin < end:
                _side_by_side(
                    lists, first, length, n_tiles * centres + n_few * few, centers, starts, d,
                    copies, copied_starts,
                )  # fmt: skip
                block, block_starts = as_readonly(copies), as_readonly(copied_starts)
            if blockwise:
                _transpose(block, n_tiles * centres, d, columns)
            n_doubtful = assign(
                rows, begin, end, d, shift, block, block_starts, n_tiles, n_few, blocks, space,
                whole, Listed(lists, first, length), doubts, n_doubtful, out,
            )  # fmt: skip
        if product:
            k = given.shape[0]
            if n_doubtful * k * d <= at_once:
                for q in range(n_doubtful):
                    write(rows, doubtful[q], whole, d, starts, lists, 0, k, out)
                n_doubtful = 0
        return n_doubtful

    return run


@cache
def scores(tile: Tile, dtype: Dtype, direct: int) -> Kernel:
    """Compile scores of every row and centre; in the direct form they are squared distances.

    The direct form takes any number of features here (`SOME`).
    """
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    centres = tile.centres
    spec = Micro(centres, tile.vectors, tile.lanes_of(dtype.itemsize), SCORES, direct).code
    pack = pack_rows(dtype, width)

    @njit((*real_arrays(dtype, 2, 1, 2, 1), workspace_type(dtype), *outputs(dtype, 2)))
    def run(x, shift, centers, starts, space, out):
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
