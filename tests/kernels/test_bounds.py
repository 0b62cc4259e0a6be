"""Bounds against true distances, and the labels they give against the dense kernels."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds import bounds, group_search
from largek_dask.kernels.bounds.groups import BoundedCenters, Drift, Margins, group_centers
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.tile import TILES
from tests import oracles
from tests.helpers.covering import every_two, in_turns, slow

COMPILED = not numba.config.DISABLE_JIT

KINDS = ["normal", "grid", "equal rows", "far", "outlier", "small", "tiny"]
if COMPILED:  # numpy warns if stand-ins approach the largest number
    KINDS += ["large", "huge"]
MOVES = ["still", "jitter", "jump", "swap", "collapse"]


def rows_of(kind, n, d, rng):
    x = rng.normal(size=(n, d))
    if kind == "grid":
        return rng.integers(0, 3, size=(n, d)).astype(float)
    if kind == "equal rows":
        return np.repeat(x[:1], n, axis=0)
    if kind == "far":
        return 1e6 + rng.choice([-1.0, 1.0], size=(n, d))
    if kind == "outlier" and n:
        x[-1] = 1e6
    scale = {"small": 1e-12, "tiny": 1e-23, "large": 1e15, "huge": 1e18}.get(kind, 1.0)
    return x * scale


def moved(centers, move, rng):
    centers = centers.copy()
    j = rng.integers(len(centers))
    scale = np.abs(centers).max() * 10.0 ** rng.integers(-6, 0)
    if move == "jitter":
        centers += rng.normal(size=centers.shape) * scale
    if move == "jump":
        centers[j] = centers[rng.integers(len(centers))] + scale
    if move == "swap":
        centers[[j, 0]] = centers[[0, j]]
    if move == "collapse":  # an exact tie for all rows
        centers[j] = centers[rng.integers(len(centers))]
    return centers


def space(values, packed):
    """Rows or centres where the kernels compute with them."""
    values = values.astype(packed.dtype)
    return values if packed.direct else values - packed.shift


def check(x, bounded, labels, upper, lower):
    packed, drift = bounded.packed, bounded.drift
    np.testing.assert_array_equal(labels, nearest(x, packed))
    assert oracles.bounds_hold(
        space(x, packed),
        space(packed.centers, packed),
        labels,
        upper.astype(np.float64) + drift.centers[labels],
        lower.astype(np.float64) - drift.groups,
        bounded.groups.of,
    )


# Kernels are compiled for the tile, the dtype, and up to 8 features for their number.
@pytest.mark.parametrize(
    "kernels",
    [
        [
            *((d, np.float32, "auto") for d in (2, 9, 18, 64)),
            (18, np.float64, "auto"),
            (18, np.float32, "plain"),
        ],
        *slow(every_two([1, 2, 8, 9, 18, 64], [np.float32, np.float64], sorted(TILES))),
    ],
    ids=["few kernels", "all kernels"],
)
@settings(max_examples=60 if COMPILED else 25)
@given(
    n=st.sampled_from([0, 1, 2, 25, 90]),
    k=st.sampled_from([1, 2, 5, 16, 40]),
    n_groups=st.sampled_from([1, 2, 5, 40]),
    kind=st.sampled_from(KINDS),
    moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=5),
    seed=st.integers(0, 2**20),
    data=st.data(),
)
def test_bounds_hold_and_labels_are_the_dense_ones(
    kernels, n, k, n_groups, kind, moves, seed, data
):
    d, dtype, tile = data.draw(st.sampled_from(kernels))
    rng = np.random.default_rng(seed)
    x = rows_of(kind, max(n, k), d, rng).astype(dtype)
    centers, shift = x[rng.choice(len(x), k, replace=False)], x.mean(axis=0).astype(dtype)
    x = x[:n]
    with dask.config.set({"largek.kernels.tile": tile}):
        packed = pack_centers(centers, shift)
        groups = group_centers(centers, shift, n_groups)
        bounded = BoundedCenters(packed, groups, Drift.zero(groups))
        labels, upper, lower, evaluated = bounds.start(x, bounded)
        assert evaluated == n * k
        check(x, bounded, labels, upper, lower)
        for move in moves:
            centers = moved(centers, move, rng).astype(dtype)
            after = pack_centers(centers, shift)
            drift = bounded.drift.advance(packed, after, groups)
            packed, bounded = after, BoundedCenters(after, groups, drift)
            evaluated = bounds.assign(x, bounded, labels, upper, lower)
            assert 0 <= evaluated <= n * (k + 1)
            check(x, bounded, labels, upper, lower)


@pytest.mark.parametrize(
    ("dtype", "d"), in_turns([np.uint8, np.int16, np.float16, np.float64], [12, 2])
)
def test_rows_as_they_are_stored(dtype, d):
    rng = np.random.default_rng(5)
    x = rng.integers(0, 100, size=(300, d)).astype(dtype)
    centers, shift = x[:30].astype(np.float32), np.full(d, 50, np.float32)
    packed, groups = pack_centers(centers, shift), group_centers(centers, shift, 4)
    bounded = BoundedCenters(packed, groups, Drift.zero(groups))
    labels, upper, lower, _ = bounds.start(x, bounded)
    after = pack_centers(centers + rng.normal(size=centers.shape).astype(np.float32), shift)
    bounded = BoundedCenters(after, groups, bounded.drift.advance(packed, after, groups))
    bounds.assign(x, bounded, labels, upper, lower)
    check(x, bounded, labels, upper, lower)


def blobs(n=600, d=12, k=48, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, d)).astype(np.float32) * 9
    x = (centers[rng.integers(k, size=n)] + rng.normal(size=(n, d))).astype(np.float32)
    return x, centers, x.mean(axis=0)


def walk(n_groups, n_steps=4, **options):
    """Shares of distances computed for small steps of centres, and the final state."""
    x, centers, shift = blobs(**options)
    rng = np.random.default_rng(1)
    packed, groups = pack_centers(centers, shift), group_centers(centers, shift, n_groups)
    bounded = BoundedCenters(packed, groups, Drift.zero(groups))
    state = bounds.start(x, bounded)[:3]
    counts = []
    for _ in range(n_steps):
        centers = centers + 0.5 * rng.normal(size=centers.shape).astype(np.float32)
        after = pack_centers(centers, shift)
        drift = bounded.drift.advance(packed, after, groups)
        packed, bounded = after, BoundedCenters(after, groups, drift)
        counts.append(bounds.assign(x, bounded, *state))
        check(x, bounded, *state)
    return np.array(counts) / (len(x) * len(centers)), state


@pytest.mark.parametrize("n_groups", [1, 4, 48])
def test_distances_are_skipped(n_groups):
    shares, _ = walk(n_groups)
    assert 0 < shares.max() < 0.3


@pytest.mark.parametrize("tiles", [["auto", "plain"], *slow([*TILES])], ids="-".join)
def test_counts_and_bounds_depend_on_no_vector_width(tiles):
    results = []
    for tile in tiles:
        with dask.config.set({"largek.kernels.tile": tile}):
            shares, state = walk(4, seed=3)
        results.append((shares.tolist(), *(part.tobytes() for part in state)))
    assert results[1:] == results[:-1]


def test_blocks_change_nothing(monkeypatch):
    whole = walk(2, d=20)
    monkeypatch.setattr(bounds, "_BLOCK_BYTES", 64 * 20 * 4)
    monkeypatch.setattr(group_search, "_NEAR_BYTES", 1)
    cut = walk(2, d=20)
    for a, b in zip(whole[1], cut[1], strict=True):
        assert a.tobytes() == b.tobytes()


def test_nothing_is_certain_near_the_largest_number():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(60, 12)).clip(-3, 3) * 8e152
    centers, shift = x[:10].copy(), np.zeros(12)
    packed, groups = pack_centers(centers, shift), group_centers(centers / 1e152, shift, 3)
    bounded = BoundedCenters(packed, groups, Drift.zero(groups))
    state = bounds.start(x, bounded)[:3]
    check(x, bounded, *state)
    bounds.assign(x, bounded, *state)
    check(x, bounded, *state)


def test_centers_that_stand_still_cost_nothing():
    x, centers, shift = blobs()
    packed, groups = pack_centers(centers, shift), group_centers(centers, shift, 4)
    bounded = BoundedCenters(packed, groups, Drift.zero(groups))
    labels, upper, lower, _ = bounds.start(x, bounded)
    before = labels.tobytes(), upper.tobytes(), lower.tobytes()
    drift = bounded.drift.advance(packed, packed, groups)
    assert not drift.centers.any()
    assert not drift.groups.any()
    assert bounds.assign(x, BoundedCenters(packed, groups, drift), labels, upper, lower) == 0
    assert (labels.tobytes(), upper.tobytes(), lower.tobytes()) == before


@given(
    k=st.integers(1, 60),
    n_groups=st.integers(1, 70),
    distinct=st.integers(1, 60),
    d=st.sampled_from([1, 2, 12]),
    seed=st.integers(0, 999),
)
def test_groups_are_a_partition(k, n_groups, distinct, d, seed):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(distinct, d))[rng.integers(distinct, size=k)].astype(np.float32)
    groups = group_centers(centers, np.zeros(d, np.float32), n_groups)
    assert 1 <= groups.n_groups <= min(n_groups, k)
    np.testing.assert_array_equal(np.sort(groups.lists), np.arange(k))
    for g in range(groups.n_groups):
        members = groups.lists[groups.offsets[g] : groups.offsets[g + 1]]
        np.testing.assert_array_equal(members, np.flatnonzero(groups.of == g))
        assert len(members)


def test_groups_lie_together():
    rng = np.random.default_rng(0)
    places = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    centers = np.repeat(places, 10, axis=0) + rng.normal(size=(30, 2))
    groups = group_centers(centers, np.zeros(2), 3)
    assert len({tuple(sorted(set(groups.of[i * 10 : i * 10 + 10]))) for i in range(3)}) == 3


def test_groups_of_nothing_are_refused():
    with pytest.raises(ParameterError, match="n_groups must be at least 1, got 0"):
        group_centers(np.zeros((3, 2)), np.zeros(2), 0)


@given(
    d=st.sampled_from([1, 9, 70]),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e8]),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 999),
)
def test_drift_is_never_below_the_way(d, scale, dtype, seed):
    rng = np.random.default_rng(seed)
    centers, shift = rng.normal(size=(20, d)).astype(dtype), np.full(d, 0.1, dtype)
    groups = group_centers(centers, shift, 3)
    packed, drift = pack_centers(centers, shift), Drift.zero(groups)
    way = np.zeros(20)
    for _ in range(4):
        centers = (centers + scale * rng.normal(size=centers.shape)).astype(dtype)
        after = pack_centers(centers, shift)
        drift = drift.advance(packed, after, groups)
        step = space(after.centers, after) - space(packed.centers, packed).astype(np.float64)
        packed, way = after, way + np.sqrt((step.astype(np.longdouble) ** 2).sum(axis=1))
    assert (drift.centers >= way).all()
    assert (drift.centers <= way * (1 + 1e-9) + 1e-19).all()
    assert (drift.groups[groups.of] >= drift.centers * (1 - 1e-15)).all()


def test_bounded_centers_travel():
    x, centers, shift = blobs(n=100)
    packed, groups = pack_centers(centers, shift), group_centers(centers, shift, 4)
    bounded = BoundedCenters(packed, groups, Drift.zero(groups))
    again = pickle.loads(pickle.dumps(bounded))
    assert again.n_groups == bounded.n_groups
    for a, b in zip(bounds.start(x, bounded), bounds.start(x, again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_margins_grow_with_the_features_until_nothing_is_certain():
    def margin(d):
        packed = SimpleNamespace(dtype=np.dtype(np.float32), n_features=d, direct=d <= 8)
        return Margins.of(packed).product

    assert margin(8) == 0.0
    assert 0.0 < margin(9) < margin(1000) < 1e-3
    assert margin(9_000_000) == np.inf
