"""The search of :class:`~largek_dask.kernels.bounds.boxes.Boxes`: rows meet node after node.

Rows are taken in blocks. Each begins with a guess, out of the node whose box is nearest to it. Then
come that node and, one after the other, all others, each of which the rows meet together that have
it within their limits. So what a node holds stays in the cache, and each step (its boxes; centres
in them in few coordinates; those left, in all features) is a loop over what the step before has
left of all these rows. Rows one after the other, each with a list of boxes, took twice as long, for
branches that could not be foretold and each had to wait for the one before.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense.panels import Kernel, inner
from largek_dask.kernels.emit import (
    ROWS,
    boxes_within,
    each_within,
    gap_square,
    list_set_bits,
    points_within,
    rotate_rows,
    square_distance,
)
from largek_dask.kernels.jit import njit

__all__ = ["BITS", "LANES", "MOST_ROWS", "search"]

LANES = 16
"""Centres in a box, and boxes in a node."""
MOST_ROWS = 1_024
"""Rows of a block, at most: codes of a row and a centre of a node have 32 bits."""
MOST_NEAR = 1 << 17
"""Numbers that a block keeps of how far rows are from nodes, at most."""
BATCH = 64
"""Rows that meet a node at a time, but for a few."""

_numbers = np.zeros((256, 8), np.int32)
for _byte in range(256):
    _set = [bit for bit in range(8) if _byte >> bit & 1]
    _numbers[_byte, : len(_set)] = _set
BITS = readonly(_numbers.ravel()), readonly(np.array([b.bit_count() for b in range(256)], np.int32))
"""The numbers of the bits that are set in each byte, eight places each, and how many are."""


@inner
def _lowest(values, count):
    """Where the smallest of some numbers stands, which are bits of floats that are not negative."""
    least = values[0]
    for p in range(count):
        least = min(least, values[p])
    at = 0
    while values[at] != least:
        at += 1
    return at


@inner
def _limit(square, extra, scale, slack):
    """The square of how far from a row, as they are stored, centres that come into question are."""
    reach = (np.sqrt(square * (1.0 + slack[2]) + slack[3]) + extra) * scale
    return np.float32(reach * reach * slack[1])


@cache
def _placed(width: int, direct: bool) -> Kernel:
    """Put row r of the block from ``start`` on where the centres' points are; its length.

    Rows are turned together, with the first of them.
    """

    @inner
    def place(rows, start, r, m, d, shift, basis, scale, together, point, full):
        places, all_turned = together
        at, own = (start + r) * d, r % ROWS
        if own == 0:
            for i in range(ROWS):
                places[i] = (start + min(r + i, m - 1)) * d
            rotate_rows(width, rows, places, shift, d, basis, all_turned)
        turned = all_turned[own * (width + 1) : (own + 1) * (width + 1)]
        square = turned[width]
        if not direct:
            rest = square
            for g in range(width - 1):
                rest -= turned[g] * turned[g]
            turned[width - 1] = np.sqrt(max(rest, 0.0))
        for f in range(d):
            full[f] = np.float32((np.float64(rows[at + f]) - shift[f]) * scale)
        for g in range(width):
            point[g] = np.float32(turned[g] * scale)
        return np.sqrt(square)

    return place


@cache
def _guessed(width: int) -> Kernel:
    """The node that no other is nearer than, and of its nearest box the nearest centre."""

    @inner
    def guess(r, n, held, nodes, points, fulls, far, out):
        _, names, _, whole, low, high, node_low, node_high = held
        step, everything = width * LANES, np.float32(np.inf)
        point = points[r * width : (r + 1) * width]
        for b in range(0, nodes.size, LANES):
            boxes_within(width, node_low, node_high, b * width, point, everything, nodes, b)
        home = _lowest(nodes.view(np.int32), nodes.size)
        # by sixteens of rows: with a row in each line every store would be to another page
        at = (r // LANES * nodes.size) * LANES + r % LANES
        for b in range(nodes.size):
            far[at + b * LANES] = nodes[b]
        far[at + home * LANES] = everything
        boxes_within(width, low, high, home * step, point, everything, out, 0)
        first = (home * LANES + _lowest(out.view(np.int32), LANES)) * LANES
        for j in range(LANES):
            out[j] = gap_square(whole, (first + j) * n, fulls, r * n, n)
        return home, np.int64(names[first + _lowest(out.view(np.int32), LANES)])

    return guess


@cache
def _met(width: int) -> Kernel:
    """Let queued rows meet a node; the distances computed in all features, and the work done."""

    @inner
    def meet(
        node, queue, begin, end, rows, start, d, n, held, placed, known, scale, slack, scratch,
        bits, costs,
    ):  # fmt: skip
        given, names, columns, whole, low, high, _, _ = held
        points, fulls, extras = placed
        bests, firsts, seconds, limits = known
        out, pairs, masks, chosen, gaps = scratch
        table, sizes = bits
        n_pairs, step = 0, width * LANES
        for q in range(begin, end):
            r = np.int64(queue[q])
            point = points[r * width : (r + 1) * width]
            mask = boxes_within(width, low, high, node * step, point, limits[r], out, 0)
            n_pairs = list_set_bits(mask, np.int32(r * LANES), pairs, n_pairs, table, sizes)
        kept, first = 0, node * LANES * step
        for p in range(n_pairs):
            code = pairs[p]
            r, box = np.int64(code >> 4), np.int64(code & 15)
            point = points[r * width : (r + 1) * width]
            mask = points_within(width, columns, first + box * step, point, limits[r], out)
            pairs[kept], masks[kept] = code, mask
            kept += mask != 0
        count = 0
        for p in range(kept):
            some, base = np.int64(masks[p]), np.int32(pairs[p] * LANES)
            count = list_set_bits(some, base, chosen, count, table, sizes)
        left, first = 0, node * LANES * LANES
        for p in range(count):
            code = chosen[p]
            r, place = np.int64(code >> 8), np.int64(code & 255)
            gap = gap_square(whole, (first + place) * n, fulls, r * n, n)
            chosen[left], gaps[left] = code, gap
            left += gap <= limits[r]
        sums = 0
        for p in range(left):
            r = np.int64(chosen[p] >> 8)
            c = np.int64(names[first + np.int64(chosen[p] & 255)])
            # the limit may have come down meanwhile
            if c == bests[r] or gaps[p] > limits[r]:
                continue
            sums += 1
            square = square_distance(rows, (start + r) * d, given, c * d, d)
            if square < firsts[r] or (square == firsts[r] and c < bests[r]):
                firsts[r], seconds[r], bests[r] = square, firsts[r], c
                limits[r] = _limit(square, extras[r], scale, slack)
            elif square < seconds[r]:
                seconds[r] = square
        work = (end - begin) * costs[1] + n_pairs * costs[2] + count * costs[3] + sums * costs[4]
        return count + sums, work

    return meet


@inner
def _by_home(homes, m, ends, order):
    """Rows of a block in the order of their nodes; those of node j end at ``ends[j + 1]``."""
    ends[:] = 0
    for r in range(m):
        ends[homes[r] + 2] += 1
    for node in range(2, ends.size):
        ends[node] += ends[node - 1]
    for r in range(m):
        # (those that have none come first, and are left out)
        order[ends[homes[r] + 1]] = r
        ends[homes[r] + 1] += 1


@inner
def _queued(node, block, m, nodes, far, limits, queue, bits):
    """From some row on queue those within whose limit a node is, until they are enough."""
    queued, (table, sizes) = 0, bits
    while block < m and queued < BATCH:
        mask = each_within(far, block * nodes.size + node * LANES, limits, block)
        queued = list_set_bits(mask, np.int32(block), queue, queued, table, sizes)
        block += LANES
    return queued, block


@njit
def _known(size):
    """Of each row the best centre, its square and the second smallest, and the limit."""
    return np.empty(size, np.int64), np.empty(size), np.empty(size), np.empty(size, np.float32)


@njit
def _scratch():
    """What rows that meet a node have left step after step."""
    most = (BATCH + 2 * LANES) * LANES
    return (
        np.empty(LANES, np.float32), np.empty(most, np.int32), np.empty(most, np.int32),
        np.empty(most * LANES, np.int32), np.empty(most * LANES, np.float32),
    )  # fmt: skip


@cache
def search(width: int, direct: bool) -> Kernel:
    """Blocks of rows one after the other; as :meth:`~.boxes.Boxes.search` says."""
    place, guess, meet = _placed(width, direct), _guessed(width), _met(width)

    @njit
    def run(
        rows, begin, end, d, shift, basis, scale, held, reach, farthest, slack, bits, costs, budget,
        labels, left,
    ):  # fmt: skip
        n, nodes = (d + LANES - 1) // LANES * LANES, np.empty(held[6].size // width, np.float32)
        n_nodes, few = held[1].size // LANES // LANES, (end - begin + LANES - 1) // LANES * LANES
        most = min(MOST_ROWS, MOST_NEAR // nodes.size) // LANES * LANES
        size = max(LANES, min(most, few))
        placed = np.empty(size * width, np.float32), np.zeros(size * n, np.float32), np.empty(size)
        # (zeros: what nobody has written is not below 0)
        far = np.zeros(size * nodes.size, np.float32)
        together = np.empty(ROWS, np.int64), np.empty(ROWS * (width + 1))
        homes, ends = np.empty(size, np.int64), np.empty(n_nodes + 2, np.int64)
        order, queue = np.empty(size, np.int32), np.empty(BATCH + 2 * LANES, np.int32)
        known, scratch = _known(size), _scratch()
        (points, fulls, extras), (bests, firsts, seconds, limits) = placed, known
        n_left, n_evaluated, work = 0, 0, 0.0
        for start in range(begin, end, size):
            m, left_before = min(size, end - start), n_left
            # no node is as near as that to rows that there are not, or that are left
            limits[:] = -1.0
            for r in range(m):
                at, point = (start + r) * d, points[r * width : (r + 1) * width]
                full = fulls[r * n : (r + 1) * n]
                length = place(rows, start, r, m, d, shift, basis, scale, together, point, full)
                homes[r] = -1
                if not length <= farthest:
                    left[n_left] = start + r
                    n_left += 1
                    continue
                homes[r], c = guess(r, n, held, nodes, points, fulls, far, scratch[0])
                bests[r], seconds[r], extras[r] = c, np.inf, slack[0] * (length + reach)
                firsts[r] = square_distance(rows, at, held[0], c * d, d)
                limits[r] = _limit(firsts[r], extras[r], scale, slack)
            work += m * (costs[0] + (nodes.size // LANES + 1) * costs[1])
            n_evaluated += m * (LANES + 1)
            _by_home(homes, m, ends, order)
            for visit in range(2 * n_nodes):
                if work >= budget:
                    return start, left_before, n_evaluated, work
                # every row's own node first: what is found there leaves less of the others open
                node, own = visit % n_nodes, visit < n_nodes
                block, last = (ends[node], ends[node + 1]) if own else (0, m)
                while block < last:
                    if own:
                        some, low, high = order, block, min(block + BATCH, last)
                        block = high
                    else:
                        high, block = _queued(node, block, m, nodes, far, limits, queue, bits)
                        some, low = queue, 0
                    met, spent = meet(
                        node, some, low, high, rows, start, d, n, held, placed, known, scale,
                        slack, scratch, bits, costs,
                    )  # fmt: skip
                    n_evaluated, work = n_evaluated + met, work + spent
            for r in range(m):
                if homes[r] < 0:
                    continue
                labels[start + r] = bests[r]
                if direct and seconds[r] <= firsts[r] * (1.0 + slack[2]) + slack[3]:
                    left[n_left] = start + r
                    n_left += 1
        return end, n_left, n_evaluated, work

    return run
