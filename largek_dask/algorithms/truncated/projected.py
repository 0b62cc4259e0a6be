"""Search on rows projected onto a few directions, before the search in all features.

If a few principal directions hold most of the variance, distances between projected rows
approximate distances in all features and take a fraction of the time. For an orthonormal projection
P, ``||x - c||^2 = ||P x - P c||^2 + ||x' - c'||^2``, where x' and c' are the components orthogonal
to the directions. So the cost of a partition is its cost in the projection plus a cost outside the
directions, which the search ignores.

If principal directions hold little of the variance, random directions may represent the others:
they preserve squared distances on average, and the cost outside is the error of this estimate. They
are used if a sample shows that rows near each other stay near in the projection.

The relative loss is about a twentieth of the product of two shares: the share of the variance and
the share of the cost that are outside the directions. When a round gains no more than that, the
search continues in twice as many directions, if all rows fit in memory, and finally in all
features.

The means in all features, which give the exact cost and the model, are computed after the first
pass over all rows, and when a round begins. Before, centres lie in the directions. Rows keep their
labels when the search continues in more directions or in all features.

The projected rows are held in memory: all rows, or a sample if all rows do not fit. The search on a
sample ends when a round gains less than a twentieth of the reduction of the cost that the more
accurate means of all rows are expected to bring; labels of the other rows are then unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

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
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.parts.directions import (
    SAMPLE_ROWS,
    LeftOut,
    left_out,
    lost_nearness,
    principal_directions,
    with_random_directions,
)
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally, count_rows
from largek_dask.algorithms.truncated.passes import STATE, Pass, current_labels, given_labels
from largek_dask.algorithms.truncated.schedule import on_all_rows
from largek_dask.algorithms.truncated.search import TruncatedSearch, row_bytes
from largek_dask.algorithms.truncated.state import TruncatedState
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.projection import Directions, project

NARROWEST = 32
"""Initial number of directions. With 16 directions, a quarter of the variance of set C (784
features) is outside the directions."""
LEAST_SAVED = 4
"""Minimum number of features per direction; with fewer, projection saves little time."""
MOST_VARIANCE_OUTSIDE = 0.175
"""Maximum share of the variance outside the first directions. On sift200k the share is 0.21 with 32
of 128 directions, and a search in these directions takes as long as in all features."""
LEAST_GAIN = 0.05
"""Minimum relative gain of a round, divided by the product of the shares of variance and cost
outside the directions; after a lower gain, the search in these directions ends. Complete searches
in 32 to 128 directions lost 0.02 to 0.12 times this product (C, mnist, sift200k), and nothing in 32
of 3,072 directions (patches). On samples, the gain expected from the means of all rows is
multiplied by the same factor."""
MOST_COST_OUTSIDE = 0.85
"""Maximum share of the cost outside the directions; above it, the search continues in all features.
With 32 directions the share is 0.34 (C), 0.53 (mnist) and 0.64 (patches, where projection saves
most time)."""
MOST_VALUES = 1 << 26
"""Maximum number of values (rows times directions) held in the driver's process; if there are more,
a sample of the rows is searched."""
LEAST_ROWS = 64
"""Minimum number of rows per cluster in a sample that is searched (not tuned)."""
FEATURES_PER_DIRECTION = 6
"""Number of features per direction if most directions are random. With 4 instead, ``glosses`` of
``benchmarks.embeddings`` reach the energy of SuperKMeans with 2 refinements in twice the time (one
run)."""
COMPARED_ROWS = 500
"""Number of rows whose nearest rows are compared with the nearest projected rows."""
MOST_LOST = 0.5
"""Random directions are used if they lose at most this share of the nearness that the principal
directions lose. The share is 0.05 on ``glosses``, and about 1 on ``sentences`` of
``benchmarks.embeddings`` and on noise, where a search in all features is as fast (one run)."""
FAR_OUT = 4.0
"""A row is an outlier if its largest value exceeds the 99th percentile over the rows by this
factor. With 20 outliers in 20,000 rows, an interrupted search on 9,000 rows ended at 10^5 times the
cost."""
LEAST_VALUES = 1 << 22
"""Minimum number of values (rows times features) for which projection may be used (not tuned)."""


@dataclass(frozen=True, eq=False)
class CountedLabels:
    """Labels with which the means in all features were last computed."""

    generation: int = 0
    """Number of times that the means were computed."""
    labels: NDArray[np.int32] | None = field(default=None, init=False)
    """(m,) cluster of each searched row; None if unknown, as after a resume. Only rows that change
    cluster are counted again. Checkpoints omit this field, because ``init`` is False."""

    def then(self, labels: NDArray[np.int32]) -> CountedLabels:
        counted = CountedLabels(self.generation + 1)
        object.__setattr__(counted, "labels", labels)
        return counted


@dataclass(frozen=True, slots=True)
class ProjectedState:
    """State between two steps of a search on projected rows."""

    search: TruncatedState
    vectors: NDArray[Any]
    origin: NDArray[Any]
    centers: NDArray[Any]
    """(k, d) means in all features after the last round; before the first means, starting
    centres."""
    counts: NDArray[np.float64]
    coarse: NDArray[Any]
    variance_outside: float
    """Share of the variance outside the directions."""
    cost_outside: float
    """Cost outside the directions with the last means in all features; before the first means, and
    after a change of directions, an estimate."""
    cost: float = float("inf")
    round_cost: float = float("inf")
    """Value of ``cost`` when the last round began; infinity before the first round in these
    directions."""
    counted: CountedLabels = CountedLabels()
    """Labels with which the means were computed when the last round began."""
    n_rows: int = 0
    """Number of searched rows if a sample is searched; 0 if all rows are searched."""
    scale: float = 1.0
    """Total weight of all rows, divided by the weight of the searched rows."""

    @property
    def step(self) -> int:
        return self.search.step

    @property
    def directions(self) -> Directions:
        return Directions.of(self.vectors, self.origin)

    @property
    def n_read(self) -> int:
        """Number of times that all rows were read: once for the projection, and once per round."""
        return 1 + self.counted.generation

    @property
    def has_means(self) -> bool:
        """True if the means in all features have been computed."""
        return self.counted.generation > 0

    @property
    def is_mostly_outside(self) -> bool:
        """True if most of the cost is outside the directions."""
        return self.cost_outside > MOST_COST_OUTSIDE * self.cost


@dataclass(frozen=True)
class ProjectedSearch:
    """Search that begins in few directions and ends in all features."""

    search: TruncatedSearch
    directions: int | Literal["auto"]
    """Number of directions; "auto": the smallest number with most of the variance, if projection
    saves time."""

    @property
    def _k(self) -> int:
        return self.search.problem.n_clusters

    def _first_directions(self, passes: Passes, rng: Rng) -> tuple[Directions, LeftOut] | None:
        """Return the first directions and the variance outside them; None: use all features."""
        init, known = self.search.problem.init, None
        if not isinstance(init, str) or init != "auto" or passes.is_sparse:
            return None
        if self.directions != "auto":
            m = self.directions
            fits = rows_to_hold(passes.n_rows, m, self._k) is not None
            return self._more_directions(passes, rng, m) if m < passes.n_features and fits else None
        if passes.n_rows * passes.n_features < LEAST_VALUES:
            return None
        m = NARROWEST
        while saves(passes, m, self._k):
            found = self._more_directions(passes, rng, m, known)
            if found is None or found[1].share <= MOST_VARIANCE_OUTSIDE:
                return found
            if found[1].share > 2 * MOST_VARIANCE_OUTSIDE:
                # Twice as many directions would only halve the variance outside (on mnist).
                return self._random_directions(passes, rng, found[0])
            m, known = 2 * m, found[0]
        return None

    def _random_directions(
        self, passes: Passes, rng: Rng, known: Directions
    ) -> tuple[Directions, LeftOut] | None:
        """Return the ``known`` principal and random directions, if these show which rows are near.

        Otherwise return None.
        """
        m, n_threads = passes.n_features // FEATURES_PER_DIRECTION, passes.threads.n
        n = min(passes.n_rows, 2 * SAMPLE_ROWS)
        x, _, _ = self.search.start_sample(passes, rng, n).take()
        if m <= NARROWEST or len(x) < 2 * COMPARED_ROWS or not saves(passes, m, self._k):
            return None
        found = with_random_directions(known, m, rng)
        if found is None or self._misses_outliers(passes, x, m):
            return None
        # The directions were not computed from these rows if there are enough others.
        rows, others = x[-COMPARED_ROWS:], x[-SAMPLE_ROWS:-COMPARED_ROWS]
        before, after = (
            lost_nearness(rows, others, directions, n_threads) for directions in (known, found)
        )
        # Projections onto random directions estimate the whole cost.
        return (found, LeftOut(1.0, 0.0)) if after <= MOST_LOST * before else None

    def _misses_outliers(self, passes: Passes, x: NDArray[Any], m: int) -> bool:
        """Return True if a sample must be searched and outliers may account for much of the cost.

        ``x`` are some of the rows.
        """
        if not rows_to_hold(passes.n_rows, m, self._k):
            return False
        # A few rows can only cost much if they are much farther away than other rows.
        seen = np.sort(np.abs(x - passes.statistics.shift).max(axis=1))
        return bool(passes.statistics.max_abs > FAR_OUT * seen[99 * len(seen) // 100])

    def _more_directions(
        self, passes: Passes, rng: Rng, m: int, known: Directions | None = None
    ) -> tuple[Directions, LeftOut] | None:
        """Return the first m principal directions and the variance outside them, or None.

        The result is None if there are fewer directions, or if a sample must be searched and
        outliers may account for much of the cost. ``known`` are the first of these directions.
        """
        shift, n = passes.statistics.shift, min(passes.n_rows, 2 * SAMPLE_ROWS)
        x, weight, _ = self.search.start_sample(passes, rng, n).take()
        if self._misses_outliers(passes, x, m):
            return None
        fitted, others = slice(SAMPLE_ROWS), slice(-SAMPLE_ROWS, None)
        own = None if weight is None else weight[fitted]
        directions = principal_directions(x[fitted], own, shift, rng, m, known, passes.threads.n)
        if directions is None:
            return None
        own = None if weight is None else weight[others]
        return directions, left_out(x[others], own, directions, passes.threads.n)

    def init(self, passes: Passes, rng: Rng) -> ProjectedState | None:
        found = self._first_directions(passes, rng) if self.directions != 0 else None
        if found is None:
            return None
        directions, outside = found
        n_held = rows_to_hold(passes.n_rows, len(directions.vectors), self._k) or 0
        search = self.search.init(_projected_rows(passes, rng, directions, n_held), rng)
        return ProjectedState(
            search=search,
            vectors=directions.vectors,
            origin=directions.origin,
            centers=_back_project(search.centers, directions),
            counts=np.zeros(self._k),
            coarse=_back_project(search.coarse, directions),
            variance_outside=outside.share,
            cost_outside=outside.of_a_row * passes.statistics.total_weight,
            n_rows=n_held,
        )

    def step(
        self, passes: Passes, rng: Rng, state: ProjectedState
    ) -> tuple[ProjectedState | TruncatedState, Info]:
        """Run one step; return a ``TruncatedState`` as soon as all features are used."""
        view = _projected_rows(passes, rng, state.directions, state.n_rows)
        before = _rescaled(passes, view, state)
        search, info = self.search.step(view, rng, before.search)
        schedule = search.schedule
        state = replace(before, search=search)
        has_ended = schedule.stage.name == "end"
        needs_means = search.everywhere and (schedule.opens_round or not state.has_means)
        if not (needs_means or has_ended):
            return state, _record(info, state)
        if not search.restores:
            state = self._with_means(passes, view, state)
        info, is_judged = _record(info, state), schedule.opens_round or has_ended
        if has_ended or state.is_mostly_outside or (is_judged and _is_done(before, state)):
            return self._in_more_directions(passes, rng, state, view), info
        return replace(state, round_cost=state.cost) if is_judged else state, info

    def model(self, state: ProjectedState) -> CenterArrays:
        """Return the last means in all features; before the first, the centres of the search."""
        if state.has_means:
            return CenterArrays(state.centers, state.counts, state.origin)
        own = self.search.model(state.search)
        centers = _back_project(own.centers, state.directions)
        return CenterArrays(centers, state.scale * own.counts, state.origin)

    def in_all_features(
        self, passes: Passes, state: ProjectedState, labels: NDArray[np.int32] | None = None
    ) -> TruncatedState:
        """Continue in all features, from the labels of all rows if these are known."""
        n_read = state.n_read
        centers = self.model(state).centers
        begun = self._next_search(passes, state, centers, state.coarse, labels, n_read)
        begun = replace(begun, schedule=replace(begun.schedule, cost=state.cost))
        # After given labels, the generations of the history include these readings.
        return replace(begun, n_read=n_read) if labels is None else begun

    def _next_search(
        self,
        table: Passes,
        state: ProjectedState,
        centers: NDArray[Any],
        coarse: NDArray[Any],
        labels: NDArray[np.int32] | None,
        generation: int = 1,
    ) -> TruncatedState:
        """Return a search on all rows of ``table``, which begins with the labels (n,) if given."""
        shift, labelled = table.statistics.shift, labels is not None
        schedule = on_all_rows(
            state.search.schedule, self.search.setting(table), state.cost, labelled=labelled
        )
        history: History[Pass] = History()
        if labels is not None:
            history = given_labels(centers, shift, labels, generation)
        return TruncatedState(
            state.step,
            schedule,
            centers,
            state.counts,
            shift,
            coarse,
            everywhere=labelled,
            history=history,
            cost=state.cost,
        )

    def held_bytes(self, table: TableShape, itemsize: int) -> int:
        """Return the maximum size of projected rows and their state, in bytes."""
        m = NARROWEST if self.directions == "auto" else self.directions
        widest = max(0 if self.directions == "auto" else m, table.n_features // LEAST_SAVED)
        held = rows_to_hold(table.n_rows, m, self._k)
        if table.is_sparse or m == 0 or m > widest or m >= table.n_features or held is None:
            return 0
        # All values are held twice: as parts that were read, and as one array.
        values = 2 * min(table.n_rows * widest, MOST_VALUES) * itemsize
        return values + (held or table.n_rows) * (2 * 8 + 2 * row_bytes(itemsize))

    def _with_means(self, passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
        """Compute the cost and the means of the clusters in all features.

        This is one pass over all rows, but rows whose label has not changed since the last such
        pass are skipped. An empty cluster keeps the centre of the search.
        """
        labels = current_labels(view, state.search.history)
        rows, known = view.take().rows, state.counted.labels
        numbers = None if len(rows) == passes.n_rows else rows
        replay = () if known is None or len(known) != len(labels) else ((numbers, known, -1),)
        (k, d), grid, n_threads = state.centers.shape, passes.statistics.grid, passes.threads.n
        total: AssignmentTotal[Tally] = passes.reduce(
            count_chunk,
            numbers,
            labels,
            state.step,
            start=partial(AssignmentTotal, k, d, grid),
            combine=AssignmentTotal.combine,
            state=RowState(STATE, state.counted.generation + 1, replay, retain=True),
            joined=True,
        )
        centers, empty = state.centers, total.sums.weights <= 0
        if empty.any():
            centers = centers.copy()
            centers[empty] = _back_project(state.search.centers[empty], state.directions)
        centers = total.sums.means(centers, n_threads)
        cost = state.scale * total.sums.cost(centers, total.squares.value, n_threads)
        return replace(
            state,
            centers=centers,
            counts=state.scale * total.sums.counts,
            cost=cost,
            cost_outside=max(0.0, cost - state.scale * state.search.schedule.cost),
            counted=state.counted.then(labels),
        )

    def _in_more_directions(
        self, passes: Passes, rng: Rng, state: ProjectedState, view: Passes
    ) -> ProjectedState | TruncatedState:
        """Continue in twice as many directions, or in all features.

        More directions are used if they save time, and if all rows fit in memory: on fewer rows
        than before, means would be less accurate, and labels of the other rows unknown.
        """
        m, found, labels = 2 * len(state.vectors), None, None
        if not state.n_rows and not state.search.schedule.dense:
            labels = current_labels(view, state.search.history, saved=state.search.restores)
        fit = rows_to_hold(passes.n_rows, m, self._k) == 0
        if fit and saves(passes, m, self._k) and not state.is_mostly_outside:
            found = self._more_directions(passes, rng, m, state.directions)
        if found is None:
            if labels is not None and (rows := view.take().rows).size < passes.n_rows:
                spread = np.full(passes.n_rows, -1, np.int32)
                spread[rows] = labels
                labels = spread
            view.close()
            return self.in_all_features(passes, state, labels)
        (directions, outside), total_weight = found, passes.statistics.total_weight
        view = _projected_rows(passes, rng, directions, 0)
        centers, coarse = project(state.centers, directions), project(state.coarse, directions)
        search = self._next_search(view, state, centers, coarse, labels)
        return replace(
            state,
            search=search,
            vectors=directions.vectors,
            origin=directions.origin,
            variance_outside=outside.share,
            cost_outside=min(state.cost_outside, outside.of_a_row * total_weight),
            round_cost=float("inf"),
        )


def saves(passes: Passes, m: int, k: int) -> bool:
    """Return True if projection onto m directions saves time, and enough rows fit in memory."""
    return m * LEAST_SAVED <= passes.n_features and rows_to_hold(passes.n_rows, m, k) is not None


def rows_to_hold(n_rows: int, m: int, k: int) -> int | None:
    """Return the number of rows to search in m directions: 0 for all, None if too few fit."""
    if n_rows * m <= MOST_VALUES:
        return 0
    fit = MOST_VALUES // m
    return fit if fit >= LEAST_ROWS * k else None


def _projected_rows(passes: Passes, rng: Rng, directions: Directions, n_rows: int) -> Passes:
    """Project a sample of ``n_rows``, or all rows if it is 0."""
    within = RowSample(rng, "projected", n_rows, ascending=True) if n_rows else None
    return passes.subset(ProjectedRows(directions, within))


def _back_project(points: NDArray[Any], directions: Directions) -> NDArray[Any]:
    """Map projected points (k, m) back to all features; products are added in a fixed order."""
    lengths = row_squares(directions.vectors, np.zeros_like(directions.origin))
    vectors = directions.vectors / np.where(lengths > 2, lengths, 1)[:, None].astype(points.dtype)
    back = Directions.of(np.ascontiguousarray(vectors.T), np.zeros_like(points[0]))
    out: NDArray[Any] = project(points, back) + directions.origin
    return out


def _rescaled(passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
    """Convert costs in the state from estimates for all rows to costs of the rows of ``view``."""
    scale = 1.0
    if state.n_rows:
        scale = passes.statistics.total_weight / view.statistics.total_weight
    factor = state.scale / scale
    if factor == 1:
        return state
    search, schedule = state.search, state.search.schedule
    stage = replace(schedule.stage, cost_before=factor * schedule.stage.cost_before)
    schedule = replace(schedule, cost=factor * schedule.cost, stage=stage)
    search = replace(search, schedule=schedule, cost=factor * search.cost)
    return replace(state, search=search, scale=scale)


def _is_done(before: ProjectedState, after: ProjectedState) -> bool:
    """Return True if the last round gained too little to continue in these directions."""
    gained, n = before.round_cost - after.cost, after.n_rows
    # Expected reduction of the cost if all rows were searched.
    k = len(after.centers)
    unseen = after.cost * k * (1 / n - 1 / (n * after.scale)) if n else 0.0
    return gained < LEAST_GAIN * (after.variance_outside * after.cost_outside + unseen)


def _record(info: Info, state: ProjectedState) -> Info:
    extra = {**info.extra, "steps_per_reading": state.step / state.n_read}
    if state.n_rows:
        extra["everywhere"] = 0.0
        extra["by_means"] = state.scale * info.extra["by_means"]
    cost = state.scale * info.cost + state.cost_outside
    return replace(info, cost=cost, converged=False, extra=extra)


def count_chunk(
    chunk: Chunk,
    total: AssignmentTotal[Tally],
    numbers: NDArray[np.int64] | None,
    labels: NDArray[np.int32],
    step: int,
) -> None:
    """Add a chunk's rows to the sums of their clusters.

    ``numbers`` (m,) are the ascending indices of the rows to add, or None for all rows; ``labels``
    (m,) are the clusters of these rows.
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
