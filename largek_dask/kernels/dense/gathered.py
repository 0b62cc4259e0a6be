"""Search of scattered rows, which are gathered by group and compared with their group's list.

The centres of a group's list are copied to contiguous memory once. The group's rows are gathered by
number and packed a panel at a time, while the rows of the next panel are prefetched. The last panel
of a group is as narrow as the number of its rows allows.

If the difference of the two smallest scores is within the usual rounding error, sums (x - c)²
decide. Labels are not guaranteed to be right: the limit is about eight times a sum of roundings of
random signs, much less than the margin of :mod:`.doubts`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types

from largek_dask.kernels.dense.doubts import choose
from largek_dask.kernels.dense.panels import (
    PAD,
    Array,
    Dtype,
    Kernel,
    inner,
    outputs,
    real_arrays,
    workspace_type,
)
from largek_dask.kernels.emit import as_readonly, gather, prefetch, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import PAIR, Micro, Tile

COLLECTED = 1 << 10
"""Whole groups are collected until they have at least this number of rows; then they are
searched."""
AHEAD = 16
"""Number of rows by which prefetching is ahead of copying."""
LINE = 64
"""Bytes per cache line; on CPUs with another size only speed suffers."""
USUAL = 8
"""Scores that differ by less than this times ``sqrt(d) u (|x|² + D²)`` are in doubt; the usual
rounding error is smaller."""


def scratch(tile: Tile, dtype: Dtype, largest: int, n_groups: int) -> tuple[Array, Array]:
    """Return arrays for row numbers and counts of groups of at most `largest` rows."""
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    return np.empty(COLLECTED + largest + 2 * width, np.int32), np.empty(n_groups, np.int64)


@cache
def pack_gathered(dtype: Dtype, width: int, direct: bool) -> Kernel:
    """Compile packing of given rows, less the shift, into a transposed panel with squared lengths.

    In ``pack(rows, places, at, d, shift, panel, panel_at, norms)``, `places` has row numbers for
    all lanes. For rows shorter than a block of 32 bytes, ``pack`` reads into the next row and
    writes beyond the panel. The direct form needs no lengths and leaves `norms` at 0.
    """
    side = 32 // dtype.itemsize
    lengths = 0 if direct else 1

    @inner
    def pack(rows, places, at, d, shift, panel, panel_at, norms):
        for q in range(width):
            norms[q] = 0
        for f in range(0, d - side + 1, side):
            for r in range(0, width, side):
                gather(
                    lengths, rows, places, at + r, d, shift, f, 0, panel,
                    panel_at + f * width + r, width, norms, r,
                )  # fmt: skip
        if d % side != 0:
            # the last block overlaps the previous one and writes the same numbers again
            f = max(d - side, 0)
            for r in range(0, width, side):
                gather(
                    lengths, rows, places, at + r, d, shift, f, side - d % side, panel,
                    panel_at + f * width + r, width, norms, r,
                )  # fmt: skip

    return pack


@cache
def load_rows(dtype: Dtype, stored: Dtype, width: int, direct: bool) -> Kernel:
    """Compile loading of a panel of given rows, converted from the stored type."""
    side = 32 // dtype.itemsize
    pack, converted = pack_gathered(dtype, width, direct), stored != dtype

    @inner
    def scatter(rows, places, at, d, panel):
        for q in range(width):
            i = np.int64(places[at + q]) * d
            for f in range(d):
                panel[f * width + q] = rows[i + f]

    # the direct form subtracts no shift
    @inner
    def load(rows, places, at, d, shift, panel, norms, spare, own):
        if converted:
            if direct:
                scatter(rows, places, at, d, panel)
            else:
                for q in range(width):
                    i = np.int64(places[at + q]) * d
                    for f in range(d):
                        spare[q * d + f] = rows[i + f]
                pack(spare, places, own, d, shift, panel, 0, norms)
        elif direct and d < side:  # a whole block would read beyond the last row
            scatter(rows, places, at, d, panel)
        else:
            pack(rows, places, at, d, shift, panel, 0, norms)

    return load


@cache
def fetch_rows(stored: Dtype) -> Kernel:
    """Compile prefetching of rows."""
    line = LINE // stored.itemsize

    @inner
    def call(rows, places, begin, end, d):
        for q in range(begin, end):
            i = np.int64(places[q]) * d
            for f in range(0, d, line):
                prefetch(rows, i + f)
            prefetch(rows, i + d - 1)

    return call


@cache
def convert_rows(dtype: Dtype, stored: Dtype) -> Kernel:
    """Compile copying of given rows, less an origin, to contiguous rows of the compute dtype."""
    real, call = dtype.type, fetch_rows(stored)

    @inner
    def copy(rows, places, count, d, origin, block):
        for p in range(count):
            call(rows, places, min(p + AHEAD, count), min(p + AHEAD + 1, count), d)
            # (use slices: numba would gather by an index that might be negative)
            row, out = rows[np.int64(places[p]) * d :], block[p * d :]
            for f in range(d):
                out[f] = real(row[f]) - origin[f]

    return copy


@cache
def _meet(tile: Tile, dtype: Dtype, stored: Dtype, vectors: int, direct: int) -> Kernel:
    """Compile the search of a block of centres for a panel of `vectors` vectors of rows.

    It finds the two smallest scores of each row. Meanwhile the next rows, ``places[ahead : ahead +
    n_ahead]``, are prefetched a few at a time, since a core allows few outstanding reads.
    """
    lanes, real = tile.lanes_of(dtype.itemsize), dtype.type
    width = vectors * lanes
    # a narrow panel needs more centres at a time, or each multiply-add waits for the previous one;
    # where features are unrolled, the next tile fills the gap
    centres = PAD if vectors == 1 and not direct else tile.centres
    spec = Micro(centres, vectors, lanes, PAIR, direct).code
    load, call = load_rows(dtype, stored, width, direct > 0), fetch_rows(stored)

    @inner
    def meet(
        rows, places, at, ahead, n_ahead, d, shift, block, starts, length, own, panel, spare, norms,
        values, labels, sums,
    ):  # fmt: skip
        load(rows, places, at, d, shift, panel, norms, spare, own)
        for q in range(width):
            values[q] = np.inf
            values[width + q] = np.inf
            labels[q] = 0
        n_tiles = (length + centres - 1) // centres
        if direct:
            call(rows, places, ahead, ahead + n_ahead, d)
            scan(
                spec, panel, 0, block, d, 0, d, starts, 0, n_tiles,
                values, labels, 0, sums, 0, sums, -1,
            )  # fmt: skip
        else:
            share = (n_ahead + n_tiles - 1) // n_tiles
            for t in range(n_tiles):
                begin = ahead + min(t * share, n_ahead)
                call(rows, places, begin, min(begin + share, ahead + n_ahead), d)
                scan(
                    spec, panel, 0, block, d, 0, d, starts, t * centres, 1,
                    values, labels, 0, sums, 0, sums, -1,
                )  # fmt: skip
        for q in range(width):
            if direct:
                values[q] = np.sqrt(max(values[q], real(0)))
                values[width + q] = np.sqrt(max(values[width + q], real(0)))
            else:
                values[q] = np.sqrt(max(values[q] + norms[q], real(0)))
                values[width + q] = np.sqrt(max(values[width + q] + norms[q], real(0)))

    return meet


@inner
def _collect(order, starts, offsets, begin, end, chosen, counts):
    """Collect the row numbers of groups that have a list, and the number of rows of each group.

    Return the first group that was not collected, and the number of rows collected.
    """
    count, j = 0, begin
    while j < end and count < COLLECTED:
        before = count
        if offsets[j] < offsets[j + 1]:
            for p in range(starts[j], starts[j + 1]):
                chosen[count] = order[p]
                count += 1
        counts[j - begin] = count - before
        j += 1
    return j, count


@inner
def _copy_listed(listed, first, length, centers, openings, d, copies, copied_openings):
    """Copy listed centres and the starts of their scores, and pad them."""
    for m in range(length):
        c = listed[first + m]
        copied_openings[m] = openings[c]
        for f in range(d):
            copies[m * d + f] = centers[c, f]
    for m in range(length, (length + PAD - 1) // PAD * PAD):
        copied_openings[m] = np.inf
        for f in range(d):
            copies[m * d + f] = 0


@cache
def _panel(tile: Tile, dtype: Dtype, stored: Dtype, direct: int) -> Kernel:
    """Compile the search of a group's next panel of rows in the group's list.

    It returns the number of rows, and the number of rows that change their centre.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    # a panel is at least as wide as a transposed block
    thin = max(1, 32 // dtype.itemsize // lanes)
    narrow = _meet(tile, dtype, stored, thin, direct)
    wide = _meet(tile, dtype, stored, tile.vectors, direct)
    # a wide panel is used only if the rows need all of its vectors
    width, least, few = tile.vectors * lanes, thin * lanes, (tile.vectors - 1) * lanes
    real, converted = dtype.type, stored != dtype

    @inner
    def decide(rows, at, whole, d, listed, begin, end):
        found = choose(rows, at, whole, d, rows, -1, real(0), listed, begin, end)
        return np.int32(found[0]), real(np.sqrt(found[1])), real(np.sqrt(found[3]))

    @inner
    def panel(
        rows, chosen, at, last, total, d, shift, whole, listed, first, length, own, keep, close,
        space, labels, upper, lower,
    ):  # fmt: skip
        packed, spare, norms, values, winners, sums, copies, copied_openings, _ = space
        block, openings = as_readonly(copies), as_readonly(copied_openings)
        m = last - at
        m = min(m, width if m > few else least)
        ahead = at + m
        n_ahead = min(width, total - ahead)
        for q in range(ahead, ahead + n_ahead):
            prefetch(labels, chosen[q])
        if m > few:
            size = width
            wide(
                rows, chosen, at, ahead, n_ahead, d, shift, block, openings, length, own, packed,
                spare, norms, values, winners, sums,
            )  # fmt: skip
        else:
            size = least
            narrow(
                rows, chosen, at, ahead, n_ahead, d, shift, block, openings, length, own, packed,
                spare, norms, values, winners, sums,
            )  # fmt: skip
        n_moved = 0
        for q in range(m):
            i = chosen[at + q]
            c = listed[first + winners[q]]
            upper[i], lower[i] = values[q], values[size + q]
            if not direct:
                near, next_near = values[q], values[size + q]
                gap = (next_near - near) * (next_near + near)
                if gap <= close * (norms[q] + near * near):
                    if converted:  # the rows of this panel are in `spare`
                        found = decide(spare, q * d, whole, d, listed, first, first + length)
                    else:
                        own_at = np.int64(i) * d
                        found = decide(rows, own_at, whole, d, listed, first, first + length)
                    c, upper[i], lower[i] = found
            if c != labels[i]:
                n_moved += 1
                labels[i] = c
                if not keep:
                    lower[i] = 0
        return m, n_moved

    return panel


@cache
def search_gathered(tile: Tile, dtype: Dtype, stored: Dtype, direct: int) -> Callable[..., Any]:
    """Compile the search for each row's nearest centre in its group's list, with two distances.

    `stored` is the type of the rows, one of `rows.NATIVE`; `direct` is the number of features if
    (x - c)² itself is summed, else 0. The kernel is ``run(x, given, order, starts, offsets, listed,
    shift, centers, openings, begin, end, keep, space, chosen, counts, labels, upper, lower)``, with
    the arguments of :class:`~.lists.ListSearch`; `given` are the centres themselves, `chosen` and
    `counts` come from :func:`scratch`.
    """
    number, width = dtype.type, tile.vectors * tile.lanes_of(dtype.itemsize)
    panel = _panel(tile, dtype, stored, direct)
    usual = USUAL * float(np.finfo(dtype).eps) / 2
    read, write = real_arrays, outputs

    @njit(
        (
            *read(stored, 2), *read(dtype, 2), *read("i4", 1), *read("i8", 1, 1), *read("i4", 1),
            *read(dtype, 1, 2, 1), types.int64, types.int64, types.boolean, workspace_type(dtype),
            *write("i4", 1), *write("i8", 1), *write("i4", 1), *write(dtype, 1, 1),
        ),
        refcounts=False,
    )  # fmt: skip
    def run(
        x, given, order, starts, offsets, listed, shift, centers, openings, begin, end, keep, space,
        chosen, counts, labels, upper, lower,
    ):  # fmt: skip
        n, d = x.shape
        rows, whole = x.reshape(n * d), given.reshape(given.size)
        close = number(usual * np.sqrt(d))
        _, _, _, _, _, _, copies, copied_openings, _ = space
        own = chosen.size - width
        for q in range(width):
            chosen[own + q] = q
        n_moved, n_evaluated, group = 0, 0, begin
        while group < end:
            following, total = _collect(order, starts, offsets, group, end, chosen, counts)
            for q in range(total, total + width):
                chosen[q] = chosen[max(total - 1, 0)]  # pad the last panel
            at = 0
            for j in range(group, following):
                last = at + counts[j - group]
                if at == last:
                    continue
                first, length = offsets[j], offsets[j + 1] - offsets[j]
                _copy_listed(listed, first, length, centers, openings, d, copies, copied_openings)
                n_evaluated += (last - at) * length
                while at < last:
                    m, moved = panel(
                        rows, chosen, at, last, total, d, shift, whole, listed, first, length, own,
                        keep, close, space, labels, upper, lower,
                    )  # fmt: skip
                    n_moved += moved
                    at += m
            group = following
        return n_moved, n_evaluated

    return run
