"""What the truncated search does next: a function of what its passes have gained so far.

Gain is what a pass takes off the cost, which exact sums give for free, or what a probe says that
it would take off; work is counted in distances. Neither knows a clock or a machine, so the same
data take the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["LENGTHS", "Outcome", "Plan", "Task", "is_restarted", "sample_sizes"]

Kind = Literal["start", "cells", "lists", "all", "rest"]
Stage = Literal["first", "sample", "grow", "search", "round", "end"]

FIRST_ROWS, START_ROWS = 8, 32
"""Rows a centre of the sample that gives the first centres, and of the one to go on from."""
GROWTH = 4
"""Further samples are so many times as large as the one before."""
LARGEST_SHARE = 3
"""A sample has at most one row out of so many."""
START_VALUES, LARGEST_VALUES = 1 << 25, 1 << 26
"""Values (rows times features) of the sample to go on from, at most, and of further ones."""
LEAST_ROWS = 4
"""Rows a centre of any sample, however many values that are."""
WHOLE_VALUES = 1 << 27
"""Values up to which few rows a centre are all taken."""
RESTARTED = 32
"""Up to so many clusters the best of several starts is taken, ..."""
RESTART_ROWS, LEAST_RESTART_ROWS = 64, 2_048
"""... on so many rows a centre, and at least so many."""
FEW = 128
"""Up to so many clusters rows meet all centres, which is no dearer than to meet lists."""
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
"""Of lists of centres, beside all of them."""
LONG, MOST_LISTED = 256, 1 << 23
"""Longer lists hold no more than so many centres together."""
FIRST_LENGTH = 32
ROWS_TO_MOVE = 32
"""Rows a centre of a sample that tells which centres to move."""
ROWS_TO_SEARCH = 64
"""Rows a centre of a sample that is searched in rounds, as all rows are, before more are taken."""
MOST_STRAYS = 0.05
"""Rows that would cost so much more if coarse cells led them to their centres meet all centres."""
MOST_UNDONE = 3
"""Rounds over a sample that are undone until more rows are taken."""
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


def is_restarted(k: int) -> bool:
    """Whether there are so few clusters that the best of several starts is taken."""
    return k <= RESTARTED


def sample_sizes(n_rows: int, n_features: int, k: int) -> tuple[int, ...]:
    """Rows of the samples that the search begins on, in ascending order; at least one."""
    restarted = is_restarted(k)
    first = max(RESTART_ROWS * k, LEAST_RESTART_ROWS) if restarted else FIRST_ROWS * k
    if n_rows <= LARGEST_SHARE * first and n_rows * n_features <= WHOLE_VALUES:
        return (n_rows,)
    most = n_rows // LARGEST_SHARE
    wanted = first if restarted else START_ROWS * k
    sizes = [min(wanted, most, max(LEAST_ROWS * k, START_VALUES // n_features))]
    while GROWTH * sizes[-1] <= min(most, LARGEST_VALUES // n_features):
        sizes.append(GROWTH * sizes[-1])
    return (first, *sizes) if GROWTH * first <= sizes[0] else tuple(sizes)


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
    strays: float = 0.0
    """By what share rows would cost more had they been led to their centres by coarse cells."""
    anew: int = 0
    """Rows of a sample to begin anew on, since the one so far did not hold those that count."""


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
    """Rows of the present sample, and of those to come; none: all rows."""
    moves: bool = True
    tol: float = 1e-4
    """Times ``LITTLE`` the share of the cost that a round has to gain."""
    rounds: int = 1_000
    """Rounds over all rows at most."""
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
    """Over the present rows; so are those that failed, and those that were undone."""
    n_failed: int = 0
    n_undone: int = 0
    strays: float = 0.0
    """Of the present sample; see :class:`Outcome`."""
    holds: bool = False
    """The next step looks where rows that have been added belong, and leaves centres where they
    are: means of rows that are there roughly would be worse."""
    again: bool = False
    """The next step begins with new centres, made from its sample."""

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
    def everywhere(self) -> bool:
        """The search has come to all rows."""
        return not self.samples

    @property
    def searched(self) -> bool:
        """Rounds are made over the present rows, a sample or all of them."""
        return self.everywhere or (
            self.rounds > 0 and self.samples[0] >= ROWS_TO_SEARCH * self.n_clusters
        )

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
        now = replace(
            self,
            cost=done.cost,
            passes=self.passes + 1,
            work=self.work + done.work,
            holds=False,
            again=False,
        )
        if self.task.looks:
            now = replace(now, found=done.n_moves, strays=done.strays)
        if self.task.everywhere and not done.cost > 0:
            return now._ended(), False
        match self.stage:
            case "first":
                larger = self.samples[1:]
                return replace(now._to("sample", self._begin(larger[0])), samples=larger), False
            case "sample":
                return now._sampled(gain, done), False
            case "grow":
                if done.anew:
                    begins = replace(now, samples=(done.anew,), again=True)
                    return begins._to("sample", begins._anew(done.anew)), False
                if self.task.looks:
                    return now._next_round(done), False
                return now._to("search", self._look()), False
            case "search":
                return now._search(done), False
            case _:
                return now._round(gain, done)

    def _lists(self, looks: bool = False) -> Task:
        return Task("lists", self.everywhere, self.base, looks)

    def _everything(self, looks: bool = False) -> Task:
        """All centres, for all rows."""
        return Task("all", self.everywhere, self.n_clusters, looks)

    def _sampled(self, gain: float, done: Outcome) -> Plan:
        """A pass over a sample has been done: another one, or rounds, or the next sample."""
        n = self.samples[0]
        if self.task.kind == "cells":
            # Rows are somewhere now.
            return replace(self, task=self._lists(self._moving(n)))
        if self.searched:
            if self.task.kind == "start":
                # What that has left of the rows is nothing that passes could make again.
                return replace(self, task=self._anew(n))
            return self._next_round(done) if self.task.looks else self._to("search", self._look())
        hope, after = self._hope()
        known = self.passes > 1
        if self.passes < MOST_PASSES and (gain / n > 2 * hope / after if known else self.few):
            return replace(self, task=self._anew(n))
        return self._larger()

    def _hope(self) -> tuple[float, int]:
        """What the means of more rows are nearer to those of all, and how many come next."""
        n, *larger = self.samples
        after = larger[0] if larger else self.n_rows
        return self.cost * self.n_clusters * (1 / n - 1 / after), after

    def _larger(self) -> Plan:
        """On to the next sample, or to all rows."""
        exact, larger = self._exact, self.samples[1:]
        now = replace(
            self,
            samples=larger,
            share=max(self.share, LEAST_SHARE),
            holds=self.searched and not exact,
            least=0,
            n_rounds=0,
            n_failed=0,
            n_undone=0,
        )
        if not larger:
            return now._grown("all" if exact else "cells")
        everything = exact and not self.few
        return now._to("sample", now._everything() if everything else now._anew(larger[0]))

    def _begin(self, n: int) -> Task:
        """The two-level start on a sample of n rows, and a pass over it."""
        return Task("start", False, self.base, self._moving(n))

    def _anew(self, n: int) -> Task:
        """A pass over a sample of n rows that asks nothing of what they were."""
        return self._everything(self._moving(n)) if self.few else Task("cells", False)

    def _moving(self, n: int) -> bool:
        """Whether a sample of n rows tells which centres to move."""
        return self.moves and n >= ROWS_TO_MOVE * self.n_clusters

    def _grown(self, kind: Kind) -> Plan:
        """On to all rows."""
        now = replace(self, samples=())
        return now._to("grow", now._everything(self.few) if kind == "all" else Task(kind, True))

    def _to(self, stage: Stage, task: Task) -> Plan:
        """Begin a stage."""
        return replace(self, stage=stage, task=task, passes=0, work=0.0, begun=self.cost, gain=0.0)

    def _search(self, done: Outcome) -> Plan:
        """A look before the first round, or after one that was undone."""
        if self.task.looks:
            return self._next_round(done)
        return replace(self, task=self._look())

    def _look(self) -> Task:
        return self._everything(looks=True) if self.few else self._lists(looks=True)

    def _round(self, gain: float, done: Outcome) -> tuple[Plan, bool]:
        """A pass of a round has been done: moves first, a look at last."""
        if not self.task.looks:
            # The next pass will gain about so much less as this one did.
            ratio = min(0.9, max(0.3, gain / self.gain)) if self.gain > 0 else 0.5
            # What all further ones would gain together, if they are good ones; a pass that has
            # raised the cost says that they will not.
            hope = max(HOPE, ratio)
            left = max(0.0, gain * hope / (1 - hope))
            if self.passes > 2 and self.cost - left > self.begun:
                # It will be undone, and needs no look: that is for rounds that may be kept.
                return self._judged(done)
            average = (self.begun - self.cost) / self.work
            on = self.passes < MOST_PASSES and (
                self.passes < 2 or (ratio * gain / done.work > average and done.n_changed > 0)
            )
            return replace(self, gain=gain, task=self._pass() if on else self._look()), False
        return self._judged(done)

    def _pass(self) -> Task:
        """A pass that leaves out what is settled."""
        if self.few:
            return Task("rest", self.everywhere, self.n_clusters)
        return self._lists()

    def _judged(self, done: Outcome) -> tuple[Plan, bool]:
        """After a round: go on from it, or go back to where it began."""
        n_rounds = self.n_rounds + 1
        kept = self.cost < self.begun
        failed = self.n_failed + (not self.begun - self.cost > LITTLE * self.tol * self.cost)
        gained = max(0.0, self.begun - self.cost)
        longer = [n for n, below in LEAST if gained < below * self.cost]
        if not kept:
            # It may also have been too many moves: one step is enough.
            longer = [n for n in longer if n > self.base][:1]
        after = replace(self, n_rounds=n_rounds, n_failed=failed, least=max([self.least, *longer]))
        if not kept:
            after = replace(
                after,
                cost=self.begun,
                share=self.share / 2,
                factor=min(1.0, self.factor * 1.1),
                n_undone=self.n_undone + 1,
            )
        elif failed == self.n_failed:
            after = replace(
                after,
                share=max(min(self.share, LEAST_SHARE), self.share * 0.8),
                factor=max(min(self.factor, LEAST_FACTOR), self.factor * 0.85),
            )
        settled = self.cost == self.begun and not done.n_moves and not max(done.curve, default=0)
        ends = failed >= FAILURES or settled
        if self.everywhere:
            if ends or n_rounds >= self.rounds:
                return after._ended(), not kept
        elif ends or done.n_replayed > MOST_REPLAYED or self._outgrown(after.n_undone, kept):
            return after._larger(), not kept
        if not kept:
            return after._to("search", self._look()), True
        return after._next_round(done), False

    @property
    def _exact(self) -> bool:
        """Whether rows of a larger sample meet all centres first: no others lead them to theirs."""
        return self.few or (self.stage == "round" and self.strays > MOST_STRAYS)

    def _outgrown(self, n_undone: int, kept: bool) -> bool:
        """After a round over a sample: more rows would gain more for the work."""
        if not kept:
            return n_undone >= MOST_UNDONE
        hope, after = self._hope()
        a_row = (self.n_clusters if self._exact else 2 * self.base) + ROW_WORK + PASS_WORK
        return (self.begun - self.cost) / self.work <= hope / (after * a_row)

    def _next_round(self, done: Outcome) -> Plan:
        """Moves, and lists as long as pays."""
        if self.everywhere and self.n_rounds >= self.rounds:
            return self._ended()
        if done.n_replayed > MOST_REPLAYED:
            # What was lost would take too long to make again: a pass that begins anew.
            return self._to("search", self._everything())
        if self.few:
            # Where centres are moved no row is settled.
            anew = self._everything() if done.n_moves else self._pass()
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
        kind: Kind = "rest" if length >= k else "lists"
        return now._to("round", Task(kind, self.everywhere, min(length, k)))

    def _ended(self) -> Plan:
        return self._to("end", Task("all", True))
