"""Search for the nearest centres of dense rows, by comparing rows with blocks of centres.

Each factory function compiles a kernel for a register tile and a compute dtype at its first call.
Block sizes keep reused data in the caches: a block of centres stays in the second-level cache while
it is compared with several panels, and a panel (or, for long rows, a block of its features) stays
in the first-level cache.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any

import numpy as np
from numba import types

from largek_dask.kernels.dense.doubts import NO_LIST, choose, margin
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
from largek_dask.kernels.emit import decode_labels, find_score, reset_winners, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import BLOCK, FEW, NUMBERED, SCORES, TWO, Micro, Tile

# Named groups of kernel arguments; calls from Python pass the fields, which is faster.
Doubts = namedtuple("Doubts", "coarse rounding rows limits")
Out = namedtuple("Out", "labels values second_labels second")

FETCHED, FETCHED_WIDE = 5 << 13, 1 << 17
"""Maximum number of values in a prefetched block of rows; larger blocks would displace data in use.
CPUs whose vectors fill a cache line have larger second-level caches."""
LITTLE = 1 << 19
"""Maximum product of rows in doubt, centres and features for which the search itself decides these
rows, by comparing them with all centres."""


@cache
def _pack(dtype: Dtype, width: int, lengths: int) -> Kernel:
    pack = pack_block(dtype, width, lengths)

    @inner
    def pack_all(rows, block, total, d, shift, panels, spare, norms):
        for p in range(0, total, width):
            count = min(width, total - p)
            pack(rows, block + p, count, d, 0, d, shift, panels, p * d, spare, norms, p)

    return pack_all


@cache
def _sweep_products(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """Compile the comparison of rows with all centres, in the product form.

    The second smallest score is always needed to determine whether the smallest is certain.
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
                # Prefetch the next block of rows while a panel is compared with the first centres.
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
    """Compile the comparison of long rows with all centres, one block of features at a time.

    If a panel is compared with all centres before the next panel, its features are packed block by
    block, because a whole panel of long rows would leave the cache before it is used.
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
                            # Prefetch the same features of the next rows.
                            soon = later + f * total + p * length
                    meet(
                        panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values,
                        labels, p, sums, p // width * (blocks[1] + 1) * size, rows, soon,
                    )  # fmt: skip

    return sweep


@cache
def _scan_block(tile: Tile, dtype: Dtype, mode: int, carry: bool) -> Kernel:
    """Compile a scan of a block of features, for whole tiles and for the remaining centres."""
    lanes, centres = tile.lanes_of(dtype.itemsize), tile.centres
    size = centres * tile.vectors * lanes
    whole = Micro(centres, tile.vectors, lanes, mode, carry=carry).code
    few = Micro(FEW, tile.vectors, lanes, mode, carry=carry).code

    @inner
    def scan_block(
        panels, at, centers, d, f, length, starts, t, tiles, n_few, n_tiles, values, labels, own,
        sums, kept, rows, soon,
    ):  # fmt: skip
        scan(
            whole, panels, at, centers, d, f, length, starts, t * centres, tiles,
            values, labels, own, sums, kept, rows, soon,
        )  # fmt: skip
        scan(
            few, panels, at, centers, d, f, length, starts, n_tiles * centres, n_few,
            values, labels, own, sums, kept + tiles * size, rows, -1,
        )  # fmt: skip

    return scan_block


@cache
def _meet_block(tile: Tile, dtype: Dtype, mode: int) -> Kernel:
    """Compile a function that adds a block of features to the scores of a panel."""
    ranks, opening = 2, _scan_block(tile, dtype, SCORES, False)
    middle, closing = _scan_block(tile, dtype, SCORES, True), _scan_block(tile, dtype, mode, True)

    @inner
    def meet(
        panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values, labels, p, sums,
        kept, rows, soon,
    ):  # fmt: skip
        if f == 0:
            opening(
                panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values, labels,
                p * ranks, sums, kept, rows, soon,
            )  # fmt: skip
        elif f + length < d:
            middle(
                panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values, labels,
                p * ranks, sums, kept, rows, soon,
            )  # fmt: skip
        else:
            closing(
                panels, at, centers, d, f, length, starts, t, tiles, few, n_tiles, values, labels,
                p * ranks, sums, kept, rows, soon,
            )  # fmt: skip

    return meet


@cache
def _sweep_differences(tile: Tile, dtype: Dtype, mode: int, direct: int) -> Kernel:
    """Compile the comparison of rows with all centres, in the direct form."""
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


@cache
def _note_doubts(width: int, two: bool) -> Kernel:
    """Compile a function that records the rows in doubt of a panel, with limits on scores."""

    @inner
    def note(first, m, values, own, norms, at, doubts, n_doubtful):
        rounding = doubts.rounding
        for q in range(m):
            best, second = np.float64(values[own + q]), np.float64(values[own + width + q])
            square = np.float64(norms[at + q])
            limit = best + margin(best, square, rounding)
            if second > limit:
                continue
            if two:  # the second nearest centre must be a candidate, too
                limit = second + margin(second, square, rounding)
            doubts.rows[n_doubtful], doubts.limits[n_doubtful] = first + q, limit
            n_doubtful += 1
        return n_doubtful

    return note


@cache
def _squares(dtype: Dtype) -> tuple[Kernel, Kernel]:
    """Compile functions that count rows with certain labels and convert scores to distances."""
    real = dtype.type

    @inner
    def count(best, second, lengths, m, a, b, c, e, f):
        certain = 0  # Counting avoids a branch, so the loop is vectorized.
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
    """Compile a function that labels all rows, records rows in doubt and returns their number."""
    width, real = tile.vectors * tile.lanes_of(dtype.itemsize), dtype.type
    # `product` is a variable, because numba does not compile branches on a false constant.
    two, numbered, blockwise, product = mode == TWO, mode == NUMBERED, mode == BLOCK, not direct
    ranks, nothing = (1, 0) if direct and not two else (2, -1)
    if direct:
        sweep = _sweep_differences(tile, dtype, mode, direct)
    else:
        sweep = (_sweep_divided if divided else _sweep_products)(tile, dtype, mode)
    centres, note, (count, write) = tile.centres, _note_doubts(width, two), _squares(dtype)
    fetched = FETCHED_WIDE if tile.lanes_of(1) >= CACHE_LINE else FETCHED
    fetched *= 2 if divided else 1  # prefetching is spread over blocks of features

    @inner
    def assign(
        rows, n, d, shift, centers, starts, n_tiles, n_few, blocks, space, doubts, out
    ):  # fmt: skip
        n_doubtful = 0
        panels, _, norms, values, labels, _, _, _, columns = space
        a, b = real(doubts.coarse[0]), real(doubts.coarse[1])
        c, e, f = real(doubts.coarse[2]), real(doubts.coarse[3]), real(doubts.coarse[4])
        for block in range(0, n, blocks[0] * width):
            total = min(blocks[0] * width, n - block)
            for p in range(0, total, width):
                reset_winners(width, ranks, nothing, values, labels, p * ranks)
            later = -1
            if block + total < n and blocks[0] * width * d <= fetched:
                later = (block + total) * d
            sweep(
                rows, block, total, d, shift, centers, starts, n_tiles, n_few, blocks, space, later
            )
            for p in range(0, total, width):
                first, own = block + p, p * ranks
                m = min(width, total - p)
                certain = m
                # Use slices: numba would emit slow gathers for indices that might be negative.
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
                    # There is no winner if scores overflow or are NaN.
                    found[q] = max(winners[q], 0)
                if two:
                    found, runners_up = out.second_labels[first:], labels[own + width :]
                    for q in range(m):
                        found[q] = runners_up[q]
                    if out.values.size > 0:
                        write(best, lengths, out.values[first : first + m])
                        write(second, lengths, out.second[first : first + m])
                if product and certain < m:
                    n_doubtful = note(first, m, values, own, norms, p, doubts, n_doubtful)
        return n_doubtful

    return assign


def _arguments(dtype: Dtype) -> tuple[Any, ...]:
    blocks, bounds = types.UniTuple(types.int64, 3), types.UniTuple(types.float64, 5)
    return (
        *real_arrays(dtype, 2, 2, 1, 2, 1), blocks, workspace_type(dtype), bounds,
        types.UniTuple(types.float64, 4), types.int64,
        *outputs("i8", 1), *outputs("f8", 1), *[*outputs("i4", 1), *outputs(dtype, 1)] * 2,
    )  # fmt: skip


@inner
def _transpose(block, n_centers, d, columns):
    """Copy centres feature by feature, in blocks of `PAD` centres."""
    for m in range(n_centers):
        for f in range(d):
            columns[(m // PAD * d + f) * PAD + m % PAD] = block[m * d + f]


@cache
def search(tile: Tile, dtype: Dtype, mode: int, direct: int, divided: bool) -> Kernel:
    """Compile the search for the nearest centre, or the two nearest centres, of every row.

    Parameters
    ----------
    tile, dtype : Tile, dtype
    mode : int
        `TWO` also finds the second nearest. Otherwise `NUMBERED` in the product form; in the direct
        form `BEST`, or `BLOCK`, which finds the same winners in two steps and is faster for many
        centres.
    direct : int
        Number of features if (x - c)² itself is summed, at most `DIRECT_FEATURES`; else 0.
    divided : bool
        True if rows are longer than a block of features, which needs three more micro-kernels.

    Returns
    -------
    callable
        ``run(x, given, shift, centers, starts, blocks, space, coarse, rounding, at_once, doubtful,
        limits, labels, values, second_labels, second)``. It returns the number of rows left in
        doubt (:mod:`.doubts`), if there are too many to be decided `at_once`; `doubtful` and
        `limits` have room for all rows. `given` are the centres themselves, `centers` the factors
        of a row's features. Only `TWO` writes the last three arrays, and distances only if `values`
        is not empty.
    """
    assign, centres, real = _assign(tile, dtype, mode, direct, divided), tile.centres, dtype.type
    two, blockwise, product = mode == TWO, mode == BLOCK, not direct

    @njit(_arguments(dtype), refcounts=False)
    def run(
        x, given, shift, centers, starts, blocks, space, coarse, rounding, at_once, doubtful,
        limits, labels, values, second_labels, second,
    ):  # fmt: skip
        n, d = x.shape
        k = given.shape[0]
        rows, flat = x.reshape(n * d), centers.reshape(centers.size)
        n_tiles, n_few = (k + centres - 1) // centres, 0
        if product and 0 < k % centres <= centres // 2:
            n_tiles, n_few = k // centres, (k % centres + FEW - 1) // FEW
        if blockwise:
            _transpose(flat, n_tiles * centres, d, space[8])
        doubts = Doubts(coarse, rounding, doubtful, limits)
        out = Out(labels, values, second_labels, second)
        n_doubtful = assign(
            rows, n, d, shift, flat, starts, n_tiles, n_few, blocks, space, doubts, out
        )
        if product and n_doubtful * k * d <= at_once:
            whole = given.reshape(given.size)
            for q in range(n_doubtful):
                i = doubtful[q]
                label, square, second_label, second_square = choose(
                    rows, i * d, whole, d, starts, -1, real(0), NO_LIST, 0, k
                )
                labels[i] = label
                if two:
                    values[i], second_labels[i], second[i] = square, second_label, second_square
            n_doubtful = 0
        return n_doubtful

    return run


@cache
def scores(tile: Tile, dtype: Dtype, direct: int) -> Kernel:
    """Compile a kernel that computes the scores of all pairs of rows and centres.

    In the direct form, scores are squared distances, and any number of features is accepted
    (`SOME`).
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
