"""Jobs in threads of this process, on a store that fails: what no cluster is needed for.

A crash is a store that takes nothing any more from some moment on: whatever the process still
believes to do then, nobody will ever see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import dask
import numpy as np
import scipy.sparse
import zarr

import largek_dask as lk
from largek_dask import fault_injection
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.storage import Folder
from largek_dask.errors import LargekError
from largek_dask.model import load_model
from largek_dask.service import queue
from largek_dask.service.jobs import Jobs
from largek_dask.service.spec import AlgorithmSpec, JobSpec
from largek_dask.service.store import Records
from tests.faults.stores import Dies, FaultyFileSystem, Plan, Remembers

QUICK = {
    "largek.service.beat-seconds": 0.02,
    "largek.service.patience-seconds": 0.1,
    "largek.checkpoints.seconds": 0,
    "largek.checkpoints.keep": 2,
    "largek.data.read-chunk-bytes": 1,
    "largek.stores.pause-seconds": 0,
    "largek.stores.tries": 3,
    "largek.stores.patience-seconds": 0,
    "largek.service.retry-seconds": 0.05,
}
ALGORITHMS: dict[str, Any] = {
    "lloyd": lk.Lloyd(),
    "nmbatch": lk.NMBatch(b0=50),
    "nmbatch-sparse": lk.NMBatch(b0=50),
    "incremental": lk.IncrementalLloyd(rounds=2),
}
OUTPUT = "faulty://data/out"
MAX_ITER = 3


@dataclasses.dataclass(frozen=True)
class Small:
    """A job of a few milliseconds."""

    name: str
    data: str

    def document(self, output: str = OUTPUT, **changes: Any) -> str:
        """The job."""
        algorithm = AlgorithmSpec.of(ALGORITHMS[self.name]).model_dump(mode="json")
        spec = {
            "data": self.data, "output": output, "n_clusters": 6, "algorithm": algorithm,
            "max_iter": MAX_ITER, "tol": 0.0, **changes,
        }  # fmt: skip
        return JobSpec.parse(spec).model_dump_json()


def make_small(folder: Any) -> dict[str, Small]:
    """Write the data."""
    x = np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)
    sparse = scipy.sparse.random(400, 30, 0.2, format="csr", dtype=np.float32, random_state=5)
    for name, rows in (("dense", x), ("sparse", sparse)):
        lk.ingest(rows, str(folder / f"{name}.zarr"), chunk_rows=100, progress=False)
    return smalls(folder)


def smalls(folder: Any) -> dict[str, Small]:
    """The jobs over data that have been written."""
    kinds = {name: "sparse" if "sparse" in name else "dense" for name in ALGORITHMS}
    return {name: Small(name, str(folder / f"{kind}.zarr")) for name, kind in kinds.items()}


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Short waits, an empty store, and nobody watching afterwards."""
    before, queue.TICK_SECONDS = queue.TICK_SECONDS, 0.01
    FaultyFileSystem.clear()
    try:
        with dask.config.set(QUICK):
            yield
    finally:
        queue.TICK_SECONDS = before
        fault_injection.watch(None)
        FaultyFileSystem.clear()


@contextlib.contextmanager
def scheduler(
    owner: str = "a", start: bool = True, store: str = "faulty://records"
) -> Iterator[Jobs]:
    """The jobs of one scheduler."""
    records = Records(Folder(store))
    jobs = Jobs(records, lambda: None, owner)
    if start:
        jobs.start()
    try:
        yield jobs
    finally:
        assert jobs.close(120.0) == [], "a job does not stop"


def at_work() -> str:
    """Where the threads of this package are."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(
        f"{names[ident]}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if names.get(ident, "").startswith(("largek", "zarr", "fsspec"))
    )


def ended(jobs: Jobs, job_id: str, seconds: float = 120.0) -> dict[str, Any]:
    """The status of a job that has ended."""
    until = time.monotonic() + seconds
    while (status := jobs.status(job_id))["state"] not in ENDS:
        if time.monotonic() >= until:
            raise AssertionError(f"it has not ended after {seconds:g} s: {status}\n{at_work()}")
        time.sleep(0.005)
    return status


@dataclasses.dataclass(frozen=True)
class Made:
    """What a job leaves: of two runs that are told apart by faults alone it is the same."""

    digest: str
    centers: bytes
    labels: bytes

    @classmethod
    def by(cls, status: dict[str, Any], output: str = OUTPUT) -> Made:
        """The digest of a job that has finished."""
        assert status["state"] == "finished", str(status)
        model = load_model(f"{output}/model.zarr")
        assert model.digest() == status["result"]["digest"]
        labels = zarr.open_array(f"{output}/labels.zarr", mode="r")[...]
        return cls(model.digest(), model.arrays.centers.tobytes(), labels.tobytes())


def clean(small: Small) -> Made:
    """Without any fault."""
    FaultyFileSystem.clear()
    with scheduler() as jobs:
        made = Made.by(ended(jobs, jobs.submit(small.document(), {}, "somebody")))
    FaultyFileSystem.clear()
    return made


def remembered(small: Small) -> Remembers:
    """Every state of the store in the course of a job."""
    FaultyFileSystem.follow(plan := Remembers())
    with scheduler("first") as jobs:
        ended(jobs, jobs.submit(small.document(), {}, "somebody"))
    return plan


def crashed(small: Small, plan: Dies) -> None:
    """Submit a job and lose the machine by the plan."""
    FaultyFileSystem.follow(plan)
    with scheduler("first") as jobs:
        with contextlib.suppress(LargekError, OSError):
            job_id = jobs.submit(small.document(), {}, "somebody")
            while not plan.dead.wait(0.002):
                over = jobs.status(job_id)["state"] in ENDS
                # It may be lost, and the end be noted in memory, since it was looked for above.
                assert not over or plan.dead.is_set(), "the machine was not lost"
        plan.die()
    FaultyFileSystem.follow(Plan())


def resumed(small: Small) -> Made:
    """The next scheduler goes on; a job that never came to be is submitted again."""
    with scheduler("second") as jobs:
        found = jobs.listed()
        assert len(found) <= 1
        job_id = found[0]["id"] if found else jobs.submit(small.document(), {}, "somebody")
        return Made.by(ended(jobs, job_id))
