"""Probe of a sample after a pass: find promising moves and the best length of lists.

The sample depends only on the seed and is held by the driver, so the results do not depend on the
number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.parts.moves import (
    Moves,
    Splits,
    choose_moves,
    losses_of_merging,
    nearest_others,
)
from largek_dask.algorithms.truncated.lists import lists_of
from largek_dask.algorithms.truncated.passes import Pass, PassDone, RowArrays, advance
from largek_dask.algorithms.truncated.schedule import LENGTHS, LONG
from largek_dask.algorithms.truncated.state import TruncatedState
from largek_dask.kernels.blocks import SparseBlock, sparse_rows
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.dense.splits import split_clusters
from largek_dask.kernels.distances import PackedCenters, pack_centers, scores, squared_distances
from largek_dask.kernels.sparse.splits import split_sparse
from largek_dask.kernels.threads import Threads

PROBE_ROWS, PROBE_BLOCK, PROBE_VALUES = 1_024, 128, 1 << 23
"""Number of rows that are compared with all centres, in total and at a time, and maximum number of
distances in total."""
LED_ROWS = 4_096
SPLIT_ROWS, SPARSE_ROWS = 256, 8_192
"""Maximum number of rows that are used to try a split of a cluster, for dense and for sparse rows.
Sparse rows need more, because few of them have common features."""
COSTLIEST = 64
"""Number of the costliest rows of a cluster that are used to try a split, if the sample has far
rows."""
SPLITS = 8
"""Number of clusters in which a split is tried, per allowed move."""
MOST_GAPS = 1 << 22
"""Maximum number of cached distances between centres of sparse rows."""
LOCKED = 8
"""Number of centres nearest to a removed centre that must stay, because they take over its rows."""
CANDIDATES = 8
"""Number of candidates for removal per allowed move, if there is no table of near centres."""


@dataclass(frozen=True)
class LabelledSample:
    """Rows of a sample with their labels and the current centres."""

    x: Any
    weight: NDArray[np.float64] | None
    labels: NDArray[np.int32]
    scale: float
    """Total weight of all rows, divided by the weight of the sample."""
    centers: NDArray[Any]
    shift: NDArray[Any]
    far: bool = False
    """True if the sample includes costly rows that are far from all centres."""

    @cached_property
    def packed(self) -> PackedCenters:
        return pack_centers(self.centers, self.shift)

    @cached_property
    def stored_centers(self) -> SparseBlock:
        return sparse_rows(self.centers)

    @cached_property
    def _gaps(self) -> NDArray[Any]:
        return scores(self.stored_centers, self.packed)

    def gaps(self, which: NDArray[np.int64]) -> NDArray[Any]:
        """Return (m, k) squared distances from the centres ``which`` (m,) to all centres."""
        if len(self.centers) ** 2 > MOST_GAPS:
            return scores(self.stored_centers[which], self.packed)
        # These distances are cached, because centres of sparse rows have very many values.
        return self._gaps[which]


def probe_sample(
    passes: Passes, state: TruncatedState, done: PassDone, sample: Passes | None
) -> tuple[Moves | None, tuple[float, ...], float]:
    """Probe the sample, if the current task includes a probe.

    Returns the moves to try, :func:`gains_of_lists` and :func:`share_misled`, as far as they are
    needed.
    """
    schedule, threads = state.schedule, passes.threads
    moves: Moves | None = None
    curve: tuple[float, ...] = ()
    misled = 0.0
    if not schedule.task.probes:
        return moves, curve, misled
    assert sample is not None
    assert done.labels is not None
    x, weight, _ = sample.take()
    mass = float(len(x)) if weight is None else sum(weight.tolist())
    scale = sum(done.total.sums.counts.tolist()) / mass
    far = state.far is not None
    rows = LabelledSample(x, weight, done.labels, scale, done.centers, state.shift, far)
    if schedule.searched and not schedule.dense:
        curve = gains_of_lists(rows, threads)
        if not schedule.everywhere:
            assert state.table is not None
            cells = Pass("cells", rows.centers, rows.shift, coarse=state.coarse)
            misled = share_misled(rows, cells, state.table, schedule.length, threads)
    if schedule.setting.moves:
        moves = _moves_to_try(state, done, rows, threads.n)
    return moves, curve, misled


def _moves_to_try(
    state: TruncatedState, done: PassDone, rows: LabelledSample, n_threads: int
) -> Moves:
    assert done.total.tally.losses is not None
    schedule, k = state.schedule, len(rows.centers)
    losses, costs = done.total.tally.losses / done.pass_.loss_steps
    most = max(1, int(schedule.rounds.share * k))
    # Splits of costly clusters gain most. After a probe that found few moves, try fewer.
    tried = max(SPLITS * min(most, 2 * schedule.rounds.n_found + 6), k // 16)
    wanted = np.sort(np.argsort(-costs, kind="stable")[:tried])
    splits = splits_of(rows, wanted, n_threads)
    splits.gains[np.isin(splits.clusters, state.failed)] = 0
    gaps = rows.gaps if isinstance(rows.x, SparseBlock) else None
    if schedule.dense:
        merged = losses_of_merging(rows.centers, done.total.sums.counts, rows.shift, gaps)
        losses = np.minimum(losses, merged)
    cheapest = np.argsort(losses, kind="stable")
    if state.table is None:
        cheapest = cheapest[: CANDIDATES * most]
        near: NDArray[np.integer[Any]] = nearest_others(
            rows.centers, cheapest, rows.shift, LOCKED, gaps
        )
    else:
        near = state.table[cheapest, 1 : LOCKED + 1]
    factor = schedule.rounds.factor
    return choose_moves(splits, losses, cheapest, near, most=most, factor=factor, split_takers=True)


def splits_of(rows: LabelledSample, clusters: NDArray[np.int64], n_threads: int) -> Splits:
    """Try to split clusters, given in ascending order, and estimate the gains on all rows."""
    order, starts = order_by_label(rows.labels, len(rows.centers), n_threads=n_threads)
    weight = rows.weight
    if rows.far:
        order, starts, weight = _with_costliest(rows, order, starts)
    sparse = isinstance(rows.x, SparseBlock)
    split, most = (split_sparse, SPARSE_ROWS) if sparse else (split_clusters, SPLIT_ROWS)
    gains, halves = split(rows.x, order, starts, clusters, rows.centers, weight, most, n_threads)
    return Splits(clusters, gains * rows.scale, halves)


def _with_costliest(
    rows: LabelledSample, order: NDArray[np.int32], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
    """Choose the rows on which splits are tried, including the costliest rows of each cluster.

    The other rows are evenly spaced, and their weights also represent the rows that are not chosen.
    Returns the chosen rows in the order of clusters, the start of each cluster, and the (m,)
    weights of all rows of the sample.
    """
    weight = np.ones(len(rows.labels)) if rows.weight is None else rows.weight.copy()
    squares = squared_distances(rows.x, rows.packed, rows.labels)
    costs = weight * squares.astype(np.float64)
    chosen = []
    for begin, end in pairwise(starts.tolist()):
        own = order[begin:end]
        if len(own) > SPLIT_ROWS:
            ranked = own[np.lexsort((own, -costs[own]))]
            others = np.sort(ranked[COSTLIEST:])
            n = SPLIT_ROWS - COSTLIEST
            spaced = others[np.arange(n) * len(others) // n]
            whole, part = (sum(weight[which].tolist()) for which in (others, spaced))
            weight[spaced] *= whole / part
            own = np.concatenate([ranked[:COSTLIEST], spaced])
        chosen.append(own)
    counts = [len(own) for own in chosen]
    return np.concatenate(chosen), np.concatenate([[0], np.cumsum(counts)]), weight


def gains_of_lists(rows: LabelledSample, threads: Threads) -> tuple[float, ...]:
    """Estimate the reduction of the cost by lists of each length, and by a search of all centres.

    Some rows are compared with all centres. Lists let a row find its nearest centre if they are
    longer than the rank of this centre among the neighbours of the row's current centre.
    """
    k, packed = len(rows.centers), rows.packed
    present = np.flatnonzero(rows.labels >= 0)
    n = max(1, min(PROBE_ROWS, PROBE_VALUES // k, len(present)))
    chosen = present[np.arange(n) * len(present) // n]
    own = rows.labels[chosen]
    saved, rank = np.empty(n), np.zeros(n, np.int64)

    def probe(begin: int) -> None:
        part = slice(begin, begin + PROBE_BLOCK)
        home = own[part]
        distances = scores(rows.x[chosen[part]], packed)
        best, at = distances.argmin(axis=1), np.arange(len(home))
        saved[part] = distances[at, home] - distances[at, best]
        astray = np.flatnonzero(home != best)
        between = scores(rows.centers[home[astray]], packed)
        reach = between[np.arange(len(astray)), best[astray]]
        rank[begin + astray] = np.count_nonzero(between < reach[:, None], axis=1)

    threads.map(probe, range(0, n, PROBE_BLOCK))
    if rows.weight is not None:
        saved *= rows.weight[chosen]
    beyond = np.flatnonzero(rank >= LONG)
    if len(beyond):
        # The gain of a single row does not justify long lists for all rows.
        saved[beyond[saved[beyond].argmax()]] = 0
    scale = rows.scale * len(present) / n
    lengths = (*LENGTHS, k)
    # Unlike numpy.sum, bincount adds in an order that does not depend on the machine.
    gains = np.bincount(np.searchsorted(lengths[:-1], rank, "right"), saved, len(lengths))
    reached = np.cumsum(gains).tolist()
    # Lists of length k or more contain all centres.
    whole = [reached[-1] if n >= k else gain for n, gain in zip(lengths, reached, strict=True)]
    return tuple(scale * gain for gain in whole)


def share_misled(
    rows: LabelledSample, cells: Pass, table: NDArray[np.int32], length: int, threads: Threads
) -> float:
    """Return the relative increase of the cost when rows are assigned by coarse cells.

    The rows of a larger sample are assigned in this way: first by the pass ``cells``, then by a
    pass with lists of the ``length`` nearest centres of each centre, from ``table`` (k, m).
    """
    present = np.flatnonzero(rows.labels >= 0)
    n = min(LED_ROWS, len(present))
    chosen = present[np.arange(n) * len(present) // max(n, 1)]
    x, weight = rows.x[chosen], None if rows.weight is None else rows.weight[chosen]
    drift, reach = np.zeros(len(table)), np.full(len(table), np.inf)
    listed = lists_of(table, length)[1]
    lists = Pass("lists", cells.centers, cells.shift, listed, drift=drift, reach=reach)
    led = RowArrays.new(n, cells.packed.dtype)
    for pass_ in (cells, lists):
        advance(x, weight, led, pass_, threads)

    def cost(labels: NDArray[np.int32]) -> float:
        squares = squared_distances(x, cells.packed, labels).astype(np.float64)
        return float(sum((squares if weight is None else weight * squares).tolist()))

    now = cost(rows.labels[chosen])
    return cost(led.labels) / now - 1 if now > 0 else 0.0
