"""Which jobs are listed, and as what."""

from __future__ import annotations

import time

import pytest

from largek_dask.errors import ParameterError
from largek_dask.service.client import Service
from largek_dask.service.job_state import JobState
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Result

LONG_AGO = 1_000.0
STATES = ("finished", "failed", "running", "queued")


@pytest.fixture
def jobs(open_jobs, document, monkeypatch):
    """The jobs of a scheduler: one in each of ``STATES``, submitted in this order."""
    jobs = open_jobs()
    jobs.wait_until_ready()
    known = []
    for n, state in enumerate(STATES, start=1):
        spec = JobSpec.parse(document(str(n), name=f"night-{n}"))
        job_id, ended = f"lk-{n}", None
        if state in ("finished", "failed"):
            ended = Result(job=job_id, run=1, token=1, state=state, n_iter=3, inertia=2.5)
        at = None if ended is None else n * LONG_AGO
        record = Record(job_id, spec, "ann", float(n), result=ended, ended=at)
        known.append(JobState(record, {}, True))
        known[-1].running = state == "running"
        assert known[-1].state == state
    monkeypatch.setattr(jobs, "jobs", lambda: tuple(reversed(known)))
    yield jobs
    for job in known:
        job.running = False


def ids(jobs, **asked):
    return [row["id"] for row in jobs.listed(**asked)]


def test_who_is_listed(jobs):
    since = time.time() - 1.5 * LONG_AGO
    for asked, wanted in (
        ({}, ["lk-1", "lk-2", "lk-3", "lk-4"]),
        ({"limit": 2}, ["lk-3", "lk-4"]),
        ({"state": ["finished", "running"]}, ["lk-1", "lk-3"]),
        ({"older_than": since}, ["lk-1"]),
        ({"older_than": 0.0}, ["lk-1", "lk-2"]),
        ({"older_than": 0.0, "state": ["failed"]}, ["lk-2"]),
    ):
        assert ids(jobs, **asked) == wanted, asked


def test_rows__what_they_tell(jobs):
    ended, *_, queued = jobs.listed()
    assert (ended["name"], ended["owner"]) == ("night-1", "ann")
    assert ended["created"] == "1970-01-01T00:00:01+00:00"
    assert ended["ended"] == "1970-01-01T00:16:40+00:00"
    assert (ended["step"], ended["cost"], ended["share"]) == (3, 2.5, 1.0)
    assert (queued["ended"], queued["state"]) == (None, "queued")


# --- as a client asks ---------------------------------------------------------------------------


def test_service__a_list_with_rows(jobs):
    service = object.__new__(Service)
    service.ask_with_retry = service.ask = lambda operation, **asked: getattr(jobs, operation)(
        **asked
    )
    found = service.jobs(state="queued")
    assert [job.id for job in found] == ["lk-4"] == [row["id"] for row in found.rows]
    assert "night-4" in found._repr_html_()
    assert [job.id for job in service.jobs(state=("finished", "failed"))] == ["lk-1", "lk-2"]
    assert [job.id for job in service.jobs(older_than="1d")] == ["lk-1", "lk-2"]
    assert len(service.jobs(limit=None)) == 4
    with pytest.raises(ParameterError, match="state must be one of"):
        service.jobs(state="asleep")
    with pytest.raises(ParameterError, match="older_than"):
        service.jobs(older_than="yesterday")
