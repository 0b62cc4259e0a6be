"""Emitted kernels of the smallest scores of every lane, against their plain twins."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.emit import ranks as emitted
from largek_dask.kernels.emit import standins as twins
from largek_dask.kernels.jit import njit


def kernels(width):
    """The four kernels for panels of ``width`` rows, callable from Python."""
    insert, lowest = emitted.insert_ranked, emitted.lane_minima
    within, lowest_bit = emitted.lanes_within, emitted.lowest_bit

    @njit
    def keep(values, at, ranks, best, own):
        insert(width, values, at, ranks, best, own)

    @njit
    def least(values, at, count, out, out_at):
        lowest(width, values, at, count, out, out_at)

    @njit
    def inside(values, at, limits):
        return within(width, values, at, limits)

    @njit
    def first(mask):
        return lowest_bit(mask)

    return keep, least, inside, first


@pytest.mark.parametrize(("width", "dtype"), [(48, "f4"), (16, "f4"), (8, "f4"), (24, "f8")])
def test_emitted_kernels_and_their_twins(width, dtype):
    keep, least, inside, first = kernels(width)
    r = np.random.default_rng(width)
    scores = r.integers(0, 9, (7, width)).astype(dtype)
    scores[r.random(scores.shape) < 0.1] = np.nan
    scores[r.random(scores.shape) < 0.1] = np.inf
    assert np.isnan(scores).any()
    flat = np.concatenate([np.full(3, -1, dtype), scores.ravel()])
    best = [np.full(5 + 4 * width, np.inf, dtype) for _ in range(2)]
    for i in range(7):
        keep(flat, 3 + i * width, 4, best[0], 5)
        twins.insert_ranked(width, flat, 3 + i * width, 4, best[1], 5)
        np.testing.assert_array_equal(best[0], best[1])
    np.testing.assert_array_equal(
        best[0][5:].reshape(4, width), np.sort(np.nan_to_num(scores, nan=np.inf), axis=0)[:4]
    )
    for count in (0, 1, 7):
        out = [np.zeros(width + 2, dtype) for _ in range(2)]
        least(flat, 3, count, out[0], 2)
        twins.lane_minima(width, flat, 3, count, out[1], 2)
        np.testing.assert_array_equal(out[0], out[1])
    limits = scores[3].copy()
    mask = int(inside(flat, 3, limits))
    assert mask == twins.lanes_within(width, flat, 3, limits)
    assert mask == sum(1 << q for q in range(width) if not scores[0, q] > limits[q])
    for bit in (0, 1, width - 1, 63):
        assert first(np.uint64(1 << bit)) == bit == twins.lowest_bit(1 << bit)
        assert first(np.uint64((1 << bit) | (1 << 63))) == bit
