"""Every partition into up to k clusters, near the lowest there is: the search as an algorithm.

Ours, after DCD-Bundle (``published.dcd_bundle``): that method lowers a difference of two convex
functions from l - 1 to l clusters, by a bundle method with a diagonal metric. In the metric that
fits the problem, m / (2 n_j), its step is Lloyd's. So this takes Lloyd's steps, with bounds, and
spends its time on starting points: up and down through the numbers of clusters, moves of single
rows, swaps, recombination (as in HG-means).

Rows that fit into the driver's process are searched there (:mod:`.stages`), in float64. For larger
tables that is a weighted sample, which always holds the rows farthest out; all rows
are then assigned to all partitions in one reading per pass (:mod:`.passes`), and each partition
ends where Lloyd's algorithm stands still. In one dimension partitions are the optimal ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Footprint,
    Info,
    Passes,
    PlannedTable,
    Rng,
    TableShape,
)
from largek_dask.algorithms.choices import EFFORTS, Effort
from largek_dask.algorithms.dcd.conclusion import Found, conclude
from largek_dask.algorithms.dcd.held import count_distinct, hold_rows, taken_rows
from largek_dask.algorithms.dcd.passes import PathState, begin_path, path_step
from largek_dask.algorithms.dcd.samples import Sample, draw_far, draw_sample
from largek_dask.algorithms.dcd.search import Search
from largek_dask.algorithms.dcd.stages import PLANS, STAGES, Book, Kept, Piece, Plan, pieces
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.spectrum import lower_bounds
from largek_dask.algorithms.path_arrays import PathArrays, centers_in, packed, rows_of_path
from largek_dask.algorithms.path_problem import PathProblem, length_of_search
from largek_dask.errors import ParameterError
from largek_dask.kernels.one_dimension import (
    distinct_values,
    objective_bounds,
    optimal_partitions,
)

__all__ = ["PartitionPath", "SearchState"]

MOST_ROWS, MOST_VALUES = 1 << 17, 1 << 23
"""Maximum rows, and their values, that are all searched: 64 MB, and as much transposed."""
ROWS_A_CLUSTER, LEAST_ROWS = 256, 1 << 15
"""Rows of a sample per cluster of the last partition, and their minimum."""
FEW_A_CLUSTER = 16
"""Minimum rows per cluster, if a sample of wide rows would have too many values."""
LINE_ROWS, LINE_VALUES, LINE_CLUSTERS = 1 << 24, 1 << 20, 128
"""Maximum rows, distinct values and clusters of one dimension that are solved exactly."""
FAR = 64.0
"""Multiple of the mean squared distance to their centre beyond which rows join the sample."""
LAST = 300
"""Maximum recombinations if only the last partition has them."""
PASSES = 15
"""Approximate number of passes over all rows of a large table."""
SLOW = 1e-4
"""Share by which a pass has to lower a partition not to settle it, unless ``tol`` is 0."""
MOST_PASSES = 100
"""Maximum passes over all rows: rounded centres may cycle."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SearchState:
    """State between two steps."""

    step: int
    wanted: int
    """Clusters of the last requested partition."""
    most: int
    """Clusters of the last that is searched."""
    shift: NDArray[Any]
    """(d,) origin of the kernels, compute dtype."""
    origin: Floats
    """(d,) mean of the searched rows, which is subtracted from them."""
    work: int
    """Pieces of work that are done."""
    kept: Kept
    """Partitions found by the search."""
    bounds: Floats
    """(wanted,) lower bounds."""
    n_distinct: int | None
    """Distinct rows, if there are no more than requested clusters; otherwise None."""
    sample: tuple[NDArray[np.int64], Floats] | None
    """Rows that are searched instead of all, and factors on their weights."""
    has_far: bool
    """The sample holds the rows that were far from all centres of a first search."""
    passes: PathState | None
    """State of passes over all rows; None before the first."""
    found: PathArrays | None
    """The final result."""

    n_rows: int
    """Rows of the table."""

    @property
    def n_searched(self) -> int:
        """Rows that are searched."""
        return self.n_rows if self.sample is None else len(self.sample[0])

    @property
    def length(self) -> int:
        """Number of requested partitions so far."""
        return min(self.wanted, len(self.kept.costs))


@dataclass(frozen=True)
class PartitionPath(Algorithm[SearchState, PathProblem]):
    """Every partition into up to k clusters in one fit, near the lowest there is.

    ``km.path_`` has all partitions, what is certain of each, and the numbers of clusters on which
    halves of the rows agree. A step is a piece of the search, or a pass over all rows.

    Rows are searched in the driver's process: up to 131,072 of up to 2^23 values themselves, else a
    sample that holds the rows farthest out. All rows then meet all partitions in one reading per
    pass. Of one feature partitions are optimal.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        "fast" goes up, "balanced" also down and on while neighbours gain, "best" swaps and
        recombines as well.
    aim : {"all", "last"}
        Partitions that the stages of "best" lower: every one, or the last one, in a fraction of
        the time. (The others are returned as well.)

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.PartitionPath(), random_state=0).fit(x)
    >>> km.path_.inertia.round(6).tolist()
    [100.0, 50.0, 0.0]
    """

    effort: Effort = "balanced"
    aim: Literal["all", "last"] = "all"
    solves: ClassVar[type[PathProblem]] = PathProblem
    takes_starts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            told = ", ".join(map(repr, EFFORTS))
            raise ParameterError(f"effort must be one of {told}, got {self.effort!r}.")
        if self.aim not in ("all", "last"):
            raise ParameterError(f"aim must be 'all' or 'last', got {self.aim!r}.")

    @property
    def _plan(self) -> Plan:
        plan = PLANS[self.effort]
        if self.aim == "all" or not plan.crosses_all:
            return plan
        return replace(plan, swaps=0, crosses_all=False, crossings=LAST, work=plan.work // 5)

    def _work(self, state: SearchState) -> list[Piece]:
        wanted = min(state.wanted, state.most)
        return list(pieces(self._plan, state.most, wanted, state.n_searched))

    # --- before the fit ---------------------------------------------------------------------------

    def _searched(self, table: TableShape, k: int) -> int:
        """Return the number of rows that are searched."""
        return table.n_rows if is_held(table) else rows_of_sample(k, table.n_features)

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory and passes: one reading if rows are held, else a sample and path passes.

        Searched rows are held as they are, in float64, about their mean, and transposed, with the
        state of about a dozen partitions for each. A checkpoint has all partitions, in float64 and
        as they are returned, and populations of them.
        """
        k, d, held = self.problem.n_clusters, table.n_features, is_held(table)
        searched = self._searched(table, k)
        return Footprint(
            model_copies=2 + (k + 1) // 2 * (4 + 2 * self._plan.members),
            held_rows=min(table.n_rows, searched),
            held_bytes=bytes_of_held(table, searched, table.itemsize, 3 * 8 * d + 12 * 24),
            passes_before=2 if held else 6,
            passes_after=2 if held else PASSES,
            searches=self._plan.work * length_of_search(k),
            full_search="all partitions meet all rows in one reading",
        )

    # --- steps ------------------------------------------------------------------------------------

    def init(self, passes: Passes, rng: Rng) -> SearchState:
        """Return the partition into one cluster, and lower bounds."""
        wanted = self.problem.n_clusters
        solved = solve_line(passes, rng, wanted)
        if solved is not None:
            return solved
        sample = None
        if not is_held(passes):
            n_draws = rows_of_sample(wanted, passes.n_features)
            sample = draw_sample(passes, rng, n_draws, max(64, wanted))
        searched = longest_path(passes, rng, wanted, sample)
        state = SearchState(
            step=0,
            wanted=wanted,
            most=searched,
            shift=passes.statistics.shift,
            origin=passes.statistics.mean,
            work=0,
            kept=Kept.nothing(passes.n_features),
            bounds=lower_bounds(passes, wanted),
            # for a sample it is found once the search for rows that it lacks is over
            n_distinct=searched if searched <= (wanted if sample is None else 1) else None,
            sample=None if sample is None else (sample.rows, sample.factors),
            has_far=False,
            passes=None,
            found=None,
            n_rows=passes.n_rows,
        )
        book = Book.begin(self._plan, Search(_rows(passes, rng, state), passes.threads))
        return replace(state, kept=book.kept())

    def step(self, passes: Passes, rng: Rng, state: SearchState) -> tuple[SearchState, Info]:
        """Run a piece of the search, a pass over all rows, or the conclusion."""
        work = self._work(state)
        rows, stage = passes.n_rows, len(STAGES)
        before = state.kept.n_steps
        if state.work < len(work) and state.kept.is_searched:
            stage = STAGES.index(work[state.work].stage.removeprefix("again "))
            state = self._search(passes, rng, state)
            if state.sample is not None:
                rows = len(state.sample[0])
            rows *= max(1, state.kept.n_steps - before)
        elif state.sample is not None and not _is_at_rest(state.passes):
            state = self._pass(passes, state)
        else:
            state = replace(state, found=conclude(passes, rng, _found(state)))
        state = replace(state, step=state.step + 1)
        return state, self._told(state, rows, stage)

    def _search(self, passes: Passes, rng: Rng, state: SearchState) -> SearchState:
        """Run one piece of work; after the first partitions, also look for far rows."""
        work = self._work(state)
        piece = work[state.work]
        search = Search(_rows(passes, rng, state), passes.threads)
        book = Book.of(self._plan, search, state.kept)
        book.work(piece, rng, state.step)
        state = replace(state, work=state.work + 1, kept=book.kept())
        is_up = state.work == len(work) or work[state.work].stage != "up"
        if state.sample is None or state.has_far or piece.stage != "up" or not is_up:
            return state
        return self._with_far(passes, rng, replace(state, has_far=True))

    def _with_far(self, passes: Passes, rng: Rng, state: SearchState) -> SearchState:
        """Begin again with rows that the sample lacked, if there are any far from all centres."""
        assert state.sample is not None
        sample, dtype = Sample(*state.sample), state.shift.dtype
        centers = (centers_in(state.kept.partitions, state.length) + state.origin).astype(dtype)
        rows = draw_far(passes, centers, max(64, state.wanted))
        squares = [
            ((np.asarray(x, np.float64) - centers) ** 2).sum(axis=1).min()
            for x in passes.take(rows).x
        ]
        limit = FAR * state.kept.costs[state.length - 1] / passes.statistics.total_weight
        lacking = [
            row
            for row, square in zip(rows.tolist(), squares, strict=True)
            if square > limit and row not in set(sample.rows.tolist())
        ]
        if lacking:
            sample = sample.including(np.array(lacking, np.int64))
        # Where rows of the sample all have centres, any other row is one that it lacks.
        most = longest_path(passes, rng, state.wanted, sample)
        state = replace(state, most=most, n_distinct=most if most <= state.wanted else None)
        if not lacking:
            return state
        state = replace(state, sample=(sample.rows, sample.factors), work=0)
        book = Book.begin(self._plan, Search(_rows(passes, rng, state), passes.threads))
        return replace(state, kept=book.kept())

    def _pass(self, passes: Passes, state: SearchState) -> SearchState:
        """Assign all rows to all partitions that have not settled."""
        before = state.passes
        if before is None:
            before = begin_path(_found(state).path.astype(state.shift.dtype), state.length)
        after = path_step(passes, before, self.problem.tol)
        if self.problem.tol > 0:
            # Centres of a few rows may creep on for long without a visible effect on the objective.
            slow = before.cost - after.cost <= SLOW * after.cost
            after = replace(after, settled=after.settled | slow)
        return replace(state, passes=after)

    def _told(self, state: SearchState, rows: int, stage: int) -> Info:
        """Return the record of a step; ``stage`` is its place among all stages."""
        last = state.length - 1
        cost = float(state.kept.costs[last])
        if state.found is not None:
            cost = float(state.found.inertia[-1])
        elif state.passes is not None:
            cost = float(state.passes.cost[last])
        n_passes = 0 if state.passes is None else state.passes.n_passes
        return Info(
            cost=cost,
            rows=rows,
            converged=state.found is not None,
            extra={
                "stage": stage,
                "partitions": state.length,
                "distinct": float(_ends_distinct(state)),
                "settled": state.kept.n_settled,
                "evaluations": state.kept.n_steps,
                "path_passes": n_passes,
            },
        )

    def model(self, state: SearchState) -> PathArrays:
        """Return all partitions so far."""
        if state.found is not None:
            return state.found
        inertia = state.kept.costs if state.passes is None else state.passes.cost
        inertia = np.minimum.accumulate(inertia[: state.length])
        found = _found(state)
        return PathArrays.of(found.path, None, inertia, found.bounds, state.shift)


def is_held(table: TableShape) -> bool:
    """Return True if all rows are searched themselves."""
    return table.n_rows <= MOST_ROWS and table.n_rows * table.n_features <= MOST_VALUES


def rows_of_sample(k: int, d: int) -> int:
    """Return the number of draws of a sample to search."""
    rows = max(LEAST_ROWS, ROWS_A_CLUSTER * k)
    return min(rows, max(MOST_VALUES // d, FEW_A_CLUSTER * k))


def longest_path(passes: Passes, rng: Rng, wanted: int, sample: Sample | None) -> int:
    """Return the same for the searched rows: at most the number of distinct ones."""
    x, _ = taken_rows(passes, rng, sample)
    return count_distinct(x, length_of_search(wanted))


def solve_line(passes: Passes, rng: Rng, wanted: int) -> SearchState | None:
    """Return the optimal partitions of one feature; None if there are more, or too many rows."""
    if passes.n_features != 1 or passes.n_rows > LINE_ROWS or wanted > LINE_CLUSTERS:
        return None
    x, weight = taken_rows(passes, rng)
    values, weights = distinct_values(x[:, 0], weight)
    if len(values) > LINE_VALUES:
        return None
    costs, partitions = optimal_partitions(values - passes.statistics.mean, weights, wanted)
    length = len(costs)
    return SearchState(
        step=0,
        wanted=wanted,
        most=length,
        shift=passes.statistics.shift,
        origin=passes.statistics.mean,
        work=0,
        kept=Kept.solved(packed(partitions), costs),
        bounds=objective_bounds(costs),
        n_distinct=length if length == len(values) else None,
        sample=None,
        has_far=False,
        passes=None,
        found=None,
        n_rows=passes.n_rows,
    )


def _rows(passes: Passes, rng: Rng, state: SearchState) -> Any:
    sample = None if state.sample is None else Sample(*state.sample)
    return hold_rows(passes, rng, state.origin, sample)


def _ends_distinct(state: SearchState) -> bool:
    """Return True if the last partition has a centre per distinct row, and no more are possible."""
    return state.n_distinct is not None and state.length == state.n_distinct <= state.wanted


def _is_at_rest(passes: PathState | None) -> bool:
    return passes is not None and (not passes.live or passes.n_passes >= MOST_PASSES)


def _found(state: SearchState) -> Found:
    """Return partitions for the conclusion."""
    length = state.length
    passes = state.passes
    if passes is None:
        path = state.kept.partitions[: rows_of_path(length)] + state.origin
    else:
        path = passes.path.astype(np.float64)
    return Found(
        path,
        length,
        state.bounds[:length],
        None if state.sample is None else Sample(*state.sample),
        passes is not None,
        _ends_distinct(state),
    )
