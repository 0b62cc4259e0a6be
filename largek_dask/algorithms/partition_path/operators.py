"""Operators that make a partition from others: add, remove or swap a cluster, recombine two.

All work on rows in memory. Results are settled: no row has a nearer centre, and moving any single
row would not lower the objective (:mod:`~largek_dask.kernels.single_moves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.auxiliary import (
    arrange,
    descend_from,
    gains_at,
    order_by_distance,
    swap_costs,
)
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense.greedy import greedy_rows
from largek_dask.kernels.descent import (
    CenteredRows,
    PartitionState,
    TwoNearest,
    add_center,
    drop_center,
    label_rows,
    settle,
)
from largek_dask.kernels.single_moves import count_moves, move_rows
from largek_dask.kernels.threads import ALONE, Threads

Floats = NDArray[np.float64]

LOWER = 1 - 1e-9
"""A partition is lower than another if its objective is below this share of the other objective."""
SHORT = 4
"""Lloyd steps after which candidates are compared."""
FINISHED = 2
"""Number of candidates that continue after the comparison."""
CALM = 1000
"""Candidates are compared again once fewer than one row in this many changes its cluster."""
MOST_ROUNDS = 50
"""Maximum rounds of moving single rows and settling clusters; two or three are usual."""


@dataclass(slots=True)
class Operators:
    """Operators on partitions; the caller passes a random generator to each."""

    rows: CenteredRows
    threads: Threads = ALONE
    n_settled: int = 0
    """Number of partitions that were settled or abandoned."""
    n_steps: int = 0
    """Number of Lloyd steps taken."""

    # --- settling, the end of every operator ------------------------------------------------------

    def label(self, centers: Floats) -> tuple[PartitionState, TwoNearest]:
        """Return the partition with these centres, without moving them."""
        return label_rows(self.rows, centers)

    def settle_from(self, centers: Floats) -> PartitionState | None:
        """Settle the partition with some centres; return None if a cluster ends without rows."""
        partition, _ = self.label(centers)
        partition.stale[:] = True
        return self.finish(partition)

    def finish(self, partition: PartitionState) -> PartitionState | None:
        """Settle a partition and move single rows; return None if a cluster has no rows."""
        self._settle([partition])
        for _ in range(MOST_ROUNDS):
            if not move_rows(self.rows, partition):
                break
            self._settle([partition])
        return partition if partition.counts.all() else None

    def _settle(
        self, partitions: Sequence[PartitionState], most_steps: int = 1000, calm: int = 0
    ) -> None:
        def run(partition: PartitionState) -> int:
            self.threads.check()
            return settle(self.rows, partition, most_steps, calm)

        # Steps are added up here, as concurrent additions by threads could be lost.
        self.n_steps += sum(self.threads.map(run, partitions))

    def _settle_best(self, partitions: Sequence[PartitionState]) -> PartitionState | None:
        """Settle the best of some partitions: all take a few steps, then the lowest continue."""
        self.n_settled += len(partitions)
        self._settle(partitions, SHORT)
        best = _lowest(partitions, FINISHED)
        self._settle(best, calm=len(self.rows) // CALM)
        best = _lowest(best)
        return self.finish(best[0]) if best else None

    # --- operators --------------------------------------------------------------------------------

    def grow(
        self, partition: Floats, generator: np.random.Generator, drawn: int, kept: int, steps: int
    ) -> PartitionState | None:
        """Add one cluster to the partition with these centres (k, d).

        Candidates for the new centre are ``drawn`` rows, drawn by weight times squared distance,
        one from each of ``drawn`` equal parts of that mass. The 4 * ``kept`` candidates that would
        reduce the objective most move up to ``steps`` steps to a local optimum of the auxiliary
        problem; the ``kept`` best distinct ones become partitions.
        """
        base, nearest = self.label(partition)
        rows = self._draw_far(nearest.first, generator, drawn)
        if not len(rows):
            return None
        points = self._best_points(base, nearest.first, self.rows.x[rows], kept, steps)
        return self._settle_best([add_center(self.rows, base, y) for y in points])

    def _best_points(
        self, base: PartitionState, r: Floats, points: Floats, kept: int, steps: int
    ) -> Floats:
        """Return the best local optima of the auxiliary problem from some points."""
        order = order_by_distance(base.labels, r, len(base.centers))
        arranged = arrange(self.rows.x, self.rows.weight, base.centers, order, r)
        first = np.argsort(-gains_at(arranged, points), kind="stable")[: 4 * kept]
        points, gains = descend_from(arranged, points[first], steps)
        chosen: list[int] = []
        for q in np.argsort(-gains, kind="stable").tolist():
            apart = all(abs(gains[q] - gains[c]) > 1e-7 * gains[q] for c in chosen)
            if apart and gains[q] > 0 and len(chosen) < kept:
                chosen.append(q)
        return points[chosen]

    def shrink(self, partition: Floats, tried: int) -> PartitionState | None:
        """Remove the one of the ``tried`` cheapest clusters that leads to the lowest result."""
        base, nearest = self.label(partition)
        weighted = self.rows.weight * (nearest.second - nearest.first)
        losses = np.bincount(base.labels, weighted, minlength=len(partition))
        cheapest = np.argsort(losses, kind="stable")[:tried]
        return self._settle_best([drop_center(self.rows, base, int(j)) for j in cheapest])

    def swap(
        self, partition: Floats, generator: np.random.Generator, tries: int
    ) -> PartitionState | None:
        """Try random swaps of a centre for a far row; return None if none lowers the objective.

        P. Fränti, Efficiency of random swap clustering, Journal of Big Data 5 (2018).
        """
        best, found = self.label(partition)[0], None
        mass = np.cumsum(self.rows.weight * best.upper**2)
        for _ in range(tries):
            out, share = int(generator.integers(len(partition))), generator.random()
            if not mass[-1] > 0.0:
                break
            row = self.rows.x[_row_at(mass, share)]
            trial = add_center(self.rows, drop_center(self.rows, best, out), row)
            self._settle([trial], SHORT - 1)
            self.n_settled += 1
            if trial.cost < 1.01 * best.cost:
                self._settle([trial])
            if not trial.cost < best.cost * LOWER:
                continue
            lower = self.finish(trial)
            if lower is not None:
                best = found = lower
                mass = np.cumsum(self.rows.weight * self.label(best.centers)[1].first)
        return found

    def possible_gains(
        self, partition: Floats, generator: np.random.Generator, scanned: int
    ) -> tuple[int, float]:
        """Count rows whose move lowers the objective; find the smallest change by some swaps.

        Each of ``scanned`` rows, drawn by weight times squared distance, is tried in place of each
        centre, and no centre moves afterwards. The change is NaN if no row is drawn.
        """
        self.threads.check()
        base, nearest = self.label(partition)
        moves = count_moves(self.rows, base)
        points = self.rows.x[self._draw_far(nearest.first, generator, scanned)]
        if not len(points) or len(partition) < 2:
            return moves, np.nan
        reach = np.sqrt(nearest.first) + np.sqrt(nearest.second)
        order = order_by_distance(base.labels, reach, len(partition))
        costs = swap_costs(
            self.rows.x, self.rows.weight, base.centers, order, nearest.first, nearest.second,
            points,
        )  # fmt: skip
        return moves, float(costs.min())

    def _draw_far(
        self, squares: Floats, generator: np.random.Generator, drawn: int
    ) -> NDArray[np.int64]:
        """Draw distinct rows by weight times squared distance, evenly spaced over that mass."""
        mass = np.cumsum(self.rows.weight * squares)
        if not mass[-1] > 0.0:
            return np.empty(0, np.int64)
        at = (np.arange(drawn) + generator.random(drawn)) / drawn * mass[-1]
        return np.unique(np.searchsorted(mass, at, "right").clip(0, len(mass) - 1))

    def start(self, k: int, generator: np.random.Generator) -> PartitionState | None:
        """Return a partition from greedy k-means++ centres."""
        uniforms = generator.random((k, 2 + int(log(k))))
        rows = greedy_rows(self.rows.columns, self.rows.weight, readonly(uniforms))
        self.n_settled += 1
        return self.settle_from(self.rows.x[rows])

    def recombine(
        self, one: Floats, other: Floats, generator: np.random.Generator
    ) -> PartitionState | None:
        """Recombine two partitions: take one centre of each matched pair, swap one for a far row.

        D. Gribel, T. Vidal, HG-means: a scalable hybrid genetic algorithm for minimum
        sum-of-squares clustering, Pattern Recognition 88 (2019).
        """
        # This import takes half a second, so it is made only if needed.
        from scipy.optimize import linear_sum_assignment

        gaps = ((one[:, None] - other) ** 2).sum(axis=2)
        a, b = linear_sum_assignment(gaps)
        first = generator.random(len(one)) < 0.5
        centers = np.where(first[:, None], one[a], other[b])
        centers = np.delete(centers, int(generator.integers(len(centers))), axis=0)
        mass = np.cumsum(self.rows.weight * self.label(centers)[1].first)
        row = self.rows.x[_row_at(mass, generator.random())]
        self.n_settled += 1
        return self.settle_from(np.concatenate([centers, row[None]]))


def _row_at(mass: Floats, share: float) -> int:
    """Return the row at a share of the total of the cumulative ``mass``."""
    return min(int(np.searchsorted(mass, share * mass[-1], "right")), len(mass) - 1)


def _lowest(partitions: Sequence[PartitionState], kept: int = 1) -> list[PartitionState]:
    """Return the lowest partitions in which all clusters have rows; ties go to the first."""
    whole = [p for p in partitions if p.counts.all()]
    return sorted(whole, key=lambda p: p.cost)[:kept]
