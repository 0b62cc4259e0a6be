"""Methods and runs of `dcd.py` on one set: partitions, their objectives, and CPU seconds.

Peers are scikit-learn's k-means with ten starts for each number of clusters, in double precision,
which is its faster one on these sets. Its "k-means++" is the greedy one, of several candidates for
each centre; the plain one has one candidate. Ours get rows as they are stored.

All methods of a task run in one process on one thread, in turns, for every seed in another order.
Objectives are those of the centres that a method ends with, outside of all clocks: a sum in double
precision of the squared distances to the nearest of them, by numpy alone and by no code of ours.
"""

from __future__ import annotations

import gc
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk
from benchmarks.common import commit, new_parser, parse
from benchmarks.sets import data_folder

Record = dict[str, Any]

FAST, BALANCED, BEST = "fast", "balanced", "best"
EFFORTS = (FAST, BALANCED, BEST)
"""``DCDBundle`` of every effort."""
TEN, TEN_GREEDY = "ten k-means++ starts", "ten greedy k-means++ starts"
PEERS = (TEN, TEN_GREEDY)
STARTS = 10
BLOCK = 1 << 20
"""Differences of rows and centres that are held at a time."""
WARM_ROWS, WARM_CLUSTERS = 2_000, 5
"""Rows and clusters of a first run of all methods, before any is timed."""


@dataclass
class Found:
    """Partitions, and the CPU seconds of all of them together."""

    centers: dict[int, NDArray[Any]]
    """(k, d) by number of clusters."""
    seconds: float
    about: dict[str, Any] = field(default_factory=dict)
    """Other figures of a fit of ours."""


Method = Callable[[NDArray[Any], Sequence[int], int], Found]
"""``method(rows, counts, seed)``: partitions of rows, one for each number of clusters."""


# --- methods --------------------------------------------------------------------------------------


def effort(name: str) -> Method:
    """One fit of ours for all partitions up to the largest."""

    def find(x: NDArray[Any], counts: Sequence[int], seed: int) -> Found:
        begun = time.process_time()
        algorithm = lk.DCDBundle(effort=name)
        km = lk.KMeans(max(counts), algorithm=algorithm, random_state=seed, n_threads=1).fit(x)
        seconds, path = time.process_time() - begun, km.path_
        bounds = [float(path.lower_bound[k - 1]) for k in counts]
        return Found({k: np.array(path.centers(k)) for k in counts}, seconds, {"bounds": bounds})

    return find


def plain_start(x: NDArray[Any], n_clusters: int, random_state: Any) -> NDArray[Any]:
    """k-means++ with one candidate for each centre."""
    from sklearn.cluster import kmeans_plusplus

    centers, _ = kmeans_plusplus(x, n_clusters, random_state=random_state, n_local_trials=1)
    return np.array(centers)


def ten_starts(init: Any) -> Method:
    """Ten starts for every number of clusters, the best kept, by scikit-learn."""

    def find(x: NDArray[Any], counts: Sequence[int], seed: int) -> Found:
        from sklearn.cluster import KMeans

        x, found = np.ascontiguousarray(x, np.float64), Found({}, 0.0)
        for k in counts:
            chance = np.random.RandomState([seed, k])
            begun = time.process_time()
            km = KMeans(k, init=init, n_init=STARTS, random_state=chance).fit(x)
            found.seconds += time.process_time() - begun
            found.centers[k] = km.cluster_centers_
        return found

    return find


METHODS: dict[str, Method] = {
    TEN: ten_starts(plain_start),
    TEN_GREEDY: ten_starts("k-means++"),
    FAST: effort(FAST),
    BALANCED: effort(BALANCED),
    BEST: effort(BEST),
}
"""All methods by name."""


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


def record_of(x: NDArray[Any], found: Found) -> Record:
    """A run as it is kept."""
    values = [objective(x, centers) for centers in found.centers.values()]
    return {"seconds": found.seconds, "values": values, **found.about}


# --- the machine ----------------------------------------------------------------------------------


class Others:
    """Average number of cores that other processes take since it was made."""

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


def in_turn(methods: Sequence[str], seed: int) -> list[str]:
    """The methods in another order for every seed."""
    at = seed % len(methods)
    return [*methods[at:], *methods[:at]]


def child(
    name: str, methods: list[str], counts: list[int], n_seeds: int, n_rows: int | None
) -> Record:
    """Runs of all methods on a set, or on its first rows, for all seeds."""
    # Fewer distinct rows than clusters cause warnings, and do no harm here.
    warnings.simplefilter("ignore")
    x = np.load(data_folder() / f"{name}.npz")["X"][:n_rows]
    few = x[:: max(1, len(x) // WARM_ROWS)]
    for method in methods:
        METHODS[method](few, range(2, WARM_CLUSTERS + 1), n_seeds)
    # A collection of garbage takes 65 ms, in whichever run it happens.
    gc.collect()
    gc.freeze()
    others = Others()
    runs: dict[str, list[Record]] = {method: [] for method in methods}
    for seed in range(n_seeds):
        for method in in_turn(methods, seed):
            runs[method].append(record_of(x, METHODS[method](x, counts, seed)))
            spent = runs[method][-1]["seconds"]
            print(f"{name}, seed {seed}, {method}: {spent:.2f} s", file=sys.stderr, flush=True)
    about = {
        "measured": time.strftime("%Y-%m-%d %H:%M:%S"),
        "others": round(others.cores(), 2),
        "counts": list(counts),
    }
    found = {method: {**about, "seeds": several} for method, several in runs.items()}
    return {"n": len(x), "d": x.shape[1], "commit": commit()[:12], "methods": found}


if __name__ == "__main__":
    parse(new_parser(__doc__), child)
