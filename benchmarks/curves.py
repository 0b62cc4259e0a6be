"""Runs of our algorithms and of scikit-learn's mini-batches: energy against CPU seconds.

    python -m benchmarks.curves JSON      (a list of tasks, in a process of its own)

After each step of a run its CPU seconds so far are noted (the scan of the rows and the starting
centres included) and, outside the clock, the energy of its centres over ALL rows: for free where
the next step's cost is just that, else by an assignment of all rows. That costs as much as a
step, so energies are computed for some steps, and then by bisection for the first step at each
level of energy that is asked for.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import ROOT, peer_environments
from benchmarks.lloyd import starting_centers

__all__ = [
    "AUTO",
    "LLOYD",
    "METHODS",
    "MINIBATCH",
    "NMBATCH",
    "OWN_START",
    "PUBLISHED",
    "Energies",
    "Run",
    "Task",
    "chosen",
    "measure",
    "steps_of",
    "time_to",
    "warm_up",
]

AUTO = "auto"
LLOYD, DENSE = "lloyd, bounds", "lloyd"
NMBATCH, OWN_START = "nmbatch", "nmbatch, own start"
PUBLISHED = "nmbatch as published"
MINIBATCH = "scikit-learn MiniBatchKMeans"
METHODS: dict[str, Any] = {
    AUTO: lk.Truncated(),
    LLOYD: lk.Lloyd(),
    DENSE: lk.Lloyd(bounds=None),
    NMBATCH: lk.NMBatch(),
    OWN_START: lk.NMBatch(),
    "nmbatch, no bounds": lk.NMBatch(bounds=False),
    PUBLISHED: lk.NMBatch.paper(),
    "nmbatch as published, rho = 1": lk.NMBatch.paper(rho=1.0),
    "mbatch": lk.MiniBatch(),
    "mbatch, latest votes": lk.MiniBatch(votes="latest"),
}
SNAPSHOTS = 12
"""Steps of a run whose energy costs an assignment of all rows; further ones for levels."""
FREE_SNAPSHOTS = 100
"""Steps that are kept of those whose energy costs nothing."""

Steps = Iterator[tuple[NDArray[np.float32], dict[str, float]]]
Run = dict[str, Any]
"""``steps`` (1 is the first), ``seconds`` and ``energies`` of some, ``clock`` of all, totals."""


@dataclass(frozen=True)
class Task:
    """One run."""

    method: str
    path: str
    k: int
    seed: int = 0
    limit: float = 60.0
    """CPU seconds after which a run is cut."""
    levels: tuple[float, ...] = ()
    """Energies at which the first step that reaches them is wanted."""
    excesses: tuple[float, ...] = ()
    """The same, relative to the run's own end."""
    steps: tuple[int, ...] = ()
    """Steps that are wanted whatever their energy."""
    energies: bool = True
    """False: the run takes the same steps as another one; only its clock is wanted."""


def steps_of(method: str, x: NDArray[np.float32], centers: NDArray[np.float32], seed: int) -> Steps:
    """Centres after every step, and what the step said of itself.

    ``rows`` are those that were assigned, ``share`` the distances computed out of all N·k,
    ``cost`` the energy of the centres that the step met, if it was that over all rows.
    """
    if method == MINIBATCH:
        yield from _steps_of_scikit_learn(x, centers, seed)
        return
    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.kmeans import KMeansProblem
    from largek_dask.data.sources import open_rows
    from largek_dask.passes.local import LocalPasses

    init: Any = "auto" if method in (AUTO, OWN_START) else centers
    algorithm = replace(METHODS[method], problem=KMeansProblem(len(centers), init))
    rng = Rng(seed)
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        while True:
            state, info = algorithm.step(passes, rng, state)
            about = {"rows": float(info.rows), "ended": float(info.converged)}
            if "distances" in info.extra:
                about["share"] = info.extra["distances"] * info.rows / len(x)
            if info.rows == len(x) and method != AUTO and not isinstance(algorithm, lk.MiniBatch):
                about["cost"] = info.cost / len(x)
            yield algorithm.model(state).centers, about
            if info.converged:
                return


def _steps_of_scikit_learn(
    x: NDArray[np.float32], centers: NDArray[np.float32], seed: int
) -> Steps:
    """Batches of the size of ours, in random order, a new one every round."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    k, n = len(centers), len(x)
    size = max(10 * k, 4096)
    km = MiniBatchKMeans(k, init=centers, n_init=1, batch_size=size, random_state=seed)
    r = np.random.default_rng(seed)
    with threadpool_limits(1):
        while True:
            order = r.permutation(n)
            for begin in range(0, n, size):
                km.partial_fit(x[order[begin : begin + size]])
                yield km.cluster_centers_, {"rows": float(min(size, n - begin))}


class Energies:
    """Mean squared distance of all rows to their nearest centres, for centres after each step."""

    def __init__(self, x: NDArray[np.float32], met: list[NDArray[np.float32]]) -> None:
        self.x, self.met = x, met
        self.shift = x.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.known: dict[int, float] = {}

    def __getitem__(self, i: int) -> float:
        """Energy after step ``i``, counted from 0."""
        if i not in self.known:
            self.known[i] = self._computed(self.met[i])
        return self.known[i]

    def _computed(self, centers: NDArray[np.float32]) -> float:
        from largek_dask.kernels.distances import nearest, pack_centers, squared_distances
        from largek_dask.passes.local import available_cpus

        packed = pack_centers(np.ascontiguousarray(centers, np.float32), self.shift)
        parts = np.array_split(self.x, available_cpus())

        def total(part: NDArray[np.float32]) -> float:
            return float(squared_distances(part, packed, nearest(part, packed)).sum())

        # Outside the clock all cores may help.
        with ThreadPoolExecutor() as pool:
            return sum(pool.map(total, parts)) / len(self.x)

    def first_within(self, level: float) -> int | None:
        """The first step at or below a level, as far as the known energies tell; None: never."""
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
    """Some of ``n_steps`` steps, the first ones densely, the last one among them."""
    if n_steps <= most:
        return list(range(n_steps))
    return [int(i) for i in np.unique(np.geomspace(1, n_steps, most).astype(int) - 1)]


def warm_up(method: str, x: NDArray[np.float32], k: int) -> None:
    """A few rows first, so that no compilation or loading of code is timed."""
    for number, _ in enumerate(steps_of(method, x[: 20 * k], x[:k], 0)):
        if number == 30:
            break


def peak_mb() -> float:
    """The most memory that this process has taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def run(task: Task, x: NDArray[np.float32]) -> Run:
    """Seconds and energies of a run, in this process."""
    centers = starting_centers(x, task.k)
    before = peak_mb()
    clock, met, said = [], [], []
    begun = time.process_time()
    spent = 0.0
    for now, about in steps_of(task.method, x, centers, task.seed):
        spent += time.process_time() - begun
        clock.append(spent)
        met.append(np.array(now, np.float32))
        said.append(about)
        if spent > task.limit:
            break
        begun = time.process_time()
    kept = sum(array.nbytes for array in met) / 1e6
    result: Run = {
        "before_mb": before,
        # what the benchmark keeps for itself is not the fit's
        "peak_mb": max(before, peak_mb() - kept),
        "n_steps": len(met),
        "total": clock[-1],
        "passes": round(sum(about["rows"] for about in said) / len(x), 3),
        "ended": bool(said[-1].get("ended", False)),
    }
    result["clock"] = clock
    if not task.energies:
        return result
    energies = Energies(x, met)
    for i, about in enumerate(said[1:]):
        if "cost" in about:
            # a step's cost is the energy of the centres before it
            energies.known[i] = about["cost"]
    free = sorted(energies.known)
    kept = {free[i] for i in chosen(len(free), FREE_SNAPSHOTS)}
    paid = [i for i in range(len(met)) if i not in energies.known]
    kept |= {paid[i] for i in chosen(len(paid), SNAPSHOTS)} | {len(met) - 1}
    kept |= {step - 1 for step in task.steps if step <= len(met)}
    for i in kept:
        energies[i]
    end = energies[len(met) - 1]
    for level in (*task.levels, *(end * (1 + excess) for excess in task.excesses)):
        if (step := energies.first_within(level)) is not None:
            kept.add(step)
    order = sorted(kept)
    shares = [about["share"] for about in said if "share" in about]
    return result | {
        "steps": [i + 1 for i in order],
        "seconds": [clock[i] for i in order],
        "energies": [energies[i] for i in order],
        "mean_share": float(np.mean(shares)) if shares else None,
        "shares": [shares[i] for i in chosen(len(shares), FREE_SNAPSHOTS)],
        "share_steps": [i + 1 for i in chosen(len(shares), FREE_SNAPSHOTS)],
    }


def measure(tasks: list[Task]) -> list[Run]:
    """Runs on the same rows, one after the other in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.curves", json.dumps([asdict(t) for t in tasks])]
    scikit_learn = any(task.method == MINIBATCH for task in tasks)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=peer_environments("scikit-learn" if scikit_learn else "largek_dask")[""],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def time_to(run: Run, level: float) -> float | None:
    """CPU seconds until the energy was at most ``level``; None: never."""
    for seconds, value in zip(run["seconds"], run["energies"], strict=True):
        if value <= level:
            return float(seconds)
    return None


def main() -> None:
    """Tasks on the same rows, given as JSON; for processes that this module starts."""
    tasks = []
    for about in json.loads(sys.argv[1]):
        lists = {key: tuple(value) for key, value in about.items() if isinstance(value, list)}
        tasks.append(Task(**(about | lists)))
    x = np.load(tasks[0].path)
    results, warm = [], set()
    for task in tasks:
        if task.method not in warm:
            warm_up(task.method, x, task.k)
            warm.add(task.method)
        results.append(run(task, x))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
