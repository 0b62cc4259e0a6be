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
from largek_dask.service.client import Service
from tests.deploy.running import process, quick_environment
from tests.helpers.checks import eventually, join


def answer_late(dask_scheduler, longer):
    """Give a scheduler, which runs this, a handler that takes so long with each question."""
    import asyncio

    from largek_dask.service.plugin import HANDLER

    async def late(**question):
        await asyncio.sleep(longer)
        return await dask_scheduler.handlers[HANDLER](**question)

    dask_scheduler.handlers["late"] = late


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """``address, frozen``: a scheduler in a process, and a block in which that is stopped.

    Within the block it has a second for each answer, and for a sign of life.
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
                    patch.setattr(client_module, "SIGN_SECONDS", 0.1)
                    patch.setattr(client_module, "SILENT_SECONDS", 0.3)
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
        with frozen(), pytest.raises(TimeoutError, match=f"job {job.id} cannot be seen"):
            job.wait(timeout="0.3s")


SILENT = (
    r"^the scheduler at \S+ is connected and has given no sign of life for 0.3 s: .* Look for it"
    r" there .* start it again: its jobs go on then\."
)
YET = r" It may yet do what it was asked \((\w+)\): see jobs\(\) before you repeat it\.$"
ONCE = {
    "card": (lambda service, job: job._repr_html_(), None),
    "submit": (lambda service, job: service.submit("/x", n_clusters=3, output="/y"), "submit"),
}  # fmt: skip


@pytest.mark.parametrize("what", ONCE)
def test_what_is_asked_once_ends_in_words(what, scheduler, job):
    ask, changes = ONCE[what]
    with lk.connect(scheduler[0], timeout="60s") as service:
        same = service.job(job.id)
        with scheduler[1](), pytest.raises(SchedulerAwayError, match=SILENT) as told:
            ask(service, same)
        found = re.search(YET, str(told.value))
        assert (found and found[1]) == changes
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


def test_a_long_answer_is_waited_for_while_the_scheduler_lives(scheduler, job, monkeypatch):
    signs = []
    sign = Service._sign_of_life

    async def counted(self, operation=""):
        await sign(self, operation)
        signs.append(operation)

    with lk.connect(scheduler[0], timeout="60s") as service:
        # From here on: a greeting may take longer than that, too.
        monkeypatch.setattr(Service, "_sign_of_life", counted)
        monkeypatch.setattr(client_module, "SIGN_SECONDS", 0.01)
        monkeypatch.setattr(client_module, "HANDLER", "late")
        service.client.run_on_scheduler(answer_late, longer=0.5)
        assert service.ask("status", id=job.id)["id"] == job.id
    assert set(signs) == {"status"}
    assert len(signs) > 2


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
