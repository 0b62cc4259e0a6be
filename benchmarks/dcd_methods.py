"""Methods of `dcd.py`: each finds partitions of rows into given numbers of clusters.

Peers are scikit-learn's k-means with ten starts for each number of clusters, in double precision,
which is its faster one on these sets. Its "k-means++" is the greedy one, of several candidates for
each centre; the plain one has one candidate. Ours get rows as they are stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import largek_dask as lk

__all__ = [
    "AUTO",
    "BALANCED",
    "BEST",
    "DETERMINISTIC",
    "EFFORTS",
    "EVERY",
    "FAST",
    "METHODS",
    "PAPER",
    "PEERS",
    "PLAIN",
    "STAGES",
    "TEN",
    "TEN_GREEDY",
    "Found",
    "Method",
    "stages_of",
]

FAST, BALANCED, BEST = "fast", "balanced", "best"
EFFORTS = (FAST, BALANCED, BEST)
"""``DCDBundle`` of every effort."""
PAPER, PLAIN = "DCD-Bundle as published", "plain DC"
DETERMINISTIC = (PAPER, PLAIN)
"""Methods without chance, whose runs all end alike."""
TEN, TEN_GREEDY = "ten k-means++ starts", "ten greedy k-means++ starts"
PEERS = (TEN, TEN_GREEDY)
AUTO, EVERY = "KMeans(k)", 'KMeans(k, effort="best")'
STARTS = 10
STAGES = ("up", "down", "swaps", "recombination", "last passes")
"""Stages by the number that a step tells of under "stage"."""
EVALUATED = ("evaluations", "subgradients")
"""What the last step tells: how often the objective, and a subgradient, were computed so far."""


@dataclass
class Found:
    """Partitions, and what it took to find them."""

    centers: dict[int, NDArray[Any]]
    """(k, d) by number of clusters."""
    told: dict[int, float]
    """Objectives as the method tells them."""
    seconds: float
    """CPU seconds of all of them together."""
    about: dict[str, Any] = field(default_factory=dict)
    """What else a fit of ours has told."""


Method = Callable[[NDArray[Any], Sequence[int], int], Found]
"""``method(rows, counts, seed)``: partitions of rows, one for each number of clusters."""


# --- ours -----------------------------------------------------------------------------------------


def path_method(algorithm: Callable[[], Any]) -> Method:
    """One fit for all partitions up to the largest."""

    def find(x: NDArray[Any], counts: Sequence[int], seed: int) -> Found:
        begun = time.process_time()
        km = lk.KMeans(max(counts), algorithm=algorithm(), random_state=seed, n_threads=1).fit(x)
        seconds = time.process_time() - begun
        path = km.path_
        return Found(
            {k: np.array(path.centers(k)) for k in counts},
            {k: float(path.inertia[k - 1]) for k in counts},
            seconds,
            {
                "bounds": [float(path.lower_bound[k - 1]) for k in counts],
                "stages": stages_of(km.history_),
                **last_told(km.history_),
            },
        )

    return find


def stages_of(history: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Steps and wall seconds of every stage; steps that tell of none are left out."""
    found: dict[str, dict[str, float]] = {}
    before = 0.0
    for step in history:
        number, spent = step["extra"].get("stage"), step["seconds"] - before
        before = step["seconds"]
        if number is None:
            continue
        stage = found.setdefault(STAGES[int(number)], {"steps": 0, "seconds": 0.0})
        stage["steps"] += 1
        stage["seconds"] += spent
    return found


def last_told(history: Sequence[Any]) -> dict[str, float]:
    """What was computed in the whole fit, where steps tell of it."""
    last = history[-1]["extra"] if history else {}
    return {name: last[name] for name in EVALUATED if last.get(name) is not None}


def each_method(**options: Any) -> Method:
    """A fit for every number of clusters."""

    def find(x: NDArray[Any], counts: Sequence[int], seed: int) -> Found:
        found = Found({}, {}, 0.0)
        for k in counts:
            begun = time.process_time()
            km = lk.KMeans(k, random_state=seed, n_threads=1, **options).fit(x)
            found.seconds += time.process_time() - begun
            found.centers[k], found.told[k] = np.array(km.cluster_centers_), float(km.inertia_)
        return found

    return find


# --- peers ----------------------------------------------------------------------------------------


def plain_start(x: NDArray[Any], n_clusters: int, random_state: Any) -> NDArray[Any]:
    """K-means++ with one candidate for each centre."""
    from sklearn.cluster import kmeans_plusplus

    centers, _ = kmeans_plusplus(x, n_clusters, random_state=random_state, n_local_trials=1)
    return np.array(centers)


def ten_starts(init: Any) -> Method:
    """Ten starts for every number of clusters, the best kept, by scikit-learn."""

    def find(x: NDArray[Any], counts: Sequence[int], seed: int) -> Found:
        from sklearn.cluster import KMeans

        x, found = np.ascontiguousarray(x, np.float64), Found({}, {}, 0.0)
        for k in counts:
            chance = np.random.RandomState([seed, k])
            begun = time.process_time()
            km = KMeans(k, init=init, n_init=STARTS, random_state=chance).fit(x)
            found.seconds += time.process_time() - begun
            found.centers[k], found.told[k] = km.cluster_centers_, float(km.inertia_)
        return found

    return find


def effort(name: str) -> Method:
    """All partitions with an effort."""
    return path_method(lambda: lk.DCDBundle(effort=name))


METHODS: dict[str, Method] = {
    TEN: ten_starts(plain_start),
    TEN_GREEDY: ten_starts("k-means++"),
    FAST: effort(FAST),
    BALANCED: effort(BALANCED),
    BEST: effort(BEST),
    EVERY: each_method(effort="best"),
    AUTO: each_method(),
    PAPER: path_method(lambda: lk.DCDBundle.paper()),
    PLAIN: path_method(lambda: lk.DCClust()),
}
"""All methods by name."""
