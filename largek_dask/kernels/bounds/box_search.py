"""Compiled kernels that search boxes of centres for blocks of rows.

Each row starts with a guess: the nearest centre of a box in the node nearest to the row. The nodes
are then searched one after the other. Each node is searched for all rows whose limit reaches the
node, so the node stays in the cache. Each step is a loop over the pairs that the previous step did
not exclude: first boxes are compared, then their centres in few coordinates, then the remaining
centres in all features. Searching row by row took twice as long, because branches were
unpredictable and had to wait for each other.
"""

from __future__ import annotations

from collections import namedtuple
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

LANES = 16
"""Number of centres per box, and of boxes per node."""
MOST_ROWS = 1_024
"""Maximum number of rows per block; a 32-bit code holds a row and a centre of a node."""
MOST_NEAR = 1 << 17
"""Maximum number of row-to-node distances that are stored for a block."""
BATCH = 64
"""Approximate number of rows that are compared with a node together."""

_numbers = np.zeros((256, 8), np.int32)
for _byte in range(256):
    _set = [bit for bit in range(8) if _byte >> bit & 1]
    _numbers[_byte, : len(_set)] = _set
BITS = readonly(_numbers.ravel()), readonly(np.array([b.bit_count() for b in range(256)], np.int32))
"""Lookup tables for bytes: positions of the set bits (8 entries per byte), and their number."""


BoxArrays = namedtuple("BoxArrays", "given names columns whole low high node_low node_high")
"""Arrays of centres and of the corners of boxes and nodes, in interleaved groups of sixteen."""
Costs = namedtuple("Costs", "row boxes points whole sums")
"""Costs of a row, a test of 16 boxes or of 16 points, and a float32 and a float64 distance."""
Reach = namedtuple("Reach", "share stretch wide absolute")
"""Tuple form of :class:`~largek_dask.kernels.bounds.boxes.Slack` for compiled code."""
Block = namedtuple("Block", "rows start d n points fulls extras")
Best = namedtuple("Best", "labels squares seconds limits")


@inner
def _lowest(values, count):
    """Return the index of the smallest of several non-negative floats, viewed as integers."""
    least = values[0]
    for p in range(count):
        least = min(least, values[p])
    at = 0
    while values[at] != least:
        at += 1
    return at


@inner
def _limit(square, extra, scale, slack):
    """Return the squared distance between stored points beyond which no centre can be nearest."""
    reach = (np.sqrt(square * (1.0 + slack.wide) + slack.absolute) + extra) * scale
    return np.float32(reach * reach * slack.stretch)


@cache
def _placer(width: int, direct: bool) -> Kernel:
    """Compile a function that computes the coordinates of row r and returns the row's length."""

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
def _guesser(width: int) -> Kernel:
    """Compile a function that finds a row's nearest node, and a nearby centre as a first guess."""

    @inner
    def guess(r, n, held, nodes, points, fulls, far, out):
        step, everything = width * LANES, np.float32(np.inf)
        point = points[r * width : (r + 1) * width]
        for b in range(0, nodes.size, LANES):
            boxes_within(
                width, held.node_low, held.node_high, b * width, point, everything, nodes, b
            )
        home = _lowest(nodes.view(np.int32), nodes.size)
        # Groups of sixteen rows are interleaved; otherwise every store would touch another page.
        at = (r // LANES * nodes.size) * LANES + r % LANES
        for b in range(nodes.size):
            far[at + b * LANES] = nodes[b]
        far[at + home * LANES] = everything
        boxes_within(width, held.low, held.high, home * step, point, everything, out, 0)
        first = (home * LANES + _lowest(out.view(np.int32), LANES)) * LANES
        for j in range(LANES):
            out[j] = gap_square(held.whole, (first + j) * n, fulls, r * n, n)
        return home, np.int64(held.names[first + _lowest(out.view(np.int32), LANES)])

    return guess


@cache
def _meeter(width: int) -> Kernel:
    """Compile the search of a node for queued rows; it returns the distance count and the work."""

    @inner
    def meet(node, queue, begin, end, block, held, best, scale, slack, scratch, bits, costs):
        points, fulls, n, limits = block.points, block.fulls, block.n, best.limits
        out, pairs, masks, chosen, gaps = scratch
        table, sizes = bits
        n_pairs, step = 0, width * LANES
        for q in range(begin, end):
            r = np.int64(queue[q])
            point = points[r * width : (r + 1) * width]
            mask = boxes_within(width, held.low, held.high, node * step, point, limits[r], out, 0)
            n_pairs = list_set_bits(mask, np.int32(r * LANES), pairs, n_pairs, table, sizes)
        kept, first = 0, node * LANES * step
        for p in range(n_pairs):
            code = pairs[p]
            r, box = np.int64(code >> 4), np.int64(code & 15)
            point = points[r * width : (r + 1) * width]
            mask = points_within(width, held.columns, first + box * step, point, limits[r], out)
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
            gap = gap_square(held.whole, (first + place) * n, fulls, r * n, n)
            chosen[left], gaps[left] = code, gap
            left += gap <= limits[r]
        sums = 0
        for p in range(left):
            r = np.int64(chosen[p] >> 8)
            c = np.int64(held.names[first + np.int64(chosen[p] & 255)])
            # The limit may have decreased since the pair was listed.
            if c == best.labels[r] or gaps[p] > limits[r]:
                continue
            sums += 1
            at = (block.start + r) * block.d
            square = square_distance(block.rows, at, held.given, c * block.d, block.d)
            before = best.squares[r]
            if square < before or (square == before and c < best.labels[r]):
                best.squares[r], best.seconds[r], best.labels[r] = square, before, c
                limits[r] = _limit(square, block.extras[r], scale, slack)
            elif square < best.seconds[r]:
                best.seconds[r] = square
        work = (end - begin) * costs.boxes + n_pairs * costs.points
        return count + sums, work + count * costs.whole + sums * costs.sums

    return meet


@inner
def _by_home(homes, m, ends, order):
    """Sort a block's rows by their nearest node; the rows of node j end at ``ends[j + 1]``."""
    ends[:] = 0
    for r in range(m):
        ends[homes[r] + 2] += 1
    for node in range(2, ends.size):
        ends[node] += ends[node - 1]
    for r in range(m):
        # Rows without a node come first; they are not searched.
        order[ends[homes[r] + 1]] = r
        ends[homes[r] + 1] += 1


@inner
def _fill_queue(node, block, m, n_nodes, far, limits, queue, bits):
    """Queue about `BATCH` rows whose search limit reaches a node, starting at row ``block``."""
    queued, (table, sizes) = 0, bits
    while block < m and queued < BATCH:
        mask = each_within(far, block * n_nodes + node * LANES, limits, block)
        queued = list_set_bits(mask, np.int32(block), queue, queued, table, sizes)
        block += LANES
    return queued, block


@njit
def _new_scratch():
    most = (BATCH + 2 * LANES) * LANES
    return (
        np.empty(LANES, np.float32), np.empty(most, np.int32), np.empty(most, np.int32),
        np.empty(most * LANES, np.int32), np.empty(most * LANES, np.float32),
    )  # fmt: skip


@cache
def search(width: int, direct: bool) -> Kernel:
    """Compile the search of boxes for blocks of rows; see :meth:`~.boxes.Boxes.search`."""
    place, guess, meet = _placer(width, direct), _guesser(width), _meeter(width)

    @njit
    def run(
        rows, begin, end, d, shift, basis, scale, arrays, reach, farthest, bounds, bits, works,
        budget, labels, left,
    ):  # fmt: skip
        # Calls from Python are faster with plain tuples than with named tuples.
        held, slack, costs = BoxArrays(*arrays), Reach(*bounds), Costs(*works)
        n = (d + LANES - 1) // LANES * LANES
        nodes = np.empty(held.node_low.size // width, np.float32)
        n_nodes, few = held.names.size // LANES // LANES, (end - begin + LANES - 1) // LANES * LANES
        most = min(MOST_ROWS, MOST_NEAR // nodes.size) // LANES * LANES
        size = max(LANES, min(most, few))
        points, fulls = np.empty(size * width, np.float32), np.zeros(size * n, np.float32)
        extras = np.empty(size)
        # Entries that are never written must exceed the padding limit of -1.
        far = np.zeros(size * nodes.size, np.float32)
        together = np.empty(ROWS, np.int64), np.empty(ROWS * (width + 1))
        homes, ends = np.empty(size, np.int64), np.empty(n_nodes + 2, np.int64)
        order, queue = np.empty(size, np.int32), np.empty(BATCH + 2 * LANES, np.int32)
        scratch = _new_scratch()
        limits = np.empty(size, np.float32)
        best = Best(np.empty(size, np.int64), np.empty(size), np.empty(size), limits)
        n_left, n_evaluated, work = 0, 0, 0.0
        for start in range(begin, end, size):
            m, left_before = min(size, end - start), n_left
            block = Block(rows, start, d, n, points, fulls, extras)
            # A limit of -1 excludes all nodes, for padding rows and rows left to the dense search.
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
                best.labels[r], best.seconds[r] = c, np.inf
                extras[r] = slack.share * (length + reach)
                best.squares[r] = square_distance(rows, at, held.given, c * d, d)
                limits[r] = _limit(best.squares[r], extras[r], scale, slack)
            work += m * (costs.row + (nodes.size // LANES + 1) * costs.boxes)
            n_evaluated += m * (LANES + 1)
            _by_home(homes, m, ends, order)
            for visit in range(2 * n_nodes):
                if work >= budget:
                    return start, left_before, n_evaluated, work
                # Search each row's nearest node first, which lowers limits and excludes more nodes.
                node, own = visit % n_nodes, visit < n_nodes
                at, last = (ends[node], ends[node + 1]) if own else (0, m)
                while at < last:
                    if own:
                        some, low, high = order, at, min(at + BATCH, last)
                        at = high
                    else:
                        high, at = _fill_queue(node, at, m, nodes.size, far, limits, queue, bits)
                        some, low = queue, 0
                    met, spent = meet(
                        node, some, low, high, block, held, best, scale, slack, scratch, bits, costs
                    )
                    n_evaluated, work = n_evaluated + met, work + spent
            for r in range(m):
                if homes[r] < 0:
                    continue
                labels[start + r], square = best.labels[r], best.squares[r]
                if direct and best.seconds[r] <= square * (1.0 + slack.wide) + slack.absolute:
                    left[n_left] = start + r
                    n_left += 1
        return end, n_left, n_evaluated, work

    return run
