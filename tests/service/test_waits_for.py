"""What a job that is queued or waits needs, in a word and a sentence, wherever it is shown."""

from __future__ import annotations

import dask
import pytest

from largek_dask.driver.job_view import JobView
from largek_dask.plots.job_text import facts, queue_words, shown
from largek_dask.service.job_state import Waiting
from largek_dask.service.spec import JobSpec
from tests.service.conftest import begun, queue_of, wait_until


@pytest.fixture
def standing(document):
    """``standing(first, second)``: where jobs stand, each changed by a function."""
    spec = JobSpec.parse(document())
    secret = spec.model_copy(
        update={"storage_options": JobSpec.parse({
            **spec.dump(), "storage_options": {"key": {"memory": True}},
        }).storage_options}
    )  # fmt: skip

    def find(*changes, most=2):
        specs = [secret if change is needing else spec for change in changes]
        queue, jobs = queue_of(specs)
        for job, change in zip(jobs, changes, strict=True):
            change(job)
        with dask.config.set({"largek.service.concurrent-jobs": most}):
            return queue.positions()

    return find


def plain(job):
    """Queued."""


def running(job):
    job.running = True


def needing(job):
    """Its storage options are nowhere."""


def elsewhere(job):
    job.note = "another scheduler has it"


def test_waiting__for_what_it_says(standing):
    def waits(job):
        job.waiting = Waiting("storage", "no storage at all")

    found = standing(plain, waits, needing)
    assert found["lk-1"] == {
        "position": None, "of": 1, "waits_for": "storage", "why": "no storage at all",
    }  # fmt: skip
    assert found["lk-0"]["position"] == 1
    assert (found["lk-2"]["position"], found["lk-2"]["waits_for"]) == (None, "credentials")
    assert "storage options key" in found["lk-2"]["why"]


def test_queued(standing):
    for jobs, most, why in (
        ((plain,), 2, "it begins in a moment"),
        ((running, plain), 1, "1 job runs, as many as may (largek.service."),
        ((running, running, plain), 2, "2 jobs run, as many as may"),
        ((plain,), 0, "no job runs, as many as may"),
        ((running, elsewhere), 1, "another scheduler has it"),
    ):
        found = standing(*jobs, most=most)
        last = found[f"lk-{len(jobs) - 1}"]
        assert (last["position"], last["of"], last["waits_for"]) == (1, 1, "place")
        assert last["why"].startswith(why)
        assert set(found) == {f"lk-{n}" for n, job in enumerate(jobs) if job is not running}


def test_status__of_each_and_of_all(open_jobs, document, slow_steps):
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        jobs = open_jobs()
        one, two = (jobs.submit(document(name), {}, "me") for name in "ab")
        begun(jobs, one, 1)
        assert jobs.status(one)["queue"] is None
        place = jobs.status(two)["queue"]
        assert (place["position"], place["waits_for"]) == (1, "place")
        assert place["why"].startswith("1 job runs")
        assert jobs.all()[1]["queue"] == place
        slow_steps.set()
        for job_id in (one, two):
            assert wait_until(jobs, job_id, "finished")["queue"] is None


def test_it_is_shown(standing):
    place = standing(running, plain, plain, most=1)["lk-2"]
    words = queue_words({"queue": place})
    assert words.startswith("number 2 of 2 in the queue: 1 job runs, as many as may")
    view = JobView({"id": "lk-2", "state": "queued", "queue": place})
    assert dict(facts(view))["waits"] == words
    note = {"id": "lk-2", "state": "queued", "note": "so", "queue": {**place, "why": "so"}}
    assert [text for name, text in facts(JobView(note)) if name == "waits"] == [
        "number 2 of 2 in the queue: so"
    ]
    # What comes from elsewhere breaks nothing.
    for wrong in (None, 3, {"position": None, "of": 2}, {"position": "1", "of": 2}, {}):
        assert queue_words({"queue": wrong}) == ""
    assert shown(queue_words({"queue": {"position": 1, "of": 2, "why": "a\nb"}}))
