"""Values and subgradients of the objective as a difference of convex functions."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.convex import (
    AuxiliaryFunction,
    ClusteringFunction,
    CountedFunction,
    MeasuredRows,
    inner,
    multipliers,
)
from tests.helpers.covering import in_turns
from tests.oracles import dcd as oracles

DTYPES = ["f8", "f4", "f2", "u1", "i2"]


def table(dtype="f8", n=120, d=3, seed=0):
    """Rows that a type holds without rounding, some of them equal."""
    r = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return r.integers(0, 9, (n, d)).astype(dtype)
    return np.round(r.standard_normal((n, d)) * 64).astype(dtype) / np.dtype(dtype).type(16)


def weights(n, seed=0):
    return np.random.default_rng(seed).integers(1, 4, n).astype(float)


def centers_of(x, k, seed=1):
    r = np.random.default_rng(seed)
    return x[r.choice(len(x), k, replace=False)] + r.normal(size=(k, x.shape[1])) * 0.3


@pytest.mark.parametrize(("dtype", "weighted", "k"), in_turns(DTYPES, [False, True], [1, 4]))
def test_clustering(dtype, weighted, k):
    x = table(dtype)
    weight = weights(len(x)) if weighted else None
    centers = centers_of(x, k)
    found = ClusteringFunction(MeasuredRows.of(x, weight), k).evaluate(centers)
    f1, f2, gradient, subgradient = oracles.clustering(x.astype(float), weight, centers)
    assert found.value == pytest.approx(f1 - f2, rel=1e-12)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(found.subgradient, subgradient, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("dtype", "weighted"), in_turns(DTYPES, [False, True]))
def test_auxiliary(dtype, weighted):
    x = table(dtype)
    weight = weights(len(x)) if weighted else None
    centers = centers_of(x, 3)
    function = AuxiliaryFunction(MeasuredRows.of(x, weight), centers)
    inside = []
    points = x.astype(float)
    for y in [points[5] + 0.25, points[9] + 0.5, np.full(3, 1e3)]:
        found = function.evaluate(y)
        f1, f2, gradient, subgradient, n = oracles.auxiliary(x.astype(float), weight, centers, y)
        assert found.value == pytest.approx(f1 - f2, rel=1e-11)
        assert function.value(y) == found.value
        np.testing.assert_allclose(found.gradient, gradient, rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(found.subgradient, subgradient, rtol=1e-12, atol=1e-11)
        inside.append(n)
    assert max(inside) > 1
    assert inside[-1] == 0


def test_finite_differences():
    """Away from ties f is smooth, with the gradient ``grad f_1 - xi_2``."""
    r = np.random.default_rng(3)
    x, k = r.standard_normal((80, 2)), 4
    rows, centers, y = MeasuredRows.of(x), centers_of(x, k), np.array([0.6, -0.4])
    clustering, auxiliary = ClusteringFunction(rows, k), AuxiliaryFunction(rows, centers)
    _, first, _, second = oracles.two_nearest(x, centers)
    far = np.abs(oracles.squares(x, y) - first)
    step = 1e-6
    assert min((second - first).min(), far.min()) > 100 * step
    for function, at in [(clustering, centers), (auxiliary, y)]:
        found = function.evaluate(at)
        assert function.other_subgradient(at) is None
        slope = found.gradient - found.subgradient
        for _ in range(20):
            u = r.standard_normal(at.shape)
            u /= np.linalg.norm(u)
            change = function.value(at + step * u) - function.value(at - step * u)
            assert change / (2 * step) == pytest.approx((slope * u).sum(), abs=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_ties_of_clusters(weighted):
    x = np.array([[0.0], [1], [2], [3], [4]])
    weight = np.array([1.0, 1, 3, 1, 1]) if weighted else None
    middle = 3.0 if weighted else 1.0
    centers = np.array([[0.5], [3.5]])
    function = ClusteringFunction(MeasuredRows.of(x, weight), 2)
    found = function.evaluate(centers)
    other = function.other_subgradient(centers)
    m = 4 + middle
    np.testing.assert_allclose(
        found.gradient - found.subgradient, [[2 / m * (0.5 * middle - 2 * middle)], [0]]
    )
    np.testing.assert_allclose(found.gradient - other, [[0], [2 / m * (3.5 * middle - 2 * middle)]])
    # both are subgradients of f_2, which is convex
    before = oracles.clustering(x, weight, centers)[1]
    r = np.random.default_rng(0)
    for _ in range(200):
        moved = centers + r.normal(size=centers.shape)
        after = oracles.clustering(x, weight, moved)[1]
        for xi in (found.subgradient, other):
            assert after >= before + (xi * (moved - centers)).sum() - 1e-12


@pytest.mark.parametrize("weighted", [False, True])
def test_ties_of_one_more_centre(weighted):
    """A row inside B(y) but for rounding, and one outside; the farthest of them changes sides."""
    x = np.array([[0.0], [4], [-4], [10], [1]])
    weight = np.array([1.0, 2, 1, 1, 3]) if weighted else None
    centers = np.array([[0.0]])
    function = AuxiliaryFunction(MeasuredRows.of(x, weight), centers)
    for y in (8.0, 8 * (1 - 2.0**-45)):  # the row at 4 is as far from it as from 0
        y = np.array([y])
        found, other = function.evaluate(y), function.other_subgradient(y)
        inside = oracles.auxiliary(x, weight, centers, y)[4]
        assert inside == (1 if y[0] == 8 else 2)
        own = 2.0 if weighted else 1.0
        share = 2 * own / (8 if weighted else 5) * 4
        sign = 1 if y[0] == 8 else -1
        # a row that comes in takes its part of grad f_1 out of xi_2
        np.testing.assert_allclose(found.subgradient - other, [sign * share], rtol=1e-9)
        before = oracles.auxiliary(x, weight, centers, y)[1]
        for at in np.linspace(-20, 20, 81):
            after = oracles.auxiliary(x, weight, centers, np.array([at]))[1]
            for xi in (found.subgradient, other):
                assert after >= before + xi[0] * (at - y[0]) - 1e-9
    assert function.other_subgradient(np.array([5.5])) is None
    # the row that lies at y gives no other subgradient
    assert AuxiliaryFunction(MeasuredRows.of(x, weight), x).other_subgradient(x[2]) is None


def test_weightless_rows_do_not_tie():
    x = np.array([[0.0], [1], [2], [3], [4], [5]])
    weight = np.array([1.0, 1, 0, 1, 1, 0])
    rows = MeasuredRows.of(x, weight)
    centers = np.array([[0.5], [3.5]])
    assert oracles.squares(x, centers[0])[2] == oracles.squares(x, centers[1])[2]
    assert ClusteringFunction(rows, 2).other_subgradient(centers) is None
    function = AuxiliaryFunction(rows, np.array([[3.0]]))
    assert oracles.squares(x, np.array([7.0]))[5] == oracles.squares(x, np.array([3.0]))[5]
    assert function.other_subgradient(np.array([7.0])) is None
    assert ClusteringFunction(rows, 1).other_subgradient(centers[:1]) is None


def test_carried_sums_have_the_same_bits():
    x = table()
    rows, r = MeasuredRows.of(x), np.random.default_rng(0)
    function, labels = ClusteringFunction(rows, 4), []
    for seed in range(4):
        centers = centers_of(x, 4, seed)
        carried = function.evaluate(centers)
        fresh = ClusteringFunction(rows, 4).evaluate(centers)
        np.testing.assert_array_equal(carried.subgradient, fresh.subgradient)
        assert carried.value == fresh.value == function.value(centers)
        labels.append(oracles.two_nearest(x, centers)[0])
        function.value(centers + r.normal(size=centers.shape))
    assert (np.diff(labels, axis=0) != 0).any()


def test_evaluations_are_counted():
    """Each but those of another subgradient, and none after the check has raised."""
    x = table()
    function, checks = ClusteringFunction(MeasuredRows.of(x), 2), []
    counted, point = CountedFunction(function, lambda: checks.append(len(checks))), centers_of(x, 2)
    assert counted.value(point) == function.value(point)
    np.testing.assert_array_equal(
        counted.evaluate(point).gradient, function.evaluate(point).gradient
    )
    assert counted.other_subgradient(point) is None
    assert counted.n == len(checks) == 2
    with pytest.raises(ZeroDivisionError):
        CountedFunction(function, lambda: 1 / 0).value(point)


def test_inner_products_are_rounded_once():
    assert inner(np.array([[1e16, 1.0], [-1e16, 1.0]]), np.ones((2, 2))) == 2.0


@pytest.mark.parametrize("beta", [(0.0, 0.0, 0.0), (0.0, 0.3, 1.0), (5.0, 0.0, 5.0)])
def test_multipliers_are_the_best_of_the_simplex(beta):
    """No worse than a fine grid of shares; at corners, on edges and inside."""
    share = np.arange(0, 1.0001, 1 / 64)
    grid = np.array([(a, b, 1 - a - b) for a in share for b in share if a + b <= 1])
    zeros = set()
    for seed in range(40):
        r = np.random.default_rng(seed)
        xi, D = [r.normal(size=4) + (seed % 3) for _ in range(3)], r.uniform(0.1, 2, 4)

        def value(lam, xi=xi, D=D):
            mixed = sum(a * v for a, v in zip(lam, xi, strict=True))
            return float((mixed * D * mixed).sum() + 2 * np.dot(lam, beta))

        found = multipliers(tuple(xi), beta, D)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1.0)
        assert value(found) <= min(map(value, grid)) + 1e-12
        zeros.add(int((found == 0).sum()))
    assert zeros == {0, 1, 2}


def test_tied_rows_leave_along_one_direction():
    """Five rows on a line, both centres at 0: the farthest gives u, the others follow it."""
    function = ClusteringFunction(MeasuredRows.of(np.array([[-3.0], [-1], [0], [1], [3]])), 2)
    at = np.zeros((2, 1))
    found, other = function.evaluate(at), function.other_subgradient(at)
    assert found.value == 4.0
    v = found.gradient - other
    assert function.value(at - 0.1 * v / np.abs(v).max()) < 3.7
