"""The most probable components of every row: its candidates, those of vc-GMM's sets K.

Rows that have something in common meet one list of components on the register tile, a panel of
them at a time, as in :mod:`~largek_dask.kernels.dense.gathered`, or all components. Scores only
select: of every row the C' with the smallest ones, and those whose scores are not
farther above than rounding usually makes them. The log joints of these are computed in the direct
form, in float64, and compared with those of the row's previous candidates, so that none of these is
ever lost to rounding or to a tie.

Finding the C' smallest of many scores is cheap if few are visited more than once: of
every lane the C' smallest minima of blocks of scores are kept, without their components. The
largest is a limit that at least C' scores do not exceed, and seldom many more; those are picked.

Results depend on the row, its previous candidates, and its list alone: neither on the panel
and the tile that the row meets them in, nor on the rows around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.lists import Lists
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.gathered import LINE, bare, fetch_rows, load_rows
from largek_dask.kernels.dense.panels import PAD, Dtype, Kernel, real_arrays, workspace_type
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

__all__ = ["search_candidates", "search_components"]

BLOCK = 1024
"""Maximum components whose scores are held at a time: with a panel of rows 192 KB."""
BLOCK_VALUES = 1 << 17
"""Numbers of the components of a block, at most: within the second-level cache."""
SPARE = 2
"""Scores are put into at least this many groups times C', so that few are within the limit."""
GROUPED = 8
"""Groups are of sqrt(n / GROUPED) of n scores: of larger ones there are fewer to rank, but each
that is picked has more scores to search."""
FOUR = 4
"""Components whose squares are computed side by side."""
SHARED = 4
"""Panels of rows that meet a block of components if not all stay in cache."""
USUAL = 8
"""As in :mod:`~largek_dask.kernels.dense.gathered`: more than usual errors of scores."""
_CONVERTED_VALUES = 1 << 16
_NO_LIST = readonly(np.empty(0, np.int32))
_KINDS = {"iso": 0, "isoflex": 1, "diag": 2}

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]
Floats = NDArray[np.float64]


def _within(function: Kernel) -> Kernel:
    """Compile a function into its caller.

    Otherwise its arrays, seven numbers each, are passed, which takes as long as the work on a row.
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
        ``order[starts[j] : starts[j + 1]]`` are the rows of group j, as
        :func:`~.lists.order_by_label` gives them.
    lists : Lists
        List of each group's rows; with an empty list they only meet their candidates again.
    packed : PackedMixture
    candidates : int32 array (n, C')
        In: each row's candidates, in any order, -1 for none. Out: the C' with the largest log
        joints of these and of the list, in that order; -1 where fewer are known. Ties: a candidate
        before stays before others, then the lowest index. A retired component is taken only if
        there is no other, alone.
    squares : float64 array (n, C')
        Written to: squares of the candidates (:mod:`~largek_dask.kernels.mixtures`), computed
        again; infinity if there is none.
    begin, end : int
        Only groups ``begin .. end``: threads share a pass by groups.

    Returns
    -------
    int
        Distances by the plan: rows times the length of their list.
    """
    _check(x, packed, candidates, squares)
    stop = len(starts) - 1 if end is None else end
    if not (x.dtype in NATIVE and x.flags.c_contiguous):
        groups = range(begin, stop)
        return _search_converted(x, order, starts, lists, packed, (candidates, squares), groups)
    first, last = int(starts[begin]), int(starts[stop])
    form, longest = packed.form, int(lists.lengths[begin:stop].max(initial=0))
    none = np.empty(0, packed.dtype)
    return _search(
        x, packed, readonly(order[first:last]), readonly(starts[begin : stop + 1] - first),
        readonly(lists.offsets[begin : stop + 1]), readonly(lists.centers),
        (readonly(form.factors.reshape(-1)), form.starts, readonly(none)), (longest, 1),
        (candidates, squares),
    )  # fmt: skip


def search_components(
    x: Array,
    packed: PackedMixture,
    candidates: Labels,
    squares: Floats,
    begin: int = 0,
    end: int | None = None,
    keep: bool = True,
) -> int:
    """Update the candidates of rows ``begin .. end``, with all components as their list.

    Parameters
    ----------
    x : array (n, d)
    packed : PackedMixture
    candidates, squares : arrays (n, C')
        As :func:`search_candidates`.
    begin, end : int
    keep : bool
        False: ignore previous `candidates`.

    Returns
    -------
    int
        Distances: rows times components.
    """
    _check(x, packed, candidates, squares)
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
    return _search(
        rows, packed, readonly(np.arange(n, dtype=np.int32)), readonly(np.array([0, n])),
        readonly(np.array([0, k])), _NO_LIST,
        (readonly(form.factors.reshape(-1)), form.starts, readonly(largest)),
        (k, SHARED if k > _plan(k, form.factors.shape[1], candidates.shape[1]).step else 1),
        (found, apart),
    )  # fmt: skip


def _check(x: Array, packed: PackedMixture, candidates: Labels, squares: Floats) -> None:
    """Refuse arrays that do not fit."""
    if x.ndim != 2 or x.shape[1] != packed.n_features:
        raise ParameterError(
            f"rows must have {packed.n_features} features like the means, got shape {x.shape}."
        )
    for name, table, dtype in (("candidates", candidates, "int32"), ("squares", squares, "f8")):
        if table.dtype != dtype or table.ndim != 2 or not table.flags.c_contiguous:
            raise ParameterError(f"{name} must be a C-ordered {np.dtype(dtype)} table.")
    if candidates.shape != squares.shape or candidates.shape[1] < 1 or len(candidates) < len(x):
        raise ParameterError(
            f"candidates and squares must have a row for each of {len(x)} rows, got shapes "
            f"{candidates.shape} and {squares.shape}."
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Blocking of a list. It does not depend on the tile, and so no bit does."""

    step: int
    """Components whose scores are held at a time."""
    group: int
    """Scores of which only the smallest is ranked."""


def _plan(length: int, n_features: int, n_best: int) -> _Plan:
    step = int(np.clip(BLOCK_VALUES // n_features, 64, BLOCK))
    step = max(step, SPARE * n_best) // PAD * PAD
    count = min(length, step)
    most = min(isqrt(count // GROUPED), count // (SPARE * n_best))
    return _Plan(step, 1 << max(0, most.bit_length() - 1))


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
    """Search groups of rows by their lists; `sizes` are the longest list and panels per batch."""
    if len(order) == 0:
        return 0
    longest, n_panels = sizes
    tile, dtype, d = select_tile().for_form(packed.direct), packed.dtype, packed.n_features
    width, n_best = tile.vectors * tile.lanes_of(dtype.itemsize), out[0].shape[1]
    features = packed.form.factors.shape[1]
    plan = _plan(longest, features, n_best)
    held = min(-(-max(longest, 1) // PAD) * PAD, plan.step)
    blocks = panels.Blocking(n_panels, -(-held // (tile.centres * n_panels)), features=0)
    listed_room = longest if listed.size else 0
    space = panels.workspace(tile, dtype, False, features, blocks, (listed_room, 0))
    real, count = dtype.type, n_panels * width
    scratch = (
        np.empty(count * n_best, dtype), np.empty(count, dtype), np.empty(count, dtype),
        np.empty(held * width, dtype), np.empty(width, np.int32),
        np.empty((held + LINE) * width, np.int32),
        np.empty(n_best), np.empty(d, dtype), np.empty(features - d, dtype),
        np.empty(n_best + FOUR, np.int32), np.empty(n_best + FOUR),
    )  # fmt: skip
    # a panel reads on beyond the last row; and rows that are converted are numbered by their lanes
    places = np.concatenate([order, np.full(width, order[-1]), np.arange(width)])
    close = USUAL * float(np.finfo(dtype).eps) / 2 * float(np.sqrt(features))
    form = packed.form
    flat = packed.means.reshape(-1), packed.precisions.reshape(-1)
    mixture = tuple(map(readonly, (*flat, packed.constants, packed.halves)))
    run = _kernel(tile, dtype, x.dtype, _KINDS[packed.covariance], packed.direct)
    total: int = run(
        readonly(x), readonly(places.astype(np.int32)), starts, offsets, listed, form.offsets,
        *table, mixture, space, scratch, n_panels, plan.step, plan.group,
        real(close), real(form.level), *out,
    )  # fmt: skip
    return total


def _search_converted(
    x: Array,
    order: Labels,
    starts: Places,
    lists: Lists,
    packed: PackedMixture,
    state: tuple[Labels, Floats],
    groups: range,
) -> int:
    """Run :func:`search_candidates` on rows that the kernel does not take, a few at a time."""
    step = max(1, _CONVERTED_VALUES // packed.n_features)
    total = 0
    for j in groups:
        own = Lists(lists.offsets[j : j + 2] - lists.offsets[j], lists.of_group(j))
        for begin in range(starts[j], starts[j + 1], step):
            rows = order[begin : min(begin + step, starts[j + 1])]
            block = np.ascontiguousarray(x[rows], packed.dtype)
            parts = state[0][rows], state[1][rows]
            everyone = np.arange(len(rows), dtype=np.int32), np.array([0, len(rows)])
            total += search_candidates(block, *everyone, own, packed, *parts)
            state[0][rows], state[1][rows] = parts
    return total


@cache
def _loader(dtype: Dtype, stored: Dtype, width: int, kind: int, direct: int) -> Kernel:
    """Compile loading a panel of rows with their further features; and bounds of their rounding."""
    load, side, real = load_rows(dtype, stored, width, direct > 0), 32 // dtype.itemsize, dtype.type

    @bare
    def few(rows, places, at, d, shift, panel, norms):
        """Load rows shorter than a transposed block, which would read beyond the last."""
        for q in range(width):
            i = np.int64(places[at + q]) * d
            norms[q] = 0
            for f in range(d):
                value = real(rows[i + f]) - shift[f]
                panel[f * width + q] = value
                norms[q] += value * value

    @bare
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
    """Compile scores of a panel and a block of components."""
    lanes = tile.lanes_of(dtype.itemsize)
    # as in `gathered`: a narrow panel needs more centres at a time
    centres = PAD if vectors == 1 and not direct else tile.centres
    spec = Micro(centres, vectors, lanes, SCORES, direct).code

    @_within
    def score(panel, panel_at, block, features, starts, first, count, scores, values, labels):
        n_tiles = (count + centres - 1) // centres
        if n_tiles > 0:
            scan(
                spec, panel, panel_at, block, features, 0, features, starts, first, n_tiles,
                values, labels, 0, scores, 0, scores, -1,
            )  # fmt: skip

    return score


@cache
def _fetcher(stored: Dtype) -> Kernel:
    """Compile prefetching of rows that are needed soon, and of their state."""
    call = fetch_rows(stored)

    @_within
    def ask(rows, places, begin, end, d, n_best, candidates, squares):
        call(rows, places, begin, end, d)
        for q in range(begin, end):
            i = np.int64(places[q]) * n_best
            prefetch(candidates, i)
            prefetch(candidates, i + n_best - 1)
            prefetch(squares, i)
            prefetch(squares, i + n_best - 1)

    return ask


@cache
def _list_fetcher(dtype: Dtype) -> Kernel:
    """Compile prefetching of components of a list that rows are to meet soon."""
    line = LINE // dtype.itemsize

    @_within
    def ask_listed(listed, begin, end, d, features, factors, means):
        for e in range(begin, end):
            c = np.int64(listed[e])
            for f in range(0, features, line):
                prefetch(factors, c * features + f)
            for f in range(0, d, line):
                prefetch(means, c * d + f)

    return ask_listed


@cache
def _ranker(width: int) -> Kernel:
    """Keep the smallest minima of groups of scores of every lane, ascending."""

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
    """Compile picking each lane's scores that do not exceed its limit, ascending."""
    one = np.uint64(1)

    @_within
    def pick(scores, count, group, minima, limits, m, near, room, found):
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
def _insert(c, square, before, constants, halves, candidates, squares, joints, kept):
    """Insert a component among the `kept` ones of a row, by log joint; return the new number."""
    if constants[c] == -np.inf and kept > 0:
        return kept
    if kept == 1 and constants[candidates[0]] == -np.inf:
        kept = 0  # a retired one stood in while there was no other
    joint = log_joint(constants[c], halves[c], square)
    n_best = candidates.size
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
    """Compile squares of a row to some components, four side by side."""

    @_within
    def squares_of(rows, at, means, precisions, names, count, d, apart):
        for p in range(0, count, FOUR):
            if count - p == 1:
                c = np.int64(names[p]) * d
                if weighted:
                    apart[p] = weighted_square_distance(rows, at, means, c, precisions, c, d)
                else:
                    apart[p] = square_distance(rows, at, means, c, d)
                return
            for q in range(count, p + FOUR):
                names[q] = names[p]
            four, out = names[p : p + FOUR], apart[p : p + FOUR]
            if weighted:
                four_weighted_square_distances(rows, at, means, precisions, four, d, out)
            else:
                four_square_distances(rows, at, means, four, d, out)

    return squares_of


@cache
def _meeter(weighted: bool) -> Kernel:
    """Compile comparing selected components with a row's candidates, by their log joints."""
    squares_of = _squarer(weighted)

    @_within
    def meet(
        rows, at, d, near, near_at, found, listed, first, opening, mixture, room, candidates,
        squares,
    ):  # fmt: skip
        means, precisions, constants, halves = mixture
        joints, names, apart = room
        n_best, kept, count = candidates.size, 0, 0
        if opening:
            for r in range(n_best):
                if candidates[r] >= 0 and not _among(names, count, candidates[r]):
                    names[count] = candidates[r]
                    count += 1
            squares_of(rows, at, means, precisions, names, count, d, apart)
            for r in range(count):
                kept = _insert(
                    np.int64(names[r]), apart[r], True, constants, halves, candidates, squares,
                    joints, kept,
                )  # fmt: skip
        else:
            while kept < n_best and candidates[kept] >= 0:
                c = candidates[kept]
                joints[kept] = log_joint(constants[c], halves[c], squares[kept])
                kept += 1
        count = 0
        for p in range(found):
            name = np.int64(near[near_at + p])
            c = np.int64(listed[first + name]) if listed.size > 0 else first + name
            if not _among(candidates, kept, c):
                names[count] = c
                count += 1
            if count == FOUR or p == found - 1:
                squares_of(rows, at, means, precisions, names, count, d, apart)
                for r in range(count):
                    kept = _insert(
                        np.int64(names[r]), apart[r], False, constants, halves, candidates,
                        squares, joints, kept,
                    )  # fmt: skip
                count = 0
        for r in range(kept, n_best):
            candidates[r], squares[r] = -1, np.inf

    return meet


@cache
def _taker(dtype: Dtype, stored: Dtype, kind: int) -> Kernel:
    """Compile taking a row, converted if it is stored otherwise, and its selected components."""
    meet, real = _meeter(kind == 2), dtype.type

    converts = stored != dtype

    @_within
    def take(
        rows, i, d, row, near, near_at, found, listed, first, opening, mixture, room, candidates,
        squares,
    ):  # fmt: skip
        if converts:
            own = rows[i * d :]
            for f in range(d):
                row[f] = real(own[f])
            meet(
                row, 0, d, near, near_at, found, listed, first, opening, mixture, room,
                candidates, squares,
            )  # fmt: skip
        else:
            meet(
                rows, i * d, d, near, near_at, found, listed, first, opening, mixture, room,
                candidates, squares,
            )  # fmt: skip

    return take


@cache
def _batch(tile: Tile, dtype: Dtype, stored: Dtype, vectors: int, kind: int, direct: int) -> Kernel:
    """Compile some panels of rows of one group against its list."""
    width, real = vectors * tile.lanes_of(dtype.itemsize), dtype.type
    rows_of, score = (
        _loader(dtype, stored, width, kind, direct),
        _scorer(tile, dtype, vectors, direct),
    )
    ask, ask_listed = _fetcher(stored), _list_fetcher(dtype)
    rank, pick, take = _ranker(width), _picker(width), _taker(dtype, stored, kind)

    @_within
    def prepare(
        rows, places, at, d, features, shift, largest, panel, norms, spare, own, n_best, best,
        best_at, reach, reach_at,
    ):  # fmt: skip
        rows_of(rows, places, at, d, shift, panel, norms, spare, own)
        for q in range(width * n_best):
            best[best_at + q] = real(np.inf)
        for q in range(width):
            reach[reach_at + q] = norms[q] if kind == 0 else real(0)
        for f in range(d, features):
            for q in range(width):
                reach[reach_at + q] += largest[f - d] * panel[f * width + q]

    @bare
    def batch(
        rows, places, at, m, n_ahead, own, d, features, shift, block, starts, largest, listed,
        first, length, step, group, close, level, mixture, space, scratch, candidates, squares,
        factors, soon, n_soon,
    ):  # fmt: skip
        panel, spare, norms, values, labels, scores, _, _, _ = space
        best, reach, limits, minima, found, near, joints, row, _, names, apart = scratch
        room_of_row = joints, names, apart
        n_best, room = candidates.shape[1], near.size // found.size
        known, known_squares = candidates.reshape(candidates.size), squares.reshape(squares.size)
        # the next rows are prefetched one by one: only so many can be waited for at once
        ahead, last_ahead, share = at + m, at + m + n_ahead, (n_ahead + m - 1) // m
        last_soon, share_soon = soon + n_soon, (n_soon + m - 1) // m
        for p in range(0, m, width):
            prepare(
                rows, places, at + p, d, features, shift, largest, panel[p * features :], norms,
                spare, own, n_best, best, p * n_best, reach, p,
            )  # fmt: skip
        for b in range(0, max(length, 1), step):
            count = min(step, length - b)
            for p in range(0, m, width):
                score(
                    panel, p * features, block, features, starts, b, count, scores, values, labels,
                )  # fmt: skip
                rank(scores, count, group, minima, n_best, best, p * n_best)
                last = (p + width) * n_best - width
                for q in range(width):
                    limit = best[last + q]
                    usual = real(2) * reach[p + q] + abs(limit) + level
                    limits[q] = limit + close * usual
                n_rows = min(width, m - p)
                pick(scores, count, group, minima, limits, n_rows, near, room, found)
                for q in range(n_rows):
                    i = np.int64(places[at + p + q])
                    if b == 0 and ahead < last_ahead:
                        following = min(ahead + share, last_ahead)
                        ask(rows, places, ahead, following, d, n_best, known, known_squares)
                        ahead = following
                    if b == 0 and soon < last_soon:
                        following = min(soon + share_soon, last_soon)
                        ask_listed(listed, soon, following, d, features, factors, mixture[0])
                        soon = following
                    if b == 0 or found[q] > 0:
                        take(
                            rows, i, d, row, near, q * room, found[q], listed, first + b, b == 0,
                            mixture, room_of_row, candidates[i], squares[i],
                        )  # fmt: skip

    return batch


@cache
def _copy_list(dtype: Dtype) -> Kernel:
    """Compile copying components of a list side by side, with starts and largest factors."""

    @bare
    def copy(listed, first, length, d, features, factors, starts, copies, openings, largest):
        for e in range(features - d):
            largest[e] = 0
        for m in range(length):
            c = np.int64(listed[first + m])
            openings[m] = starts[c]
            # (of slices: an index that might be negative is gathered)
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
    """Compile all groups of rows against their lists.

    Without any `listed` the only group meets the components themselves, whose largest factors of
    further features are `largest`.
    """
    lanes = tile.lanes_of(dtype.itemsize)
    # as in `gathered`: not narrower than a block that is transposed; one wide panel is better than
    # as many narrow ones, and not better than one less
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
        rows, total, n_evaluated = x.reshape(n * d), starts[starts.size - 1], 0
        _, _, _, _, _, _, copies, copied, _ = space
        more = scratch[8]
        features = d + more.size
        own = places.size - width
        block, block_starts, block_largest = factors, openings, largest
        for j in range(starts.size - 1):
            at, last = starts[j], starts[j + 1]
            if at == last:
                continue
            first, length = offsets[j], offsets[j + 1] - offsets[j]
            n_evaluated += (last - at) * length
            if listed.size > 0 or length == 0:
                copy(
                    listed, first, length, d, features, factors, openings, copies, copied, more
                )  # fmt: skip
                block, block_starts = as_readonly(copies), as_readonly(copied)
                block_largest = as_readonly(more)
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
                if m > few:
                    wide(
                        rows, places, at, m, n_ahead, own, d, features, shift, block, block_starts,
                        block_largest, listed, first, length, step, group, close, level, mixture,
                        space, scratch, candidates, squares, factors, soon, n_soon,
                    )  # fmt: skip
                else:
                    narrow(
                        rows, places, at, m, n_ahead, own, d, features, shift, block, block_starts,
                        block_largest, listed, first, length, step, group, close, level, mixture,
                        space, scratch, candidates, squares, factors, soon, n_soon,
                    )  # fmt: skip
                at += m
        return n_evaluated

    return run


def _signature(dtype: Dtype, stored: Dtype) -> tuple[Any, ...]:
    """Return the types of a kernel's arguments."""
    integers, places = (
        types.Array(kind, 1, "C", readonly=True) for kind in (types.int32, types.int64)
    )
    real, flat = numba.from_dtype(dtype), types.Array(numba.from_dtype(dtype), 1, "C")
    (given,), (vector,) = real_arrays(stored, 2), real_arrays(dtype, 1)
    floats = types.Array(types.float64, 1, "C", readonly=True)
    numbers = types.Array(types.int32, 1, "C")
    doubles, squares = (types.Array(types.float64, n, "C") for n in (1, 2))
    scratch = (flat,) * 4 + (numbers, numbers, doubles, flat, flat, numbers, doubles)
    return (
        given, integers, places, places, integers, *[vector] * 4,
        types.Tuple((vector, floats, floats, floats)), workspace_type(dtype), types.Tuple(scratch),
        *[types.int64] * 3, real, real, types.Array(types.int32, 2, "C"), squares,
    )  # fmt: skip
