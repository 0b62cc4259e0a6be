"""A scheduler that is frozen, at an address: its connection stands, and it never answers."""

import contextlib
import os
import re
import signal
import sys
import threading

import psutil
import pytest
from distributed import Client

import largek_dask as lk
from largek_dask.errors import SchedulerAwayError
from largek_dask.service import client as client_module
from tests.deploy.running import process, quick_environment
from tests.helpers.checks import eventually, join


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """``address, frozen``: a scheduler in a process, and a block in which that is stopped.

    Within the block it has a moment for each answer.
    """
    folder = tmp_path_factory.mktemp("frozen")
    command = [sys.executable, "-m", "dask", "scheduler", "--port", "0", "--no-dashboard",
               "--host", "127.0.0.1", "--preload", "largek_dask.service.preload",
               "--largek-store", str(folder / "store")]  # fmt: skip
    log = folder / "log"
    with process(command, log, quick_environment()) as begun:
        at = re.compile(r"Scheduler at: +(tcp://\S+)\n")
        address = eventually(lambda: at.search(log.read_text()), "a scheduler")[1]

        def is_stopped():
            return psutil.Process(begun.pid).status() == psutil.STATUS_STOPPED

        @contextlib.contextmanager
        def frozen():
            os.kill(begun.pid, signal.SIGSTOP)
            try:
                eventually(is_stopped, "a process that is stopped")
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(client_module, "SILENT_SECONDS", 0.3)
                    patch.setattr(client_module, "HELLO_SECONDS", 0.3)
                    yield
                assert is_stopped()
            finally:
                os.kill(begun.pid, signal.SIGCONT)

        yield address, frozen


@pytest.fixture
def job(scheduler, rows_url, tmp_path, monkeypatch):
    """A job, which waits for workers; who waits for its scheduler is told so after a second."""
    with lk.connect(scheduler[0], timeout="60s") as service:
        job = service.submit(rows_url, n_clusters=3, output=str(tmp_path / "out"))
        monkeypatch.setattr(client_module, "REPORT_SECONDS", 0.1)
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
    with lk.connect(address, timeout="60s", away="0.5s") as service:
        same = service.job(job.id)
        with frozen(), pytest.raises(SchedulerAwayError, match="does not answer: check that it"):
            same.result()
        for ask in (same.status, service.jobs):
            with frozen(), pytest.raises(SchedulerAwayError, match="does not answer: check that"):
                ask()
        with frozen(), pytest.raises(TimeoutError, match=f"job {job.id}"):
            job.wait(timeout="0.3s")


SILENT = r"does not answer: check that it runs there"


def test_what_is_asked_once_ends_in_words(scheduler, job):
    with lk.connect(scheduler[0], timeout="60s", away="0.5s") as service:
        with scheduler[1](), pytest.raises(SchedulerAwayError, match=r"jobs\(\)"):
            service.submit("/x", n_clusters=3, output="/y")
        # It is the same connection on which it answers when it goes on.
        eventually(lambda: service.job(job.id).state, "an answer")


def test_who_is_connected_by_a_client_of_dask(scheduler, job, tmp_path):
    address, frozen = scheduler
    with Client(address, timeout="60s", set_as_default=False) as client:
        for given in (None, str(tmp_path / "other")):
            with frozen(), pytest.raises(SchedulerAwayError, match=SILENT):
                lk.connect(client, store=given)
        assert client.status == "running", "it is the caller's"
        assert not (tmp_path / "other").exists()
        with lk.connect(client) as service:
            assert job.id in [one.id for one in service.jobs()]


def test_who_connects_to_one_that_is_frozen(scheduler):
    address, frozen = scheduler
    with frozen(), pytest.raises(SchedulerAwayError, match="no Dask scheduler answers at"):
        lk.connect(address, timeout="0.3s")


def test_who_loses_the_connection_to_one_that_is_frozen(scheduler, job, monkeypatch):
    address, frozen = scheduler
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 1.0)
    with lk.connect(address, timeout="60s", away="0.3s") as service:
        same = service.job(job.id)
        with frozen():
            service.client.close()
            for ask in (service.jobs, same.status):
                with pytest.raises(SchedulerAwayError, match=r"no Dask scheduler|does not answer"):
                    ask()
        assert eventually(service.jobs, "an answer")


def test_a_service_is_closed_though_its_scheduler_is_frozen(scheduler):
    with lk.connect(scheduler[0], timeout="60s") as service, scheduler[1]():
        service.close()
        assert service.client.status == "closed"
