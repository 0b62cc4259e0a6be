"""Operators on partitions: add, remove or swap a cluster, or recombine two partitions.

All operators work on rows in memory. In each result, no row has a nearer centre, and no move of a
single row lowers the objective (:mod:`~largek_dask.kernels.single_moves`).
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
"""A partition counts as better than another if its objective is below the other objective times
this factor."""
SHORT = 4
"""Number of Lloyd steps before candidates are compared."""
FINISHED = 2
"""Number of candidates that continue after the first comparison."""
CALM = 1000
"""A search pauses to compare candidates when fewer than one in this many rows changes its
cluster."""
MOST_ROUNDS = 50
"""Maximum number of alternations between moving single rows and Lloyd steps; two or three are
usual."""


@dataclass(slots=True)
class Operators:
    """Operators on partitions of rows in memory."""

    rows: CenteredRows
    threads: Threads = ALONE
    n_settled: int = 0
    n_steps: int = 0

    def label(self, centers: Floats) -> tuple[PartitionState, TwoNearest]:
        """Return the partition with these centres, without moving them."""
        return label_rows(self.rows, centers)

    def settle_from(self, centers: Floats) -> PartitionState | None:
        """Run Lloyd steps and row moves from these centres; None if a cluster ends up empty."""
        partition, _ = self.label(centers)
        partition.stale[:] = True
        return self.finish(partition)

    def finish(self, partition: PartitionState) -> PartitionState | None:
        """Run Lloyd steps and single-row moves until neither helps; None if a cluster is empty."""
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

        # Steps are summed here because threads might lose concurrent additions.
        self.n_steps += sum(self.threads.map(run, partitions))

    def _settle_best(self, partitions: Sequence[PartitionState]) -> PartitionState | None:
        """Take a few Lloyd steps from every partition, then settle only the best."""
        self.n_settled += len(partitions)
        self._settle(partitions, SHORT)
        best = _lowest(partitions, FINISHED)
        self._settle(best, calm=len(self.rows) // CALM)
        best = _lowest(best)
        return self.finish(best[0]) if best else None

    def grow(
        self, partition: Floats, generator: np.random.Generator, drawn: int, kept: int, steps: int
    ) -> PartitionState | None:
        """Add one cluster to the partition with these centres (k, d).

        Candidates for the new centre are ``drawn`` rows, sampled by weight times squared distance
        with even spacing. The best 4 * ``kept`` candidates take up to ``steps`` steps towards a
        local optimum of the auxiliary problem. The ``kept`` best distinct candidates become
        partitions.
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
        """Return the best local optima of the auxiliary problem, reached from the given points."""
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
        """Try to remove each of the ``tried`` cheapest clusters; return the best result."""
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
        """Count row moves that lower the objective, and find the smallest change by a swap.

        Each of ``scanned`` rows, drawn by weight times squared distance, replaces each centre in
        turn while all other centres stay in place. The change is NaN if no row is drawn.
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
        """Draw distinct rows, evenly spaced over the cumulative weight times squared distance."""
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
        """Pick one centre of each matched pair of two partitions, then swap one for a far row.

        D. Gribel, T. Vidal, HG-means: a scalable hybrid genetic algorithm for minimum
        sum-of-squares clustering, Pattern Recognition 88 (2019).
        """
        # This import takes half a second.
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
    """Return the index at which the cumulative ``mass`` reaches a share of its total."""
    return min(int(np.searchsorted(mass, share * mass[-1], "right")), len(mass) - 1)


def _lowest(partitions: Sequence[PartitionState], kept: int = 1) -> list[PartitionState]:
    """Return the partitions without empty clusters that have the lowest objectives."""
    whole = [p for p in partitions if p.counts.all()]
    return sorted(whole, key=lambda p: p.cost)[:kept]
