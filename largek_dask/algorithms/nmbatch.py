"""Nested mini-batches: Lloyd's steps on a batch that doubles until it is everything.

J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016 (Algorithm 5; section 3.3 for the
even split over workers). The rows of a batch are those of the batch before and as many new ones;
every row votes once, with its last assignment; the batch doubles when the centres move by less
than the batch leaves them uncertain.

Choices that the paper leaves open, or that were measured to be better:

* Seed rows count once, as rows of the batch (Algorithm 2 would let them vote twice). Until a
  batch has rows of a cluster, the cluster keeps its centre, or is moved (``empty_clusters``).
* sse(j), the squared distances of a cluster's rows to the centre that they were assigned to,
  comes from exact sums (squared lengths, sums, counts), not from the rows: only rows whose label
  changed are touched.
* A cluster of weight <= 1 has no sigma_C and does not vote; a centre that did not move (p = 0)
  holds nothing back.
* :meth:`NMBatch.paper` is the published form. The default begins with more rows a centre: from
  few rows a centre Lloyd's steps end in a poor local optimum that no later batch mends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Chunk,
    Info,
    KMeansProblem,
    ModelArrays,
    Passes,
    Rng,
    RowSlice,
    RowState,
)
from largek_dask.algorithms.hierarchical import centers_of_sample
from largek_dask.algorithms.moves import MOVED_SHARE, choose_moves, split_clusters
from largek_dask.algorithms.nested import Batch, gather, open_batch
from largek_dask.algorithms.relocation import relocate_empty
from largek_dask.algorithms.seeding import initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two, pack_centers
from largek_dask.kernels.exact import ExactSums
from largek_dask.kernels.movement import squared_movement
from largek_dask.kernels.sums import ClusterSums, FixedPoint, Squares, row_squares

__all__ = ["NMBatch", "NMBatchState", "NestedTotal", "nested_chunk"]

ROWS_A_CENTER = 50
"""Rows a centre of the first batch, by default."""
LEAST_ROWS = 5_000
"""Rows of the first batch at least (the paper's b0), where there are as many."""
SPLIT_SAMPLE = 64
"""Rows a centre of the sample on which splits are tried."""
ROUNDS = 5
"""How often centres are moved once the batch is everything."""
SAMPLE_VALUES = 1 << 25
"""Values (rows times features) of the sample on which starting centres are found, at most."""
GATHERED_VALUES = 1 << 22
"""Values of a batch that is gathered, at most."""
GATHERED_WORK = 1 << 31
"""Multiplications of one assignment of a batch that is gathered, at most: tens of milliseconds,
about what a pass over a cluster takes."""


class NestedTotal:
    """Exact statistics of the rows of a batch as they are labelled; may be retained.

    The counts of a step (``n_rows`` and so on) belong to that step alone: a total that was not
    touched in it still carries an older step's, which ``combine`` ignores.
    """

    __slots__ = ("loss", "n_changed", "n_moved", "n_rows", "squares", "step", "sums")

    def __init__(self, k: int, d: int, grid: FixedPoint) -> None:
        self.sums = ClusterSums(k, d, grid)
        self.squares = Squares(k)
        """Sums of ``weight * ||x - shift||^2`` a cluster."""
        self.step = -1
        self.n_rows = 0
        """Rows that were assigned."""
        self.n_changed = 0
        """Rows of positive weight whose label changed or that entered."""
        self.n_moved = 0
        """Those of them that had been in the batch before."""
        self.loss = ExactSums(k)
        """What every centre's removal would cost, in a step that looks for it."""

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return self.sums.nbytes + self.squares.nbytes + self.loss.nbytes

    def begin(self, step: int) -> None:
        """Start the counts of a step anew, if they are an older step's."""
        if step != self.step:
            self.step, self.n_rows, self.n_changed, self.n_moved = step, 0, 0, 0
            self.loss = ExactSums(self.loss.n_cells)

    def vote(
        self,
        x: NDArray[Any],
        old: NDArray[np.int32],
        new: NDArray[np.int32],
        weight: NDArray[np.float64] | None,
    ) -> None:
        """Take the rows' old votes back (-1: there is none) and let them vote anew."""
        self.sums.move(x, old, new, weight)
        differ = np.flatnonzero(old != new)
        if len(differ) < len(x):
            x, old, new = x[differ], old[differ], new[differ]
            weight = None if weight is None else weight[differ]
        squares = row_squares(x, self.sums.grid.shift)
        self.squares.remove(squares, weight, old)
        self.squares.add(squares, weight, new)

    @staticmethod
    def combine(a: NestedTotal, b: NestedTotal) -> NestedTotal:
        """Add ``b`` into ``a``."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        if b.step >= a.step:
            a.begin(b.step)
            a.n_rows += b.n_rows
            a.n_changed += b.n_changed
            a.n_moved += b.n_moved
            a.loss.merge(b.loss)
        return a


def nested_chunk(
    chunk: Chunk, total: NestedTotal, centers: PackedCenters, step: int, looks: bool
) -> None:
    """Label the batch's rows of a chunk by their nearest centre and let each vote once.

    Where ``looks``, also find what it would cost to remove each centre.
    """
    total.begin(step)
    old = carried_labels(chunk)
    if looks:
        labels, first, _, second = nearest_two(chunk.x, centers)
        total.loss.add((second - first).astype(np.float64), chunk.weight, labels)
    else:
        labels = nearest(chunk.x, centers)
    total.vote(chunk.x, old if chunk.counted else np.full_like(old, -1), labels, chunk.weight)
    differ = labels != old
    # A row of weight 0 is absent: what happens to its label must not hold back a stop.
    if chunk.weight is not None:
        differ &= chunk.weight > 0
    total.n_rows += len(labels)
    total.n_changed += int(np.count_nonzero(differ))
    total.n_moved += int(np.count_nonzero(differ & (old >= 0)))
    if chunk.rows is None:
        chunk.keep(labels=labels)
    else:
        chunk.keep(labels=labels, rows=chunk.rows.astype(np.int32))


def carried_labels(chunk: Chunk) -> NDArray[np.int32]:
    """(n,) labels of the step before; -1 for rows that enter now."""
    if chunk.state is None:
        return np.full(len(chunk.x), -1, np.int32)
    labels: NDArray[np.int32] = chunk.state["labels"]
    if len(labels) == len(chunk.x):
        return labels
    # The batch has grown: its rows of before lie among those of now, in the same order.
    before = chunk.state["rows"]
    places = before if chunk.rows is None else np.searchsorted(chunk.rows, before)
    out = np.full(len(chunk.x), -1, np.int32)
    out[places] = labels
    return out


def cluster_sse(total: NestedTotal, centers: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) weighted squared distances of each cluster's rows to its row of ``centers``.

    Features are added one after the other, so that no vector width shows.
    """
    grid = total.sums.grid
    shift = grid.shift.astype(np.float64)
    away = (centers.astype(np.float64) - shift).T.copy()
    sums = total.sums.sums.T.astype(np.float64)
    dot, norm = np.zeros(len(centers)), np.zeros(len(centers))
    for c, s in zip(away, sums, strict=True):
        dot += c * s
        norm += c * c
    found = total.squares.values - 2.0 * (dot * 2.0**-grid.bits) + norm * total.sums.counts
    # Rounding may leave a little less than nothing where all rows lie on the centre.
    out: NDArray[np.float64] = np.maximum(found, 0.0)
    return out


def center_shifts(new: NDArray[Any], old: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) distances p(j) by which the centres moved, features added one after the other."""
    squared = np.zeros(len(new))
    for difference in (new.astype(np.float64) - old.astype(np.float64)).T.copy():
        squared += difference * difference
    return np.sqrt(squared)


def growth_ratio(
    sse: NDArray[np.float64], counts: NDArray[np.float64], moved: NDArray[np.float64]
) -> float:
    """Smallest sigma_C(j) / p(j) over the clusters that vote (equation 4); infinity if none does.

    Parameters
    ----------
    sse, counts, moved : (k,) float64
        Squared distances within each cluster, its weight v(j), and its centre's movement p(j).
    """
    votes = (counts > 1) & (moved > 0)
    v = counts[votes]
    ratios = np.sqrt(sse[votes] / (v * (v - 1))) / moved[votes]
    return float(ratios.min(initial=np.inf))


@dataclass(frozen=True, slots=True)
class NMBatchState:
    """Between two steps."""

    step: int
    centers: NDArray[Any]
    """(k, d) centres that the next step assigns rows to."""
    rows: int
    """Rows of the batch of the next step, in rows of the nested order (up to n_rows)."""
    previous: NDArray[Any] | None
    """(k, d) centres of the last assignment: lost labels are rebuilt from them."""
    previous_rows: int
    """Rows of the batch of the last step; 0 before the first."""
    looks: bool
    """The next step looks for centres to move."""
    rounds: int
    """How often that was done on all rows."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last assignment."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""


@dataclass(frozen=True)
class NMBatch:
    """Nested mini-batch k-means: the way to go where there are many rows a cluster.

    Steps are Lloyd's, on a batch of rows that doubles as soon as its own uncertainty exceeds
    the movement of the centres; the last batch is all rows, so it ends where Lloyd's algorithm
    would. The batch is the same share of every chunk, so that workers have equal work.

    Parameters
    ----------
    b0 : int or "auto"
        Rows of the first batch (at least two a cluster); "auto" is 50 to 100 rows a cluster
        and at least 5,000.
    rho : float
        The batch doubles when min_j sigma_C(j) / p(j) exceeds it: a larger one means more steps
        on each batch.
    stall : float
        The batch also doubles when less than this share of its rows changed their label; 0
        leaves the decision to ``rho`` alone, as published.
    start : "sample" or "random"
        Where starting centres come from if ``init="auto"``: found on the rows of the first
        batch, or random rows.
    moves : bool
        Whether centres that are hardly missed are moved to clusters that gain by a split, each
        time that the batch grows and a few times more on all rows.
    gather : int or "auto"
        Batches of up to this many rows are gathered and computed where the fit is driven;
        "auto": while that takes no longer than a pass over a cluster. No result depends on it.
    """

    b0: int | Literal["auto"] = "auto"
    rho: float = 1.0
    stall: float = 0.05
    start: Literal["sample", "random"] = "sample"
    moves: bool = True
    gather: int | Literal["auto"] = "auto"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name, rows, fewest in (("b0", self.b0, 1), ("gather", self.gather, 0)):
            whole = isinstance(rows, int) and not isinstance(rows, bool) and rows >= fewest
            if rows != "auto" and not whole:
                raise ParameterError(
                    f"{name} must be 'auto' or an integer of at least {fewest}, got {rows!r}."
                )
        for name, value, most in (("rho", self.rho, np.inf), ("stall", self.stall, 1.0)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value <= most:
                told = "of at least 0" if most == np.inf else f"from 0 to {most:g}"
                raise ParameterError(f"{name} must be a number {told}, got {value!r}.")
        if self.start not in ("sample", "random"):
            raise ParameterError(f"start must be 'sample' or 'random', got {self.start!r}.")

    @classmethod
    def paper(cls, b0: int | Literal["auto"] = 5_000, rho: float = 100.0) -> NMBatch:
        """As published: random starting rows, growth by ``rho`` alone, no moves."""
        return cls(b0=b0, rho=rho, stall=0.0, start="random", moves=False)

    def init(self, passes: Passes, rng: Rng) -> NMBatchState:
        """Starting centres, and the size of the first batch."""
        assert self.problem is not None
        k = self.problem.n_clusters
        rows = self._first_rows(passes.n_rows)
        if isinstance(self.problem.init, str) and self.problem.init == "auto":
            if self.start == "sample":
                centers, rows = self._start_on_sample(passes, rng, rows)
            else:
                centers = initial_centers(passes, rng, k, "random")
        else:
            centers = initial_centers(passes, rng, k, self.problem.init)
        shift = passes.statistics.shift
        return NMBatchState(0, centers, rows, None, 0, False, 0, np.zeros(k), shift)

    def _first_rows(self, n: int) -> int:
        assert self.problem is not None
        k = self.problem.n_clusters
        if self.b0 != "auto":
            return min(max(self.b0, 2 * k), n)
        rows, least = n, max(ROWS_A_CENTER * k, LEAST_ROWS)
        # Halves of all rows, so that the last doubling is a whole one.
        while -(-rows // 2) >= least:
            rows = -(-rows // 2)
        return rows

    def _start_on_sample(self, passes: Passes, rng: Rng, rows: int) -> tuple[NDArray[Any], int]:
        """Centres found on the first rows of the nested order, and the size of the first batch.

        That size grows where so few rows have any weight, or chunks are so small, that the
        sample would not hold as many rows as there are clusters.
        """
        assert self.problem is not None
        k, n = self.problem.n_clusters, passes.n_rows
        sample = min(rows, max(k, SAMPLE_VALUES // passes.n_features))
        while True:
            points, weight = gather(passes, rng, sample).points(sample)
            if len(points) >= k or sample == n:
                break
            sample = min(2 * sample, n)
        points = points.astype(passes.statistics.dtype)
        return centers_of_sample(points, weight, k, passes.statistics.shift, rng), max(sample, rows)

    def step(self, passes: Passes, rng: Rng, state: NMBatchState) -> tuple[NMBatchState, Info]:
        """Assign the batch to ``state.centers``, move the centres, choose the next batch."""
        assert self.problem is not None
        k, d = state.centers.shape
        n, step = passes.n_rows, state.step + 1
        packed = pack_centers(state.centers, state.shift)
        gathered = self._gathers(state.rows, d)
        batch = open_batch(passes, rng, state.previous_rows, state.rows, gathered=gathered)
        total: NestedTotal = batch.reduce(
            nested_chunk,
            packed,
            step,
            state.looks,
            start=partial(NestedTotal, k, d, passes.statistics.grid),
            combine=NestedTotal.combine,
            state=self._row_state(state, rng, n),
        )
        counts = total.sums.counts
        centers = total.sums.means(state.centers)
        sse = cluster_sse(total, state.centers)
        ratio = growth_ratio(sse, counts, center_shifts(centers, state.centers))
        extra = {"batch_rows": float(total.n_rows), "gathered": float(gathered)}
        if ratio < np.inf:
            extra["growth_ratio"] = ratio
        centers, n_relocated = self._relocated(batch, packed, centers, counts)
        if n_relocated:
            extra["relocated"] = float(n_relocated)
        rounds = state.rounds
        if state.looks:
            centers, n_placed = self._with_moves(passes, rng, state, total, sse, centers)
            extra["moved_centers"] = float(n_placed)
            n_relocated += n_placed
            if state.rows == n:
                # Where nothing pays any more, nothing will a few steps later.
                rounds = rounds + 1 if n_placed else ROUNDS
        settled = state.rows == state.previous_rows and total.n_moved < self.stall * total.n_rows
        grows = state.rows < n and (ratio > self.rho or settled)
        again = state.rows == n and settled and rounds < ROUNDS
        looks = self.moves and k > 2 and (grows or again)
        info = self._info(passes, state, total, sse, centers, extra, n_relocated == 0 and not looks)
        after = NMBatchState(
            step=step,
            centers=centers,
            rows=min(2 * state.rows, n) if grows else state.rows,
            previous=state.centers,
            previous_rows=state.rows,
            looks=looks,
            rounds=rounds,
            counts=counts,
            shift=state.shift,
        )
        return after, info

    def _gathers(self, rows: int, d: int) -> bool:
        """Whether a batch of this size is gathered."""
        assert self.problem is not None
        if self.gather != "auto":
            return rows <= self.gather
        values = rows * d
        return values <= GATHERED_VALUES and values * self.problem.n_clusters <= GATHERED_WORK

    def _row_state(self, state: NMBatchState, rng: Rng, n: int) -> RowState:
        """Labels; lost ones are those of the batch before under the centres before."""
        replay: tuple[tuple[Any, ...], ...] = ()
        before = None
        if state.previous is not None:
            replay = ((pack_centers(state.previous, state.shift), state.step, False),)
            before = RowSlice(rng, 0, state.previous_rows, n)
        return RowState("nested", state.step + 1, replay, retain=True, rebuild_rows=before)

    def _relocated(
        self,
        batch: Batch,
        packed: PackedCenters,
        centers: NDArray[Any],
        counts: NDArray[np.float64],
    ) -> tuple[NDArray[Any], int]:
        assert self.problem is not None
        empty = np.flatnonzero(counts == 0)
        if not len(empty) or self.problem.empty_clusters == "keep":
            return centers, 0
        return relocate_empty(batch, packed, centers, empty)

    def _with_moves(
        self,
        passes: Passes,
        rng: Rng,
        state: NMBatchState,
        total: NestedTotal,
        sse: NDArray[np.float64],
        centers: NDArray[Any],
    ) -> tuple[NDArray[Any], int]:
        """Centres after the moves that pay, and how many there were."""
        k, counts = len(centers), total.sums.counts
        sample = self._sample_rows(passes, state.rows)
        x, weight = gather(passes, rng, sample).points(sample)
        # Where most is to be gained; an empty cluster has nothing to split.
        wanted = np.argsort(-sse, kind="stable")[: max(4, 4 * k // MOVED_SHARE)]
        wanted = np.sort(wanted[counts[wanted] > 0])
        # Every so manieth: the first ones would all be of the first chunks.
        every = max(1, len(x) // (SPLIT_SAMPLE * k))
        x, weight = x[::every].astype(centers.dtype), weight[::every]
        splits = split_clusters(x, weight, centers, wanted, passes.statistics.grid)
        losses = np.where(counts > 0, total.loss.values, np.inf)
        gains = splits.gains * counts[wanted]
        return choose_moves(centers, losses, gains, splits, state.shift)

    def _sample_rows(self, passes: Passes, rows: int) -> int:
        """Rows of the sample on which splits are tried: the batch, or an earlier one of it."""
        assert self.problem is not None
        k = self.problem.n_clusters
        most = min(rows, max(k, SAMPLE_VALUES // passes.n_features))
        sample = min(self._first_rows(passes.n_rows), most)
        while sample < SPLIT_SAMPLE * k and 2 * sample <= most:
            sample *= 2
        return sample

    def _info(
        self,
        passes: Passes,
        state: NMBatchState,
        total: NestedTotal,
        sse: NDArray[np.float64],
        centers: NDArray[Any],
        extra: dict[str, float],
        still: bool,
    ) -> Info:
        """What the step did; the cost is an estimate until the batch is everything.

        ``still``: no centre was or will be moved by anything but the mean of its rows; else
        there is no fixed point, and no shift that a tolerance could end the fit by.
        """
        everything = state.rows == passes.n_rows
        all_weight = passes.statistics.total_weight
        weight = sum(total.sums.counts.tolist())
        cost = sum(sse.tolist())
        shift = None
        if everything and still:
            # Mean variance of the features: what scikit-learn's `tol` is relative to.
            variance = total.squares.value / (all_weight * passes.n_features)
            shift = squared_movement(centers, state.centers) / variance if variance > 0 else 0.0
        if not everything and weight > 0:
            cost *= all_weight / weight
        return Info(
            cost=cost,
            rows=total.n_rows,
            n_changed=total.n_changed,
            shift=shift,
            converged=everything and still and total.n_changed == 0,
            extra=extra,
        )

    def model(self, state: NMBatchState) -> ModelArrays:
        """The centres that the next step would assign rows to."""
        return ModelArrays(state.centers, state.counts, state.shift)
