"""Find partitions into 1 to k clusters whose objectives are close to the minimum.

The search is based on DCD-Bundle (``published.dcd_bundle``), which goes from l - 1 to l clusters by
minimising a difference of two convex functions with a bundle method and a diagonal metric. In the
metric that fits the problem, m / (2 n_j), a step of DCD-Bundle is a Lloyd step, so this search
takes Lloyd steps, with distance bounds.

Most time is spent on starting points: the search adds and removes clusters, moves single rows,
swaps centres, and recombines partitions (as in HG-means).

Rows that fit into one process are searched there in float64 (:mod:`.stages`). For a larger table, a
weighted sample is searched (:mod:`.samples`). On a cluster, one worker runs the search. All rows
are then assigned to the clusters of every partition until each partition is a fixed point of
Lloyd's algorithm; each pass reads the rows once (:mod:`.passes`). With one feature, partitions are
optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

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
from largek_dask.algorithms.partition_path.operators import Operators
from largek_dask.algorithms.partition_path.passes import (
    PathCount,
    PathState,
    begin_path,
    count_pass,
    path_step,
)
from largek_dask.algorithms.partition_path.samples import (
    count_distinct,
    draw_far,
    draw_sample,
    rows_to_search,
    searched_rows,
    take_rows,
)
from largek_dask.algorithms.partition_path.stability import compare_halves
from largek_dask.algorithms.partition_path.stages import (
    PLANS,
    STAGES,
    Kept,
    PathSearch,
    Piece,
    Plan,
    pieces,
)
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.spectrum import lower_bounds
from largek_dask.algorithms.path_arrays import FIGURES, PathArrays, centers_in, packed, rows_of_path
from largek_dask.algorithms.path_problem import PathProblem, length_of_search
from largek_dask.algorithms.starts.coresets import Coreset
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.one_dimension import distinct_values, objective_bounds, optimal_partitions
from largek_dask.kernels.threads import Threads

MOST_ROWS, MOST_VALUES = 1 << 17, 1 << 23
"""Maximum number of rows, and of values, for which all rows are searched. The values and a
transposed copy take 64 MB each."""
ROWS_A_CLUSTER, LEAST_ROWS = 256, 1 << 15
"""Number of sample rows per cluster of the last partition, and the minimum sample size."""
FEW_A_CLUSTER = 16
"""Minimum number of rows per cluster in a sample of wide rows."""
LINE_ROWS, LINE_VALUES, LINE_CLUSTERS = 1 << 24, 1 << 20, 128
"""Maximum number of rows, of distinct values, and of clusters for an exact solution of a table with
one feature."""
FEWEST_FAR = 64
"""Number of distinct rows farthest from the mean that every sample includes."""
FAR = 64.0
"""Rows whose squared distance to their centre exceeds this multiple of the mean join the sample."""
LAST = 300
"""Maximum number of recombinations if only the last partition is recombined."""
PASSES = 15
"""Approximate number of passes over all rows for a large table."""
SLOW = 1e-4
"""A partition is settled when a pass lowers its objective by less than this share, unless ``tol``
is 0."""
MOST_PASSES = 100
"""Maximum number of passes over all rows, because centres may cycle due to rounding."""
SCANNED = 16
"""Number of far rows whose swaps with every centre are examined."""
STABLE_CLUSTERS = 32
"""Maximum number of clusters for which stability is computed."""

Floats = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SearchState:
    wanted: int
    """Number of clusters of the largest requested partition."""
    most: int
    """Number of clusters of the largest partition to search."""
    shift: NDArray[Any]
    origin: Floats
    """(d,) mean of the rows, which is subtracted from the searched rows."""
    kept: Kept
    bounds: Floats
    n_distinct: int | None
    """Number of distinct rows if it does not exceed the number of requested clusters, otherwise
    None."""
    n_rows: int
    step: int = 0
    work: int = 0
    """Number of pieces of the search completed so far."""
    sample: Coreset | None = None
    """Weighted rows to search; None if all rows are searched."""
    has_far: bool = False
    """True once the sample was checked for missing rows far from all centres."""
    passes: PathState | None = None
    """State of the passes over all rows; None before the first pass."""
    found: PathArrays | None = None

    @property
    def n_searched(self) -> int:
        return self.n_rows if self.sample is None else len(self.sample.rows)

    @property
    def length(self) -> int:
        """Number of requested partitions found so far."""
        return min(self.wanted, len(self.kept.costs))

    @property
    def path(self) -> Floats:
        """Packed centres of the partitions found so far, in the coordinates of the data."""
        if self.passes is None:
            return self.kept.partitions[: rows_of_path(self.length)] + self.origin
        return self.passes.path.astype(np.float64)

    @property
    def ends_distinct(self) -> bool:
        """True if the last partition has one centre per distinct row and none can be larger."""
        return self.n_distinct is not None and self.length == self.n_distinct <= self.wanted


@dataclass(frozen=True)
class PartitionPath(Algorithm[SearchState, PathProblem]):
    """Find partitions into 1 to k clusters in one fit, each with an objective near the minimum.

    ``km.path_`` contains all partitions, lower bounds of their objectives, and their stability,
    which is the agreement between partitions of two halves of the rows. A step is one part of the
    search or one pass over all rows.

    Up to 131,072 rows and 2^23 values are searched as a whole in one process, on a cluster by one
    worker. For a larger table, a sample is searched that includes the rows farthest from the mean.
    All rows are then assigned to the clusters of every partition, and each pass reads the rows
    once. With one feature, partitions are optimal.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        "fast" goes from 1 to k clusters; "balanced" also goes back, and recombines the last
        partition; "best" also tries swaps, and recombines every partition.
    aim : {"all", "last"}
        Partitions to which "best" applies: all of them, or only the last one, which takes a
        fraction of the time. (The other partitions are returned as well.)

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
            allowed = ", ".join(map(repr, EFFORTS))
            raise ParameterError(f"effort must be one of {allowed}, got {self.effort!r}.")
        if self.aim not in ("all", "last"):
            raise ParameterError(f"aim must be 'all' or 'last', got {self.aim!r}.")

    @property
    def _plan(self) -> Plan:
        plan = PLANS[self.effort]
        if self.aim == "all" or not plan.recombines_all:
            return plan
        return replace(
            plan, swaps=0, recombines_all=False, recombinations=LAST, work=plan.work // 5
        )

    def _pieces(self, state: SearchState) -> list[Piece]:
        wanted = min(state.wanted, state.most)
        return list(pieces(self._plan, state.most, wanted, state.n_searched))

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory and passes.

        Searched rows are held four times (unchanged, in float64, relative to their mean, and
        transposed), with the state of about a dozen partitions per row. A checkpoint contains all
        partitions, in float64 and in the compute dtype, and the populations.
        """
        k, d, is_small = self.problem.n_clusters, table.n_features, is_searched_whole(table)
        n_searched = table.n_rows if is_small else rows_of_sample(k, d)
        return Footprint(
            model_copies=2 + (k + 1) // 2 * (4 + 2 * self._plan.members),
            held_rows=min(table.n_rows, n_searched),
            held_bytes=bytes_of_held(table, n_searched, table.itemsize, 3 * 8 * d + 12 * 24),
            passes_before=2 if is_small else 6,
            passes_after=2 if is_small else PASSES,
            searches=self._plan.work * length_of_search(k),
            full_search="all partitions meet all rows in one reading",
        )

    def init(self, passes: Passes, rng: Rng) -> SearchState:
        wanted = self.problem.n_clusters
        solved = solve_line(passes, rng, wanted)
        if solved is not None:
            return solved
        sample = None
        if not is_searched_whole(passes):
            n_draws = rows_of_sample(wanted, passes.n_features)
            sample = draw_sample(passes, rng, n_draws, max(FEWEST_FAR, wanted))
        most = most_clusters(passes, rng, wanted, sample)
        # For a sample, the number of distinct rows is known only after far rows were added.
        n_distinct = most if most <= (wanted if sample is None else 1) else None
        none = Kept.optimal(np.zeros((0, passes.n_features)), np.zeros(0))
        state = _state(passes, wanted, most, none, lower_bounds(passes, wanted), n_distinct)
        return self._begun(passes, rng, replace(state, sample=sample))

    def step(self, passes: Passes, rng: Rng, state: SearchState) -> tuple[SearchState, Info]:
        """Run one piece of the search, one pass over all rows, or the final evaluation."""
        work = self._pieces(state)
        rows, stage = passes.n_rows, len(STAGES)
        before = state.kept.n_steps
        if state.work < len(work) and state.kept.is_searched:
            stage = STAGES.index(work[state.work].stage.removeprefix("again "))
            state = self._search(passes, rng, state)
            rows = state.n_searched * max(1, state.kept.n_steps - before)
        elif state.sample is not None and not _has_settled(state.passes):
            state = self._pass(passes, state)
        else:
            state = replace(state, found=conclude(passes, rng, state))
        state = replace(state, step=state.step + 1)
        return state, self._info(state, rows, stage)

    def _search(self, passes: Passes, rng: Rng, state: SearchState) -> SearchState:
        """Run one piece of the search; after the stage "up", also look for far rows."""
        work = self._pieces(state)
        piece = work[state.work]
        given = self._plan, state.kept, piece, rng, state.step
        kept = _compute(passes, rng, state, run_piece, *given)
        state = replace(state, work=state.work + 1, kept=kept)
        is_up = state.work == len(work) or work[state.work].stage != "up"
        if state.sample is None or state.has_far or piece.stage != "up" or not is_up:
            return state
        return self._with_far(passes, rng, replace(state, has_far=True))

    def _with_far(self, passes: Passes, rng: Rng, state: SearchState) -> SearchState:
        """Restart with a larger sample if rows far from all centres are missing from the sample."""
        assert state.sample is not None
        sample = state.sample
        centers = centers_in(state.kept.partitions, state.length) + state.origin
        centers = centers.astype(state.shift.dtype)
        rows = draw_far(passes, centers, max(FEWEST_FAR, state.wanted))
        limit = FAR * state.kept.costs[state.length - 1] / passes.statistics.total_weight
        squares = [
            ((np.asarray(x, np.float64) - centers) ** 2).sum(axis=1).min()
            for x in passes.take(rows).x
        ]
        lacking = rows[(np.array(squares) > limit) & ~np.isin(rows, sample.rows)]
        if len(lacking):
            sample = sample.including(lacking)
        most = most_clusters(passes, rng, state.wanted, sample)
        state = replace(state, most=most, n_distinct=most if most <= state.wanted else None)
        if not len(lacking):
            return state
        return self._begun(passes, rng, replace(state, sample=sample, work=0))

    def _begun(self, passes: Passes, rng: Rng, state: SearchState) -> SearchState:
        return replace(state, kept=_compute(passes, rng, state, begin_search, self._plan))

    def _pass(self, passes: Passes, state: SearchState) -> SearchState:
        """Assign all rows in every partition that has not settled."""
        before = state.passes
        if before is None:
            before = begin_path(state.path.astype(state.shift.dtype), state.length)
        after = path_step(passes, before, self.problem.tol)
        if self.problem.tol > 0:
            # Centres with few rows may keep moving without a visible effect on the objective.
            slow = before.cost - after.cost <= SLOW * after.cost
            after = replace(after, settled=after.settled | slow)
        return replace(state, passes=after)

    def _info(self, state: SearchState, rows: int, stage: int) -> Info:
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
                "distinct": float(state.ends_distinct),
                "settled": state.kept.n_settled,
                "evaluations": state.kept.n_steps,
                "path_passes": n_passes,
            },
        )

    def model(self, state: SearchState) -> PathArrays:
        if state.found is not None:
            return state.found
        inertia = state.kept.costs if state.passes is None else state.passes.cost
        inertia = np.minimum.accumulate(inertia[: state.length])
        return PathArrays.of(state.path, None, inertia, state.bounds, state.shift)


def is_searched_whole(table: TableShape) -> bool:
    """Return True if all rows are searched, or False if only a sample is searched."""
    return table.n_rows <= MOST_ROWS and table.n_rows * table.n_features <= MOST_VALUES


def rows_of_sample(k: int, d: int) -> int:
    """Return the number of draws for a sample, given k clusters and d features."""
    rows = max(LEAST_ROWS, ROWS_A_CLUSTER * k)
    return min(rows, max(MOST_VALUES // d, FEW_A_CLUSTER * k))


def most_clusters(passes: Passes, rng: Rng, wanted: int, sample: Coreset | None) -> int:
    """Return the maximum number of clusters to search, at most the number of distinct rows."""
    x, _ = take_rows(passes, rng, sample)
    return count_distinct(x, length_of_search(wanted))


def solve_line(passes: Passes, rng: Rng, wanted: int) -> SearchState | None:
    """Return optimal partitions, or None if there are several features or too many rows."""
    if passes.n_features != 1 or passes.n_rows > LINE_ROWS or wanted > LINE_CLUSTERS:
        return None
    x, weight = take_rows(passes, rng)
    values, weights = distinct_values(x[:, 0], weight)
    if len(values) > LINE_VALUES:
        return None
    costs, partitions = optimal_partitions(values - passes.statistics.mean, weights, wanted)
    n_distinct = len(costs) if len(costs) == len(values) else None
    kept = Kept.optimal(packed(partitions), costs)
    return _state(passes, wanted, len(costs), kept, objective_bounds(costs), n_distinct)


def _state(
    passes: Passes, wanted: int, most: int, kept: Kept, bounds: Floats, n_distinct: int | None
) -> SearchState:
    shift, origin = passes.statistics.shift, passes.statistics.mean
    return SearchState(wanted, most, shift, origin, kept, bounds, n_distinct, passes.n_rows)


def _compute(
    passes: Passes, rng: Rng, state: SearchState, function: Callable[..., T], *given: Any
) -> T:
    """Return ``function(operators, *given)`` for the searched rows, computed by one process."""
    rows = searched_rows(passes, rng, state.sample)
    distances = state.n_searched * state.most
    found: T = rows.compute(_on_rows, function, state.origin, *given, distances=distances)
    return found


def _on_rows(
    x: NDArray[Any],
    weight: Floats | None,
    threads: Threads,
    function: Callable[..., T],
    origin: Floats,
    *given: Any,
) -> T:
    return function(Operators(rows_to_search(x, weight, origin), threads), *given)


def begin_search(operators: Operators, plan: Plan) -> Kept:
    """Return the state of a search before its first piece."""
    return PathSearch.begin(plan, operators).kept()


def run_piece(
    operators: Operators, plan: Plan, kept: Kept, piece: Piece, rng: Rng, step: int
) -> Kept:
    """Return the state of a search after one more piece."""
    search = PathSearch.of(plan, operators, kept)
    search.run(piece, rng, step)
    return search.kept()


def _has_settled(passes: PathState | None) -> bool:
    return passes is not None and (not passes.live or passes.n_passes >= MOST_PASSES)


def conclude(passes: Passes, rng: Rng, state: SearchState) -> PathArrays:
    """Return the partitions with exact objectives, stationarity and stability.

    This takes one or two passes over all rows, and more if an objective increases with the number
    of clusters.
    """
    length, shift, sample = state.length, state.shift, state.sample
    path = state.path.astype(shift.dtype)
    if state.passes is None:
        # Replace the centres, which come from rounded sums, by exact means.
        path = path_step(passes, begin_path(path, length)).path
    if state.ends_distinct:
        rows = np.unique(take_rows(passes, rng, sample)[0], axis=0)
        if len(rows) == length:  # False if the search ended early
            centers_in(path, length)[:] = rows
    path, count = _non_increasing(passes, path, length)
    stationarity = np.full((length, len(FIGURES)), np.nan)
    stationarity[:, 0], stationarity[:, 1] = count.movement, count.ties
    # Swaps are not evaluated on a sample, which lacks rows.
    examined = path[:0] if sample is not None else path.astype(np.float64) - state.origin
    found = _compute(passes, rng, state, examine, examined, length, rng)
    stationarity[: len(found.gains), 2:], stability = found.gains, found.stability
    return PathArrays(
        centers=readonly(centers_in(path, length).copy()),
        counts=readonly(count.counts[rows_of_path(length - 1) :].copy()),
        shift=shift,
        path=readonly(path),
        counts_of_path=readonly(count.counts),
        inertia=readonly(count.inertia),
        lower_bound=readonly(np.minimum(state.bounds[:length], count.inertia)),
        stationarity=readonly(stationarity),
        stability=readonly(stability),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Examined:
    """Figures of final partitions on the searched rows."""

    gains: Floats
    """(m, 2) results of ``Operators.possible_gains`` for the examined partitions."""
    stability: Floats
    """(k,) stability; NaN for more than ``STABLE_CLUSTERS`` clusters."""


def examine(operators: Operators, path: Floats, length: int, rng: Rng) -> Examined:
    """Examine the partitions in ``path``, which may be empty, and compute stability."""
    n_examined = length if len(path) else 0
    gains, stability = np.full((n_examined, 2), np.nan), np.full(length, np.nan)
    for size in range(1, n_examined + 1):
        generator = rng.generator(0, "swaps looked at", size)
        gains[size - 1] = operators.possible_gains(centers_in(path, size), generator, SCANNED)
    rows, compared = operators.rows, min(length, STABLE_CLUSTERS)
    halves = compare_halves(rows.x, rows.weight, rng, compared, operators.threads)
    stability[:compared] = halves.stability
    return Examined(gains, stability)


def _non_increasing(
    passes: Passes, path: NDArray[np.floating], length: int
) -> tuple[NDArray[np.floating], PathCount]:
    """Return partitions and statistics such that the objective does not increase with l.

    A partition with a higher objective than the previous partition is replaced by the previous
    partition plus one centre, at the row farthest from all centres.
    """
    count = count_pass(passes, path, length)
    for size in range(2, length + 1):
        if count.inertia[size - 1] > count.inertia[size - 2]:
            before = centers_in(path, size - 1)
            far = passes.take(draw_far(passes, before, 1)).x
            if len(far):
                path = path.copy()
                centers_in(path, size)[:] = np.concatenate([before, far])
                count = count_pass(passes, path, length)
    return path, count
