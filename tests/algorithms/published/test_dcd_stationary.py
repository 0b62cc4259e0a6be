"""Algorithm 5.2: a point that is stationary in Clarke's sense only is left again."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest

from largek_dask.algorithms.published import dcd_bundle
from largek_dask.algorithms.published.dcd_bundle import (
    Accuracy,
    clarke_stationary,
    inf_stationary,
    plain_descent,
)
from largek_dask.kernels.convex import (
    AuxiliaryFunction,
    ClusteringFunction,
    Evaluation,
    MeasuredRows,
)
from tests.oracles import dcd as oracles

DESCENTS = [clarke_stationary, plain_descent]


def cloud(n, seed=0):
    """Rows in two groups along the first feature, and a mean of none of them at 0."""
    x = np.random.default_rng(seed).normal(size=(n, 2)) + [[3.0, 0], [-3.0, 0]] * (n // 2)
    return x - x.mean(axis=0)


def left_and_right(x):
    """Means of the two groups, each of which is at rest."""
    return x[x[:, 0] < 0].mean(axis=0), x[x[:, 0] >= 0].mean(axis=0)


def falls_steepest(x, centers, n_directions):
    """The largest ``(f(x) - f(x + tu)) / t``, by rows, and the steps t to the next tie.

    Directions are the coordinates, both ways, and random ones; t goes from 1e-6 to 1e-3 of
    the distance at which another row may change its centre.
    """
    d = np.stack([oracles.squares(x, c) for c in centers], axis=1)
    near = d.min(axis=1)
    tied = d <= near[:, None] * (1 + 1e-11)
    several = tied.sum(axis=1) > 1
    apart = np.sqrt(np.where(tied, np.inf, d).min(axis=1)) - np.sqrt(near)
    gap = apart.min() / np.sqrt(2)
    gap = gap if np.isfinite(gap) else np.sqrt(near.max())
    labels, size = d[~several].argmin(axis=1), centers.size
    n = np.bincount(labels, minlength=len(centers))
    sums = np.zeros_like(centers)
    np.add.at(sums, labels, x[~several])
    u = np.random.default_rng(0).normal(size=(n_directions, size))
    u /= np.linalg.norm(u, axis=1)[:, None]
    worst = 0.0
    for one in np.concatenate([np.eye(size), -np.eye(size), u]).reshape(-1, *centers.shape):
        slope = (one * (n[:, None] * centers - sums)).sum()
        each = [((c - x[several]) * a).sum(axis=1) for c, a in zip(centers, one, strict=True)]
        for t in gap * np.array([1e-6, 1e-3]):
            change = 2 * slope + t * (n * (one**2).sum(axis=1)).sum()
            of_tied = 2 * np.stack(each, axis=1) + t * (one**2).sum(axis=1)
            change += np.where(tied[several], of_tied, np.inf).min(axis=1).sum()
            worst = max(worst, -change / len(x))
    return worst


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
    left = inf_stationary(function, centers, Accuracy(), descend)
    assert left.end == "accuracy"
    assert left.at.value < found.value
    np.testing.assert_allclose(left.x, [[-2], [2 / 3]], atol=1e-4)


@pytest.mark.parametrize(("n", "descend"), [*product([5, 80], DESCENTS), (200_000, plain_descent)])
def test_centres_that_coincide_part(n, descend):
    """Every row ties, and one of many is within any accuracy; all on one side are not."""
    x = np.array([[-3.0], [-1], [0], [1], [3]]) if n == 5 else cloud(n)
    starts = [np.zeros((2, x.shape[1]))]
    if n == 80:
        left, right = left_and_right(x)
        starts += [np.stack([left, left, right]), np.zeros((3, 2))]
    for start in starts:
        function = ClusteringFunction(MeasuredRows.of(x), len(start))
        found, accuracy = function.evaluate(start), Accuracy(1e-5 if n > 80 else 1e-7)
        end = inf_stationary(function, start, accuracy, descend)
        assert end.end == "accuracy"
        assert end.at.value < 0.95 * found.value
        slack = np.sqrt(2 * accuracy.eps * end.at.value)
        assert falls_steepest(x, start, 8) > 10 * slack
        assert falls_steepest(x, end.x, 1000) <= slack


def test_a_pair_of_centres_that_the_farthest_tied_row_leaves_undecided():
    """It ties between two others; their direction moves neither of the two that coincide."""
    s = np.random.default_rng(0).normal(size=50) * 0.1
    s -= s.mean()
    x = np.concatenate([np.stack([1000.0 + side + 0 * s, s], axis=1) for side in (-2, 2)])
    x = np.concatenate([[[0.0, 5]], x])
    centers = np.array([[-10.0, 0], [10, 0], [1000, 0], [1000, 0]])
    function = ClusteringFunction(MeasuredRows.of(x), 4)
    found = function.evaluate(centers)
    blocks = np.linalg.norm(found.gradient - function.other_subgradient(centers), axis=1)
    np.testing.assert_allclose(blocks[2:], 2 / 101 * 50 * 2, rtol=1e-2)
    assert np.count_nonzero(blocks[:2]) == 1


@pytest.mark.parametrize("descend", DESCENTS)
def test_a_tie_of_the_auxiliary_problem_is_left(descend):
    """y at its row, and another one as far from it as from its centre."""
    x = np.array([[0.0], [0], [3], [6]])
    rows = MeasuredRows.of(x)
    function = AuxiliaryFunction(rows, np.array([[0.0]]))
    y = np.array([6.0])
    found = function.evaluate(y)
    np.testing.assert_array_equal(found.gradient, found.subgradient)
    left = inf_stationary(function, y, Accuracy(), descend)
    assert left.end == "accuracy"
    assert left.at.value < found.value
    np.testing.assert_allclose(left.x, [4.5], atol=1e-3)


@pytest.mark.parametrize("n", [80, 200_000])
def test_ties_of_the_auxiliary_problem_are_taken_together(n):
    """Rows of two lines, as far from y between them as from a centre beyond: one line comes."""
    s = np.random.default_rng(0).normal(size=n) * 0.1
    x = np.stack([np.where(np.arange(n) % 2, 1.0, -1.0), s], axis=1)
    function = AuxiliaryFunction(MeasuredRows.of(x), np.array([[-2.0, 0], [2, 0]]))
    y = np.zeros(2)
    found = function.evaluate(y)
    np.testing.assert_array_equal(found.gradient, found.subgradient)
    v = found.gradient - function.other_subgradient(y)
    assert abs(v[0]) == pytest.approx(1, rel=1e-9)
    end = inf_stationary(function, y, Accuracy(1e-7), clarke_stationary)
    assert end.end == "accuracy"
    assert end.at.value < 0.55 * found.value


def test_a_smooth_end_is_kept():
    x = np.array([[0.0], [1], [5], [6]])
    function = ClusteringFunction(MeasuredRows.of(x), 2)
    end = inf_stationary(function, np.array([[0.0], [6.0]]), Accuracy(), clarke_stationary)
    assert end.end == "accuracy"
    assert end.at.value == pytest.approx(0.25, rel=1e-8)


class Corner:
    """Two subgradients where f looks flat."""

    def __init__(self, other):
        self.other = other

    def evaluate(self, x):
        return Evaluation(1.0, np.zeros(1), np.zeros(1))

    def value(self, x):
        return self.evaluate(x).value

    def other_subgradient(self, x):
        return np.array([self.other])


def test_what_cannot_be_left(monkeypatch):
    at = np.array([0.0])
    solve = partial(inf_stationary, x=at, descend=clarke_stationary)
    # as good as no second subgradient
    assert solve(Corner(other=1e-9), a=Accuracy(1e-6)).end == "accuracy"
    # a second one that f does not fall along
    assert solve(Corner(other=1.0), a=Accuracy()).end == "rounding"
    # too often
    monkeypatch.setattr(dcd_bundle, "MOST", 1)
    x = np.array([[-2.0], [0], [1], [1]])
    function = ClusteringFunction(MeasuredRows.of(x), 2)
    end = inf_stationary(function, np.array([[-1.0], [1]]), Accuracy(), clarke_stationary)
    assert end.end == "most"
