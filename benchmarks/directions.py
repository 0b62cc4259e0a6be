"""What it is worth to search among few directions of the rows first.

    python -m benchmarks.directions [--seconds 12] [--write]

Runs the truncated search as it is, as it would be if no more than 32,768 rows could be held as they
are seen in 32 directions, and in all features from the first step on, in turns, on one thread: CPU
seconds until the energy over all rows is within some shares of the lowest end on that set, and its
end; medians of three seeds. Sets: C and mnist (784 features), and 50,000 patches of 32 x 32 x 3
numbers of scikit-learn's photographs (3,072 features), whose runs are cut after three times as many
seconds; 500 clusters. Without the folder ``LARGEK_DATA`` there is no mnist.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.auto_parts import EXCESSES as QUOTED
from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.curves import AUTO, METHODS, Run, Task, run, time_to, warm_up
from benchmarks.lloyd import data_folder, prepare
from benchmarks.tables import write_tables
from largek_dask.algorithms.truncated import projected

K = 500
SEEDS = (0, 1, 2)
EXCESSES = (0.02, QUOTED[0], 0.005, QUOTED[1], 0.001)
SETS = {"C": 1, "mnist": 1, "patches": 3}
"""How many times as long runs are."""
FIRST, SAMPLE, ALL = "few directions first", "the same, of a sample of rows", "all features"
WAYS: dict[str, dict[str, Any]] = {FIRST: {}, SAMPLE: {}, ALL: {"directions": 0}}
MOST_VALUES = 1 << 20
"""Rows times directions that are held then, at most."""


def rows_of(name: str, folder: Path) -> Path | None:
    """Path of the rows of a set; None: they are not here."""
    if name == "patches":
        path = folder / "patches.npy"
        np.save(path, patches())
        return path
    if name == "mnist" and not (data_folder() / "mnist.npz").exists():
        return None
    return Path(prepare(name, folder))


def patches() -> np.ndarray[Any, np.dtype[np.float32]]:
    """50,000 squares of 32 x 32 points from anywhere in two photographs."""
    from sklearn.datasets import load_sample_images

    images, draws = load_sample_images().images, np.random.default_rng(0)
    out = np.empty((50_000, 32 * 32 * 3), np.float32)
    for row in out:
        image = images[draws.integers(len(images))]
        top, left = draws.integers(image.shape[0] - 32), draws.integers(image.shape[1] - 32)
        row[:] = image[top : top + 32, left : left + 32].reshape(-1)
    return out


def measured(path: Path, way: str, seconds: float) -> list[Run]:
    """Runs of all seeds, in a process of its own."""
    task = {"way": way, "path": str(path), "seconds": seconds}
    runs: list[Run] = child_record("benchmarks.directions", task)["runs"]
    print(path.stem, way, flush=True)
    return runs


def child(task: dict[str, Any]) -> None:
    """Runs of one way."""
    METHODS[AUTO] = lk.Truncated(**WAYS[task["way"]])
    if task["way"] == SAMPLE:
        projected.MOST_VALUES = MOST_VALUES
    x = np.load(task["path"])
    warm_up(AUTO, x, K)
    about = {"path": task["path"], "k": K, "limit": task["seconds"], "excesses": EXCESSES}
    print(json.dumps({"runs": [run(Task(AUTO, seed=seed, **about), x) for seed in SEEDS]}))


def lowest(ways: dict[str, list[Run]]) -> float:
    """The lowest energy that any run on a set has come to."""
    return min(min(run["energies"]) for runs in ways.values() for run in runs)


def median_time(runs: list[Run], level: float) -> float:
    """CPU seconds until the energy was at most that, in the median; infinity: never."""
    times = [time_to(run, level) for run in runs]
    return float(np.median([np.inf if t is None else t for t in times]))


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    heads = [f"+{100 * excess:g} %" for excess in EXCESSES]
    lines = [f"| set | search in | {' | '.join(heads)} | end |", "|---" * (3 + len(heads)) + "|"]
    for name, ways in result["sets"].items():
        low = lowest(ways)
        for way in [way for way in WAYS if way in ways]:
            cells = []
            for excess in EXCESSES:
                seconds, first = (median_time(ways[w], low * (1 + excess)) for w in (way, FIRST))
                told = "never" if np.isinf(seconds) else f"{seconds:.2f} s"
                if way != FIRST and np.isfinite(seconds):
                    told += f" ({seconds / first:.1f}x)"
                cells.append(told)
            end = 100 * (float(np.median([run["energies"][-1] for run in ways[way]])) / low - 1)
            lines.append(f"| {name} | {way} | {' | '.join(cells)} | +{end:.2f} % |")
    return "\n".join(
        [
            *lines,
            "",
            f"{K} clusters. CPU seconds, the directions found included, to shares above the lowest "
            "energy that any run has come to, and how many times those of the search in few "
            f"directions first; cut after {result['seconds']:g} s, with patches "
            f"{SETS['patches'] * result['seconds']:g} s. Medians of {len(SEEDS)} seeds; "
            f"{result['cpu']}. Made by `python -m benchmarks.directions --write`.",
        ]
    )


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return
    sets: dict[str, dict[str, list[Run]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, longer in SETS.items():
            path = rows_of(name, Path(folder))
            if path is None:
                print(f"{name} is left out: no such file in {data_folder()} (LARGEK_DATA)")
                continue
            sets[name] = {
                way: [
                    {key: run[key] for key in ("seconds", "energies")}
                    for run in measured(path, way, longer * args.seconds)
                ]
                for way in WAYS
            }
    result = {"cpu": cpu_description(), "seconds": args.seconds, "sets": sets}
    print(table(result))
    if args.write:
        save("directions", result, indent=None)
        write_tables("directions", result)
        print(RESULTS / "directions.json")


if __name__ == "__main__":
    main()
