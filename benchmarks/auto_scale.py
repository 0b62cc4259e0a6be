"""Measure the default on one and two workers, from storage, and with very many clusters.

    python -m benchmarks.auto_scale [--only workers storage large] [--write]

workers
    Rows of 32 features in a Zarr store, k = 4000, one and two local workers of one thread each:
    wall seconds until all rows have been processed ten times, and the share of the time in which
    workers compute nothing. Times include the first scan and the search of samples.
storage
    4,000,000 × 32, k = 2000, in a Zarr store four times as large as the memory for chunks: how
    often all rows are read until the energy of 100,000 other rows is within 1 % and 0.5 % of the
    lowest, with and without rounds over samples; wall seconds on all threads.
large
    2,000,000 × 32, k = 10,000 and 32,000: CPU seconds on one thread until our energy is within 1 %
    of the lowest energy of all libraries, peak memory without the rows, whole calls of SuperKMeans
    (hierarchical), and one call of faiss; one seed, with a time limit of some minutes.

Results do not depend on workers, so all runs of a kind take the same steps.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks import peers
from benchmarks.common import (
    child_record,
    cpu_description,
    local_client,
    new_parser,
    parse,
    patched,
    read_result,
)
from benchmarks.curves import AUTO, Energies, Task, measure
from benchmarks.levels import time_to
from benchmarks.sets import mixture
from benchmarks.tables import publish, table_of

PARTS = ["workers", "storage", "large"]
WORKERS_ROWS = 10_000_000
STEPS, WHOLE = 3, 10
"""Number of steps of the first fit, and number of passes over all rows in the second."""
WORKERS_AIM, IDLE_AIM = 1.8, 0.1
STORED_ROWS, STORED_CLUSTERS, OTHER_ROWS = 4_000_000, 2_000, 100_000
STORED_LIMIT = 100.0
"""Time limit of a search over storage, in wall seconds."""
NEAR = (1.01, 1.005)
LARGE = [10_000, 32_000]
LIMIT = 240.0
"""Time limit of a run with very many clusters, in CPU seconds."""
FAISS_LIMIT = 400.0
"""Approximate time limit of faiss, in CPU seconds."""
CALLS = (0, 2)
"""Numbers of refinements of SuperKMeans."""
MOST_MB = 500
"""Target for the memory of a fit without the rows, in MB."""


def on_workers(store: str, k: int, n_workers: int) -> dict[str, Any]:
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.cluster import ClusterPasses

    rows = open_rows(store)
    algorithm = lk.Truncated().bind(KMeansProblem(k))
    with local_client(n_workers) as client:
        costs: list[float] = []
        for most in (STEPS, 1_000):
            costs, whole = [], 0.0
            begun = time.perf_counter()
            with ClusterPasses(rows, client) as passes:
                state = algorithm.init(passes, Rng(0))
                while len(costs) < most and whole < WHOLE:
                    state, info = algorithm.step(passes, Rng(0), state)
                    costs.append(info.cost)
                    whole += info.extra["everywhere"]
                seconds = time.perf_counter() - begun
                computed = sum(report.compute for report in passes.by_worker.values())
    return {"seconds": seconds, "costs": costs, "idle": 1 - computed / (n_workers * seconds)}


def from_storage(folder: str, searched: bool) -> dict[str, Any]:
    import dask

    from largek_dask.data.sources import open_rows

    changes = {} if searched else {"truncated.schedule.ROWS_TO_SEARCH": 1 << 60}
    others = np.load(Path(folder) / "others.npy")
    rows = open_rows(str(Path(folder) / "stored.zarr"))
    with patched(changes), dask.config.set({"largek.passes.cache-bytes": rows.nbytes // 4}):
        # A short search first compiles and loads code.
        search(rows, others, STORED_CLUSTERS, 3.0)
        return search(rows, others, STORED_CLUSTERS, STORED_LIMIT)


def search(rows: Any, others: NDArray[np.float32], k: int, limit: float) -> dict[str, Any]:
    """Return reads, wall seconds, and energies of other rows, after some steps of a search.

    The search stops after ``limit`` seconds, which do not include computing the energies.
    """
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.passes.local import LocalPasses

    algorithm = lk.Truncated().bind(KMeansProblem(k))
    names = ("steps", "readings", "seconds", "energies")
    found: dict[str, Any] = {name: [] for name in names}
    begun, lost, readings, step = time.perf_counter(), 0.0, 0.0, 0
    with LocalPasses(rows) as passes:
        state = algorithm.init(passes, Rng(0))
        while True:
            state, info = algorithm.step(passes, Rng(0), state)
            now = time.perf_counter() - begun
            seconds = now - lost
            readings += info.extra["everywhere"]
            step += 1
            over = info.converged or seconds > limit
            if over or seconds > 1.05 * (found["seconds"] or [0.0])[-1]:
                energy = Energies(others, [algorithm.model(state).centers])[0]
                for name, value in zip(names, (step, readings, seconds, energy), strict=True):
                    found[name].append(value)
                lost += time.perf_counter() - begun - now
            if over:
                return found


def storage(folder: Path) -> dict[str, Any]:
    """Run searches over storage, with samples and without."""
    x = mixture(STORED_ROWS + OTHER_ROWS, 32, 2 * STORED_CLUSTERS)
    np.save(folder / "others.npy", x[STORED_ROWS:])
    lk.ingest(x[:STORED_ROWS], str(folder / "stored.zarr"), progress=False)
    return {
        name: child_record("benchmarks.auto_scale", ["storage", str(folder), searched])
        for name, searched in (("default", True), ("every round over all rows", False))
    }


def workers(folder: Path) -> dict[str, Any]:
    store = str(folder / "rows.zarr")
    lk.ingest(mixture(WORKERS_ROWS, 32, 8_000), store, progress=False)
    found = {
        n: child_record("benchmarks.auto_scale", ["workers", store, 4_000, int(n)])
        for n in ("1", "2")
    }
    assert found["1"]["costs"] == found["2"]["costs"]
    seconds, idle = ({n: run[kind] for n, run in found.items()} for kind in ("seconds", "idle"))
    return seconds | {"rows": float(WORKERS_ROWS), "idle": idle, "cpu": cpu_description()}


def large(folder: Path) -> list[dict[str, Any]]:
    path = folder / "large.npy"
    np.save(path, mixture(2_000_000, 32, 40_000))
    records = []
    for k in LARGE:
        rivals: dict[str, Any] = {}
        kind = "SuperKMeans, hierarchical"
        if peers.there("SuperKMeans"):
            rivals[kind] = peers.measure_calls(kind, str(path), k, LIMIT, CALLS)
        if peers.there("faiss"):
            rivals["faiss"] = peers.measure_faiss(str(path), k, FAISS_LIMIT)[-2:]
        levels = tuple(point["energy"] for points in rivals.values() for point in points)
        [run] = measure([Task(AUTO, str(path), k, limit=LIMIT, levels=levels)])
        run.pop("clock")
        records.append({"k": k, "run": run, "rivals": rivals, "row_mb": path.stat().st_size / 1e6})
        print(f"k = {k:,}: {records[-1]}", flush=True)
    return records


# --- tables ---------------------------------------------------------------------------------------


def readings_to(run: dict[str, Any], level: float) -> list[str]:
    """Return table cells: reads of all rows, steps and seconds until an energy."""
    points = zip(run["steps"], run["readings"], run["seconds"], run["energies"], strict=True)
    hit = next((point for point in points if point[3] <= level), None)
    if hit is None:
        return ["never", "", ""]
    steps, readings, seconds, _ = hit
    return [f"{readings:.0f}", f"{steps}", f"{seconds:.0f}"]


def in_seconds(time: float | None) -> str:
    return "never" if time is None else f"{time:.0f}"


def storage_table(runs: dict[str, Any]) -> list[str]:
    lowest = min((min(run["energies"]) for run in runs.values()), default=0.0)
    rows = []
    for name, run in runs.items():
        cells = [cell for near in NEAR for cell in readings_to(run, near * lowest)]
        steps = run["steps"][-1] / max(1, run["readings"][-1])
        ends = [f"{run['energies'][-1]:.5g}", f"{run['seconds'][-1]:.0f}", f"{steps:.1f}"]
        rows.append([name, *cells, *ends])
    heads = [f"to +{100 * (near - 1):.2g} %: reads | steps | seconds" for near in NEAR]
    head = " | ".join(["", *heads, "final energy", "seconds", "steps per read"]).split(" | ")
    return table_of(head, rows)


def large_tables(records: list[dict[str, Any]]) -> list[str]:
    ours, theirs = [], []
    for record in records:
        k, run = f"{record['k']:,}", record["run"]
        points = [
            (f"{name}, {p['passes']:.0f} {'passes' if name == 'faiss' else 'refinements'}", p)
            for name, several in record["rivals"].items()
            for p in several
        ]
        lowest = min([run["energies"][-1], *(point["energy"] for _, point in points)])
        near = in_seconds(time_to(run, 1.01 * lowest))
        memory = f"{run['peak_mb'] - run['before_mb']:.0f}"
        end, total = f"{run['energies'][-1]:.5g}", f"{run['total']:.0f}"
        ours.append([k, near, end, total, memory, f"{MOST_MB}"])
        for name, p in points:
            there = in_seconds(time_to(run, p["energy"]))
            theirs.append([k, name, f"{p['energy']:.5g}", f"{p['seconds']:.0f}", there])
    head = ["k", "seconds to +1 % of the lowest energy", "final energy", "total seconds",
            "memory, MB", "target, MB"]  # fmt: skip
    rivals = ["k", "library", "final energy", "seconds", "seconds of largek_dask to this energy"]
    between = ["", "The next table shows other libraries on the same rows.", ""]
    return [*table_of(head, ours), *between, *table_of(rivals, theirs)]


def table(result: dict[str, Any]) -> str:
    found = result["workers"]
    (one, two), (idle, idle_two) = (
        [part[n] for n in ("1", "2")] for part in (found, found["idle"])
    )
    return "\n".join(
        [
            f"A fit of {found['rows']:,.0f} rows of 32 features with k = 4,000 took {one:.1f} "
            f"seconds on one worker and {two:.1f} seconds on two, a speedup of {one / two:.2f} "
            f"(target: {WORKERS_AIM}). Workers computed nothing in {100 * idle:.0f} % of the time "
            f"with one worker, and in {100 * idle_two:.0f} % with two (target: "
            f"{100 * IDLE_AIM:.0f} %). Processor: {found['cpu']}.",
            "",
            f"The next table is for {STORED_ROWS:,} stored rows of 32 features, a quarter of which "
            f"fit into memory, with k = {STORED_CLUSTERS:,}. The columns show how often all rows "
            "were read, the number of steps, and the seconds of wall time until the energy was "
            "within 1 and 0.5 % of the lowest energy. The other columns show the final energy, the "
            "total time, and the steps per read.",
            "",
            *storage_table(result.get("storage", {})),
            "",
            "The next table is for 2,000,000 rows of 32 features and very many clusters. Seconds "
            "are CPU seconds. Memory is the peak memory, without the memory of the rows.",
            "",
            *large_tables(result.get("large", [])),
            "",
            f"Processor of these tables: {result['cpu']}. This section was made by `python -m "
            "benchmarks.auto_scale --write`.",
        ]
    )


def child(kind: str, *given: Any) -> dict[str, Any]:
    runs = {"workers": on_workers, "storage": from_storage}
    return runs[kind](*given)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    args = parse(parser, child)
    result = read_result("auto_scale")
    if args.only != ["workers"]:
        result["cpu"] = cpu_description()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "workers" in args.only:
            result["workers"] = workers(folder)
        if "storage" in args.only:
            result["storage"] = storage(folder)
        if "large" in args.only:
            result["large"] = large(folder)
    publish("auto_scale", result, write=args.write)


if __name__ == "__main__":
    main()
