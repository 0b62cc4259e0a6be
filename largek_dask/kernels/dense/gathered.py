"""Search that gathers the scattered rows of each group to compare them with the group's list.

The centres of a group's list are copied to contiguous memory once. The group's rows are gathered by
number and packed a panel at a time, while the rows of the next panel are prefetched. The last panel
of a group is narrower if few rows remain.

If the two smallest scores differ by no more than the usual rounding error, float64 sums (x - c)²
decide. Labels are not guaranteed to be exact: the limit assumes that rounding errors have random
signs, so the limit is much smaller than the margin of :mod:`.doubts`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from largek_dask.kernels.dense.doubts import choose
from largek_dask.kernels.dense.panels import PAD, Array, Dtype, Kernel, inner
from largek_dask.kernels.emit import as_readonly, gather, prefetch, scan
from largek_dask.kernels.threads import shared
from largek_dask.kernels.tile import PAIR, Micro, Tile

COLLECTED = 1 << 10
"""Minimum number of rows to collect, in whole groups, before they are searched."""
AHEAD = 16
"""Prefetch distance, in rows."""
LINE = 64
"""Cache line size in bytes; on CPUs with a different size, only speed is affected."""
USUAL = 8
"""Two scores are in doubt if they differ by at most this factor times ``sqrt(d) u (|x|² + D²)``;
the usual rounding error is smaller."""


def scratch(
    tile: Tile, dtype: Dtype, largest: int, n_groups: int, n_threads: int
) -> tuple[Array, Array]:
    """Return scratch arrays for row numbers and row counts of groups of up to `largest` rows.

    There is one row for each thread.
    """
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    chosen = np.empty((n_threads, COLLECTED + largest + 2 * width), np.int32)
    return chosen, np.empty((n_threads, n_groups), np.int64)


@cache
def pack_gathered(dtype: Dtype, width: int, direct: bool) -> Kernel:
    """Compile a function that packs listed rows, minus the shift, into a transposed panel.

    The function is ``pack(rows, places, at, d, shift, panel, panel_at, norms)``; `places` contains
    a row number for each lane. If rows are shorter than 32 bytes, ``pack`` reads into the next row
    and writes beyond the panel. Squared lengths are written to `norms`, or 0 in the direct form.
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
            # The last block overlaps the previous block and writes the same numbers again.
            f = max(d - side, 0)
            for r in range(0, width, side):
                gather(
                    lengths, rows, places, at + r, d, shift, f, side - d % side, panel,
                    panel_at + f * width + r, width, norms, r,
                )  # fmt: skip

    return pack


@cache
def load_rows(dtype: Dtype, stored: Dtype, width: int, direct: bool) -> Kernel:
    """Compile a function that loads listed rows into a panel, converting them if necessary."""
    side = 32 // dtype.itemsize
    pack, converted = pack_gathered(dtype, width, direct), stored != dtype

    @inner
    def scatter(rows, places, at, d, panel):
        for q in range(width):
            i = np.int64(places[at + q]) * d
            for f in range(d):
                panel[f * width + q] = rows[i + f]

    # The direct form subtracts no shift.
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
    """Compile a function that prefetches rows."""
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
    """Compile a function that copies listed rows, minus an origin, to contiguous memory."""
    real, call = dtype.type, fetch_rows(stored)

    @inner
    def copy(rows, places, count, d, origin, block):
        for p in range(count):
            call(rows, places, min(p + AHEAD, count), min(p + AHEAD + 1, count), d)
            # Use slices: numba would emit slow gathers for indices that might be negative.
            row, out = rows[np.int64(places[p]) * d :], block[p * d :]
            for f in range(d):
                out[f] = real(row[f]) - origin[f]

    return copy


@cache
def _meet(tile: Tile, dtype: Dtype, stored: Dtype, vectors: int, direct: int) -> Kernel:
    """Compile the search of a block of centres for a panel of rows.

    The function finds the two nearest centres of each row. Meanwhile it prefetches the next rows a
    few at a time, because a core allows few outstanding reads.
    """
    lanes, real = tile.lanes_of(dtype.itemsize), dtype.type
    width = vectors * lanes
    # A narrow panel needs more centres at a time, so that no multiply-add waits for another.
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
    """Compile the search of a group's list for the group's next panel of rows.

    The function returns the number of rows in the panel.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    # A panel is at least as wide as a transposed block.
    thin = max(1, 32 // dtype.itemsize // lanes)
    narrow = _meet(tile, dtype, stored, thin, direct)
    wide = _meet(tile, dtype, stored, tile.vectors, direct)
    # A wide panel is used only if the rows need all of its vectors.
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
        for q in range(m):
            i = chosen[at + q]
            c = listed[first + winners[q]]
            upper[i], lower[i] = values[q], values[size + q]
            if not direct:
                near, next_near = values[q], values[size + q]
                gap = (next_near - near) * (next_near + near)
                if gap <= close * (norms[q] + near * near):
                    if converted:  # this panel is in `spare`
                        found = decide(spare, q * d, whole, d, listed, first, first + length)
                    else:
                        own_at = np.int64(i) * d
                        found = decide(rows, own_at, whole, d, listed, first, first + length)
                    c, upper[i], lower[i] = found
            if c != labels[i]:
                labels[i] = c
                if not keep:
                    lower[i] = 0
        return m

    return panel


@cache
def search_gathered(tile: Tile, dtype: Dtype, stored: Dtype, direct: int) -> Callable[..., Any]:
    """Compile the search for each row's nearest centre in the list of the row's group.

    `stored` is the type of the rows, one of `rows.NATIVE`; `direct` is the number of features in
    the direct form, otherwise 0. Threads share the parts of the search, which consist of the groups
    ``cuts[part]`` to ``cuts[part + 1]``. The arguments are those of :class:`~.lists.ListSearch`;
    `given` are the original centres, and `chosen` and `counts` come from :func:`scratch`. The
    search writes the number of distances of each part, and the rows whose label is not that of
    their group: ``n_moved[part]`` rows, beginning at ``starts[cuts[part]]``, and their groups.
    """
    number, width = dtype.type, tile.vectors * tile.lanes_of(dtype.itemsize)
    panel = _panel(tile, dtype, stored, direct)
    usual = USUAL * float(np.finfo(dtype).eps) / 2

    @inner
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
        n_evaluated, group = 0, begin
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
                    at += panel(
                        rows, chosen, at, last, total, d, shift, whole, listed, first, length, own,
                        keep, close, space, labels, upper, lower,
                    )  # fmt: skip
            group = following
        return n_evaluated

    def search(
        part, thread, x, given, order, starts, offsets, listed, shift, centers, openings, keep,
        cuts, spaces, chosen, counts, labels, upper, lower, evaluated, n_moved, moved, groups,
    ):  # fmt: skip
        begin, end = cuts[part], cuts[part + 1]
        packed, spare, norms, values, winners, sums, copies, copied_openings, other = spaces
        space = (
            packed[thread], spare[thread], norms[thread], values[thread], winners[thread],
            sums[thread], copies[thread], copied_openings[thread], other[thread],
        )  # fmt: skip
        evaluated[part] = run(
            x, given, order, starts, offsets, listed, shift, centers, openings, begin, end, keep,
            space, chosen[thread], counts[thread], labels, upper, lower,
        )  # fmt: skip
        n_moved[part] = find_moved(order, starts, labels, begin, end, moved, groups)

    return shared(search)


@inner
def find_moved(order, starts, labels, begin, end, moved, groups):
    """Write the rows whose label is not that of their group; return their number."""
    first, n = starts[begin], 0
    for j in range(begin, end):
        for p in range(starts[j], starts[j + 1]):
            if labels[order[p]] != j:
                moved[first + n], groups[first + n] = order[p], j
                n += 1
    return n
