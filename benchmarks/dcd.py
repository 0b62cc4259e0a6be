"""Every partition up to k in one fit (`DCDBundle`), beside ten starts for each number of clusters.

    python -m benchmarks.dcd [--only PART ...] [--sets eeg ...] [--methods fast ...] [--write]

writes `results/dcd.json`, the pictures, and the tables of the documents. Parts:

* curves: all partitions into 2 to 25 clusters of four public sets, by every effort, by ten starts
  of scikit-learn for each number, and by `KMeans(k, effort="best")`; what each stage takes.
* paper: the methods as published, against what the paper says that they come to.
* hundred: all partitions into 2 to 100 clusters.
* auto: `KMeans(k)` with few clusters where few rows lie far out.
* generated: six sets which the commit's hash draws, so that nobody has looked at them before.
* stored: 1,000,000 × 18 from a store, to 100 clusters, reading by reading (`dcd_scale.py`).
* workers: 10,000,000 × 18, 25 clusters, on one and two workers.

Runs on a set share a process of one thread (`dcd_runs.py`), in turns. A set that has been measured
is saved at once, among those of earlier runs. Where only some methods are asked for, those of the
last result stay beside them, and the tables say that they were measured apart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import dcd_scale
from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.dcd_known import COUNTS, SETS
from benchmarks.dcd_methods import (
    AUTO,
    BALANCED,
    BEST,
    EFFORTS,
    EVERY,
    METHODS,
    PAPER,
    PEERS,
    PLAIN,
    TEN_GREEDY,
)
from benchmarks.dcd_pictures import PICTURES
from benchmarks.dcd_runs import DRAWN, Others, Task, given
from benchmarks.dcd_tables import SHOWN
from benchmarks.lloyd import data_folder
from benchmarks.tables import write_tables

Record = dict[str, Any]

FAR = ("eeg", "shuttle")
"""Sets of which few rows carry the cost."""
PUBLISHED = 10
"""Clusters up to which published methods go, where they are slow."""
LOOK = 3.0
"""Seconds for which other processes are looked at."""
DIGITS = 12
"""Digits of numbers in the results: objectives are compared to nine."""


@dataclass(frozen=True)
class Bench:
    """What is asked for."""

    folder: Path
    n_seeds: int
    methods: tuple[str, ...] | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Part:
    """A part of the benchmark."""

    sets: tuple[str, ...]
    methods: tuple[str, ...] = ()
    counts: Callable[[str], tuple[int, ...]] = lambda case: COUNTS
    """Numbers of clusters on a set."""
    n_seeds: int = 5
    measure: Callable[[Bench, str], Record] | None = None
    """Makes the record of a set; None: by a process of `dcd_runs.py`."""


def of_paper(case: str) -> tuple[int, ...]:
    """Numbers of clusters that published methods are asked for."""
    most = COUNTS[-1] if case in ("d15112", "eeg") else PUBLISHED
    return tuple(k for k in COUNTS if k <= most)


PARTS = {
    "curves": Part(SETS, (*PEERS, *EFFORTS, EVERY)),
    "paper": Part(SETS, (PAPER, PLAIN), of_paper),
    "hundred": Part(SETS, (TEN_GREEDY, BALANCED, BEST), lambda case: (100,), 2),
    "auto": Part(FAR, (AUTO, EVERY), lambda case: (10, 15, 20, 25), 10),
    "generated": Part(DRAWN, (TEN_GREEDY, BALANCED), n_seeds=1),
    "stored": Part(
        ("B",), n_seeds=3, measure=lambda b, c: dcd_scale.stored(b.folder, b.n_seeds, b.rows)
    ),
    "workers": Part(
        ("10M",), n_seeds=2, measure=lambda b, c: dcd_scale.workers(b.folder, b.n_seeds, b.rows)
    ),
}
"""All parts, with the seeds (of workers: turns) that each takes if it is not told how many."""


def measured(name: str, bench: Bench, case: str) -> Record:
    """The record of a set, by methods in turns where there are any."""
    part = PARTS[name]
    if part.measure is not None:
        # the processes of such a part are many: others are looked for before they begin
        others = Others()
        time.sleep(LOOK)
        return {"others": round(others.cores(), 2)} | part.measure(bench, case)
    methods = tuple(m for m in part.methods if bench.methods is None or m in bench.methods)
    task = Task(case, methods, part.counts(case), bench.n_seeds, bench.rows)
    return child_record("benchmarks.dcd_runs", given(task))


def joined(name: str, old: Record | None, new: Record) -> Record:
    """A record with the methods that the last one has besides, in the order of the part."""
    if old is None or "methods" not in new:
        return new
    # Another commit draws other rows.
    if name == "generated" and old["commit"] != new["commit"]:
        return new
    methods = {**old["methods"], **new["methods"]}
    return new | {"methods": {m: methods[m] for m in PARTS[name].methods if m in methods}}


def shortened(value: Any) -> Any:
    """The same with as many digits as are needed."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: shortened(v) for key, v in value.items()}
    return [shortened(v) for v in value] if isinstance(value, list) else value


def keep(part: str, case: str, record: Record) -> Record:
    """Put the record of a set among the others of its part and save them; the part."""
    file = RESULTS / "dcd.json"
    whole = json.loads(file.read_text()) if file.exists() else {}
    sets = whole.get(part, {}).get("sets", {})
    sets[case] = joined(part, sets.get(case), record)
    whole[part] = {"sets": {name: sets[name] for name in PARTS[part].sets if name in sets}}
    whole = {name: whole[name] for name in PARTS if name in whole}
    save("dcd", whole, indent=None)
    if part in PICTURES:
        PICTURES[part](whole[part], RESULTS)
    write_tables("dcd", whole)
    found: Record = whole[part]
    return found


def there(case: str) -> bool:
    """Whether the rows of a set are at hand."""
    return case not in SETS or (data_folder() / f"{case}.npz").exists()


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    known = [*SETS, *DRAWN, "B", "10M"]
    parser.add_argument("--sets", nargs="*", choices=known, metavar="SET", help=", ".join(known))
    told = ", ".join(METHODS)
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), metavar="METHOD", help=told)
    parser.add_argument("--seeds", type=int, help="instead of each part's own number")
    parser.add_argument("--write", action="store_true", help="save results, write the tables")
    parser.add_argument("--rows", type=int, help="first rows of each set, for a trial")
    parser.add_argument("--folder", type=Path, help="where stores stay for another run")
    args = parser.parse_args()
    if args.write and args.rows:
        parser.error("results of a trial are not written: leave --rows out")
    methods = None if args.methods is None else tuple(args.methods)
    with tempfile.TemporaryDirectory() as folder:
        place = args.folder or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            part = PARTS[name]
            found: Record = {"sets": {}}
            if methods is not None and not set(methods) & set(part.methods):
                continue
            bench = Bench(place, args.seeds or part.n_seeds, methods, args.rows)
            for case in part.sets:
                if args.sets and case not in args.sets:
                    continue
                if not there(case):
                    print(f"left out, not in {data_folder()} (LARGEK_DATA): {case}")
                    continue
                begun = time.perf_counter()
                record = shortened(measured(name, bench, case)) | {"cpu": cpu_description()}
                record["minutes"] = round((time.perf_counter() - begun) / 60, 2)
                found["sets"][case] = record
                print(f"{name}, {case}: {record['minutes']:.1f} minutes", flush=True)
                if args.write:
                    found = keep(name, case, record)
            if found["sets"]:
                print(f"\n{SHOWN[name](found)}\n", flush=True)


if __name__ == "__main__":
    main()
