"""Runs of the methods of `vrkm.py` from common starting centres: energy against passes and seconds.

    python -m benchmarks.vrkm_runs --child JSON      (a list: the kind of run, and what it is given)

All runs on a set are of one process on one thread, the methods in turns, for every seed in another
order. CPU seconds are noted after every step, the scan of the rows included; passes are rows
that were assigned, over those there are. Energies are over all rows, and outside the clock: for
free where the next step's cost is just that (Lloyd's algorithm, and nested batches that are
everything), else by an assignment of all rows after some of the steps, and then by bisection after
the first one at each energy that is asked for.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.curves import Energies, chosen
from benchmarks.vrkm_methods import METHODS, Method, Setting, from_all_rows

__all__ = ["Task", "Trace", "compare", "compare_labels", "follow", "given", "starts", "told"]

SAME = 1 + 1e-6
"""Energies of rows in single precision are known as well as that: a level is reached so near it."""
SNAPSHOTS = 24
"""Steps of a run whose energy is computed for its curve."""
Record = dict[str, Any]


# --- a run ----------------------------------------------------------------------------------------


@dataclass
class Trace:
    """A run: what was noted after the steps that are looked at."""

    passes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    met: list[NDArray[np.float32] | None] = field(default_factory=list)
    """Centres; None where their energy is known."""
    known: dict[int, float] = field(default_factory=dict)
    ended: bool = False
    etas: list[float] = field(default_factory=list)


def follow(
    method: Method,
    x: Any,
    centers: NDArray[np.float32],
    seed: int,
    most: float = np.inf,
    limit: float = np.inf,
    *,
    keep: bool = False,
) -> Trace:
    """Run a method until it ends, has made ``most`` passes or taken ``limit`` CPU seconds.

    Centres whose energy a later step tells are let go, unless ``keep``.
    """
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    found, spent, passes = Trace(), 0.0, 0.0
    how = nullcontext if method.samples else from_all_rows
    begun = time.process_time()
    with how(), LocalPasses(open_rows(x), n_threads=1) as data:
        for step in method.steps(Setting(data, x, centers, seed)):
            spent += time.process_time() - begun
            passes += step.passes
            if step.cost is not None and found.met and method.every == 0 and not keep:
                found.known[len(found.met) - 1], found.met[-1] = step.cost, None
            if step.eta is not None:
                found.etas.append(step.eta)
            over = step.ended or passes >= most - 1e-9 or spent >= limit
            last = found.passes[-1] if found.passes else 0.0
            if over or passes - last >= method.every - 1e-9:
                found.passes.append(passes)
                found.seconds.append(spent)
                found.met.append(rounded_off(step.centers()))
            if over:
                found.ended = step.ended
                break
            begun = time.process_time()
    return found


def rounded_off(centers: NDArray[Any]) -> NDArray[np.float32]:
    """A copy in single precision; what is too large for it becomes infinite."""
    with np.errstate(over="ignore"):
        return np.array(centers, np.float32)


class RowEnergies(Energies):
    """The same of dense or sparse rows; infinite where a centre is not finite."""

    def __init__(self, x: Any, found: Trace) -> None:
        self.sparse = not isinstance(x, np.ndarray)
        if self.sparse:
            self.x, self.met = x, found.met  # type: ignore[assignment]
        else:
            super().__init__(x, found.met)  # type: ignore[arg-type]
        self.known = dict(found.known)

    def _computed(self, centers: NDArray[np.float32]) -> float:
        if not np.isfinite(centers).all():
            return np.inf
        if self.sparse:
            from benchmarks.sparse import energy

            return energy(self.x, centers)
        with np.errstate(over="ignore", invalid="ignore"):
            value = super()._computed(centers)
        return value if np.isfinite(value) else np.inf


def told(
    found: Trace, energies: Energies, levels: tuple[float, ...], marks: tuple[float, ...]
) -> Record:
    """A run as it is kept: passes, seconds and energies after some of its steps.

    Among them the first step at each of the levels, and the last one before each number of passes.
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
        "steps": n,
        "passes": [found.passes[i] for i in order],
        "seconds": [found.seconds[i] for i in order],
        "energies": [finite(energies[i]) for i in order],
        "ended": found.ended,
        "halvings": halvings(found.etas),
    }


def finite(value: float) -> float | None:
    """None stands for what is not finite; JSON has no word for it."""
    return value if np.isfinite(value) else None


def halvings(etas: list[float]) -> int:
    """How often a step size was made smaller."""
    return int(np.sum(np.diff(etas) < 0)) if len(etas) > 1 else 0


def last_within(passes: list[float], most: float) -> int | None:
    """The last step that has made no more than ``most`` passes; None: there is none."""
    within = int(np.searchsorted(passes, most + 1e-6, side="right"))
    return within - 1 if within else None


# --- sets -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Methods to compare on one set."""

    path: str
    """Rows: .npy, or .npz of CSR rows."""
    k: int
    methods: tuple[str, ...]
    """The first one is the reference: Lloyd's algorithm."""
    n_seeds: int
    start: str = "random"
    """Where the common starting centres come from: "random" rows, or "k-means++"."""
    passes: float | None = None
    """Passes after which runs are cut; None: they are not."""
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU seconds after which runs are cut, by method."""
    marks: tuple[float, ...] = ()
    """Passes after which energies are wanted."""
    excesses: tuple[float, ...] = ()
    """Energies above that of 20 Lloyd passes, as a share of it, to be found the first step at."""
    of_end: tuple[float, ...] = ()
    """The same above the reference's end."""
    of: tuple[str, ...] = ()
    """Methods on whose curves levels are taken for all others."""
    rows: int | None = None
    """The first rows only, for a trial."""
    labels: str | None = None
    """Path of the true labels, of :func:`compare_labels`."""


REFERENCE_PASSES = 20
"""Lloyd's passes whose objective is the paper's baseline here."""
COMPARED = 8
"""Levels on the curve of a method that is named in ``Task.of``."""
DEFAULT_LIMIT = 300.0
"""CPU seconds after which every run is cut."""
WARM_ROWS, WARM_SECONDS = 20_000, 5.0
"""Rows that all methods go through before any is timed, at least, and CPU seconds of each."""


def load(task: Task) -> Any:
    """The rows of a task."""
    if task.path.endswith(".npz"):
        from benchmarks.sparse import load as load_sparse

        x = load_sparse(task.path)
    else:
        x = np.load(task.path)
    return x if task.rows is None else x[: task.rows]


def starts(x: Any, k: int, seed: int, kind: str) -> NDArray[np.float32]:
    """(k, d) common starting centres; outside of all clocks."""
    n = x.shape[0]
    if kind == "random":
        drawn = x[np.sort(np.random.default_rng([7, seed]).choice(n, k, replace=False))]
        found: NDArray[np.float32] = drawn if isinstance(x, np.ndarray) else drawn.toarray()
        return found
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.parts.seeding import initial_centers
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    with LocalPasses(open_rows(x)) as passes:
        return np.array(initial_centers(passes, Rng(seed), k, kind), np.float32)


def warm_up(methods: tuple[str, ...], x: Any, k: int) -> None:
    """A few rows first, so that no compilation or loading of code is timed."""
    few = x[: max(20 * k, WARM_ROWS)]
    centers = starts(few, k, 0, "random")
    for name in methods:
        follow(METHODS[name], few, centers, 0, limit=WARM_SECONDS)
    # To look for garbage among all that has been loaded takes 65 ms, in whose run is by chance.
    gc.collect()
    gc.freeze()


def in_turn(methods: tuple[str, ...], seed: int) -> list[str]:
    """The methods in another order for every seed."""
    at = seed % len(methods)
    return [*methods[at:], *methods[:at]]


def compare(task: Task) -> Record:
    """Runs of all methods for all seeds."""
    x = load(task)
    warm_up(task.methods, x, task.k)
    found = []
    for seed in range(task.n_seeds):
        begun = time.perf_counter()
        found.append(compare_once(task, x, seed))
        say(task, seed, time.perf_counter() - begun)
    n, d = x.shape
    return {"n": n, "d": d, "k": task.k, "start": task.start, "seeds": found}


def say(task: Task, seed: int, seconds: float) -> None:
    """A line of progress, where no result is looked for."""
    name = Path(task.path).stem
    print(f"{name}, k = {task.k}, seed {seed}: {seconds:.0f} s", file=sys.stderr, flush=True)


def compare_once(task: Task, x: Any, seed: int) -> Record:
    """Runs of all methods from one start."""
    centers = starts(x, task.k, seed, task.start)
    most = np.inf if task.passes is None else task.passes
    traces: dict[str, Trace] = {}
    for name in in_turn(task.methods, seed):
        limit = task.seconds.get(name, DEFAULT_LIMIT)
        traces[name] = follow(METHODS[name], x, centers, seed, most, limit)
    energies = {name: RowEnergies(x, trace) for name, trace in traces.items()}
    reference = task.methods[0]
    passes = traces[reference].passes
    twenty = last_within(passes, REFERENCE_PASSES)
    assert twenty is not None
    base, end = (energies[reference][i] for i in (twenty, len(passes) - 1))
    levels = [base * (1 + excess) for excess in task.excesses]
    levels += [end * (1 + excess) for excess in task.of_end]
    compared = {name: levels_on(energies[name], len(traces[name].passes)) for name in task.of}
    levels += [level for several in compared.values() for level in several]
    runs = {
        name: told(traces[name], energies[name], tuple(levels), task.marks) for name in task.methods
    }
    return {"base": base, "end": end, "compared": compared, "runs": runs}


def levels_on(energies: Energies, n_steps: int) -> list[float]:
    """Energies that a run comes to, from early to its end, each lower than the one before."""
    met = [energies[i] for i in chosen(n_steps, SNAPSHOTS)]
    lowest = [value for i, value in enumerate(met) if value < min(met[:i], default=np.inf)]
    return [lowest[i] for i in chosen(len(lowest), COMPARED)]


def compare_labels(task: Task) -> Record:
    """Scores of labels (the paper's table 4) after the CPU seconds of 20 passes of the first."""
    from largek_dask.estimators import scores
    from largek_dask.kernels.distances import nearest, pack_centers

    x = load(task)
    assert task.labels is not None
    truth = np.load(task.labels)[: len(x)].astype(np.int64)
    shift = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    warm_up(task.methods, x, task.k)
    found = []
    for seed in range(task.n_seeds):
        begun = time.perf_counter()
        centers, told_of = starts(x, task.k, seed, task.start), {}
        reference = follow(METHODS[task.methods[0]], x, centers, seed, REFERENCE_PASSES)
        limit = reference.seconds[-1]
        for name in in_turn(task.methods, seed):
            trace = reference
            if name != task.methods[0]:
                trace = follow(METHODS[name], x, centers, seed, limit=limit, keep=True)
            at = last_within(trace.seconds, limit) or 0
            last = trace.met[at]
            assert last is not None
            labels = nearest(x, pack_centers(last, shift))
            told_of[name] = {
                "acc": float(scores.accuracy(labels, truth)),
                "nmi": float(scores.nmi(labels, truth)),
                "purity": float(scores.purity(labels, truth)),
                "passes": trace.passes[at],
                "seconds": trace.seconds[at],
            }
        found.append({"limit": limit, "runs": {name: told_of[name] for name in task.methods}})
        say(task, seed, time.perf_counter() - begun)
    n, d = x.shape
    return {"n": n, "d": d, "k": task.k, "classes": len(np.unique(truth)), "seeds": found}


JOBS: dict[str, Callable[[Task], Record]] = {"compare": compare, "labels": compare_labels}
"""What can be asked of a process of this module."""


def given(kind: str, task: Task) -> list[Any]:
    """What is handed to a process of this module, as JSON."""
    return [kind, asdict(task)]


def main() -> None:
    """One job, given as JSON; for processes that `vrkm.py` starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", required=True, help=argparse.SUPPRESS)
    kind, about = json.loads(parser.parse_args().child)
    lists = {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
    with warnings.catch_warnings():
        # Objectives that rise are what is looked for.
        warnings.simplefilter("ignore")
        found = JOBS[kind](Task(**(about | lists)))
    sys.stdout.flush()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
