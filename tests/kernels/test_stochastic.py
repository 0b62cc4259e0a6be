"""Rows one after the other, and rounds of them, against numpy twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.stochastic import (
    has_diverged,
    round_step,
    sgd_rows,
    snapshot_gradient,
    vrkm_rows,
)
from tests.helpers.covering import in_turns
from tests.oracles import vrkm as twins

SHAPES = {"k": st.integers(1, 9), "d": st.integers(1, 9), "seed": st.integers(0, 2**31)}


def some_rows(r, n, d, dtype, weighted, equal_rows=False):
    x = r.normal(size=(n, d)) * 3 + 1
    if equal_rows:
        x = np.round(x)
    return x.astype(dtype), r.uniform(0.1, 3, n) if weighted else None


def ones(weight, n):
    return np.ones(n) if weight is None else weight


@given(**SHAPES, dtype=st.sampled_from(["f4", "f8"]), weighted=st.booleans(), tied=st.booleans())
def test_sgd_is_that_of_numpy_bit_for_bit(k, d, seed, dtype, weighted, tied):
    r = np.random.default_rng(seed)
    x, weight = some_rows(r, 12, d, dtype, weighted, tied)
    order = r.integers(len(x), size=20)
    means, votes = x[r.integers(len(x), size=k)].astype("f8"), r.integers(0, 4, k).astype("f8")
    kept = means.tobytes(), votes.tobytes()
    expected = twins.sgd_rows(x.astype("f8"), ones(weight, len(x)), order, means, votes)
    found = sgd_rows(x, weight, order, means, votes)
    for mine, twin in zip(found[:2], expected[:2], strict=True):
        assert mine.tobytes() == twin.tobytes()
    assert found[2] == expected[2]
    assert found[3] == pytest.approx(ones(weight, len(x))[order].sum(), rel=1e-12)
    assert (means.tobytes(), votes.tobytes()) == kept, "those of before stay as they were"


@given(
    **SHAPES,
    dtype=st.sampled_from(["f4", "f8"]),
    weighted=st.booleans(),
    tied=st.booleans(),
    with_gradient=st.booleans(),
    eta=st.sampled_from([0.001, 0.1, 1.0]),
)
def test_vrkm_is_that_of_numpy_bit_for_bit(k, d, seed, dtype, weighted, tied, with_gradient, eta):
    r = np.random.default_rng(seed)
    x, weight = some_rows(r, 12, d, dtype, weighted, tied)
    order = r.integers(len(x), size=25)
    snapshot = x[r.integers(len(x), size=k)].astype("f8")
    labels = r.integers(0, k, len(x)).astype(np.int32)
    gradient = r.normal(size=(k, d)) if with_gradient else None
    kept = snapshot.tobytes()
    expected = twins.vrkm_rows(
        x.astype("f8"), ones(weight, len(x)), labels, order, snapshot, eta, gradient
    )
    centers, n_moved = vrkm_rows(x, weight, labels, order, snapshot, eta, gradient)
    assert centers.tobytes() == expected[0].tobytes()
    assert n_moved == expected[1]
    assert snapshot.tobytes() == kept


@pytest.mark.parametrize(("k", "d"), in_turns([1, 7, 8, 9, 50], [1, 3, 4, 5, 33]))
def test_sums_of_distances_are_in_the_order_of_the_features(k, d):
    """Digits differ so much that any other order shows; as many centres as fill no register."""
    r = np.random.default_rng(0)
    x = (r.normal(size=(40, d)) * 10.0 ** r.integers(-6, 6, d)).astype("f8")
    means = x[r.integers(40, size=k)] + r.normal(size=(k, d)) * 1e-3
    *_, cost, _ = sgd_rows(x, None, np.arange(40), means, np.full(k, 1e9))
    assert cost == twins.sgd_rows(x, np.ones(40), np.arange(40), means, np.full(k, 1e9))[2]


def test_nothing_moves_from_a_fixed_point():
    """All rows meet the centre of the snapshot: the gradients cancel to the last bit."""
    r = np.random.default_rng(1)
    x = np.concatenate([r.normal(size=(20, 3)), r.normal(size=(20, 3)) + 50])
    labels = np.repeat(np.int32([0, 1]), 20)
    snapshot = np.stack([x[:20].mean(axis=0), x[20:].mean(axis=0)])
    order = r.integers(40, size=200)
    for gradient in (None, np.full((2, 3), 1e-3)):
        centers, n_moved = vrkm_rows(x, None, labels, order, snapshot, 0.3, gradient)
        assert centers.tobytes() == snapshot.tobytes()
        assert n_moved == 0


@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")
def test_too_large_a_rate_ends_in_what_is_not_finite():
    r = np.random.default_rng(2)
    x, order = r.normal(size=(30, 2)), r.integers(30, size=3000)
    labels = r.integers(0, 3, 30).astype(np.int32)
    centers, _ = vrkm_rows(x, None, labels, order, x[:3].copy(), 50.0)
    assert not np.isfinite(centers).all()


# --- rounds -------------------------------------------------------------------------------------


def integer_round(seed, n=40, k=5, d=4, weighted=False, wide=False):
    r = np.random.default_rng(seed)
    x = r.integers(-50, 50, (n, d)).astype(np.float32)
    weight = r.integers(1, 5, n).astype("f8") if weighted else None
    shift = r.integers(-9, 9, d).astype(np.float32)
    grid = FixedPoint.choose(
        shift, 64.0, n_rows=n, total_weight=5.0 * n, max_weight=5.0, integer_weights=True
    )
    assert grid.wide is False
    old, new = r.integers(0, k, (2, n)).astype(np.int32)
    centers, snapshot = r.integers(-50, 50, (2, k, d)).astype("f8")
    return x, weight, old, new, centers, snapshot, grid


def gamma_of(x, weight, old, new, centers, snapshot, grid, eta=1.0, gradient=None):
    """What a step of this rate takes off the centres; of rate 1 the sum of all gradients."""
    change = ClusterSums(*centers.shape, grid)
    change.move(x, old, new, weight)
    known = np.bincount(old, weight, minlength=len(centers)).astype("f8")
    return centers - round_step(centers, snapshot, known, change, eta, gradient)


@given(st.booleans(), st.integers(0, 2**31))
def test_gamma_of_sums_is_gamma_row_by_row(weighted, seed):
    """Exactly, for integers are not rounded."""
    x, weight, old, new, centers, snapshot, grid = integer_round(seed, weighted=weighted)
    w = ones(weight, len(x))
    expected = twins.gamma_of_round(x.astype("f8"), w, old, new, centers, snapshot)
    found = gamma_of(x, weight, old, new, centers, snapshot, grid)
    np.testing.assert_array_equal(found, expected)
    assert (old != new).any()
    assert expected.any()


def test_nothing_comes_of_a_round_in_which_nothing_has_changed():
    """Not even rounding, for centres of any digits."""
    r = np.random.default_rng(4)
    x, _, old, _, _, _, grid = integer_round(4)
    snapshot = r.normal(size=(5, 4)) / 3
    assert not gamma_of(x, None, old, old, snapshot, snapshot, grid).any()


def test_the_gradient_counts_once_for_all_weight():
    x, weight, old, new, centers, snapshot, grid = integer_round(5, weighted=True)
    gradient = np.arange(20.0).reshape(5, 4)
    without = gamma_of(x, weight, old, new, centers, snapshot, grid)
    found = gamma_of(x, weight, old, new, centers, snapshot, grid, 1.0, gradient)
    np.testing.assert_array_equal(found, without + weight.sum() * gradient)


def test_a_step_is_as_long_as_its_rate():
    parts = integer_round(6)
    np.testing.assert_array_equal(gamma_of(*parts, eta=0.25), gamma_of(*parts) / 4)


def test_wide_sums_are_taken_as_well():
    r = np.random.default_rng(7)
    x, weight = r.normal(size=(30, 3)) * 2.0**-12, np.full(30, 2.0)
    grid = FixedPoint.choose(
        np.zeros(3),
        2.0**20,
        n_rows=30,
        total_weight=2.0**40,
        max_weight=2.0**40,
        min_weight=2.0,
        integer_weights=False,
    )
    assert grid.wide
    assert 2.0**-grid.bits > np.abs(x).max(), "the high limbs alone would hold nothing"
    old, new = r.integers(0, 4, (2, 30)).astype(np.int32)
    centers, snapshot = r.normal(size=(2, 4, 3)) * 2.0**-12
    found = gamma_of(x, weight, old, new, centers, snapshot, grid)
    expected = twins.gamma_of_round(x, weight, old, new, centers, snapshot)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@given(
    **SHAPES,
    value=st.sampled_from(
        [2.0, -2.0, np.nextafter(2, 3), -np.nextafter(2, 3), np.inf, -np.inf, np.nan]
    ),
    both=st.booleans(),
)
def test_a_single_coordinate_diverges(k, d, seed, value, both):
    r = np.random.default_rng(seed)
    centers, snapshot = r.uniform(-1, 1, (2, k, d))
    assert not has_diverged(centers, snapshot, 2.0)
    j, f = r.integers(k), r.integers(d)
    snapshot[j, f], centers[j, f] = 0.0, value
    if both:
        snapshot[j, f] = value if np.isinf(value) else 0.0
    with np.errstate(all="ignore"):
        found = has_diverged(centers, snapshot, 2.0)
    assert found == twins.has_diverged(centers, snapshot, 2.0) == (abs(value) != 2.0)


# --- the batch gradient -------------------------------------------------------------------------


@given(st.booleans(), st.integers(0, 2**31))
def test_the_gradient_of_a_snapshot_is_its_rounding(weighted, seed):
    """Equation 9: no more than 4 units in the last place of the centre (about the origin)."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(50, 3)).astype(np.float32)
    shift = r.normal(size=3).astype(np.float32)
    weight = r.uniform(0.1, 3, 50) if weighted else None
    grid = FixedPoint.choose(
        shift, 10.0, n_rows=50, total_weight=150.0, max_weight=3.0, integer_weights=not weighted
    )
    sums = ClusterSums(6, 3, grid)
    sums.add(x, r.integers(0, 5, 50).astype(np.int32), weight)
    fallback = np.full((6, 3), 7.0)
    snapshot = sums.means_float64(fallback)
    gradient = snapshot_gradient(snapshot, sums)
    size = np.maximum(np.abs(snapshot), np.abs(shift))
    assert (np.abs(gradient) <= 4 * np.spacing(size)).all()
    assert not gradient[5].any(), "a cluster without rows has none"
    moved = snapshot_gradient(snapshot + 0.5, sums)
    np.testing.assert_allclose(moved[:5][sums.counts[:5] > 0], 0.5, rtol=1e-12)
