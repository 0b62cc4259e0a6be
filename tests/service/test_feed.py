"""What a job's feed makes of its events."""

from __future__ import annotations

import pytest

from largek_dask.observe.totals import OF_A_STEP, SUMMED
from largek_dask.service import feed as module
from largek_dask.service.feed import Feed

FIGURES = dict.fromkeys((*OF_A_STEP, *SUMMED), 0)


def step(compute, read, wait=100.0):
    return {**FIGURES, "event": "step", "seconds": {"compute": compute, "read": read, "wait": wait}}


@pytest.mark.parametrize(
    ("n_chunks", "steps", "seconds", "worth"),
    [
        (100, [], 5.0, 1),
        (100, [step(9.0, 2.0)], 5.0, 3),
        (100, [step(40.0, 0.0), step(1.0, 0.0)], 5.0, 8),
        (4, [step(40.0, 0.0)], 5.0, 4),
        (100, [step(0.0, 0.0)], 5.0, 1),
        (100, [], 0.1, 1),
        (100, [step(0.25, 0.25)], 0.125, 4),
    ],
)
def test_worth__is_the_longest_step_over_the_seconds_wanted(n_chunks, steps, seconds, worth):
    feed = Feed("a", lambda event: None, is_new=True)
    assert feed.worth(seconds) == 1, "before it has started"
    for event in [{"event": "started", "n_chunks": n_chunks}, *steps]:
        feed(event)
    assert feed.worth(seconds) == worth


def numbered(n, **more):
    return {**step(1.0, 2.0), "step": n, "rows": 10, "cost": 100.0 - n, **more}


def test_steps__that_are_quick_are_not_all_told_but_all_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    told = []
    feed = Feed("a", told.append, is_new=True)
    monkeypatch.setattr(module, "STEP_SECONDS", 1.0)
    for n in range(1, 10):
        feed(numbered(n))
        feed({"event": "checkpoint", "n_iter": n})
        now[0] += 0.25
    assert [e["step"] for e in told if e["event"] == "step"] == [1, 5, 9]
    assert [e["n_iter"] for e in told if e["event"] == "checkpoint"] == list(range(1, 10))
    feed(numbered(10))
    figures = feed.figures()
    assert (figures["step"], figures["cost"], figures["rows"]) == (10, 90.0, 100)
    assert figures["seconds"] == {"compute": 10.0, "read": 20.0, "wait": 1000.0}
    assert figures["n_events"] == len(told) == 12


def test_since__gives_what_is_kept_from_a_number_on(monkeypatch):
    monkeypatch.setattr(module, "MOST_EVENTS", 5)
    told = []
    feed = Feed("a", told.append, is_new=True)
    assert feed.since(0) == []
    for n in range(8):
        feed({"event": "warning", "message": str(n)})
    assert [event["n"] for event in told] == list(range(8))
    assert {event["job"] for event in told} == {"a"}
    for n, most, found in ((0, 9, [3, 4, 5, 6, 7]), (3, 2, [3, 4]), (6, 9, [6, 7]), (8, 9, [])):
        assert feed.since(n, most) == [told[i] for i in found]


@pytest.mark.parametrize("is_late", [False, True])
def test_load__puts_earlier_events_first_and_shows_their_last_step(is_late):
    told = []
    feed = Feed("a", told.append, is_new=False)
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
    assert len(told) == 1, "what comes from a file is told to nobody"
    feed.unload()
    assert feed.since(0) == []
    assert not feed.is_loaded
