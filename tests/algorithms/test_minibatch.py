"""Mini-batch k-means: running means of every assignment ever made."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.passes.toys import rows_of


def run_batches(x, init, n_steps, batch_rows, sample_weight=None, votes="all"):
    problem = KMeansProblem(len(init), init)
    algorithm = MiniBatch(batch_rows=batch_rows, votes=votes).bind(problem)
    rows = open_rows(x, sample_weight=sample_weight) if isinstance(x, np.ndarray) else x
    with LocalPasses(rows, n_threads=1) as passes:
        state = algorithm.init(passes, Rng(3))
        out = []
        for _ in range(n_steps):
            state, info = algorithm.step(passes, Rng(3), state)
            out.append((state, info))
    return out


def test_centres_are_means_of_all_votes(rows_20k):
    """With one batch of all rows a step, the votes are known without knowing the order."""
    x = rows_20k[:3000].astype(np.float64)
    votes_x, votes_c = [], []
    centers = x[:15].copy()
    for state, _ in run_batches(x, x[:15], 4, len(x)):
        labels, _ = oracles.assign(x, centers)
        votes_x.append(x)
        votes_c.append(labels)
        centers = oracles.means(np.concatenate(votes_x), np.concatenate(votes_c), centers)
        np.testing.assert_allclose(state.means, centers, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(
            state.votes, np.bincount(np.concatenate(votes_c), minlength=15)
        )


def test_an_epoch_visits_every_row_once(rows_20k):
    x = rows_20k[:10_000]
    out = run_batches(x, x[:10], 7, 1500)
    assert sum(info.rows for _, info in out) == len(x)
    assert out[-1][0].votes.sum() == len(x)
    assert out[-1][0].begin == 0, "the next batch begins a new round"


def test_sorted_data_are_sampled_evenly():
    """Each batch has its share of every class although the data are sorted by class."""
    x = np.repeat(np.arange(4.0), 5000)[:, None]
    first, _ = run_batches(x, np.arange(4.0)[:, None], 1, 400)[0]
    assert first.votes.sum() == 400
    assert (first.votes > 60).all()


def test_cost_estimates_the_cost_of_all_rows(rows_20k):
    x = rows_20k.astype(np.float64)
    _, info = run_batches(x, x[:40], 1, 5000)[0]
    _, inertia = oracles.assign(x, x[:40])
    assert info.cost == pytest.approx(inertia, rel=0.05)


def test_wrong_parameters():
    """An empty batch would never end its round."""
    for batch_rows in (0, -5, 2.5, True, "many"):
        with pytest.raises(ParameterError, match="batch_rows must be an integer of at least 1"):
            MiniBatch(batch_rows=batch_rows)
    with pytest.raises(ParameterError, match="votes must be 'all' or 'latest', got 'some'"):
        MiniBatch(votes="some")


@pytest.mark.parametrize("weighted", [False, True])
def test_latest_votes_only(weighted, rows_20k):
    """Over several rounds, against votes kept row by row in numpy."""
    x = rows_20k[:2000].astype(np.float64)
    weight = np.random.default_rng(2).random(len(x)) * 3 if weighted else np.ones(len(x))
    sizes = [700, 0, 1, 1299]
    table = np.concatenate([[0], np.cumsum(sizes)])
    got = run_batches(
        rows_of(x, sizes, weight if weighted else None), x[:8], 20, 300, votes="latest"
    )
    label = np.full(len(x), -1)
    centers, begin = x[:8].copy(), 0
    for state, info in got:
        end = min(begin + 300, len(x))
        rows = []
        for index, (start, n) in enumerate(zip(table, sizes, strict=False)):
            permutation = oracles.row_order(Rng(3), index, n)
            rows.append(start + permutation[begin * n // len(x) : end * n // len(x)])
        rows = np.concatenate(rows)
        label[rows], _ = oracles.assign(x[rows], centers)
        for j in np.unique(label[label >= 0]):
            centers[j] = np.average(x[label == j], axis=0, weights=weight[label == j])
        assert info.rows == len(rows)
        np.testing.assert_allclose(state.means, centers, rtol=1e-8, atol=1e-8)
        begin = 0 if end == len(x) else end
    voted = np.bincount(label, weight, minlength=8)
    np.testing.assert_allclose(got[-1][0].votes, voted, rtol=1e-8, atol=1e-8)


def test_last_votes_are_in_the_checkpoint(rows_20k, tmp_path):
    """No model can give them again: a resume goes on with those that were written."""
    x = rows_20k[:4000]
    options = {"init": x[:9], "algorithm": lk.MiniBatch(700, votes="latest"), "random_state": 1}
    whole = lk.KMeans(9, max_iter=13, **options).fit(x)
    folder = str(tmp_path / "job")
    lk.KMeans(9, max_iter=8, checkpoint=folder, **options).fit(x)
    resumed = lk.KMeans(9, max_iter=13, checkpoint=folder, **options).fit(x)
    assert resumed.model_.digest() == whole.model_.digest()
