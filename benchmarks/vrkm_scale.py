"""The table of labels where a pass costs more than computing: from storage, and on workers.

    python -m benchmarks.vrkm_scale --child JSON      (of `vrkm.py`)

storage
    32,000,000 × 32 of overlapping Gaussians in a shuffled Zarr store of 4 GB, 1 GB of memory for
    chunks and row state: wall seconds on all threads, and readings of all rows, until the
    energy that Lloyd's algorithm has after 20 passes. Energies are over all rows, outside the
    clock.
workers
    Jobs of the service on one and two workers of one thread each: wall seconds of the same steps
    (the number of workers changes no bit), of an epoch over all rows, and of one of Lloyd's
    passes; what an epoch takes longer than that is the price of its rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import child_record
from benchmarks.curves import Energies
from largek_dask.data.synthetic import generate, write

__all__ = ["JOBS", "SECONDS", "Job", "measure_storage", "measure_workers"]

Record = dict[str, Any]

STORED_ROWS, STORED_FEATURES, STORED_CLUSTERS = 32_000_000, 32, 100
MEMORY = 1 << 30
"""Bytes for chunks and row state together."""
REFERENCE_PASSES = 20
MOST_PASSES = 12
"""Passes of the table over storage after which it is cut."""
METHODS: dict[str, Any] = {
    "Lloyd": lambda: lk.Lloyd(),
    "table of labels": lambda: lk.VRKM(),
}


@dataclass(frozen=True)
class Job:
    """Rows of overlapping Gaussians for workers."""

    n: int
    d: int
    k: int
    steps: int
    """Steps of the table of labels."""
    lloyd_steps: int = 4


JOBS = {
    "4M-2000": Job(4_000_000, 32, 2_000, 14),
    "1M-1000": Job(1_000_000, 18, 1_000, 14),
}
"""Fits on one and two workers."""
ROUNDS = 2
"""How often each is done; the first fit of a cluster only loads code."""
SECONDS = {"storage": 900.0, "workers": 400.0}
"""Wall seconds of a part on a set, about."""


# --- storage --------------------------------------------------------------------------------------


class StoreEnergies(Energies):
    """The same over the rows of a store: the cost that Lloyd's first step meets."""

    def __init__(self, rows: Any, met: list[NDArray[np.float32]]) -> None:
        self.rows, self.met, self.known = rows, met, {}

    def _computed(self, centers: NDArray[np.float32]) -> float:
        from largek_dask.algorithms.base import Rng
        from largek_dask.algorithms.kmeans import KMeansProblem
        from largek_dask.passes.local import LocalPasses

        lloyd = lk.Lloyd(bounds=None, problem=KMeansProblem(len(centers), centers))
        with LocalPasses(self.rows) as passes:
            _, info = lloyd.step(passes, Rng(0), lloyd.init(passes, Rng(0)))
        return float(info.cost / self.rows.n_rows)


def from_storage(store: str, method: str, k: int, memory: int, level: float | None) -> Record:
    """Wall seconds and readings of a method; of Lloyd's algorithm also the energy to be reached."""
    from largek_dask.data.sources import open_rows

    rows = open_rows(store)
    algorithm = METHODS[method]()
    with dask.config.set({"largek.passes.cache-bytes": memory // 2}):
        # Code is compiled and loaded: that of late steps on few rows, that of reading on all.
        follow(open_rows(rows.read(0)), algorithm, k, memory // 2, 30)
        follow(rows, algorithm, k, memory // 2, 1)
        most = REFERENCE_PASSES if level is None else MOST_PASSES
        found, met = follow(rows, algorithm, k, memory // 2, most)
    energies, last = StoreEnergies(rows, met), len(met) - 1
    found["end"] = energies[last]
    found["reached"] = last if level is None else energies.first_within(level)
    found["known"] = {str(step): value for step, value in energies.known.items()}
    return found | {"n": rows.n_rows, "d": rows.n_features, "gigabytes": rows.nbytes / 1e9}


def follow(
    rows: Any, algorithm: Any, k: int, memory: int, most: float
) -> tuple[Record, list[NDArray[np.float32]]]:
    """Passes, wall seconds and readings so far after every step, and centres."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.passes.local import LocalPasses

    algorithm, rng = replace(algorithm, problem=KMeansProblem(k, "random")), Rng(0)
    found: Record = {"passes": [], "seconds": [], "readings": []}
    met: list[NDArray[np.float32]] = []
    begun, assigned = time.perf_counter(), 0
    with LocalPasses(rows, memory_limit=memory) as passes:
        state = algorithm.init(passes, rng)
        while True:
            state, info = algorithm.step(passes, rng, state)
            assigned += info.rows
            found["passes"].append(assigned / rows.n_rows)
            found["seconds"].append(time.perf_counter() - begun)
            found["readings"].append(passes.total.bytes_read / rows.nbytes)
            met.append(np.array(algorithm.model(state).centers, np.float32))
            if info.converged or found["passes"][-1] >= most:
                return found, met


def measure_storage(folder: Path, n_rows: int | None = None) -> Record:
    """Both methods, one after the other, in processes of their own."""
    store, n = folder / "stored.zarr", n_rows or STORED_ROWS
    if not store.exists():
        ordered = folder / "ordered.zarr"
        write("mixture", str(ordered), n, STORED_FEATURES, n_components=400, seed=4)
        lk.ingest(str(ordered), str(store), shuffle=0, progress=False)
    memory = MEMORY if n_rows is None else MEMORY * n // STORED_ROWS
    runs: Record = {}
    level = None
    for method in METHODS:
        given = ["storage", str(store), method, STORED_CLUSTERS, memory, level]
        runs[method] = child_record("benchmarks.vrkm_scale", given)
        if level is None:
            level = runs[method]["end"]
        print(f"{method}: {runs[method]['seconds'][-1]:.0f} s", flush=True)
    return {"k": STORED_CLUSTERS, "memory": memory, "level": level, "runs": runs}


# --- workers --------------------------------------------------------------------------------------


def as_job(address: str, store: str, folder: Path, algorithm: Any, k: int, steps: int) -> Record:
    """Steps of a job, as its events tell them, and wall seconds until it stops."""
    with lk.connect(address) as service:
        begun = time.perf_counter()
        job = service.submit(
            store,
            algorithm=algorithm,
            n_clusters=k,
            output=str(folder),
            init="random",
            max_iter=steps,
            tol=0.0,
            labels=False,
        )
        seen: list[tuple[int, float]] = []
        seconds = 0.0
        for event in job.events():
            if event["event"] == "step":
                seen.append((int(event["rows"]), float(event["seconds"]["total"])))
            elif event["event"] == "stopped":
                seconds = time.perf_counter() - begun
        digest = job.result().digest()
    return {
        "seconds": seconds,
        "digest": digest,
        "rows": [rows for rows, _ in seen],
        "of_steps": [spent for _, spent in seen],
    }


def measure_workers(folder: Path, case: str, n_rows: int | None = None) -> Record:
    """Both algorithms on one worker and on two."""
    from benchmarks.service import cluster

    job = JOBS[case]
    n = n_rows or job.n
    store = folder / f"workers-{n}-{job.d}.zarr"
    if not store.exists():
        rows = generate("mixture", n, job.d, n_components=2 * job.k, seed=6)
        lk.ingest(rows, str(store), shuffle=0, progress=False)
    algorithms = {
        "Lloyd": (lk.Lloyd(bounds=None), job.lloyd_steps),
        "table of labels": (lk.VRKM(), job.steps),
    }
    runs: Record = {name: {"1": [], "2": []} for name in algorithms}
    for workers in ("1", "2"):
        place = folder / f"{job.k}-{workers}"
        place.mkdir()
        with cluster(place, int(workers)) as address:
            for turn in range(ROUNDS + 1):
                for name, (algorithm, steps) in algorithms.items():
                    out = place / f"{name.split()[0]}-{turn}"
                    found = as_job(address, str(store), out, algorithm, job.k, steps)
                    print(
                        f"{case}, {workers} workers, {name}: {found['seconds']:.1f} s", flush=True
                    )
                    if turn:
                        runs[name][workers].append(found)
    for name, several in runs.items():
        digests = {run["digest"] for found in several.values() for run in found}
        assert len(digests) == 1, f"{name}: the number of workers has changed the result"
    return {"n": n, "d": job.d, "k": job.k, "rounds": lk.VRKM().rounds, "runs": runs}


def main() -> None:
    """A run over storage, given as JSON; for processes that this module starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", required=True, help=argparse.SUPPRESS)
    kind, *given = json.loads(parser.parse_args().child)
    assert kind == "storage"
    print(json.dumps(from_storage(*given)))


if __name__ == "__main__":
    main()
