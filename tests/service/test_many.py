"""Ten thousand jobs in a store: a scheduler begins soon, and whoever lists them holds up nobody."""

import asyncio
import json
import time
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster

import largek_dask as lk
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Result, _dumped

N_JOBS = 10_000
START_TIMES = 10.0
"""CPU seconds of a start, as multiples of reading and checking all records one by one."""
LOOP_SECONDS, TIMES = 0.02, 5
"""CPU seconds of the event loop's thread; the least of some times, as a busy machine adds some."""


@pytest.fixture
def store(tmp_path, document):
    """Records of as many jobs that have ended, as a scheduler has written them."""
    folder = tmp_path / "store" / "jobs"
    folder.mkdir(parents=True)
    spec, now = JobSpec.parse(document()), time.time()
    for n in range(N_JOBS):
        job_id = f"lk-{n:010x}"
        ended = Result(job=job_id, run=1, token=1, state="finished", n_iter=3, seconds=1.0)
        own = spec.model_copy(update={"name": f"night-{n}", "output": f"{tmp_path}/run-{n}"})
        record = Record(job_id, own, "somebody", now - 60 + 1e-3 * n, result=ended, ended=now)
        (folder / f"{job_id}.json").write_bytes(_dumped(record))
    return str(tmp_path / "store")


def seconds_of_reading(store):
    begun = time.process_time()
    read = [json.loads(path.read_bytes()) for path in Path(store, "jobs").glob("*.json")]
    specs = [JobSpec.parse(record["spec"]) for record in read]
    assert len(specs) == N_JOBS
    return time.process_time() - begun


@pytest.mark.slow
def test_ten_thousand_jobs(store, monkeypatch, old_objects_aside):
    old_objects_aside()
    begun = time.process_time()
    with (
        dask.config.set({"largek.store": store}),
        LocalCluster(
            n_workers=0,
            processes=False,
            dashboard_address=":0",
            scheduler_kwargs={"preload": "largek_dask.service.preload"},
        ) as cluster,
        lk.connect(cluster.scheduler_address, timeout="120s") as service,
    ):
        spent = time.process_time() - begun
        assert spent < START_TIMES * seconds_of_reading(store)
        loop, run, taken = cluster.loop.asyncio_loop, asyncio.Handle._run, []
        assert service.client.loop.asyncio_loop is not loop

        def timed(self):
            if self._loop is not loop:
                return run(self)
            begin = time.thread_time()
            run(self)
            taken.append((time.thread_time() - begin, repr(self)))
            return None

        old_objects_aside()
        monkeypatch.setattr(asyncio.Handle, "_run", timed)
        slowest = []
        for _ in range(TIMES):
            taken.clear()
            found = service.jobs()
            assert len(found) == 100
            assert found.rows[-1]["name"] == f"night-{N_JOBS - 1}"
            assert len(json.dumps(found.rows)) <= 50_000
            assert len(service.jobs(state="finished", older_than="0s", limit=None)) == N_JOBS
            assert len(taken) > 10
            slowest.append(max(taken))
        monkeypatch.undo()
    assert min(slowest)[0] < LOOP_SECONDS, slowest
