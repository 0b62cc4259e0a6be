"""Runs of the methods of `vrkm.py` from common starting centres: energy against passes and seconds.

All runs on a set are of one process on one thread, the methods in turns, for every seed in another
order. CPU seconds are noted after every step, the scan of the rows included; passes are rows that
were assigned, over all rows. Energies are over all rows, and outside the clock: for free where the
next step's cost is just that (Lloyd's algorithm, and nested batches of all rows), else by an
assignment of all rows after some of the steps, and then by bisection after the first one at each
energy that is asked for.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import child_record, new_parser, parse
from benchmarks.curves import Energies, chosen
from benchmarks.dcd_runs import in_turn
from benchmarks.levels import SAME
from benchmarks.vrkm_methods import METHODS, Method, Setting, from_all_rows

SNAPSHOTS = 24
"""Steps of a run whose energy is computed for its curve."""
REFERENCE_PASSES = 20
"""Lloyd's passes whose objective is the paper's baseline here."""
DEFAULT_LIMIT = 300.0
"""CPU seconds after which every run is cut."""
WARM_ROWS, WARM_SECONDS = 20_000, 5.0
"""Least rows of a first run of every method, and CPU seconds of each, before any is timed."""
Record = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Methods to compare on one set."""

    path: str
    """Rows as .npy."""
    k: int
    methods: tuple[str, ...]
    """The first one is the reference."""
    n_seeds: int
    start: str = "random"
    """Common starting centres: "random" rows, or "k-means++"."""
    passes: float | None = None
    """Passes after which runs are cut; None if they are not."""
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU seconds after which runs are cut, by method."""
    marks: tuple[float, ...] = ()
    """Passes after which energies are wanted."""
    excesses: tuple[float, ...] = ()
    """Energies above that of 20 Lloyd passes, as a share of it, whose first step is wanted."""
    of_end: tuple[float, ...] = ()
    """The same above the reference's end."""
    rows: int | None = None
    """The first rows only, for a trial."""


# --- a run ----------------------------------------------------------------------------------------


@dataclass
class Trace:
    """A run: passes, seconds and centres after every step."""

    passes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    met: list[NDArray[np.float32] | None] = field(default_factory=list)
    """Centres; None where their energy is known."""
    known: dict[int, float] = field(default_factory=dict)
    ended: bool = False


def follow(
    method: Method,
    x: NDArray[np.float32],
    centers: NDArray[np.float32],
    seed: int,
    most: float = np.inf,
    limit: float = np.inf,
) -> Trace:
    """Run a method until it ends, has made ``most`` passes or taken ``limit`` CPU seconds."""
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    found, spent, passes = Trace(), 0.0, 0.0
    how = nullcontext if method.samples else from_all_rows
    begun = time.process_time()
    with how(), LocalPasses(open_rows(x), n_threads=1) as data:
        for step in method.steps(Setting(data, x, centers, seed)):
            spent += time.process_time() - begun
            passes += step.passes
            if step.cost is not None and found.met:
                found.known[len(found.met) - 1], found.met[-1] = step.cost, None
            found.passes.append(passes)
            found.seconds.append(spent)
            # What is too large for single precision becomes infinite.
            with np.errstate(over="ignore"):
                found.met.append(np.array(step.centers(), np.float32))
            found.ended = step.ended
            if step.ended or passes >= most - 1e-9 or spent >= limit:
                break
            begun = time.process_time()
    return found


class RunEnergies(Energies):
    """Energies of a run; infinite where a centre is not finite."""

    def __init__(self, x: NDArray[np.float32], found: Trace) -> None:
        super().__init__(x, found.met)  # type: ignore[arg-type]
        self.known = dict(found.known)

    def _computed(self, centers: NDArray[np.float32]) -> float:
        if not np.isfinite(centers).all():
            return np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            value = super()._computed(centers)
        return value if np.isfinite(value) else np.inf


def record_of(
    found: Trace, energies: Energies, levels: list[float], marks: tuple[float, ...]
) -> Record:
    """A run as it is kept: passes, seconds and energies after some of its steps.

    Among them the first step at each of the levels, and the last one before each number of passes.
    JSON has no infinity, so None stands for an energy that is not finite.
    """
    n = len(found.passes)
    kept = {*chosen(n, SNAPSHOTS), n - 1}
    kept |= {i for i in (last_within(found.passes, mark) for mark in marks) if i is not None}
    for i in kept:
        energies[i]
    for level in levels:
        if (step := energies.first_within(level * SAME)) is not None:
            kept.add(step)
    order = sorted(kept)
    return {
        "passes": [found.passes[i] for i in order],
        "seconds": [found.seconds[i] for i in order],
        "energies": [energies[i] if np.isfinite(energies[i]) else None for i in order],
        "ended": found.ended,
    }


def last_within(passes: list[float], most: float) -> int | None:
    """Last step within ``most`` passes; None if there is none."""
    within = int(np.searchsorted(passes, most + 1e-6, side="right"))
    return within - 1 if within else None


# --- a set ----------------------------------------------------------------------------------------


def starts(x: NDArray[np.float32], k: int, seed: int, kind: str) -> NDArray[np.float32]:
    """(k, d) common starting centres; outside of all clocks."""
    if kind == "random":
        return x[np.sort(np.random.default_rng([7, seed]).choice(len(x), k, replace=False))]
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.parts.seeding import initial_centers
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    with LocalPasses(open_rows(x)) as passes:
        return np.array(initial_centers(passes, Rng(seed), k, kind), np.float32)


def compare(task: Task) -> Record:
    """Runs of all methods for all seeds."""
    x: NDArray[np.float32] = np.load(task.path)[: task.rows]
    few = x[: max(20 * task.k, WARM_ROWS)]
    for name in task.methods:
        first = starts(few, task.k, 0, "random")
        follow(METHODS[name], few, first, 0, limit=WARM_SECONDS)
    # A collection of garbage takes 65 ms, in whichever run it happens.
    gc.collect()
    gc.freeze()
    found = []
    for seed in range(task.n_seeds):
        found.append(compare_once(task, x, seed))
        name = Path(task.path).stem
        print(f"{name}, k = {task.k}, seed {seed}", file=sys.stderr, flush=True)
    n, d = x.shape
    return {"n": n, "d": d, "k": task.k, "start": task.start, "seeds": found}


def compare_once(task: Task, x: NDArray[np.float32], seed: int) -> Record:
    """Runs of all methods from one start."""
    centers = starts(x, task.k, seed, task.start)
    most = np.inf if task.passes is None else task.passes
    traces: dict[str, Trace] = {}
    for name in in_turn(task.methods, seed):
        limit = task.seconds.get(name, DEFAULT_LIMIT)
        traces[name] = follow(METHODS[name], x, centers, seed, most, limit)
    energies = {name: RunEnergies(x, trace) for name, trace in traces.items()}
    reference = task.methods[0]
    passes = traces[reference].passes
    twenty = last_within(passes, REFERENCE_PASSES)
    assert twenty is not None
    base, end = (energies[reference][i] for i in (twenty, len(passes) - 1))
    levels = [base * (1 + excess) for excess in task.excesses]
    levels += [end * (1 + excess) for excess in task.of_end]
    runs = {
        name: record_of(traces[name], energies[name], levels, task.marks) for name in task.methods
    }
    return {"base": base, "end": end, "runs": runs}


def measure(task: Task) -> Record:
    """Run a task in a process of its own."""
    record: Record = child_record("benchmarks.vrkm_runs", [asdict(task)])
    return record


def child(about: dict[str, Any]) -> Record:
    """Run a task that is given as a dictionary."""
    lists = {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
    # Objectives that rise are what is looked for.
    warnings.simplefilter("ignore")
    return compare(Task(**(about | lists)))


if __name__ == "__main__":
    parse(new_parser(__doc__), child)
