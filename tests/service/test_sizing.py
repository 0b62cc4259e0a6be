"""Jobs begin as far as they fit the memory of workers together; made-up workers, made-up sizes."""

from __future__ import annotations

import json
import re

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import largek_dask as lk
from largek_dask.algorithms.base import Footprint
from largek_dask.cli.plan import Machines, make_plan
from largek_dask.driver.fit import prepare_fit
from largek_dask.driver.plan import FitMemory, fit_memory
from largek_dask.driver.storage import Folder
from largek_dask.errors import NotEnoughMemoryError, ParameterError
from largek_dask.service.jobs import Jobs
from largek_dask.service.queue import (
    SchedulerWorker,
    WorkerPool,
    why_never_fits,
    why_wait,
    worker_memory,
)
from largek_dask.service.spec import AlgorithmSpec, JobSpec
from largek_dask.service.store import Records, Result
from tests.service.conftest import queue_of, wait_until

MB = 1 << 20
NO_DATA = {"sums": 0, "chunk": 0, "data": 0, "row_state": 0}


def workers_of(*megabytes, tags=()):
    return [SchedulerWorker(frozenset(tags), True, 1, n * MB) for n in megabytes]


@pytest.fixture
def queued(document):
    """``queued(workers, *megabytes)``: a queue of jobs that take so much of each, and these."""

    def make(workers, *sizes, tags=None):
        asked = {"workers": {"tags": tags}} if tags else {}
        spec = JobSpec.parse({**json.loads(document()), **asked})
        takes = [size and FitMemory(model=size * MB, **NO_DATA) for size in sizes]
        return queue_of([spec] * len(sizes), workers, takes)

    return make


def begin(queue):
    """Begin all that are due; their ids."""
    queue._update_shortages()
    due = queue.due()
    for job in due:
        job.begin()
        job.reserved_memory = queue._memory_of(job)
    return [job.record.id for job in due]


def end(job):
    job.running = False
    job.change_unsaved(result=Result(job=job.record.id, run=1, token=1, state="finished"))


def test_they_begin_as_far_as_they_fit_the_smallest_worker(queued):
    queue, jobs = queued(workers_of(900, 100), 40, 50, 20, 5)
    assert begin(queue) == ["lk-0", "lk-1"]
    note = jobs[2].status()["note"]
    assert re.findall(r"[\d.]+ (?:MiB|B)", note) == ["90.00 MiB", "20.00 MiB", "0 B", "100.00 MiB"]
    # It would fit; but then the one before might wait for ever.
    assert [job.state for job in jobs[2:]] == ["queued", "queued"]
    assert begin(queue) == []
    end(jobs[0])
    assert begin(queue) == ["lk-2", "lk-3"]


def test_one_that_can_never_fit_waits_aside(queued):
    there = workers_of(100)
    queue, jobs = queued(there, 101, 40, None)
    assert begin(queue) == ["lk-1", "lk-2"], "nobody waits behind it"
    assert (jobs[0].state, jobs[0].reason) == ("waiting", "memory")
    note = jobs[0].status()["note"]
    needed = ["101.00 MiB", "101.00 MiB", "0 B", "0 B"]
    assert re.findall(r"[\d.]+ (?:MiB|B)", note) == [*needed, "100.00 MiB"]
    there[:] = workers_of(200)
    assert begin(queue) == ["lk-0"]


def test_only_workers_that_a_job_may_use_count(queued):
    there = [*workers_of(10), *workers_of(100, tags=["bigmem"])]
    queue, _ = queued(there, 60, tags=["bigmem"])
    assert begin(queue) == ["lk-0"]
    queue, (job,) = queued(there, 60)
    assert begin(queue) == []
    assert job.reason == "memory"


def test_nothing_is_judged_without_workers_or_limits(queued):
    for workers in (None, [], [SchedulerWorker(frozenset(), True, 1, 0)]):
        queue, _ = queued(workers, 10**6, 10**6)
        assert begin(queue) == ["lk-0", "lk-1"]


def test_a_running_job_keeps_what_it_has_when_workers_change(queued):
    there = workers_of(200)
    queue, jobs = queued(there, 60, 60)
    with dask.config.set({"largek.service.concurrent-jobs": 1}):
        assert begin(queue) == ["lk-0"]
    held = jobs[0].reserved_memory
    there[:] = workers_of(100)
    assert begin(queue) == []
    assert jobs[0].reserved_memory is held


def test_the_rows_that_stay_in_memory_are_shared():
    """Of the cache all jobs of a worker have one; each alone would not fit beside another."""
    takes = FitMemory(**{**NO_DATA, "model": 10 * MB, "data": 4_000 * MB})
    with dask.config.set({"largek.passes.cache-bytes": 70 * MB}):
        memory = worker_memory(JobSpec.parse(LEAST), takes, WorkerPool(workers_of(100)))
        assert (memory.needed, memory.cached) == (10 * MB, 70 * MB)
        assert why_wait(memory, [memory, memory]) is None
        assert why_wait(memory, [memory] * 3) is not None
        assert why_never_fits(memory) is None


LEAST = {"data": "/x", "output": "/y", "n_clusters": 3}


def test_share__by_workers_and_what_was_asked_for():
    takes = FitMemory(model=1, sums=10, chunk=100, data=1_000, row_state=1 << 40)
    there = WorkerPool(
        [*workers_of(400, 800), SchedulerWorker(frozenset({"big"}), True, 8, 900 * MB)]
    )
    memory = worker_memory(JobSpec.parse(LEAST), takes, there)
    assert (memory.model, memory.chunks) == (1 + 8 * 10, 100 * (8 + 2))
    assert (memory.row_state, memory.cached, memory.available) == (100 * MB, 333, 400 * MB)
    asked = {**LEAST, "memory_limit": 7, "workers": {"max": 2}}
    memory = worker_memory(JobSpec.parse(asked), takes, there)
    assert (memory.row_state, memory.cached) == (7, 500)


@pytest.mark.parametrize("algorithm", [lk.Lloyd(), lk.Truncated()])
def test_figures_are_those_of_the_plan(rows_url, algorithm):
    rows = lk.open_rows(rows_url)
    options = JobSpec.parse({**LEAST, "algorithm": lk_spec(algorithm)}).fit_options()
    plan = make_plan(rows, options, Machines(2, 2, 1 << 32, False))
    rows, _, footprint = prepare_fit(rows, options, n_threads=1, client=None)
    takes = fit_memory(rows, 3, footprint)
    memory = takes.per_process(2, 1, 1 << 32, None)
    assert memory.model == plan["memory_model"] > 0
    assert memory.chunks + memory.cached == plan["memory_reading"] > 0
    assert memory.row_state == plan["memory_row_state"]


def test_of_sparse_rows_only_what_is_stored_is_read():
    """By a width that no row fills, jobs that fit easily would be refused."""
    columns, ends = np.arange(4_000) * 10, np.arange(0, 4_001, 4)
    stored = sp.csr_matrix((np.ones(4_000, "f4"), columns, ends), (1_000, 40_000))
    rows = lk.open_rows(stored)
    takes = fit_memory(rows, 3, Footprint())
    assert takes.chunk <= rows.nbytes < 100_000 < 1_000 * 40_000 * 4
    dense = lk.open_rows(np.zeros((1_000, 4), np.float32))
    assert fit_memory(dense, 3, Footprint()).chunk == int(np.diff(dense.chunk_table).max()) * 4 * 4


def lk_spec(algorithm):
    return AlgorithmSpec.of(algorithm).model_dump(mode="json")


def test_submit__refuses_what_can_never_fit_and_keeps_what_a_job_takes(
    tmp_path, document, quick_leases
):
    there = [SchedulerWorker(frozenset(), True, 1, 1_000)]
    records = Records(Folder(str(tmp_path / "store")))
    jobs = Jobs(records, lambda: None, "me", None, lambda: there)
    jobs.start()
    try:
        with pytest.raises(NotEnoughMemoryError, match=r"never run .* has 0\.98 kiB\. Use fewer"):
            jobs.submit(document(), {}, "me")
        assert jobs.listed() == []
        there[:] = workers_of(500)
        job_id = jobs.submit(document(), {}, "me")
        takes = records.read(job_id).takes
        assert takes is not None
        assert takes.data == 3_000 * 4 * 4
        wait_until(jobs, job_id, "finished")
    finally:
        assert jobs.close(120.0) == []


@pytest.mark.parametrize(("takes", "is_read"), [({"later": 1}, True), ({"data": None}, False)])
def test_record__of_a_job_with_the_memory_that_it_takes(tmp_path, document, takes, is_read):
    """It is read with fields of a later version, and refused if it is damaged."""
    records = Records(Folder(str(tmp_path)))
    memory = FitMemory(model=1, **NO_DATA)
    job_id = records.create(JobSpec.parse(json.loads(document())), "me", 1.0, memory).id
    [path] = tmp_path.rglob(f"{job_id}.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "takes": {**kept["takes"], **takes}}))
    if is_read:
        assert records.read(job_id).takes == memory
    else:
        with pytest.raises(ParameterError, match=job_id):
            records.read(job_id)
