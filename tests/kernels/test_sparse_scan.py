"""Exact sums of sparse float32 rows against fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sparse_scan import SparseScan
from tests import oracles
from tests.kernels.test_sparse import block_of


def exact(sums):
    totals, exponent = sums.integers()
    return [Fraction(total) * Fraction(2) ** exponent for total in totals]


def rows(rng, n, d, smallest, largest):
    """Numbers of both signs with exponents from a range, and zeros."""
    sizes = 2.0 ** rng.integers(smallest, largest + 1, (n, d))
    values = rng.uniform(1, 2, (n, d)) * sizes * rng.choice([-1, 0, 0, 1], (n, d))
    return values.astype(np.float32)


spans = st.sampled_from(
    [(-7, 0), (-3, 20), (-149, -140), (-126, -120), (100, 126), (-13, 18), (0, 0), (-60, 60)]
)


@given(st.lists(spans, min_size=1, max_size=5), st.integers(0, 2**31))
def test_sums_are_exact_whatever_follows_whatever(chunks, seed):
    rng, d = np.random.default_rng(seed), 3
    scan, sums, taken = SparseScan(d), ExactSums(d), []
    for smallest, largest in chunks:
        x = rows(rng, int(rng.integers(0, 9)), d, smallest, largest)
        if scan.add(block_of(x), sums):
            taken.append(x)
        else:
            assert (smallest, largest) == (-60, 60), "these have room in 64 bits"
    low, high = scan.hand_over(sums)
    x = np.concatenate([np.zeros((0, d), np.float32), *taken])
    assert exact(sums) == oracles.exact_column_sums(x)
    if taken:
        np.testing.assert_array_equal(low, np.full(d, x.min(initial=0)))
        np.testing.assert_array_equal(high, np.full(d, x.max(initial=0)))
    before = exact(sums)
    scan.hand_over(sums)
    assert exact(sums) == before, "nothing is handed over twice"


def test_only_the_rows_of_the_block_count():
    x = np.arange(1.0, 13.0, dtype=np.float32).reshape(4, 3)
    scan, sums = SparseScan(3), ExactSums(3)
    assert scan.add(block_of(x)[1:3], sums)
    low, high = scan.hand_over(sums)
    assert exact(sums) == oracles.exact_column_sums(x[1:3])
    assert (low[0], high[0]) == (0, 9)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_left(wrong):
    scan, sums = SparseScan(2), ExactSums(2)
    assert not scan.add(block_of(np.array([[1, wrong]], np.float32)), sums)
    low, high = scan.hand_over(sums)
    assert exact(sums) == [0, 0]
    assert (low > high).all(), "no row, no extent"


def test_sizes_that_64_bits_cannot_hold_are_left():
    scan, sums = SparseScan(1), ExactSums(1)
    assert scan.add(block_of(np.array([[1.5]], np.float32)), sums)
    assert not scan.add(block_of(np.array([[1e20], [1e-20]], np.float32)), sums)
    scan.hand_over(sums)
    assert exact(sums) == [Fraction(3, 2)]


def test_many_rows_are_handed_over_before_there_is_no_room(monkeypatch):
    x = np.full((8, 1), 2.0**20 + 0.125, np.float32)
    scan, sums = SparseScan(1), ExactSums(1)
    monkeypatch.setattr("largek_dask.kernels.exact.sparse_scan._MOST_ROWS", 20)
    for _ in range(5):
        assert scan.add(block_of(x), sums)
    assert sums.value > 0, "what no longer fitted is there already"
    scan.hand_over(sums)
    assert exact(sums) == [40 * Fraction(float(x[0, 0]))]


def test_zeros_that_are_stored_and_digits_that_are_all_ones():
    """Neither must be taken for a number of another size."""
    below = np.nextafter(np.float32(2), np.float32(0))
    block = block_of(np.array([[below, 1e10]], np.float32))
    scan, sums = SparseScan(2), ExactSums(2)
    with_zero = replace(block, data=np.array([below, 0], np.float32))
    for rows_now in (with_zero, block):
        assert scan.add(rows_now, sums)
    scan.hand_over(sums)
    assert exact(sums) == [2 * Fraction(float(below)), Fraction(float(np.float32(1e10)))]
