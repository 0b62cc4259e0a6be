"""Schedule of the truncated search: a function of what its passes have gained so far.

The gain of a pass is what it takes off the cost, which exact sums give for free, or a probe's
estimate of that; work is counted in distances. Neither depends on a clock or a machine, so the same
data take the same way everywhere.

:func:`first_schedule` begins a search, and :func:`next_step` leads from each step to the next one.
Decisions come in three groups: *samples*, the rows a search begins on and when it continues on more
of them; *rounds*, when passes after some moves end, and when the moves are undone; and *lengths* of
the lists of centres that rows meet.

Each constant was halved and doubled, and the decisions of 2,741 steps were made again (three seeds
on A, B, plane, gaussian, mnist, sift200k, glove100k and reuters, with 50 to 500 clusters). None
changed more than 15 % of them; most changed less than 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["start", "cells", "lists", "all", "unsettled"]
StageName = Literal["first", "sample", "grow", "search", "round", "end"]

# Samples.
FIRST_ROWS = 16
"""Rows per centre of the sample that gives the first centres. With 8 the first model is too rough:
on sift200k mini-batches reached its energy in half the time (``benchmarks.auto``)."""
START_ROWS = 32
"""Rows per centre of the sample to continue from."""
RESTART_ROWS = 64
"""Rows per centre on which several starts are made, and any start of sparse rows: 200,000 short
texts in 100 clusters end 0.5 % higher from 8 rows per centre."""
GROWTH = 4
"""Ratio of the sizes of successive samples."""
LARGEST_SHARE = 3
"""A sample has at most one row out of three."""
START_VALUES, LARGEST_VALUES, WHOLE_VALUES = 1 << 25, 1 << 26, 1 << 27
"""Maximum values (rows times features) of the sample to continue from; of further ones, which are
searched in the driver's process alone; and of few rows per centre that are all taken."""
ROWS_TO_SEARCH = 64
"""Rows per centre of a sample that is searched in rounds before more rows are taken. Without that,
B in 1,000 clusters takes 2.37 s instead of 1.66 s until 0.2 % above the lowest cost
(``benchmarks.auto_parts``), and a stored table is read 79 times instead of once until 0.5 %
(``benchmarks.auto_scale``)."""
RESTARTED_CLUSTERS = 32
"""Clusters up to which the best of several starts is taken."""
DENSE_CLUSTERS = 128
"""Clusters up to which rows meet all centres. With lists, uniform rows in 100 clusters take 0.90 s
instead of 0.63 s until 0.2 % above the lowest cost (``benchmarks.auto_parts``)."""
MOST_MET = 0.5
"""Share of the centres met by coarse cells above which rows meet all centres instead: that takes as
long, as all centres are not gathered."""
WHOLE_CLUSTERS = 2_048
"""Clusters up to which rows meet all centres when a search in few directions continues in more
of them. Led by coarse cells, 3,000,000 × 256 rows in 1,000 clusters cost 19 % more than before and
needed 40 CPU seconds to recover (one run)."""

# Work, in distances.
ROW_WORK = 64.0
"""Cost of a row that is searched, besides its distances."""
PASS_WORK = 8.0
"""Cost of a row in any pass."""

# Rounds.
MOST_ROUNDS = 1_000
"""Maximum rounds over all rows, unless the user has chosen."""
FIRST_SHARE, LEAST_SHARE = 0.1, 0.05
"""Centres that may move at a time, as a share of all: at first, and at least while rounds pay."""
FIRST_FACTOR, LEAST_FACTOR = 1.0, 0.35
"""Factor by which a gain has to exceed the loss: at first, and at least while rounds pay. Below 1,
with rounds undone if they do not pay, final costs are lowest."""
MOST_FAILED = 5
"""Failed rounds after which the search ends."""
LEAST_PASSES, MOST_PASSES = 2, 12
"""Minimum and maximum passes of a round before its probe."""
MOST_REPLAYED = 48
"""Passes since the last anchor with which a round may begin: all of them are repeated for rows
whose state is lost."""

# Lengths of lists.
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
"""Lengths of lists of centres; a row may also meet all of them."""
USUAL_LENGTHS = (32, 64)
"""Lengths of the lists of most passes."""
LEAST_LENGTHS = ((64, 1e-3), (128, 5e-4), (256, 2e-4))
"""Minimum lengths of lists once a round lowers the cost by less than a share: where short lists
lead quickly is not where long ones end. Without it, rows without structure end 0.16 % instead of
0.03 % above the lowest (``benchmarks.auto_parts``)."""
LONG, MOST_LISTED = 256, 1 << 23
"""Longer lists than ``LONG`` hold no more than ``MOST_LISTED`` centres together: 32 MiB."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Problem of a search, and the choices of its user."""

    n_rows: int
    """Number of all rows."""
    n_clusters: int
    moves: bool = True
    """Centres are moved."""
    max_rounds: int = MOST_ROUNDS
    """Maximum over all rows; with 0 there are none over samples either."""
    length: int | None = None
    """Length of all lists, if the user has chosen."""
    sparse: bool = False
    """Rows are sparse: they have no lists of centres."""
    center_work: float = 0.0
    """Cost of a pass for its centres, however few its rows are, in distances."""

    @property
    def dense(self) -> bool:
        """True if rows meet all centres in every pass."""
        return self.sparse or (self.length is None and self.n_clusters <= DENSE_CLUSTERS)


@dataclass(frozen=True, slots=True)
class Task:
    """One step."""

    kind: Kind
    """Way in which rows find centres. "start": by the two-level start on a sample, and a pass with
    lists. "cells": by the coarse cells near them, without row state. "lists": they meet the
    list of their centre. "all": all centres. "unsettled": all centres, if bounds do not prove which
    one is nearest."""
    length: int = 16
    """Length of the lists."""
    probes: bool = False
    """Search all these rows, and then choose moves and lengths of lists."""
    keeps_centers: bool = False
    """Only find where rows that have been added belong: means of roughly labelled rows are
    worse than the centres (on B 2.5 % instead of 1.9 % above the lowest cost)."""
    restarts: bool = False
    """Begin with new centres, made from the sample."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a step."""

    cost: float
    """Cost after it, with the means of the rows as they are labelled now."""
    work: float
    """Distances computed, and the other costs of rows."""
    n_changed: int
    n_replayed: int = 0
    """Passes since the last anchor."""
    n_moves: int = 0
    """Number of moves chosen after it, which may be carried out in the next step."""
    curve: tuple[float, ...] = ()
    """Estimated gain of a pass with lists of each of ``LENGTHS``, and of one with all centres."""
    misled: float = 0.0
    """Relative extra cost of rows if coarse cells had led them to their centres."""
    restart_rows: int = 0
    """Rows of a sample to start again on, as the one so far lacked those that carry the cost; 0:
    continue."""
    met: float = 0.0
    """Mean share of the centres that a row met in it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps with one purpose, and their results so far."""

    name: StageName
    """Purpose. "first": a first model, from the smallest of several samples. "sample": passes over
    a sample while they gain more than further rows would. "grow": rows outside of the sample find
    centres. "search": a probe for moves to try. "round": these are tried. "end"."""
    passes: int = 0
    work: float = 0.0
    cost_before: float = float("inf")
    last_gain: float = 0.0
    """Gain of the pass before, in a round."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Extent of moves, and results of rounds over the present rows."""

    share: float = FIRST_SHARE
    """Centres that may move at a time, as a share of all."""
    factor: float = FIRST_FACTOR
    """Factor by which a gain has to exceed the loss."""
    n_found: int = 1 << 30
    """Moves that were found last time; before that, no limit."""
    n: int = 0
    n_failed: int = 0
    n_undone: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """State of the search, and its next step."""

    task: Task
    """The next step."""
    setting: Setting
    stage: Stage
    samples: tuple[int, ...]
    """Rows of the present sample, and of those to come; none: all rows."""
    length: int
    """Length of lists in most passes."""
    least_length: int = 0
    """Minimum of it, raised by rounds of little gain."""
    rounds: Rounds = Rounds()
    misled: float = 0.0
    """As of the present sample; see :class:`Outcome`."""
    met: float = 0.0
    """As in the last pass in which rows were led by coarse cells; see :class:`Outcome`."""
    cost: float = float("inf")
    """Cost after the last step."""

    @property
    def dense(self) -> bool:
        """True if rows meet all centres in every pass."""
        return self.setting.dense

    @property
    def everywhere(self) -> bool:
        """True if the search covers all rows."""
        return not self.samples

    @property
    def n_rows(self) -> int:
        """Number of present rows."""
        return self.samples[0] if self.samples else self.setting.n_rows

    @property
    def searched(self) -> bool:
        """True if rounds are made over the present rows, a sample or all of them."""
        enough = self.n_rows >= ROWS_TO_SEARCH * self.setting.n_clusters
        return self.everywhere or (self.setting.max_rounds > 0 and enough)

    @property
    def opens_round(self) -> bool:
        """True if the next step is the first of a round, which may have to be undone."""
        return self.stage.name == "round" and self.stage.passes == 0

    @property
    def continues(self) -> bool:
        """True if the next step continues the last one on the same rows."""
        return self.stage.name in ("sample", "round") and self.stage.passes > 0

    @property
    def most_moves(self) -> int:
        """Number of centres that may move at a time."""
        return max(1, int(self.rounds.share * self.setting.n_clusters))


def first_schedule(
    setting: Setting, samples: tuple[int, ...] = (), *, guided: bool = True
) -> Schedule:
    """Return the schedule before the first step.

    ``samples`` are the rows of the samples that the search begins on; empty: all rows. ``guided``:
    coarse cells narrow the search for a row's nearest centre.
    """
    length = min(setting.length or 32, setting.n_clusters)
    now = Schedule(Task("cells"), setting, Stage("sample"), samples, length)
    if not samples:
        return _begin(now, "grow", _anchor(now, dense=setting.dense or not guided))
    if setting.dense:
        return _begin(now, "sample", _anchor(now, dense=True))
    if len(samples) > 1:
        return _begin(now, "first", Task("cells"))
    return _begin(now, "sample", _pass(now, "start", probes=_shows_moves(now)))


def on_all_rows(before: Schedule, setting: Setting) -> Schedule:
    """Return a schedule that continues another one, with rows in other features."""
    now = first_schedule(setting, guided=setting.n_clusters > WHOLE_CLUSTERS)
    task = replace(now.task, keeps_centers=not now.dense)
    return replace(now, task=task, rounds=_first_rounds(before.rounds), length=before.length)


def next_step(schedule: Schedule, outcome: Outcome, tol: float) -> tuple[Schedule, bool]:
    """Return the schedule after a step, and True if it goes back to the start of the round.

    A round has to gain a fiftieth of the share ``tol`` (that of the fit) of the cost.
    """
    task, stage = schedule.task, schedule.stage
    stage = replace(stage, passes=stage.passes + 1, work=stage.work + outcome.work)
    now = replace(schedule, cost=outcome.cost, stage=stage)
    if task.kind == "cells":
        now = replace(now, met=outcome.met)
    if task.probes:
        rounds = replace(now.rounds, n_found=outcome.n_moves)
        now = replace(now, rounds=rounds, misled=outcome.misled)
    if now.everywhere and not outcome.cost > 0:
        return _begin(now, "end", Task("all")), False
    gain = schedule.cost - outcome.cost
    match stage.name:
        case "first":
            now = replace(now, samples=now.samples[1:])
            start = _pass(now, "start", probes=_shows_moves(now))
            return _begin(now, "sample", start), False
        case "sample":
            return _after_sample_pass(now, gain, outcome), False
        case "grow" if outcome.restart_rows:
            now = replace(now, samples=(outcome.restart_rows,))
            restart = replace(_anchor(now, dense=now.dense), restarts=True)
            return _begin(now, "sample", restart), False
        case "grow" | "search":
            return _to_rounds(now, outcome), False
        case _:
            return _after_round_pass(now, gain, outcome, tol)


def ended_round(before: Schedule, after: Schedule) -> bool:
    """Return True if the step between two schedules was the last one of a round."""
    return before.stage.name == "round" and after.stage.passes == 0


def _begin(now: Schedule, name: StageName, task: Task) -> Schedule:
    return replace(now, stage=Stage(name, cost_before=now.cost), task=task)


def _pass(now: Schedule, kind: Kind, *, probes: bool = False) -> Task:
    """Return a pass over the present rows, with lists of the usual length or all centres."""
    length = now.length if kind in ("start", "lists") else now.setting.n_clusters
    return Task(kind, length, probes)


def _anchor(now: Schedule, *, dense: bool) -> Task:
    """Return a pass that needs no row state: rows meet all centres, or are led by coarse cells."""
    if not dense:
        return Task("cells")
    # A probe of sparse rows takes longer than such a pass: a model comes first.
    probes = now.dense and not now.setting.sparse and (now.everywhere or _shows_moves(now))
    return _pass(now, "all", probes=probes)


# --- samples --------------------------------------------------------------------------------------


def is_restarted(k: int) -> bool:
    """Return True if there are so few clusters that the best of several starts is taken."""
    return k <= RESTARTED_CLUSTERS


def sample_sizes(
    n_rows: int, row_values: int, k: int, n_features: int | None = None
) -> tuple[int, ...]:
    """Return the rows of the samples that the search begins on, ascending; at least one.

    With ``n_features`` rows are sparse, and store ``row_values`` each.
    """
    # Small samples of sparse rows rarely overlap, so they give poor initial centres.
    restarted = is_restarted(k) or n_features is not None
    first = max(RESTART_ROWS * k, 2_048) if restarted else 8 * k
    if n_rows <= LARGEST_SHARE * first and n_rows * row_values <= WHOLE_VALUES:
        return (n_rows,)
    most = n_rows // LARGEST_SHARE
    wanted = first if restarted else START_ROWS * k
    if n_features is not None:
        # With fewer rows, the centres, which have all features, dominate the time of a step.
        wanted = max(wanted, 20 * n_features // row_values)
    sizes = [min(wanted, most, max(4 * k, START_VALUES // row_values))]
    if n_features is not None and n_rows * row_values <= WHOLE_VALUES:
        a_row, a_pass = k + ROW_WORK + PASS_WORK, center_work(n_features, row_values, k)
        # Models of a sample are worse than those of all rows in twice the time (Reuters).
        if n_rows * a_row + a_pass <= 2 * (sizes[0] * a_row + a_pass):
            return (n_rows,)
    while GROWTH * sizes[-1] <= min(most, LARGEST_VALUES // row_values):
        sizes.append(GROWTH * sizes[-1])
    if not restarted and k > DENSE_CLUSTERS and START_ROWS * k <= sizes[0]:
        # This sample is not continued, only meant to give a good first model soon.
        return (FIRST_ROWS * k, *sizes)
    return (first, *sizes) if GROWTH * first <= sizes[0] else tuple(sizes)


def center_work(n_features: int, row_values: int, k: int) -> float:
    """Return the cost of a pass over sparse rows for its centres, in distances.

    Sums, means and packed centres have all features; the factor is measured on Reuters and short
    texts (``benchmarks.sparse``).
    """
    return 128.0 * k * n_features / row_values


def _shows_moves(now: Schedule) -> bool:
    """Return True if the sample is large enough to show which centres to move."""
    return now.setting.moves and now.n_rows >= 32 * now.setting.n_clusters


def _after_sample_pass(now: Schedule, gain: float, outcome: Outcome) -> Schedule:
    """Continue after a pass over a sample: another pass, or rounds, or the next sample."""
    passes, anchor = now.stage.passes, _anchor(now, dense=now.dense)
    if now.task.kind == "cells":
        # Rows have labels now.
        return replace(now, task=_pass(now, "lists", probes=_shows_moves(now)))
    if now.searched:
        # Row state left by the two-level start cannot be replayed.
        starts = now.task.kind == "start"
        return replace(now, task=anchor) if starts else _to_rounds(now, outcome)
    more, n_more = _gain_of_more_rows(now)
    pays = gain / now.n_rows > 2 * more / n_more if passes > 1 else now.dense
    return replace(now, task=anchor) if pays and passes < 12 else _to_more_rows(now)


def _gain_of_more_rows(now: Schedule) -> tuple[float, int]:
    """Return the gain of more rows, whose means are nearer to those of all, and their number."""
    n, *larger = now.samples
    n_more = larger[0] if larger else now.setting.n_rows
    return now.cost * now.setting.n_clusters * (1 / n - 1 / n_more), n_more


def _meet_all(now: Schedule) -> bool:
    """Return True if rows of a larger sample meet all centres first, as cells mislead them."""
    misled = now.stage.name == "round" and now.misled > 0.05
    return now.dense or misled or now.met > MOST_MET


def _to_more_rows(now: Schedule) -> Schedule:
    """Continue on the next sample, or on all rows."""
    meet_all = _meet_all(now)
    keeps_centers = now.searched and not meet_all
    now = replace(now, samples=now.samples[1:], rounds=_first_rounds(now.rounds), least_length=0)
    task = replace(_anchor(now, dense=meet_all), keeps_centers=keeps_centers)
    return _begin(now, "grow" if now.everywhere else "sample", task)


def _first_rounds(before: Rounds) -> Rounds:
    """Return the extent of moves in the first round over other rows."""
    return Rounds(max(before.share, LEAST_SHARE), before.factor, before.n_found)


# --- rounds ---------------------------------------------------------------------------------------


def _to_rounds(now: Schedule, outcome: Outcome) -> Schedule:
    """Begin a round, or first probe for its moves."""
    return _next_round(now, outcome) if now.task.probes else _begin(now, "search", _probe(now))


def _probe(now: Schedule) -> Task:
    return _pass(now, "all" if now.dense else "lists", probes=True)


def _next_round(now: Schedule, outcome: Outcome) -> Schedule:
    """Begin a round: moves, and lists as long as pays."""
    if now.everywhere and now.rounds.n >= now.setting.max_rounds:
        return _begin(now, "end", Task("all"))
    if outcome.n_replayed > MOST_REPLAYED:
        # Lost row state would take too long to rebuild: an anchor comes first.
        return _begin(now, "search", _pass(now, "all"))
    if now.dense:
        # Where centres are moved no row is settled.
        return _begin(now, "round", _pass(now, "all" if outcome.n_moves else "unsettled"))
    k = now.setting.n_clusters
    usual, length = _lengths_of_round(now, outcome.curve)
    kind: Kind = "unsettled" if length >= k else "lists"
    task = Task(kind, min(length, k))
    return _begin(replace(now, length=min(usual, k)), "round", task)


def _after_round_pass(
    now: Schedule, gain: float, outcome: Outcome, tol: float
) -> tuple[Schedule, bool]:
    """Continue after a pass of a round: with another one, a probe, or the judgement."""
    stage, ratio = now.stage, 0.5
    if stage.last_gain > 0:
        # The next gain is expected to be to this one as this one was to the last.
        ratio = min(0.9, max(0.3, gain / stage.last_gain))
    # Gain of all further passes together, at best: none after a pass that has raised the cost.
    hope = max(0.7, ratio)
    left = max(0.0, gain * hope / (1 - hope))
    is_lost = stage.passes > LEAST_PASSES and now.cost - left > stage.cost_before
    if now.task.probes or is_lost:
        # A lost round will be undone and needs no probe, which is for rounds that may be kept.
        return _judged(now, outcome, tol)
    average = (stage.cost_before - now.cost) / stage.work
    pays = ratio * gain / outcome.work > average and outcome.n_changed > 0
    task = _probe(now)
    if stage.passes < MOST_PASSES and (stage.passes < LEAST_PASSES or pays):
        task = _pass(now, "unsettled" if now.dense else "lists")
    return replace(now, stage=replace(stage, last_gain=gain), task=task), False


def _judged(now: Schedule, outcome: Outcome, tol: float) -> tuple[Schedule, bool]:
    """Continue from where a round has ended, or go back to where it began."""
    gained = now.stage.cost_before - now.cost
    kept = gained > 0
    after = replace(
        now,
        cost=now.cost if kept else now.stage.cost_before,
        rounds=_rounds_after(now.rounds, gained, now.cost, tol),
        least_length=_least_length(now, gained),
    )
    settled = gained == 0 and not outcome.n_moves and not max(outcome.curve, default=0)
    ends = after.rounds.n_failed >= MOST_FAILED or settled
    if now.everywhere:
        if ends or after.rounds.n >= now.setting.max_rounds:
            return _begin(after, "end", Task("all")), not kept
    elif ends or outcome.n_replayed > MOST_REPLAYED or _more_rows_pay(after, gained):
        return _to_more_rows(after), not kept
    if not kept:
        return _begin(after, "search", _probe(after)), True
    return _next_round(after, outcome), False


def _rounds_after(rounds: Rounds, gained: float, cost: float, tol: float) -> Rounds:
    """Return bolder rounds after one that has paid, and more careful ones after a failure."""
    failed = not gained > 0.02 * tol * cost
    share, factor = rounds.share, rounds.factor
    rounds = replace(rounds, n=rounds.n + 1, n_failed=rounds.n_failed + failed)
    if not gained > 0:
        share, factor = share * 0.5, min(FIRST_FACTOR, factor * 1.1)
        return replace(rounds, share=share, factor=factor, n_undone=rounds.n_undone + 1)
    if failed:
        return rounds
    # With 0.7 as the factor of the factor, B takes twice the work until 1 % above its end.
    share = max(min(share, LEAST_SHARE), share * 0.8)
    return replace(rounds, share=share, factor=max(min(factor, LEAST_FACTOR), factor * 0.85))


def _more_rows_pay(after: Schedule, gained: float) -> bool:
    """Return True if after a round over a sample more rows would gain more for the work."""
    if not gained > 0:
        return after.rounds.n_undone >= 3
    more, n_more = _gain_of_more_rows(after)
    met = after.setting.n_clusters if _meet_all(after) else 2 * after.length
    a_row, a_pass = met + ROW_WORK + PASS_WORK, after.setting.center_work
    work = after.stage.work + after.stage.passes * a_pass
    return gained / work <= more / (n_more * a_row + a_pass)


# --- lengths of lists -----------------------------------------------------------------------------


def _least_length(now: Schedule, gained: float) -> int:
    """Return the minimum length of lists after a round that has gained this."""
    longer = [n for n, share in LEAST_LENGTHS if max(0.0, gained) < share * now.cost]
    if not gained > 0:
        # It may also have been too many moves: one step is enough.
        longer = [n for n in longer if n > now.length][:1]
    return max([now.least_length, *longer])


def _lengths_of_round(now: Schedule, curve: tuple[float, ...]) -> tuple[int, int]:
    """Return the usual length of lists in a round, and that in its first pass.

    It gains most for its work according to the probe's ``curve``; k or more: all centres.
    """
    k, usual = now.setting.n_clusters, now.length
    gains = dict(zip((*LENGTHS, k), curve, strict=True))

    def within(length: int) -> float:
        return max((gain for n, gain in gains.items() if n <= length), default=0.0)

    def rate(length: int, usual: int) -> float:
        """Return gain per work; additional gain of lists longer than the usual ones is stale."""
        # A row that reaches its nearest centre late lowers the cost as it is counted here, and the
        # true one by less.
        fresh = within(usual)
        return (fresh + 0.6 * (within(length) - fresh)) / (length + ROW_WORK)

    candidates = [usual, k]
    if now.setting.length is None:
        usual = max(now.least_length, max(USUAL_LENGTHS, key=lambda n: (rate(n, n), -n)))
        longest = max(LONG, MOST_LISTED // k)
        candidates = [n for n in gains if n >= usual and (n <= longest or n >= k)]
    return usual, max(candidates, key=lambda n: (rate(n, usual), -n))
