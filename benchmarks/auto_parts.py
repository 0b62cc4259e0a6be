"""What parts of the truncated search are worth.

    python -m benchmarks.auto_parts [--seconds 3] [--write]

Runs it as it is and with one part left out, in turns, on one thread: CPU seconds until the energy
over all rows is within 1 % and 0.2 % of the lowest end on that set, and its end. Means of two
seeds. Sets: A and B with 1,000 clusters, "gaussian" (100,000 × 64 without clusters) with 1,000, and
"uniform" (100,000 × 192 in a cube) with 100.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.auto import structureless
from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.curves import AUTO, METHODS, Run, Task, run, time_to, warm_up
from benchmarks.lloyd import prepare
from benchmarks.tables import write_tables
from largek_dask.algorithms.truncated.schedule import TUNING

SEEDS = (0, 1)
EXCESSES = (0.01, 0.002)
CASES = {"A": 1_000, "B": 1_000, "gaussian": 1_000, "uniform": 100}
PARTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "centres go to the means": {"truncated.state.BEYOND": 0.0},
    "lists for few clusters too": {"truncated.schedule.TUNING": replace(TUNING, dense_clusters=0)},
    "rounds over all rows only": {
        "truncated.schedule.TUNING": replace(TUNING, rows_to_search=1 << 60)
    },
    "no first sample": {"truncated.schedule.TUNING": replace(TUNING, first_rows=32)},
    "lists as short as pays at once": {
        "truncated.schedule.TUNING": replace(TUNING, least_lengths=())
    },
    "no moves": {"moves": False},
}
"""What is changed: constants of modules of ``largek_dask.algorithms``, or parameters."""


def rows_of(name: str, folder: Path) -> Path:
    """Path of the rows of a set."""
    path = folder / f"{name}.npy"
    if name in ("A", "B"):
        return Path(prepare(name, folder))
    if not path.exists():
        x: NDArray[np.float32] = (
            structureless(name)
            if name == "gaussian"
            else np.random.default_rng(0).random((100_000, 192), np.float32)
        )
        np.save(path, x)
    return path


def measured(name: str, path: Path, k: int, part: str, seconds: float) -> list[Run]:
    """Runs of one variant, in a process of its own."""
    task = {"part": part, "path": str(path), "k": k, "seconds": seconds}
    runs: list[Run] = child_record("benchmarks.auto_parts", task)["runs"]
    print(name, part, flush=True)
    return runs


def child(task: dict[str, Any]) -> None:
    """Change what is to be changed, and run."""
    for name, value in PARTS[task["part"]].items():
        if "." not in name:
            METHODS[AUTO] = lk.Truncated(**{name: value})
            continue
        module, constant = name.rsplit(".", 1)
        owner = importlib.import_module(f"largek_dask.algorithms.{module}")
        assert hasattr(owner, constant)
        setattr(owner, constant, value)
    x = np.load(task["path"])
    warm_up(AUTO, x, task["k"])
    about = {"path": task["path"], "k": task["k"], "limit": task["seconds"]}
    grid = tuple(np.geomspace(1e-3, 0.02, 5).tolist())
    runs = [run(Task(AUTO, seed=s, excesses=grid, **about), x) for s in SEEDS]
    print(json.dumps({"runs": runs}))


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    cases = result["cases"]
    heads = [f"{name}, k = {CASES[name]:,}" for name in cases]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for part in PARTS:
        cells = []
        for case in cases.values():
            lowest = min(run["energies"][-1] for runs in case.values() for run in runs)
            times = []
            for excess in EXCESSES:
                # A run that never comes there counts as longer than any.
                met = [time_to(run, lowest * (1 + excess)) for run in case[part]]
                average = float(np.mean([np.inf if t is None else t for t in met]))
                times.append("never" if np.isinf(average) else f"{average:.2f} s")
            end = float(np.mean([run["energies"][-1] for run in case[part]]))
            cells.append(f"{', '.join(times)}; {100 * (end / lowest - 1):.2f} %")
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            "CPU seconds to "
            + " and ".join(f"+{100 * excess:g} %" for excess in EXCESSES)
            + f" of the lowest end, and the end above it, cut after {result['seconds']:g} s. "
            f"Means of two seeds; {result['cpu']}. "
            "Made by `python -m benchmarks.auto_parts --write`.",
        ]
    )


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return
    cases: dict[str, dict[str, list[Run]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, k in CASES.items():
            path = rows_of(name, Path(folder))
            cases[name] = {
                part: [
                    {key: run[key] for key in ("seconds", "energies")}
                    for run in measured(name, path, k, part, args.seconds)
                ]
                for part in PARTS
            }
    result = {"cpu": cpu_description(), "seconds": args.seconds, "cases": cases}
    print(table(result))
    if args.write:
        save("auto_parts", result, indent=None)
        write_tables("auto_parts", result)
        print(RESULTS / "auto_parts.json")


if __name__ == "__main__":
    main()
