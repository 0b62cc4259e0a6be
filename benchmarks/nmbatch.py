"""Cost against seconds: nested mini-batches, bounds and their rivals, on one thread.

    python -m benchmarks.nmbatch [--cases A-100 B-1000 ...] [--scale 0.2] [--write]

writes `results/nmbatch.json`, a picture a case, and the tables of the documents. Given cases
replace those of the last result; `--scale` shortens all limits of time, for a trial.

Every run is a process of its own on one thread, and all start from the same random rows, but for
what a name says otherwise (SuperKMeans and "own start" choose their own). What is compared is
measured in turns, with the batch order of another seed each, and medians are taken; what is only
a rival or a variant runs once.
Our seconds are read off after every step (`curves.py`); exact k-means follows the same trajectory
in every library, so a peer's seconds to an energy are those to the number of passes that this
takes, set-up included as our first scan of the rows is (`peers.py`). Energies are over all rows,
relative to where Lloyd's algorithm ends: found with bounds, which spare time and change no bit.
Dense Lloyd is timed for some seconds only, and counted by passes from there on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.common import RESULTS, cpu_description, save
from benchmarks.curves import (
    DENSE,
    LLOYD,
    MINIBATCH,
    NMBATCH,
    OWN_START,
    PUBLISHED,
    Run,
    Task,
    measure,
)
from benchmarks.lloyd import data_folder, prepare
from benchmarks.nmbatch_tables import (
    EXCESSES,
    ahead_table,
    bounds_table,
    compared,
    rivals_table,
    table,
)
from benchmarks.tables import write_tables

CASES = ["A-100", "A-1000", "B-100", "B-1000", "C-50", "C-500"]
REAL = ["sift200k-100", "sift200k-1000", "mnist-50"]
RIVALS = {"A-1000", "B-100", "B-1000", "C-50", "C-500", "sift200k-1000"}
"""Cases with the whole curves of all rivals."""
ROUNDS = 3
UNBOUNDED = "nmbatch, no bounds"
OTHERS = [PUBLISHED, f"{PUBLISHED}, rho = 1", "mbatch", "mbatch, latest votes"]
SPARED = 0.999
"""Share of distances that says that bounds were in use."""
CHEAP = 15.0
"""CPU seconds of the reference up to which it is timed in every round."""
LIMITS = {LLOYD: 120.0, DENSE: 4.0, NMBATCH: 20.0, PUBLISHED: 6.0, "short": 5.0, "other": 4.0}
"""CPU seconds after which runs are cut; "short" are later rounds of nmbatch and its own start."""
COMPARED = 16
"""Energies on Lloyd's way down at which nmbatch is compared with it."""
LONGEST_CALL = 12.0
"""CPU seconds that a call of SuperKMeans may be expected to take."""


def twin(run: Run, clocks: list[list[float]]) -> Run:
    """The same steps by another clock: the median of several, for as long as all of them ran."""
    most = min(map(len, clocks))
    kept = [i for i, step in enumerate(run["steps"]) if step <= most]
    middle = np.median([clock[:most] for clock in clocks], axis=0)
    return run | {
        "n_steps": most,
        "total": float(middle[-1]),
        "ended": bool(run["ended"] and most == run["n_steps"]),
        "steps": [run["steps"][i] for i in kept],
        "seconds": [float(middle[run["steps"][i] - 1]) for i in kept],
        "energies": [run["energies"][i] for i in kept],
    }


def pace(clock: list[float]) -> float:
    """Seconds a step in the later half of a run: early steps move more rows and cost more."""
    half = len(clock) // 2
    if len(clock) < 2:
        return clock[0]
    return (clock[-1] - clock[half - 1]) / (len(clock) - half)


def dense_of(reference: Run, clocks: list[list[float]]) -> Run:
    """Dense Lloyd from clocks of its first steps; ``all`` is what all steps take at their pace."""
    dense = twin(reference, clocks)
    left = reference["n_steps"] - dense["n_steps"]
    return dense | {"all": dense["total"] + left * float(np.median([pace(c) for c in clocks]))}


def say(case: str, method: str, run: Run) -> None:
    """A line of progress."""
    end = f"ends at {run['energies'][-1]:.6g}" if "energies" in run else f"{run['n_steps']} steps"
    print(f"{case} {method}: {run['total']:.1f} s, {end}", flush=True)


def compare(case: str, folder: Path, scale: float, rounds: int) -> dict[str, Any]:
    """The record of a case: all curves, and what peers take."""
    name, clusters = case.rsplit("-", 1)
    path, k = str(prepare(name, folder)), int(clusters)
    limits = {method: scale * limit for method, limit in LIMITS.items()}
    n, d = np.load(path, mmap_mode="r").shape
    [reference] = measure([Task(LLOYD, path, k, limit=limits[LLOYD], excesses=EXCESSES)])
    say(case, LLOYD, reference)
    end = reference["energies"][-1]
    # Where to look closely: what tables ask for, and Lloyd's own way down.
    levels = [end * (1 + excess) for excess in EXCESSES]
    levels += (met := compared(reference, COMPARED))
    rivals: dict[str, Any] = {}
    if case in RIVALS and peers.there("SuperKMeans"):
        for kind in peers.SUPER:
            rivals[kind] = peers.measure_super(kind, path, k, scale * LONGEST_CALL)
            levels += [point["energy"] for point in rivals[kind]]

    def task(method: str, limit: str, seed: int = 0, energies: bool = True) -> Task:
        return Task(method, path, k, seed, limits[limit], tuple(levels), energies=energies)

    exact = [lib for lib in (*peers.EXACT, peers.INTEL) if peers.there(lib)]
    if case not in RIVALS:
        exact = [lib for lib in exact if lib in peers.EXACT]
    runs: dict[str, list[Run]] = {}
    lines: dict[str, list[peers.Line]] = {library: [] for library in exact}
    for seed in range(rounds):
        turn = [task(NMBATCH, "short" if seed else NMBATCH, seed)]
        turn += [task(DENSE, DENSE, energies=False)]
        if seed == 0 and case in RIVALS:
            turn += [task(OWN_START, "short")]
        if seed > 0 and reference["total"] < CHEAP:
            turn += [task(LLOYD, LLOYD, energies=False)]
        for one, run in zip(turn, measure(turn), strict=True):
            runs.setdefault(one.method, []).append(run)
            say(case, one.method, run)
        for library in exact:
            if seed == 0 or library in peers.EXACT:
                lines[library].append(peers.measure_exact(library, path, k))
    for library, measured in lines.items():
        rivals[library] = {
            key: float(np.median([line[key] for line in measured])) for key in ("setup", "pass")
        }
    runs[DENSE] = [dense_of(reference, [run["clock"] for run in runs[DENSE]])]
    runs[LLOYD] = [twin(reference, [run["clock"] for run in [reference, *runs.get(LLOYD, [])]])]
    levels.clear()
    others = [task(m, PUBLISHED if m.startswith(PUBLISHED) else "other") for m in OTHERS]
    if (runs[NMBATCH][0]["mean_share"] or 1.0) < SPARED:
        others.append(task(UNBOUNDED, "short", energies=False))
    last = task(MINIBATCH, "other")
    for one, run in zip([*others, last], measure(others) + measure([last]), strict=True):
        runs[one.method] = [run if one.energies else twin(runs[NMBATCH][0], [run["clock"]])]
        say(case, one.method, run)
    for run in (run for several in runs.values() for run in several):
        run.pop("clock")
    return {"case": case, "n": n, "d": d, "k": k, "runs": runs, "rivals": rivals, "compared": met}


def rounded(value: Any) -> Any:
    """The same with fewer digits: six of a number are enough for tables and pictures."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def merged(result: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """The last result with these records in the place of its own of the same cases."""
    new = {record["case"]: record for record in [*result.get("records", []), *records]}
    known = [case for case in [*CASES, *REAL] if case in new]
    return {"cpu": cpu_description(), "records": [new[case] for case in known]}


def main() -> None:
    """Measure, save, draw, and write the tables."""
    from benchmarks.pictures import draw_case, draw_distances

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", help="such as A-100; all if not given")
    parser.add_argument("--scale", type=float, default=1.0, help="of all limits of time")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="save results, write the tables")
    args = parser.parse_args()
    missing = [c for c in REAL if not (data_folder() / f"{c.rsplit('-', 1)[0]}.npz").exists()]
    if missing and not args.cases:
        print(f"left out: {', '.join(missing)}; no such files in {data_folder()} (LARGEK_DATA)")
    wanted = args.cases or [case for case in [*CASES, *REAL] if case not in missing]
    file = RESULTS / "nmbatch.json"
    result: dict[str, Any] = {}
    if args.cases and args.write and file.exists():
        result = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        for case in wanted:
            record = rounded(compare(case, Path(folder), args.scale, args.rounds))
            result = merged(result, [record])
            if args.write:
                draw_case(record, RESULTS / f"nmbatch-{case}.png")
                save("nmbatch", result, indent=None)
    for make in (table, bounds_table, rivals_table, ahead_table):
        print(f"\n{make(result)}")
    if args.write:
        write_tables("nmbatch", result)
        draw_distances(result, RESULTS / "nmbatch-distances.png")


if __name__ == "__main__":
    main()
