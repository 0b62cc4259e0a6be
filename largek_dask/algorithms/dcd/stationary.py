"""From Clarke stationary points to inf-stationary ones (Algorithm 5.2 of DCD-Bundle).

A point where f_2 has a corner may be stationary in Clarke's sense though f falls from it. Two
subgradients of f_2 show that: a descent that has ended continues against the longer of the two
differences ``grad f_1 - xi_2``.

The printed step "the largest t" is the largest of ``r / 4`` (which Lemma 6.9 promises for a
gradient of f_1 with Lipschitz constant 2) times a power of two that still satisfies its condition
with all smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.dcd.bundle import Accuracy, DCFunction, Descent, inner

__all__ = ["Stationary", "stationary_point"]

Descend = Callable[[DCFunction, NDArray[np.float64], Accuracy], Descent]
"""Finds a Clarke stationary point: Algorithm 5.1, or a substitute."""


@dataclass(frozen=True, eq=False, slots=True)
class Stationary:
    """Result of Algorithm 5.2."""

    x: NDArray[np.float64]
    value: float
    """f at ``x``."""
    descents: int
    """Clarke stationary points that were met, the last one included."""
    exact: bool
    """True if the last descent reached its accuracy, and no second subgradient disproves it."""


def stationary_point(
    function: DCFunction, start: NDArray[np.float64], accuracy: Accuracy, descend: Descend
) -> Stationary:
    """Run Algorithm 5.2 from a starting point.

    Parameters
    ----------
    function : DCFunction
    start : array
        Of any shape.
    accuracy : Accuracy
    descend : callable
        Finds Clarke stationary points (Step 1).
    """
    x = start
    descents = 0
    while True:
        reached = descend(function, x, accuracy)
        descents += 1
        x, found = reached.x, reached.found
        exact = reached.ended == "accuracy"
        other = function.second(x)
        if other is None and not exact:
            return Stationary(x, found.value, descents, False)
        v = found.gradient - found.subgradient
        if other is not None:
            v = max(v, found.gradient - other, key=lambda xi: inner(xi, xi))
        square = inner(v, v)
        if square / 2 <= accuracy.tolerance * abs(found.value):
            return Stationary(x, found.value, descents, exact)
        if descents >= accuracy.most:
            return Stationary(x, found.value, descents, False)
        r = math.sqrt(square)
        t = _farthest(function, x, v / -r, r, found.value, accuracy.escape)
        if t is None:
            return Stationary(x, found.value, descents, False)
        x = x - (t / r) * v


def _farthest(
    function: DCFunction,
    x: NDArray[np.float64],
    u: NDArray[np.float64],
    r: float,
    value: float,
    escape: float,
) -> float | None:
    """Step 4; None where rounding hides the descent."""
    t, last = r / 4, None
    while function.value(x + t * u) - value <= -escape * t * r:
        t, last = 2 * t, t
    return last
