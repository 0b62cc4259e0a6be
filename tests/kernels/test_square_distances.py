"""Emitted kernels of exact squared distances, one or four centres at a time."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from largek_dask.kernels.emit import rows as emitted
from largek_dask.kernels.jit import njit
from tests.helpers.covering import in_turns

COMPILED = not numba.config.DISABLE_JIT


def kernels():
    """The four kernels, callable from Python."""
    one, weighted = emitted.square_distance, emitted.weighted_square_distance
    four, four_weighted = emitted.four_square_distances, emitted.four_weighted_square_distances

    @njit
    def single(rows, at, centers, c, d):
        return one(rows, at, centers, c * d, d)

    @njit
    def single_weighted(rows, at, centers, weights, c, d):
        return weighted(rows, at, centers, c * d, weights, c * d, d)

    @njit
    def quad(rows, at, centers, names, d, out):
        four(rows, at, centers, names, d, out)

    @njit
    def quad_weighted(rows, at, centers, weights, names, d, out):
        four_weighted(rows, at, centers, weights, names, d, out)

    return single, single_weighted, quad, quad_weighted


def in_order(x, c, w):
    """Feature f in lane f % 8, each lane in order, the lanes pairwise."""
    lanes = np.zeros(8)
    for f in range(len(x)):
        difference = np.float64(x[f]) - np.float64(c[f])
        lanes[f % 8] += difference * difference * w[f]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


@pytest.mark.parametrize(("dtype", "d"), in_turns(["f4", "f8"], [1, 2, 7, 8, 9, 18, 24, 31, 64]))
def test_one_and_four_in_the_same_order(d, dtype):
    single, single_weighted, quad, quad_weighted = kernels()
    r = np.random.default_rng(d)
    k = 6
    # Memory around the row and after the last centre is not read.
    rows = np.full(3 * d + 8, np.nan, dtype)
    rows[d : 2 * d] = r.normal(size=d) * 100
    centers = (r.normal(size=(k, d)) * 100).astype(dtype)
    weights = np.exp(r.normal(size=(k, d)) * 3)
    flat, flat_weights = centers.ravel(), weights.ravel()
    names, ones = np.array([5, 0, 5, 3], np.int32), np.ones(d)
    plain, with_weights = np.empty(4), np.empty(4)
    quad(rows, d, flat, names, d, plain)
    quad_weighted(rows, d, flat, flat_weights, names, d, with_weights)
    for q, c in enumerate(names.tolist()):
        assert plain[q] == single(rows, d, flat, c, d)
        assert with_weights[q] == single_weighted(rows, d, flat, flat_weights, c, d)
        for found, w in ((plain[q], ones), (with_weights[q], weights[c])):
            expected = in_order(rows[d : 2 * d], centers[c], w)
            if COMPILED:
                assert found == expected
            else:  # numpy adds in an order of its own
                assert found == pytest.approx(expected, rel=1e-14)
