"""Nested mini-batches on one and on two local workers: seconds to the same energy.

    python -m benchmarks.workers [--scale 0.2] [--write]

Wall seconds, on a Zarr store, workers of one thread each in processes of their own; small batches
are gathered in the driver's process, which takes as many threads as the workers have. The number of
workers changes no bit, so both are at the same energies after the same steps: what is compared is
seconds to the first step whose energy over all rows, computed outside the clock, is within 1 % of
the last one, and to the last step. Every process runs twice, the first time to load code, which is
not counted. Processes in turns, medians.
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

import largek_dask as lk
from benchmarks.common import ROOT, cpu_description, peer_environments, save
from benchmarks.lloyd import prepare, starting_centers
from benchmarks.tables import write_tables

CASES = {"A-1000": 16, "B-1000": 24}
"""Steps of nmbatch that each case takes."""
WORKERS = (1, 2)
ROUNDS = 2
TARGET = 1.7


def clocks(store: str, path: str, k: int, steps: int, workers: int) -> dict[str, Any]:
    """Wall seconds and costs after every step, and with one worker energies, in this process."""
    from distributed import Client, LocalCluster

    from benchmarks.curves import Energies
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.cluster import ClusterPasses

    x = np.load(path, mmap_mode="r")
    rows = open_rows(store)
    algorithm = replace(lk.NMBatch(), problem=KMeansProblem(k, starting_centers(x, k)))
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        # The first run compiles and loads in every process.
        for _ in range(2):
            seconds, costs, met = [], [], []
            with ClusterPasses(rows, client) as passes:
                begun = time.perf_counter()
                state = algorithm.init(passes, Rng(0))
                for _ in range(steps):
                    state, info = algorithm.step(passes, Rng(0), state)
                    seconds.append(time.perf_counter() - begun)
                    costs.append(info.cost)
                    met.append(np.array(algorithm.model(state).centers))
                    if info.converged:
                        break
    result: dict[str, Any] = {"seconds": seconds, "costs": costs}
    if workers == 1:
        energies = Energies(np.array(x), met)
        result["energies"] = [energies[i] for i in range(len(met))]
    return result


def compare(case: str, folder: Path, scale: float, rounds: int) -> dict[str, Any]:
    """Medians over rounds for every number of workers."""
    name, clusters = case.rsplit("-", 1)
    path, store, k = prepare(name, folder), folder / f"{name}.zarr", int(clusters)
    lk.ingest(np.load(path), str(store), shuffle=True, progress=False)
    steps = max(4, round(scale * CASES[case]))
    found: dict[str, list[dict[str, Any]]] = {str(n): [] for n in WORKERS}
    for _ in range(rounds):
        for workers, runs in found.items():
            command = [sys.executable, "-m", "benchmarks.workers", "--child"]
            command += [str(store), str(path), str(k), str(steps), workers]
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=peer_environments("largek_dask")[""],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{case}, {workers} workers: {runs[-1]['seconds'][-1]:.1f} s", flush=True)
    costs = found["1"][0]["costs"]
    assert all(run["costs"] == costs for runs in found.values() for run in runs)
    return {
        "case": case,
        "k": k,
        "energies": found["1"][0]["energies"],
        "seconds": {
            workers: np.median([run["seconds"] for run in runs], axis=0).tolist()
            for workers, runs in found.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    lines = [
        "| set | k | to +1 %: 1 worker, s | 2 workers, s | | all steps: 1 worker, s "
        "| 2 workers, s | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        last = len(r["energies"]) - 1
        near = next(i for i, e in enumerate(r["energies"]) if e <= 1.01 * r["energies"][last])
        cells = [r["case"].rsplit("-", 1)[0], str(r["k"])]
        for step in (near, last):
            one, two = (r["seconds"][str(workers)][step] for workers in WORKERS)
            cells += [f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}x"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Wall seconds of nmbatch on local workers of one thread each, to reach ≥ {TARGET}x; the "
        "first scan and the driver's small batches counted; to within 1 % of the energy of the "
        f"last step, and to that step. {result['cpu']}. Made by "
        "`python -m benchmarks.workers --write`.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of steps")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        store, path, k, steps, workers = args.child
        print(json.dumps(clocks(store, path, int(k), int(steps), int(workers))))
        return
    with tempfile.TemporaryDirectory() as folder:
        records = [compare(case, Path(folder), args.scale, args.rounds) for case in CASES]
    result = {"cpu": cpu_description(), "records": records}
    print(table(result))
    if args.write:
        save("workers", result)
        write_tables("workers", result)


if __name__ == "__main__":
    main()
