"""Compare searches that begin in few directions with searches in all features.

    python -m benchmarks.directions [--seconds 12] [--write]

The results are CPU seconds on one thread until the energy over all rows is within given percentages
of the lowest final energy on a set, and the final energy; medians of three seeds, 500 clusters.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import largek_dask as lk
from benchmarks.common import child_record, cpu_description, new_parser, parse
from benchmarks.curves import AUTO, METHODS, Run, Task, run, warm_up
from benchmarks.levels import median_time
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import publish, table_of

K = 500
SEEDS = (0, 1, 2)
EXCESSES = (0.02, 0.01, 0.005, 0.002, 0.001)
SETS = {"C": 1, "mnist": 1, "patches": 3, "glosses": 2}
"""Multiples of the time limit, by set."""
FIRST, ALL = "few directions first", "all features"
WAYS: dict[str, dict[str, Any]] = {FIRST: {}, ALL: {"directions": 0}}


def child(way: str, path: str, seconds: float) -> list[Run]:
    METHODS[AUTO] = lk.Truncated(**WAYS[way])
    x = np.load(path)
    warm_up(AUTO, x, K)
    runs = [run(Task(AUTO, path, K, seed, seconds, excesses=EXCESSES), x) for seed in SEEDS]
    return [{key: found[key] for key in ("seconds", "energies")} for found in runs]


def lowest(ways: dict[str, list[Run]]) -> float:
    return min(min(run["energies"]) for runs in ways.values() for run in runs)


def table(result: dict[str, Any]) -> str:
    rows = []
    for name, ways in result["sets"].items():
        low = lowest(ways)
        for way in [way for way in WAYS if way in ways]:
            cells = [name, way]
            for excess in EXCESSES:
                seconds, first = (median_time(ways[w], low * (1 + excess)) for w in (way, FIRST))
                cell = "never" if np.isinf(seconds) else f"{seconds:.2f} s"
                if way != FIRST and np.isfinite(seconds):
                    cell += f" ({seconds / first:.1f}x)"
                cells.append(cell)
            end = 100 * (float(np.median([run["energies"][-1] for run in ways[way]])) / low - 1)
            rows.append([*cells, f"+{end:.2f} %"])
    note = (
        f"With {K} clusters, the table shows the CPU seconds until the energy is within a given "
        "percentage of the lowest energy of any run on the set, including the computation of the "
        "directions. The numbers in brackets are multiples of the time of the search that begins "
        "in few directions. The last column shows how much the final energy exceeds the lowest "
        f"energy. Runs stop after {result['seconds']:g} s, on glosses after "
        f"{SETS['glosses'] * result['seconds']:g} s, and on patches after "
        f"{SETS['patches'] * result['seconds']:g} s. Values are medians of {len(SEEDS)} seeds. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.directions "
        "--write`."
    )
    head = ["set", "search in", *(f"to +{100 * excess:g} %" for excess in EXCESSES), "final energy"]
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    args = parse(parser, child)
    sets: dict[str, dict[str, list[Run]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in at_hand(SETS):
            path, seconds = str(prepare(name, Path(folder))), SETS[name] * args.seconds
            sets[name] = {
                way: child_record("benchmarks.directions", [way, path, seconds]) for way in WAYS
            }
            print(name, flush=True)
    result = {"cpu": cpu_description(), "seconds": args.seconds, "sets": sets}
    publish("directions", result, write=args.write)


if __name__ == "__main__":
    main()
