"""Compiled kernels for the search of projected centres (:class:`~.prefix.Prefix`).

A panel of rows is projected and compared with all centres in a few features, and the smallest bound
of each tile of centres is stored. The centre with the smallest bound is the row's guess; its
distance in all features gives the row's limit. Tiles whose smallest bound exceeds the limit are
skipped. In the other tiles, bounds are computed again, row by row, and the centres whose bound is
within the limit (the row's open centres) are compared in all features.

To find the two nearest centres, the limit is the larger distance of two guesses, plus the rounding
error of scores in all features. The open centres then include the two that the dense search finds.
The two nearest are chosen by the scores of the dense search or, in doubt, by its float64 sums.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache

import numpy as np

from largek_dask.kernels.dense.doubts import choose
from largek_dask.kernels.dense.doubts import margin as margin_of_score
from largek_dask.kernels.dense.panels import Dtype, Kernel, inner, pack_block
from largek_dask.kernels.emit import (
    eight_scores,
    four_near_squares,
    near_square,
    reset_winners,
    scan,
    square_distance,
    tile_within,
)
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import MINIMA, SCORES, Micro, Tile

FEATURES = 128
"""Number of features per partial sum; partial sums reduce the rounding errors of long sums."""

PrefixArrays = namedtuple("PrefixArrays", "shift directions zeros factors starts columns given")
"""Flat arrays of projected centres; `given` holds the original centres."""
Bound = namedtuple("Bound", "longest wide absolute product turned up left_out")
"""Tuple form of :class:`~largek_dask.kernels.bounds.prefix.Margin` for compiled code."""
Panel = namedtuple("Panel", "rows first m d p point norms inside minima")
Open = namedtuple("Open", "found counts hits masks most")


@cache
def _projector(tile: Tile, dtype: Dtype, lengths: int) -> Kernel:
    """Compile a function that projects a panel of rows onto the directions.

    If `lengths` is 1, squared lengths of rows are also written. They are bit-identical to those of
    the dense search.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres = tile.vectors * lanes, tile.centres
    spec, pack = Micro(centres, tile.vectors, lanes, SCORES).code, pack_block(dtype, width, lengths)

    @inner
    def project(rows, block, m, d, arrays, p, scratch, point):
        panel, spare, norms, values, labels, sums = scratch[:6]
        tiles = (p + centres - 1) // centres
        for f in range(0, d, FEATURES):
            length = min(FEATURES, d - f)
            pack(rows, block, m, d, f, length, arrays.shift, panel, 0, spare, norms, 0)
            scan(
                spec, panel, 0, arrays.directions, d, f, length, arrays.zeros, 0, tiles, values,
                labels, 0, sums, 0, rows, -1,
            )  # fmt: skip
            if f == 0:
                for q in range(p * width):
                    point[q] = sums[q]
            else:
                for q in range(p * width):
                    point[q] += sums[q]

    return project


@cache
def _measurer(dtype: Dtype, width: int) -> Kernel:
    """Compile a function that computes the lengths of rows, also outside the directions."""
    real = dtype.type

    @inner
    def measure(panel, shift, margin):
        rows, block, m, d, p, point, norms, inside, _ = panel
        inside[:] = 0.0
        for f in range(p):
            for q in range(width):
                value = np.float64(point[f * width + q])
                inside[q] += value * value
        for q in range(width):
            norms[q] = near_square(rows, (block + min(q, m - 1)) * d, shift, 0, d)
        for q in range(width):
            rest = max(norms[q] - inside[q], 0.0) + margin.left_out * norms[q]
            point[p * width + q] = real(np.sqrt(rest) * (1.0 + margin.up))

    return measure


@inner
def _border(square, norm, margin):
    """Return the maximum score of any centre within the distance ``sqrt(square)``."""
    longest, wide, absolute, product, turned, up, _ = margin
    farthest = square * (1.0 + wide) + absolute
    length = np.sqrt(norm)
    reach = min(longest, 1.01 * (length + np.sqrt(farthest)))
    score = farthest - norm + wide * norm
    score += product * reach * (reach + 2.2 * length) + turned * length * reach
    return score + up * abs(score) + absolute


@cache
def _opener(tile: Tile, dtype: Dtype, two: bool) -> Kernel:
    """Compile a function that lists, for each row, the centres whose bounds are within the limit.

    If `two` is False, the guess of a row is not listed, because its distance is already known.
    """
    width, centres = tile.vectors * tile.lanes_of(dtype.itemsize), tile.centres

    @inner
    def open_tiles(panel, arrays, limits, guesses, opened):
        found, counts, hits, masks, most = opened
        minima, point, features = panel.minima, panel.point, panel.p + 1
        n_hits = 0
        for t in range(arrays.starts.size // centres):
            within = 0  # Counting avoids a branch, so the loop is vectorized.
            for q in range(width):
                within += minima[t * width + q] <= limits[q]
            if within > 0:
                for q in range(width):
                    hits[n_hits] = t * width + q
                    n_hits += minima[t * width + q] <= limits[q]
        if n_hits > most * width:  # Compare all rows with all centres.
            for q in range(width):
                counts[q] = most + 1
            return
        # Compute all masks in a separate loop, so that no branch waits for them.
        for h in range(n_hits):
            tile, q = hits[h] // width, hits[h] % width
            masks[h] = tile_within(
                centres, point, q, width, arrays.columns, features, arrays.starts, tile * centres,
                limits[q],
            )  # fmt: skip
        for h in range(n_hits):
            tile, q = hits[h] // width, hits[h] % width
            for j in range(centres):
                c = tile * centres + j
                if masks[h] >> j & 1 and (two or c != guesses[q]) and counts[q] <= most:
                    found[q * (most + 1) + counts[q]] = c
                    counts[q] += 1

    return open_tiles


@inner
def _most_of(counts, most):
    """Return the number of remaining centres above which a row is left to the dense search."""
    total = 0
    for q in range(counts.size):
        total += counts[q] if counts[q] <= most else 0
    return most if 4 * total <= most * counts.size else most // 4


@inner
def _nearest(rows, at, whole, d, found, begin, count, guess, square, margin, squares, names, four):
    """Return the nearest of a row's guess and the listed centres; float64 sums decide near-ties."""
    best = square
    for first in range(0, count, 4):
        for j in range(4):
            names[j] = found[begin + min(first + j, count - 1)]
        four_near_squares(rows, at, whole, names, d, four)
        for j in range(min(4, count - first)):
            squares[first + j] = four[j]
            best = min(best, np.float64(four[j]))
    limit = best * (1.0 + margin.wide) + margin.absolute
    n_near, label = 0, guess
    if square <= limit:
        n_near = 1
    for j in range(count):
        if squares[j] <= limit:
            n_near += 1
            label = found[begin + j]
    if n_near == 1:
        return label
    least = np.inf
    for j in range(-1, count):
        c, own = (guess, square) if j < 0 else (found[begin + j], np.float64(squares[j]))
        if own <= limit:
            own = square_distance(rows, at, whole, np.int64(c) * d, d)
            if own < least or (own == least and c < label):
                label, least = c, own
    return label


@cache
def _least_bound(tile: Tile, dtype: Dtype) -> Kernel:
    """Compile a search for the first centre of a tile whose bound is at most `limit`."""
    width, centres = tile.vectors * tile.lanes_of(dtype.itemsize), tile.centres

    @inner
    def first_within(panel, q, arrays, c, limit):
        mask = tile_within(
            centres, panel.point, q, width, arrays.columns, panel.p + 1, arrays.starts, c, limit
        )
        while mask & 1 == 0 and mask != 0:
            mask, c = mask >> 1, c + 1
        return c

    return first_within


@cache
def _guesser(tile: Tile, dtype: Dtype, lengths: int) -> Kernel:
    """Compile a function that finds the centre with the smallest bound for each row."""
    lanes = tile.lanes_of(dtype.itemsize)
    width, centres = tile.vectors * lanes, tile.centres
    spec = Micro(centres, tile.vectors, lanes, MINIMA).code
    project, measure = _projector(tile, dtype, lengths), _measurer(dtype, width)
    first_within = _least_bound(tile, dtype)

    @inner
    def guess(panel, arrays, margin, scratch, guesses):
        rows, block, m, d, p, point, _, _, minima = panel
        starts, values, labels = arrays.starts, scratch[3], scratch[4]
        project(rows, block, m, d, arrays, p, scratch, point)
        measure(panel, arrays.shift, margin)
        reset_winners(width, 1, 0, values, labels, 0)
        scan(
            spec, point, 0, arrays.factors, p + 1, 0, p + 1, starts, 0, starts.size // centres,
            values, labels, 0, minima, 0, rows, -1,
        )  # fmt: skip
        for q in range(m):
            guesses[q] = first_within(panel, q, arrays, labels[q], values[q])

    return guess


@cache
def _other_guesser(tile: Tile, dtype: Dtype) -> Kernel:
    """Compile a function that finds a second guess for each row, outside the first guess's tile."""
    width, centres = tile.vectors * tile.lanes_of(dtype.itemsize), tile.centres
    first_within = _least_bound(tile, dtype)

    @inner
    def find(panel, arrays, guesses, others):
        minima = panel.minima
        for q in range(panel.m):
            own = guesses[q] // centres
            at = -1
            for t in range(arrays.starts.size // centres):
                if t != own and (at < 0 or minima[t * width + q] < minima[at * width + q]):
                    at = t
            others[q] = first_within(panel, q, arrays, at * centres, minima[at * width + q])

    return find


@cache
def _both(dtype: Dtype) -> Kernel:
    """Compile a function that finds the two nearest of a row's listed centres."""
    real = dtype.type

    @inner
    def choose_both(rows, at, d, arrays, form, length, found, begin, count, names, eight):
        full, openings, rounding = form
        best, second = real(np.inf), real(np.inf)
        label, other = np.int64(-1), np.int64(-1)
        for first in range(begin, begin + count, 8):
            for j in range(8):
                names[j] = found[min(first + j, begin + count - 1)]
            eight_scores(rows, at, arrays.shift, full, openings, names, d, eight)
            for j in range(min(8, begin + count - first)):
                if eight[j] < best:
                    second, other = best, label
                    best, label = eight[j], np.int64(names[j])
                elif eight[j] < second:
                    second, other = eight[j], np.int64(names[j])
        if second > best + margin_of_score(best, np.float64(length), rounding):
            return label, max(best + length, real(0)), other, max(second + length, real(0))
        label, first_square, other, second_square = choose(
            rows, at, arrays.given, d, eight, -1, real(0), found, begin, begin + count
        )
        return label, real(first_square), other, real(second_square)

    return choose_both


@cache
def search(tile: Tile, dtype: Dtype, two: bool) -> Kernel:
    """Compile the search of panels of rows; see :meth:`~.prefix.Prefix.search`.

    If `two` is True, the kernel finds the two nearest centres and their squared distances, and
    needs more than two tiles of centres.
    """
    width, centres, real = tile.vectors * tile.lanes_of(dtype.itemsize), tile.centres, dtype.type
    largest = float(np.finfo(dtype).max)
    guess, open_tiles = _guesser(tile, dtype, int(two)), _opener(tile, dtype, two)
    others_of, choose_both = _other_guesser(tile, dtype), _both(dtype)
    together = 8 if two else 4

    @njit
    def run(x, begin, end, flat, p, bounds, farthest, most, scratch, left, form, out):
        # Calls from Python are faster with plain tuples than with named tuples.
        arrays, margin = PrefixArrays(*flat), Bound(*bounds)
        n, d = x.shape
        rows, whole, n_tiles = x.reshape(n * d), arrays.given, arrays.starts.size // centres
        point, minima = np.empty((p + 1) * width, dtype), np.empty(n_tiles * width, dtype)
        norms, inside = np.empty(width), np.empty(width)
        limits, squares = np.empty(width, dtype), np.empty(width)
        guesses, others = np.empty(width, np.int32), np.empty(width, np.int32)
        found, near = np.empty(width * (most + 1), np.int32), np.empty(most + 1, dtype)
        hits, masks = np.empty(n_tiles * width + 1, np.int64), np.empty(n_tiles * width, np.uint8)
        some, names = np.empty(together, dtype), np.empty(together, np.int32)
        counts, n_left, n_evaluated = np.empty(width, np.int64), 0, 0
        opened = Open(found, counts, hits, masks, most)
        for block in range(begin, end, width):
            m = min(width, end - block)
            panel = Panel(rows, block, m, d, p, point, norms, inside, minima)
            guess(panel, arrays, margin, scratch, guesses)
            if two:
                others_of(panel, arrays, guesses, others)
            for q in range(width):
                limits[q], counts[q] = -np.inf, 0
            for q in range(m):
                at, norm = (block + q) * d, norms[q]
                square = near_square(rows, at, whole, np.int64(guesses[q]) * d, d)
                squares[q] = square
                if two:
                    square = max(square, near_square(rows, at, whole, np.int64(others[q]) * d, d))
                    square = square * (1.0 + margin.wide) + margin.absolute
                    square += margin_of_score(square - norm, norm * (1.0 + margin.wide), form[2])
                # A finite limit excludes padding centres, whose scores are infinite.
                limits[q] = real(min(_border(square, norm, margin), largest))
                if not norm <= farthest:
                    limits[q], counts[q] = -np.inf, most + 1
            open_tiles(panel, arrays, limits, guesses, opened)
            most_here = _most_of(counts, most)
            for q in range(m):
                i, first, count = block + q, q * (most + 1), counts[q]
                if count > most_here:
                    left[n_left] = i
                    n_left += 1
                    continue
                if two:
                    n_evaluated += count + 2
                    out[0][i], out[1][i], out[2][i], out[3][i] = choose_both(
                        rows, i * d, d, arrays, form, scratch[2][q], found, first, count, names,
                        some,
                    )  # fmt: skip
                else:
                    n_evaluated += count + 1
                    out[0][i] = _nearest(
                        rows, i * d, whole, d, found, first, count, guesses[q], squares[q], margin,
                        near, names, some,
                    )  # fmt: skip
        return n_left, n_evaluated

    return run
