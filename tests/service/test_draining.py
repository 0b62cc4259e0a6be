"""A scheduler is drained: nothing begins, what runs is held, all of it is on disk, also later."""

from __future__ import annotations

import threading
import time

import dask
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import ClusterError, OutputError
from largek_dask.service.client import Service
from largek_dask.service.store import Records
from tests.helpers.checks import eventually
from tests.service.conftest import begun, wait_until


def drained(jobs):
    """Drain, and wait until all is on disk."""
    jobs.steering.drain(True)
    eventually(
        lambda: not (left := jobs.steering.left_to_drain())["running"] and not left["unkept"],
        "all to be on disk",
    )


def test_drain__holds_what_runs_and_begins_nothing(
    open_jobs, document, slow_steps, tmp_path, rows_url
):
    with dask.config.set({"largek.service.concurrent-jobs": 2}):
        first = open_jobs()
        ids = [first.submit(document(str(n)), {}, "me") for n in range(3)]
        for job_id in ids[:2]:
            begun(first, job_id, 2)
        assert not first.status(ids[0])["draining"]
        drained(first)
        assert [first.status(job_id)["state"] for job_id in ids] == ["queued"] * 3
        assert all(first.status(job_id)["draining"] for job_id in ids)
        assert first.listed({})["draining"]
        kinds = [event["event"] for event in first.events(ids[0], 0, 1000)]
        assert "draining" in kinds
        ended = first.events(ids[0], 0, 1000)[-1]
        assert (ended["event"], ended["reason"]) == ("interrupted", "drain")
        for job_id in ids[:2]:
            saved = tmp_path / str(ids.index(job_id)) / "checkpoints"
            assert any(path.suffix == ".json" for path in saved.iterdir())
        # What comes meanwhile is kept, and waits.
        ids.append(first.submit(document("3"), {}, "me"))
        with first._changed:
            assert first._queue.due() == []
        assert first.close(120.0) == []
        slow_steps.set()
        second = open_jobs()
        assert all(second.status(job_id)["draining"] for job_id in ids)
        with second._changed:
            assert second._queue.due() == []
        places = [second.status(job_id)["queue"]["position"] for job_id in ids]
        assert places == [1, 2, 3, 4], "those that ran come first"
        left = second.steering.drain(False)
        assert left["draining"] is False
        for job_id in ids:
            wait_until(second, job_id, "finished")
    assert not Records(Folder(str(tmp_path / "store"))).is_drained()
    plain = lk.KMeans(7, algorithm=lk.Lloyd(), random_state=0).fit(rows_url)
    digests = {second.status(job_id)["result"]["digest"] for job_id in ids}
    assert digests == {plain.model_.digest()}
    assert not any(second.status(job_id)["draining"] for job_id in ids)


def test_drain__those_that_are_to_end_end(open_jobs, document, slow_steps):
    jobs = open_jobs()
    running, queued = (jobs.submit(document(name), {}, "me") for name in "ab")
    begun(jobs, running, 2)
    jobs.cancel(queued)
    drained(jobs)
    wait_until(jobs, queued, "cancelled")
    jobs.cancel(running)
    status = wait_until(jobs, running, "cancelled")
    assert status["result"]["digest"] == jobs.model(running).digest()


def test_drain__that_cannot_be_kept_changes_nothing(open_jobs, document, slow_steps, monkeypatch):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)

    def fail(self, name, document):
        raise OutputError("the store is full: make room.")

    with monkeypatch.context() as patch:
        patch.setattr(Records, "post", fail)
        with pytest.raises(OutputError, match="full"):
            jobs.steering.drain(True)
    assert not jobs.steering.left_to_drain()["draining"]
    assert jobs.status(job_id)["state"] == "running"
    assert "draining" not in [event["event"] for event in jobs.events(job_id, 0, 100)]


def test_drain__a_job_that_is_paused_stays_so(open_jobs, document, slow_steps):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)
    jobs.steering.pause(job_id)
    drained(jobs)
    jobs.steering.drain(False)
    assert wait_until(jobs, job_id, "paused")["state"] == "paused"
    slow_steps.set()
    jobs.steering.resume(job_id)
    wait_until(jobs, job_id, "finished")


class Asked(Service):
    """A service whose scheduler says what a test has it say."""

    _where = "tcp://10.0.0.1:8786"

    def __init__(self, *left):
        self.left = list(left)

    def ask_again(self, operation, **arguments):
        self.asked = (operation, arguments)
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def left(*running, draining=True, unkept=()):
    return {"draining": draining, "running": list(running), "unkept": list(unkept)}


def test_client__waits_until_all_is_on_disk():
    Asked(left("lk-1"), left(unkept=["lk-1"]), left()).drain("60s")
    service = Asked(left("lk-1"))
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="lk-1"):
        service.drain("0.2s")
    assert time.monotonic() - begin < 30
    with pytest.raises(ClusterError, match=r"was undone meanwhile: call drain\(\) again"):
        Asked(left("lk-1"), left("lk-1", draining=False)).drain()
    service = Asked(left("lk-1", draining=False))
    service.drain(undo=True)
    assert service.asked == ("drain", {"drained": False})
    assert service.draining is False


def test_two_that_drain_at_once_hold_each_job_once(open_jobs, document, slow_steps):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 2)
    threads = [threading.Thread(target=drained, args=(jobs,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    kinds = [event["event"] for event in jobs.events(job_id, 0, 1000)]
    assert kinds.count("draining") == 1
