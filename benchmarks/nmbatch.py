"""Cost against seconds: nested mini-batches, bounds and their rivals, on one thread.

    python -m benchmarks.nmbatch [--cases A-100 B-1000 ...] [--write]

All start from the same random rows. Every algorithm runs in a process of its own; after each of
its steps the CPU seconds so far are noted (scan of the rows and starting centres included) and,
outside the clock, the energy of its centres over ALL rows. Exact Lloyd follows the same
trajectory in every library, so a peer's time to an energy is its measured seconds a pass times
the passes that this takes. Energies are relative to where Lloyd's algorithm ends.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import RESULTS, ROOT, cpu_description, peer_environments, save
from benchmarks.lloyd import ROUNDS, data_folder, measure, prepare, starting_centers
from benchmarks.tables import write_table

CASES = ["A-100", "A-1000", "B-100", "B-1000", "C-50", "C-500"]
REAL = ["sift200k-100", "sift200k-1000", "mnist-50"]
OURS: dict[str, Any] = {
    "lloyd": lk.Lloyd(bounds=None),
    "lloyd, bounds": lk.Lloyd(),
    "nmbatch": lk.NMBatch(),
    "nmbatch, no bounds": lk.NMBatch(bounds=False),
    "nmbatch as published": lk.NMBatch.paper(),
    "nmbatch as published, rho = 1": lk.NMBatch.paper(rho=1.0),
    "mbatch": lk.MiniBatch(),
    "mbatch, latest votes": lk.MiniBatch(votes="latest"),
}
PEER = "scikit-learn MiniBatchKMeans"
MOST_STEPS = 400
MOST_PASSES = 15
"""Rows that a mini-batch run may assign, in passes over all rows."""
SNAPSHOTS = 40

Curve = list[tuple[float, float]]
Steps = Iterator[tuple[NDArray[np.float32], float, dict[str, Any]]]


def steps_of_ours(method: str, x: NDArray[np.float32], centers: NDArray[np.float32]) -> Steps:
    """Centres after every step, passes so far, and what the step said of itself."""
    from largek_dask.algorithms.base import KMeansProblem, Rng
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    algorithm = replace(OURS[method], problem=KMeansProblem(len(centers), centers))
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state, rows = algorithm.init(passes, Rng(0)), 0
        for _ in range(MOST_STEPS):
            state, info = algorithm.step(passes, Rng(0), state)
            rows += info.rows
            about = {"changed": info.n_changed, **info.extra}
            if isinstance(algorithm, lk.Lloyd):
                about["cost"] = info.cost
            yield algorithm.model(state).centers, rows / len(x), about
            if info.converged:
                return
            if isinstance(algorithm, lk.MiniBatch) and rows > MOST_PASSES * len(x):
                return


def steps_of_scikit_learn(x: NDArray[np.float32], centers: NDArray[np.float32]) -> Steps:
    """The same of scikit-learn's mini-batches, fed in random order."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    k, n = len(centers), len(x)
    size = max(10 * k, 4096)
    km = MiniBatchKMeans(k, init=centers, n_init=1, batch_size=size, random_state=0)
    order = np.random.default_rng(0).permutation(n)
    rows = 0
    with threadpool_limits(1):
        while rows < MOST_PASSES * n:
            for begin in range(0, n, size):
                km.partial_fit(x[order[begin : begin + size]])
                rows += min(size, n - begin)
                yield km.cluster_centers_, rows / n, {}


def energy(x: NDArray[np.float32], centers: NDArray[np.float32], shift: NDArray[Any]) -> float:
    """Mean squared distance of all rows to their nearest centres."""
    from largek_dask.kernels.distances import nearest, pack_centers, squared_distances

    packed = pack_centers(centers.astype(np.float32), shift)
    return float(squared_distances(x, packed, nearest(x, packed)).mean())


def curve(method: str, path: str, k: int) -> dict[str, Any]:
    """CPU seconds and energies of a run, in this process."""
    x = np.load(path)
    centers = starting_centers(x, k)
    shift = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    make = steps_of_scikit_learn if method == PEER else None

    def steps(x: NDArray[np.float32], centers: NDArray[np.float32]) -> Steps:
        return make(x, centers) if make else steps_of_ours(method, x, centers)

    # A few rows first, so that no compilation or loading of code is timed.
    for number, _ in enumerate(steps(x[: 20 * k], x[:k])):
        if number == 30:
            break
    clock, begun, met = 0.0, time.process_time(), []
    for number, (now, passes, about) in enumerate(steps(x, centers)):
        clock += time.process_time() - begun
        met.append((number, clock, passes, np.array(now, np.float32), about))
        begun = time.process_time()
    wanted = set(np.unique(np.geomspace(1, len(met), SNAPSHOTS).astype(int) - 1).tolist())
    exact = "cost" in met[0][4]
    seconds, energies = [], []
    for i, (number, clock, _, now, _) in enumerate(met):
        if exact and i + 1 < len(met):
            # the next step's cost is that of these centres
            value = met[i + 1][4]["cost"] / len(x)
        elif exact or number in wanted:
            value = energy(x, now, shift)
        else:
            continue
        seconds.append(clock)
        energies.append(value)
    shares = [about["distances"] for *_, about in met if "distances" in about]
    return {
        "seconds": seconds,
        "energies": energies,
        "steps": len(met),
        "passes": met[-1][2],
        "distances": shares,
        "ended": met[-1][4].get("changed") == 0,
    }


def child(method: str, path: Path, k: int) -> dict[str, Any]:
    """A run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.nmbatch", "--child", method, str(path), str(k)]
    environment = peer_environments("scikit-learn" if method == PEER else "largek_dask")[""]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def time_to(run: dict[str, Any], limit: float) -> float | None:
    """CPU seconds until the energy was at most `limit`; None: never."""
    for seconds, value in zip(run["seconds"], run["energies"], strict=True):
        if value <= limit:
            return float(seconds)
    return None


def compare(cases: list[str], folder: Path) -> list[dict[str, Any]]:
    """One record a case: all curves, and the peers' seconds a pass."""
    records = []
    for case in cases:
        name, k = case.rsplit("-", 1)
        path = prepare(name, folder)
        runs = {}
        for method in [*OURS, PEER]:
            runs[method] = child(method, path, int(k))
            end = runs[method]["energies"][-1]
            print(f"{case} {method}: {runs[method]['seconds'][-1]:.1f} s, {end:.6g}", flush=True)
        passes = {
            library: min(
                float(np.median([measure(library, path, int(k), env) for _ in range(ROUNDS)]))
                for env in peer_environments(library).values()
            )
            for library in ("scikit-learn", "faiss")
        }
        n, d = np.load(path, mmap_mode="r").shape
        records.append(
            {"case": case, "n": n, "d": d, "k": int(k), "runs": runs, "seconds_a_pass": passes}
        )
    return records


def within(record: dict[str, Any], excess: float) -> tuple[float, float | None]:
    """Seconds to so much above Lloyd's end: the better exact peer, and nmbatch."""
    lloyd = record["runs"]["lloyd"]
    limit = lloyd["energies"][-1] * (1 + excess)
    passes = 1 + next(i for i, value in enumerate(lloyd["energies"]) if value <= limit)
    return passes * min(record["seconds_a_pass"].values()), time_to(
        record["runs"]["nmbatch"], limit
    )


def table(result: dict[str, Any]) -> str:
    """The markdown tables of a result."""
    lines = [
        "| set | rows × features | k | to +2 %: exact peer, s | nmbatch, s | "
        "| to +1 %: exact peer, s | nmbatch, s | | nmbatch ends | as published ends |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        cells = []
        for excess in (0.02, 0.01):
            peer, ours = within(r, excess)
            times = "never" if ours is None else f"{ours:.2f}"
            cells += [f"{peer:.2f}", times, "" if ours is None else f"{peer / ours:.1f}x"]
        end = r["runs"]["lloyd"]["energies"][-1]
        ends = [
            f"{100 * (min(r['runs'][m]['energies']) / end - 1):+.2f} %"
            for m in ("nmbatch", "nmbatch as published")
        ]
        name = r["case"].rsplit("-", 1)[0]
        cells = [name, f"{r['n']:,} × {r['d']}", str(r["k"]), *cells, *ends]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "CPU seconds on one thread from the same random rows, the first scan counted, until the "
        "energy over all rows is within 2 % and 1 % of where Lloyd's algorithm ends; the exact "
        "peer is the faster of scikit-learn's and faiss's Lloyd. Ends are relative to Lloyd's.",
        "",
        "| set | k | passes to no change | dense Lloyd, s | with bounds, s | faster "
        "| distances computed with bounds |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in result["records"]:
        dense, bounded = r["runs"]["lloyd"], r["runs"]["lloyd, bounds"]
        share = 100 * float(np.mean(bounded["distances"])) if bounded["distances"] else 100.0
        a, b = dense["seconds"][-1], bounded["seconds"][-1]
        more = "" if dense["ended"] else "more than "
        name = r["case"].rsplit("-", 1)[0]
        lines.append(
            f"| {name} | {r['k']} | {more}{dense['steps']} | {a:.2f} | {b:.2f} | {a / b:.2f}x "
            f"| {share:.0f} % |"
        )
    lines += ["", f"{result['cpu']}. Made by `python -m benchmarks.nmbatch --write`."]
    return "\n".join(lines)


def picture(record: dict[str, Any], path: Path) -> None:
    """Curves of one case: excess energy against CPU seconds, both logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    end = record["runs"]["lloyd"]["energies"][-1]
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for method, run in record["runs"].items():
        excess = 100 * (np.array(run["energies"]) / end - 1)
        style = "--" if method == PEER else "-"
        axes.plot(run["seconds"], np.maximum(excess, 0.01), style, lw=1.5, label=method)
    lloyd = record["runs"]["lloyd"]
    excess = 100 * (np.array(lloyd["energies"]) / end - 1)
    for library, seconds in record["seconds_a_pass"].items():
        times = seconds * np.arange(1, len(excess) + 1)
        axes.plot(times, np.maximum(excess, 0.01), "--", lw=1.5, label=f"{library} KMeans")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="CPU seconds, one thread",
        ylabel="energy above Lloyd's end, % (0.01: that or less)",
        title=f"{record['case'].rsplit('-', 1)[0]}: {record['n']:,} × {record['d']}, "
        f"k = {record['k']}",
    )
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, save, draw, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--write", action="store_true", help="write the tables into README.md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        method, path, k = args.child
        print(json.dumps(curve(method, path, int(k))))
        return
    there = CASES + [c for c in REAL if (data_folder() / f"{c.rsplit('-', 1)[0]}.npz").exists()]
    with tempfile.TemporaryDirectory() as folder:
        records = compare(args.cases or there, Path(folder))
        result = {"cpu": cpu_description(), "records": records}
    print(table(result))
    for record in records:
        picture(record, RESULTS / f"nmbatch-{record['case']}.png")
    if args.write:
        save("nmbatch", result)
        write_table(ROOT / "README.md", "nmbatch", table(result))


if __name__ == "__main__":
    main()
