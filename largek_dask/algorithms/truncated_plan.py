"""What the truncated search does next: a function of what its passes have gained so far.

Gain is what a pass takes off the cost, which exact sums give for free, or what a probe says that
it would take off; work is counted in distances. Neither knows a clock or a machine, so the same
data take the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["LENGTHS", "Outcome", "Plan", "Task"]

Kind = Literal["start", "cells", "lists", "all", "rest"]
Stage = Literal["first", "sample", "grow", "search", "round", "end"]

FEW = 128
"""Up to so many clusters rows meet all centres, which is no dearer than to meet lists."""
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
"""Of lists of centres, beside all of them."""
LONG, MOST_LISTED = 256, 1 << 24
"""Longer lists hold no more than so many centres together."""
FIRST_LENGTH = 32
ROWS_TO_MOVE = 32
"""Rows a centre of a sample that tells which centres to move."""
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
"""Of a round, and over a sample."""
MOST_REPLAYED = 48
"""Passes since the last anchor."""
LITTLE = 0.02
"""A round that lowers the cost by a smaller share, times ``tol``, counts as one that failed."""


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
    n_rows: int = 0
    """All there are."""
    n_clusters: int = 0
    stage: Stage = "sample"
    samples: tuple[int, ...] = ()
    """Rows of the present sample, and of those to come."""
    moves: bool = True
    tol: float = 1e-4
    """Times ``LITTLE`` the share of the cost that a round has to gain."""
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
        cls,
        moves: bool,
        rounds: int | None,
        length: int | None,
        n_rows: int,
        n_clusters: int,
        samples: tuple[int, ...] = (),
        *,
        guided: bool = True,
    ) -> Plan:
        """Before the first step.

        Parameters
        ----------
        moves : bool
        rounds, length : int or None
        n_rows, n_clusters : int
        samples : tuple of int
            Rows of the samples that the search begins on; none: on all rows.
        guided : bool
            Coarse cells tell where to look for the nearest centre of a row.
        """
        base = min(FIRST_LENGTH if length is None else length, n_clusters)
        plan = cls(
            Task("lists", False, base),
            n_rows,
            n_clusters,
            samples=samples,
            moves=moves,
            rounds=1_000 if rounds is None else rounds,
            length=length,
            base=base,
        )
        if not samples:
            return plan._grown("all" if plan.few or not guided else "cells")
        if plan.few:
            return replace(plan, task=plan._anew(samples[0]))
        if len(samples) > 1:
            return plan._to("first", Task("cells", False))
        return replace(plan, task=plan._begin(samples[0]))

    @property
    def few(self) -> bool:
        """Rows meet all centres in every pass."""
        return self.length is None and self.n_clusters <= FEW

    @property
    def opens_round(self) -> bool:
        """The next step is the first of a round: what it finds may have to be undone."""
        return self.stage == "round" and self.passes == 0

    @property
    def goes_on(self) -> bool:
        """The next step goes on with what the last one did to the same rows."""
        return self.stage in ("sample", "round") and self.passes > 0

    @property
    def most_moves(self) -> int:
        """Centres that may move at a time."""
        return max(1, int(self.share * self.n_clusters))

    def after(self, done: Outcome) -> tuple[Plan, bool]:
        """The plan after a step, and whether to go back to where the round began."""
        gain = self.cost - done.cost
        now = replace(self, cost=done.cost, passes=self.passes + 1, work=self.work + done.work)
        if self.task.looks:
            now = replace(now, found=done.n_moves)
        if self.task.everywhere and not done.cost > 0:
            return now._ended(), False
        match self.stage:
            case "first":
                larger = self.samples[1:]
                return replace(now._to("sample", self._begin(larger[0])), samples=larger), False
            case "sample":
                return now._sampled(gain, done), False
            case "grow":
                if self.task.looks:
                    return now._next_round(done), False
                return now._to("search", self._lists(True, looks=True)), False
            case "search":
                return now._search(done), False
            case _:
                return now._round(gain, done)

    def _lists(self, everywhere: bool, looks: bool = False) -> Task:
        return Task("lists", everywhere, self.base, looks)

    def _everything(self, everywhere: bool, looks: bool = False) -> Task:
        """All centres, for all rows."""
        return Task("all", everywhere, self.n_clusters, looks)

    def _sampled(self, gain: float, done: Outcome) -> Plan:
        """A pass over a sample has been done: another one over it, or over the next sample."""
        n, *larger = self.samples
        if self.task.kind == "cells":
            # Rows are somewhere now.
            return replace(self, task=self._lists(False, self._moving(n)))
        after = larger[0] if larger else self.n_rows
        # Means of more rows are nearer to those of all.
        hope = done.cost * self.n_clusters * (1 / n - 1 / after)
        known = self.passes > 1
        if self.passes < MOST_PASSES and (gain / n > 2 * hope / after if known else self.few):
            return replace(self, task=self._anew(n))
        if not larger:
            return self._grown("all" if self.few else "cells")
        return replace(self._to("sample", self._anew(after)), samples=tuple(larger))

    def _begin(self, n: int) -> Task:
        """The two-level start on a sample of n rows, and a pass over it."""
        return Task("start", False, self.base, self._moving(n))

    def _anew(self, n: int) -> Task:
        """A pass over a sample of n rows that asks nothing of what they were."""
        return self._everything(False, self._moving(n)) if self.few else Task("cells", False)

    def _moving(self, n: int) -> bool:
        """Whether a sample of n rows tells which centres to move."""
        return self.moves and n >= ROWS_TO_MOVE * self.n_clusters

    def _grown(self, kind: Kind) -> Plan:
        """On to all rows."""
        task = self._everything(True, self.few) if kind == "all" else Task(kind, True)
        return self._to("grow", task)

    def _to(self, stage: Stage, task: Task) -> Plan:
        """Begin a stage."""
        return replace(self, stage=stage, task=task, passes=0, work=0.0, begun=self.cost, gain=0.0)

    def _search(self, done: Outcome) -> Plan:
        """A look before the first round, or after one that was undone."""
        if self.task.looks:
            return self._next_round(done)
        return replace(self, task=self._look())

    def _look(self) -> Task:
        return self._everything(True, looks=True) if self.few else self._lists(True, looks=True)

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
            return replace(self, gain=gain, task=self._pass() if on else self._look()), False
        return self._judged(done)

    def _pass(self) -> Task:
        """A pass that leaves out what is settled."""
        return Task("rest", True, self.n_clusters) if self.few else self._lists(True)

    def _judged(self, done: Outcome) -> tuple[Plan, bool]:
        """After a round: go on from it, or go back to where it began."""
        n_rounds = self.n_rounds + 1
        kept = self.cost < self.begun
        failed = self.n_failed + (not self.begun - self.cost > LITTLE * self.tol * self.cost)
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
        settled = self.cost == self.begun and not done.n_moves and not max(done.curve, default=0)
        if failed >= FAILURES or n_rounds >= self.rounds or settled:
            return after._ended(), not kept
        if not kept:
            return after._to("search", self._look()), True
        return after._next_round(done), False

    def _next_round(self, done: Outcome) -> Plan:
        """Moves, and lists as long as pays."""
        if self.n_rounds >= self.rounds:
            return self._ended()
        if done.n_replayed > MOST_REPLAYED:
            # What was lost would take too long to make again: a pass that begins anew.
            return self._to("search", Task("all", True))
        if self.few:
            # Where centres are moved no row is settled.
            anew = self._everything(True) if done.n_moves else self._pass()
            return self._to("round", anew)
        k = self.n_clusters
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
            longest = max(LONG, MOST_LISTED // k)
            lengths = [n for n in gains if n >= base and (n <= longest or n >= k)]
        length = max(lengths, key=lambda length: (rate(length, base), -length))
        now = replace(self, base=min(base, k))
        return now._to("round", Task("rest" if length >= k else "lists", True, min(length, k)))

    def _ended(self) -> Plan:
        return self._to("end", Task("all", True))
