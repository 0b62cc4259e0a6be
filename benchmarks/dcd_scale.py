"""Every partition of rows that lie in a store; part "stored" of `dcd.py`.

Set B, 1,000,000 × 18, in a Zarr store of which no chunk stays in memory: all partitions into 1 to
100 clusters; readings of all rows, CPU seconds of each reading, memory, and how far the one into
100 ends from greedy k-means++ with Lloyd's algorithm on the rows in memory.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil

import largek_dask as lk
from benchmarks.common import child_record, new_parser, parse, peak_bytes
from benchmarks.dcd_runs import objective
from benchmarks.synthetic import generate

Record = dict[str, Any]

CLUSTERS = 100
FEW_ROWS, FEW_CLUSTERS = 50_000, 30
"""Rows and clusters of a first fit, before anything is timed: code is compiled and loaded."""
NEAR = 0.9
"""Share of the store's bytes from which on a step has read all of it."""


def followed(algorithm: Any, rows: Any, k: int) -> tuple[Any, list[Record]]:
    """Arrays of a model, and CPU seconds and readings of all rows of every step."""
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
            steps.append({"seconds": now - begun, "readings": readings})
            begun, read = now, total
            if info.converged:
                return algorithm.model(state), steps


def from_store(store: str, k: int) -> Record:
    """All partitions of the rows of a store."""
    rows = lk.open_rows(store)
    with dask.config.set({"largek.passes.cache-bytes": 0}):
        followed(lk.DCDBundle(), lk.open_rows(rows.read(0)[:FEW_ROWS]), min(k, FEW_CLUSTERS))
        gc.collect()
        before = psutil.Process().memory_info().rss
        arrays, steps = followed(lk.DCDBundle(), rows, k)
        peak = peak_bytes()
    x = np.concatenate([rows.read(i) for i in range(rows.n_chunks)])
    return {
        "n": rows.n_rows,
        "d": rows.n_features,
        "seconds": sum(step["seconds"] for step in steps),
        "readings": sum(step["readings"] for step in steps),
        "of_readings": [step["seconds"] for step in steps if step["readings"] >= NEAR],
        "memory": (peak - before) / 1e6,
        "chunk": max(rows.read(i).nbytes for i in range(rows.n_chunks)) / 1e6,
        "partitions": len(arrays.inertia),
        "value": objective(x, arrays.centers),
    }


def by_lloyd(store: str, k: int, seed: int) -> Record:
    """Greedy k-means++ and Lloyd's algorithm on the rows of a store, in memory."""
    rows = lk.open_rows(store)
    x = np.concatenate([rows.read(i) for i in range(rows.n_chunks)])
    start = {"algorithm": "lloyd", "init": "greedy-k-means++"}
    km = lk.KMeans(k, random_state=seed, n_threads=1, **start)
    km.fit(x[:FEW_ROWS])
    begun = time.process_time()
    km.fit(x)
    seconds = time.process_time() - begun
    return {"seconds": seconds, "value": objective(x, km.cluster_centers_)}


def stored(folder: Path, n_seeds: int, n_rows: int | None = None) -> Record:
    """All partitions of a store, and its rivals for the last of them."""
    store = folder / "B.zarr"
    if not store.exists():
        lk.ingest(generate("B")[:n_rows], str(store), progress=False)
    lloyd = [
        child_record("benchmarks.dcd_scale", ["lloyd", str(store), CLUSTERS, seed])
        for seed in range(n_seeds)
    ]
    path = child_record("benchmarks.dcd_scale", ["path", str(store), CLUSTERS])
    return {"k": CLUSTERS, "lloyd": lloyd, "path": path}


def child(kind: str, *given: Any) -> Record:
    """All partitions, or a rival."""
    return {"path": from_store, "lloyd": by_lloyd}[kind](*given)


if __name__ == "__main__":
    parse(new_parser(__doc__), child)
