"""Runs of the methods of `dcd.py` on one set: partitions, what they come to, and CPU seconds.

    python -m benchmarks.dcd_runs --child JSON      (a task)

All methods of a task run in one process on one thread, in turns, for every seed in another order.
Objectives are those of the centres that a method ends with, outside of all clocks: a sum in double
precision of the squared distances to the nearest of them, by numpy alone and by no code of ours.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import commit, generator_of_commit
from benchmarks.dcd_methods import DETERMINISTIC, METHODS, Found
from benchmarks.lloyd import data_folder
from benchmarks.vrkm_runs import in_turn

__all__ = ["DRAWN", "Others", "Task", "compare", "drawn", "given", "objective", "rows_of"]

Record = dict[str, Any]

DRAWN = ("blobs", "tails", "far", "duplicates", "grid", "gaussian")
"""Kinds of sets of which all but the kind derives from the commit."""
BLOCK = 1 << 20
"""Differences of rows and centres that are held at a time."""
WARM_ROWS, WARM_CLUSTERS = 2_000, 5
"""What all methods go through before any is timed."""


# --- sets -----------------------------------------------------------------------------------------


def drawn(kind: str, r: np.random.Generator) -> NDArray[Any]:
    """10,000 to 50,000 rows of 2 to 20 features, of one kind.

    Parameters
    ----------
    kind : str
        One of ``DRAWN``: round clusters of unequal sizes and widths; features that by themselves
        have Student's t distribution, 2 to 3 degrees of freedom; clusters and one row far out; some
        hundreds of rows, each many times; integers; one isotropic Gaussian.
    r : numpy.random.Generator
    """
    n, d = int(r.integers(10_000, 50_001)), int(r.integers(2, 21))
    if kind == "tails":
        return r.standard_t(r.uniform(2, 3), (n, d)).astype(np.float32)
    if kind == "gaussian":
        return r.standard_normal((n, d), np.float32)
    if kind == "grid":
        return np.rint(r.uniform(2, 8) * r.standard_normal((n, d))).astype(np.int16)
    if kind == "duplicates":
        few = r.standard_normal((int(r.integers(200, 2_000)), d), np.float32)
        return few[r.integers(len(few), size=n)]
    m = int(r.integers(5, 41))
    size = r.pareto(1.5, m) + 0.1
    of = r.choice(m, n, p=size / size.sum())
    x = r.uniform(2, 6) * r.standard_normal((m, d))[of]
    x += r.standard_normal((n, d)) * r.lognormal(0, 0.5, m)[of, None]
    if kind == "far":
        x[r.integers(n)] *= 10 ** r.uniform(3, 6)
    return x.astype(np.float32)


def rows_of(name: str) -> NDArray[Any]:
    """The rows of a set as they are stored, or as the commit draws them."""
    if name in DRAWN:
        return drawn(name, generator_of_commit(18, DRAWN.index(name)))
    rows: NDArray[Any] = np.load(data_folder() / f"{name}.npz")["X"]
    return rows


# --- objectives -----------------------------------------------------------------------------------


def objective(x: NDArray[Any], centers: NDArray[Any]) -> float:
    """The sum of squared distances of all rows to their nearest centres, in double precision."""
    wide = np.asarray(centers, np.float64)
    step, parts = max(1, BLOCK // wide.size), []
    for start in range(0, len(x), step):
        rows = x[start : start + step].astype(np.float64)
        nearest = np.full(len(rows), np.inf)
        for center in wide:
            np.minimum(nearest, ((rows - center) ** 2).sum(axis=1), out=nearest)
        parts.append(float(nearest.sum()))
    return math.fsum(parts)


def told(x: NDArray[Any], found: Found) -> Record:
    """A run as it is kept."""
    values = [objective(x, centers) for centers in found.centers.values()]
    own = list(found.told.values())
    apart = [abs(a / b - 1) for a, b in zip(own, values, strict=True) if b > 0]
    return {
        "seconds": found.seconds,
        "values": values,
        "apart": max(apart, default=0.0),
        **found.about,
    }


# --- the machine ----------------------------------------------------------------------------------


class Others:
    """How many cores other processes take, on average, since it was made."""

    def __init__(self) -> None:
        self._since = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        import psutil

        every = psutil.cpu_times()
        return time.perf_counter(), every.user + every.nice + every.system - time.process_time()

    def cores(self) -> float:
        """Cores."""
        wall, busy = (now - before for now, before in zip(self._now(), self._since, strict=True))
        return max(0.0, busy / wall)


# --- a task ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Methods to compare on one set."""

    name: str
    methods: tuple[str, ...]
    counts: tuple[int, ...]
    """Numbers of clusters."""
    n_seeds: int
    rows: int | None = None
    """The first rows only, for a trial."""


def compare(task: Task) -> Record:
    """Runs of all methods for all seeds; of methods without chance, of one."""
    x = rows_of(task.name)[: task.rows]
    # Code is compiled and loaded; to look for garbage among it takes 65 ms, in whose run is by
    # chance.
    few = x[:: max(1, len(x) // WARM_ROWS)]
    for name in task.methods:
        METHODS[name](few, range(2, WARM_CLUSTERS + 1), task.n_seeds)
    gc.collect()
    gc.freeze()
    others = Others()
    runs: dict[str, list[Record]] = {name: [] for name in task.methods}
    for seed in range(task.n_seeds):
        for name in in_turn(task.methods, seed):
            if name in DETERMINISTIC and runs[name]:
                continue
            begun = time.perf_counter()
            runs[name].append(told(x, METHODS[name](x, task.counts, seed)))
            wall = time.perf_counter() - begun
            spent = runs[name][-1]["seconds"]
            print(
                f"{task.name}, seed {seed}, {name}: {spent:.2f} CPU s of {wall:.2f} s",
                file=sys.stderr,
                flush=True,
            )
    about = {
        "measured": time.strftime("%Y-%m-%d %H:%M:%S"),
        "others": round(others.cores(), 2),
        "counts": list(task.counts),
    }
    n, d = x.shape
    return {
        "n": n,
        "d": d,
        "commit": commit()[:12],
        "methods": {name: {**about, "seeds": found} for name, found in runs.items()},
    }


def given(task: Task) -> list[Any]:
    """What is handed to a process of this module, as JSON."""
    return [asdict(task)]


def main() -> None:
    """A task, given as JSON; for processes that `dcd.py` starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", required=True, help=argparse.SUPPRESS)
    [about] = json.loads(parser.parse_args().child)
    lists = {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
    with warnings.catch_warnings():
        # Fewer distinct rows than clusters are told of, and do no harm here.
        warnings.simplefilter("ignore")
        found = compare(Task(**(about | lists)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
