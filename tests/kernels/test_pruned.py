"""Choice of the search for nearest centres: boxes, a prefix of few directions, or the dense one."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
from scipy import sparse

from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.bounds import pruned
from largek_dask.kernels.bounds.boxes import Boxes
from largek_dask.kernels.bounds.prefix import Prefix, least_work
from largek_dask.kernels.bounds.pruned import expect_rows, nearest_pruned, nearest_two_pruned
from largek_dask.kernels.distances import nearest, nearest_two, pack_centers
from tests.helpers.covering import every_two, in_turns, slow

COMPILED = not numba.config.DISABLE_JIT
SEARCHERS = {"boxes": (Boxes, 12), "prefix": (Prefix, 40)}
"""Each with a number of features for which it is chosen."""
ALWAYS = 1e9
"""A share of the dense search that no work exceeds, unless it is infinite."""

searchers = pytest.mark.parametrize("name", SEARCHERS)


@pytest.fixture
def limits(monkeypatch):
    """Set thresholds; at first both searchers take any number of rows and centres."""

    def change(**values):
        for name, value in values.items():
            monkeypatch.setattr(pruned, name, value)

    change(
        FEWEST_CENTERS=1, FEWEST_DIRECT=1, LEAST_WORK=0, LEAST_PASS=0, WORTH=ALWAYS, _HISTORIES={}
    )
    return change


@pytest.fixture
def searched(monkeypatch):
    """Searches so far: (searcher, begin, end); `change` may set what a search returns."""
    calls, change = [], {}

    def watch(kind):
        real = kind.search

        def search(self, x, begin, end, *more):
            calls.append((self, begin, end))
            found = real(self, x, begin, end, *more)
            return change["found"](self, begin, found) if change else found

        monkeypatch.setattr(kind, "search", search)

    watch(Boxes)
    watch(Prefix)
    return calls, change


def clusters(n, k, d, seed=0, dtype=np.float32):
    """Rows of tight clusters and their centres."""
    r = np.random.default_rng(seed)
    centers = (30 * r.normal(size=(k, d))).astype(dtype)
    x = centers[r.integers(k, size=n)] + r.normal(size=(n, d)).astype(dtype)
    return x, pack_centers(centers, centers.mean(axis=0))


def again(packed):
    """The same centres, as a pass of their own."""
    return pack_centers(packed.centers, packed.shift)


def label(x, packed):
    """Distances computed, of rows whose labels are those of the dense search."""
    with np.errstate(all="ignore"):
        labels, n_evaluated = nearest_pruned(x, packed)
        np.testing.assert_array_equal(labels, nearest(x, packed))
    return n_evaluated


@searchers
def test_few_centres_take_the_dense_search(limits, name):
    d = SEARCHERS[name][1]
    x, packed = clusters(50, 64, d)
    least = least_work(64, d, pruned.SIZES[0]) / (64 * d)
    # (boxes need a minimum of centres; a prefix has to pay in the best case)
    limits(FEWEST_CENTERS=65, WORTH=least if name == "prefix" else ALWAYS)
    assert label(x, packed) == 50 * 64
    limits(FEWEST_CENTERS=64, WORTH=1.5 * least if name == "prefix" else ALWAYS)
    assert label(x, again(packed)) < 50 * 64


@searchers
def test_few_rows_take_the_dense_search_unless_more_are_to_come(limits, name):
    d = SEARCHERS[name][1]
    x, packed = clusters(50, 64, d)
    limits(LEAST_WORK=50 * 64 * d + 1)
    assert label(x, packed) == 50 * 64
    assert label(x, packed) < 50 * 64
    limits(_HISTORIES={})
    packed = again(packed)
    expect_rows(51, packed)
    assert label(x, packed) < 50 * 64


# --- the two nearest -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["float32", "int16", "transposed", "not finite", "12 features"])
def test_the_two_nearest_are_those_of_the_dense_search(limits, searched, case):
    """Also of rows that are left to it, and of rows for which there is no other search."""
    r = np.random.default_rng(9)
    d = 12 if case == "12 features" else 40
    x, packed = clusters(300, 90, d)
    x[::7] = (packed.centers[r.integers(90, size=43)] + packed.centers[r.integers(90, size=43)]) / 2
    x[::11] = 1e-3 * r.normal(size=x[::11].shape)
    if case == "int16":
        x = np.rint(x).astype(np.int16)
    elif case == "transposed":
        x = np.asfortranarray(x)
    elif case == "not finite":
        x[5], x[6, 0] = np.inf, np.nan
    limits(TRIED=64)
    with np.errstate(all="ignore"):
        found, expected = nearest_two_pruned(x, packed), nearest_two(x, packed)
    assert any(isinstance(by, Prefix) for by, *_ in searched[0]) == (d > 32)
    for part, dense in zip(found, expected, strict=True):
        assert part.dtype == dense.dtype
        if COMPILED:
            np.testing.assert_array_equal(part, dense)
        else:
            # (scores of squared lengths of 40,000, added in another order)
            np.testing.assert_allclose(part, dense, rtol=1e-4, atol=4e4 * 2.0**-20)


def test_the_two_nearest_of_one_centre(limits):
    x, packed = clusters(20, 60, 40)
    one = pack_centers(packed.centers[:1], packed.shift)
    for part, dense in zip(nearest_two_pruned(x, one), nearest_two(x, one), strict=True):
        np.testing.assert_array_equal(part, dense)


# --- few rows, few centres, other rows -----------------------------------------------------------


@searchers
def test_sparse_rows_take_the_dense_search(limits, name):
    d = SEARCHERS[name][1]
    x, packed = clusters(50, 64, d)
    stored = sparse.csr_matrix(np.where(np.abs(x) > 20, x, 0))
    indices, starts = stored.indices.astype(np.int32), stored.indptr.astype(np.int64)
    assert label(SparseBlock(stored.data, indices, starts, d), packed) == 50 * 64


@pytest.mark.parametrize(("name", "dtype"), every_two([*SEARCHERS], [np.float32, np.float64]))
def test_rows_far_out_and_not_finite_take_the_dense_search(limits, searched, name, dtype):
    kind, d = SEARCHERS[name]
    x, packed = clusters(60, 64, d, dtype=dtype)
    x[3], x[4, 0], x[5], x[40] = np.nan, np.inf, 1e19, 1e160 if dtype is np.float64 else -1e25
    assert 4 * 64 <= label(x, packed) < 20 * 64 + 56 * 34
    assert {type(by) for by, *_ in searched[0]} == {kind}
    assert label(x[:0], packed) == 0
    assert label(np.rint(np.clip(np.nan_to_num(x), -99, 99)).astype(np.int16), packed) < 60 * 64
    assert label(np.asfortranarray(x[6:40]), packed) < 34 * 64


@searchers
@pytest.mark.parametrize("size", [1e120, 1e-150])
def test_centres_whose_squares_are_no_numbers_take_the_dense_search(limits, searched, name, size):
    x, packed = clusters(20, 30, SEARCHERS[name][1], dtype=np.float64)
    packed = pack_centers(packed.centers * size, packed.shift * size)
    assert label(x * size, packed) == 20 * 30
    assert not searched[0]


def test_equal_centres_have_no_directions(limits):
    x, packed = clusters(20, 30, 40)
    assert label(x, pack_centers(np.repeat(x[:1], 30, axis=0), packed.shift)) == 20 * 30


@searchers
def test_where_pruning_fails_few_sets_are_searched(limits, searched, name):
    kind, d = SEARCHERS[name]
    x, packed = clusters(20, 60, d, seed=1)
    calls, change = searched
    change["found"] = lambda by, begin, found: (*found[:3], np.inf)
    # (as if kernels were compiled after the first set)
    limits(TRIED=4, PIECE=8, MOST_SKIPPED=5, LEAST_WORK=1.5 * 20 * 60 * d)

    def is_searched(expected=0):
        nonlocal packed
        packed = again(packed)
        if expected:
            expect_rows(expected, packed)
        calls.clear()
        label(x, packed)
        return any(isinstance(by, kind) for by, *_ in calls)

    tried = [is_searched() for _ in range(16)]
    change.clear()
    tried += [is_searched() for _ in range(6)]
    # After the first one set is skipped, then three, then five; all are searched once it pays.
    assert np.flatnonzero(tried).tolist() == [1, 3, 7, 13, 19, 20, 21]
    change["found"] = lambda by, begin, found: (*found[:3], np.inf)
    # After the first of these the next would be skipped, but many rows are announced.
    assert [is_searched(expected) for expected in (0, 40, 0)] == [True, True, False]


# --- where it does not pay -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "order"),
    in_turns([*SEARCHERS], [np.float32], ["mixed", "good first", "bad first"])
    + slow(*itertools.product(SEARCHERS, [np.float64], ["mixed", "good first", "bad first"])),
)
def test_rows_for_which_it_does_not_pay_cost_little_more(limits, searched, name, dtype, order):
    """Labels are those of the dense search, and little work is wasted."""
    r = np.random.default_rng(2)
    n, (k, d) = 4_000 if COMPILED else 240, (3_000, 6) if name == "boxes" else (400, 130)
    centers = r.normal(size=(k, d))
    centers /= np.sqrt((centers**2).sum(axis=1, keepdims=True))
    good = np.repeat([True, False], n // 2)
    # the others are about as far from all centres
    x = np.where(good[:, None], 1.001 * centers[r.integers(k, size=n)], 1e-3 * centers[0])
    x += 1e-4 * r.normal(size=(n, d))
    x = x[
        {"mixed": r.permutation(n), "good first": slice(None), "bad first": slice(None, None, -1)}[
            order
        ]
    ]
    limits(SIZES=(8, 16), TRIED=n // 240, PIECE=n // 30, RESTED=n // 8, WORTH=0.75)
    done = []

    def counted(by, begin, found):
        done.append(found[3] / by.dense)
        return found

    searched[1]["found"] = counted
    n_evaluated = label(x.astype(dtype), pack_centers(centers.astype(dtype), np.zeros(d, dtype)))
    work = (sum(done) + n_evaluated / k) / n
    assert work < (0.9 if order == "good first" else 1.1)


# --- the number of directions --------------------------------------------------------------------


SIZES = (2, 4, 8, 16, 32)


@pytest.fixture
def sizes_tried(limits, searched):
    """Label rows with a set of centres whose work for each number of directions is given.

    The numbers that are tried come back, and the one that is chosen or None.
    """
    limits(SIZES=SIZES, TRIED=4)
    calls, change = searched
    x, packed = clusters(20, 90, 64, seed=3)

    def tried(work, expected=0):
        change["found"] = lambda by, begin, found: (found[0], 0, found[2], work[by.p])
        new = again(packed)
        expect_rows(expected, new)
        calls.clear()
        label(x, new)
        chosen = {by.p for by, begin, _ in calls if begin}
        sizes = [by.p for by, begin, _ in calls if not begin]
        # (the first rows are labelled after the trial)
        return (set(sizes[:-1]), *chosen) if chosen else (set(sizes), None)

    return tried


@pytest.mark.parametrize(
    ("best", "tried"),
    [(2, {8, 4, 2}), (4, {8, 4, 2}), (8, {8, 4, 16}), (16, {8, 4, 16, 32}), (32, {8, 4, 16, 32})],
)
def test_the_number_with_the_least_work_is_chosen(sizes_tried, best, tried):
    work = {size: 1.0 + abs(SIZES.index(size) - SIZES.index(best)) for size in SIZES}
    assert sizes_tried(work) == (tried, best)


def test_numbers_are_compared_again_when_the_work_has_doubled(sizes_tried):
    work = {2: 1.0, 4: 2.0, 8: 3.0, 16: 4.0, 32: 5.0}
    assert sizes_tried(work)[1] == 2
    work[4] = 0.5
    assert sizes_tried(work) == ({2, 4, 8}, 4), "the second set doubles the work"
    work[2] = 0.1
    assert sizes_tried(work) == ({4}, 4), "the third does not"
    assert sizes_tried(work) == ({4, 2}, 2)
    # a search that does not pay is not remembered
    assert sizes_tried(dict.fromkeys(SIZES, np.inf)) == ({2}, None)
    assert sizes_tried(work, expected=10**9) == ({8, 4, 2}, 2)


def test_directions_of_other_rows_are_replaced(limits):
    """Tables of the same shape, whose centres differ elsewhere; few rows of each."""
    limits(WORTH=0.75, TRIED=64)
    r, d, k = np.random.default_rng(4), 400, 400

    def table(axes):
        centers = np.zeros((k, d), np.float32)
        places = r.normal(size=(k, 6))  # of one length
        centers[:, axes] = 30 * places / np.linalg.norm(places, axis=1, keepdims=True)
        x = centers[r.integers(k, size=200)] + r.normal(size=(200, d)).astype(np.float32)
        return x, pack_centers(centers, np.zeros(d, np.float32))

    for axes in (slice(6), slice(100, 106), slice(200, 206)):
        x, packed = table(axes)
        assert 200 * k * d < pruned.KEPT_WORK
        assert label(x, packed) < 0.1 * 200 * k


def test_centres_that_differ_in_few_directions(limits, searched):
    """There are fewer principal directions than are asked for: others are as good."""
    x, packed = clusters(20, 60, 40)
    plane = packed.centers * (np.arange(40) < 3)
    packed = pack_centers(plane.astype(np.float32), packed.shift)
    assert label(x, packed) <= 20 * 60
    assert searched[0]
