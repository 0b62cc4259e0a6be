"""A scheduler that is frozen, at an address: its connection stands, and it never answers."""

import contextlib
import os
import re
import signal
import sys
import threading

import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.errors import SchedulerAwayError
from largek_dask.service import client as client_module
from largek_dask.service.job import Job
from tests.checks import eventually, join
from tests.deploy.running import free_port, process, quick_environment


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """``address, frozen``: a scheduler in a process, and a block in which that is stopped."""
    folder, port = tmp_path_factory.mktemp("frozen"), free_port()
    command = [sys.executable, "-m", "dask", "scheduler", "--port", str(port), "--no-dashboard",
               "--host", "127.0.0.1", "--preload", "largek_dask.service.preload",
               "--largek-store", str(folder / "store")]  # fmt: skip
    log = folder / "log"
    with process(command, log, quick_environment()) as begun:
        eventually(lambda: "Scheduler at:" in log.read_text(), "a scheduler")

        @contextlib.contextmanager
        def frozen():
            os.kill(begun.pid, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(begun.pid, signal.SIGCONT)

        yield f"tcp://127.0.0.1:{port}", frozen


@pytest.fixture
def job(scheduler, rows_url, tmp_path, monkeypatch):
    """A job, which waits for workers; its scheduler has a second for each answer."""
    with lk.connect(scheduler[0], timeout="60s") as service:
        job = service.submit(rows_url, n_clusters=3, output=str(tmp_path / "out"))
        monkeypatch.setattr(client_module, "SILENT_SECONDS", 1.0)
        monkeypatch.setattr(client_module, "TELL_SECONDS", 1.0)
        yield job
        job.cancel()


def test_it_is_waited_for_and_that_is_said(scheduler, job, logged):
    _, frozen = scheduler
    found = []
    following = threading.Thread(target=lambda: found.append(job.wait()), name="following")
    with frozen():
        following.start()
        told = eventually(lambda: [line for line in logged if "Waiting for it" in line], "word")
        assert following.is_alive()
    assert re.search("does not answer: check that it runs there.* at most 15 min 00 s", told[0])
    job.cancel()
    join(following)
    assert found == ["cancelled"]
    assert len([line for line in logged if "Waiting for it" in line]) == 1


def test_it_is_waited_for_no_longer_than_one_says(scheduler, job):
    address, frozen = scheduler
    with lk.connect(address, timeout="60s", away="2s") as service:
        same = service.job(job.id)
        with frozen(), pytest.raises(SchedulerAwayError, match="does not answer: check that it"):
            same.result()
        with frozen(), pytest.raises(TimeoutError, match=f"job {job.id} cannot be seen"):
            job.wait(timeout="1s")


def test_watch_ends_with_4(scheduler, job, monkeypatch):
    address, frozen = scheduler
    watch = Job.watch
    with contextlib.ExitStack() as stack:

        def watch_a_frozen_one(self, *arguments):
            stack.enter_context(frozen())
            return watch(self, *arguments)

        monkeypatch.setattr(Job, "watch", watch_a_frozen_one)
        line = ["watch", job.id, "--scheduler", address, "--away", "2s"]
        done = CliRunner().invoke(main, line)
    assert done.exit_code == 4, done.output
    assert "does not answer: check that it runs there" in done.output
