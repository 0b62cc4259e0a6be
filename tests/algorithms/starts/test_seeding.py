"""Starting centres: the laws they are drawn by, and degenerate data."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.choices import INITS
from largek_dask.algorithms.parts.chunk_results import ChunkResults
from largek_dask.algorithms.starts.seeding import choose, choose_among, initial_centers
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.passes.toys import rows_of


def seeds(x, k, init, seed=0, **options):
    with LocalPasses(open_rows(x, **options), n_threads=1) as passes:
        return initial_centers(passes, Rng(seed), k, init)


@pytest.mark.parametrize("init", INITS)
def test_centres_are_rows(init, rows_20k):
    x = rows_20k[:4000]
    centers = seeds(x, 30, init)
    assert centers.shape == (30, x.shape[1])
    assert centers.dtype == np.float32
    if init not in ("k-means||", "two-level"):  # whose centres are means of rows
        assert {c.tobytes() for c in centers} <= {row.tobytes() for row in x}
        assert len({c.tobytes() for c in centers}) == 30


@pytest.mark.parametrize("init", INITS)
def test_seed_decides(init, rows_20k):
    x = rows_20k[:4000]
    assert seeds(x, 12, init, seed=5).tobytes() == seeds(x, 12, init, seed=5).tobytes()
    assert seeds(x, 12, init, seed=5).tobytes() != seeds(x, 12, init, seed=6).tobytes()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("init", INITS)
def test_lost_distances_are_rebuilt(init, weighted, rows_20k):
    """Without memory for row state the centres are the same, with it nothing is done twice."""
    x = rows_20k[:1200]
    rows = rows_of(x, [500, 1, 699], np.arange(1200) % 3 + 0.5 if weighted else None)
    found, totals = [], []
    for limit in (None, 0):
        with LocalPasses(rows, n_threads=1, memory_limit=limit) as passes:
            found.append(initial_centers(passes, Rng(4), 12, init))
            totals.append(passes.total)
    assert found[0].tobytes() == found[1].tobytes()
    assert totals[0].rebuilt == 0
    assert (totals[1].rebuilt > 0) == (init not in ("random", "two-level", "afk-mc2"))


def test_plus_plus_follows_its_law():
    """Second centre: D² law given the first, on a handful of weighted points."""
    x = np.array([[0.0], [1.0], [3.0]])
    weight = np.array([2.0, 1.0, 1.0])
    pairs = np.zeros((3, 3))
    n = 500
    for seed in range(n):
        first, second = seeds(x, 2, "k-means++", seed=seed, sample_weight=weight).ravel()
        pairs[np.flatnonzero(x == first)[0], np.flatnonzero(x == second)[0]] += 1
    d2 = (x - x.T) ** 2 * weight[None]
    expected = (weight / weight.sum())[:, None] * d2 / d2.sum(axis=1, keepdims=True)
    sigma = np.sqrt(n * expected * (1 - expected)) + 1e-9
    assert (np.abs(pairs - n * expected) < 5 * sigma).all()


def test_chunks_are_drawn_by_mass():
    draws = ChunkResults()
    for index, mass in ((2, 0.25), (0, 0.75), (1, 0.0)):
        rows = 10 * index + np.arange(4)
        draws.chunks[index] = (mass, rows, rows[:, None].astype(np.float64))
    rows, x = choose(draws, np.array([0.0, 0.74, 0.76, 0.99]))
    np.testing.assert_array_equal(rows, [0, 1, 22, 23])
    np.testing.assert_array_equal(x[:, 0], rows)
    draws.chunks = {index: (0.0, *rest) for index, (_, *rest) in draws.chunks.items()}
    rows, x = choose(draws, np.array([0.5]))
    assert rows.shape == (0,)
    assert x.shape == (0, 1)


def test_equal_candidates_make_equal_centres():
    x = np.full((600, 200), 7.5, np.float32)
    centers = choose_among(x, np.ones(600), 600, np.zeros(200, np.float32), Rng(0))
    assert (centers == 7.5).all()


def test_random_rows_follow_weights():
    x = np.arange(50.0)[:, None]
    weight = np.zeros(50)
    weight[[3, 7, 8, 20]] = 1, 1, 5, 1
    counts = np.zeros(50)
    for seed in range(200):
        rows = seeds(x, 2, "random", seed=seed, sample_weight=weight).ravel().astype(int)
        assert len(set(rows)) == 2
        counts[rows] += 1
    assert set(np.flatnonzero(counts)) == {3, 7, 8, 20}
    assert counts[8] == counts.max()


@pytest.mark.parametrize("init", INITS)
def test_fewer_distinct_rows_than_centres(init):
    x = np.repeat(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]]), 20, axis=0)
    centers = seeds(x, 7, init)
    assert centers.shape == (7, 2)
    assert np.isfinite(centers).all()
    if init != "random":
        assert len(np.unique(centers.round(9), axis=0)) == 3


def test_given_centres_are_checked(rows_20k):
    x = rows_20k[:100]
    np.testing.assert_array_equal(seeds(x, 3, x[:3]), x[:3])
    with pytest.raises(ParameterError, match=r"\(2, 12\).*must be \(3, 12\)"):
        seeds(x, 3, x[:2])
    bad = x[:3].copy()
    bad[1, 4] = np.nan
    with pytest.raises(ParameterError, match="centre 1 holds NaN"):
        seeds(x, 3, bad)
    with pytest.raises(ParameterError, match="init must be one of"):
        seeds(x, 3, "kmeans")


def test_greedy_takes_the_better_one_of_two_candidates():
    """The first of them is the one that the plain start takes."""
    r = np.random.default_rng(0)
    x = np.concatenate([r.normal(size=(n, 2)) + at for n, at in ((100, 0), (100, 8), (12, 30))])

    def costs(init):
        return [oracles.assign(x, seeds(x, 2, init, seed=seed))[1] for seed in range(12)]

    greedy, plain = costs("greedy-k-means++"), costs("k-means++")
    assert all(a <= b for a, b in zip(greedy, plain, strict=True))
    assert greedy != plain
