"""What is logged for a job is in its folder: also of a worker that is no more."""

from __future__ import annotations

import json
import logging
import os
import signal
from contextlib import ExitStack

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.context import Working, working_for
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError, ParameterError
from largek_dask.service.journal import Journal
from largek_dask.service.lines import log_line_of
from tests.conftest import make_client
from tests.helpers.checks import eventually
from tests.service.conftest import begun, wait_until

A, B = "tcp://10.0.0.1:4000", "tcp://10.0.0.2:4000"


def entry(job_id, message, level="WARNING", **other):
    about = {"job": job_id, "run": 1, "time": "2026-11-25T08:00:00.000+00:00", "logger": "x"}
    return {**about, "level": level, "message": message, **other}


def messages(jobs, job_id, **asked):
    return [line["message"] for line in jobs.journal.lines(job_id, **asked)]


@pytest.fixture
def running(open_jobs, document, slow_steps):
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    begun(jobs, job_id, 1)
    return jobs, job_id


def test_lines__are_in_the_folder_and_found_by_what_is_asked(running, tmp_path):
    jobs, job_id = running
    take = jobs.journal.take
    take("driver", None, entry(job_id, "one"))
    take("worker", A, entry(job_id, "two", "ERROR", left_out=3))
    take("worker", B, entry(job_id, "three", "CRITICAL"))
    assert messages(jobs, job_id) == ["one", "two", "three"]
    assert messages(jobs, job_id, source="worker") == ["two", "three"]
    assert messages(jobs, job_id, source="driver") == ["one"]
    assert messages(jobs, job_id, worker=A) == ["two"]
    assert messages(jobs, job_id, level="error") == ["two", "three"]
    assert messages(jobs, job_id, level="critical", source="worker") == ["three"]
    assert messages(jobs, job_id, n=2) == ["two", "three"]
    assert messages(jobs, job_id, n=0) == []
    lines = (tmp_path / "out" / "logs.jsonl").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["one", "two", "three"]
    assert json.loads(lines[1]) == {
        "run": 1, "time": "2026-11-25T08:00:00.000+00:00", "level": "ERROR", "logger": "x",
        "message": "two", "left_out": 3, "source": "worker", "worker": A,
    }  # fmt: skip
    shown = log_line_of(json.loads(lines[1]))
    assert shown == f"2026-11-25 08:00:00.000  ERROR    {A} (3 lines left out before) x: two"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"source": "nurse"}, "source must be 'driver' or 'worker'"),
        ({"level": "loud"}, "level must be one of warning, error, critical"),
        ({"n": -1}, "n must be a number of lines"),
        ({"n": True}, "n must be"),
    ],
)
def test_lines__what_is_no_question(running, asked, told):
    jobs, job_id = running
    with pytest.raises(ParameterError, match=told):
        jobs.journal.lines(job_id, **asked)


def test_take__what_is_no_line_is_dropped(running, tmp_path):
    jobs, job_id = running
    take = jobs.journal.take
    take("worker", A, entry("lk-other", "of nobody"))
    take("worker", A, entry("../../etc", "of nobody"))
    take("worker", A, {"job": job_id, "message": "half"})
    take("worker", A, {**entry(job_id, "x"), "message": 3})
    take("worker", A, {"job": [job_id]})
    take("worker", A, entry(job_id, "good", extra="dropped"))
    assert messages(jobs, job_id) == ["good"]
    assert "extra" not in jobs.journal.lines(job_id)[0]
    assert {path.name for path in tmp_path.iterdir()} == {"out", "store"}


def test_lines__a_thousand_of_a_job(running):
    jobs, job_id = running
    for n in range(1_100):
        jobs.journal.take("worker", A, entry(job_id, str(n)))
    assert messages(jobs, job_id) == [str(n) for n in range(1_000)]
    jobs.journal.take("worker", A, entry(job_id, "late"))
    assert len(messages(jobs, job_id)) == 1_000


def test_lines__outlive_the_scheduler_and_the_run(running, open_jobs, slow_steps, tmp_path):
    jobs, job_id = running
    jobs.journal.take("worker", A, entry(job_id, "before"))
    # The last thing before the end.
    assert jobs.close(120.0) == []
    assert "before" in (tmp_path / "out" / "logs.jsonl").read_text()
    slow_steps.set()
    later = open_jobs()
    wait_until(later, job_id, "finished")
    later.journal.take("worker", A, entry(job_id, "last words"))
    assert messages(later, job_id) == ["before", "last words"]
    assert messages(later, job_id) == ["before", "last words"]
    # Its thread may be ending yet.
    eventually(lambda: later.journal._logs == {}, "nothing is kept in memory of a job that is over")
    later.delete(job_id)
    assert list((tmp_path / "out").iterdir()) == []


def test_lines__one_that_comes_as_those_before_are_let_go(running, slow_steps, monkeypatch):
    jobs, job_id = running
    slow_steps.set()
    wait_until(jobs, job_id, "finished")
    known = jobs._register.find(job_id)
    eventually(lambda: not known.running, "its thread has ended")
    let_go, late = Journal._let_go, []

    def beaten(self, *arguments, **options):
        if not late:
            late.append(entry(job_id, "late"))
            self.take("worker", A, late[0])
        let_go(self, *arguments, **options)

    monkeypatch.setattr(Journal, "_let_go", beaten)
    jobs.journal.take("worker", A, entry(job_id, "early"))
    eventually(lambda: late, "early lines are let go")
    eventually(lambda: not jobs.journal._logs, "the late one is, too")
    assert messages(jobs, job_id) == ["early", "late"]


def test_lines__are_written_again_when_the_storage_is_back(running, monkeypatch, tmp_path, logged):
    jobs, job_id = running
    publish = Folder.publish

    def fail(self, name, data):
        if name == "logs.jsonl":
            raise OutputError("no space: make room.")
        return publish(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "publish", fail)
        jobs.journal.take("worker", A, entry(job_id, "kept"))
        eventually(lambda: job_id in jobs.journal._in_trouble, "a write that fails")
        assert not (tmp_path / "out" / "logs.jsonl").exists()
    eventually((tmp_path / "out" / "logs.jsonl").exists, "a write that does not")
    assert messages(jobs, job_id) == ["kept"]
    assert sum("log of" in line and "cannot be written yet" in line for line in logged) == 1


def test_lines__odd_ones_in_the_file_are_passed_over(running, tmp_path):
    jobs, job_id = running
    path = tmp_path / "out" / "logs.jsonl"
    path.write_text('nonsense\n[1]\n{"message": "read", "level": "ERROR"}\n' + "[" * 100_000)
    assert messages(jobs, job_id) == ["read"]
    assert messages(jobs, job_id, level="error") == ["read"]


def say(job_id, message):
    """On a worker, as whatever it computes for a job might."""
    with working_for(Working(job_id, 1)):
        logging.getLogger("some.driver").error(message)
    return os.getpid()


@pytest.mark.slow
def test_a_worker_that_dies_has_told_before(tmp_path):
    x = np.random.default_rng(0).standard_normal((600, 4)).astype(np.float32)
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=100, progress=False)
    quick = {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 1.0}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**quick, "largek.data.read-chunk-bytes": 1}))
        client = make_client(stack, 2, processes=True)
        service = lk.connect(client, store=str(tmp_path / "store"))
        job = service.submit(
            str(tmp_path / "x.zarr"), n_clusters=5, output=str(tmp_path / "out"),
            algorithm=lk.MiniBatch(batch_rows=64), tol=0.0, max_iter=10**6,
        )  # fmt: skip
        eventually(lambda: job.status().get("step", 0) >= 2, "it takes steps")
        address = service.workers()[0]["address"]
        pid = client.run(say, job.id, "out of paper", workers=[address])[address]
        eventually(lambda: job.logged(), "a line of it")
        # Ended, so that no pass waits for the worker that dies.
        job.cancel()
        job.wait("120s")
        os.kill(pid, signal.SIGKILL)
        found = job.logged(worker=address, source="worker", level="error")
        assert [(line["message"], line["worker"]) for line in found] == [("out of paper", address)]
        assert job.logs(source="worker")[0].endswith(f"{address} some.driver: out of paper")
        assert "queued" in job.logs()[0]
    assert "out of paper" in (tmp_path / "out" / "logs.jsonl").read_text()
