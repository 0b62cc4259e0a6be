"""What a job's feed makes of its events."""

from __future__ import annotations

import json
import pickle

import pytest

from largek_dask.driver.job_view import STEP_FIGURES, SUMMED
from largek_dask.service import job_state as module
from largek_dask.service.job_state import Feed

FIGURES = dict.fromkeys((*STEP_FIGURES, *SUMMED), 0)


def step(compute, read, wait=100.0):
    return {**FIGURES, "event": "step", "seconds": {"compute": compute, "read": read, "wait": wait}}


def test_worth__is_the_longest_step_over_the_seconds_wanted():
    for n_chunks, steps, seconds, worth in (
        (100, [], 5.0, 1),
        (100, [step(40.0, 0.0), step(1.0, 0.0)], 5.0, 8),
        (4, [step(40.0, 0.0)], 5.0, 4),
        (100, [step(0.0, 0.0)], 5.0, 1),
        (100, [step(0.25, 0.25)], 0.125, 4),
    ):
        feed = Feed("a", is_new=True)
        assert feed.worth(seconds) == 1, "before it has started"
        for event in [{"event": "started", "n_chunks": n_chunks}, *steps]:
            feed(event)
        assert feed.worth(seconds) == worth


def numbered(n, **more):
    return {**step(1.0, 2.0), "step": n, "rows": 10, "cost": 100.0 - n, **more}


def test_steps__are_all_told_and_counted():
    feed = Feed("a", is_new=True)
    for n in range(1, 11):
        feed(numbered(n))
        feed({"event": "checkpoint", "n_iter": n})
    told = feed.since(0)
    for kind, name in (("step", "step"), ("checkpoint", "n_iter")):
        assert [e[name] for e in told if e["event"] == kind] == list(range(1, 11))
    figures = feed.figures()
    assert (figures["step"], figures["cost"], figures["rows"]) == (10, 90.0, 100)
    assert figures["seconds"] == {"compute": 10.0, "read": 20.0, "wait": 1000.0}
    assert figures["n_events"] == len(told) == 20


def test_since__gives_what_is_kept_from_a_number_on(monkeypatch):
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    told = []
    feed = Feed("a", is_new=True)
    assert feed.since(0) == []
    for n in range(8):
        feed({"event": "warning", "message": str(n)})
        told += feed.since(n)
    assert [event["n"] for event in told] == list(range(8))
    assert {event["job"] for event in told} == {"a"}
    for n, most, found in ((0, 9, [3, 4, 5, 6, 7]), (3, 2, [3, 4]), (6, 9, [6, 7]), (8, 9, [])):
        assert feed.since(n, most) == [told[i] for i in found]


@pytest.mark.parametrize("is_late", [False, True])
def test_load__puts_earlier_events_first_and_shows_their_last_step(is_late):
    feed = Feed("a", is_new=False)
    earlier = [{"event": "started"}, {"event": "step", "step": 6}, {"event": "step", "step": 7}]
    if is_late:
        feed(numbered(8))
    feed.load(earlier)
    feed.load([{"event": "failed"}])
    if not is_late:
        assert feed.figures()["n_events"] == 3
        feed({"event": "running"})
    events = feed.since(0)
    kinds = ["started", "step", "step", "step" if is_late else "running"]
    assert [(e["n"], e["job"], e["event"]) for e in events] == [
        (n, "a", kind) for n, kind in enumerate(kinds)
    ]
    assert feed.figures()["step"] == (8 if is_late else 7)
    feed.unload()
    assert feed.since(0) == []
    assert not feed.is_loaded


# --- how much is kept ----------------------------------------------------------------------------


def text_of(n, kind="text"):
    """An event that leaves nothing in the view but as a warning, which is marked in it."""
    return {"event": kind, "message": "x" * n}


def test_a_job_that_ended_long_ago_keeps_nothing_of_its_workers():
    feed = Feed("a", True)
    feed({"event": "started", "workers": [f"tcp://10.0.0.1:{i}" for i in range(1_024)]})
    feed(text_of(1))
    assert len(feed.figures()["workers"]) == 1_024
    feed.unload()
    assert (feed.since(0), feed.figures()["workers"]) == ([], [])
    assert len(pickle.dumps(feed.view)) < 3_000


# --- what is told by its last word --------------------------------------------------------------


def test_progress__is_kept_once_in_no_event_and_over_with_the_step():
    feed = Feed("a", is_new=True)
    assert feed.figures()["progress"] is None
    for done in (3, 7):
        at = f"2026-01-01T00:00:0{done}"
        feed({"event": "progress", "done": done, "n_chunks": 9, "time": at})
    figures = feed.figures()
    assert figures["progress"] == {"done": 7, "n_chunks": 9}
    assert (figures["n_events"], feed.since(0)) == (0, [])
    assert figures["last_event"] == "2026-01-01T00:00:07"
    feed(numbered(1))
    assert feed.figures()["progress"] is None
    feed({"event": "progress", "done": None, "n_chunks": 9})
    assert feed.figures()["progress"] is None


def test_ready__has_what_is_known_and_finite():
    feed = Feed("a", is_new=True)
    assert feed.metrics.at == 0
    feed({"event": "started", "n_rows": 9, "n_chunks": 4, "workers": ["a", "b", "c"]})
    for change, address in (("left", "a"), ("slow", "b"), ("joined", "a"), ("joined", "d")):
        feed({"event": "worker", "address": address, "change": change, "chunks": 1})
    feed({**numbered(1), "eta_s": None, "time": "2026-01-01T00:00:00+00:00"})
    feed({**numbered(2), "eta_s": 5.0, "cost": float("inf"), "retries": None,
          "seconds": {"compute": float("nan"), "read": 1.0, "wait": 0.0},
          "time": "2026-01-01T00:00:10+00:00"})  # fmt: skip
    ready = feed.metrics
    assert ready.figures["workers"] == 4
    assert (ready.figures["steps"], ready.figures["rows"]) == (2, 20)
    assert (ready.figures["eta_seconds"], ready.figures["retries"]) == (5.0, 0)
    assert "cost" not in ready.figures
    assert ready.seconds == {"compute": 1.0, "read": 3.0, "wait": 100.0}
    assert ready.at == ready.figures["last_event_timestamp_seconds"] == 1767225610.0
    json.dumps([ready.figures, ready.seconds, feed.figures()], allow_nan=False)
