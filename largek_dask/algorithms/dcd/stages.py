"""Order of the search: which partitions are made of which.

A search is a sequence of stages, and a stage a sequence of pieces of work, after any of which a
fit can stop and continue:

up
    From l - 1 to l clusters (Algorithm 7.1 of N. Karmitsa, A. Bagirov, S. Taheri), beyond the
    requested number.
down
    From l + 1 to l: a cluster that is hardly missed is left out. Of all stages the one that lowers
    most for its work.
again
    A partition that has become lower makes its two neighbours due again, up and down, until none
    is, or for ``rounds`` rounds.
swaps
    A random centre out, a far row in.
crossed
    Recombination within the population of each number of clusters: greedy k-means++ starts, and
    what all stages have left.

The length of each is counted in partitions, never in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.choices import Effort
from largek_dask.algorithms.dcd.search import LOWER, Search
from largek_dask.algorithms.path_arrays import centers_in, packed
from largek_dask.kernels.descent import PartitionState

__all__ = ["PLANS", "STAGES", "Book", "Kept", "Piece", "Plan", "pieces"]

Floats = NDArray[np.float64]

STAGES = ("up", "down", "swaps", "crossed")
MOST_LABELS = 1_600_000_000
"""Maximum of recombinations times clusters times rows: a minute or so."""
LEAST_FAILURES = 24
"""Minimum recombinations in a row that may fail, however few clusters there are."""
SAME = 1e-7
"""Objectives that differ by less than this share are those of one partition."""
PIECES = 24
"""Approximate maximum of pieces of a stage, for any number of clusters."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Extent of each stage."""

    down: bool = True
    rounds: int = 0
    """Rounds of the stage "again"."""
    swaps: int = 0
    """Tries for each number of clusters."""
    members: int = 0
    """Largest population of a number of clusters; 0: none is kept, and none is crossed."""
    fresh: int = 0
    """Greedy k-means++ starts that enter it."""
    crossings: int = 0
    """Maximum recombinations for one number of clusters; if all have them, times the clusters
    and added up over all numbers."""
    failures: int = 0
    """Failed recombinations in a row, per cluster, after which there are no more; 0: all are
    made."""
    crosses_all: bool = False
    """Recombine at every number of clusters; otherwise only at the requested one."""
    drawn: int = 100
    """Rows that are candidates for one more centre."""
    kept: int = 2
    """Candidates that become partitions."""
    steps: int = 2
    """Steps of the auxiliary problem."""
    left_out: int = 2
    """Clusters whose removal is tried."""
    work: int = 60
    """Approximate cost of a number of clusters, in labellings of all rows (measured), for plans."""


PLANS: dict[Effort, Plan] = {
    "fast": Plan(down=False),
    "balanced": Plan(rounds=1, members=8, fresh=4, crossings=15, work=130),
    "best": Plan(
        rounds=1,
        members=10,
        fresh=6,
        crossings=35_000,
        failures=3,
        crosses_all=True,
        swaps=6,
        work=1500,
    ),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a stage."""

    stage: str
    sizes: tuple[int, ...]
    """Numbers of clusters, in order of work."""
    crossings: int = 0
    """Maximum recombinations for each."""


def pieces(plan: Plan, length: int, wanted: int, n_rows: int) -> Iterator[Piece]:
    """Yield all work of a search, piece by piece.

    Parameters
    ----------
    plan : Plan
    length : int
        Clusters of the last partition that is searched.
    wanted : int
        Clusters of the last requested one, at most ``length``.
    n_rows : int
        Rows that are searched.
    """
    rising, falling = range(2, length + 1), range(length, 1, -1)
    yield from _cut("up", rising)
    if plan.down:
        yield from _cut("down", falling[1:])
    for _ in range(plan.rounds):
        yield from _round(rising, falling)
    if plan.swaps:
        yield from _cut("swaps", falling)
        yield from _round(rising, falling)
    if plan.members:
        sizes, crossings = range(wanted, wanted - 1, -1), plan.crossings
        if plan.crosses_all:
            sizes = range(wanted, 1, -1)
            most = min(plan.crossings, MOST_LABELS // n_rows)
            crossings = most // max(1, sum(sizes))
        yield from _cut("crossed", sizes, crossings)
        yield from _round(rising, falling)


def _round(rising: range, falling: range) -> Iterator[Piece]:
    yield Piece("again up", tuple(rising))
    yield Piece("again down", tuple(falling[1:]))


def _cut(stage: str, sizes: range, crossings: int = 0) -> Iterator[Piece]:
    each = max(1, -(-len(sizes) // PIECES))
    for begin in range(0, len(sizes), each):
        yield Piece(stage, tuple(sizes[begin : begin + each]), crossings)


@dataclass(frozen=True, slots=True)
class Kept:
    """A book as arrays, between two pieces of work."""

    partitions: Floats
    """(l (l + 1) / 2, d) packed centres."""
    costs: Floats
    """(l,) objectives."""
    tried: NDArray[np.int64]
    """(3, l) ``changes``, ``grown`` and ``shrunk`` of the book."""
    members: Floats
    """Packed centres of all populations."""
    member_sizes: NDArray[np.int64]
    """Clusters of each member."""
    member_costs: Floats
    """Objective of each."""
    n_settled: int
    """Number of partitions that were settled, or abandoned."""
    n_steps: int
    """Number of Lloyd steps."""
    is_searched: bool = True
    """Partitions are not known to be optimal, so there may be lower ones."""

    @classmethod
    def nothing(cls, d: int) -> Kept:
        """Return a state without partitions."""
        return cls.solved(np.zeros((0, d)), np.zeros(0), is_searched=True)

    @classmethod
    def solved(cls, partitions: Floats, costs: Floats, *, is_searched: bool = False) -> Kept:
        """Return partitions on which nothing has been tried yet."""
        tried = np.full((3, len(costs)), -1, np.int64)
        none, sizes = np.zeros((0, partitions.shape[1])), np.zeros(0, np.int64)
        return cls(partitions, costs, tried, none, sizes, np.zeros(0), 0, 0, is_searched)


@dataclass(slots=True)
class Book:
    """All partitions found by a search, and the attempts made.

    Lists are indexed by the number of clusters less one.
    """

    plan: Plan
    search: Search
    partitions: list[Floats]
    """Centres (l, d)."""
    costs: list[float]
    changes: list[int]
    """Times that each partition was improved."""
    grown: list[int]
    """``changes`` of the partition below when it was last grown; -1: never."""
    shrunk: list[int]
    """``changes`` of the partition above when it was last shrunk; -1: never."""
    population: list[list[tuple[float, Floats]]] = field(default_factory=list)
    """Objectives and centres of different partitions, the lowest first."""

    @classmethod
    def begin(cls, plan: Plan, search: Search) -> Book:
        """Return a book with one cluster, which is its own centre."""
        book = cls(plan, search, [], [], [], [], [])
        one = search.settled_from(np.zeros((1, search.rows.x.shape[1])))
        assert one is not None
        book.offer(1, one)
        return book

    @classmethod
    def of(cls, plan: Plan, search: Search, kept: Kept) -> Book:
        """Return a book that continues from arrays."""
        length = len(kept.costs)
        book = cls(
            plan,
            search,
            [centers_in(kept.partitions, size + 1) for size in range(length)],
            kept.costs.tolist(),
            kept.tried[0].tolist(),
            kept.tried[1].tolist(),
            kept.tried[2].tolist(),
            [[] for _ in range(length)],
        )
        search.n_settled, search.n_steps = kept.n_settled, kept.n_steps
        ends = np.cumsum(kept.member_sizes).tolist()
        for size, cost, end in zip(
            kept.member_sizes.tolist(), kept.member_costs.tolist(), ends, strict=True
        ):
            book.population[size - 1].append((cost, kept.members[end - size : end]))
        return book

    def kept(self) -> Kept:
        """Return all of it as arrays."""
        members = [member for group in self.population for member in group]
        none = np.zeros((0, self.search.rows.x.shape[1]))
        return Kept(
            packed(self.partitions),
            np.array(self.costs),
            np.array([self.changes, self.grown, self.shrunk], np.int64),
            np.concatenate([none, *(centers for _, centers in members)]),
            np.array([len(centers) for _, centers in members], np.int64),
            np.array([cost for cost, _ in members]),
            self.search.n_settled,
            self.search.n_steps,
        )

    @property
    def length(self) -> int:
        """Clusters of the last partition found so far; all below exist."""
        return len(self.costs)

    def work(self, piece: Piece, rng: Rng, step: int) -> None:
        """Carry out a piece of work."""
        for size in piece.sizes:
            if size > self.length + (piece.stage in ("up", "again up")):
                continue
            generator = rng.generator(step, piece.stage, size)
            if piece.stage in ("up", "again up"):
                self._grow(size, generator)
            elif piece.stage in ("down", "again down"):
                self._shrink(size)
            elif piece.stage == "swaps":
                self._swap(size, generator)
            else:
                self._cross(size, generator, piece.crossings)

    def offer(self, size: int, found: PartitionState | None) -> bool:
        """Keep a partition if it is the lowest of its size; return whether it is."""
        if found is None or len(found.centers) != size:
            return False
        self._remember(size, found)
        if size == self.length + 1:
            for values, first in ((self.changes, 0), (self.grown, -1), (self.shrunk, -1)):
                values.append(first)
            self.partitions.append(found.centers)
            self.costs.append(found.cost)
            return True
        if not found.cost < self.costs[size - 1] * LOWER:
            return False
        self.partitions[size - 1], self.costs[size - 1] = found.centers, found.cost
        self.changes[size - 1] += 1
        return True

    def _remember(self, size: int, found: PartitionState) -> None:
        """Let a partition enter the population of its size, if it differs from all in it."""
        while len(self.population) < size:
            self.population.append([])
        members = self.population[size - 1]
        if all(abs(found.cost - cost) > SAME * found.cost for cost, _ in members):
            members.append((found.cost, found.centers))
            members.sort(key=lambda member: member[0])
            del members[self.plan.members :]

    def _grow(self, size: int, generator: np.random.Generator) -> None:
        plan, below, changes = self.plan, self.partitions[size - 2], self.changes[size - 2]
        if size <= self.length and self.grown[size - 1] == changes:
            return
        self.offer(size, self.search.grow(below, generator, plan.drawn, plan.kept, plan.steps))
        if size <= self.length:
            self.grown[size - 1] = changes

    def _shrink(self, size: int) -> None:
        if size >= self.length or self.shrunk[size - 1] == self.changes[size]:
            return
        self.shrunk[size - 1] = self.changes[size]
        self.offer(size, self.search.shrink(self.partitions[size], self.plan.left_out))

    def _swap(self, size: int, generator: np.random.Generator) -> None:
        centers = self.partitions[size - 1]
        self.offer(size, self.search.swap(centers, generator, self.plan.swaps))

    def _cross(self, size: int, generator: np.random.Generator, crossings: int) -> None:
        """Try fresh starts, then recombinations until they have failed for long or very long."""
        plan, members = self.plan, self.population[size - 1]
        if size < 2:
            return
        for _ in range(min(plan.fresh, crossings)):
            self.offer(size, self.search.fresh(size, generator))
        failed = 0
        for _ in range(crossings):
            if len(members) < 2 or (
                plan.failures and failed >= max(LEAST_FAILURES, plan.failures * size)
            ):
                break
            a, b = generator.choice(len(members), 2, replace=False)
            best = members[0][0]
            found = self.search.recombine(members[a][1], members[b][1], generator)
            self.offer(size, found)
            failed = 0 if members[0][0] < best * LOWER else failed + 1
