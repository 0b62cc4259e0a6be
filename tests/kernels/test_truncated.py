"""Truncated search against its definition, and against itself cut in pieces."""

from __future__ import annotations

import itertools

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.lists import (
    Lists,
    ListSearch,
    largest_of_lists,
    loss_scale,
    order_by_label,
    removal_losses,
    search_all,
    widen_bounds,
)
from largek_dask.kernels.distances import nearest, pack_centers
from tests.helpers.covering import in_turns, slow
from tests.oracles import truncated as oracles

COMPILED = not numba.config.DISABLE_JIT
FEATURES = (1, 2, 3, 7, 8, 9, 12, 16, 33)
# Every tile, compute dtype and number of features up to 8 has kernels of its own, which take
# seconds each; rows of other dtypes are converted.
FEW_KERNELS = [
    *(("f4", d, "auto") for d in (2, 12, 33)),
    ("u1", 12, "auto"),
    ("f8", 8, "auto"),
    ("f4", 9, "plain"),
]
ALL_KERNELS = [
    *itertools.product(["f4", "f8", "u1", "f2", "i8", "?"], FEATURES, ["avx2"]),
    *itertools.product(["f4"], FEATURES, ["avx512", "neon", "plain"]),
]


def table(n, k, d, dtype, rng, spread=0.7):
    """Quarters of small integers: every distance is exact, so ties are ties."""
    x = np.round(rng.normal(size=(n, d)) * spread * 4)
    centers = np.round(rng.normal(size=(k, d)) * spread * 4)
    if np.dtype(dtype).kind in "iub":
        return np.abs(x).astype(dtype), centers.astype("f8" if dtype == "i8" else "f4") / 4
    compute = "f8" if dtype == "f8" else "f4"
    return (x / 4).astype(dtype), (centers / 4).astype(compute)


def random_lists(k, n_groups, rng, empty=True):
    parts = [np.flatnonzero(rng.random(k) < rng.random()) for _ in range(n_groups)]
    if not empty:
        parts = [part if len(part) else np.array([rng.integers(k)]) for part in parts]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Lists(offsets, np.concatenate([*parts, []]).astype(np.int32)), parts


def start_state(n, k, dtype, rng):
    labels = rng.integers(-1, k, n).astype(np.int32)
    return labels, rng.random(n).astype(dtype), rng.random(n).astype(dtype)


shapes = st.tuples(
    st.sampled_from([0, 1, 2, 7, 24, 25, 49, 160]), st.sampled_from([1, 2, 3, 8, 9, 31, 70])
)
kernels_of = pytest.mark.parametrize(
    "kernels", [FEW_KERNELS, *slow(ALL_KERNELS)], ids=["few kernels", "all kernels"]
)


def search_lists(x, order, starts, lists, packed, state, keep=False, cuts=None):
    """Search groups between cuts, by default all at once; return the distances computed."""
    search = ListSearch(x, order, starts, lists, packed, state, keep=keep)
    evaluated, moved, groups = search.run(cuts or [0, len(starts) - 1])
    of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    is_moved = state[0][order] != of
    np.testing.assert_array_equal(moved, order[is_moved])
    np.testing.assert_array_equal(groups, of[is_moved])
    return evaluated


@settings(max_examples=60 if COMPILED else 20)
@given(shapes, st.integers(0, 10**6))
def test_order_by_label__is_a_stable_counting_sort(shape, seed):
    n, k = shape
    labels = np.random.default_rng(seed).integers(-1, k, n).astype(np.int32)
    order, starts = order_by_label(labels, k)
    assert (order.dtype, starts.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(order, np.argsort(labels, kind="stable")[(labels < 0).sum() :])
    counts = np.bincount(labels[labels >= 0], minlength=k)
    np.testing.assert_array_equal(np.diff(starts), counts)
    assert starts[0] == 0
    _, upper, lower = start_state(n, k, np.float32, np.random.default_rng(seed))
    if n > 3:
        upper[:2], lower[1:3] = np.nan, np.nan
    loose = np.where(upper < lower, -1, labels).astype(np.int32)
    for got, want in zip(
        order_by_label(labels, k, upper, lower), order_by_label(loose, k), strict=True
    ):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


@pytest.mark.parametrize(
    ("n", "bounded"), in_turns([1, 7, 8, 100, 300], [False, True, True, False])
)
def test_order_by_label__threads_give_the_same(n, bounded, monkeypatch):
    labels, upper, lower = start_state(n, 5, np.float32, np.random.default_rng(n))
    bounds = (upper, lower) if bounded else ()
    one = order_by_label(labels, 5, *bounds)
    monkeypatch.setattr("largek_dask.kernels.bounds.lists._LEAST_SORTED", 7)
    for n_threads in (1, 2, 3, 50):
        shared = order_by_label(labels, 5, *bounds, n_threads=n_threads)
        for got, want in zip(shared, one, strict=True):
            np.testing.assert_array_equal(got, want)


def test_largest_of_lists():
    draws = np.random.default_rng(2)
    values, (lists, parts) = draws.normal(size=12), random_lists(12, 7, draws)
    found = largest_of_lists(values, lists)
    assert found.tolist() == [max(values[list(part)], default=-np.inf) for part in parts]


@kernels_of
@settings(max_examples=60 if COMPILED else 25)
@given(shapes, st.integers(0, 10**6), st.integers(1, 9), st.booleans(), st.data())
def test_search_lists__is_the_search_row_by_row(kernels, shape, seed, n_groups, keep, data):
    (n, k), (dtype, d, tile) = shape, data.draw(st.sampled_from(kernels))
    rng = np.random.default_rng(seed)
    x, centers = table(n, k, d, dtype, rng)
    packed = pack_centers(centers, np.zeros(d))
    lists, parts = random_lists(k, n_groups, rng)
    groups = rng.integers(-1, n_groups, n).astype(np.int32)
    labels, upper, lower = start_state(n, k, packed.dtype, rng)
    want = oracles.search_lists(x, groups, parts, centers, labels, upper, lower, keep)
    order, starts = order_by_label(groups, n_groups)
    with dask.config.set({"largek.kernels.tile": tile}):
        evaluated = search_lists(x, order, starts, lists, packed, (labels, upper, lower), keep)
    np.testing.assert_array_equal(labels, want[0])
    np.testing.assert_array_equal(upper, want[1].astype(packed.dtype))
    np.testing.assert_array_equal(lower, want[2].astype(packed.dtype))
    assert evaluated == want[4]


@pytest.mark.parametrize("dtype", ["f4", "i8"])
def test_a_search_of_lists_is_shared_by_threads(dtype):
    rng = np.random.default_rng(4)
    n, k, d = 2_000, 40, 12
    x, centers = table(n, k, d, dtype, rng)
    packed = pack_centers(centers, np.zeros(d))
    lists, _ = random_lists(k, k, rng)
    groups = rng.integers(-1, k, n).astype(np.int32)
    alone = start_state(n, k, packed.dtype, rng)
    shared = tuple(array.copy() for array in alone)
    grouped = order_by_label(groups, k)
    evaluated = search_lists(x, *grouped, lists, packed, alone)
    search = ListSearch(x, *grouped, lists, packed, shared)
    assert search.run([0, 11, 25, 26, k], 2)[0] == evaluated
    for got, want in zip(shared, alone, strict=True):
        np.testing.assert_array_equal(got, want)
    empty = order_by_label(np.full(n, -1, np.int32), k)
    assert ListSearch(x, *empty, lists, packed, shared).run([0, k])[0] == 0


@pytest.mark.parametrize(
    ("dtype", "d"), [("f4", 2), ("f4", 18), *slow(("f8", 18), ("f4", 9), ("u1", 3))]
)
@pytest.mark.parametrize(
    "tiles", [("auto", "plain"), *slow((("avx2", "avx512", "neon", "plain"),))], ids="-".join
)
def test_search_lists__any_cut_and_any_tile_give_the_same_bits(d, dtype, tiles):
    rng = np.random.default_rng(d)
    n, k = 700, 20
    x = rng.normal(size=(n, d)) * 20 + 100
    x = x.astype(dtype)
    packed = pack_centers(x[:k].astype("f8" if dtype == "f8" else "f4"), x.mean(axis=0))
    lists, _ = random_lists(k, k, rng, empty=False)
    first = rng.integers(0, k, n).astype(np.int32)
    order, starts = order_by_label(first, k)
    results = []
    for tile in tiles:
        for cuts in ([0, k], [0, 3, 4, 17, k]):
            state = first.copy(), np.zeros(n, packed.dtype), np.zeros(n, packed.dtype)
            with dask.config.set({"largek.kernels.tile": tile}):
                total = search_lists(x, order, starts, lists, packed, state, True, cuts)
            results.append((*state, np.array(total)))
        # chunks of rows, each ordered by itself
        state = first.copy(), np.zeros(n, packed.dtype), np.zeros(n, packed.dtype)
        total = 0
        with dask.config.set({"largek.kernels.tile": tile}):
            for rows in (slice(0, 101), slice(101, 110), slice(110, n)):
                parts = tuple(part[rows] for part in state)
                own = order_by_label(first[rows], k)
                total += search_lists(x[rows], *own, lists, packed, parts, True)
        results.append((*state, np.array(total)))
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            if COMPILED or got.dtype.kind == "i":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@kernels_of
@settings(max_examples=40 if COMPILED else 15)
@given(shapes, st.integers(0, 10**6), st.data())
def test_search_all__is_the_search_among_all_centres(kernels, shape, seed, data):
    (n, k), (dtype, d, tile) = shape, data.draw(st.sampled_from(kernels))
    rng = np.random.default_rng(seed)
    x, centers = table(n, k, d, dtype, rng)
    packed = pack_centers(centers, np.zeros(d))
    labels, upper, lower = start_state(n, k, packed.dtype, rng)
    groups = np.zeros(n, int)
    want = oracles.search_lists(x, groups, [range(k)], centers, labels, upper, lower, keep=True)
    with dask.config.set({"largek.kernels.tile": tile}):
        search_all(x, packed, labels, upper, lower, slice(None))
        np.testing.assert_array_equal(labels, nearest(x, packed))
    np.testing.assert_array_equal(labels, want[0])
    np.testing.assert_array_equal(upper, want[1].astype(packed.dtype))
    np.testing.assert_array_equal(lower, want[2].astype(packed.dtype))


def test_rows_with_no_finite_score_get_the_first_of_their_list():
    x = np.full((3, 12), np.nan, np.float32)
    packed = pack_centers(np.arange(60, dtype=np.float32).reshape(5, 12), np.zeros(12))
    labels, upper, lower = np.zeros(3, np.int32), np.zeros(3, "f4"), np.zeros(3, "f4")
    lists = Lists(np.array([0, 2]), np.array([2, 4], np.int32))
    order, starts = order_by_label(np.zeros(3, np.int32), 1)
    with np.errstate(all="ignore"):
        search_lists(x, order, starts, lists, packed, (labels, upper, lower))
    np.testing.assert_array_equal(labels, 2)


@pytest.mark.parametrize("order", ["F", "strided", "reversed"])
def test_rows_of_any_layout(order):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 10)).astype("f4")
    packed = pack_centers(x[:7], x.mean(axis=0))
    lists = Lists(np.array([0, 7]), np.arange(7, dtype=np.int32))
    given_rows = {
        "F": np.asfortranarray(x),
        "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "reversed": np.ascontiguousarray(x[::-1])[::-1],
    }[order]
    given_rows.flags.writeable = False
    everyone = order_by_label(np.zeros(90, np.int32), 1)
    states = []
    for rows in (x, given_rows):
        state = np.zeros(90, np.int32), np.zeros(90, "f4"), np.zeros(90, "f4")
        search_lists(rows, *everyone, lists, packed, state)
        states.append(state)
    for got, want in zip(*states, strict=True):
        np.testing.assert_array_equal(got, want)


def test_lists__of_a_table_ascend():
    lists = Lists.of(np.array([[3, 1, 2], [0, 3, 1]], np.int32))
    np.testing.assert_array_equal(lists.centers, [1, 2, 3, 0, 1, 3])
    np.testing.assert_array_equal(lists.offsets, [0, 3, 6])
    np.testing.assert_array_equal(lists.lengths, [3, 3])
    assert lists.n_groups == 2
    assert lists.centers.dtype == np.int32


def test_widen_bounds__widens_and_forgets():
    labels = np.array([0, 1, 2, -1, 1], np.int32)
    upper, lower = np.arange(5, dtype="f4"), np.full(5, 4, "f4")
    lower[1] = np.inf
    widen_bounds(labels, upper, lower, np.array([1.0, 0.5, 0.25]), np.array([2.0, np.inf, 0.5]))
    np.testing.assert_array_equal(upper, np.array([1, 1.5, 2.25, 3, 4.5], "f4"))
    np.testing.assert_array_equal(lower, np.array([2, 0, 3.5, 4, 0], "f4"))


@settings(max_examples=50 if COMPILED else 15)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_removal_losses__do_not_depend_on_order(n, k, seed, weighted, double):
    rng = np.random.default_rng(seed)
    dtype = "f8" if double else "f4"
    labels = rng.integers(-1, k, n).astype(np.int32)
    upper, lower = rng.exponential(size=n).astype(dtype), rng.exponential(size=n).astype(dtype)
    if n:
        lower[0] = np.inf
    weight = rng.exponential(size=n) if weighted else np.ones(n)
    scale = loss_scale(3.0, float(max(weight.sum(), 1.0)))
    given = weight if weighted else None
    out, costs = removal_losses(labels, upper, lower, given, k, 3.0, scale)
    want = oracles.losses(labels, upper, lower, weight, 3.0, scale, k)
    # a term is rounded to float64 before it is rounded to the grid
    np.testing.assert_allclose(out, np.array(want, np.float64), rtol=1e-12, atol=2 * n)
    zeros = np.zeros_like(upper)
    want = oracles.losses(labels, zeros, upper, weight, 3.0, scale, k)
    np.testing.assert_allclose(costs, np.array(want, np.float64), rtol=1e-12, atol=2 * n)
    back = rng.permutation(n)
    parts = (labels[back], upper[back], lower[back], weight[back] if weighted else None)
    again = removal_losses(*parts, k, 3.0, scale, 3)
    np.testing.assert_array_equal(again, [out, costs])


def test_loss_scale__leaves_room_for_the_total():
    for largest, total in ((1.0, 1.0), (1e30, 1e9), (1e-20, 3.0), (0.0, 5.0)):
        assert largest * total * loss_scale(largest, total) <= 2.0**62
    for wrong in ((np.inf, 1.0), (1.0, np.nan)):
        with pytest.raises(ParameterError, match="finite"):
            loss_scale(*wrong)
