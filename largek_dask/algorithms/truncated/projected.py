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
"""Initial directions. Sixteen of 784 leave out a quarter of set C's variance."""
LEAST_SAVED = 4
"""Minimum features per direction: below that little is saved."""
MOST_VARIANCE_OUTSIDE = 0.175
"""Maximum share of the variance outside at the beginning. In sift200k, 128 features, 32 directions
leave out 0.21, and such a search takes as long as that in all features."""
LEAST_GAIN = 0.05
"""Factor of the shares of variance and cost that are outside: a round that lowers the cost by a
smaller share is the last one in these directions. Searches that continued to their ends in 32 to
128 directions lost 0.02 to 0.12 times that product (sets C, mnist, sift200k), and nothing in 32 of
the 3,072 features of photographs' patches. For a sample, also the factor of what the means of all
rows will take off."""
MOST_COST_OUTSIDE = 0.85
"""Maximum share of the cost outside; beyond it the search continues in all features. With 32
directions it is 0.34 (C), 0.53 (mnist) and 0.64 (patches, where it pays most)."""
MOST_VALUES = 1 << 26
"""Maximum rows times directions, held in the driver's process. Of more rows, only as many are
searched."""
LEAST_ROWS = 64
"""Minimum rows per cluster of a sample that is searched. Not tuned."""
FAR_OUT = 4.0
"""Multiple of the largest value in 99 % of the rows: rows beyond are far out. Twenty of 20,000
rows, of which 9,000 were searched, made a fit cost 10^5 times as much (a search cut short)."""
LEAST_VALUES = 1 << 22
"""Rows times features above which projection can save time. Not measured."""


@dataclass(frozen=True, eq=False)
class CountedLabels:
    """Labels with which rows were last counted for means in all features."""

    generation: int = 0
    """Number of times that they were counted."""
    labels: NDArray[np.int32] | None = field(default=None, init=False)
    """(m,) cluster of each row that is searched. Rows that keep theirs are not counted again.

    None: unknown, as after a resume, since checkpoints have only fields of ``init``."""

    def then(self, labels: NDArray[np.int32]) -> CountedLabels:
        """Return the record after counting these labels."""
        counted = CountedLabels(self.generation + 1)
        object.__setattr__(counted, "labels", labels)
        return counted


@dataclass(frozen=True, slots=True)
class ProjectedState:
    """State between two steps among rows projected onto few directions."""

    search: TruncatedState
    """State of the search itself, of m features."""
    vectors: NDArray[Any]
    """(m, d) the directions."""
    origin: NDArray[Any]
    """(d,) origin of the projection."""
    centers: NDArray[Any]
    """(k, d) means in all features as of the last round; before it, of the last sample."""
    counts: NDArray[np.float64]
    """(k,) weight of their rows, scaled to all rows."""
    coarse: NDArray[Any]
    """(about sqrt(k), d) coarse centres."""
    variance_outside: float
    """Share of the variance outside of the directions."""
    cost_outside: float
    """Cost of rows outside, as of the last round; before it, by the sample of the directions."""
    cost: float = float("inf")
    """Cost of all rows with ``centers``."""
    round_cost: float = float("inf")
    """The same when the last round began; infinity: there was none in these directions."""
    counted: CountedLabels = CountedLabels()
    """Labels that were counted when the last round began."""
    is_ahead: bool = False
    """True if the search is better than the known means in all features, which is possible while
    larger samples are searched, until means of all rows are known."""
    expected: float = float("inf")
    """Expected cost of all rows with the means of a sample; infinity: there are none."""
    n_rows: int = 0
    """Rows of the searched sample; 0: all rows are searched."""
    scale: float = 1.0
    """Weight of all rows divided by that of the searched ones."""

    @property
    def step(self) -> int:
        """Number of steps so far."""
        return self.search.step

    @property
    def directions(self) -> Directions:
        """The directions, for the kernels."""
        return Directions.of(self.vectors, self.origin)

    @property
    def n_read(self) -> int:
        """Number of readings of all rows: one for the projection, and one per round."""
        return 1 + self.counted.generation

    @property
    def is_mostly_outside(self) -> bool:
        """True if most of the cost is outside: directions of variance do not separate rows."""
        return self.cost_outside > MOST_COST_OUTSIDE * self.cost


@dataclass(frozen=True)
class ProjectedSearch:
    """A search that begins in few directions of the rows, and ends in all features."""

    search: TruncatedSearch
    directions: int | Literal["auto"]
    """Number of directions; "auto": as few as hold most of the variance, if that saves time."""

    @property
    def _k(self) -> int:
        return self.search.problem.n_clusters

    # --- directions -------------------------------------------------------------------------------

    def _first_directions(self, passes: Passes, rng: Rng) -> tuple[Directions, LeftOut] | None:
        """Return the first directions, and the variance outside; None: begin in all features."""
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
        # As few as hold most of the variance.
        while saves(passes, m, self._k):
            found = self._more_directions(passes, rng, m, known)
            if found is None or found[1].share <= MOST_VARIANCE_OUTSIDE:
                return found
            if found[1].share > 2 * MOST_VARIANCE_OUTSIDE:
                # Twice as many are not enough either: of mnist 0.28 is left out, and then 0.15.
                return None
            m, known = 2 * m, found[0]
        return None

    def _more_directions(
        self, passes: Passes, rng: Rng, m: int, known: Directions | None = None
    ) -> tuple[Directions, LeftOut] | None:
        """Return the first m directions, and the variance outside of them.

        None: there are fewer, or rows are so far out that a held sample may miss those that carry
        the cost. ``known`` are the first directions.
        """
        shift, first = passes.statistics.shift, sample_sizes_of(passes, self._k)[0]
        n = max(first, min(passes.n_rows, 2 * SAMPLE_ROWS))
        x, weight, _ = self.search.start_sample(passes, rng, n).take()
        if rows_to_hold(passes.n_rows, m, self._k):
            # Few rows carry the cost only if they are many times as far away as others.
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
            # Back-projected centres lie in the directions: rows cost their whole variance outside.
            cost_outside=outside.of_a_row * passes.statistics.total_weight,
            n_rows=n_held,
        )

    def _begin(
        self, passes: Passes, rng: Rng, directions: Directions, n_held: int
    ) -> TruncatedState:
        """Return the state of the search before its first step among projected rows."""
        k, m, n = self._k, len(directions.vectors), n_held or passes.statistics.n_rows
        setting, sizes = replace(self.search.setting(passes), n_rows=n), sample_sizes(n, m, k)
        schedule = first_schedule(setting, sizes)
        if schedule.stage.name == "first":
            # Fetching its rows takes longer than searching the next sample in few directions.
            schedule = first_schedule(setting, sizes[1:])
        few = self._small_sample(passes, rng, schedule)
        view = _projected_rows(passes, rng, directions, n_held, few)
        sample = self.search.start_sample(view, rng, sizes[0]) if few is None else view
        if schedule.task.kind == "start":
            # The first step makes better ones.
            centers = np.resize(sample.take().x[:k], (k, m))
            coarse = centers[:1]
        else:
            centers, coarse, _ = self.search.start(view, rng, sample)
        return TruncatedState(0, schedule, centers, np.zeros(k), view.statistics.shift, coarse)

    def _small_sample(self, passes: Passes, rng: Rng, schedule: Schedule) -> Passes | None:
        """Return the rows of the next step, in all features, if these are a small sample."""
        if schedule.searched or schedule.n_rows >= schedule.setting.n_rows:
            return None
        return self.search.start_sample(passes, rng, schedule.n_rows)

    def step(
        self, passes: Passes, rng: Rng, state: ProjectedState
    ) -> tuple[ProjectedState | TruncatedState, Info]:
        """Run one step; return a state of the search itself once it continues in all features.

        At the end of a round, means in all features are found. A step on a small sample projects
        only that, and finds means at once.
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
        """Return the centres of the last round, or those of the search while these are better."""
        if not state.is_ahead:
            return CenterArrays(state.centers, state.counts, state.origin)
        own = self.search.model(state.search)
        centers = _back_project(own.centers, state.directions)
        return CenterArrays(centers, state.scale * own.counts, state.origin)

    def in_all_features(self, passes: Passes, state: ProjectedState) -> TruncatedState:
        """Return the state of the search, continued in all features."""
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
        """Return the bytes of projected rows and their state, in ``directions`` or twice as many.

        0 if the search begins in all features.
        """
        m = NARROWEST if self.directions == "auto" else self.directions
        widest = max(0 if self.directions == "auto" else m, table.n_features // LEAST_SAVED)
        held = rows_to_hold(table.n_rows, m, self._k)
        if table.is_sparse or m == 0 or m > widest or m >= table.n_features or held is None:
            return 0
        # Values as they are read, and in one piece.
        values = 2 * min(table.n_rows * widest, MOST_VALUES) * itemsize
        return values + (held or table.n_rows) * (2 * 8 + 2 * row_bytes(itemsize))

    # --- from step to step ------------------------------------------------------------------------

    def _with_sample_means(
        self, sample: Passes, labels: NDArray[np.int32], state: ProjectedState, scale: float
    ) -> ProjectedState:
        """Return the state after a step on a sample, with means of its rows in all features.

        ``labels`` (n,) are those of its rows, ``scale`` the weight of all rows divided by theirs.
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
        # Outside, rows cost their variance there, less that of their means.
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
        """Return the state with means in all features of the clusters of the search, and the cost.

        One pass over all rows, given the labels of the searched ones; rows that have kept theirs
        since the last such pass are not touched.
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
        """Return the state in twice as many directions, or in all features if they save little."""
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
    """Return how many rows are searched in m directions; 0: all; None: too few for k clusters."""
    if n_rows * m <= MOST_VALUES:
        return 0
    fit = MOST_VALUES // m
    return fit if fit >= LEAST_ROWS * k else None


def _projected_rows(
    passes: Passes, rng: Rng, directions: Directions, n_rows: int, few: Passes | None = None
) -> Passes:
    """Return all rows (0), a sample, or those of ``few``, projected onto some directions."""
    if few is not None:
        return few.subset(ProjectedRows(directions))
    within = RowSample(rng, "projected", n_rows, ascending=True) if n_rows else None
    return passes.subset(ProjectedRows(directions, within))


def _back_project(points: NDArray[Any], directions: Directions) -> NDArray[Any]:
    """Back-project points (k, m); each value is a sum of m products in a fixed order."""
    back = Directions.of(np.ascontiguousarray(directions.vectors.T), np.zeros_like(points[0]))
    out: NDArray[Any] = project(points, back) + directions.origin
    return out


def _rescaled(passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
    """Rescale the search to the costs of the rows of a view, if these are a sample.

    Before that its costs are those of all rows, as estimated on a small sample.
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
    """Return the expected cost of all rows, given that estimated by n of them in k clusters.

    With a variance s of a row about its true mean these cost (n - k) s, and others (n + k) s.
    """
    return cost * (1 + 2 * k / n)


def _is_done(before: ProjectedState, after: ProjectedState) -> bool:
    """Return True if these directions are exhausted: a round has gained too little."""
    gained, n = before.round_cost - after.cost, after.n_rows
    # Expected change by rows that are not searched: means of few rows fit only these.
    k = len(after.centers)
    unseen = after.cost * k * (1 / n - 1 / (n * after.scale)) if n else 0.0
    return gained < LEAST_GAIN * (after.variance_outside * after.cost_outside + unseen)


def _record(info: Info, state: ProjectedState) -> Info:
    """Return the record of a step in few directions, which has led to this state."""
    extra = {**info.extra, "steps_per_reading": state.step / state.n_read}
    if state.n_rows:
        extra["everywhere"] = 0.0
        extra["by_means"] = state.scale * info.extra["by_means"]
    ahead = state.is_ahead or state.counted.generation > 0
    cost = state.scale * info.cost + state.cost_outside if ahead else state.cost
    return replace(info, cost=cost, converged=False, extra=extra)


def labels_chunk(chunk: Chunk, total: dict[int, NDArray[np.int32]]) -> None:
    """Return the labels of a chunk's rows after the last pass."""
    assert chunk.state is not None
    total[chunk.start] = chunk.state["labels"]


def count_chunk(
    chunk: Chunk,
    total: AssignmentTotal[Tally],
    numbers: NDArray[np.int64] | None,
    labels: NDArray[np.int32],
    step: int,
) -> None:
    """Count a chunk's rows for their clusters ``labels`` (m,).

    ``numbers`` (m,) are the ascending indices of the rows that count; None: all.
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
    """Add up the rows of a chunk."""
    total.add(chunk.x, labels[chunk.start : chunk.start + len(chunk.x)], chunk.weight)
