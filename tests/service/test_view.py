"""Jobs as the page reads them from a scheduler."""

from __future__ import annotations

import threading

import pytest

from largek_dask.driver.job_view import JobView
from largek_dask.errors import JobNotFoundError, OutputError
from largek_dask.service.job_state import JobState
from largek_dask.service.jobs import Jobs
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Result
from tests.helpers.checks import costs_of, eventually
from tests.service.conftest import wait_until
from tests.service.web.sources import started, step


def costs(view: JobView) -> list[float]:
    return costs_of(view)


@pytest.fixture
def one(open_jobs, document, monkeypatch):
    """``one(is_new=True)``: a scheduler's jobs with one, "x", whose folder has 300 steps."""

    def make(is_new, state="running", **changes):
        jobs = open_jobs()
        jobs.wait_until_ready()
        result = Result(job="x", run=1, token=1, state=state) if state == "finished" else None
        spec = JobSpec.parse(document(**changes))
        job = JobState(Record("x", spec, "me", 0.0, result=result), {}, is_new)
        jobs.own, jobs.n_read = job.feed, 0

        def load_events(job):
            jobs.n_read += 1
            job.feed.load([started(), *map(step, range(1, 301))])

        monkeypatch.setattr(jobs, "find", lambda job_id: job)
        jobs._recall = load_events
        return jobs

    return make


def whole(source: Jobs) -> JobView:
    """Return the view once nothing is lacking."""
    found = []

    def is_whole():
        found[:] = source.view("x")
        return not found[1]

    eventually(is_whole, "everything has been read")
    return found[0]


def test_a_new_job__is_read_from_its_feed(one):
    jobs = one(is_new=True)
    for event in [started(), *map(step, range(1, 6))]:
        jobs.own(event)
    view, lack = jobs.view("x")
    assert lack == ""
    assert costs(view) == pytest.approx([1000.0 / n for n in range(1, 6)])
    assert jobs.n_read == 0
    view.update(step(6))
    assert len(costs(jobs.own.view)) == 5, "it is a copy"


def test_a_job_of_an_earlier_scheduler__is_read_once_and_nothing_twice(one):
    jobs = one(is_new=False)
    for number in range(301, 311):
        jobs.own(step(number))
    source = jobs
    first = whole(source)
    jobs.own(step(311))
    again = whole(source)
    assert costs(first) == pytest.approx([1000.0 / n for n in range(1, 311)])
    assert costs(again)[-1] == pytest.approx(1000.0 / 311)
    assert jobs.n_read == 1
    assert jobs.own.figures()["rows"] == 311 * 500


def test_an_ended_job__is_read_from_its_folder_once(one):
    jobs = one(is_new=True, state="finished")
    jobs.own(started())
    jobs.own.unload()
    source = jobs
    assert len(costs(whole(source))) == len(costs(whole(source))) == 300
    assert jobs.n_read == 1


def test_a_folder_that_cannot_be_read__is_said(one):
    jobs = one(is_new=False, state="finished")

    def load_events(job):
        raise OutputError("the store is away")

    jobs._recall = load_events
    source = jobs
    eventually(lambda: "the store is away" in source.view("x")[1], "the reason")


def test_a_folder_that_does_not_answer__keeps_nobody_waiting(one):
    jobs, reset_retries = one(is_new=False, state="finished"), threading.Event()
    usual = jobs._recall

    def load_events(job):
        assert reset_retries.wait(60.0)
        usual(job)

    jobs._recall = load_events
    source = jobs
    view, lack = source.view("x")
    assert view.state == "finished"
    assert lack
    reset_retries.set()
    assert len(costs(whole(source))) == 300


def test_a_folder_out_of_reach__is_not_read(one):
    jobs = one(is_new=False, storage_options={"key": {"memory": True}})
    assert jobs.view("x")[1] == ""
    assert jobs.n_read == 0


def test_jobs_of_a_scheduler(open_jobs, document, slow_steps):
    jobs = open_jobs()
    source = jobs
    job_id = jobs.submit(document(name="a name", max_iter=5, tol=0.0), {}, "ann")
    eventually(lambda: jobs.status(job_id).get("step") == 2, "two steps")
    (row,) = source.listed()
    assert (row["id"], row["state"], row["name"], row["owner"]) == (
        job_id,
        "running",
        "a name",
        "ann",
    )
    assert row["cost"] == jobs.status(job_id)["cost"]
    slow_steps.set()
    status = wait_until(jobs, job_id, "finished")
    (row,) = source.listed()
    assert (row["share"], row["n_clusters"], row["algorithm"]) == (1.0, 7, "lloyd")
    assert row["cost"] == status["result"]["inertia"]
    assert row["seconds"] == status["result"]["seconds"] > 0
    view, lack = source.view(job_id)
    assert lack == ""
    assert len(costs(view)) == 5
    html = source.report(job_id)
    assert status["result"]["digest"][:16] in html
    with pytest.raises(JobNotFoundError):
        source.view("lk-0123456789")
    with pytest.raises(JobNotFoundError):
        source.report("lk-0123456789")
