"""A job is paused and goes on, with the bits of one that never was; its turn is changed."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime

import dask
import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, ParameterError
from largek_dask.model import load_model
from largek_dask.service.lease import Contender
from largek_dask.service.running import Runner
from largek_dask.service.store import Records
from tests.helpers.checks import eventually, fit_asked
from tests.service.conftest import begun, wait_until

pytestmark = pytest.mark.slow

STEP = 2
"""The step after which jobs here are paused."""


def kinds(jobs, job_id):
    return [event["event"] for event in jobs.events(job_id, 0, 1000)]


@pytest.fixture
def pausing(monkeypatch):
    """Pauses each job in its first run, at the end of step 2: these jobs."""
    found, remember = [], Runner._remember

    def pause(self, snapshot):
        remember(self, snapshot)
        job_id = self.job.record.id
        if snapshot.record["step"] == STEP and job_id not in found:
            found.append(job_id)
            # By somebody else, whom the run does not wait for.
            asking = threading.Thread(target=found.jobs.steering.pause, args=(job_id,))
            asking.start()
            asking.join(60.0)

    class Paused(list):
        jobs = None

    found = Paused()
    monkeypatch.setattr(Runner, "_remember", pause)
    return found


def documents():
    """A document for each registered algorithm, which takes more steps than two."""
    for name, kind in ALGORITHMS.items():
        changes = {"n_clusters": 7, "max_iter": 6, "tol": 0.0}
        if name == "dcclust":
            changes["n_clusters"] = 4
        yield pytest.param(kind(), changes, id=name)
    yield pytest.param(
        lk.VCGMM(), {"n_clusters": 7, "max_iter": 6, "mixture": "diag"}, id="mixture"
    )


@pytest.mark.parametrize(("algorithm", "changes"), list(documents()))
def test_pause__same_bits_as_without(open_jobs, document, rows_url, pausing, algorithm, changes):
    jobs = pausing.jobs = open_jobs()
    job_id = jobs.submit(document(algorithm=algorithm, **changes), {}, "me")
    status = wait_until(jobs, job_id, "paused", "finished", "failed")
    assert status["state"] == "paused", status
    assert pausing == [job_id]
    assert status["step"] == STEP
    told = kinds(jobs, job_id)
    assert told[-2:] == ["interrupted", "paused"]
    assert "checkpoint" in told
    jobs.steering.resume(job_id)
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", status
    assert status["result"]["n_iter"] > STEP
    started = [e["n_iter"] for e in jobs.events(job_id, 0, 1000) if e["event"] == "started"]
    assert started == [0, STEP]
    plain = jobs.submit(document(output="plain", algorithm=algorithm, **changes), {}, "me")
    pausing.append(plain)
    assert wait_until(jobs, plain, "finished", "failed")["state"] == "finished"
    assert "paused" not in kinds(jobs, plain)
    digests = {jobs.model(name).digest() for name in (job_id, plain)}
    assert len(digests) == 1


@pytest.fixture
def at_event(monkeypatch):
    """``at_event("labels", pause)``: calls this when a job's run tells that for the first time."""
    feed = Runner._feed

    def hook(kind, call):
        called = []

        def heard(self, event):
            feed(self, event)
            if event["event"] == kind and not called:
                called.append(self.job.record.id)
                call(self.job.record.id)

        monkeypatch.setattr(Runner, "_feed", heard)
        return called

    return hook


@pytest.mark.parametrize("moment", ["started", "stopped"])
def test_pause__before_the_first_model_and_in_the_last_pass(
    open_jobs, document, rows_url, tmp_path, at_event, moment
):
    jobs = open_jobs()
    called = at_event(moment, lambda job_id: jobs.steering.pause(job_id))
    with dask.config.set({"largek.passes.slice-seconds": 0.0}):
        job_id = jobs.submit(document(), {}, "me")
        status = wait_until(jobs, job_id, "paused", "finished", "failed")
        assert (status["state"], called) == ("paused", [job_id])
        assert not (tmp_path / "out" / "model.zarr").exists()
        assert (tmp_path / "out" / "checkpoints").exists() == (moment == "stopped")
        jobs.steering.resume(job_id)
        status = wait_until(jobs, job_id, "finished", "failed")
    plain = lk.KMeans(7, algorithm=lk.Lloyd(), random_state=0).fit(rows_url)
    assert status["result"]["digest"] == plain.model_.digest()
    labels = zarr.open_array(str(tmp_path / "out" / "labels.zarr"), mode="r")[:]
    np.testing.assert_array_equal(labels, plain.labels_)


def test_pause__gives_back_its_place_and_its_claim(open_jobs, document, slow_steps, tmp_path):
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        jobs = open_jobs()
        first = jobs.submit(document(output="first"), {}, "me")
        second = jobs.submit(document(output="second"), {}, "me")
        begun(jobs, first, 2)
        assert jobs.status(second)["state"] == "queued"
        assert jobs.steering.pause(first) in ("running", "paused")
        wait_until(jobs, first, "paused")
        begun(jobs, second, 2)
        assert jobs.status(first)["state"] == "paused"
        assert jobs._register.find(first).snapshot is None
        claim = Contender(Folder(str(tmp_path / "first")), first, "other", 1000.0).claim()
        assert claim is not None
        claim.release()
        slow_steps.set()
        wait_until(jobs, second, "finished")
        # A place is free, and nobody takes it for the one that is held.
        with jobs._changed:
            assert jobs._queue.due() == []
        jobs.steering.resume(first)
        wait_until(jobs, first, "finished")


def test_pause__a_job_that_is_queued_is_held_and_comes_first_then(open_jobs, document, slow_steps):
    slow_steps.set()
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        one, two, three, high = (
            jobs.submit(document(output=str(n), priority=10 * (n == 3)), {}, f"owner {n}")
            for n in range(4)
        )
        assert jobs.steering.pause(three) == "paused"
        assert jobs.steering.pause(two) == "paused"
        assert kinds(jobs, three) == ["queued", "paused"]
        status = jobs.status(three)
        assert (status["state"], status["reason"], status["queue"]) == ("paused", None, None)
        assert jobs.status(one)["queue"]["of"] == 2
        assert jobs.steering.resume(three) == "queued"
        assert jobs.steering.resume(two) == "queued"
        assert kinds(jobs, three)[-1] == "resumed"
        places = {name: jobs.status(name)["queue"]["position"] for name in (one, two, three, high)}
        # The first that was let go is the first, among those of its priority.
        assert places == {high: 1, three: 2, two: 3, one: 4}
    for job_id in (one, two, three, high):
        wait_until(jobs, job_id, "finished")


def test_pause__outlives_the_scheduler(open_jobs, document, rows_url, slow_steps, tmp_path):
    first = open_jobs()
    job_id = first.submit(document(), {}, "me")
    begun(first, job_id, 2)
    first.steering.pause(job_id)
    wait_until(first, job_id, "paused")
    assert first.close(120.0) == []
    slow_steps.set()
    second = open_jobs()
    assert second.status(job_id)["state"] == "paused"
    second.steering.resume(job_id)
    record = Records(Folder(str(tmp_path / "store"))).read(job_id)
    assert not record.paused
    assert record.resumed is not None
    status = wait_until(second, job_id, "finished")
    plain = fit_asked(lk.open_rows(rows_url), algorithm=lk.Lloyd(), n_clusters=7, seed=0)
    assert status["result"]["digest"] == load_model(str(tmp_path / "out" / "model.zarr")).digest()
    assert status["result"]["n_iter"] == plain.n_iter


def test_pause__its_time_does_not_count(open_jobs, document, pausing):
    """The clock of the fit stands still: what it has used is less than what has passed."""
    jobs = pausing.jobs = open_jobs()
    job_id = jobs.submit(document(max_time=3_600.0), {}, "me")
    wait_until(jobs, job_id, "paused")
    threading.Event().wait(0.5)
    jobs.steering.resume(job_id)
    wait_until(jobs, job_id, "finished")
    # It is told a moment after the state is known.
    eventually(lambda: kinds(jobs, job_id)[-1] == "finished", "the end to be told")
    events = jobs.events(job_id, 0, 1000)
    at = [datetime.fromisoformat(e["time"]).timestamp() for e in events]
    when = {e["event"]: moment for e, moment in zip(events, at, strict=True)}
    begins = [moment for e, moment in zip(events, at, strict=True) if e["event"] == "running"]
    held = begins[1] - when["paused"]
    assert held >= 0.4
    used = jobs.status(job_id)["result"]["seconds"]
    assert used <= when["finished"] - begins[0] - held + 0.1


def test_pause__who_cancels_it_has_the_model_of_its_checkpoint(open_jobs, document, pausing):
    jobs = pausing.jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    wait_until(jobs, job_id, "paused")
    jobs.cancel(job_id)
    status = wait_until(jobs, job_id, "cancelled", "finished", "failed")
    assert (status["state"], status["result"]["n_iter"]) == ("cancelled", STEP)
    assert jobs.model(job_id).digest() == status["result"]["digest"]
    # To be gone on with is not to be held.
    jobs.resume(job_id, {}, {})
    assert wait_until(jobs, job_id, "finished", "paused")["state"] == "finished"


def test_pause__what_cannot_be_is_refused(open_jobs, document, slow_steps):
    jobs = open_jobs()
    steering = jobs.steering
    with pytest.raises(JobNotFoundError):
        steering.pause("lk-nobody")
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)
    with pytest.raises(ParameterError, match=f"{job_id} is running, not paused"):
        steering.resume(job_id)
    with pytest.raises(ParameterError, match=r"has begun: .*pause\(\) it first"):
        steering.set_priority(job_id, 3)
    steering.pause(job_id)
    with pytest.raises(ParameterError, match=r"is paused already: use resume\(\)"):
        steering.pause(job_id)
    wait_until(jobs, job_id, "paused")
    with pytest.raises(ParameterError, match="is paused already"):
        steering.pause(job_id)
    slow_steps.set()
    steering.resume(job_id)
    wait_until(jobs, job_id, "finished")
    for ask in (steering.pause, steering.resume, lambda name: steering.set_priority(name, 1)):
        with pytest.raises(ParameterError, match=r"is finished: .*submit\(resume=id\) goes on"):
            ask(job_id)
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        other = jobs.submit(document(output="other"), {}, "me")
        job = jobs._register.find(other)
        job.record = replace(job.record, cancel=True)
        with pytest.raises(ParameterError, match="is asked to end"):
            steering.pause(other)


def test_priority__of_a_job_that_does_not_run(open_jobs, document, tmp_path):
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        one, two = (jobs.submit(document(output=str(n)), {}, "me") for n in range(2))
        jobs.steering.set_priority(two, 7)
        assert jobs.status(two)["priority"] == 7
        assert [jobs.status(name)["queue"]["position"] for name in (one, two)] == [2, 1]
        assert jobs.events(two, 0, 9)[-1]["priority"] == 7
        assert Records(Folder(str(tmp_path / "store"))).read(two).spec.priority == 7
        jobs.steering.pause(one)
        jobs.steering.set_priority(one, 8)
        for wrong in (1.5, "high", None, True, 10**30):
            with pytest.raises(ParameterError, match="priority"):
                jobs.steering.set_priority(two, wrong)
        jobs.steering.resume(one)
        assert [jobs.status(name)["queue"]["position"] for name in (one, two)] == [1, 2]
    eventually(lambda: jobs.status(one)["state"] == "finished", "it runs")
    wait_until(jobs, two, "finished")
