"""Every partition of rows that lie in a store, and on workers.

    python -m benchmarks.dcd_scale --child JSON      (of `dcd.py`)

stored
    Set B, 1,000,000 × 18, in a Zarr store of which no chunk stays in memory: all partitions into 1
    to 100 clusters; how often all of it is read, CPU seconds of each reading, memory, and how far
    the one into 100 ends from greedy k-means++ with Lloyd's algorithm on the rows in memory.
workers
    10,000,000 × 18 of overlapping Gaussians, all partitions into 1 to 25 clusters, on one and two
    local workers of one thread each, in turns: wall seconds of a whole fit with its labels. The
    number of workers changes no bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np

import largek_dask as lk
from benchmarks.common import child_record
from benchmarks.dcd_runs import objective
from largek_dask.data.synthetic import generate, write

__all__ = ["stored", "workers"]

Record = dict[str, Any]

STORED_CLUSTERS, SPREAD_CLUSTERS = 100, 25
SPREAD_ROWS, SPREAD_FEATURES = 10_000_000, 18
FEW_ROWS, FEW_CLUSTERS = 50_000, 30
"""What is gone through before anything is timed: code is compiled and loaded."""
NEAR = 0.9
"""Share of the store's bytes from which on a step has read all of it."""


# --- stored ---------------------------------------------------------------------------------------


def memory(name: str) -> float:
    """A figure of this process's memory, in MB: "VmRSS" now, "VmHWM" at most so far."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if name in line)) / 1e3


def followed(algorithm: Any, rows: Any, k: int) -> tuple[Any, list[Record]]:
    """The arrays of a model, and of every step its CPU seconds and readings of all rows."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.passes.local import LocalPasses

    algorithm, steps = replace(algorithm, problem=KMeansProblem(k)), []
    with LocalPasses(rows, n_threads=1) as passes:
        begun, read = time.process_time(), 0
        state = algorithm.init(passes, Rng(0))
        while True:
            state, info = algorithm.step(passes, Rng(0), state)
            now, total = time.process_time(), passes.total.bytes_read
            readings = (total - read) / rows.nbytes
            steps.append({"seconds": now - begun, "readings": readings, "cost": info.cost})
            begun, read = now, total
            if info.converged:
                return algorithm.model(state), steps


def from_store(store: str, k: int) -> Record:
    """All partitions of the rows of a store."""
    rows = lk.open_rows(store)
    with dask.config.set({"largek.passes.cache-bytes": 0}):
        followed(lk.DCDBundle(), lk.open_rows(rows.read(0)[:FEW_ROWS]), min(k, FEW_CLUSTERS))
        gc.collect()
        before = memory("VmRSS")
        arrays, steps = followed(lk.DCDBundle(), rows, k)
        peak = memory("VmHWM")
    whole = [step["seconds"] for step in steps if step["readings"] >= NEAR]
    x = np.concatenate([rows.read(i) for i in range(rows.n_chunks)])
    return {
        "n": rows.n_rows,
        "d": rows.n_features,
        "seconds": sum(step["seconds"] for step in steps),
        "steps": len(steps),
        "readings": sum(step["readings"] for step in steps),
        "of_readings": whole,
        "memory": peak - before,
        "chunk": max(rows.read(i).nbytes for i in range(rows.n_chunks)) / 1e6,
        "partitions": len(arrays.inertia),
        "told": float(arrays.inertia[-1]),
        "value": objective(x, arrays.centers),
    }


def by_lloyd(store: str, k: int, seed: int) -> Record:
    """Greedy k-means++ and Lloyd's algorithm on the rows of a store, in memory."""
    rows = lk.open_rows(store)
    x = np.concatenate([rows.read(i) for i in range(rows.n_chunks)])
    km = lk.KMeans(
        k, algorithm="lloyd", init="greedy-k-means++", random_state=seed, n_threads=1
    )  # fmt: skip
    km.fit(x[:FEW_ROWS])
    begun = time.process_time()
    km.fit(x)
    seconds = time.process_time() - begun
    return {"seconds": seconds, "steps": km.n_iter_, "value": objective(x, km.cluster_centers_)}


def stored(folder: Path, n_seeds: int, n_rows: int | None = None) -> Record:
    """All partitions of a store, and its rivals for the last of them."""
    store = folder / "B.zarr"
    if not store.exists():
        lk.ingest(generate("B")[:n_rows], str(store), progress=False)
    lloyd = []
    for seed in range(n_seeds):
        given = ["lloyd", str(store), STORED_CLUSTERS, seed]
        lloyd.append(child_record("benchmarks.dcd_scale", given))
        print(f"stored, Lloyd, seed {seed}: {lloyd[-1]}", flush=True)
    path = child_record("benchmarks.dcd_scale", ["path", str(store), STORED_CLUSTERS])
    return {"k": STORED_CLUSTERS, "lloyd": lloyd, "path": path}


# --- workers --------------------------------------------------------------------------------------


def on_workers(store: str, few: str, k: int, n_workers: int) -> Record:
    """Wall seconds of a whole fit on local workers, and of its steps that go through all rows."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers)
        km = lk.KMeans(k, algorithm=lk.DCDBundle(), random_state=0, client=client)
        km.fit(few)
        begun = time.perf_counter()
        km.fit(store)
        seconds = time.perf_counter() - begun
    ends = [0.0, *(step["seconds"] for step in km.history_)]
    n_rows = len(km.labels_)
    whole = [ends[i + 1] - ends[i] for i, step in enumerate(km.history_) if step["rows"] >= n_rows]
    return {
        "seconds": seconds,
        "steps": len(km.history_),
        "of_readings": whole,
        "value": float(km.inertia_),
        "digest": km.model_.digest(),
    }


def workers(folder: Path, n_turns: int, n_rows: int | None = None) -> Record:
    """A fit on one worker and on two, in turns."""
    n = n_rows or SPREAD_ROWS
    store, few = folder / f"spread-{n}.zarr", folder / "few.zarr"
    if not store.exists():
        write("mixture", str(store), n, SPREAD_FEATURES, n_components=3 * SPREAD_CLUSTERS, seed=5)
    if not few.exists():
        lk.ingest(lk.open_rows(str(store)).read(0)[:FEW_ROWS], str(few), progress=False)
    runs: dict[str, list[Record]] = {"1": [], "2": []}
    for _ in range(n_turns):
        for name, found in runs.items():
            given = ["workers", str(store), str(few), SPREAD_CLUSTERS, int(name)]
            found.append(child_record("benchmarks.dcd_scale", given))
            print(f"{name} workers: {found[-1]['seconds']:.1f} s", flush=True)
    digests = {run["digest"] for found in runs.values() for run in found}
    assert len(digests) == 1, "the number of workers has changed the result"
    return {"n": n, "d": SPREAD_FEATURES, "k": SPREAD_CLUSTERS, "runs": runs}


def main() -> None:
    """One run, given as JSON; for processes that this module starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", required=True, help=argparse.SUPPRESS)
    kind, *given = json.loads(parser.parse_args().child)
    runs: dict[str, Callable[..., Record]] = {
        "path": from_store,
        "lloyd": by_lloyd,
        "workers": on_workers,
    }
    print(json.dumps(runs[kind](*given)))


if __name__ == "__main__":
    main()
