"""Partitions into 1, 2, 4, ... clusters, each started from the centres of another partition.

To get more clusters, k clusters are split into 2 k clusters, which an algorithm refines. To get
fewer clusters, pairs of clusters are merged (:mod:`~largek_dask.selection.agglomeration`), which
gives a cheap curve in steps of one. Partitions are refined where the curve bends, and for the
requested numbers of clusters. Of two partitions of the same size, the better one is kept. The
search runs in the driver on a sample, with more rows for more clusters. Afterwards, a few passes
over all rows update all partitions at once, and a last pass computes their costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Chunk, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem, exact_distances
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.parts.moves import losses_of_merging
from largek_dask.algorithms.parts.splits import held_out_moves, split_up
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.truncated import Truncated
from largek_dask.driver.final import label_rows
from largek_dask.driver.run import Run
from largek_dask.driver.stopping import StopRules
from largek_dask.kernels.blocks import Table
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.model.suggest_k import window
from largek_dask.passes.base import BasePasses
from largek_dask.selection.agglomeration import bent_sizes, merge_down

STEPS = 24
"""Maximum number of passes that refine a partition; further passes change little."""
TOL = 1e-4
"""Value of ``tol`` when partitions are refined."""
ROWS_PER_CLUSTER, LEAST_ROWS = 256, 1 << 13
"""Number of rows per cluster for refining a partition, and minimum number of rows."""
SPARSE_ROUNDS = 4
"""Maximum number of rounds of centre moves on sparse rows."""
SMALL = 16
"""Partitions are computed for every number of clusters up to this number."""
TRIED = 2.0
"""Minimum bend of a curve of merges at which a partition is refined. The curve of refined
partitions bends more, because merges do not reassign rows."""
MOST_TRIED = 3
"""Maximum number of bends between k and 2 k at which partitions are refined."""
ROUNDED = 4.0
"""Maximum squared rounding error of the mean of equal rows, in squared ulps of the row's values."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Centres and their cost."""

    arrays: CenterArrays
    cost: float
    """Sum of ``w ||x - c||^2`` over the rows that were used to find the partition."""
    n_rows: int
    """Number of rows that were used to find the partition."""

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.arrays.centers)


class TimeLimit:
    """Time limit that starts when the object is created; infinity means no limit."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds, self._begun = seconds, time.monotonic()

    def left(self, share: float = 1.0) -> float | None:
        """Return the seconds left of a fraction of the limit (at least 0); None if unlimited."""
        if math.isinf(self._seconds):
            return None
        return max(0.0, share * self._seconds - (time.monotonic() - self._begun))

    def is_over(self, share: float = 1.0) -> bool:
        return self.left(share) == 0.0


@dataclass(slots=True)
class _NestedSearch:
    """State of a search for partitions of a sample."""

    sample: BasePasses
    """Sampled rows in random order, all with positive weight."""
    rng: Rng
    limit: TimeLimit
    share: float
    report: Callable[[Partition], object] | None
    found: dict[int, Partition] = field(default_factory=dict)

    def rows_for(self, k: int) -> BasePasses:
        """Return the first rows of the sample; a larger k gets more rows."""
        n = max(LEAST_ROWS, ROWS_PER_CLUSTER * k)
        if n >= self.sample.n_rows:
            return self.sample
        return self.sample.subset(np.arange(n))

    def refine(self, centers: NDArray[Any]) -> Partition:
        """Return the partition to which the algorithm converges from these centres."""
        rows = self.rows_for(len(centers))
        # With one or two centres, moving a centre cannot help.
        if len(centers) <= 2:
            return self._run(Lloyd(), rows, centers)
        if not rows.is_sparse:
            return self._run(Truncated(), rows, centers)
        best = self._run(Lloyd(), rows, centers)
        for _ in range(SPARSE_ROUNDS):
            moved = _moved(rows, best)
            other = best if moved is None else self._run(Lloyd(), rows, moved)
            if other.cost >= best.cost:
                break
            best = other
        return best

    def _run(
        self, algorithm: Algorithm[Any, Any], rows: BasePasses, centers: NDArray[Any]
    ) -> Partition:
        init = np.asarray(centers, rows.statistics.dtype)
        problem = KMeansProblem(len(centers), init, tol=TOL)
        stop = StopRules(STEPS, TOL, self.limit.left(self.share))
        done = Run(algorithm.bind(problem), rows, rng=self.rng, stop=stop).result()
        if done.stop_reason == "interrupted":
            raise KeyboardInterrupt
        assert isinstance(done.arrays, CenterArrays)
        final = problem.finish(rows, done.arrays, partial(label_rows, rows, labels=False))
        return Partition(final.arrays, final.value, rows.n_rows)

    def keep(self, partition: Partition) -> None:
        """Keep a partition if it is the best of its size."""
        known = self.found.get(partition.n_clusters)
        if known is None or partition.cost < known.cost:
            self.found[partition.n_clusters] = partition
            if self.report is not None:
                self.report(partition)

    def up(self, most: int) -> None:
        """Split clusters until there are 2, 4, 8, ..., and finally ``most`` clusters."""
        mean = self.sample.statistics.mean.astype(self.sample.statistics.dtype)
        last = self.refine(mean[None])
        self.keep(last)
        while last.n_clusters < most and last.cost > 0 and not self.limit.is_over(self.share):
            arrays, k = last.arrays, last.n_clusters
            rows = self.rows_for(2 * k)
            more = split_up(rows, arrays.centers, arrays.counts, min(2 * k, most))
            if len(more) == k:
                break
            last = self.refine(more)
            self.keep(last)

    def down(self, wanted: Collection[int]) -> None:
        """Merge clusters, and refine partitions that are wanted or at which the curve bends."""
        levels = sorted(self.found, reverse=True)
        for k, fewer in pairwise(levels):
            if self.limit.is_over(self.share):
                return
            above = self.found[k]
            least = max(1, fewer - 2 * window(fewer) - 1)
            merges = merge_down(
                above.arrays.centers, above.arrays.counts, above.arrays.shift, least
            )
            bent = bent_sizes(
                merges, above.cost, fewer - window(fewer), k - window(k), TRIED, MOST_TRIED
            )
            close = {size + step * window(size) for size in bent for step in (-1, 0, 1)}
            own = {size for size in wanted if fewer <= size < k} | {fewer} | close
            for size in sorted(own, reverse=True):
                if max(least, 1) <= size < k and not self.limit.is_over(self.share):
                    self.keep(self.refine(merges.centers_of(size)))


def _moved(rows: BasePasses, found: Partition) -> NDArray[Any] | None:
    """Return the centres after moves that lower the cost; None if there are no such moves."""
    centers, counts, shift = found.arrays.centers, found.arrays.counts, found.arrays.shift
    x, weight, _ = rows.take()
    packed = pack_centers(centers, shift)
    labels, _ = nearest_pruned(x, packed)
    distances = exact_distances(x, packed, labels)
    costs = distances if weight is None else weight * distances
    sse = np.bincount(labels, costs, len(centers)).astype(np.float64)
    moves = held_out_moves(rows, centers, counts, sse, losses_of_merging(centers, counts, shift))
    return moves.apply(centers) if len(moves.split) else None


def nested_partitions(
    sample: BasePasses,
    rng: Rng,
    n_clusters: int,
    *,
    wanted: Collection[int] = (),
    limit: TimeLimit | None = None,
    share: float = 1.0,
    report: Callable[[Partition], object] | None = None,
) -> list[Partition]:
    """Compute partitions into 1, 2, ..., 16, then 24, 32, 48, ... up to k clusters.

    Parameters
    ----------
    sample : BasePasses
        Subset in random order, without rows of weight 0.
    rng : Rng
    n_clusters : int
        Largest number of clusters k.
    wanted : collection of int
        Additional numbers of clusters.
    limit : TimeLimit, optional
    share : float
        Fraction of the limit after which no further partition is computed.
    report : callable, optional
        Called with every partition that is better than the known partition of its size.

    Returns
    -------
    list of Partition
        Partitions in order of size. The last size is below k if there are fewer distinct rows or
        if time is up.

    Raises
    ------
    NoModelError
        The time limit was reached before there was a partition.
    """
    search = _NestedSearch(sample, rng, TimeLimit() if limit is None else limit, share, report)
    search.up(n_clusters)
    halves = (3 * size // 2 for size in sorted(search.found) if size >= SMALL)
    search.down({*range(1, SMALL + 1), *halves, *wanted})
    return [search.found[size] for size in sorted(search.found)]


def settle_partitions(
    passes: BasePasses, partitions: Sequence[Partition], steps: int
) -> list[Partition]:
    """Return partitions after Lloyd steps over all rows; a pass makes a step for all partitions."""
    shift, d, grid = passes.statistics.shift, passes.n_features, passes.statistics.grid
    centers = [partition.arrays.centers for partition in partitions]
    ends = np.cumsum([len(each) for each in centers]).tolist()
    for _ in range(steps if partitions else 0):
        sums: ClusterSums = passes.reduce(
            _assign_chunk,
            [pack_centers(each, shift) for each in centers],
            start=partial(ClusterSums, ends[-1], d, grid),
            combine=ClusterSums.merge,
        )
        centers = [
            sums.part(slice(end - len(each), end)).means(each)
            for each, end in zip(centers, ends, strict=True)
        ]
    return [
        replace(partition, arrays=replace(partition.arrays, centers=each))
        for partition, each in zip(partitions, centers, strict=True)
    ]


def _assign_chunk(chunk: Chunk, sums: ClusterSums, packed: Sequence[PackedCenters]) -> None:
    first = 0
    for centers in packed:
        labels, _ = nearest_pruned(chunk.x, centers)
        sums.add(chunk.x, labels + np.int32(first), chunk.weight)
        first += centers.n_clusters


@dataclass
class _CostSums(Additive):
    """Costs of partitions, and sums for estimating the standard errors of the costs."""

    costs: ExactSums
    """Sums of ``w d^2``, by partition."""
    squares: ExactSums
    """Sums of ``(w d^2)^2``, by partition."""
    products: ExactSums
    """Sums of ``w^2 d^2``, by partition."""
    weights: ExactSums
    """Sums of ``w`` and ``w^2``."""
    counts: ExactSums
    """Sums of ``w`` by cluster, for all partitions one after the other."""

    @classmethod
    def of(cls, sizes: Sequence[int]) -> _CostSums:
        n = len(sizes)
        return cls(ExactSums(n), ExactSums(n), ExactSums(n), ExactSums(2), ExactSums(sum(sizes)))


def without_rounding(distances: Floats, x: Table, dtype: np.dtype[Any]) -> Floats:
    """Return squared distances (n,), set to 0 for rows that equal their centre up to rounding.

    ``dtype`` is the type of the centres, to which the means of equal rows are rounded.
    """
    unit = ROUNDED * float(np.finfo(dtype).eps) ** 2
    return np.where(distances > unit * row_squares(x, np.zeros(x.shape[1])), distances, 0.0)


def _count_chunk(chunk: Chunk, sums: _CostSums, packed: Sequence[PackedCenters]) -> None:
    weight = np.ones(len(chunk)) if chunk.weight is None else chunk.weight
    there = weight > 0
    first = 0
    for i, centers in enumerate(packed):
        labels, _ = nearest_pruned(chunk.x, centers)
        distances = without_rounding(
            exact_distances(chunk.x, centers, labels), chunk.x, centers.dtype
        )
        cost = np.where(there, distances, 0.0) * weight
        at = np.full(len(cost), i, np.int32)
        sums.costs.add(cost, None, at)
        sums.squares.add(cost, cost, at)
        sums.products.add(cost, weight, at)
        sums.counts.add(np.ones(len(cost)), weight, first + labels)
        first += centers.n_clusters
    both = np.repeat(np.arange(2, dtype=np.int32), len(weight))
    sums.weights.add(np.concatenate([weight, weight * weight]), None, both)


@dataclass(frozen=True, slots=True)
class CountedPartitions:
    """Costs of partitions over some rows."""

    partitions: list[Partition]
    """Partitions with costs and counts over these rows."""
    errors: Floats
    """(m,) standard errors of the costs as estimates for a larger table."""
    weight: float
    """Total weight of the rows."""


def count_partitions(passes: BasePasses, partitions: Sequence[Partition]) -> CountedPartitions:
    """Compute the costs of partitions over all rows, in one pass.

    The standard error is derived from the ratio of the mean of ``w d^2`` to the mean of ``w``.
    """
    shift = passes.statistics.shift
    sizes = [partition.n_clusters for partition in partitions]
    sums: _CostSums = passes.reduce(
        _count_chunk,
        [pack_centers(partition.arrays.centers, shift) for partition in partitions],
        start=partial(_CostSums.of, sizes),
        combine=_CostSums.combine,
    )
    costs, (weight, squares) = sums.costs.values, sums.weights.values
    ratios = costs / weight
    spread = sums.squares.values - 2 * ratios * sums.products.values + ratios**2 * squares
    edges = np.cumsum([0, *sizes])
    counts = sums.counts.values
    done = [
        Partition(
            replace(partition.arrays, counts=counts[edges[i] : edges[i + 1]].copy()),
            float(costs[i]),
            passes.n_rows,
        )
        for i, partition in enumerate(partitions)
    ]
    return CountedPartitions(done, np.sqrt(np.maximum(spread, 0.0)), float(weight))
