"""Centres in boxes: the labels of the dense search, bounds that hold, and budgets that are kept."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest

from largek_dask.kernels.bounds import box_search, boxes, pruned
from largek_dask.kernels.bounds.boxes import Boxes, Slack
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.emit import boxes as emitted
from largek_dask.kernels.emit import standins as twins
from largek_dask.kernels.jit import njit
from tests.helpers.covering import every_two, in_turns, slow

COMPILED = not numba.config.DISABLE_JIT
KINDS = ["normal", "clusters", "grid", "equal", "far", "outlier", "small", "plane", "line"]
if COMPILED:  # numpy warns where stand-ins come near the largest number
    KINDS += ["large"]


@pytest.fixture
def from_the_start(monkeypatch):
    """Boxes are made for any number of rows and centres, and never given up."""
    for name in ("FEWEST_CENTERS", "FEWEST_DIRECT", "LEAST_WORK", "LEAST_PASS"):
        monkeypatch.setattr(pruned, name, 1)
    monkeypatch.setattr(pruned, "WORTH", np.inf)
    monkeypatch.setattr(pruned, "_PASTS", {})


def points_of(kind, n, d, r):
    x = r.normal(size=(n, d))
    if kind == "clusters":
        x = 20 * r.normal(size=(7, d))[r.integers(7, size=n)] + x
    if kind == "grid":
        x = r.integers(0, 3, size=(n, d)).astype(float)
    if kind == "equal":
        x = np.repeat(x[:1], n, axis=0)
    if kind == "far":
        x = 1e6 + r.choice([-1.0, 1.0], size=(n, d))
    if kind == "outlier":
        x[-1] = 1e6
    if kind == "plane":  # nothing is left beside the directions that are kept
        x = r.normal(size=(n, 2)) @ r.normal(size=(2, d))
    if kind == "line":
        x = np.linspace(0, 1, n)[:, None] * np.ones(d)
    return x * {"small": 1e-30, "large": 1e17}.get(kind, 1.0)


def scene(kind, n, k, d, dtype, seed):
    """Rows and centres of a kind: some rows are centres, some lie halfway between two."""
    r = np.random.default_rng([seed, d, k])
    both = points_of(kind, n + k, d, r).astype(dtype)
    x, centers = both[:n].copy(), both[n:].copy()
    centers[-1] = centers[0]
    x[1] = centers[k // 2]
    x[2] = (centers[0] + centers[k // 3]) / 2
    x[3] = np.nextafter(x[2], dtype(np.inf))
    return np.ascontiguousarray(x), pack_centers(centers, x.mean(axis=0).astype(dtype))


def clusters(n, k, d, r):
    centers = (30 * r.normal(size=(k, d))).astype(np.float32)
    x = centers[r.integers(k, size=n)] + r.normal(size=(n, d)).astype(np.float32)
    return x, pack_centers(centers, centers.mean(axis=0))


SIZES = [(2, 300, np.float32), (9, 300, np.float32), (32, 70, np.float64), (24, 90, np.float32)]


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *itertools.product(KINDS, SIZES[:2]),
        *itertools.product(["far", "outlier", KINDS[-1]], SIZES[2:]),
        *slow(*in_turns(KINDS, [*SIZES[2:], (8, 40, np.float64), (32, 20, np.float32)])),
    ],
)
def test_labels_are_those_of_the_dense_search(from_the_start, kind, size):
    d, k, dtype = size
    x, packed = scene(kind, 400 if COMPILED else 40, k, d, dtype, 1)
    found, n_evaluated = nearest_pruned(x, packed)
    np.testing.assert_array_equal(found, nearest(x, packed))
    if kind == "clusters" and COMPILED and k == 300:
        assert n_evaluated < 0.6 * len(x) * k


@pytest.mark.parametrize(("d", "k"), in_turns([2, 20], [1, 2, 17]))
def test_few_centres_and_no_rows(from_the_start, d, k):
    r = np.random.default_rng(k)
    x, centers = (r.normal(size=(n, d)).astype(np.float32) for n in (9, k))
    packed = pack_centers(centers, x.mean(axis=0))
    np.testing.assert_array_equal(nearest_pruned(x, packed)[0], nearest(x, packed))
    assert nearest_pruned(x[:0], packed)[0].shape == (0,)


def test_more_nodes_than_are_tested_at_once(from_the_start):
    """4,500 centres stand in 512 boxes, which are 32 nodes."""
    x, packed = clusters(40, 4_500, 9, np.random.default_rng(6))
    assert Boxes(packed).node_corners[0].size == 32 * 8
    labels, n_evaluated = nearest_pruned(x, packed)
    np.testing.assert_array_equal(labels, nearest(x, packed))
    assert n_evaluated < 0.1 * 40 * 4_500


def test_centres_whose_squares_are_nothing(from_the_start):
    """Lengths are not known then, so all are compared."""
    x, packed = scene("normal", 9, 20, 12, np.float64, 0)
    tiny = pack_centers(packed.centers * 1e-150, packed.shift * 1e-150)
    labels, n_evaluated = nearest_pruned(x * 1e-150, tiny)
    assert n_evaluated == 9 * 20
    np.testing.assert_array_equal(labels, nearest(x * 1e-150, tiny))


@pytest.mark.parametrize("d", [2, *slow(20)])
def test_rows_of_other_types_far_out_and_not_finite(from_the_start, d):
    r = np.random.default_rng(3)
    centers = (40 * r.normal(size=(200, d))).astype(np.float32)
    packed = pack_centers(centers, np.zeros(d, np.float32))
    x = np.repeat(centers[:50], 2, axis=0) + r.normal(size=(100, d)).astype(np.float32)
    whole = np.rint(x).astype(np.int16)
    np.testing.assert_array_equal(nearest_pruned(whole, packed)[0], nearest(whole, packed))
    turned = np.asfortranarray(x)
    np.testing.assert_array_equal(nearest_pruned(turned, packed)[0], nearest(x, packed))
    x[3], x[4, 0], x[5] = np.nan, np.inf, 1e19
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(nearest_pruned(x, packed)[0], nearest(x, packed))
        left = np.empty(len(x), np.int64)
        labels = np.empty(len(x), np.int32)
        _, n_left, _, _ = Boxes(packed).search(x, 0, len(x), np.inf, (labels,), left)
    assert set(left[:n_left]) >= {3, 4, 5}
    assert n_left < 20


@pytest.mark.parametrize(
    ("kind", "turn", "d"),
    every_two([kind for kind in KINDS if kind not in ("large", "far")], [0.0, 1e-5], [6, 24, 32]),
)
def test_points_are_no_farther_apart_than_rows_and_centres(monkeypatch, kind, turn, d):
    """But for the slack; also where directions are not quite orthonormal."""
    skewed = np.random.default_rng(0).normal(size=(d, 32)) * turn

    def directions(moved, make=boxes.directions):
        basis = make(moved)
        basis[:, :-1] += skewed[:, : basis.shape[1] - 1]
        return basis

    monkeypatch.setattr(boxes, "directions", directions)
    x, packed = scene(kind, 50, 90, d, np.float32, 5)
    made = Boxes(packed)
    width, direct = made.width, d <= 8
    points = made.columns.reshape(-1, width, 16).transpose(0, 2, 1).reshape(-1, width)
    real = np.abs(points).max(axis=1) < 2
    points, names = points[real].astype(np.float64), made.names[real]
    assert set(names) == set(range(90))
    slack = made.slack
    # 15 directions that are each off by 1e-5 a feature have ε = 15 sqrt(2) 1e-5 = 2.1e-4, and
    # 2 (ε + sqrt(2 ε)) is 0.0416
    assert slack.share < (0.045 if turn else 3e-6)
    for row in x:
        point, length = stored(row, made, direct)
        gaps = np.sqrt(((points - point) ** 2).sum(axis=1)) / made.scale
        true = np.sqrt(((row.astype(np.float64) - packed.centers[names]) ** 2).sum(axis=1))
        assert (gaps <= true * (1 + 1e-12) + slack.share * (length + made.reach)).all()


def stored(row, made, direct):
    """Where a row is put, and its length, as the kernel finds them."""
    out = np.empty(made.width + 1)
    flat = made.basis.reshape(-1)
    twins.rotate_rows(made.width, row, np.zeros(1, np.int64), made.shift, len(row), flat, out)
    if not direct:
        out[-2] = np.sqrt(max(out[-1] - (out[:-2] ** 2).sum(), 0))
    return (out[:-1] * made.scale).astype(np.float32).astype(np.float64), np.sqrt(out[-1])


def test_a_skewed_basis_needs_its_slack():
    """What is 1e-3 away from orthonormal says so."""
    basis = np.zeros((20, 8))
    basis[:7, :7] = np.eye(7)
    straight = Slack.of(np.dtype(np.float32), basis, False)
    basis[0, 1] = 1e-3
    # ε is sqrt(2) 1e-3, and most of the share is the root of the squares that are off by 2 ε
    root = 2 * np.sqrt(2 * np.sqrt(2) * 1e-3)
    assert Slack.of(np.dtype(np.float32), basis, False).share > root > 1e4 * straight.share


def test_an_adversary_puts_the_nearest_centre_just_within_the_limit(from_the_start):
    """All centres but one as far as the guess, by nothing but rounding; boxes touch each other."""
    r = np.random.default_rng(8)
    n = 200 if COMPILED else 20
    for d in (7, 32):
        sphere = r.normal(size=(256, d))
        sphere /= np.sqrt((sphere**2).sum(axis=1))[:, None]
        x = (1e-6 * r.normal(size=(n, d))).astype(np.float32)
        packed = pack_centers(sphere.astype(np.float32), np.zeros(d, np.float32))
        np.testing.assert_array_equal(nearest_pruned(x, packed)[0], nearest(x, packed))


def test_centres_that_the_compute_type_cannot_tell_apart(from_the_start):
    """With few features it decides: also where the better of two was found after the other."""
    r = np.random.default_rng(11)
    n = 2_000 if COMPILED else 60
    centers = (4 + r.random((80, 3))).astype(np.float32)
    twins_of = np.nextafter(centers, np.float32(9))
    both = np.where(r.random((80, 1)) < 0.5, [centers, twins_of], [twins_of, centers])
    packed = pack_centers(both.reshape(160, 3).astype(np.float32), np.zeros(3, np.float32))
    x = (12 + r.random((n, 3))).astype(np.float32)
    labels, left = np.empty(n, np.int32), np.empty(n, np.int64)
    _, n_left, _, _ = Boxes(packed).search(x, 0, n, np.inf, (labels,), left)
    # whatever is found first, a row is as near to the other as can be told
    assert n_left == n
    np.testing.assert_array_equal(nearest_pruned(x, packed)[0], nearest(x, packed))


def test_what_takes_longer_than_it_may_is_stopped(from_the_start):
    x, packed = clusters(20, 60, 9, np.random.default_rng(1))
    labels, left = np.full(20, -1, np.int32), np.empty(20, np.int64)
    stopped, n_left, _, _ = Boxes(packed).search(x, 5, 20, 4.5 * boxes.ROW, (labels,), left)
    assert (stopped, n_left) == (5, 0)
    assert (labels == -1).all()


def test_blocks_before_it_was_stopped_have_labels(from_the_start):
    r = np.random.default_rng(2)
    n = 3 * box_search.MOST_ROWS if COMPILED else 64
    x, packed = clusters(n, 60, 9, r)
    # rows of later blocks lie far out, and are told of only if all of their block was done
    far = [*([box_search.MOST_ROWS + 3] if COMPILED else []), *range(n - 5, n)]
    x[far] = 1e19
    labels, left = np.full(n, -1, np.int32), np.empty(n, np.int64)
    made = Boxes(packed)
    with np.errstate(all="ignore"):
        stopped, n_left, _, _ = made.search(x, 0, n, np.inf, (labels,), left)
    assert (stopped, left[:n_left].tolist()) == (n, far)
    if not COMPILED:
        return
    labels[:] = -1
    # a block takes more than this, but not twice as much
    work = box_search.MOST_ROWS * (boxes.ROW + 2 * boxes.BOXES * 16 * made.width)
    stopped, n_left, _, _ = made.search(x, 0, n, 2 * work, (labels,), left)
    assert (stopped, n_left) == (box_search.MOST_ROWS, 0)
    np.testing.assert_array_equal(labels[:stopped], nearest(x[:stopped], packed))
    assert (labels[stopped:] == -1).all()


# --- micro-kernels and their twins ---------------------------------------------------------------


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_emitted_kernels_and_their_twins(width, dtype):
    turn = emitted.rotate_rows
    points_within, boxes_within = emitted.points_within, emitted.boxes_within

    @njit
    def moved(rows, places, shift, d, basis, out):
        turn(width, rows, places, shift, d, basis, out)

    @njit
    def points(columns, at, point, limit, out):
        return points_within(width, columns, at, point, limit, out)

    @njit
    def inside(low, high, at, point, limit, out, out_at):
        return boxes_within(width, low, high, at, point, limit, out, out_at)

    r = np.random.default_rng(width)
    d, size = 13, 16 * width
    rows, shift = r.integers(-9, 9, 40).astype(dtype), r.integers(-9, 9, d) * 0.5
    basis = r.integers(-9, 9, d * width).astype(np.float64)
    outs, places = np.zeros((2, 4 * (width + 1))), np.array([5, 18, 0, 27])
    moved(rows, places, shift, d, basis, outs[0])
    twins.rotate_rows(width, rows, places, shift, d, basis, outs[1])
    np.testing.assert_array_equal(*outs)
    third = rows[:d] - shift
    np.testing.assert_array_equal(outs[0].reshape(4, -1)[2, :-1], third @ basis.reshape(d, width))
    assert outs[0].reshape(4, -1)[2, -1] == third @ third
    low = r.integers(-9, 9, 2 * size).astype(np.float32)
    high = low + r.integers(0, 9, 2 * size).astype(np.float32)
    point = r.integers(-9, 9, width).astype(np.float32)
    for share in (0.0, 0.5, 1.0):
        found = np.zeros((2, 32), np.float32)
        twins.points_within(width, low, size, point, np.float32(0), found[1])
        limit = np.float32(np.quantile(found[1, :16], share))
        bits = points(low, size, point, limit, found[0])
        assert bits == twins.points_within(width, low, size, point, limit, found[1])
        np.testing.assert_array_equal(found[0], found[1])
        assert bits == sum(1 << j for j in range(16) if found[0, j] <= limit)
        bits = inside(low, high, size, point, limit, found[0], 16)
        assert bits == twins.boxes_within(width, low, high, size, point, limit, found[1], 16)
        np.testing.assert_array_equal(found[0], found[1])


def test_what_is_left_of_many_rows_and_its_twins():
    each_within, gap_square = emitted.each_within, emitted.gap_square
    listed_bits = emitted.list_set_bits

    @njit
    def within(values, at, limits, limits_at):
        return each_within(values, at, limits, limits_at)

    @njit
    def gap(points, at, others, others_at, count):
        return gap_square(points, at, others, others_at, count)

    @njit
    def listed(mask, base, out, at, table, sizes):
        return listed_bits(mask, base, out, at, table, sizes)

    r = np.random.default_rng(1)
    one, other = (r.integers(-9, 9, 200).astype(np.float32) for _ in range(2))
    one[20] = np.nan
    bits = within(one, 10, other, 40)
    assert bits == twins.each_within(one, 10, other, 40)
    assert bits == sum(1 << j for j in range(16) if one[10 + j] <= other[40 + j])
    assert 0 < bits.bit_count() < 16
    for count in (16, 48, 64, 144):
        found = gap(one, 21, other, 5, count)
        assert found == twins.gap_square(one, 21, other, 5, count)
        assert found == ((one[21 : 21 + count] - other[5 : 5 + count]) ** 2).sum()
    for mask in (0, 1, 1 << 15, 0b1000_0001_0111_0000, (1 << 16) - 1):
        out, twin = np.full((2, 40), -7, np.int32)
        end = listed(mask, np.int32(100), out, 3, *box_search.BITS)
        assert end == twins.list_set_bits(mask, 100, twin, 3, *box_search.BITS)
        assert out[3:end].tolist() == [100 + j for j in range(16) if mask >> j & 1]
        # no more than sixteen places are written to
        assert (out[:3] == -7).all()
        assert (out[19:] == -7).all()
        np.testing.assert_array_equal(out[3:end], twin[3:end])
