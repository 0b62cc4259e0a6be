"""DCD-Bundle: the incremental algorithm of its paper, one more cluster per step (Algorithm 7.1).

N. Karmitsa, A. Bagirov, S. Taheri, New diagonal bundle method for clustering problems in large data
sets, European Journal of Operational Research 263 (2017). From the partition into l - 1 clusters:

1. S_1, where to begin the auxiliary problem (the paper takes it from B. Ordin and A. Bagirov): of
   the rows y with ``z(y) >= gamma_1 max z``, the means c(y) of B(y) with
   ``z(c) >= gamma_2 max z(c)``. z(y) is what a centre at y would save
   (:mod:`largek_dask.kernels.auxiliary`).
2. S_2: the auxiliary problem is solved from each of S_1 by Algorithm 5.2.
3. S_3: the problem of l clusters is solved by Algorithm 5.2 from the l - 1 centres and each of S_2.
4. The best of S_3 is the partition into l clusters.

The last one has a centre on every distinct row.

Rows y, and points of S_1 and of S_2, that are near one another count as one, the one that saves
most: they are near if their squared distance is at most ``apart`` times the mean squared distance
of rows to their centres. The paper has no such figure, nor a limit to S_2 (``most``).

The kind of descent (``descent``) is Algorithm 5.1, or plain DC (:mod:`.plain`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from largek_dask.algorithms.dcd.arrays import PathArrays, centers_in
from largek_dask.algorithms.dcd.bundle import Accuracy, Counted, bundle
from largek_dask.algorithms.dcd.conclusion import Found, conclude, unfinished
from largek_dask.algorithms.dcd.held import taken_rows
from largek_dask.algorithms.dcd.plain import plain_descent
from largek_dask.algorithms.dcd.problem import PathProblem
from largek_dask.algorithms.dcd.stationary import Descend, stationary_point
from largek_dask.algorithms.parts.gathered import check_held
from largek_dask.algorithms.parts.spectrum import lower_bounds
from largek_dask.errors import ParameterError
from largek_dask.kernels.auxiliary import ArrangedRows, descend_from, gains_at
from largek_dask.kernels.convex import AuxiliaryFunction, ClusteringFunction, MeasuredRows
from largek_dask.kernels.threads import Threads

__all__ = ["DCDBundle", "PublishedState"]

_POINTS = 256
"""Points whose gains are computed between two checks for a stop."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PublishedState:
    """State between two steps: all partitions into up to l clusters."""

    step: int
    path: Array
    """(l (l + 1) / 2, d) their centres, packed (:mod:`.arrays`), in the coordinates of the data."""
    inertia: Array
    """(l,) the sum of ``w ||x - c||^2`` of each."""
    shift: NDArray[Any]
    """(d,) origin of the fit's kernels, compute dtype."""
    values: int
    """Times that f or the auxiliary function was evaluated."""
    subgradients: int
    """Subgradients that were computed."""
    gains: int
    """Number of points whose z was computed."""
    starts: int
    """Points of S_1, all partitions together."""
    solutions: int
    """Points of S_3, all partitions together."""
    complete: bool
    """There is no partition into more clusters: every distinct row has its centre."""
    bounds: Array
    """(k,) lower bounds of the objectives."""
    found: PathArrays | None = None
    """The final result."""

    @property
    def reached(self) -> int:
        """Clusters of the last partition (l)."""
        return len(self.inertia)


@dataclass(frozen=True, slots=True)
class _Found:
    """One more partition, and the evaluations for it."""

    centers: Array
    value: float
    values: int
    subgradients: int
    gains: int
    starts: int
    solutions: int


@dataclass(frozen=True)
class DCDBundle(Algorithm[PublishedState, PathProblem]):
    """The published method, Algorithms 7.1, 5.2 and 5.1; a step is one more cluster.

    All partitions into up to k clusters are kept, as ``km.path_``. Nothing is drawn unless
    ``starts="drawn"``. Rows are held in the driver's process, in float64, and z is computed for all
    of them at every step: a slow baseline of :class:`~largek_dask.PartitionPath`.

    Parameters
    ----------
    descent : {"bundle", "plain"}
        Algorithm 5.1, or plain DC descents: our reading of DCClust, a method that the paper
        compares with and does not describe.
    starts : {"all", "drawn"}
        Rows whose z is computed: all distinct ones, or ``drawn`` of them, in proportion to the
        squared distances to their centres.
    drawn : int
        Number of these rows.
    gamma_1, gamma_2 : float
        Minimum share of the largest z for rows, and means of B(y), to be kept; in [0, 1].
    apart : float
        Squared distance of points that count as different, in mean squared distances of rows to
        their centres.
    most : int or None
        Points of S_2 from which the problem of l clusters is solved, those of the least auxiliary
        value first; None: all of them, as published.
    accuracy : Accuracy
        Parameters of Algorithms 5.1 and 5.2.
    auxiliary_tolerance : float
        Final accuracy of the auxiliary problem, whose solutions are starting points only.
    """

    descent: Literal["bundle", "plain"] = "bundle"
    starts: Literal["all", "drawn"] = "all"
    drawn: int = 1000
    gamma_1: float = 0.7
    gamma_2: float = 0.7
    apart: float = 0.2
    most: int | None = None
    accuracy: Accuracy = field(default_factory=Accuracy)
    auxiliary_tolerance: float = 1e-6
    solves: ClassVar[type[PathProblem]] = PathProblem
    takes_starts: ClassVar[bool] = False

    @classmethod
    def paper(cls, accuracy: Accuracy | None = None) -> DCDBundle:
        """Return the published method, with these parameters of Algorithms 5.1 and 5.2."""
        return cls(accuracy=accuracy or Accuracy())

    def __post_init__(self) -> None:
        if self.descent not in ("bundle", "plain"):
            raise ParameterError(f"descent must be 'bundle' or 'plain', got {self.descent!r}.")
        if self.starts not in ("all", "drawn"):
            raise ParameterError(f"starts must be 'all' or 'drawn', got {self.starts!r}.")
        for name in ("gamma_1", "gamma_2"):
            if not 0 <= getattr(self, name) <= 1:
                raise ParameterError(f"{name} must be in [0, 1], got {getattr(self, name)!r}.")
        if not self.apart >= 0:
            raise ParameterError(f"apart must not be negative, got {self.apart!r}.")
        self.auxiliary_accuracy  # noqa: B018
        if self.drawn < 1 or (self.most is not None and self.most < 1):
            raise ParameterError(
                f"drawn and most must be at least 1, got {self.drawn!r} and {self.most!r}."
            )

    @property
    def auxiliary_accuracy(self) -> Accuracy:
        """Parameters of Algorithms 5.1 and 5.2 on the auxiliary problem."""
        return replace(self.accuracy, tolerance=self.auxiliary_tolerance)

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory: rows are held in float64 twice, as they are and in the order of scans.

        A checkpoint has the partitions into fewer clusters, in addition to the last.
        """
        return Footprint(
            model_copies=2 + (self.problem.n_clusters + 1) // 2,
            held_rows=table.n_rows,
            held_bytes=_held_bytes(table),
            full_search="every row, at every step",
        )

    def init(self, passes: Passes, rng: Rng) -> PublishedState:
        """Return the partition into one cluster."""
        instead = "PartitionPath(), which works on a sample of many rows and then on all"
        check_held(passes, _held_bytes(passes), "DCDBundle", instead)
        rows = held_rows(passes, rng)
        statistics = passes.statistics
        center = rows.statistics.mean[None]
        value = ClusteringFunction(rows, 1).value(center) * rows.total
        return PublishedState(
            step=0,
            path=center + statistics.mean,
            inertia=np.array([value]),
            shift=statistics.shift,
            values=1,
            subgradients=0,
            gains=0,
            starts=0,
            solutions=0,
            complete=value == 0,
            bounds=lower_bounds(passes, self.problem.n_clusters),
        )

    def step(self, passes: Passes, rng: Rng, state: PublishedState) -> tuple[PublishedState, Info]:
        """Go from l - 1 to l clusters; at the end, compute the figures of all partitions."""
        rows = held_rows(passes, rng)
        if state.complete or state.reached >= self.problem.n_clusters:
            arrays = conclude(passes, rng, _all_of(state))
            state = replace(state, step=state.step + 1, found=arrays)
        else:
            centers = centers_in(state.path, state.reached) - passes.statistics.mean
            search = _Search(self, rows, centers, passes.threads, rng, state.step)
            found = search.next_partition()
            if found is None:
                state = replace(state, step=state.step + 1, complete=True)
            else:
                state = _grown(state, found, passes.statistics.mean)
        inertia = state.inertia if state.found is None else state.found.inertia
        return state, Info(
            cost=float(inertia[-1]),
            rows=len(rows.x),
            converged=state.found is not None,
            extra={
                "partitions": state.reached,
                "distinct": float(state.complete and state.reached < self.problem.n_clusters),
                "evaluations": state.values,
                "subgradients": state.subgradients,
                "gains": state.gains,
                "starts": state.starts,
                "solutions": state.solutions,
            },
        )

    def model(self, state: PublishedState) -> PathArrays:
        """Return all partitions so far."""
        if state.found is not None:
            return state.found
        return unfinished(_all_of(state), state.shift, state.inertia)


class _Search:
    """One step of Algorithm 7.1.

    Coordinates are those of the rows that are held.
    """

    def __init__(
        self,
        method: DCDBundle,
        rows: MeasuredRows,
        centers: Array,
        threads: Threads,
        rng: Rng,
        step: int,
    ) -> None:
        self.method, self.rows, self.centers = method, rows, centers
        self.threads, self.rng, self.step = threads, rng, step
        self.auxiliary = Counted(AuxiliaryFunction(rows, centers), threads.check)
        self.clustering = Counted(ClusteringFunction(rows, len(centers) + 1), threads.check)
        self.descend: Descend = bundle if method.descent == "bundle" else plain_descent
        self.gains = 0

    def next_partition(self) -> _Found | None:
        """Return the best of S_3; None if no further centre saves anything."""
        method, function = self.method, self.auxiliary.function
        assert isinstance(function, AuxiliaryFunction)
        distinct = np.unique(np.asarray(self.rows.x, np.float64), axis=0)
        size = len(self.centers) + 1
        if len(distinct) < size:
            return None
        if len(distinct) == size:  # nothing remains to be solved
            return _Found(distinct, 0.0, 0, 0, 0, 0, 0)
        starts = self._starting_points(function.arranged, distinct)
        if not len(starts):
            return None
        near = method.apart * function.without / self.rows.total
        coarse = method.auxiliary_accuracy
        solved = [stationary_point(self.auxiliary, y, coarse, self.descend) for y in starts]
        chosen = _apart(
            np.stack([s.x for s in solved]), -np.array([s.value for s in solved]), near
        )[: method.most]
        solutions = [
            stationary_point(
                self.clustering,
                np.concatenate([self.centers, solved[i].x[None]]),
                method.accuracy,
                self.descend,
            )
            for i in chosen
        ]
        best = min(solutions, key=lambda s: s.value)
        return _Found(
            best.x,
            best.value * self.rows.total,
            self.auxiliary.values + self.clustering.values,
            self.auxiliary.subgradients + self.clustering.subgradients,
            self.gains,
            len(starts),
            len(solutions),
        )

    def _starting_points(self, rows: ArrangedRows, distinct: Array) -> Array:
        """Return S_1."""
        method = self.method
        points = self._candidates(rows, distinct)
        gains = self._by_parts(points, lambda part: gains_at(rows, part))
        best = gains.max(initial=0.0)
        if best <= 0:
            return np.empty((0, points.shape[1]))
        function = self.auxiliary.function
        assert isinstance(function, AuxiliaryFunction)
        near = method.apart * function.without / self.rows.total
        kept = gains >= method.gamma_1 * best
        points, gains = points[kept], gains[kept]
        points = points[_apart(points, gains, near)]
        found = self._by_parts(points, lambda part: _means_and_gains(rows, part))
        means, gains = np.ascontiguousarray(found[:, :-1]), found[:, -1]
        kept = gains >= method.gamma_2 * gains.max()
        means, gains = means[kept], gains[kept]
        chosen: Array = means[_apart(means, gains, near)]
        return chosen

    def _candidates(self, rows: ArrangedRows, distinct: Array) -> Array:
        """Return the rows whose z is computed."""
        n = self.method.drawn
        if self.method.starts == "all" or len(distinct) <= n:
            return distinct
        sums = np.cumsum(rows.r * rows.weight if len(rows.weight) else rows.r)
        draws = self.rng.generator(self.step, "starts").random(n) * sums[-1]
        places = np.minimum(np.searchsorted(sums, draws, side="right"), len(sums) - 1)
        return np.unique(rows.columns.T[places], axis=0)

    def _by_parts(self, points: Array, function: Callable[[Array], Array]) -> Array:
        self.gains += len(points)
        parts = [points[at : at + _POINTS] for at in range(0, len(points), _POINTS)]
        if not parts:
            return np.empty(0)
        joined: Array = np.concatenate(self.threads.map(function, parts))
        return joined


def _means_and_gains(rows: ArrangedRows, points: Array) -> Array:
    """Return (q, d + 1) the mean of each point's B(y), and the saving by a centre there."""
    means, gains = descend_from(rows, points, 1)
    return np.concatenate([means, gains[:, None]], axis=1)


def _held_bytes(table: TableShape) -> int:
    """Return the bytes of all rows in float64, as they are and in the order of scans."""
    return table.n_rows * (16 * table.n_features + 40)


def held_rows(passes: Passes, rng: Rng) -> MeasuredRows:
    """Return rows of positive weight, about their mean, in float64."""
    x, weight = taken_rows(passes, rng)
    x = np.ascontiguousarray(x - passes.statistics.mean)
    return MeasuredRows.of(x, None if (weight == 1).all() else weight)


def _apart(points: Array, gains: Array, near: float) -> list[int]:
    """Return places of points, the best first, that are not near a better one (ties: the first)."""
    chosen: list[int] = []
    open_ = np.ones(len(points), np.bool_)
    for i in np.argsort(-gains, kind="stable").tolist():
        if open_[i]:
            chosen.append(i)
            squares = np.zeros(len(points))
            for column, at in zip(points.T, points[i], strict=True):
                squares += (column - at) ** 2
            open_ &= squares > near
    return chosen


def _all_of(state: PublishedState) -> Found:
    """Return partitions for the conclusion."""
    ends = state.complete or state.inertia[-1] == 0
    return Found(state.path, state.reached, state.bounds[: state.reached], ends_distinct=ends)


def _grown(state: PublishedState, found: _Found, mean: Array) -> PublishedState:
    """Return the state with one more partition."""
    return replace(
        state,
        step=state.step + 1,
        path=np.concatenate([state.path, found.centers + mean]),
        inertia=np.append(state.inertia, found.value),
        values=state.values + found.values,
        subgradients=state.subgradients + found.subgradients,
        gains=state.gains + found.gains,
        starts=state.starts + found.starts,
        solutions=state.solutions + found.solutions,
    )
