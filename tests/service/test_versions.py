"""A job that one version has begun and another one is to go on with: it waits for a word."""

from __future__ import annotations

import json

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.driver import provenance
from largek_dask.driver.provenance import parameters_of
from largek_dask.service import jobs as jobs_module
from largek_dask.service import runner
from tests.helpers import store_files
from tests.helpers.checks import eventually
from tests.service.conftest import wait_until

OLD, NEW = "0.1.0", "7.0.0"
FORMER = {
    "vrkm": lk.IncrementalLloyd(),
    "vrkm-smoothing": lk.IncrementalLloyd(rounds=4, smoothing=1.0),
    "vrkm-snapshot": lk.VRKM(round_rows=50),
    "vrkm-paper": lk.VRKM.paper(),
    "dcdbundle": lk.PartitionPath(effort="fast"),
    "dcdbundle-paper": lk.DCDBundle.paper(),
    "dcclust": lk.DCDBundle(descent="plain"),
    "auto": Auto("best"),
}
"""What commit 9a8d809 called these, and its outputs: two steps of each (``max_iter=2``)."""


@pytest.fixture
def be(monkeypatch):
    """``be("7.0.0")``: this process is of that version."""

    def be(version):
        for module in (runner, jobs_module, provenance):
            assert isinstance(module.__version__, str)
            monkeypatch.setattr(module, "__version__", version)

    return be


@pytest.fixture
def left(tmp_path, open_jobs):
    """``left()``: jobs over what the first version has left, and the ids of both."""
    folder = store_files.copied(OLD, tmp_path / "left")

    def open_left():
        jobs = open_jobs(store=str(folder / "store"))
        ids = {status["output"].rsplit("/", 1)[1]: status["id"] for status in jobs.listed()}
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


def test_another_version_goes_on_when_it_is_accepted(left, be):
    be(NEW)
    jobs, ended, job_id = left()
    status = wait_until(jobs, job_id, "failed")
    assert status["result"]["error"] == "VersionMismatchError"
    assert f"by largek_dask {OLD}, and this is {NEW}" in status["result"]["message"]
    # What has ended is read as it is.
    assert jobs.model(ended).digest() == jobs.status(ended)["result"]["digest"]
    # Who accepts nothing is refused again.
    jobs.resume(job_id, {}, {})
    eventually(lambda: jobs.status(job_id)["run"] == 2, "the second run")
    wait_until(jobs, job_id, "failed")
    jobs.resume(job_id, {}, {}, accept_version=True)
    status = wait_until(jobs, job_id, "finished")
    assert status["versions"] == [OLD, NEW]
    assert record_in(left.folder, job_id)["versions"] == [OLD, NEW]
    started = [e["n_iter"] for e in jobs.events(job_id, 0, 1000) if e["event"] == "started"]
    assert started[-1] == store_files.STEPS, "it goes on from its checkpoint"
    told = lk.load_model(str(left.folder / "begun" / "model.zarr")).provenance
    assert (told["begun_with"]["largek_dask"], told["versions"]["largek_dask"]) == (OLD, NEW)
    assert told["same_bits"] is False
    np.testing.assert_allclose(jobs.model(job_id).centers, jobs.model(ended).centers, rtol=1e-12)


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


def test_algorithms_by_their_former_names(tmp_path, open_jobs, be):
    """Records, models and checkpoints of 9a8d809 are of what its algorithms are called now."""
    be(OLD)
    folder = store_files.copied("9a8d809", tmp_path / "left")
    jobs = open_jobs(store=str(folder / "store"))
    found = {status["output"].rsplit("/", 1)[1]: status["id"] for status in jobs.listed()}
    assert set(found) == set(FORMER)
    for name, algorithm in FORMER.items():
        told = jobs.model(found[name]).provenance
        assert told["parameters"]["algorithm"] == parameters_of(algorithm)
        assert ALGORITHMS[jobs.status(found[name])["algorithm"]] is type(algorithm)
        if name != "auto":
            assert told["engine"] == parameters_of(algorithm)
        else:
            assert told["engine"]["name"] == "PartitionPath"
        jobs.resume(found[name], {"max_iter": 40}, {})
    for name, algorithm in FORMER.items():
        status = wait_until(jobs, found[name], "finished", "failed")
        assert status["state"] == "finished", status
        assert status["run"] == 2
        starts = [e["n_iter"] for e in jobs.events(found[name], 0, 1000) if e["event"] == "started"]
        assert starts[-1] == 2, "it goes on from its checkpoint"
        whole = lk.KMeans(4, algorithm=algorithm, random_state=0, tol=0.0, max_iter=40)
        whole.fit(np.load(folder / "rows.npy"))
        np.testing.assert_allclose(jobs.model(found[name]).centers, whole.cluster_centers_)
