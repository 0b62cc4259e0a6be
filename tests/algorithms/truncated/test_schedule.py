"""Decisions of the schedule: samples, rounds, lengths of lists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from largek_dask.algorithms.truncated.schedule import (
    LEAST_SHARE,
    LENGTHS,
    MOST_ROUNDS,
    Outcome,
    Schedule,
    Setting,
    Task,
    first_schedule,
    next_step,
)
from tests.helpers.covering import in_turns

N, K = 1_000_000, 1_000


FLAT = (0.0,) * (len(LENGTHS) + 1)


def done(cost, *, moves=5, curve=FLAT, work=1e6, changed=100, replayed=3, misled=0.0) -> Outcome:
    return Outcome(cost, work, changed, replayed, moves, curve, misled)


def stepped(schedule: Schedule, outcome: Outcome, tol: float = 1e-4) -> tuple[Schedule, bool]:
    """The next schedule, with the usual ``tol``."""
    return next_step(schedule, outcome, tol)


def in_round(cost=100.0) -> Schedule:
    """A schedule whose next step opens a round."""
    schedule = first_schedule(Setting(N, K))
    schedule, _ = stepped(schedule, done(cost))
    assert schedule.task.probes
    schedule, back = stepped(schedule, done(cost))
    assert schedule.opens_round
    assert not back
    return schedule


def test_tasks_up_to_the_first_round():
    schedule = first_schedule(Setting(N, K), (8_000, 32_000, 60_000))
    assert schedule.task == Task("cells")
    schedule, _ = stepped(schedule, done(300.0))
    assert schedule.task == Task("start", 32, probes=True)
    schedule, _ = stepped(schedule, done(220.0))
    assert schedule.task == Task("cells"), "on to more rows"
    assert schedule.samples == (60_000,)
    schedule, _ = stepped(schedule, done(215.0))
    assert schedule.task == Task("lists", 32, probes=True)
    schedule, _ = stepped(schedule, done(214.9))
    assert schedule.task == Task("cells")
    assert schedule.everywhere
    schedule, _ = stepped(schedule, done(210.0))
    assert schedule.task == Task("lists", 32, probes=True)
    schedule, _ = stepped(schedule, done(185.0))
    assert schedule.opens_round


def on_sample(n=128_000, k=K, rounds=MOST_ROUNDS) -> Schedule:
    """A schedule whose next step opens the first round, over a sample of n rows."""
    schedule = first_schedule(Setting(N, k, max_rounds=rounds), (n,))
    while not schedule.opens_round:
        schedule, _ = stepped(schedule, done(100.0))
    assert not schedule.everywhere
    return schedule


def round_over(schedule, cost, **about) -> tuple[Schedule, bool]:
    """The schedule after a round whose passes all have this cost, and whether it is undone."""
    assert schedule.opens_round
    schedule, back = stepped(schedule, done(cost, **about))
    while schedule.stage.passes > 0:
        schedule, back = stepped(schedule, done(cost, **about))
    return schedule, back


def test_a_sample_is_left_after_three_undone_rounds():
    schedule, places = on_sample(), []
    for _ in range(3):
        while not schedule.opens_round:
            schedule, _ = stepped(schedule, done(schedule.cost))
        schedule, back = round_over(schedule, 150.0)
        assert back
        assert schedule.cost == 100
        places.append(schedule.everywhere)
    assert places == [False, False, True]
    assert schedule.rounds.share == LEAST_SHARE, "bold enough for other rows"
    assert (
        schedule.rounds.n,
        schedule.rounds.n_failed,
        schedule.rounds.n_undone,
        schedule.least_length,
    ) == (0, 0, 0, 0)


def test_a_sample_is_left_when_a_round_changes_nothing():
    schedule, _ = round_over(on_sample(), 100.0, moves=0)
    assert schedule.everywhere


@pytest.mark.parametrize(("met", "kind"), [(0.5, "cells"), (0.51, "all")])
def test_more_rows_meet_all_centres_if_cells_exclude_few(met, kind):
    schedule = first_schedule(Setting(N, K), (8_000, 32_000, 60_000))
    assert schedule.task.kind == "cells"
    schedule, _ = stepped(schedule, replace(done(300.0), met=met))
    # That of another pass says nothing of cells.
    schedule, _ = stepped(schedule, replace(done(220.0), met=0.03))
    assert (schedule.task.kind, schedule.everywhere) == (kind, False)
    for cost in (215.0, 214.9, 214.8):
        if not schedule.everywhere:
            schedule, _ = stepped(schedule, replace(done(cost), met=met))
    assert (schedule.task.kind, schedule.everywhere) == (kind, True)
    assert not schedule.task.keeps_centers


@pytest.mark.parametrize(
    ("misled", "kind", "larger"),
    [(0.04, "cells", ()), (0.06, "all", (512_000,)), (0.06, "all", ())],
)
def test_more_rows_meet_all_centres_if_cells_mislead(misled, kind, larger):
    schedule = replace(on_sample(), samples=(128_000, *larger))
    schedule, _ = round_over(schedule, 99.99, misled=misled, work=1e9)
    assert schedule.task.kind == kind
    assert schedule.everywhere is not bool(larger)
    assert schedule.task.keeps_centers is (kind == "cells"), (
        "centres wait until rows are where they belong"
    )
    assert not stepped(schedule, done(100.0))[0].task.keeps_centers


@pytest.mark.parametrize("sizes", [(6_400,), ()])
def test_sparse_rows_have_a_model_before_a_probe(sizes):
    setting = Setting(20_000, 100, sparse=True)
    schedule = first_schedule(setting, sizes)
    assert schedule.task == Task("all", 100)
    schedule, _ = stepped(schedule, done(220.0, moves=0))
    assert schedule.task == Task("all", 100, probes=True)
    schedule, back = stepped(schedule, done(200.0))
    assert not back
    assert schedule.opens_round
    dense = first_schedule(replace(setting, sparse=False), sizes)
    assert dense.task.probes, "of dense rows a look takes less than a pass"


def test_round_that_pays_is_kept():
    schedule = in_round()
    schedule, back = stepped(schedule, done(95.0))
    while not schedule.task.probes:
        schedule, back = stepped(schedule, done(schedule.cost - 0.1))
    schedule, back = stepped(schedule, done(94.0))
    assert not back
    assert schedule.opens_round
    assert schedule.rounds.n_failed == 0
    assert schedule.rounds.factor < 1


def test_round_that_does_not_pay_is_undone():
    schedule = in_round(100.0)
    share = schedule.rounds.share
    for cost in (120.0, 119.0, 118.9):
        schedule, back = stepped(schedule, done(cost))
    assert back, "what three passes have not mended, further ones will not"
    assert schedule.cost == 100.0
    assert schedule.task.probes
    assert schedule.rounds.n_failed == 1
    assert schedule.rounds.share == share / 2


def test_round_continues_while_it_may_pay():
    schedule = in_round(100.0)
    for cost in (120.0, 110.0, 104.0):
        schedule, back = stepped(schedule, done(cost))
        assert not back
    assert not schedule.task.probes


@pytest.mark.parametrize(("k", "seed"), in_turns([50, K], range(4)))
def test_decisions_do_not_depend_on_the_unit_of_costs(seed, k):
    """The same outcomes in other units lead to the same steps."""
    ways = []
    for unit in (2.0**-30, 1.0, 2.0**30):
        r = np.random.default_rng(seed)
        schedule, cost, way = first_schedule(Setting(N, k), (64 * k, 256 * k)), 4.0, []
        for _ in range(150):
            cost = schedule.cost / unit if np.isfinite(schedule.cost) else cost
            cost *= 1 + r.choice([-0.1, -1e-3, -1e-5, 0, 1e-5, 1e-3, 0.05], p=SHARES)
            curve = tuple((unit * cost * 1e-3 * np.sort(r.random(len(FLAT)))).tolist())
            schedule, back = stepped(schedule, done(cost * unit, curve=curve))
            way.append(
                (
                    schedule.stage.name,
                    schedule.task,
                    schedule.stage.passes,
                    schedule.rounds.n_failed,
                    schedule.least_length,
                    back,
                )
            )
        ways.append(way)
    assert ways[0] == ways[1] == ways[2]
    assert {stage for stage, *_ in ways[0]} > {"sample", "grow", "round"}


SHARES = [0.1, 0.3, 0.2, 0.05, 0.1, 0.15, 0.1]


@pytest.mark.parametrize(("tol", "ends"), [(0.0, False), (1e-4, False), (0.1, True)])
def test_tol_is_the_minimum_gain_of_a_round(tol, ends):
    schedule = first_schedule(Setting(N, K))
    for cost in np.geomspace(100, 99, 200).tolist():
        schedule, _ = stepped(schedule, done(cost), tol)
        if schedule.stage.name == "end":
            break
    assert (schedule.stage.name == "end") is ends


def test_cost_zero_ends_the_search():
    assert stepped(in_round(), done(0.0))[0].stage.name == "end"


def look_with(curve, *, length=None) -> Schedule:
    schedule = first_schedule(Setting(N, K, length=length))
    schedule, _ = stepped(schedule, done(100.0))
    return stepped(schedule, done(100.0, curve=curve))[0]


def test_given_length_is_kept():
    assert look_with((10.0,) * len(FLAT), length=24).task == Task("lists", 24)
    assert look_with((*FLAT[1:], 100.0), length=24).task.kind == "unsettled"


def test_passes_since_the_anchor_are_bounded():
    schedule = in_round()
    while not schedule.task.probes:
        schedule, _ = stepped(schedule, done(schedule.cost - 0.1))
    schedule, _ = stepped(schedule, done(schedule.cost - 0.1, replayed=1_000))
    assert (schedule.task.anchors, schedule.task.probes) == (True, True)
    assert not schedule.opens_round
    schedule, _ = round_over(on_sample(), 99.0, replayed=1_000)
    assert schedule.task == Task("cells", keeps_centers=True), "a sample is left instead"
