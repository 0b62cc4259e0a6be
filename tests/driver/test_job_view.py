"""A job view: what earlier readers gave for real logs, bounded, and indifferent to junk.

``job_views.jsonl`` has logs of fits, and figures, metrics and facts as the separate readers of
events computed them before there was one view.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.driver.job_view import SUMMED, JobView
from largek_dask.plots.job_text import card, facts, left_of
from largek_dask.service.web.render import job_content
from tests.helpers.checks import costs_of
from tests.plots.day import day_of_events

LOGS = [
    json.loads(line)
    for line in (Path(__file__).parent / "job_views.jsonl").read_text("utf-8").splitlines()
]
STATUS = {"id": "lk-1", "name": "night", "state": "running", "data": "/d", "output": "/o",
          "n_clusters": 8, "algorithm": "auto", "max_iter": 50}  # fmt: skip


def plain(value: Any) -> Any:
    """As JSON, in which all numbers are finite."""
    return json.loads(json.dumps(value, allow_nan=False))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["name"])
def test_a_real_log_gives_what_earlier_readers_gave(log):
    view = JobView(STATUS).update_all(log["events"])
    figures = plain(view.figures())
    known = {k: v for k, v in log["figures"].items() if v is not None and k != "workers"}
    assert known.items() <= figures.items()
    assert plain(view.metrics()) == log["metrics"]
    assert plain(view.metric_seconds()) == log["seconds"]
    shown = dict(facts(view))
    assert dict(log["facts"]).items() <= shown.items()
    assert set(shown) - set(dict(log["facts"])) <= {"energy", "time"}
    assert left_of(view) == log["left"]
    assert costs_of(view) == log["costs"]
    assert list(view.warnings) == log["warnings"]
    assert all(text in card(view) for text in ("lk-1", "night", shown["step"]))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["name"])
def test_a_status_of_the_scheduler_and_its_events_show_the_same_as_events_alone(log):
    alone = JobView(STATUS).update_all(log["events"])
    told = JobView(STATUS).update_all(log["events"])
    told.set_status(plain({**STATUS, **alone.figures()}))
    assert facts(told) == facts(alone)
    pages = [job_content(view, "", can_cancel=False) for view in (told, alone)]
    assert pages[0] == pages[1]


def counters(view: JobView) -> dict[str, float]:
    found = view.metrics()
    return {**{name: found[name] for name in (*SUMMED, "steps")}, **view.seconds}


def test_counters_never_fall_when_steps_are_repeated_or_negative():
    log = next(log for log in LOGS if log["name"] == "resumed")
    view, before = JobView(), counters(JobView())
    foreign = {"event": "step", "step": 2, "rows": -5, "bytes": -1, "seconds": {"compute": -2.0}}
    for event in [*log["events"], foreign, *log["events"]]:
        view.update(event)
        found = counters(view)
        assert all(found[name] >= n for name, n in before.items())
        before = found
    assert before["steps"] > max(e["step"] for e in log["events"] if e["event"] == "step")


def test_memory_is_bounded_and_a_drop_leaves_status_and_sums():
    sizes = []
    for seconds in (20_000, 80_000):
        view = JobView({"id": "a"}).update_all(day_of_events(seconds))
        sizes.append(len(pickle.dumps(view)))
    assert sizes[1] <= 2_000_000
    assert sizes[1] < 2 * sizes[0]
    before = {**view.status, "workers": []}
    view.drop_series()
    assert len(pickle.dumps(view)) < 3_000
    assert view.status == before


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (["queued"], "queued"),
        (["queued", "running"], "running"),
        (["started", "step", "stopped"], "finished"),
        (["queued", "running", "started", "stopped"], "running"),
        (["queued", "running", "started", "stopped", "finished"], "finished"),
        (["queued", "running", "failed"], "failed"),
        (["queued", "running", "failed", "running"], "running"),
    ],
)
def test_the_state_follows_from_events_where_no_status_says_it(events, state):
    view = JobView().update_all({"event": kind} for kind in events)
    assert view.state == state
    assert ("result" in view.status) == (state == "failed" or events[-1] == "finished")
    view.set_status({"id": "a", "state": "waiting"})
    assert view.state == "waiting"


KINDS = ("queued", "running", "chosen", "started", "compiling", "progress", "step", "workers",
         "worker", "sizes", "checkpoint", "warning", "stopped", "best", "report", "labels",
         "interrupted", "finished", "failed", "cancelled", "update", "newer kind")  # fmt: skip
FIELDS = sorted({name for log in LOGS for event in log["events"] for name in event} | {
    "n_workers", "left_s", "done", "edges", "counts", "reason", "topic", "share"})  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["total", "compute", "energy", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)
EVENT = st.builds(
    lambda event, kind, changes: {**event, **({"event": kind} if kind else {}), **changes},
    st.sampled_from([event for log in LOGS for event in log["events"]]),
    st.sampled_from([None, None, *KINDS]),
    st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4),
)


@given(st.lists(EVENT | JUNK, max_size=12))
@settings(max_examples=150, deadline=None)
def test_no_event_raises_and_all_figures_stay_finite(events):
    view, before = JobView({"id": "a"}), counters(JobView())
    for event in events:
        view.update(event)
        found = counters(view)
        assert all(found[name] >= n for name, n in before.items())
        before = found
    plain([view.figures(), view.metrics(), view.metric_seconds(), costs_of(view)])
    assert all(text.isprintable() for _, text in facts(view))
    job_content(view, "", can_cancel=False)
    card(view)
