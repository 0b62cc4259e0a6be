"""Exact sums of the squares of each feature."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from largek_dask.kernels.exact.squares import FeatureSquares


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("weighted", [False, True])
def test_squares_are_those_of_fractions(dtype, weighted):
    r = np.random.default_rng(0)
    x = (
        r.normal(size=(300, 3)) * [1e-8, 1, 1e8] if dtype != "uint8" else r.integers(0, 9, (300, 3))
    ).astype(dtype)
    weight = r.random(300) * (r.random(300) < 0.7) if weighted else None
    if weight is not None:
        x = x.copy()
        x[weight == 0] = x.max()  # rows that are absent
    shift = x.mean(axis=0).astype(dtype)
    whole, parts = FeatureSquares(shift), [FeatureSquares(shift) for _ in range(3)]
    whole.add(x, weight)
    for i, part in enumerate(parts):
        part.add(x[i::3], None if weight is None else weight[i::3])
    merged = parts[0].merge(parts[2]).merge(parts[1])
    present = np.ones(300, bool) if weight is None else weight > 0
    squares = np.square(x.astype(float) - shift.astype(float))
    for found in (whole, merged):
        np.testing.assert_array_equal(found.largest, squares[present].max(axis=0))
        for f in range(3):
            terms = zip(squares[:, f], np.ones(300) if weight is None else weight, strict=True)
            total = sum(Fraction(float(s)) * Fraction(float(w)) for s, w in terms)
            assert found.sums.values[f] == float(total)
