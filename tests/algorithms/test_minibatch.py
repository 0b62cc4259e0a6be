"""Mini-batch k-means: running means of every assignment ever made."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.base import KMeansProblem, Rng
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.passes.local import LocalPasses
from tests import oracles


def run_batches(x, init, n_steps, batch_rows, sample_weight=None):
    algorithm = MiniBatch(batch_rows=batch_rows, problem=KMeansProblem(len(init), init))
    with LocalPasses(open_rows(x, sample_weight=sample_weight), n_threads=1) as passes:
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


def test_weights_are_votes(rows_20k):
    x = rows_20k[:1000]
    weight = np.random.default_rng(0).integers(0, 3, len(x)).astype(float)
    state, _ = run_batches(x, x[:5], 1, len(x), weight)[0]
    assert state.votes.sum() == weight.sum()


@pytest.mark.parametrize("batch_rows", [0, -5, 2.5, True, "many"])
def test_a_batch_has_rows(batch_rows):
    """An empty batch would never end its round."""
    with pytest.raises(ParameterError, match="batch_rows must be 'auto' or at least 1"):
        MiniBatch(batch_rows=batch_rows)
