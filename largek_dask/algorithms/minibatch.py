"""Mini-batch k-means: centres are running means of all assignments.

D. Sculley, Web-scale k-means clustering, WWW 2010 (Algorithm 1); also ``mbatch`` in J. Newling, F.
Fleuret, Nested Mini-Batch K-Means, NIPS 2016 (Algorithm 4). In both papers every assignment ever
made counts. With the correction of Newling and Fleuret (section 3.1), only the latest assignment of
each row counts.

With batches of a single row, the algorithm is the stochastic gradient descent of L. Bottou, Y.
Bengio, Convergence properties of the k-means algorithms, NIPS 1994 (SGD-KM in Y. Zhao et al.,
Large-scale k-means clustering via variance reduction, Algorithm 1 with m = 1), and uses a separate
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

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
)
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.gathered import bytes_of_gathered, check_held, gather_rows
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.algorithms.problem import check_integer
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.extrapolated import moved_means
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.stochastic import sgd_rows

BatchTotal = AssignmentTotal[Tally]


def batch_chunk(chunk: Chunk, total: BatchTotal, centers: PackedCenters) -> None:
    """Assign the rows of a batch in one chunk."""
    labels, _ = nearest_pruned(chunk.x, centers)
    total.assign(chunk.x, chunk.weight, None, labels)


@dataclass(kw_only=True)
class LatestTally(Tally):
    """Tally of a batch with ``votes="latest"``."""

    change: ClusterSums
    """Change in the sums of the latest votes."""
    labels: dict[int, NDArray[np.int32]]


LatestTotal = AssignmentTotal[LatestTally]


def _empty_tally(k: int, d: int, grid: FixedPoint) -> LatestTally:
    return LatestTally(change=ClusterSums(k, d, grid), labels={})


def latest_chunk(
    chunk: Chunk,
    total: LatestTotal,
    centers: PackedCenters,
    last: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> None:
    """Assign the rows of a batch in one chunk, and replace the previous vote of each row.

    ``last`` holds the previous labels of the rows in the batch, ordered by chunk, with -1 for no
    label; the labels of chunk c start at ``offsets[c]``.
    """
    old = last[offsets[chunk.index] : offsets[chunk.index + 1]]
    labels, _ = nearest_pruned(chunk.x, centers)
    total.tally.change.move(chunk.x, old, labels, chunk.weight)
    total.assign(chunk.x, chunk.weight, None, labels)
    total.tally.labels[chunk.index] = labels


def running_means(
    means: NDArray[np.float64], votes: NDArray[np.float64], total: BatchTotal
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means (k, d) and votes (k,), updated by the votes of a batch.

    Means are stored instead of sums because the number of votes is unlimited, and fixed-point sums
    might overflow.
    """
    added = total.sums.counts
    after = votes + added
    share = np.divide(added, after, out=np.zeros_like(after), where=added > 0)
    return moved_means(means, total.sums, share), after


@dataclass(frozen=True, slots=True)
class MiniBatchState:
    step: int
    means: NDArray[np.float64]
    """(k, d) running means of all assignments so far; the starting centres before the first
    step."""
    votes: NDArray[np.float64]
    shift: NDArray[Any]
    begin: int
    """Start of the next batch, as a position in the seeded order (0 to n_rows)."""
    sums: NDArray[np.int64] | None = None
    """(k, d) exact sums of the latest votes (``ClusterSums.limbs``). ``sums``, ``steps`` and
    ``last`` are None unless ``votes="latest"``."""
    steps: NDArray[np.int64] | None = None
    """(k,) ``votes`` as integer multiples of the grid step."""
    last: NDArray[np.int32] | None = None
    """(n_rows,) label of each row's latest vote, or -1 if the row has not voted, ordered by batch
    and then by chunk. These labels cannot be recomputed from a model, so every checkpoint contains
    them: 4 bytes per row."""


@dataclass(frozen=True)
class MiniBatch(Algorithm[MiniBatchState, KMeansProblem]):
    """Mini-batch k-means by Sculley; each step processes one batch, or n batches of a single row.

    Batches are successive slices of a seeded permutation of every chunk, so data sorted by class
    are sampled evenly. After the last slice, the first slice is used again. The running means never
    reach a fixed point, so the fit ends after ``max_iter`` batches or ``max_time``.

    With ``batch_rows=1`` and ``votes="all"``, rows are drawn with replacement from all rows, which
    are held in the driver's process. Each step then draws as many rows as the table has.

    Parameters
    ----------
    batch_rows : int or "auto"
        Number of rows in a batch; "auto" is ten rows per cluster and at least 4,096. With 1 and
        ``votes="all"`` the algorithm is SGD-KM, and all rows must fit in ``memory_limit``.
    votes : "all" or "latest"
        "all": a centre is the mean of all assignments ever made, as published. "latest": only the
        latest assignment of each row counts (Newling and Fleuret's repair), which takes 4 bytes per
        row in the driver's process and in every checkpoint.
    """

    batch_rows: int | Literal["auto"] = "auto"
    votes: Literal["all", "latest"] = "all"
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        if self.batch_rows != "auto":
            check_integer("batch_rows", self.batch_rows, 1)
        if self.votes not in ("all", "latest"):
            raise ParameterError(f"votes must be 'all' or 'latest', got {self.votes!r}.")

    @property
    def _by_row(self) -> bool:
        return self.batch_rows == 1 and self.votes == "all"

    def _rows_of_batch(self, k: int) -> int:
        return max(10 * k, 4096) if self.batch_rows == "auto" else self.batch_rows

    def batches(self, n_rows: int, n_clusters: int) -> int:
        """Return the number of steps per pass over all rows."""
        return 1 if self._by_row else -(-n_rows // self._rows_of_batch(n_clusters))

    def footprint(self, table: PlannedTable) -> Footprint:
        before = self.problem.passes_to_start()
        if not self._by_row:
            return Footprint(row_bytes=4, fixed_row_bytes=4, passes_before=before)
        return Footprint(
            held_rows=table.n_rows,
            held_bytes=bytes_of_gathered(table, table.itemsize),
            passes_before=before + 1,
            full_search="for every row",
        )

    def init(self, passes: Passes, rng: Rng) -> MiniBatchState:
        if self._by_row:
            n_bytes = bytes_of_gathered(passes, passes.statistics.dtype.itemsize)
            check_held(passes, n_bytes, "MiniBatch with batch_rows=1", "batch_rows='auto'")
        centers = initial_centers(passes, rng, self.problem.n_clusters, self.problem.init)
        state = MiniBatchState(
            0, centers.astype(np.float64), np.zeros(len(centers)), passes.statistics.shift, 0
        )
        if self.votes == "all":
            return state
        last = np.full(passes.n_rows, -1, np.int32)
        k, d = centers.shape
        sums, steps = ClusterSums(k, d, passes.statistics.grid).limbs()
        return replace(state, sums=sums, steps=steps, last=last)

    def step(self, passes: Passes, rng: Rng, state: MiniBatchState) -> tuple[MiniBatchState, Info]:
        if self._by_row:
            return _one_by_one(passes, rng, state)
        k, d = state.means.shape
        n = passes.n_rows
        end = min(state.begin + self._rows_of_batch(k), n)
        packed = pack_centers(state.means.astype(state.shift.dtype), state.shift)
        rows_now = RowSlice(rng, state.begin, end, n)
        if self.votes == "latest":
            after, total = _vote_again(passes, state, packed, rows_now)
        else:
            total = passes.reduce(
                batch_chunk,
                packed,
                start=partial(AssignmentTotal, k, d, passes.statistics.grid),
                combine=AssignmentTotal.combine,
                rows=rows_now,
            )
            means, votes = running_means(state.means, state.votes, total)
            after = replace(state, means=means, votes=votes)
        weight = float(total.sums.counts.sum())
        # Estimate of the cost: the cost of the batch before the update, scaled to all rows.
        cost = total.sums.cost(packed.centers, total.squares.value)
        scale = passes.statistics.total_weight / weight if weight > 0 else 0.0
        n_rows = total.tally.n_rows
        info = Info(cost=cost * scale, rows=n_rows, extra={"batch_rows": float(n_rows)})
        return replace(after, step=state.step + 1, begin=0 if end == n else end), info

    def model(self, state: MiniBatchState) -> CenterArrays:
        return CenterArrays(state.means.astype(state.shift.dtype), state.votes, state.shift)


def _one_by_one(passes: Passes, rng: Rng, state: MiniBatchState) -> tuple[MiniBatchState, Info]:
    """Run as many single-row batches as there are rows."""
    rows = gather_rows(passes, rng)
    order = rows.draws(rng, state.step, "sgd rows", 1.0)
    means, votes, cost, weight = sgd_rows(rows.x, rows.weight, order, state.means, state.votes)
    # Estimate of the cost: each row's cost before its own update, scaled to all rows.
    scale = passes.statistics.total_weight / weight
    info = Info(cost=cost * scale, rows=len(order), extra={"batch_rows": 1.0})
    return replace(state, step=state.step + 1, means=means, votes=votes), info


def _vote_again(
    passes: Passes, state: MiniBatchState, packed: PackedCenters, rows: RowSlice
) -> tuple[MiniBatchState, AssignmentTotal[Any]]:
    """Run a batch whose rows replace their previous votes."""
    assert state.last is not None
    assert state.sums is not None
    assert state.steps is not None
    k, d = state.means.shape
    grid = passes.statistics.grid
    sizes = np.diff(passes.chunk_table)
    # Every pass over the table uses the same batches, with rows in the same order.
    begins, ends = rows.begin * sizes // rows.of, rows.end * sizes // rows.of
    offsets = np.concatenate([[0], np.cumsum(ends - begins)])
    place = int(begins.sum())
    last = state.last[place : place + int(offsets[-1])]
    total: LatestTotal = passes.reduce(
        latest_chunk,
        packed,
        last,
        offsets,
        start=partial(AssignmentTotal, k, d, grid, partial(_empty_tally, k, d, grid)),
        combine=AssignmentTotal.combine,
        rows=rows,
    )
    all_last = state.last.copy()
    for index, labels in total.tally.labels.items():
        all_last[place + offsets[index] : place + offsets[index + 1]] = labels
    latest = ClusterSums.of(state.sums, state.steps, grid).merge(total.tally.change)
    sums, steps = latest.limbs()
    after = replace(
        state,
        means=latest.means_float64(state.means),
        votes=latest.counts,
        sums=sums,
        steps=steps,
        last=all_last,
    )
    return after, total
