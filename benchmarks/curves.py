"""Measure energy against seconds after each step of our algorithms and of scikit-learn.

The seconds of each step are recorded (``common.clock``), including the first scan of the rows and
the starting centres, but not the computation of energies. If the next step's cost is the energy,
no computation is necessary. Otherwise an energy requires an assignment of all rows, which takes as
long as a step. Therefore energies are computed for some steps, and then by bisection for the first
step at each required level of energy.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import child_record, clock, new_parser, parse, peak_bytes, thread_count
from benchmarks.sets import load, starting_centers

AUTO = "auto"
LLOYD = "lloyd"
NMBATCH = "nmbatch"
TABLE = "table of labels"
MINIBATCH = "scikit-learn MiniBatchKMeans"
METHODS: dict[str, Any] = {
    AUTO: lk.Truncated(),
    LLOYD: lk.Lloyd(),
    NMBATCH: lk.NMBatch(),
    TABLE: lk.IncrementalLloyd(),
}
SNAPSHOTS = 12
"""Number of steps for which energies are computed by an assignment of all rows."""
FREE_SNAPSHOTS = 100
"""Number of steps that are kept if energies need no assignment of rows."""

Steps = Iterator[tuple[NDArray[np.float32], dict[str, float]]]
Run = dict[str, Any]
"""Record of a run: ``steps`` (from 1), ``seconds`` and ``energies`` of some steps, ``clock`` of
all."""


@dataclass(frozen=True)
class Task:
    """Parameters of a run."""

    method: str
    path: str
    k: int
    seed: int = 0
    limit: float = 60.0
    """Time limit in seconds."""
    levels: tuple[float, ...] = ()
    """Energies for which the first step is determined."""
    excesses: tuple[float, ...] = ()
    """Excesses over the final energy for which the first step is determined."""
    steps: tuple[int, ...] = ()
    """Steps for which energies are always computed."""
    last: int | None = None
    """Maximum number of steps."""
    energies: bool = True
    """False to record only times, if another run takes the same steps."""


def steps_of(method: str, x: Any, centers: NDArray[np.float32], seed: int) -> Steps:
    """Yield the centres and statistics after every step, on dense or sparse rows.

    The statistics are ``rows`` (number of assigned rows), ``share`` (fraction of all N·k distances
    that were computed) and ``cost`` (energy before the step, if it was computed over all rows).
    """
    if method == MINIBATCH:
        yield from _steps_of_scikit_learn(x, centers, seed)
        return
    from largek_dask.algorithms.auto import Auto
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    rows, n, k = open_rows(x), x.shape[0], len(centers)
    init: Any = "auto" if method == AUTO else centers
    algorithm = METHODS[method]
    if method == AUTO and not isinstance(x, np.ndarray):
        algorithm = Auto().choose(rows, k).algorithm
    algorithm = algorithm.bind(KMeansProblem(k, init))
    rng = Rng(seed)
    with LocalPasses(rows, n_threads=thread_count()) as passes:
        state = algorithm.init(passes, rng)
        while True:
            state, info = algorithm.step(passes, rng, state)
            about = {"rows": float(info.rows), "ended": float(info.converged)}
            if "distances" in info.extra:
                about["share"] = info.extra["distances"] * info.rows / n
            if info.rows == n and isinstance(algorithm, (lk.Lloyd, lk.NMBatch)):
                about["cost"] = info.cost / n
            yield algorithm.model(state).centers, about
            if info.converged:
                return


def _steps_of_scikit_learn(x: Any, centers: NDArray[np.float32], seed: int) -> Steps:
    """Yield centres of mini-batches of the same size as ours, shuffled in every round."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    k, n = len(centers), x.shape[0]
    size = max(10 * k, 4096)
    km = MiniBatchKMeans(k, init=centers, n_init=1, batch_size=size, random_state=seed)
    r = np.random.default_rng(seed)
    with threadpool_limits(thread_count()):
        while True:
            order = r.permutation(n)
            for begin in range(0, n, size):
                km.partial_fit(x[order[begin : begin + size]])
                yield km.cluster_centers_, {"rows": float(min(size, n - begin))}


class Energies:
    """Energies of the centres after each step: mean squared distances of all rows."""

    def __init__(self, x: Any, met: list[NDArray[np.float32]]) -> None:
        self.x, self.met = x, met
        self.is_dense = isinstance(x, np.ndarray)
        self.shift = np.zeros(x.shape[1], np.float32)
        if self.is_dense:
            self.shift = x.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.known: dict[int, float] = {}

    def __getitem__(self, i: int) -> float:
        """Return the energy after step ``i``, counted from 0."""
        if i not in self.known:
            self.known[i] = self._computed(self.met[i])
        return self.known[i]

    def _computed(self, centers: NDArray[np.float32]) -> float:
        from largek_dask.data.csr_blocks import block_of
        from largek_dask.kernels.distances import nearest, pack_centers, squared_distances
        from largek_dask.passes.local import available_cpus

        packed = pack_centers(np.ascontiguousarray(centers, np.float32), self.shift)

        def total(part: Any) -> float:
            return float(squared_distances(part, packed, nearest(part, packed)).sum())

        n, d = self.x.shape
        if not self.is_dense:
            return total(block_of(self.x.data, self.x.indices, self.x.indptr, d)) / n
        # Computations that are not timed may use all cores.
        with ThreadPoolExecutor() as pool:
            return sum(pool.map(total, np.array_split(self.x, available_cpus()))) / n

    def first_within(self, level: float) -> int | None:
        """Return the first step at or below a level according to known energies, or None."""
        steps = sorted(self.known)
        hit = next((n for n, i in enumerate(steps) if self.known[i] <= level), None)
        if hit is None:
            return None
        low, high = (steps[hit - 1] if hit else -1), steps[hit]
        while high - low > 1:
            middle = (low + high) // 2
            if self[middle] <= level:
                high = middle
            else:
                low = middle
        return high


def chosen(n_steps: int, most: int) -> list[int]:
    """Return a selection of steps, dense at the beginning and including the last step."""
    if n_steps <= most:
        return list(range(n_steps))
    return [int(i) for i in np.unique(np.geomspace(1, n_steps, most).astype(int) - 1)]


def warm_up(method: str, x: Any, k: int) -> None:
    """Run on a few rows first, so that times do not include compiling or loading code."""
    few = x[: 20 * k]
    for number, _ in enumerate(steps_of(method, few, starting_centers(few, k), 0)):
        if number == 30:
            break


@dataclass
class Trace:
    """Passes, seconds, centres and statistics after every step of a run."""

    passes: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    met: list[NDArray[np.float32]] = field(default_factory=list)
    said: list[dict[str, float]] = field(default_factory=list)


def follow(task: Task, x: Any, centers: NDArray[np.float32]) -> Trace:
    """Run until the end, or until a limit of the task."""
    found, spent, passes = Trace(), 0.0, 0.0
    begun = clock()
    for now, about in steps_of(task.method, x, centers, task.seed):
        spent += clock() - begun
        passes += about["rows"] / x.shape[0]
        found.passes.append(passes)
        found.clock.append(spent)
        found.met.append(np.array(now, np.float32))
        found.said.append(about)
        if spent > task.limit or len(found.met) == task.last:
            break
        begun = clock()
    return found


def energies_of(x: Any, found: Trace) -> Energies:
    """Return the energies of a run; those that steps reported are known."""
    energies = Energies(x, found.met)
    for i, about in enumerate(found.said[1:]):
        if "cost" in about:
            # The cost of a step is the energy of the centres before the step.
            energies.known[i] = about["cost"]
    return energies


def record_of(task: Task, found: Trace, energies: Energies) -> Run:
    """Return the record of a run with the energies of some steps."""
    n = len(found.met)
    free = sorted(energies.known)
    kept = {free[i] for i in chosen(len(free), FREE_SNAPSHOTS)}
    paid = [i for i in range(n) if i not in energies.known]
    kept |= {paid[i] for i in chosen(len(paid), SNAPSHOTS)} | {n - 1}
    kept |= {step - 1 for step in task.steps if step <= n}
    for i in kept:
        energies[i]
    end = energies[n - 1]
    for level in (*task.levels, *(end * (1 + excess) for excess in task.excesses)):
        if (step := energies.first_within(level)) is not None:
            kept.add(step)
    order = sorted(kept)
    shares = [about["share"] for about in found.said if "share" in about]
    return {
        "steps": [i + 1 for i in order],
        "passes": [found.passes[i] for i in order],
        "seconds": [found.clock[i] for i in order],
        "energies": [energies[i] for i in order],
        "ended": bool(found.said[-1].get("ended", False)),
        "mean_share": float(np.mean(shares)) if shares else None,
    }


def run(task: Task, x: Any) -> Run:
    """Run a task from the common starting centres in this process."""
    before = peak_bytes() / 1e6
    found = follow(task, x, starting_centers(x, task.k))
    kept = sum(array.nbytes for array in found.met) / 1e6
    result: Run = {
        "before_mb": before,
        # Exclude the centres that the benchmark keeps.
        "peak_mb": max(before, peak_bytes() / 1e6 - kept),
        "n_steps": len(found.met),
        "total": found.clock[-1],
        "ended": bool(found.said[-1].get("ended", False)),
        "clock": found.clock,
    }
    if not task.energies:
        return result
    return result | record_of(task, found, energies_of(x, found))


def measure(tasks: list[Task]) -> list[Run]:
    """Run tasks on the same rows, one after another in a new process."""
    runs: list[Run] = child_record("benchmarks.curves", [asdict(t) for t in tasks])
    return runs


def child(*given: dict[str, Any]) -> list[Run]:
    tasks = []
    for about in given:
        lists = {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
        tasks.append(Task(**(about | lists)))
    x = load(tasks[0].path)
    results, warm = [], set()
    for task in tasks:
        if task.method not in warm:
            warm_up(task.method, x, task.k)
            warm.add(task.method)
        results.append(run(task, x))
    return results


if __name__ == "__main__":
    parse(new_parser(__doc__), child)
