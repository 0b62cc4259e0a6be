"""Jobs that have ended are deleted, also if that is interrupted; their last checkpoint stays."""

from __future__ import annotations

import threading

import dask
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, ParameterError
from tests.helpers.checks import eventually, join
from tests.service.conftest import begun, wait_until


def records_in(tmp_path):
    return {path.stem for path in (tmp_path / "store" / "jobs").glob("*.json")}


def names_in(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.fixture
def finished(document):
    """``finished(jobs, "a")``: the id of a job that has ended there, with checkpoints."""

    def make(jobs, output="out", owner="me", **changes):
        with dask.config.set({"largek.checkpoints.seconds": 0.0}):
            job_id = jobs.submit(document(output, **{"max_iter": 2, **changes}), {}, owner)
            assert wait_until(jobs, job_id, "finished", "failed")["state"] == "finished"
        return job_id

    return make


@pytest.mark.parametrize("outputs", [False, True])
def test_delete__models_and_labels_only_if_they_are_asked_for(
    open_jobs, finished, tmp_path, outputs
):
    jobs = open_jobs()
    job_id = finished(jobs)
    out = tmp_path / "out"
    assert {"model.zarr", "labels.zarr", "checkpoints", "claims"} <= names_in(out)
    (out / "notes.txt").write_text("not the job's")
    digest = jobs.model(job_id).digest()
    jobs.delete(job_id, outputs)
    kept = set() if outputs else {"model.zarr", "labels.zarr"}
    assert names_in(out) == kept | {"notes.txt"}
    if not outputs:
        assert lk.load_model(str(out / "model.zarr")).digest() == digest
    assert records_in(tmp_path) == set()
    with pytest.raises(JobNotFoundError):
        jobs.delete(job_id, outputs)


def test_delete__half_of_the_labels_are_none(open_jobs, finished, tmp_path):
    jobs = open_jobs()
    job_id = finished(jobs)
    (tmp_path / "out" / "labels.zarr.progress.json").write_text("{}")
    jobs.delete(job_id, outputs=False)
    assert names_in(tmp_path / "out") == {"model.zarr"}


@pytest.mark.parametrize("outputs", [False, True])
def test_delete__that_is_cut_off_can_be_asked_for_again(
    open_jobs, finished, tmp_path, monkeypatch, outputs
):
    """After each file: the record goes last."""
    first = open_jobs()
    job_id, removed, remove = finished(first), [], Folder.remove

    def cut(self, name):
        if len(removed) >= cut.after:
            raise KeyboardInterrupt
        removed.append(name)
        return remove(self, name)

    for cut.after in (0, 2, 1):
        removed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "remove", cut)
            with pytest.raises(KeyboardInterrupt):
                first.delete(job_id, outputs)
        assert records_in(tmp_path) == {job_id}
    assert first.close(120.0) == []
    second = open_jobs()
    assert second.status(job_id)["id"] == job_id
    second.delete(job_id, outputs)
    assert records_in(tmp_path) == set()
    assert names_in(tmp_path / "out") == (set() if outputs else {"model.zarr", "labels.zarr"})


def test_delete__of_jobs_that_have_not_ended_is_refused(
    open_jobs, document, finished, slow_steps, tmp_path
):
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        running = jobs.submit(document("running"), {}, "me")
        begun(jobs, running, 2)
        queued = jobs.submit(document("queued"), {}, "me")
        for job_id, state in ((running, "running"), (queued, "queued")):
            with pytest.raises(ParameterError, match=f"job {job_id} is {state}: cancel it first"):
                jobs.delete(job_id)
        assert records_in(tmp_path) == {running, queued}
        jobs.cancel(running)
        slow_steps.set()
        for job_id in (running, queued):
            wait_until(jobs, job_id, "finished", "cancelled")


def test_delete__while_jobs_run_keeps_nobody_waiting(open_jobs, document, slow_steps, finished):
    """A file that takes long to go: everything else is answered meanwhile."""
    slow_steps.set()
    jobs = open_jobs()
    old = finished(jobs, "old")
    slow_steps.clear()
    running = [jobs.submit(document(str(n)), {}, "me") for n in range(4)]
    for job_id in running:
        begun(jobs, job_id, 1)
    inside, go_on = threading.Event(), threading.Event()
    remove = Folder.remove

    def slow(self, name):
        if self.root.endswith("/old"):
            inside.set()
            assert go_on.wait(60.0)
        return remove(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "remove", slow)
        thread = threading.Thread(target=jobs.delete, args=(old,))
        thread.start()
        try:
            assert inside.wait(60.0)
            assert {jobs.status(job_id)["state"] for job_id in running} == {"running"}
            assert len(jobs.listed()) == 5
            jobs.cancel(running[0])
            wait_until(jobs, running[0], "cancelled")
        finally:
            go_on.set()
            join(thread)
    assert old not in {status["id"] for status in jobs.listed()}


# --- checkpoints of jobs that have ended ----------------------------------------------------------


def checkpoints_in(folder):
    return {path.name for path in folder.glob("**/checkpoints/*.json")}


def test_end__the_last_checkpoint_stays_and_a_resume_begins_there(open_jobs, finished, tmp_path):
    jobs, n_init = open_jobs(), 2
    with dask.config.set({"largek.checkpoints.seconds": 0.0}):
        job_id = finished(jobs, max_iter=4, tol=0.0, n_init=n_init)
        starts = [tmp_path / "out", *(tmp_path / "out" / "starts").glob("*")]
        assert len(starts) == n_init
        for start in starts:
            names = {path.name for path in (start / "checkpoints").iterdir()}
            assert names == {"000004.json", "000004.zarr"}
        jobs.resume(job_id, {"max_iter": 6}, {})
        eventually(lambda: jobs.status(job_id)["run"] == 2, "the second run")
        status = wait_until(jobs, job_id, "finished", "failed")
        assert status["result"]["n_iter"] == 6
        whole = finished(jobs, "whole", max_iter=6, tol=0.0, n_init=n_init)
    begins = [e["n_iter"] for e in jobs.events(job_id, 0, 1000) if e["event"] == "started"]
    assert begins == [0] * n_init + [4] * n_init
    assert status["result"]["digest"] == jobs.status(whole)["result"]["digest"]
    assert checkpoints_in(tmp_path / "out") == {"000006.json"}
    jobs.delete(job_id, outputs=False)
    assert names_in(tmp_path / "out") == {"model.zarr", "labels.zarr"}


def test_end__of_a_cancelled_job_too(open_jobs, document, slow_steps, tmp_path):
    jobs = open_jobs()
    with dask.config.set({"largek.checkpoints.seconds": 0.0}):
        job_id = jobs.submit(document(), {}, "me")
        begun(jobs, job_id, 2)
        assert len(checkpoints_in(tmp_path / "out")) > 1
        jobs.cancel(job_id)
        status = wait_until(jobs, job_id, "cancelled")
    assert checkpoints_in(tmp_path / "out") == {f"{status['result']['n_iter']:06d}.json"}
