"""Rows whose nearest centre the product form cannot tell: every search decides them exactly."""

from __future__ import annotations

import dask.config
import numba
import numpy as np
import pytest
from scipy import sparse as scipy_sparse

from largek_dask.kernels import distances
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.bounds.lists import Lists, ListSearch
from largek_dask.kernels.dense import doubts
from largek_dask.kernels.dense import search as dense
from largek_dask.kernels.dense.doubts import Rounding, margin
from largek_dask.kernels.distances import nearest, nearest_two, pack_centers, scores
from largek_dask.kernels.emit import rows as emitted_rows
from largek_dask.kernels.emit import standins
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import TILES
from tests import oracles
from tests.helpers.covering import every_two, in_turns, slow

COMPILED = not numba.config.DISABLE_JIT
N = 700 if COMPILED else 60
TIGHT = [("f4", 1e-1), ("f4", 1e-2), ("f4", 1e-3), ("f8", 1e-9)]


def tight_groups(n, d, k, spread, dtype, seed=0, groups=30):
    """Rows in groups of about ``spread``, 10 apart, and some of them as centres."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-10, 10, (groups, d))
    x = middles[rng.integers(groups, size=n)] + spread * rng.normal(size=(n, d))
    x = x.astype(dtype)
    return x, x[rng.choice(n, k, replace=False)]


def by_products(x, centers, shift):
    """Labels by |c|² - 2 x·c alone, in the dtype of the rows."""
    x, centers = x - shift, centers - shift
    return ((centers**2).sum(axis=1) - 2 * (x @ centers.T)).argmin(axis=1)


def assert_nearest(x, centers, labels):
    """No row is farther from its centre than from another, but for the rounding of float64."""
    squares = oracles.squared_distances(x, centers)
    own = squares[np.arange(len(x)), labels]
    slack = (x.shape[1] + 4) * np.finfo(np.float64).eps
    assert (own <= squares.min(axis=1) * (1 + slack)).all()


def sparse_block(x):
    matrix = scipy_sparse.csr_matrix(x)
    indptr = matrix.indptr.astype(np.int64)
    return SparseBlock(matrix.data, matrix.indices.astype(np.int32), indptr, x.shape[1])


@pytest.mark.parametrize(("k", "tight", "d"), every_two([40, 8], TIGHT, [9, 17, 64, 300]))
def test_tight_groups__every_row_is_at_its_nearest_centre(d, tight, k):
    dtype, spread = tight
    x, centers = tight_groups(N, d, k, spread, dtype)
    shift = x.mean(axis=0)
    packed = pack_centers(centers, shift)
    labels = nearest(x, packed)
    assert_nearest(x, centers, labels)
    if COMPILED and spread < 1e-2 and k == 40:
        wrong = by_products(x, centers, shift) != labels
        assert wrong.mean() > 0.01, "the products were good enough: nothing has been tested"
    two = nearest_two(x, packed)
    np.testing.assert_array_equal(two[0], labels)
    squares = oracles.squared_distances(x, centers)
    rounding = 4 * (d + 6) * np.finfo(dtype).eps * ((x - shift) ** 2).sum(axis=1).max()
    np.testing.assert_allclose(two[1], squares.min(axis=1), rtol=1e-5, atol=rounding)


def test_tight_groups__the_second_nearest_is_right_as_well():
    x, centers = tight_groups(N, 12, 40, 1e-3, "f4")
    labels, first, second_labels, second = nearest_two(x, pack_centers(centers, x.mean(axis=0)))
    squares = oracles.squared_distances(x, centers)
    order = squares.argsort(axis=1, kind="stable")[:, :2]
    together = squares[np.arange(len(x)), order[:, 1]] < 1  # in the row's own group
    assert together.any()
    np.testing.assert_array_equal(labels, order[:, 0])
    np.testing.assert_array_equal(second_labels[together], order[together, 1])
    np.testing.assert_allclose(first[together], squares.min(axis=1)[together], rtol=1e-6)
    np.testing.assert_allclose(second[together], np.sort(squares)[together, 1], rtol=1e-6)


@pytest.mark.parametrize("waiting", ["no", "together", "two by two"])
def test_decided_at_once_or_later__to_the_same_bits(waiting, monkeypatch):
    x, centers = tight_groups(N, 10, 40, 1e-3, "f4")
    packed = pack_centers(centers, x.mean(axis=0))
    later = []

    def counted(block, rows, *more):
        later.extend(rows)
        return decide(block, rows, *more)

    decide = distances.decide
    monkeypatch.setattr(distances, "decide", counted)
    if waiting != "no":
        monkeypatch.setattr(dense, "LITTLE", 0)
    if waiting == "two by two":
        monkeypatch.setattr(distances, "_DOUBTFUL_SCORES", 100)
    squares = oracles.squared_distances(x, centers)
    expected = squares.argmin(axis=1)
    np.testing.assert_array_equal(nearest(x, packed), expected)
    labels, values, *_ = nearest_two(x, packed)
    np.testing.assert_array_equal(labels, expected)
    in_doubt = values == squares.min(axis=1).astype(np.float32)
    assert in_doubt.mean() > 0.25
    assert (len(later) > N / 2) == (waiting != "no")


@pytest.mark.skipif(not COMPILED, reason="stand-ins add in another order")
@pytest.mark.parametrize("names", [["auto", "plain"], *slow([*TILES])], ids="-".join)
def test_tiles_and_places__give_the_same_bits(names):
    x, centers = tight_groups(150, 18, 33, 1e-3, "f4")
    packed = pack_centers(centers, x.mean(axis=0))
    expected = None
    for name in names:
        with dask.config.set({"largek.kernels.tile": name}):
            found = [part.tobytes() for part in nearest_two(x, packed)]
            expected = expected or found
            assert found == expected
            for begin in (1, 7, 50, 149):
                for part, whole in zip(nearest_two(x[begin:], packed), found, strict=True):
                    assert part.tobytes() == whole[begin * 4 :]


@pytest.mark.parametrize("stored", ["f4", "i2"])
def test_lists_of_the_truncated_search__rows_are_at_the_nearest(stored):
    x, _ = tight_groups(N, 12, 40, 1e-3, "f4")
    if stored == "i2":  # integers beside each other, far from the origin
        x = (np.rint(2000 * x) + np.random.default_rng(5).integers(-9, 9, x.shape)).astype("i2")
    centers = x[np.random.default_rng(6).choice(N, 40, replace=False)].astype("f4")
    packed = pack_centers(centers, x.mean(axis=0).astype("f4"))
    lists = Lists(np.array([0, 40]), np.arange(40, dtype=np.int32))
    order, starts = np.arange(N, dtype=np.int32), np.array([0, N])
    labels = np.full(N, -1, np.int32)
    upper, lower = np.zeros(N, np.float32), np.full(N, -1, np.float32)
    ListSearch(x, order, starts, lists, packed, (labels, upper, lower), keep=True).run([0, 1])
    squares = np.sort(oracles.squared_distances(x, centers), axis=1)
    near = squares[:, 1] < 1e-3 * (x.astype("f8") ** 2).sum(axis=1)  # another one in its group
    assert near.mean() > 0.3
    assert_nearest(x, centers, labels)
    np.testing.assert_allclose(upper[near], np.sqrt(squares[near, 0]), rtol=1e-3, atol=1e-30)
    np.testing.assert_allclose(lower[near], np.sqrt(squares[near, 1]), rtol=1e-3)


@pytest.mark.parametrize(("dtype", "spread"), TIGHT)
@pytest.mark.parametrize("d", [9, 40])
def test_sparse_rows__are_at_their_nearest_centre(d, dtype, spread):
    rng = np.random.default_rng(2)
    x, _ = tight_groups(N, d, 8, spread, dtype, groups=3)
    x *= rng.random(d) < 0.9
    centers = x[rng.choice(N, 40, replace=False)]
    packed = pack_centers(centers, np.zeros(d, dtype))
    labels, _, second_labels, _ = nearest_two(sparse_block(x), packed)
    assert_nearest(x, centers, labels)
    np.testing.assert_array_equal(nearest(sparse_block(x), packed), labels)
    np.testing.assert_array_equal(labels, nearest(x, packed))
    assert (labels != second_labels).all()


def short_texts(dtype, n, d, words, seed=5):
    """Rows of unit length of few stored numbers: most two of them have no column in common."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, d), dtype)
    for row in x:
        row[rng.choice(d, words, replace=False)] = 10.0 ** (-3 * rng.random(words))
    return x / np.sqrt((x * x).sum(axis=1, keepdims=True, dtype=np.float64)).astype(dtype)


KINDS = ["apart", "twice", "one digit apart", "near", "moved", "far", "tiny"]


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [*(("f4", kind) for kind in KINDS), *slow(*(("f8", kind) for kind in KINDS[::2]))],
)
def test_sparse_rows__that_share_no_column_with_a_centre_are_at_their_nearest(dtype, kind):
    """Nearly all centres are equally far from them but for the rounding of their lengths."""
    n, d, k = 120, 4_000, 24
    x = short_texts(dtype, n, d, 9)
    x *= np.dtype(dtype).type({"far": 2.0**40, "tiny": 2.0**-40}.get(kind, 1.0))
    centers = x[:k].copy()
    half, rows = k // 2, np.arange(k // 2, k)
    at = centers[rows - half].argmax(axis=1)
    if kind in ("twice", "one digit apart", "near", "moved"):
        centers[half:] = centers[:half]
    if kind == "one digit apart":
        centers[rows, at] = np.nextafter(centers[rows, at], np.dtype(dtype).type(0))
    elif kind == "near":
        x = np.resize(centers[:half], x.shape)
        centers[rows, at] += np.dtype(dtype).type(2e-4 if dtype == "f4" else 1e-9)
    elif kind == "moved":
        # As long as the first half, exactly, but added up otherwise; the shortest has no such twin.
        centers[half:] = np.roll(centers[half:], 1, axis=1)
        centers[half + oracles.squared_distances(centers[:half], 0 * x[:1])[:, 0].argmin()] *= 2
    packed = pack_centers(centers, np.zeros(d, dtype))
    squares = oracles.squared_distances(x, centers)
    gaps = np.diff(np.sort(squares, axis=1)[:, :3], axis=1) / np.median(squares)
    in_doubt = gaps[:, 0] <= np.finfo(dtype).eps
    assert in_doubt.sum() > n / 4
    # Where float64 over stored numbers is enough, and where it is not.
    alike = gaps[:, int(kind == "moved")] <= 1e-13
    pairs = ("twice", "one digit apart", "moved")
    assert (in_doubt & alike).any() == (dtype == "f8" or kind in pairs)
    assert (in_doubt & ~alike).any() == (dtype == "f4" and kind not in ("twice", "moved"))
    labels, first, second_labels, second = nearest_two(sparse_block(x), packed)
    np.testing.assert_array_equal(labels, nearest(x, packed))
    np.testing.assert_array_equal(nearest(sparse_block(x), packed), labels)
    dense = nearest_two(x, packed)
    np.testing.assert_array_equal(labels, dense[0])
    np.testing.assert_array_equal(second_labels[in_doubt], dense[2][in_doubt])
    own = np.arange(n)
    few = 1e-5 * np.median(squares)
    np.testing.assert_allclose(first, squares[own, labels], rtol=1e-5, atol=few)
    np.testing.assert_allclose(second, squares[own, second_labels], rtol=1e-5)
    assert (first[:half] == 0).all() or kind not in ("twice", "near") or dtype == "f8"


@pytest.mark.parametrize(
    ("dtype", "size", "k"), [("f4", 1e30, 5), ("f8", 1e200, 5), ("f4", 1e30, 1)]
)
def test_sparse_rows__whose_squares_overflow_are_at_their_nearest_where_float64_tells(
    dtype, size, k
):
    """Of float32 it does; beyond float64 any label will do, and the first one is taken."""
    x = short_texts(dtype, 40, 30, 4) * np.dtype(dtype).type(size)
    packed = pack_centers(x[:k], np.zeros(30, dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite((x * x).sum(axis=1)).any()
        labels, _, second_labels, _ = nearest_two(sparse_block(x), packed)
        squares = oracles.squared_distances(x, x[:k])
    expected = squares.argmin(axis=1) if dtype == "f4" else np.zeros(40)
    np.testing.assert_array_equal(labels[k:], expected[k:])
    assert (second_labels == -1).all() == (k == 1)


@pytest.mark.parametrize(
    ("d", "dtype", "kind"), every_two([3, 9, 64], ["f4", "f8"], ["dense", "sparse"])
)
def test_scores__are_right_to_their_own_size(d, dtype, kind):
    x, centers = tight_groups(N, d, 30, 1e-3, dtype)
    packed = pack_centers(centers, x.mean(axis=0) if kind == "dense" else np.zeros(d, dtype))
    found = scores(x if kind == "dense" else sparse_block(x), packed)
    expected = oracles.squared_distances(x, centers)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found, expected, rtol=9 * (d + 4) * eps, atol=0)
    assert (found[expected == 0] == 0).all()
    assert (expected == 0).any()


# --- numbered scores --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "dtype", "name"),
    [
        (9, "f4", "auto"),
        (33, "f8", "plain"),
        (1100, "f4", "auto"),
        *slow(*every_two([9, 33, 1100], ["f4", "f8"], list(TILES))),
    ],
)
def test_numbered_scores__give_the_labels_of_whole_ones(d, dtype, name):
    """Distances come from whole scores, labels alone from numbered ones."""
    rng, n = np.random.default_rng(7), 130 if d < 1100 else 50
    with dask.config.set({"largek.kernels.tile": name}):
        for k in (1, 3, 8, 9, 30):
            x, centers = tight_groups(n, d, k, 0.1, dtype, groups=5)
            grid = rng.integers(-1, 2, (n, d)).astype(dtype)  # many equal distances
            for rows, chosen in ((x, centers), (grid, grid[:k])):
                packed = pack_centers(chosen, rows.mean(axis=0))
                labels = nearest(rows, packed)
                np.testing.assert_array_equal(labels, nearest_two(rows, packed)[0])
                squares = oracles.squared_distances(rows, chosen)
                np.testing.assert_array_equal(labels, squares.argmin(axis=1))


def numbered(table, centres):
    """Scores whose lowest bits are the number of their centre within its tile."""
    bits = np.array(table)
    number = np.arange(table.shape[1]) % centres
    view = bits.view("i4" if table.itemsize == 4 else "i8")
    view[:] = (view & -centres) | number.astype(view.dtype)
    return bits


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("d", [9, 50])
def test_margin__of_numbered_scores_covers_what_the_numbers_take(d, dtype):
    rng = np.random.default_rng(8)
    x = (10.0 ** rng.uniform(-3, 3, (60, 1)) * rng.normal(size=(60, d))).astype(dtype)
    centers = (10.0 ** rng.uniform(-3, 3, (64, 1)) * rng.normal(size=(64, d))).astype(dtype)
    packed = pack_centers(centers, np.zeros(d, dtype))
    table = np.empty((60, 64), dtype)
    distances._score(x, packed, False, packed.dense, table)
    marked = numbered(table, 8)
    taken = np.abs(marked.astype("f8") - table)
    assert (taken > 0).any()
    whole, less = packed.dense.rounding.as_tuple(), packed.dense.numbered.as_tuple()
    for row, square in enumerate((x.astype("f8") ** 2).sum(axis=1)):
        near = marked[row].argmin()
        best, score = float(marked[row, near]), float(table[row, near])
        # a centre that is not farther, whose score differs the most, would still be in question
        limit = score + margin(score, square, whole)
        worst = taken[row, table[row] <= limit].max()
        assert limit + worst <= best + margin(best, square, less)


@pytest.mark.skipif(not COMPILED, reason="one of the two is not compiled")
@pytest.mark.parametrize(("name", "dtype"), in_turns([*TILES], ["f4", "f8"]))
def test_emitted_kernels__do_what_their_stand_ins_do(name, dtype):
    tile, kind = TILES[name], np.dtype(dtype)
    width, centres = tile.vectors * tile.lanes_of(kind.itemsize), tile.centres
    label_type = np.int32 if kind.itemsize == 4 else np.int64

    @njit
    def clear(values, labels, at):
        emitted_rows.reset_winners(width, 2, -1, values, labels, at)

    @njit
    def lengths(panel, at, d, out):
        emitted_rows.square_lengths(width, 4, panel, at, width, d, out)

    @njit
    def decode(values, labels, at, norms, norms_at, m, a, b, c, e, f):
        return emitted_rows.decode_labels(
            width, values, labels, at, norms, norms_at, m, a, b, c, e, f
        )

    rng = np.random.default_rng(9)
    values, labels = np.zeros(4 * width, dtype), np.zeros(4 * width, label_type)
    clear(values, labels, width)
    other = np.zeros_like(values), np.zeros_like(labels)
    standins.reset_winners(width, 2, -1, *other, width)
    np.testing.assert_array_equal(values, other[0])
    np.testing.assert_array_equal(labels, other[1])
    norms, plain = np.zeros((2, 2 * width), dtype)
    for d in (1, 3, 4, 5, 18):
        panel = rng.normal(size=(2 + d) * width).astype(dtype)
        lengths(panel, width, d, norms)
        standins.square_lengths(width, 4, panel, width, width, d, plain)
        np.testing.assert_allclose(norms, plain, rtol=1e-5)
    scores = np.sort(rng.normal(size=(2, width)), axis=0)
    scores[:, 1] = scores[0, 1]  # no gap
    scores[:, 2] = np.inf  # no winner
    labels[width : 2 * width] = rng.integers(4, size=width) * centres
    labels[width + 2] = -1
    values[width : 3 * width] = scores.astype(dtype).reshape(-1)
    norms[width:] = rng.permutation(norms[:width])
    coarse = tuple(kind.type(v) for v in (0.5, 0.1, 0.2, 0.01, 0.01))
    for m in (1, 3, width):
        expected = labels.copy()
        count = standins.decode_labels(width, values, expected, width, norms, 3, m, *coarse)
        found = labels.copy()
        assert decode(values, found, width, norms, 3, m, *coarse) == count
        np.testing.assert_array_equal(found, expected)
        assert found[width + 2] == 0
    assert 0 < count < width - 1


@pytest.mark.skipif(not COMPILED, reason="one of the two is not compiled")
@pytest.mark.parametrize("wide", [1, 2])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_blocks_of_rows__are_transposed_as_the_stand_in_does(dtype, wide):
    side, count = 32 // np.dtype(dtype).itemsize, wide * 32 // np.dtype(dtype).itemsize

    @njit
    def transposed(rows, shift, begin, end, panel, norms):
        emitted_rows.transpose(1, count, rows, 3, 20, shift, 2, begin, end, panel, 5, 24, norms, 7)

    @njit
    def without_lengths(rows, shift, begin, end, panel, norms):
        emitted_rows.transpose(0, count, rows, 3, 20, shift, 2, begin, end, panel, 5, 24, norms, 7)

    rng = np.random.default_rng(3)
    rows, shift = rng.normal(size=340).astype(dtype), rng.normal(size=12).astype(dtype)
    for lengths, run in ((1, transposed), (0, without_lengths)):
        for begin, end in ((0, side), (side - 1, side), (0, 3)):
            found, plain = np.zeros((2, 5 + 24 * side), dtype)
            norms, own = np.ones((2, 7 + count), dtype)
            run(rows, shift, begin, end, found, norms)
            standins.transpose(
                lengths, count, rows, 3, 20, shift, 2, begin, end, plain, 5, 24, own, 7
            )  # fmt: skip
            assert found[5 : 5 + count].all()
            np.testing.assert_array_equal(found, plain)
            np.testing.assert_allclose(norms, own, rtol=1e-6)
            assert (norms[7:] > 1).all() == bool(lengths)
            assert (norms[:7] == 1).all()


# --- the margin -------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("d", [9, 50])
def test_margin__is_above_the_error_of_any_two_scores(d, far):
    """Centres that are not farther than the winner have scores within the margin of its own."""
    rng = np.random.default_rng(3)
    x = (far * rng.normal(size=(40, d))).astype("f4")
    centers = (x[rng.integers(40, size=60)] + 1e-4 * rng.normal(size=(60, d))).astype("f4")
    packed = pack_centers(centers, np.zeros(d, "f4"))
    table = np.empty((40, 60), np.float32)
    distances._score(x, packed, False, packed.dense, table)
    squares = oracles.squared_distances(x, centers)
    rounding, every = packed.dense.rounding.as_tuple(), np.arange(40)
    for row, length in zip(every, (x.astype("f8") ** 2).sum(axis=1), strict=True):
        best = float(table[row].min())
        limit = best + margin(best, length, rounding)
        not_farther = squares[row] <= squares[row, table[row].argmin()]
        assert (table[row, not_farther] <= limit).all()
    gaps = table - table.min(axis=1)[:, None]
    lengths = (x**2).sum(axis=1, dtype=np.float64)
    for coarse in coarse_margins(packed, table, lengths):
        fine = [margin(float(t.min()), s, rounding) for t, s in zip(table, lengths, strict=True)]
        assert (np.array(fine) <= coarse).all()
        assert (gaps > coarse[:, None]).any(), "everything is in doubt"


def coarse_margins(packed, table, lengths):
    """Both bounds of the margins of rows of these scores and squared lengths."""
    a, b, c, e, f = packed.dense.rounding.coarse
    return a + b * lengths, c + e * lengths + f * np.maximum(table.min(axis=1) + lengths, 0)


@pytest.mark.parametrize("seed", range(2))
def test_margin__simple_bounds_hold_wherever_the_centres_are(seed):
    rng = np.random.default_rng(seed)
    d = 9
    x = (10.0 ** rng.uniform(-3, 3, (300, 1)) * rng.normal(size=(300, d))).astype("f4")
    centers = (10.0 ** rng.uniform(-3, 3, (40, 1)) * rng.normal(size=(40, d))).astype("f4")
    packed = pack_centers(centers, np.zeros(d, "f4"))
    rounding = packed.dense.rounding.as_tuple()
    lengths = (x**2).sum(axis=1, dtype=np.float64)
    # any score that the nearest centre may have: the distance is from 0 to beyond the longest
    table = (10.0 ** rng.uniform(-4, 4, (300, 1)) ** 2 * lengths[:, None]) - lengths[:, None]
    fine = [margin(float(t.min()), s, rounding) for t, s in zip(table, lengths, strict=True)]
    for coarse in coarse_margins(packed, table, lengths):
        assert (np.array(fine) <= coarse).all()


def test_margin__of_rows_far_from_the_longest_centre_is_their_own():
    rng = np.random.default_rng(6)
    x, centers = rng.normal(size=(300, 12)).astype("f4"), rng.normal(size=(40, 12)).astype("f4")
    centers[7] = 1e8
    packed = pack_centers(centers, np.zeros(12, "f4"))
    table = np.empty((300, 40), np.float32)
    distances._score(x, packed, False, packed.dense, table)
    of_all, own = coarse_margins(packed, table, (x**2).sum(axis=1, dtype=np.float64))
    gaps = np.sort(table)[:, 1] - table.min(axis=1)
    assert (gaps < of_all).all(), "no centre is far enough to matter"
    assert (gaps > own).mean() > 0.99


def test_margin__is_infinite_where_nothing_is_certain():
    many = Rounding.of(np.dtype(np.float32), 9_000_000, 1.0)
    assert many.product == np.inf
    assert not margin(1.0, 1.0, many.as_tuple()) < np.inf
    few = Rounding.of(np.dtype(np.float32), 9, 1.0)
    assert 0 < margin(1.0, 1.0, few.as_tuple()) < 1e-4
    # beyond a thousandth only the longest centre bounds where the others may be
    wide = Rounding.of(np.dtype(np.float32), 40_000, 1.0)
    assert margin(1.0, 1.0, wide.as_tuple()) > 1e-2


def test_rows_that_overflow__are_decided_in_float64():
    centers = np.array([[1.0] * 9, [3e20] * 9], np.float32)
    x = np.array([[2e20] * 9, [1e20] * 9], np.float32)
    packed = pack_centers(centers, np.zeros(9, np.float32))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(nearest(x, packed), [1, 0])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nearest_of_far__has_room_for_any_row(dtype, monkeypatch):
    monkeypatch.setattr(doubts, "_FAR_SCORES", 25)
    rng = np.random.default_rng(3)
    top = float(np.finfo(dtype).max)
    centers = (1e-3 * rng.normal(size=(7, 5)) * top).astype(dtype)
    x = (0.05 * rng.normal(size=(11, 5)) * top).astype(dtype)  # (3 rows at a time)
    labels = doubts.nearest_of_far(x, centers)
    small = np.ldexp(x.astype("f8"), -1024), np.ldexp(centers.astype("f8"), -1024)
    if dtype == "f4":
        small = x.astype("f8"), centers.astype("f8")
    expected = oracles.squared_distances(*small).argmin(axis=1)
    np.testing.assert_array_equal(labels, expected)
    assert len(np.unique(expected)) > 2
    assert labels.dtype == np.int32


def test_too_far__begins_where_sums_may_overflow():
    kind = np.finfo("f4")
    squares = np.array([0.0, float(kind.max) / 16, float(kind.max) / 8, np.inf, np.nan])
    np.testing.assert_array_equal(doubts.too_far(squares, np.dtype("f4")), [2, 3, 4])
    np.testing.assert_array_equal(doubts.too_far(squares, np.dtype("f8")), [3, 4])


def test_rows_that_underflow__are_decided_in_float64():
    rng = np.random.default_rng(4)
    x = (1e-24 * rng.normal(size=(50, 16))).astype(np.float32)
    packed = pack_centers(x[:10], np.zeros(16, np.float32))
    expected = oracles.squared_distances(x, x[:10]).argmin(axis=1)
    np.testing.assert_array_equal(nearest(x, packed), expected)
    assert len(np.unique(expected)) == 10
