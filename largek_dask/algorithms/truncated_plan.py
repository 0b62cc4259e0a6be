"""What the truncated search does next: a function of what its passes have gained so far.

Gain is what a pass takes off the cost, which exact sums give for free; work is counted in
distances. Neither knows a clock or a machine, so the same data take the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["Outcome", "Plan", "Task"]

Kind = Literal["cells", "lists", "all", "rest"]

FIRST_LENGTH = 16
LONG = 32
PASS_WORK = 8.0
"""What a row costs in a pass beside its distances, in distances."""
FIRST_SHARE, ROUND_SHARE = 0.1, 0.05
FAILURES = 5


@dataclass(frozen=True, slots=True)
class Task:
    """One step."""

    kind: Kind
    everywhere: bool
    """On all rows, or on the sample."""
    length: int = FIRST_LENGTH
    """Of the lists."""
    looks: bool = False
    """Look at all rows, and choose moves afterwards."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step has come to."""

    cost: float
    """After it, with the means of the rows as they are labelled now."""
    work: float
    """Distances computed, and what rows cost beside them."""
    n_rows: int
    n_changed: int
    n_moves: int
    """Moves that were chosen after it and are carried out in the next step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the search is."""

    task: Task
    """The next step."""
    stage: Literal["start", "sample", "grow", "search", "round", "full", "end"] = "start"
    moves: bool = True
    rounds: int = 1_000
    """Rounds at most."""
    share: float = FIRST_SHARE
    """Centres that may move at a time, as a share of all."""
    factor: float = 1.0
    """How many times a gain has to exceed the loss."""
    cost: float = float("inf")
    """After the last step."""
    passes: int = 0
    """Of the present round."""
    work: float = 0.0
    """Of the present round."""
    begun: float = float("inf")
    """Cost when the present round began."""
    n_rounds: int = 0
    n_failed: int = 0
    since_full: int = 0
    """Rounds since the last full pass."""

    @classmethod
    def first(cls, moves: bool, rounds: int | None, sampled: bool) -> Plan:
        """Before the first step; on a sample, or on all rows."""
        task = Task("cells", False) if sampled else Task("all", True)
        return cls(
            task, "start" if sampled else "grow", moves, 1_000 if rounds is None else rounds
        )

    @property
    def in_round(self) -> bool:
        """Moves are being tried: what is kept of the rows before must be."""
        return self.stage == "round"

    def after(self, done: Outcome) -> tuple[Plan, bool]:
        """The plan after a step, and whether to go back to where the round began."""
        gain = self.cost - done.cost
        now = replace(self, cost=done.cost, passes=self.passes + 1, work=self.work + done.work)
        if self.stage == "start":
            return now._to("sample", Task("lists", False, looks=self.moves)), False
        if self.stage == "sample":
            return now._to("grow", Task("cells", True)), False
        if self.stage == "grow":
            return now._to("search", Task("lists", True)), False
        if self.stage == "search":
            return now._next_look(1, done), False
        if self.stage == "full":
            return now._to("search", Task("lists", True, LONG, looks=self.moves)), False
        return now._round(gain, done)

    def _to(self, stage: str, task: Task) -> Plan:
        return replace(
            self, stage=stage, task=task, passes=0, work=0.0, begun=self.cost  # type: ignore[arg-type]
        )

    def _next_look(self, after: int, done: Outcome) -> Plan:
        """Passes of a search without moves, the last of which looks for them."""
        if self.task.looks:
            if done.n_moves:
                return self._to("round", replace(self.task, length=LONG, looks=False))
            return self._ended()
        return replace(self, task=replace(self.task, looks=self.passes >= after and self.moves))

    def _round(self, gain: float, done: Outcome) -> tuple[Plan, bool]:
        if not self.task.looks:
            left = 4 if self.n_rounds > 2 else 2
            return replace(self, task=replace(self.task, looks=self.passes >= left)), False
        n_rounds = self.n_rounds + 1
        if not self.cost < self.begun:
            failed = self.n_failed + 1
            again = replace(
                self, cost=self.begun, n_rounds=n_rounds, n_failed=failed, share=self.share / 2,
                factor=min(1.0, self.factor * 1.1), since_full=self.since_full + 1,
            )  # fmt: skip
            if failed >= FAILURES:
                return again._ended(), True
            return again._to("search", Task("lists", True, LONG, looks=True)), True
        kept = replace(self, n_rounds=n_rounds, since_full=self.since_full + 1)
        if n_rounds >= 3:
            kept = replace(kept, share=min(self.share, ROUND_SHARE), factor=0.7 if n_rounds < 5 else .5)
        if n_rounds >= self.rounds or not done.n_moves:
            return kept._ended(), False
        if kept.since_full >= (3 if n_rounds < 4 else 4):
            kept = replace(kept, since_full=0)
            return kept._to("full", Task("rest", True)), False
        return kept._to("round", replace(self.task, looks=False)), False

    def _ended(self) -> Plan:
        return self._to("end", Task("all", True))
