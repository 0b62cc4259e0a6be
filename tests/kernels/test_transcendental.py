"""Exponentials and logarithms against decimal numbers of 45 digits."""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from largek_dask.kernels.exact.transcendental import exp, log
from tests.oracles import mixtures as oracles

SMALLEST = 2.0**-1022  # the smallest number that is not subnormal
LEAST = -708.396418532264  # its logarithm, rounded up


def errors(found, expected):
    """Errors in units of the last place of the result."""
    with localcontext(prec=45, Emin=-999999, Emax=999999):
        return [
            float(abs(Decimal(f) - e) / Decimal(float(np.spacing(abs(float(e))))))
            for f, e in zip(found.tolist(), expected, strict=True)
        ]


def spread_out(low, high, n):
    """Numbers on a regular grid, none of them round."""
    return low + (high - low) * ((np.arange(n) + 0.37) / n)


@given(st.floats(LEAST, 0.0))
@example(0.0)
@example(-0.0)
@example(LEAST)
@example(-5e-324)
@example(-np.log(2) / 2)
def test_exponential_is_right_to_the_last_place(t):
    assert errors(exp(np.array([t])), [oracles.exp(t)])[0] < 1


@given(st.floats(5e-324, np.finfo(float).max))
@example(1.0)
@example(1 - 2.0**-53)
@example(1 + 2.0**-52)
@example(5e-324)
@example(SMALLEST)
@example(np.nextafter(SMALLEST, 0))
@example(np.sqrt(0.5))
@example(np.nextafter(np.sqrt(0.5), 0))
def test_logarithm_is_right_to_the_last_place(v):
    found = log(np.array([v]))
    if v == 1.0:
        assert found.tolist() == [0.0]
    else:
        assert errors(found, [oracles.log(v)])[0] < 1


def test_no_error_reaches_one_unit_of_the_last_place():
    t = np.r_[spread_out(LEAST, 0, 700), spread_out(-0.7, 0, 300), -(2.0 ** spread_out(-80, 0, 99))]
    # odd multiples of log(2) / 2, where the reduced argument is largest
    t = np.r_[t, -0.34657359027997264 * (2 * np.arange(1, 1021, 7) + 1)]
    assert max(errors(exp(t), [oracles.exp(v) for v in t.tolist()])) < 0.9
    v = np.r_[2.0 ** spread_out(-1074, 1023, 700), spread_out(0.5, 2, 400)]
    v = np.r_[v, 1 + 2.0 ** spread_out(-52, -3, 99), 1 - 2.0 ** spread_out(-53, -3, 99)]
    assert (v < SMALLEST).any()
    assert max(errors(log(v), [oracles.log(t) for t in v.tolist()])) < 0.9


def test_what_is_below_the_ordinary_numbers_becomes_0():
    t = np.array([np.nextafter(LEAST, -1e9), -708.4, -745.0, -746.0, -1e300, -np.inf])
    assert exp(t).tolist() == [0.0] * len(t)
    assert SMALLEST <= exp(np.array([LEAST]))[0] < SMALLEST * (1 + 1e-12)
    assert exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]


def test_the_ends_of_the_logarithm():
    assert log(np.array([0.0, -0.0, np.inf, 1.0])).tolist() == [-np.inf, -np.inf, np.inf, 0.0]
    assert np.isnan(log(np.array([-1.0, -np.inf, -5e-324, np.nan]))).all()
    assert np.isnan(exp(np.array([np.nan]))).all()


@pytest.mark.parametrize("function", [exp, log])
def test_a_number_has_the_same_bits_wherever_it_stands(function):
    values = 2.0 ** spread_out(-40, 9, 53) * (-1 if function is exp else 1)
    whole = function(values)
    for i, v in enumerate(values):
        assert function(values[i:])[:3].tobytes() == whole[i : i + 3].tobytes()
        assert function(np.array([v])).tobytes() == whole[i : i + 1].tobytes()


@pytest.mark.parametrize("function", [exp, log])
def test_any_shape_is_taken_and_left_as_it_is(function):
    values = -spread_out(0, 3, 24).reshape(4, 6) * (1 if function is exp else -1)
    kept = values.copy()
    for table in (values, values.T, values[::2, 1:], values[:0], values[1, 2]):
        found = function(table)
        assert found.shape == table.shape
        expected = [function(np.array([v]))[0] for v in table.reshape(-1)]
        assert found.reshape(-1).tolist() == expected
    assert values.tobytes() == kept.tobytes()


def test_bits_are_the_same_everywhere():
    # with and without the compiler, at every vector width
    t = np.r_[np.ldexp(-1.37, np.arange(-60, 10)), -np.arange(4000) * 0.177]
    v = np.r_[np.ldexp(1.37, np.arange(-1074, 1023)), 0.003 + np.arange(4000) * 0.00107]
    digests = [hashlib.sha256(f.tobytes()).hexdigest()[:16] for f in (exp(t), log(v))]
    assert digests == ["0ecb50fdd7e3a77a", "d023a88c99532304"]
