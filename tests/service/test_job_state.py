"""A job as its scheduler knows it: why it stops, what it waits for and how long, what is kept."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import dask
import pytest

from largek_dask.service import job_state
from largek_dask.service.job_state import JobState
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record


@pytest.fixture
def job(document):
    spec = JobSpec.parse(document())
    return JobState(Record("lk-1", spec, "me", 0.0), {}, is_new=True)


def warning(topic):
    return {"event": "warning", "topic": topic, "message": f"about {topic}"}


def test_the_first_reason_to_stop_counts_until_it_begins_anew(job):
    assert not job.is_stopped()
    assert job.stopped_for is None
    job.ask_to_stop("cancel")
    job.ask_to_stop("shutdown")
    assert job.is_stopped()
    assert job.stopped_for == "cancel"
    job.note = "another scheduler has it"
    job.begin()
    assert (job.is_stopped(), job.stopped_for) == (False, None)
    assert (job.running, job.note) == (True, "")
    job.ask_to_stop("lost")
    assert job.stopped_for == "lost"


@pytest.mark.parametrize(("topic", "reason"), [("waiting", "workers"), ("storage", "storage")])
def test_what_it_waits_for_until_there_are_news(job, topic, reason):
    job.running = True
    for news in (
        {"event": "started"},
        {"event": "step", "step": 1},
        {"event": "labels", "rows": 10},
        *map(warning, ("workers", "retry", "back")),
    ):
        assert (job.state, job.reason) == ("running", None)
        job.update_waiting(warning(topic))
        assert (job.state, job.reason) == ("waiting", reason)
        assert job.status()["note"] == f"about {topic}"
        for other in (warning("DegenerateDataWarning"), {"event": "checkpoint", "n_iter": 1}):
            job.update_waiting(other)
        assert job.reason == reason
        job.update_waiting(news)
        assert (job.state, job.reason, job.has_run) == ("running", None, True)
        assert job.status()["note"] == ""


def test_pauses_grow_and_the_wait_is_counted_from_its_beginning(job, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(
        job_state, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    )
    settings = {"largek.service.beat-seconds": 3.0, "largek.service.retry-seconds": 20.0}
    with dask.config.set(settings):
        for tries, (pause, waited) in enumerate([(3, 0), (6, 10), (12, 20), (20, 30), (20, 40)]):
            assert job.tries == tries
            assert job.postpone("storage", "it is away") == waited
            assert job.not_before == now[0] + pause
            now[0] += 10
        assert job.reason == "storage"
        assert job.status()["note"] == "it is away"
        job.reset_retries()
        assert (job.tries, job.not_before) == (0, 0.0)
        assert job.postpone("workers", "none is there") == 0
        assert job.not_before == now[0] + 3


def test_only_what_comes_farther_than_ever_is_progress(job):
    def is_progress(event):
        job.tries = 5
        job.update_waiting(event)
        return job.tries == 0

    def step(n, start=0):
        return {"event": "step", "step": n, "start": start}

    def labels(rows):
        return {"event": "labels", "rows": rows}

    assert [is_progress(step(n)) for n in (1, 1, 3, 2, 3, 4)] == [1, 0, 1, 0, 0, 1]
    # Of a later start every step is farther than all of an earlier one.
    assert [is_progress(step(1, start)) for start in (1, 0, 1)] == [1, 0, 0]
    # Labels come after the last step, as many as there have not been.
    assert [is_progress(labels(n)) for n in (10, 10, 5, 20)] == [1, 0, 0, 1]
    assert [is_progress(step(9, start)) for start in (1, 2)] == [0, 1]
    assert not is_progress({"event": "started"})


def test_what_changes_while_it_is_written_is_written_as_well(job):
    written = []

    def save(record):
        if not written:
            job.change_unsaved(cancel=True)
        written.append((record.run, record.cancel))

    job.change(save, run=2)
    assert (job.record.run, job.record.cancel, job.is_saved) == (2, True, False)
    job.save(save)
    assert job.is_saved
    assert written == [(2, False), (2, True)]
    written.clear()
    job.change_unsaved(run=3)
    job.change_unsaved(cancel=False)
    job.save(save)
    assert written == [(3, False), (3, True)]
    assert job.is_saved


def test_the_record_of_a_removed_job_does_not_come_back(job):
    store = {}

    def save(record):
        store[record.id] = record

    job.change_unsaved(cancel=True)
    job.save(save)
    assert set(store) == {"lk-1"}
    job.remove_record(store.clear)
    job.change_unsaved(run=2)
    job.save(save)
    assert store == {}


def test_changes_come_one_after_the_other(job):
    """Of two at once none is forgotten, and the later one is not written first."""
    inside, reset_retries, written = threading.Event(), threading.Event(), []

    def slow(record):
        inside.set()
        assert reset_retries.wait(60)
        written.append(record)

    first = threading.Thread(target=job.change, args=(slow,), kwargs={"run": 2})
    second = threading.Thread(target=job.change, args=(written.append,), kwargs={"cancel": True})
    first.start()
    assert inside.wait(60)
    second.start()
    reset_retries.set()
    for thread in (first, second):
        thread.join(60)
    assert [(r.run, r.cancel) for r in written] == [(2, False), (2, True)]
    assert (job.record.run, job.record.cancel, job.is_saved) == (2, True, True)
