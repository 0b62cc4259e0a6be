"""Compare nested mini-batches with exact k-means: energy against seconds, on one thread.

    python -m benchmarks.nmbatch [--cases A-100 B-1000 ...] [--write]

With `--cases`, only these cases of the last result are replaced.

All runs start from the same random rows. Methods alternate, with a different order of batches each
time, and medians are reported. Our times are read after every step (`curves.py`). Exact k-means
follows the same trajectory in every library, so the time of a library to an energy is the time of
the number of passes, including set-up, as our time includes the first scan (`peers.py`). Energies
are computed over all rows, relative to the final energy of Lloyd's algorithm.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.common import cpu_description, new_parser, parse, read_result, rounded
from benchmarks.curves import LLOYD, NMBATCH, Run, Task, measure
from benchmarks.levels import median_time, time_to
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import publish, table_of

CASES = ["A-100", "A-1000", "B-100", "B-1000", "C-50", "C-500",
         "sift200k-100", "sift200k-1000", "mnist-50"]  # fmt: skip
ROUNDS = 3
LIMITS = {LLOYD: 120.0, NMBATCH: 20.0, "short": 5.0}
"""Time limits in CPU seconds; "short" is for later rounds of nmbatch."""
EXCESSES = (0.02, 0.01, 0.002)
"""Excesses over Lloyd's final energy in the first table."""
LEAST_EXCESS = 0.001
"""Smallest excess over Lloyd's final energy at which nmbatch is compared with Lloyd's algorithm."""
Record = dict[str, Any]


# --- runs -----------------------------------------------------------------------------------------


def twin(run: Run, clocks: list[list[float]]) -> Run:
    """Return the same steps with median times, as long as all runs continued."""
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


def compare(case: str, folder: Path) -> Record:
    name, clusters = case.rsplit("-", 1)
    path, k = str(prepare(name, folder)), int(clusters)
    n, d = np.load(path, mmap_mode="r").shape
    [reference] = measure([Task(LLOYD, path, k, limit=LIMITS[LLOYD], excesses=EXCESSES)])
    levels = tuple(reference["energies"][-1] * (1 + excess) for excess in EXCESSES)
    runs: dict[str, list[Run]] = {LLOYD: [twin(reference, [reference["clock"]])]}
    lines: dict[str, list[peers.Line]] = {library: [] for library in peers.EXACT}
    for seed in range(ROUNDS):
        limit = LIMITS["short" if seed else NMBATCH]
        [run] = measure([Task(NMBATCH, path, k, seed, limit, levels)])
        runs.setdefault(NMBATCH, []).append(run)
        print(f"{case} {NMBATCH}: {run['total']:.1f} s", flush=True)
        for library, found in lines.items():
            found.append(peers.measure_exact(library, path, k))
    rivals = {
        library: {key: float(np.median([line[key] for line in found])) for key in found[0]}
        for library, found in lines.items()
    }
    for run in (run for several in runs.values() for run in several):
        run.pop("clock")
    return {"case": case, "n": n, "d": d, "k": k, "runs": runs, "rivals": rivals}


# --- tables ---------------------------------------------------------------------------------------


def end_of(record: Record) -> float:
    return float(record["runs"][LLOYD][0]["energies"][-1])


def seconds_to(record: Record, level: float) -> float | None:
    """Return median CPU seconds of nmbatch to an energy, or None if it is not reached.

    Later runs have shorter limits than the first run. If most of them ended before reaching the
    energy, only the time of the first run counts.
    """
    runs = record["runs"][NMBATCH]
    middle = median_time(runs, level)
    return middle if middle < np.inf else time_to(runs[0], level)


def exact_seconds(record: Record, level: float) -> float:
    """Return CPU seconds of the faster exact library to an energy."""
    lloyd = record["runs"][LLOYD][0]
    passes = next(
        step
        for step, value in zip(lloyd["steps"], lloyd["energies"], strict=True)
        if value <= level
    )
    return min(peers.seconds_of(record["rivals"][library], passes) for library in peers.EXACT)


def _name(record: Record) -> str:
    return str(record["case"].rsplit("-", 1)[0])


def _end(record: Record) -> str:
    """Format the final energy relative to Lloyd's; marked if the limit ended the run."""
    run = record["runs"][NMBATCH][0]
    excess = 100 * (min(run["energies"]) / end_of(record) - 1)
    return f"{excess:+.2f} %{'' if run['ended'] else ' (cut)'}"


def table(result: dict[str, Any]) -> str:
    rows = []
    for r in result["records"]:
        cells = [_name(r), f"{r['n']:,} × {r['d']}", str(r["k"])]
        for excess in EXCESSES:
            level = end_of(r) * (1 + excess)
            theirs, ours = exact_seconds(r, level), seconds_to(r, level)
            cells.append(
                f"{theirs:.2f} → never"
                if ours is None
                else f"{theirs:.2f} → {ours:.2f} ({theirs / ours:.1f}x)"
            )
        rows.append([*cells, _end(r)])
    rounds = min((len(r["runs"][NMBATCH]) for r in result["records"]), default=0)
    levels = [f"to +{100 * excess:g} %" for excess in EXCESSES]
    head = ["set", "rows × features", "k", *levels, "final energy"]
    note = (
        "The table shows CPU seconds on one thread until the energy of all rows is within 2, 1 or "
        "0.2 % of the final energy of Lloyd's algorithm. The first time is that of Lloyd's "
        "algorithm (in the faster of scikit-learn and faiss), the second that of nmbatch, and the "
        "speedup is in brackets. All runs start from the same random rows; times include set-up "
        f"and the first scan. Values are medians of {rounds} interleaved runs. The last column is "
        "the final energy of nmbatch in the first run, relative to that of Lloyd's algorithm; "
        "(cut) means that the time limit ended the run. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.nmbatch "
        "--write`."
    )
    return "\n".join([*table_of(head, rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cases", nargs="*", choices=CASES, metavar="CASE")
    args = parse(parser)
    known = read_result("nmbatch").get("records", []) if args.cases and args.write else []
    records = {record["case"]: record for record in known}
    with tempfile.TemporaryDirectory() as folder:
        for case in at_hand(args.cases or CASES):
            records[case] = rounded(compare(case, Path(folder)))
            ordered = [records[name] for name in CASES if name in records]
            publish("nmbatch", {"cpu": cpu_description(), "records": ordered}, write=args.write)


if __name__ == "__main__":
    main()
