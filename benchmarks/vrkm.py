"""Variance-reduced k-means: the table of labels and the published method, beside their rivals.

    python -m benchmarks.vrkm [--only PART ...] [--sets mnist-50 ...] [--seeds 10] [--write]

Parts:

* table: the table of labels against bounded Lloyd, nested batches and the truncated search.
* published: VRKM++ of Zhao et al., Large-scale k-means clustering via variance reduction, row by
  row and in rounds, against the passes and seconds of Lloyd's algorithm.
* auto: the table of labels from the start of the truncated search, against that search.
* panels: passes of that search, relaxed and in rounds, with many clusters.

Runs on a set share a process of one thread (`vrkm_runs.py`): the same starting rows for all methods
but the truncated search, in turns. A set that has been measured is saved at once, among those of
earlier runs; the text below a table counts the seeds in it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import cpu_description, new_parser, parse, read_result, rounded
from benchmarks.sets import at_hand, prepare
from benchmarks.tables import publish
from benchmarks.vrkm_methods import (
    BATCH,
    LLOYD,
    NMBATCH,
    ONE_ROW,
    ONE_ROW_TEN,
    RELAXED,
    ROUNDS,
    ROUNDS_ONE,
    SEARCHED,
    TABLE,
    TABLE_ALL,
    TRUNCATED,
)
from benchmarks.vrkm_runs import Task, measure
from benchmarks.vrkm_tables import MARKS

Record = dict[str, Any]

MAIN = ("mnist-50", "sift200k-100", "glove100k-100", "A-100")
LARGER = ("A-1000", "B-100", "B-1000")
SMALL = ("shuttle-50", "eeg-25")
"""Sets that start from k-means++ rows, as random rows would only measure the start."""
WITH_LISTS = ("A-1000", "B-1000", "sift200k-1000")
"""Sets with many clusters, where the search looks at few centres a row."""
ONE_AT_A_TIME = (ONE_ROW, ONE_ROW_TEN)
"""Methods that take rows one by one; not for sets on which a pass takes seconds."""
TRAINING_ROWS = 60_000
"""Rows of mnist to learn from."""
PASSES = 20.0
LIMITS = {NMBATCH: 8.0, TRUNCATED: 10.0, TABLE: 40.0, TABLE_ALL: 40.0, SEARCHED: 40.0, LLOYD: 120.0}
"""CPU seconds after which runs to the end are cut."""


class Part(NamedTuple):
    """Sets and methods of a part, and fields of its tasks."""

    sets: tuple[str, ...]
    methods: tuple[str, ...]
    about: dict[str, Any]


PARTS = {
    "table": Part(
        MAIN + LARGER + SMALL,
        (LLOYD, NMBATCH, TRUNCATED, TABLE, TABLE_ALL),
        {"seconds": LIMITS, "excesses": (0.005, 0.0), "of_end": (0.01, 0.002, 0.0)},
    ),
    "published": Part(
        MAIN + LARGER,
        (BATCH, ONE_ROW, ONE_ROW_TEN, ROUNDS_ONE, ROUNDS),
        {"passes": PASSES, "marks": MARKS, "excesses": (0.005, 0.0)},
    ),
    "auto": Part((*MAIN, "B-100"), (LLOYD, TRUNCATED, SEARCHED), {"seconds": LIMITS}),
    "panels": Part(WITH_LISTS, (RELAXED, SEARCHED), {"passes": PASSES, "excesses": (0.0,)}),
}


def path_of(name: str, folder: Path) -> str:
    """Path of the rows of a set; of mnist the training rows."""
    path = prepare(name, folder)
    if name == "mnist":
        np.save(folder / "mnist-train.npy", np.load(path)[:TRAINING_ROWS])
        return str(folder / "mnist-train.npy")
    return str(path)


def task_of(name: str, case: str, folder: Path, n_seeds: int, n_rows: int | None) -> Task:
    """The runs of a part on a set."""
    part, (data, k) = PARTS[name], case.split("-")
    methods = tuple(m for m in part.methods if case not in LARGER or m not in ONE_AT_A_TIME)
    start = "k-means++" if case in SMALL else "random"
    path = path_of(data, folder)
    return Task(path, int(k), methods, n_seeds, start, rows=n_rows, **part.about)


def keep(name: str, case: str, record: Record) -> Record:
    """All results, with the record of a set among the others of its part."""
    whole = read_result("vrkm")
    sets = {**whole.get(name, {}).get("sets", {}), case: record}
    whole[name] = {"sets": {known: sets[known] for known in PARTS[name].sets if known in sets}}
    return {known: whole[known] for known in PARTS if known in whole}


def main() -> None:
    """Measure, and write if asked to."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--sets", nargs="*", metavar="SET", help="such as mnist-50")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, help="first rows of each set, for a trial")
    parser.add_argument("--folder", type=Path, help="where rows stay for another run")
    args = parse(parser)
    if args.write and args.rows:
        parser.error("results of a trial are not written: leave --rows out")
    with tempfile.TemporaryDirectory() as place:
        folder = args.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            cases = [c for c in PARTS[name].sets if not args.sets or c in args.sets]
            for case in at_hand(cases):
                task = task_of(name, case, folder, args.seeds, args.rows)
                record = rounded(measure(task)) | {"cpu": cpu_description()}
                publish("vrkm", keep(name, case, record), write=args.write)


if __name__ == "__main__":
    main()
