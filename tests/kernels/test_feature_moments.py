"""Means and variances of features from exact sums."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from largek_dask.kernels.exact.squares import FeatureMoments


def found_by(x, weight=None, order=(slice(None),)):
    parts = []
    for at in order:
        parts.append(FeatureMoments(x.shape[1]))
        parts[-1].add(x[at], None if weight is None else weight[at])
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole.finish()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_those_of_fractions(dtype, weighted):
    r = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        x = (r.normal(size=(200, 4)) * [1e-3, 1, 30, 0.1] + [0, 100, 1e4, 0.1]).astype(dtype)
    else:
        info = np.iinfo(dtype)
        x = r.integers(max(info.min, -(2**50)), min(info.max, 2**50), (200, 4)).astype(dtype)
    x[:, 3] = x[0, 3]  # constant
    weight = r.random(200) * (r.random(200) < 0.7) if weighted else None
    weights = np.ones(200) if weight is None else weight
    orders = [(slice(None),), tuple(slice(i, None, 3) for i in (2, 0, 1))]
    (mean, variance, size), again = (found_by(x, weight, order) for order in orders)
    for one, other in zip((mean, variance, size), again, strict=True):
        np.testing.assert_array_equal(one, other)
    total = sum(map(Fraction, weights.tolist()))
    for f in range(4):
        values = [Fraction(float(v)) for v in x[:, f]]
        pairs = list(zip(values, map(Fraction, weights.tolist()), strict=True))
        exact = sum(v * w for v, w in pairs) / total
        assert mean[f] == float(exact)
        # The squares of float64 values are exact, too.
        squares = sum(w * (v - exact) ** 2 for v, w in pairs) / total
        assert variance[f] == pytest.approx(float(squares), rel=1e-15, abs=0)
    assert variance[3] == 0
    present = weights > 0
    np.testing.assert_array_equal(size, np.abs(x[present].astype(float)).max(axis=0))


def test_a_weight_of_three_is_three_rows():
    x = np.random.default_rng(1).normal(size=(50, 3)) + 1e5
    weight = np.arange(50.0) % 4
    weighted, repeated = found_by(x, weight), found_by(np.repeat(x, weight.astype(int), axis=0))
    for one, other in zip(weighted, repeated, strict=True):
        np.testing.assert_array_equal(one, other)


def test_degenerate_tables():
    x = np.array([[1e200, 1e-200, 0.1, 5], [1, 3e-200, 0.1, 7]])
    mean, variance, size = found_by(x)
    assert np.isnan(variance[0])
    np.testing.assert_array_equal(variance[1:], [0, 0, 1])
    assert (size[0], mean[2]) == (1e200, 0.1)
    assert np.isnan(found_by(x[:, :1] / 1e60, np.array([1e200, 1.0]))[1])
    for nothing in (found_by(x, np.zeros(2)), found_by(x[:0])):
        np.testing.assert_array_equal(nothing, np.zeros((3, 4)))
    np.testing.assert_array_equal(found_by(x[:1, 1:])[1], 0)
