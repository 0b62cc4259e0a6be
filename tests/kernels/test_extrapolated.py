"""Expected means of clusters, and means moved part of the way, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact.extrapolated import LEAST_SHARE, ExpectedChange, moved_means
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.sums import ClusterSums
from tests import oracles

D = 6


def grid_of(shift, *, weighted=False, wide=False):
    light = 2.0**-30 if wide else 0.1
    return FixedPoint.choose(
        shift, 20.0, n_rows=200, total_weight=600.0, max_weight=3.0, min_weight=light,
        integer_weights=not weighted,
    )  # fmt: skip


def expected_means(centers, sums, change, touched, smoothing, factor, ahead, ahead_weights):
    """(k, d) centres, A and alpha as the formulas say, cluster by cluster."""
    grid = sums.grid
    centers, ahead, ahead_weights = centers.copy(), ahead.copy(), ahead_weights.copy()
    shift = grid.shift.astype(np.float64)
    s, ds = (part.totals * 2.0**-grid.bits for part in (sums, change))
    v, dv = (part.weights * 2.0**-grid.weight_bits for part in (sums, change))
    plain = sums.means_float64(centers)
    live = (ahead != 0).any(axis=1) | (ahead_weights != 0)
    for j in np.flatnonzero(touched | live):
        ahead[j] = (1 - smoothing) * ahead[j] + smoothing * factor * ds[j]
        ahead_weights[j] = (1 - smoothing) * ahead_weights[j] + smoothing * factor * dv[j]
        total = v[j] + ahead_weights[j]
        expects = ahead[j].any() or ahead_weights[j] != 0
        if v[j] <= 0:
            continue
        if expects and total > LEAST_SHARE * v[j]:
            centers[j] = (s[j] + ahead[j]) / total + shift
        else:
            centers[j] = plain[j]
    return centers, ahead, ahead_weights


@given(
    st.integers(1, 6), st.integers(0, 60), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([np.float32, np.float64]), st.integers(0, 2**31),
)  # fmt: skip
def test_is_that_of_numpy_bit_for_bit(k, n, weighted, wide, about_zero, dtype, seed):
    r = np.random.default_rng(seed)
    shift = np.zeros(D, dtype) if about_zero else r.normal(size=D).astype(dtype)
    grid = grid_of(shift, weighted=weighted, wide=wide and weighted)
    assert grid.wide == (wide and weighted)
    x = r.normal(size=(n, D)).astype(dtype)
    weight = r.uniform(0.1, 3, n) if weighted else None
    old, new = (r.integers(-1, k, n).astype(np.int32) for _ in range(2))
    sums, change = (ClusterSums(k, D, grid) for _ in range(2))
    sums.add(x, new, weight)
    change.move(x, old, new, weight)
    touched = np.isin(np.arange(k), [*old[old != new], *new[old != new]])
    ahead = r.normal(size=(k, D)) * (r.random(k) < 0.5)[:, None]
    weights = r.normal(size=k) * 5 * (r.random(k) < 0.5)
    centers = r.normal(size=(k, D)).astype(dtype)
    smoothing, factor = r.uniform(0.1, 1), r.uniform(0.1, 5)
    wanted = expected_means(centers, sums, change, touched, smoothing, factor, ahead, weights)
    outstanding = ExpectedChange(ahead.copy(), weights.copy())
    found = centers.copy()
    outstanding.move(found, sums, change, touched, smoothing, factor)
    assert found.tobytes() == wanted[0].astype(dtype).tobytes()
    assert outstanding.sums.tobytes() == wanted[1].tobytes()
    assert outstanding.weights.tobytes() == wanted[2].tobytes()
    assert outstanding.live.tolist() == [
        bool(a.any() or w) for a, w in zip(wanted[1], wanted[2], strict=True)
    ]


def rows_in_two_clusters():
    grid = grid_of(np.zeros(D, np.float64))
    sums, change = ClusterSums(3, D, grid), ClusterSums(3, D, grid)
    x = np.array([[1.0] * D, [3.0] * D, [5.0] * D])
    sums.add(x, np.array([0, 0, 1], np.int32))
    change.add(x[:1], np.array([0], np.int32))
    return sums, change


def test_plain_means_where_nothing_is_expected():
    sums, change = rows_in_two_clusters()
    for given_change, factor in ((None, 4.5), (change, 0.0)):
        centers = np.full((3, D), 9.0)
        ExpectedChange.nothing(3, D).move(
            centers, sums, given_change, np.array([True, True, True]), 0.5, factor
        )
        assert centers[:, 0].tolist() == [2, 5, 9], "a cluster without rows keeps its centre"
        assert np.array_equal(centers, sums.means_float64(np.full((3, D), 9.0)))


def test_only_what_has_changed_is_touched():
    sums, change = rows_in_two_clusters()
    outstanding = ExpectedChange.nothing(3, D)
    centers = np.full((3, D), 9.0)
    outstanding.move(centers, sums, change, np.array([True, False, False]), 0.5, 4.0)
    assert outstanding.live.tolist() == [True, False, False]
    # A = 0.5 * 4 * 1 = 2 in each feature, and in the weight: (4 + 2) / (2 + 2)
    assert centers[:, 0].tolist() == [1.5, 9, 9]
    # What was expected fades, also where nothing has changed since: (4 + 1) / (2 + 1)
    nothing = ClusterSums(3, D, sums.grid)
    outstanding.move(centers, sums, nothing, np.zeros(3, bool), 0.5, 4.0)
    assert centers[:, 0] == pytest.approx([5 / 3, 9, 9])
    outstanding.clear()
    assert not outstanding.live.any()
    assert not outstanding.sums.any()
    assert not outstanding.weights.any()


@given(st.integers(1, 5), st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_moved_means_have_the_bits_of_numpy(k, n, weighted, about_zero, seed):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 6)).astype(np.float32)
    shift = np.zeros(6, np.float32) if about_zero else r.normal(size=6).astype(np.float32)
    weight = r.uniform(0.1, 3, n) if weighted else None
    grid = FixedPoint.choose(
        shift, 20.0, n_rows=n, total_weight=3.0 * n, max_weight=3.0, integer_weights=not weighted
    )
    sums = ClusterSums(k, 6, grid)
    sums.add(x, r.integers(0, k, n).astype(np.int32), weight)
    means = r.normal(size=(k, 6))
    share = np.where(sums.counts > 0, r.uniform(0, 1, k), 0.0)
    kept = means.copy()
    out = moved_means(means, sums, share)
    assert out.tobytes() == oracles.moved_means(means, sums.means_float64(means), share).tobytes()
    assert means.tobytes() == kept.tobytes(), "the means of before stay as they were"


def test_moved_means_take_means_in_any_order():
    grid = FixedPoint.choose(np.zeros(2, np.float32), 4.0, n_rows=2)
    sums = ClusterSums(2, 2, grid)
    sums.add(np.array([[2, 4], [2, 4]], np.float32), np.array([1, 1], np.int32))
    means = np.asfortranarray(np.array([[1.0, 1.0], [0.0, 0.0]]))
    means.flags.writeable = False
    out = moved_means(means, sums, np.array([0.0, 0.5]))
    assert out.tolist() == [[1, 1], [1, 2]]
