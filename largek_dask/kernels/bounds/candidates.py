"""Search for the most probable components of each row (the candidate sets K of vc-GMM).

The rows of a group are compared with one list of components, or with all components, a panel of
rows at a time. Scores in the compute dtype only preselect components: those with the C' smallest
scores, and those whose scores exceed these by no more than the usual rounding error. The log joints
of preselected components are computed in float64 and compared with those of the row's previous
candidates, so rounding errors of scores never replace a candidate by a less probable component.

To find the C' smallest scores of a row quickly, the scores are divided into groups, and only the C'
smallest group minima are kept. At least C' scores do not exceed the largest of these minima, and
seldom many more. All of these scores are preselected.

The result for a row depends only on the row, its previous candidates and its list, not on the
panel, the tile or the other rows.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from math import isqrt
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.lists import Lists, search_converted
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.gathered import LINE, fetch_rows, load_rows
from largek_dask.kernels.dense.panels import PAD, Dtype, Kernel, inner, real_arrays, workspace_type
from largek_dask.kernels.emit import (
    as_readonly,
    four_square_distances,
    four_weighted_square_distances,
    insert_ranked,
    lane_minima,
    lanes_within,
    lowest_bit,
    prefetch,
    scan,
    square_distance,
    weighted_square_distance,
)
from largek_dask.kernels.jit import njit
from largek_dask.kernels.mixtures import PackedMixture, log_joint
from largek_dask.kernels.rows import NATIVE
from largek_dask.kernels.tile import SCORES, Micro, Tile, select_tile

BLOCK = 1024
"""Maximum number of components whose scores are stored together: 192 KB per panel of rows."""
BLOCK_VALUES = 1 << 17
"""Maximum number of values per block of components; a block fits the second-level cache."""
SPARE = 2
"""Minimum number of groups of scores, as a multiple of C', the number of candidates per row."""
GROUPED = 8
"""Divisor that sets the group size: n scores are divided into groups of about sqrt(n / GROUPED).
Larger groups leave fewer minima to rank, but more scores to search in each preselected group."""
FOUR = 4
"""Number of components whose distances to a row are computed together."""
SHARED = 4
"""Number of row panels that share a block of components if not all components fit the cache."""
USUAL = 8
"""Safety factor on the usual rounding error of scores, as in
:mod:`~largek_dask.kernels.dense.gathered`."""
_CONVERTED_VALUES = 1 << 16
_NO_LIST = readonly(np.empty(0, np.int32))
_KINDS = {"iso": 0, "isoflex": 1, "diag": 2}

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]
Floats = NDArray[np.float64]

# Named groups of kernel arguments.
Given = namedtuple("Given", "rows places own d features shift listed factors mixture")
Mixture = namedtuple("Mixture", "means precisions constants halves")
Block = namedtuple("Block", "factors starts largest first length")
Plan = namedtuple("Plan", "step group close level")
Batch = namedtuple("Batch", "at n_rows n_ahead soon n_soon")
Space = namedtuple("Space", "panel spare norms values labels scores")
Scratch = namedtuple("Scratch", "best reach limits minima found near joints row names squares")
Best = namedtuple("Best", "candidates squares")


def _within(function: Kernel) -> Kernel:
    """Inline a compiled function into its caller.

    Without inlining, passing the arrays (seven numbers each) would take as long as processing a
    row.
    """
    return njit(internal=True, refcounts=False, forceinline=True)(function)


def search_candidates(
    x: Array,
    order: Labels,
    starts: Places,
    lists: Lists,
    packed: PackedMixture,
    candidates: Labels,
    squares: Floats,
    begin: int = 0,
    end: int | None = None,
) -> int:
    """Update the candidates of grouped rows, in place.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (g + 1,)
        Rows of each group, as :func:`~.lists.order_by_label` returns them.
    lists : Lists
        Components for the rows of each group; with an empty list, only a row's previous candidates
        are evaluated.
    packed : PackedMixture
    candidates : int32 array (n, C')
        Input: each row's candidates, in any order, -1 for none. Output: of these and the list, the
        C' components with the largest log joints, in descending order; -1 where fewer are known.
        Ties go to previous candidates, then to the lowest index. A retired component is a candidate
        only if there is no other component, and then it is the only candidate.
    squares : float64 array (n, C')
        Written to: squares of the candidates (:mod:`~largek_dask.kernels.mixtures`); infinity if
        there is none.
    begin, end : int
        Search only groups ``begin .. end``, so that threads can divide the groups of a pass.

    Returns
    -------
    int
        Number of distances: rows times the lengths of their lists.
    """
    stop = len(starts) - 1 if end is None else end
    if not (x.dtype in NATIVE and x.flags.c_contiguous):
        state, groups = (candidates, squares), range(begin, stop)
        return search_converted(_search_block, x, order, starts, lists, packed, state, groups)
    first, last = int(starts[begin]), int(starts[stop])
    form, longest = packed.form, int(lists.lengths[begin:stop].max(initial=0))
    none = np.empty(0, packed.dtype)
    return _search(
        x, packed, readonly(order[first:last]), readonly(starts[begin : stop + 1] - first),
        readonly(lists.offsets[begin : stop + 1]), readonly(lists.centers),
        (readonly(form.factors.reshape(-1)), form.starts, readonly(none)), (longest, 1),
        (candidates, squares),
    )  # fmt: skip


def _search_block(*block: Any) -> int:
    return search_candidates(*block[:-1], *block[-1])


def search_components(
    x: Array,
    packed: PackedMixture,
    candidates: Labels,
    squares: Floats,
    begin: int = 0,
    end: int | None = None,
    keep: bool = True,
) -> int:
    """Update the candidates of rows ``begin .. end``, searching all components.

    The arrays are those of :func:`search_candidates`. If `keep` is False, previous candidates are
    ignored. The result is the number of distances, which is rows times components.
    """
    some = slice(begin, len(x) if end is None else end)
    rows, found, apart = x[some], candidates[some], squares[some]
    if not keep:
        found[:] = -1
    n, k = len(rows), packed.n_components
    if not (rows.dtype in NATIVE and rows.flags.c_contiguous):
        step = max(1, _CONVERTED_VALUES // packed.n_features)
        for first in range(0, n, step):
            block = np.ascontiguousarray(rows[first : first + step], packed.dtype)
            search_components(block, packed, found[first:], apart[first:], 0, len(block))
        return n * k
    form = packed.form
    largest = form.factors[:k][packed.alive, packed.n_features :].max(axis=0, initial=0)
    step, _ = _plan(k, form.factors.shape[1], candidates.shape[1])
    return _search(
        rows, packed, readonly(np.arange(n, dtype=np.int32)), readonly(np.array([0, n])),
        readonly(np.array([0, k])), _NO_LIST,
        (readonly(form.factors.reshape(-1)), form.starts, readonly(largest)),
        (k, SHARED if k > step else 1), (found, apart),
    )  # fmt: skip


def _plan(length: int, n_features: int, n_best: int) -> tuple[int, int]:
    """Return the number of components per step, and the number of scores per group.

    Both numbers, and thus the results of a search, are independent of the tile.
    """
    step = int(np.clip(BLOCK_VALUES // n_features, 64, BLOCK))
    step = max(step, SPARE * n_best) // PAD * PAD
    count = min(length, step)
    most = min(isqrt(count // GROUPED), count // (SPARE * n_best))
    return step, 1 << max(0, most.bit_length() - 1)


def _search(
    x: Array,
    packed: PackedMixture,
    order: Labels,
    starts: Places,
    offsets: Places,
    listed: Labels,
    table: tuple[Array, ...],
    sizes: tuple[int, int],
    out: tuple[Labels, Floats],
) -> int:
    """Run the kernel; `sizes` are the length of the longest list and the panels per batch."""
    if len(order) == 0:
        return 0
    longest, n_panels = sizes
    tile, dtype, d = select_tile().for_form(packed.direct), packed.dtype, packed.n_features
    width, n_best = tile.vectors * tile.lanes_of(dtype.itemsize), out[0].shape[1]
    features = packed.form.factors.shape[1]
    step, group = _plan(longest, features, n_best)
    held = min(-(-max(longest, 1) // PAD) * PAD, step)
    blocks = panels.Blocking(n_panels, -(-held // (tile.centres * n_panels)), features=0)
    listed_room = longest if listed.size else 0
    space = panels.workspace(tile, dtype, False, features, blocks, (listed_room, 0))
    real, count = dtype.type, n_panels * width
    scratch = (
        np.empty(count * n_best, dtype), np.empty(count, dtype), np.empty(count, dtype),
        np.empty(held * width, dtype), np.empty(width, np.int32),
        np.empty((held + LINE) * width, np.int32), np.empty(n_best), np.empty(d, dtype),
        np.empty(n_best + FOUR, np.int32), np.empty(n_best + FOUR), np.empty(features - d, dtype),
    )  # fmt: skip
    # Repeat the last row, because panels have full width. The final numbers are lanes, for rows
    # that were converted into a buffer.
    places = np.concatenate([order, np.full(width, order[-1]), np.arange(width)])
    close = USUAL * float(np.finfo(dtype).eps) / 2 * float(np.sqrt(features))
    form = packed.form
    flat = packed.means.reshape(-1), packed.precisions.reshape(-1)
    mixture = tuple(map(readonly, (*flat, packed.constants, packed.halves)))
    run = _kernel(tile, dtype, x.dtype, _KINDS[packed.covariance], packed.direct)
    total: int = run(
        readonly(x), readonly(places.astype(np.int32)), starts, offsets, listed, form.offsets,
        *table, mixture, space, scratch, n_panels, step, group, real(close), real(form.level), *out,
    )  # fmt: skip
    return total


@cache
def _loader(dtype: Dtype, stored: Dtype, width: int, kind: int, direct: int) -> Kernel:
    """Compile a function that loads a panel of rows with extra features and squared lengths."""
    load, side, real = load_rows(dtype, stored, width, direct > 0), 32 // dtype.itemsize, dtype.type

    @inner
    def few(rows, places, at, d, shift, panel, norms):
        """Load rows with few features one by one; a whole block would read beyond the last row."""
        for q in range(width):
            i = np.int64(places[at + q]) * d
            norms[q] = 0
            for f in range(d):
                value = real(rows[i + f]) - shift[f]
                panel[f * width + q] = value
                norms[q] += value * value

    @inner
    def rows_of(rows, places, at, d, shift, panel, norms, spare, own):
        if d < side and not direct:
            few(rows, places, at, d, shift, panel, norms)
        else:
            load(rows, places, at, d, shift, panel, norms, spare, own)
        for q in range(width):
            if direct:
                norms[q] = 0
            elif kind == 1:
                panel[d * width + q] = norms[q]
        if kind == 2:
            for i in range(d * width):
                panel[d * width + i] = panel[i] * panel[i]

    return rows_of


@cache
def _scorer(tile: Tile, dtype: Dtype, vectors: int, direct: int) -> Kernel:
    lanes = tile.lanes_of(dtype.itemsize)
    # A narrow panel needs more centres at a time to hide latency.
    centres = PAD if vectors == 1 and not direct else tile.centres
    spec = Micro(centres, vectors, lanes, SCORES, direct).code

    @_within
    def score(space, panel_at, block, features, first, count):
        n_tiles = (count + centres - 1) // centres
        if n_tiles > 0:
            scan(
                spec, space.panel, panel_at, block.factors, features, 0, features, block.starts,
                first, n_tiles, space.values, space.labels, 0, space.scores, 0, space.scores, -1,
            )  # fmt: skip

    return score


@cache
def _fetchers(dtype: Dtype, stored: Dtype) -> tuple[Kernel, Kernel]:
    """Compile two functions that prefetch rows with their candidates, and listed components."""
    call, line = fetch_rows(stored), LINE // dtype.itemsize

    @_within
    def ask(given, begin, end, candidates, squares, n_best):
        call(given.rows, given.places, begin, end, given.d)
        for q in range(begin, end):
            i = np.int64(given.places[q]) * n_best
            prefetch(candidates, i)
            prefetch(candidates, i + n_best - 1)
            prefetch(squares, i)
            prefetch(squares, i + n_best - 1)

    @_within
    def ask_listed(given, begin, end):
        for e in range(begin, end):
            c = np.int64(given.listed[e])
            for f in range(0, given.features, line):
                prefetch(given.factors, c * given.features + f)
            for f in range(0, given.d, line):
                prefetch(given.mixture.means, c * given.d + f)

    return ask, ask_listed


@cache
def _ranker(width: int) -> Kernel:
    """Compile a function that finds, for each row, the smallest minima of groups of scores."""

    @_within
    def rank(scores, count, group, minima, n_best, best, own):
        if group == 1:
            for i in range(count):
                insert_ranked(width, scores, i * width, n_best, best, own)
            return
        for g in range((count + group - 1) // group):
            first = g * group
            lane_minima(width, scores, first * width, min(group, count - first), minima, g * width)
            insert_ranked(width, minima, g * width, n_best, best, own)

    return rank


@cache
def _picker(width: int) -> Kernel:
    """Compile a function that lists, for each row, the scores up to the row's limit."""
    one = np.uint64(1)

    @_within
    def pick(scores, count, group, scratch, m, room):
        minima, limits, near, found = scratch.minima, scratch.limits, scratch.near, scratch.found
        for q in range(width):
            found[q] = 0
        for g in range((count + group - 1) // group):
            first = g * group
            mask = lanes_within(width, minima if group > 1 else scores, g * width, limits)
            while mask != 0:
                q = lowest_bit(mask)
                mask &= mask - one
                if q >= m:
                    break
                own, limit = q * room, limits[q]
                if group == 1:
                    near[own + found[q]] = g
                    found[q] += 1
                    continue
                for i in range(first, min(first + group, count)):
                    near[own + found[q]] = i
                    found[q] += not scores[i * width + q] > limit

    return pick


@_within
def _insert(c, square, before, mixture, best, joints, kept):
    """Insert a component into a row's candidates, sorted by log joint; return their number."""
    candidates, squares, n_best = best.candidates, best.squares, best.candidates.size
    if mixture.constants[c] == -np.inf and kept > 0:
        return kept
    if kept == 1 and mixture.constants[candidates[0]] == -np.inf:
        kept = 0  # drop the only candidate, a retired component
    joint = log_joint(mixture.constants[c], mixture.halves[c], square)
    if kept == n_best:
        last = joints[n_best - 1]
        if joint < last or (joint == last and not (before and c < candidates[n_best - 1])):
            return kept
        kept -= 1
    g = kept
    while g > 0:
        other = joints[g - 1]
        if joint < other or (joint == other and not (before and c < candidates[g - 1])):
            break
        candidates[g], squares[g], joints[g] = candidates[g - 1], squares[g - 1], other
        g -= 1
    candidates[g], squares[g], joints[g] = c, square, joint
    return kept + 1


@_within
def _among(candidates, kept, c):
    found = False
    for r in range(kept):
        found |= candidates[r] == c
    return found


@cache
def _squarer(weighted: bool) -> Kernel:
    """Compile a function that computes distances of a row to components, four at a time."""

    @_within
    def squares_of(rows, at, d, mixture, names, count, squares):
        means, precisions = mixture.means, mixture.precisions
        for p in range(0, count, FOUR):
            if count - p == 1:
                c = np.int64(names[p]) * d
                if weighted:
                    squares[p] = weighted_square_distance(rows, at, means, c, precisions, c, d)
                else:
                    squares[p] = square_distance(rows, at, means, c, d)
                return
            for q in range(count, p + FOUR):
                names[q] = names[p]
            four, out = names[p : p + FOUR], squares[p : p + FOUR]
            if weighted:
                four_weighted_square_distances(rows, at, means, precisions, four, d, out)
            else:
                four_square_distances(rows, at, means, four, d, out)

    return squares_of


@cache
def _meeter(weighted: bool) -> Kernel:
    """Compile a function that inserts preselected components into a row's candidates."""
    squares_of = _squarer(weighted)

    @_within
    def meet(rows, at, given, block, begin, near_at, found, scratch, best):
        d, mixture, listed, joints = given.d, given.mixture, given.listed, scratch.joints
        candidates, names, first = best.candidates, scratch.names, block.first + begin
        n_best, kept, count = candidates.size, 0, 0
        if begin == 0:
            for r in range(n_best):
                if candidates[r] >= 0 and not _among(names, count, candidates[r]):
                    names[count] = candidates[r]
                    count += 1
            squares_of(rows, at, d, mixture, names, count, scratch.squares)
            for r in range(count):
                c, square = np.int64(names[r]), scratch.squares[r]
                kept = _insert(c, square, True, mixture, best, joints, kept)
        else:
            while kept < n_best and candidates[kept] >= 0:
                c, square = candidates[kept], best.squares[kept]
                joints[kept] = log_joint(mixture.constants[c], mixture.halves[c], square)
                kept += 1
        count = 0
        for p in range(found):
            name = np.int64(scratch.near[near_at + p])
            c = np.int64(listed[first + name]) if listed.size > 0 else first + name
            if not _among(candidates, kept, c):
                names[count] = c
                count += 1
            if count == FOUR or p == found - 1:
                squares_of(rows, at, d, mixture, names, count, scratch.squares)
                for r in range(count):
                    c, square = np.int64(names[r]), scratch.squares[r]
                    kept = _insert(c, square, False, mixture, best, joints, kept)
                count = 0
        for r in range(kept, n_best):
            candidates[r], best.squares[r] = -1, np.inf

    return meet


@cache
def _taker(dtype: Dtype, stored: Dtype, kind: int) -> Kernel:
    """Compile a function that updates a row's candidates, converting the row if necessary."""
    meet, real, converts = _meeter(kind == 2), dtype.type, stored != dtype

    @_within
    def take(given, i, block, begin, near_at, found, scratch, best):
        if converts:
            own = given.rows[i * given.d :]
            for f in range(given.d):
                scratch.row[f] = real(own[f])
            meet(scratch.row, 0, given, block, begin, near_at, found, scratch, best)
        else:
            meet(given.rows, i * given.d, given, block, begin, near_at, found, scratch, best)

    return take


@cache
def _batch(tile: Tile, dtype: Dtype, stored: Dtype, vectors: int, kind: int, direct: int) -> Kernel:
    """Compile the search of a group's list of components for a few panels of the group's rows."""
    width, real = vectors * tile.lanes_of(dtype.itemsize), dtype.type
    rows_of = _loader(dtype, stored, width, kind, direct)
    score, (ask, ask_listed) = _scorer(tile, dtype, vectors, direct), _fetchers(dtype, stored)
    rank, pick, take = _ranker(width), _picker(width), _taker(dtype, stored, kind)

    @_within
    def prepare(given, at, block, panel, space, scratch, n_best, p):
        best, reach, norms, d, features = (
            scratch.best, scratch.reach, space.norms, given.d, given.features,
        )  # fmt: skip
        rows_of(given.rows, given.places, at + p, d, given.shift, panel, norms, space.spare,
                given.own)  # fmt: skip
        for q in range(width * n_best):
            best[p * n_best + q] = real(np.inf)
        for q in range(width):
            reach[p + q] = norms[q] if kind == 0 else real(0)
        for f in range(d, features):
            for q in range(width):
                reach[p + q] += block.largest[f - d] * panel[f * width + q]

    @inner
    def batch(given, block, batch, plan, space, scratch, out):
        at, m, scores = batch.at, batch.n_rows, space.scores
        best, reach, found = scratch.best, scratch.reach, scratch.found
        features, n_best = given.features, out.candidates.shape[1]
        known = out.candidates.reshape(out.candidates.size)
        known_squares = out.squares.reshape(out.squares.size)
        room = scratch.near.size // found.size
        # Prefetch the next rows gradually, because a core allows few outstanding reads.
        ahead, last_ahead, share = at + m, at + m + batch.n_ahead, (batch.n_ahead + m - 1) // m
        soon, last_soon = batch.soon, batch.soon + batch.n_soon
        share_soon = (batch.n_soon + m - 1) // m
        for p in range(0, m, width):
            prepare(given, at, block, space.panel[p * features :], space, scratch, n_best, p)
        for b in range(0, max(block.length, 1), plan.step):
            count = min(plan.step, block.length - b)
            for p in range(0, m, width):
                score(space, p * features, block, features, b, count)
                rank(scores, count, plan.group, scratch.minima, n_best, best, p * n_best)
                last = (p + width) * n_best - width
                for q in range(width):
                    limit = best[last + q]
                    usual = real(2) * reach[p + q] + abs(limit) + plan.level
                    scratch.limits[q] = limit + plan.close * usual
                n_rows = min(width, m - p)
                pick(scores, count, plan.group, scratch, n_rows, room)
                for q in range(n_rows):
                    i = np.int64(given.places[at + p + q])
                    if b == 0 and ahead < last_ahead:
                        following = min(ahead + share, last_ahead)
                        ask(given, ahead, following, known, known_squares, n_best)
                        ahead = following
                    if b == 0 and soon < last_soon:
                        following = min(soon + share_soon, last_soon)
                        ask_listed(given, soon, following)
                        soon = following
                    if b == 0 or found[q] > 0:
                        own = Best(out.candidates[i], out.squares[i])
                        take(given, i, block, b, q * room, found[q], scratch, own)

    return batch


@cache
def _copy_list(dtype: Dtype) -> Kernel:
    @inner
    def copy(listed, first, length, d, features, factors, starts, copies, openings, largest):
        for e in range(features - d):
            largest[e] = 0
        for m in range(length):
            c = np.int64(listed[first + m])
            openings[m] = starts[c]
            # Use slices: numba would emit slow gathers for indices that might be negative.
            own, out = factors[c * features :], copies[m * features :]
            for f in range(features):
                out[f] = own[f]
            if starts[c] < np.inf:
                for e in range(features - d):
                    largest[e] = max(largest[e], factors[c * features + d + e])
        for m in range(length, (length + PAD - 1) // PAD * PAD):
            openings[m] = np.inf
            for f in range(features):
                copies[m * features + f] = 0

    return copy


@cache
def _kernel(tile: Tile, dtype: Dtype, stored: Dtype, kind: int, direct: int) -> Kernel:
    """Compile the search of each group's list of components.

    If `listed` is empty, there is one group, whose rows are compared with all components; `largest`
    then holds the largest factor of each extra feature.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    # Use the wide panel only if the rows need all of its vectors.
    thin = max(1, 32 // dtype.itemsize // lanes)
    width, least, few = tile.vectors * lanes, thin * lanes, (tile.vectors - 1) * lanes
    wide = _batch(tile, dtype, stored, tile.vectors, kind, direct)
    narrow = _batch(tile, dtype, stored, thin, kind, direct)
    copy = _copy_list(dtype)

    @njit(_signature(dtype, stored), refcounts=False)
    def run(
        x, places, starts, offsets, listed, shift, factors, openings, largest, mixture, space,
        scratch, n_panels, step, group, close, level, candidates, squares,
    ):  # fmt: skip
        n, d = x.shape
        total, n_evaluated = starts[starts.size - 1], 0
        panel, spare, norms, values, labels, scores, copies, copied, _ = space
        best, reach, limits, minima, found, near, joints, row, names, apart, more = scratch
        features = d + more.size
        means, precisions, constants, halves = mixture
        given = Given(
            x.reshape(n * d), places, places.size - width, d, features, shift, listed, factors,
            Mixture(means, precisions, constants, halves),
        )  # fmt: skip
        plan, out = Plan(step, group, close, level), Best(candidates, squares)
        room = Space(panel, spare, norms, values, labels, scores)
        held = Scratch(best, reach, limits, minima, found, near, joints, row, names, apart)
        for j in range(starts.size - 1):
            at, last = starts[j], starts[j + 1]
            if at == last:
                continue
            first, length = offsets[j], offsets[j + 1] - offsets[j]
            n_evaluated += (last - at) * length
            block = Block(factors, openings, largest, first, length)
            if listed.size > 0 or length == 0:
                copy(listed, first, length, d, features, factors, openings, copies, copied, more)
                block = Block(
                    as_readonly(copies), as_readonly(copied), as_readonly(more), first, length
                )
            following = j + 1
            while following < starts.size - 1 and starts[following] == starts[following + 1]:
                following += 1
            while at < last:
                m = last - at
                m = min(m, n_panels * width) if m > few else min(m, least)
                n_ahead = min(width, total - at - m)
                soon, n_soon = 0, 0
                if listed.size > 0 and at + m == last and following < starts.size - 1:
                    soon, n_soon = offsets[following], offsets[following + 1] - offsets[following]
                some = Batch(at, m, n_ahead, soon, n_soon)
                if m > few:
                    wide(given, block, some, plan, room, held, out)
                else:
                    narrow(given, block, some, plan, room, held, out)
                at += m
        return n_evaluated

    return run


def _signature(dtype: Dtype, stored: Dtype) -> tuple[Any, ...]:
    integers, places = (
        types.Array(kind, 1, "C", readonly=True) for kind in (types.int32, types.int64)
    )
    real, flat = numba.from_dtype(dtype), types.Array(numba.from_dtype(dtype), 1, "C")
    (given,), (vector,) = real_arrays(stored, 2), real_arrays(dtype, 1)
    floats = types.Array(types.float64, 1, "C", readonly=True)
    numbers = types.Array(types.int32, 1, "C")
    doubles, squares = (types.Array(types.float64, n, "C") for n in (1, 2))
    scratch = (flat,) * 4 + (numbers, numbers, doubles, flat, numbers, doubles, flat)
    return (
        given, integers, places, places, integers, *[vector] * 4,
        types.Tuple((vector, floats, floats, floats)), workspace_type(dtype), types.Tuple(scratch),
        *[types.int64] * 3, real, real, types.Array(types.int32, 2, "C"), squares,
    )  # fmt: skip
