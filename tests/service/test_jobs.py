"""The queue, the runs and the answers of one scheduler, without a cluster."""

import errno
import json
import shutil
import stat
import threading
import time
from pathlib import Path

import dask
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    ClusterError,
    DataError,
    JobNotFoundError,
    NoModelError,
    OutputError,
    ParameterError,
)
from largek_dask.model import Model, load_model
from largek_dask.service import queue as queue_module
from largek_dask.service.job_state import JobState
from largek_dask.service.jobs import Jobs
from largek_dask.service.lease import Claimant
from largek_dask.service.queue import Queue
from largek_dask.service.runner import Runner
from largek_dask.service.store import Records, read_result
from tests.helpers.checks import eventually, fit_asked
from tests.service.conftest import begun, wait_until

ENDED = ("finished", "failed", "cancelled")


def expected(rows_url, algorithm=None, n_clusters=7, **options):
    return Model.of(
        fit_asked(
            lk.open_rows(rows_url),
            algorithm=algorithm or lk.Lloyd(),
            n_clusters=n_clusters,
            seed=0,
            **options,
        )
    ).digest()


@pytest.mark.parametrize("algorithm", [lk.Lloyd(), lk.MiniBatch()])
def test_submit__gives_the_model_of_a_plain_fit(open_jobs, document, rows_url, tmp_path, algorithm):
    jobs = open_jobs()
    job_id = jobs.submit(document(algorithm=algorithm), {}, "somebody")
    status = wait_until(jobs, job_id, *ENDED)
    assert status["state"] == "finished", str(status)
    model = jobs.model(job_id)
    assert model.digest() == expected(rows_url, algorithm) == status["result"]["digest"]
    assert load_model(str(tmp_path / "out" / "model.zarr")).digest() == model.digest()
    kinds = [event["event"] for event in jobs.events(job_id, 0, 1000)]
    assert kinds[:3] == ["queued", "running", "started"]
    assert kinds[-1] == "finished"
    assert [event["n"] for event in jobs.events(job_id, 0, 1000)] == list(range(len(kinds)))
    assert jobs.events(job_id, 3, 2) == jobs.events(job_id, 0, 1000)[3:5]
    assert status["step"] == status["result"]["n_iter"] > 2
    assert status["rows"] > 0
    assert status["owner"] == "somebody"
    # the lease is given back, so that somebody else would have it at once
    assert Claimant(Folder(str(tmp_path / "out")), job_id, "other", 1000.0).claim() is not None


def test_submit__what_cannot_work_is_refused_and_leaves_nothing(open_jobs, document, tmp_path):
    jobs = open_jobs()
    for wrong, error in [
        (document(data=str(tmp_path / "nothing.zarr")), DataError),
        (document(n_clusters=3_001), ParameterError),
        ('{"data": 5}', ParameterError),
        (document(storage_options={"key": {"env": "LARGEK_NO_SUCH_VARIABLE"}}), ParameterError),
        (document(storage_options={"key": {"memory": True}}), ParameterError),
    ]:
        with pytest.raises(error):
            jobs.submit(wrong, {}, "me")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("all of it")
    with pytest.raises(OutputError, match="thesis"):
        jobs.submit(document(output="full"), {}, "me")
    assert jobs.listed() == []
    assert not (tmp_path / "store" / "jobs").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_submit__the_workers_are_asked(tmp_path, document, quick_leases):
    client = object()
    records = Records(Folder(str(tmp_path / "store")))
    jobs = Jobs(records, lambda: client, "me")
    jobs.loaded.set()

    def check(asked, rows, seconds):
        assert asked is client
        assert rows.shape == (3_000, 4)
        raise ClusterError("no worker can see it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("largek_dask.service.jobs.check_workers", check)
        patch.setattr("largek_dask.driver.fit.check_problem", lambda *args, **options: None)
        with pytest.raises(ClusterError, match="no worker can see it"):
            jobs.submit(document(), {}, "me")
    assert jobs.listed() == []


def test_cancel__keeps_the_best_model_so_far(open_jobs, document, slow_steps, rows_url, tmp_path):
    jobs = open_jobs()
    with dask.config.set({"largek.checkpoints.seconds": 0.0}):
        job_id = jobs.submit(document(), {}, "me")
        begun(jobs, job_id, 2)
        eventually((tmp_path / "out" / "checkpoints" / "000001.json").exists, "a checkpoint")
    assert len(jobs.model(job_id).history) >= 1
    assert jobs.status(job_id)["state"] == "running"
    jobs.cancel(job_id)
    assert wait_until(jobs, job_id, *ENDED)["state"] == "cancelled"
    model = jobs.model(job_id)
    assert len(model.history) == 2
    # all rows are counted in the final pass only, which a cancelled job has not had
    after_two = fit_asked(
        lk.open_rows(rows_url), algorithm=lk.Lloyd(), n_clusters=7, seed=0, max_iter=2, tol=0.0
    )
    assert model.arrays.centers.tobytes() == after_two.arrays.centers.tobytes()
    assert jobs.cancel(job_id) == "cancelled"
    slow_steps.set()
    jobs.resume(job_id, {}, {})
    assert wait_until(jobs, job_id, *ENDED)["state"] == "finished"
    assert jobs.model(job_id).digest() == expected(rows_url)


def test_cancel__a_job_that_waits_never_begins(open_jobs, document, tmp_path):
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = jobs.submit(document(), {}, "me")
        jobs.cancel(job_id)
        status = wait_until(jobs, job_id, *ENDED)
    assert status["state"] == "cancelled"
    assert "step" not in status
    assert read_result(Folder(str(tmp_path / "out")), job_id, 1).state == "cancelled"
    with pytest.raises(NoModelError):
        jobs.model(job_id)


def test_cancel__is_remembered_by_the_next_scheduler(open_jobs, document, slow_steps):
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(document(), {}, "me")
    first.close(10.0)
    record = first._store_lease.records.read(job_id)
    import dataclasses

    first._store_lease.records.update(dataclasses.replace(record, cancel=True))
    later = open_jobs()
    assert wait_until(later, job_id, *ENDED)["state"] == "cancelled"


@pytest.mark.parametrize("data_is_there", [True, False])
def test_cancel__before_a_checkpoint_is_taken_up_keeps_its_model(
    open_jobs, document, slow_steps, rows_url, tmp_path, data_is_there
):
    """The scheduler has gone and come back: what has been computed is no less there."""
    shutil.copytree(rows_url, data := tmp_path / "x.zarr")
    first = open_jobs()
    job_id = first.submit(document(data=str(data)), {}, "me")
    begun(first, job_id, 2)
    assert first.close(120.0) == []
    assert (tmp_path / "out" / "checkpoints" / "000002.json").exists()
    if not data_is_there:
        data.rename(tmp_path / "elsewhere.zarr")
    later = open_jobs(start=False)
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        later.start()
        later.cancel(job_id)
        status = wait_until(later, job_id, *ENDED)
    assert [e["event"] for e in later.events(job_id, 0, 1000)].count("started") == 1, "only before"
    result, model = status["result"], later.model(job_id)
    assert (status["state"], result["stop_reason"], result["n_iter"]) == ("cancelled",) * 2 + (2,)
    assert result["digest"] == model.digest()
    after_two = fit_asked(
        lk.open_rows(rows_url), algorithm=lk.Lloyd(), n_clusters=7, seed=0, max_iter=2, tol=0.0
    )
    assert model.arrays.centers.tobytes() == after_two.arrays.centers.tobytes()
    assert [record["step"] for record in model.history] == [1, 2]
    assert model.provenance["stop_reason"] == "cancelled"
    assert model.provenance["parameters"] == Model.of(after_two).provenance["parameters"]
    if not data_is_there:
        (tmp_path / "elsewhere.zarr").rename(data)
    slow_steps.set()
    later.resume(job_id, {}, {})
    assert wait_until(later, job_id, *ENDED)["state"] == "finished"
    assert later.model(job_id).digest() == expected(rows_url)


def test_cancel__of_a_run_that_has_only_begun_anew_leaves_the_model(
    open_jobs, document, slow_steps
):
    """Its checkpoint is that of the run before, whose model stands."""
    slow_steps.set()
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=3, tol=0.0), {}, "me")
    before = wait_until(jobs, job_id, *ENDED)
    slow_steps.clear()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        jobs.resume(job_id, {"max_iter": 500}, {})
        assert jobs.close(120.0) == []
        later = open_jobs()
        later.cancel(job_id)
        status = after_run(later, job_id, 2)
    assert (status["state"], status["result"]["labels"]) == ("cancelled", True)
    assert status["result"]["digest"] == before["result"]["digest"]
    assert later.model(job_id).digest() == before["result"]["digest"]


def test_resume__goes_on_with_other_stop_rules(open_jobs, document, rows_url, tmp_path):
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=3, tol=0.0), {}, "me")
    assert wait_until(jobs, job_id, *ENDED)["result"]["n_iter"] == 3
    labels_of_three = (tmp_path / "out" / "labels.zarr" / "zarr.json").read_text()
    jobs.resume(job_id, {"max_iter": 500}, {})
    status = after_run(jobs, job_id, 2)
    assert status["result"]["stop_reason"] == "converged"
    whole = expected(rows_url, max_iter=500, tol=0.0)
    assert jobs.model(job_id).digest() == whole
    assert (tmp_path / "out" / "labels.zarr" / "zarr.json").read_text() != labels_of_three
    kinds = [event["event"] for event in jobs.events(job_id, 0, 1000)]
    assert kinds.count("finished") == 2
    with pytest.raises(ParameterError, match="seed"):
        jobs.resume(job_id, {"seed": 5}, {})


def test_resume__not_while_it_runs(open_jobs, document, slow_steps):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    with pytest.raises(ParameterError, match="wait until it has ended"):
        jobs.resume(job_id, {}, {})


def test_close__a_later_scheduler_goes_on(open_jobs, document, slow_steps, rows_url):
    first = open_jobs()
    job_id = first.submit(document(), {}, "me")
    begun(first, job_id, 2)
    assert first.close(120.0) == []
    assert first.status(job_id)["state"] == "queued"
    slow_steps.set()
    # What the first one has given back need not be waited for.
    with dask.config.set({"largek.service.patience-seconds": 3600.0}):
        later = open_jobs()
        status = wait_until(later, job_id, *ENDED)
    assert status["state"] == "finished"
    assert later.model(job_id).digest() == expected(rows_url)
    events = later.events(job_id, 0, 1000)
    kinds = [event["event"] for event in events]
    assert kinds.count("running") == 2
    assert "interrupted" in kinds
    resumed = [event for event in events if event["event"] == "started"][-1]
    assert resumed["n_iter"] >= 2
    later.close(120.0)
    # one that comes after the end knows how it ended, and what happened
    last = open_jobs()
    assert wait_until(last, job_id, *ENDED)["result"]["digest"] == expected(rows_url)
    told = [event["event"] for event in last.events(job_id, 0, 1000)]
    # the first word is told before there is a folder to write it into, and written later
    assert told[:3] == ["queued", "running", "started"]
    assert told[-1] == "finished"


def test_close__begins_no_job_that_waits(open_jobs, document, monkeypatch):
    """Not even if the queue was just about to."""
    is_held, reset_retries = threading.Event(), threading.Event()
    acquire, stop = Queue.acquire, Queue.stop

    def held(table):
        acquire(table)
        if reserved_memory:
            is_held.set()
            assert reset_retries.wait(120.0)

    def stopped(queue):
        try:
            return stop(queue)
        finally:
            reset_retries.set()

    reserved_memory = []
    monkeypatch.setattr(Queue, "acquire", held)
    monkeypatch.setattr(Queue, "stop", stopped)
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = jobs.submit(document(), {}, "me")
        reserved_memory.append(True)
        assert is_held.wait(120.0)
    assert jobs.close(120.0) == []
    assert jobs.status(job_id)["state"] == "queued"
    assert [event["event"] for event in jobs.events(job_id, 0, 9)] == ["queued"]


def test_queue__first_come_first_served_also_after_a_restart(open_jobs, document, slow_steps):
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        first = open_jobs()
        ids = [first.submit(document(str(n), max_iter=4), {}, "me") for n in range(3)]
        begun(first, ids[0], 2)
        assert [first.status(job_id)["state"] for job_id in ids] == ["running", "queued", "queued"]
        assert first.close(120.0) == []
        slow_steps.set()
        later = open_jobs()
        ids.append(later.submit(document("3", max_iter=4), {}, "me"))
        for job_id in ids:
            wait_until(later, job_id, "finished")
    began = [
        max(e["time"] for e in later.events(job_id, 0, 1000) if e["event"] == "running")
        for job_id in ids
    ]
    assert began == sorted(began)


def test_queue__no_more_at_once_than_allowed(open_jobs, document, slow_steps):
    with dask.config.set({"largek.service.concurrent-jobs": 2}):
        jobs = open_jobs()
        ids = [jobs.submit(document(output=str(i)), {}, "me") for i in range(5)]
        eventually(
            lambda: sum(status.get("step", 0) >= 2 for status in jobs.listed()) == 2,
            "two jobs that take steps",
        )
        with jobs.changed:
            assert jobs.due() == []
        states = [status["state"] for status in jobs.listed()]
        assert states.count("running") == 2
        assert states.count("queued") == 3
        slow_steps.set()
        for job_id in ids:
            wait_until(jobs, job_id, "finished")


def test_ids__lead_nowhere(open_jobs):
    jobs = open_jobs()
    for wrong in ("../x", "a/b", "", "LK", "x" * 65, "a\nb", "nobody"):
        for ask in (jobs.status, jobs.delete):
            with pytest.raises(JobNotFoundError):
                ask(wrong)


def test_records__a_damaged_one_does_not_hide_the_others(open_jobs, document, tmp_path, logged):
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        kept = first.submit(document("a"), {}, "me")
        torn = first.submit(document("b"), {}, "me")
    first.close(10.0)
    folder = tmp_path / "store" / "jobs"
    path = folder / f"{torn}.json"
    path.write_text((whole := path.read_text())[:-20])
    (folder / "lk-other.json").write_text((folder / f"{kept}.json").read_text())
    later = open_jobs()
    wait_until(later, kept, "finished")
    assert [status["id"] for status in later.listed()] == [kept]
    assert any(torn in line for line in logged)
    assert any("lk-other" in line for line in logged)
    # Somebody has mended the one, and removed the other.
    path.write_text(whole)
    (folder / "lk-other.json").unlink()
    later.close(10.0)
    wait_until(open_jobs(), torn, "finished")


def test_records__one_that_cannot_be_read_for_a_moment_comes_back(open_jobs, document, monkeypatch):
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(document(), {}, "me")
    first.close(10.0)
    read, failed = Folder.read, []

    def broken(self, name, *limit, **named):
        if name == f"{job_id}.json" and not mended.is_set():
            failed.append(name)
            raise OSError(errno.EIO, "a cable is loose")
        return read(self, name, *limit, **named)

    mended = threading.Event()
    monkeypatch.setattr(Folder, "read", broken)
    later = open_jobs()
    eventually(lambda: failed, "a try")
    mended.set()
    wait_until(later, job_id, "finished")


def test_events__file_has_all_and_no_line_is_forged(open_jobs, document, tmp_path):
    jobs = open_jobs()
    job_id = jobs.submit(document(name="quiet"), {}, "somebody")
    wait_until(jobs, job_id, "finished")
    lines = Path(tmp_path / "out" / "events" / "000001.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds.count("step") == jobs.status(job_id)["result"]["n_iter"]
    assert kinds[:2] == ["queued", "running"]


def test_events__of_jobs_long_ended_are_read_from_their_files(open_jobs, document, monkeypatch):
    monkeypatch.setattr(queue_module, "MOST_FEEDS", 1)
    jobs = open_jobs()
    ids = [jobs.submit(document(str(i), max_iter=3), {}, "me") for i in range(3)]
    for job_id in ids:
        wait_until(jobs, job_id, "finished")
    eventually(
        lambda: not any(t.name.startswith("largek-lk") for t in threading.enumerate()),
        "the threads of the jobs to end",
    )
    held = [len(jobs.find(job_id).feed._texts) for job_id in ids]
    assert held[0] == held[1] == 0
    assert held[2] > 0
    kinds = [event["event"] for event in jobs.events(ids[0], 0, 1000)]
    assert kinds[:2] == ["queued", "running"]
    assert kinds[-1] == "finished"
    assert jobs.status(ids[0])["n_events"] == len(kinds)


def test_output__of_another_job_is_not_taken_for_its_own(open_jobs, document, tmp_path):
    first = open_jobs()
    other = first.submit(document("other", max_iter=2), {}, "me")
    wait_until(first, other, "finished")
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(document(), {}, "me")
        assert first.close(120.0) == []
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "other").rename(tmp_path / "out")
    later = open_jobs()
    status = wait_until(later, job_id, "failed")
    assert f"is the output of job {other}" in status["result"]["message"]
    events = later.events(job_id, 0, 1000)
    assert not {"step", "finished"} & {event["event"] for event in events}, "they are another's"


def test_output__that_somebody_else_computes_into_is_asked_for_after_a_beat(
    open_jobs, document, tmp_path
):
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = jobs.submit(document(), {}, "me")
        theirs = Claimant(Folder(str(tmp_path / "out")), job_id, "other", 3600.0).claim()
        assert theirs is not None
    began = time.monotonic()
    settings = {"largek.service.beat-seconds": 500.0, "largek.service.patience-seconds": 3600.0}
    with dask.config.set(settings):
        job = jobs.find(job_id)
        eventually(lambda: job.note, "it is said why it does not begin")
        assert "another scheduler" in job.note
        assert 500.0 <= job.not_before - began <= 500.0 + time.monotonic() - began
        jobs.cancel(job_id)
    theirs.release()


def test_cancel__ends_a_job_though_the_store_cannot_be_written(
    open_jobs, document, slow_steps, monkeypatch, tmp_path
):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)
    tried = []

    def away(record):
        tried.append(record)
        raise OutputError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(jobs._store_lease.records, "update", away)
        jobs.cancel(job_id)
        assert wait_until(jobs, job_id, *ENDED)["state"] == "cancelled"
        assert [record.cancel for record in tried[:2]] == [True, True]
        stored = Records(Folder(str(tmp_path / "store")))
        assert stored.read(job_id).result is None, "nothing could be written"
    # As soon as it can be, it is.
    eventually(lambda: stored.read(job_id).result is not None, "the record to be written")
    record = stored.read(job_id)
    assert (record.cancel, record.result.state) == (True, "cancelled")


@pytest.mark.parametrize("owner", [["me"], "a\nb", "x" * 201])
def test_submit__an_odd_owner_harms_nobody(open_jobs, document, owner):
    """A list ended the queue's thread for ever, a long one could not be read after a restart."""
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, owner)
    wait_until(jobs, job_id, "finished")
    assert jobs.close(120.0) == []
    assert open_jobs().status(job_id)["owner"].isprintable()


def test_queue__no_error_ends_it(open_jobs, document, monkeypatch, logged):
    jobs = open_jobs()
    following, failed = jobs.due, []

    def broken():
        if len(failed) < 3:
            failed.append(None)
            raise ZeroDivisionError("who would have thought")
        return following()

    monkeypatch.setattr(jobs, "due", broken)
    wait_until(jobs, jobs.submit(document(), {}, "me"), "finished")
    assert len(failed) == 3
    assert sum("who would have thought" in line for line in logged) == 1


def test_queue__a_job_that_cannot_begin_keeps_no_other(open_jobs, document, monkeypatch):
    jobs = open_jobs()
    start, refused = Runner.start, []

    def start_or_not(self):
        if self.name.endswith(unlucky) and not lucky.is_set():
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    lucky = threading.Event()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        unlucky = jobs.submit(document("a"), {}, "me")
        other = jobs.submit(document("b"), {}, "me")
        monkeypatch.setattr(Runner, "start", start_or_not)
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        wait_until(jobs, other, "finished")
        assert refused
        assert jobs.status(unlucky)["state"] == "queued"
        lucky.set()
        wait_until(jobs, unlucky, "finished")


def test_store__is_for_nobody_else(open_jobs, document, tmp_path):
    jobs = open_jobs(store=str(tmp_path / "deep" / "store"))
    wait_until(jobs, jobs.submit(document(), {}, "me"), "finished")
    found = list((tmp_path / "deep").rglob("*"))
    assert {path.name for path in found if path.is_dir()} == {"store", "jobs", "claims"}
    assert sum(path.is_file() for path in found) >= 3
    for path in (tmp_path / "deep", *found):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.fixture
def broken_steps(monkeypatch):
    """``broken_steps(error)``: steps of Lloyd's algorithm fail from now on; None: no more."""
    step, errors = lk.Lloyd.step, [None]

    def broken(self, *arguments):
        if errors[-1] is not None:
            raise errors[-1]
        return step(self, *arguments)

    monkeypatch.setattr(lk.Lloyd, "step", broken)
    return errors.append


def after_run(jobs, job_id, run):
    """The status once this run, or a later one, has ended."""
    eventually(
        lambda: (status := jobs.status(job_id))["state"] in ENDED and status["run"] >= run,
        f"run {run} of job {job_id} to end",
    )
    return jobs.status(job_id)


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        ("cancelled", ConnectionError("storage is away")),
        ("failed", ConnectionError("storage is away")),
        ("finished", ParameterError("what stands there is another job's")),
    ],
    ids=["cancelled", "failed", "finished"],
)
def test_result__that_cannot_be_published(
    open_jobs, document, slow_steps, broken_steps, monkeypatch, ended, error
):
    """A cancelled or failed job stays that; one whose model nobody would be told of has failed."""
    refused = []

    def refuse(folder, result):
        refused.append(result)
        raise error

    monkeypatch.setattr("largek_dask.service.runner.write_result", refuse)
    if ended == "failed":
        broken_steps(ZeroDivisionError("by nothing"))
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    if ended == "cancelled":
        begun(jobs, job_id, 2)
        jobs.cancel(job_id)
    else:
        slow_steps.set()
    status = wait_until(jobs, job_id, *ENDED)
    assert [result.state for result in refused] == [ended]
    if ended == "finished":
        assert (status["state"], status["result"]["error"]) == ("failed", "ParameterError")
        assert "another job's" in status["result"]["message"]
    else:
        assert status["state"] == ended
        assert status["result"] == refused[0].model_dump(mode="json")


def test_resume__that_fails_leaves_the_model(open_jobs, document, broken_steps, rows_url):
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=3, tol=0.0), {}, "me")
    wait_until(jobs, job_id, *ENDED)
    model = jobs.model(job_id)
    broken_steps(ZeroDivisionError("by nothing"))
    jobs.resume(job_id, {"max_iter": 500}, {})
    status = after_run(jobs, job_id, 2)
    assert (status["state"], status["result"]["error"]) == ("failed", "ZeroDivisionError")
    assert jobs.model(job_id).digest() == model.digest()
    # So it is for the next scheduler; and going on once more works.
    assert jobs.close(120.0) == []
    broken_steps(None)
    later = open_jobs()
    assert later.status(job_id)["result"] == status["result"]
    assert [event["event"] for event in later.events(job_id, 0, 1000)][-1] == "failed"
    later.resume(job_id, {}, {})
    status = after_run(later, job_id, 3)
    assert status["state"] == "finished"
    assert later.model(job_id).digest() == expected(rows_url, max_iter=500, tol=0.0)


def kinds(jobs, job_id):
    return [event["event"] for event in jobs.events(job_id, 0, 1000)]


def test_submit__is_told_before_it_begins(open_jobs, document, monkeypatch):
    """However long whoever submits it is held up once the queue knows of it."""
    add = Queue.add

    def slow(self, job, records):
        add(self, job, records)
        eventually(lambda: "running" in [event["event"] for event in job.feed.since(0)], "it runs")

    monkeypatch.setattr(Queue, "add", slow)
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    assert kinds(jobs, job_id)[:2] == ["queued", "running"]
    wait_until(jobs, job_id, *ENDED)


def test_resume__is_told_before_it_begins(open_jobs, document, monkeypatch):
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=2), {}, "me")
    wait_until(jobs, job_id, "finished")
    eventually(lambda: kinds(jobs, job_id)[-1] == "finished", "its end is told")
    before, turns = len(kinds(jobs, job_id)), []
    due, change = Queue.due, JobState.change

    def counted(self):
        turns.append(None)
        return due(self)

    def slow(self, save, **changes):
        change(self, save, **changes)
        if "run" in changes:
            seen = len(turns)
            eventually(lambda: len(turns) >= seen + 2, "the queue has had its turn")
            held_up.append(self.record.run)
            if self.running:
                eventually(lambda: len(self.feed.since(0)) > before, "it has told of that")

    held_up = []
    monkeypatch.setattr(Queue, "due", counted)
    monkeypatch.setattr(JobState, "change", slow)
    jobs.resume(job_id, {"max_iter": 4}, {})
    assert held_up == [2]
    wait_until(jobs, job_id, "finished")
    assert kinds(jobs, job_id)[before : before + 2] == ["queued", "running"]


def test_cancel__is_told_before_the_end(open_jobs, document, slow_steps, monkeypatch):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)
    save = Queue.save

    def slow(self, job):
        save(self, job)
        if job.record.cancel:
            eventually(lambda: job.feed.since(0)[-1]["event"] == "cancelled", "it has ended")

    monkeypatch.setattr(Queue, "save", slow)
    jobs.cancel(job_id)
    assert kinds(jobs, job_id)[-1] == "cancelled"
    assert kinds(jobs, job_id).count("cancelling") == 1


def test_events__of_what_is_done_to_a_job_outlive_the_scheduler(open_jobs, document, slow_steps):
    """They are written by a run, in the order of telling, and so told as they were before."""
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(document(), {}, "me")
    begun(first, job_id, 2)
    first.cancel(job_id)
    wait_until(first, job_id, "cancelled")
    eventually(lambda: kinds(first, job_id)[-1] == "cancelled", "its end is told")
    told = [event for event in first.events(job_id, 0, 1000) if event["event"] != "step"]
    assert first.close(120.0) == []
    second = open_jobs()
    again = [event for event in second.events(job_id, 0, 1000) if event["event"] != "step"]
    assert [event["event"] for event in again][:2] == ["queued", "running"]
    assert "cancelling" in [event["event"] for event in again]
    number = {"n": None}
    assert [{**event, **number} for event in again] == [{**event, **number} for event in told]


def test_status__what_limits_a_job_and_where_it_is(open_jobs, document):
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        ids = [
            jobs.submit(document(output=str(n), max_time=600.0, n_init=2), {}, "me")
            for n in range(2)
        ]
        before = [jobs.status(job_id) for job_id in ids]
    assert [status["max_time"] for status in before] == [600.0, 600.0]
    assert "start" not in before[0]
    for job_id in ids:
        status = wait_until(jobs, job_id, *ENDED)
        assert status["state"] == "finished"
        assert status["n_rows"] == 3_000
        assert (status["start"], status["starts"]) == (1, 2), "the second of two, from 0 on"
        assert status["last_event"] == jobs.events(job_id, 0, 1_000)[-1]["time"]
        assert status["sizes"]["n_empty"] + sum(status["sizes"]["counts"]) == 7
