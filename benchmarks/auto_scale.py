"""`algorithm="auto"` on more threads, more workers, and with very many clusters.

    python -m benchmarks.auto_scale [--only threads workers storage large] [--rows 10_000_000]
                                    [--clusters 10_000 32_000] [--keep-rivals] [--write]

threads
    Wall seconds of whole fits of set A, k = 1000, on one and on two threads; in turns, medians.
workers
    Rows of 32 features in a Zarr store, k = 4000, one and two local workers of one thread each:
    wall seconds until all rows have been gone through ten times, the scan and the search of
    samples in the driver included, and the share of them in which workers wait for the driver.
storage
    4,000,000 × 32, k = 2000, in a Zarr store four times as large as the memory for chunks: how
    often all rows are read until the energy of 100,000 other rows of the kind is within 1 % and
    0.5 % of the lowest, with and without rounds over samples; wall seconds on all threads.
large
    2,000,000 × 32, k = 10,000 and 32,000: CPU seconds on one thread until our energy is within 1 %
    of the lowest that anybody has come to, peak memory beyond the rows, whole calls of SuperKMeans
    (hierarchical), and one of faiss; one seed, each run cut after some minutes.

Bits do not depend on threads and workers, so all runs of a kind take the same steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks import peers
from benchmarks.common import RESULTS, ROOT, cpu_description, peer_environments, save
from benchmarks.curves import AUTO, Task, measure, time_to
from benchmarks.lloyd import prepare
from benchmarks.tables import write_tables

PARTS = ["threads", "workers", "storage", "large"]
ROUNDS = 3
STEPS, WHOLE = 3, 10
"""Steps of the fits on workers, and how often they then go through all rows."""
STORED_ROWS, STORED_CLUSTERS, OTHER_ROWS = 4_000_000, 2_000, 100_000
STORED_LIMIT = 100.0
"""Wall seconds after which a search over storage is cut."""
NEAR = (1.01, 1.005)
LARGE = [10_000, 32_000]
LIMIT = 240.0
"""CPU seconds after which a run with very many clusters is cut."""
FAISS_LIMIT = 400.0
"""CPU seconds for faiss, about."""
CALLS = (0, 2)
"""Refinements of SuperKMeans there."""
MOST_MB = 500
"""Memory beyond the rows that very many clusters may take."""


def mixture(n: int, d: int, n_components: int) -> NDArray[np.float32]:
    """Rows around random centres."""
    r = np.random.default_rng(3)
    centers = 2 * r.standard_normal((n_components, d), np.float32)
    x = r.standard_normal((n, d), np.float32)
    x += centers[r.integers(n_components, size=n)]
    return x


def child(kind: str, *given: str) -> dict[str, Any]:
    """Figures of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.auto_scale", "--child", kind, *given],
        cwd=ROOT,
        env=peer_environments("largek_dask")[""],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(kind, *given[1:], result, flush=True)
    return result


def on_threads(path: str, n_threads: int) -> dict[str, Any]:
    """A whole fit in this process."""
    x = np.load(path)
    km = lk.KMeans(1000, algorithm=lk.Truncated(), random_state=0, n_threads=n_threads)
    # Code is compiled and loaded.
    km.fit(x[:30_000])
    begun = time.perf_counter()
    km.fit(x)
    return {"seconds": time.perf_counter() - begun, "digest": km.model_.digest()}


def on_workers(store: str, k: int, n_workers: int) -> dict[str, Any]:
    """Some steps on local workers."""
    from distributed import Client, LocalCluster

    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.cluster import ClusterPasses

    rows = open_rows(store)
    algorithm = replace(lk.Truncated(), problem=KMeansProblem(k))
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers)
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
                # What is no pass over the table is done by the driver, while workers wait.
                driver = 1 - passes.total.seconds / seconds
    return {"seconds": seconds, "costs": costs, "driver": driver}


def from_storage(folder: str, searched: int) -> dict[str, Any]:
    """Readings, wall seconds and energies after some steps of a search."""
    import dask

    from largek_dask.algorithms.truncated import schedule
    from largek_dask.data.sources import open_rows

    if not searched:
        schedule.TUNING = replace(schedule.TUNING, rows_to_search=1 << 60)
    others = np.load(Path(folder) / "others.npy")
    rows = open_rows(str(Path(folder) / "stored.zarr"))
    with dask.config.set({"largek.passes.cache-bytes": rows.nbytes // 4}):
        # A short search first: code is compiled and loaded.
        search(rows, others, STORED_CLUSTERS, 3.0)
        return search(rows, others, STORED_CLUSTERS, STORED_LIMIT)


def search(rows: Any, others: NDArray[np.float32], k: int, limit: float) -> dict[str, Any]:
    """Readings, wall and CPU seconds, and energies of other rows, after some steps of a search.

    It is cut after ``limit`` wall seconds. Energies are computed outside the clocks.
    """
    from benchmarks.curves import Energies
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.passes.local import LocalPasses

    algorithm = replace(lk.Truncated(), problem=KMeansProblem(k))
    names = ("steps", "readings", "seconds", "cpu", "energies")
    found: dict[str, Any] = {name: [] for name in names}
    clocks = (time.perf_counter, time.process_time)
    begun, lost = np.array([clock() for clock in clocks]), np.zeros(2)
    readings, step = 0.0, 0
    with LocalPasses(rows) as passes:
        state = algorithm.init(passes, Rng(0))
        while True:
            state, info = algorithm.step(passes, Rng(0), state)
            now = np.array([clock() for clock in clocks]) - begun
            seconds, cpu = (now - lost).tolist()
            readings += info.extra["everywhere"]
            step += 1
            over = info.converged or seconds > limit
            if over or seconds > 1.05 * (found["seconds"] or [0.0])[-1]:
                energy = Energies(others, [algorithm.model(state).centers])[0]
                for name, value in zip(names, (step, readings, seconds, cpu, energy), strict=True):
                    found[name].append(value)
                lost += np.array([clock() for clock in clocks]) - begun - now
            if over:
                return found | {"ended": info.converged}


def storage(folder: Path) -> dict[str, Any]:
    """Searches over storage, as they are and on all rows from the first round on."""
    x = mixture(STORED_ROWS + OTHER_ROWS, 32, 2 * STORED_CLUSTERS)
    np.save(folder / "others.npy", x[STORED_ROWS:])
    lk.ingest(x[:STORED_ROWS], str(folder / "stored.zarr"), progress=False)
    return {
        name: child("storage", str(folder), searched)
        for name, searched in (("as it is", "1"), ("rounds over all rows only", "0"))
    }


def readings_to(run: dict[str, Any], level: float) -> str:
    """Readings of all rows, steps and seconds until an energy, as cells of a table."""
    points = zip(run["steps"], run["readings"], run["seconds"], run["energies"], strict=True)
    hit = next((point for point in points if point[3] <= level), None)
    if hit is None:
        return "never | |"
    steps, readings, seconds, _ = hit
    return f"{readings:.0f} | {steps} | {seconds:.0f}"


def threads(folder: Path) -> dict[str, float]:
    """Seconds on one and two threads."""
    path = str(prepare("A", folder))
    found: dict[str, list[dict[str, Any]]] = {"1": [], "2": []}
    for _ in range(ROUNDS):
        for n, runs in found.items():
            runs.append(child("threads", path, n))
    assert len({run["digest"] for runs in found.values() for run in runs}) == 1
    return {n: float(np.median([run["seconds"] for run in runs])) for n, runs in found.items()}


def workers(folder: Path, n_rows: int) -> dict[str, float]:
    """Seconds on one and two workers."""
    store = str(folder / "rows.zarr")
    lk.ingest(mixture(n_rows, 32, 8_000), store, progress=False)
    found = {n: child("workers", store, "4000", n) for n in ("1", "2")}
    assert found["1"]["costs"] == found["2"]["costs"]
    shares = {f"driver {n}": run["driver"] for n, run in found.items()}
    return {n: run["seconds"] for n, run in found.items()} | {"rows": float(n_rows)} | shares


def large(folder: Path, clusters: list[int], known: dict[int, Any]) -> list[dict[str, Any]]:
    """Curves with very many clusters; of some the rivals' may be known."""
    path = folder / "large.npy"
    np.save(path, mixture(2_000_000, 32, 40_000))
    records = []
    for k in clusters:
        rivals: dict[str, Any] = known.get(k, {})
        kind = "SuperKMeans, hierarchical"
        if not rivals and peers.there("SuperKMeans"):
            rivals[kind] = peers.measure_super(kind, str(path), k, LIMIT, CALLS)
        if "faiss" not in rivals and peers.there("faiss"):
            rivals["faiss"] = peers.measure_faiss(str(path), k, FAISS_LIMIT)[-2:]
        levels = tuple(point["energy"] for points in rivals.values() for point in points)
        [run] = measure([Task(AUTO, str(path), k, limit=LIMIT, levels=levels)])
        run.pop("clock")
        records.append({"k": k, "run": run, "rivals": rivals, "row_mb": path.stat().st_size / 1e6})
        print(f"k = {k:,}: {records[-1]}", flush=True)
    return records


def pairs_table(result: dict[str, Any]) -> list[str]:
    """Two threads against one, and two workers."""
    lines = ["| | one, s | two, s | sooner | aim |", "|---|---|---|---|---|"]
    for name, aim in (("threads", 1.85), ("workers", 1.8)):
        if name in result:
            found = result[name]
            one, two = found["1"], found["2"]
            rows = f"{found['rows']:,.0f} × 32, k = 4,000" if "rows" in found else "A, k = 1,000"
            times = [f"{one:.1f}", f"{two:.1f}"]
            for place, n in enumerate("12"):
                if f"driver {n}" in found:
                    times[place] += f", the driver {100 * found[f'driver {n}']:.0f} %"
            lines.append(f"| {name}, {rows} | {' | '.join(times)} | {one / two:.2f}x | {aim}x |")
    return lines


def in_seconds(time: float | None) -> str:
    """A time in a table."""
    return "never" if time is None else f"{time:.0f}"


def storage_table(runs: dict[str, Any]) -> list[str]:
    """Readings of a stored table until two energies."""
    lowest = min((min(run["energies"]) for run in runs.values()), default=0.0)
    heads = [f"to +{100 * (near - 1):.2g} %: readings | steps | s" for near in NEAR]
    lines = [f"| | {' | '.join(heads)} | ends at | s | steps a reading |", "|---" * 10 + "|"]
    for name, run in runs.items():
        told = " | ".join(readings_to(run, near * lowest) for near in NEAR)
        steps = run["steps"][-1] / max(1, run["readings"][-1])
        lines.append(
            f"| {name} | {told} | {run['energies'][-1]:.5g} | {run['seconds'][-1]:.0f} "
            f"| {steps:.1f} |"
        )
    return lines


def large_tables(records: list[dict[str, Any]]) -> list[str]:
    """Where we end with very many clusters, and how long we take to where rivals come."""
    ours = [
        "| k | to +1 % of the lowest, s | ends at | s | MB beyond the rows | aim |",
        "|---" * 6 + "|",
    ]
    theirs = ["| k | rival | comes to | s | we are there, s |", "|---" * 5 + "|"]
    for record in records:
        k, run = f"{record['k']:,}", record["run"]
        points = [
            (f"{name}, {p['passes']:.0f} {'passes' if name == 'faiss' else 'refinements'}", p)
            for name, several in record["rivals"].items()
            for p in several
        ]
        lowest = min([run["energies"][-1], *(point["energy"] for _, point in points)])
        near = in_seconds(time_to(run, 1.01 * lowest))
        ours.append(
            f"| {k} | {near} | {run['energies'][-1]:.5g} | {run['total']:.0f} "
            f"| {run['peak_mb'] - run['before_mb']:.0f} | {MOST_MB} |"
        )
        for name, p in points:
            there = in_seconds(time_to(run, p["energy"]))
            theirs.append(f"| {k} | {name} | {p['energy']:.5g} | {p['seconds']:.0f} | {there} |")
    return [*ours, "", "Rivals on the same rows:", "", *theirs]


def table(result: dict[str, Any]) -> str:
    """The markdown tables of a result."""
    return "\n".join(
        [
            *pairs_table(result),
            "",
            f"{STORED_ROWS:,} × 32 from storage, a quarter of it in memory, k = "
            f"{STORED_CLUSTERS:,}; wall seconds:",
            "",
            *storage_table(result.get("storage", {})),
            "",
            "Very many clusters, 2,000,000 × 32; CPU seconds:",
            "",
            *large_tables(result.get("large", [])),
            "",
            f"{result['cpu']}. Made by `python -m benchmarks.auto_scale --write`.",
        ]
    )


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows for the workers")
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--clusters", nargs="*", type=int, default=LARGE)
    parser.add_argument(
        "--keep-rivals", action="store_true", help="take those of the last result on this machine"
    )
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, path, *rest = args.child
        numbers = [int(number) for number in rest]
        runs = {"threads": on_threads, "workers": on_workers, "storage": from_storage}
        print(json.dumps(runs[kind](path, *numbers)))
        return
    file = RESULTS / "auto_scale.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    result["cpu"] = cpu_description()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "threads" in args.only:
            result["threads"] = threads(folder)
        if "workers" in args.only:
            result["workers"] = workers(folder, args.rows)
        if "storage" in args.only:
            result["storage"] = storage(folder)
        if "large" in args.only:
            old = result.get("large", [])
            known = {r["k"]: r["rivals"] for r in old} if args.keep_rivals else {}
            kept = [r for r in old if r["k"] not in args.clusters]
            records = kept + large(folder, args.clusters, known)
            result["large"] = sorted(records, key=lambda record: record["k"])
    print(table(result))
    if args.write:
        save("auto_scale", result)
        write_tables("auto_scale", result)


if __name__ == "__main__":
    main()
