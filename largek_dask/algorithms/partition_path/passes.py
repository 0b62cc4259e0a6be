"""Lloyd passes for all partitions at once, reading the rows once per pass.

A block of rows that fits into the processor's cache is compared with the centres of one partition
after another. Rows are rounded to the grid of the sums once and then added to one cluster per
partition. Every pass labels the rows again, so the only state is the sums of k (k + 1) / 2 centres,
and a pass reads as much as a Lloyd step.

Each partition ends at a fixed point of Lloyd's algorithm and is then skipped. Unlike the search in
memory, these passes do not move single rows between clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.algorithms.kmeans import exact_distances
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.path_arrays import centers_in, rows_of_path
from largek_dask.kernels.distances import (
    PackedCenters,
    decide,
    nearest,
    nearest_two,
    pack_centers,
    squared_distances,
)
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.movement import squared_movement, squared_movements
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.exact.sums import ClusterSums

BLOCK_VALUES = 1 << 17
"""Number of values in a block of rows. In single precision, a block with its rounded values takes
1.5 MB, about the size of a second-level cache; smaller blocks cause noticeable call overhead."""
FEWEST_ROWS, MOST_ROWS = 256, 8192


@dataclass(frozen=True, slots=True)
class PathState:
    """Partitions into 1 to k clusters, between two passes."""

    path: NDArray[Any]
    """(k (k + 1) / 2, d) packed centres for the next pass, in the compute dtype."""
    counts: NDArray[np.float64]
    """(k (k + 1) / 2,) weight of the rows of each cluster in its last assignment."""
    cost: NDArray[np.float64]
    """(k,) objective of each partition before its last pass, from exact sums; infinity before the
    first pass."""
    movement: NDArray[np.float64]
    """(k,) squared movement of each partition's centres in the last pass, divided by the mean
    variance of the features; infinity before the first pass."""
    settled: NDArray[np.bool_]
    n_passes: int = 0

    @property
    def length(self) -> int:
        return len(self.settled)

    @property
    def live(self) -> list[int]:
        """Numbers of clusters of the partitions that have not settled, in ascending order."""
        return [int(i) + 1 for i in np.flatnonzero(~self.settled)]


def begin_path(path: NDArray[Any], length: int) -> PathState:
    assert len(path) == rows_of_path(length)
    return PathState(
        path,
        np.zeros(len(path)),
        np.full(length, np.inf),
        np.full(length, np.inf),
        np.zeros(length, np.bool_),
    )


@dataclass
class PathTotal(Additive):
    """Exact totals of the clusters of several partitions."""

    sums: ClusterSums
    """Sums of the clusters of all partitions, one partition after another."""
    squares: ExactSums

    @classmethod
    def empty(cls, n_clusters: int, d: int, grid: FixedPoint) -> PathTotal:
        return cls(ClusterSums(n_clusters, d, grid), ExactSums())


def path_step(passes: Passes, state: PathState, tol: float = 0.0) -> PathState:
    """Run a Lloyd step in every partition that has not settled.

    This takes one pass, or none if all partitions have settled. A cluster without rows keeps its
    centre. A partition settles when its centres do not change or when their ``movement`` is at most
    ``tol``; the moved centres are kept in both cases.
    """
    live = state.live
    if not live:
        return state
    statistics = passes.statistics
    d = state.path.shape[1]
    partitions = _packed(state.path, live, statistics)
    total: PathTotal = passes.reduce(
        assign_to_path,
        partitions,
        start=partial(PathTotal.empty, sum(live), d, statistics.grid),
        combine=PathTotal.combine,
    )
    squares = total.squares.value
    variance = squares / (statistics.total_weight * d)
    path, counts = state.path.copy(), state.counts.copy()
    cost, movement, settled = state.cost.copy(), state.movement.copy(), state.settled.copy()
    for n_clusters, packed, own in zip(live, partitions, _slices(live), strict=True):
        sums, centers = total.sums.part(own), packed.centers
        means = sums.means(centers)
        at = n_clusters - 1
        cost[at] = sums.cost(centers, squares)
        movement[at] = squared_movement(means, centers) / variance if variance > 0 else 0.0
        settled[at] = np.array_equal(means, centers) or movement[at] <= tol
        centers_in(path, n_clusters)[:] = means
        counts[rows_of_path(at) : rows_of_path(n_clusters)] = sums.counts
    return replace(
        state,
        path=path,
        counts=counts,
        cost=cost,
        movement=movement,
        settled=settled,
        n_passes=state.n_passes + 1,
    )


def assign_to_path(chunk: Chunk, total: PathTotal, partitions: Sequence[PackedCenters]) -> None:
    """In every partition, add each row of a chunk to the cluster with the nearest centre."""
    sums = total.sums
    for x, weight in _blocks(chunk, partitions[0].dtype):
        first = 0
        for packed in partitions:
            sums.add(x, nearest(x, packed) + np.int32(first), weight)
            first += packed.n_clusters
        total.squares.add(row_squares(x, sums.grid.shift), weight)


@dataclass(frozen=True, slots=True)
class PathCount:
    """Statistics over all rows of partitions with fixed centres."""

    inertia: NDArray[np.float64]
    """(k,) exact sums of the weighted squared distances, rounded once."""
    counts: NDArray[np.float64]
    """(k (k + 1) / 2,) weight of the rows of each cluster, in steps of the grid of the sums."""
    movement: NDArray[np.float64]
    """(k,) largest distance between a centre and the mean of its rows, both as stored; 0 at a fixed
    point of Lloyd's algorithm."""
    ties: NDArray[np.int64]
    """(k,) number of rows of positive weight whose two nearest centres have equal distances in
    float64."""


@dataclass
class CountTotal(Additive):
    sums: ClusterSums
    inertia: dict[int, ExactSums]
    """Exact objectives, by index of the partition."""
    ties: NDArray[np.int64]

    @classmethod
    def empty(cls, length: int, d: int, grid: FixedPoint) -> CountTotal:
        return cls(
            ClusterSums(rows_of_path(length), d, grid),
            {at: ExactSums() for at in range(length)},
            np.zeros(length, np.int64),
        )


def count_pass(passes: Passes, path: NDArray[Any], length: int) -> PathCount:
    """Return the exact objective and stationarity of every partition, in one pass.

    ``path`` contains packed centres of the compute dtype. Each objective is bit-identical to the
    inertia of a model with these centres.
    """
    statistics = passes.statistics
    lengths = range(1, length + 1)
    total: CountTotal = passes.reduce(
        count_chunk,
        _packed(path, lengths, statistics),
        start=partial(CountTotal.empty, length, path.shape[1], statistics.grid),
        combine=CountTotal.combine,
    )
    moved = squared_movements(total.sums.means(path), path)
    return PathCount(
        np.array([total.inertia[at].value for at in range(length)]),
        total.sums.counts,
        np.sqrt([moved[own].max() for own in _slices(lengths)]),
        total.ties,
    )


def count_chunk(chunk: Chunk, total: CountTotal, partitions: Sequence[PackedCenters]) -> None:
    """Add a chunk to the sums and exact objectives of all partitions, and count ties."""
    for x, weight in _blocks(chunk, partitions[0].dtype):
        for at, packed in enumerate(partitions):
            found = nearest_two(x, packed)
            distances = exact_distances(x, packed, found[0])
            total.inertia[at].add(distances, weight)
            total.sums.add(x, found[0] + np.int32(rows_of_path(at)), weight)
            total.ties[at] += count_ties(x, packed, found)


def count_ties(
    x: NDArray[Any],
    packed: PackedCenters,
    found: tuple[NDArray[np.int32], NDArray[Any], NDArray[np.int32], NDArray[Any]],
) -> int:
    """Count rows whose two nearest centres have the same squared distance in float64.

    ``found`` is the result of ``nearest_two`` for rows (n, d) of the compute dtype. In the product
    form, rows whose two smallest scores differ by less than their error were already compared in
    float64, so both labels are correct, and equal distances remain equal after rounding.

    In the direct form, the error of a score is at most (d + 3) roundings of the score. With a
    relative error e, centres that tie for the smallest distance D have scores up to (1 + e) D, and
    no score is below (1 - e) D. Rows whose two smallest scores are that close are compared here.
    """
    labels, first, second_labels, second = found
    if packed.n_clusters == 1:
        return 0
    if packed.direct:
        kind = np.finfo(packed.dtype)
        error = 4 * (packed.n_features + 4) * float(kind.eps)
        most = second * (1 + error) + float(kind.smallest_normal)
        close = np.flatnonzero(second - first <= most - second)
        _, a, _, b = decide(x, close, most[close].astype(np.float64), packed)
    else:
        close = np.flatnonzero(first == second)
        some = x[close]
        a = squared_distances(some, packed, labels[close])
        b = squared_distances(some, packed, second_labels[close])
    return int(np.count_nonzero(a == b))


def _packed(
    path: NDArray[Any], lengths: Sequence[int], statistics: Statistics
) -> tuple[PackedCenters, ...]:
    assert path.dtype == statistics.dtype
    return tuple(pack_centers(centers_in(path, n), statistics.shift) for n in lengths)


def _slices(lengths: Sequence[int]) -> list[slice]:
    """Return, for each partition, the slice of its clusters in the joint numbering."""
    ends = np.cumsum(lengths).tolist()
    return [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)]


def _blocks(
    chunk: Chunk, dtype: np.dtype[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[np.float64] | None]]:
    """Yield blocks of rows with positive weight, in the compute dtype."""
    x, weight = chunk.x, chunk.weight
    step = max(FEWEST_ROWS, min(MOST_ROWS, BLOCK_VALUES // x.shape[1]))
    for begin in range(0, len(x), step):
        at = slice(begin, begin + step)
        block, own = x[at], None if weight is None else weight[at]
        if own is not None and not own.all():
            present = np.flatnonzero(own)
            block, own = block[present], own[present]
        if len(block):
            yield np.ascontiguousarray(block, dtype), own
