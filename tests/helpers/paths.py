"""Models that hold every partition, made by hand: no algorithm is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Info, Passes, Rng
from largek_dask.algorithms.choices import Effort
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.path_arrays import PathArrays, packed
from largek_dask.algorithms.path_problem import PathProblem
from largek_dask.driver.provenance import describe
from largek_dask.model import PathModel


def next_partition(x: NDArray[Any], centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The row that is farthest from its centre as one more of them, then some of Lloyd's steps.

    The same centres where every row has one already.
    """
    squared = squares(x, centers).min(1)
    if not squared.max() > 0:
        return centers
    centers = np.concatenate([centers, x[[squared.argmax()]].astype(np.float64)])
    for _ in range(5):
        labels = squares(x, centers).argmin(1)
        members = (x[labels == j].astype(np.float64) for j in range(len(centers)))
        centers = np.array([rows.mean(0) for rows in members])
    return centers


def squares(x: NDArray[Any], centers: NDArray[Any]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = ((x[:, None].astype(np.float64) - centers) ** 2).sum(-1)
    return found


def arrays_of(x: NDArray[Any], partitions: Sequence[NDArray[Any]], **given: Any) -> PathArrays:
    """What is known of partitions of rows of weight 1; lower bounds are half the inertia."""
    held = [centers.astype(x.dtype) for centers in partitions]
    found = [squares(x, centers) for centers in held]
    counts = [np.bincount(f.argmin(1), minlength=f.shape[1]).astype(np.float64) for f in found]
    inertia = np.array([f.min(1).sum() for f in found])
    stationarity = np.zeros((len(held), 4))
    stationarity[:, 3] = np.nan
    arrays = PathArrays(
        centers=held[-1],
        counts=counts[-1],
        shift=np.zeros(x.shape[1], x.dtype),
        path=packed(held),
        counts_of_path=np.concatenate(counts),
        inertia=inertia,
        lower_bound=inertia / 2,
        stationarity=stationarity,
        stability=np.linspace(1, 0.5, len(held)),
    )
    return replace(arrays, **given)


def path_arrays(x: NDArray[Any], k: int, **given: Any) -> PathArrays:
    """Partitions of ``x`` into 1 to k clusters."""
    partitions = [x.mean(axis=0, keepdims=True, dtype=np.float64)]
    while len(partitions) < k:
        partitions.append(next_partition(x, partitions[-1]))
    return arrays_of(x, partitions, **given)


def path_model(x: NDArray[Any], k: int, **more: Any) -> PathModel:
    """A model of such arrays, with what a fit notes of rows."""
    arrays = path_arrays(x, k, **more)
    provenance = {
        "parameters": {"algorithm": {"name": "PartitionPath"}, "n_clusters": k, "seed": 0},
        "data": {"content": {"shape": list(x.shape)}},
        "inertia": float(arrays.inertia[-1]),
        "n_iter": k,
        "stop_reason": "converged",
    }
    return PathModel(arrays, provenance=describe(provenance))


def centers_of(model: PathModel) -> CenterArrays:
    """The arrays of the last partition alone."""
    return CenterArrays(model.arrays.centers, model.arrays.counts, model.arrays.shift)


@dataclass(frozen=True, slots=True)
class PathToyState:
    x: NDArray[Any]
    partitions: tuple[NDArray[np.float64], ...]
    is_done: bool


@dataclass(frozen=True)
class PathToy(Algorithm[PathToyState, PathProblem]):
    """One more cluster every step, until there are enough, or as many as distinct rows."""

    effort: Effort = "balanced"
    solves: ClassVar[type[PathProblem]] = PathProblem

    def init(self, passes: Passes, rng: Rng) -> PathToyState:
        x = passes.take().x
        return PathToyState(x, (x.mean(axis=0, keepdims=True, dtype=np.float64),), False)

    def step(self, passes: Passes, rng: Rng, state: PathToyState) -> tuple[PathToyState, Info]:
        x, partitions = state.x, state.partitions
        found = next_partition(x, partitions[-1])
        is_new = len(partitions) < self.problem.n_clusters and len(found) > len(partitions)
        if is_new:
            partitions = (*partitions, found)
        extra = {"partitions": float(len(partitions))}
        if len(found) == len(partitions) and not is_new:
            extra["distinct"] = 1.0
        cost = float(squares(x, partitions[-1]).min(1).sum())
        info = Info(cost, len(x), converged=not is_new, extra=extra)
        return PathToyState(x, partitions, not is_new), info

    def model(self, state: PathToyState) -> PathArrays:
        return arrays_of(state.x, state.partitions)
