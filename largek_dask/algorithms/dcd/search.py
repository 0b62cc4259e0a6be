"""Partitions made from others: one cluster more, one less, one exchanged, two recombined.

All work is on rows in memory. Results are settled: no row has a nearer centre, and no move of a
single row pays (:mod:`~largek_dask.kernels.single_moves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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

__all__ = ["LOWER", "Search"]

Floats = NDArray[np.float64]

LOWER = 1 - 1e-9
"""A partition is lower than another one if its objective is below this share of the other's."""
SHORT = 4
"""Lloyd steps after which candidates are compared."""
FINISHED = 2
"""Candidates that continue from there."""
CALM = 1000
"""Candidates are compared again once fewer than one in this many rows changes its cluster."""
MOST_ROUNDS = 50
"""Maximum rounds of moving single rows and settling clusters; two or three are usual."""


@dataclass(slots=True)
class Search:
    """Ways from one partition to the next.

    Each is given its randomness, so that a search can continue after any step.
    """

    rows: CenteredRows
    threads: Threads = ALONE
    n_settled: int = field(default=0)
    """Number of partitions that were settled, or abandoned."""
    n_steps: int = field(default=0)
    """Number of Lloyd steps."""

    # --- the end of every change ------------------------------------------------------------------

    def at(self, centers: Floats) -> tuple[PartitionState, TwoNearest]:
        """Return the partition with these centres, as it is."""
        return label_rows(self.rows, centers)

    def settled_from(self, centers: Floats) -> PartitionState | None:
        """Return a settled partition from any centres; None if rows are too few for them."""
        partition, _ = label_rows(self.rows, centers)
        partition.stale[:] = True
        return self.finish(partition)

    def finish(self, partition: PartitionState) -> PartitionState | None:
        """Settle it, and move single rows until no move pays; None if clusters are empty."""
        self._run(partition)
        for _ in range(MOST_ROUNDS):
            if not move_rows(self.rows, partition):
                break
            self._run(partition)
        return partition if partition.counts.all() else None

    def _run(
        self, partition: PartitionState, most_steps: int = 1000, calm: int = 0
    ) -> PartitionState:
        self._run_all([partition], most_steps, calm)
        return partition

    def _run_all(
        self, partitions: Sequence[PartitionState], most_steps: int = 1000, calm: int = 0
    ) -> None:
        def run(partition: PartitionState) -> int:
            self.threads.check()
            return settle(self.rows, partition, most_steps, calm)

        # added up here: concurrent additions by threads would be lost
        self.n_steps += sum(self.threads.map(run, partitions))

    def best_of(self, partitions: Sequence[PartitionState]) -> PartitionState | None:
        """Return the lowest of some partitions: all take a few steps, the best of them continue."""
        self.n_settled += len(partitions)
        self._run_all(partitions, SHORT)
        best = _lowest(partitions, FINISHED)
        self._run_all(best, calm=len(self.rows) // CALM)
        best = _lowest(best)
        return self.finish(best[0]) if best else None

    # --- changes ----------------------------------------------------------------------------------

    def grow(
        self, partition: Floats, generator: np.random.Generator, drawn: int, kept: int, steps: int
    ) -> PartitionState | None:
        """Add one cluster.

        Parameters
        ----------
        partition : (k, d)
            Centres.
        generator : Generator
        drawn : int
            Rows drawn by weight times squared distance, one in each of this many equal parts
            of that mass, as candidates for one more centre.
        kept : int
            Candidates that become partitions: of four times as many that would save most, each
            moved to a local optimum of the auxiliary problem, the best that differ.
        steps : int
            Maximum steps to that optimum.
        """
        base, nearest = self.at(partition)
        rows = self._far_rows(nearest.first, generator, drawn)
        if not len(rows):
            return None
        points = self.better_points(base, nearest.first, self.rows.x[rows], kept, steps)
        return self.best_of([add_center(self.rows, base, y) for y in points])

    def better_points(
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
        """Remove one cluster: of those that are cheapest to leave out, the one that ends lowest."""
        base, nearest = self.at(partition)
        k = len(partition)
        weight = self.rows.weight
        losses = np.bincount(base.labels, weight * (nearest.second - nearest.first), minlength=k)
        cheapest = np.argsort(losses, kind="stable")[:tried]
        return self.best_of([drop_center(self.rows, base, int(j)) for j in cheapest])

    def swap(
        self, partition: Floats, generator: np.random.Generator, tries: int
    ) -> PartitionState | None:
        """Try random swaps: a centre out, a row by squared distance in; None if none led lower.

        P. Fränti, Efficiency of random swap clustering, Journal of Big Data 5 (2018).
        """
        best, found = self.at(partition)[0], None
        mass = np.cumsum(self.rows.weight * best.upper**2)
        for _ in range(tries):
            out, place = int(generator.integers(len(partition))), generator.random()
            if not mass[-1] > 0.0:
                break
            row = min(int(np.searchsorted(mass, place * mass[-1], "right")), len(mass) - 1)
            trial = drop_center(self.rows, best, out)
            trial = self._run(add_center(self.rows, trial, self.rows.x[row]), SHORT - 1)
            self.n_settled += 1
            if trial.cost < 1.01 * best.cost:
                self._run(trial)
            if not trial.cost < best.cost * LOWER:
                continue
            lower = self.finish(trial)
            if lower is not None:
                best = found = lower
                mass = np.cumsum(self.rows.weight * self.at(best.centers)[1].first)
        return found

    def standstill(
        self, partition: Floats, generator: np.random.Generator, scanned: int
    ) -> tuple[int, float]:
        """Return the number of rows worth moving, and the best of some swaps.

        Parameters
        ----------
        partition : (k, d)
            Centres.
        generator : Generator
            Draws rows by weight times squared distance.
        scanned : int
            Number of these rows; each is tried in place of each centre.

        Returns
        -------
        moves : int
        swap : float
            Change of the objective by the best one, nothing moved after; NaN without any.
        """
        self.threads.check()
        base, nearest = self.at(partition)
        moves = count_moves(self.rows, base)
        points = self.rows.x[self._far_rows(nearest.first, generator, scanned)]
        if not len(points) or len(partition) < 2:
            return moves, np.nan
        reach = np.sqrt(nearest.first) + np.sqrt(nearest.second)
        order = order_by_distance(base.labels, reach, len(partition))
        costs = swap_costs(
            self.rows.x, self.rows.weight, base.centers, order, nearest.first, nearest.second,
            points,
        )  # fmt: skip
        return moves, float(costs.min())

    def _far_rows(
        self, squares: Floats, generator: np.random.Generator, drawn: int
    ) -> NDArray[np.int64]:
        """Draw rows by weight times a squared distance, evenly spaced; each once."""
        mass = np.cumsum(self.rows.weight * squares)
        if not mass[-1] > 0.0:
            return np.empty(0, np.int64)
        places = (np.arange(drawn) + generator.random(drawn)) / drawn * mass[-1]
        return np.unique(np.searchsorted(mass, places, "right").clip(0, len(mass) - 1))

    def fresh(self, k: int, generator: np.random.Generator) -> PartitionState | None:
        """Return a partition from greedy k-means++ centres."""
        uniforms = generator.random((k, 2 + int(log(k))))
        rows = greedy_rows(self.rows.columns, self.rows.weight, readonly(uniforms))
        self.n_settled += 1
        return self.settled_from(self.rows.x[rows])

    def recombine(
        self, one: Floats, other: Floats, generator: np.random.Generator
    ) -> PartitionState | None:
        """Recombine two partitions: match centres, take one of each pair; one out, a far row in.

        D. Gribel, T. Vidal, HG-means: a scalable hybrid genetic algorithm for minimum
        sum-of-squares clustering, Pattern Recognition 88 (2019).
        """
        # Loaded where it is needed: it takes half a second, of every process that fits or computes.
        from scipy.optimize import linear_sum_assignment

        gaps = ((one[:, None] - other) ** 2).sum(axis=2)
        a, b = linear_sum_assignment(gaps)
        first = generator.random(len(one)) < 0.5
        centers = np.where(first[:, None], one[a], other[b])
        centers = np.delete(centers, int(generator.integers(len(centers))), axis=0)
        _, nearest = self.at(centers)
        mass = np.cumsum(self.rows.weight * nearest.first)
        place = generator.random() * mass[-1]
        row = min(int(np.searchsorted(mass, place, "right")), len(mass) - 1)
        self.n_settled += 1
        return self.settled_from(np.concatenate([centers, self.rows.x[row][None]]))


def _lowest(partitions: Sequence[PartitionState], kept: int = 1) -> list[PartitionState]:
    """Return the lowest partitions whose clusters all have rows; of equal ones the first."""
    whole = [p for p in partitions if p.counts.all()]
    return sorted(whole, key=lambda p: p.cost)[:kept]
