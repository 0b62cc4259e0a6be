"""The plainest algorithm for mixtures of Gaussians: EM with all rows and all components.

It is registered under the name that options of mixtures ask for, so that what a mixture means to
the driver, to models and to the command line is tested by what can be seen at a glance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Info, Passes, Rng
from largek_dask.algorithms.mixture import MixtureArrays, MixtureProblem
from largek_dask.kernels.exact.numbers import ExactSums


def log_joints(x: Any, means: Any, variances: Any, log_weights: Any) -> NDArray[np.float64]:
    """(n, k) logarithms of weight times density."""
    differences = np.asarray(x, np.float64)[:, None] - np.asarray(means, np.float64)
    wide = np.broadcast_to(variances, np.shape(means))
    squares = (differences**2 / wide).sum(-1)
    return np.asarray(log_weights - 0.5 * (np.log(2 * np.pi * wide).sum(-1) + squares))


def log_sums(joints: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of the sums over the components."""
    best = joints.max(-1, keepdims=True)
    return np.asarray(best[..., 0] + np.log(np.exp(joints - best).sum(-1)))


class Moments:
    """Of one thread: F, masses, sums and sums of squares of all components."""

    def __init__(self, k: int, d: int) -> None:
        self.f, self.masses = ExactSums(1), ExactSums(k)
        self.sums, self.squares = ExactSums(k * d), ExactSums(k * d)

    @staticmethod
    def combine(a: Moments, b: Moments) -> Moments:
        for name in ("f", "masses", "sums", "squares"):
            getattr(a, name).merge(getattr(b, name))
        return a


def expect_chunk(chunk: Any, total: Moments, means: Any, variances: Any, log_weights: Any) -> None:
    x = chunk.x.astype(np.float64)
    joints = log_joints(x, means, variances, log_weights)
    found = log_sums(joints)
    total.f.add(found, chunk.weight)
    shares = np.exp(joints - found[:, None])
    k, d = means.shape
    for c in range(k):
        labels = np.full(len(x), c, np.int32)
        total.masses.add(shares[:, c], chunk.weight, labels)
        for f in range(d):
            places = np.full(len(x), c * d + f, np.int32)
            total.sums.add(shares[:, c] * x[:, f], chunk.weight, places)
            squares = shares[:, c] * (x[:, f] - means[c, f]) ** 2
            total.squares.add(squares, chunk.weight, places)


@dataclass(frozen=True, slots=True)
class PlainState:
    step: int
    model: MixtureArrays
    f: float


@dataclass(frozen=True)
class PlainMixture(Algorithm[PlainState, MixtureProblem]):
    """EM as in textbooks; variances are not floored."""

    covariance: str = "iso"
    solves: ClassVar[type[MixtureProblem]] = MixtureProblem
    change: ClassVar[str] = "gain"

    def init(self, passes: Passes, rng: Rng) -> PlainState:
        problem = self.problem
        k, d = problem.n_clusters, passes.n_features
        if isinstance(problem.init, str):
            rows = rng.generator(0, "rows").choice(passes.n_rows, k, replace=False)
            means = passes.take(np.sort(rows)).x
        else:
            means = problem.init
        shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[self.covariance]
        variances = np.full(shape, 1.0)
        if problem.precisions_init is not None:
            variances = np.broadcast_to(1 / problem.precisions_init.reshape(k, -1), shape).copy()
        weights = np.full(k, 1 / k) if problem.weights_init is None else problem.weights_init
        model = MixtureArrays(
            np.array(means, passes.statistics.dtype),
            variances,
            np.log(weights),
            np.ones(k, bool),
            np.zeros(k),
            passes.statistics.shift,
        )
        return PlainState(0, model, -np.inf)

    def step(self, passes: Passes, rng: Rng, state: PlainState) -> tuple[PlainState, Info]:
        before = state.model
        k, d = before.means.shape
        total = passes.reduce(
            expect_chunk,
            before.means,
            before.variances,
            before.log_weights,
            start=partial(Moments, k, d),
            combine=Moments.combine,
        )
        masses = total.masses.values
        weight = masses.sum()
        means = (total.sums.values.reshape(k, d) / masses[:, None]).astype(before.means.dtype)
        moved = means.astype(np.float64) - before.means
        squares = total.squares.values.reshape(k, d) - masses[:, None] * moved**2
        if self.covariance == "iso":
            variances = squares.sum(keepdims=True).reshape(1, 1) / (weight * d)
            log_weights = np.full(k, -np.log(k))
        else:
            each = squares.sum(1, keepdims=True) / d if self.covariance == "isoflex" else squares
            variances = each / masses[:, None]
            log_weights = np.log(masses / weight)
        f = total.f.value
        model = MixtureArrays(
            means, variances, log_weights, before.alive, before.counts, before.shift
        )
        gain = 2 * (f - state.f) / (d * weight)
        info = Info(f, passes.n_rows, extra={"gain": gain})
        return PlainState(state.step + 1, model, f), info

    def model(self, state: PlainState) -> MixtureArrays:
        return state.model
