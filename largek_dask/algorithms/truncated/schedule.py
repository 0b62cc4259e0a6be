"""Schedule of the truncated search: choose the next step by the gains of the steps so far.

The gain of a pass is its reduction of the cost, known from exact sums or estimated by a probe. Work
is counted in distances. Neither depends on a clock or a machine, so the same data give the same
steps everywhere.

:func:`first_schedule` begins a search, and :func:`next_step` returns the schedule after each step.
There are three groups of decisions: *samples* (the rows on which a search begins, and when it
continues on more rows), *rounds* (when the passes after some moves end, and when the moves are
undone), and *lengths* of the lists of centres that rows are compared with.

To test the sensitivity, each constant was halved and doubled, and the decisions of 2,741 steps were
repeated (three seeds on A, B, plane, gaussian, mnist, sift200k, glove100k and reuters, with 50 to
500 clusters). No constant changed more than 15 % of the decisions; most changed less than 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

TaskKind = Literal["start", "cells", "lists", "all", "unsettled"]
StageName = Literal["first", "sample", "grow", "search", "round", "end"]

# Samples.
FIRST_ROWS = 16
"""Rows per centre in the first sample. With 8, mini-batches reach the cost of the first model in
half the time (sift200k, ``benchmarks.auto``)."""
START_ROWS = 32
"""Rows per centre in the second sample, on which the search continues."""
RESTART_ROWS = 64
"""Rows per centre in a sample for several starts, and in the first sample of sparse rows. With 8, a
search on 200,000 short texts in 100 clusters ends at a 0.5 % higher cost."""
GROWTH = 4
"""Ratio of the sizes of successive samples."""
LARGEST_SHARE = 3
"""Minimum ratio of the number of all rows to the size of a sample."""
START_VALUES, LARGEST_VALUES, WHOLE_VALUES = 1 << 25, 1 << 26, 1 << 27
"""Maximum number of values (rows times features) in the second sample, in larger samples, and in a
table that is small enough to be searched as a whole."""
ROWS_TO_SEARCH = 64
"""Minimum rows per centre in a sample for rounds of moves on this sample. Without such rounds, a
search on B in 1,000 clusters takes 2.37 s instead of 1.66 s (``benchmarks.auto_parts``), and reads
a stored table 79 times instead of once (``benchmarks.auto_scale``)."""
RESTARTED_CLUSTERS = 32
"""Maximum number of clusters for which the best of several starts is used."""
DENSE_CLUSTERS = 128
"""Maximum number of clusters for which rows are compared with all centres. With lists, a search on
uniform rows in 100 clusters takes 0.90 s instead of 0.63 s (``benchmarks.auto_parts``)."""
MOST_MET = 0.5
"""If coarse cells compare rows with more than this share of the centres, all centres are searched
instead, which is as fast because no centres are gathered."""
WHOLE_CLUSTERS = 2_048
"""Maximum number of clusters for which rows without labels are compared with all centres when a
search in few directions continues in more. With coarse cells instead, the cost of 3,000,000 × 256
rows in 1,000 clusters rose by 19 %, which took 40 CPU seconds to recover (one run)."""

# Work, in distances.
ROW_WORK = 64.0
"""Cost per searched row, in addition to its distances."""
PASS_WORK = 8.0
"""Cost per row of a pass, even if the row is not searched."""

# Rounds.
MOST_ROUNDS = 1_000
"""Maximum number of rounds over all rows, unless set by the user."""
FIRST_SHARE, LEAST_SHARE = 0.1, 0.05
"""Share of the centres that may move at a time: initial value, and minimum after successful
rounds."""
FIRST_FACTOR, LEAST_FACTOR = 1.0, 0.35
"""Minimum ratio of the gain of a move to its loss: initial value, and minimum after successful
rounds. Ratios below 1 give the lowest final costs, as rounds that raise the cost are undone."""
MOST_FAILED = 5
"""Number of failed rounds after which the search ends."""
LEAST_PASSES, MOST_PASSES = 2, 12
"""Minimum and maximum number of passes of a round before its probe."""
MOST_REPLAYED = 48
"""Maximum number of passes since the last anchor when a round begins. If row state is lost, all
these passes are repeated."""
MOST_GIVEN = 1 << 21
"""Maximum number of rows whose labels the driver holds as an anchor (8 MiB)."""
HISTORY_VALUES = 1 << 26
"""Maximum number of values of all centres of the passes since the last anchor when a round begins,
if labels can be an anchor (256 MiB of float32; not tuned)."""

# Lengths of lists.
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
"""Possible lengths of lists of centres. Rows may also be compared with all centres."""
USUAL_LENGTHS = (32, 64)
"""Lengths of lists in most passes."""
LEAST_LENGTHS = ((64, 1e-3), (128, 5e-4), (256, 2e-4))
"""Pairs of a minimum length of lists and a relative gain: the minimum applies after rounds with a
lower gain. With short lists only, a search on rows without structure ends 0.16 % instead of 0.03 %
above the lowest cost (``benchmarks.auto_parts``)."""
LONG, MOST_LISTED = 256, 1 << 23
"""Lists longer than ``LONG`` are used only if all lists together contain at most ``MOST_LISTED``
centres (32 MiB)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Size of the problem, and parameters set by the user."""

    n_rows: int
    n_clusters: int
    moves: bool = True
    max_rounds: int = MOST_ROUNDS
    """Maximum number of rounds over all rows; with 0, there are no rounds over samples either."""
    length: int | None = None
    """Length of all lists; None if the search chooses it."""
    sparse: bool = False
    center_work: float = 0.0
    n_features: int = 1

    @property
    def most_replayed(self) -> int:
        """Maximum number of passes since the last anchor when a round over all rows begins."""
        if self.dense or self.n_rows > MOST_GIVEN:
            return MOST_REPLAYED
        # A round begins after at least two passes: labels as an anchor, and a probe.
        fit = HISTORY_VALUES // (self.n_clusters * self.n_features)
        return min(MOST_REPLAYED, max(2, fit))

    @property
    def dense(self) -> bool:
        return self.sparse or (self.length is None and self.n_clusters <= DENSE_CLUSTERS)


@dataclass(frozen=True, slots=True)
class Task:
    """Pass of one step."""

    kind: TaskKind
    """Centres that rows are compared with. "start": lists, after a two-level start on a sample.
    "cells": the centres of near coarse cells, without row state. "lists": the list of the row's
    cluster. "all": all centres. "unsettled": all centres, unless bounds prove which centre is
    nearest."""
    length: int = 16
    probes: bool = False
    """True to search settled rows as well, and then to choose moves and the length of lists."""
    keeps_centers: bool = False
    """True to label rows without updating the centres, because means of roughly labelled rows are
    worse (on B, 2.5 % instead of 1.9 % above the lowest cost)."""
    restarts: bool = False
    """True to begin with new centres, which are found on the sample."""
    anchors: bool = False
    """True to replace all earlier passes by the labels of the rows. The task must be a probe, which
    searches all rows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a step."""

    cost: float
    """Cost of the labels after the step, with the means of the clusters as centres."""
    work: float
    n_changed: int
    n_replayed: int = 0
    n_moves: int = 0
    curve: tuple[float, ...] = ()
    """Estimated gain of a pass with lists of each of ``LENGTHS``, and of a pass with all
    centres."""
    misled: float = 0.0
    """Relative increase of the cost when rows are assigned by coarse cells."""
    restart_rows: int = 0
    """Size of a new sample on which to start again, because the previous sample missed rows that
    account for much of the cost; 0 to continue."""
    met: float = 0.0
    """Mean share of the centres that each row was compared with."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: StageName
    """Purpose of the steps. "first": find a first model on the smallest of several samples.
    "sample": run passes over a sample, as long as they gain more than additional rows would.
    "grow": label the rows outside the sample. "search": probe for moves to try. "round": try these
    moves. "end": the search has ended."""
    passes: int = 0
    work: float = 0.0
    cost_before: float = float("inf")
    last_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Rounds:
    share: float = FIRST_SHARE
    factor: float = FIRST_FACTOR
    n_found: int = 1 << 30
    """Number of moves that the last probe found; unlimited before the first probe."""
    n: int = 0
    n_failed: int = 0
    n_undone: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """State of the search, including its next step."""

    task: Task
    setting: Setting
    stage: Stage
    samples: tuple[int, ...]
    """Sizes of the current sample and of later samples; empty if the search covers all rows."""
    length: int
    least_length: int = 0
    """Minimum value of ``length``, which is raised after rounds of little gain."""
    rounds: Rounds = Rounds()
    misled: float = 0.0
    """Value of ``Outcome.misled`` for the current sample."""
    met: float = 0.0
    """Value of ``Outcome.met`` for the last pass by coarse cells."""
    cost: float = float("inf")

    @property
    def dense(self) -> bool:
        return self.setting.dense

    @property
    def everywhere(self) -> bool:
        """True if the search covers all rows."""
        return not self.samples

    @property
    def n_rows(self) -> int:
        return self.samples[0] if self.samples else self.setting.n_rows

    @property
    def searched(self) -> bool:
        """True if there are rounds of moves on the current rows (a sample or all rows)."""
        enough = self.n_rows >= ROWS_TO_SEARCH * self.setting.n_clusters
        return self.everywhere or (self.setting.max_rounds > 0 and enough)

    @property
    def opens_round(self) -> bool:
        """True if the next step is the first step of a round."""
        return self.stage.name == "round" and self.stage.passes == 0


def first_schedule(
    setting: Setting, samples: tuple[int, ...] = (), *, guided: bool = True
) -> Schedule:
    """Return the schedule before the first step.

    ``samples`` are the sizes of the samples on which the search begins; if empty, it begins on all
    rows. ``guided`` is True if rows are first assigned by coarse cells.
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


def on_all_rows(before: Schedule, setting: Setting, cost: float, *, labelled: bool) -> Schedule:
    """Return the schedule that continues a search on all rows, in more directions or features.

    ``labelled`` is True if the rows have labels, whose cost is at most ``cost``.
    """
    now = first_schedule(setting, guided=setting.n_clusters > WHOLE_CLUSTERS)
    now = replace(now, rounds=_first_rounds(before.rounds), length=before.length)
    if labelled:
        return replace(now, task=_pass(now, "lists", probes=True), cost=cost)
    return replace(now, task=replace(now.task, keeps_centers=not now.dense))


def next_step(schedule: Schedule, outcome: Outcome, tol: float) -> tuple[Schedule, bool]:
    """Return the schedule after a step, and True if the round has to be undone.

    A round fails if its relative reduction of the cost is less than ``tol / 50``.
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


def _pass(now: Schedule, kind: TaskKind, *, probes: bool = False) -> Task:
    """Return a pass over the current rows, with lists of the usual length or all centres."""
    length = now.length if kind in ("start", "lists") else now.setting.n_clusters
    return Task(kind, length, probes)


def _anchor(now: Schedule, *, dense: bool) -> Task:
    """Return an anchor: a pass with all centres if ``dense``, otherwise with coarse cells."""
    if not dense:
        return Task("cells")
    # A probe of sparse rows takes longer than a pass, so improve the model first.
    probes = now.dense and not now.setting.sparse and (now.everywhere or _shows_moves(now))
    return _pass(now, "all", probes=probes)


def sample_sizes(
    n_rows: int, row_values: int, k: int, n_features: int | None = None
) -> tuple[int, ...]:
    """Return the ascending sizes of the samples on which the search begins; at least one.

    If ``n_features`` is given, rows are sparse and contain ``row_values`` values each.
    """
    # Small samples of sparse rows rarely overlap, so they give poor initial centres.
    restarted = k <= RESTARTED_CLUSTERS or n_features is not None
    first = max(RESTART_ROWS * k, 2_048) if restarted else 8 * k
    if n_rows <= LARGEST_SHARE * first and n_rows * row_values <= WHOLE_VALUES:
        return (n_rows,)
    most = n_rows // LARGEST_SHARE
    wanted = first if restarted else START_ROWS * k
    if n_features is not None:
        # With fewer rows, a step would spend most of its time on the dense centres.
        wanted = max(wanted, 20 * n_features // row_values)
    sizes = [min(wanted, most, max(4 * k, START_VALUES // row_values))]
    if n_features is not None and n_rows * row_values <= WHOLE_VALUES:
        a_row, a_pass = k + ROW_WORK + PASS_WORK, center_work(n_features, row_values, k)
        # All rows give a better model, and are worth twice the time of a pass over a sample.
        if n_rows * a_row + a_pass <= 2 * (sizes[0] * a_row + a_pass):
            return (n_rows,)
    while GROWTH * sizes[-1] <= min(most, LARGEST_VALUES // row_values):
        sizes.append(GROWTH * sizes[-1])
    if not restarted and k > DENSE_CLUSTERS and START_ROWS * k <= sizes[0]:
        # The first sample gives a good first model early; the search continues on the next one.
        return (FIRST_ROWS * k, *sizes)
    return (first, *sizes) if GROWTH * first <= sizes[0] else tuple(sizes)


def center_work(n_features: int, row_values: int, k: int) -> float:
    """Return the fixed cost of a pass over sparse rows, in distances.

    Sums, means and packed centres are dense. The factor was measured on Reuters and on short texts
    (``benchmarks.sparse``).
    """
    return 128.0 * k * n_features / row_values


def _shows_moves(now: Schedule) -> bool:
    """Return True if the sample is large enough to choose moves on it."""
    return now.setting.moves and now.n_rows >= 32 * now.setting.n_clusters


def _after_sample_pass(now: Schedule, gain: float, outcome: Outcome) -> Schedule:
    passes, anchor = now.stage.passes, _anchor(now, dense=now.dense)
    if now.task.kind == "cells":
        # Rows now have labels, so the next pass can use lists.
        return replace(now, task=_pass(now, "lists", probes=_shows_moves(now)))
    if now.searched:
        # Row state after the two-level start cannot be replayed.
        starts = now.task.kind == "start"
        return replace(now, task=anchor) if starts else _to_rounds(now, outcome)
    more, n_more = _gain_of_more_rows(now)
    pays = gain / now.n_rows > 2 * more / n_more if passes > 1 else now.dense
    return replace(now, task=anchor) if pays and passes < 12 else _to_more_rows(now)


def _gain_of_more_rows(now: Schedule) -> tuple[float, int]:
    """Return the gain expected from more accurate means on the next sample, and its size."""
    n, *larger = now.samples
    n_more = larger[0] if larger else now.setting.n_rows
    return now.cost * now.setting.n_clusters * (1 / n - 1 / n_more), n_more


def _meet_all(now: Schedule) -> bool:
    """Return True if the next sample should begin with a comparison with all centres."""
    misled = now.stage.name == "round" and now.misled > 0.05
    return now.dense or misled or now.met > MOST_MET


def _to_more_rows(now: Schedule) -> Schedule:
    meet_all = _meet_all(now)
    keeps_centers = now.searched and not meet_all
    now = replace(now, samples=now.samples[1:], rounds=_first_rounds(now.rounds), least_length=0)
    task = replace(_anchor(now, dense=meet_all), keeps_centers=keeps_centers)
    return _begin(now, "grow" if now.everywhere else "sample", task)


def _first_rounds(before: Rounds) -> Rounds:
    """Return the limits on moves for the first round on new rows."""
    return Rounds(max(before.share, LEAST_SHARE), before.factor, before.n_found)


def _to_rounds(now: Schedule, outcome: Outcome) -> Schedule:
    return _next_round(now, outcome) if now.task.probes else _begin(now, "search", _probe(now))


def _probe(now: Schedule) -> Task:
    return _pass(now, "all" if now.dense else "lists", probes=True)


def _next_round(now: Schedule, outcome: Outcome) -> Schedule:
    if now.everywhere and now.rounds.n >= now.setting.max_rounds:
        return _begin(now, "end", Task("all"))
    most = now.setting.most_replayed if now.everywhere else MOST_REPLAYED
    if outcome.n_replayed > most:
        # If row state were lost, it would take too long to rebuild, so insert an anchor.
        if now.dense or now.n_rows > MOST_GIVEN:
            return _begin(now, "search", _pass(now, "all"))
        return _begin(now, "search", replace(_probe(now), anchors=True))
    if now.dense:
        # After moves, bounds do not prove which centre is nearest.
        return _begin(now, "round", _pass(now, "all" if outcome.n_moves else "unsettled"))
    k = now.setting.n_clusters
    usual, length = _lengths_of_round(now, outcome.curve)
    kind: TaskKind = "unsettled" if length >= k else "lists"
    task = Task(kind, min(length, k))
    return _begin(replace(now, length=min(usual, k)), "round", task)


def _after_round_pass(
    now: Schedule, gain: float, outcome: Outcome, tol: float
) -> tuple[Schedule, bool]:
    """Continue after a pass of a round: run another pass or a probe, or end the round."""
    stage, ratio = now.stage, 0.5
    if stage.last_gain > 0:
        # Gains are expected to decrease geometrically.
        ratio = min(0.9, max(0.3, gain / stage.last_gain))
    # Maximum expected gain of all further passes; 0 after a pass that raised the cost.
    hope = max(0.7, ratio)
    left = max(0.0, gain * hope / (1 - hope))
    is_lost = stage.passes > LEAST_PASSES and now.cost - left > stage.cost_before
    if now.task.probes or is_lost:
        # A round that will be undone needs no probe.
        return _judged(now, outcome, tol)
    average = (stage.cost_before - now.cost) / stage.work
    pays = ratio * gain / outcome.work > average and outcome.n_changed > 0
    task = _probe(now)
    if stage.passes < MOST_PASSES and (stage.passes < LEAST_PASSES or pays):
        task = _pass(now, "unsettled" if now.dense else "lists")
    return replace(now, stage=replace(stage, last_gain=gain), task=task), False


def _judged(now: Schedule, outcome: Outcome, tol: float) -> tuple[Schedule, bool]:
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
    """Return the limits on moves after a round; only a success allows moves of lower gain."""
    failed = not gained > 0.02 * tol * cost
    share, factor = rounds.share, rounds.factor
    rounds = replace(rounds, n=rounds.n + 1, n_failed=rounds.n_failed + failed)
    if not gained > 0:
        share, factor = share * 0.5, min(FIRST_FACTOR, factor * 1.1)
        return replace(rounds, share=share, factor=factor, n_undone=rounds.n_undone + 1)
    if failed:
        return rounds
    # A factor of 0.7 instead of 0.85 doubles the work to get within 1 % of the final cost (B).
    share = max(min(share, LEAST_SHARE), share * 0.8)
    return replace(rounds, share=share, factor=max(min(factor, LEAST_FACTOR), factor * 0.85))


def _more_rows_pay(after: Schedule, gained: float) -> bool:
    """Return True if more rows are expected to gain more per unit of work than the last round."""
    if not gained > 0:
        return after.rounds.n_undone >= 3
    more, n_more = _gain_of_more_rows(after)
    met = after.setting.n_clusters if _meet_all(after) else 2 * after.length
    a_row, a_pass = met + ROW_WORK + PASS_WORK, after.setting.center_work
    work = after.stage.work + after.stage.passes * a_pass
    return gained / work <= more / (n_more * a_row + a_pass)


def _least_length(now: Schedule, gained: float) -> int:
    """Return the minimum length of lists after a round that lowered the cost by ``gained``."""
    longer = [n for n, share in LEAST_LENGTHS if max(0.0, gained) < share * now.cost]
    if not gained > 0:
        # Short lists may not be the cause of the failure, so only take the next length.
        longer = [n for n in longer if n > now.length][:1]
    return max([now.least_length, *longer])


def _lengths_of_round(now: Schedule, curve: tuple[float, ...]) -> tuple[int, int]:
    """Return the usual length of lists in a round, and the length in its first pass.

    Both maximise the gain per unit of work, estimated by ``curve``; k or more means all centres.
    """
    k, usual = now.setting.n_clusters, now.length
    gains = dict(zip((*LENGTHS, k), curve, strict=True))

    def within(length: int) -> float:
        return max((gain for n, gain in gains.items() if n <= length), default=0.0)

    def rate(length: int, usual: int) -> float:
        """Return the gain per unit of work; gains beyond the usual length have a lower weight."""
        # If labels are outdated, their cost decreases more than the inertia.
        fresh = within(usual)
        return (fresh + 0.6 * (within(length) - fresh)) / (length + ROW_WORK)

    candidates = [usual, k]
    if now.setting.length is None:
        usual = max(now.least_length, max(USUAL_LENGTHS, key=lambda n: (rate(n, n), -n)))
        longest = max(LONG, MOST_LISTED // k)
        candidates = [n for n in gains if n >= usual and (n <= longest or n >= k)]
    return usual, max(candidates, key=lambda n: (rate(n, usual), -n))
