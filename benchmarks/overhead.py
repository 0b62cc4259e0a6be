"""Measure the overhead of passes in this process, on a cluster, and from storage.

    python -m benchmarks.overhead [--only NAME ...] [--write]

The results are medians of wall seconds. Alternatives (threads, cluster and threads, store and
memory) alternate within one run, so that changes of the clock rate affect both equally.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    child_record,
    cpu_description,
    local_client,
    new_parser,
    parse,
    peak_bytes,
)
from benchmarks.tables import publish, table_of

D, K = 64, 1000
STORE_ROWS = 24_000_000
"""Number of rows of a store of about 6 GB in float32."""
N_STEPS = 2
TARGETS = {
    "empty_local_64": ("empty pass, 64 chunks, local", "ms", "<=", 2.0),
    "empty_cluster_64": ("empty pass, 64 chunks, 2 workers", "ms", "<=", 40.0),
    "empty_cluster_512": ("empty pass, 512 chunks, 2 workers", "ms", "<=", 50.0),
    "two_threads": ("speed of 2 threads over 1, 200k × 64, k = 1000", "x", ">=", 1.85),
    "cluster_ratio": ("speed of 2 workers over 2 threads, 1M × 64, k = 1000", "x", ">=", 0.85),
    "store_rss": ("peak memory of a fit on a 6 GB store, k = 1000", "GB", "<=", 1.5),
    "store_ratio": ("speed on that store over rows in memory, one thread", "x", ">=", 0.8),
}


def empty_chunk(chunk: Any, total: Any) -> None:
    """Do nothing."""


def empty_total() -> np.ndarray:
    return np.zeros(1)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a += b
    return a


def empty_pass(passes: Any, repeats: int) -> float:
    """Return the median time of a pass that computes nothing, in milliseconds."""
    times = []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        passes.reduce(empty_chunk, start=empty_total, combine=add)
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times[3:]))


def stored(x: np.ndarray, folder: Path, n_chunks: int) -> Any:
    from largek_dask.data.mapped_files import MappedRows
    from largek_dask.data.rows import regular_table
    from largek_dask.data.table_files import TableFiles

    path = folder / f"{n_chunks}.npy"
    np.save(path, x)
    table = regular_table(len(x), -(-len(x) // n_chunks))
    where = str(path)
    return MappedRows(TableFiles(where, where, (where,), ".npy"), chunk_table=table)


def measure_empty(folder: Path) -> dict[str, float]:
    from largek_dask.passes.cluster import ClusterPasses
    from largek_dask.passes.local import LocalPasses

    x = np.zeros((512 * 64, 2), np.float32)
    rows = {n: stored(x, folder, n) for n in (64, 512)}
    found = {}
    with LocalPasses(rows[64], n_threads=2) as passes:
        found["empty_local_64"] = empty_pass(passes, 200)
    with local_client(2) as client:
        for n in (64, 512):
            with ClusterPasses(rows[n], client) as passes:
                found[f"empty_cluster_{n}"] = empty_pass(passes, 60)
    return found


def stepper(passes: Any) -> Callable[[], float]:
    """Return a function that measures the next Lloyd step, starting from K random rows."""
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.algorithms.lloyd import Lloyd

    algorithm = Lloyd().bind(KMeansProblem(K, init="random"))
    rng = Rng(0)
    state = algorithm.init(passes, rng)

    def step() -> float:
        nonlocal state
        began = time.perf_counter()
        state, _ = algorithm.step(passes, rng, state)
        return time.perf_counter() - began

    return step


def in_turns(steps: list[Callable[[], float]], rounds: int) -> list[float]:
    """Return median seconds of alternating steps; the first round is a warm-up."""
    times = [[step() for step in steps] for _ in range(rounds + 1)][1:]
    return [float(t) for t in np.median(times, axis=0)]


def measure_threads(folder: Path) -> dict[str, float]:
    from benchmarks.synthetic import generate
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    rows = open_rows(generate("A", 200_000, D))
    with LocalPasses(rows, n_threads=1) as one, LocalPasses(rows, n_threads=2) as two:
        seconds = in_turns([stepper(one), stepper(two)], 11)
    return {"two_threads": seconds[0] / seconds[1]}


def measure_cluster(folder: Path) -> dict[str, float]:
    """Compare two workers with one thread with two threads, on the same store."""
    from benchmarks.synthetic import SyntheticRows
    from largek_dask.data.ingest import ingest
    from largek_dask.passes.cluster import ClusterPasses
    from largek_dask.passes.local import LocalPasses

    made = SyntheticRows("A", 1_000_000, D)
    rows = ingest(made, folder / "million.zarr", chunk_rows=8192, progress=False)
    with (
        local_client(2) as client,
        LocalPasses(rows, n_threads=2) as local,
        ClusterPasses(rows, client) as cluster,
    ):
        seconds = in_turns([stepper(local), stepper(cluster)], 9)
    return {"cluster_ratio": seconds[0] / seconds[1]}


def measure_store(folder: Path) -> dict[str, float]:
    """Compare a fit from storage with a fit in memory, on one thread in separate processes."""
    from benchmarks.synthetic import SyntheticRows
    from largek_dask.data.ingest import ingest

    path = folder / "large.zarr"
    ingest(SyntheticRows("A", STORE_ROWS, D), path, progress=False)
    found = {
        mode: child_record("benchmarks.overhead", [mode, str(path)]) for mode in ("memory", "store")
    }
    return {
        "store_rss": found["store"]["rss"] / 1e9,
        "store_ratio": found["store"]["rate"] / found["memory"]["rate"],
    }


def child(mode: str, path: str) -> dict[str, float]:
    """Return rows per second of some Lloyd steps, and the peak memory of this process."""
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    rows = open_rows(path)
    if mode == "memory":
        n = 0
        parts = []
        for i in range(rows.n_chunks):
            parts.append(rows.read(i))
            n += len(parts[-1])
            if n >= 1_000_000:
                break
        rows = open_rows(np.concatenate(parts))
    with LocalPasses(rows, n_threads=1) as passes:
        step = stepper(passes)
        seconds = sum(step() for _ in range(N_STEPS))
    return {"rate": N_STEPS * rows.n_rows / seconds, "rss": float(peak_bytes())}


MEASURES = {
    "empty": measure_empty,
    "threads": measure_threads,
    "cluster": measure_cluster,
    "store": measure_store,
}


def table(result: dict[str, Any]) -> str:
    rows = []
    for name, (what, unit, sign, target) in TARGETS.items():
        if name in result["found"]:
            value = f"{result['found'][name]:.2f} {unit}"
            rows.append([what, value, f"{'≤' if sign == '<=' else '≥'} {target:g} {unit}"])
    note = (
        "An empty pass visits all chunks without computing anything, and is measured in wall time. "
        f"Speeds are ratios of rows per second. Processor: {result['cpu']}. This table was made by "
        "`python -m benchmarks.overhead --write`."
    )
    return "\n".join([*table_of(["what", "measured", "target"], rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=MEASURES, default=list(MEASURES))
    args = parse(parser, child)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            found |= MEASURES[name](Path(folder))
    publish("overhead", {"cpu": cpu_description(), "found": found}, write=args.write)


if __name__ == "__main__":
    main()
