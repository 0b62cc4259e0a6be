"""Events of a job have the last warnings of the workers that they are about, also of dead ones."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack

import dask
import pytest

import largek_dask as lk
from largek_dask import fault_injection
from largek_dask.service.process_log import last_warnings
from tests.conftest import make_client
from tests.helpers.checks import eventually

pytestmark = pytest.mark.slow


def warn_and_tell_pid(text):
    logging.getLogger("some.driver").warning(text)
    return os.getpid()


def fail_from_now_on():
    def out_of_luck(when, point):
        if point == "chunk":
            raise ValueError("no such luck")

    fault_injection.watch(out_of_luck)


@pytest.fixture
def service(tmp_path, quick_leases):
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"largek.data.read-chunk-bytes": 1}))
        yield lk.connect(make_client(stack, 2, processes=True), store=str(tmp_path / "store"))


def events_of(job, **about):
    return [event for event in job.events(follow=False) if about.items() <= event.items()]


def warned(client, text):
    """Pids of the workers, by address, once the scheduler has a warning of each."""
    pids = client.run(warn_and_tell_pid, text)
    for worker in pids:
        eventually(lambda worker=worker: text in str(last_warnings(worker)), "its warning")
    return pids


@pytest.fixture
def job(service, rows_url, tmp_path, slow_steps):
    """One that takes no more steps until a test lets it go on; workers are watched from then on."""
    job = service.submit(rows_url, n_clusters=7, output=str(tmp_path / "out"), algorithm=lk.Lloyd())
    eventually(lambda: job.status().get("step", 0) >= 1, "it takes steps")
    return job


def test_a_worker_that_is_killed(service, job, slow_steps):
    pids = warned(service.client, "out of paper")
    address = next(iter(pids))
    os.kill(pids[address], signal.SIGKILL)
    slow_steps.set()
    assert job.wait("240s") == "finished"
    (left,) = events_of(job, change="left", address=address)
    assert left["log"][-1].endswith("some.driver: out of paper")
    for event in events_of(job, event="warning", worker=address):
        assert event["log"] == left["log"]
    told = job.logs()
    assert f"    last warnings of {address}:" in told
    assert any(line.endswith("some.driver: out of paper") for line in told)


def test_a_worker_that_raises(service, job, slow_steps):
    addresses = warned(service.client, "ill omen")
    service.client.run(fail_from_now_on)
    slow_steps.set()
    assert job.wait("240s") == "failed"
    (failed,) = events_of(job, event="failed")
    assert failed["worker"] in addresses
    assert failed["log"][-1].endswith("some.driver: ill omen")
    assert "in out_of_luck" in failed["traceback"]
    assert any("in out_of_luck" in line for line in job.logs())
