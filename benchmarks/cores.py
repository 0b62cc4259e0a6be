"""What two threads are worth to the default search, and where one of them waits for the other.

    python -m benchmarks.cores [--sets A glove100k ...] [--write]

Whole fits by the driver's own loop on one thread and on two, in turns: wall seconds until the
energy of all rows is within 1 % and 0.2 % of the fit's end, and to its end with exact labels;
medians of three rounds, all of one seed. Bits are equal, so both take the same steps, and which of
them is the first to be so near is found out in a run of its own. Then once more with the stages of
``benchmarks.first`` and some within passes clocked, and what each thread does: a timeline of both,
and for every stage how long only one of them had something to do. Real sets come from
``LARGEK_DATA`` and are left out where they are not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, child_record, cpu_description, save
from benchmarks.curves import Energies
from benchmarks.first import DRIVER, Stages
from benchmarks.first import STAGES as FIRST_STAGES
from benchmarks.lloyd import data_folder, prepare
from benchmarks.tables import write_tables
from largek_dask.algorithms.truncated import algorithm, passes
from largek_dask.data.sources import open_rows
from largek_dask.driver import starts
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions
from largek_dask.kernels import threads
from largek_dask.passes import engine

SETS = {"A": 1_000, "B": 1_000, "C": 500, "glove100k": 1_000}
"""Clusters."""
ROUNDS = 3
NEAR = (0.01, 0.002)
"""Shares above the fit's own end."""
AIM = 1.85
STAGES: dict[str, list[tuple[Any, str]]] = {
    DRIVER: [],
    "scan": FIRST_STAGES["scan"],
    "samples": FIRST_STAGES["samples"] + FIRST_STAGES["projection"],
    "directions": FIRST_STAGES["directions"],
    "start": FIRST_STAGES["start"],
    "neighbour tables": FIRST_STAGES["neighbour tables"],
    "lists made": [(algorithm, "next_pass")],
    "rows ordered": [(passes, "order_by_label"), (passes, "_renew_bounds")],
    "rows searched": [
        (passes, "_search_lists"),
        (passes, "_search_cells"),
        (passes, "_search_all"),
        (passes, "_search_unsettled"),
    ],
    "rows counted": [(passes, "count_rows"), (passes, "_losses")],
    "passes, beside": FIRST_STAGES["passes"],
    "moves": FIRST_STAGES["moves"],
    "probes": FIRST_STAGES["probes"],
    "means in all features": FIRST_STAGES["means in all features"],
    "last pass": [(starts, "label_rows")],
}
"""The functions that each stage is; whatever is not in any of them is the driver's."""
TICK = 2e-5
"""Seconds of a point of a timeline."""
ZOOM = 0.1
"""Seconds of the part that is drawn large."""
ONE, TWO = "1", "2"


class Pieces:
    """Which thread is at work on a piece when: that of the driver, and others."""

    def __init__(self, stages: Stages) -> None:
        self.done: list[tuple[int, float, float]] = []
        self.driver = threading.get_ident()
        self._stages = stages

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that counts as work of whichever thread calls it."""

        def run(*args: Any, **kwargs: Any) -> Any:
            begun = self._stages.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.done.append((threading.get_ident(), begun, self._stages.now()))

        return run

    def patches(self) -> list[Any]:
        """Who asks for work on threads takes part in it; who has passes computed does not."""
        carried = engine.carried
        return [
            patch.object(threads._Work, "go", self.watched(threads._Work.go)),
            patch.object(engine, "carried", lambda call: self.watched(carried(call))),
        ]

    def busy(self, seconds: float) -> NDArray[np.bool_]:
        """(2, ticks) whether each of two threads has something to do."""
        n = int(seconds / TICK) + 1
        own, others = np.zeros(n, np.bool_), np.zeros((2, n), np.bool_)
        numbers: dict[int, int] = {}
        for thread, begin, end in self.done:
            at = slice(int(begin / TICK), int(end / TICK) + 1)
            if thread == self.driver:
                own[at] = True
            else:
                others[numbers.setdefault(thread, len(numbers)) % 2, at] = True
        # The driver waits only while others are at work and it is not.
        alone = ~others.any(axis=0)
        # Of two others that compute a pass one stands for the driver, which waits.
        return np.stack([own | alone | others.all(axis=0), others.any(axis=0)])


def options_of(k: int) -> FitOptions:
    """Of all fits here."""
    return FitOptions(n_clusters=k, algorithm="truncated", seed=0)


def timed(x: NDArray[np.float32], k: int, n_threads: int) -> list[float]:
    """Wall seconds until each step of a fit, and to its end."""
    seconds: list[float] = []
    begun = time.perf_counter()
    fit(
        open_rows(x),
        options_of(k),
        n_threads=n_threads,
        callbacks=[lambda _: seconds.append(time.perf_counter() - begun)],
    )
    return [*seconds, time.perf_counter() - begun]


def steps_near(x: NDArray[np.float32], k: int, n_threads: int) -> list[int]:
    """The first steps after which the energy is as near to the end's as `NEAR` says."""
    met: list[NDArray[np.float32]] = []

    def told(snapshot: Any) -> None:
        met.append(np.array(snapshot.model().centers, np.float32))

    fit(open_rows(x), options_of(k), n_threads=n_threads, labels=False, callbacks=[told])
    energies, last = Energies(x, met), len(met) - 1
    found = [energies.first_within(energies[last] * (1 + excess)) for excess in NEAR]
    return [last if step is None else step for step in found]


def clocked(x: NDArray[np.float32], k: int, n_threads: int) -> dict[str, Any]:
    """Stages of a fit, and what two threads do meanwhile."""
    stages = Stages(time.perf_counter)
    pieces = Pieces(stages)
    with ExitStack() as patches:
        for stage, functions in STAGES.items():
            for owner, name in functions:
                call = _of_driver(getattr(owner, name), stages, stage, pieces.driver)
                patches.enter_context(patch.object(owner, name, call))
        for other in pieces.patches():
            patches.enter_context(other)
        cpu = time.process_time()
        fit(open_rows(x), options_of(k), n_threads=n_threads)
        seconds, cpu = stages.cut(), time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "spans": stages.spans, "busy": pieces.busy(seconds)}


def _of_driver(
    function: Callable[..., Any], stages: Stages, stage: str, driver: int
) -> Callable[..., Any]:
    """A function that counts for a stage where the driver's thread calls it."""
    wrapped = stages.wrapped(stage, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        own = threading.get_ident() == driver
        return (wrapped if own else function)(*args, **kwargs)

    return call


def ticks_of(run: dict[str, Any]) -> NDArray[np.int64]:
    """(ticks,) number of the stage."""
    numbers = {stage: number for number, stage in enumerate(STAGES)}
    out = np.zeros(run["busy"].shape[1], np.int64)
    for stage, begin, end in run["spans"]:
        out[int(begin / TICK) : int(end / TICK) + 1] = numbers[stage]
    return out


def of_stages(run: dict[str, Any]) -> dict[str, list[float]]:
    """Of each stage: wall seconds, and those in which only one thread has something to do."""
    stage, busy = ticks_of(run), run["busy"]
    out = {}
    for number, name in enumerate(STAGES):
        own = busy[:, stage == number]
        out[name] = [own.shape[1] * TICK, float(np.count_nonzero(own.sum(axis=0) < 2) * TICK)]
    return out


def bars_of(run: dict[str, Any]) -> list[list[list[float]]]:
    """Of each thread: (stage, begin, end) while it has something to do."""
    stage, out = ticks_of(run), []
    for busy in run["busy"]:
        state = np.where(busy, stage, -1)
        edges = np.flatnonzero(np.diff(state, prepend=-2, append=-2))
        bars = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        out.append(
            [
                [int(state[begin]), begin * TICK, end * TICK]
                for begin, end in bars
                if state[begin] >= 0
            ]
        )
    return out


def child(task: dict[str, Any]) -> None:
    """All that is measured of one set."""
    x, k = np.load(task["path"]), task["k"]
    clocked(x[: 40 * k], k, 2)
    steps = steps_near(x, k, 2)
    times: dict[str, list[list[float]]] = {ONE: [], TWO: []}
    for _ in range(ROUNDS):
        for n in (ONE, TWO):
            seconds = timed(x, k, int(n))
            times[n].append([*(seconds[step] for step in steps), seconds[-1]])
    runs = {n: min((clocked(x, k, int(n)) for _ in range(2)), key=_seconds) for n in (ONE, TWO)}
    record = {
        "seconds": {n: np.median(found, axis=0).tolist() for n, found in times.items()},
        "steps": steps,
        "stages": {n: of_stages(run) for n, run in runs.items()},
        "cpu_seconds": {n: run["cpu"] for n, run in runs.items()},
        "busy": (runs[TWO]["busy"].mean(axis=1)).tolist(),
        "bars": bars_of(runs[TWO]),
    }
    print(json.dumps(record))


def _seconds(run: dict[str, Any]) -> float:
    return float(run["seconds"])


def compare(name: str, path: Path, k: int) -> dict[str, Any]:
    """What is measured of a set, in a process of its own."""
    record = child_record("benchmarks.cores", {"path": str(path), "k": k})
    n, d = np.load(path, mmap_mode="r").shape
    print(name, record["seconds"], flush=True)
    return {"set": name, "n": n, "d": d, "k": k, **record}


def table(result: dict[str, Any]) -> str:
    """The markdown tables of a result."""
    near = [f"to +{100 * excess:g} %" for excess in NEAR]
    heads = [*near, "to the end", "CPU s", "busy"]
    lines = [f"| set | n × d, k | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for record in result["records"]:
        pairs = zip(record["seconds"][ONE], record["seconds"][TWO], strict=True)
        cells = [f"{one:.2f} → {two:.2f} s, {one / two:.2f}x" for one, two in pairs]
        cpu = record["cpu_seconds"]
        cells.append(f"{cpu[ONE]:.2f} → {cpu[TWO]:.2f}")
        cells.append(" and ".join(f"{100 * share:.0f} %" for share in record["busy"]))
        shape = f"{record['n']:,} × {record['d']}, {record['k']:,}"
        lines.append(f"| {record['set']} | {shape} | {' | '.join(cells)} |")
    names = [record["set"] for record in result["records"]]
    lines += ["", "Where the second thread waits:", ""]
    lines += [f"| stage, ms | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    waits = {s: [record["stages"][TWO][s] for record in result["records"]] for s in STAGES}
    for stage in sorted(STAGES, key=lambda s: -sum(alone for _, alone in waits[s])):
        cells = [f"{1e3 * alone:.0f} of {1e3 * whole:.0f}" for whole, alone in waits[stage]]
        lines.append(f"| {stage} | {' | '.join(cells)} |")
    note = (
        f"Wall seconds on one thread → on two, to reach ≥ {AIM:g}x: medians of {ROUNDS} fits each, "
        "in turns, of one seed, with equal bits; CPU seconds and shares of the time in which each "
        "of two threads has something to do, of one more fit; milliseconds of its stages in which "
        f"only one has, of those of the stage. {result['cpu']}. Made by "
        "`python -m benchmarks.cores --write`."
    )
    return "\n".join([*lines, "", note])


def draw(result: dict[str, Any], path: Path) -> None:
    """For each set both threads over the whole fit, and over a part of it."""
    import matplotlib

    from benchmarks.pictures import new_figure

    records, colors = result["records"], matplotlib.colormaps["tab20"]
    figure, _ = new_figure(1, 13, 1.4 + 1.3 * len(records))
    figure.clear()
    panels = figure.subplots(len(records), 2, squeeze=False)
    for row, record in zip(panels, records, strict=True):
        end = max(bar[2] for bars in record["bars"] for bar in bars)
        middle = end / 2
        for axes, (left, right) in zip(row, ((0, end), (middle, middle + ZOOM)), strict=True):
            for number, bars in enumerate(record["bars"]):
                for code, stage in enumerate(STAGES):
                    spans = [(b, e - b) for s, b, e in bars if s == code and b < right and e > left]
                    about = {"color": colors(code), "label": stage if number else None, "lw": 0}
                    axes.broken_barh(spans, (0.9 * (1 - number), 0.8), **about)
            axes.set(xlim=(left, right), yticks=[0.4, 1.3], yticklabels=["second", "first"])
        row[0].set_ylabel(f"{record['set']}\nk = {record['k']:,}")
    panels[0][0].set_title("both threads over a whole fit; white: it waits")
    panels[0][1].set_title(f"{1e3 * ZOOM:.0f} ms in its middle")
    for axes in panels[-1]:
        axes.set_xlabel("wall seconds")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
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
    picture = RESULTS / "cores.png" if args.write else args.picture
    if picture is not None:
        draw(result, picture)
    if args.write:
        for record in records:
            del record["bars"]
        save("cores", result)
        write_tables("cores", result)
        print(RESULTS / "cores.json")


if __name__ == "__main__":
    main()
