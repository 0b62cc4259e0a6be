"""Algorithm 5.2: a point that is stationary in Clarke's sense only is left again."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from largek_dask.algorithms.dcd.bundle import Accuracy, bundle
from largek_dask.algorithms.dcd.plain import plain_descent
from largek_dask.algorithms.dcd.stationary import stationary_point
from largek_dask.kernels.convex import (
    AuxiliaryFunction,
    ClusteringFunction,
    Evaluation,
    MeasuredRows,
)
from tests.oracles import dcd as oracles

DESCENTS = [bundle, plain_descent]


@pytest.mark.parametrize("descend", DESCENTS)
def test_a_constructed_tie_is_left(descend):
    """The row in the middle belongs to both: with its first centre, nothing pulls at either."""
    x = np.array([[-2.0], [0], [1], [1]])
    centers = np.array([[-1.0], [1]])
    function = ClusteringFunction(MeasuredRows.of(x), 2)
    first, near, _, far = oracles.two_nearest(x, centers)
    assert (near == far).tolist() == [False, True, False, False]
    found = function.evaluate(centers)
    np.testing.assert_array_equal(found.gradient, found.subgradient)
    assert first[1] == 0
    stuck = descend(function, centers, Accuracy())
    np.testing.assert_array_equal(stuck.x, centers)
    left = stationary_point(function, centers, Accuracy(), descend)
    assert left.exact
    assert left.descents > 1
    assert left.value < found.value
    np.testing.assert_allclose(left.x, [[-2], [2 / 3]], atol=1e-4)


@pytest.mark.parametrize("descend", DESCENTS)
def test_a_tie_of_the_auxiliary_problem_is_left(descend):
    """y at its row, and another one as far from it as from its centre."""
    x = np.array([[0.0], [0], [3], [6]])
    rows = MeasuredRows.of(x)
    function = AuxiliaryFunction(rows, np.array([[0.0]]))
    y = np.array([6.0])
    found = function.evaluate(y)
    np.testing.assert_array_equal(found.gradient, found.subgradient)
    left = stationary_point(function, y, Accuracy(), descend)
    assert left.exact
    assert left.descents > 1
    assert left.value < found.value
    np.testing.assert_allclose(left.x, [4.5], atol=1e-3)


def test_a_smooth_end_is_kept():
    x = np.array([[0.0], [1], [5], [6]])
    function = ClusteringFunction(MeasuredRows.of(x), 2)
    end = stationary_point(function, np.array([[0.0], [6.0]]), Accuracy(), bundle)
    assert end.exact
    assert end.descents == 1
    assert end.value == pytest.approx(0.25, rel=1e-8)


class Corner:
    """Two subgradients where f looks flat."""

    def __init__(self, other):
        self.other = other

    def evaluate(self, x):
        return Evaluation(1.0, np.zeros(1), np.zeros(1))

    def value(self, x):
        return self.evaluate(x).value

    def second(self, x):
        return np.array([self.other])


def test_what_cannot_be_left():
    at = np.array([0.0])
    solve = partial(stationary_point, start=at, descend=bundle)
    # as good as no second subgradient
    end = solve(Corner(other=1e-9), accuracy=Accuracy(1e-6))
    assert (end.exact, end.descents) == (True, 1)
    # a second one that f does not fall along
    end = solve(Corner(other=1.0), accuracy=Accuracy())
    assert (end.exact, end.descents) == (False, 1)
    # too often
    end = solve(Corner(other=1.0), accuracy=Accuracy(most=1))
    assert (end.exact, end.descents) == (False, 1)
