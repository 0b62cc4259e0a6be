"""Every partition into up to k clusters, with an objective close to the lowest possible.

The search is based on DCD-Bundle (``published.dcd_bundle``), which goes from l - 1 to l clusters by
minimising a difference of two convex functions, with a bundle method and a diagonal metric. In the
metric that fits the problem, m / (2 n_j), a step of that method is a Lloyd step. So this search
takes Lloyd steps, with bounds, and spends its time on starting points: it adds and removes
clusters, moves single rows, swaps centres, and recombines partitions (as in HG-means).

Rows that fit into the driver's process are searched there (:mod:`.stages`), in float64. Of a larger
table, a weighted sample is searched (:mod:`.samples`). All rows are then assigned to the clusters
of every partition, with each pass reading the rows once (:mod:`.passes`), and each partition ends
at a fixed point of Lloyd's algorithm. In one dimension, partitions are optimal.
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
from largek_dask.algorithms.partition_path.operators import Operators
from largek_dask.algorithms.partition_path.passes import (
    PathCount,
    PathState,
    begin_path,
    count_pass,
    path_step,
)
from largek_dask.algorithms.partition_path.samples import (
    Sample,
    count_distinct,
    draw_far,
    draw_sample,
    rows_to_search,
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
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.one_dimension import distinct_values, objective_bounds, optimal_partitions

MOST_ROWS, MOST_VALUES = 1 << 17, 1 << 23
"""Maximum rows, and maximum values, of a table that is searched as a whole: 64 MB, and another 64
MB for the transposed values."""
ROWS_A_CLUSTER, LEAST_ROWS = 256, 1 << 15
"""Rows of a sample per cluster of the last partition, and the minimum rows of a sample."""
FEW_A_CLUSTER = 16
"""Minimum rows per cluster, if a sample of wide rows would have too many values."""
LINE_ROWS, LINE_VALUES, LINE_CLUSTERS = 1 << 24, 1 << 20, 128
"""Maximum rows, distinct values and clusters for an exact solution with one feature."""
FEWEST_FAR = 64
"""Number of distinct rows farthest from the mean that every sample includes."""
FAR = 64.0
"""Multiple of the mean squared distance to their centre beyond which rows join the sample."""
LAST = 300
"""Maximum number of recombinations if only the last partition is recombined."""
PASSES = 15
"""Approximate number of passes over all rows for a large table."""
SLOW = 1e-4
"""A partition settles if a pass lowers its objective by less than this share, unless ``tol`` is
0."""
MOST_PASSES = 100
"""Maximum passes over all rows: rounded centres may cycle."""
SCANNED = 16
"""Number of far rows whose swaps with every centre are examined."""
STABLE_CLUSTERS = 32
"""Maximum number of clusters for which partitions of two halves of the rows are compared."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SearchState:
    """State between two steps."""

    wanted: int
    """Number of clusters of the last requested partition."""
    most: int
    """Number of clusters of the last partition that is searched."""
    shift: NDArray[Any]
    """(d,) origin of the kernels, compute dtype."""
    origin: Floats
    """(d,) mean of the rows, which is subtracted from the searched rows."""
    kept: Kept
    """Partitions found by the search."""
    bounds: Floats
    """(wanted,) lower bounds of the objectives."""
    n_distinct: int | None
    """Distinct rows if there are at most as many as requested clusters; otherwise None."""
    n_rows: int
    """Number of rows of the table."""
    step: int = 0
    work: int = 0
    """Number of pieces of the search that are done."""
    sample: tuple[NDArray[np.int64], Floats] | None = None
    """Indices of the rows that are searched instead of all, and factors on their weights."""
    has_far: bool = False
    """True if the sample includes the rows that were far from all centres of a first search."""
    passes: PathState | None = None
    """State of the passes over all rows; None before the first pass."""
    found: PathArrays | None = None
    """The final result."""

    @property
    def drawn(self) -> Sample | None:
        """``sample`` as a ``Sample``."""
        return None if self.sample is None else Sample(*self.sample)

    @property
    def n_searched(self) -> int:
        """Number of rows that are searched."""
        return self.n_rows if self.sample is None else len(self.sample[0])

    @property
    def length(self) -> int:
        """Number of requested partitions found so far."""
        return min(self.wanted, len(self.kept.costs))

    @property
    def path(self) -> Floats:
        """Packed centres of these partitions, in the coordinates of the data."""
        if self.passes is None:
            return self.kept.partitions[: rows_of_path(self.length)] + self.origin
        return self.passes.path.astype(np.float64)

    @property
    def ends_distinct(self) -> bool:
        """True if the last partition has one centre per distinct row, so no more are possible."""
        return self.n_distinct is not None and self.length == self.n_distinct <= self.wanted


@dataclass(frozen=True)
class PartitionPath(Algorithm[SearchState, PathProblem]):
    """Every partition into up to k clusters in one fit, close to the lowest objectives.

    ``km.path_`` has all partitions, lower bounds of their objectives, and the agreement between
    partitions of two halves of the rows. A step is a piece of the search, or a pass over all rows.

    Rows are searched in the driver's process: all of a table of up to 131,072 rows and 2^23 values,
    otherwise a sample that includes the rows farthest from the mean. All rows are then assigned to
    the clusters of every partition, and each pass reads the rows once. With one feature, partitions
    are optimal.

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

    # --- before the fit ---------------------------------------------------------------------------

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory and passes; the rows are read once if all of them are searched.

        Searched rows are held unchanged, in float64, relative to their mean, and transposed, with
        the state of about a dozen partitions per row. A checkpoint has all partitions, in float64
        and as they are returned, and the populations.
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

    # --- steps ------------------------------------------------------------------------------------

    def init(self, passes: Passes, rng: Rng) -> SearchState:
        """Return the partition into one cluster, and lower bounds."""
        wanted = self.problem.n_clusters
        solved = solve_line(passes, rng, wanted)
        if solved is not None:
            return solved
        sample = None
        if not is_searched_whole(passes):
            n_draws = rows_of_sample(wanted, passes.n_features)
            sample = draw_sample(passes, rng, n_draws, max(FEWEST_FAR, wanted))
        most = most_clusters(passes, rng, wanted, sample)
        # For a sample this is known only after the search for far rows that it lacks.
        n_distinct = most if most <= (wanted if sample is None else 1) else None
        rows = rows_to_search(passes, rng, passes.statistics.mean, sample)
        kept = PathSearch.begin(self._plan, Operators(rows, passes.threads)).kept()
        state = _state(passes, wanted, most, kept, lower_bounds(passes, wanted), n_distinct)
        return state if sample is None else replace(state, sample=(sample.rows, sample.factors))

    def step(self, passes: Passes, rng: Rng, state: SearchState) -> tuple[SearchState, Info]:
        """Run a piece of the search, a pass over all rows, or the conclusion."""
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
        """Run one piece; after the first partitions, also look for far rows."""
        work = self._pieces(state)
        piece = work[state.work]
        search = PathSearch.of(self._plan, _operators(passes, rng, state), state.kept)
        search.run(piece, rng, state.step)
        state = replace(state, work=state.work + 1, kept=search.kept())
        is_up = state.work == len(work) or work[state.work].stage != "up"
        if state.sample is None or state.has_far or piece.stage != "up" or not is_up:
            return state
        return self._with_far(passes, rng, replace(state, has_far=True))

    def _with_far(self, passes: Passes, rng: Rng, state: SearchState) -> SearchState:
        """Restart with far rows that the sample lacks, if any are far from all centres."""
        sample = state.drawn
        assert sample is not None
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
        # If every distinct row of the sample has a centre, the sample lacks every other row.
        most = most_clusters(passes, rng, state.wanted, sample)
        state = replace(state, most=most, n_distinct=most if most <= state.wanted else None)
        if not len(lacking):
            return state
        state = replace(state, sample=(sample.rows, sample.factors), work=0)
        begun = PathSearch.begin(self._plan, _operators(passes, rng, state))
        return replace(state, kept=begun.kept())

    def _pass(self, passes: Passes, state: SearchState) -> SearchState:
        """Assign all rows to all partitions that have not settled."""
        before = state.passes
        if before is None:
            before = begin_path(state.path.astype(state.shift.dtype), state.length)
        after = path_step(passes, before, self.problem.tol)
        if self.problem.tol > 0:
            # Centres of few rows may keep moving with no visible effect on the objective.
            slow = before.cost - after.cost <= SLOW * after.cost
            after = replace(after, settled=after.settled | slow)
        return replace(state, passes=after)

    def _info(self, state: SearchState, rows: int, stage: int) -> Info:
        """Return the record of a step; ``stage`` is an index into all stages."""
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
        """Return all partitions found so far."""
        if state.found is not None:
            return state.found
        inertia = state.kept.costs if state.passes is None else state.passes.cost
        inertia = np.minimum.accumulate(inertia[: state.length])
        return PathArrays.of(state.path, None, inertia, state.bounds, state.shift)


def is_searched_whole(table: TableShape) -> bool:
    """Return True if all rows are searched, or False if a sample is."""
    return table.n_rows <= MOST_ROWS and table.n_rows * table.n_features <= MOST_VALUES


def rows_of_sample(k: int, d: int) -> int:
    """Return the number of draws of a sample to search."""
    rows = max(LEAST_ROWS, ROWS_A_CLUSTER * k)
    return min(rows, max(MOST_VALUES // d, FEW_A_CLUSTER * k))


def most_clusters(passes: Passes, rng: Rng, wanted: int, sample: Sample | None) -> int:
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


def _operators(passes: Passes, rng: Rng, state: SearchState) -> Operators:
    return Operators(rows_to_search(passes, rng, state.origin, state.drawn), passes.threads)


def _has_settled(passes: PathState | None) -> bool:
    return passes is not None and (not passes.live or passes.n_passes >= MOST_PASSES)


# --- the conclusion -------------------------------------------------------------------------------


def conclude(passes: Passes, rng: Rng, state: SearchState) -> PathArrays:
    """Return the partitions with exact objectives, stationarity and stability.

    This takes two passes over all rows, or one if centres are means already, and more only if a
    cluster is left without rows.
    """
    length, shift, sample = state.length, state.shift, state.drawn
    path = state.path.astype(shift.dtype)
    if state.passes is None:
        # Exact means, rounded once; the sums of the search are rounded.
        path = path_step(passes, begin_path(path, length)).path
    if state.ends_distinct:
        rows = np.unique(take_rows(passes, rng, sample)[0], axis=0)
        if len(rows) == length:  # (the search may have ended as no other centre was useful)
            centers_in(path, length)[:] = rows
    path, count = _non_increasing(passes, path, length)
    operators = _operators(passes, rng, state)
    stationarity = np.full((length, len(FIGURES)), np.nan)
    stationarity[:, 0], stationarity[:, 1] = count.movement, count.ties
    # Swaps on a sample would ignore the rows that it lacks.
    for size in range(1, length + 1 if sample is None else 1):
        generator = rng.generator(0, "swaps looked at", size)
        centers = centers_in(path, size).astype(np.float64) - state.origin
        stationarity[size - 1, 2:] = operators.possible_gains(centers, generator, SCANNED)
    compared = min(length, STABLE_CLUSTERS)
    searched, stability = operators.rows, np.full(length, np.nan)
    halves = compare_halves(searched.x, searched.weight, rng, compared, passes.threads)
    stability[:compared] = halves.stability
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


def _non_increasing(
    passes: Passes, path: NDArray[np.floating], length: int
) -> tuple[NDArray[np.floating], PathCount]:
    """Return partitions and their statistics, such that objectives do not increase with l.

    A partition that costs more than the one before is replaced by that one with an additional
    centre: the row farthest from its centres.
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
