"""A toy that is no k-means: an objective that is raised, its own problem, labels and kind of model.

Each cluster is a bump of its own height, h / (1 + ||x - m||^2 / width^2). A row belongs to the
highest bump above it, which is often not that of the nearest mean, and the sum of these heights
over all rows is raised. Steps are those of a minorisation: no step lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Info, Passes, Rng
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Labelling, Problem
from largek_dask.driver.final import label_rows
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.model import Model

CLOSENESS = Objective("total_closeness", "closeness", "Σ w h / (1 + d²)", "max")


@dataclass(frozen=True, slots=True)
class BumpArrays:
    means: NDArray[np.float64]
    heights: NDArray[np.float64]
    counts: NDArray[np.float64]
    width: NDArray[np.float64]


def bumps(x: Any, means: Any, heights: Any, width: float) -> tuple[Any, Any, Any]:
    """Labels, the heights above the rows, and what each row pulls with."""
    squares = ((x.astype(np.float64)[:, None] - means) ** 2).sum(-1) / width**2
    above = heights / (1 + squares)
    labels = above.argmax(1).astype(np.int32)
    highest = above[np.arange(len(x)), labels]
    return labels, highest, highest**2 / heights[labels]


def label_bumps(chunk: Any, sums: dict[str, ExactSums], *model: Any) -> NDArray[np.int32]:
    labels, highest, _ = bumps(chunk.x, *model)
    sums["total_closeness"].add(highest, chunk.weight)
    sums["counts"].add(np.ones(len(labels)), chunk.weight, labels)
    return np.asarray(labels)


def labelling_of(arrays: BumpArrays) -> Labelling:
    sums = {"total_closeness": 1, "counts": len(arrays.means)}
    marks = {"means": arrays.means, "heights": arrays.heights}
    model = (arrays.means, arrays.heights, float(arrays.width[0]))
    return Labelling(label_bumps, model, sums, marks)


@dataclass(frozen=True, slots=True)
class BumpsProblem(Problem):
    objective: ClassVar[Objective] = CLOSENESS

    width: float = 2.0

    def labelling(self, arrays: BumpArrays) -> Labelling:
        return labelling_of(arrays)


class Pulls:
    """Of one thread: the objective, and by cluster what rows pull with, and where to."""

    def __init__(self, k: int, d: int) -> None:
        self.sums = [ExactSums(1), ExactSums(k), *(ExactSums(k) for _ in range(d))]

    @staticmethod
    def combine(a: Pulls, b: Pulls) -> Pulls:
        for mine, theirs in zip(a.sums, b.sums, strict=True):
            mine.merge(theirs)
        return a


def pull_chunk(chunk: Any, total: Pulls, *model: Any) -> None:
    labels, highest, pulls = bumps(chunk.x, *model)
    value, weights, *to = total.sums
    value.add(highest, chunk.weight)
    weights.add(pulls, chunk.weight, labels)
    for f, sums in enumerate(to):
        sums.add(pulls * chunk.x[:, f].astype(np.float64), chunk.weight, labels)


@dataclass(frozen=True, slots=True)
class BumpsState:
    step: int
    means: NDArray[np.float64]
    heights: NDArray[np.float64]
    width: float
    value: float


@dataclass(frozen=True)
class Bumps(Algorithm[BumpsState, BumpsProblem]):
    tallest: float = 3.0
    solves: ClassVar[type[BumpsProblem]] = BumpsProblem
    change: ClassVar[str] = "gain"

    def init(self, passes: Passes, rng: Rng) -> BumpsState:
        k = self.problem.n_clusters
        rows = rng.generator(0, "rows").choice(passes.n_rows, k, replace=False)
        means = passes.take(np.sort(rows)).x.astype(np.float64)
        return BumpsState(0, means, np.linspace(1, self.tallest, k), self.problem.width, 0.0)

    def step(self, passes: Passes, rng: Rng, state: BumpsState) -> tuple[BumpsState, Info]:
        total = passes.reduce(
            pull_chunk,
            state.means,
            state.heights,
            state.width,
            start=partial(Pulls, *state.means.shape),
            combine=Pulls.combine,
        )
        value, weights, *to = (sums.values for sums in total.sums)
        pulled = np.stack(to, 1) / np.where(weights > 0, weights, 1)[:, None]
        means = np.where(weights[:, None] > 0, pulled, state.means)
        raised = float(value[0])
        gain = (raised - state.value) / raised
        after = BumpsState(state.step + 1, means, state.heights, state.width, raised)
        return after, Info(raised, passes.n_rows, extra={"gain": gain})

    def model(self, state: BumpsState) -> BumpArrays:
        counts = np.zeros(len(state.means))
        return BumpArrays(state.means, state.heights, counts, np.array([state.width]))


class BumpsModel(Model):
    kind: ClassVar[str] = "bumps"
    holds: ClassVar[type[Any]] = BumpArrays
    objective: ClassVar[Objective] = CLOSENESS

    arrays: BumpArrays

    @property
    def counts(self) -> NDArray[np.float64]:
        return self.arrays.counts

    @property
    def n_features(self) -> int:
        return int(self.arrays.means.shape[1])

    def _score(self, passes: Any) -> float:
        found = label_rows(passes, labelling_of(self.arrays), labels=False)
        return found.sum_of("total_closeness")

    def _label(self, passes: Any, out: Any) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        found = label_rows(passes, labelling_of(self.arrays), out=out)
        return found.labels, {"total_closeness": found.sum_of("total_closeness")}

    def _check(self) -> None:
        if self.arrays.means.ndim != 2 or self.arrays.heights.shape != self.arrays.counts.shape:
            raise ValueError("means and heights that do not belong together")
