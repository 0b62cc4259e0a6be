"""Which rows nested batches and their samples are, and when they are worth gathering."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from largek_dask.algorithms.base import Rng, RowSlice
from largek_dask.algorithms.parts.nested import NestedRows
from largek_dask.passes.local import LocalPasses
from tests.passes.toys import integers, rows_of

RNG = Rng(5)
N = 1 << 24


class Asked:
    """Passes that note which subsets are asked for."""

    def __init__(self, row_values=8, n_threads=2, n_rows=N):
        self.row_values, self.n_threads, self.n_rows = row_values, n_threads, n_rows
        self.subsets = []

    def subset(self, rows):
        self.subsets.append(rows)
        return SimpleNamespace(rows=rows)


def first(rows, n=N):
    return RowSlice(RNG, 0, rows, n)


def test_a_sample_takes_no_more_memory_than_there_is_unless_clusters_need_it():
    passes = Asked(row_values=1 << 20)
    NestedRows(passes, RNG).spaced_sample(5_000, 5_000, 10, 64)
    NestedRows(passes, RNG).spaced_sample(5_000, 5_000, 100, 1)
    assert [asked.rows.end for asked in passes.subsets] == [32, 100]


def test_a_batch_that_is_gathered_begins_with_the_one_before():
    passes = Asked()
    batch = NestedRows(passes, RNG).batch(200, 100, True)
    assert passes.subsets == [first(100), first(200)]
    assert (batch.passes.rows, batch.share, batch.gathered) == (first(200), None, True)
    passes.subsets.clear()
    NestedRows(passes, RNG).batch(100, 0, True)
    assert passes.subsets == [first(100)]


def test_a_batch_where_its_rows_are_is_a_share_of_them():
    passes = Asked()
    for rows, share in ((200, first(200)), (N, None)):
        batch = NestedRows(passes, RNG).batch(rows, 100, False)
        assert batch.passes is passes
        assert (batch.share, batch.gathered) == (share, False)
    assert not passes.subsets


def test_a_sample_grows_until_it_has_a_row_a_cluster():
    x, weight = integers(900, 3), np.where(np.arange(900) % 9 == 0, 2.0, 0.0)
    with LocalPasses(rows_of(x, [400, 500], weight), n_threads=1) as passes:
        rows = NestedRows(passes, RNG)
        for asked, k, taken in ((300, 5, 300), (50, 40, 400), (50, 101, 900)):
            found, weights, size = rows.sample(asked, k)
            assert size == taken
            assert len(found) == len(weights) == np.count_nonzero(weights == 2.0)
            assert len(found) >= min(k, 100)
            order = np.sort(passes.subset(first(size, 900)).take().rows)
            np.testing.assert_array_equal(found, x[order[weight[order] > 0]])
