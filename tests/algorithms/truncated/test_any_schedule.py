"""Schedules of the truncated search under arbitrary outcomes of its passes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from largek_dask.algorithms.truncated.schedule import (
    DENSE_CLUSTERS,
    LENGTHS,
    MOST_FAILED,
    MOST_PASSES,
    MOST_REPLAYED,
    MOST_ROUNDS,
    Outcome,
    Schedule,
    Setting,
    Stage,
    Task,
    first_schedule,
    next_step,
)
from tests.helpers.covering import slow

STEPS_TO_END = 400
"""In which a search ends that gains nothing any more."""

FACTORS = (0.0, 0.5, 0.9, 0.999, 1 - 1e-6, 1 - 1e-12, 1.0, 1 + 1e-12, 1 + 1e-6, 1.001, 1.1, 3.0)
"""Cost after a pass, relative to the one before; overshooting centres may raise it."""
factors = st.one_of(st.sampled_from(FACTORS), st.floats(0.2, 2.0))
NOTHING = (0.0,) * (len(LENGTHS) + 1)
GAINS = (
    NOTHING,
    (1e-3,) * len(NOTHING),
    tuple(0.01 * i for i in range(len(NOTHING))),
    (*NOTHING[1:], 0.5),
)
"""Gains of lists of each length, as shares of the cost: nothing, near, anywhere, far."""

BEGINS: dict[str, list[Any]] = {
    "k": [1, 2, 3, 9, 100, DENSE_CLUSTERS, DENSE_CLUSTERS + 1, 200, 256, 1_000, 1_024, 30_000],
    "a_center": [1, 2, 80, 200, 1_000],
    "moves": [False, True],
    "rounds": [None, None, None, 0, 1, 2, 5],
    "length": [None, None, None, 2, 24, 300],
    "n_features": [1, 64, 10_000],
    "guided": [False, True],
    "tol": [0.0, 1e-4, 1.0],
}
SHARES = [2, 4, 16, 32, 70, 150]
PASSES: dict[str, list[Any]] = {
    "from_begun": [False, True],
    "evaluated": [0.0, 0.01, 1.0],
    "changed": [0, 1, 1000],
    "n_moves": [0, 1, 50],
    "gains": list(GAINS),
    "misled": [0.0, 0.04, 0.06, 10.0],
}


def any_of(choices: dict[str, list[Any]]) -> dict[str, st.SearchStrategy[Any]]:
    """One strategy for each argument."""
    return {name: st.sampled_from(values) for name, values in choices.items()}


class ScheduleMachine(RuleBasedStateMachine):
    """A search with outcomes drawn by hypothesis.

    It keeps what the search keeps besides the schedule: the number of passes since the last anchor,
    and that at the beginning of the last round.
    """

    met: ClassVar[Counter[Any]] = Counter()
    schedule: Schedule
    rows: int | str | None = None
    """Rows of the last pass: number of those of a sample, or "all"."""
    before: Schedule
    """Before the last step."""
    back = False
    n_replayed = 0
    n_replayed_at_round = 0
    done: Outcome
    tol: float

    @initialize(shares=st.lists(st.sampled_from(SHARES), max_size=4, unique=True), **any_of(BEGINS))
    def begin(
        self,
        k: int,
        a_center: int,
        moves: bool,
        rounds: int | None,
        length: int | None,
        n_features: int,
        shares: list[int],
        guided: bool,
        tol: float,
    ) -> None:
        """Any search, on any samples that are smaller than all rows."""
        samples = tuple(share * k for share in sorted(shares) if share < a_center)
        setting = Setting(
            a_center * k,
            k,
            moves and k > 2,
            MOST_ROUNDS if rounds is None else rounds,
            length,
            n_features=n_features,
        )
        self.schedule = first_schedule(setting, samples, guided=guided or bool(samples))
        self.tol = tol
        self.cost = 1e6

    @rule(factors=st.lists(factors, min_size=1, max_size=5), **any_of(PASSES))
    def passes(
        self,
        factors: list[float],
        from_begun: bool,
        evaluated: float,
        changed: int,
        n_moves: int,
        gains: tuple[float, ...],
        misled: float,
    ) -> None:
        """Run some passes, with costs relative to the last one, or to that before the round."""
        for factor in factors:
            if self.schedule.stage.name == "end":
                return
            known = from_begun and self.schedule.stage.cost_before < float("inf")
            cost = factor * (self.schedule.stage.cost_before if known else self.cost)
            curve = tuple(gain * cost for gain in gains)
            self.run_pass(cost, evaluated, changed, n_moves, curve, misled)

    def run_pass(
        self,
        cost: float,
        evaluated: float = 1.0,
        changed: int = 0,
        n_moves: int = 0,
        curve: tuple[float, ...] = NOTHING,
        misled: float = 0.0,
    ) -> None:
        """Run one pass with this outcome."""
        schedule, task = self.schedule, self.schedule.task
        n = schedule.setting.n_rows if schedule.everywhere else schedule.samples[0]
        self.check_task(schedule, n)
        anchor = task.kind in ("cells", "all", "start")
        if self.back:
            # What was undone is not repeated.
            self.n_replayed = self.n_replayed_at_round
        if task.anchors:
            assert task.probes, "the pass must search all rows"
            assert self.rows == ("all" if schedule.everywhere else n), "their labels are known"
            assert schedule.stage.name == "search", "no round can be undone"
            self.n_replayed = 1
        self.n_replayed = 1 if anchor else self.n_replayed + 1
        probed = task.probes and schedule.searched and not schedule.dense
        self.rows = "all" if schedule.everywhere else n
        self.done = Outcome(
            cost=cost,
            work=evaluated * n * schedule.setting.n_clusters + 8.0 * n,
            n_changed=changed,
            n_replayed=self.n_replayed,
            n_moves=n_moves if task.probes and schedule.setting.moves else 0,
            curve=curve if probed else (),
            misled=misled if probed and not schedule.everywhere else 0.0,
            met=min(1.0, evaluated),
        )
        self.before = schedule
        self.schedule, self.back = next_step(schedule, self.done, self.tol)
        self.cost = self.schedule.stage.cost_before if self.back else cost
        if self.schedule.opens_round:
            self.n_replayed_at_round = self.n_replayed
        self.count()
        self.a_round_begins_after_a_probe_of_the_same_rows()
        self.rounds_lower_the_cost_or_are_undone()
        self.the_search_ends_after_a_probe()
        # What is lost can be made again in a bounded number of passes.
        most = schedule.setting.most_replayed if schedule.everywhere else MOST_REPLAYED
        assert self.n_replayed <= most + 2 * MOST_PASSES

    def count(self) -> None:
        """Count the situations that the machine has met."""
        last, dense = self.before, self.before.dense
        if last.stage.name == "round" and self.back:
            how = "undone" if last.task.probes else "undone without a probe"
            self.met[how, dense, last.everywhere] += 1
        elif last.stage.name == "round" and last.task.probes:
            self.met["kept", dense, last.everywhere] += 1
        task = self.schedule.task
        self.met["anchored", task.kind] += self.schedule.stage.name == "search" and (
            task.anchors or task.kind == "all"
        )
        self.met["without cost"] += self.done.cost == 0 and not last.everywhere

    def check_task(self, schedule: Schedule, n: int) -> None:
        """A task is possible after the pass before it."""
        task, k = schedule.task, schedule.setting.n_clusters
        rows = "all" if schedule.everywhere else n
        if rows != self.rows or (task.kind == "start" and schedule.everywhere):
            assert task.kind in (
                ("cells", "all") if schedule.everywhere else ("cells", "all", "start")
            )
        if self.back and rows == self.rows:
            assert task.kind == "lists" or schedule.dense, "rows go back to where they were"
        if task.kind == "lists":
            assert 1 <= task.length <= k
        if task.kind != "start":
            assert schedule.cost < float("inf") or self.rows is None

    def a_round_begins_after_a_probe_of_the_same_rows(self) -> None:
        """Moves and lengths of lists are those found by the probe."""
        if self.schedule.opens_round:
            assert self.before.task.probes
            assert self.before.samples == self.schedule.samples
            assert not self.back

    def rounds_lower_the_cost_or_are_undone(self) -> None:
        """A round that is kept has ended lower than it began; else all goes back."""
        if self.before.stage.name != "round":
            assert not self.back
            return
        ended = self.schedule.stage.name != "round" or self.schedule.stage.passes == 0
        if self.back:
            assert ended
            assert self.schedule.cost == self.before.stage.cost_before
        elif ended and self.done.cost > 0:
            assert self.done.cost < self.before.stage.cost_before

    def the_search_ends_after_a_probe(self) -> None:
        """The search ends when a probe has found nothing, or after some failed rounds."""
        if self.schedule.stage.name != "end" or self.before.task.probes:
            return
        last = self.before
        failed = last.rounds.n_failed + 1 >= MOST_FAILED
        assert failed or self.done.cost == 0 or last.rounds.n + self.back >= last.setting.max_rounds

    def teardown(self) -> None:
        """A search that gains nothing any more ends."""
        if not hasattr(self, "schedule"):
            return
        for _ in range(STEPS_TO_END):
            if self.schedule.stage.name == "end":
                break
            self.run_pass(self.cost)
        assert self.schedule.stage.name == "end"
        assert self.schedule.task == Task("all")


@pytest.mark.parametrize("examples", [60, *slow(600)])
def test_schedules_under_hypothesis(examples: int) -> None:
    """No exception, and what the machine asserts."""
    run_state_machine_as_test(
        ScheduleMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, derandomize=True, deadline=None
        ),
    )


def test_schedules_under_random_outcomes() -> None:
    """The same with seeded draws: hypothesis may draw others in another environment."""
    ScheduleMachine.met = Counter()
    for seed in range(600):
        rng = random.Random(seed)
        machine = ScheduleMachine()
        begin = {name: rng.choice(values) for name, values in BEGINS.items()}
        machine.begin(shares=rng.sample(SHARES, rng.randrange(5)), **begin)
        for _ in range(rng.randrange(30)):
            steps = {name: rng.choice(values) for name, values in PASSES.items()}
            machine.passes(factors=rng.choices(FACTORS, k=rng.randint(1, 5)), **steps)
        machine.teardown()
    # Otherwise the test would prove nothing.
    for dense in (True, False):
        for everywhere in (True, False):
            for what in ("kept", "undone", "undone without a probe"):
                assert ScheduleMachine.met[what, dense, everywhere] > 0
    assert ScheduleMachine.met["anchored", "all"] > 0
    assert ScheduleMachine.met["anchored", "lists"] > 0
    assert ScheduleMachine.met["without cost"] > 0


def in_round(passes: int, cost: float = 100.0, samples: tuple[int, ...] = ()) -> Schedule:
    """A schedule whose round began at 100 and is at a cost after so many passes."""
    return Schedule(
        Task("lists", 32),
        Setting(n_rows=1_000_000, n_clusters=1_000),
        Stage("round", passes, work=1e6, cost_before=100.0),
        samples,
        length=32,
        cost=cost,
    )


def stepped(schedule: Schedule, outcome: Outcome, tol: float = 1e-4) -> tuple[Schedule, bool]:
    """The next schedule, with the usual ``tol``."""
    return next_step(schedule, outcome, tol)


def test_a_round_without_changes_ends_the_search_only_after_a_probe():
    """Moves may have led back to the same cost; others may be found."""
    schedule, back = stepped(
        in_round(3, 100.0), Outcome(cost=100.0, work=1e5, n_changed=0, n_replayed=4)
    )
    assert not back
    assert schedule.task.probes
    assert stepped(schedule, Outcome(100.0, 1e5, 0, 5, 3, NOTHING))[0].task.probes, (
        "undone, and once more"
    )
    assert stepped(schedule, Outcome(100.0, 1e5, 0, 5, 0, NOTHING))[0].stage.name == "end"


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("n_rows", [1_000_000, 10_000_000])
def test_an_anchor_precedes_a_round_after_too_many_passes(more, n_rows):
    schedule = replace(in_round(3, 90.0), task=Task("lists", 32, probes=True))
    schedule = replace(schedule, setting=replace(schedule.setting, n_rows=n_rows))
    done = Outcome(90.0, 1e5, 10, MOST_REPLAYED + more, n_moves=3, curve=NOTHING)
    schedule, back = stepped(schedule, done)
    assert not back
    assert schedule.opens_round == (more == 0)
    assert schedule.stage.name == ("round", "search")[more]
    is_many = n_rows > 1_000_000
    assert schedule.task.anchors == (more == 1 and not is_many), "labels of fewer rows are held"
    assert schedule.task.kind == ("all" if more and is_many else "lists")


def test_a_sample_of_cost_zero_does_not_end_the_search():
    schedule = replace(in_round(3, 1.0, (100_000,)), task=Task("lists", 32, probes=True))
    schedule, back = stepped(schedule, Outcome(0.0, 1e5, 0, 5, 0, NOTHING))
    assert not back
    schedule, _ = stepped(schedule, Outcome(0.0, 1e5, 0, 6))
    while not schedule.everywhere:
        schedule, _ = stepped(schedule, Outcome(0.0, 1e5, 0, 6, 0, NOTHING))
    assert schedule.task == Task("cells", keeps_centers=True), "other rows may cost something"
