"""Moves of centres: only where they pay, and then to where they pay most; starts on a sample."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms import moves
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.moves import Splits, choose_moves, split_clusters
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.data.sources import open_rows
from largek_dask.kernels.exact.sums import FixedPoint
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.algorithms.conftest import blobs


def grid_of(x):
    shift = x.mean(axis=0)
    return FixedPoint.choose(shift, float(np.abs(x - shift).max()), n_rows=len(x))


def test_a_split_gains_where_two_blobs_share_a_centre():
    r = np.random.default_rng(0)
    one = r.normal(size=(400, 5))
    two = r.normal(size=(400, 5)) + 50 + 10 * r.integers(0, 2, size=(400, 1))
    x = np.concatenate([one, two])
    centers = np.stack([one.mean(axis=0), two.mean(axis=0)])
    found = split_clusters(x, np.ones(800), centers, np.array([0, 1]), grid_of(x))
    # Per row: the two blobs lie 10 apart in 5 features, so each row is 5 * 5**2 nearer.
    assert found.gains[1] == pytest.approx(5 * 25, rel=0.1)
    assert found.gains[0] < 2
    np.testing.assert_allclose(sorted(found.centers[1].mean(axis=1)), [50, 60], atol=0.5)


def test_a_split_that_only_fits_its_own_rows_gains_nothing():
    """Few rows in many features: any split looks good on the rows it was made from."""
    x = np.random.default_rng(1).normal(size=(40, 200))
    found = split_clusters(x, np.ones(40), x.mean(axis=0)[None], np.array([0]), grid_of(x))
    assert found.gains[0] <= 0


def test_too_few_rows_say_nothing():
    x = np.repeat([[0.0], [9.0]], [moves.LEAST_SPLIT_ROWS - 1, 40], axis=0)
    x[-20:] = 12.0
    centers = np.array([[0.0], [10.0], [500.0]])
    found = split_clusters(x, np.ones(len(x)), centers, np.arange(3), grid_of(x))
    assert found.gains[0] == -np.inf
    assert found.gains[1] > 1
    assert found.gains[2] == -np.inf


def test_weights_count_in_a_split():
    """Rows of the far blob weigh next to nothing, so little is gained by a centre there."""
    x = np.array([[0.0], [10.0]])[np.arange(64) % 4 // 2]
    weight = np.where(x[:, 0] > 5, 2.0**-20, 1.0)
    even = split_clusters(x, np.ones(64), np.array([[5.0]]), np.array([0]), grid_of(x))
    assert even.gains[0] == pytest.approx(25)
    grid = FixedPoint.choose(
        x.mean(axis=0), 10.0, n_rows=64, total_weight=65.0, integer_weights=False
    )
    found = split_clusters(x, weight, np.array([[5.0]]), np.array([0]), grid)
    assert 0 < found.gains[0] < 1e-3


def splits_of(clusters, d=1):
    clusters = np.array(clusters)
    pairs = 1000.0 + np.arange(2 * len(clusters) * d, dtype=float).reshape(len(clusters), 2, d)
    return Splits(clusters, np.zeros(len(clusters)), pairs)


def test_moves_only_where_the_gain_exceeds_the_loss():
    centers = np.arange(30.0)[:, None] ** 2
    losses = np.full(30, np.inf)
    losses[[3, 12]] = [5.0, 7.0]
    splits = splits_of([20, 25])
    moved, n = choose_moves(centers, losses, np.array([4.0, 6.0]), splits, np.zeros(1))
    # The better split (of 25) takes the cheaper centre (3); 4.0 does not pay for 12.
    assert n == 1
    np.testing.assert_array_equal(moved[[3, 25]], splits.centers[1])
    others = np.setdiff1d(np.arange(30), [3, 25])
    np.testing.assert_array_equal(moved[others], centers[others])
    same, n = choose_moves(centers, losses, np.array([4.0, 5.0]), splits, np.zeros(1))
    assert n == 0
    np.testing.assert_array_equal(same, centers)


def test_neighbours_of_a_removed_centre_stay():
    centers = np.arange(60.0)[:, None]
    losses = np.full(60, 9.0)
    losses[[10, 11, 40]] = [1.0, 2.0, 3.0]
    splits = splits_of([9, 30, 31, 32, 33, 34])
    moved, n = choose_moves(centers, losses, np.full(6, 4.0), splits, np.zeros(1))
    assert n == 2
    assert set(np.flatnonzero(moved[:, 0] >= 1000)) == {9, 10, 30, 40}, "11 and 9 after 10"


@pytest.mark.parametrize("k", [3, 4, 9, 10, 50, 200])
def test_at_most_a_share_of_the_centres_moves(k):
    """And as many as that where enough pay: removed ones hold their neighbours, not all others."""
    centers = np.arange(2.0 * k)[:, None] * 10 + 0.5
    losses = np.where(np.arange(2 * k) < k, 0.0, 5.0)
    splits = splits_of(range(k, 2 * k))
    moved, n = choose_moves(centers, losses, np.ones(k), splits, np.zeros(1))
    assert n == max(1, 2 * k // moves.MOVED_SHARE) == max(1, k // 5)
    changed = np.flatnonzero((moved != centers).any(axis=1))
    assert len(changed) == 2 * n
    assert (changed < k).sum() == (changed >= k).sum() == n


@pytest.mark.parametrize("moves_on", [False, True])
def test_moves_mend_a_poor_start(moves_on):
    """Three centres in one blob and one between two others: Lloyd's steps keep it so."""
    r = np.random.default_rng(4)
    means = np.array([[0.0, 0], [100, 0], [0, 100], [100, 100], [50, 200]])
    x = means[r.integers(5, size=8000)] + r.normal(size=(8000, 2))
    init = np.array([[0.0, -1], [0, 1], [50, 0], [0, 100], [75, 150]])
    algorithm = NMBatch(b0=500, moves=moves_on, problem=KMeansProblem(5, init))
    with LocalPasses(open_rows(x)) as passes:
        state = algorithm.init(passes, Rng(0))
        for _ in range(60):
            state, info = algorithm.step(passes, Rng(0), state)
            if info.converged:
                break
    assert info.converged
    _, inertia = oracles.assign(x, state.centers)
    assert (inertia / len(x) < 2.2) == moves_on


@pytest.mark.parametrize("n", [1, 50, 149, 151])
def test_a_sample_may_be_smaller_than_the_number_of_clusters(n):
    x = np.random.default_rng(0).normal(size=(n, 3))
    algorithm = NMBatch(problem=KMeansProblem(150))
    with LocalPasses(open_rows(x)) as passes:
        found = algorithm.init(passes, Rng(1)).centers
    assert found.shape == (150, 3)
    assert np.isfinite(found).all()


def test_the_start_covers_the_data():
    x = blobs(20_000, 8, 150, seed=2, spread=8.0)
    with LocalPasses(open_rows(x)) as passes:
        found = NMBatch(problem=KMeansProblem(150)).init(passes, Rng(1)).centers
    random = x[np.random.default_rng(0).choice(len(x), 150, replace=False)]
    assert oracles.assign(x, found)[1] < 0.7 * oracles.assign(x, random)[1]


def test_start_and_moves_are_the_same_at_every_vector_width():
    x = blobs(9000, 6, 140, seed=3)
    digests = set()
    for tile in ("plain", "avx2"):
        with dask.config.set({"largek.kernels.tile": tile}):
            km = lk.KMeans(130, algorithm="nmbatch", max_iter=8, random_state=2).fit(x)
        assert any(record["extra"].get("moved_centers") for record in km.history_)
        digests.add(km.model_.digest())
    assert len(digests) == 1


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


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_splits_are_those_of_plain_numpy(seed, ordered, n_threads, monkeypatch):
    """Of clusters of many rows, of few, of one and of none, some of which are not asked for."""
    monkeypatch.setattr(moves, "SPLIT_ROWS", 50)
    monkeypatch.setattr(moves, "LEAST_SPLIT_ROWS", 9)
    monkeypatch.setattr(moves, "LEAST_PIECE", 16)
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
    found = split_clusters(x, weight, centers, clusters, grid, order, n_threads)
    np.testing.assert_array_equal(found.clusters, clusters)
    labels, _ = oracles.assign(x, centers)
    np.testing.assert_array_equal(np.bincount(labels, minlength=9), sizes)
    for i, cluster in enumerate(clusters):
        rows = np.flatnonzero(labels == cluster)
        if ordered:
            rows = rows[order[rows].argsort()]
        rows = rows[:50]
        gain, pair = split_in_numpy(x[rows], weight[rows], centers[cluster], moves.SPLIT_STEPS, 9)
        assert found.gains[i] == pytest.approx(gain, rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(found.centers[i], pair, rtol=1e-8, atol=1e-8)
