"""A job that one version has begun and another one is to go on with: it waits for a word."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.driver import provenance
from largek_dask.errors import ParameterError
from largek_dask.service import job_state, runner
from largek_dask.service import jobs as jobs_module
from tests.helpers import store_files
from tests.helpers.checks import eventually
from tests.service.conftest import begun, wait_until

OLD, NEW = "0.1.0", "7.0.0"


@pytest.fixture
def be(monkeypatch):
    """``be("7.0.0")``: this process is of that version."""

    def be(version):
        for module in (job_state, runner, jobs_module, provenance):
            assert isinstance(module.__version__, str)
            monkeypatch.setattr(module, "__version__", version)

    return be


@pytest.fixture
def left(tmp_path, open_jobs):
    """``left()``: jobs over what the first version has left, and the ids of both."""
    folder = store_files.copied(OLD, tmp_path / "left")

    def open_left():
        jobs = open_jobs(store=str(folder / "store"))
        ids = {status["output"].rsplit("/", 1)[1]: status["id"] for status in jobs.all()}
        assert set(ids) == {"ended", "begun"}
        return jobs, ids["ended"], ids["begun"]

    open_left.folder = folder
    return open_left


def record_in(folder, job_id):
    return json.loads((folder / "store" / "jobs" / f"{job_id}.json").read_text())


def test_records_checkpoints_and_models_of_the_first_version_are_read(left, be):
    """By every later one; here as that version, which asks nobody."""
    be(OLD)
    jobs, ended, job_id = left()
    assert jobs.status(ended)["state"] == "finished"
    model = jobs.model(ended)
    assert model.digest() == jobs.status(ended)["result"]["digest"]
    assert model.predict(np.load(left.folder / "rows.npy")).shape == (300,)
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", status
    started = [e["n_iter"] for e in jobs.events(job_id, 0, 1000) if e["event"] == "started"]
    assert started[-1] == store_files.STEPS, "it goes on from its checkpoint"
    np.testing.assert_allclose(jobs.model(job_id).centers, model.centers, rtol=1e-12)
    assert status["versions"] == [OLD]


def test_another_version_waits_until_it_is_accepted(left, be):
    be(NEW)
    jobs, ended, job_id = left()
    status = jobs.status(job_id)
    assert (status["state"], status["reason"]) == ("waiting", "version")
    assert status["queue"]["waits_for"] == "version"
    assert status["note"] == status["queue"]["why"]
    assert f"by largek_dask {OLD}, and this is {NEW}" in status["note"]
    assert "bits of its result may be others" in status["note"]
    eventually(lambda: "version" in [e.get("reason") for e in jobs.events(job_id, 0, 99)], "a word")
    with jobs._changed:
        assert jobs._queue.due() == []
    for asked in (({}, {}), ({"max_iter": 7}, {}, True)):
        with pytest.raises(ParameterError, match=r"waits: .*accept_version=True|max_iter"):
            jobs.resume(job_id, *asked)
    # What has ended is read as it is.
    assert jobs.model(ended).digest() == jobs.status(ended)["result"]["digest"]
    jobs.resume(job_id, {}, {}, accept_version=True)
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", status
    assert status["versions"] == [OLD, NEW]
    assert record_in(left.folder, job_id)["versions"] == [OLD, NEW]
    told = lk.load_model(str(left.folder / "begun" / "model.zarr")).provenance
    assert (told["begun_with"]["largek_dask"], told["versions"]["largek_dask"]) == (OLD, NEW)
    assert told["same_bits"] is False
    kinds = [e["event"] for e in jobs.events(job_id, 0, 1000)]
    assert kinds.count("accepted") == 1
    np.testing.assert_allclose(jobs.model(job_id).centers, jobs.model(ended).centers, rtol=1e-12)


def test_acceptance_outlives_the_scheduler_and_is_of_one_version(left, be, open_jobs):
    be(NEW)
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        jobs, _, job_id = left()
        jobs.resume(job_id, {}, {}, accept_version=True)
        assert jobs.status(job_id)["state"] == "queued"
        assert jobs.close(120.0) == []
        be("8.0.0")
        later, _, _ = left()
        assert later.status(job_id)["reason"] == "version"
        assert f"by largek_dask {NEW}" in later.status(job_id)["note"]
        assert later.close(120.0) == []
        be(NEW)
        same, _, _ = left()
        assert same.status(job_id)["state"] == "queued"
        assert "accepted" not in [e["event"] for e in same.events(job_id, 0, 1000)[-1:]]


def test_one_that_has_ended_waits_too_where_it_is_to_go_on(left, be):
    be(NEW)
    jobs, ended, _ = left()
    jobs.resume(ended, {"max_iter": 7}, {})
    assert jobs.status(ended)["reason"] == "version"
    jobs.cancel(ended)
    eventually(lambda: jobs.status(ended)["state"] == "finished", "its earlier model to stand")
    assert jobs.model(ended).n_clusters == 4


def test_one_that_has_ended_may_be_accepted_as_it_is_resumed(left, be):
    be(NEW)
    jobs, ended, _ = left()
    jobs.resume(ended, {"max_iter": 7}, {}, accept_version=True)
    eventually(lambda: jobs.status(ended)["run"] == 2, "the second run")
    status = wait_until(jobs, ended, "finished", "failed")
    assert (status["state"], status["versions"]) == ("finished", [OLD, NEW])


def test_fields_of_earlier_records_are_ignored(left, be):
    """Jobs were paused or kept and had priorities, and their scheduler was drained."""
    be(OLD)
    folder = left.folder / "store"
    assert (folder / "drained.json").exists()
    for path in (folder / "jobs").glob("*.json"):
        record = json.loads(path.read_text())
        record |= {"paused": True, "resumed": 1.0, "kept": True, "cleared": True}
        assert "priority" in record["spec"]
        path.write_text(json.dumps(record))
    jobs, ended, job_id = left()
    assert jobs.status(ended)["state"] == "finished"
    assert jobs.model(ended).n_clusters == 4
    assert wait_until(jobs, job_id, "finished", "failed")["state"] == "finished"


def test_a_job_of_this_version_says_so_and_provenance_has_one(open_jobs, document, slow_steps):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)
    assert jobs.status(job_id)["versions"] == [lk.__version__]
    with pytest.raises(ParameterError, match="wait until it has ended"):
        jobs.resume(job_id, {}, {}, accept_version=True)
    slow_steps.set()
    wait_until(jobs, job_id, "finished")
    assert "begun_with" not in jobs.model(job_id).provenance
