"""Passes of the truncated search over rows, in this process or on workers.

A :class:`Pass` describes one pass completely, except for the rows and their state. The result for a
row depends on the row, its state and the passes since the last anchor, never on its chunk or
worker. Sums are exact, so the order in which rows are added does not matter either.

Row state is a cache: if it is lost, and after a resume, the passes since the last anchor are
repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, RowState
from largek_dask.algorithms.parts.ascending import Ascending
from largek_dask.algorithms.parts.cached import Recomputable
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.totals import AssignmentTotal, MovedRows, Tally, count_rows
from largek_dask.algorithms.truncated.lists import Indices, Labels, Recipe, lists_of_cells
from largek_dask.kernels.arguments import LONG_WORK
from largek_dask.kernels.bounds.lists import (
    Lists,
    ListSearch,
    order_by_label,
    removal_losses,
    search_all,
    widen_bounds,
)
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.threads import ALONE, Threads

STATE = "truncated"
PARTS_PER_THREAD = 8
"""Number of parts of a pass per thread; several parts let threads finish at about the same time."""
LAST_PARTS = 48
"""The smallest part of a search of lists is one thread's share divided by this number; parts become
smaller towards the end. Small parts only would be slower, because every part begins with cold
caches."""
LEAST_WORK = 1 << 20
"""Minimum number of multiply-adds in a part: work of about 50 microseconds."""
SHORT_WORK = 1 << 24
"""Maximum number of distances in a part of a short search; they take a few hundredths of a
second."""
LEAST_ROWS = 1 << 18
"""Minimum number of rows per thread for work of only a few nanoseconds per row."""
BLOCK_ROWS = 4_096
"""Number of rows that a thread compares with all centres at a time."""

Kind = Literal["cells", "lists", "all", "unsettled", "given"]
Array = NDArray[Any]
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Pass(Recomputable):
    """One pass: the centres that rows are compared with, and changes of row state before it.

    Pickles omit the packed centres, which are recomputed when they are needed. Lists are pickled in
    as few bytes as the number of centres allows.
    """

    kind: Kind
    """Centres that rows are compared with; see ``Task``. "given": none, labels are given. "cells",
    "all" and "given" are anchors, which do not depend on row state."""
    centers: Array
    shift: Array
    listed: Labels | None = None
    """Concatenated lists of centres, each ascending."""
    offsets: Indices | None = None
    """Start of each list, one per cluster or cell; None if clusters have lists of equal length."""
    coarse: Array | None = None
    drift: NDArray[np.float64] | None = None
    """(k,) movement of each centre since the previous pass."""
    reach: NDArray[np.float64] | None = None
    """(k,) largest movement of a centre in each list; infinity if the list is new for the rows."""
    save: bool = False
    restore: bool = False
    max_loss: float = 0.0
    """Maximum loss that is counted for a row. If this is positive, settled rows are searched as
    well, and the cost of removing each cluster is computed."""
    loss_steps: float = 0.0
    """Number of integer steps per unit of loss (``kernels.bounds.lists.loss_scale``)."""
    recipe: Recipe | None = None
    far: float = 0.0
    """Squared distance from its centre beyond which a row is far; 0 if the cost of far rows is not
    needed."""
    given: NDArray[np.signedinteger[Any]] | None = None
    """(n,) labels of all rows if ``kind`` is "given"; -1 for rows of weight 0."""

    @property
    def is_anchor(self) -> bool:
        """True if the row state after this pass does not depend on the row state before it."""
        return self.kind in ("cells", "all", "given")

    @cached_property
    def packed(self) -> PackedCenters:
        return pack_centers(self.centers, self.shift)

    @cached_property
    def packed_coarse(self) -> PackedCenters:
        assert self.coarse is not None
        return pack_centers(self.coarse, self.shift)

    @cached_property
    def lists(self) -> Lists:
        """Lists of candidate centres, in the format of the kernels."""
        if self.listed is not None:
            equal = np.arange(len(self.centers) + 1) * (len(self.listed) // len(self.centers))
            return Lists(equal if self.offsets is None else self.offsets, self.listed)
        if self.recipe is not None:
            return Lists(*self.recipe.remake())
        assert self.coarse is not None
        return Lists(*lists_of_cells(self.centers, self.coarse, self.shift))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self.listed is None:
            return state
        narrow = np.min_scalar_type(len(self.centers) - 1)
        return {**state, "listed": self.listed.astype(narrow), "recipe": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if (listed := state["listed"]) is not None:
            state = {**state, "listed": listed.astype(np.int32)}
        self.__dict__.update(state)

    def to_keep(self) -> Pass:
        """Return the same pass without arrays that can be recomputed."""
        kept = replace(self, far=0.0, restore=False)
        return kept if kept.recipe is None else replace(kept, listed=None, offsets=None)

    def forget(self) -> None:
        super().forget()
        if self.recipe is not None:
            self.recipe.forget()


@dataclass(slots=True)
class RowArrays:
    """Arrays of the row state."""

    labels: Labels
    """(n,) cluster of each row; -1 for rows of weight 0."""
    upper: Array
    """(n,) upper bound of the distance to the row's centre."""
    lower: Array
    """(n,) lower bound of the distance to the nearest other centre that the row was compared
    with."""
    saved: Labels | None = None

    @classmethod
    def new(cls, n: int, dtype: np.dtype[Any]) -> RowArrays:
        return cls(np.full(n, -1, np.int32), np.zeros(n, dtype), np.zeros(n, dtype))


def advance(
    x: Array, weight: Weights | None, rows: RowArrays, pass_: Pass, threads: Threads = ALONE
) -> tuple[int, NDArray[np.int64] | None, MovedRows | None]:
    """Run a pass: update the state of rows ``x`` (n, d) in place, except for rows of weight 0.

    An anchor ignores the previous state. If an exception interrupts the pass, some rows have been
    updated. Returns the number of distances computed, including distances to coarse centres; if
    ``max_loss`` is positive, (2, k) losses: for each cluster, the cost of removing it and the
    current cost of its rows; and the rows whose label the search changed, unless the pass is an
    anchor.
    """
    moved: MovedRows | None = None
    if pass_.kind == "given":
        # The bounds of new row state are 0, so the next pass searches all rows.
        return 0, None, None
    if pass_.is_anchor:
        rows.saved = None
    else:
        _update_bounds(rows, pass_, threads)
    match pass_.kind:
        case "cells":
            evaluated = _search_cells(x, rows, pass_, threads)
        case "all":
            state = rows.labels, rows.upper, rows.lower
            spans = row_slices(len(x), threads.n)
            threads.map(lambda span: search_all(x, pass_.packed, *state, span), spans)
            evaluated = len(x) * pass_.packed.n_clusters
        case "lists":
            evaluated, moved = _search_lists(x, rows.labels, rows, pass_, threads)
        case "unsettled":
            evaluated, moved = _search_unsettled(x, rows, pass_, threads)
    if weight is not None:
        rows.labels[weight == 0] = -1
    losses: NDArray[np.int64] | None = None
    if pass_.max_loss > 0:
        limits = len(pass_.centers), pass_.max_loss, pass_.loss_steps
        losses = removal_losses(rows.labels, rows.upper, rows.lower, weight, *limits, threads.n)
    if losses is not None and pass_.kind == "lists":
        # These bounds are from the list of the previous cluster; only the losses need them.
        assert moved is not None
        rows.lower[moved.rows] = 0
    return evaluated, losses, moved


def _search_cells(x: Array, rows: RowArrays, pass_: Pass, threads: Threads) -> int:
    n, coarse = len(x), pass_.packed_coarse
    cells = np.empty(n, np.int32)
    threads.map(lambda span: nearest(x[span], coarse, cells[span]), row_slices(n, threads.n))
    rows.labels[:] = -1
    evaluated = _search_lists(x, cells, rows, pass_, threads)[0]
    # Bounds from the list of a cell do not hold for the list of the cluster.
    rows.lower[:] = 0
    return evaluated + n * coarse.n_clusters


def _update_bounds(rows: RowArrays, pass_: Pass, threads: Threads) -> None:
    if pass_.restore:
        assert rows.saved is not None
        rows.labels[:] = rows.saved
    else:
        assert pass_.drift is not None
        assert pass_.reach is not None
        known = rows.labels, rows.upper, rows.lower, pass_.drift, pass_.reach
        widen_bounds(*known, threads.n)
    if pass_.save:
        rows.saved = copied(rows.labels, threads)


def _search_unsettled(
    x: Array, rows: RowArrays, pass_: Pass, threads: Threads
) -> tuple[int, MovedRows]:
    # Rows with NaN bounds are not settled either.
    left = np.flatnonzero(~(rows.upper < rows.lower) & (rows.labels >= 0))
    before = rows.labels[left]

    blocks = [left[i : i + BLOCK_ROWS] for i in range(0, len(left), BLOCK_ROWS)]
    state = rows.labels, rows.upper, rows.lower
    threads.map(lambda block: search_all(x, pass_.packed, *state, block), blocks)
    moved = rows.labels[left] != before
    return len(left) * pass_.packed.n_clusters, MovedRows(left[moved], before[moved])


def _search_lists(
    x: Array, groups: Labels, rows: RowArrays, pass_: Pass, threads: Threads
) -> tuple[int, MovedRows]:
    """Search one list per row, given the cluster or coarse cell of each row.

    Also return the rows whose label is not that of their group.
    """
    lists = pass_.lists
    # Settled rows are skipped in the sort, which is faster than skipping them in the search.
    leaves_out = pass_.kind == "lists" and not pass_.max_loss > 0
    upper, lower = (rows.upper, rows.lower) if leaves_out else (None, None)
    order, starts = order_by_label(groups, lists.n_groups, upper, lower, threads.n)
    state = rows.labels, rows.upper, rows.lower
    search = ListSearch(x, order, starts, lists, pass_.packed, state, keep=pass_.max_loss > 0)
    cuts = group_cuts(np.cumsum(np.diff(starts) * lists.lengths), threads.n, x.shape[1])
    evaluated, moved, before = search.run(cuts, threads)
    return evaluated, MovedRows(moved.astype(np.int64), before)


def copied(labels: Labels, threads: Threads) -> Labels:
    """Return a copy of labels (n,), written on several threads."""
    out = np.empty_like(labels)
    threads.map(
        lambda at: np.copyto(out[at], labels[at]), row_slices(len(labels), threads.n, 1, LEAST_ROWS)
    )
    return out


def group_cuts(work: NDArray[np.int64], n_threads: int, n_features: int) -> list[int]:
    """Divide the groups into parts of decreasing work; return the boundaries of the parts.

    ``work`` (g,) is the cumulative work of the groups, in distances.
    """
    total, longest = int(work[-1]), max(1, LONG_WORK // n_features)
    least = max(1, LEAST_WORK // n_features, min(longest, total // (LAST_PARTS * n_threads)))
    most = min(longest, max(SHORT_WORK, total // (PARTS_PER_THREAD * n_threads)))
    ends, done = [], 0
    while done < total:
        done += min(most, max(least, (total - done) // (2 * n_threads)))
        ends.append(done)
    return sorted({0, *np.searchsorted(work, ends[:-1]).tolist(), len(work)})


def row_slices(
    n: int, n_threads: int, per_thread: int = PARTS_PER_THREAD, least: int = BLOCK_ROWS
) -> list[slice]:
    """Divide n rows into slices, at most ``per_thread`` per thread."""
    step = max(least, -(-n // (n_threads * per_thread)))
    return [slice(begin, min(begin + step, n)) for begin in range(0, n, step)]


@dataclass
class PassTally(Tally):
    losses: NDArray[np.int64] | None = None
    """(2, k) cost of removing each cluster, and current cost of its rows, in units of 1 /
    ``loss_steps``."""
    picked: dict[int, Labels] = field(default_factory=dict)
    """Labels of the requested rows, by chunk index."""
    far: ExactSums = field(default_factory=ExactSums)


PassTotal = AssignmentTotal[PassTally]


def pass_chunk(
    chunk: Chunk,
    total: PassTotal,
    pass_: Pass,
    step: int,
    wanted: Ascending | Literal["all"] | None,
    origin: Labels | None = None,
) -> None:
    """Run one pass over a chunk.

    ``wanted`` (m,) are the global indices of rows whose labels are requested, or "all".
    ``origin`` (n_rows,) are the labels before the first pass, if that pass is not an anchor.
    """
    old: Labels | MovedRows | None = None
    x, weight, end = chunk.x, chunk.weight, chunk.start + len(chunk.x)
    if chunk.state is not None:
        rows = RowArrays(**chunk.take_state())
        if pass_.is_anchor or pass_.restore:
            old = copied(rows.labels, chunk.threads)
    else:
        rows = RowArrays.new(len(x), pass_.packed.dtype)
        if pass_.given is not None:
            rows.labels[:] = pass_.given[chunk.start : end]
        if origin is not None:
            old = origin[chunk.start : end]
            rows.labels[:] = old
    total.begin(step)
    tally = total.tally
    evaluated, losses, moved = advance(x, weight, rows, pass_, chunk.threads)
    old = moved if old is None else old
    tally.n_evaluated += evaluated
    if losses is not None:
        tally.losses = losses if tally.losses is None else tally.losses + losses
    if pass_.far > 0:
        # Usually no row is far, so distances are compared before they are squared.
        limit = rows.upper.dtype.type(np.sqrt(pass_.far))
        if not rows.upper.max(initial=0) <= limit:
            far = np.flatnonzero((rows.upper > limit) & (rows.labels >= 0))
            squares = rows.upper[far].astype(np.float64) ** 2
            tally.far.add(squares, None if weight is None else weight[far])
    count_rows(x, weight, old, rows.labels, total, chunk.counted, chunk.threads)
    if isinstance(wanted, Ascending):
        rows_wanted = wanted.values
        own = rows_wanted[slice(*np.searchsorted(rows_wanted, [chunk.start, end]))]
        tally.picked[chunk.index] = rows.labels[own - chunk.start]
    elif wanted == "all":
        tally.picked[chunk.index] = rows.labels
    saved = {} if rows.saved is None else {"saved": rows.saved}
    chunk.keep(labels=rows.labels, upper=rows.upper, lower=rows.lower, **saved)


@dataclass(frozen=True, slots=True)
class PassDone:
    """Results of a pass."""

    pass_: Pass
    total: PassTotal
    labels: NDArray[np.int32] | None
    n_rows: int
    scale: float
    """Total weight of all rows, divided by the weight of the rows of the pass."""
    history: History[Pass]
    centers: NDArray[Any]
    cost: float
    by_means: float
    """Reduction of the cost by replacing the centres with the means of their rows."""
    work: float


def pass_over(
    passes: Passes,
    history: History[Pass],
    pass_: Pass,
    step: int,
    wanted: Indices | Literal["all"] | None,
    origin: Labels | None = None,
    *,
    retain: bool = True,
) -> tuple[PassTotal, Labels | None]:
    """Run one pass after the passes of ``history``; ``wanted`` (m,) are ascending indices or "all".

    ``retain`` keeps the totals for a search that continues from this pass; the other parameters are
    those of :func:`pass_chunk`. Returns the read-only total, and the labels of the requested rows.
    """
    places = passes.places
    total = passes.reduce(
        pass_chunk,
        pass_,
        step,
        Ascending(wanted) if isinstance(wanted, np.ndarray) else wanted,
        origin if origin is None or places is None else origin[places],
        start=_empty_total(passes, pass_),
        combine=AssignmentTotal.combine,
        state=history.next_state(STATE, _broadcast, anchor=pass_.is_anchor, retain=retain),
        joined=True,
    )
    if history.last is not None and history.last.has_cached:
        # Replayed passes no longer need their cached arrays.
        for earlier in history.entries:
            earlier.forget()
    if wanted is None:
        return total, None
    picked = total.tally.picked
    parts = [picked[index] for index in sorted(picked)]
    labels = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if places is None:
        return total, labels
    ordered = np.empty_like(labels)
    ordered[places] = labels
    return total, ordered


def current_labels(passes: Passes, history: History[Pass], *, saved: bool = False) -> Labels:
    """Return the labels of all rows after the last pass; ``saved``: before the last round."""
    found: dict[int, Labels] = passes.reduce(
        labels_chunk,
        "saved" if saved else "labels",
        start=dict,
        combine=dict.__or__,
        state=stored_state(passes, history),
        joined=True,
    )
    return np.concatenate([found[begin] for begin in sorted(found)])


def labels_chunk(chunk: Chunk, total: dict[int, Labels], name: str) -> None:
    assert chunk.state is not None
    total[chunk.start] = chunk.state[name]


def given_labels(
    centers: Array, shift: Array, labels: Labels, generation: int = 1
) -> History[Pass]:
    """Return the history of a search that continues from labels (n,).

    Row state of this ``generation`` must not exist, or contain these labels. In the latter case,
    the next pass must search all rows, because it may find bounds or none.
    """
    narrow = labels.astype(np.min_scalar_type(-len(centers)))
    return History(generation, (Pass("given", centers, shift, given=narrow),))


def stored_state(passes: Passes, history: History[Pass]) -> RowState:
    """Return the row state after the last pass, for a pass that only reads it."""
    start = _empty_total(passes, history.entries[0])
    return history.read_state(STATE, _broadcast, pass_chunk, start)


def _empty_total(passes: Passes, pass_: Pass) -> partial[PassTotal]:
    k, d = pass_.centers.shape
    return partial(AssignmentTotal, k, d, passes.statistics.grid, PassTally)


def _broadcast(pass_: Pass) -> tuple[Any, ...]:
    """Return the arguments of ``pass_chunk`` that replay a pass."""
    return pass_, -1, None
