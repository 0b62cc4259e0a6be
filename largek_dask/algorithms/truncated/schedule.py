"""Schedule of the truncated search: a function of what its passes have gained so far.

The gain of a pass is what it takes off the cost, which exact sums give for free, or a probe's
estimate of that; work is counted in distances. Neither depends on a clock or a machine, so the same
data take the same way everywhere.

:func:`first_schedule` begins a search, and :func:`next_step` leads from each step to the next one.
Decisions come in three groups: *samples*, the rows a search begins on and when it continues on more
of them; *rounds*, when passes after some moves end, and when the moves are undone; and *lengths* of
the lists of centres that rows meet. The state of each is a small record in :class:`Schedule`, and
the functions below return new ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = [
    "LONG",
    "MOST_ROUNDS",
    "TUNING",
    "Outcome",
    "Schedule",
    "Setting",
    "Task",
    "Tuning",
    "center_work",
    "ended_round",
    "first_schedule",
    "is_restarted",
    "next_step",
    "on_all_rows",
    "sample_sizes",
]

Kind = Literal["start", "cells", "lists", "all", "unsettled"]
StageName = Literal["first", "sample", "grow", "search", "round", "end"]


START_VALUES, LARGEST_VALUES, WHOLE_VALUES = 1 << 25, 1 << 26, 1 << 27
"""Maximum values (rows times features) of the sample to continue from; of further ones, which are
searched in the driver's process alone; and of few rows per centre that are all taken. One further
sample, of 128 rows per centre, gained nothing on 80,000,000 × 32 rows in 32,000 clusters: coarse
cells led all rows 7 % above it (one run)."""
LONG, MOST_LISTED = 256, 1 << 23
"""Longer lists than ``LONG`` hold no more than ``MOST_LISTED`` centres together: 32 MiB."""
WHOLE_CLUSTERS = 2_048
"""Clusters up to which rows meet all centres when a search in few directions continues in more
of them. Led by coarse cells 3,000,000 × 256 rows in 1,000 clusters cost 19 % more than before,
5 % more a pass later, and were back after 40 CPU seconds; now they cost no more (one run)."""
MOST_ROUNDS = 1_000
"""Maximum rounds over all rows, unless the user has chosen."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of the schedule, and the source of each.

    A table is one of docs/results. *Prototype*: the search was tried in an earlier program on rows
    in memory, set A with 1,000 clusters (its final cost as it was: 75.27).

    *Decides x, y %*: share of decisions that change with half and with twice the value. Those of
    2,741 steps were made again: three seeds on A, B, plane, gaussian, mnist, sift200k, glove100k
    (12,000 to 80,000 rows, 100 to 500 clusters) and reuters in 50. Factors and ratios moved half as
    far from 1, and up to twice; figures of steps stayed as they were. *Late*: none of them before
    the cost is 1 % above its end, for good. Constants that change at most one decision are
    literals, or limits above.
    """

    first_rows: int = 16
    """Rows per centre of the sample that gives the first centres. With 8 the first model is too
    rough: on sift200k mini-batches reached its energy in half the time, and on C that of the second
    one in the same time (first points of mini-batches in ``benchmarks.auto``)."""
    first_rows_dense: int = 8
    """The same if rows meet all centres: the next sample then continues from these. Without such a
    sample uniform rows in 100 clusters take 0.07 s instead of 0.15 s until 1 % above the lowest
    cost (table of ``benchmarks.auto_parts``)."""
    start_rows: int = 32
    """Rows per centre of the sample to continue from. Decides 7, 7 %."""
    growth: int = 4
    """Ratio of the sizes of successive samples. Decides 5, 5 %."""
    largest_share: int = 3
    """A sample has at most one row out of three. Decides 3, 4 %."""
    restarted_clusters: int = 32
    """Clusters up to which the best of several starts is taken. Decides 0, 0.1 %."""
    restart_rows: int = 64
    """Rows per centre on which several starts are made, and any start of sparse rows: of 200,000
    short texts in 100 clusters it ends at 195,180 from 8 rows per centre, and between 194,150 and
    194,250 from 64. Not measured otherwise."""
    sparse_share: int = 20
    """Minimum stored values of a first sample of sparse rows, in multiples of a centre's. For short
    texts it is 25,000 rows instead of 6,400: when it was set, it took 0.3 s instead of 0.6 s until
    1 % above where Lloyd's algorithm ends (cases and clock of ``benchmarks.sparse``)."""
    dense_clusters: int = 128
    """Clusters up to which rows meet all centres. With lists, on uniform rows in 100 clusters, it
    takes 0.90 s instead of 0.63 s until 0.2 % above the lowest cost, and 0.09 s instead of 0.15 s
    until 1 % (table of ``benchmarks.auto_parts``)."""
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """Lengths of lists of centres; a row may also meet all of them. Decides 2, 2 %."""
    first_length: int = 32
    """Length of the lists before the first probe. Decides 1, 1 %."""
    usual_lengths: tuple[int, ...] = (32, 64)
    """Lengths of the lists of most passes. Prototype: with 16 it ends at 75.41, with twice its
    lengths at 75.24 in 30 % more time."""
    least_lengths: tuple[tuple[int, float], ...] = ((64, 1e-3), (128, 5e-4), (256, 2e-4))
    """Minimum lengths of lists once a round lowers the cost by less than a share: where short lists
    lead quickly is not where long ones end. Without it, rows without structure end 0.16 % instead
    of 0.03 % above the lowest (table of ``benchmarks.auto_parts``)."""
    stale: float = 0.6
    """Value of a row that reaches its nearest centre late, relative to one that follows its moving
    centre: the former lowers the cost as it is counted here, and the true one by less. Measured
    when it was set (84877bb: 0.6 instead of 0.3); the figures were not kept."""
    row_work: float = 64.0
    """Cost of a row that is searched, besides its distances, in distances. Measured when it was set
    (c6a392d); the figures were not kept."""
    pass_work: float = 8.0
    """Cost of a row in any pass, in distances. As ``row_work``."""
    center_work: float = 128.0
    """Cost of a value of a sparse row's centre in any pass, in values that a row stores: sums,
    means and packed centres have all features. When it was set, Reuters in 50 clusters took 0.46 s
    instead of 0.67 s until 0.1 % above where Lloyd's algorithm ends, and short texts in 100
    clusters 1.2 s instead of 1.7 s (cases and clock of ``benchmarks.sparse``)."""
    whole_work: float = 2.0
    """Largest ratio of the work of a pass over all sparse rows to one over the first sample with
    which all of them are taken instead. For Reuters in 50 clusters it is 1.95: models of a sample
    end 1.2 % above where Lloyd's algorithm ends, and in that time those of all rows 0.2 %. For
    short texts in 100 clusters it is 2.5: without a sample mini-batches are as fast."""
    rows_to_move: int = 32
    """Minimum rows per centre of a sample that shows which centres to move. Decides 0, 2 %."""
    rows_to_search: int = 64
    """Rows per centre of a sample that is searched in rounds, like all rows, before more are taken.
    With rounds over all rows only, B in 1,000 clusters takes 2.37 s instead of 1.66 s until 0.2 %
    above the lowest cost, and A 0.83 s instead of 0.88 s (table of ``benchmarks.auto_parts``); a
    stored table is read 79 times instead of once until 0.5 % (``benchmarks.auto_scale``)."""
    most_met: float = 0.5
    """Share of the centres met by coarse cells above which rows meet all centres instead: that
    takes as long, as all centres are not gathered. Set drawn2 in 200 clusters (table of
    ``benchmarks.auto``) takes 0.62 s instead of 0.86 s until 0.2 % above its end, and drawn1 0.86 s
    instead of 0.95 s until 1.7 % (medians of 5 and 8 seeds, when it was set)."""
    first_share: float = 0.1
    """Centres that may move at a time, as a share of all. Decides 1, 1 %."""
    least_share: float = 0.05
    """Lower limit of the share while rounds pay. Decides 6, 4 %."""
    first_factor: float = 1.0
    """Factor by which a gain has to exceed the loss. Decides 1, 1 %."""
    least_factor: float = 0.35
    """Lower limit of the factor while rounds pay. Prototype: below 1, with rounds undone if they do
    not pay, final costs are lowest. Decides 6, 7 %."""
    paid_share: float = 0.8
    """Factor on the share after a round that has paid. Decides 3, 3 %."""
    paid_factor: float = 0.85
    """Factor on the factor after a round that has paid. Decides 6, 7 %. With 0.7 set B takes twice
    the work until 1 % above its end (80,000 rows, 200 clusters, two seeds)."""
    undone_share: float = 0.5
    """Factor on the share after a round that was undone. Decides 4, 4 %, late."""
    undone_factor: float = 1.1
    """Factor on the factor then, up to ``first_factor``. Decides 4, 4 %, late."""
    most_failed: int = 5
    """Failed rounds after which the search ends. Decides 5, 0.8 %, late."""
    least_passes: int = 2
    """Passes of a round before its look, and before it may be given up. Decides 5, 9 %."""
    most_passes: int = 12
    """Maximum passes of a round before its look. Decides 15, 1 %."""
    most_replayed: int = 48
    """Passes since the last anchor with which a round may begin: all of them are repeated for rows
    whose state is lost. Decides 3, 0.6 %."""
    first_ratio: float = 0.5
    """Expected ratio of the gains of the second and first pass of a round. Decides 0.4, 0 %."""
    least_ratio: float = 0.3
    """Minimum expected ratio of the gains of successive passes, which is otherwise the last one.
    Decides 0, 1 %."""
    most_ratio: float = 0.9
    """Upper limit of that. Decides 0.4, 0.1 %."""
    hope: float = 0.7
    """Ratio of the gains of successive passes, at best, when deciding to give up a round. Decides
    6, 3 %."""


TUNING = Tuning()


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
    beside_rows: float = 0.0
    """Cost of a pass for its centres, however few its rows are, in distances."""

    @property
    def dense(self) -> bool:
        """True if rows meet all centres in every pass."""
        few = self.n_clusters <= TUNING.dense_clusters
        return self.sparse or (self.length is None and few)


@dataclass(frozen=True, slots=True)
class Task:
    """One step."""

    kind: Kind
    """Way in which rows find centres. "start": by the two-level start on a sample, and a pass with
    lists. "cells": by the coarse cells near them, without row state. "lists": they meet the
    list of their centre. "all": all centres. "unsettled": all centres, if bounds do not prove which
    one is nearest."""
    everywhere: bool
    """On all rows, or on the sample."""
    length: int = 16
    """Length of the lists."""
    looks: bool = False
    """Look at all rows, and choose moves and lists afterwards."""
    keeps_centers: bool = False
    """Only look where rows that have been added belong: means of rows that are there roughly are
    worse than the centres (on B 2.5 % instead of 1.9 % above the lowest cost: 51c0761)."""
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
    """Estimated gain of a pass with lists of each of ``TUNING.lengths``, and of one with all
    centres."""
    misled: float = 0.0
    """Relative extra cost of rows if coarse cells had led them to their centres."""
    restart_rows: int = 0
    """Rows of a sample to start again on, since the one so far did not hold those that count; 0: go
    on."""
    met: float = 0.0
    """Mean share of the centres that a row met in it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps with one purpose, and their results so far."""

    name: StageName = "sample"
    """Purpose. "first": a first model, from the smallest of several samples. "sample": passes over
    a sample while they gain more than further rows would. "grow": rows outside of the sample find
    centres. "search": a look for moves to try. "round": these are tried. "end"."""
    passes: int = 0
    work: float = 0.0
    cost_before: float = float("inf")
    last_gain: float = 0.0
    """Gain of the pass before, in a round."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Samples that the search begins on."""

    sizes: tuple[int, ...] = ()
    """Rows of the present sample, and of those to come; none: all rows."""
    misled: float = 0.0
    """As of the present sample; see :class:`Outcome`."""
    met: float = 0.0
    """As in the last pass in which rows were led by coarse cells; see :class:`Outcome`."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Extent of moves, and results of rounds over the present rows."""

    share: float = TUNING.first_share
    """Centres that may move at a time, as a share of all."""
    factor: float = TUNING.first_factor
    """Factor by which a gain has to exceed the loss."""
    n_found: int = 1 << 30
    """Moves that were found last time; before that, no limit."""
    n: int = 0
    n_failed: int = 0
    n_undone: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of lists."""

    usual: int
    """Length in most passes."""
    least: int = 0
    """Minimum, raised by rounds of little gain."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """State of the search, and its next step."""

    task: Task
    """The next step."""
    setting: Setting
    stage: Stage
    sampling: Sampling
    rounds: Rounds
    lengths: Lengths
    cost: float = float("inf")
    """Cost after the last step."""

    @property
    def dense(self) -> bool:
        """True if rows meet all centres in every pass."""
        return self.setting.dense

    @property
    def everywhere(self) -> bool:
        """True if the search covers all rows."""
        return not self.sampling.sizes

    @property
    def searched(self) -> bool:
        """True if rounds are made over the present rows, a sample or all of them."""
        least = TUNING.rows_to_search * self.setting.n_clusters
        return self.everywhere or (self.setting.max_rounds > 0 and self.sampling.sizes[0] >= least)

    @property
    def opens_round(self) -> bool:
        """True if the next step is the first of a round, which may have to be undone."""
        return self.stage.name == "round" and self.stage.passes == 0

    @property
    def goes_on(self) -> bool:
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

    Parameters
    ----------
    setting : Setting
    samples : tuple of int
        Rows of the samples that the search begins on; empty: all rows.
    guided : bool
        Coarse cells narrow the search for a row's nearest centre.
    """
    length = TUNING.first_length if setting.length is None else setting.length
    lengths = Lengths(min(length, setting.n_clusters))
    task = Task("lists", False, lengths.usual)
    schedule = Schedule(task, setting, Stage(), Sampling(samples), Rounds(), lengths)
    if not samples:
        return _to_all_rows(schedule, dense=setting.dense or not guided)
    if setting.dense:
        return replace(schedule, task=_fresh_pass(setting, samples[0]))
    if len(samples) > 1:
        return _begin(schedule, "first", Task("cells", False))
    return replace(schedule, task=_start(schedule, samples[0]))


def on_all_rows(before: Schedule, setting: Setting) -> Schedule:
    """Return a schedule that continues another one, with rows in other features."""
    now = first_schedule(setting, guided=setting.n_clusters > WHOLE_CLUSTERS)
    share = max(before.rounds.share, TUNING.least_share)
    return replace(
        now,
        task=replace(now.task, keeps_centers=not now.dense),
        rounds=Rounds(share, before.rounds.factor, before.rounds.n_found),
        lengths=Lengths(before.lengths.usual),
    )


def next_step(schedule: Schedule, outcome: Outcome, tol: float) -> tuple[Schedule, bool]:
    """Return the schedule after a step, and whether to go back to the start of the round.

    Parameters
    ----------
    schedule : Schedule
        Before the step.
    outcome : Outcome
    tol : float
        ``tol`` of the fit: a round has to gain a fiftieth of this share of the cost.
    """
    now = _noted(schedule, outcome)
    if schedule.task.everywhere and not outcome.cost > 0:
        return _ended(now), False
    gain = schedule.cost - outcome.cost
    match schedule.stage.name:
        case "first":
            return _after_first_sample(now), False
        case "sample":
            return _after_sample_pass(now, gain, outcome), False
        case "grow":
            return _after_growth(now, outcome), False
        case "search":
            return _after_search_pass(now, outcome), False
        case _:
            return _after_round_pass(now, gain, outcome, tol)


def ended_round(before: Schedule, after: Schedule) -> bool:
    """Return True if the step between two schedules was the last one of a round."""
    return before.stage.name == "round" and after.stage.passes == 0


def _noted(schedule: Schedule, outcome: Outcome) -> Schedule:
    """Return the schedule with the results of its step."""
    stage = schedule.stage
    stage = replace(stage, passes=stage.passes + 1, work=stage.work + outcome.work)
    now = replace(schedule, cost=outcome.cost, stage=stage)
    if schedule.task.kind == "cells":
        now = replace(now, sampling=replace(now.sampling, met=outcome.met))
    if not schedule.task.looks:
        return now
    return replace(
        now,
        rounds=replace(now.rounds, n_found=outcome.n_moves),
        sampling=replace(now.sampling, misled=outcome.misled),
    )


def _begin(now: Schedule, name: StageName, task: Task) -> Schedule:
    """Return the schedule at the first step of a stage."""
    return replace(now, stage=Stage(name, cost_before=now.cost), task=task)


def _ended(now: Schedule) -> Schedule:
    return _begin(now, "end", Task("all", True))


def _lists(now: Schedule, looks: bool = False) -> Task:
    """Return a pass with lists of the usual length."""
    return Task("lists", now.everywhere, now.lengths.usual, looks)


def _all_centers(now: Schedule, looks: bool = False) -> Task:
    """Return a pass in which rows meet all centres."""
    return Task("all", now.everywhere, now.setting.n_clusters, looks)


def _look(now: Schedule) -> Task:
    """Return a pass that looks for moves to try in a round."""
    return _all_centers(now, looks=True) if now.dense else _lists(now, looks=True)


# --- samples --------------------------------------------------------------------------------------


def is_restarted(k: int) -> bool:
    """Return True if there are so few clusters that the best of several starts is taken."""
    return k <= TUNING.restarted_clusters


def sample_sizes(
    n_rows: int, row_values: int, k: int, n_features: int | None = None
) -> tuple[int, ...]:
    """Return the rows of the samples that the search begins on, ascending; at least one.

    With ``n_features`` rows are sparse, and store ``row_values`` each.
    """
    sparse = n_features is not None
    # Small samples of sparse rows rarely overlap, so they give poor initial centres.
    restarted, t = is_restarted(k) or sparse, TUNING
    first = t.first_rows_dense * k
    if restarted:
        first = max(t.restart_rows * k, 2_048)
    if n_rows <= t.largest_share * first and n_rows * row_values <= WHOLE_VALUES:
        return (n_rows,)
    most = n_rows // t.largest_share
    wanted = first if restarted else t.start_rows * k
    if n_features is not None:
        # With fewer rows, the centres, which have all features, dominate the time of a step.
        wanted = max(wanted, t.sparse_share * n_features // row_values)
    sizes = [min(wanted, most, max(4 * k, START_VALUES // row_values))]
    if n_features is not None and n_rows * row_values <= WHOLE_VALUES:
        a_row, a_pass = _work_of_pass(k), center_work(n_features, row_values, k)
        if n_rows * a_row + a_pass <= t.whole_work * (sizes[0] * a_row + a_pass):
            return (n_rows,)
    while t.growth * sizes[-1] <= min(most, LARGEST_VALUES // row_values):
        sizes.append(t.growth * sizes[-1])
    if not restarted and k > t.dense_clusters and t.start_rows * k <= sizes[0]:
        # This sample is not continued, only meant to give a good first model soon.
        return (t.first_rows * k, *sizes)
    return (first, *sizes) if t.growth * first <= sizes[0] else tuple(sizes)


def center_work(n_features: int, row_values: int, k: int) -> float:
    """Return the cost of a pass over sparse rows for its centres, in distances."""
    return TUNING.center_work * k * n_features / row_values


def _work_of_pass(n_met: int) -> float:
    """Return the cost of a row that meets so many centres in a pass, in distances."""
    return n_met + TUNING.row_work + TUNING.pass_work


def _tells_moves(setting: Setting, n: int) -> bool:
    """Return True if a sample of n rows shows which centres to move."""
    return setting.moves and n >= TUNING.rows_to_move * setting.n_clusters


def _start(now: Schedule, n: int) -> Task:
    """Return the two-level start on a sample of n rows, with a pass over it."""
    return Task("start", False, now.lengths.usual, _tells_moves(now.setting, n))


def _fresh_pass(setting: Setting, n: int) -> Task:
    """Return a pass over a sample of n rows that does not depend on row state."""
    if setting.dense:
        # Looking for moves of sparse rows takes longer than such a pass: a model comes first.
        looks = not setting.sparse and _tells_moves(setting, n)
        return Task("all", False, setting.n_clusters, looks)
    return Task("cells", False)


def _after_first_sample(now: Schedule) -> Schedule:
    """Continue after the first model, on the sample that the search starts on."""
    sizes = now.sampling.sizes[1:]
    now = replace(now, sampling=replace(now.sampling, sizes=sizes))
    return _begin(now, "sample", _start(now, sizes[0]))


def _after_sample_pass(now: Schedule, gain: float, outcome: Outcome) -> Schedule:
    """Continue after a pass over a sample: another pass, or rounds, or the next sample."""
    n, passes = now.sampling.sizes[0], now.stage.passes
    if now.task.kind == "cells":
        # Rows have labels now.
        return replace(now, task=_lists(now, _tells_moves(now.setting, n)))
    if now.searched:
        if now.task.kind == "start":
            # Row state left by the start cannot be replayed.
            return replace(now, task=_fresh_pass(now.setting, n))
        return _to_rounds(now, outcome)
    more, n_more = _gain_of_more_rows(now)
    pays = gain / n > 2 * more / n_more if passes > 1 else now.dense
    if pays and passes < 12:
        return replace(now, task=_fresh_pass(now.setting, n))
    return _to_more_rows(now)


def _gain_of_more_rows(now: Schedule) -> tuple[float, int]:
    """Return the gain of more rows, whose means are nearer to those of all, and their number."""
    n, *larger = now.sampling.sizes
    n_more = larger[0] if larger else now.setting.n_rows
    return now.cost * now.setting.n_clusters * (1 / n - 1 / n_more), n_more


def _meet_all(now: Schedule) -> bool:
    """Return True if rows of a larger sample meet all centres first, as cells mislead them."""
    misled = now.stage.name == "round" and now.sampling.misled > 0.05
    return now.dense or misled or now.sampling.met > TUNING.most_met


def _to_more_rows(now: Schedule) -> Schedule:
    """Continue on the next sample, or on all rows."""
    meet_all, larger = _meet_all(now), now.sampling.sizes[1:]
    keeps_centers = now.searched and not meet_all
    share = max(now.rounds.share, TUNING.least_share)
    now = replace(
        now,
        sampling=replace(now.sampling, sizes=larger),
        rounds=Rounds(share, now.rounds.factor, now.rounds.n_found),
        lengths=Lengths(now.lengths.usual),
    )
    if not larger:
        now = _to_all_rows(now, dense=meet_all)
    elif meet_all and not now.dense:
        now = _begin(now, "sample", _all_centers(now))
    else:
        now = _begin(now, "sample", _fresh_pass(now.setting, larger[0]))
    return replace(now, task=replace(now.task, keeps_centers=keeps_centers))


def _to_all_rows(now: Schedule, *, dense: bool) -> Schedule:
    """Continue on all rows, which meet all centres or are led by coarse cells."""
    now = replace(now, sampling=replace(now.sampling, sizes=()))
    looks = now.dense and not now.setting.sparse
    task = _all_centers(now, looks=looks) if dense else Task("cells", True)
    return _begin(now, "grow", task)


def _after_growth(now: Schedule, outcome: Outcome) -> Schedule:
    """Continue after all rows have found centres: with a look, or again on a better sample."""
    n = outcome.restart_rows
    if not n:
        return _to_rounds(now, outcome)
    now = replace(now, sampling=replace(now.sampling, sizes=(n,)))
    return _begin(now, "sample", replace(_fresh_pass(now.setting, n), restarts=True))


# --- rounds ---------------------------------------------------------------------------------------


def _to_rounds(now: Schedule, outcome: Outcome) -> Schedule:
    """Begin rounds with a look for moves, once rows are where they belong."""
    return _next_round(now, outcome) if now.task.looks else _begin(now, "search", _look(now))


def _after_search_pass(now: Schedule, outcome: Outcome) -> Schedule:
    """Continue after a look that precedes the first round, or follows one that was undone."""
    return _next_round(now, outcome) if now.task.looks else replace(now, task=_look(now))


def _next_round(now: Schedule, outcome: Outcome) -> Schedule:
    """Begin a round: moves, and lists as long as pays."""
    if now.everywhere and now.rounds.n >= now.setting.max_rounds:
        return _ended(now)
    if outcome.n_replayed > TUNING.most_replayed:
        # Lost row state would take too long to rebuild: an anchor comes first.
        return _begin(now, "search", _all_centers(now))
    if now.dense:
        # Where centres are moved no row is settled.
        return _begin(now, "round", _all_centers(now) if outcome.n_moves else _settling_pass(now))
    k = now.setting.n_clusters
    usual, length = _lengths_of_round(now.lengths, now.setting, outcome.curve)
    kind: Kind = "unsettled" if length >= k else "lists"
    now = replace(now, lengths=replace(now.lengths, usual=min(usual, k)))
    return _begin(now, "round", Task(kind, now.everywhere, min(length, k)))


def _settling_pass(now: Schedule) -> Task:
    """Return a pass that leaves out settled rows."""
    if now.dense:
        return Task("unsettled", now.everywhere, now.setting.n_clusters)
    return _lists(now)


def _after_round_pass(
    now: Schedule, gain: float, outcome: Outcome, tol: float
) -> tuple[Schedule, bool]:
    """Continue after a pass of a round: with another one, a look, or the judgement."""
    if now.task.looks:
        return _judged(now, outcome, tol)
    stage, ratio = now.stage, _expected_ratio(gain, now.stage.last_gain)
    if _is_lost(now, gain, ratio):
        # It will be undone and needs no look, which is for rounds that may be kept.
        return _judged(now, outcome, tol)
    average = (stage.cost_before - now.cost) / stage.work
    pays = ratio * gain / outcome.work > average and outcome.n_changed > 0
    goes_on = stage.passes < TUNING.most_passes and (stage.passes < TUNING.least_passes or pays)
    task = _settling_pass(now) if goes_on else _look(now)
    return replace(now, stage=replace(stage, last_gain=gain), task=task), False


def _expected_ratio(gain: float, last_gain: float) -> float:
    """Return the ratio of the next gain to this one: that of the last two, within limits."""
    if not last_gain > 0:
        return TUNING.first_ratio
    return min(TUNING.most_ratio, max(TUNING.least_ratio, gain / last_gain))


def _is_lost(now: Schedule, gain: float, ratio: float) -> bool:
    """Return True if further passes, even good ones, do not lead below where the round began."""
    hope = max(TUNING.hope, ratio)
    # Gain of all of them together: none after a pass that has raised the cost.
    left = max(0.0, gain * hope / (1 - hope))
    return now.stage.passes > TUNING.least_passes and now.cost - left > now.stage.cost_before


def _judged(now: Schedule, outcome: Outcome, tol: float) -> tuple[Schedule, bool]:
    """Continue from where a round has ended, or go back to where it began."""
    gained = now.stage.cost_before - now.cost
    kept = gained > 0
    after = replace(
        now,
        cost=now.cost if kept else now.stage.cost_before,
        rounds=_rounds_after(now.rounds, gained, now.cost, tol),
        lengths=replace(now.lengths, least=_least_length(now.lengths, gained, now.cost)),
    )
    settled = gained == 0 and not outcome.n_moves and not max(outcome.curve, default=0)
    ends = after.rounds.n_failed >= TUNING.most_failed or settled
    if now.everywhere:
        if ends or after.rounds.n >= now.setting.max_rounds:
            return _ended(after), not kept
    elif ends or outcome.n_replayed > TUNING.most_replayed or _more_rows_pay(after, gained):
        return _to_more_rows(after), not kept
    if not kept:
        return _begin(after, "search", _look(after)), True
    return _next_round(after, outcome), False


def _rounds_after(rounds: Rounds, gained: float, cost: float, tol: float) -> Rounds:
    """Return bolder rounds after one that has paid, and more careful ones after a failure."""
    failed = not gained > 0.02 * tol * cost
    share, factor = rounds.share, rounds.factor
    rounds = replace(rounds, n=rounds.n + 1, n_failed=rounds.n_failed + failed)
    if not gained > 0:
        return replace(
            rounds,
            share=share * TUNING.undone_share,
            factor=min(TUNING.first_factor, factor * TUNING.undone_factor),
            n_undone=rounds.n_undone + 1,
        )
    if failed:
        return rounds
    return replace(
        rounds,
        share=max(min(share, TUNING.least_share), share * TUNING.paid_share),
        factor=max(min(factor, TUNING.least_factor), factor * TUNING.paid_factor),
    )


def _more_rows_pay(after: Schedule, gained: float) -> bool:
    """Return True if after a round over a sample more rows would gain more for the work."""
    if not gained > 0:
        return after.rounds.n_undone >= 3
    more, n_more = _gain_of_more_rows(after)
    met = after.setting.n_clusters if _meet_all(after) else 2 * after.lengths.usual
    a_row, a_pass = _work_of_pass(met), after.setting.beside_rows
    work = after.stage.work + after.stage.passes * a_pass
    return gained / work <= more / (n_more * a_row + a_pass)


# --- lengths of lists -----------------------------------------------------------------------------


def _least_length(lengths: Lengths, gained: float, cost: float) -> int:
    """Return the minimum length of lists after a round that has gained this."""
    longer = [n for n, share in TUNING.least_lengths if max(0.0, gained) < share * cost]
    if not gained > 0:
        # It may also have been too many moves: one step is enough.
        longer = [n for n in longer if n > lengths.usual][:1]
    return max([lengths.least, *longer])


def _lengths_of_round(
    lengths: Lengths, setting: Setting, curve: tuple[float, ...]
) -> tuple[int, int]:
    """Return the usual length of lists in a round, and that in its first pass.

    It gains most for its work according to the probe's ``curve``; k or more: all centres.
    """
    k, usual = setting.n_clusters, lengths.usual
    gains = dict(zip((*TUNING.lengths, k), curve, strict=True))
    candidates = [usual, k]
    if setting.length is None:
        best = max(TUNING.usual_lengths, key=lambda n: (_rate(gains, n, n), -n))
        usual = max(lengths.least, best)
        longest = max(LONG, MOST_LISTED // k)
        candidates = [n for n in gains if n >= usual and (n <= longest or n >= k)]
    return usual, max(candidates, key=lambda n: (_rate(gains, n, usual), -n))


def _rate(gains: dict[int, float], length: int, usual: int) -> float:
    """Return gain per work; additional gain of lists longer than the usual ones is stale."""
    fresh = _gain_within(gains, usual)
    gain = fresh + TUNING.stale * (_gain_within(gains, length) - fresh)
    return gain / (length + TUNING.row_work)


def _gain_within(gains: dict[int, float], length: int) -> float:
    """Return the maximum gain of lists up to a length."""
    return max((gain for n, gain in gains.items() if n <= length), default=0.0)
