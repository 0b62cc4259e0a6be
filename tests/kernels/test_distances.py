"""Dense distance kernels against their definition, and against themselves at other widths."""

from __future__ import annotations

import pickle
from operator import attrgetter

import dask.config
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.errors import ParameterError
from largek_dask.kernels import arguments, distances
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.panels import Blocking
from largek_dask.kernels.distances import (
    nearest,
    nearest_two,
    pack_centers,
    scores,
    squared_distances,
)
from largek_dask.kernels.tile import BEST, BLOCK, TILES, TWO, Micro, select_tile
from tests import oracles
from tests.helpers.covering import every_two, in_turns, slow

COMPILED = not numba.config.DISABLE_JIT
"""Without a compiler the stand-ins add in another order: bits agree only when compiled."""
DTYPES = (np.float32, np.float64)
STORED = ("u1", "i1", "u2", "i2", "i4", "u4", "i8", "f2", "f4", "f8", "?")


def same(a, b):
    """Equal to the bit; within rounding where there is no compiler."""
    if COMPILED or a.dtype.kind in "iu":
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return np.allclose(a, b, rtol=1e-4, atol=1e-4)


def table(n, k, d, dtype=np.float32, seed=0, spread=3.0):
    """Rows and centres with many exact values, so that ties and duplicates occur."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(n, d)) * spread * 4) / 4
    centers = np.round(rng.normal(size=(k, d)) * spread * 4) / 4
    return x.astype(dtype), centers.astype(dtype)


def with_tile(name):
    return dask.config.set({"largek.kernels.tile": name})


@pytest.fixture(params=["auto", "plain", *slow("avx2", "avx512", "neon")])
def tile(request):
    """Run with each tile in turn."""
    with with_tile(request.param):
        yield request.param


rows = st.sampled_from([0, 1, 2, 7, 24, 25, 47, 49, 100])
clusters = st.one_of(st.integers(1, 19), st.sampled_from([31, 130]))
FEATURES = [1, 2, 3, 7, 8, 9, 12, 16, 33]
other_tiles = pytest.mark.parametrize(
    "names", [["auto"], *slow(["avx2", "avx512", "neon"])], ids=["own tile", "all tiles"]
)
# Every tile, dtype and number of features up to 8 has kernels of its own, which take seconds each.
FEW_KERNELS = [
    *((d, np.float32, name) for d in (2, 9, 33) for name in ("auto", "plain")),
    (16, np.float64, "auto"),
]
ALL_KERNELS = every_two(FEATURES, DTYPES, sorted(TILES))
kernels_of = pytest.mark.parametrize(
    "kernels", [FEW_KERNELS, *slow(ALL_KERNELS)], ids=["few kernels", "all kernels"]
)


# --- against the definition -------------------------------------------------------------------


@kernels_of
@settings(max_examples=60, deadline=None)
@given(rows, clusters, st.integers(0, 2**31), st.data())
def test_nearest__is_the_argmin_with_ties_to_the_lowest_index(kernels, n, k, seed, data):
    d, dtype, name = data.draw(st.sampled_from(kernels))
    # quarters of small integers: every distance is exact, so ties are ties
    x, centers = table(n, k, d, dtype=dtype, seed=seed, spread=0.7)
    exact = oracles.squared_distances(x, centers)
    packed = pack_centers(centers, np.zeros(d, dtype))
    with with_tile(name):
        labels = nearest(x, packed)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, exact.argmin(axis=1))


@kernels_of
@settings(max_examples=40, deadline=None)
@given(rows, clusters, st.integers(0, 2**31), st.data())
def test_nearest_two_and_scores__agree_with_the_definition(kernels, n, k, seed, data):
    d, dtype, name = data.draw(st.sampled_from(kernels))
    x, centers = table(n, k, d, dtype=dtype, seed=seed, spread=0.7)
    exact = oracles.squared_distances(x, centers)
    packed = pack_centers(centers, np.zeros(d, dtype))
    with with_tile(name):
        labels, first, second_labels, second = nearest_two(x, packed)
        found = scores(x, packed)
    every = np.arange(len(x))
    order = exact.argsort(axis=1, kind="stable")
    np.testing.assert_array_equal(labels, order[:, 0])
    np.testing.assert_array_equal(first, exact[every, labels])
    if k == 1:
        assert (second_labels == -1).all()
        assert np.isinf(second).all()
    else:
        np.testing.assert_array_equal(second_labels, order[:, 1])
        np.testing.assert_array_equal(second, exact[every, second_labels])
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize(
    ("dtype", "d"),
    [*((dtype, 11) for dtype in STORED), ("u1", 2), *slow(*((dtype, 2) for dtype in STORED))],
)
def test_stored_types__are_converted_not_copied_whole(dtype, d, monkeypatch):
    monkeypatch.setattr(arguments, "_CONVERTED_VALUES", 1)  # blocks of 64 rows
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2 if dtype == "?" else 100, (150, d)).astype(dtype)
    compute = distances.compute_dtype(x.dtype)
    packed = pack_centers(x[:9].astype(compute) + compute.type(0.25), np.zeros(d))
    exact = oracles.squared_distances(x, packed.centers)
    labels = nearest(x, packed)
    np.testing.assert_array_equal(labels, exact.argmin(axis=1))
    np.testing.assert_allclose(nearest_two(x, packed)[1], exact.min(axis=1), rtol=1e-4, atol=1e-2)
    chosen = squared_distances(x, packed, labels)
    np.testing.assert_allclose(chosen, exact.min(axis=1), rtol=1e-14)


@pytest.mark.parametrize(("d", "far"), in_turns([2, 8, 9, 40], [1e6, 0.0, 1e4]))
def test_far_from_the_origin__labels_are_right(far, d):
    rng = np.random.default_rng(2)
    corners = rng.integers(-1, 2, (12, d))
    corners[:, 0] = np.arange(12) * 2
    truth = rng.integers(12, size=300)
    x = (far + corners[truth] + 0.25 * rng.integers(-1, 2, (300, d))).astype(np.float32)
    centers = (far + corners).astype(np.float32)
    shift = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    packed = pack_centers(centers, shift)
    exact = oracles.squared_distances(x, centers)
    labels, values, *_ = nearest_two(x, packed)
    np.testing.assert_array_equal(nearest(x, packed), labels)
    np.testing.assert_array_equal(labels, exact.argmin(axis=1))
    # the shift itself is rounded, and with it everything that is moved by it: by half of the
    # last place of a number near `far`, hence the tolerance
    np.testing.assert_allclose(values, exact.min(axis=1), atol=1e-2 + far * 1e-6)
    np.testing.assert_array_equal(squared_distances(x, packed, labels), exact.min(axis=1))


# --- the same bits ----------------------------------------------------------------------------


def everything(x, packed):
    """All that the module computes for rows x."""
    labels = nearest(x, packed)
    if x.dtype == np.float64:
        # every kernel takes seconds to compile for every tile: modes share all but the last lines
        return (labels,)
    return (
        labels,
        *nearest_two(x, packed),
        scores(x, packed),
        squared_distances(x, packed, labels),
    )


@pytest.mark.parametrize(
    ("dtype", "k", "d"),
    [
        (np.float32, 77, 2),
        (np.float32, 33, 18),
        *slow((np.float64, 33, 18)),
        *slow(*((np.float32, *shape) for shape in ((1, 1), (77, 3), (140, 8), (9, 1025)))),
        *slow((np.float64, 77, 3)),
    ],
)
@other_tiles
def test_tiles__give_the_same_bits(dtype, k, d, names):
    rng = np.random.default_rng(4)
    x, centers = rng.normal(size=(131, d)).astype(dtype), rng.normal(size=(k, d)).astype(dtype)
    packed = pack_centers(centers, x.mean(axis=0))
    with with_tile("plain"):
        expected = everything(x, packed)
    for name in names:
        with with_tile(name):
            for got, want in zip(everything(x, packed), expected, strict=True):
                assert same(got, want)


@pytest.mark.parametrize("d", [2, 18])
def test_every_row_offset__gives_the_same_bits(d, tile):
    rng = np.random.default_rng(5)
    x, centers = rng.normal(size=(104, d)).astype("f4"), rng.normal(size=(150, d)).astype("f4")
    packed = pack_centers(centers, x.mean(axis=0))
    labels, values = nearest(x, packed), nearest_two(x, packed)[1]
    table_ = scores(x, packed)
    for begin in range(1, 55, 1 if COMPILED else 9):
        assert same(nearest(x[begin:], packed), labels[begin:])
        assert same(nearest_two(x[begin:], packed)[1], values[begin:])
        assert same(scores(x[begin:], packed), table_[begin:])
    # the winner's distance is the same number in every mode of the same form
    if packed.direct:
        assert same(table_.min(axis=1), values)
    np.testing.assert_array_equal(table_.argmin(axis=1), labels)


@pytest.mark.parametrize(("d", "k"), [(2, 61), (70, 61), (70, 3)])
@pytest.mark.parametrize("mode", [nearest, nearest_two])
def test_blocks__do_not_change_a_bit(mode, d, k, monkeypatch):
    rng = np.random.default_rng(6)
    x, centers = rng.normal(size=(200, d)).astype("f4"), rng.normal(size=(k, d)).astype("f4")
    packed = pack_centers(centers, x.mean(axis=0))
    expected = mode(x, packed)
    # the last block of features is one of less than eight, or whole; all centres are met at once
    # or block by block
    for sizes in ((1, 1, 70), (3, 2, 69), (2, 5, 32), (9, 99, 9), (1, 99, 35)):
        blocks = Blocking(*sizes)
        monkeypatch.setattr(panels, "blocking", lambda *_, blocks=blocks: blocks)
        distances._method.cache_clear()
        for got, want in zip(np.atleast_2d(mode(x, packed)), np.atleast_2d(expected), strict=True):
            assert same(got, want)
    distances._method.cache_clear()  # other tests are to meet the real blocks


def test_blocking__fits_any_size():
    for tile in TILES.values():
        for itemsize in (4, 8):
            for d in (1, 8, 100, 1024, 1025, 5000):
                for k in (1, 50, 100_000):
                    blocks = panels.blocking(tile, itemsize, d, k)
                    assert min(blocks.as_tuple()) >= 1
                    assert blocks.features <= d


# --- inputs and outputs -----------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_read_only_rows_of_any_layout(order):
    x, centers = table(70, 5, 2)
    packed = pack_centers(centers, x.mean(axis=0))
    expected = nearest(x, packed)
    given_rows = np.asfortranarray(x) if order == "F" else x.copy()
    if order == "strided":
        given_rows = np.repeat(x, 2, axis=0)[::2]
    given_rows.flags.writeable = False
    assert same(nearest(given_rows, packed), expected)
    assert same(
        squared_distances(given_rows, packed, expected), squared_distances(x, packed, expected)
    )


def test_outputs__are_written_and_returned():
    x, centers = table(30, 4, 2)
    packed = pack_centers(centers, np.zeros(2, np.float32))
    labels = np.empty(30, np.int32)
    assert nearest(x, packed, labels) is labels
    for wrong in (np.empty(29, np.int32), np.empty(30, np.int64), np.empty(60, np.int32)[::2]):
        with pytest.raises(ParameterError, match="output array"):
            nearest(x, packed, wrong)


def test_packed_centres__pickle_as_centres_and_shift_and_are_read_only():
    _, centers = table(1, 30, 9)
    packed = pack_centers(centers, np.ones(9))
    assert packed.dtype == np.float32
    assert (packed.n_clusters, packed.n_features) == (30, 9)
    assert not packed.direct
    assert packed.nbytes >= 2 * packed.centers.nbytes
    data = pickle.dumps(packed)
    assert len(data) < 2 * centers.nbytes
    back = pickle.loads(data)
    names = ("centers", "shift", "dense.factors", "dense.starts", "dense.offsets")
    for get in map(attrgetter, names):
        assert same(get(back), get(packed))
        with pytest.raises(ValueError, match="read-only"):
            get(packed)[0] = 0
    np.testing.assert_array_equal(packed.values, centers - 1)
    centers[:] = 0  # the caller's array, not ours
    assert packed.centers.any()


def test_wrong_inputs__are_named():
    x, centers = table(10, 4, 3)
    packed = pack_centers(centers, np.zeros(3))
    for bad in (centers[0], centers[:0], centers[:, :0]):
        with pytest.raises(ParameterError, match="at least one"):
            pack_centers(bad, np.zeros(3))
    with pytest.raises(ParameterError, match="shift"):
        pack_centers(centers, np.zeros(4))
    with pytest.raises(ParameterError, match="3 features"):
        nearest(x[:, :2], packed)
    with pytest.raises(ParameterError, match="labels must have the shape"):
        squared_distances(x, packed, np.zeros(9, np.int32))
    for label in (-1, 4):
        with pytest.raises(IndexError, match="4 centres"):
            squared_distances(x, packed, np.full(10, label))


# --- tiles ------------------------------------------------------------------------------------


def test_select_tile__by_name_by_configuration_and_by_cpu():
    assert select_tile("avx2") is TILES["avx2"]
    assert select_tile("auto") in TILES.values()
    with with_tile("plain"):
        assert select_tile() is TILES["plain"]
    with with_tile("mmx"), pytest.raises(ParameterError, match="avx512"):
        select_tile()


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ({"avx512f": True, "avx2": True, "fma": True}, "avx512"),
        ({"avx2": True, "fma": True}, "avx2"),
        ({"avx2": True}, "plain"),
        ({"neon": True}, "neon"),
        ({}, "plain"),
    ],
)
def test_select_tile__by_cpu_features(features, name, monkeypatch):
    from llvmlite import binding

    from largek_dask.kernels import tile as module

    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(module, "_host_tile", module._host_tile.__wrapped__)
    assert select_tile("auto").name == name


def test_micro__travels_as_one_integer():
    for micro in (Micro(8, 3, 16), Micro(4, 3, 8, 3, True, False), Micro(5, 2, 4, 2, False, True)):
        assert Micro.decode(micro.code) == micro


@pytest.mark.parametrize(
    ("dtype", "d", "k"),
    [
        (np.float32, 2, 1),
        (np.float32, 2, 5),
        (np.float32, 2, 300),
        *slow(*every_two(DTYPES, [1, 2, 8], [1, 5, 300])),
    ],
)
def test_the_kernel_that_finds_two_stands_in_for_the_others(dtype, d, k, monkeypatch):
    """With the bits of each, for rows that tie, are far, infinite or NaN."""
    n = 2_000 if COMPILED else 600
    x, centers = table(n, k, d, dtype=dtype, seed=d + k)
    x[:300] = centers[np.arange(300) % k]
    x[300:400] += dtype(0.1)
    x[400:410], x[410], x[411], x[412] = 1e18, np.inf, -np.inf, np.nan
    centers[k // 2] = centers[0]
    packed = pack_centers(centers, np.zeros(d, dtype))
    modes = []
    real = distances._method

    def noting(tile, dtype, mode, n_features, k):
        modes.append(mode)
        return real(tile, dtype, mode, n_features, k)

    monkeypatch.setattr(distances, "_method", noting)
    own = nearest(x, packed)
    assert set(modes) == {BLOCK if k == 300 else BEST}
    modes.clear()
    monkeypatch.setattr(distances, "_compared", {})
    monkeypatch.setattr(distances, "PAIRS_WITHOUT", 1 << 27)
    assert same(nearest(x, packed), own)
    assert set(modes) == {TWO}
