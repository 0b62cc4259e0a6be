"""Neighbours of centres against their definition."""

from __future__ import annotations

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.neighbours import nearest_centers
from largek_dask.kernels.tile import TILES
from tests import oracles_truncated as oracles

COMPILED = not numba.config.DISABLE_JIT


@settings(max_examples=100 if COMPILED else 20)
@given(
    st.sampled_from([1, 2, 5, 24, 25, 100, 300]),
    st.sampled_from([1, 2, 7, 8, 9, 20]),
    st.integers(1, 300),
    st.sampled_from(["f4", "f8"]),
    st.integers(0, 10**6),
    st.sampled_from(sorted(TILES)),
    st.sampled_from([0.0, 0.3, 1.5]),
    st.integers(1, 3),
)
def test_nearest_centers__are_sorted_by_distance(k, d, m, dtype, seed, tile, spread, threads):
    m = min(m, k)
    # quarters of small integers: exact distances, and ties, at spread 0 nothing else
    rng = np.random.default_rng(seed)
    centers = (np.round(rng.normal(size=(k, d)) * spread * 4) / 4).astype(dtype)
    with dask.config.set({"largek.kernels.tile": tile}):
        got = nearest_centers(pack_centers(centers, np.zeros(d)), m, threads)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, oracles.neighbours(centers, m))


def test_nearest_centers__wrong_m_is_named():
    packed = pack_centers(np.zeros((3, 2)), np.zeros(2))
    for m in (0, 4):
        with pytest.raises(ParameterError, match="between 1 and 3"):
            nearest_centers(packed, m)
