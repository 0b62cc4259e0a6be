"""Jobs that have ended are removed: on demand, many, by their age, and what was cut off."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import dask
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, ParameterError
from largek_dask.service import sweeping
from largek_dask.service.jobs import Jobs
from largek_dask.service.known import KnownJob
from largek_dask.service.places import Places
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Records, Result
from largek_dask.service.sweeping import Sweeper, retention
from tests.helpers.checks import eventually, join
from tests.service.conftest import begun, wait_until

DAY = 86_400.0
NOW = 1_790_000_000.0


def records_in(tmp_path):
    return {path.stem for path in (tmp_path / "store" / "jobs").glob("*.json")}


def names_in(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.fixture
def finished(document):
    """``finished(jobs, "a")``: the id of a job that has ended there, with checkpoints."""

    def make(jobs, output="out", owner="me", **changes):
        with dask.config.set({"largek.checkpoints.seconds": 0.0}):
            job_id = jobs.submit(document(output, max_iter=2, **changes), {}, owner)
            assert wait_until(jobs, job_id, "finished", "failed")["state"] == "finished"
        return job_id

    return make


@pytest.fixture
def not_by_itself():
    """Nothing goes by its age but where a test says so: a scheduler looks half a second after its
    start, which may be between a job's aging and what is asked of it.
    """
    with dask.config.set({"largek.service.retention": {"checkpoints": None, "jobs": None}}):
        yield


def aged(jobs, job_id, days):
    """Have a job ended so many days before now."""
    jobs._register.find(job_id).change_now(ended=time.time() - days * DAY)


@pytest.mark.parametrize("outputs", [False, True])
def test_delete__models_and_labels_only_if_they_are_asked_for(
    open_jobs, finished, tmp_path, outputs
):
    told = []
    jobs = open_jobs(tell=told.append)
    job_id = finished(jobs)
    out = tmp_path / "out"
    assert {"model.zarr", "labels.zarr", "checkpoints", "claims"} <= names_in(out)
    digest = jobs.model(job_id).digest()
    size = jobs.delete(job_id, outputs)
    assert size > 100
    assert names_in(out) == (set() if outputs else {"model.zarr", "labels.zarr"})
    if not outputs:
        assert lk.load_model(str(out / "model.zarr")).digest() == digest
    assert records_in(tmp_path) == set()
    assert told[-1]["event"] == "deleted"
    with pytest.raises(JobNotFoundError):
        jobs.delete(job_id, outputs)


def test_delete__half_of_the_labels_are_none(open_jobs, finished, tmp_path):
    jobs = open_jobs()
    job_id = finished(jobs)
    (tmp_path / "out" / "labels.zarr.progress.json").write_text("{}")
    jobs.delete(job_id, outputs=False)
    assert names_in(tmp_path / "out") == {"model.zarr"}


@pytest.mark.parametrize("outputs", [False, True])
def test_delete__that_is_cut_off_is_finished_by_the_next(
    open_jobs, finished, tmp_path, monkeypatch, outputs
):
    """After each file: the record, which goes last, knows what was asked for."""
    first = open_jobs()
    jobs_of = {n: finished(first, str(n)) for n in range(3)}
    other = finished(first, "other")
    removed, remove = [], Folder.remove

    def cut(self, name):
        if len(removed) >= cut.after:
            raise KeyboardInterrupt
        removed.append(name)
        return remove(self, name)

    for n, job_id in jobs_of.items():
        removed.clear()
        cut.after = (0, 2, 4)[n]
        monkeypatch.setattr(Folder, "remove", cut)
        with pytest.raises(KeyboardInterrupt):
            first.delete(job_id, outputs)
        monkeypatch.setattr(Folder, "remove", remove)
        assert len(removed) == cut.after
        assert first.status(job_id)["note"] == "it is being removed"
        with pytest.raises(ParameterError, match="is being removed: submit a new one"):
            first.resume(job_id, {}, {})
        with pytest.raises(ParameterError, match="is being removed"):
            first.sweeper.keep(job_id, True)
    assert first.close(120.0) == []
    assert records_in(tmp_path) == {*jobs_of.values(), other}
    second = open_jobs()
    # A job leaves the list when all of its files have gone.
    eventually(lambda: [s["id"] for s in second.all()] == [other], "removals to be finished")
    assert records_in(tmp_path) == {other}
    for n in jobs_of:
        left = names_in(tmp_path / str(n))
        assert left == (set() if outputs else {"model.zarr", "labels.zarr"})
    assert "checkpoints" in names_in(tmp_path / "other")


@pytest.mark.usefixtures("not_by_itself")
def test_keep__outlives_the_scheduler_and_whoever_removes(open_jobs, finished, tmp_path):
    first = open_jobs()
    job_id = finished(first)
    first.sweeper.keep(job_id, True)
    assert first.events(job_id, 0, 1000)[-1]["kept"] is True
    assert first.close(120.0) == []
    second = open_jobs()
    assert second.status(job_id)["kept"]
    with pytest.raises(ParameterError, match=r"is kept: let it go by keep\(False\)"):
        second.delete(job_id)
    assert second.sweeper.sweep({"older_than": "0s"}) == {"jobs": [], "after": None}
    aged(second, job_id, 1_000)
    with dask.config.set({"largek.service.retention": {"checkpoints": 0, "jobs": 0}}):
        second.sweeper.retain(second._register.find(job_id))
    assert "checkpoints" in names_in(tmp_path / "out")
    second.sweeper.keep(job_id, False)
    second.sweeper.keep(job_id, False)
    assert [e["event"] for e in second.events(job_id, 0, 1000)].count("kept") == 1
    second.delete(job_id)


@pytest.mark.usefixtures("not_by_itself")
def test_sweep__who_goes_and_who_stays(open_jobs, document, finished, slow_steps, tmp_path):
    slow_steps.set()
    jobs = open_jobs()
    days = {"a": 50, "b": 40, "c": 35, "d": 10}
    ids = {name: finished(jobs, name, "ann" if name == "b" else "me") for name in days}
    for name, job_id in ids.items():
        aged(jobs, job_id, days[name])
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        queued = jobs.submit(document("queued"), {}, "me")
        held = jobs.submit(document("held"), {}, "me")

        def swept(**asked):
            found = jobs.sweeper.sweep({"older_than": "30d", **asked})
            assert found["after"] is None
            names = {job_id: name for name, job_id in ids.items()}
            return [names[row["id"]] for row in found["jobs"]], found["jobs"]

        assert swept(dry_run=True)[0] == ["a", "b", "c"]
        assert swept(dry_run=True, owner="ann")[0] == ["b"]
        assert swept(dry_run=True, state=["failed"])[0] == []
        # The last ones stay whatever their age, of those that are meant.
        assert swept(dry_run=True, keep_last=2)[0] == ["a", "b"]
        assert swept(dry_run=True, keep_last=2, owner="me")[0] == ["a"]
        assert swept(dry_run=True, keep_last=9)[0] == []
        would = swept(dry_run=True)[1]
        assert not any(row["removed"] for row in would)
        assert all(row["bytes"] > 0 for row in would)
        assert records_in(tmp_path) == {*ids.values(), queued, held}
        names, rows = swept(keep_last=2)
        assert names == ["a", "b"]
        assert [row["bytes"] for row in rows] == [row["bytes"] for row in would[:2]]
        assert all(row["removed"] and row["why"] is None for row in rows)
        assert records_in(tmp_path) == {ids["c"], ids["d"], queued, held}
        assert jobs.sweeper.sweep({"older_than": "0s"})["jobs"][-1]["id"] == ids["d"]
        assert records_in(tmp_path) == {queued, held}
        assert names_in(tmp_path / "a") == {"model.zarr", "labels.zarr"}
        jobs.cancel(held)
    wait_until(jobs, queued, "finished")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"older_than": "2999-01-01"}, "is in the future"),
        ({"older_than": "-3d"}, "older_than must be a date"),
        ({"older_than": "never"}, "older_than must be a date"),
        ({"older_than": 3}, "older_than of gc"),
        ({}, "older_than of gc"),
        ({"older_than": "1d", "state": ["running"]}, "jobs that have not ended are not removed"),
        ({"older_than": "1d", "keep_last": -1}, "keep_last of gc"),
        ({"older_than": "1d", "outputs": "yes"}, "outputs of gc"),
        ({"older_than": "1d", "who": "me"}, "who of gc"),
    ],
)
def test_sweep__what_is_no_question_removes_nothing(open_jobs, tmp_path, asked, told):
    jobs = open_jobs()
    with pytest.raises(ParameterError, match=told):
        jobs.sweeper.sweep(asked)


def test_sweep__one_that_cannot_be_removed_says_why_and_stops_no_other(
    open_jobs, finished, tmp_path, monkeypatch
):
    jobs = open_jobs()
    torn, other = finished(jobs, "a"), finished(jobs, "b")
    remove = Folder.remove

    def fail(self, name):
        if self.root.endswith("/a"):
            raise PermissionError("not yours")
        return remove(self, name)

    monkeypatch.setattr(Folder, "remove", fail)
    rows = {row["id"]: row for row in jobs.sweeper.sweep({"older_than": "0s"})["jobs"]}
    assert rows[other]["removed"]
    assert not rows[torn]["removed"]
    assert "not yours" in rows[torn]["why"]
    assert records_in(tmp_path) == {torn}
    # It has been begun, so it is finished later.
    monkeypatch.setattr(Folder, "remove", remove)
    jobs.sweeper.finish(jobs._register.find(torn))
    assert records_in(tmp_path) == set()


@pytest.mark.usefixtures("not_by_itself")
def test_retention__by_the_time_since_their_ends(open_jobs, finished, tmp_path, logged):
    jobs = open_jobs()
    old, older, new = (finished(jobs, name) for name in ("old", "older", "new"))
    # Submitted long ago, and ended just now: as one that has run for longer than the retention.
    for job_id in (old, older, new):
        job = jobs._register.find(job_id)
        job.record = replace(job.record, created=time.time() - 1_000 * DAY)
    aged(jobs, old, 8)
    aged(jobs, older, 31)
    with dask.config.set({"largek.service.retention": {"checkpoints": "7d", "jobs": "30d"}}):
        jobs.sweeper._each(jobs.sweeper.retain)
    assert records_in(tmp_path) == {old, new}
    assert names_in(tmp_path / "older") == {"model.zarr", "labels.zarr"}
    assert not names_in(tmp_path / "old") & {"checkpoints", "counted.json"}
    assert "checkpoints" in names_in(tmp_path / "new")
    assert [jobs.status(name)["cleared"] for name in (old, new)] == [True, False]
    assert any(f"checkpoints of job {old} are removed" in line for line in logged)
    # To go on with it is to begin anew, with the same bits.
    digest = jobs.status(old)["result"]["digest"]
    jobs.resume(old, {"max_iter": 2}, {})
    status = wait_until(jobs, old, "finished", "failed")
    eventually(lambda: jobs.status(old)["run"] == 2, "the second run")
    assert status["result"]["digest"] == digest
    assert not status["cleared"]


def test_retention__never_of_jobs_that_go_on(open_jobs, document, slow_steps, tmp_path):
    jobs = open_jobs()
    none = {"largek.service.retention": {"checkpoints": "0s", "jobs": "0s"}}
    with dask.config.set({"largek.checkpoints.seconds": 0.0, **none}):
        running = jobs.submit(document("running"), {}, "me")
        begun(jobs, running, 2)
        with dask.config.set({"largek.service.concurrent-jobs": 1}):
            held = jobs.submit(document("held"), {}, "me")
        job = jobs._register.find(running)
        job.record = replace(job.record, created=0.0)
        jobs.sweeper._each(jobs.sweeper.retain)
        assert records_in(tmp_path) == {running, held}
        assert "checkpoints" in names_in(tmp_path / "running")


@pytest.mark.parametrize("wrong", ["soon", -1, True])
def test_retention__what_is_no_time_is_refused_at_the_start(open_jobs, wrong):
    with (
        dask.config.set({"largek.service.retention.checkpoints": wrong}),
        pytest.raises(ParameterError, match=r"largek.service.retention.checkpoints must be"),
    ):
        open_jobs(start=False)


def test_retention__defaults():
    assert retention() == (7 * DAY, None)


# --- ten thousand of them -------------------------------------------------------------------------


def test_sweep__in_slices_that_meet_each_job_once(document, tmp_path, monkeypatch):
    """Of 10,000 jobs, with folders that are only made up: every slice is short."""
    spec = JobSpec.parse(document())
    places = Places.of(spec)
    tenure = type("Tenure", (), {"records": Records(Folder(str(tmp_path / "store")))})()
    jobs, removed = {}, []
    for n in range(10_000):
        job_id = f"lk-{n:05d}"
        ended = Result(job=job_id, run=1, token=1, state="finished")
        record = Record(job_id, spec, "me", float(n), result=ended, ended=float(n // 2))
        jobs[job_id] = KnownJob(record, places, {}, lambda event: None, True)
    register = type("Register", (), {})()
    register.jobs = lambda: tuple(jobs.values())
    register.wait_until_ready = lambda: None
    sweeper = Sweeper(register, tenure, lambda: NOW)

    def delete(job_id, outputs):
        removed.append(job_id)
        del jobs[job_id]
        return 1

    monkeypatch.setattr(sweeper, "delete", delete)
    monkeypatch.setattr(sweeper, "_files", lambda job, folder, outputs: [])
    for dry_run in (True, False):
        after, seen = None, []
        while True:
            asked = {"older_than": "1d", "keep_last": 4, "dry_run": dry_run, "after": after}
            found = sweeper.sweep(asked)
            assert len(found["jobs"]) <= sweeping.SLICE_JOBS
            seen += [row["id"] for row in found["jobs"]]
            if (after := found["after"]) is None or (dry_run and len(seen) > 500):
                break
        assert seen == [f"lk-{n:05d}" for n in range(len(seen) if dry_run else 9_996)]
        assert len(removed) == (0 if dry_run else 9_996)


def test_sweep__while_jobs_run_keeps_nobody_waiting(open_jobs, document, slow_steps, finished):
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
        thread = threading.Thread(target=jobs.sweeper.sweep, args=({"older_than": "0s"},))
        thread.start()
        try:
            assert inside.wait(60.0)
            assert {jobs.status(job_id)["state"] for job_id in running} == {"running"}
            assert jobs.listed({})["total"] == 5
            jobs.cancel(running[0])
            wait_until(jobs, running[0], "cancelled")
        finally:
            go_on.set()
            join(thread)
    assert old not in {status["id"] for status in jobs.all()}


def test_stop__ends_between_two_jobs(open_jobs):
    jobs: Jobs = open_jobs()
    jobs.wait_until_ready()
    assert jobs.close(120.0) == []
    assert not jobs.sweeper.is_alive()
