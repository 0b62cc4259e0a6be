"""Halves of a sample agree on groups that are there."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.partition_path.stability import (
    MOST_ROWS,
    _draw,
    compare_halves,
    rand_of_labels,
)
from tests.oracles.dcd_certain import squares


def blobs(r, n, k, d=2, apart=12.0):
    centers = apart * np.stack([np.arange(k), np.arange(k) % 2, *np.zeros((d - 2, k))], axis=1)
    return centers[r.integers(k, size=n)] + r.normal(size=(n, d))


def test_groups_that_are_there_are_found_by_both_halves():
    x = blobs(np.random.default_rng(0), 600, 4)
    halves = compare_halves(x, None, Rng(0), 7)
    found = halves.stability
    assert found[0] == 1
    assert found[3] == 1
    assert (found[4:] < 0.99).all()
    # both halves together are the table
    assert [len(half) for half in halves.rows] == [300, 300]
    together = np.concatenate(halves.rows)
    assert np.array_equal(np.sort(together, axis=0), np.sort(x, axis=0))
    for size in range(1, 8):
        one, other = (squares(x, path[size - 1]).argmin(axis=1) for path in halves.paths)
        assert found[size - 1] == pytest.approx(adjusted_rand_score(one, other), abs=1e-12)


def test_a_seed_makes_the_draw():
    x = np.random.default_rng(1).normal(size=(3 * MOST_ROWS, 2))
    halves = [compare_halves(x, None, Rng(seed), 3) for seed in (5, 5, 6)]
    found = [each.stability.tobytes() for each in halves]
    assert found[0] == found[1] != found[2]
    assert {len(half) for each in halves for half in each.rows} == {MOST_ROWS // 2}
    assert len(np.unique(np.concatenate(halves[0].rows), axis=0)) == MOST_ROWS


def test_rows_are_drawn_as_often_as_they_weigh():
    weight = np.array([3.0, 0, 1, 2, 0, 5])
    for seed in range(5):
        rows = _draw(weight, 6, Rng(seed))
        assert np.bincount(rows, minlength=6).tolist() == weight.tolist()
        # no more than rows where weights are no integers
        rows = _draw(weight * 0.3, 6, Rng(seed))
        counts = np.bincount(rows, minlength=6)
        assert counts.sum() == 4
        assert (np.abs(counts - 4 * weight / 11) < 1).all()
    heavy = np.ones(2 * MOST_ROWS)
    heavy[7], heavy[9] = MOST_ROWS, 0
    counts = np.bincount(_draw(heavy, len(heavy), Rng(0)), minlength=len(heavy))
    assert counts.sum() == MOST_ROWS
    assert abs(counts[7] - MOST_ROWS / 3) < 2
    assert counts[9] == 0


class Last:
    """Randomness that draws the last place there is, and leaves rows in order."""

    def generator(self, step, purpose):
        return self

    def permutation(self, rows):
        return np.arange(rows) if isinstance(rows, int) else rows

    def random(self):
        return 1 - 2.0**-53


def test_rounding_leads_to_no_row_that_weighs_nothing():
    weight = np.array([0.3, 0.3, 0.0])
    at = (np.arange(2) + Last().random()) * (weight.sum() / 2)
    assert at[1] == weight.sum()
    assert _draw(weight, 3, Last()).tolist() == [0, 1]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_rows_end_a_path(n):
    x = np.arange(n, dtype=float)[:, None]
    found = compare_halves(x, None, Rng(0), 4).stability
    assert found[0] == 1
    ends = max(1, n // 2)
    assert np.isfinite(found[:ends]).all()
    assert np.isnan(found[ends:]).all()


def test_few_distinct_rows_end_a_path():
    x = np.repeat([[0.0], [5.0]], 50, axis=0)
    found = compare_halves(x, np.full(100, 2.0), Rng(0), 4).stability
    assert found[:2].tolist() == [1, 1]
    assert np.isnan(found[2:]).all()


def test_adjusted_rand_index():
    r = np.random.default_rng(3)
    for _ in range(30):
        n = int(r.integers(1, 40))
        one, other = r.integers(0, r.integers(1, 6), n), r.integers(0, 5, n).astype(np.int32)
        found = rand_of_labels(one, other)
        assert found == pytest.approx(adjusted_rand_score(one, other), abs=1e-12)
