"""`algorithm="auto"` beside every public library, at every energy, on one thread.

    python -m benchmarks.auto [--cases A-1000 ...] [--scale 0.5] [--seeds 3] [--write]

writes `results/auto.json`, a picture a case, and the tables of the documents. Given cases replace
those of the last result; `--scale` shortens all limits of time, for a trial.

Every rival runs in processes of its own with its best setting; a point of its curve is the CPU
seconds of a whole call and the energy over all rows that it has come to. We run with several
seeds, seconds are read off after every step, and the median over the seeds of the time to each
energy counts. What is to be shown is a factor of 2 at all energies for which a rival needs at least
50 ms, and of 5 where SuperKMeans refines 10 and 25 times. Exact libraries share one trajectory
(see `peers.py`), which starts from random rows; all others, we among them, choose their own start.

Sets: A, B, C as in `lloyd.py`; real ones from `LARGEK_DATA`; "gaussian" and "cube" have no
clusters at all; "plane", "space" and "five" are 1,000,000 rows of 2, 3 and 5 features around
10,000 centres; names "drawn0" to "drawn5" are of kinds, shapes and seeds that derive from the
commit's hash, so that nobody can have looked at them before.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.common import RESULTS, cpu_description, generator_of_commit, save
from benchmarks.curves import AUTO, LLOYD, MINIBATCH, Run, Task, measure, time_to
from benchmarks.lloyd import data_folder, prepare
from benchmarks.nmbatch import rounded
from benchmarks.tables import write_tables

CASES = ["A-1000", "B-1000", "C-500", "gaussian-1000", "cube-1000", "plane-1000", "space-1000",
         "five-1000"]  # fmt: skip
REAL = ["sift200k-1000", "glove100k-1000", "mnist-50", "mnist-500", "pla85900-100",
        "pla85900-1000", "shuttle-100", "eeg-100"]  # fmt: skip
DRAWN = [f"drawn{i}" for i in range(6)]
EXACT_PASSES = (2, 4, 8, 16, 32, 64, 128, 256)
LIMITS = {AUTO: 40.0, LLOYD: 60.0, MINIBATCH: 4.0}
"""CPU seconds after which runs are cut."""
LONGEST_CALL = 45.0
"""CPU seconds that a call of SuperKMeans may be expected to take."""
LEAST_SECONDS = 0.05
"""CPU seconds from which on a rival's point counts."""
AIM, REFINED_AIM = 2.0, 5.0
LONG, LONG_AIM = 0.5, 5.0
"""CPU seconds of a rival's call that a user notices, and what is aimed at there."""
REFINED = ("10", "25")
"""Refinements of SuperKMeans for which the greater aim holds."""
PROTOTYPE = {
    "A-1000": 75.23,
    "B-1000": 23.38,
    "C-500": 572_400.0,
    "sift200k-1000": 58_470.0,
    "glove100k-1000": 12.00,
}
"""Energies that we have to end at or below."""


def structureless(name: str) -> NDArray[np.float32]:
    """Rows without clusters, or of few features."""
    r = np.random.default_rng(0)
    if name == "gaussian":
        return r.standard_normal((100_000, 64), np.float32)
    if name == "cube":
        return r.random((200_000, 16), np.float32)
    d = {"plane": 2, "space": 3, "five": 5}[name]
    centers = r.random((10_000, d))
    spread = 0.3 * len(centers) ** (-1 / d)
    rows = centers[r.integers(len(centers), size=1_000_000)]
    return (rows + spread * r.standard_normal(rows.shape)).astype(np.float32)


def drawn(number: int) -> tuple[NDArray[np.float32], int]:
    """Rows and k of a set that the commit's hash decides on."""
    r = generator_of_commit(number)
    d = int(r.choice([4, 8, 12, 24, 48, 96, 192, 384]))
    n = int(min(r.integers(50_000, 800_000), 60_000_000 // d))
    k = int(r.choice([50, 100, 200, 500, 1000, 2000]))
    kind = r.choice(["blobs", "tails", "subspaces", "unequal", "walk", "uniform"])
    m = int(k * r.choice([0.3, 1, 3, 10]))
    centers = r.standard_normal((m, d)) * r.uniform(0.5, 3)
    of = r.integers(m, size=n)
    x = r.standard_normal((n, d))
    if kind == "blobs":
        x += centers[of]
    elif kind == "tails":
        x = centers[of] + r.standard_t(2.5, (n, 1)) * x
    elif kind == "subspaces":
        plane = r.standard_normal((m, 3, d))
        x = centers[of] + 0.1 * x + np.einsum("nj,njd->nd", r.standard_normal((n, 3)), plane[of])
    elif kind == "unequal":
        size = r.pareto(1.0, m) + 0.01
        of = r.choice(m, n, p=size / size.sum())
        x = centers[of] + x * r.lognormal(0, 1, m)[of, None]
    elif kind == "walk":
        x = np.cumsum(x, axis=0) * (n**-0.5) + 0.05 * r.standard_normal((n, d))
    else:
        x = r.random((n, d))
    print(f"drawn{number}: {kind}, {n:,} x {d}, k = {k}", flush=True)
    return x.astype(np.float32), k


def prepare_case(case: str, folder: Path) -> tuple[str, int]:
    """Path of the rows, and k."""
    if case.startswith("drawn"):
        x, k = drawn(int(case[5:]))
        np.save(folder / f"{case}.npy", x)
        return str(folder / f"{case}.npy"), k
    name, clusters = case.rsplit("-", 1)
    path = folder / f"{name}.npy"
    if name in ("gaussian", "cube", "plane", "space", "five") and not path.exists():
        np.save(path, structureless(name))
    return str(prepare(name, folder)), int(clusters)


def exact_points(library: str, path: str, k: int, lloyd: Run) -> list[dict[str, Any]]:
    """What an exact library comes to with more and more passes."""
    line = peers.measure_exact(library, path, k)
    known = dict(zip(lloyd["steps"], lloyd["energies"], strict=True))
    # The last one is where it stops of its own accord.
    passes = [p for p in EXACT_PASSES if p in known] + [lloyd["steps"][-1]]
    return [
        {"label": f"{p}", "seconds": peers.seconds_of(line, p), "energy": known[p]} for p in passes
    ]


def compare(case: str, folder: Path, scale: float, n_seeds: int) -> dict[str, Any]:
    """All curves of a case."""
    path, k = prepare_case(case, folder)
    n, d = np.load(path, mmap_mode="r").shape
    rivals: dict[str, list[dict[str, Any]]] = {}
    if peers.there("SuperKMeans"):
        for kind in peers.SUPER:
            rivals[kind] = [
                {**point, "label": f"{point['passes']:.0f}"}
                for point in peers.measure_super(kind, path, k, scale * LONGEST_CALL)
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
    runs = measure([Task(AUTO, path, k, seed, limit, levels) for seed in range(n_seeds)])
    for run in runs:
        run.pop("clock")
        print(f"{case} {AUTO}: {run['total']:.2f} s, ends at {run['energies'][-1]:.6g}", flush=True)
    return {"case": case, "n": n, "d": d, "k": k, "runs": runs, "rivals": rivals}


def seconds_to(record: dict[str, Any], level: float) -> float:
    """Median CPU seconds of ours to an energy; infinity: most of the runs never get there."""
    times = [time_to(run, level) for run in record["runs"]]
    return float(np.median([np.inf if t is None else t for t in times]))


def factors(record: dict[str, Any], rival: str) -> list[tuple[dict[str, Any], float]]:
    """The points of a rival that count, and how many times sooner we are there."""
    return [
        (point, point["seconds"] / seconds_to(record, point["energy"]))
        for point in record["rivals"].get(rival, [])
        if point["seconds"] >= LEAST_SECONDS
    ]


def aim_at(rival: str, point: dict[str, Any]) -> float:
    """How many times sooner we are to be at a point."""
    refined = rival.endswith("hierarchical") and point["label"] in REFINED
    return REFINED_AIM if refined else AIM


NAMES = [*peers.SUPER, *peers.EXACT, MINIBATCH]
"""Rivals in the order of the tables."""
MADE = "Made by `python -m benchmarks.auto --write`."


def spread(found: list[tuple[dict[str, Any], float]]) -> tuple[float, float] | None:
    """The least and the median of factors; None: no point counts."""
    if not found:
        return None
    several = [factor for _, factor in found]
    return min(several), float(np.median(several))


def end_of(record: dict[str, Any]) -> tuple[float, float]:
    """Median energy at which we end, and how far above it the lowest rival's is."""
    end = float(np.median([run["energies"][-1] for run in record["runs"]]))
    lowest = min(p["energy"] for points in record["rivals"].values() for p in points)
    return end, lowest / end - 1


def set_of(record: dict[str, Any]) -> str:
    """The set without the number of clusters, and its picture."""
    case = record["case"]
    return f"[{case.split('-')[0]}](results/auto-{case}.png)"


def short_table(result: dict[str, Any]) -> str:
    """For a newcomer: a line a set, the median and the least factor for every rival."""
    lines = [
        f"| set | rows × features | k | {' | '.join(NAMES)} | their lowest inertia |",
        "|---" * (4 + len(NAMES)) + "|",
    ]
    for record in result["records"]:
        cells = [record["case"].split("-")[0], f"{record['n']:,} × {record['d']}"]
        cells.append(f"{record['k']:,}")
        for name in NAMES:
            found = spread(factors(record, name))
            cells.append("–" if found is None else f"{found[1]:.1f}x ({found[0]:.1f}x)")
        cells.append(f"{100 * end_of(record)[1]:+.2f} %")
        lines.append(f"| {' | '.join(cells)} |")
    note = (
        "How many times sooner the default is at the inertia that another library's call comes "
        "to: the median over calls of all lengths from 50 ms on, and the least in brackets. Last "
        f"column: the lowest of theirs above ours. CPU seconds on one thread; {result['cpu']}. "
        f"{MADE}"
    )
    return "\n".join([*lines, "", note])


def table(result: dict[str, Any]) -> str:
    """The whole table: where we end, and factors by refinements for the hierarchical method."""
    lines = [
        "| set | n × d, k | our end, s | lowest rival | " + " | ".join(NAMES) + " |",
        "|---" * (4 + len(NAMES)) + "|",
    ]
    for record in result["records"]:
        cells = []
        for name in NAMES:
            found = factors(record, name)
            middle = spread(found)
            if name.endswith("hierarchical"):
                cells.append(", ".join(f"{p['label']}: {factor:.1f}x" for p, factor in found))
            else:
                cells.append("–" if middle is None else f"{middle[0]:.1f}x to {middle[1]:.1f}x")
        end, above = end_of(record)
        seconds = np.median([run["total"] for run in record["runs"]])
        lines.append(
            f"| {set_of(record)} | {record['n']:,} × {record['d']}, {record['k']:,} "
            f"| {end:.6g} in {seconds:.1f} ({len(record['runs'])}) | {100 * above:+.2f} % | "
            + " | ".join(cells)
            + " |"
        )
    note = (
        "How many times sooner `auto` is at the energy that a rival's call comes to: by number of "
        "refinements for the hierarchical method, else the least and the median over the points "
        f"of its curve (those of at least {1e3 * LEAST_SECONDS:.0f} ms). Energies over all rows, "
        "CPU seconds on one thread, medians of our seeds (behind the end: how many). "
        f"{result['cpu']}. {MADE}"
    )
    return "\n".join([*lines, "", note])


def mean_of(several: list[float]) -> float:
    """The geometric mean; 0 where we never get to a point."""
    return float(np.exp(np.log(several).mean())) if several and min(several) > 0 else 0.0


def in_sum(result: dict[str, Any]) -> str:
    """What all points together say."""
    found = [
        (point["seconds"], factor)
        for record in result["records"]
        for rival in NAMES
        for point, factor in factors(record, rival)
    ]
    long = [factor for seconds, factor in found if seconds >= LONG]
    every = [factor for _, factor in found]
    later = [seconds for seconds, factor in found if factor < 1]
    return (
        f"Where a rival needs {LONG:g} s or more ({len(long)} points) we are {mean_of(long):.1f} "
        f"times sooner in the geometric mean, {LONG_AIM:g} times or more at "
        f"{sum(factor >= LONG_AIM for factor in long)}; at all points {mean_of(every):.1f} times. "
        f"Later at {len(later)}, of which {sum(seconds >= LONG for seconds in later)} take a rival "
        "as long as that."
    )


def behind_table(result: dict[str, Any]) -> str:
    """Every point at which we are less than the aim sooner."""
    lines = [
        "| set | k | rival | length of its call | energy | s | sooner | aim |",
        "|---" * 8 + "|",
    ]
    counted = 0
    for record in result["records"]:
        name, k = record["case"].split("-")[0], f"{record['k']:,}"
        for rival in NAMES:
            for point, factor in factors(record, rival):
                counted += 1
                aim = aim_at(rival, point)
                if factor < aim:
                    lines.append(
                        f"| {name} | {k} | {rival} | {point['label']} | {point['energy']:.6g} "
                        f"| {point['seconds']:.2f} | {factor:.2f}x | {aim:g}x |"
                    )
        end, limit = end_of(record)[0], PROTOTYPE.get(record["case"])
        if limit is not None and end > limit:
            lines.append(f"| {name} | {k} | our prototype | | {limit:.6g} | | not reached | |")
    note = (
        f"{len(lines) - 2} of {counted} points. The aim is {AIM:g}x, and {REFINED_AIM:g}x at "
        f"{' and '.join(REFINED)} refinements. Length of a call: passes of exact libraries, "
        f"refinements of the hierarchical method, steps of mini-batches. {in_sum(result)} {MADE}"
    )
    return "\n".join([*lines, "", note])


def draw(record: dict[str, Any], path: Path) -> None:
    """Energy above the lowest of all against CPU seconds."""
    from benchmarks.pictures import RIVALS, new_figure

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
        color, style = RIVALS[name]
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
    """Measure, save, draw, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", help="such as A-1000; all if not given")
    parser.add_argument("--scale", type=float, default=1.0, help="of all limits of time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    args = parser.parse_args()
    there = [c for c in REAL if (data_folder() / f"{c.rsplit('-', 1)[0]}.npz").exists()]
    known = [*CASES, *REAL, *DRAWN]
    wanted = args.cases or [c for c in known if c not in REAL or c in there]
    file = RESULTS / "auto.json"
    old: dict[str, Any] = {}
    if args.cases and args.write and file.exists():
        old = json.loads(file.read_text())
    records = {record["case"]: record for record in old.get("records", [])}
    with tempfile.TemporaryDirectory() as folder:
        for case in wanted:
            record = rounded(compare(case, Path(folder), args.scale, args.seeds))
            records[case] = record
            result = {
                "cpu": cpu_description(),
                "records": [records[name] for name in known if name in records],
            }
            if args.write:
                save("auto", result, indent=None)
                draw(record, RESULTS / f"auto-{case}.png")
                write_tables("auto", result)
    print(table(result))


if __name__ == "__main__":
    main()
