"""Workers end while no job wants them, and start again with the next one."""

from __future__ import annotations

import shlex
import sys
import warnings
from contextlib import ExitStack

import dask
import pytest
from distributed import Client, LocalCluster, Worker

import largek_dask as lk
from largek_dask.errors import ClusterWarning, ParameterError
from largek_dask.service.worker_admin import AGAIN_SECONDS, IdleWorkers
from tests.helpers.checks import eventually
from tests.service.test_jobs import expected

IDLE = 60.0


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self):
        return self.now


class Site:
    """A cluster of one worker, its store, and the time there."""

    def __init__(self, stack, folder, command):
        self.clock, self.folder, self.stack = Clock(), folder, stack
        self.idle = folder / "store" / "idle"
        stack.enter_context(
            dask.config.set(
                {"largek.service.idle-seconds": IDLE, "largek.service.start-workers": command}
            )
        )
        self.cluster = stack.enter_context(
            LocalCluster(
                n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
            )
        )
        self.client = stack.enter_context(Client(self.cluster))

    def connect(self, monkeypatch):
        monkeypatch.setattr(IdleWorkers.__init__, "__defaults__", (self.clock,))
        self.service = lk.connect(self.client, store=str(self.folder / "store"))

    @property
    def workers(self):
        return self.cluster.scheduler.workers

    def submit(self, rows_url, name, **options):
        asked = {"n_clusters": 7, "algorithm": lk.Lloyd(), "seed": 0, "max_iter": 3} | options
        return self.service.submit(rows_url, output=str(self.folder / name), **asked)

    def come(self):
        """Let another worker come."""

        async def begin():
            return await Worker(self.cluster.scheduler.address, nthreads=1)

        worker = self.cluster.sync(begin)
        self.stack.callback(self.cluster.sync, worker.close)

    def rest(self):
        """Let the time go by without a job."""
        assert self.workers

        # What has ended a moment ago may be noticed only now.
        def has_ended():
            self.clock.now += IDLE
            return not self.workers and self.idle.exists()

        eventually(has_ended, "the end of the worker")


@pytest.fixture
def site(tmp_path, monkeypatch, quick_leases):
    """``site(command)``: a scheduler that ends its workers for want of jobs."""
    with ExitStack() as stack:

        def make(command):
            made = Site(stack, tmp_path, command)
            made.connect(monkeypatch)
            return made

        yield make


def quiet():
    """No warning is given in this block."""
    stack = ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("error")
    return stack


def test_workers_end_without_a_job__and_a_submit_starts_them_again(site, rows_url, tmp_path):
    called = tmp_path / "called"
    code = f"open({str(called)!r}, 'a').write('x')"
    here = site([sys.executable, "-c", code])
    job = here.submit(rows_url, "a")
    assert job.result("120s").digest() == expected(rows_url, max_iter=3)
    here.rest()
    assert not called.exists()
    # That is taken back, and the command has ended well, before a submit is answered.
    with quiet():
        job = here.submit(rows_url, "b")
    assert not here.idle.exists()
    assert called.read_text() == "x"
    here.come()
    assert job.result("120s").digest() == expected(rows_url, max_iter=3)


def test_workers_stay_while_a_job_runs_or_any_client_computes(site, rows_url, slow_steps):
    here = site(None)
    job = here.submit(rows_url, "a", max_iter=10)
    eventually(lambda: job.status().get("step", 0) >= 2, "a step")
    turns = here.clock.now
    for _ in range(5):
        here.clock.now += 10 * IDLE
        before = here.service.workers()
        eventually(lambda: here.service.workers() is not None, "an answer")
        assert before
    assert not here.idle.exists()
    assert here.clock.now > turns + 40 * IDLE
    slow_steps.set()
    job.result("120s")
    assert here.workers


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (None, "start-workers is not set"),
        (["no-such-program", "scale"], "no-such-program: No such file or directory"),
        ("sh -c 'echo sbatch: error: not from this node >&2; exit 1'", "not from this node"),
    ],
)
def test_a_submit_says_what_to_type_where_workers_cannot_be_started(
    site, command, reason, rows_url
):
    here = site(command)
    here.rest()
    with pytest.warns(ClusterWarning) as told:
        job = here.submit(rows_url, "a")
    [text] = [str(one.message) for one in told if one.category is ClusterWarning]
    assert reason in text
    if command is not None:
        words = command if isinstance(command, list) else shlex.split(command)
        assert f"type `{shlex.join(words)}` where you submit jobs" in text
    # So does the next one, as long as there is no worker.
    with pytest.warns(ClusterWarning, match="the workers have ended"):
        here.submit(rows_url, "b")
    here.come()
    assert job.result("120s").digest() == expected(rows_url, max_iter=3)
    with quiet():
        here.submit(rows_url, "c").result("120s")


def test_workers_are_asked_for_again_if_none_comes(site, rows_url, tmp_path):
    called = tmp_path / "called"
    here = site([sys.executable, "-c", f"open({str(called)!r}, 'a').write('x')"])
    here.rest()
    here.submit(rows_url, "a")
    assert called.read_text() == "x"

    def again():
        here.clock.now += AGAIN_SECONDS
        return len(called.read_text()) > 1

    eventually(again, "the command again")
    here.come()


@pytest.mark.parametrize("seconds", [0, -1])
def test_settings_that_cannot_be(seconds):
    with (
        dask.config.set({"largek.service.idle-seconds": seconds}),
        pytest.raises(
            ParameterError, match=r"idle-seconds is .*: give a number of seconds above 0"
        ),
    ):
        IdleWorkers(None, None, None, None)
