"""Where time goes in the first 200 ms of a fit, and what it has come to meanwhile.

    python -m benchmarks.first [--sets A C ...] [--write]

Fits by the driver's own loop on one thread, with its stages clocked (CPU seconds, each without the
stages within it), and the models that it tells after every step; beside it scikit-learn's
mini-batches as in `curves.py`, whose points of 50 ms and more count. Energies are those of all
rows, computed outside the clock; stages are of the first seed, all else are medians of three. Real
sets come from ``LARGEK_DATA`` and are left out where they are not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.auto import LEAST_SECONDS
from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.curves import AUTO, MINIBATCH, Energies, Task, measure, warm_up
from benchmarks.directions import median_time
from benchmarks.lloyd import data_folder, prepare
from benchmarks.tables import write_tables
from largek_dask.algorithms.truncated import algorithm, probe
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions
from largek_dask.passes.base import BasePasses
from largek_dask.passes.subset import Subsets

SETS = {"A": 1_000, "C": 500, "mnist": 500, "sift200k": 1_000, "shuttle": 100}
"""Clusters."""
SEEDS = (0, 1, 2)
SHOWN = 0.2
"""CPU seconds of which the stages are told."""
LIMIT = 0.4
"""CPU seconds after which a fit is cut, and up to which points of mini-batches count."""
DRIVER = "driver, schedule"
STAGES: dict[str, list[tuple[Any, str]]] = {
    DRIVER: [],
    "scan": [(BasePasses, "scan")],
    "samples": [(Subsets, "_sample")],
    "directions": [(algorithm, "first_directions"), (algorithm, "some_directions")],
    "projection": [(Subsets, "_projected")],
    "start": [(algorithm.Truncated, "_start")],
    "neighbour tables": [(algorithm, "with_neighbours")],
    "passes": [(algorithm, "run_pass")],
    "moves": [(probe, "moves_to_try")],
    "probes": [(algorithm, "ask_sample")],
    "means in all features": [(algorithm, "lifted"), (algorithm, "with_sample_means")],
    "model told": [(algorithm.Truncated, "model")],
}
"""The functions that each stage is; whatever is not in any of them is the driver's."""


class Stages:
    """Which stage a fit is in, by the CPU clock or another; one within another interrupts it."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.spans: list[tuple[str, float, float]] = []
        self.beside = 0.0
        """What was done meanwhile that is not the fit's."""
        self._clock = clock
        self._within = [DRIVER]
        self._begun = clock()
        self._since = 0.0

    def now(self) -> float:
        """Seconds of the fit so far."""
        return self._clock() - self._begun - self.beside

    def cut(self) -> float:
        """End the span of the present stage."""
        now = self.now()
        self.spans.append((self._within[-1], self._since, now))
        self._since = now
        return now

    @contextmanager
    def clocked(self, stage: str) -> Iterator[None]:
        """Within a stage."""
        self.cut()
        self._within.append(stage)
        try:
            yield
        finally:
            self.cut()
            self._within.pop()

    def wrapped(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that counts for a stage."""

        @wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            with self.clocked(stage):
                return function(*args, **kwargs)

        return clocked


def fitted(x: NDArray[np.float32], k: int, seed: int) -> dict[str, Any]:
    """Stages of a fit, and seconds and energies of the models that it tells."""
    seconds: list[float] = []
    met: list[NDArray[np.float32]] = []
    stages = Stages()

    def told(snapshot: Any) -> bool:
        centers = snapshot.model().centers
        seconds.append(stages.cut())
        before = time.process_time()
        met.append(np.array(centers, np.float32))
        stages.beside += time.process_time() - before
        return seconds[-1] > LIMIT

    with ExitStack() as patches:
        for stage, functions in STAGES.items():
            for owner, name in functions:
                clocked = stages.wrapped(stage, getattr(owner, name))
                patches.enter_context(patch.object(owner, name, clocked))
        options = FitOptions(n_clusters=k, algorithm="truncated", seed=seed)
        fit(open_rows(x), options, n_threads=1, labels=False, callbacks=[told])
    energies = Energies(x, met)
    spans = [span for span in stages.spans if span[2] - span[1] > 2e-5 and span[1] < LIMIT]
    return {
        "spans": spans,
        "seconds": seconds,
        "energies": [energies[i] for i in range(len(met))],
    }


def child(task: dict[str, Any]) -> None:
    """Fits with all seeds."""
    x = np.load(task["path"])
    warm_up(AUTO, x, task["k"])
    # What a first call of the driver loads is not timed either.
    fitted(x[: 20 * task["k"]], task["k"], 0)
    print(json.dumps({"runs": [fitted(x, task["k"], seed) for seed in SEEDS]}))


def compare(name: str, path: Path, k: int) -> dict[str, Any]:
    """Our fits, and mini-batches' points."""
    runs = child_record("benchmarks.first", {"path": str(path), "k": k})["runs"]
    [batches] = measure([Task(MINIBATCH, str(path), k, limit=LIMIT)])
    points = list(zip(batches["seconds"], batches["energies"], strict=True))
    n, d = np.load(path, mmap_mode="r").shape
    print(name, flush=True)
    return {"set": name, "n": n, "d": d, "k": k, "runs": runs, "points": points}


def in_stage(record: dict[str, Any], stage: str) -> float:
    """CPU seconds of the first ones that a stage has, by the first seed."""
    spans = record["runs"][0]["spans"]
    return sum(max(0.0, min(SHOWN, e) - b) for name, b, e in spans if name == stage)


def factors(record: dict[str, Any]) -> list[float]:
    """How many times sooner we are at the points of mini-batches that count."""
    counted = [point for point in record["points"] if point[0] >= LEAST_SECONDS]
    return [seconds / median_time(record["runs"], energy) for seconds, energy in counted]


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    heads = ["first model, ms", *STAGES, f"sooner than {MINIBATCH}"]
    lines = [f"| set | n × d, k | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for record in result["records"]:
        first = float(np.median([run["seconds"][0] for run in record["runs"]]))
        cells = [f"{1e3 * first:.0f}", *(f"{1e3 * in_stage(record, s):.0f}" for s in STAGES)]
        cells.append(", ".join(f"{factor:.1f}x" for factor in factors(record)[:6]))
        lines.append(
            f"| {record['set']} | {record['n']:,} × {record['d']}, {record['k']:,} "
            f"| {' | '.join(cells)} |"
        )
    note = (
        f"CPU ms until the first model, and of the first {1e3 * SHOWN:.0f} in each stage; how many "
        "times sooner we are at the energies of up to six mini-batches, the first of which takes "
        f"at least {1e3 * LEAST_SECONDS:.0f} ms. One thread; medians of {len(SEEDS)} seeds, stages "
        f"of one. {result['cpu']}. Made by `python -m benchmarks.first --write`."
    )
    return "\n".join([*lines, "", note])


def draw(result: dict[str, Any], path: Path) -> None:
    """For each set its stages against milliseconds, and beside them energies."""
    import matplotlib

    from benchmarks.pictures import RIVALS, new_figure

    records, colors = result["records"], matplotlib.colormaps["tab20"]
    figure, _ = new_figure(1, 13, 1.2 + 1.6 * len(records))
    figure.clear()
    panels = figure.subplots(len(records), 2, sharex=True, squeeze=False)
    for (left, right), record in zip(panels, records, strict=True):
        for number, stage in enumerate(STAGES):
            spans = [s for s in record["runs"][0]["spans"] if s[0] == stage and s[1] < 2 * SHOWN]
            bars = [(1e3 * begin, 1e3 * (end - begin)) for _, begin, end in spans]
            left.broken_barh(bars, (0, 1), color=colors(number), label=stage)
        for seconds in (s for s in record["runs"][0]["seconds"] if s < 2 * SHOWN):
            left.plot([1e3 * seconds], [1.06], marker="v", color="black", ms=5, clip_on=False)
        left.set(yticks=[], ylim=(0, 1.12), xlim=(0, 2e3 * SHOWN))
        left.set_ylabel(f"{record['set']}\nk = {record['k']:,}")
        for run in record["runs"]:
            about = {"color": "tab:red", "marker": ".", "drawstyle": "steps-post"}
            right.plot(1e3 * np.array(run["seconds"]), run["energies"], **about)
        batches = np.array(record["points"])
        color, _ = RIVALS[MINIBATCH]
        right.plot(1e3 * batches[:, 0], batches[:, 1], color=color, marker="o", ms=4)
        right.grid(alpha=0.3)
        right.set(yscale="log" if record["set"] == "shuttle" else "linear")
    panels[0][0].set_title("stages of a fit; ▾ a model is told")
    panels[0][1].set_title(f"energy: auto, three seeds (red); {MINIBATCH}")
    for axes in panels[-1]:
        axes.set_xlabel("CPU ms, one thread")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--picture", type=Path, help="draw it there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.sets:
            if name not in "ABC" and not (data_folder() / f"{name}.npz").exists():
                print(f"{name} is left out: no such file in {data_folder()} (LARGEK_DATA)")
                continue
            records.append(compare(name, prepare(name, Path(folder)), SETS[name]))
    result = {"cpu": cpu_description(), "records": records}
    print(table(result))
    picture = RESULTS / "first.png" if args.write else args.picture
    if picture is not None:
        draw(result, picture)
    if args.write:
        save("first", result, indent=None)
        write_tables("first", result)
        print(RESULTS / "first.json")


if __name__ == "__main__":
    main()
