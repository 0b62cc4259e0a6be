"""The sample on which partitions are looked for: what it is sure to hold, what it estimates."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.partition_path.samples import draw_far, draw_sample
from largek_dask.algorithms.starts.coresets import Coreset, draw_coreset
from largek_dask.errors import DataError, ParameterError
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import blobs
from tests.oracles import squared_distances
from tests.passes.toys import rows_of

N, D = 3000, 4


def heavy_tails(seed=1):
    """Rows of which a few lie far out; five of the farthest are the same."""
    r = np.random.default_rng(seed)
    x = (r.normal(size=(N, D)) * np.exp(r.normal(size=N))[:, None]).astype(np.float32)
    x[[17, 90, 400, 401, 2999]] = 40
    return x


def passes_of(x, sizes=(1000, 1500, 500), weight=None, n_threads=1, **options):
    return LocalPasses(rows_of(x, list(sizes), weight), n_threads=n_threads, **options)


def farthest(x, centers, n, present=None):
    """Distinct rows in order of their distance to the nearest centre, ties by index."""
    squares = squared_distances(x, centers).min(axis=1)
    _, first = np.unique(x, axis=0, return_index=True)
    if present is not None:
        x_present = np.flatnonzero(present)
        _, first = np.unique(x[x_present], axis=0, return_index=True)
        first = x_present[first]
    first = first[squares[first] > 0]
    return first[np.lexsort((first, -squares[first]))][:n]


@pytest.mark.parametrize("kind", ["none", "reals"])
def test_the_rows_farthest_out_are_there_at_their_own_weight(kind):
    x = heavy_tails()
    r = np.random.default_rng(2)
    weight = None if kind == "none" else r.uniform(0.5, 2, N) * (r.random(N) < 0.9)
    with passes_of(x, weight=weight) as passes:
        assert passes.n_chunks == 3
        mean = passes.statistics.mean.astype(np.float32)
        coreset = draw_coreset(passes, Rng(0), 200)
        sample = draw_sample(passes, Rng(0), 200, n_far=80)
        taken = passes.take(sample.rows)
    far = farthest(x, mean[None], 80, None if weight is None else weight > 0)
    assert len(np.setdiff1d(far, coreset.rows)) > 10
    assert len(np.intersect1d(far, coreset.rows)) > 10
    np.testing.assert_array_equal(sample.rows, np.union1d(coreset.rows, far))
    at = np.searchsorted(sample.rows, far)
    assert (sample.factors[at] == 1).all()
    others = np.setdiff1d(coreset.rows, far)
    np.testing.assert_array_equal(
        sample.factors[np.searchsorted(sample.rows, others)],
        coreset.factors[np.searchsorted(coreset.rows, others)],
    )
    assert (coreset.factors[np.isin(coreset.rows, far)] != 1).any()
    np.testing.assert_array_equal(taken.x, x[sample.rows])
    if weight is not None:
        np.testing.assert_array_equal(taken.weight, weight[sample.rows])
        assert (taken.weight > 0).all()
    assert (sample.factors > 0).all()


def test_of_equal_rows_the_first_is_held():
    x = heavy_tails()
    with passes_of(x) as passes:
        found = draw_far(passes, np.zeros((1, D), np.float32), 40)
    assert 17 in found
    assert not np.isin([90, 400, 401, 2999], found).any()


def test_estimates_are_unbiased():
    """Of the cost of centres, by the mean over many samples."""
    x = heavy_tails()
    centers = np.array([[3.0] * D, [-1.0] * D])
    costs = squared_distances(x, centers).min(axis=1)
    estimates = []
    with passes_of(x) as passes:
        for seed in range(400):
            sample = draw_sample(passes, Rng(seed), 60, n_far=20)
            estimates.append((costs[sample.rows] * sample.factors).sum())
    error = np.std(estimates) / 20
    assert abs(np.mean(estimates) - costs.sum()) < 4 * error
    assert 0 < error < 0.01 * costs.sum()


def test_same_rows_whatever_the_chunks_and_threads_are():
    x = heavy_tails()
    centers = x[[5, 6, 7]]
    found = []
    for sizes in ([N], [1, 1299, 1700], [100] * 30):
        for n_threads in (1, 3):
            with passes_of(x, sizes, n_threads=n_threads) as passes:
                assert passes.n_chunks == len(sizes)
                sample = draw_sample(passes, Rng(3), 150, 64)
                far = draw_far(passes, centers, 30)
                found.append([a.tobytes() for a in (sample.rows, sample.factors, far)])
    assert all(other == found[0] for other in found)
    with passes_of(x) as passes:
        assert draw_sample(passes, Rng(4), 150, 64).rows.tobytes() != found[0][0]


def test_far_from_every_centre_but_not_from_the_mean():
    """Between two groups lies a row that no coreset is sure to hold."""
    x = blobs(N, D, 1, spread=0.0)
    x[: N // 2] += 100
    x[N // 2 :] -= 100
    x[1234] = 0
    centers = np.array([[100] * D, [-100] * D], np.float32)
    with passes_of(x) as passes:
        sample = draw_sample(passes, Rng(0), 50, 64)
        assert 1234 not in sample.rows
        far = draw_far(passes, centers, 5)
    np.testing.assert_array_equal(far, farthest(x, centers, 5))
    assert far[0] == 1234
    more = sample.including(far)
    assert more.factors[np.searchsorted(more.rows, 1234)] == 1
    assert len(more.rows) == len(np.union1d(sample.rows, far))


def test_rows_are_added_once():
    sample = Coreset(np.array([2, 5, 9]), np.array([3.0, 4.0, 5.0]))
    more = sample.including(np.array([9, 0, 5, 0]))
    assert more.rows.tolist() == [0, 2, 5, 9]
    assert more.factors.tolist() == [1, 3, 1, 1]
    none = sample.including(np.empty(0, np.int64))
    assert none.rows.tolist() == sample.rows.tolist()
    assert none.factors.tolist() == sample.factors.tolist()


def test_skipped_rows_are_never_drawn():
    x = heavy_tails()
    bad = np.arange(0, N, 5)
    x[bad, 1] = np.nan
    with passes_of(x, on_bad_rows="skip") as passes:
        assert passes.statistics.n_bad == len(bad)
        sample = draw_sample(passes, Rng(0), 300, n_far=2000)
        assert len(sample.rows) > 2000
        assert not np.isin(sample.rows, bad).any()
        assert not np.isin(draw_far(passes, np.zeros((1, D), np.float32), N), bad).any()
        assert np.isfinite(passes.take(sample.rows).x).all()


def test_equal_rows_and_no_rows():
    x = np.full((N, D), 3, np.float32)
    with passes_of(x) as passes:
        sample = draw_sample(passes, Rng(0), 10, 64)
        assert len(sample.rows) == 10
        np.testing.assert_allclose(sample.factors.sum(), N)
        assert len(draw_far(passes, x[:1], 5)) == 0
        assert len(draw_far(passes, x[:1] + 1, 5)) == 1
        with pytest.raises(ParameterError, match="at least one draw"):
            draw_sample(passes, Rng(0), 0, 64)
    with pytest.raises(DataError), passes_of(x, weight=np.zeros(N)) as passes:
        draw_sample(passes, Rng(0), 10, 64)
