"""A scheduler is stopped, as by SIGTERM: the next one resumes its jobs, with the same bits."""

from __future__ import annotations

import threading
from datetime import datetime

import dask
import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.model import load_model
from largek_dask.service.runner import Runner
from tests.helpers.checks import eventually, join
from tests.service.conftest import wait_until

pytestmark = pytest.mark.slow

STEP = 2
"""The step after which schedulers here are stopped."""


def kinds(jobs, job_id):
    return [event["event"] for event in jobs.events(job_id, 0, 1000)]


@pytest.fixture
def stopped(open_jobs, monkeypatch):
    """``stopped(document, at="step")``: the id of a job whose scheduler was stopped meanwhile.

    After step 2, or as its run tells the event of this kind.
    """
    feed = Runner._feed

    def submit(document, at="step"):
        closing, left = [], []
        jobs = open_jobs()

        def stop(job):
            if not closing:
                thread = threading.Thread(target=lambda: left.extend(jobs.close(120.0)))
                thread.start()
                closing.append(thread)
                eventually(job.is_stopped, "the run to be asked to stop")

        def at_event(self, event):
            feed(self, event)
            if event["event"] == at and event.get("step", STEP) == STEP:
                stop(self.job)

        with monkeypatch.context() as patch:
            patch.setattr(Runner, "_feed", at_event)
            job_id = jobs.submit(document, {}, "me")
            eventually(lambda: closing, "the scheduler to be stopped")
            join(closing[0])
        assert left == []
        assert jobs.status(job_id)["state"] == "queued"
        return job_id

    return submit


def documents():
    """A document for each registered algorithm, which takes more steps than two."""
    for name, kind in ALGORITHMS.items():
        changes = {"n_clusters": 7, "max_iter": 6, "tol": 0.0}
        if name == "dcd-bundle":
            changes["n_clusters"] = 4
        yield pytest.param(kind(), changes, id=name)
    yield pytest.param(
        lk.VCGMM(), {"n_clusters": 7, "max_iter": 6, "mixture": "diag"}, id="mixture"
    )


@pytest.mark.parametrize(("algorithm", "changes"), list(documents()))
def test_same_bits_as_without(open_jobs, document, stopped, tmp_path, algorithm, changes):
    job_id = stopped(document(algorithm=algorithm, **changes))
    # The best model so far is there meanwhile.
    assert load_model(str(tmp_path / "out" / "model.zarr")).provenance["n_iter"] == STEP
    jobs = open_jobs()
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", status
    assert status["result"]["n_iter"] > STEP
    events = jobs.events(job_id, 0, 1000)
    assert [e["n_iter"] for e in events if e["event"] == "started"] == [0, STEP]
    assert [e["reason"] for e in events if e["event"] == "interrupted"] == ["shutdown"]
    plain = jobs.submit(document(output="plain", algorithm=algorithm, **changes), {}, "me")
    assert wait_until(jobs, plain, "finished", "failed")["state"] == "finished"
    assert "interrupted" not in kinds(jobs, plain)
    digests = {jobs.model(name).digest() for name in (job_id, plain)}
    assert len(digests) == 1


@pytest.mark.parametrize("moment", ["started", "stopped"])
def test_before_the_first_model_and_in_the_last_pass(
    open_jobs, document, rows_url, tmp_path, stopped, moment
):
    with dask.config.set({"largek.passes.slice-seconds": 0.0}):
        job_id = stopped(document(), at=moment)
        assert not (tmp_path / "out" / "model.zarr").exists()
        assert (tmp_path / "out" / "checkpoints").exists() == (moment == "stopped")
        status = wait_until(open_jobs(), job_id, "finished", "failed")
    plain = lk.KMeans(7, algorithm=lk.Lloyd(), random_state=0).fit(rows_url)
    assert status["result"]["digest"] == plain.model_.digest()
    labels = zarr.open_array(str(tmp_path / "out" / "labels.zarr"), mode="r")[:]
    np.testing.assert_array_equal(labels, plain.labels_)


def test_the_time_between_does_not_count(open_jobs, document, stopped):
    """The clock of the fit stands still: it has used less than has passed."""
    job_id = stopped(document(max_time=3_600.0))
    threading.Event().wait(0.5)
    jobs = open_jobs()
    wait_until(jobs, job_id, "finished")
    # It is told a moment after the state is known.
    eventually(lambda: kinds(jobs, job_id)[-1] == "finished", "the end to be told")
    events = jobs.events(job_id, 0, 1000)
    at = [datetime.fromisoformat(e["time"]).timestamp() for e in events]
    when = {e["event"]: moment for e, moment in zip(events, at, strict=True)}
    begins = [moment for e, moment in zip(events, at, strict=True) if e["event"] == "running"]
    away = begins[1] - when["interrupted"]
    assert away >= 0.4
    used = jobs.status(job_id)["result"]["seconds"]
    assert used <= when["finished"] - begins[0] - away + 0.1


def test_who_cancels_it_has_the_model_of_its_checkpoint(open_jobs, document, stopped):
    job_id = stopped(document())
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        jobs = open_jobs()
        jobs.cancel(job_id)
        status = wait_until(jobs, job_id, "cancelled", "finished", "failed")
    assert (status["state"], status["result"]["n_iter"]) == ("cancelled", STEP)
    assert jobs.model(job_id).digest() == status["result"]["digest"]
    jobs.resume(job_id, {}, {})
    assert wait_until(jobs, job_id, "finished", "failed")["state"] == "finished"
