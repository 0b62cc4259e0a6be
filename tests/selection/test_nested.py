"""Nested partitions: what they cost, where they are made, and passes that meet all of them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from largek_dask.algorithms.base import Rng, RowSample
from largek_dask.data.sources import open_rows
from largek_dask.passes.local import LocalPasses
from largek_dask.selection import nested as module
from largek_dask.selection.nested import (
    TimeLimit,
    count_partitions,
    nested_partitions,
    settle_partitions,
)

R = np.random.default_rng(3)
GROUPS = 11
X = (12 * R.normal(size=(GROUPS, 3))[R.integers(GROUPS, size=2_000)]) + R.normal(size=(2_000, 3))


def passes_over(x, weight=None, n_threads=1):
    return LocalPasses(open_rows(x, sample_weight=weight), n_threads=n_threads)


def held(passes):
    return passes.subset(RowSample(Rng(0), "test", passes.n_rows))


def squares(x, centers):
    return ((x[:, None] - centers[None]) ** 2).sum(axis=2)


@pytest.fixture
def on_few(monkeypatch):
    """Partitions into few clusters are found on fewer rows than there are."""
    monkeypatch.setattr(module, "LEAST_ROWS", 256)
    monkeypatch.setattr(module, "ROWS_PER_CLUSTER", 32)


def test_partitions_are_local_optima_and_fall():
    with passes_over(X) as passes:
        found = nested_partitions(held(passes), Rng(0), 40)
    sizes = [each.n_clusters for each in found]
    assert sizes == sorted({*range(1, 17), 24, 32, 40} | set(sizes))
    costs = [each.cost for each in found]
    assert all(after < before for before, after in pairwise(costs))
    for each in found:
        distances = squares(X, each.arrays.centers)
        assert each.cost == pytest.approx(distances.min(axis=1).sum(), rel=1e-9)
        assert each.arrays.counts.sum() == len(X)


def test_a_bend_beyond_16_has_partitions_about_it():
    r = np.random.default_rng(5)
    x = 40 * r.normal(size=(21, 4))[r.integers(21, size=2_000)] + r.normal(size=(2_000, 4))
    with passes_over(x) as passes:
        found = nested_partitions(held(passes), Rng(0), 40)
    assert {20, 21, 22} <= {each.n_clusters for each in found}


def test_few_rows_serve_few_clusters(on_few):
    with passes_over(X) as passes:
        found = nested_partitions(held(passes), Rng(0), 40)
    by_size = {each.n_clusters: each.n_rows for each in found}
    assert by_size[4] == 256
    assert by_size[32] == 1_024
    assert by_size[40] == 1_280


def test_steps_over_all_rows_lower_what_was_found_on_few(on_few):
    with passes_over(X) as passes:
        found = nested_partitions(held(passes), Rng(0), 24)
        few = [each for each in found if each.n_rows < len(X)]
        assert few
        moved = settle_partitions(passes, few, 1)
    for before, after in zip(few, moved, strict=True):
        labels = squares(X, before.arrays.centers).argmin(axis=1)
        means = [X[labels == j].mean(axis=0) for j in range(before.n_clusters)]
        np.testing.assert_allclose(after.arrays.centers, means, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_counts_are_exact_and_says_how_far_off_a_sample_is(kind):
    weight = R.integers(0, 4, size=len(X)).astype(float)
    source = X if kind == "dense" else sp.csr_matrix(X)
    with passes_over(source, weight) as passes:
        found = nested_partitions(held(passes), Rng(0), 8)
        count = count_partitions(passes, found)
    assert count.weight == weight.sum()
    for each, error in zip(count.partitions, count.errors, strict=True):
        distances = squares(X, each.arrays.centers)
        costs = weight * distances.min(axis=1)
        labels = distances.argmin(axis=1)
        assert each.cost == pytest.approx(costs.sum(), rel=1e-6)
        counts = np.bincount(labels, weight, minlength=each.n_clusters)
        assert each.arrays.counts.tolist() == counts.tolist()
        off = costs - costs.sum() / weight.sum() * weight
        assert error == pytest.approx(math.sqrt((off**2).sum()), rel=1e-6)


def test_a_limit_ends_it_with_what_there_is(monkeypatch):
    told = []
    limit = TimeLimit(1_000.0)
    monkeypatch.setattr(limit, "is_over", lambda share=1.0: len(told) >= 3)
    with passes_over(X) as passes:
        found = nested_partitions(held(passes), Rng(0), 40, limit=limit, report=told.append)
    assert [each.n_clusters for each in found] == [1, 2, 4]
