from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact.numbers import ExactSums, two_product_error
from tests.oracles import exact_sums

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.one_of(
    st.just(0.0), st.floats(1e-60, 1e60), st.floats(-1e60, -1e-60), st.integers(-9, 9).map(float)
)
cells = st.integers(-1, 2)


def arrays(rows):
    values, weights, where = (list(c) for c in zip(*rows, strict=True)) if rows else ([], [], [])
    return np.array(values, float), np.array(weights, float), np.array(where, np.int32)


def rounded(fractions):
    out = []
    for fraction in fractions:
        try:
            out.append(float(fraction))
        except OverflowError:
            out.append(float("inf") if fraction > 0 else float("-inf"))
    return out


@given(st.lists(st.tuples(finite, st.just(1.0), cells)))
def test_sums_are_exact_over_the_whole_range(rows):
    values, _, where = arrays(rows)
    sums = ExactSums(3)
    sums.add(values, None, where)
    expected = exact_sums(values, np.ones(len(values)), where, 3)
    assert sums.values.tolist() == rounded(expected)
    integers, exponent = sums.integers()
    assert [n * Fraction(2) ** exponent for n in integers] == expected


@given(st.lists(st.tuples(moderate, moderate, cells)))
def test_products_with_weights_are_exact(rows):
    sums = ExactSums(3)
    sums.add(*arrays(rows))
    assert sums.values.tolist() == rounded(exact_sums(*arrays(rows), 3))


@given(st.lists(st.tuples(moderate, moderate)), st.booleans())
def test_one_cell_is_added_up_together(rows, weighted):
    """The result is that of adding each value to its cell."""
    values, weights = (np.array([row[i] for row in rows], float) for i in (0, 1))
    given_ = weights if weighted else None
    together, each = ExactSums(), ExactSums()
    together.add(values, given_)
    each.add(values, given_, np.zeros(len(rows), np.int32))
    assert together.value == each.value
    expected = exact_sums(values, weights if weighted else np.ones(len(rows)), [0] * len(rows), 1)
    assert together.values.tolist() == rounded(expected)
    together.add(-values, given_)
    assert together.value == 0


def test_more_values_than_are_added_up_together():
    rng = np.random.default_rng(0)
    n = 2 * 64**2 + 70
    values = rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n)
    weights = rng.integers(0, 3, n) * rng.random(n)
    values[[3, 5_000]], weights[[3, 5_000]] = np.inf, 0.0  # absent
    sums = ExactSums()
    sums.add(values, weights)
    present = weights > 0
    expected = exact_sums(values[present], weights[present], [0] * int(present.sum()), 1)
    assert sums.values.tolist() == rounded(expected)
    values[-1], weights[-1] = np.nan, 1.0
    sums.add(values, weights)
    assert sums.n_not_finite == 1


@given(st.lists(st.tuples(moderate, moderate, cells)), st.randoms(), st.integers(1, 4))
def test_no_order_and_no_chunking_changes_a_bit(rows, random, step):
    whole = ExactSums(3)
    whole.add(*arrays(rows))
    shuffled = random.sample(rows, len(rows))
    merged = ExactSums(3)
    for begin in range(0, len(rows), step):
        part = ExactSums(3)
        part.add(*arrays(shuffled[begin : begin + step]))
        merged = pickle.loads(pickle.dumps(part)).merge(merged)
    assert merged.values.tolist() == whole.values.tolist()
    assert merged.value == whole.value


@given(
    st.lists(st.tuples(moderate, moderate, cells)), st.lists(st.tuples(moderate, moderate, cells))
)
def test_adding_the_opposite_undoes_an_addition(rows, others):
    sums, expected = ExactSums(3), ExactSums(3)
    values, weights, where = arrays(others)
    sums.add(*arrays(rows))
    sums.add(-values, weights, where)
    sums.add(values, weights, where)
    expected.add(*arrays(rows))
    assert sums.values.tolist() == expected.values.tolist()


def test_every_place_of_the_grid():
    for power in [*range(-1074, -1018), *range(-40, 40), *range(1015, 1024)]:
        values = np.ldexp(np.array([1.0, 1 - 2.0**-53, -1.5]), power)
        sums = ExactSums(3)
        sums.add(values, None, np.arange(3))
        assert sums.values.tolist() == values.tolist(), power
        assert sums.value == float(sum(map(Fraction, values.tolist()))), power


def test_empty_cells_are_zero():
    sums = ExactSums(2)
    assert sums.values.tolist() == [0.0, 0.0]
    assert sums.value == 0.0
    assert sums.nbytes == 0
    sums.add(np.zeros(3))
    assert sums.merge(ExactSums(2)).values.tolist() == [0.0, 0.0]
    assert sums.nbytes > 0


def test_values_that_are_not_finite_make_sums_nan():
    sums = ExactSums(2)
    values = np.array([1.0, np.inf, np.nan])
    sums.add(values)
    assert np.isnan(sums.values).all()
    assert np.isnan(sums.value)
    assert np.isnan(ExactSums(2).merge(sums).value)
    absent = ExactSums(2)
    absent.add(values, np.array([1.0, 0.0, 0.0]))
    assert absent.values.tolist() == [1.0, 0.0]


@given(
    st.lists(st.tuples(finite, st.just(1.0), cells)),
    st.one_of(st.integers(1, 2**60), st.floats(2.0**-30, 2.0**30).map(Fraction)),
)
def test_quotients_are_rounded_once(rows, divisor):
    values, _, where = arrays(rows)
    sums = ExactSums(3)
    sums.add(values / 2**40, None, where)
    exact = exact_sums(values / 2**40, np.ones(len(values)), where, 3)
    assert sums.over(Fraction(divisor)).tolist() == rounded([v / divisor for v in exact])


def test_too_large_a_sum_is_infinite():
    sums = ExactSums(2)
    sums.add(np.array([1.7e308, 1.7e308, -1.7e308, -1.7e308]), None, np.array([0, 0, 1, 1]))
    assert sums.values.tolist() == [np.inf, -np.inf]
    assert sums.value == 0.0


def test_carries_are_taken_before_a_limb_is_full(monkeypatch):
    monkeypatch.setattr("largek_dask.kernels.exact.numbers._MAX_PENDING", 4)
    sums = ExactSums()
    largest = float(2**53 - 1)
    for _ in range(20):
        sums.add(np.array([largest, -1.0]))
        assert sums._limbs.max() <= 8 << 32
    assert sums.value == float(20 * (2**53 - 2))


@given(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=2), st.integers(0, 60))
def test_units_are_added_as_they_are(counts, limb):
    sums = ExactSums(2)
    sums.add(np.array([1.0]))
    sums.add_units(limb, np.array(counts))
    sums.add_units(limb, np.array(counts))
    integers, exponent = sums.integers()
    unit = Fraction(2) ** (32 * limb - 1088)
    expected = [2 * c * unit + one for c, one in zip(counts, (1, 0), strict=True)]
    assert [n * Fraction(2) ** exponent for n in integers] == expected


@given(moderate, moderate)
def test_error_of_a_product_is_exact(a, b):
    a, b = np.float64(a), np.float64(b)
    error = two_product_error(a, b, a * b)
    assert Fraction(float(a)) * Fraction(float(b)) == Fraction(float(a * b)) + Fraction(
        float(error)
    )


@pytest.mark.parametrize(
    ("a", "b"), [(1e200, 1e200), (1e-200, 1e-200), (1e300, 1e-300), (0.0, 3.0)]
)
def test_error_of_a_product_out_of_range_is_left_out(a, b):
    with np.errstate(over="ignore"):
        product = np.float64(a) * np.float64(b)
    assert two_product_error(np.float64(a), np.float64(b), product) == 0.0
