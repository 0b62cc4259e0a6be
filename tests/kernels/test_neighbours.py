"""Neighbours of centres against their definition."""

from __future__ import annotations

import itertools

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds import neighbours
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import TILES
from tests.helpers.covering import slow
from tests.oracles import truncated as oracles

COMPILED = not numba.config.DISABLE_JIT


# Kernels are compiled for the tile, the dtype, and up to 8 features for their number.
@pytest.mark.parametrize(
    "kernels",
    [
        [*((d, "f4", "auto") for d in (2, 9, 20)), (9, "f8", "plain")],
        *slow([*itertools.product([1, 2, 7, 8, 9, 20], ["f4", "f8"], TILES)]),
    ],
    ids=["few kernels", "all kernels"],
)
@settings(max_examples=50 if COMPILED else 20)
@given(
    st.sampled_from([1, 2, 5, 24, 25, 100, *([300] if COMPILED else [])]),
    st.integers(1, 300),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3, 1.5]),
    st.integers(1, 3),
    st.data(),
)
def test_nearest_centers__are_sorted_by_distance(kernels, k, m, seed, spread, threads, data):
    m, (d, dtype, tile) = min(m, k), data.draw(st.sampled_from(kernels))
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


@pytest.mark.parametrize("m", [1, 3, 20])
def test_nearest_centers__by_groups_are_the_same_where_all_groups_are_near(m, monkeypatch):
    monkeypatch.setattr(neighbours, "EXACT", 50)
    centers = np.random.default_rng(m).normal(size=(120, 5)).astype("f4")
    packed = pack_centers(centers, centers.mean(axis=0))
    got = nearest_centers(packed, m, 2)
    np.testing.assert_array_equal(got, oracles.neighbours(centers, m))
    np.testing.assert_array_equal(got, nearest_centers(packed, m))


@pytest.mark.skipif(not COMPILED, reason="many centres")
def test_nearest_centers__of_many_centres_are_mostly_found(monkeypatch):
    centers = np.random.default_rng(0).normal(size=(4000, 12)).astype("f4")
    packed = pack_centers(centers, centers.mean(axis=0))
    exact = nearest_centers(packed, 8)
    monkeypatch.setattr(neighbours, "EXACT", 1000)
    monkeypatch.setattr(neighbours, "_LEAST", 1000)
    found = nearest_centers(packed, 8)
    np.testing.assert_array_equal(found[:, 0], np.arange(4000))
    hits = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    # normal rows of 12 features are the worst case: groups say little about which are near
    assert np.mean(hits) > 0.7 * 8


def test_nearest_centers__where_the_sample_misleads_all_are_looked_at():
    centers = np.zeros((160, 2), np.float32)
    centers[np.arange(160) % 8 > 0] = np.arange(140)[:, None] + 50
    got = nearest_centers(pack_centers(centers, np.zeros(2)), 24)
    np.testing.assert_array_equal(got, oracles.neighbours(centers, 24))


def test_nearest_centers__too_small_a_sample_is_widened():
    """Fewer than m of every eighth centre are near, and the others are 4 % farther away."""
    centers = np.zeros((192, 32))
    at = np.arange(192)
    centers[at, at // 8] = 1.0
    centers[at, 24 + at % 8] = 0.2
    got = nearest_centers(pack_centers(centers, np.zeros(32)), 36)
    np.testing.assert_array_equal(got, oracles.neighbours(centers, 36))


def test_nearest_centers__nan_comes_last():
    centers = np.array([[0.0], [np.nan], [2.0], [5.0]])
    got = nearest_centers(pack_centers(centers, np.zeros(1)), 4)
    np.testing.assert_array_equal(got[[0, 2, 3]], [[0, 2, 3, 1], [2, 0, 3, 1], [3, 2, 0, 1]])


@pytest.mark.parametrize("m", [1, 5, 64])
def test_nearest_centers__numpy_and_the_kernel_sort_alike(m, monkeypatch):
    centers = np.round(np.random.default_rng(m).normal(size=(64, 2)) * 2).astype("f4")
    centers[5], centers[9] = np.nan, -0.0
    packed = pack_centers(centers, np.zeros(2))
    by_numpy = nearest_centers(packed, m)
    monkeypatch.setattr(neighbours, "_SORTED", 0)
    np.testing.assert_array_equal(nearest_centers(packed, m), by_numpy)


@pytest.mark.parametrize("n", [1, 3, 500, 4099])
@pytest.mark.parametrize("kind", ["ties", "signed", "infinite", "wide"])
def test_rank__sorts_ties_by_place(kind, n):
    r = np.random.default_rng(n)
    values = r.integers(-2, 40, n).astype(float)
    if kind == "signed":
        values *= r.choice([-0.0, 0.0, 1.0, -1.0], n)
    if kind == "infinite":
        values[r.random(n) < 0.3] = np.inf
        values[n // 2] = -np.inf
    if kind == "wide":
        values = r.choice([-1, 1], n) * 10.0 ** r.uniform(-320, 300, n)
    rank = neighbours._rank  # kernels alone can call it

    @njit
    def entered(values, n, counts, order, other):
        return rank(values, n, counts, order, other)

    spare = np.empty(256, np.int64), np.empty(n, np.int32), np.empty(n, np.int32)
    found = entered(values.copy(), n, *spare)
    np.testing.assert_array_equal(found, np.argsort(values, kind="stable"))
