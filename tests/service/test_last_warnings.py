"""Events of a job have the last warnings of the workers that they are about, also of dead ones."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack

import dask
import pytest

import largek_dask as lk
from largek_dask import points
from largek_dask.observe.process_log import last_warnings
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

    points.watch(out_of_luck)


def test_a_job_that_loses_one_worker_and_fails_on_the_other(
    rows_url, tmp_path, quick_leases, slow_steps
):
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"largek.data.read-chunk-bytes": 1}))
        client = make_client(stack, 2, processes=True)
        service = lk.connect(client, store=str(tmp_path / "store"))
        job = service.submit(
            rows_url, n_clusters=7, output=str(tmp_path / "out"), algorithm=lk.Lloyd()
        )

        def events(**about):
            return [e for e in job.events(follow=False) if about.items() <= e.items()]

        eventually(lambda: job.status().get("step", 0) >= 1, "it takes steps")
        address, other = (row["address"] for row in service.workers())
        pid = client.run(warn_and_tell_pid, "out of paper", workers=[address])[address]
        client.run(warn_and_tell_pid, "ill omen", workers=[other])
        for worker in (address, other):
            eventually(lambda worker=worker: last_warnings(worker), "the scheduler has it")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: address not in client.cluster.scheduler.workers, "it is gone")
        client.run(fail_from_now_on, workers=[other])
        slow_steps.set()
        assert job.wait("120s") == "failed"

        (left,) = events(change="left", address=address)
        assert left["log"][-1].endswith("some.driver: out of paper")
        for warned in events(event="warning", worker=address):
            assert warned["log"] == left["log"]
        (failed,) = events(event="failed")
        assert failed["worker"] == other
        assert "in out_of_luck" in failed["traceback"]
        assert any("ill omen" in line for line in failed["log"])
        told = "\n".join(job.logs())
        assert "out of paper" in told
        assert "in out_of_luck" in told
