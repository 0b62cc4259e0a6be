r"""DCD-Bundle: descent of a difference of convex functions with diagonal metrics (Algorithm 5.1).

N. Karmitsa, A. Bagirov, S. Taheri, New diagonal bundle method for clustering problems in large
data sets. It lowers ``f = f_1 - f_2``, f_1 smooth and both convex, to a point that is stationary in
Clarke's sense. It is implemented as printed; equations and steps carry the paper's numbers.

Choices that the paper leaves open:

* A coordinate that no stored correction has moved keeps D = 1: equation 24 does not define it.
* The final accuracy is relative to f: Algorithm 5.1 stops if ``w <= eps |f(x)|``.
* Steps without a printed counter advance it (Step 5 does not).
* D_1 also serves in w after Step 8, if the direction was found with another metric.
* alpha = 0 (equation 33) counts as convex.
* The t of Step 6 is searched by halving an interval whose upper end does not descend. If rounding
  leaves none that satisfies equation 27, the descent ends ("rounding").

Consequences for k-means
------------------------
f_1 has the Hessian 2I, so every coordinate that has moved has ``D_1 = 1/2`` from the second
iteration on. The convex direction is then exactly

    ``x_j -> x_j - (n_j / m) (x_j - mean_j)``,

Lloyd's step damped by the cluster's share n_j / m of the weight: with 25 clusters, a 25th of it.
That is why this method takes thousands of evaluations. The metric ``(B_1 - B_2)^-1 = m / (2 n_j)``,
with B_2 the curvature that f_2 has where no row ties, turns the same step into Lloyd's. Serious
steps decide the speed: null steps are met a few times in ten thousand iterations. The tests assert
both identities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.convex import Evaluation

__all__ = [
    "Accuracy",
    "Counted",
    "DCFunction",
    "Descent",
    "Iteration",
    "bundle",
    "inner",
    "multipliers",
]

Array = NDArray[np.float64]

_HALVINGS = 60

_Kind = Literal["serious", "convex", "concave"]
_Begun = tuple[Array, Array, float, float, float, Array, float]
_Null = tuple[float, Array, float, Array, Array]
"""Fields of :class:`Iteration`: values before a step is judged, also of a null step."""


class DCFunction(Protocol):
    """``f = f_1 - f_2``; points are arrays of any shape."""

    def evaluate(self, x: Array) -> Evaluation:
        """Return the value, the gradient of f_1 and a subgradient of f_2."""

    def value(self, x: Array) -> float:
        """Return the value alone."""

    def second(self, x: Array) -> Array | None:
        """Return another subgradient of f_2 than that of ``evaluate``; None if it has only one."""


class Counted:
    """A function that counts its evaluations.

    Parameters
    ----------
    function : DCFunction
    check : callable
        Called before every evaluation; an exception from it ends the work.
    """

    def __init__(self, function: DCFunction, check: Callable[[], object] = bool) -> None:
        self.function = function
        self.check = check
        self.values = 0
        """Times that f was evaluated."""
        self.subgradients = 0
        """Subgradients of f_2 that were computed."""

    def evaluate(self, x: Array) -> Evaluation:
        """Evaluate, counted as one value and one subgradient."""
        self.check()
        self.values += 1
        self.subgradients += 1
        return self.function.evaluate(x)

    def value(self, x: Array) -> float:
        """Evaluate, counted as one value."""
        self.check()
        self.values += 1
        return self.function.value(x)

    def second(self, x: Array) -> Array | None:
        """Evaluate, counted as one subgradient."""
        self.subgradients += 1
        return self.function.second(x)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The parameters of Algorithms 5.1 and 5.2.

    Raises
    ------
    ParameterError
        A value outside the range given by the paper.
    """

    tolerance: float = 1e-9
    """Final accuracy eps, relative to f."""
    descent: float = 1e-4
    """Share eps_L of the desirable descent that makes a step serious, in (0, 1/2)."""
    null: float = 0.25
    """Line search parameter eps_R of null steps, in (eps_L, 1)."""
    distance: float = 0.5
    """Distance measure parameter gamma of equation 28, above 0."""
    corrections: int = 7
    """Stored corrections m_c, at least 1."""
    lowest: float = 1e-10
    """Safeguard mu_min of the diagonals."""
    highest: float = 1e10
    """Safeguard mu_max of the diagonals."""
    escape: float = 1e-4
    """Line search parameter eps_T of Algorithm 5.2, in (0, 1/2]."""
    most: int = 20_000
    """Maximum iterations of one descent."""

    def __post_init__(self) -> None:
        whole = self.corrections >= 1 and self.most >= 1
        ranges = (
            0 <= self.tolerance < 1,
            0 < self.descent < 0.5,
            self.descent < self.null < 1,
            self.distance > 0,
            0 < self.lowest < self.highest,
            0 < self.escape <= 0.5,
        )
        if not (whole and all(ranges)):
            raise ParameterError(
                f"{self} is out of range; it must be 0 <= tolerance < 1, 0 < descent < 1/2, "
                "descent < null < 1, 0 < distance, 1 <= corrections, 0 < lowest < highest, "
                "0 < escape <= 1/2, 1 <= most."
            )


@dataclass(frozen=True, eq=False, slots=True)
class Descent:
    """Result of a descent."""

    x: Array
    found: Evaluation
    """Evaluation at ``x``."""
    serious: int
    """Steps that moved x."""
    null: int
    """Steps that only gathered information."""
    ended: Literal["accuracy", "most", "rounding"]
    """Reason: stationary within tolerance; too many iterations; f cannot distinguish points."""


@dataclass(frozen=True, eq=False, slots=True)
class Iteration:
    """One iteration of Algorithm 5.1, for callbacks."""

    kind: _Kind
    """A serious step, or the kind of null step."""
    x: Array
    """The point at which it began."""
    direction: Array
    value: float
    """f at ``x``."""
    trial: float
    """f at ``x + direction``."""
    w: float
    """Desirable descent (Step 3)."""
    aggregate: Array
    """The aggregate subgradient that gave the direction."""
    locality: float
    """Its locality measure."""
    metric: Array
    """The diagonal of D_1, as it was in this iteration."""
    t: float
    """Step of the null step (Step 6); NaN in serious ones, as all that follows."""
    auxiliary: Array
    """The subgradient at ``x + t direction``."""
    auxiliary_locality: float
    """Its locality measure, equation 28."""
    multipliers: Array
    """(3,) those of equation 30."""
    next_aggregate: Array
    """Equation 31."""


def inner(a: Array, b: Array) -> float:
    """Return the inner product: products are rounded, their sum once."""
    return math.fsum((a * b).ravel().tolist())


def bundle(
    function: DCFunction,
    start: Array,
    accuracy: Accuracy,
    watch: Callable[[Iteration], object] | None = None,
) -> Descent:
    """Run Algorithm 5.1 from a starting point.

    Parameters
    ----------
    function : DCFunction
    start : array
        Of any shape.
    accuracy : Accuracy
    watch : callable, optional
        Called with every iteration.
    """
    return _Bundle(function, np.array(start, np.float64), accuracy, watch).run()


class _Bundle:
    """State of Algorithm 5.1 between its steps."""

    def __init__(
        self,
        function: DCFunction,
        x: Array,
        accuracy: Accuracy,
        watch: Callable[[Iteration], object] | None,
    ) -> None:
        self.function, self.accuracy, self.watch = function, accuracy, watch
        self.x = x
        self.found = function.evaluate(x)
        self.convex: Array = np.ones_like(x)  # D_1
        self.concave: Array = np.ones_like(x)  # D_2
        self.steps: list[Array] = []  # S
        self.changes: tuple[list[Array], list[Array]] = [], []  # U_1, U_2
        self.serious = self.null = 0

    def run(self) -> Descent:
        """Run steps 1 to 8."""
        while True:
            ended = self._serious_step()
            if ended is not None:
                return Descent(self.x, self.found, self.serious, self.null, ended)

    def _serious_step(self) -> Literal["accuracy", "most", "rounding"] | None:
        """Go from one serious step to the next; return the reason if there is none."""
        a = self.accuracy
        latest = aggregate = self.found.gradient - self.found.subgradient
        locality, consecutive = 0.0, 0
        direction = -self.convex * aggregate
        while True:
            w = inner(aggregate, self.convex * aggregate) + 2.0 * locality
            if w <= a.tolerance * abs(self.found.value):
                return "accuracy"
            if self.serious + self.null >= a.most:
                return "most"
            trial = self.function.evaluate(self.x + direction)
            self._store(direction, trial)
            begun = self.x, direction, self.found.value, trial.value, w, aggregate, locality
            if trial.value - self.found.value <= -a.descent * w:
                self._tell("serious", begun)
                self.convex = self._diagonal(0)
                self.x, self.found = self.x + direction, trial
                self.serious += 1
                return None
            slope = inner(trial.gradient - trial.subgradient, direction)
            alpha = self.found.value - trial.value + slope
            sought = self._null_point(direction, trial, w)
            if sought is None:
                return "rounding"
            self.null += 1
            consecutive += 1
            t, auxiliary, measure = sought
            vectors = latest, auxiliary, aggregate
            shares = multipliers(vectors, (0.0, measure, locality), self.convex)
            mixed: Array = shares[0] * latest + shares[1] * auxiliary + shares[2] * aggregate
            null = t, auxiliary, measure, shares, mixed
            self._tell("convex" if alpha >= 0 else "concave", begun, null)
            aggregate, locality = mixed, float(shares[1] * measure + shares[2] * locality)
            if consecutive == 1:  # later ones would break equation 29
                self.convex = self._diagonal(0)
            metric = self.convex
            if alpha < 0:
                self.concave = self._diagonal(1)
                metric = self._mixed_metric()
            direction = -metric * aggregate

    def _store(self, step: Array, trial: Evaluation) -> None:
        """Store the corrections, the latest m_c of them (Step 4)."""
        self.steps.append(step)
        self.changes[0].append(trial.gradient - self.found.gradient)
        self.changes[1].append(trial.subgradient - self.found.subgradient)
        for stored in (self.steps, *self.changes):
            del stored[: -self.accuracy.corrections]

    def _diagonal(self, of: Literal[0, 1]) -> Array:
        """Return the inverse diagonal nearest to the Hessian, with safeguards (equation 24)."""
        products, squares = np.zeros_like(self.x), np.zeros_like(self.x)
        for step, change in zip(self.steps, self.changes[of], strict=True):
            products += step * change
            squares += step * step
        a = self.accuracy
        diagonal: Array = np.ones_like(self.x)
        bent = (squares > 0) & (products > squares / a.highest)
        diagonal[(squares > 0) & ~bent] = a.highest
        diagonal[bent] = np.clip(squares[bent] / products[bent], a.lowest, a.highest)
        return diagonal

    def _mixed_metric(self) -> Array:
        """Step 8: ``p D_1 - (1 - p) D_2`` with the smallest p that leaves it semidefinite."""
        both = self.convex + self.concave
        # 1 - p on its own: concave metrics may be so large that its rounding would show
        p, rest = (self.concave / both).max(), (self.convex / both).min()
        metric: Array = np.maximum(p * self.convex - rest * self.concave, 0.0)
        return metric

    def _null_point(
        self, direction: Array, trial: Evaluation, w: float
    ) -> tuple[float, Array, float] | None:
        """Step 6: t, the subgradient there and its locality measure, so that equation 27 holds."""
        a, f = self.accuracy, self.found.value
        length = inner(direction, direction)
        low, high, t = 0.0, 1.0, 1.0
        for _ in range(_HALVINGS):
            xi = trial.gradient - trial.subgradient
            slope = inner(xi, direction)
            measure = max(abs(f - trial.value + t * slope), a.distance * t * t * length)
            if -measure + slope >= -a.null * w:
                return t, xi, measure
            if trial.value - f <= -a.descent * t * w:
                low = t
            else:
                high = t
            t = 0.5 * (low + high)
            trial = self.function.evaluate(self.x + t * direction)
        return None

    def _tell(self, kind: _Kind, begun: _Begun, null: _Null | None = None) -> None:
        if self.watch is not None:
            none = np.full_like(self.x, np.nan)
            rest = null or (math.nan, none, math.nan, np.full(3, np.nan), none)
            self.watch(Iteration(kind, *begun, self.convex, *rest))


def multipliers(
    vectors: tuple[Array, Array, Array], localities: tuple[float, float, float], metric: Array
) -> Array:
    """Return (3,) shares, nonnegative and summing to 1, that minimise equation 30 exactly.

    ``(sum_i s_i v_i)' D (sum_i s_i v_i) + 2 sum_i s_i b_i`` is convex: its minimum over the
    triangle is that over one of the corners, the edges' insides or the inside, each of which has a
    closed form.

    Parameters
    ----------
    vectors : three arrays
        Subgradients v.
    localities : three numbers
        Their locality measures b.
    metric : array
        The diagonal D.
    """
    gram = np.array([[inner(u, metric * v) for v in vectors] for u in vectors])
    b = np.array(localities)
    candidates = [np.eye(3)[i] for i in range(3)]
    for i, j in combinations(range(3), 2):
        bend = gram[i, i] - 2.0 * gram[i, j] + gram[j, j]
        share = (gram[j, j] - gram[i, j] + b[j] - b[i]) / bend if bend > 0 else -1.0
        if 0 < share < 1:
            edge = np.zeros(3)
            edge[i], edge[j] = share, 1.0 - share
            candidates.append(edge)
    # inside: both derivatives along the edges from the third corner vanish
    p = gram[0, 0] - 2.0 * gram[0, 2] + gram[2, 2]
    q = gram[0, 1] - gram[0, 2] - gram[1, 2] + gram[2, 2]
    s = gram[1, 1] - 2.0 * gram[1, 2] + gram[2, 2]
    u = gram[2, 2] - gram[0, 2] + b[2] - b[0]
    v = gram[2, 2] - gram[1, 2] + b[2] - b[1]
    determinant = p * s - q * q
    if determinant > 0:
        first, other = (u * s - v * q) / determinant, (p * v - q * u) / determinant
        if first > 0 and other > 0 and first + other < 1:
            candidates.append(np.array([first, other, 1.0 - first - other]))

    def measured(shares: Array) -> float:
        products = gram * np.outer(shares, shares)
        return math.fsum(products.ravel().tolist()) + 2.0 * inner(shares, b)

    return min(candidates, key=measured)
