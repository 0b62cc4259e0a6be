"""Jobs in one process: no cluster, quick beats."""

import gc
import logging
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed import LocalCluster

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.service.job_state import JobState
from largek_dask.service.jobs import Jobs
from largek_dask.service.queue import Queue
from largek_dask.service.spec import AlgorithmSpec, JobSpec
from largek_dask.service.store import Record, Records
from tests.conftest import make_client
from tests.helpers.checks import eventually


@pytest.fixture(scope="module", autouse=True)
def many_chunks(chunks_as_stored):
    """A store that a test writes in chunks has as many of them when it is read."""


@pytest.fixture(scope="session")
def rows_url(tmp_path_factory):
    """3,000 rows without structure, in six chunks: Lloyd takes many steps."""
    x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
    url = str(tmp_path_factory.mktemp("rows") / "x.zarr")
    lk.ingest(x, url, chunk_rows=500, progress=False)
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        assert lk.open_rows(url).n_chunks == 6
    return url


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """Jobs on two workers in this process, for tests that leave the cluster as it is."""
    with ExitStack() as stack:
        client = make_client(stack, 2, processes=False, protocol="tcp")
        yield stack.enter_context(lk.connect(client, store=str(tmp_path_factory.mktemp("jobs"))))


@pytest.fixture
def logged():
    """What this package logs, line by line. (Dask silences the handlers that caplog relies on.)"""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("largek_dask")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def old_objects_aside():
    """``old_objects_aside()``: from now on Python looks for garbage among new objects alone.

    To look at all that tests before this one have left takes tenths of a second, in whichever
    thread it happens.
    """

    def aside():
        gc.collect()
        gc.freeze()

    yield aside
    gc.unfreeze()


@pytest.fixture
def quick_leases():
    with dask.config.set(
        {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 0.5}
    ):
        yield


@pytest.fixture
def document(rows_url, tmp_path):
    """``document(output="a", algorithm=..., **changes)``: the JSON of a small job."""

    def make(output="out", algorithm=None, **changes):
        spec = {
            "data": rows_url,
            # A path or URL stays as it is.
            "output": output if "://" in output else os.path.join(tmp_path, output),
            "n_clusters": 7,
            "algorithm": AlgorithmSpec.of(algorithm or lk.Lloyd()).model_dump(mode="json"),
            **changes,
        }
        return JobSpec.parse(spec).model_dump_json()

    return make


@pytest.fixture
def open_jobs(tmp_path, quick_leases):
    """``open_jobs()``: the jobs of one more scheduler on the same store; closed at the end."""
    opened = []

    def make(start=True, store=None):
        records = Records(Folder(store or str(tmp_path / "store")))
        jobs = Jobs(records, lambda: None, f"scheduler-{len(opened)}")
        opened.append(jobs)
        if start:
            jobs.start()
        return jobs

    yield make
    for jobs in opened:
        assert jobs.close(120.0) == []


@pytest.fixture
def slow_steps(monkeypatch):
    """Steps of Lloyd's algorithm wait for this event, which a test sets to let them go on."""
    go_on = threading.Event()
    step = lk.Lloyd.step

    def slow(self, passes, rng, state):
        while not go_on.wait(0.01) and state.step >= 2:
            assert passes.cancelled is not None
            if passes.cancelled():
                break
        return step(self, passes, rng, state)

    monkeypatch.setattr(lk.Lloyd, "step", slow)
    yield go_on
    go_on.set()


def wait_until(jobs, job_id, *states, seconds=120.0):
    """The status once it is one of these states."""
    until = time.monotonic() + seconds
    while (status := jobs.status(job_id))["state"] not in states:
        assert time.monotonic() < until, f"not {' or '.join(states)} in {seconds:g} s: {status}"
        time.sleep(0.01)
    return status


def begun(jobs, job_id, step):
    """Wait until a job has taken this step."""
    eventually(lambda: jobs.status(job_id).get("step", 0) >= step, f"step {step} of job {job_id}")


def queue_of(specs, workers=None, takes=()):
    """A queue of jobs with these specifications, on these workers; and the jobs."""
    jobs = []
    for n, spec in enumerate(specs):
        record = Record(f"lk-{n}", spec, "me", float(n), takes=takes[n] if takes else None)
        jobs.append(JobState(record, {}, True))
    store_lease = SimpleNamespace(records=None)
    queue = Queue(store_lease, threading.Condition(), workers=lambda: workers)
    queue.loaded.set()
    for job in jobs:
        queue.add(job, None)
    return queue, jobs


@contextmanager
def preloaded(store, n_workers=1, **options):
    """A cluster in this process whose scheduler begins with the jobs of a store."""
    options = {"processes": False, "dashboard_address": ":0", **options}
    preload = {"preload": "largek_dask.service.preload"}
    with (
        dask.config.set({"largek.store": str(store)}),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, scheduler_kwargs=preload, **options
        ) as cluster,
    ):
        yield cluster
