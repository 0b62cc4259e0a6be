"""One scheduler a store, and one answer a time for a job."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import dask
import pytest

from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    ClusterError,
    JobNotFoundError,
    LostJobError,
    OutputError,
    ParameterError,
)
from largek_dask.service.lease import Claimant, LeaseRenewer, StoreLease
from largek_dask.service.queue import Queue
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Records
from tests.helpers.checks import eventually
from tests.service.conftest import begun, wait_until


@pytest.fixture
def asleep(monkeypatch):
    """``asleep()``: the first scheduler gives no sign of life until the event that this gives.

    ``asleep("store")``: none for its store; it goes on with its jobs.
    """
    awake = threading.Event()
    run = LeaseRenewer.run

    def sleep(where=""):
        def held(self):
            if self._lease.owner == "scheduler-0" and f"/{where}" in self._lease.folder.url:
                assert awake.wait(60.0)
            run(self)

        monkeypatch.setattr(LeaseRenewer, "run", held)
        return awake

    yield sleep
    awake.set()


def patient():
    """Whoever waits from now on waits long: a busy machine makes nobody seem dead."""
    return dask.config.set({"largek.service.patience-seconds": 3600.0})


def record_of(tmp_path, job_id):
    return tmp_path / "store" / "jobs" / f"{job_id}.json"


def test_second__is_refused_with_the_address_of_the_first(open_jobs, document, slow_steps):
    first = open_jobs()
    job_id = first.submit(document(), {}, "me")
    with patient():
        second = open_jobs()
        second_is_refused(second, document, job_id)
    slow_steps.set()
    wait_until(first, job_id, "finished")
    # As soon as it ends, the other one has everything.
    assert first.close(120.0) == []
    with second.changed:
        assert second.changed.wait_for(second.loaded.is_set, 120.0)
    assert second.status(job_id)["result"] == first.status(job_id)["result"]
    second.delete(job_id)


@pytest.mark.parametrize(("beat", "patience"), [(3.0, 2.0), (3.0, 3.0), (20.0, 30.0)])
def test_claim__that_others_would_take_from_the_living_is_refused(open_jobs, beat, patience):
    """Less patience than a holder needs to show itself, be it once a little late."""
    settings = {"largek.service.beat-seconds": beat, "largek.service.patience-seconds": patience}
    with (
        dask.config.set(settings),
        pytest.raises(ParameterError, match=r"patience-seconds .* twice largek.service.beat-sec"),
    ):
        open_jobs(start=False)
    settings["largek.service.patience-seconds"] = 2 * beat
    with dask.config.set(settings):
        open_jobs(start=False)


def second_is_refused(second, document, job_id):
    for ask in (
        lambda: second.submit(document("b"), {}, "me"),
        second.listed,
        lambda: second.status(job_id),
        lambda: second.cancel(job_id),
        lambda: second.delete(job_id),
        lambda: second.resume(job_id, {}, {}),
        second.wait_until_ready,
    ):
        with pytest.raises(ClusterError, match="held by scheduler-0"):
            ask()


def test_second__takes_over_from_one_that_is_silent(
    open_jobs, document, slow_steps, tmp_path, asleep
):
    """The first stands still, as a process that is stopped; then it goes on and has lost all."""
    awake = asleep()
    first = open_jobs()
    job_id = first.submit(document(), {}, "me")
    begun(first, job_id, 1)
    second = open_jobs()
    assert second.status(job_id)["run"] == 1, "it waits until it has the store"
    wait_until(second, job_id, "running")
    with patient():
        awake.set()
        with first.changed:
            assert first.changed.wait_for(lambda: first._store_lease.holder, 120.0)
        with pytest.raises(ClusterError, match="held by scheduler-1"):
            first.status(job_id)
        slow_steps.set()
        result = wait_until(second, job_id, "finished")["result"]
    runs = [e for e in second.events(job_id, 0, 1000) if e["event"] == "running"]
    takers = [event.get("taken_from") for event in runs]
    assert takers == [None, "scheduler-0"]
    # Claims: of the submit, of the first one's run, of the second one's.
    assert result["token"] == 3
    assert len(list((tmp_path / "out" / "results").iterdir())) == 1


def test_second__need_not_wait_for_the_claims_of_the_first(open_jobs, document, slow_steps, asleep):
    """It has waited for the store already; a job is not waited for as long again."""
    asleep()
    first = open_jobs()
    job_id = first.submit(document(), {}, "me")
    begun(first, job_id, 1)
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        second = open_jobs()
        second.wait_until_ready()
    with patient():
        eventually(lambda: runs_begun(second, job_id) == 2, "a job that the first one still claims")
        slow_steps.set()
        wait_until(second, job_id, "finished")


def runs_begun(jobs, job_id):
    return [event["event"] for event in jobs.events(job_id, 0, 1000)].count("running")


def test_first__asleep_neither_brings_back_nor_deletes(open_jobs, document, tmp_path, asleep):
    asleep("store/")
    first = open_jobs()
    deleted = first.submit(document("a", max_iter=2), {}, "me")
    again = first.submit(document("b", max_iter=2), {}, "me")
    for job_id in (deleted, again):
        wait_until(first, job_id, "finished")
    second = open_jobs()
    second.delete(deleted)
    second.resume(again, {"max_iter": 3}, {})
    wait_until(second, again, "finished")
    with pytest.raises(LostJobError):
        first.resume(deleted, {"max_iter": 5}, {})
    assert not record_of(tmp_path, deleted).exists()
    with pytest.raises(LostJobError):
        first.delete(again)
    assert (tmp_path / "b" / "model.zarr").exists()
    assert record_of(tmp_path, again).exists()
    with pytest.raises(LostJobError):
        first.submit(document("c"), {}, "me")
    assert [path.stem for path in (tmp_path / "store" / "jobs").glob("*.json")] == [again]


@pytest.mark.parametrize(("held", "other"), [("delete", "resume"), ("resume", "delete")])
def test_delete_and_resume__at_the_same_time_one_is_refused(
    open_jobs, document, tmp_path, monkeypatch, held, other
):
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=2, tol=0.0), {}, "me")
    wait_until(jobs, job_id, "finished")
    ask = {
        "delete": lambda: jobs.delete(job_id),
        "resume": lambda: jobs.resume(job_id, {"max_iter": 3}, {}),
    }
    inside, go_on = threading.Event(), threading.Event()

    def wait(original):
        def waiting(self, *arguments, **options):
            if threading.current_thread().name.startswith("held"):
                inside.set()
                assert go_on.wait(120.0)
            return original(self, *arguments, **options)

        return waiting

    # The first change of each: a file of the job, and the record.
    monkeypatch.setattr(Folder, "remove", wait(Folder.remove))
    monkeypatch.setattr(Folder, "publish", wait(Folder.publish))
    with ThreadPoolExecutor(1, "held") as pool:
        asked = pool.submit(ask[held])
        assert inside.wait(120.0)
        with pytest.raises(ParameterError, match=f"being {held.rstrip('e')}ed"):
            ask[other]()
        # Meanwhile all others are answered.
        assert jobs.status(job_id)["state"] == "finished"
        go_on.set()
        asked.result(120.0)
    if held == "delete":
        with pytest.raises(JobNotFoundError):
            jobs.status(job_id)
        assert not record_of(tmp_path, job_id).exists()
        assert list((tmp_path / "out").iterdir()) == []
    else:
        eventually(
            lambda: (status := jobs.status(job_id))["run"] == 2 and status["state"] == "finished",
            "the second run to finish",
        )
        assert jobs.status(job_id)["result"]["n_iter"] == 3


def test_resume__that_cannot_be_kept_changes_nothing(open_jobs, document, monkeypatch):
    jobs = open_jobs()
    job_id = jobs.submit(document(max_iter=2), {}, "me")
    wait_until(jobs, job_id, "finished")
    # Its last event is told a moment after the status, which counts events.
    eventually(
        lambda: jobs.events(job_id, 0, 1_000)[-1]["event"] == "finished", "the event of its end"
    )
    before = jobs.status(job_id)

    def full(record):
        raise OutputError("no space")

    monkeypatch.setattr(jobs._store_lease.records, "update", full)
    with pytest.raises(OutputError, match="no space"):
        jobs.resume(job_id, {"max_iter": 3}, {})
    assert jobs.status(job_id) == before


def test_claim__that_comes_while_the_scheduler_closes_is_given_back(tmp_path, monkeypatch):
    """Else the next scheduler would wait for one that is gone."""
    folder = Folder(str(tmp_path / "store"))
    store_lease = StoreLease(Records(folder), "first", threading.Condition())
    claim = Claimant.claim

    def late(self):
        store_lease.stop_claiming()
        return claim(self)

    with monkeypatch.context() as patched, patient():
        patched.setattr(Claimant, "claim", late)
        store_lease.claim(lambda: pytest.fail("nothing was taken away"))
    assert not store_lease.is_held
    assert any(folder.sub("claims").names()), "it has claimed"
    with patient():
        later = StoreLease(Records(folder), "second", threading.Condition())
        later.claim(lambda: pytest.fail("nothing was taken away"))
    assert later.is_held
    later.release()


@pytest.fixture
def stopped(monkeypatch):
    """``stopped("_replaced")``: the first scheduler stops between a look and a write of a record.

    It goes on when the event ``on`` is set that this gives; ``at`` is set when it is there.
    """
    at, on = threading.Event(), threading.Event()

    def stop(kind):
        write = getattr(Folder, kind)

        def late(self, target, *written):
            if "/store/jobs/" in target and threading.current_thread().name == "stopped":
                at.set()
                assert on.wait(60.0)
            return write(self, target, *written)

        monkeypatch.setattr(Folder, kind, late)
        return at, on

    yield stop
    on.set()


def in_the_middle(stopped, kind, ask):
    """What the first scheduler is asked for stops in the middle of a write; how to let it go on."""
    at, on = stopped(kind)
    errors = []

    def run():
        try:
            ask()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="stopped")
    thread.start()
    assert at.wait(60.0)

    def go_on():
        on.set()
        thread.join(60.0)
        (error,) = errors
        return error

    return go_on


@contextlib.contextmanager
def unlooked():
    """Schedulers that start within do not look after their records; gives what would do it."""
    check_records = Queue.check_records
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "check_records", lambda self: None)
        yield check_records


def test_submit__that_comes_too_late_is_no_job(open_jobs, document, tmp_path, asleep, stopped):
    """Who has the store has not seen it, so it must not begin whenever the store is read next."""
    with unlooked():
        asleep("store/")
        first = open_jobs()
        go_on = in_the_middle(stopped, "_created", lambda: first.submit(document("a"), {}, "me"))
        second = open_jobs()
        assert second.listed() == []
        with patient():
            assert isinstance(go_on(), LostJobError)
            (late,) = (tmp_path / "store" / "jobs").glob("*.json")
            assert second.listed() == []
            # Whoever submits again has one job.
            again = second.submit(document("a", max_iter=2), {}, "me")
    with patient():
        eventually(lambda: not late.exists(), "it to be put away")
        assert [path.name for path in (tmp_path / "store" / "late").iterdir()] == [late.name]
        assert wait_until(second, again, "finished", "failed")["state"] == "finished"
        assert second.close(120.0) == []
        third = open_jobs()
        assert [status["id"] for status in third.listed()] == [again]
        assert record_of(tmp_path, again).exists()


def resumed_too_late(first, document, stopped):
    """Stop a scheduler while it writes that a job goes on; the job, and how to let it go on."""
    job_id = first.submit(document("a", max_iter=2), {}, "me")
    wait_until(first, job_id, "finished")
    return job_id, in_the_middle(
        stopped, "_replaced", lambda: first.resume(job_id, {"max_iter": 3}, {})
    )


def test_change__that_comes_too_late_brings_nothing_back(
    open_jobs, document, tmp_path, asleep, stopped
):
    with unlooked() as check_records:
        asleep("store/")
        job_id, go_on = resumed_too_late(open_jobs(), document, stopped)
        second = open_jobs()
        second.delete(job_id)
        assert not record_of(tmp_path, job_id).exists()
        with patient():
            assert isinstance(go_on(), LostJobError)
            assert record_of(tmp_path, job_id).exists(), "it is back from the dead"
            check_records(second)
            assert not record_of(tmp_path, job_id).exists()
            assert second.close(120.0) == []
            assert open_jobs().listed() == []


def test_change__that_comes_too_late_takes_nothing_back(
    open_jobs, document, tmp_path, asleep, stopped
):
    with unlooked() as check_records:
        asleep("store/")
        job_id, go_on = resumed_too_late(open_jobs(), document, stopped)
        second = open_jobs()
        for max_iter in (4, 5):
            second.resume(job_id, {"max_iter": max_iter}, {})
            ended = wait_until(second, job_id, "finished")
        assert ended["run"] == 3
        record = record_of(tmp_path, job_id)
        with patient():
            eventually(lambda: json.loads(record.read_bytes())["result"], "its record")
            assert isinstance(go_on(), LostJobError)
            assert json.loads(record_of(tmp_path, job_id).read_bytes())["run"] == 2
            check_records(second)
            assert json.loads(record_of(tmp_path, job_id).read_bytes())["run"] == 3
            assert second.close(120.0) == []
            assert open_jobs().status(job_id)["result"] == ended["result"]


def test_look__leaves_alone_what_was_written_here(open_jobs, document, tmp_path, slow_steps):
    """Also what is just being submitted, and what cannot be read."""
    with unlooked() as check_records:
        jobs = open_jobs()
        job_id = jobs.submit(document("a", max_iter=4), {}, "me")
        records = jobs._store_lease.records
        begun(jobs, job_id, 1)
        made = records.create(JobSpec.parse(document("b")), "me", 1.0)
        read = []
        is_stored = records.is_stored
        records.is_stored = lambda record: read.append(record.id) or is_stored(record)
        check_records(jobs)
        assert set(record_of(tmp_path, "x").parent.glob("*.json")) == {
            record_of(tmp_path, each) for each in (job_id, made.id)
        }
        check_records(jobs)
        assert read == [job_id], "what has not changed is not read again"
        slow_steps.set()
        wait_until(jobs, job_id, "finished")
        eventually(lambda: jobs.find(job_id).is_saved, "its record to say so")
        check_records(jobs)
        assert read == [job_id] * 2
        assert not (tmp_path / "store" / "late").exists()
