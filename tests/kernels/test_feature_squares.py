"""Sums of squares: exact ones of each feature, and those of rows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from largek_dask.kernels.exact.squares import FeatureSquares, row_squares


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


def squares_one_by_one(x, shift):
    """Squares of rows, added to eight partial sums in turn."""
    out, whole = [], x.shape[1] // 8 * 8
    for squares in (x.astype(np.float64) - shift) ** 2:
        lanes = [0.0] * 8
        for f, square in enumerate(squares.tolist()):
            lanes[f % 8 if f < whole else f - whole] += square
        a, b, c, d = (lanes[i] + lanes[i + 1] for i in range(0, 8, 2))
        out.append((a + b) + (c + d))
    return out


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i8", "?"])
@pytest.mark.parametrize("d", [1, 7, 8, 9, 16, 101])
def test_squares_of_rows(dtype, d):
    r = np.random.default_rng(d)
    x = (50 * r.normal(size=(13, d))).astype(dtype)
    shift = r.normal(size=d).astype("f4")
    expected, rows = squares_one_by_one(x, shift), np.array([3, 1, 1, 12])
    for table in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        assert row_squares(table, shift).tolist() == expected
        assert row_squares(table, shift, rows).tolist() == [expected[i] for i in rows]
