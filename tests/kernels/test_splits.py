"""Splits of clusters against what they promise."""

from __future__ import annotations

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.dense.splits import split_clusters
from largek_dask.kernels.tile import TILES
from tests.helpers.covering import slow
from tests.oracles import truncated as oracles

COMPILED = not numba.config.DISABLE_JIT


@settings(max_examples=80 if COMPILED else 20)
@given(
    st.sampled_from([0, 1, 2, 3, 30, 300]),
    st.sampled_from([1, 2, 8, 9, 19]),
    st.integers(1, 4),
    st.sampled_from(["f4", "f8", "u1"]),
    st.booleans(),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 10.0]),
)
def test_split_clusters__gain_what_they_promise(n, d, k, dtype, weighted, seed, spread):
    rng = np.random.default_rng(seed)
    x = np.abs(np.round(rng.normal(size=(n, d)) * spread * 8)).astype(dtype)
    labels = rng.integers(0, k, n).astype(np.int32)
    weight = rng.exponential(size=n) + 0.1 if weighted else np.ones(n)
    centers = np.zeros((k, d), "f8" if dtype == "f8" else "f4")
    for j in np.unique(labels):
        w = weight[labels == j, None]
        centers[j] = (x[labels == j] * w).sum(axis=0) / w.sum()
    order, starts = order_by_label(labels, k)
    clusters = np.arange(k)[::-1]
    gains, halves = split_clusters(
        x, order, starts, clusters, centers, weight if weighted else None, max_rows=1000
    )
    assert halves.dtype == centers.dtype
    assert (gains >= 0).all()
    for gain, pair, j in zip(gains, halves, clusters, strict=True):
        rows = labels == j
        own, w = x[rows].astype(float), weight[rows]
        if gain == 0:
            np.testing.assert_array_equal(pair, [centers[j], centers[j]])
            continue
        # both halves are means of rows, and the rows fall to them no worse than promised
        found = oracles.split_gain(own, w, pair)
        assert found >= gain * (1 - 1e-3) - 1e-3
        if len(own) == 2:
            np.testing.assert_allclose(sorted(pair.tolist()), sorted(own.tolist()), atol=1e-4)


def test_split_clusters__finds_two_blobs_and_looks_at_few_rows():
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(2, 30)) * 10
    x = (middles[np.arange(5000) % 2] + rng.normal(size=(5000, 30))).astype("f4")
    order, starts = order_by_label(np.zeros(5000, np.int32), 1)
    centers = x.mean(axis=0, keepdims=True)
    gains, halves = split_clusters(x, order, starts, np.array([0]), centers)
    swapped = (
        halves[0] if halves[0, 0, 0] * (middles[0, 0] - middles[1, 0]) > 0 else halves[0][::-1]
    )
    if np.abs(swapped - middles).max() > 1:
        swapped = swapped[::-1]
    np.testing.assert_allclose(swapped, middles, atol=0.5)
    assert gains[0] == pytest.approx(
        oracles.split_gain(x.astype("f8"), np.ones(5000), middles), rel=0.1
    )
    again = split_clusters(x, order, starts, np.array([0]), centers, n_threads=2)
    np.testing.assert_array_equal(again[1], halves)


def test_split_clusters__rows_whose_squares_vanish_do_no_harm():
    x = np.array([[1e-20], [-1e-20], [1e-20]], np.float32)
    order, starts = order_by_label(np.zeros(3, np.int32), 1)
    gains, halves = split_clusters(x, order, starts, np.array([0]), np.zeros((1, 1), "f4"))
    assert gains[0] < 1e-30
    assert np.abs(halves).max() <= 2e-20


@pytest.mark.parametrize("kind", ["f2", "i8", "F"])
def test_split_clusters__takes_rows_of_any_kind(kind):
    rng = np.random.default_rng(5)
    x = rng.integers(0, 30, (300, 10)).astype("f4" if kind != "i8" else "f8")
    order, starts = order_by_label(rng.integers(0, 3, 300).astype(np.int32), 3)
    centers = np.full((3, 10), 15.0, x.dtype)
    want = split_clusters(x, order, starts, np.arange(3), centers)
    given_rows = np.asfortranarray(x) if kind == "F" else x.astype(kind)
    got = split_clusters(given_rows, order, starts, np.arange(3), centers)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tiles", [["auto", "plain"], *slow([*TILES])], ids="-".join)
@pytest.mark.parametrize("d", [3, 18])
def test_split_clusters__have_the_same_bits_with_every_tile(d, tiles):
    rng = np.random.default_rng(d)
    x = rng.normal(size=(900, d)).astype("f4") + 3
    order, starts = order_by_label(rng.integers(0, 4, 900).astype(np.int32), 4)
    centers = np.full((4, d), 3, np.float32)
    results = []
    for tile in tiles:
        with dask.config.set({"largek.kernels.tile": tile}):
            results.append(split_clusters(x, order, starts, np.arange(4), centers))
    if COMPILED:
        for result in results[1:]:
            for got, want in zip(result, results[0], strict=True):
                np.testing.assert_array_equal(got, want)


def test_split_clusters__of_a_centre_beside_its_rows():
    x = np.array([[1.0], [2.0], [9.0], [10.0]], np.float32)
    order, starts = order_by_label(np.zeros(4, np.int32), 1)
    gains, halves = split_clusters(x, order, starts, np.array([0]), np.full((1, 1), -50, "f4"))
    np.testing.assert_allclose(np.sort(halves[0, :, 0]), [1.5, 9.5], rtol=1e-5)
    assert gains[0] == pytest.approx(64)


def test_split_clusters__rows_with_nan_are_not_split():
    x = np.array([[1.0], [np.nan], [9.0], [10.0]], np.float32)
    order, starts = order_by_label(np.zeros(4, np.int32), 1)
    gains, halves = split_clusters(x, order, starts, np.array([0]), np.full((1, 1), 3, "f4"))
    assert gains[0] == 0
    np.testing.assert_array_equal(halves, np.full((1, 2, 1), 3))
