"""Incremental Lloyd: rounds over a table of labels, which need no step size.

Ours, after incremental EM (R. Neal and G. Hinton, A view of the EM algorithm that justifies
incremental, sparse, and other variants, 1998) for k-means, with an extrapolation of rounds.

The gradient of a row is its centre minus the row, so what SVRG looks up from a snapshot, and SAGA
(A. Defazio, F. Bach, S. Lacoste-Julien, NIPS 2014) keeps as a vector, is here one label. With
each row's latest one, sums S and weights v of all rows under these labels are exact, and no scan
is needed. A round labels one R-th of the rows; the change that the others would make is estimated
from the latest rounds: a row visited i rounds ago has i/R of a visit's change outstanding, which
adds up to (R - 1)/2 rounds' changes (A, alpha). Centres are ``(S + A) / (v + alpha)``.

The objective of the table, ``sum w ||x||^2 - sum_j ||S_j||^2 / v_j``, is exact and free after every
round. Without A no round can raise it: each row goes to a nearer centre, and centres to the means
of their rows. A is dropped if it does not pay, and at the end of the fit; so the fit
ends where Lloyd's algorithm stands still.

If there are many times as many rows as a good sample needs, the first epochs are on one, of the
nested order (:mod:`..parts.nested`), which doubles.

Once hardly any row changes, bounds save most of its distances, as in Lloyd's algorithm
(:mod:`..parts.bounded`); between two visits of a row the centres go from one round's to the same
round's of the next epoch, and labels do not depend on bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from largek_dask.algorithms.parts.bounded import (
    BoundsState,
    begin_bounds,
    calm_share,
    groups_for,
    row_bytes,
    with_bounds,
)
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.labels import label_rows
from largek_dask.algorithms.parts.nested import (
    COPIES,
    GATHERED_VALUES,
    NestedRows,
    room_of_sample,
    worth_gathering,
)
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.totals import Tally
from largek_dask.algorithms.starts.seeding import centers_of_sample, initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.extrapolated import ExpectedChange
from largek_dask.kernels.exact.movement import squared_movement
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint

__all__ = ["IncrementalLloyd", "LabelTableState"]

ROWS_A_CENTER = 100
"""Minimum rows per centre of the first sample."""
LEAST_ROWS = 5_000
"""Rows of the first sample at least."""
TIMES_SAMPLE = 16
"""Minimum ratio of all rows to the first sample. With fewer it saves no time, and the fit ends
higher: on centres that suit the sample too well (``benchmarks.incremental``)."""
MODEL_VALUES = 1 << 26
"""Numbers of the centres of all rounds of an epoch together, at most: they are in checkpoints."""
UPDATE_WORK = 16
"""Cost of updating one coordinate of a centre, relative to that of one of the numbers of a
sparse row (of which a stored coordinate is two) in a distance."""
PLACE_BYTES = 8
"""Bytes per row of the seeded order of a chunk, and of the places of a round's rows."""
CALM_SHARE = 0.002
"""Share of the rows that change their label in an epoch after which nothing is expected of the
others any more."""
BOUNDS_SHARE = 0.004
"""Largest share of the rows that change their label in an epoch with which rows get bounds: a
fifth of Lloyd's, with which half of the savings is lost again (measured), as an epoch moves
centres as far as several of Lloyd's steps."""
GROUP_WORK = 4_000
"""Minimum multiplications of a row in a group of centres: below, testing whether a row has to
search it costs more than the search (measured: 1,000 centres of 18 features need 4 groups)."""
PIECE_ROWS = 1 << 16
"""Rows that are labelled at a time: with bounds, those that have none as yet are copied."""
MOST_HALVED = 3
"""Halvings of the expected change before it is set to 0."""


@dataclass(frozen=True, slots=True)
class LabelTableState:
    """State between two epochs."""

    step: int
    centers: NDArray[Any]
    """(k, d) centres that the next round assigns rows to."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""
    stages: tuple[int, ...]
    """Rows of all samples so far, and of the next epoch, in rows of the nested order."""
    sums: NDArray[np.int64]
    """(k, d) exact sums of the rows under their labels (``ClusterSums.limbs``)."""
    weights: NDArray[np.int64]
    """(k,) their weights, in the same form."""
    counts: NDArray[np.float64]
    """(k,) the weights, in those of rows."""
    expected_sums: NDArray[np.float64]
    """(k, d) A: expected change of the sums."""
    expected_weights: NDArray[np.float64]
    """(k,) alpha: expected change of the weights."""
    factor: float
    """Rounds of change expected of the rows not in a round: (R - 1)/2, or less."""
    known: int = 0
    """Rows of the nested order that have labels."""
    squares: float = 0.0
    """``sum w ||x - shift||^2`` over the rows that have labels."""
    least: float = np.inf
    """Lowest objective of the table after an epoch over as many rows."""
    n_halved: int = 0
    """Number of times that the factor was halved."""
    is_calm: bool = False
    """Nothing is expected any more: the objective of the table falls until no label changes."""
    models: tuple[NDArray[Any], ...] = ()
    """The centres of each round of the last epoch, by which lost labels are found again."""
    bounds: tuple[BoundsState, ...] = ()
    """Bounds of the rows of each round, as of ``models``; none as long as rows have none."""

    @property
    def rows(self) -> int:
        """Rows of the next epoch, in rows of the nested order (up to n_rows)."""
        return self.stages[-1]

    def begins_anew(self, n: int) -> bool:
        """Return True if no row of the next epoch has a label: a sample's do not hold for all."""
        return self.known == 0 or self.known < self.rows == n


@dataclass(kw_only=True)
class RoundTotal(Tally):
    """Changes by one round."""

    moved: ClusterSums
    """Change of the sums by rows that had a label before."""
    entered: ClusterSums
    """Sums of rows that had none."""
    squares: ExactSums
    """Squared lengths of the rows that had none."""
    touched: NDArray[np.bool_]
    """(k,) clusters that lost rows, or got some."""
    n_entered: int = 0
    """Rows that had no label."""

    @classmethod
    def of(cls, k: int, d: int, grid: FixedPoint) -> RoundTotal:
        """Return an empty total."""
        sums = partial(ClusterSums, k, d, grid)
        return cls(
            moved=sums(), entered=sums(), squares=ExactSums(1), touched=np.zeros(k, np.bool_)
        )

    def empty(self) -> RoundTotal:
        """Return an empty total for as many clusters."""
        k, d = self.moved.sums.shape
        return RoundTotal.of(k, d, self.moved.grid)

    def count(
        self,
        x: Any,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32] | None,
        labels: NDArray[np.int32],
        few: bool,
    ) -> None:
        """Count (n, d) rows for their new clusters, and no longer for their old ones.

        ``labels`` of rows of weight 0 become -1: such a row is absent, whatever it holds.
        ``few``: hardly any row changes, and only those that do are copied.
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
            if few:
                own = None if weight is None else weight[changed]
                which = np.flatnonzero(changed)
                self.moved.move(x[which], old[which], labels[which], own)
            else:
                self.moved.move(x, old, labels, weight)
            self.touched[old[changed]] = True
        self.touched[labels[changed]] = True
        self.n_changed += int(np.count_nonzero(changed))


def round_chunk(chunk: Chunk, total: RoundTotal, centers: PackedCenters | BoundedCenters) -> None:
    """Label one round's rows of a chunk by their nearest centre.

    Rows whose labels, and bounds, were lost are compared with all centres.
    """
    n, before, few = len(chunk), chunk.state, isinstance(centers, BoundedCenters)
    kept: dict[str, NDArray[Any]] = {"labels": np.empty(n, np.int32)}
    if isinstance(centers, BoundedCenters):
        kept["upper"] = np.empty(n, np.float32)
        kept["lower"] = np.empty((n, centers.n_groups), np.float32)
    step = max(1, -(-n // chunk.threads.n))

    def share(begin: int) -> RoundTotal:
        part = total if begin == 0 else total.empty()
        for at, x, weight in _pieces(chunk, begin, min(begin + step, n), few):
            known = None if before is None else {name: own[at] for name, own in before.items()}
            found, n_evaluated = label_rows(x, centers, known)
            old = None if known is None else known["labels"]
            part.count(x, weight, old, found["labels"], few)
            part.n_evaluated += n_evaluated
            for name, own in found.items():
                kept[name][at] = own
        return part

    for part in chunk.threads.map(share, range(0, n, step))[1:]:
        total.merge(part)
    chunk.keep(**kept)


def _pieces(
    chunk: Chunk, begin: int, end: int, few: bool
) -> Iterator[tuple[slice, Any, NDArray[np.float64] | None]]:
    """Yield from ``chunk.pieces``, limited to some rows at a time."""
    for first in range(begin, end, PIECE_ROWS):
        yield from chunk.pieces(slice(first, min(first + PIECE_ROWS, end)), few=few)


@dataclass(frozen=True)
class IncrementalLloyd(Algorithm[LabelTableState, KMeansProblem]):
    """k-means in rounds over a table of labels; a step is an epoch.

    An epoch labels every row once, in rounds, and moves all centres after each, by an estimate for
    all rows from recent rounds. There is no step size. It begins with samples, and ends where
    Lloyd's algorithm stands still, after a fraction of its passes. A store that was not shuffled
    and does not fit in memory is read once per round. A table of up to 2^25 numbers is held once
    more, round by round.

    Parameters
    ----------
    rounds : int
        Rounds of an epoch (R), each over as many rows. Fewer if k times d is large: the centres of
        an epoch's rounds are kept. 1 is Lloyd's algorithm.
    smoothing : float
        Share of the latest round in the expected change of the other rows (β), in (0, 1].

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
        """Return the state at the starting centres, with no rows labelled yet."""
        k, d, how = self.problem.n_clusters, passes.n_features, self.problem.init
        rows = first_rows(passes.n_rows, k, passes.row_values)
        if isinstance(how, str) and how == "auto":
            x, weight, size = NestedRows(passes, rng).sample(rows, k)
            centers, rows = centers_of_sample(x, weight, k, passes, rng), max(size, rows)
        else:
            centers = initial_centers(passes, rng, k, how)
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
        """Return R, the rounds of an epoch; 1 if a round would cost more than it gains."""
        d = table.n_features
        most = MODEL_VALUES // (k * d)
        if table.is_sparse:
            most = min(most, max(2, table.n_rows * table.row_values // (UPDATE_WORK * d)))
        return max(1, min(self.rounds, most))

    def step(
        self, passes: Passes, rng: Rng, state: LabelTableState
    ) -> tuple[LabelTableState, Info]:
        """Run one epoch of R rounds, each of which labels its rows and moves the centres."""
        k = len(state.centers)
        n_rounds = self._rounds(passes, k)
        table = _Table(passes, rng, state, n_rounds, self._gathers(passes, k, n_rounds))
        epoch = _Epoch(state, passes, self.smoothing)
        for q in range(n_rounds):
            packed = pack_centers(epoch.centers, state.shift)
            epoch.take(table.label(q, packed))
        epoch.settle()
        n_moved, extra = self._relocate(table, epoch)
        return self._ended(passes, table, epoch, n_moved, extra)

    def _gathers(self, table: Passes | PlannedTable, k: int, n_rounds: int) -> bool:
        """Return True if all rows are held, round by round; no result depends on it.

        They are on a cluster, if passes over few rows take longer than their computing; and in this
        process, if copying the rows of every round is a large part of an epoch (measured).
        """
        if table.n_threads is None:
            return worth_gathering(table, table.n_rows, k, n_rounds)
        return table.n_rows * table.row_values <= GATHERED_VALUES

    def _relocate(self, table: _Table, epoch: _Epoch) -> tuple[int, dict[str, float]]:
        """Move centres without rows to far ones; return their number and figures."""
        empty = np.flatnonzero(epoch.sums.counts == 0)
        if not len(empty) or self.problem.empty_clusters == "keep":
            return 0, {}
        packed = pack_centers(epoch.centers, epoch.state.shift)
        epoch.centers, n_moved, _ = relocate_empty(table.passes, packed, epoch.centers, empty)
        epoch.expected.sums[empty] = 0.0
        epoch.expected.weights[empty] = 0.0
        return n_moved, {"relocated": float(n_moved)}

    def _ended(
        self,
        passes: Passes,
        table: _Table,
        epoch: _Epoch,
        n_moved: int,
        extra: dict[str, float],
    ) -> tuple[LabelTableState, Info]:
        """Return the state after an epoch, and its record."""
        state, all_weight = epoch.state, passes.statistics.total_weight
        everything = state.rows == passes.n_rows
        counts, cost = epoch.sums.counts, epoch.cost
        weight = sum(counts.tolist())
        sums, weights = epoch.sums.limbs()
        few = epoch.n_changed < CALM_SHARE * epoch.n_rows
        calm = everything and not epoch.rests and (few or not epoch.factor)
        if calm and not state.is_calm:
            epoch.expect_nothing()
        after = replace(
            state,
            step=state.step + 1,
            centers=epoch.centers,
            stages=self._next_stages(passes, epoch),
            sums=sums,
            weights=weights,
            counts=counts,
            expected_sums=epoch.expected.sums,
            expected_weights=epoch.expected.weights,
            factor=epoch.factor,
            known=state.rows,
            squares=epoch.squares,
            least=min(cost, epoch.least),
            n_halved=epoch.n_halved,
            is_calm=state.is_calm or calm,
            models=tuple(epoch.models),
            bounds=tuple(table.bounds) or self._begin_bounds(passes, epoch),
        )
        shift = None
        if everything and not epoch.rests:
            # Mean variance of the features: what scikit-learn's `tol` is relative to.
            variance = epoch.squares / (all_weight * passes.n_features)
            shift = (
                squared_movement(epoch.centers, state.centers) / variance if variance > 0 else 0.0
            )
        before = state.models[0] if state.models else None
        converged = state.is_calm and (
            (epoch.n_changed == 0 and not n_moved) or returns(epoch.centers, before)
        )
        info = Info(
            cost=cost * (all_weight / weight if weight > 0 and not everything else 1.0),
            rows=epoch.n_rows,
            n_changed=epoch.n_changed,
            shift=shift if not n_moved else None,
            converged=everything and converged,
            extra={
                "batch_rows": float(epoch.n_rows),
                "rounds": float(len(epoch.models)),
                "distances": epoch.n_evaluated / max(1, epoch.n_rows * len(counts)),
                "factor": 0.0 if after.is_calm else epoch.factor,
                **extra,
            },
        )
        return after, info

    def _begin_bounds(self, passes: Passes, epoch: _Epoch) -> tuple[BoundsState, ...]:
        """Return bounds for rows in the next epoch, if only few have changed their label."""
        state, k = epoch.state, len(epoch.centers)
        n_groups = groups_of_rounds(passes, k)
        share = min(BOUNDS_SHARE, calm_share(n_groups, *epoch.centers.shape))
        if state.rows < passes.n_rows or epoch.n_changed >= share * epoch.n_rows:
            return ()
        bounds = begin_bounds(epoch.centers, state.shift, n_groups)
        return () if bounds is None else (bounds,) * len(epoch.models)

    def _next_stages(self, passes: Passes, epoch: _Epoch) -> tuple[int, ...]:
        """Return the next stages: two epochs on the first sample, then doubled up to all rows."""
        stages, n = epoch.state.stages, passes.n_rows
        if epoch.rests or stages[-1] == n:
            return stages
        return (*stages, self._next_stage(passes, stages[-1]))

    def _next_stage(self, table: TableShape, stage: int) -> int:
        doubled = min(2 * stage, table.n_rows)
        return doubled if doubled * table.row_values <= GATHERED_VALUES else table.n_rows

    def model(self, state: LabelTableState) -> CenterArrays:
        """Return the centres that the next round would assign rows to."""
        return CenterArrays(state.centers, state.counts, state.shift)

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory: labels, bounds and places of all rows; held first rows and samples.

        All rows are held if they are gathered. Every round reads every chunk. A checkpoint has
        centres of every round of an epoch, sums, and expected changes (measured).
        """
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
        kept, most = (
            row_bytes(groups_of_rounds(replace(table, state_limit=room), k)) + PLACE_BYTES
            for room in (table.state_limit, None)
        )
        return Footprint(
            row_bytes=kept,
            fixed_row_bytes=PLACE_BYTES,
            model_copies=self.rounds + 5,
            held_bytes=max(
                bytes_of_held(table, sample, table.itemsize, 0, COPIES),
                bytes_of_held(table, largest, table.itemsize, 2 * most),
            ),
            passes_before=self.problem.passes_to_start(),
            step_reads=rounds,
            full_search="once an epoch, every row",
        )


def groups_of_rounds(table: Passes | PlannedTable, k: int) -> int:
    """Return the number of lower bounds per row, once few change their label; 0: none."""
    return min(groups_for("auto", table, k), k * table.n_features // GROUP_WORK)


def first_rows(n: int, k: int, row_values: int) -> int:
    """Return the rows of the first sample, which doubles to exactly all rows."""
    rows, least = n, max(ROWS_A_CENTER * k, LEAST_ROWS)
    while -(-rows // 2) >= least:
        rows = -(-rows // 2)
    # Halves are rounded up.
    times = -(-n // rows)
    worthwhile = times >= TIMES_SAMPLE and rows * row_values <= GATHERED_VALUES
    return rows if worthwhile else n


class _Epoch:
    """Labels and centres from round to round."""

    def __init__(self, state: LabelTableState, passes: Passes, smoothing: float) -> None:
        k, d = state.centers.shape
        grid = passes.statistics.grid
        self.state = state
        self.smoothing = smoothing
        self.centers = state.centers
        self.rests = state.begins_anew(passes.n_rows)
        """Centres stay as they are until every row has a label."""
        if self.rests:
            self.sums, self.squares = ClusterSums(k, d, grid), 0.0
            self.expected = ExpectedChange.nothing(k, d)
        else:
            self.sums = ClusterSums.of(state.sums, state.weights, grid)
            self.squares = state.squares
            self.expected = ExpectedChange(
                state.expected_sums.copy(), state.expected_weights.copy()
            )
        self.factor = state.factor
        # For other rows than before no lowest objective is known yet.
        self.least = state.least if state.known == state.rows else np.inf
        self.n_halved = state.n_halved
        self.models: list[NDArray[Any]] = []
        self.n_rows = self.n_changed = self.n_evaluated = 0
        self.touched = np.zeros(len(state.centers), np.bool_)
        self.cost = np.inf

    def take(self, total: RoundTotal) -> None:
        """Bring the table up to date with one round, and move the centres."""
        self.models.append(self.centers)
        self.n_rows += total.n_rows
        self.n_changed += total.n_changed
        self.n_evaluated += total.n_evaluated
        if total.n_entered:
            self.sums.merge(total.entered)
            self.squares += total.squares.value
        if total.n_entered < total.n_rows:
            self.sums.merge(total.moved)
        if self.rests:
            self.touched |= total.touched
            return
        factor = 0.0 if self.state.is_calm else self.factor
        self.centers = self.centers.copy()
        self.expected.move(
            self.centers, self.sums, total.moved, total.touched, self.smoothing, factor
        )
        # Final, so that packing for the next round, or for rebuilding labels, takes no copy.
        self.centers.flags.writeable = False

    def settle(self) -> None:
        """Find the objective of the table; halve the expected change if it did not fall."""
        if self.rests:
            self.centers = self.centers.copy()
            self.expected.move(self.centers, self.sums, None, self.touched, 0.0, 0.0)
        means = self.sums.means(self.centers)
        self.cost = self.sums.cost(means, self.squares)
        if self.cost >= self.least and self.factor and not self.state.is_calm:
            self.n_halved += 1
            self.factor = 0.0 if self.n_halved > MOST_HALVED else self.factor / 2
            self.expect_nothing()

    def expect_nothing(self) -> None:
        """Go back to the means of the table."""
        self.expected.clear()
        self.centers = self.sums.means(self.centers)


class _Table:
    """Location of the rows of each round, and their labels."""

    def __init__(
        self, passes: Passes, rng: Rng, state: LabelTableState, n_rounds: int, gathers: bool
    ) -> None:
        n, everything = passes.n_rows, state.rows == passes.n_rows
        self._state = state
        self._rng, self._n, self._n_rounds = rng, n, n_rounds
        self.gathered = gathers or not everything
        self.passes = passes
        """Over all rows that are to have labels."""
        self.bounds: list[BoundsState] = []
        """As of the centres of the rounds so far."""
        if self.gathered:
            # Rounds over all rows are the same whether gathered or not.
            stages = [0, n] if everything else [0, *state.stages]
            ends = [_ends(*stage, n_rounds) for stage in pairwise(stages)]
            cuts = [end for stage in ends for end in stage[1:]]
            self.passes = passes.subset(RowSlice(rng, 0, state.rows, n), cuts=cuts)
            self._chunks = _chunks(passes, self.passes, ends)

    def label(self, q: int, packed: PackedCenters) -> RoundTotal:
        """Label the rows of round ``q``."""
        state = self._state
        k, d = packed.n_clusters, self.passes.n_features
        begin, end = _ends(0, self._n, self._n_rounds)[q : q + 2]
        before = share = RowSlice(self._rng, begin, end, self._n)
        replay: tuple[tuple[PackedCenters], ...] = ()
        bounds = None
        if not state.begins_anew(self._n):
            last = pack_centers(state.models[q], state.shift)
            # Bounds are not rebuilt with the labels: rows without any get those of now.
            replay = ((last,),)
            if self.gathered:
                before = RowSlice(self._rng, 0, state.known, self._n)
            if state.bounds:
                bounds = state.bounds[q].advance(last, packed)
                self.bounds.append(bounds)
        total: RoundTotal = self.passes.reduce(
            round_chunk,
            with_bounds(packed, bounds),
            start=partial(RoundTotal.of, k, d, self.passes.statistics.grid),
            combine=RoundTotal.combine,
            state=RowState(
                f"round-{q}", state.step + 1, replay, rebuild_rows=before if replay else None
            ),
            rows=None if self.gathered else share,
            chunks=self._chunks[q] if self.gathered else None,
            joined=not self.gathered,
        )
        return total


def _ends(begin: int, end: int, n_rounds: int) -> list[int]:
    """Return the starts of rounds in the nested order from ``begin``, and the end."""
    return [begin + (end - begin) * q // n_rounds for q in range(n_rounds + 1)]


def _chunks(of: Passes, held: Passes, stages: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the chunks of held rows in each round."""
    sizes = np.diff(of.chunk_table)
    rounds: list[list[int]] = [[] for _ in stages[0][1:]]
    for ends in stages:
        rows = [int((sizes * end // of.n_rows).sum()) for end in ends]
        cuts = np.searchsorted(held.chunk_table, rows).tolist()
        for chunks, span in zip(rounds, pairwise(cuts), strict=True):
            chunks.extend(range(*span))
    return rounds
