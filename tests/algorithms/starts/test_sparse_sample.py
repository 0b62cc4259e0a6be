"""Starts on samples of sparse rows of any size: quality, and the same bits everywhere."""

from __future__ import annotations

import tracemalloc

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.starts.samples import different_rows, rounds_start, sparse_start
from largek_dask.algorithms.starts.seeding import centers_of_sample, initial_centers
from largek_dask.data.sources import open_rows
from largek_dask.data.store_writer import CSRWriter
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.algorithms.conftest import bits
from tests.helpers.covering import in_turns


def topics(n, d, n_topics, seed=0, dtype=np.float32) -> sp.csr_matrix:
    """Rows of a dozen numbers: in each topic some columns are frequent."""
    r = np.random.default_rng(seed)
    words = r.integers(0, d, (n_topics, 8))
    columns = np.hstack([words[r.integers(0, n_topics, n)], r.integers(0, d, (n, 4))])
    rows = np.repeat(np.arange(n), 12)
    values = r.uniform(0.5, 1.5, rows.size).astype(dtype)
    return sp.coo_matrix((values, (rows, columns.ravel())), shape=(n, d)).tocsr()


def block(x: sp.csr_matrix) -> SparseBlock:
    return SparseBlock(x.data, x.indices.astype(np.int32), x.indptr.astype(np.int64), x.shape[1])


def stored(x: sp.csr_matrix, url: str) -> str:
    """The rows in a store, in many chunks."""
    writer = CSRWriter(url, n_features=x.shape[1], dtype=x.dtype)
    writer.append(block(x))
    writer.finish({})
    assert open_rows(url).n_chunks > 5
    return url


def start(x, k, *, weight=None, n_threads=1, seed=0, init="two-level"):
    with LocalPasses(open_rows(x, sample_weight=weight), n_threads=n_threads) as passes:
        return initial_centers(passes, Rng(seed), k, init)


def cost(x, centers, weight=None) -> float:
    squares = oracles.squared_distances(x.toarray().astype(float), centers.astype(float)).min(1)
    return float(squares @ (np.ones(len(squares)) if weight is None else weight))


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "dtype", "weighted"),
    in_turns([(101, 101), (130, 101), (1_001, 101)], ["f4", "f8"], [False, True]),
)
def test_any_size(size, dtype, weighted):
    n, k = size
    x = topics(n, 40, 60, dtype=dtype)
    weight = np.arange(n) % 3 + 0.5 if weighted else None
    km = lk.KMeans(k, random_state=1, max_iter=5).fit(x, sample_weight=weight)
    assert km.cluster_centers_.dtype == dtype
    assert len(set(km.labels_.tolist())) == k
    assert km.inertia_ == pytest.approx(cost(x, km.cluster_centers_, weight), rel=1e-5, abs=1e-6)


def test_more_clusters_than_different_rows_and_many_rows_of_zeros():
    different = topics(120, 30, 40)
    x = sp.vstack([sp.csr_matrix((600, 30), dtype="f4"), *[different] * 5]).tocsr()
    with pytest.warns(lk.errors.DegenerateDataWarning, match="only 121 distinct"):
        km = lk.KMeans(150, random_state=0).fit(x)
    assert len(set(km.labels_.tolist())) == 121
    assert km.inertia_ == pytest.approx(0, abs=1e-8)


def test_rows_of_weight_zero_are_no_centres():
    x, weight = topics(440, 30, 40), np.zeros(440)
    weight[::4] = 2.0
    for init in ("auto", "two-level"):
        km = lk.KMeans(110, init=init, random_state=0).fit(x, sample_weight=weight)
        np.testing.assert_array_equal(np.bincount(km.labels_[::4], minlength=110), 1)


# --- the start itself -----------------------------------------------------------------------------


def in_rounds(x, k, *, weight=None, n_threads=1, seed=0):
    """As a nested batch finds its centres on its first rows."""
    with LocalPasses(open_rows(x, sample_weight=weight), n_threads=n_threads) as passes:
        given = np.ones(x.shape[0]) if weight is None else weight.astype(float)
        return centers_of_sample(block(x), given, k, passes, Rng(seed))


def test_rounds_draw_every_distinct_row():
    """Also where rows are alike, which are drawn in the same round; and a far row in any case."""
    x = topics(120, 30, 40)
    x[7] *= 1e4
    many = sp.vstack([x] * 20).tocsr()
    centers = in_rounds(many, 120)
    assert cost(many, centers) == pytest.approx(0, abs=1e-3)
    assert len(np.unique(centers, axis=0)) == 120
    assert len(np.unique(in_rounds(many, 150), axis=0)) == 120
    np.testing.assert_array_equal(in_rounds(x, 130), np.resize(x.toarray(), (130, 30)))


@pytest.mark.parametrize(
    ("k", "seed", "weighted"),
    [(1, 0, True), (2, 1, False), (7, 2, True), (40, 3, False), (64, 4, True)],
)
def test_rounds_are_those_of_plain_numpy(k, seed, weighted):
    """As many rows a round as there are, by D² to those of the rounds before; then one step."""
    x = topics(300, 12, 9, seed=seed, dtype=np.float64)
    rows = x.toarray()
    weight = np.arange(300) % 3 + 1.0 if weighted else np.ones(300)
    uniform = np.random.default_rng(seed)
    mass, drawn = weight, []
    while len(drawn) < k:
        numbers = uniform.random(min(max(1, len(drawn)), k - len(drawn)))
        picks = np.searchsorted(np.cumsum(mass) / mass.sum(), numbers, "right")
        drawn += dict.fromkeys(picks.tolist())  # all rows differ, but one may be drawn twice
        d2 = ((rows[:, None] - rows[drawn]) ** 2).sum(axis=2).min(axis=1)
        mass = weight * d2
    labels, _ = oracles.assign(rows, rows[drawn])
    wanted = [np.average(rows[labels == j], axis=0, weights=weight[labels == j]) for j in range(k)]
    with LocalPasses(open_rows(x, sample_weight=weight), n_threads=1) as passes:
        grid = passes.statistics.grid
    found = rounds_start(block(x), weight, k, grid, np.random.default_rng(seed), 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_two_levels_if_most_rows_are_equal():
    """Random rows of a cell are the same one many times; rows that cost most take their places."""
    different = topics(90, 30, 90, seed=3)
    x = sp.vstack([sp.csr_matrix((3_000, 30), dtype="f4"), different]).tocsr()
    x = x[np.random.default_rng(0).permutation(x.shape[0])]
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        grid = passes.statistics.grid
    centers = sparse_start(block(x), None, 60, grid, 1)
    assert len(np.unique(centers, axis=0)) > 50


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 3), (2, 1), (5, 5), (5, 4), (300, 2)])
def test_few_rows(n, k):
    x = topics(n, 6, 3)
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        centers = sparse_start(block(x), None, k, passes.statistics.grid, 2)
    assert centers.shape == (k, 6)
    assert np.isfinite(centers).all()
    if n <= k:
        np.testing.assert_array_equal(centers, np.resize(x.toarray(), (k, 6)))


def test_integer_weights_are_repeated_rows():
    x = topics(800, 40, 60)
    weight = np.random.default_rng(1).integers(1, 4, 800)
    with LocalPasses(open_rows(x, sample_weight=weight), n_threads=1) as passes:
        grid = passes.statistics.grid
    # one cell, begun at the same rows
    one = sparse_start(block(x), weight.astype(float), 1, grid, 1)
    other = sparse_start(block(x[np.repeat(np.arange(800), weight)]), None, 1, grid, 1)
    np.testing.assert_array_equal(one, other)


def test_the_same_bits_on_threads_and_workers_and_in_any_chunks(tmp_path, worker_clients):
    x, weight = topics(6_000, 60, 150), np.arange(6_000) % 5
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        url = stored(x, str(tmp_path / "rows.zarr"))
        want = start(x, 150, weight=weight)
        assert start(x, 150, weight=weight, n_threads=3).tobytes() == want.tobytes()
        assert start(url, 150, weight=weight, n_threads=2).tobytes() == want.tobytes()
        for init in ("two-level", "auto"):
            options = {"init": init, "random_state": 0, "max_iter": 3}
            here = lk.KMeans(150, **options, n_threads=1).fit(url, sample_weight=weight)
            km = lk.KMeans(150, **options, client=worker_clients(2))
            assert bits(here) == bits(km.fit(url, sample_weight=weight))


@pytest.mark.parametrize("which", ["two-level", "rounds"])
def test_memory_stays_sparse(which):
    """The sample's rows would take 1.6 GB with their zeros; k centres take 12 MB."""
    n, d, k = 20_000, 20_000, 150
    x = topics(n, d, 300)

    def find(x, k):
        if which == "rounds":
            return centers_of_sample(x, np.ones(len(x)), k, passes, Rng(0))
        return sparse_start(x, None, k, passes.statistics.grid, 1)

    with LocalPasses(open_rows(x), n_threads=1) as passes:
        find(block(x[:2_000]), 101)  # compiled
        tracemalloc.start()
        centers = find(block(x), k)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 12 * centers.nbytes < n * d * 4 / 10


# --- different rows -------------------------------------------------------------------------------


def drawn(x, k, weight=None, seed=0, n_threads=1):
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        grid = passes.statistics.grid
    weight = np.ones(x.shape[0]) if weight is None else weight
    generator = np.random.default_rng(seed)
    return different_rows(block(x), weight, k, grid, generator, n_threads)


@pytest.mark.parametrize("k", [9, 129])
def test_different_rows_and_labels(k):
    x = topics(6_000, 60, 150)
    x = sp.vstack([x, x[:500], x[:500]]).tocsr()
    dense = x.toarray()
    centers, labels = drawn(x, k)
    assert len(np.unique(centers, axis=0)) == k
    assert {row.tobytes() for row in centers} <= {row.tobytes() for row in dense}
    squares = oracles.squared_distances(dense, centers)
    own = squares[np.arange(len(dense)), labels]
    np.testing.assert_allclose(own, squares.min(axis=1), rtol=1e-6)
    again = drawn(x, k, n_threads=3)
    assert [part.tobytes() for part in again] == [centers.tobytes(), labels.tobytes()]
    assert drawn(x, k, seed=1)[0].tobytes() != centers.tobytes()


def test_different_rows_are_drawn_by_weight():
    x = topics(3_000, 60, 30)
    weight = np.ones(3_000)
    weight[::3] = 1e6
    centers, _ = drawn(x, 50, weight)
    heavy = {row.tobytes() for row in x[::3].toarray()}
    assert {row.tobytes() for row in centers} <= heavy


def test_different_rows_fail_if_most_rows_are_equal():
    x = sp.vstack([sp.csr_matrix((3_000, 60), dtype="f4"), topics(90, 60, 90)]).tocsr()
    assert drawn(x, 60) is None
    assert drawn(x[:3_000], 1) is not None, "one row is never like another one"


@pytest.mark.parametrize("n_far", [0, 3])
def test_different_rows_fail_if_a_few_rows_carry_the_cost(n_far):
    x = topics(3_000, 60, 30)
    x.data[: x.indptr[n_far]] *= 100.0
    assert (drawn(x, 40) is None) == (n_far > 0)
    weight = np.ones(3_000)
    weight[:n_far] = 1e-6
    assert drawn(x, 40, weight) is not None, "far, and yet next to nothing"
