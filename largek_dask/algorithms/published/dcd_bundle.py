"""DCD-Bundle: k-means as a difference of convex functions, one more cluster per step.

N. Karmitsa, A. Bagirov, S. Taheri, New diagonal bundle method for clustering problems in large data
sets, European Journal of Operational Research 263 (2017).

====================================  =============================================================
Algorithm and step, or equation       here
====================================  =============================================================
7.1, Step 1                           ``DCDBundle.init``
7.1, Steps 2 and 7; 3 to 6            ``DCDBundle.step``; ``DCDBundle.next_partition``
7.1, Step 3: S_1                      ``starts.auxiliary_points``
7, 8, 10, 12: f_k, f̄_k, their parts   ``ClusteringFunction`` and ``AuxiliaryFunction`` of
                                      ``kernels.convex``, with two ξ_2 of each (Step 3 of 5.2)
5.2                                   ``inf_stationary``
5.1, Step 0                           ``clarke_stationary``, which repeats ``iterate``
5.1, Steps 1 and 2; 3 to 8            ``serious``; ``iterate``
24: B_l, whose inverse is D_l         ``diagonal``
27 and 28: t and β of a null step     ``null_step``
30: λ                                 ``convex.multipliers``
====================================  =============================================================

Departures from the paper, and choices that the paper leaves open:

* ε is relative to f: Algorithm 5.1 stops if w ≤ ε f. Step 5 also increments k.
* Equation 24 is undefined for coordinates that no correction has moved; D = 1 for these.
* α = 0 in equation 33 counts as convex. D_1 is also used for w after Step 8.
* Step 6 finds t by bisection of an interval whose upper end gives no descent. The descent ends if
  no t satisfies equation 27 because of rounding.
* t in Algorithm 5.2 is r / 4 (Lemma 6.9 with L = 2) times the largest power of two for which this t
  and all smaller ones satisfy Step 4. Tied rows are treated together (``kernels.convex``).
* Points of S_1 and S_2 count as equal if their squared distance is below ``apart`` times the mean
  squared distance of rows to their centres. S_2 is found only to the accuracy
  ``auxiliary_tolerance``. The largest possible partition has one centre per distinct row.

Since f_1 has the Hessian 2I, D_1 soon becomes I / 2, and x_j moves only n_j / m of the way to the
mean of its rows.
"""
# ruff: noqa: E741 (l is the paper's letter)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms import base
from largek_dask.algorithms.base import Info, Passes, Rng
from largek_dask.algorithms.parts.gathered import check_held, gather_rows
from largek_dask.algorithms.parts.spectrum import lower_bounds
from largek_dask.algorithms.path_arrays import PathArrays, centers_in
from largek_dask.algorithms.path_problem import PathProblem
from largek_dask.algorithms.starts.auxiliary_points import best_apart, starting_points
from largek_dask.errors import ParameterError
from largek_dask.kernels import convex
from largek_dask.kernels.convex import CountedFunction, DCFunction, Evaluation, MeasuredRows, inner
from largek_dask.kernels.distances import nearest
from largek_dask.kernels.threads import Threads

MOST = 20_000
"""Maximum number of iterations per descent, and of descents in Algorithm 5.2; not in the paper."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Parameters of Algorithms 5.1 and 5.2; ``eps`` is relative to f."""

    eps: float = 1e-9
    eps_L: float = 1e-4
    eps_R: float = 0.25
    eps_T: float = 1e-4
    gamma: float = 0.5
    m_c: int = 7
    mu_min: float = 1e-10
    mu_max: float = 1e10

    def __post_init__(self) -> None:
        lines = 0 < self.eps_L < 0.5 and self.eps_L < self.eps_R < 1 and 0 < self.eps_T <= 0.5
        metric = self.gamma > 0 and self.m_c >= 1 and 0 < self.mu_min < self.mu_max
        if not (lines and metric and 0 <= self.eps < 1):
            raise ParameterError(
                f"{self} is out of range; use 0 <= eps < 1, 0 < eps_L < 1/2, eps_L "
                "< eps_R < 1, 0 < eps_T <= 1/2, 0 < gamma, 1 <= m_c and 0 < mu_min < mu_max."
            )


@dataclass(frozen=True, eq=False, slots=True)
class Iterate:
    """State of Algorithm 5.1 at Step 3 of iteration k."""

    k: int
    x: Array
    at: Evaluation
    """f, ∇f_1 and ξ_2 at x."""
    xi_m: Array
    """Subgradient ξ at x."""
    xi: Array
    """Aggregate subgradient ξ̃; ``beta`` is β̃."""
    beta: float
    D_1: Array
    d: Array
    S: tuple[tuple[Array, Array, Array], ...]
    """The last m_c corrections s, u_1, u_2."""
    null: int = 0
    """Number of null steps since the last serious step; 0 means m = k."""
    t: float = math.nan
    end: str | None = None

    @property
    def w(self) -> float:
        """Desired descent w."""
        return inner(self.xi, self.D_1 * self.xi) + 2.0 * self.beta


class Descent(NamedTuple):
    """Point reached by a descent, and the reason for its end: "accuracy", "most" or "rounding"."""

    x: Array
    at: Evaluation
    end: str


def clarke_stationary(f: DCFunction, x: Array, a: Accuracy) -> Descent:
    """Run Algorithm 5.1 from x."""
    x = np.array(x, np.float64)
    s = serious(0, x, f.evaluate(x), np.ones_like(x), ())  # Step 0
    while s.end is None:
        s = iterate(f, s, a)
    return Descent(s.x, s.at, s.end)


def serious(k: int, x: Array, at: Evaluation, D_1: Array, S: Any) -> Iterate:
    """Start iteration k after a serious step, with the convex direction (Steps 1 and 2)."""
    xi = at.gradient - at.subgradient
    return Iterate(k, x, at, xi, xi, 0.0, D_1, -D_1 * xi, S)


def iterate(f: DCFunction, s: Iterate, a: Accuracy) -> Iterate:
    """Run Steps 3 to 8 of Algorithm 5.1."""
    w = s.w
    if w <= a.eps * abs(s.at.value):  # Step 3
        return replace(s, end="accuracy")
    if s.k >= MOST:
        return replace(s, end="most")
    y = f.evaluate(s.x + s.d)  # Step 4
    u_1, u_2 = y.gradient - s.at.gradient, y.subgradient - s.at.subgradient
    S = (*s.S, (s.d, u_1, u_2))[-a.m_c :]
    if y.value - s.at.value <= -a.eps_L * w:  # Step 5
        return serious(s.k + 1, s.x + s.d, y, diagonal(S, 1, a), S)
    alpha = s.at.value - y.value + inner(y.gradient - y.subgradient, s.d)  # Step 6
    found = null_step(f, s, y, a)
    if found is None:
        return replace(s, end="rounding")
    t, xi_t, beta_t = found
    lam = convex.multipliers((s.xi_m, xi_t, s.xi), (0.0, beta_t, s.beta), s.D_1)
    xi: Array = lam[0] * s.xi_m + lam[1] * xi_t + lam[2] * s.xi
    beta = float(lam[1] * beta_t + lam[2] * s.beta)
    metric = D_1 = diagonal(S, 1, a) if s.null == 0 else s.D_1  # Step 7
    if alpha < 0:  # Steps 7b and 8
        both = D_1 + (D_2 := diagonal(S, 2, a))
        # Compute 1 - p directly, as p rounds to 1 if D_2 is large.
        p, rest = (D_2 / both).max(), (D_1 / both).min()
        metric = np.maximum(p * D_1 - rest * D_2, 0.0)
    d = -metric * xi
    return replace(s, k=s.k + 1, xi=xi, beta=beta, D_1=D_1, d=d, S=S, null=s.null + 1, t=t)


def diagonal(S: tuple[tuple[Array, ...], ...], of: Literal[1, 2], a: Accuracy) -> Array:
    """Return D_1 or D_2, the safeguarded inverse of B in equation 24."""
    b, Q = np.zeros_like(S[0][0]), np.zeros_like(S[0][0])
    for correction in S:
        b += correction[0] * correction[of]
        Q += correction[0] * correction[0]
    D: Array = np.ones_like(b)
    bent = (Q > 0) & (b > Q / a.mu_max)
    D[(Q > 0) & ~bent] = a.mu_max
    D[bent] = np.clip(Q[bent] / b[bent], a.mu_min, a.mu_max)
    return D


def null_step(f: DCFunction, s: Iterate, y: Evaluation, a: Accuracy) -> Any:
    """Return t, ξ at x + t d and β that satisfy equation 27, or None if rounding prevents this."""
    low, high, t = 0.0, 1.0, 1.0
    for _ in range(60):
        xi = y.gradient - y.subgradient
        slope = inner(xi, s.d)
        error = abs(s.at.value - y.value + t * slope)
        beta = max(error, a.gamma * t * t * inner(s.d, s.d))  # equation 28
        if -beta + slope >= -a.eps_R * s.w:
            return t, xi, beta
        descends = y.value - s.at.value <= -a.eps_L * t * s.w
        low, high = (t, high) if descends else (low, t)
        t = 0.5 * (low + high)
        y = f.evaluate(s.x + t * s.d)
    return None


def plain_descent(f: DCFunction, x: Array, a: Accuracy) -> Descent:
    """Descend without a bundle, by steps to the minimum of f with f_2 linearised.

    This is our interpretation of DCClust, with which the paper compares without describing it.
    """
    x = np.array(x, np.float64)
    at, t = f.evaluate(x), 1.0
    for _ in range(MOST):
        d = (at.gradient - at.subgradient) / -2.0
        w = 2.0 * inner(d, d)
        if w <= a.eps * abs(at.value):
            return Descent(x, at, "accuracy")
        y = f.evaluate(x + t * d)
        while t > 1 and not y.value - at.value <= -a.eps_L * t * w:
            t /= 2
            y = f.evaluate(x + t * d)
        if not y.value < at.value:
            return Descent(x, at, "rounding")
        while (farther := f.evaluate(x + 2 * t * d)).value < y.value:
            t, y = 2 * t, farther
        x, at = x + t * d, y
    return Descent(x, at, "most")


def inf_stationary(
    f: DCFunction, x: Array, a: Accuracy, descend: Callable[[DCFunction, Array, Accuracy], Descent]
) -> Descent:
    """Run Algorithm 5.2 from x; the result is inf-stationary if ``end`` is "accuracy"."""
    for _ in range(MOST):
        x, at, end = descend(f, x, a)  # Step 1
        xi_2 = f.other_subgradient(x)
        v = at.gradient - at.subgradient
        if xi_2 is not None:
            v = max(v, at.gradient - xi_2, key=lambda v: inner(v, v))
        square = inner(v, v)
        if (xi_2 is None and end != "accuracy") or square / 2 <= a.eps * abs(at.value):  # Step 2
            return Descent(x, at, end)
        r, last = math.sqrt(square), None
        u, t = v / -r, r / 4  # Steps 3 and 4
        while f.value(x + t * u) - at.value <= -a.eps_T * t * r:
            t, last = 2 * t, t
        if last is None:
            return Descent(x, at, "rounding")
        x = x - (last / r) * v
    return descend(f, x, a)._replace(end="most")


@dataclass(frozen=True, slots=True)
class DCDBundleState:
    """State between two steps, with all partitions into 1 to l clusters."""

    step: int
    path: Array
    """Packed centres of all partitions, in the coordinates of the data."""
    inertia: Array
    """Inertia of each partition, m f_l."""
    bounds: Array
    shift: NDArray[Any]
    counts: Array | None = None
    """Weight of the rows of each cluster; None before Algorithm 7.1 has ended."""


@dataclass(frozen=True)
class DCDBundle(base.Algorithm[DCDBundleState, PathProblem]):
    """DCD-Bundle as published (Algorithms 7.1, 5.2 and 5.1); each step adds one cluster.

    ``km.path_`` contains all partitions up to k, with their inertia and its lower bounds. All rows
    are held in the driver's process, in float64. The method is slow and serves as a baseline for
    :class:`~largek_dask.PartitionPath`.

    Parameters
    ----------
    descent : {"bundle", "plain"}
        Algorithm 5.1, or descents without a bundle: our reading of DCClust.
    gamma_1, gamma_2 : float
        Minimum decrease by a starting point, relative to the largest decrease: gamma_1 for rows,
        gamma_2 for the means of the rows nearer to them.
    apart : float
        Minimum squared distance between distinct points, relative to the mean squared distance of
        rows to their centres.
    accuracy : Accuracy
        Parameters of Algorithms 5.1 and 5.2.
    auxiliary_tolerance : float
        ε of the auxiliary problem, whose solutions are only starting points.
    """

    descent: Literal["bundle", "plain"] = "bundle"
    gamma_1: float = 0.7
    gamma_2: float = 0.7
    apart: float = 0.2
    accuracy: Accuracy = field(default_factory=Accuracy)
    auxiliary_tolerance: float = 1e-6
    solves: ClassVar[type[PathProblem]] = PathProblem
    takes_starts: ClassVar[bool] = False

    @classmethod
    def paper(cls, accuracy: Accuracy | None = None) -> DCDBundle:
        """Return the published method, with the given parameters of Algorithms 5.1 and 5.2."""
        return cls(accuracy=accuracy or Accuracy())

    def __post_init__(self) -> None:
        if self.descent not in ("bundle", "plain"):
            raise ParameterError(f"descent must be 'bundle' or 'plain', got {self.descent!r}.")
        for name, most in (("gamma_1", 1.0), ("gamma_2", 1.0), ("apart", math.inf)):
            if not 0 <= (own := getattr(self, name)) <= most:
                raise ParameterError(f"{name} must be from 0 to {most}, got {own!r}.")
        replace(self.accuracy, eps=self.auxiliary_tolerance)

    def footprint(self, table: base.PlannedTable) -> base.Footprint:
        held, copies = _held_bytes(table), 2 + (self.problem.n_clusters + 1) // 2
        return base.Footprint(model_copies=copies, held_rows=table.n_rows, held_bytes=held)

    def init(self, passes: Passes, rng: Rng) -> DCDBundleState:
        """Compute the centre of A (Step 1 of Algorithm 7.1)."""
        instead = "PartitionPath(), which works on a sample of many rows and then on all"
        check_held(passes, _held_bytes(passes), "DCDBundle", instead)
        A, _ = _rows(passes, rng)
        x_1, mean = A.statistics.mean[None], passes.statistics.mean
        f_1 = np.array([convex.ClusteringFunction(A, 1).value(x_1) * A.total])
        bounds = lower_bounds(passes, self.problem.n_clusters)
        return DCDBundleState(0, x_1 + mean, f_1, bounds, passes.statistics.shift)

    def step(self, passes: Passes, rng: Rng, state: DCDBundleState) -> tuple[DCDBundleState, Info]:
        """Go from l - 1 to l clusters (Steps 2 to 7 of Algorithm 7.1)."""
        A, distinct = _rows(passes, rng)
        state, mean = replace(state, step=state.step + 1), passes.statistics.mean
        x = [centers_in(state.path, j) - mean for j in range(1, len(state.inertia) + 1)]
        l, found = len(x) + 1, None
        is_solved = l > self.problem.n_clusters
        if not is_solved and l <= len(distinct):
            found = self.next_partition(A, distinct - mean, x[-1], passes.threads)
        if found is None:  # Step 2
            labels = [nearest(A.x, A.pack(x_j)) for x_j in x]
            counts = [np.bincount(a, A.weight, j + 1) for j, a in enumerate(labels)]
            state = replace(state, counts=np.concatenate(counts, dtype=np.float64))
            extra = {"partitions": l - 1.0, "distinct": float(not is_solved)}
            return state, Info(float(state.inertia[-1]), len(A.x), converged=True, extra=extra)
        y, f_l, extra = found  # Step 7
        path = np.concatenate([state.path, distinct if l == len(distinct) else y + mean])
        state = replace(state, path=path, inertia=np.append(state.inertia, f_l * A.total))
        extra |= {"partitions": float(l), "distinct": 0.0}
        return state, Info(float(state.inertia[-1]), len(A.x), extra=extra)

    def next_partition(self, A: MeasuredRows, points: Array, x: Array, threads: Threads) -> Any:
        """Return l centres and f_l, given l - 1 centres x; None if no new centre decreases f."""
        if len(points) == len(x) + 1:
            return points, 0.0, {}  # one centre per distinct row
        auxiliary = convex.AuxiliaryFunction(A, x)
        near, gammas = self.apart * auxiliary.without / A.total, (self.gamma_1, self.gamma_2)
        S_1 = starting_points(auxiliary.arranged, points, gammas, near, threads)  # Step 3
        if not len(S_1):
            return None
        descend = clarke_stationary if self.descent == "bundle" else plain_descent
        f_aux = CountedFunction(auxiliary, threads.check)
        f_l = CountedFunction(convex.ClusteringFunction(A, len(x) + 1), threads.check)
        coarse = replace(self.accuracy, eps=self.auxiliary_tolerance)
        solved = [inf_stationary(f_aux, y, coarse, descend) for y in S_1]  # Step 4
        ys, values = np.stack([s.x for s in solved]), np.array([s.at.value for s in solved])
        S_2 = ys[best_apart(ys, -values, near)]
        begins = [np.concatenate([x, y[None]]) for y in S_2]
        S_3 = [inf_stationary(f_l, y, self.accuracy, descend) for y in begins]  # Step 5
        best = min(S_3, key=lambda s: s.at.value)  # Step 6
        counts = {"starts": len(S_1), "solutions": len(S_3), "evaluations": f_aux.n + f_l.n}
        return best.x, best.at.value, counts

    def model(self, state: DCDBundleState) -> PathArrays:
        return PathArrays.of(state.path, state.counts, state.inertia, state.bounds, state.shift)


def _held_bytes(table: base.TableShape) -> int:
    """Return the memory in bytes of two float64 copies of all rows."""
    return table.n_rows * (16 * table.n_features + 40)


def _rows(passes: Passes, rng: Rng) -> tuple[MeasuredRows, Array]:
    """Return the rows in float64 relative to their mean, and the distinct rows unchanged."""
    held = gather_rows(passes, rng)
    x = np.asarray(held.x, np.float64)
    return MeasuredRows.of(x - passes.statistics.mean, held.weight), np.unique(x, axis=0)
