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
* v(j) is the cluster's weight in units of the mean weight of a row. With v(j) <= 1 it has no
  sigma_C and does not vote; a centre that did not move (p = 0) holds nothing back.
* :meth:`NMBatch.paper` is the published form. The default begins with more rows a centre: from
  few rows a centre Lloyd's steps end in a poor local optimum that no later batch mends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Chunk,
    Info,
    Passes,
    Rng,
    RowSlice,
    RowState,
    SpacedRows,
    TableShape,
)
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.bounded import (
    KINDS,
    Bounds,
    BoundsState,
    begin_bounds,
    calm_share,
    group_count,
    no_groups_for_sparse,
    row_bytes,
)
from largek_dask.algorithms.parts.moves import choose_moves, nearest_others
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.seeding import centers_of_sample, initial_centers
from largek_dask.algorithms.parts.splits import held_out_splits
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import rows_at
from largek_dask.kernels.bounds import bounds as row_bounds
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two, pack_centers
from largek_dask.kernels.exact.movement import center_terms, squared_movement, squared_movements
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import FixedPoint

__all__ = ["NMBatch", "NMBatchState", "growth_ratio", "nested_chunk"]

ROWS_A_CENTER = 50
"""Rows a centre of the first batch, by default."""
LEAST_ROWS = 5_000
"""Rows of the first batch at least (the paper's b0), where there are as many."""
SPLIT_SAMPLE = 64
"""Rows a centre of the sample on which splits are tried."""
MOVED_SHARE = 10
"""At most one centre in this many moves at a time."""
LOCKED = 4
"""Nearest centres of a removed one that stay as they are."""
WORTHWHILE = 20
"""While one centre in so many is moved at a look, the next batch is looked at as well; after that
only all rows are."""
ROUNDS = 5
"""How often centres are moved once the batch is everything."""
SAMPLE_VALUES = 1 << 25
"""Values (rows times features) of the sample on which starting centres are found, at most."""
PLACE_BYTES = 8
"""Of the seeded order of a chunk, and of which rows are in the batch: 4 each a row."""
GATHERED_VALUES = 1 << 25
"""Values of a batch that is gathered, at most."""
GATHERED_WORK = 1 << 31
"""Multiplications of one assignment of a batch that is gathered, at most, where others could
share the work: tens of milliseconds, about what a pass over a cluster takes."""
_NOTHING = {"labels": -1, "upper": np.inf, "lower": -np.inf}
"""What says nothing of a row: no label, and bounds that every test fails."""


@dataclass(kw_only=True)
class NestedTally(Tally):
    """What one step on a batch finds out."""

    n_moved: int = 0
    """Rows that changed their label and had been in the batch before."""
    losses: ExactSums
    """What every centre's removal would cost, in a step that looks for it."""

    @classmethod
    def of(cls, k: int) -> NestedTally:
        """Of k clusters, empty."""
        return cls(losses=ExactSums(k))


NestedTotal = AssignmentTotal[NestedTally]


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
    worthwhile: bool
    """Looks have moved many centres so far (or there was none yet)."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last assignment."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""
    bounds: BoundsState | None = None
    """None: the next assignment computes all distances and leaves no bounds."""


@dataclass(frozen=True)
class NMBatch(Algorithm[NMBatchState]):
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
        The batch also doubles when the share of its rows that changed their label is below
        ``stall`` divided by the root of the rows a centre; 0 leaves the decision to ``rho``
        alone, as published.
    start : "sample" or "random"
        Where starting centres come from if ``init="auto"``: found on the rows of the first
        batch, or random rows.
    moves : bool
        Whether centres that are hardly missed are moved to clusters that gain by a split, each
        time that the batch grows and a few times more on all rows.
    gather : int or "auto"
        Batches of up to this many rows are gathered and computed where the fit is driven;
        "auto": while that takes no longer than a pass over a cluster, and on one thread while
        they take no more than 128 MB (float32). No result depends on it.
    bounds : bool or {"hamerly", "elkan", "groups"}
        Whether rows keep bounds that spare most distances, once few change their cluster and
        where that pays (as ``Lloyd(bounds="auto")``); a kind of bounds is kept from the first
        step on. No result depends on it.
    """

    b0: int | Literal["auto"] = "auto"
    rho: float = 1.0
    stall: float = 0.5
    start: Literal["sample", "random"] = "sample"
    moves: bool = True
    gather: int | Literal["auto"] = "auto"
    bounds: bool | Literal["hamerly", "elkan", "groups"] = True
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        for name, rows, fewest in (("b0", self.b0, 1), ("gather", self.gather, 0)):
            whole = isinstance(rows, int) and not isinstance(rows, bool) and rows >= fewest
            if rows != "auto" and not whole:
                raise ParameterError(
                    f"{name} must be 'auto' or an integer of at least {fewest}, got {rows!r}."
                )
        for name, value in (("rho", self.rho), ("stall", self.stall)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not value >= 0:
                raise ParameterError(f"{name} must be a number of at least 0, got {value!r}.")
        if not isinstance(self.bounds, bool) and self.bounds not in KINDS:
            kinds = ", ".join(map(repr, KINDS))
            raise ParameterError(
                f"bounds must be True, False or one of {kinds}, got {self.bounds!r}."
            )
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
        bounds = None if self.bounds is True else self._first_bounds(passes, centers, shift)
        return NMBatchState(0, centers, rows, None, 0, False, 0, True, np.zeros(k), shift, bounds)

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
        sample = min(rows, max(k, SAMPLE_VALUES // passes.row_values))
        while True:
            x, weight, rows_of_x = passes.subset(RowSlice(rng, 0, sample, n)).take()
            weight = np.ones(len(x)) if weight is None else weight
            # By their index: after a resume they lie in another order.
            order = np.argsort(rows_of_x, kind="stable")
            order = order[weight[order] > 0]
            if len(order) >= k or sample == n:
                break
            sample = min(2 * sample, n)
        centers = centers_of_sample(rows_at(x, order), weight[order], k, passes, rng)
        return centers, max(sample, rows)

    def step(self, passes: Passes, rng: Rng, state: NMBatchState) -> tuple[NMBatchState, Info]:
        """Assign the batch to ``state.centers``, move the centres, choose the next batch."""
        assert self.problem is not None
        k, d = state.centers.shape
        n, step = passes.n_rows, state.step + 1
        packed = pack_centers(state.centers, state.shift)
        gathered = self._gathers(passes, state.rows)
        batch, share = self._batch(passes, rng, state, gathered)
        total: NestedTotal = batch.reduce(
            nested_chunk,
            packed if state.bounds is None else state.bounds.centers(packed),
            step,
            state.looks,
            start=partial(nested_total, k, d, passes.statistics.grid),
            combine=AssignmentTotal.combine,
            state=self._row_state(state, rng, n),
            rows=share,
        )
        counts = total.sums.counts
        centers = total.sums.means(state.centers)
        sse = cluster_sse(total, state.centers)
        row_weight = passes.statistics.total_weight / passes.statistics.n_rows
        ratio = growth_ratio(sse, counts, center_shifts(centers, state.centers), row_weight)
        n_groups = 0 if state.bounds is None else state.bounds.groups.n_groups
        extra = {
            "batch_rows": float(total.tally.n_rows),
            "gathered": float(gathered),
            "distances": total.tally.n_evaluated / max(1, total.tally.n_rows * k),
            "row_state_bytes": float(row_bytes(n_groups)),
        }
        if ratio < np.inf:
            extra["growth_ratio"] = ratio
        centers, n_relocated = self._relocated(batch, share, packed, centers, counts)
        if n_relocated:
            extra["relocated"] = float(n_relocated)
        rounds, worthwhile = state.rounds, state.worthwhile
        if state.looks:
            sample = self._split_sample(passes, rng, state.rows)
            centers, n_placed = self._with_moves(sample, total, sse, centers)
            extra["moved_centers"] = float(n_placed)
            n_relocated += n_placed
            worthwhile = n_placed * WORTHWHILE >= k
            if state.rows == n:
                # Where nothing pays any more, nothing will a few steps later.
                rounds = rounds + 1 if n_placed else ROUNDS
        # The fewer rows a centre has, the less is to be learnt from the last of them.
        calm = self.stall * np.sqrt(k * total.tally.n_rows)
        settled = bool(state.rows == state.previous_rows and total.tally.n_moved < calm)
        grows = state.rows < n and (ratio > self.rho or settled)
        again = state.rows == n and settled and rounds < ROUNDS
        looks = self.moves and k > 2 and ((grows and worthwhile) or again)
        still = n_relocated == 0 and not looks
        returned = state.previous_rows == n and not looks and returns(centers, state.previous)
        info = self._info(passes, state, total, sse, centers, extra, still, returned)
        after = NMBatchState(
            step=step,
            centers=centers,
            rows=min(2 * state.rows, n) if grows else state.rows,
            previous=state.centers,
            previous_rows=state.rows,
            looks=looks,
            rounds=rounds,
            worthwhile=worthwhile,
            counts=counts,
            shift=state.shift,
            bounds=self._next_bounds(passes, state, packed, centers, total, n_relocated),
        )
        return after, info

    def _next_bounds(
        self,
        passes: Passes,
        state: NMBatchState,
        packed: PackedCenters,
        centers: NDArray[Any],
        total: NestedTotal,
        n_relocated: int,
    ) -> BoundsState | None:
        """Go on with the bounds there are, begin with them where rows have become calm.

        A centre that has been moved across the data takes all bounds of its group with it: then
        none are kept until rows are calm again.
        """
        if n_relocated:
            return None
        if state.bounds is not None:
            return state.bounds.advance(packed, pack_centers(centers, state.shift))
        known = total.tally.n_rows - (total.tally.n_changed - total.tally.n_moved)
        calm = calm_share(self._group_count(passes, len(centers), passes.state_limit))
        if self.bounds is True and not total.tally.n_moved < calm * known:
            return None
        return self._first_bounds(passes, centers, state.shift)

    def _first_bounds(
        self, passes: Passes, centers: NDArray[Any], shift: NDArray[Any]
    ) -> BoundsState | None:
        """Bounds from the next assignment on, if there are to be any."""
        n_groups = self._group_count(passes, len(centers), passes.state_limit)
        return begin_bounds(centers, shift, n_groups) if n_groups else None

    def _group_count(self, table: TableShape, k: int, budget: int | None) -> int:
        if self.bounds is False:
            return 0
        kind: Bounds = "auto" if self.bounds is True else self.bounds
        if table.is_sparse:
            return no_groups_for_sparse(kind)
        return group_count(kind, table.n_rows, table.n_features, k, budget)

    def row_bytes(self, table: TableShape, k: int, budget: int | None) -> int:
        """Bytes that are kept for every row, at most: its state, and its place in the order.

        The state of all rows may take ``budget``.
        """
        return row_bytes(self._group_count(table, k, budget)) + PLACE_BYTES

    def _gathers(self, passes: Passes, rows: int) -> bool:
        """Whether a batch of this size is gathered."""
        assert self.problem is not None
        if self.gather != "auto":
            return rows <= self.gather
        values = rows * passes.row_values
        alone = passes.n_threads == 1
        little = alone or values * self.problem.n_clusters <= GATHERED_WORK
        return values <= GATHERED_VALUES and little

    def _batch(
        self, passes: Passes, rng: Rng, state: NMBatchState, gathered: bool
    ) -> tuple[Passes, RowSlice | None]:
        """The passes that the rows of the batch are in, and the rows there; None: all of them."""
        n = passes.n_rows
        batch = RowSlice(rng, 0, state.rows, n)
        if not gathered:
            return passes, None if state.rows == n else batch
        if state.previous_rows:
            # Rows that enter come behind those that have been in the batch before.
            passes.subset(replace(batch, end=state.previous_rows))
        return passes.subset(batch), None

    def _row_state(self, state: NMBatchState, rng: Rng, n: int) -> RowState:
        """Labels; lost ones are those of the batch before under the centres before."""
        replay: tuple[tuple[Any, ...], ...] = ()
        before = None
        if state.previous is not None:
            packed: Any = pack_centers(state.previous, state.shift)
            if state.bounds is not None:
                packed = state.bounds.centers_before(packed)
            replay = ((packed, state.step, False),)
            before = RowSlice(rng, 0, state.previous_rows, n)
        return RowState("nested", state.step + 1, replay, retain=True, rebuild_rows=before)

    def _relocated(
        self,
        batch: Passes,
        share: RowSlice | None,
        packed: PackedCenters,
        centers: NDArray[Any],
        counts: NDArray[np.float64],
    ) -> tuple[NDArray[Any], int]:
        assert self.problem is not None
        empty = np.flatnonzero(counts == 0)
        if not len(empty) or self.problem.empty_clusters == "keep":
            return centers, 0
        return relocate_empty(batch, packed, centers, empty, share)[:2]

    def _with_moves(
        self,
        sample: Passes,
        total: NestedTotal,
        sse: NDArray[np.float64],
        centers: NDArray[Any],
    ) -> tuple[NDArray[Any], int]:
        """Centres after the moves that pay, and how many there were."""
        k, counts, grid = len(centers), total.sums.counts, sample.statistics.grid
        x, weight, rows = sample.take()
        weight = np.ones(len(x)) if weight is None else weight
        # Where most is to be gained; an empty cluster has nothing to split.
        wanted = np.argsort(-sse, kind="stable")[: max(4, 4 * k // MOVED_SHARE)]
        wanted = np.sort(wanted[counts[wanted] > 0])
        splits = held_out_splits(x, weight, centers, wanted, grid, rows, sample.threads.n)
        splits = replace(splits, gains=splits.gains * counts[wanted])
        losses = np.where(counts > 0, total.tally.losses.values, np.inf)
        most = max(1, k // MOVED_SHARE)
        cheapest = np.argsort(losses, kind="stable")[: 4 * most]
        near = nearest_others(centers, cheapest, grid.shift, LOCKED)
        moves = choose_moves(splits, losses, cheapest, near, most=most, split_takers=False)
        return moves.apply(centers), len(moves.split)

    def _split_sample(self, passes: Passes, rng: Rng, rows: int) -> Passes:
        """Rows on which splits are tried: of the batch, or of an earlier one."""
        assert self.problem is not None
        k = self.problem.n_clusters
        most = min(rows, max(k, SAMPLE_VALUES // passes.row_values))
        sample = min(self._first_rows(passes.n_rows), most)
        while sample < SPLIT_SAMPLE * k and 2 * sample <= most:
            sample *= 2
        of = RowSlice(rng, 0, sample, passes.n_rows)
        return passes.subset(SpacedRows(of, SPLIT_SAMPLE * k))

    def _info(
        self,
        passes: Passes,
        state: NMBatchState,
        total: NestedTotal,
        sse: NDArray[np.float64],
        centers: NDArray[Any],
        extra: dict[str, float],
        still: bool,
        returned: bool,
    ) -> Info:
        """What the step did; the cost is an estimate until the batch is everything.

        ``still``: no centre was or will be moved by anything but the mean of its rows; else
        there is no fixed point, and no shift that a tolerance could end the fit by. ``returned``:
        the centres are those of two steps ago.
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
            rows=total.tally.n_rows,
            n_changed=total.tally.n_changed,
            shift=shift,
            converged=everything and ((still and total.tally.n_changed == 0) or returned),
            extra=extra,
        )

    def model(self, state: NMBatchState) -> CenterArrays:
        """The centres that the next step would assign rows to."""
        return CenterArrays(state.centers, state.counts, state.shift)


def nested_total(k: int, d: int, grid: FixedPoint) -> NestedTotal:
    """An empty total of a batch."""
    return AssignmentTotal(k, d, grid, partial(NestedTally.of, k), by_cluster=True)


def nested_chunk(
    chunk: Chunk,
    total: NestedTotal,
    centers: PackedCenters | BoundedCenters,
    step: int,
    looks: bool,
) -> None:
    """Label the batch's rows of a chunk by their nearest centre and let each vote once.

    Where ``looks``, also find what it would cost to remove each centre.
    """
    total.begin(step)
    carried = _carried(chunk)
    old = carried["labels"]
    if isinstance(centers, BoundedCenters):
        kept, margins, n_evaluated = _bounded(chunk.x, centers, carried, looks)
    else:
        labels, margins = assigned(chunk.x, centers, looks)
        kept, n_evaluated = {"labels": labels}, len(labels) * centers.n_clusters
    labels = kept["labels"]
    if margins is not None:
        total.tally.losses.add(margins, chunk.weight, labels)
    changed = total.assign(chunk.x, chunk.weight, old, labels, chunk.counted)
    total.tally.n_moved += int(np.count_nonzero(changed & (old >= 0)))
    total.tally.n_evaluated += n_evaluated
    if chunk.rows is not None:
        kept["rows"] = chunk.rows.astype(np.int32)
    chunk.keep(**kept)


def assigned(
    x: NDArray[Any], centers: PackedCenters, looks: bool
) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Nearest centre of each row and, where ``looks``, by how much the second is farther.

    The latter is a difference of squared distances: what the row would cost more if its centre
    were removed.
    """
    if not looks:
        return nearest(x, centers), None
    labels, first, _, second = nearest_two(x, centers)
    return labels, (second - first).astype(np.float64)


def _carried(chunk: Chunk) -> dict[str, NDArray[Any]]:
    """Labels, and bounds if there are any, of the step before, for the rows of now.

    Rows that enter now have the label -1 and bounds that hold whatever comes.
    """
    n, state = len(chunk.x), chunk.state
    if state is None:
        return {"labels": np.full(n, -1, np.int32)}
    names = [name for name in ("labels", "upper", "lower") if name in state]
    if len(state["labels"]) == n:
        return {name: state[name] for name in names}
    # The batch has grown: its rows of before lie among those of now, in the same order.
    before = state["rows"]
    places = before if chunk.rows is None else np.searchsorted(chunk.rows, before)
    out = {}
    for name in names:
        old = state[name]
        out[name] = np.full((n, *old.shape[1:]), _NOTHING[name], old.dtype)
        out[name][places] = old
    return out


def _bounded(
    x: NDArray[Any], centers: BoundedCenters, carried: dict[str, NDArray[Any]], looks: bool
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64] | None, int]:
    """What to keep of each row, its margin where ``looks``, and the distances computed."""
    old = carried["labels"]
    n, k = len(x), centers.packed.n_clusters
    if "lower" not in carried:
        upper = np.full(n, _NOTHING["upper"], np.float32)
        lower = np.full((n, centers.n_groups), _NOTHING["lower"], np.float32)
        enters = np.ones(n, np.bool_)
    else:
        upper, lower, enters = carried["upper"].copy(), carried["lower"].copy(), old < 0
    if looks:
        labels, margins = assigned(x, centers.packed, True)
        # Bounds are of the other centres than the own one: those of another label say nothing.
        other = labels != old
        upper[other], lower[other] = _NOTHING["upper"], _NOTHING["lower"]
        return {"labels": labels, "upper": upper, "lower": lower}, margins, n * k
    if enters.all():
        labels, upper, lower, n_evaluated = row_bounds.start(x, centers)
    elif not enters.any():
        labels = old.copy()
        n_evaluated = row_bounds.assign(x, centers, labels, upper, lower)
    else:
        labels, n_evaluated = old.copy(), 0
        for rows in (np.flatnonzero(enters), np.flatnonzero(~enters)):
            if enters[rows[0]]:
                *part, count = row_bounds.start(x[rows], centers)
            else:
                part = [labels[rows], upper[rows], lower[rows]]
                count = row_bounds.assign(x[rows], centers, *part)
            labels[rows], upper[rows], lower[rows] = part
            n_evaluated += count
    return {"labels": labels, "upper": upper, "lower": lower}, None, n_evaluated


def cluster_sse(total: NestedTotal, centers: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) weighted squared distances of each cluster's rows to its row of ``centers``.

    Features are added one after the other, so that no vector width shows.
    """
    grid = total.sums.grid
    dot, norm = center_terms(centers, grid.shift, total.sums.totals)
    found = total.squares.values - 2.0 * (dot * 2.0**-grid.bits) + norm * total.sums.counts
    # Rounding may leave a little less than nothing where all rows lie on the centre.
    out: NDArray[np.float64] = np.maximum(found, 0.0)
    return out


def center_shifts(new: NDArray[Any], old: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) distances p(j) by which the centres moved, features added one after the other."""
    return np.sqrt(squared_movements(new, old))


def growth_ratio(
    sse: NDArray[np.float64],
    counts: NDArray[np.float64],
    moved: NDArray[np.float64],
    unit: float = 1.0,
) -> float:
    """Smallest sigma_C(j) / p(j) over the clusters that vote (equation 4); infinity if none does.

    Parameters
    ----------
    sse, counts, moved : (k,) float64
        Squared distances within each cluster, its weight, and its centre's movement p(j).
    unit : float
        What counts as one row: v(j) is the weight in this unit, so that it does not matter
        in which one the weights are given.
    """
    v = counts / unit
    votes = (v > 1) & (moved > 0)
    v = v[votes]
    ratios = np.sqrt(sse[votes] / unit / (v * (v - 1))) / moved[votes]
    return float(ratios.min(initial=np.inf))
