"""What is computed of sparse rows has the bits that the same rows give dense, about the origin."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from largek_dask.kernels.blocks import SparseBlock, dense_rows, rows_at, sparse_rows, stack_rows
from largek_dask.kernels.distances import (
    nearest,
    nearest_two,
    pack_centers,
    scores,
    squared_distances,
)
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.squares import ExactSums, row_squares
from largek_dask.kernels.exact.statistics import RowScan
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.packed_cache import PackedCache
from largek_dask.kernels.rows import finite_rows, normalize_rows
from largek_dask.kernels.sampling import potentials, update_d2
from largek_dask.kernels.sparse.search import center_norms
from tests import oracles
from tests.kernels.test_sparse import block_of, table

K = 5
WEIGHTS = {
    "none": lambda rng, n: None,
    "integers": lambda rng, n: rng.integers(0, 4, n).astype(np.float64),
    "reals": lambda rng, n: rng.random(n),
}


def stored_zeros(block, seed):
    """The same rows with some zeros stored, and numbers of other rows around them."""
    rng = np.random.default_rng(seed)
    x = block.toarray()
    with_zeros = block_of(np.where((x == 0) & (rng.random(x.shape) < 0.2), np.inf, x))
    data = np.where(np.isinf(with_zeros.data), 0, with_zeros.data)
    around = np.concatenate([[7], data, [9, 8]]).astype(data.dtype)
    indices = np.concatenate([[0], with_zeros.indices, [0, 0]]).astype(np.int32)
    return SparseBlock(around, indices, with_zeros.indptr + 1, block.n_features)


rows = st.tuples(
    st.sampled_from([1, 2, 40]),
    st.just(K),
    st.sampled_from([1, 3, 30]),
    st.sampled_from([0.0, 0.2, 1.0]),
)
floats = st.sampled_from([np.float32, np.float64])
seeds = st.integers(0, 2**31)


@given(rows, floats, st.sampled_from(list(WEIGHTS)), seeds)
def test_sums__have_the_bits_of_dense_rows(shape, dtype, kind, seed):
    block, x, _ = table(*shape, dtype=dtype, seed=seed, grid=1000)
    block = stored_zeros(block, seed)
    rng = np.random.default_rng(seed)
    n, d = x.shape
    weight = WEIGHTS[kind](rng, n)
    grid = FixedPoint.choose(
        np.zeros(d, dtype),
        float(np.abs(x).max()),
        n_rows=n,
        total_weight=float(n if weight is None else 4 * n),
        max_weight=4.0,
        integer_weights=kind != "reals",
    )
    old, new = (rng.integers(-1, K, n).astype(np.int32) for _ in range(2))
    found, expected = ClusterSums(K, d, grid), ClusterSums(K, d, grid)
    for sums, rows in ((found, block), (expected, x)):
        sums.add(rows, old, weight)
        sums.move(rows, old, new, weight)
    np.testing.assert_array_equal(found.sums, expected.sums)
    np.testing.assert_array_equal(found.weights, expected.weights)
    ones = np.ones(n) if weight is None else weight
    assert found.sums.tolist() == oracles.fixed_point_sums(x, new, ones, K, grid)[0]
    found.move(block, new, np.full_like(new, -1), weight)
    assert not found.sums.any()
    assert not found.weights.any()


@given(rows, floats, st.sampled_from(list(WEIGHTS)), st.booleans(), seeds)
def test_scan__finds_what_it_finds_of_dense_rows(shape, dtype, kind, bad, seed):
    block, x, _ = table(*shape, dtype=dtype, seed=seed, grid=1000)
    block = stored_zeros(block, seed)
    rng = np.random.default_rng(seed)
    weight = WEIGHTS[kind](rng, len(x))
    if bad and len(block.data) > 3:
        block.data[1] = np.nan
        x = block.toarray()
    scans = []
    for rows in (block, x):
        scan, half = RowScan(x.shape[1], dtype), RowScan(x.shape[1], dtype)
        middle = len(x) // 2
        scan.add(rows[:middle], None if weight is None else weight[:middle])
        half.add(rows[middle:], None if weight is None else weight[middle:], middle)
        scans.append(half.merge(scan))
    sparse, dense = (scan.finish() for scan in scans)
    # two dense rows may be equal in a feature by chance: far from 0, so in float64
    assume(dense.dtype == dtype)
    assert not sparse.shift.any()
    assert sparse.shift.dtype == dtype
    for name in (
        "n_rows", "n_total", "dtype", "total_weight", "max_weight", "integer_weights", "n_bad",
        "first_bad",
    ):  # fmt: skip
        assert getattr(sparse, name) == getattr(dense, name), name
    np.testing.assert_array_equal(sparse.mean, dense.mean)
    counts = np.isfinite(x).all(axis=1) & (True if weight is None else weight > 0)
    assert sparse.max_abs == np.abs(x[counts]).max(initial=0)
    assert (
        sparse.grid.bits
        == FixedPoint.choose(
            sparse.shift,
            sparse.max_abs,
            n_rows=sparse.n_rows,
            total_weight=sparse.total_weight,
            max_weight=sparse.max_weight,
            integer_weights=sparse.integer_weights,
        ).bits
    )


@given(rows, floats, seeds)
def test_small_jobs__have_the_bits_of_dense_rows(shape, dtype, seed):
    block, x, _ = table(*shape, dtype=dtype, seed=seed, grid=1000)
    block = stored_zeros(block, seed)
    origin = np.zeros(x.shape[1], dtype)
    assert row_squares(block, origin).tobytes() == row_squares(x, origin).tobytes()
    rows = np.arange(len(x))[::-2]
    assert row_squares(block, origin, rows).tolist() == row_squares(x, origin)[rows].tolist()
    found, expected = ExactSums(), ExactSums()
    found.add(row_squares(block, origin))
    expected.add(row_squares(x, origin))
    assert found.value == expected.value
    np.testing.assert_array_equal(normalize_rows(block).toarray(), normalize_rows(x))
    assert finite_rows(block).all()
    wrong = np.random.default_rng(seed).random(len(x)) < 0.3
    np.testing.assert_array_equal(
        block.with_rows_zero(wrong).toarray(), np.where(wrong[:, None], 0, x)
    )
    np.testing.assert_array_equal(block[len(x) - 1], x[-1])
    parts = [block[:1], np.empty((0, x.shape[1]), dtype), block[1:], block[:0]]
    np.testing.assert_array_equal(stack_rows(parts).toarray(), x)
    np.testing.assert_array_equal(stack_rows([x, x[:1]]), np.concatenate([x, x[:1]]))
    for rows in (np.arange(len(x))[::-2], np.empty(0, np.int64)):
        np.testing.assert_array_equal(dense_rows(rows_at(block, rows)), x[rows])
        np.testing.assert_array_equal(rows_at(x, rows), x[rows])
    assert dense_rows(x) is x


def test_finite_rows__names_rows():
    x = np.zeros((5, 4), np.float32)
    x[1, 2], x[3, 0], x[4, 1] = np.nan, -np.inf, 3
    block = block_of(x)
    assert finite_rows(block).tolist() == [True, False, True, False, True]
    assert finite_rows(block[2:]).tolist() == [True, False, True]


@given(rows, floats, seeds)
def test_distances__are_those_of_the_definition(shape, dtype, seed):
    block, x, centers = table(*shape, dtype=dtype, seed=seed)
    block = stored_zeros(block, seed)
    packed = pack_centers(centers, np.zeros(x.shape[1], dtype))
    expected = oracles.squared_distances(x, centers)
    # quarters: nothing is rounded
    found = scores(block, packed)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    labels = np.random.default_rng(seed).integers(0, K, len(x)).astype(np.int32)
    exact = squared_distances(block, packed, labels)
    np.testing.assert_array_equal(exact, expected[np.arange(len(x)), labels])
    np.testing.assert_array_equal(nearest(block, packed), expected.argmin(axis=1))
    np.testing.assert_array_equal(nearest_two(block, packed)[1], expected.min(axis=1))
    d2, among = np.full(len(x), np.inf), np.zeros(len(x), np.int32)
    update_d2(block, packed, d2, among)
    np.testing.assert_array_equal(d2, expected.min(axis=1))
    np.testing.assert_array_equal(
        potentials(block, packed, d2 + 1).values, np.minimum(d2[:, None] + 1, expected).sum(axis=0)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_and_distances__agree_with_nearest_and_do_not_depend_on_the_place(dtype):
    block, x, centers = table(300, 70, 40, 0.3, dtype=dtype, grid=1000)
    packed = pack_centers(centers, np.zeros(40, dtype))
    found = scores(block, packed)
    labels, distances, *_ = nearest_two(block, packed)
    # Where two centres are as near as can be told, sums (x - c)² decide and give the distance.
    best, following = np.partition(found, 1, axis=1)[:, :2].T
    clear = following > best * (1 + 1e-5)
    assert 200 < clear.sum() < 300
    assert best[clear].tobytes() == distances[clear].tobytes()
    np.testing.assert_allclose(distances, best, rtol=100 * np.finfo(dtype).eps)
    exact = squared_distances(block, packed, labels)
    np.testing.assert_allclose(exact, oracles.squared_distances(x, centers).min(axis=1), 1e-12)
    assert scores(block[7:9], packed).tobytes() == found[7:9].tobytes()
    assert squared_distances(block[7:9], packed, labels[7:9]).tobytes() == exact[7:9].tobytes()


@given(seeds)
def test_a_row_that_is_its_centre_is_at_distance_0(seed):
    block, x, _ = table(20, 1, 30, 0.3, seed=seed, grid=997)
    packed = pack_centers(x, np.zeros(30, np.float32))
    assert not squared_distances(block, packed, np.arange(20, dtype=np.int32)).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_of_rows_near_their_centres_keep_their_digits(dtype):
    """The squares of a centre's other features are no difference of two long sums then."""
    block, x, _ = table(40, 1, 60, 0.3, dtype=dtype, grid=997)
    off = np.random.default_rng(5).normal(size=x.shape) * 1e-6
    centers = (x + off).astype(dtype)
    labels = np.arange(40, dtype=np.int32)
    found = squared_distances(block, pack_centers(centers, np.zeros(60, dtype)), labels)
    differences = x.astype(np.float64) - centers.astype(np.float64)
    expected = [math.fsum(row * row) for row in differences]
    assert (np.square(centers.astype(np.float64)).sum(axis=1) > 1e9 * found).all()
    np.testing.assert_allclose(found, expected, rtol=60 * 2.0**-53, atol=0)


def test_sums_about_another_origin_are_refused():
    block, _, _ = table(3, 1, 2, 1.0)
    shift = np.ones(2, np.float32)
    with pytest.raises(ValueError, match="must be 0"):
        row_squares(block, shift)
    with pytest.raises(ValueError, match="must be 0"):
        ClusterSums(1, 2, FixedPoint.choose(shift, 9.0, n_rows=3)).add(block, np.zeros(3, np.int32))


def test_a_packed_form_is_made_once_by_several_threads():
    made = []

    def make(centers):
        made.append(centers)
        return len(made)

    cache = PackedCache(np.ones((2, 2)))
    threads = [threading.Thread(target=cache.get, args=(make,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get(make) == 1
    assert len(made) == 1


@pytest.mark.parametrize("k", [1, 4, 7])
def test_squared_lengths_of_centers_are_added_in_order(k):
    """Four at a time, and those that are left."""
    centers = np.random.default_rng(k).normal(size=(k, 33)).astype(np.float32)
    expected = np.zeros(k)
    for column in centers.T.astype(np.float64):
        expected += column * column
    np.testing.assert_array_equal(center_norms(centers), expected)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "i8", "f8"])
def test_rows_of_a_block__are_those_of_the_array(dtype):
    rng = np.random.default_rng(8)
    dense = (rng.integers(0, 3, (40, 7)) * (rng.random((40, 7)) < 0.4)).astype(dtype)
    dense[[3, 39]] = 0
    block = block_of(dense)[2:]
    dense = dense[2:]
    assert block.indptr[0] > 0, "it begins within what is stored"
    some = rng.integers(0, 38, 60)
    for rows in (
        some,
        some - 38,
        rng.random(38) < 0.5,
        np.zeros(38, np.bool_),
        slice(30, 2, -3),
        [],
    ):
        found = block[rows]
        assert (found.dtype, found.indices.dtype, found.indptr[0]) == (dense.dtype, np.int32, 0)
        np.testing.assert_array_equal(found.toarray(), dense[rows])
        assert len(found.data) == np.count_nonzero(dense[rows])
    np.testing.assert_array_equal(block[5], dense[5])
    with pytest.raises(IndexError):
        block[[38]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_rows_made_sparse_keep_their_numbers(dtype):
    x = np.array([[0, 2, 0], [0, 0, 0], [-0.0, np.nan, -1], [0, 0, 0]], dtype)
    block = sparse_rows(x)
    assert (block.shape, block.dtype, block.indices.dtype) == (x.shape, dtype, np.int32)
    assert block.indptr.tolist() == [0, 1, 1, 3, 3]
    np.testing.assert_array_equal(block.toarray(), x)
    assert sparse_rows(x[:0]).shape == (0, 3)
