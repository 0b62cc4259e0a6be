"""The best partitions on a line, against all partitions there are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.one_dimension import distinct_values, objective_bounds, optimal_partitions
from tests.helpers.covering import slow
from tests.oracles.dcd_certain import objective_of, optima_in_one, optimum

KINDS = ("normal", "far", "two ends", "one far out", "grid", "cubes", "tiny")


def values_of(kind, n, r):
    x = r.normal(size=n)
    return {
        "normal": x,
        "far": 1e6 + x,
        "two ends": r.choice([-1e9, 1e9], n) + x,
        "one far out": np.append(x[1:], 1e9),
        "grid": 1e6 + r.integers(0, 9, n),
        "cubes": 1e5 * x**9,
        "tiny": 1e-120 * x,
    }[kind]


def check(values, weights, k):
    """Objectives are the least there are, of the partition that the centres make."""
    found, centers = optimal_partitions(values, weights, k)
    true = optima_in_one(values.tolist(), weights.tolist(), k)
    assert len(found) == len(centers) == len(true) == min(k, len(values))
    assert (objective_bounds(found) <= [float(t) for t in true]).all()
    assert (np.diff(found) <= 0).all()
    slack = 2.0**-98 * float(true[0])
    for size, (value, best, of) in enumerate(zip(found, true, centers, strict=True), start=1):
        assert value == pytest.approx(float(best), rel=1e-12, abs=slack)
        assert of.shape == (size, 1)
        assert (np.diff(of[:, 0]) > 0).all()
        labels = np.abs(values[:, None] - of[:, 0]).argmin(axis=1)
        assert set(labels.tolist()) == set(range(size))
        made = float(objective_of(values[:, None], weights.tolist(), labels.tolist()))
        assert made == pytest.approx(float(best), rel=1e-9, abs=1e-9 * slack + slack)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_partitions_are_the_best_there_are(seed, kind, weighted):
    r = np.random.default_rng([seed, KINDS.index(kind), weighted])
    n = int(r.integers(2, 40))
    weight = np.exp(2 * r.normal(size=n)) if weighted else None
    check(*distinct_values(values_of(kind, n, r), weight), 7)


def test_by_trying_all_labels():
    r = np.random.default_rng(0)
    for _ in range(20):
        values, weights = distinct_values(
            r.integers(-4, 5, 8).astype(float), r.integers(0, 4, 8) + 0.0
        )
        found, _ = optimal_partitions(values, weights, 3)
        for size, value in enumerate(found, start=1):
            best = optimum(values[:, None], weights.tolist(), size)
            assert value == pytest.approx(float(best), rel=1e-13, abs=1e-13)


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=14),
    st.sampled_from([1.0, 0.1, 1e-9, 1e7]),
    st.sampled_from([0.0, 1e6, -1e9]),
)
def test_ties_and_repeats(numbers, unit, offset):
    check(*distinct_values(unit * np.array(numbers) + offset), 5)


def test_weights_are_repeated_rows():
    r = np.random.default_rng(1)
    x, weight = r.normal(size=50), r.integers(0, 4, 50)
    one = distinct_values(x, weight.astype(float))
    other = distinct_values(np.repeat(x, weight))
    assert (weight == 0).any()
    assert [a.tobytes() for a in one] == [b.tobytes() for b in other]


def test_distinct_values_of_all_types():
    values, weights = distinct_values(np.array([3, -1, 3, 0, -1, 3], np.int16))
    assert values.tolist() == [-1, 0, 3]
    assert weights.tolist() == [2, 1, 3]
    assert values.dtype == weights.dtype == np.float64
    values, weights = distinct_values(
        np.array([0.0, -0.0, 1.0], np.float32), np.array([1.0, 2.5, 0.0])
    )
    assert (values.tolist(), weights.tolist()) == ([0], [3.5])


def test_as_many_clusters_as_values_and_more():
    found, centers = optimal_partitions(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 5.0]), 9)
    assert found.tolist() == pytest.approx([(1 + 4 + 80) - 23**2 / 7, 0.5, 0])
    assert found[-1] == 0
    assert centers[2][:, 0].tolist() == [1, 2, 4]
    found, centers = optimal_partitions(np.array([7.5]), np.array([2.0]), 3)
    assert (found.tolist(), centers[0].tolist()) == ([0], [[7.5]])


def test_weights_of_all_sizes():
    """A weight that is lost beside others in one float64 is not lost in two."""
    values = np.array([0.0, 1.0, 2.0, 10.0, 11.0])
    weights = np.array([1e-14, 1e12, 1e12, 1e-12, 1e-13])
    assert weights.sum() == weights[1:3].sum()
    check(values, weights, 4)


def test_many_values_and_clusters():
    """Partitions are cut where the levels say, at more levels than a byte has bits."""
    r = np.random.default_rng(2)
    values, weights = distinct_values(np.concatenate([r.normal(c, 0.01, 100) for c in range(40)]))
    assert len(values) == 4_000
    found, centers = optimal_partitions(values, weights, 45)
    assert np.abs(centers[39][:, 0] - np.arange(40)).max() < 0.005
    for size, of in enumerate(centers):
        squares = (values[:, None] - of[:, 0]) ** 2
        assert (weights * squares.min(axis=1)).sum() == pytest.approx(found[size], rel=1e-9)
    assert all(more < less for less, more in pairwise(found))
