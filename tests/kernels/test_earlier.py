"""Most similar earlier rows, against all pairs in float64."""

from __future__ import annotations

from itertools import pairwise

import dask.config
import numba
import numpy as np
import pytest

from largek_dask.kernels.dense.earlier import NONE, order_rows, rounding, search_earlier
from largek_dask.kernels.tile import TILES
from tests.helpers.covering import slow
from tests.oracles.duplicates import nearest_earlier

COMPILED = not numba.config.DISABLE_JIT


def search(x, numbers, cuts=()):
    """Compare all rows, in one call or in tiles that end at ``cuts``."""
    edges = [0, *cuts, len(x)]
    tiles = [order_rows(x[a:b], numbers[a:b]) for a, b in pairwise(edges)]
    for i, rows in enumerate(tiles):
        for j in reversed(range(i + 1)):
            for begin in range(0, len(rows.x), 100):
                search_earlier(rows, tiles[j], edges[i] - edges[j], begin, begin + 100)
    found, similar = (
        np.concatenate([getattr(t, n) for t in tiles]) for n in ("found", "similarity")
    )
    assert ((found == NONE) == (similar == -2)).all()
    return found, np.where(found == NONE, np.nan, similar)


def check(x, numbers=None, cuts=()):
    numbers = np.arange(len(x)) if numbers is None else numbers
    found, similar = search(x, numbers, cuts)
    expected, values = nearest_earlier(x, numbers)
    np.testing.assert_allclose(similar, values, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(found, expected)
    return found, similar


@pytest.mark.parametrize("tile", ["auto", "plain", *slow("avx2", "avx512", "neon")])
@pytest.mark.parametrize("d", [1, 2, 7, 8, 9, 33])
def test_all_pairs(d, tile):
    assert tile in {"auto", *TILES}
    rng = np.random.default_rng(d)
    x = np.round(rng.normal(size=(130, d)), 1).astype(np.float32)
    x[~x.any(axis=1)] = 1
    x[40:60], x[90] = x[rng.integers(40, size=20)], 2 * x[3]
    with dask.config.set({"largek.kernels.tile": tile}):
        found, similar = check(x, rng.permutation(len(x)))
    assert found[0] == NONE
    assert np.isnan(similar[0])
    assert (similar[40:60] == 1).all()
    assert similar[90] == 1


@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "u1", "i4"])
def test_types(dtype):
    rng = np.random.default_rng(0)
    check(np.maximum(rng.normal(0, 30, size=(70, 12)), -20 if dtype != "u1" else 1).astype(dtype))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows(n):
    check(np.arange(1.0, 1 + 3 * n).reshape(n, 3).astype(np.float32))


def test_bits_do_not_depend_on_tiles():
    x = np.random.default_rng(1).normal(size=(150, 20)).astype(np.float32)
    x[100:] = x[:50] + np.float32(1e-7)
    numbers = np.random.default_rng(2).permutation(150)
    whole = search(x, numbers)
    for cuts in [(8,), (1, 2, 77), range(10, 150, 10)]:
        for one, other in zip(whole, search(x, numbers, cuts), strict=True):
            assert one.tobytes() == other.tobytes()


def test_equal_rows_have_similarity_one_and_the_lowest_index():
    x = np.tile(np.random.default_rng(3).normal(size=(1, 50)).astype(np.float32), (60, 1))
    numbers = np.random.default_rng(4).permutation(60)
    found, similar = search(x, numbers)
    assert (similar[1:] == 1).all()
    np.testing.assert_array_equal(found[1:], np.minimum.accumulate(numbers)[:-1])


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-7])
def test_differences_below_float32(gap):
    """Rows whose float32 products do not show which row is the most similar."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=40) + gap * rng.normal(size=(90, 40))
    found, similar = search(x, np.arange(90))
    expected, values = nearest_earlier(x, np.arange(90))
    np.testing.assert_allclose(similar, values, rtol=0, atol=1e-13)
    if gap == 1e-3:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_far_numbers(scale):
    x = np.random.default_rng(6).normal(size=(30, 9))
    found, similar = search(x, np.arange(30))
    scaled = search(scale * x, np.arange(30))
    np.testing.assert_array_equal(found, scaled[0])
    np.testing.assert_allclose(similar, scaled[1], rtol=1e-14)
    check((np.float32(1e-38) * x).astype(np.float32))


def test_products_are_within_the_bound():
    rng = np.random.default_rng(7)
    for d in (3, 100, 2000):
        x = np.abs(rng.normal(size=(20, d))).astype(np.float32)
        rows = order_rows(x, np.arange(20))
        products = np.zeros((20, 20), np.float32)
        for f in range(d):
            column = rows.units[:20, f]
            products += column[:, None] * column
        exact = (x.astype(np.float64) @ x.T) / np.sqrt(rows.squares[:, None] * rows.squares)
        assert np.abs(products - exact).max() < rounding(d)
    assert rounding(1 << 30) == np.inf
