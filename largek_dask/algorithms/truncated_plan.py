"""What the truncated search does next: a function of what its passes have gained so far.

Gain is what a pass takes off the cost, which exact sums give for free, or what a probe says that
it would take off; work is counted in distances. Neither knows a clock or a machine, so the same
data take the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["LENGTHS", "Outcome", "Plan", "Task"]

Kind = Literal["cells", "lists", "all", "rest"]
Stage = Literal["sample", "grow", "search", "round", "end"]

LENGTHS = (16, 32, 64, 128, 256)
"""Of lists of centres, beside all of them."""
FIRST_LENGTH = 32
BASE = (32, 64)
"""Of the lists of most passes."""
ROW_WORK, PASS_WORK = 64.0, 8.0
"""What a row costs in a pass beside its distances, in distances: if it is looked at, and anyway
(measured)."""
LEAST = ((64, 1e-3), (128, 5e-4), (256, 2e-4))
"""Lists are at least so long once a round has lowered the cost by a smaller share: what short ones
lead to quickly is not where long ones end, and on data without structure much worse."""
STALE = 0.6
"""What a row is worth that goes to its nearest centre at last, beside one that goes there as its
centre moves: the former lowers the cost as it is counted here, and less so the true one."""
FIRST_SHARE, LEAST_SHARE = 0.1, 0.05
FIRST_FACTOR, LEAST_FACTOR = 1.0, 0.35
FAILURES = 5
HOPE = 0.7
"""How much less each pass gains than the one before, at best."""
MOST_PASSES = 12
"""Of a round."""
MOST_REPLAYED = 48
"""Passes since the last anchor."""
LITTLE = 2e-6
"""A round that lowers the cost by a smaller share counts as one that failed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One step."""

    kind: Kind
    everywhere: bool
    """On all rows, or on the sample."""
    length: int = 16
    """Of the lists."""
    looks: bool = False
    """Look at all rows, and choose moves and lists afterwards."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step has come to."""

    cost: float
    """After it, with the means of the rows as they are labelled now."""
    work: float
    """Distances computed, and what rows cost beside them."""
    n_changed: int
    n_clusters: int
    n_replayed: int = 0
    """Passes since the last anchor."""
    n_moves: int = 0
    """Moves that were chosen after it and may be carried out in the next step."""
    curve: tuple[float, ...] = ()
    """What a pass with lists of each of ``LENGTHS``, and one with all centres, would gain."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the search is."""

    task: Task
    """The next step."""
    stage: Stage = "sample"
    moves: bool = True
    rounds: int = 1_000
    """Rounds at most."""
    length: int | None = None
    """Of all lists, where the user has chosen."""
    base: int = FIRST_LENGTH
    """Of the lists of most passes."""
    share: float = FIRST_SHARE
    """Centres that may move at a time, as a share of all."""
    factor: float = FIRST_FACTOR
    """How many times a gain has to exceed the loss."""
    cost: float = float("inf")
    """After the last step."""
    passes: int = 0
    """Of the present stage."""
    work: float = 0.0
    """Of the present stage."""
    begun: float = float("inf")
    """Cost when the present stage began."""
    gain: float = 0.0
    """Of the pass before, in the present stage."""
    found: int = 1 << 30
    """Moves that were found last time."""
    least: int = 0
    """Length of lists that rounds of little gain have come to."""
    n_rounds: int = 0
    n_failed: int = 0

    @classmethod
    def first(
        cls, moves: bool, rounds: int | None, length: int | None, n_clusters: int, begins: str
    ) -> Plan:
        """Before the first step.

        ``begins``: on a "sample", or on all rows, which meet "cells" or "all" centres at first.
        """
        base = min(FIRST_LENGTH if length is None else length, n_clusters)
        sampled = begins == "sample"
        task = Task("lists", False, base, moves) if sampled else Task(begins, True)  # type: ignore[arg-type]
        stage: Stage = "sample" if sampled else "grow"
        return cls(task, stage, moves, 1_000 if rounds is None else rounds, length, base)

    @property
    def opens_round(self) -> bool:
        """The next step is the first of a round: what it finds may have to be undone."""
        return self.stage == "round" and self.passes == 0

    def most_moves(self, n_clusters: int) -> int:
        """Centres that may move at a time."""
        return max(1, int(self.share * n_clusters))

    def after(self, done: Outcome) -> tuple[Plan, bool]:
        """The plan after a step, and whether to go back to where the round began."""
        gain = self.cost - done.cost
        now = replace(self, cost=done.cost, passes=self.passes + 1, work=self.work + done.work)
        if self.task.looks:
            now = replace(now, found=done.n_moves)
        if self.task.everywhere and not done.cost > 0:
            return now._ended(), False
        match self.stage:
            case "sample":
                return now._to("grow", Task("cells", True)), False
            case "grow":
                return now._to("search", self._lists(True, looks=True)), False
            case "search":
                return now._search(done), False
            case _:
                return now._round(gain, done)

    def _lists(self, everywhere: bool, looks: bool = False) -> Task:
        return Task("lists", everywhere, self.base, looks)

    def _to(self, stage: Stage, task: Task) -> Plan:
        """Begin a stage."""
        return replace(self, stage=stage, task=task, passes=0, work=0.0, begun=self.cost, gain=0.0)

    def _search(self, done: Outcome) -> Plan:
        """A look before the first round, or after one that was undone."""
        if self.task.looks:
            return self._next_round(done)
        return replace(self, task=self._lists(True, looks=True))

    def _round(self, gain: float, done: Outcome) -> tuple[Plan, bool]:
        """A pass of a round has been done: moves first, a look at last."""
        if not self.task.looks:
            # The next pass will gain about so much less as this one did.
            ratio = min(0.9, max(0.3, gain / self.gain)) if self.gain > 0 else 0.5
            # What all further ones would gain together, if they are good ones.
            hope = max(HOPE, ratio)
            left = gain * hope / (1 - hope)
            if self.passes > 2 and self.cost - left >= self.begun:
                return self._judged(done)
            average = (self.begun - self.cost) / self.work
            on = self.passes < MOST_PASSES and (
                self.passes < 2 or (ratio * gain / done.work > average and done.n_changed > 0)
            )
            return replace(self, gain=gain, task=self._lists(True, looks=not on)), False
        return self._judged(done)

    def _judged(self, done: Outcome) -> tuple[Plan, bool]:
        """After a round: go on from it, or go back to where it began."""
        n_rounds = self.n_rounds + 1
        kept = self.cost < self.begun
        failed = self.n_failed + (not self.begun - self.cost > LITTLE * self.cost)
        share = (self.begun - self.cost) / self.cost if kept else 0.0
        longer = [n for n, below in LEAST if share < below]
        if not kept:
            # It may also have been too many moves: one step is enough.
            longer = [n for n in longer if n > self.base][:1]
        after = replace(self, n_rounds=n_rounds, n_failed=failed, least=max([self.least, *longer]))
        if not kept:
            after = replace(
                after, cost=self.begun, share=self.share / 2, factor=min(1.0, self.factor * 1.1)
            )
        elif failed == self.n_failed:
            after = replace(
                after,
                share=max(min(self.share, LEAST_SHARE), self.share * 0.8),
                factor=max(min(self.factor, LEAST_FACTOR), self.factor * 0.85),
            )
        settled = self.cost == self.begun and not done.n_moves and not max(done.curve, default=1)
        if failed >= FAILURES or n_rounds >= self.rounds or settled:
            return after._ended(), not kept
        if not kept:
            return after._to("search", self._lists(True, looks=True)), True
        return after._next_round(done), False

    def _next_round(self, done: Outcome) -> Plan:
        """Moves, and lists as long as pays."""
        if self.n_rounds >= self.rounds:
            return self._ended()
        if done.n_replayed > MOST_REPLAYED:
            # What was lost would take too long to make again: a pass that begins anew.
            return self._to("search", Task("all", True))
        k = done.n_clusters
        gains = dict(zip((*LENGTHS, k), done.curve, strict=True))

        def rate(length: int, base: int | None = None) -> float:
            """Gain for work; what lists longer than ``base`` gain beside is stale."""
            gain = max((gains[n] for n in gains if n <= length), default=0.0)
            if base is not None:
                fresh = max((gains[n] for n in gains if n <= base), default=0.0)
                gain = fresh + STALE * (gain - fresh)
            return gain / (length + ROW_WORK)

        base, lengths = self.base, [self.base, k]
        if self.length is None:
            base = max(self.least, max(BASE, key=lambda length: (rate(length), -length)))
            lengths = [length for length in gains if length >= base]
        length = max(lengths, key=lambda length: (rate(length, base), -length))
        now = replace(self, base=min(base, k))
        return now._to("round", Task("rest" if length >= k else "lists", True, min(length, k)))

    def _ended(self) -> Plan:
        return self._to("end", Task("all", True))
