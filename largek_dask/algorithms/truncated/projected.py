"""Search on rows projected onto a few principal directions, before the search in all features.

If a few directions hold most of the variance, distances between projected rows approximate
distances in all features and take a fraction of the time. For an orthonormal projection P

    ||x - c||^2 = ||P x - P c||^2 + ||x' - c'||^2

where x' and c' are the components orthogonal to the directions. So the cost of a partition is its
cost in the projection plus an orthogonal ("outside") cost, which the search ignores. The relative
loss is about a twentieth of the product of the shares of variance and cost that are outside. When a
round gains no more than that, the search continues in twice as many directions, and finally in all
features.

Whenever a round begins, the means in all features are computed; they give the cost and the model.

The projected rows are held in memory: all rows, or a sample if these do not fit. A sample is
searched only as long as its rounds gain more than a twentieth of the reduction of the cost expected
from all rows, whose means are more accurate.
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
    principal_directions,
)
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally, count_rows
from largek_dask.algorithms.truncated.passes import STATE, stored_state
from largek_dask.algorithms.truncated.schedule import (
    Schedule,
    first_schedule,
    on_all_rows,
    sample_sizes,
)
from largek_dask.algorithms.truncated.search import TruncatedSearch, row_bytes, sample_sizes_of
from largek_dask.algorithms.truncated.state import TruncatedState
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.projection import Directions, project

NARROWEST = 32
"""Initial number of directions. With 16 directions, a quarter of the variance of set C (784
features) is outside."""
LEAST_SAVED = 4
"""Minimum number of features per direction; with fewer, projection saves little time."""
MOST_VARIANCE_OUTSIDE = 0.175
"""Maximum share of the variance outside of the first directions. For sift200k (128 features) it is
0.21 with 32 directions, and a search in these takes as long as one in all features."""
LEAST_GAIN = 0.05
"""Minimum relative gain of a round, divided by the product of the shares of variance and cost that
are outside; a lower gain ends the search in these directions. Searches that ran to the end in 32 to
128 directions lost 0.02 to 0.12 times that product (sets C, mnist, sift200k), and nothing in 32
directions of 3,072 features (patches of photographs). For a sample, the gain expected from the
means of all rows is multiplied by the same factor."""
MOST_COST_OUTSIDE = 0.85
"""Maximum share of the cost outside; above it, the search continues in all features. With 32
directions it is 0.34 (C), 0.53 (mnist) and 0.64 (patches, where projection saves most time)."""
MOST_VALUES = 1 << 26
"""Maximum number of values (rows times directions) held in the driver's process; if there are more,
a sample of rows is searched."""
LEAST_ROWS = 64
"""Minimum rows per cluster of a sample that is searched. Not tuned."""
FAR_OUT = 4.0
"""Multiple of the 99th percentile of the rows' largest values, above which a row is far out. With
20 such rows out of 20,000, a search on 9,000 of these that was cut short ended at 10^5 times the
cost."""
LEAST_VALUES = 1 << 22
"""Minimum number of values (rows times features) for which projection can save time. Not
measured."""


@dataclass(frozen=True, eq=False)
class CountedLabels:
    """Labels from which means in all features were last computed."""

    generation: int = 0
    """Number of times that means were computed."""
    labels: NDArray[np.int32] | None = field(default=None, init=False)
    """(m,) cluster of each searched row. Rows that keep their cluster are not counted again.

    None if unknown, as after a resume: checkpoints contain only ``init`` fields."""

    def then(self, labels: NDArray[np.int32]) -> CountedLabels:
        """Return the record after computing means from these labels."""
        counted = CountedLabels(self.generation + 1)
        object.__setattr__(counted, "labels", labels)
        return counted


@dataclass(frozen=True, slots=True)
class ProjectedState:
    """State between two steps on rows projected onto few directions."""

    search: TruncatedState
    """State of the search on the projected rows, which have m features."""
    vectors: NDArray[Any]
    """(m, d) directions."""
    origin: NDArray[Any]
    """(d,) origin of the projection."""
    centers: NDArray[Any]
    """(k, d) means in all features after the last round, or of a sample before the first round."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster, scaled to all rows."""
    coarse: NDArray[Any]
    """(about sqrt(k), d) coarse centres."""
    variance_outside: float
    """Share of the variance outside of the directions."""
    cost_outside: float
    """Cost outside of the directions: computed at the last round, or estimated on a sample before
    the first round."""
    cost: float = float("inf")
    """Cost of all rows with ``centers``."""
    round_cost: float = float("inf")
    """Value of ``cost`` when the last round began; infinity before the first round in these
    directions."""
    counted: CountedLabels = CountedLabels()
    """Labels from which means were computed when the last round began."""
    is_ahead: bool = False
    """True if the centres of the search are better than ``centers``. This is possible while the
    search is on samples, before the means of all rows are known."""
    expected: float = float("inf")
    """Expected cost of all rows with the means of a sample; infinity if there are no such means."""
    n_rows: int = 0
    """Number of searched rows if these are a sample; 0: all rows are searched."""
    scale: float = 1.0
    """Weight of all rows divided by the weight of the searched rows."""

    @property
    def step(self) -> int:
        """Number of steps so far."""
        return self.search.step

    @property
    def directions(self) -> Directions:
        """Directions, for the kernels."""
        return Directions.of(self.vectors, self.origin)

    @property
    def n_read(self) -> int:
        """Number of times that all rows were read: once to project them, and once per round."""
        return 1 + self.counted.generation

    @property
    def is_mostly_outside(self) -> bool:
        """True if most of the cost is outside, so that the directions do not separate clusters."""
        return self.cost_outside > MOST_COST_OUTSIDE * self.cost


@dataclass(frozen=True)
class ProjectedSearch:
    """Search that begins in few directions and ends in all features."""

    search: TruncatedSearch
    directions: int | Literal["auto"]
    """Number of directions; "auto": the smallest number that holds most of the variance, if
    projection saves time."""

    @property
    def _k(self) -> int:
        return self.search.problem.n_clusters

    # --- directions -------------------------------------------------------------------------------

    def _first_directions(self, passes: Passes, rng: Rng) -> tuple[Directions, LeftOut] | None:
        """Return the first directions and the variance outside; None: begin in all features."""
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
        # Find the smallest number of directions that hold most of the variance.
        while saves(passes, m, self._k):
            found = self._more_directions(passes, rng, m, known)
            if found is None or found[1].share <= MOST_VARIANCE_OUTSIDE:
                return found
            if found[1].share > 2 * MOST_VARIANCE_OUTSIDE:
                # Twice as many would not be enough either: doubling the number of directions lowers
                # the share outside from 0.28 to 0.15 on mnist.
                return None
            m, known = 2 * m, found[0]
        return None

    def _more_directions(
        self, passes: Passes, rng: Rng, m: int, known: Directions | None = None
    ) -> tuple[Directions, LeftOut] | None:
        """Return the first m directions and the variance outside of them, or None.

        None if there are fewer directions, or if a held sample may miss rows that are far out and
        account for much of the cost. ``known`` are the first of these directions.
        """
        shift, first = passes.statistics.shift, sample_sizes_of(passes, self._k)[0]
        n = max(first, min(passes.n_rows, 2 * SAMPLE_ROWS))
        x, weight, _ = self.search.start_sample(passes, rng, n).take()
        if rows_to_hold(passes.n_rows, m, self._k):
            # Few rows can account for much of the cost only if they are many times as far away as
            # other rows.
            seen = np.sort(np.abs(x - shift).max(axis=1))
            if passes.statistics.max_abs > FAR_OUT * seen[99 * len(seen) // 100]:
                return None
        fitted, others = slice(SAMPLE_ROWS), slice(-SAMPLE_ROWS, None)
        own = None if weight is None else weight[fitted]
        directions = principal_directions(x[fitted], own, shift, rng, m, known)
        if directions is None:
            return None
        own = None if weight is None else weight[others]
        return directions, left_out(x[others], own, directions)

    # --- steps ------------------------------------------------------------------------------------

    def init(self, passes: Passes, rng: Rng) -> ProjectedState | None:
        """Return the state before the first step; None: begin in all features."""
        found = self._first_directions(passes, rng) if self.directions != 0 else None
        if found is None:
            return None
        directions, outside = found
        n_held = rows_to_hold(passes.n_rows, len(directions.vectors), self._k) or 0
        search = self._begin(passes, rng, directions, n_held)
        return ProjectedState(
            search=search,
            vectors=directions.vectors,
            origin=directions.origin,
            centers=_back_project(search.centers, directions),
            counts=np.zeros(self._k),
            coarse=_back_project(search.coarse, directions),
            variance_outside=outside.share,
            # Back-projected centres have no component outside, so the cost outside is the whole
            # variance outside.
            cost_outside=outside.of_a_row * passes.statistics.total_weight,
            n_rows=n_held,
        )

    def _begin(
        self, passes: Passes, rng: Rng, directions: Directions, n_held: int
    ) -> TruncatedState:
        """Return the state of the search before its first step on projected rows."""
        k, m, n = self._k, len(directions.vectors), n_held or passes.statistics.n_rows
        setting, sizes = replace(self.search.setting(passes), n_rows=n), sample_sizes(n, m, k)
        schedule = first_schedule(setting, sizes)
        if schedule.stage.name == "first":
            # Fetching the first sample takes longer than searching the next one in few directions.
            schedule = first_schedule(setting, sizes[1:])
        few = self._small_sample(passes, rng, schedule)
        view = _projected_rows(passes, rng, directions, n_held, few)
        sample = self.search.start_sample(view, rng, sizes[0]) if few is None else view
        if schedule.task.kind == "start":
            # The first step replaces these centres.
            centers = np.resize(sample.take().x[:k], (k, m))
            coarse = centers[:1]
        else:
            centers, coarse, _ = self.search.start(view, rng, sample)
        return TruncatedState(0, schedule, centers, np.zeros(k), view.statistics.shift, coarse)

    def _small_sample(self, passes: Passes, rng: Rng, schedule: Schedule) -> Passes | None:
        """Return the rows of the next step, in all features, if they are a small sample."""
        if schedule.searched or schedule.n_rows >= schedule.setting.n_rows:
            return None
        return self.search.start_sample(passes, rng, schedule.n_rows)

    def step(
        self, passes: Passes, rng: Rng, state: ProjectedState
    ) -> tuple[ProjectedState | TruncatedState, Info]:
        """Run one step; the returned state is a ``TruncatedState`` once all features are used.

        Means in all features are computed at the end of a round. A step on a small sample projects
        only the sample, and computes its means at once.
        """
        few = self._small_sample(passes, rng, state.search.schedule)
        view = _projected_rows(passes, rng, state.directions, state.n_rows, few)
        if few is not None:
            search, info, done = self.search.step_on(passes, rng, state.search, view)
            assert done.labels is not None
            state = replace(state, search=search)
            state = self._with_sample_means(few, done.labels, state, done.scale)
            return state, _record(info, state)
        before = _rescaled(passes, view, state)
        search, info = self.search.step(view, rng, before.search)
        schedule = search.schedule
        expected = before.scale * schedule.cost + before.cost_outside
        expected = _of_all_rows(expected, self._k, before.search.schedule.n_rows)
        is_ahead = before.counted.generation == 0 and expected < before.expected
        state = replace(before, search=search, is_ahead=is_ahead)
        has_ended = schedule.stage.name == "end"
        if not has_ended and not (search.everywhere and schedule.opens_round):
            return state, _record(info, state)
        if not search.restores:
            state = self._with_means(passes, view, state)
        info = _record(info, state)
        if has_ended or state.is_mostly_outside or _is_done(before, state):
            return self._in_more_directions(passes, rng, state, view), info
        return state, info

    def model(self, state: ProjectedState) -> CenterArrays:
        """Return the centres of the last round, or the centres of the search if they are better."""
        if not state.is_ahead:
            return CenterArrays(state.centers, state.counts, state.origin)
        own = self.search.model(state.search)
        centers = _back_project(own.centers, state.directions)
        return CenterArrays(centers, state.scale * own.counts, state.origin)

    def in_all_features(self, passes: Passes, state: ProjectedState) -> TruncatedState:
        """Return a state from which the search continues in all features."""
        schedule = on_all_rows(state.search.schedule, self.search.setting(passes))
        return TruncatedState(
            state.step,
            replace(schedule, cost=state.cost),
            state.centers,
            state.counts,
            passes.statistics.shift,
            state.coarse,
            cost=state.cost,
            n_read=state.n_read,
        )

    def held_bytes(self, table: TableShape, itemsize: int) -> int:
        """Return the maximum size of projected rows and their state, in bytes.

        0 if the search begins in all features.
        """
        m = NARROWEST if self.directions == "auto" else self.directions
        widest = max(0 if self.directions == "auto" else m, table.n_features // LEAST_SAVED)
        held = rows_to_hold(table.n_rows, m, self._k)
        if table.is_sparse or m == 0 or m > widest or m >= table.n_features or held is None:
            return 0
        # Values are held twice: as they are read, and as one array.
        values = 2 * min(table.n_rows * widest, MOST_VALUES) * itemsize
        return values + (held or table.n_rows) * (2 * 8 + 2 * row_bytes(itemsize))

    # --- from step to step ------------------------------------------------------------------------

    def _with_sample_means(
        self, sample: Passes, labels: NDArray[np.int32], state: ProjectedState, scale: float
    ) -> ProjectedState:
        """Return the state after a step on a sample, with means of its rows in all features.

        ``labels`` (n,) are the labels of the sample's rows; ``scale`` is the weight of all rows
        divided by the weight of the sample.
        """
        (k, d), directions = state.centers.shape, state.directions
        sums: ClusterSums = sample.reduce(
            sum_chunk,
            labels,
            start=partial(ClusterSums, k, d, sample.statistics.grid),
            combine=ClusterSums.merge,
            joined=True,
        )
        centers = sums.means(_back_project(state.search.centers, directions))
        counts = sums.counts * scale
        # The cost outside is the variance of the rows there, minus the variance of their means.
        whole, seen = ExactSums(1), ExactSums(1)
        whole.add(row_squares(centers, directions.origin), counts)
        projected = project(centers, directions)
        seen.add(row_squares(projected, np.zeros(len(directions.vectors))), counts)
        cost_outside = max(0.0, state.cost_outside - max(0.0, whole.value - seen.value))
        cost = state.search.schedule.cost + cost_outside
        expected = _of_all_rows(cost, k, sample.n_rows)
        return replace(
            state, centers=centers, counts=counts, cost=cost, is_ahead=False, expected=expected
        )

    def _with_means(self, passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
        """Return the state with the cost and the means of the clusters in all features.

        This takes one pass over all rows, with the labels of the searched rows; rows that have kept
        their label since the last such pass are skipped.
        """
        found: dict[int, NDArray[np.int32]] = view.reduce(
            labels_chunk,
            start=dict,
            combine=dict.__or__,
            state=stored_state(view, state.search.history),
            joined=True,
        )
        labels = np.concatenate([found[begin] for begin in sorted(found)])
        rows, known = view.take().rows, state.counted.labels
        numbers = None if len(rows) == passes.n_rows else rows
        (k, d), grid = state.centers.shape, passes.statistics.grid
        replay = () if known is None or len(known) != len(labels) else ((numbers, known, -1),)
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
        centers = total.sums.means(state.centers)
        cost = state.scale * total.sums.cost(centers, total.squares.value)
        return replace(
            state,
            centers=centers,
            counts=state.scale * total.sums.counts,
            cost=cost,
            cost_outside=max(0.0, cost - state.scale * state.search.schedule.cost),
            round_cost=cost,
            counted=state.counted.then(labels),
            is_ahead=False,
        )

    def _in_more_directions(
        self, passes: Passes, rng: Rng, state: ProjectedState, view: Passes
    ) -> ProjectedState | TruncatedState:
        """Return the state in twice as many directions, or in all features if these save little."""
        m, found = 2 * len(state.vectors), None
        if saves(passes, m, self._k) and not state.is_mostly_outside:
            found = self._more_directions(passes, rng, m, state.directions)
        if found is None:
            view.close()
            return self.in_all_features(passes, state)
        directions, outside = found
        n_held = rows_to_hold(passes.n_rows, m, self._k) or 0
        view = _projected_rows(passes, rng, directions, n_held)
        schedule = on_all_rows(state.search.schedule, self.search.setting(view))
        centers, coarse = project(state.centers, directions), project(state.coarse, directions)
        shift = view.statistics.shift
        return replace(
            state,
            search=TruncatedState(state.step, schedule, centers, state.counts, shift, coarse),
            vectors=directions.vectors,
            origin=directions.origin,
            variance_outside=outside.share,
            round_cost=float("inf"),
            n_rows=n_held,
        )


def saves(passes: Passes, m: int, k: int) -> bool:
    """Return True if m directions are few enough, and enough projected rows can be held."""
    return m * LEAST_SAVED <= passes.n_features and rows_to_hold(passes.n_rows, m, k) is not None


def rows_to_hold(n_rows: int, m: int, k: int) -> int | None:
    """Return the number of rows to search in m directions; 0: all; None: too few for k clusters."""
    if n_rows * m <= MOST_VALUES:
        return 0
    fit = MOST_VALUES // m
    return fit if fit >= LEAST_ROWS * k else None


def _projected_rows(
    passes: Passes, rng: Rng, directions: Directions, n_rows: int, few: Passes | None = None
) -> Passes:
    """Return projections of ``few`` if given, of a sample of ``n_rows``, or, if 0, of all rows."""
    if few is not None:
        return few.subset(ProjectedRows(directions))
    within = RowSample(rng, "projected", n_rows, ascending=True) if n_rows else None
    return passes.subset(ProjectedRows(directions, within))


def _back_project(points: NDArray[Any], directions: Directions) -> NDArray[Any]:
    """Back-project points (k, m) to all features; products are added in a fixed order."""
    back = Directions.of(np.ascontiguousarray(directions.vectors.T), np.zeros_like(points[0]))
    out: NDArray[Any] = project(points, back) + directions.origin
    return out


def _rescaled(passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
    """Rescale the costs in the state of the search to the rows of ``view``, if they are a sample.

    Before the first search of these rows, costs are estimates for all rows from a small sample.
    """
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


def _of_all_rows(cost: float, k: int, n: int) -> float:
    """Return the expected cost of all rows, given its estimate from n rows in k clusters.

    If rows have the variance s about their true means, the n rows themselves cost (n - k) s, but n
    other rows cost (n + k) s.
    """
    return cost * (1 + 2 * k / n)


def _is_done(before: ProjectedState, after: ProjectedState) -> bool:
    """Return True if the last round gained too little to continue in these directions."""
    gained, n = before.round_cost - after.cost, after.n_rows
    # Expected change of the cost by the rows that are not searched.
    k = len(after.centers)
    unseen = after.cost * k * (1 / n - 1 / (n * after.scale)) if n else 0.0
    return gained < LEAST_GAIN * (after.variance_outside * after.cost_outside + unseen)


def _record(info: Info, state: ProjectedState) -> Info:
    """Return the record of a step in few directions that led to this state."""
    extra = {**info.extra, "steps_per_reading": state.step / state.n_read}
    if state.n_rows:
        extra["everywhere"] = 0.0
        extra["by_means"] = state.scale * info.extra["by_means"]
    ahead = state.is_ahead or state.counted.generation > 0
    cost = state.scale * info.cost + state.cost_outside if ahead else state.cost
    return replace(info, cost=cost, converged=False, extra=extra)


def labels_chunk(chunk: Chunk, total: dict[int, NDArray[np.int32]]) -> None:
    """Collect the labels of a chunk's rows after the last pass."""
    assert chunk.state is not None
    total[chunk.start] = chunk.state["labels"]


def count_chunk(
    chunk: Chunk,
    total: AssignmentTotal[Tally],
    numbers: NDArray[np.int64] | None,
    labels: NDArray[np.int32],
    step: int,
) -> None:
    """Add a chunk's rows to the sums of their clusters.

    ``labels`` (m,) are the clusters of the rows to add; ``numbers`` (m,) are the ascending indices
    of these rows; None: all rows.
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


def sum_chunk(chunk: Chunk, total: ClusterSums, labels: NDArray[np.int32]) -> None:
    """Add the rows of a chunk to the sums of their clusters."""
    total.add(chunk.x, labels[chunk.start : chunk.start + len(chunk.x)], chunk.weight)
