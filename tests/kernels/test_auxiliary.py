"""What a further centre would save: as brute force finds it, and the scans do end early."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.auxiliary import (
    arrange,
    descend_from,
    gains_at,
    members_at,
    order_by_distance,
    swap_costs,
)
from tests.helpers.covering import in_turns
from tests.oracles import dcd as oracles


def table(kind, n=150, d=3, seed=0):
    r = np.random.default_rng(seed)
    if kind == "blobs":
        x = r.standard_normal((n, d)) + 8 * r.integers(0, 3, (n, 1))
    elif kind == "grid":  # many equal rows, and rows as near to two centres
        x = r.integers(0, 3, (n, d)).astype(float)
    elif kind == "equal":
        x = np.full((n, d), 2.0)
    elif kind == "outlier":
        x = r.standard_normal((n, d))
        x[n // 2] = 1e9
    else:
        x = 1e-160 * r.standard_normal((n, d))
    return np.ascontiguousarray(x - x.mean(0))


KINDS = ["blobs", "grid", "equal", "outlier", "tiny"]


def prepared(x, k, weighted=False, seed=1):
    r = np.random.default_rng(seed)
    centers = np.ascontiguousarray(x[r.choice(len(x), k, replace=False)])
    labels, first, _, second = oracles.two_nearest(x, centers)
    weight = r.integers(0, 4, len(x)).astype(float) if weighted else np.ones(len(x))
    points = np.concatenate([x[::7], r.standard_normal((5, x.shape[1])) * np.ptp(x), centers])
    return centers, labels, first, second, weight, points


def test_order():
    labels = np.array([2, 0, 0, 2, 0, 2])
    order = order_by_distance(labels, np.array([1.0, 5, 7, 1, 7, 3]), 4)
    assert order.order.tolist() == [2, 4, 1, 5, 0, 3]
    assert order.starts.tolist() == [0, 3, 3, 6, 6]
    assert order.order.dtype == order.starts.dtype == np.int64


@pytest.mark.parametrize(
    ("kind", "weighted", "shape"), in_turns(KINDS, [False, True], [(1, 1), (3, 4), (9, 2)])
)
def test_gains(kind, weighted, shape):
    d, k = shape
    x = table(kind, d=d)
    centers, labels, first, _, weight, points = prepared(x, k, weighted)
    order = order_by_distance(labels, first, k)
    found = gains_at(arrange(x, weight, centers, order, first), points)
    expected = [oracles.gain(x, weight, first, y)[0] for y in points]
    np.testing.assert_array_equal(found, expected)
    assert kind == "equal" or (found > 0).any()


@pytest.mark.parametrize(("kind", "weighted"), in_turns(KINDS, [False, True]))
def test_members(kind, weighted):
    x = table(kind)
    centers, labels, first, _, weight, points = prepared(x, 3, weighted)
    rows = arrange(x, weight, centers, order_by_distance(labels, first, 3), first)
    found, mass, sums = members_at(rows, points)
    np.testing.assert_array_equal(found, gains_at(rows, points))
    for q, y in enumerate(points):
        _, inside, expected = oracles.gain(x, weight, first, y)
        assert mass[q] == weight[inside].sum()
        np.testing.assert_allclose(sums[q], expected, rtol=1e-15, atol=1e-25 * np.ptp(x))


@pytest.mark.parametrize(("kind", "steps"), in_turns(KINDS, [30, 0, 1]))
def test_descent(kind, steps):
    x = table(kind)
    centers, labels, first, _, weight, points = prepared(x, 3, True)
    order = order_by_distance(labels, first, 3)
    given = points.copy()
    moved, found = descend_from(arrange(x, weight, centers, order, first), points, steps)
    np.testing.assert_array_equal(points, given)
    before = gains_at(arrange(x, weight, centers, order, first), points)
    assert (found >= before * (1 - 1e-14)).all()
    for q, y in enumerate(points):
        mean, gain = oracles.descend(x, weight, first, y, steps)
        np.testing.assert_allclose(moved[q], mean, rtol=1e-13, atol=1e-14 * np.ptp(x))
        assert found[q] == pytest.approx(gain, rel=1e-13)
    if steps == 30 and kind == "blobs":  # some came to rest before, some had nowhere to go
        again, _ = descend_from(arrange(x, weight, centers, order, first), moved, 1)
        assert (again == moved).all()
        assert 0 < (before == 0).sum() < len(points)


@pytest.mark.parametrize(("kind", "weighted", "k"), in_turns(KINDS, [False, True], [1, 2, 5]))
def test_swaps(kind, weighted, k):
    x = table(kind)
    centers, labels, first, second, weight, points = prepared(x, k, weighted)
    order = order_by_distance(labels, np.sqrt(first) + np.sqrt(second), k)
    found = swap_costs(x, weight, centers, order, first, second, points)
    scale = weight @ oracles.squares(x, np.zeros(x.shape[1]))
    for q, y in enumerate(points):
        expected = [oracles.swap_cost(x, weight, centers, j, y) for j in range(k)]
        # a difference of large sums: relative to what they are made of
        size = scale + weight @ oracles.squares(x, y)
        np.testing.assert_allclose(found[q], expected, rtol=1e-13, atol=1e-15 * size)
    assert kind != "blobs" or k == 1 or ((found < 0).any() and (found > 0).any())


def test_scans_end_early():
    """Rows that cannot count are not looked at: they may lie anywhere."""
    x = table("blobs", n=400)
    centers, labels, first, second, weight, _ = prepared(x, 6)
    point = x[:1]
    reach = np.sqrt(first) + np.sqrt(second)
    away = np.sqrt(oracles.squares(centers, point[0]))[labels]
    hidden = (first <= 0.24 * away**2) & (reach < 0.99 * away)
    assert 50 < hidden.sum() < 399
    moved = np.where(hidden[:, None], point, x)
    order = order_by_distance(labels, first, 6)
    assert (
        oracles.gain(moved, weight, first, point[0])[0]
        > 1.01 * (oracles.gain(x, weight, first, point[0])[0])
    )
    np.testing.assert_array_equal(
        gains_at(arrange(moved, weight, centers, order, first), point),
        gains_at(arrange(x, weight, centers, order, first), point),
    )
    by_sum = order_by_distance(labels, reach, 6)
    np.testing.assert_array_equal(
        swap_costs(moved, weight, centers, by_sum, first, second, point),
        swap_costs(x, weight, centers, by_sum, first, second, point),
    )
