"""Search among rows projected onto their first principal directions, before all features.

If a few directions hold most of the variance, distances in them approximate those in all features
and take a fraction of the time. For an orthonormal projection P

    ||x - c||^2 = ||P x - P c||^2 + ||x' - c'||^2

with x' and c' outside of it, so the cost of a partition is its cost in the projection plus that
outside, which is ignored. The shares of the variance and of the cost outside show how much this
loses: about a twentieth of their product. So the search begins in few directions, continues in
twice as many when a round gains no more than that, and in all features at last.

Whenever a round begins, means in all features give the cost of the rows and the model.

All projected rows are held, or a sample of as many as there is room for. A sample is searched only
as long as its rounds gain more than a twentieth of what all rows will take off the cost, as their
means are better known.
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
"""Initial directions. Sixteen of 784 leave out a quarter of set C's variance."""
LEAST_SAVED = 4
"""Minimum features per direction: below that little is saved."""
MOST_LEFT_OUT = 0.175
"""Maximum share of the variance outside at the beginning. In sift200k, 128 features, 32 directions
leave out 0.21, and such a search takes as long as that in all features."""
WORTH_LEAVING = 0.05
"""Factor of the shares of variance and cost that are outside: a round that lowers the cost by a
smaller share is the last one in these directions. Searches that continued to their ends in 32 to
128 directions lost 0.02 to 0.12 times that product (sets C, mnist, sift200k), and nothing in 32 of
the 3,072 features of photographs' patches. For a sample, also the factor of what the means of all
rows will take off."""
MOST_BESIDE = 0.85
"""Maximum share of the cost outside; beyond it the search continues in all features. With 32
directions it is 0.34 (C), 0.53 (mnist) and 0.64 (patches, where it pays most)."""
MOST_VALUES = 1 << 26
"""Maximum rows times directions, held in the driver's process. Of more rows, only as many are
searched."""
FAR_OUT = 4.0
"""Multiple of the largest value in 99 % of the rows: rows beyond are far out. Twenty of 20,000
rows, of which 9,000 were searched, made a fit cost 10^5 times as much (a search cut short)."""
LEAST_VALUES = 1 << 22
"""Rows times features above which projection can save time. Not measured."""


def first_directions(
    passes: Passes, rng: Rng, sample: Passes, k: int
) -> tuple[Directions, LeftOut] | None:
    """Return the directions in which a search for k clusters begins, and the variance outside.

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
    """Return True if m directions are few enough, and enough projected rows can be held."""
    return m * LEAST_SAVED <= passes.n_features and rows_to_hold(passes.n_rows, m, k) is not None


def rows_to_hold(n_rows: int, m: int, k: int) -> int | None:
    """Return how many rows are searched in m directions; 0: all; None: too few for k clusters."""
    if n_rows * m <= MOST_VALUES:
        return 0
    fit = MOST_VALUES // m
    return fit if fit >= TUNING.rows_to_search * k else None


def misses_far_rows(passes: Passes, sample: Passes, m: int, k: int) -> bool:
    """Return True if rows are so far out that a held sample may miss those that carry the cost.

    Few rows carry it only if they are many times as far away as others.
    """
    if not rows_to_hold(passes.n_rows, m, k):
        return False
    seen = np.sort(np.abs(sample.take().x - passes.statistics.shift).max(axis=1))
    return bool(passes.statistics.max_abs > FAR_OUT * seen[99 * len(seen) // 100])


def most_held(table: TableShape, k: int, m: int | None) -> tuple[int, int]:
    """Return the most values and rows held in m directions, or in twice as many later on.

    m is None: in as many as the rows require. Zeros if the search begins in all features.
    """
    first, widest = m or NARROWEST, max(m or 0, table.n_features // LEAST_SAVED)
    held = rows_to_hold(table.n_rows, first, k)
    if first > widest or first >= table.n_features or held is None:
        return 0, 0
    return min(table.n_rows * widest, MOST_VALUES), held or table.n_rows


def view_of(passes: Passes, rng: Rng, directions: Directions, n_rows: int) -> Passes:
    """Return all rows (0), or a sample, projected onto some directions."""
    within = RowSample(rng, "projected", n_rows, ascending=True) if n_rows else None
    return passes.subset(ProjectedRows(directions, within))


def some_directions(
    passes: Passes, rng: Rng, sample: Passes, m: int, known: Directions | None = None
) -> tuple[Directions, LeftOut] | None:
    """Return the first m directions, and the variance outside of them; None: there are fewer.

    ``known`` are the first ones of them.
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
    """Return the directions of a search."""
    return Directions.of(projected.vectors, projected.origin)


def opened(
    passes: Passes,
    directions: Directions,
    outside: LeftOut,
    search: TruncatedState,
    full: Schedule,
    n_rows: int,
) -> TruncatedState:
    """Return the state of a fit whose search begins in these directions.

    Parameters
    ----------
    passes : Passes
    directions : Directions
    outside : LeftOut
        Variance outside of these directions.
    search : TruncatedState
        State of the search among projected rows.
    full : Schedule
        Schedule that follows in all features.
    n_rows : int
        Rows to search; 0: all.
    """
    # Back-projected centres lie in the directions, so rows cost their whole variance outside.
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
    """Rescale the search to the costs of the rows of a view, if these are a sample.

    Before that its costs are those of all rows, as estimated on a small sample.
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
    """Back-project points (k, m); each value is a sum of m products in a fixed order."""
    back = Directions.of(np.ascontiguousarray(directions.vectors.T), np.zeros_like(points[0]))
    out: NDArray[Any] = project(points, back) + directions.origin
    return out


def seen_back(points: NDArray[Any], projected: Projected) -> NDArray[Any]:
    """Back-project points (k, m) of a search to all features."""
    return _in_all_features(points, directions_of(projected))


def asks_few(schedule: Schedule) -> bool:
    """Return True if a step is on a small sample, so that not all rows need projecting."""
    sizes = schedule.sampling.sizes
    return bool(sizes) and not schedule.searched and sizes[0] < schedule.search.n_rows


def seen_ahead(before: Schedule, state: TruncatedState) -> TruncatedState:
    """Return the state after a step, noting if its search is better than means of a sample.

    It is while larger samples are searched for long, before means of all rows are known.
    """
    projected = state.projected
    assert projected is not None
    sizes, n = before.sampling.sizes, before.search.n_rows
    now = projected.scale * projected.search.schedule.cost + projected.beside
    expected = _of_all_rows(now, len(state.centers), sizes[0] if sizes else n)
    ahead = projected.shown.generation == 0 and expected < projected.expected
    return replace(state, projected=replace(projected, is_ahead=ahead))


def _of_all_rows(cost: float, k: int, n: int) -> float:
    """Return the expected cost of all rows, given that estimated by n of them in k clusters.

    With a variance s of a row about its true mean these cost (n - k) s, and others (n + k) s.
    """
    return cost * (1 + 2 * k / n)


def begins_round(search: TruncatedState) -> bool:
    """Return True if a round over all rows is about to begin, with the search's labels."""
    return search.schedule.everywhere and search.everywhere and search.schedule.opens_round


def lifted(
    passes: Passes, view: Passes, state: TruncatedState
) -> tuple[PassTotal, NDArray[np.int32]]:
    """Return sums in all features of the clusters of the search, and labels of its rows.

    One pass over all rows, given the labels of the searched ones; rows that have kept theirs since
    the last such pass are not touched.

    Returns
    -------
    total : PassTotal
    labels : (m,) int32
        Labels in the order of the view.
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
    """Count a chunk's rows for their clusters.

    Parameters
    ----------
    chunk, total
    numbers : (m,) int64 or None
        Ascending indices of the rows that count; None: all.
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
    """Return the state after a step over a sample, with means of its rows in all features.

    Parameters
    ----------
    sample : Passes
        Passes over these rows in all features.
    labels : (n,) int32
        Their labels after the step.
    state : TruncatedState
    scale : float
        Weight of all rows divided by that of these.
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
    # Outside, rows cost their variance there, less that of their means.
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
    """Return the state with means in all features, and the cost by them."""
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
    """Return True if these directions are exhausted: a round has gained too little."""
    assert state.projected is not None
    gained = before.round_cost - state.cost
    after = state.projected
    # Expected change by rows that are not searched: means of few rows fit only these.
    k, n = len(state.centers), after.n_rows
    unseen = state.cost * k * (1 / n - 1 / (n * after.scale)) if n else 0.0
    return gained < WORTH_LEAVING * (after.left_out * after.beside + unseen)


def tells_little(state: TruncatedState) -> bool:
    """Return True if most of the cost is outside: directions of variance do not separate rows."""
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
    """Return the state with its search continued in more directions; see :func:`opened`."""
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
    """Return the state with its search continued in all features."""
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
    """Return how often all rows were read: once for the projection, and once per round."""
    return 1 + projected.shown.generation


def told(info: Info, state: TruncatedState) -> Info:
    """Return the record of a step in these directions, which has led to this state."""
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
