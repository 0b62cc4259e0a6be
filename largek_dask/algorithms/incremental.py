"""Incremental Lloyd: k-means with stored labels, updated in rounds without a step size.

This is incremental EM (R. Neal and G. Hinton, A view of the EM algorithm that justifies
incremental, sparse, and other variants, 1998) applied to k-means, with an extrapolation added in
this package.

The gradient of a row is its centre minus the row. One label per row therefore replaces the snapshot
of SVRG, or the vector that SAGA stores per row (A. Defazio, F. Bach, S. Lacoste-Julien, NIPS 2014).
From the latest label of each row, the sums S and weights v of all clusters are known exactly
without a scan of all rows.

A round labels one R-th of the rows, and the changes of all other rows are estimated from the latest
rounds. A row visited i rounds ago still has i/R of the change of one visit outstanding; in total
these are (R - 1)/2 times the change of one round (A, alpha). Centres are ``(S + A) / (v + alpha)``.

The objective under the stored labels, ``sum w ||x||^2 - sum_j ||S_j||^2 / v_j``, is known exactly
after every round at no cost. With A = 0, no round raises the objective, because rows move to nearer
centres, and centres to the means of their rows. If the objective does not decrease, A is reduced
and finally set to 0, so the fit ends at a fixed point of Lloyd's algorithm.

If there are many more rows than a good sample needs, the first epochs use a sample, which doubles
in size from time to time (:mod:`..parts.nested`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Chunk,
    Footprint,
    Info,
    Passes,
    PlannedTable,
    Rng,
    RowSlice,
    RowState,
    TableShape,
)
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.nested import (
    COPIES,
    GATHERED_VALUES,
    halved,
    room_of_sample,
    worth_gathering,
)
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.totals import Tally
from largek_dask.algorithms.starts.seeding import nested_start
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.extrapolated import ExpectedChange
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.movement import squared_movement
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums

ROWS_A_CENTER = 100
LEAST_ROWS = 5_000
TIMES_SAMPLE = 16
"""Minimum ratio of the number of rows to the size of the first sample. With a larger sample, the
fit takes as long and ends at a higher cost (``benchmarks.incremental``)."""
MODEL_VALUES = 1 << 26
"""Maximum number of values in the centres of all rounds of an epoch, which checkpoints contain."""
UPDATE_WORK = 16
"""Cost of updating one coordinate of a centre, relative to one number of a sparse row in a distance
computation. (A stored coordinate consists of two numbers.)"""
PLACE_BYTES = 8
"""Bytes per row for two positions: in the seeded order of a chunk, and among the rows of a
round."""
CALM_SHARE = 0.002
"""If a smaller share of the rows changes its label in an epoch, the expected change becomes 0."""
MOST_HALVED = 3
"""Number of times the expected change is halved before it is set to 0."""


@dataclass(frozen=True, slots=True)
class LabelTableState:
    step: int
    centers: NDArray[Any]
    shift: NDArray[Any]
    stages: tuple[int, ...]
    """Sizes of all samples so far, including the sample of the next epoch."""
    sums: NDArray[np.int64]
    """(k, d) exact sums of the labelled rows (``ClusterSums.limbs``)."""
    weights: NDArray[np.int64]
    counts: NDArray[np.float64]
    expected_sums: NDArray[np.float64]
    """(k, d) expected change of the sums (A)."""
    expected_weights: NDArray[np.float64]
    """(k,) expected change of the weights (alpha)."""
    factor: float
    """Ratio of the expected change of all rows outside a round to the change in one round, at most
    (R - 1)/2."""
    known: int = 0
    """Number of labelled rows, a prefix of the nested order."""
    squares: float = 0.0
    """``sum w ||x - shift||^2`` over all labelled rows."""
    least: float = np.inf
    """Lowest objective after any epoch over the same number of rows."""
    n_halved: int = 0
    is_calm: bool = False
    """True once the expected change is 0 for good; the objective then decreases until no label
    changes."""
    models: tuple[NDArray[Any], ...] = ()
    """Centres of each round of the last epoch, from which lost labels are recomputed."""

    @property
    def rows(self) -> int:
        """Number of rows in the next epoch, a prefix of the nested order."""
        return self.stages[-1]

    def has_no_labels(self, n: int) -> bool:
        """Return True if the next epoch starts without any labels."""
        return self.known == 0 or self.known < self.rows == n


@dataclass(kw_only=True)
class LabelChanges(Tally):
    """Changes of labels and sums made by one round."""

    moved: ClusterSums
    """Change of the sums due to rows that had a label before."""
    entered: ClusterSums
    """Sums of the rows that had no label before."""
    squares: ExactSums
    """Sum of squared lengths of the rows that had no label before."""
    touched: NDArray[np.bool_]
    """(k,) mask of clusters that lost or gained rows."""
    n_entered: int = 0

    @classmethod
    def of(cls, k: int, d: int, grid: FixedPoint) -> LabelChanges:
        sums = partial(ClusterSums, k, d, grid)
        return cls(
            moved=sums(), entered=sums(), squares=ExactSums(1), touched=np.zeros(k, np.bool_)
        )

    def empty(self) -> LabelChanges:
        k, d = self.moved.sums.shape
        return LabelChanges.of(k, d, self.moved.grid)

    def count(
        self,
        x: Any,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32] | None,
        labels: NDArray[np.int32],
    ) -> None:
        """Move rows (n, d) from their old clusters to their new clusters.

        Entries of ``labels`` for rows of weight 0 are set to -1.
        """
        if weight is not None:
            labels[weight <= 0] = -1
        self.n_rows += len(labels)
        if old is None:
            changed = labels >= 0
            self.n_entered += len(labels)
            self.entered.add(x, labels, weight)
            self.squares.add(row_squares(x, self.entered.grid.shift), weight)
        else:
            changed = labels != old
            self.moved.move(x, old, labels, weight)
            self.touched[old[changed]] = True
        self.touched[labels[changed]] = True
        self.n_changed += int(np.count_nonzero(changed))


def round_chunk(chunk: Chunk, total: LabelChanges, centers: PackedCenters) -> None:
    """Label the rows of a chunk that belong to one round by their nearest centre."""
    n, before = len(chunk), None if chunk.state is None else chunk.state["labels"]
    labels = np.empty(n, np.int32)
    step = max(1, -(-n // chunk.threads.n))

    def share(begin: int) -> LabelChanges:
        part = total if begin == 0 else total.empty()
        for at, x, weight in chunk.pieces(slice(begin, min(begin + step, n))):
            found, _ = nearest_pruned(x, centers)
            part.count(x, weight, None if before is None else before[at], found)
            labels[at] = found
        return part

    for part in chunk.threads.map(share, range(0, n, step))[1:]:
        total.merge(part)
    chunk.keep(labels=labels)


@dataclass(frozen=True)
class IncrementalLloyd(Algorithm[LabelTableState, KMeansProblem]):
    """Incremental k-means with stored labels; each step is one epoch.

    An epoch labels every row once, in several rounds. After each round all centres move; the
    changes of rows outside the round are estimated from recent rounds. The fit starts on samples
    and ends at a fixed point of Lloyd's algorithm after a fraction of the passes that Lloyd's
    algorithm takes.

    A store that is not shuffled and does not fit in memory is read once per round. For a table of
    up to 2^25 numbers, a second copy ordered by round is held in memory.

    Parameters
    ----------
    rounds : int
        Number of rounds of an epoch (R), each over the same number of rows. There are fewer if k
        times d is large, as the centres of all rounds of an epoch are stored. 1 is Lloyd's
        algorithm.
    smoothing : float
        Weight of the latest round in the expected change of all other rows (β), in (0, 1].

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.IncrementalLloyd(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    rounds: int = 10
    smoothing: float = 0.5
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        rounds: Any = self.rounds
        whole = isinstance(rounds, int | np.integer) and not isinstance(rounds, bool)
        if not (whole and rounds >= 1):
            raise ParameterError(f"rounds must be an integer of at least 1, got {rounds!r}.")
        share: Any = self.smoothing
        number = isinstance(share, Real) and not isinstance(share, bool)
        if not (number and 0 < float(share) <= 1):
            raise ParameterError(f"smoothing must be above 0 and at most 1, got {share!r}.")

    def init(self, passes: Passes, rng: Rng) -> LabelTableState:
        k, d, how = self.problem.n_clusters, passes.n_features, self.problem.init
        rows = first_rows(passes.n_rows, k, passes.row_values)
        centers, rows = nested_start(passes, rng, k, how, rows)
        sums, weights = ClusterSums(k, d, passes.statistics.grid).limbs()
        return LabelTableState(
            step=0,
            centers=centers,
            shift=passes.statistics.shift,
            stages=(rows,),
            sums=sums,
            weights=weights,
            counts=np.zeros(k),
            expected_sums=np.zeros((k, d)),
            expected_weights=np.zeros(k),
            factor=(self._rounds(passes, k) - 1) / 2,
        )

    def _rounds(self, table: TableShape, k: int) -> int:
        """Return R, the number of rounds per epoch."""
        d = table.n_features
        most = MODEL_VALUES // (k * d)
        if table.is_sparse:
            most = min(most, max(2, table.n_rows * table.row_values // (UPDATE_WORK * d)))
        return max(1, min(self.rounds, most))

    def step(
        self, passes: Passes, rng: Rng, state: LabelTableState
    ) -> tuple[LabelTableState, Info]:
        """Run one epoch of R rounds; each round labels some rows and then moves all centres."""
        k = len(state.centers)
        n_rounds = self._rounds(passes, k)
        rounds = _Rounds(passes, rng, state, n_rounds, self._gathers(passes, k, n_rounds))
        epoch = _Epoch(state, passes, self.smoothing)
        for q in range(n_rounds):
            epoch.add(rounds.label(q, pack_centers(epoch.centers, state.shift)))
        epoch.end()
        n_moved = self._relocate(rounds.passes, epoch)
        after = self._state_after(passes, rounds, epoch)
        return after, _info(passes, epoch, after, n_moved)

    def _gathers(self, table: Passes | PlannedTable, k: int, n_rounds: int) -> bool:
        """Return True if all rows are copied to the driver's process, ordered by round.

        On a cluster, rows are gathered if a pass over few rows takes longer than the computation.
        In one process, rows are gathered if copying the rows of every round takes a large part of
        an epoch (measured).
        """
        if table.n_threads is None:
            return worth_gathering(table, table.n_rows, k, n_rounds)
        return table.n_rows * table.row_values <= GATHERED_VALUES

    def _relocate(self, rows: Passes, epoch: _Epoch) -> int | None:
        """Relocate centres without rows; return the number moved, or None if none is empty."""
        empty = np.flatnonzero(epoch.sums.counts == 0)
        if not len(empty) or self.problem.empty_clusters == "keep":
            return None
        packed = pack_centers(epoch.centers, epoch.state.shift)
        epoch.centers, n_moved, _ = relocate_empty(rows, packed, epoch.centers, empty)
        epoch.expected.sums[empty] = 0.0
        epoch.expected.weights[empty] = 0.0
        return n_moved

    def _state_after(self, passes: Passes, rounds: _Rounds, epoch: _Epoch) -> LabelTableState:
        state = epoch.state
        few = epoch.n_changed < CALM_SHARE * epoch.n_rows
        is_calm = epoch.moves_all and (few or not epoch.factor)
        if is_calm and not state.is_calm:
            epoch.expect_nothing()
        stages = state.stages
        if not epoch.only_labels and stages[-1] < passes.n_rows:
            stages = (*stages, self._next_stage(passes, stages[-1]))
        sums, weights = epoch.sums.limbs()
        return replace(
            state,
            step=state.step + 1,
            centers=epoch.centers,
            stages=stages,
            sums=sums,
            weights=weights,
            counts=epoch.sums.counts,
            expected_sums=epoch.expected.sums,
            expected_weights=epoch.expected.weights,
            factor=epoch.factor,
            known=state.rows,
            squares=epoch.squares,
            least=min(epoch.cost, epoch.least),
            n_halved=epoch.n_halved,
            is_calm=state.is_calm or is_calm,
            models=tuple(epoch.models),
        )

    def _next_stage(self, table: TableShape, stage: int) -> int:
        """Return twice the sample size, or all rows if that sample is too large to hold."""
        doubled = min(2 * stage, table.n_rows)
        return doubled if doubled * table.row_values <= GATHERED_VALUES else table.n_rows

    def model(self, state: LabelTableState) -> CenterArrays:
        return CenterArrays(state.centers, state.counts, state.shift)

    def footprint(self, table: PlannedTable) -> Footprint:
        n, k, how, sample = table.n_rows, self.problem.n_clusters, self.problem.init, 0
        stage, rounds = first_rows(n, k, table.row_values), self._rounds(table, k)
        if isinstance(how, str) and how == "auto":
            sample = min(stage, room_of_sample(table, k))
        largest = sample
        while stage < n:
            largest = max(largest, stage)
            stage = self._next_stage(table, stage)
        if self._gathers(table, k, rounds):
            largest = n
        return Footprint(
            row_bytes=4 + PLACE_BYTES,
            fixed_row_bytes=PLACE_BYTES,
            model_copies=self.rounds + 5,
            held_bytes=max(
                bytes_of_held(table, sample, table.itemsize, 0, COPIES),
                bytes_of_held(table, largest, table.itemsize, 2 * (4 + PLACE_BYTES)),
            ),
            passes_before=self.problem.passes_to_start(),
            step_reads=rounds,
            full_search="once per epoch, every row",
        )


def first_rows(n: int, k: int, row_values: int) -> int:
    """Return the size of the first sample; repeated doubling of this size reaches exactly n."""
    rows = halved(n, max(ROWS_A_CENTER * k, LEAST_ROWS))
    times = -(-n // rows)
    worthwhile = times >= TIMES_SAMPLE and rows * row_values <= GATHERED_VALUES
    return rows if worthwhile else n


def _info(passes: Passes, epoch: _Epoch, after: LabelTableState, n_moved: int | None) -> Info:
    state, centers = epoch.state, epoch.centers
    shift = None
    if epoch.moves_all and not n_moved:
        # scikit-learn's `tol` is relative to the mean variance of the features.
        variance = epoch.squares / (passes.statistics.total_weight * passes.n_features)
        shift = squared_movement(centers, state.centers) / variance if variance > 0 else 0.0
    has_all, scale = state.rows == passes.n_rows, 1.0
    weight = sum(after.counts.tolist())
    if weight > 0 and not has_all:
        scale = passes.statistics.total_weight / weight
    before = state.models[0] if state.models else None
    has_converged = state.is_calm and (
        (epoch.n_changed == 0 and not n_moved) or returns(centers, before)
    )
    return Info(
        cost=epoch.cost * scale,
        rows=epoch.n_rows,
        n_changed=epoch.n_changed,
        shift=shift,
        converged=has_all and has_converged,
        extra={
            "batch_rows": float(epoch.n_rows),
            "rounds": float(len(epoch.models)),
            "factor": 0.0 if after.is_calm else epoch.factor,
            **({} if n_moved is None else {"relocated": float(n_moved)}),
        },
    )


class _Epoch:
    def __init__(self, state: LabelTableState, passes: Passes, smoothing: float) -> None:
        k, d = state.centers.shape
        grid = passes.statistics.grid
        self.state, self.smoothing, self.centers = state, smoothing, state.centers
        self.only_labels = state.has_no_labels(passes.n_rows)
        """True if the centres move only at the end of the epoch."""
        self.moves_all = state.rows == passes.n_rows and not self.only_labels
        if self.only_labels:
            self.sums, self.squares = ClusterSums(k, d, grid), 0.0
            self.expected = ExpectedChange.nothing(k, d)
        else:
            self.sums = ClusterSums.of(state.sums, state.weights, grid)
            self.squares = state.squares
            sums, weights = state.expected_sums.copy(), state.expected_weights.copy()
            self.expected = ExpectedChange(sums, weights)
        self.factor, self.n_halved = state.factor, state.n_halved
        # An objective over other rows is not comparable.
        self.least = state.least if state.known == state.rows else np.inf
        self.models: list[NDArray[Any]] = []
        self.n_rows = self.n_changed = 0
        self.touched = np.zeros(k, np.bool_)
        self.cost = np.inf

    def add(self, changes: LabelChanges) -> None:
        """Add the changes of one round to the sums, and move the centres."""
        self.models.append(self.centers)
        self.n_rows += changes.n_rows
        self.n_changed += changes.n_changed
        if changes.n_entered:
            self.sums.merge(changes.entered)
            self.squares += changes.squares.value
        if changes.n_entered < changes.n_rows:
            self.sums.merge(changes.moved)
        if self.only_labels:
            self.touched |= changes.touched
            return
        factor = 0.0 if self.state.is_calm else self.factor
        self.centers = self.centers.copy()
        self.expected.move(
            self.centers, self.sums, changes.moved, changes.touched, self.smoothing, factor
        )
        # Read-only centres are packed without a copy.
        self.centers.flags.writeable = False

    def end(self) -> None:
        """Compute the objective; halve the expected change if the objective did not fall."""
        if self.only_labels:
            self.centers = self.centers.copy()
            self.expected.move(self.centers, self.sums, None, self.touched, 0.0, 0.0)
        self.cost = self.sums.cost(self.sums.means(self.centers), self.squares)
        if self.cost >= self.least and self.factor and not self.state.is_calm:
            self.n_halved += 1
            self.factor = 0.0 if self.n_halved > MOST_HALVED else self.factor / 2
            self.expect_nothing()

    def expect_nothing(self) -> None:
        """Set the expected change to 0, and the centres to the means of the labelled rows."""
        self.expected.clear()
        self.centers = self.sums.means(self.centers)


class _Rounds:
    def __init__(
        self, passes: Passes, rng: Rng, state: LabelTableState, n_rounds: int, gathers: bool
    ) -> None:
        n, has_all = passes.n_rows, state.rows == passes.n_rows
        self._state, self._rng, self._n = state, rng, n
        self.gathered = gathers or not has_all
        self.passes = passes
        self._ends = _ends(0, n, n_rounds)
        if self.gathered:
            # Gathering must not change the rounds over all rows.
            stages = [0, n] if has_all else [0, *state.stages]
            ends = [_ends(*stage, n_rounds) for stage in pairwise(stages)]
            cuts = [end for stage in ends for end in stage[1:]]
            self.passes = passes.subset(RowSlice(rng, 0, state.rows, n), cuts=cuts)
            self._chunks = _chunks(passes, self.passes, ends)

    def label(self, q: int, packed: PackedCenters) -> LabelChanges:
        state, n = self._state, self._n
        share = RowSlice(self._rng, self._ends[q], self._ends[q + 1], n)
        replay: tuple[tuple[PackedCenters], ...] = ()
        labelled = None
        if not state.has_no_labels(n):
            replay = ((pack_centers(state.models[q], state.shift),),)
            labelled = RowSlice(self._rng, 0, state.known, n) if self.gathered else share
        d, grid = self.passes.n_features, self.passes.statistics.grid
        changes: LabelChanges = self.passes.reduce(
            round_chunk,
            packed,
            start=partial(LabelChanges.of, packed.n_clusters, d, grid),
            combine=LabelChanges.combine,
            state=RowState(f"round-{q}", state.step + 1, replay, rebuild_rows=labelled),
            rows=None if self.gathered else share,
            chunks=self._chunks[q] if self.gathered else None,
            joined=not self.gathered,
        )
        return changes


def _ends(begin: int, end: int, n_rounds: int) -> list[int]:
    return [begin + (end - begin) * q // n_rounds for q in range(n_rounds + 1)]


def _chunks(table: Passes, held: Passes, stages: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each round, the indices of the chunks of ``held`` that belong to the round."""
    sizes = np.diff(table.chunk_table)
    rounds: list[list[int]] = [[] for _ in stages[0][1:]]
    for ends in stages:
        rows = [int((sizes * end // table.n_rows).sum()) for end in ends]
        cuts = np.searchsorted(held.chunk_table, rows).tolist()
        for chunks, span in zip(rounds, pairwise(cuts), strict=True):
            chunks.extend(range(*span))
    return rounds
