"""Jobs as the page reads them from a scheduler."""

from __future__ import annotations

import threading

import pytest

from largek_dask.driver.job_view import JobView
from largek_dask.errors import JobNotFoundError, OutputError
from largek_dask.service.job_state import Feed
from largek_dask.service.web.source import JobsSource
from tests.helpers.checks import eventually
from tests.service.conftest import wait_until
from tests.service.web.sources import started, step


def costs(view: JobView) -> list[float]:
    return view.cost_values


class One:
    """One job, with the methods of ``Jobs`` that the page calls."""

    def __init__(self, is_new: bool, state: str = "running", **about) -> None:
        self._status = {"id": "x", "state": state, "run": 1, **about}
        self.own = Feed("x", is_new)
        self.files = [started(), *map(step, range(1, 301))]
        self.n_read = 0

    def status(self, job_id):
        return self._status

    def feed(self, job_id):
        return self.own

    def recall(self, job_id):
        self.n_read += 1
        self.own.load(self.files)


def whole(source: JobsSource) -> JobView:
    """Return the view once nothing is lacking."""
    found = []

    def is_whole():
        found[:] = source.view("x")
        return not found[1]

    eventually(is_whole, "everything has been read")
    return found[0]


def test_a_new_job__is_read_from_its_feed():
    jobs = One(is_new=True)
    for event in [started(), *map(step, range(1, 6))]:
        jobs.own(event)
    view, lack = JobsSource(jobs).view("x")
    assert lack == ""
    assert costs(view) == pytest.approx([1000.0 / n for n in range(1, 6)])
    assert jobs.n_read == 0
    view.update(step(6))
    assert len(costs(jobs.own.view)) == 5, "it is a copy"


def test_a_job_of_an_earlier_scheduler__is_read_once_and_nothing_twice():
    jobs = One(is_new=False)
    for number in range(301, 311):
        jobs.own(step(number))
    source = JobsSource(jobs)
    first = whole(source)
    jobs.own(step(311))
    again = whole(source)
    assert costs(first) == pytest.approx([1000.0 / n for n in range(1, 311)])
    assert costs(again)[-1] == pytest.approx(1000.0 / 311)
    assert jobs.n_read == 1
    assert jobs.own.figures()["rows"] == 311 * 500
    source.close()


def test_an_ended_job__is_read_from_its_folder_once():
    jobs = One(is_new=True, state="finished")
    jobs.own(started())
    jobs.own.unload()
    source = JobsSource(jobs)
    assert len(costs(whole(source))) == len(costs(whole(source))) == 300
    assert jobs.n_read == 1
    source.close()


def test_a_folder_that_cannot_be_read__is_said():
    jobs = One(is_new=False, state="finished")

    def recall(job_id):
        raise OutputError("the store is away")

    jobs.recall = recall
    source = JobsSource(jobs)
    eventually(lambda: "the store is away" in source.view("x")[1], "the reason")
    source.close()


def test_a_folder_that_does_not_answer__keeps_nobody_waiting():
    jobs, go_on = One(is_new=False, state="finished"), threading.Event()
    usual = jobs.recall

    def recall(job_id):
        assert go_on.wait(60.0)
        usual(job_id)

    jobs.recall = recall
    source = JobsSource(jobs)
    view, lack = source.view("x")
    assert view.state == "finished"
    assert lack
    go_on.set()
    assert len(costs(whole(source))) == 300
    source.close()


@pytest.mark.parametrize("about", [{"state": "waiting", "needs": ["key"]}])
def test_a_folder_out_of_reach__is_not_read(about):
    jobs = One(is_new=False, **about)
    assert JobsSource(jobs).view("x")[1] == ""
    assert jobs.n_read == 0


def test_jobs_of_a_scheduler(open_jobs, document, slow_steps):
    jobs = open_jobs()
    source = JobsSource(jobs)
    job_id = jobs.submit(document(name="a name", max_iter=5, tol=0.0), {}, "ann")
    eventually(lambda: jobs.status(job_id).get("step") == 2, "two steps")
    (row,) = source.rows()
    assert (row["id"], row["state"], row["name"], row["owner"]) == (
        job_id,
        "running",
        "a name",
        "ann",
    )
    assert row["cost"] == jobs.status(job_id)["cost"]
    slow_steps.set()
    status = wait_until(jobs, job_id, "finished")
    (row,) = source.rows()
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
    source.close()
