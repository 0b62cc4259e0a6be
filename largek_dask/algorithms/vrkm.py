"""VRKM and VRKM++: steps of a learning rate, and a snapshot that reduces their noise.

Y. Zhao, Y. Ming, X. Liu, E. Zhu, K. Zhao, J. Yin, Large-scale k-means clustering via variance
reduction, Neurocomputing 307 (2018). Where its algorithms are:

==============================  ====================================================================
lines of Algorithms 3 and 4
==============================  ====================================================================
3 to 6: partition, correction   :meth:`VRKM._scan`
7, 8 (Algorithm 3): gradient    :meth:`VRKM._gradient`
6 to 12: the inner loop         :func:`~largek_dask.kernels.stochastic.vrkm_rows`, one row after the
                                other, or :meth:`VRKM._rounds`
==============================  ====================================================================

An epoch of the paper begins with the partition of all rows; here a step ends with it (and the first
one begins with one more). The chain of partitions and inner loops is the same, and all numbers are,
except that the centres after a step have been measured on all rows. So the objective of a step is
that of its own inner loop, a step that has made it worse is detected before it becomes a result,
and the model is the mean of the rows of each cluster.

Choices that the paper leaves open:

* A round of rows that share their centres moves these by the sum of the rows' gradients, which is
  known from counts and from the rows that changed their cluster (:func:`round_step`). The places of
  a round are the next ones in every chunk's seeded order, each row once until all have had their
  turn; an epoch has whole rounds. Single rows are drawn with replacement, as printed.
* With weights, a row's gradient counts as often as it weighs, in units of the mean weight of a row.
  So weights have no unit, and a row of weight 0 has no effect.
* The published learning rate K / n is safe and slow: an epoch moves a centre 1 - 1/e of its way.
  "auto" is ten times that, but at most 0.02, which matters if clusters have few rows. If it is
  still too large the objective rises, as the scan at the end of the epoch shows; then the centres
  of the snapshot are restored, and the rate is halved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Chunk,
    Footprint,
    Info,
    Passes,
    Rng,
    RowSlice,
    RowState,
    TableShape,
)
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.bounded import (
    Assignment,
    BoundsState,
    begin_bounds,
    calm_share,
    groups_for,
    row_bytes,
    with_bounds,
)
from largek_dask.algorithms.parts.gathered import (
    GatheredRows,
    bytes_of_gathered,
    check_gathered,
    gather_rows,
)
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.labels import label_rows
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.totals import Additive, AssignmentTotal, Tally
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.errors import ParameterError, ParameterWarning, warn
from largek_dask.kernels.blocks import Table
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.movement import squared_movement
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint
from largek_dask.kernels.stochastic import is_away, round_step, snapshot_gradient, vrkm_rows

__all__ = ["VRKM", "SnapshotState"]

FASTER = 10
"""Ratio of "auto" to the published learning rate."""
MOST_ETA = 0.02
"""Maximum learning rate per row of "auto"."""
ROUNDS = 100
"""Rounds of an epoch of n rows."""
FAR = 2.0**10
"""Extents of the rows that a centre may move by; further away it is lost, and soon infinite."""
ROUNDING = 2.0**-40
"""Rise of an objective by rounding, as a share of all squared lengths."""
SCAN_ROWS = 1 << 16
"""Rows that a scan labels at a time: with bounds, those that have none as yet are copied."""
PIECE_BYTES = 1 << 20
"""Bytes of rows that are added up at a time: they are read more than once, out of the cache."""
PLACE_BYTES = 12
"""Bytes per row of the seeded order of all rows, and of the places of a round's rows."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Detects the end of a fit: the objective no longer falls, and the same centres come back.

    Rows that differ by less than a step of the sums' grid have one mean: centres that were moved to
    them meet there, lose their rows and are moved again, for ever. The number of epochs between
    equal centres is unknown (R. P. Brent, An improved Monte Carlo factorization algorithm, BIT 20
    (1980)): the centres to compare with are replaced after 1, 2, 4, ... epochs.
    """

    least: float = math.inf
    """Lowest objective so far."""
    centers: NDArray[np.float64] | None = None
    """(k, d) centres that may come back; None: the last epoch has lowered the objective."""
    waited: int = 0
    """Epochs since these."""
    wait: int = 1
    """Epochs after which others are waited for."""

    def then(self, cost: float, centers: NDArray[np.float64]) -> Idle:
        """Return the record after one more epoch, given its objective and final centres."""
        if cost < self.least:
            return Idle(cost)
        if self.centers is None:
            return replace(self, centers=centers)
        waited = self.waited + 1
        if waited < self.wait:
            return replace(self, waited=waited)
        return Idle(self.least, centers, 0, 2 * self.wait)

    def ends(self, cost: float, centers: NDArray[np.float64]) -> bool:
        """Return True if these centres came before, and the objective has not fallen."""
        return cost >= self.least and returns(centers, self.centers)


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """State between two epochs: the snapshot from which the next one begins."""

    centers: NDArray[np.float64]
    """(k, d) centres after the position correction: means of the rows of each cluster."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last scan."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute; its dtype is the compute dtype."""
    eta: float
    """Learning rate of a row of mean weight."""
    place: int = 0
    """Start of the next round, in rows of the seeded order (0 to n_rows)."""
    epoch: int = 0
    """Epochs so far."""
    cost: float = math.inf
    """Objective of the centres that the last scan assigned rows to."""
    n_changed: int = 0
    """Rows whose label the last scan has changed."""
    n_risen: int = 0
    """Epochs that have made the objective worse."""
    best: NDArray[np.float64] | None = None
    """(k, d) snapshot of the lowest objective, where that is not the last one."""
    best_cost: float = math.inf
    """The objective that belongs to it."""
    idle: Idle = field(default_factory=Idle)
    """Detects that the objective no longer falls."""
    history: History[Assignment] = field(default_factory=History)
    """The last scan, by which lost labels are found again."""

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.epoch


@dataclass(frozen=True, slots=True)
class _Scan:
    """Figures of a scan, besides its state."""

    n_evaluated: int
    n_displaced: int
    """Centres without rows that were moved."""
    variance: float
    """Mean variance of the features."""
    slack: float
    """Uncertainty of the objective."""
    groups: int
    """Lower bounds that each row has."""


@dataclass(frozen=True, slots=True)
class _Inner:
    """Result of the inner loop of an epoch."""

    centers: NDArray[np.float64]
    place: int
    n_rows: int
    n_changed: int
    """Rows that met another nearest centre than in the snapshot."""


@dataclass
class RoundTotal(Additive):
    """Total over the rows of a round."""

    counts: NDArray[np.int64]
    """(k,) rows of each cluster under the labels of the snapshot, where rows have no weights."""
    weights: ExactSums
    """The weights of those that have."""
    change: ClusterSums
    """Move of the rows to the clusters whose centres are now nearest."""
    n_weighted: int = 0
    n_rows: int = 0
    n_changed: int = 0

    @classmethod
    def of(cls, k: int, d: int, grid: FixedPoint) -> RoundTotal:
        """Return an empty total."""
        return cls(np.zeros(k, np.int64), ExactSums(k), ClusterSums(k, d, grid))

    def empty(self) -> RoundTotal:
        """Return an empty total for as many clusters."""
        k, d = self.change.sums.shape
        return RoundTotal.of(k, d, self.change.grid)

    def count(
        self,
        x: Table,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32],
        labels: NDArray[np.int32],
    ) -> None:
        """Count (n, d) rows that had these labels in the snapshot and have those now.

        ``labels`` of rows that weigh nothing become -1, as they were in the scan.
        """
        if weight is None:
            self.counts += np.bincount(old, minlength=len(self.counts))
        else:
            there = weight > 0
            labels[~there] = -1
            self.weights.add(weight[there], None, old[there])
            self.n_weighted += len(labels)
        self.change.move(x, old, labels, weight)
        self.n_rows += len(labels)
        self.n_changed += int(np.count_nonzero(labels != old))

    @property
    def known(self) -> NDArray[np.float64]:
        """(k,) weight of the rows of each cluster under the labels of the snapshot."""
        counts = self.counts.astype(np.float64)
        # Of a table without weights some chunks may have them: 0 for rows that are skipped, else 1.
        return counts + self.weights.values if self.n_weighted else counts


def scan_chunk(
    chunk: Chunk,
    total: AssignmentTotal[Tally],
    centers: PackedCenters | BoundedCenters,
    step: int,
) -> None:
    """Label a chunk's rows by their nearest centre and bring the sums up to date.

    As :func:`~..lloyd.assign_chunk`, but on all threads of the chunk, and a row of weight 0 gets
    the label -1, whatever it holds.
    """
    n, before = len(chunk), chunk.state
    total.begin(step)
    share_rows = max(1, -(-n // chunk.threads.n))
    # Rows that are counted for the first time are all read again, others hardly.
    piece_rows = SCAN_ROWS if chunk.counted else max(1, PIECE_BYTES * n // max(1, chunk.x.nbytes))

    def share(begin: int) -> tuple[AssignmentTotal[Tally], list[Mapping[str, NDArray[Any]]]]:
        part, found = total if begin == 0 else total.empty(), []
        for at in _spans(begin, min(begin + share_rows, n), SCAN_ROWS):
            known = None if before is None else {name: own[at] for name, own in before.items()}
            kept, n_evaluated = label_rows(chunk.x[at], centers, known)
            part.tally.n_evaluated += n_evaluated
            found.append(kept)
            labels, old = kept["labels"], None if known is None else known["labels"]
            if chunk.weight is not None:
                labels[chunk.weight[at] <= 0] = -1
            for piece in _spans(at.start, at.stop, piece_rows):
                own = slice(piece.start - at.start, piece.stop - at.start)
                weight = None if chunk.weight is None else chunk.weight[piece]
                had = None if old is None else old[own]
                part.assign(chunk.x[piece], weight, had, labels[own], chunk.counted)
        return part, found

    shares = chunk.threads.map(share, range(0, max(n, 1), share_rows))
    for part, _ in shares[1:]:
        total.combine(total, part)
    found = [kept for _, of_share in shares for kept in of_share]
    chunk.keep(**{name: np.concatenate([kept[name] for kept in found]) for name in found[0]})


def _spans(begin: int, end: int, size: int) -> list[slice]:
    """Yield pieces of at most ``size`` rows; one for no rows."""
    return [slice(at, min(at + size, end)) for at in range(begin, max(end, begin + 1), size)]


def round_chunk(chunk: Chunk, total: RoundTotal, centers: PackedCenters) -> None:
    """Compare the round's rows of a chunk with the present centres and their old labels."""
    assert chunk.state is not None
    n, old = len(chunk), chunk.state["labels"]
    if chunk.rows is not None:
        old = old[chunk.rows]
    step = max(1, -(-n // chunk.threads.n))

    def share(begin: int) -> RoundTotal:
        part = total if begin == 0 else total.empty()
        for at, x, weight in chunk.pieces(slice(begin, begin + step)):
            part.count(x, weight, old[at], nearest_pruned(x, centers)[0])
        return part

    for part in chunk.threads.map(share, range(0, n, step))[1:]:
        total.merge(part)


def gradient_chunk(chunk: Chunk, total: ClusterSums) -> None:
    """Add a chunk's rows to their clusters."""
    assert chunk.state is not None
    total.add(chunk.x, chunk.state["labels"], chunk.weight)


@dataclass
class LabelTotal(Additive):
    """The labels of all rows."""

    labels: dict[int, NDArray[np.int32]]
    """By the place of each chunk's first row."""


def labels_chunk(chunk: Chunk, total: LabelTotal) -> None:
    """Copy the labels of a chunk's rows into the total."""
    assert chunk.state is not None
    total.labels[chunk.start] = chunk.state["labels"]


@dataclass(frozen=True)
class VRKM(Algorithm[SnapshotState]):
    """k-means by variance-reduced gradient steps; a step is an epoch.

    VRKM++ (Algorithm 4) or VRKM (Algorithm 3), in rounds of rows that share their centres. A round
    is a pass over its rows, and the snapshot one over all rows; :meth:`paper` takes one row after
    the other.

    Parameters
    ----------
    eta : float, "auto" or "paper"
        Learning rate: how far a row draws its centre towards itself, as a share of the way.
        "paper" is K / n, with n rows of positive weight; "auto" is ten times that, at most 0.02.
        Any but "paper" is halved, and the epoch undone, if the objective has risen.
    round_rows : int or "auto"
        Rows that share their centres; "auto" is the hundredth part of all. With 1, rows are taken
        one after the other as published, and have to fit into the memory of the driver's process
        (2^27 values).
    epoch : float
        Rows of an epoch's inner loop, as a share of all rows (T / n), in whole rounds.
    plus_plus : bool
        VRKM++ (Algorithm 4). False: VRKM (Algorithm 3), which adds the batch gradient of the
        snapshot in every step; a second scan finds it, and it is only rounding (equation 9).

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.VRKM(), init=x[::50], random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    eta: float | Literal["auto", "paper"] = "auto"
    round_rows: int | Literal["auto"] = "auto"
    epoch: float = 1.0
    plus_plus: bool = True
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        eta: Any = self.eta
        rows: Any = self.round_rows
        epoch: Any = self.epoch
        if not (eta in ("auto", "paper") if isinstance(eta, str) else _positive(eta)):
            raise ParameterError(
                f"eta must be 'auto', 'paper' or a finite number above 0, got {eta!r}."
            )
        whole = isinstance(rows, int | np.integer) and not isinstance(rows, bool) and rows >= 1
        if not (rows == "auto" if isinstance(rows, str) else whole):
            raise ParameterError(f"round_rows must be 'auto' or at least 1, got {rows!r}.")
        if not _positive(epoch):
            raise ParameterError(
                f"epoch must be a finite number above 0 (1: as many rows as there are), got "
                f"{epoch!r}."
            )
        if not isinstance(self.plus_plus, bool):
            raise ParameterError(f"plus_plus must be True or False, got {self.plus_plus!r}.")

    @classmethod
    def paper(cls) -> VRKM:
        """Return the published VRKM++: one row after the other, with the learning rate K / n."""
        return cls(eta="paper", round_rows=1)

    @property
    def _by_row(self) -> bool:
        return self.round_rows == 1

    @property
    def _guarded(self) -> bool:
        return self.eta != "paper"

    def check(self, table: TableShape) -> None:
        """Refuse a table that cannot be held, where it has to be."""
        if self._by_row:
            check_gathered(table, "round_rows")

    def footprint(
        self, table: TableShape, itemsize: int, n_threads: int | None, budget: int | None
    ) -> Footprint:
        """Estimate memory: single rows are read once and held, others are read once per round.

        The size of a checkpoint is measured.
        """
        assert self.problem is not None
        k, before = self.problem.n_clusters, self.problem.passes_to_start() + 1
        kept = row_bytes(groups_for("auto", table, k, None if self._by_row else budget))
        if self._by_row:
            return Footprint(
                model_copies=5,
                held_rows=table.n_rows,
                held_bytes=bytes_of_gathered(table, itemsize, 2 * kept),
                passes_before=before,
                full_search="once an epoch",
            )
        return Footprint(
            row_bytes=kept + PLACE_BYTES,
            fixed_row_bytes=PLACE_BYTES,
            model_copies=5,
            passes_before=before,
            step_reads=self._round_sizes(table.n_rows)[1] + (1 if self.plus_plus else 2),
            full_search="once an epoch, every row",
        )

    def init(self, passes: Passes, rng: Rng) -> SnapshotState:
        """Return the state at starting centres: random rows, as published, by default."""
        assert self.problem is not None
        how, k = self.problem.init, self.problem.n_clusters
        if isinstance(how, str) and how == "auto":
            how = "random"
        centers = initial_centers(passes, rng, k, how).astype(np.float64)
        n = passes.statistics.n_rows
        if self.eta == "paper":
            eta = k / n
        else:
            eta = min(FASTER * k / n, MOST_ETA) if self.eta == "auto" else float(self.eta)
        return SnapshotState(centers, np.zeros(k), passes.statistics.shift, eta)

    # --- an epoch ---------------------------------------------------------------------------------

    def step(self, passes: Passes, rng: Rng, state: SnapshotState) -> tuple[SnapshotState, Info]:
        """Run one epoch: the inner loop, then the partition and the position correction."""
        gathered = gather_rows(passes, rng) if self._by_row else None
        seen = passes if gathered is None else gathered.passes
        n_rows = 0
        if not state.history.generation:
            state, _ = self._scan(seen, state, state.centers)
            n_rows += seen.n_rows
        gradient = None
        if not self.plus_plus:
            gradient = self._gradient(seen, state)
            n_rows += seen.n_rows
        if gathered is None:
            inner = self._rounds(passes, rng, state, gradient)
        else:
            inner = self._one_by_one(gathered, rng, state, gradient)
        n_rows += inner.n_rows
        state = replace(state, place=inner.place, epoch=state.epoch + 1)
        lost = _is_lost(inner.centers, state.centers, passes)
        if lost and not self._guarded:
            return self._end(state, n_rows)
        after, scan, restored = state, None, lost
        if not lost:
            after, scan = self._scan(seen, state, inner.centers)
            n_rows += seen.n_rows
            risen = after.cost > state.cost + scan.slack
            restored = risen and self._guarded
            if risen and not self._guarded:
                after = self._noted(state, after)
            elif after.best is not None and after.cost <= after.best_cost:
                after = replace(after, best=None, best_cost=math.inf)
        if restored:
            after = replace(after, eta=state.eta / 2, n_risen=state.n_risen + 1)
            after, scan = self._scan(seen, after, state.centers)
            n_rows += seen.n_rows
        assert scan is not None
        # An undone epoch is not repeated: its learning rate changes.
        idle = Idle(after.cost) if restored else state.idle.then(after.cost, after.centers)
        after = replace(after, idle=idle)
        return after, self._info(seen, state, after, inner, scan, n_rows, restored)

    def _scan(
        self, passes: Passes, state: SnapshotState, centers: NDArray[np.float64]
    ) -> tuple[SnapshotState, _Scan]:
        """Assign all rows to these centres, then move them to their rows' means.

        Lines 3 to 6. The means are not rounded to the compute dtype, but where rows are compared
        with them.
        """
        assert self.problem is not None
        k, d = centers.shape
        step = state.history.generation + 1
        packed = _packed(centers, state.shift)
        bounds = self._bounds(passes, state, packed)
        total: AssignmentTotal[Tally] = passes.reduce(
            scan_chunk,
            with_bounds(packed, bounds),
            step,
            start=partial(AssignmentTotal, k, d, passes.statistics.grid),
            combine=AssignmentTotal.combine,
            state=state.history.next_state(
                "labels", lambda last: (last.pack(state.shift), step - 1), retain=True
            ),
            joined=not passes.is_sparse,
        )
        means, counts = total.sums.means_float64(centers), total.sums.counts
        empty = np.flatnonzero(counts == 0)
        n_displaced = 0
        if len(empty) and self.problem.empty_clusters == "relocate":
            rounded = means.astype(state.shift.dtype)
            moved, n_displaced, _ = relocate_empty(passes, packed, rounded, empty)
            means[empty] = moved[empty]
        squares = total.squares.value
        after = replace(
            state,
            centers=means,
            counts=counts,
            cost=total.sums.cost(packed.centers, total.squares.value),
            n_changed=total.tally.n_changed,
            # Labels depend on the centres alone, so earlier passes may be forgotten.
            history=state.history.then(Assignment(packed.centers, bounds), anchor=True),
        )
        variance = squares / (passes.statistics.total_weight * d)
        groups = 0 if bounds is None else bounds.groups.n_groups
        return after, _Scan(
            total.tally.n_evaluated, n_displaced, variance, ROUNDING * squares, groups
        )

    def _bounds(
        self, passes: Passes, state: SnapshotState, packed: PackedCenters
    ) -> BoundsState | None:
        """Advance the bounds, or begin with them once few rows change their cluster."""
        last = state.history.last
        if last is None:
            return None
        if last.bounds is not None:
            return last.bounds.advance(pack_centers(last.centers, state.shift), packed)
        n_groups = groups_for("auto", passes, packed.n_clusters, passes.state_limit)
        if state.n_changed > calm_share(n_groups, *packed.centers.shape) * passes.n_rows:
            return None
        return begin_bounds(packed.centers, state.shift, n_groups)

    def _labels(self, passes: Passes, state: SnapshotState) -> RowState:
        """Return the labels of the last scan, for a pass that only reads them."""
        last = state.history.last
        assert last is not None
        k, d = state.centers.shape
        packed = last.pack(state.shift)
        return state.history.read_state(
            "labels",
            lambda _: (packed, state.history.generation),
            scan_chunk,
            partial(AssignmentTotal, k, d, passes.statistics.grid),
        )

    def _gradient(self, passes: Passes, state: SnapshotState) -> NDArray[np.float64]:
        """Return (k, d) batch gradient of the snapshot, by a scan (Algorithm 3, lines 7, 8)."""
        k, d = state.centers.shape
        sums: ClusterSums = passes.reduce(
            gradient_chunk,
            start=partial(ClusterSums, k, d, passes.statistics.grid),
            combine=ClusterSums.merge,
            state=self._labels(passes, state),
            joined=not passes.is_sparse,
        )
        return snapshot_gradient(state.centers, sums)

    def _rounds(
        self,
        passes: Passes,
        rng: Rng,
        state: SnapshotState,
        gradient: NDArray[np.float64] | None,
    ) -> _Inner:
        """Run the inner loop in rounds, from the end of the last epoch."""
        (k, d), n, grid = state.centers.shape, passes.n_rows, passes.statistics.grid
        size, n_rounds = self._round_sizes(n)
        # Written by a scan of all rows, which has to be named for a resume.
        labels = replace(self._labels(passes, state), rebuild_rows=RowSlice(rng, 0, n, n))
        eta, centers, place = _row_eta(state, passes), state.centers, state.place
        n_rows = n_changed = 0
        for _ in range(n_rounds):
            if _is_lost(centers, state.centers, passes):
                break
            end = min(place + size, n)
            total: RoundTotal = passes.reduce(
                round_chunk,
                _packed(centers, state.shift),
                start=partial(RoundTotal.of, k, d, grid),
                combine=RoundTotal.combine,
                state=labels,
                rows=RowSlice(rng, place, end, n),
                # Chunks show a share of rows in one piece by kernels for dense ones.
                joined=not passes.is_sparse,
            )
            centers = round_step(centers, state.centers, total.known, total.change, eta, gradient)
            n_rows, n_changed = n_rows + total.n_rows, n_changed + total.n_changed
            place = 0 if end == n else end
        return _Inner(centers, place, n_rows, n_changed)

    def _round_sizes(self, n: int) -> tuple[int, int]:
        """Return rows of a round, and rounds of an epoch.

        Rounds are whole, so that their shares of the rows come back: the places of these rows need
        not be found again in every epoch.
        """
        size = max(1, n // ROUNDS) if self.round_rows == "auto" else int(self.round_rows)
        size = min(size, max(1, round(self.epoch * n)), n)
        return size, max(1, round(self.epoch * -(-n // size)))

    def _one_by_one(
        self,
        rows: GatheredRows,
        rng: Rng,
        state: SnapshotState,
        gradient: NDArray[np.float64] | None,
    ) -> _Inner:
        """Run the inner loop as printed (Algorithm 4, lines 6 to 12)."""
        found: LabelTotal = rows.passes.reduce(
            labels_chunk,
            start=partial(LabelTotal, {}),
            combine=LabelTotal.combine,
            state=self._labels(rows.passes, state),
            joined=not rows.passes.is_sparse,
        )
        labels = np.concatenate([found.labels[start] for start in sorted(found.labels)])
        order = rows.draws(rng, state.epoch, "vrkm rows", self.epoch)
        centers, n_changed = vrkm_rows(
            rows.x,
            rows.weight,
            labels,
            order,
            state.centers,
            _row_eta(state, rows.passes),
            gradient,
        )
        return _Inner(centers, state.place, len(order), n_changed)

    # --- results ----------------------------------------------------------------------------------

    def _noted(self, state: SnapshotState, after: SnapshotState) -> SnapshotState:
        """Return the state after an epoch that made the objective worse, without undoing it."""
        if not state.n_risen:
            warn(
                f"eta='paper' ({state.eta:.3g}, clusters by rows) has raised the objective in "
                f"epoch {after.epoch}, from {state.cost:.6g} to {after.cost:.6g}. It goes on as "
                "published; eta='auto' would go back, and halve it.",
                ParameterWarning,
            )
        keeps = state.best is not None and state.best_cost <= state.cost
        return replace(
            after,
            n_risen=state.n_risen + 1,
            best=state.best if keeps else state.centers,
            best_cost=state.best_cost if keeps else state.cost,
        )

    def _end(self, state: SnapshotState, n_rows: int) -> tuple[SnapshotState, Info]:
        """Return the best snapshot, and end: centres of the published form are not finite."""
        warn(
            f"eta='paper' ({state.eta:.3g}, clusters by rows) has thrown centres out of the data "
            f"in epoch {state.epoch}: the fit ends with the best centres so far. eta='auto' would "
            "go back, and halve it.",
            ParameterWarning,
        )
        if state.best is not None:
            state = replace(state, centers=state.best, cost=state.best_cost)
        extra = {"eta": state.eta, "restored": 1.0}
        return state, Info(cost=state.cost, rows=n_rows, converged=True, extra=extra)

    def _info(
        self,
        passes: Passes,
        state: SnapshotState,
        after: SnapshotState,
        inner: _Inner,
        scan: _Scan,
        n_rows: int,
        restored: bool,
    ) -> Info:
        """Return the record of the epoch; ``state`` is its snapshot."""
        k = len(after.centers)
        extra = {
            "eta": after.eta,
            "distances": scan.n_evaluated / (passes.n_rows * k),
            "row_state_bytes": float(row_bytes(scan.groups)),
        }
        if restored:
            extra["restored"] = 1.0
        if scan.n_displaced:
            extra["relocated"] = float(scan.n_displaced)
        # Where no row of the inner loop has met another centre, the next one will not begin to move
        # from the same centres; nor where the scan of the means themselves has led to these. Rounds
        # of the same rows from the same centres lead to the same centres for ever.
        same = np.array_equal(after.centers, state.centers)
        rests = restored or not inner.n_changed
        repeats = not self._by_row and after.place == state.place and not restored
        returned = not restored and state.idle.ends(after.cost, after.centers)
        variance, moved = scan.variance, squared_movement(after.centers, state.centers)
        return Info(
            cost=after.cost,
            rows=n_rows,
            n_changed=after.n_changed,
            shift=moved / variance if variance > 0 else 0.0,
            converged=returned or (same and (repeats or (rests and not scan.n_displaced))),
            extra=extra,
        )

    def model(self, state: SnapshotState) -> CenterArrays:
        """Return the centres of the snapshot, rounded to the compute dtype."""
        return CenterArrays(state.centers.astype(state.shift.dtype), state.counts, state.shift)


def _positive(value: Any) -> bool:
    """Return True for a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0.0 < float(value) < math.inf


def _packed(centers: NDArray[np.float64], shift: NDArray[Any]) -> PackedCenters:
    """Pack centres to compare rows with."""
    return pack_centers(centers.astype(shift.dtype), shift)


def _row_eta(state: SnapshotState, passes: Passes) -> float:
    """Return the learning rate of a row of weight 1."""
    known = passes.statistics
    return state.eta * (known.n_rows / known.total_weight)


def _is_lost(centers: NDArray[np.float64], snapshot: NDArray[np.float64], passes: Passes) -> bool:
    """Return True if a centre is not finite, or so far from the rows that it soon will not be."""
    return is_away(centers, snapshot, FAR * passes.statistics.max_abs)
