"""Nested mini-batches: Lloyd steps on a batch that doubles until it contains all rows.

J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016. Line numbers refer to Algorithm 5.
The rows M_t of a batch are chosen evenly from all chunks (section 3.3), in
:mod:`largek_dask.algorithms.parts.nested`. Algorithm 4, with which the paper compares, is in
:mod:`largek_dask.algorithms.minibatch`.

This implementation differs from the paper as follows:

* Seed rows count once, as rows of the batch (in Algorithm 2 they would vote twice). A centre
  without rows in the batch stays or is relocated (``empty_clusters``).
* sse(j), the sum of squared distances of a cluster's rows to their centre, is computed from exact
  sums (squared lengths, sums, counts). Only rows with a new label are read again.
* v(j) is the weight of the cluster in units of the mean weight of a row. A cluster with v(j) <= 1
  has no sigma_C and does not vote; a centre that did not move (p = 0) does not prevent growth.
* The first batch has more rows per centre, because Lloyd steps on few rows end in a poor local
  optimum that no later batch corrects.
* There are no distance bounds (Algorithm 1), because computing all distances takes less time than
  testing bounds.

The algorithm as published is :mod:`largek_dask.algorithms.published.nmbatch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Chunk, Footprint, Info, Passes, PlannedTable, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.nested import (
    COPIES,
    NestedBatch,
    NestedRows,
    halved,
    room_of_sample,
    worth_gathering,
)
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.splits import held_out_moves
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.algorithms.problem import check_integer, check_number
from largek_dask.algorithms.published.nmbatch import NMBatchPaper, smallest_ratio
from largek_dask.algorithms.starts.seeding import nested_start
from largek_dask.kernels.bounds.pruned import nearest_pruned, nearest_two_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.movement import center_terms, squared_movement, squared_movements
from largek_dask.kernels.exact.numbers import ExactSums

ROWS_PER_CENTER = 50
"""Minimum number of rows per centre in the first batch, unless ``b0`` is given."""
LEAST_ROWS = 5_000
"""Minimum number of rows in the first batch (b0 in the paper)."""
SPLIT_SAMPLE = 64
"""Number of rows per centre in the sample on which splits are tried."""
WORTHWHILE = 20
"""If a search moves fewer than one in this many centres, the next search waits until the batch
contains all rows."""
ROUNDS = 5
"""Maximum number of searches for moves of centres once the batch contains all rows."""
ROW_BYTES = 12
"""Bytes of row state per row: 4 each for the label, the position in the chunk's seeded order, and
the index among the rows of the batch."""


@dataclass(frozen=True, slots=True)
class NMBatchState:
    centers: NDArray[Any]
    counts: NDArray[np.float64]
    shift: NDArray[Any]
    rows: int
    """Number of rows in the batch of the next step, a prefix of the nested order."""
    looks: bool = False
    rounds: int = 0
    """Number of searches on all rows so far."""
    worthwhile: bool = True
    """True unless the last search moved few centres."""
    previous_rows: int = 0
    """Number of rows of the batch of the last step; 0 before the first step."""
    history: History[NDArray[Any]] = field(default_factory=History)
    """Centres (k, d) of the last assignment, from which lost labels are recomputed."""

    @property
    def step(self) -> int:
        return self.history.generation


@dataclass(frozen=True)
class NMBatch(Algorithm[NMBatchState, KMeansProblem]):
    """Nested mini-batch k-means, for many rows per cluster.

    Each step is a Lloyd step on a batch of rows. The batch doubles as soon as the centres move by
    less than their uncertainty, until it contains all rows. The fit therefore ends at a fixed point
    of Lloyd's algorithm. A batch is the same share of every chunk, so workers have equal work.

    Parameters
    ----------
    b0 : int or "auto"
        Number of rows in the first batch (at least two per cluster); "auto" is 50 to 100 rows per
        cluster and at least 5,000.
    rho : float
        The batch doubles when min_j sigma_C(j) / p(j) exceeds it: a larger value means more steps
        on each batch.
    stall : float
        The batch also doubles when the share of its rows that changed their label is below
        ``stall`` divided by the square root of the rows per centre; 0 leaves the decision to
        ``rho`` alone, as published.
    moves : bool
        Move centres whose removal costs little to clusters that gain by a split, each time the
        batch grows, and a few more times on all rows.
    gather : int or "auto"
        Batches of up to this many rows are gathered and processed in the driver's process. With
        "auto", a batch of at most 128 MB (float32) is gathered if there is only one thread, or if
        processing it takes no longer than a pass on the workers. No result depends on it.
    """

    b0: int | Literal["auto"] = "auto"
    rho: float = 1.0
    stall: float = 0.5
    moves: bool = True
    gather: int | Literal["auto"] = "auto"
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        for name, rows, least in (("b0", self.b0, 1), ("gather", self.gather, 0)):
            if rows != "auto":
                check_integer(name, rows, least)
        check_number("rho", self.rho)
        check_number("stall", self.stall)

    @classmethod
    def paper(
        cls, b0: int = 5_000, rho: float = 100.0, bounds: Literal["lower"] | None = "lower"
    ) -> NMBatchPaper:
        """Return the algorithm as published, with or without lower bounds per row and centre."""
        return NMBatchPaper(b0, rho, bounds)

    def init(self, passes: Passes, rng: Rng) -> NMBatchState:
        """Find initial centres on the first batch unless ``init`` gives them (lines 1 to 7).

        Only the centres of Algorithm 2 are computed; S and v start empty.
        """
        k, rows = self.problem.n_clusters, self._first_rows(passes.n_rows)
        centers, rows = nested_start(passes, rng, k, self.problem.init, rows)
        return NMBatchState(centers, np.zeros(k), passes.statistics.shift, rows)

    def _first_rows(self, n: int) -> int:
        """Return the size of the first batch (b0 in the paper)."""
        k = self.problem.n_clusters
        if self.b0 != "auto":
            return min(max(self.b0, 2 * k), n)
        return halved(n, max(ROWS_PER_CENTER * k, LEAST_ROWS))

    def step(self, passes: Passes, rng: Rng, state: NMBatchState) -> tuple[NMBatchState, Info]:
        """Assign the batch to ``state.centers``, move the centres, choose the next batch.

        This is one iteration of Algorithm 5; relocation and moves of centres are not in the paper.
        """
        k, n = len(state.centers), passes.n_rows
        rows, packed = NestedRows(passes, rng), pack_centers(state.centers, state.shift)
        batch = rows.batch(state.rows, state.previous_rows, self._gathers(passes, state.rows, k))
        # Lines 9 to 29: assignments and sums per cluster.
        total = self._assign(rows, batch, packed, state)
        sse, counts = cluster_sse(total, state.centers), total.sums.counts
        # Lines 30 to 35: centres, and their movement relative to their uncertainty.
        centers = total.sums.means(state.centers)
        unit = passes.statistics.total_weight / passes.statistics.n_rows
        p = np.sqrt(squared_movements(centers, state.centers))
        ratio = smallest_ratio(sse / unit, counts / unit, p)
        extra = {"batch_rows": float(total.tally.n_rows), "gathered": float(batch.gathered)}
        if ratio < np.inf:
            extra["growth_ratio"] = ratio
        empty, n_displaced, n_moves = np.flatnonzero(counts == 0), 0, 0
        if len(empty) and self.problem.empty_clusters == "relocate":
            moved = relocate_empty(batch.passes, packed, centers, empty, batch.share)
            centers, n_displaced = moved.centers, moved.n_moved
        if n_displaced:
            extra["relocated"] = float(n_displaced)
        if state.looks:
            sample = rows.spaced_sample(state.rows, self._first_rows(n), k, SPLIT_SAMPLE)
            moves = held_out_moves(sample, centers, counts, sse, total.tally.losses.values)
            centers, n_moves = moves.apply(centers), len(moves.split)
            extra["moved_centers"] = float(n_moves)
            n_displaced += n_moves
        # Lines 36 to 40: the next batch.
        after = replace(
            self._next_batch(state, n, total.tally, ratio, n_moves),
            centers=centers,
            counts=counts,
            previous_rows=state.rows,
            # Lost labels can be rebuilt from these centres alone, without earlier passes.
            history=state.history.then(state.centers, anchor=True),
        )
        return after, _info(passes, state, after, total, sse, n_displaced, extra)

    def _gathers(self, table: Passes | PlannedTable, size: int, k: int) -> bool:
        if self.gather != "auto":
            return size <= self.gather
        return worth_gathering(table, size, k)

    def _assign(
        self, rows: NestedRows, batch: NestedBatch, packed: PackedCenters, state: NMBatchState
    ) -> NestedTotal:
        """Assign every row of the batch to its nearest centre (lines 9 to 29).

        Lost labels are recomputed from the previous batch and centres.
        """
        before = state.history.next_state(
            "nested",
            lambda centers: (pack_centers(centers, state.shift), state.step, False),
            retain=True,
        )
        if state.previous_rows:
            before = replace(before, rebuild_rows=rows.first(state.previous_rows))
        k, d = state.centers.shape
        total: NestedTotal = batch.passes.reduce(
            nested_chunk,
            packed,
            state.step + 1,
            state.looks,
            start=partial(_empty_total, k, d, batch.passes.statistics.grid),
            combine=AssignmentTotal.combine,
            state=before,
            rows=batch.share,
        )
        return total

    def _next_batch(
        self, state: NMBatchState, n: int, tally: NestedTally, ratio: float, n_moves: int
    ) -> NMBatchState:
        """Choose the next batch, and whether to search for moves (lines 36 to 40).

        All arguments but ``n``, the number of all rows, describe the current step; ``ratio`` is
        min_j sigma_C(j) / p(j).
        """
        k, everything = len(state.centers), state.rows == n
        rounds, worthwhile = state.rounds, state.worthwhile
        if state.looks:
            worthwhile = n_moves * WORTHWHILE >= k
            if everything:
                # If no move helps now, none will help a few steps later.
                rounds = rounds + 1 if n_moves else ROUNDS
        # With fewer rows per centre, the last steps on a batch are less useful.
        calm = self.stall * np.sqrt(k * tally.n_rows)
        settled = bool(state.rows == state.previous_rows and tally.n_moved < calm)
        grows = not everything and (ratio > self.rho or settled)
        again = everything and settled and rounds < ROUNDS
        return replace(
            state,
            rows=min(2 * state.rows, n) if grows else state.rows,
            looks=self.moves and k > 2 and ((grows and worthwhile) or again),
            rounds=rounds,
            worthwhile=worthwhile,
        )

    def footprint(self, table: PlannedTable) -> Footprint:
        n, k = table.n_rows, self.problem.n_clusters
        size, sample = self._first_rows(n), 0
        how = self.problem.init
        if isinstance(how, str) and how == "auto":
            sample = min(size, room_of_sample(table, k))
        largest = sample
        while self._gathers(table, size, k):
            largest = max(largest, size)
            if size == n:
                break
            size = min(2 * size, n)
        spaced = min(n, SPLIT_SAMPLE * k) if self.moves else 0
        later = bytes_of_held(table, largest, table.itemsize, 2 * ROW_BYTES)
        later += bytes_of_held(table, spaced, table.itemsize, 0)
        return Footprint(
            row_bytes=ROW_BYTES,
            fixed_row_bytes=4,
            held_bytes=max(bytes_of_held(table, sample, table.itemsize, 0, COPIES), later),
            passes_before=self.problem.passes_to_start(),
        )

    def model(self, state: NMBatchState) -> CenterArrays:
        return CenterArrays(state.centers, state.counts, state.shift)


def _info(
    passes: Passes,
    state: NMBatchState,
    after: NMBatchState,
    total: NestedTotal,
    sse: NDArray[np.float64],
    n_displaced: int,
    extra: dict[str, float],
) -> Info:
    """Return the record of the step; the cost is an estimate until the batch contains all rows."""
    everything = state.rows == passes.n_rows
    all_weight = passes.statistics.total_weight
    weight = sum(total.sums.counts.tolist())
    cost, shift = sum(sse.tolist()), None
    if not everything and weight > 0:
        cost *= all_weight / weight
    # A displaced centre is no fixed point, so the movement must not end the fit by ``tol``.
    still = not n_displaced and not after.looks
    if everything and still:
        # scikit-learn's `tol` is relative to the mean variance of the features.
        variance = total.squares.value / (all_weight * passes.n_features)
        shift = squared_movement(after.centers, state.centers) / variance if variance > 0 else 0.0
    returned = (
        state.previous_rows == passes.n_rows
        and not after.looks
        and returns(after.centers, state.history.last)
    )
    return Info(
        cost=cost,
        rows=total.tally.n_rows,
        n_changed=total.tally.n_changed,
        shift=shift,
        converged=everything and ((still and total.tally.n_changed == 0) or returned),
        extra=extra,
    )


@dataclass(kw_only=True)
class NestedTally(Tally):
    """Tally of one step on a batch."""

    n_moved: int = 0
    """Number of rows of the previous batch that changed their label."""
    losses: ExactSums
    """(k,) cost of removing each centre, in a step that searches for moves."""


NestedTotal = AssignmentTotal[NestedTally]


def _empty_total(k: int, d: int, grid: FixedPoint) -> NestedTotal:
    return AssignmentTotal(k, d, grid, partial(_empty_tally, k), by_cluster=True)


def _empty_tally(k: int) -> NestedTally:
    return NestedTally(losses=ExactSums(k))


def nested_chunk(
    chunk: Chunk, total: NestedTotal, centers: PackedCenters, step: int, looks: bool
) -> None:
    """Label the rows of a batch in one chunk by their nearest centre, and count each row once.

    This is Algorithm 5, lines 9 to 29. A row of the previous batch takes back its last vote
    (section 3.1). If ``looks`` is True, the cost of removing each centre is summed as well.
    """
    total.begin(step)
    old = _labels_before(chunk)
    if looks:
        labels, first, _, second = nearest_two_pruned(chunk.x, centers)
        total.tally.losses.add((second - first).astype(np.float64), chunk.weight, labels)
    else:
        labels, _ = nearest_pruned(chunk.x, centers)
    changed = total.assign(chunk.x, chunk.weight, old, labels, chunk.counted)
    total.tally.n_moved += int(np.count_nonzero(old[changed] >= 0))
    if chunk.rows is None:
        chunk.keep(labels=labels)
    else:
        chunk.keep(labels=labels, rows=chunk.rows.astype(np.int32))


def _labels_before(chunk: Chunk) -> NDArray[np.int32]:
    """Return the labels of the previous step, or -1 for rows that have just entered the batch."""
    n, state = len(chunk.x), chunk.state
    if state is not None and len(state["labels"]) == n:
        return state["labels"]
    labels = np.full(n, -1, np.int32)
    if state is not None:
        # The batch includes all rows of the previous batch, in the same order.
        rows = state["rows"]
        labels[rows if chunk.rows is None else np.searchsorted(chunk.rows, rows)] = state["labels"]
    return labels


def cluster_sse(total: NestedTotal, centers: NDArray[Any]) -> NDArray[np.float64]:
    """Return (k,) weighted sums of squared distances from the rows of a cluster to its centre.

    Features are added sequentially, so the result does not depend on the vector width.
    """
    grid = total.sums.grid
    dot, norm = center_terms(centers, grid.shift, total.sums.totals)
    found = total.squares.values - 2.0 * (dot * 2.0**-grid.bits) + norm * total.sums.counts
    # Rounding may yield a small negative number if all rows are at the centre.
    out: NDArray[np.float64] = np.maximum(found, 0.0)
    return out
