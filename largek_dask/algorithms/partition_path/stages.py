"""Stages of the search, and the best partitions found so far.

A search is a sequence of stages, and each stage is a sequence of pieces. A fit can stop after any
piece and continue later. The stages are:

up
    Go from l - 1 to l clusters (Algorithm 7.1 of N. Karmitsa, A. Bagirov, S. Taheri), beyond the
    requested number.
down
    Go from l + 1 to l clusters by removing a cheap cluster. This stage lowers the objectives most
    for its cost.
again
    Go up and down once more, from the improved partitions.
swaps
    Replace a random centre by a far row.
crossed
    Recombine the partitions of each population: greedy k-means++ starts and the results of all
    earlier stages.

Stages are limited by numbers of partitions, not by time, so results are reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.choices import Effort
from largek_dask.algorithms.partition_path.operators import LOWER, Operators
from largek_dask.algorithms.path_arrays import centers_in, packed
from largek_dask.kernels.descent import PartitionState

Floats = NDArray[np.float64]

STAGES = ("up", "down", "swaps", "crossed")
MOST_LABELS = 1_600_000_000
"""Maximum product of recombinations, clusters and rows, which takes about a minute."""
LEAST_FAILURES = 24
"""Minimum number of successive failed recombinations before a stage ends."""
SAME = 1e-7
"""Two partitions count as equal if their objectives differ by less than this relative amount."""
PIECES = 24
GROWN, GROWN_STEPS = 2, 2
"""When a cluster is added: the number of candidates that become partitions, and the number of steps
on the auxiliary problem."""
DROPPED = 2


@dataclass(frozen=True, slots=True)
class Plan:
    members: int = 0
    """Maximum number of partitions in a population; with 0, the search ends after the stage
    "up"."""
    swaps: int = 0
    starts: int = 0
    """Number of greedy k-means++ starts that are added to the population."""
    recombinations: int = 0
    """Maximum number of recombinations for one number of clusters. If ``recombines_all``, the
    maximum of the sum of recombinations times clusters over all numbers of clusters."""
    failures: int = 0
    """Number of successive failures per cluster after which recombination ends; 0 means never."""
    recombines_all: bool = False
    """True to recombine at every number of clusters, not only at the requested one."""
    drawn: int = 100
    """Number of rows that are candidates for a new centre."""
    work: int = 60
    """Approximate cost per number of clusters, relative to labelling all rows; measured, and used
    only for estimates."""


PLANS: dict[Effort, Plan] = {
    "fast": Plan(),
    "balanced": Plan(members=8, starts=4, recombinations=15, work=130),
    "best": Plan(
        members=10,
        starts=6,
        recombinations=35_000,
        failures=3,
        recombines_all=True,
        swaps=6,
        work=1500,
    ),
}


@dataclass(frozen=True, slots=True)
class Piece:
    stage: str
    """One of ``STAGES``, or "again up" or "again down"."""
    sizes: tuple[int, ...]
    recombinations: int = 0
    """Maximum number of recombinations for each number of clusters."""


def pieces(plan: Plan, length: int, wanted: int, n_rows: int) -> Iterator[Piece]:
    """Yield the pieces of a search for partitions into up to ``length`` clusters."""
    rising, falling = range(2, length + 1), range(length, 1, -1)
    yield from _cut("up", rising)
    if not plan.members:
        return
    yield from _cut("down", falling[1:])
    yield from _round(rising, falling)
    if plan.swaps:
        yield from _cut("swaps", falling)
        yield from _round(rising, falling)
    sizes, recombinations = range(wanted, wanted - 1, -1), plan.recombinations
    if plan.recombines_all:
        sizes = range(wanted, 1, -1)
        recombinations = min(plan.recombinations, MOST_LABELS // n_rows) // max(1, sum(sizes))
    yield from _cut("crossed", sizes, recombinations)
    yield from _round(rising, falling)


def _round(rising: range, falling: range) -> Iterator[Piece]:
    yield Piece("again up", tuple(rising))
    yield Piece("again down", tuple(falling[1:]))


def _cut(stage: str, sizes: range, recombinations: int = 0) -> Iterator[Piece]:
    each = max(1, -(-len(sizes) // PIECES))
    for begin in range(0, len(sizes), each):
        yield Piece(stage, tuple(sizes[begin : begin + each]), recombinations)


@dataclass(frozen=True, slots=True)
class Kept:
    """State of a search between two pieces, as arrays."""

    partitions: Floats
    costs: Floats
    tried: NDArray[np.int64]
    """(3, l) values of ``changes``, ``grown`` and ``shrunk`` of ``PathSearch``."""
    members: Floats
    member_sizes: NDArray[np.int64]
    member_costs: Floats
    n_settled: int
    n_steps: int
    is_searched: bool = True
    """False if all partitions are known to be optimal."""

    @classmethod
    def optimal(cls, partitions: Floats, costs: Floats) -> Kept:
        """Return optimal partitions, which need no search."""
        tried = np.full((3, len(costs)), -1, np.int64)
        none, sizes = np.zeros((0, partitions.shape[1])), np.zeros(0, np.int64)
        return cls(partitions, costs, tried, none, sizes, np.zeros(0), 0, 0, is_searched=False)


@dataclass(slots=True)
class PathSearch:
    """Best partitions found so far, and a record of attempts to improve them.

    Lists are indexed by the number of clusters minus one.
    """

    plan: Plan
    operators: Operators
    partitions: list[Floats] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)
    """``changes`` of the next smaller partition at the last attempt to grow it; -1 if never."""
    shrunk: list[int] = field(default_factory=list)
    """``changes`` of the next larger partition at the last attempt to shrink it; -1 if never."""
    population: list[list[tuple[float, Floats]]] = field(default_factory=list)
    """Objectives and centres of distinct partitions for each number of clusters, lowest first."""

    @classmethod
    def begin(cls, plan: Plan, operators: Operators) -> PathSearch:
        """Return a search with the partition into one cluster."""
        search = cls(plan, operators)
        search.offer(1, operators.settle_from(np.zeros((1, operators.rows.x.shape[1]))))
        return search

    @classmethod
    def of(cls, plan: Plan, operators: Operators, kept: Kept) -> PathSearch:
        length = len(kept.costs)
        partitions = [centers_in(kept.partitions, size + 1) for size in range(length)]
        search = cls(plan, operators, partitions, kept.costs.tolist(), *kept.tried.tolist())
        search.population = [[] for _ in range(length)]
        operators.n_settled, operators.n_steps = kept.n_settled, kept.n_steps
        sizes = kept.member_sizes.tolist()
        members = np.split(kept.members, np.cumsum(sizes)[:-1]) if sizes else []
        for size, cost, centers in zip(sizes, kept.member_costs.tolist(), members, strict=True):
            search.population[size - 1].append((cost, centers))
        return search

    def kept(self) -> Kept:
        members = [member for group in self.population for member in group]
        none = np.zeros((0, self.operators.rows.x.shape[1]))
        return Kept(
            packed(self.partitions),
            np.array(self.costs),
            np.array([self.changes, self.grown, self.shrunk], np.int64),
            np.concatenate([none, *(centers for _, centers in members)]),
            np.array([len(centers) for _, centers in members], np.int64),
            np.array([cost for cost, _ in members]),
            self.operators.n_settled,
            self.operators.n_steps,
        )

    @property
    def length(self) -> int:
        """Number of clusters of the largest partition found so far."""
        return len(self.costs)

    def run(self, piece: Piece, rng: Rng, step: int) -> None:
        stage = piece.stage.removeprefix("again ")
        for size in piece.sizes:
            if size > self.length + (stage == "up"):
                continue
            generator = rng.generator(step, piece.stage, size)
            if stage == "up":
                self._grow(size, generator)
            elif stage == "down":
                self._shrink(size)
            elif stage == "swaps":
                centers = self.partitions[size - 1]
                self.offer(size, self.operators.swap(centers, generator, self.plan.swaps))
            else:
                self._recombine(size, generator, piece.recombinations)

    def offer(self, size: int, partition: PartitionState | None) -> None:
        """Store a partition if no better one of its size is known."""
        if partition is None or len(partition.centers) != size:
            return
        self._add_member(size, partition)
        if size == self.length + 1:
            for values, first in ((self.changes, 0), (self.grown, -1), (self.shrunk, -1)):
                values.append(first)
            self.partitions.append(partition.centers)
            self.costs.append(partition.cost)
        elif partition.cost < self.costs[size - 1] * LOWER:
            self.partitions[size - 1], self.costs[size - 1] = partition.centers, partition.cost
            self.changes[size - 1] += 1

    def _add_member(self, size: int, partition: PartitionState) -> None:
        """Add a partition to the population unless it equals a member."""
        while len(self.population) < size:
            self.population.append([])
        members, cost = self.population[size - 1], partition.cost
        if all(abs(cost - other) > SAME * cost for other, _ in members):
            members.append((cost, partition.centers))
            members.sort(key=lambda member: member[0])
            del members[self.plan.members :]

    def _grow(self, size: int, generator: np.random.Generator) -> None:
        below, changes = self.partitions[size - 2], self.changes[size - 2]
        if size <= self.length and self.grown[size - 1] == changes:
            return
        drawn = self.plan.drawn
        self.offer(size, self.operators.grow(below, generator, drawn, GROWN, GROWN_STEPS))
        if size <= self.length:
            self.grown[size - 1] = changes

    def _shrink(self, size: int) -> None:
        if size >= self.length or self.shrunk[size - 1] == self.changes[size]:
            return
        self.shrunk[size - 1] = self.changes[size]
        self.offer(size, self.operators.shrink(self.partitions[size], DROPPED))

    def _recombine(self, size: int, generator: np.random.Generator, recombinations: int) -> None:
        """Try new starts, then recombine partitions until too many attempts fail in a row."""
        if size < 2:
            return
        plan, members = self.plan, self.population[size - 1]
        most_failures = max(LEAST_FAILURES, plan.failures * size) if plan.failures else np.inf
        for _ in range(min(plan.starts, recombinations)):
            self.offer(size, self.operators.start(size, generator))
        failed = 0
        for _ in range(recombinations):
            if len(members) < 2 or failed >= most_failures:
                break
            a, b = generator.choice(len(members), 2, replace=False)
            best = members[0][0]
            self.offer(size, self.operators.recombine(members[a][1], members[b][1], generator))
            failed = 0 if members[0][0] < best * LOWER else failed + 1
