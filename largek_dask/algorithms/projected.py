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

:class:`Projected` wraps any search that offers :class:`Search`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

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
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.directions import (
    SAMPLE_ROWS,
    LeftOut,
    left_out,
    principal_directions,
)
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally, count_rows
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.projection import Directions, project

__all__ = ["Project", "Projected", "ProjectedState", "Standing"]

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
LEAST_ROWS = 64
"""Minimum rows per cluster of a sample that is searched. Not tuned."""
FAR_OUT = 4.0
"""Multiple of the largest value in 99 % of the rows: rows beyond are far out. Twenty of 20,000
rows, of which 9,000 were searched, made a fit cost 10^5 times as much (a search cut short)."""
LEAST_VALUES = 1 << 22
"""Rows times features above which projection can save time. Not measured."""


FOUND = ("centers", "counts", "coarse", "cost", "n_read")
"""Fields of a state that a search in all features continues from."""
Project = Callable[[Passes | None], Passes]
"""Projects some rows; given None, all that are searched."""


class Standing(NamedTuple):
    """Progress of a search."""

    cost: float
    """Cost of all rows, as estimated by the searched ones."""
    n_rows: int
    """Rows of the next step."""
    is_settled: bool
    """A round over all rows is about to begin, or the search has ended."""
    has_ended: bool
    goes_back: bool
    """The next step restores the labels with which the last round began."""


class Search(Protocol):
    """Search with its own samples and rounds, which can continue in other features.

    Its states have ``step``, ``centers``, and ``coarse`` centres.
    """

    @property
    def problem(self) -> KMeansProblem:
        """Problem to solve."""

    row_state: ClassVar[str]
    """Name of its row state."""

    def first_sample(self, passes: Passes, rng: Rng, least: int) -> Passes:
        """Return the rows that it begins on, at least so many, in random order."""

    def begin(self, passes: Passes, rng: Rng, shape: tuple[int, int], project: Project) -> Any:
        """Return the state before the first step among projected rows of this shape."""

    def few(self, passes: Passes, rng: Rng, state: Any) -> Passes | None:
        """Return the rows of the next step, in all features, if these are a small sample."""

    def step_on(
        self, passes: Passes, rng: Rng, state: Any, sample: Passes
    ) -> tuple[Any, Info, NDArray[np.int32], float]:
        """Run one step on a sample; also return its labels, and the ratio of all weight to its."""

    def step(self, passes: Passes, rng: Rng, state: Any) -> tuple[Any, Info]:
        """Run one step."""

    def standing(self, state: Any) -> Standing:
        """Return the progress of the search."""

    def labels_of(self, passes: Passes, state: Any) -> NDArray[np.int32]:
        """Return the labels of all rows after the last step."""

    def rescaled(self, state: Any, factor: float) -> Any:
        """Return the state with all costs multiplied."""

    def continued(self, passes: Passes, state: Any, **found: Any) -> Any:
        """Return the state of a search of these rows that continues another one.

        ``found``: fields of the new state that were found for these rows.
        """

    def model(self, state: Any) -> CenterArrays:
        """Return the best model of a state."""


@dataclass(frozen=True, eq=False)
class Counted:
    """Labels with which rows were last counted for means in all features."""

    generation: int = 0
    """Number of times that they were counted."""
    labels: NDArray[np.int32] | None = field(default=None, init=False)
    """(m,) cluster of each row that is searched. Rows that keep theirs are not counted again.

    None: unknown, as after a resume, since checkpoints have only fields of ``init``."""

    def then(self, labels: NDArray[np.int32]) -> Counted:
        """Return the record after counting these labels."""
        counted = Counted(self.generation + 1)
        object.__setattr__(counted, "labels", labels)
        return counted


@dataclass(frozen=True, slots=True)
class ProjectedState:
    """State between two steps among rows projected onto few directions."""

    search: Any
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
    left_out: float
    """Share of the variance outside of the directions."""
    beside: float
    """Cost of rows outside, as of the last round; before it, by the sample of the directions."""
    cost: float = float("inf")
    """Cost of all rows with ``centers``."""
    round_cost: float = float("inf")
    """The same when the last round began; infinity: there was none in these directions."""
    counted: Counted = Counted()
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
        return int(self.search.step)

    @property
    def directions(self) -> Directions:
        """The directions, for the kernels."""
        return Directions.of(self.vectors, self.origin)

    @property
    def n_read(self) -> int:
        """Number of readings of all rows: one for the projection, and one per round."""
        return 1 + self.counted.generation

    @property
    def tells_little(self) -> bool:
        """True if most of the cost is outside: directions of variance do not separate rows."""
        return self.beside > MOST_BESIDE * self.cost


@dataclass(frozen=True)
class Projected:
    """A search that begins in few directions of the rows, and ends in all features."""

    search: Search
    directions: int | Literal["auto"]
    """Number of directions; "auto": as few as hold most of the variance, if that saves time."""

    @property
    def _k(self) -> int:
        return self.search.problem.n_clusters

    # --- directions -------------------------------------------------------------------------------

    def _first_directions(self, passes: Passes, rng: Rng) -> tuple[Directions, LeftOut] | None:
        """Return the first directions, and the variance outside; None: begin in all features."""
        m, init = self.directions, self.search.problem.init
        if not isinstance(init, str) or init != "auto" or passes.is_sparse or m == 0:
            return None
        if m == "auto":
            found = self._narrowest(passes, rng)
        elif m >= passes.n_features or rows_to_hold(passes.n_rows, m, self._k) is None:
            return None
        else:
            found = self._more_directions(passes, rng, m)
        return None if found is None or self._misses_far_rows(passes, rng, found[0]) else found

    def _narrowest(self, passes: Passes, rng: Rng) -> tuple[Directions, LeftOut] | None:
        """Return as few directions as hold most of the variance, if that saves time."""
        if passes.n_rows * passes.n_features < LEAST_VALUES:
            return None
        m, known = NARROWEST, None
        while saves(passes, m, self._k):
            found = self._more_directions(passes, rng, m, known)
            if found is None or found[1].share <= MOST_LEFT_OUT:
                return found
            if found[1].share > 2 * MOST_LEFT_OUT:
                # Twice as many are not enough either: of mnist 0.28 is left out, and then 0.15.
                return None
            m, known = 2 * m, found[0]
        return None

    def _more_directions(
        self, passes: Passes, rng: Rng, m: int, known: Directions | None = None
    ) -> tuple[Directions, LeftOut] | None:
        """Return the first m directions, and the variance outside of them; None: there are fewer.

        ``known`` are the first ones of them.
        """
        x, weight, _ = self._sample(passes, rng).take()
        seen, others = slice(SAMPLE_ROWS), slice(-SAMPLE_ROWS, None)
        own = None if weight is None else weight[seen]
        directions = principal_directions(x[seen], own, passes.statistics.shift, rng, m, known)
        if directions is None:
            return None
        own = None if weight is None else weight[others]
        return directions, left_out(x[others], own, directions)

    def _sample(self, passes: Passes, rng: Rng) -> Passes:
        """Return rows in random order from which directions are computed."""
        return self.search.first_sample(passes, rng, min(passes.n_rows, 2 * SAMPLE_ROWS))

    def _misses_far_rows(self, passes: Passes, rng: Rng, directions: Directions) -> bool:
        """Return True if rows are so far out that a held sample may miss those that carry the cost.

        Few rows carry it only if they are many times as far away as others.
        """
        if not rows_to_hold(passes.n_rows, len(directions.vectors), self._k):
            return False
        x = self._sample(passes, rng).take().x
        seen = np.sort(np.abs(x - passes.statistics.shift).max(axis=1))
        return bool(passes.statistics.max_abs > FAR_OUT * seen[99 * len(seen) // 100])

    # --- steps ------------------------------------------------------------------------------------

    def init(self, passes: Passes, rng: Rng) -> ProjectedState | None:
        """Return the state before the first step; None: begin in all features."""
        found = self._first_directions(passes, rng)
        if found is None:
            return None
        directions, outside = found
        m, known = len(directions.vectors), passes.statistics
        n_rows = rows_to_hold(passes.n_rows, m, self._k) or 0
        view = partial(_view, passes, rng, directions, n_rows)
        search = self.search.begin(passes, rng, (n_rows or known.n_rows, m), view)
        return ProjectedState(
            search=search,
            vectors=directions.vectors,
            origin=directions.origin,
            centers=_back_project(search.centers, directions),
            counts=np.zeros(len(search.centers)),
            coarse=_back_project(search.coarse, directions),
            left_out=outside.share,
            # Back-projected centres lie in the directions: rows cost their whole variance outside.
            beside=outside.of_a_row * known.total_weight,
            n_rows=n_rows,
        )

    def step(self, passes: Passes, rng: Rng, state: ProjectedState) -> tuple[Any, Info]:
        """Run one step; return a state of the search itself once it continues in all features.

        At the end of a round, means in all features are found. A step on a small sample projects
        only that, and finds means at once.
        """
        few = self.search.few(passes, rng, state.search)
        view = _view(passes, rng, state.directions, state.n_rows, few)
        if few is not None:
            search, info, labels, scale = self.search.step_on(passes, rng, state.search, view)
            state = self._with_sample_means(few, labels, replace(state, search=search), scale)
            return state, _record(info, state)
        before = self._rescaled(passes, view, state)
        search, info = self.search.step(view, rng, before.search)
        now = self.search.standing(search)
        state = replace(before, search=search, is_ahead=self._is_ahead(before, now.cost))
        if not now.is_settled:
            return state, _record(info, state)
        if not now.goes_back:
            state = self._with_means(passes, view, state)
        info = _record(info, state)
        if now.has_ended or state.tells_little or _is_done(before, state):
            return self._widened(passes, rng, state, view), info
        return state, info

    def model(self, state: ProjectedState) -> CenterArrays:
        """Return the centres of the last round, or those of the search while these are better."""
        if not state.is_ahead:
            return CenterArrays(state.centers, state.counts, state.origin)
        own = self.search.model(state.search)
        centers = _back_project(own.centers, state.directions)
        return CenterArrays(centers, state.scale * own.counts, state.origin)

    def lifted(self, passes: Passes, state: ProjectedState) -> Any:
        """Return the state of the search, continued in all features."""
        found = {name: getattr(state, name) for name in FOUND}
        return self.search.continued(passes, state.search, **found)

    def held_bytes(self, table: TableShape, itemsize: int, row_bytes: int) -> int:
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
        return values + (held or table.n_rows) * (2 * 8 + row_bytes)

    # --- from step to step ------------------------------------------------------------------------

    def _rescaled(self, passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
        """Rescale the search to the costs of the rows of a view, if these are a sample.

        Before that its costs are those of all rows, as estimated on a small sample.
        """
        scale = 1.0
        if state.n_rows:
            scale = passes.statistics.total_weight / view.statistics.total_weight
        factor = state.scale / scale
        if factor == 1:
            return state
        return replace(state, search=self.search.rescaled(state.search, factor), scale=scale)

    def _is_ahead(self, before: ProjectedState, cost: float) -> bool:
        """Return True if a step has made the search better than means of a sample."""
        n = self.search.standing(before.search).n_rows
        expected = _of_all_rows(before.scale * cost + before.beside, self._k, n)
        return before.counted.generation == 0 and expected < before.expected

    def _with_sample_means(
        self, sample: Passes, labels: NDArray[np.int32], state: ProjectedState, scale: float
    ) -> ProjectedState:
        """Return the state after a step on a sample, with means of its rows in all features.

        Parameters
        ----------
        sample : Passes
            Passes over these rows in all features.
        labels : (n,) int32
            Their labels after the step.
        state : ProjectedState
        scale : float
            Weight of all rows divided by that of these.
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
        seen.add(
            row_squares(project(centers, directions), np.zeros(len(directions.vectors))), counts
        )
        beside = max(0.0, state.beside - max(0.0, whole.value - seen.value))
        cost = self.search.standing(state.search).cost + beside
        expected = _of_all_rows(cost, k, sample.n_rows)
        return replace(
            state, centers=centers, counts=counts, cost=cost, is_ahead=False, expected=expected
        )

    def _with_means(self, passes: Passes, view: Passes, state: ProjectedState) -> ProjectedState:
        """Return the state with means in all features of the clusters of the search, and the cost.

        One pass over all rows, given the labels of the searched ones; rows that have kept theirs
        since the last such pass are not touched.
        """
        labels = self.search.labels_of(view, state.search)
        rows, known = view.take().rows, state.counted.labels
        numbers = None if len(rows) == passes.n_rows else rows
        replay = () if known is None or len(known) != len(labels) else ((numbers, known, -1),)
        (k, d), grid = state.centers.shape, passes.statistics.grid
        total: AssignmentTotal[Tally] = passes.reduce(
            count_chunk,
            numbers,
            labels,
            state.step,
            start=partial(AssignmentTotal, k, d, grid),
            combine=AssignmentTotal.combine,
            state=RowState(
                self.search.row_state, state.counted.generation + 1, replay, retain=True
            ),
            joined=True,
        )
        centers = total.sums.means(state.centers)
        cost = state.scale * total.sums.cost(centers, total.squares.value)
        return replace(
            state,
            centers=centers,
            counts=state.scale * total.sums.counts,
            cost=cost,
            beside=max(0.0, cost - state.scale * self.search.standing(state.search).cost),
            round_cost=cost,
            counted=state.counted.then(labels),
            is_ahead=False,
        )

    def _widened(self, passes: Passes, rng: Rng, state: ProjectedState, view: Passes) -> Any:
        """Return the state in twice as many directions, or in all features if they save little."""
        m, found = 2 * len(state.vectors), None
        if saves(passes, m, self._k) and not state.tells_little:
            found = self._more_directions(passes, rng, m, state.directions)
        if found is None or self._misses_far_rows(passes, rng, found[0]):
            view.close()
            return self.lifted(passes, state)
        directions, outside = found
        n_rows = rows_to_hold(passes.n_rows, m, self._k) or 0
        view = _view(passes, rng, directions, n_rows)
        centers, coarse = project(state.centers, directions), project(state.coarse, directions)
        search = self.search.continued(
            view, state.search, centers=centers, counts=state.counts, coarse=coarse
        )
        return replace(
            state,
            search=search,
            vectors=directions.vectors,
            origin=directions.origin,
            left_out=outside.share,
            round_cost=float("inf"),
            n_rows=n_rows,
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


def _view(
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
    return gained < WORTH_LEAVING * (after.left_out * after.beside + unseen)


def _record(info: Info, state: ProjectedState) -> Info:
    """Return the record of a step in few directions, which has led to this state."""
    extra = {
        **info.extra,
        "steps_per_reading": state.step / state.n_read,
        "row_state_bytes": info.extra["row_state_bytes"] + state.vectors[:, 0].nbytes,
    }
    if state.n_rows:
        extra["everywhere"] = 0.0
        extra["by_means"] = state.scale * info.extra["by_means"]
    ahead = state.is_ahead or state.counted.generation > 0
    cost = state.scale * info.cost + state.beside if ahead else state.cost
    return replace(info, cost=cost, converged=False, extra=extra)


def count_chunk(
    chunk: Chunk,
    total: AssignmentTotal[Tally],
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


def sum_chunk(chunk: Chunk, total: ClusterSums, labels: NDArray[np.int32]) -> None:
    """Add up the rows of a chunk."""
    total.add(chunk.x, labels[chunk.start : chunk.start + len(chunk.x)], chunk.weight)
