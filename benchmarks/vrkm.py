"""Variance-reduced k-means: the published methods, and the table of labels, beside their rivals.

    python -m benchmarks.vrkm [--only PART ...] [--sets mnist-50 ...] [--seeds 10] [--write]

writes `results/vrkm.json`, the pictures, and the tables of the documents. Parts:

* published: table 3 and figure 5 of Zhao et al., Large-scale k-means clustering via variance
  reduction: its methods and its baselines, objective against passes and seconds.
* epoch, eta: its figures 6 and 7, rows of an epoch and step sizes, in rounds.
* svrg: its figure 3, SVRG without position correction (`vrkm_svrg.py`).
* scores: its table 4, labels of mnist against the digits, at equal CPU seconds.
* table: the table of labels against bounded Lloyd, nested batches and the truncated search.
* sparse: the same on sparse rows.
* auto: whether the start of the truncated search, or moves at the end, make it better.
* panels: whether the search would gain if its passes were rounds, with a change expected of others.
* storage: from a store four times as large as the memory for its rows.
* workers: jobs on one and two workers, and what rounds cost.

Runs on a set share a process of one thread (`vrkm_runs.py`): the same starting rows for all methods
but the truncated search, in turns. A set that has been measured is saved at once, among those
of earlier runs; what is said beneath a table counts the seeds that are in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import vrkm_scale
from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.lloyd import data_folder, prepare
from benchmarks.nmbatch import rounded
from benchmarks.tables import write_tables
from benchmarks.vrkm_methods import (
    BATCH,
    EPOCHS,
    ETAS,
    GROW,
    LLOYD,
    MINI,
    MOVES,
    NMBATCH,
    ONE_ROW,
    ONE_ROW_TEN,
    RELAXED,
    ROUNDS,
    ROUNDS_ONE,
    SEARCHED,
    SGD,
    TABLE,
    TABLE_ALL,
    TRUNCATED,
    VRKM,
    of_epoch,
    of_eta,
    of_svrg,
)
from benchmarks.vrkm_pictures import PICTURES
from benchmarks.vrkm_runs import Task, given
from benchmarks.vrkm_tables import MARKS, OF_RELAXED, SHOWN

Record = dict[str, Any]


@dataclass(frozen=True)
class Data:
    """A set, and how many clusters are looked for in it."""

    name: str
    k: int
    n: int
    d: int
    """Numbers in a row that weigh on a pass: of sparse rows those that are stored."""
    start: str = "random"


SETS = {
    "mnist-50": Data("mnist", 50, 60_000, 784),
    "sift200k-100": Data("sift200k", 100, 200_000, 128),
    "glove100k-100": Data("glove100k", 100, 100_000, 50),
    "sift200k-1000": Data("sift200k", 1_000, 200_000, 128),
    "A-100": Data("A", 100, 200_000, 64),
    "A-1000": Data("A", 1_000, 200_000, 64),
    "B-100": Data("B", 100, 1_000_000, 18),
    "B-1000": Data("B", 1_000, 1_000_000, 18),
    # random rows would only measure the start
    "shuttle-50": Data("shuttle", 50, 58_000, 9, "k-means++"),
    "eeg-25": Data("eeg", 25, 14_980, 14, "k-means++"),
    "reuters_tfidf-50": Data("reuters_tfidf", 50, 19_043, 59),
    "mnist-10": Data("mnist", 10, 60_000, 784),
}
"""All sets, by the names that are asked for."""
MAIN = ("mnist-50", "sift200k-100", "glove100k-100", "A-100")
LARGER = ("A-1000", "B-100", "B-1000")
SMALL = ("shuttle-50", "eeg-25")
BY_CLASS = ("mnist-10", "mnist-50")
"""As many clusters as classes, as in the paper, and as many as elsewhere here."""
ONE_AT_A_TIME = (SGD, VRKM, ONE_ROW, ONE_ROW_TEN)
"""Methods whose rows come one after the other; not for sets on which a pass takes seconds."""
TRAINING_ROWS = 60_000
"""Rows of mnist to learn from."""
PASSES = 20.0
LIMITS = {NMBATCH: 8.0, TRUNCATED: 10.0, TABLE: 40.0, TABLE_ALL: 40.0, LLOYD: 120.0}
"""CPU seconds after which runs of the table of labels and its rivals are cut."""
TO_THE_END = 200.0
"""Passes of Lloyd's algorithm to no change, about, and of all its rivals together."""
SEQUENTIAL = 4.0
"""How many times as long a pass row by row takes as one of many rows, about."""
ENERGIES = 14.0
"""Passes that the energies of a run take, about."""
BESIDE = 2.0
"""How many times as long as its distances a part takes, as it was measured."""
BEGINNING = 12.0
"""Seconds in which a process begins, and goes through a few rows."""


@dataclass(frozen=True)
class Bench:
    """Where rows lie, and how often everything is done."""

    folder: Path
    n_seeds: int = 10
    rows: int | None = None
    """The first rows of each set only, for a trial."""

    def path(self, data: Data) -> str:
        """Path of the rows of a set."""
        if data.name == "reuters_tfidf":
            return str(data_folder() / "reuters_tfidf.npz")
        if data.name != "mnist":
            return str(prepare(data.name, self.folder))
        path = self.folder / "mnist-train.npy"
        if not path.exists():
            np.save(path, np.load(prepare("mnist", self.folder))[:TRAINING_ROWS])
        return str(path)

    def classes(self) -> str:
        """Path of the true labels of mnist."""
        path = self.folder / "mnist-classes.npy"
        np.save(path, np.load(data_folder() / "mnist.npz")["y"][:TRAINING_ROWS])
        return str(path)

    def task(self, data: Data, methods: Iterable[str], **about: Any) -> Task:
        """Methods to compare on a set."""
        return Task(
            self.path(data),
            data.k,
            tuple(methods),
            self.n_seeds,
            data.start,
            rows=self.rows,
            **about,
        )


def asked(kind: str, task: Task) -> Record:
    """What a process of its own says of a task."""
    return child_record("benchmarks.vrkm_runs", given(kind, task))


# --- parts ----------------------------------------------------------------------------------------


def published_methods(case: str) -> tuple[str, ...]:
    """Those of the paper, its baselines first, and VRKM++ in rounds."""
    methods = (BATCH, MINI, SGD, GROW, VRKM, ONE_ROW, ONE_ROW_TEN, ROUNDS_ONE, ROUNDS)
    if case in LARGER:
        return tuple(method for method in methods if method not in ONE_AT_A_TIME)
    return methods


def in_passes(bench: Bench, case: str, methods: Iterable[str]) -> Record:
    """Runs of 20 passes each, against the objective of 20 Lloyd passes."""
    task = bench.task(SETS[case], methods, passes=PASSES, marks=MARKS, excesses=(0.005, 0.0))
    return asked("compare", task)


def measure_published(bench: Bench, case: str) -> Record:
    """Table 3 and figure 5."""
    return in_passes(bench, case, published_methods(case))


def epoch_methods() -> tuple[str, ...]:
    """Epochs of other lengths, with both step sizes."""
    return (BATCH, *(of_epoch(share, eta) for eta in (1, 10) for share in EPOCHS))


def measure_epoch(bench: Bench, case: str) -> Record:
    """Figure 6."""
    return in_passes(bench, case, epoch_methods())


def eta_methods() -> tuple[str, ...]:
    """Step sizes."""
    return (BATCH, *map(of_eta, ETAS))


def measure_eta(bench: Bench, case: str) -> Record:
    """Figure 7."""
    return in_passes(bench, case, eta_methods())


def svrg_methods() -> tuple[str, ...]:
    """With position correction, and without it in two forms."""
    return (BATCH, ROUNDS, *(of_svrg(eta, scaled) for scaled in (False, True) for eta in (1, 10)))


def measure_svrg(bench: Bench, case: str) -> Record:
    """Figure 3."""
    return in_passes(bench, case, svrg_methods())


SCORED = (BATCH, MINI, SGD, GROW, VRKM, ONE_ROW, ROUNDS, TABLE)


def measure_scores(bench: Bench, case: str) -> Record:
    """Table 4."""
    return asked("labels", bench.task(SETS[case], SCORED, labels=bench.classes()))


COMPARED = (LLOYD, NMBATCH, TRUNCATED, TABLE, TABLE_ALL)


def measure_table(bench: Bench, case: str) -> Record:
    """The table of labels and its rivals, to their ends."""
    task = bench.task(
        SETS[case], COMPARED, seconds=LIMITS, excesses=(0.005, 0.0), of_end=(0.01, 0.002, 0.0)
    )
    return asked("compare", task)


def measure_sparse(bench: Bench, case: str) -> Record:
    """The same on sparse rows, where the search has no part."""
    task = bench.task(
        SETS[case],
        (LLOYD, NMBATCH, TABLE, TABLE_ALL),
        seconds=LIMITS,
        excesses=(0.005, 0.0),
        of_end=(0.01, 0.002, 0.0),
    )
    return asked("compare", task)


JOINED = (LLOYD, TRUNCATED, TABLE, SEARCHED, MOVES)


def measure_auto(bench: Bench, case: str) -> Record:
    """What the truncated search could take from the table, and the table from the search."""
    task = bench.task(
        SETS[case], JOINED, seconds=LIMITS | dict.fromkeys((SEARCHED, MOVES), 40.0), of=(TRUNCATED,)
    )
    return asked("compare", task)


WITH_LISTS = ("A-1000", "B-1000", "sift200k-1000")
"""Sets with many clusters, where the search looks at few centres a row."""


def measure_panels(bench: Bench, case: str) -> Record:
    """Passes of the search as they are, and in rounds, from the same centres."""
    task = bench.task(SETS[case], (RELAXED, SEARCHED), passes=PASSES, excesses=OF_RELAXED)
    return asked("compare", task)


def measure_storage(bench: Bench, case: str) -> Record:
    """From a store."""
    return vrkm_scale.measure_storage(bench.folder, bench.rows)


def measure_workers(bench: Bench, case: str) -> Record:
    """On one and two workers."""
    return vrkm_scale.measure_workers(bench.folder, case, bench.rows)


@dataclass(frozen=True)
class Part:
    """A part of the benchmark."""

    measure: Callable[[Bench, str], Record]
    """Makes the record of a set."""
    sets: tuple[str, ...]
    passes: Callable[[str], float]
    """Passes of one seed on a set, row-by-row ones weighed, with energies: for the estimate."""


def work(methods: Iterable[str]) -> float:
    """Passes that 20 of every method take, about, and their energies."""
    return sum(
        ENERGIES + PASSES * (SEQUENTIAL if method in ONE_AT_A_TIME else 1.0) for method in methods
    )


PARTS = {
    "published": Part(
        measure_published, MAIN + LARGER + SMALL, lambda case: work(published_methods(case))
    ),
    "epoch": Part(measure_epoch, MAIN, lambda case: work(epoch_methods())),
    "eta": Part(measure_eta, MAIN, lambda case: work(eta_methods())),
    "svrg": Part(measure_svrg, MAIN, lambda case: 2.0 * work(svrg_methods())),
    "scores": Part(measure_scores, BY_CLASS, lambda case: PASSES * (len(SCORED) + 1)),
    "table": Part(measure_table, MAIN + LARGER + SMALL, lambda case: 2 * TO_THE_END + 5 * ENERGIES),
    "sparse": Part(
        measure_sparse, ("reuters_tfidf-50",), lambda case: 2 * TO_THE_END + 4 * ENERGIES
    ),
    "auto": Part(measure_auto, (*MAIN, "B-100"), lambda case: 3 * TO_THE_END + 5 * ENERGIES),
    "panels": Part(measure_panels, WITH_LISTS, lambda case: work((RELAXED, SEARCHED))),
    "storage": Part(measure_storage, ("stored",), lambda case: 0.0),
    "workers": Part(measure_workers, tuple(vrkm_scale.JOBS), lambda case: 0.0),
}


def rate() -> float:
    """Distances times features that this machine computes in a second, on one thread."""
    from largek_dask.kernels.distances import nearest, pack_centers

    x = np.random.default_rng(0).standard_normal((50_000, 64), np.float32)
    packed = pack_centers(x[:100], np.zeros(64, np.float32))
    nearest(x, packed)
    begun = time.process_time()
    nearest(x, packed)
    return x.size * 100 / (time.process_time() - begun)


def estimate(name: str, cases: Iterable[str], n_seeds: int, rate_here: float) -> float:
    """Seconds that a part takes, about."""
    if name in vrkm_scale.SECONDS:
        return sum(vrkm_scale.SECONDS[name] for _ in cases)
    total = 0.0
    for case in cases:
        data = SETS[case]
        # what a row costs beside its distances: it is packed, summed, looked at in a scan
        a_pass = data.n * (data.d * (data.k + 60) + 300) / rate_here
        total += BEGINNING + BESIDE * n_seeds * PARTS[name].passes(case) * a_pass
    return total


def there(case: str) -> bool:
    """Whether the rows of a set are at hand."""
    if case not in SETS or SETS[case].name in "AB":
        return True
    return (data_folder() / f"{SETS[case].name}.npz").exists()


def keep(part: str, case: str, record: Record) -> Record:
    """Put the record of a set among the others of its part and save them; the part."""
    file = RESULTS / "vrkm.json"
    whole = json.loads(file.read_text()) if file.exists() else {}
    sets = {**whole.get(part, {}).get("sets", {}), case: record}
    whole[part] = {"sets": {name: sets[name] for name in PARTS[part].sets if name in sets}}
    whole = {name: whole[name] for name in PARTS if name in whole}
    save("vrkm", whole, indent=None)
    if part in PICTURES:
        PICTURES[part](whole[part], RESULTS)
    write_tables("vrkm", whole)
    found: Record = whole[part]
    return found


def main() -> None:
    """Estimate, measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    known = [*SETS, *vrkm_scale.JOBS, "stored"]
    parser.add_argument("--sets", nargs="*", choices=known, metavar="SET", help=", ".join(known))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="save results, write the tables")
    parser.add_argument("--rows", type=int, help="first rows of each set, for a trial")
    parser.add_argument("--folder", type=Path, help="where rows stay for another run")
    args = parser.parse_args()
    if args.write and args.rows:
        parser.error("results of a trial are not written: leave --rows out")
    wanted = {
        part: [case for case in PARTS[part].sets if not args.sets or case in args.sets]
        for part in args.only
    }
    missing = {case for cases in wanted.values() for case in cases if not there(case)}
    if missing:
        print(f"left out, not in {data_folder()} (LARGEK_DATA): {', '.join(sorted(missing))}")
    wanted = {part: [c for c in cases if c not in missing] for part, cases in wanted.items()}
    here = rate()
    for part, cases in wanted.items():
        if not args.rows and cases:
            about = estimate(part, cases, args.seeds, here) / 60
            print(f"{part}: {len(cases)} sets, {args.seeds} seeds, about {about:.1f} minutes")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args.folder or Path(folder), args.seeds, args.rows)
        bench.folder.mkdir(parents=True, exist_ok=True)
        for part, cases in wanted.items():
            found: Record = {"sets": {}}
            for case in cases:
                begun = time.perf_counter()
                record = rounded(PARTS[part].measure(bench, case)) | {"cpu": cpu_description()}
                record["minutes"] = round((time.perf_counter() - begun) / 60, 2)
                found["sets"][case] = record
                print(f"{part}, {case}: {record['minutes']:.1f} minutes", flush=True)
                if args.write:
                    found = keep(part, case, record)
            if cases:
                print(f"\n{SHOWN[part](found)}\n", flush=True)


if __name__ == "__main__":
    main()
