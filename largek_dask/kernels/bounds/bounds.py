"""Bounds that let a row keep its centre without computing other distances, and stay exact.

A row keeps one upper bound of the distance to its own centre and, for each of G groups of
centres, a lower bound of the distance to the nearest *other* centre of the group. While every
lower bound is above the upper one, its centre is the nearest and no distance is computed; if a
group fails, only that group is searched. G = 1 is Hamerly's algorithm (SDM 2010), G = k
Elkan's (ICML 2003), numbers between are Yinyang k-means (Ding et al., ICML 2015).

Drift is cumulative: stored are ``upper - U_a`` and ``lower + D_g``, where the tables U and D
hold the movement of each centre, and of the fastest centre of each group, since the beginning
(:class:`~.groups.Drift`). The tables travel with the centres, and a row that is skipped is not
written to.

The labels are those of :func:`~largek_dask.kernels.distances.nearest`, with any bounds;
the docstring of :class:`~.groups.Margins` derives why rounding cannot change that. If scores
leave in doubt which centre of those groups is nearest, it is decided as it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.bounds.group_search import search_groups
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.dense.doubts import margin
from largek_dask.kernels.distances import decide, squared_distances
from largek_dask.kernels.jit import njit

__all__ = ["assign", "start"]

_BLOCK_BYTES = 4 << 20
"""Bytes of rows gathered at a time."""
_NO_LABEL = np.int32(2**31 - 1)

Array = NDArray[Any]
Labels = NDArray[np.int32]


# Groups of the kernels' arguments. Plain tuples: named ones take numba ten times as long to enter.
_RowState = tuple[Labels, Array, Array]
"""Labels, upper and lower bounds."""
_PairScores = tuple[Array, Array, Labels, Array, Array]
"""Pairs, offsets, candidates, first and second scores: ``pairs[offsets[g] : offsets[g + 1]]`` are
the rows that meet group g, with their nearest centre there and the two smallest scores."""
_Winners = tuple[Labels, NDArray[np.float64], NDArray[np.float64]]
"""Of each row the nearest centre over its groups, its score, and the second score."""


def start(x: Array, bounded: BoundedCenters) -> tuple[Labels, Array, Array, int]:
    """Return labels and new bounds of (n, d) rows, computing all distances.

    Returns
    -------
    labels : int32 array (n,)
        As :func:`~largek_dask.kernels.distances.nearest`.
    upper : float32 array (n,)
        Upper bound of the distance to the own centre, less its drift.
    lower : float32 array (n, G)
        Lower bound of the distance to the nearest other centre of a group, with the group's drift;
        infinity if there is none.
    n_evaluated : int
        Distances computed, rows times centres.
    """
    n, n_groups = len(x), bounded.n_groups
    labels, upper = np.full(n, -1, np.int32), np.empty(n, np.float32)
    state = labels, upper, np.empty((n, n_groups), np.float32)
    for begin, end in _blocks(n, bounded):
        block, rows = bounded.rows(x[begin:end]), np.arange(begin, end)
        flags = np.ones((end - begin, n_groups), np.bool_)
        _search_flagged(x, block, rows, np.empty(end - begin), flags, bounded, state)
    return *state, n * bounded.packed.n_clusters


def assign(
    x: Array,
    bounded: BoundedCenters,
    labels: Labels,
    upper: NDArray[np.float32],
    lower: NDArray[np.float32],
) -> int:
    """Update labels and bounds of rows, in place.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    bounded : BoundedCenters
        The present centres; the drift has grown since the bounds were written.
    labels, upper, lower : arrays (n,), (n,), (n, G), C-ordered
        As :func:`start` or an earlier call left them, for the same rows and groups.

    Returns
    -------
    int
        Distances computed: rows times centres of the groups that were searched, and one for
        every row whose upper bound was made exact. It does not depend on the vector width.
    """
    state, tables, margins = (labels, upper, lower), bounded.tables, tuple(bounded.margins)
    failing = np.empty(len(x), np.int64)
    with np.errstate(all="ignore"):
        count: int = _scan(state, tables, margins, failing)
    evaluated = count
    for begin, end in _blocks(count, bounded):
        rows = failing[begin:end]
        block = bounded.rows(x[rows])
        exact = squared_distances(block, bounded.space, labels[rows])
        flags = np.empty((len(rows), bounded.n_groups), np.bool_)
        with np.errstate(all="ignore"):
            _test(rows, exact, state, tables, margins, flags)
        evaluated += _search_flagged(x, block, rows, exact, flags, bounded, state)
    return evaluated


def _blocks(n: int, bounded: BoundedCenters) -> Iterator[tuple[int, int]]:
    """Yield begin and end of blocks of rows."""
    packed = bounded.packed
    step = max(64, _BLOCK_BYTES // (packed.n_features * packed.dtype.itemsize))
    for begin in range(0, n, step):
        yield begin, min(begin + step, n)


def _search_flagged(
    x: Array,
    block: Array,
    rows: NDArray[np.int64],
    exact: NDArray[np.float64],
    flags: NDArray[np.bool_],
    bounded: BoundedCenters,
    state: _RowState,
) -> int:
    """Search the flagged groups of some rows of x; write their labels and bounds.

    `block` holds the rows in the kernels' space, `exact` the squared distances to their centres
    (of rows with a label). Returns the number of distances computed.
    """
    counts = np.count_nonzero(flags, axis=0)
    n_evaluated = int(counts @ np.diff(bounded.groups.offsets))
    if n_evaluated == 0:
        return 0
    offsets = np.concatenate([[0], np.cumsum(counts)])
    pairs = np.empty(offsets[-1], np.int64)
    _sort_pairs(flags, offsets[:-1].copy(), pairs)
    scores = pairs, offsets, *search_groups(block, pairs, offsets, bounded.columns)
    n, old = len(rows), state[0][rows]
    labels = np.full(n, _NO_LABEL)
    winners = labels, np.full(n, np.inf), np.full(n, np.inf)
    _merge(scores, winners)
    none = labels == _NO_LABEL
    labels[none] = np.maximum(old[none], 0)
    _measure(np.flatnonzero(labels != old), block, exact, labels, bounded)
    if not bounded.packed.direct:
        _decide(x, block, rows, exact, winners, bounded)
    with np.errstate(all="ignore"):
        _write(
            rows, scores, winners, exact, bounded.groups.offsets, bounded.tables,
            tuple(bounded.margins), bounded.packed.direct > 0, state,
        )  # fmt: skip
    return n_evaluated


def _measure(
    which: NDArray[np.int64],
    block: Array,
    exact: NDArray[np.float64],
    labels: Labels,
    bounded: BoundedCenters,
) -> None:
    """Update the squared distances of some rows to the centres of these labels."""
    exact[which] = squared_distances(block[which], bounded.space, labels[which])


def _decide(
    x: Array,
    block: Array,
    rows: NDArray[np.int64],
    exact: NDArray[np.float64],
    winners: _Winners,
    bounded: BoundedCenters,
) -> None:
    """Give rows in doubt the centre that the dense search would choose.

    Centres of groups that were left out are certainly farther.
    """
    (labels, best, second), limits = winners, np.empty(len(rows))
    margins, rounding = tuple(bounded.margins), bounded.packed.dense.rounding.as_tuple()
    with np.errstate(all="ignore"):
        _find_limits(winners, exact, bounded.tables, margins, rounding, limits)
        doubtful = np.flatnonzero(~(second > limits))
    if not len(doubtful):
        return
    chosen = decide(x, rows[doubtful], limits[doubtful], bounded.packed)[0]
    moved = doubtful[chosen != labels[doubtful]]
    labels[doubtful] = chosen
    best[moved] = limits[moved]  # no centre in question has a higher score
    _measure(moved, block, exact, labels, bounded)


# --- compiled ------------------------------------------------------------------------------------


@njit
def _rounded_down(value):
    near = np.float32(value)
    return np.nextafter(near, np.float32(-np.inf)) if near > value else near


@njit
def _rounded_up(value):
    near = np.float32(value)
    return np.nextafter(near, np.float32(np.inf)) if near < value else near


@njit
def _threshold(upper, length, longest, margins):
    """Return the limit that a squared lower bound, less its own margin, has to exceed."""
    product, relative, _, absolute, limit = margins
    reach = upper + length  # not below the row's length
    square = upper * upper * (1 + relative) + 2 * absolute
    if max(square, longest * (longest + 2 * reach)) > limit:
        return np.inf
    return square + product * length * (length + 2 * reach)


@njit
def _scan(state, tables, margins, failing):
    """Find rows for which any group may hold a nearer centre; return their number."""
    labels, upper, lower = state
    ways, group_ways, lengths, radii, _ = tables
    product, relative, _, _, _ = margins
    longest, count = radii.max(), 0
    for i in range(labels.size):
        a = labels[i]
        u = np.float64(upper[i]) + ways[a]
        above, reach = _threshold(u, lengths[a], longest, margins), u + lengths[a]
        passed = True
        for g in range(radii.size):
            low = max(np.float64(lower[i, g]) - group_ways[g], 0.0)
            margin = product * radii[g] * (radii[g] + 2 * reach)
            passed &= low * low * (1 - relative) > above + margin
        if not passed:
            failing[count] = i
            count += 1
    return count


@njit
def _test(rows, exact, state, tables, margins, flags):
    """Test again with the exact distance, and flag the groups that rows have to search.

    If there are any, also flag the row's own group, whose bound does not cover the row's own
    centre, which may have to go back among the others.
    """
    labels, upper, lower = state
    ways, group_ways, lengths, radii, of = tables
    product, relative, slack, absolute, _ = margins
    longest = radii.max()
    for r in range(rows.size):
        i, a = rows[r], labels[rows[r]]
        u = np.sqrt(exact[r] * (1 + slack) + absolute)
        upper[i] = _rounded_up(np.nextafter(u - ways[a], np.inf))
        above, reach = _threshold(u, lengths[a], longest, margins), u + lengths[a]
        failed = False
        for g in range(radii.size):
            low = max(np.float64(lower[i, g]) - group_ways[g], 0.0)
            margin = product * radii[g] * (radii[g] + 2 * reach)
            flags[r, g] = not low * low * (1 - relative) > above + margin
            failed |= flags[r, g]
        flags[r, of[a]] = failed


@njit
def _sort_pairs(flags, places, pairs):
    """Sort flagged rows by group, by counting."""
    for r in range(flags.shape[0]):
        for g in range(flags.shape[1]):
            if flags[r, g]:
                pairs[places[g]] = r
                places[g] += 1


@njit
def _merge(scores, winners):
    """Find the two smallest scores of each row over its groups; ties go to the lowest centre."""
    pairs, _, candidates, first, second = scores
    labels, best, following = winners
    for p in range(pairs.size):
        r, j, score = pairs[p], candidates[p], np.float64(first[p])
        if score < best[r] or (score == best[r] and j < labels[r]):
            following[r] = best[r]
            labels[r], best[r] = j, score
        elif score < following[r]:
            following[r] = score
        if second[p] < following[r]:
            following[r] = second[p]


@njit
def _find_limits(winners, exact, tables, margins, rounding, limits):
    """Find scores above which a centre is certainly farther than the winner."""
    labels, best, _ = winners
    _, _, slack, absolute, _ = margins
    lengths = tables[2]
    for r in range(labels.size):
        reach = np.sqrt(exact[r] * (1 + slack) + absolute) + lengths[labels[r]]
        limits[r] = best[r] + margin(best[r], reach * reach * (1 + slack), rounding)


@njit
def _write(rows, scores, winners, exact, list_offsets, tables, margins, direct, state):
    """Write labels and bounds of searched rows; best scores are not below the winners'."""
    pairs, offsets, candidates, first, second = scores
    nearest, best, _ = winners
    labels, upper, lower = state
    ways, group_ways, lengths, radii, of = tables
    product, relative, slack, absolute, limit = margins
    for r in range(rows.size):
        i, w = rows[r], nearest[r]
        if labels[i] != w:
            labels[i] = w
            u = np.sqrt(exact[r] * (1 + slack) + absolute)
            upper[i] = _rounded_up(np.nextafter(u - ways[w], np.inf))
    for g in range(radii.size):
        for p in range(offsets[g], offsets[g + 1]):
            r = pairs[p]
            w = nearest[r]
            if of[w] == g and list_offsets[g + 1] - list_offsets[g] == 1:
                lower[rows[r], g] = np.inf
                continue
            # the smallest score in the group except the winner's
            score = np.float64(second[p] if candidates[p] == w else first[p])
            if direct:
                square = min(score, limit) * (1 - relative) - absolute
            else:
                reach = np.sqrt(exact[r] * (1 + slack) + absolute) + lengths[w]
                square = exact[r] * (1 - slack) + (score - best[r])
                square -= product * radii[g] * (radii[g] + 2 * reach)
                square -= product * lengths[w] * (lengths[w] + 2 * reach) + 2 * absolute
                if not max(radii[g], lengths[w]) * (max(radii[g], lengths[w]) + 2 * reach) < limit:
                    square = 0.0
            low = np.sqrt(square * (1 - slack)) if square > 0 else 0.0
            lower[rows[r], g] = _rounded_down(np.nextafter(low + group_ways[g], -np.inf))
