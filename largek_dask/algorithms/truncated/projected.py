"""Fewer features first: the search among rows as they are seen in their first directions.

Where a few directions hold most of the variance, distances in them are about those in all features,
and take a fraction of the time. For an orthonormal projection P

    ||x - c||^2 = ||P x - P c||^2 + ||x' - c'||^2

with x' and c' outside of it, so a partition costs what it costs in the projection, and what it
costs outside, where nobody looks. The shares of the variance and of the cost that lie there say how
much is lost by that: about a twentieth of their product. So the search begins in few directions,
goes on to twice as many when a round gains no more than that, and to all features at last.

Whenever a round begins, means in all features tell what rows cost and what the model is.

All rows are held as they are seen in these directions, or as many as there is room for: a sample
of them, then. It is searched for no longer than its rounds gain more than a twentieth of what all
rows are going to take off the cost, as their means are better known.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Chunk,
    Info,
    Passes,
    ProjectedRows,
    Rng,
    RowSample,
    RowState,
    TableShape,
)
from largek_dask.algorithms.parts.directions import (
    SAMPLE_ROWS,
    LeftOut,
    left_out,
    principal_directions,
)
from largek_dask.algorithms.parts.totals import AssignmentTotal
from largek_dask.algorithms.truncated.passes import (
    STATE,
    PassTotal,
    RowArrays,
    count_rows,
    pass_total,
    read_row_state,
)
from largek_dask.algorithms.truncated.schedule import TUNING, Schedule, Search, on_all_rows
from largek_dask.algorithms.truncated.state import Projected, Shown, TruncatedState
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.projection import Directions, project

__all__ = [
    "asks_few",
    "begins_round",
    "directions_of",
    "first_directions",
    "in_all_features",
    "is_done",
    "lifted",
    "misses_far_rows",
    "most_held",
    "opened",
    "rows_to_hold",
    "saves",
    "scaled",
    "seen_ahead",
    "seen_back",
    "some_directions",
    "tells_little",
    "told",
    "view_of",
    "widened",
    "with_means",
    "with_sample_means",
]

NARROWEST = 32
"""Directions to begin with. Sixteen of 784 leave out a quarter of set C's variance."""
LEAST_SAVED = 4
"""Features for each direction, at least: below that little is saved."""
MOST_LEFT_OUT = 0.175
"""Share of the variance outside to begin with, at most. Of sift200k, 128 features, 32 directions
leave out 0.21, and such a search takes as long as that in all features."""
WORTH_LEAVING = 0.05
"""Times the shares of variance and cost that are outside: a round that lowers the cost by a smaller
share is the last one in these directions. Searches that went on to their ends in 32 to 128
directions lost 0.02 to 0.12 times that product (sets C, mnist, sift200k), and nothing in 32 of the
3,072 features of photographs' patches. Times what the means of all rows will take off, too, where
these are a sample."""
MOST_BESIDE = 0.85
"""Share of the cost that is outside, at most; beyond, the search goes on in all features. With 32
directions it is 0.34 (C), 0.53 (mnist) and 0.64 (patches, where it pays most)."""
MOST_VALUES = 1 << 26
"""Rows times directions, at most: they are held where the driver is. Where there are more rows,
only as many of them are searched."""
FAR_OUT = 4.0
"""Times the largest number of 99 rows out of a hundred: rows beyond are far out. Twenty of 20,000
rows, of which 9,000 were searched, made a fit cost 10^5 times as much (a search cut short)."""
LEAST_VALUES = 1 << 22
"""Rows times features from which on there is something to save. Not measured."""


def first_directions(
    passes: Passes, rng: Rng, sample: Passes, k: int
) -> tuple[Directions, LeftOut] | None:
    """Directions that a search for k clusters begins in, and what lies outside of them.

    None: it begins in all features, as few directions hold too little or save too little.

    Parameters
    ----------
    passes : Passes
    rng : Rng
    sample : Passes
        Rows of the table in random order.
    """
    if passes.n_rows * passes.n_features < LEAST_VALUES:
        return None
    m, known = NARROWEST, None
    while saves(passes, m, k):
        found = some_directions(passes, rng, sample, m, known)
        if found is None or found[1].share <= MOST_LEFT_OUT:
            return found
        if found[1].share > 2 * MOST_LEFT_OUT:
            # Twice as many are not enough either: of mnist 0.28 is left out, and then 0.15.
            return None
        m, known = 2 * m, found[0]
    return None


def saves(passes: Passes, m: int, k: int) -> bool:
    """Whether m directions are few enough, and enough rows can be held as they are seen there."""
    return m * LEAST_SAVED <= passes.n_features and rows_to_hold(passes.n_rows, m, k) is not None


def rows_to_hold(n_rows: int, m: int, k: int) -> int | None:
    """How many rows are searched in m directions; 0: all; None: too few would be for k clusters."""
    if n_rows * m <= MOST_VALUES:
        return 0
    fit = MOST_VALUES // m
    return fit if fit >= TUNING.rows_to_search * k else None


def misses_far_rows(passes: Passes, sample: Passes, m: int, k: int) -> bool:
    """Whether rows lie so far out that a sample, if one is held, may have none that carry the cost.

    Few of them carry it only where they are many times as far away as others.
    """
    if not rows_to_hold(passes.n_rows, m, k):
        return False
    seen = np.sort(np.abs(sample.take().x - passes.statistics.shift).max(axis=1))
    return bool(passes.statistics.max_abs > FAR_OUT * seen[99 * len(seen) // 100])


def most_held(table: TableShape, k: int, m: int | None) -> tuple[int, int]:
    """Values and rows that are held at most, in m directions, or in twice as many later on.

    None: in as many as the rows will tell. Nothing where the search begins in all features.
    """
    first, widest = m or NARROWEST, max(m or 0, table.n_features // LEAST_SAVED)
    held = rows_to_hold(table.n_rows, first, k)
    if first > widest or first >= table.n_features or held is None:
        return 0, 0
    return min(table.n_rows * widest, MOST_VALUES), held or table.n_rows


def view_of(passes: Passes, rng: Rng, directions: Directions, n_rows: int) -> Passes:
    """All rows (0), or a sample, as they are seen in some directions."""
    within = RowSample(rng, "projected", n_rows, ascending=True) if n_rows else None
    return passes.subset(ProjectedRows(directions, within))


def some_directions(
    passes: Passes, rng: Rng, sample: Passes, m: int, known: Directions | None = None
) -> tuple[Directions, LeftOut] | None:
    """The first m directions, and what lies outside of them; None: there are fewer.

    ``known``: the first ones of them.
    """
    x, weight, _ = sample.take()
    seen, others = slice(SAMPLE_ROWS), slice(-SAMPLE_ROWS, None)
    own = None if weight is None else weight[seen]
    directions = principal_directions(x[seen], own, passes.statistics.shift, rng, m, known)
    if directions is None:
        return None
    own = None if weight is None else weight[others]
    return directions, left_out(x[others], own, directions)


def directions_of(projected: Projected) -> Directions:
    """The directions of a search."""
    return Directions.of(projected.vectors, projected.origin)


def opened(
    passes: Passes,
    directions: Directions,
    outside: LeftOut,
    search: TruncatedState,
    full: Schedule,
    n_rows: int,
) -> TruncatedState:
    """The state of a fit whose search begins in these directions.

    Parameters
    ----------
    passes : Passes
    directions : Directions
    outside : LeftOut
        By these directions.
    search : TruncatedState
        Of the search among projected rows.
    full : Schedule
        What follows in all features.
    n_rows : int
        Rows that are searched; 0: all.
    """
    # Centres that are seen back lie in the directions: rows cost outside what they have there.
    beside = outside.of_a_row * passes.statistics.total_weight
    return TruncatedState(
        step=0,
        schedule=full,
        centers=_in_all_features(search.centers, directions),
        counts=np.zeros(len(search.centers)),
        shift=directions.origin,
        coarse=_in_all_features(search.coarse, directions),
        projected=Projected(
            directions.vectors,
            directions.origin,
            search,
            outside.share,
            beside,
            float("inf"),
            Shown(),
            n_rows=n_rows,
        ),
    )


def scaled(passes: Passes, view: Passes, projected: Projected) -> Projected:
    """The search with costs of the rows of a view, where these are a sample.

    Before it comes to them they are of all rows, as a small sample tells.
    """
    scale = 1.0
    if projected.n_rows:
        scale = passes.statistics.total_weight / view.statistics.total_weight
    factor, search = projected.scale / scale, projected.search
    if factor == 1:
        return projected
    stage = search.schedule.stage
    stage = replace(stage, cost_before=factor * stage.cost_before)
    schedule = replace(search.schedule, cost=factor * search.schedule.cost, stage=stage)
    search = replace(search, schedule=schedule, cost=factor * search.cost)
    return replace(projected, search=search, scale=scale)


def _in_all_features(points: NDArray[Any], directions: Directions) -> NDArray[Any]:
    """Where points (k, m) of the projection are; a sum of m products in a fixed order each."""
    back = Directions.of(np.ascontiguousarray(directions.vectors.T), np.zeros_like(points[0]))
    out: NDArray[Any] = project(points, back) + directions.origin
    return out


def seen_back(points: NDArray[Any], projected: Projected) -> NDArray[Any]:
    """Points (k, m) of a search as they lie among rows of all features."""
    return _in_all_features(points, directions_of(projected))


def asks_few(schedule: Schedule) -> bool:
    """Whether a step is about a small sample: nobody needs to see all rows in the directions."""
    sizes = schedule.sampling.sizes
    return bool(sizes) and not schedule.searched and sizes[0] < schedule.search.n_rows


def seen_ahead(before: Schedule, state: TruncatedState) -> TruncatedState:
    """The state after a step, with whether its search is better by now than means of a sample.

    So it is where larger samples are searched for long, before means of all rows are known.
    """
    projected = state.projected
    assert projected is not None
    sizes, n = before.sampling.sizes, before.search.n_rows
    now = projected.scale * projected.search.schedule.cost + projected.beside
    expected = _of_all_rows(now, len(state.centers), sizes[0] if sizes else n)
    ahead = projected.shown.generation == 0 and expected < projected.expected
    return replace(state, projected=replace(projected, is_ahead=ahead))


def _of_all_rows(cost: float, k: int, n: int) -> float:
    """What all rows are to be expected to cost, where n of them in k clusters tell so much.

    With s of a row about its true mean they cost (n - k) s, and others (n + k) s.
    """
    return cost * (1 + 2 * k / n)


def begins_round(search: TruncatedState) -> bool:
    """Whether a round over all rows is about to begin: rows are labelled as the search has it."""
    return search.schedule.everywhere and search.everywhere and search.schedule.opens_round


def lifted(
    passes: Passes, view: Passes, state: TruncatedState
) -> tuple[PassTotal, NDArray[np.int32]]:
    """Sums in all features of the clusters that the search has come to, and labels of its rows.

    One pass over all rows, which knows the labels of those that are searched; those that have kept
    theirs since the last such pass are not touched.

    Returns
    -------
    total : PassTotal
    labels : (m,) int32
        In the order of the view.
    """
    assert state.projected is not None
    before, search = state.projected, state.projected.search
    found: dict[int, NDArray[np.int32]] = read_row_state(
        view, search.history, _show_labels, start=dict, combine=_both
    )
    labels = np.concatenate([found[begin] for begin in sorted(found)])
    rows = view.take().rows
    numbers = None if len(rows) == passes.n_rows else rows
    known = before.shown.labels
    replay = () if known is None or len(known) != len(labels) else ((numbers, known, -1),)
    total: PassTotal = passes.reduce(
        count_chunk,
        numbers,
        labels,
        state.step,
        start=partial(pass_total, len(search.centers), passes.n_features, passes.statistics.grid),
        combine=AssignmentTotal.combine,
        state=RowState(STATE, before.shown.generation + 1, replay, retain=True),
        joined=True,
    )
    return total, labels


def _show_labels(
    first: int,
    weight: NDArray[np.float64] | None,
    rows: RowArrays,
    total: dict[int, NDArray[np.int32]],
) -> None:
    total[first] = rows.labels


def _both(
    a: dict[int, NDArray[np.int32]], b: dict[int, NDArray[np.int32]]
) -> dict[int, NDArray[np.int32]]:
    return a | b


def count_chunk(
    chunk: Chunk,
    total: PassTotal,
    numbers: NDArray[np.int64] | None,
    labels: NDArray[np.int32],
    step: int,
) -> None:
    """Have a chunk's rows count for their clusters.

    Parameters
    ----------
    chunk, total
    numbers : (m,) int64 or None
        Ascending indices of the rows that count; None: all do.
    labels : (m,) int32
        Their clusters.
    step : int
    """
    old = None if chunk.state is None else chunk.state["labels"]
    x, weight, begin, end = chunk.x, chunk.weight, chunk.start, chunk.start + len(chunk.x)
    if numbers is not None:
        begin, end = np.searchsorted(numbers, [begin, end])
        places = numbers[begin:end] - chunk.start
        x, weight = x[places], None if weight is None else weight[places]
    own = labels[begin:end]
    total.begin(step)
    count_rows(x, weight, old, own, total, chunk.counted, chunk.threads)
    chunk.keep(labels=own)


def with_sample_means(
    sample: Passes, labels: NDArray[np.int32], state: TruncatedState, scale: float
) -> TruncatedState:
    """The state after a step over a sample, with means in all features of its rows.

    Parameters
    ----------
    sample : Passes
        Over these rows in all features.
    labels : (n,) int32
        As the step has left them.
    state : TruncatedState
    scale : float
        How many times all rows weigh what these do.
    """
    assert state.projected is not None
    projected, (k, d) = state.projected, state.centers.shape
    sums: ClusterSums = sample.reduce(
        sum_chunk,
        labels,
        start=partial(ClusterSums, k, d, sample.statistics.grid),
        combine=ClusterSums.merge,
        joined=True,
    )
    centers = sums.means(seen_back(projected.search.centers, projected))
    counts = sums.counts * scale
    # Outside, rows cost what they vary by there, less what their means do.
    whole, seen, directions = Squares(1), Squares(1), directions_of(projected)
    whole.add_squares(centers, directions.origin, counts)
    seen.add_squares(project(centers, directions), np.zeros(len(directions.vectors)), counts)
    beside = max(0.0, projected.beside - max(0.0, whole.value - seen.value))
    cost = projected.search.schedule.cost + beside
    return replace(
        state,
        centers=centers,
        counts=counts,
        cost=cost,
        projected=replace(projected, is_ahead=False, expected=_of_all_rows(cost, k, sample.n_rows)),
    )


def sum_chunk(chunk: Chunk, total: ClusterSums, labels: NDArray[np.int32]) -> None:
    """Add up the rows of a chunk."""
    total.add(chunk.x, labels[chunk.start : chunk.start + len(chunk.x)], chunk.weight)


def with_means(
    state: TruncatedState, total: PassTotal, labels: NDArray[np.int32]
) -> TruncatedState:
    """The state with means in all features, and what they tell of the cost."""
    assert state.projected is not None
    before = state.projected
    centers = total.sums.means(state.centers)
    cost = before.scale * total.sums.cost(centers, total.squares.value)
    return replace(
        state,
        centers=centers,
        counts=before.scale * total.sums.counts,
        cost=cost,
        projected=replace(
            before,
            beside=max(0.0, cost - before.scale * before.search.schedule.cost),
            round_cost=cost,
            shown=before.shown.then(labels),
            is_ahead=False,
        ),
    )


def is_done(before: Projected, state: TruncatedState) -> bool:
    """Whether these directions have given what they can: a round has gained too little."""
    assert state.projected is not None
    gained = before.round_cost - state.cost
    after = state.projected
    # What the rows that are not searched are going to change: means of few rows fit these only.
    k, n = len(state.centers), after.n_rows
    unseen = state.cost * k * (1 / n - 1 / (n * after.scale)) if n else 0.0
    return gained < WORTH_LEAVING * (after.left_out * after.beside + unseen)


def tells_little(state: TruncatedState) -> bool:
    """Whether most of what rows cost lies outside: where they are wide is not where they differ."""
    assert state.projected is not None
    return state.projected.beside > MOST_BESIDE * state.cost


def widened(
    state: TruncatedState,
    view: Passes,
    directions: Directions,
    outside: LeftOut,
    search: Search,
    n_rows: int,
) -> TruncatedState:
    """The state with its search going on in more directions; see :func:`opened`."""
    assert state.projected is not None
    before = state.projected.search
    inner = TruncatedState(
        step=before.step,
        schedule=on_all_rows(before.schedule, search),
        centers=project(state.centers, directions),
        counts=state.counts,
        shift=view.statistics.shift,
        coarse=project(state.coarse, directions),
    )
    return replace(
        state,
        projected=replace(
            state.projected,
            vectors=directions.vectors,
            origin=directions.origin,
            search=inner,
            left_out=outside.share,
            round_cost=float("inf"),
            n_rows=n_rows,
        ),
    )


def in_all_features(state: TruncatedState) -> TruncatedState:
    """The state with its search going on in all features."""
    assert state.projected is not None
    before = state.projected
    schedule = on_all_rows(before.search.schedule, state.schedule.search)
    return replace(
        state,
        schedule=replace(schedule, cost=state.cost),
        n_read=_times_read(before),
        projected=None,
    )


def _times_read(projected: Projected) -> int:
    """How often all rows were gone through: for what they are in few features, and each round."""
    return 1 + projected.shown.generation


def told(info: Info, state: TruncatedState) -> Info:
    """What ``history_`` says of a step in these directions, which has led to this state."""
    projected = state.projected
    assert projected is not None
    m, itemsize = len(projected.vectors), projected.vectors.itemsize
    ahead = projected.is_ahead or projected.shown.generation > 0
    extra = {
        **info.extra,
        "steps_per_reading": state.step / _times_read(projected),
        "row_state_bytes": info.extra["row_state_bytes"] + m * itemsize,
    }
    if projected.n_rows:
        extra["everywhere"] = 0.0
        extra["by_means"] = projected.scale * info.extra["by_means"]
    cost = projected.scale * info.cost + projected.beside if ahead else state.cost
    return replace(info, cost=cost, converged=False, extra=extra)
