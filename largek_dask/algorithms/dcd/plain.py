"""Plain DC descent: solve the convex problem that remains when f_2 is replaced by its tangent.

From x, the minimiser of ``f_1 - <xi_2, .>`` is the point with ``grad f_1(y) = xi_2``. f falls on
the way there, and often beyond: a line search follows the direction as long as f keeps falling.
This is our reading of a method ("DCClust") that the paper of DCD-Bundle compares with and does not
describe; its results are not those of its authors' program.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.dcd.bundle import Accuracy, DCFunction, Descent, inner

__all__ = ["CURVATURE", "plain_descent"]

CURVATURE = 2.0
"""The Hessian of f_1, of k-means and of its auxiliary problem, as a multiple of the identity."""


def plain_descent(function: DCFunction, start: NDArray[np.float64], accuracy: Accuracy) -> Descent:
    """Descend from a starting point until a step promises no more than the tolerance.

    Parameters
    ----------
    function : DCFunction
        With the Hessian of f_1 equal to ``CURVATURE`` times the identity, so that the point sought
        is ``y = x - (grad f_1(x) - xi_2) / CURVATURE``.
    start : array
        Of any shape.
    accuracy : Accuracy
        Its ``tolerance``, ``descent`` (of the line search) and ``most``.
    """
    x = np.array(start, np.float64)
    found = function.evaluate(x)
    reach = 1.0
    steps = 0
    ended: Literal["accuracy", "most", "rounding"]
    while True:
        xi = found.gradient - found.subgradient
        promised = inner(xi, xi) / CURVATURE
        if promised <= accuracy.tolerance * abs(found.value):
            ended = "accuracy"
            break
        if steps >= accuracy.most:
            ended = "most"
            break
        direction = xi / -CURVATURE
        trial = function.evaluate(x + reach * direction)
        while reach > 1 and not _descends(found.value, trial.value, reach, promised, accuracy):
            reach /= 2
            trial = function.evaluate(x + reach * direction)
        if not trial.value < found.value:
            ended = "rounding"
            break
        while True:
            farther = function.evaluate(x + 2 * reach * direction)
            if not farther.value < trial.value:
                break
            reach, trial = 2 * reach, farther
        x, found = x + reach * direction, trial
        steps += 1
    return Descent(x, found, steps, 0, ended)


def _descends(before: float, after: float, t: float, promised: float, accuracy: Accuracy) -> bool:
    return after - before <= -accuracy.descent * t * promised
