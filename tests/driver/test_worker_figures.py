"""Events about workers add up to their figures, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.driver.worker_figures import (
    NAMES_EVERY,
    WORKER_FIGURES,
    WorkerColumns,
    WorkerFigures,
    pause_between,
)
from largek_dask.passes.telemetry import PassReport


class Workers:
    """Workers of a run, and what is told of them."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.reports = {name: PassReport() for name in names}
        self.left: set[str] = set()
        self.begin()

    def begin(self) -> None:
        self.told = WorkerColumns(self.reports, self.left, lambda: self.now)

    def work(self, **rows: int) -> None:
        for name, n in rows.items():
            report = self.reports.setdefault(name, PassReport())
            report.add(PassReport(rows=n, compute=n / 300, read=n / 700, state_bytes=8 * n))

    def event(self, seconds: float = 10.0) -> dict[str, Any]:
        self.now += seconds
        # As a file has it.
        return json.loads(json.dumps({"event": "workers", **self.told.due()}))


def test_columns__add_up_to_what_each_worker_has_done() -> None:
    workers, seen = Workers("a", "b"), WorkerFigures()
    workers.work(a=7, b=10)
    for n in range(3 * NAMES_EVERY):
        workers.work(a=n, b=10 + n % 3, **({"c": 5} if n > 20 else {}))
        event = workers.event()
        assert ("names" in event) == (n in (0, 16, 21, 37))
        assert {"retries", "cache_bytes", "evictions"}.isdisjoint(event), "nobody had any"
        seen.update(event)
        for name, report in workers.reports.items():
            figures = seen.figures[name]
            assert figures["rows"] == report.rows
            assert figures["compute"] == pytest.approx(report.compute, abs=0.006)
            assert figures.get("state_bytes", 0) == report.state_bytes, "it may shrink"
    assert seen.speeds == {"a": n / 10, "b": 1.2, "c": 0.5}


def test_columns__of_a_run_leave_out_what_was_before_it_and_say_so() -> None:
    workers = Workers()
    workers.work(a=100)
    workers.begin()
    workers.work(a=50)
    event = workers.event()
    assert (event["before"]["rows"], event["rows"]) == ([100], [50])
    seen = WorkerFigures()
    seen.update({"event": "started", "time": "2026-11-21T22:00:00+00:00"})
    seen.update(event)
    assert (seen.figures["a"]["rows"], seen.speeds) == (150, {"a": 5.0})


def test_columns__name_no_more_who_has_left_when_all_is_told() -> None:
    workers, seen = Workers("a", "b"), WorkerFigures()
    workers.work(a=1, b=1)
    seen.update(workers.event())
    workers.work(a=1, b=3)
    workers.left.add("b")
    seen.update(workers.event())
    assert seen.figures["b"]["rows"] == 4
    workers.work(a=1)
    seen.update(workers.event())
    assert set(seen.figures) == set(seen.speeds) == {"a"}
    workers.work(b=1)
    seen.update(workers.event())
    assert (seen.figures["b"]["rows"], seen.speeds["b"]) == (5, 0.1), "it is back"


def test_columns__are_told_the_more_seldom_the_more_workers_there_are() -> None:
    assert [pause_between(n) for n in (0, 1, 4, 64, 1024)] == [5.0, 5.0, 7.5, 30.0, 120.0]
    workers = Workers(*map(str, range(64)))
    assert workers.event(5.0) != {"event": "workers"}, "how many there are is told soon"
    assert workers.event(29.9) == {"event": "workers"}
    assert workers.event(0.2)["seconds"] == pytest.approx(30.1)
    assert Workers().event(1e9) == {"event": "workers"}, "of nobody"


def test_who_begins_to_listen_late_hears_of_workers_when_they_are_named_again() -> None:
    workers, seen = Workers("a"), WorkerFigures()
    for n in range(NAMES_EVERY + 1):
        workers.work(a=1)
        event = workers.event()
        if n:
            seen.update(event)
            assert (seen.figures == {}) == (n < NAMES_EVERY)
    assert seen.figures["a"]["rows"] == NAMES_EVERY + 1


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.just(10**400)
    | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", *WORKER_FIGURES]), inner, max_size=3)
    ),
)
NAMES = st.just(["a", "b"]) | ANYTHING
EVENT = st.dictionaries(
    st.sampled_from(["before", "seconds", "time", *WORKER_FIGURES[:4]]), ANYTHING
)


@given(st.lists(st.tuples(EVENT, NAMES, st.sampled_from(["workers", "started"])), max_size=4))
def test_whatever_a_file_holds_figures_stay_finite(told: list[Any]) -> None:
    seen = WorkerFigures()
    for fields, names, kind in told:
        seen.update({**fields, "names": names, "event": kind})
        json.dumps([seen.figures, seen.speeds, seen.seconds, seen.nbytes], allow_nan=False)
