"""Candidates of rows: the best of a list and of previous ones, on any tile."""

from __future__ import annotations

import dask
import numpy as np
import pytest

from largek_dask.kernels.bounds import candidates as kernel
from largek_dask.kernels.bounds.candidates import search_candidates, search_components
from largek_dask.kernels.bounds.lists import Lists, order_by_label
from largek_dask.kernels.mixtures import pack_mixture
from tests.helpers.covering import every_two, in_turns, slow
from tests.oracles import mixtures as oracles

KINDS = ["iso", "isoflex", "diag"]
TILES = ["avx512", "avx2", "neon", "plain"]
SHAPES = [(1, 1, 1, 1), (40, 8, 17, 5), (40, 9, 33, 1), (90, 20, 64, 33)]
"""Components, features, how many are listed, and how many are kept of a row."""


def made(n, k, d, kind, dtype="f4", seed=0, spread=3.0, origin=0.0):
    """Rows, and components of unequal variance and weight where the kind has such."""
    r = np.random.default_rng(seed)
    real = np.float64 if dtype == "f8" else np.float32
    means = (origin + r.normal(size=(k, d)) * spread).astype(real)
    x = means[r.integers(k, size=n)] + r.normal(size=(n, d))
    x = np.clip(np.rint(x), 0, 255).astype(dtype) if dtype == "u1" else x.astype(dtype)
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[kind]
    variances = np.exp(r.normal(0, 0.5, shape))
    weights = np.full(k, 1 / k) if kind == "iso" else r.dirichlet(np.full(k, 2.0))
    shift = x.astype(np.float64).mean(0).astype(real)
    return x, pack_mixture(means, variances, np.log(weights), shift)


def before_of(n, k, n_best, seed=0):
    """Candidates before: some of them none, some twice."""
    r = np.random.default_rng(seed + 1)
    found = r.integers(0, k, (n, n_best)).astype(np.int32)
    found[r.random((n, n_best)) < 0.2] = -1
    return found


def check_rows(x, packed, lists_of_rows, before, candidates, squares):
    """Against the twin; where log joints are equal to the last digits either may come first."""
    n_best = before.shape[1]
    for i, listed in enumerate(lists_of_rows):
        expected, apart = oracles.best_candidates(x[i], packed, listed, before[i].tolist(), n_best)
        found = candidates[i][candidates[i] >= 0].tolist()
        assert len(found) == len(expected) == len(set(found)), i
        np.testing.assert_allclose(squares[i, : len(found)], apart, rtol=1e-9, atol=1e-12)
        joints = packed.constants[found] - packed.halves[found] * squares[i, : len(found)]
        assert (np.diff(joints) <= 0).all()
        if found != expected:
            others = packed.constants[expected] - packed.halves[expected] * np.array(apart)
            np.testing.assert_allclose(joints, others, rtol=1e-12)
        assert (candidates[i, len(found) :] == -1).all()
        assert np.isinf(squares[i, len(found) :]).all()


# Kernels are compiled for kind, tile, dtypes, and up to 8 features for their number.
@pytest.mark.parametrize(
    ("kind", "tile", "dtype", "shape"),
    [
        *(("iso", "auto", "f4", shape) for shape in SHAPES[2:]),
        ("isoflex", "auto", "f4", (40, 9, 33, 1)),
        ("isoflex", "auto", "f8", (64, 13, 32, 5)),
        # Squares make 12 features of 6: not the direct form, and rows shorter than a block.
        ("diag", "auto", "f4", (40, 6, 17, 5)),
        ("iso", "auto", "u1", (70, 5, 24, 4)),
        ("diag", "auto", "f4", (30, 784, 8, 5)),
        ("diag", "auto", "f2", (50, 16, 31, 3)),
        *slow(*((k, tile, "f4", shape) for k, tile, shape in every_two(KINDS, TILES, SHAPES))),
        *slow(
            *(
                (kind, tile, dtype, shape)
                for kind, (tile, dtype, shape) in in_turns(
                    KINDS,
                    (
                        ("auto", "f4", (30, 784, 8, 5)),
                        ("avx2", "f8", (9, 2, 3, 5)),
                        ("auto", "f8", (64, 13, 32, 5)),
                        ("auto", "u1", (70, 5, 24, 4)),
                        ("plain", "f4", (90, 20, 64, 33)),
                        ("auto", "f2", (50, 16, 31, 3)),
                    ),
                )
            )
        ),
    ],
)
def test_lists(kind, tile, dtype, shape):
    n, (k, d, length, n_best) = 240, shape
    x, packed = made(n, k, d, kind, dtype)
    r = np.random.default_rng(3)
    table = np.array([r.choice(k, length, replace=False) for _ in range(k)], np.int32)
    lists, before = Lists.of(table), before_of(n, k, n_best)
    groups = r.integers(-1, k, n).astype(np.int32)
    groups[:70] = 0  # a group of several panels, and many of a few rows
    order, starts = order_by_label(groups, k)
    candidates, squares = before.copy(), np.full(before.shape, 7.0)
    with dask.config.set({"largek.kernels.tile": tile}):
        half = k // 2
        evaluated = search_candidates(
            x, order, starts, lists, packed, candidates, squares, begin=0, end=half
        )
        evaluated += search_candidates(
            x, order, starts, lists, packed, candidates, squares, begin=half
        )
    met = np.flatnonzero(groups >= 0)
    assert evaluated == len(met) * length
    left = np.flatnonzero(groups < 0)
    np.testing.assert_array_equal(candidates[left], before[left])
    check_rows(
        x[met], packed, [table[g].tolist() for g in groups[met]], before[met], candidates[met],
        squares[met],
    )  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("kind", "tile", "shape"),
    [
        ("diag", "auto", (3, 1, 5)),
        ("diag", "plain", (30, 12, 2)),
        *((kind, "auto", (700, 12, 5)) for kind in KINDS),
        *slow(*every_two(KINDS, TILES, [(3, 1, 5), (30, 4, 2), (700, 12, 5)])),
    ],
)
def test_all_components(kind, tile, keep, shape):
    n, (k, d, n_best) = 150, shape
    x, packed = made(n, k, d, kind, spread=1.0)
    before = before_of(n, k, n_best)
    candidates, squares = before.copy(), np.empty(before.shape)
    with dask.config.set({"largek.kernels.tile": tile}):
        for part in ((0, 60), (60, n)):
            assert search_components(x, packed, candidates, squares, *part, keep=keep) == k * (
                part[1] - part[0]
            )
    known = before if keep else np.full_like(before, -1)
    check_rows(x, packed, [range(k)] * n, known, candidates, squares)


@pytest.mark.parametrize(
    ("kind", "tiles"), [("diag", ["auto", "plain"]), *slow(*((kind, TILES) for kind in KINDS))]
)
def test_tiles_and_neighbours_change_no_bit(kind, tiles):
    """A row's result is its own: in any panel, beside any rows, on any tile."""
    x, packed = made(400, 600, 11, kind, spread=0.7)
    before, found = before_of(400, 600, 5), []
    for tile in tiles:
        with dask.config.set({"largek.kernels.tile": tile}):
            for some in (np.arange(400), np.arange(399, -1, -1), np.arange(0, 400, 7)):
                candidates, squares = before[some], np.empty((len(some), 5))
                search_components(np.ascontiguousarray(x[some]), packed, candidates, squares)
                place = np.argsort(some)
                rows = np.arange(0, 400, 7)
                if len(some) == 400:
                    candidates, squares = candidates[place][rows], squares[place][rows]
                found.append((candidates.tobytes(), squares.tobytes()))
    assert len(set(found)) == 1


@pytest.mark.parametrize("kind", ["isoflex", *slow("iso", "diag")])
def test_rows_far_from_the_origin(kind):
    """Scores have few digits there, and the best ones must not be lost."""
    x, packed = made(300, 60, 12, kind, dtype="f8", origin=1e6, spread=1.0)
    x32 = x.astype(np.float32)
    packed32 = pack_mixture(
        packed.means.astype(np.float32), packed.variances, packed.log_weights,
        packed.shift.astype(np.float32),
    )  # fmt: skip
    for rows, own in ((x, packed), (x32, packed32)):
        candidates, squares = np.full((300, 4), -1, np.int32), np.empty((300, 4))
        search_components(rows, own, candidates, squares)
        check_rows(rows, own, [range(60)] * 300, np.full((300, 4), -1), candidates, squares)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tight_group_far_out_is_told_apart(kind):
    """Components 1e-3 apart, 1e3 from the origin: float32 scores say nothing of their order."""
    r = np.random.default_rng(2)
    k, d = 24, 12
    means = np.concatenate([1e3 + r.normal(size=(12, d)) * 1e-2, r.normal(size=(12, d))])
    means = means.astype(np.float32)
    x = means[r.integers(12, size=200)] + (r.normal(size=(200, d)) * 1e-2).astype(np.float32)
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[kind]
    packed = pack_mixture(means, np.full(shape, 1e-4), np.full(k, -np.log(k)), np.zeros(d, "f4"))
    candidates, squares = np.full((200, 3), -1, np.int32), np.empty((200, 3))
    search_components(x, packed, candidates, squares)
    check_rows(x, packed, [range(k)] * 200, np.full((200, 3), -1), candidates, squares)


def test_a_candidate_before_is_not_lost_to_its_equal():
    """All components in one place: previous candidates stay, then comes the lowest index."""
    packed = pack_mixture(np.zeros((6, 9), "f4"), np.ones((1, 1)), np.zeros(6), np.zeros(9, "f4"))
    candidates = np.array([[5, 3], [4, -1], [-1, -1]], np.int32)
    search_components(np.ones((3, 9), "f4"), packed, candidates, np.empty((3, 2)))
    assert candidates.tolist() == [[3, 5], [4, 0], [0, 1]]


@pytest.mark.parametrize("kind", KINDS)
def test_retired_components_are_no_candidates(kind):
    x, packed = made(100, 20, 9, kind)
    weights = packed.log_weights.copy()
    weights[::2] = -np.inf
    packed = pack_mixture(packed.means, packed.variances, weights, packed.shift)
    before = before_of(100, 20, 4)
    candidates, squares = before.copy(), np.empty((100, 4))
    search_components(x, packed, candidates, squares)
    assert (candidates % 2 == 1).all()
    check_rows(x, packed, [range(20)] * 100, before, candidates, squares)


def test_an_empty_list_leaves_previous_candidates():
    x, packed = made(40, 6, 9, "iso")
    lists = Lists(np.array([0, 0, 6]), np.arange(6, dtype=np.int32))
    order, starts = order_by_label((np.arange(40) % 2).astype(np.int32), 2)
    before = before_of(40, 6, 3)
    candidates, squares = before.copy(), np.empty((40, 3))
    assert search_candidates(x, order, starts, lists, packed, candidates, squares) == 20 * 6
    listed = [[] if i % 2 == 0 else range(6) for i in range(40)]
    check_rows(x, packed, listed, before, candidates, squares)


def test_rows_that_do_not_lie_together():
    """They are converted a few at a time."""
    x, packed = made(300, 40, 9, "iso")
    before = before_of(300, 40, 3)
    found = []
    for rows in (x, np.asfortranarray(x)):
        candidates, squares = before.copy(), np.empty((300, 3))
        search_components(rows, packed, candidates, squares)
        found.append(candidates)
    assert not np.asfortranarray(x).flags.c_contiguous
    np.testing.assert_array_equal(found[0], found[1])


def test_no_rows():
    x, packed = made(10, 4, 3, "iso")
    nothing = np.empty((0, 2), np.int32), np.empty((0, 2))
    assert search_components(x[:0], packed, *nothing) == 0


def test_many_components_are_searched_in_blocks():
    x, packed = made(80, 3 * kernel.BLOCK, 9, "iso", spread=0.5)
    before = np.full((80, 5), -1, np.int32)
    candidates, squares = before.copy(), np.empty((80, 5))
    search_components(x, packed, candidates, squares)
    assert len(np.unique(candidates // kernel.BLOCK)) == 3
    check_rows(x, packed, [range(3 * kernel.BLOCK)] * 80, before, candidates, squares)
