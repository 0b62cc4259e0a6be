"""Splits of clusters that are judged on rows that they were not fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.parts import splits
from largek_dask.algorithms.parts.splits import held_out_splits
from largek_dask.kernels.exact.fixed_point import FixedPoint
from tests import oracles
from tests.algorithms.conftest import blobs
from tests.helpers.covering import in_turns
from tests.kernels.test_sparse import block_of


def grid_of(x):
    shift = x.mean(axis=0)
    return FixedPoint.choose(shift, float(np.abs(x - shift).max()), n_rows=len(x))


def test_a_split_gains_where_two_blobs_share_a_centre():
    r = np.random.default_rng(0)
    one = r.normal(size=(400, 5))
    two = r.normal(size=(400, 5)) + 50 + 10 * r.integers(0, 2, size=(400, 1))
    x = np.concatenate([one, two])
    centers = np.stack([one.mean(axis=0), two.mean(axis=0)])
    found = held_out_splits(x, np.ones(800), centers, np.array([0, 1]), grid_of(x))
    # Per row: the two blobs lie 10 apart in 5 features, so each row is 5 * 5**2 nearer.
    assert found.gains[1] == pytest.approx(5 * 25, rel=0.1)
    assert found.gains[0] < 2
    np.testing.assert_allclose(sorted(found.halves[1].mean(axis=1)), [50, 60], atol=0.5)


def test_a_split_that_only_fits_its_own_rows_gains_nothing():
    """Few rows in many features: any split looks good on the rows it was made from."""
    x = np.random.default_rng(1).normal(size=(40, 200))
    found = held_out_splits(x, np.ones(40), x.mean(axis=0)[None], np.array([0]), grid_of(x))
    assert found.gains[0] <= 0


def test_too_few_rows_say_nothing():
    x = np.repeat([[0.0], [9.0]], [splits.LEAST_SPLIT_ROWS - 1, 40], axis=0)
    x[-20:] = 12.0
    centers = np.array([[0.0], [10.0], [500.0]])
    found = held_out_splits(x, np.ones(len(x)), centers, np.arange(3), grid_of(x))
    assert found.gains[0] == -np.inf
    assert found.gains[1] > 1
    assert found.gains[2] == -np.inf


def test_weights_count_in_a_split():
    """Rows of the far blob weigh next to nothing, so little is gained by a centre there."""
    x = np.array([[0.0], [10.0]])[np.arange(64) % 4 // 2]
    weight = np.where(x[:, 0] > 5, 2.0**-20, 1.0)
    even = held_out_splits(x, np.ones(64), np.array([[5.0]]), np.array([0]), grid_of(x))
    assert even.gains[0] == pytest.approx(25)
    grid = FixedPoint.choose(
        x.mean(axis=0), 10.0, n_rows=64, total_weight=65.0, integer_weights=False
    )
    found = held_out_splits(x, weight, np.array([[5.0]]), np.array([0]), grid)
    assert 0 < found.gains[0] < 1e-3


def split_in_numpy(x, weight, center, steps, least):
    """Gain and pair of one cluster: every second row fits the split, the others judge it."""

    def mean(rows, fallback):
        w = weight[rows][:, None]
        return (w * x[rows]).sum(axis=0) / w.sum() if len(rows) else fallback

    if not len(x):
        return -np.inf, np.stack([center, center])
    fits, judges = np.arange(0, len(x), 2), np.arange(1, len(x), 2)
    whole = mean(fits, center)
    first = x[fits][((x[fits] - whole) ** 2).sum(axis=1).argmax()]
    pair = np.stack([first, x[fits][((x[fits] - first) ** 2).sum(axis=1).argmax()]])
    for step in range(steps + 1):
        chosen = ((x[:, None] - pair) ** 2).sum(axis=2).argmin(axis=1)
        if step < steps:
            pair = np.stack([mean(fits[chosen[fits] == i], pair[i]) for i in range(2)])
    if len(x) < least:
        return -np.inf, pair
    before, after = (((x - at) ** 2).sum(axis=1) for at in (whole, pair[chosen]))
    return (weight * (before - after))[judges].sum() / weight[judges].sum(), pair


@pytest.mark.parametrize(
    ("n_threads", "ordered", "seed"), in_turns([1, 3, 3, 1], [False, True], range(4))
)
def test_splits_are_those_of_plain_numpy(seed, ordered, n_threads, monkeypatch):
    """Of clusters of many rows, of few, of one and of none, some of which are not asked for."""
    monkeypatch.setattr(splits, "SPLIT_ROWS", 50)
    monkeypatch.setattr(splits, "LEAST_SPLIT_ROWS", 9)
    monkeypatch.setattr(splits, "LEAST_PIECE", 16)
    r = np.random.default_rng(seed)
    sizes = np.array([120, 8, 9, 1, 0, 51, 50, 30, 12])
    centers = 40 * np.arange(len(sizes))[:, None] * np.ones((1, 3))
    x = np.repeat(centers, sizes, axis=0) + r.normal(size=(sizes.sum(), 3)) * [5, 1, 1]
    x = r.permutation(x)
    weight = r.choice([0.5, 1.0, 3.0], len(x)) if seed % 2 else np.ones(len(x))
    order = r.permutation(len(x)) if ordered else None
    options = {"total_weight": weight.sum(), "max_weight": 3.0, "integer_weights": False}
    grid = FixedPoint.choose(x.mean(axis=0), 400.0, n_rows=len(x), **options)
    clusters = np.array([0, 1, 2, 3, 4, 5, 6, 8])
    found = held_out_splits(x, weight, centers, clusters, grid, order, n_threads)
    np.testing.assert_array_equal(found.clusters, clusters)
    labels, _ = oracles.assign(x, centers)
    np.testing.assert_array_equal(np.bincount(labels, minlength=9), sizes)
    for i, cluster in enumerate(clusters):
        rows = np.flatnonzero(labels == cluster)
        if ordered:
            rows = rows[order[rows].argsort()]
        rows = rows[:50]
        gain, pair = split_in_numpy(x[rows], weight[rows], centers[cluster], splits.SPLIT_STEPS, 9)
        assert found.gains[i] == pytest.approx(gain, rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(found.halves[i], pair[::-1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_splits_on_threads_are_those_of_one(sparse, monkeypatch):
    monkeypatch.setattr(splits, "LEAST_PIECE", 50)
    x = blobs(2000, 6, 30, spread=2.0)
    centers, clusters = x[:25].copy(), np.array([0, 3, 4, 5, 9, 12, 20, 24])
    shift = np.zeros(6, np.float32) if sparse else x.mean(axis=0)
    grid = FixedPoint.choose(shift, float(np.abs(x - shift).max()), n_rows=len(x))
    weight = np.ones(len(x))
    table = block_of(x) if sparse else x
    expected = held_out_splits(table, weight, centers, clusters, grid)
    shuffled = np.random.default_rng(0).permutation(len(x))
    for n_threads in (2, 3, 50):
        found = held_out_splits(
            table[shuffled], weight, centers, clusters, grid, shuffled, n_threads
        )
        assert found.gains.tobytes() == expected.gains.tobytes()
        assert found.halves.tobytes() == expected.halves.tobytes()
    assert (expected.gains > 0).any()
