"""Passes on very many workers: what is simulated adds up, and the command runs."""

from __future__ import annotations

import json

import pytest

from benchmarks import many
from benchmarks import many_simulated as simulated
from benchmarks.many_simulated import LATENCY, Costs, Line, Shape, Simulation, fitted

NOTHING = {who: Line() for who in many.ROLES}
FREE = Costs(**dict.fromkeys(many.KINDS, NOTHING))
EIGHT, TWO = Shape(lambda mb, n: 8), Shape(lambda mb, n: 2)


def lines(**several):
    return {**NOTHING, **several}


def costs(**kinds):
    return Costs(**{**dict.fromkeys(many.KINDS, NOTHING), **kinds})


def test_a_line_is_found_again_from_its_points():
    line = Line(0.002, 0.005, 0.001, 0.0003)
    points = [(n, mb, line.at(n, mb)) for n in (1, 4, 16) for mb in (0.0, 1.0, 8.0)]
    found = fitted(points)
    assert found.at(64, 8.0) == pytest.approx(line.at(64, 8.0))
    assert (found.fixed, found.worker_mb) == pytest.approx((line.fixed, line.worker_mb))
    # Less than nothing is never foretold, whatever noise has been measured.
    assert fitted([(1, 0.0, 0.002), (2, 0.0, 0.001), (3, 0.0, -1e-4)]).at(1_000) >= 0


def test_who_has_two_things_to_do_does_one_after_the_other():
    sim, ends = Simulation(), []
    for seconds in (3.0, 1.0):
        sim.use("a", seconds, lambda: ends.append(sim.now))
    sim.use("b", 2.0, lambda: ends.append(sim.now))
    assert sim.run() == 4.0
    assert ends == [2.0, 3.0, 4.0]
    assert sim.busy == {"a": 4.0, "b": 2.0}


def test_links_are_shared():
    sim = Simulation()
    for source, target in (("a", "b"), ("a", "c"), ("d", "e")):
        sim.move(10.0, source, target, 5.0, lambda: None)
    assert sim.run() == pytest.approx(4.0 + LATENCY)


def test_a_broadcast_over_links_alone():
    """Twice by way of the scheduler; then all who have it send it on, one after the other."""
    mb = 100.0
    alone = simulated.seconds_of_broadcast(FREE, EIGHT, 1, mb, 100.0)
    assert alone == pytest.approx(2.0)
    for n, rounds in ((2, 1), (4, 2), (8, 3), (64, 6)):
        for shape in (EIGHT, Shape(lambda mb, n: 8, delegated=True)):
            took = simulated.seconds_of_broadcast(FREE, shape, n, mb, 100.0) - alone
            assert rounds - 0.01 <= took <= rounds + 2.01, n


def test_a_broadcast_that_one_worker_sees_to_takes_its_time():
    asking = costs(broadcast=lines(first=Line(worker=0.01)))
    assert simulated.seconds_of_broadcast(asking, EIGHT, 101, 0.0, 100.0) == pytest.approx(
        1.0, abs=0.02
    )
    delegated = Shape(lambda mb, n: 8, delegated=True)
    assert simulated.seconds_of_broadcast(asking, delegated, 101, 0.0, 100.0) < 0.15


def test_tasks_take_what_the_busiest_process_takes():
    busy = costs(tasks=lines(scheduler=Line(0.5, 0.004), driver=Line(worker=0.002)))
    took = simulated.seconds_of_tasks(busy, busy.tasks, 1_000)
    assert took == pytest.approx(0.5 + 4.0, rel=0.01)


def test_totals_over_links_alone():
    """Whoever adds up gets one after the other; few of them come to the driver as they are."""
    mb, link = 100.0, 100.0
    # 64 totals: two levels of eight, or six of two; then by way of the scheduler.
    eight = simulated.seconds_of_sum(FREE, EIGHT, 64, mb, link)
    assert eight == pytest.approx(2 * 7 + 2, rel=0.01)
    assert simulated.seconds_of_sum(FREE, TWO, 64, mb, link) == pytest.approx(6 + 2, rel=0.01)
    assert simulated.seconds_of_sum(FREE, TWO, 4, 10.0, link) == pytest.approx(2 * 4 * 10.0 / link)


def test_two_workers():
    """What the command does, once, and the tables of what it finds."""
    result = many.measure([1, 2], many.SIZES, dict.fromkeys(many.ROUNDS, 1), 0.0)
    assert json.loads(json.dumps(result)) == result
    for found in result["measured"].values():
        for kind in ("tasks", "apart"):
            assert found[kind]["0.0"].keys() == {*many.ROLES, "most"}
        for kind in ("tree", "broadcast", "inline"):
            assert {mb for mb, seconds in found[kind].items() if seconds["workers"] > 0} == {
                "1.0",
                "8.0",
            }
        assert found["memory_mb"] > 50
    assert result["events"]["1024"]["bytes"] > 20 * result["events"]["2"]["bytes"]
    assert many.table(result).count("\n| ") > 20
    for mb in many.MODELS:
        assert f"\n| {mb:.0f} MB | " in many.simulated_table(result)
