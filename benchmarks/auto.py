"""Compare `KMeans` with default parameters with other libraries, at every energy.

    python -m benchmarks.auto [--cases A-1000 ...] [--scale 0.5] [--seeds 3] [--write]
    python -m benchmarks.auto --threads 2 [--commit d9e1e56] [--write]

With `--cases`, only these cases of the last result are replaced. `--scale` multiplies all time
limits. By default, times are CPU seconds on one thread. With more threads, every library uses as
many, times are wall seconds, so nothing else should run, and the cases are those in README.

Every other library runs in separate processes with its best settings. A point of its curve
consists of the seconds of a whole call and the final energy over all rows. The default runs
with several seeds; times are read after every step, and the table uses the median over seeds of
the time to each energy. The target is a speedup of 2 at all energies for which a library needs at
least 50 ms, and of 5 for SuperKMeans with 10 and 25 refinements. Exact libraries share one
trajectory (see `peers.py`), which starts from random rows; all others choose their own start.

`sets.py` defines the data sets. "drawn0" to "drawn5" are generated from the hash of a commit, by
default the newest, so the code cannot have been tuned to them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.common import (
    RESULTS,
    THREADS,
    commit,
    cpu_description,
    new_parser,
    parse,
    read_result,
    rounded,
)
from benchmarks.curves import AUTO, LLOYD, MINIBATCH, Run, Task, measure
from benchmarks.levels import median_time
from benchmarks.pictures import RIVALS, new_figure
from benchmarks.sets import at_hand, drawn, prepare
from benchmarks.tables import publish, table_of
from largek_dask.passes.local import available_cpus

CASES = [
    "A-1000", "B-1000", "C-500", "gaussian-1000", "cube-1000", "plane-1000", "space-1000",
    "five-1000", "sift200k-1000", "glove100k-1000", "mnist-50", "mnist-500", "pla85900-100",
    "pla85900-1000", "shuttle-100", "eeg-100", *(f"drawn{i}" for i in range(6)),
]  # fmt: skip
EXACT_PASSES = (2, 4, 8, 16, 32, 64, 128, 256)
LIMITS = {AUTO: 40.0, LLOYD: 60.0, MINIBATCH: 4.0}
"""Time limits of runs, in seconds."""
LONGEST_CALL = 45.0
"""Maximum expected duration of a call of SuperKMeans, in seconds."""
LEAST_SECONDS = 0.05
"""Calls of other libraries that take less time are ignored, in seconds."""
AIM, REFINED_AIM = 2.0, 5.0
LONG, LONG_AIM = 0.5, 5.0
"""Minimum duration of a long call, in seconds, and the target speedup for long calls."""
REFINED = ("10", "25")
"""Numbers of refinements of SuperKMeans to which the higher target applies."""
NAMES = [*peers.SUPER, *peers.EXACT, MINIBATCH]
"""Other libraries, in the order of the tables."""
Record = dict[str, Any]
Point = dict[str, Any]


def prepare_case(case: str, folder: Path, seed: str) -> tuple[str, int]:
    if case.startswith("drawn"):
        x, k = drawn(int(case[5:]), seed)
        np.save(folder / f"{case}.npy", x)
        return str(folder / f"{case}.npy"), k
    name, clusters = case.rsplit("-", 1)
    return str(prepare(name, folder)), int(clusters)


def exact_points(library: str, path: str, k: int, lloyd: Run) -> list[Point]:
    """Return points of an exact library with an increasing number of passes."""
    line = peers.measure_exact(library, path, k)
    known = dict(zip(lloyd["steps"], lloyd["energies"], strict=True))
    # At the last point, the library stops by itself.
    passes = [p for p in EXACT_PASSES if p in known] + [lloyd["steps"][-1]]
    return [
        {"label": f"{p}", "seconds": peers.seconds_of(line, p), "energy": known[p]} for p in passes
    ]


def compare(case: str, folder: Path, args: argparse.Namespace) -> Record:
    (path, k), scale = prepare_case(case, folder, args.commit), args.scale
    n, d = np.load(path, mmap_mode="r").shape
    rivals: dict[str, list[Point]] = {}
    if peers.there("SuperKMeans"):
        for kind in peers.SUPER:
            rivals[kind] = [
                {**point, "label": f"{point['passes']:.0f}"}
                for point in peers.measure_calls(kind, path, k, scale * LONGEST_CALL)
            ]
    [lloyd] = measure([Task(LLOYD, path, k, limit=scale * LIMITS[LLOYD], steps=EXACT_PASSES)])
    for library in peers.EXACT:
        rivals[library] = exact_points(library, path, k, lloyd)
    [batches] = measure([Task(MINIBATCH, path, k, limit=scale * LIMITS[MINIBATCH])])
    rivals[MINIBATCH] = [
        {"label": f"{step}", "seconds": seconds, "energy": energy}
        for step, seconds, energy in zip(
            batches["steps"], batches["seconds"], batches["energies"], strict=True
        )
    ]
    levels = tuple(point["energy"] for points in rivals.values() for point in points)
    limit = scale * LIMITS[AUTO]
    runs = measure([Task(AUTO, path, k, seed, limit, levels) for seed in range(args.seeds)])
    for run in runs:
        run.pop("clock")
        print(f"{case} {AUTO}: {run['total']:.2f} s, ends at {run['energies'][-1]:.6g}", flush=True)
    return {"case": case, "n": n, "d": d, "k": k, "runs": runs, "rivals": rivals}


def factors(record: Record, rival: str, least: float = LEAST_SECONDS) -> list[tuple[Point, float]]:
    """Return the points of a library that take long enough, with the speedup of the default."""
    return [
        (point, point["seconds"] / median_time(record["runs"], point["energy"]))
        for point in record["rivals"].get(rival, [])
        if point["seconds"] >= least
    ]


def aim_at(rival: str, point: Point) -> float:
    """Return the target speedup for a point."""
    refined = rival.endswith("hierarchical") and point["label"] in REFINED
    return REFINED_AIM if refined else AIM


def least_and_median(found: list[tuple[Point, float]]) -> tuple[float, float] | None:
    """Return the minimum and the median of factors, or None without points."""
    if not found:
        return None
    several = [factor for _, factor in found]
    return min(several), float(np.median(several))


def end_of(record: Record) -> tuple[float, float]:
    """Return our median final energy, and how far the lowest energy of others exceeds it."""
    end = float(np.median([run["energies"][-1] for run in record["runs"]]))
    lowest = min(p["energy"] for points in record["rivals"].values() for p in points)
    return end, lowest / end - 1


SHOWN = {
    "mnist-500": "MNIST digits",
    "sift200k-1000": "SIFT descriptors",
    "glove100k-1000": "GloVe word vectors",
    "pla85900-1000": "TSPLIB circuit board",
    "B-1000": "overlapping mixture",
    "gaussian-1000": "one Gaussian, no clusters",
    "drawn2": "noise around few centres",
}
"""Data sets in README, from well-known ones to those with the lowest speedups."""
SHOWN_RIVALS = ["scikit-learn", "faiss", "SuperKMeans, hierarchical", MINIBATCH]


def made_by(result: dict[str, Any]) -> str:
    options = result.get("options", "")
    return f"This table was made by `python -m benchmarks.auto {options}--write`."


def speed_table(result: dict[str, Any], titles: dict[str, str], rivals: list[str]) -> str:
    """Return a table with the median and minimum speedup over some libraries, by set."""
    rows, every = [], []
    records = {record["case"]: record for record in result["records"]}
    for case, title in titles.items():
        if record := records.get(case):
            found = {rival: factors(record, rival) for rival in rivals}
            least = [least_and_median(several) for several in found.values()]
            cells = [title, f"{record['n']:,} × {record['d']}", f"{record['k']:,}"]
            cells += [f"{each[1]:.1f}x ({each[0]:.1f}x)" if each else "–" for each in least]
            rows.append([*cells, f"{100 * end_of(record)[1]:+.2f} %"])
            every += [(rival, factor) for rival in rivals for _, factor in found[rival]]
    later = [rival for rival, factor in every if factor < 1]
    times = "CPU seconds on one thread"
    if (threads := result.get("threads", 1)) > 1:
        times = f"wall seconds with {threads} threads on {result['cpu'].rpartition(', ')[2]}"
    note = (
        "The table shows how many times faster `KMeans` reaches the final inertia of a call of "
        "another library: the median over calls of different lengths (at least 50 ms), and in "
        "brackets the minimum. The last column is the lowest inertia of the other libraries, "
        f"relative to the final inertia of `KMeans`. Times are {times}. `KMeans` is slower at "
        f"{len(later)} of {len(every)} measured points, of which {later.count(MINIBATCH)} are "
        f"short calls of {MINIBATCH} with a higher inertia. `KMeans` is at least twice as fast at "
        f"{sum(factor >= 2 for _, factor in every)} points. Processor: {result['cpu']}. "
        f"{made_by(result)}"
    )
    head = ["data", "rows × features", "clusters", *rivals, "lowest inertia of the others"]
    return "\n".join([*table_of(head, rows), "", note])


def full_table(result: dict[str, Any]) -> str:
    return speed_table(result, {case: case.split("-")[0] for case in CASES}, NAMES)


def readme_table(result: dict[str, Any]) -> str:
    return speed_table(result, SHOWN, SHOWN_RIVALS)


def geometric_mean(several: list[float]) -> float:
    """Return the geometric mean; 0 if the default never reaches a point."""
    return float(np.exp(np.log(several).mean())) if several and min(several) > 0 else 0.0


def behind_table(result: dict[str, Any]) -> str:
    """Return a table of the number of points that miss the target, by library."""
    rows = []
    every: list[tuple[float, float]] = []
    n_behind = 0
    for rival in NAMES:
        found = [pair for record in result["records"] for pair in factors(record, rival)]
        behind = sum(factor < aim_at(rival, point) for point, factor in found)
        later = sum(factor < 1 for _, factor in found)
        mean = geometric_mean([factor for _, factor in found])
        rows.append([rival, f"{len(found)}", f"{behind}", f"{later}", f"{mean:.1f}x"])
        every += [(point["seconds"], factor) for point, factor in found]
        n_behind += behind
    long = [factor for seconds, factor in every if seconds >= LONG]
    later_long = sum(factor < 1 for factor in long)
    note = (
        "A point is one call of another library. The target is that the default reaches the final "
        f"inertia of the call {AIM:g} times faster, and {REFINED_AIM:g} times faster than the "
        f"hierarchical method with {' and '.join(REFINED)} refinements. {n_behind} of {len(every)} "
        "points miss this target. The geometric mean of the speedup over all points is "
        f"{geometric_mean([factor for _, factor in every]):.1f}. Over the {len(long)} calls that "
        f"take {LONG:g} s or more, the geometric mean is {geometric_mean(long):.1f}. For "
        f"{sum(factor >= LONG_AIM for factor in long)} of these calls the speedup is at least "
        f"{LONG_AIM:g}, and {later_long} of these calls are faster than the default. "
        f"{made_by(result)}"
    )
    head = ["other library", "points", "points that miss the target",
            "points where the library is faster", "geometric mean"]  # fmt: skip
    return "\n".join([*table_of(head, rows), "", note])


def draw(record: Record, path: Path) -> None:
    curves = {
        name: ([p["seconds"] for p in points], [p["energy"] for p in points])
        for name, points in record["rivals"].items()
    }
    lowest = min(min(e) for _, e in curves.values())
    lowest = min(lowest, *(min(run["energies"]) for run in record["runs"]))
    figure, (axes,) = new_figure(1, 7, 5)

    def line(seconds: Any, energies: Any, **about: Any) -> None:
        axes.plot(seconds, np.maximum(100 * (np.array(energies) / lowest - 1), 0.01), **about)

    for name, (seconds, energies) in curves.items():
        color, style = RIVALS.get(name, (None, ":"))
        line(seconds, energies, color=color, linestyle=style, marker=".", lw=1.2, label=name)
    for number, run in enumerate(record["runs"]):
        line(run["seconds"], run["energies"], color="tab:red", lw=1.8,
             label="auto" if number == 0 else None)  # fmt: skip
    title = f"{record['case']}: {record['n']:,} × {record['d']}, k = {record['k']:,}"
    axes.set(xscale="log", yscale="log", title=title)
    axes.set(xlabel="CPU seconds, one thread", ylabel="energy above the lowest, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cases", nargs="*", choices=CASES, metavar="CASE")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for all time limits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, choices=range(1, available_cpus() + 1), default=1)
    parser.add_argument("--commit", default="HEAD", help="its hash generates drawn0 to drawn5")
    args = parse(parser)
    os.environ[THREADS] = str(args.threads)
    name, cases = ("auto", CASES) if args.threads == 1 else ("auto_threads", list(SHOWN))
    last = read_result(name) if args.cases and args.write else {}
    same = last.get("threads", 1) == args.threads
    records = {record["case"]: record for record in last.get("records", []) if same}
    result = {
        "cpu": cpu_description(),
        "threads": args.threads,
        "options": f"--threads {args.threads} --scale {args.scale:g} "
        f"--commit {commit(args.commit)[:7]} ",
    }
    with tempfile.TemporaryDirectory() as folder:
        for case in at_hand(args.cases or cases):
            records[case] = rounded(compare(case, Path(folder), args))
            if args.write and args.threads == 1:
                draw(records[case], RESULTS / f"auto-{case}.png")
            ordered = [records[known] for known in CASES if known in records]
            publish(name, result | {"records": ordered}, write=args.write)


if __name__ == "__main__":
    main()
