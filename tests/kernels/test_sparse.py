"""Sparse rows against the dense kernels on the same rows, and against their definition."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels import distances
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.distances import nearest_two, pack_centers
from largek_dask.kernels.sparse.search import nearest_sparse, pack_sparse
from tests import oracles

COMPILED = not numba.config.DISABLE_JIT


def table(n, k, d, share, dtype=np.float32, seed=0, grid=4):
    """Sparse rows, as a block and dense, and centres; quarters, so that ties are ties."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(n, d)) * 2 * grid) / grid * (rng.random((n, d)) < share)
    centers = np.round(rng.normal(size=(k, d)) * grid) / grid
    if k > 3:
        centers[3] = centers[1]
    return block_of(x.astype(dtype)), x.astype(dtype), centers.astype(dtype)


def block_of(x):
    """The block of a dense table's numbers that are not zero."""
    rows, columns = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(x)))])
    return SparseBlock(x[rows, columns], columns.astype(np.int32), indptr, x.shape[1])


shapes = st.tuples(
    st.sampled_from([0, 1, 2, 33]),
    st.sampled_from([1, 2, 3, 8, 9, 50, 64, 65, 130]),
    st.sampled_from([1, 9, 40]),
    st.sampled_from([0.0, 0.1, 1.0]),
)


@given(shapes, st.sampled_from([np.float32, np.float64]), st.integers(0, 2**31))
def test_nearest__is_the_argmin_with_ties_to_the_lowest_index(shape, dtype, seed):
    block, x, centers = table(*shape, dtype=dtype, seed=seed)
    exact = oracles.squared_distances(x, centers)
    expected = exact.argmin(axis=1) if len(x) else np.empty(0)
    labels, first, second_labels, second = nearest_sparse(block, pack_sparse(centers))
    np.testing.assert_array_equal(labels, expected)
    assert labels.dtype == np.int32
    # scores lack the row's squared length
    lengths = (x**2).sum(axis=1)
    np.testing.assert_array_equal(first + lengths, exact[np.arange(len(x)), labels])
    rest = exact.copy()
    rest[np.arange(len(x)), labels] = np.inf
    if len(centers) == 1:
        assert (second_labels == -1).all()
        assert np.isinf(second).all()
    else:
        np.testing.assert_array_equal(second_labels, rest.argmin(axis=1))
        np.testing.assert_array_equal(second + lengths, rest.min(axis=1, initial=np.inf))


@pytest.mark.skipif(not COMPILED, reason="stand-ins add in another order")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 7, 50, 65, 200])
def test_scores__have_the_bits_of_the_dense_product_form(dtype, k):
    rng = np.random.default_rng(k)
    x = (rng.normal(size=(70, 30)) * (rng.random((70, 30)) < 0.3)).astype(dtype)
    centers = rng.normal(size=(k, 30)).astype(dtype)
    labels, first, second_labels, second = nearest_sparse(block_of(x), pack_sparse(centers))
    packed = pack_centers(centers, np.zeros(30, dtype))
    assert not packed.direct
    scores = np.empty((len(x), k), dtype)
    distances._score(x, packed, False, packed.dense, scores)
    every = np.arange(len(x))
    np.testing.assert_array_equal(labels, scores.argmin(axis=1))
    assert first.tobytes() == scores[every, labels].tobytes()
    scores[every, labels] = np.inf
    assert second.tobytes() == scores.min(axis=1).tobytes()
    if k > 1:
        np.testing.assert_array_equal(second_labels, scores.argmin(axis=1))
    np.testing.assert_array_equal(labels, nearest_two(x, packed)[0])


def test_a_row_does_not_depend_on_its_place():
    block, _, centers = table(9000, 20, 12, 0.4, grid=1000)
    packed = pack_sparse(centers)
    whole = nearest_sparse(block, packed)
    for begin, end in ((0, 1), (4095, 4098), (8000, 9000)):
        part = nearest_sparse(block[begin:end], packed)
        for a, b in zip(part, whole, strict=True):
            assert a.tobytes() == b[begin:end].tobytes()


@given(st.integers(0, 40), st.integers(0, 2**31))
def test_block__is_indexed_like_an_array(n, seed):
    block, x, _ = table(n, 1, 7, 0.4, seed=seed)
    rng = np.random.default_rng(seed)
    mask, places = rng.random(n) < 0.5, rng.integers(0, max(n, 1), size=5 if n else 0)
    for index in (slice(None), slice(3, 9), slice(9, 3), slice(0, n, 2), mask, places):
        part = block[index]
        np.testing.assert_array_equal(part.toarray(), x[index])
        assert part.shape == x[index].shape
    assert block.dtype == x.dtype
    assert block.astype(np.float64).toarray().dtype == np.float64
    assert block.astype(block.dtype) is block
    assert block.astype(block.dtype, copy=False) is block
    assert not np.shares_memory(block.astype(block.dtype, copy=True).data, block.data)
    assert block.nbytes == block.data.nbytes + block.indices.nbytes + block.indptr.nbytes


def test_scores_that_overflow_leave_the_first_centre():
    x = np.full((2, 3), 1e19, np.float32)
    far = np.full((1, 3), -1e19, np.float32)
    labels, *_ = nearest_sparse(block_of(x), pack_sparse(far))
    assert labels.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (9, 256), (70, 600)])
def test_pack__lays_each_feature_of_a_block_side_by_side(k, d, dtype):
    centers = np.random.default_rng(k).normal(size=(k, d)).astype(dtype)
    packed = pack_sparse(np.asfortranarray(centers))
    width = packed.columns.shape[2]
    padded = np.zeros((len(packed.columns) * width, d), dtype)
    padded[:k] = -2 * centers
    expected = padded.reshape(-1, width, d).swapaxes(1, 2)
    np.testing.assert_array_equal(packed.columns, expected)
    np.testing.assert_allclose(packed.starts[:k], (centers**2).sum(axis=1), rtol=1e-5)
    assert np.isinf(packed.starts[k:]).all()
