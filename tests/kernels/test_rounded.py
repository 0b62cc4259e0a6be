"""Rows that are rounded once: what is added is what `ClusterSums.add` adds, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.sums import ClusterSums, RoundedRows
from tests.helpers.covering import every_two
from tests.kernels.test_statistics import scan, tables
from tests.kernels.test_sums import K, integers_of, labels_for, same
from tests.oracles import fixed_point_sums


@given(tables(), st.data())
def test_several_labellings_of_rows_that_are_rounded_once(table, data):
    x, weight = table
    first, second = data.draw(labels_for(x)), data.draw(labels_for(x))
    grid = scan(x, weight).finish().grid
    rows = RoundedRows.of(x, weight, grid)
    found = ClusterSums(2 * K, x.shape[1], grid)
    found.add_rounded(rows, first)
    found.add_rounded(rows, second, K)
    w = np.ones(len(x)) if weight is None else weight
    for at, labels in ((slice(0, K), first), (slice(K, 2 * K), second)):
        part = found.part(at)
        assert integers_of(part) == fixed_point_sums(x, labels, w, K, grid)
        expected = ClusterSums(K, x.shape[1], grid)
        expected.add(x, labels, weight)
        assert same(part, expected)


WEIGHTS = {
    "none": lambda r, n: None,
    "integers": lambda r, n: r.integers(0, 5, n).astype(float),
    "reals": lambda r, n: r.uniform(0, 2, n) * (r.random(n) < 0.8),
    "wide": lambda r, n: np.exp(8 * r.normal(size=n)) * (r.random(n) < 0.8),
}


def drawn(dtype, kind, outlier, n=300, d=5):
    """Rows, weights, and labels from -1 to K - 1."""
    r = np.random.default_rng(4)
    x = (r.normal(size=(n, d)) * 40 + 60).astype(dtype)
    if outlier:
        x[7] = 1e9
    return x, WEIGHTS[kind](r, n), r.integers(-1, K, n).astype(np.int32)


@pytest.mark.parametrize(
    ("outlier", "kind", "dtype"),
    every_two([False, True], list(WEIGHTS), ["f4", "f8", "i2", "u1", "i8", "f2"]),
)
def test_every_kind_of_row_and_weight(dtype, kind, outlier):
    if outlier and dtype in ("i2", "u1", "f2"):
        pytest.skip("1e9 is no such number")
    x, weight, labels = drawn(dtype, kind, outlier)
    grid = scan(x, weight).finish().grid
    assert grid.integer_weights == (kind in ("none", "integers"))
    assert grid.wide or kind != "wide"
    found, expected = ClusterSums(K, x.shape[1], grid), ClusterSums(K, x.shape[1], grid)
    found.add_rounded(RoundedRows.of(x, weight, grid), labels)
    expected.add(x, labels, weight)
    assert found.sums.any()
    assert same(found, expected)


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("wide", [False, True])
def test_a_row_that_weighs_nothing_may_hold_anything(wide, integers):
    x = np.arange(12, dtype=np.float64).reshape(6, 2)
    weight = np.array([1.0, 0, 2, 0, 0, 3]) * (1 if integers else 0.7)
    labels = np.zeros(6, np.int32)
    grid = FixedPoint(np.zeros(2), 20, 0 if integers else 20, integers, 4, wide)
    expected = ClusterSums(1, 2, grid)
    expected.add(x, labels, weight)
    x[1], x[3], x[4] = np.nan, np.inf, -np.inf
    found = ClusterSums(1, 2, grid)
    found.add_rounded(RoundedRows.of(x, weight, grid), labels)
    assert same(found, expected)


@pytest.mark.parametrize(("bad", "integers"), [(0.5, True), (-1.0, True), (1e30, False)])
@pytest.mark.parametrize("wide", [False, True])
def test_weights_that_the_grid_does_not_hold(wide, bad, integers):
    grid = FixedPoint(np.zeros(1), 20, 0 if integers else 20, integers, 1, wide)
    weight = np.array([1.0, 1.0, bad, 1.0])
    with pytest.raises(ValueError, match="row 2 weighs"):
        RoundedRows.of(np.ones((4, 1)), weight, grid)


def test_labels_that_do_not_fit():
    grid = FixedPoint(np.zeros(1), 20, 0, True, 1)
    rows, sums = RoundedRows.of(np.ones((3, 1)), None, grid), ClusterSums(4, 1, grid)
    with pytest.raises(IndexError, match="one of 2 clusters"):
        sums.add_rounded(rows, np.array([0, 1, 2], np.int32), 2)
    with pytest.raises(ValueError, match="3 rows need as many labels"):
        sums.add_rounded(rows, np.zeros(2, np.int32))
    assert not sums.sums.any()
    none = RoundedRows.of(np.ones((0, 1)), None, grid)
    sums.add_rounded(none, np.zeros(0, np.int32), 4)
    assert len(none) == 0


def test_a_part_is_a_copy():
    grid = FixedPoint(np.zeros(1), 0, 0, True, 1)
    sums = ClusterSums(3, 1, grid)
    sums.add(np.array([[1.0], [2.0], [3.0]]), np.array([0, 1, 2], np.int32))
    part = sums.part(slice(1, 3))
    part.add(np.array([[5.0]]), np.zeros(1, np.int32))
    assert part.sums.tolist() == [[7], [3]]
    assert part.counts.tolist() == [2, 1]
    assert sums.sums.tolist() == [[1], [2], [3]]
