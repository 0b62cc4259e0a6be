"""Measure the truncated search with one part omitted or changed at a time.

    python -m benchmarks.auto_parts [--seconds 3] [--write]

The results are CPU seconds on one thread until the energy over all rows is within 1 % and 0.2 % of
the lowest final energy on a set, and the final energy; means of two seeds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import child_record, cpu_description, new_parser, parse, patched
from benchmarks.curves import AUTO, METHODS, Run, Task, run, warm_up
from benchmarks.levels import time_to
from benchmarks.sets import prepare
from benchmarks.tables import publish, table_of

SEEDS = (0, 1)
EXCESSES = (0.01, 0.002)
CASES = {"A": 1_000, "B": 1_000, "gaussian": 1_000, "uniform": 100}
PARTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no over-relaxation": {"truncated.state.BEYOND": 0.0},
    "lists also for few clusters": {"truncated.schedule.DENSE_CLUSTERS": 0},
    "every round over all rows": {"truncated.schedule.ROWS_TO_SEARCH": 1 << 60},
    "no first sample": {"truncated.schedule.FIRST_ROWS": 32},
    "no minimum list length": {"truncated.schedule.LEAST_LENGTHS": ()},
    "no moves": {},
}
"""Constants to change, as in :func:`patched`; moves are a parameter of the algorithm."""


def child(part: str, path: str, k: int, seconds: float) -> list[Run]:
    METHODS[AUTO] = lk.Truncated(moves=part != "no moves")
    x = np.load(path)
    grid = tuple(np.geomspace(1e-3, 0.02, 5).tolist())
    with patched(PARTS[part]):
        warm_up(AUTO, x, k)
        runs = [run(Task(AUTO, path, k, seed, seconds, excesses=grid), x) for seed in SEEDS]
    return [{key: found[key] for key in ("seconds", "energies")} for found in runs]


def table(result: dict[str, Any]) -> str:
    cases, rows = result["cases"], []
    for part in PARTS:
        cells = []
        for case in cases.values():
            lowest = min(run["energies"][-1] for runs in case.values() for run in runs)
            times = []
            for excess in EXCESSES:
                # A run that never reaches the energy counts as infinitely long.
                met = [time_to(run, lowest * (1 + excess)) for run in case[part]]
                average = float(np.mean([np.inf if t is None else t for t in met]))
                times.append("never" if np.isinf(average) else f"{average:.2f} s")
            end = float(np.mean([run["energies"][-1] for run in case[part]]))
            cells.append(f"{', '.join(times)}; {100 * (end / lowest - 1):.2f} %")
        rows.append([part, *cells])
    note = (
        "The table shows CPU seconds until the energy is within "
        f"{' and '.join(f'{100 * excess:g} %' for excess in EXCESSES)} of the lowest final energy "
        "of all runs on the set, and the excess of the final energy over this energy. Runs stop "
        f"after {result['seconds']:g} s. Values are means of two seeds. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.auto_parts "
        "--write`."
    )
    head = ["", *(f"{name}, k = {CASES[name]:,}" for name in cases)]
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parse(parser, child)
    cases: dict[str, dict[str, list[Run]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, k in CASES.items():
            path = str(prepare(name, Path(folder)))
            cases[name] = {
                part: child_record("benchmarks.auto_parts", [part, path, k, args.seconds])
                for part in PARTS
            }
            print(name, flush=True)
    result = {"cpu": cpu_description(), "seconds": args.seconds, "cases": cases}
    publish("auto_parts", result, write=args.write)


if __name__ == "__main__":
    main()
