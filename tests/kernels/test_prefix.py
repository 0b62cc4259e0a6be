"""Centres in few directions: labels of the dense search, bounds that hold, rows that are left."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds import prefix as prefix_module
from largek_dask.kernels.bounds import prefix_search
from largek_dask.kernels.bounds.prefix import Margin, Prefix, principal_directions
from largek_dask.kernels.dense.panels import PAD
from largek_dask.kernels.distances import nearest, nearest_two, pack_centers
from largek_dask.kernels.emit import rows as emitted
from largek_dask.kernels.emit.dense import scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.projection import orthonormal
from largek_dask.kernels.tile import MINIMA, Micro
from tests.helpers.covering import every_two, in_turns, slow

COMPILED = not numba.config.DISABLE_JIT

KINDS = ["normal", "groups", "grid", "equal", "far", "outlier", "small", "large", "plane", "ties"]
DIRECTIONS = ["principal", "random", "one", "skewed", "scaled", "all"]
SIZES = [(33, 300, "f4"), (70, 90, "f8"), (270, 40, "f4"), (40, 3, "f4"), (64, 1, "f8")]
if not COMPILED:
    SIZES = [(33, 30, "f4"), (40, 1, "f8")]
MANY = [size for size in SIZES if size[1] > PAD]
"""The two nearest are found among the centres of several tiles."""


def scene(kind, n, k, d, dtype, seed=0):
    """Rows and centres: some rows are centres, some lie halfway between two, or nearly."""
    r = np.random.default_rng([seed, d, k])
    x = r.normal(size=(n + k, d))
    if kind == "groups":
        x = 20 * r.normal(size=(7, d))[r.integers(7, size=n + k)] + x * (np.arange(d) < 5)
    elif kind == "grid":
        x = r.integers(0, 3, size=x.shape).astype(float)
    elif kind == "equal":
        x = np.repeat(x[:1], n + k, axis=0)
    elif kind == "far":  # a tight group, far from the shift
        x = 1e3 + 1e-2 * x
    elif kind == "outlier":
        x[[-1, 5]] = [[1e6], [3e6]]
    elif kind == "plane":  # the rest outside two directions is 0
        x = r.normal(size=(n + k, 2)) @ r.normal(size=(2, d))
    x = (x * {"small": 1e-10, "large": 1e13}.get(kind, 1.0)).astype(dtype)
    x, centers = x[:n].copy(), x[n:].copy()
    centers[-1] = centers[0]
    x[0], x[1], x[2] = 0, centers[k // 2], (centers[0] + centers[k // 3]) / 2
    x[3] = np.nextafter(x[2], x.dtype.type(np.inf))
    if kind == "ties":  # all centres as far as each other, but for rounding
        centers /= np.sqrt((centers.astype(float) ** 2).sum(axis=1))[:, None].astype(dtype)
        x *= x.dtype.type(1e-6)
    shift = np.zeros(d, dtype) if kind in ("far", "ties") else x.mean(axis=0)
    return np.ascontiguousarray(x), pack_centers(centers, shift.astype(dtype))


def directions_of(name, packed, p):
    r, d, dtype = np.random.default_rng(p), packed.n_features, packed.dtype
    if name == "principal":
        return principal_directions(packed.values, p)
    if name == "one":
        return orthonormal(r.normal(size=(1, d))).astype(dtype)
    basis = orthonormal(r.normal(size=(d if name == "all" else p, d)))
    if name == "skewed":
        basis[1] += 1e-4 * basis[0]
    if name == "scaled":
        basis[1] *= 1.1
    return basis.astype(dtype)


def searched(prefix, x, packed):
    """Labels, those of rows that are left included; which are left; distances computed."""
    labels, left = np.full(len(x), -1, np.int32), np.empty(len(x), np.int64)
    stopped, n_left, n_evaluated, work = prefix.search(x, 0, len(x), (labels,), left)
    assert stopped == len(x)
    assert work > 0
    rows = left[:n_left]
    assert (labels[rows] == -1).all()
    with np.errstate(all="ignore"):
        labels[rows] = nearest(x[rows], packed)
    return labels, rows, n_evaluated


@pytest.mark.parametrize(("kind", "name", "size"), every_two(KINDS, DIRECTIONS, SIZES))
def test_labels_are_those_of_the_dense_search(kind, name, size, monkeypatch):
    d, k, dtype = size
    monkeypatch.setattr(prefix_module, "FEWEST_MET", k)
    x, packed = scene(kind, 150 if COMPILED else 9, k, d, np.dtype(dtype))
    prefix = Prefix(packed, directions_of(name, packed, 8))
    labels, left, n_evaluated = searched(prefix, x, packed)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(labels, nearest(x, packed))
    if name == "scaled":  # no centre is skipped, and any row may be left
        assert n_evaluated == (len(x) - len(left)) * k
    elif kind == "groups" and COMPILED and k > 40:
        assert len(left) == 0
        assert n_evaluated < 0.6 * len(x) * k


@pytest.mark.parametrize(("kind", "name", "size"), every_two(KINDS, DIRECTIONS, MANY))
def test_the_two_nearest_are_those_of_the_dense_search(kind, name, size, monkeypatch):
    """Labels and squared distances, to the bit where they are compiled."""
    d, k, dtype = size
    monkeypatch.setattr(prefix_module, "FEWEST_MET", k)
    x, packed = scene(kind, 150 if COMPILED else 9, k, d, np.dtype(dtype))
    with np.errstate(all="ignore"):
        expected = nearest_two(x, packed)
        out, left = tuple(np.full_like(part, -2) for part in expected), np.empty(len(x), np.int64)
        prefix = Prefix(packed, directions_of(name, packed, 8))
        _, n_left, n_evaluated, _ = prefix.search(x, 0, len(x), out, left)
    rows = np.setdiff1d(np.arange(len(x)), left[:n_left])
    assert len(rows) + n_left == len(x)
    for found, dense in zip(out, expected, strict=True):
        assert (found[left[:n_left]] == -2).all()
        if COMPILED:
            np.testing.assert_array_equal(found[rows], dense[rows])
    if not COMPILED:  # (scores are added in another order, so near ones may change places)
        scale = float(((x.astype(float) - packed.shift) ** 2).sum(axis=1).max())
        np.testing.assert_allclose(out[1][rows], expected[1][rows], rtol=1e-3, atol=1e-5 * scale)
    if name == "scaled":  # no centre is skipped
        assert n_evaluated == len(rows) * (k + 2)
    elif kind == "groups" and COMPILED and k > 40:
        assert n_left == 0
        assert n_evaluated < 0.8 * len(x) * k


def test_a_panel_meets_no_more_centres_than_a_dense_one_costs():
    """Rows among 25 centres leave 24 open: one of a panel does not matter, all of them do."""
    r, d, k = np.random.default_rng(2), 40, 200
    centers = 100 * r.normal(size=(k, d)).astype("f4")
    centers[:25] = centers[0] + 1e-3 * r.normal(size=(25, d)).astype("f4")
    packed = pack_centers(centers, centers.mean(axis=0))
    prefix = Prefix(packed, principal_directions(packed.values, 8))
    assert prefix.most // 4 < 24 < prefix.most
    width = prefix.tile.vectors * prefix.tile.lanes
    x = centers[25 : 25 + width].copy()
    x[3] = centers[0]
    assert len(searched(prefix, x, packed)[1]) == 0
    assert len(searched(prefix, np.repeat(centers[:1], width, axis=0), packed)[1]) == width


def test_rows_that_open_most_tiles_are_left():
    """All of a panel, before their centres are counted."""
    r, d, k = np.random.default_rng(3), 40, 2_000
    packed = pack_centers(r.normal(size=(k, d)).astype("f4"), np.zeros(d, "f4"))
    prefix = Prefix(packed, principal_directions(packed.values, 8))
    assert prefix.most < k // 8, "fewer than there are tiles"
    x = 3 * r.normal(size=(prefix.tile.vectors * prefix.tile.lanes, d)).astype("f4")
    labels, left, n_evaluated = searched(prefix, x, packed)
    assert (len(left), n_evaluated) == (len(x), 0)
    np.testing.assert_array_equal(labels, nearest(x, packed))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("gap", [1e-2, *slow(1e-4), 1e-6])
def test_tight_groups_of_many_features(monkeypatch, dtype, gap):
    """Distances of ``gap`` times the squared length, down to where bounds are useless."""
    monkeypatch.setattr(prefix_module, "FEWEST_MET", 60)
    r, d, k = np.random.default_rng(1), 400 if COMPILED else 130, 60
    places = r.normal(size=(3, d)) / np.sqrt(d)
    spread = np.sqrt(gap / d)
    centers = places[np.arange(k) % 3] + spread * r.normal(size=(k, d))
    x = places[r.integers(3, size=60)] + spread * r.normal(size=(60, d))
    packed = pack_centers(centers.astype(dtype), np.zeros(d, dtype))
    prefix = Prefix(packed, principal_directions(packed.values, 16))
    labels, left, n_evaluated = searched(prefix, x.astype(dtype), packed)
    np.testing.assert_array_equal(labels, nearest(x.astype(dtype), packed))
    if dtype == "f8":
        assert len(left) == 0
        assert n_evaluated < 0.4 * 60 * k


@pytest.mark.parametrize(("kind", "name"), in_turns(KINDS, DIRECTIONS))
def test_no_bound_is_above_its_distance(kind, name):
    """The border of a centre's own distance is never below its score, computed in float32."""
    d, k = (150, 90) if COMPILED else (40, 20)
    x, packed = scene(kind, 40, k, d, np.dtype("f4"), 3)
    directions = directions_of(name, packed, 16)
    prefix = Prefix(packed, directions)
    starts, factors = prefix.arrays.starts, prefix.arrays.factors.reshape(-1, prefix.p + 1)

    @njit
    def border(square, norm, margin):
        return prefix_search._border(square, norm, margin)

    margin, p = prefix.margin, prefix.p
    for row in x:
        exact = row.astype(float) - packed.shift
        true = ((row.astype(float) - packed.centers) ** 2).sum(axis=1)
        # as far off as each step may be, in the direction that skips too many
        seen = prefix_module._project_blocks((row - packed.shift)[None], directions)
        square = (exact**2).sum() * (1 - margin.wide / 4)
        tail = np.sqrt(max(square - (seen**2).sum(), 0) + margin.left_out * square)
        point = np.append(seen[0], tail).astype("f4")
        scores = starts[:k].copy()
        for f in range(p + 1):
            scores = scores + point[f] * factors[:k, f]
        borders = [border(distance * (1 - margin.wide / 4), square, margin) for distance in true]
        assert (scores <= np.array(borders)).all()


def test_directions_that_are_not_orthonormal_widen_the_margin():
    straight = np.eye(8, 40, dtype="f4")
    skewed, scaled = straight.copy(), straight.copy()
    skewed[0, 1], scaled[0, 0] = 1e-3, 1.1
    margins = [Margin.of(vectors, 1.0) for vectors in (straight, skewed, scaled)]
    # ε is sqrt(2) 1e-3, and scores are off by four times as much
    assert margins[1].turned > 5.6e-3 > 100 * margins[0].turned
    assert margins[2].product == np.inf
    assert all(a.left_out < b.left_out for a, b in itertools.pairwise(margins))


def test_rows_far_out_not_finite_or_with_many_centres_open_are_left():
    r, k, d = np.random.default_rng(2), 200, 40
    centers = (30 * r.normal(size=(k, d))).astype("f4")
    centers[:100] = 7 + 1e-3 * r.normal(size=(100, d))
    packed = pack_centers(centers, np.zeros(d, "f4"))
    x = centers[100 + np.arange(100) % 100] + r.normal(size=(100, d)).astype("f4")
    x[3], x[4, 0], x[5], x[7] = np.nan, np.inf, 1e16, 7.0
    with np.errstate(all="ignore"):
        labels, left, n_evaluated = searched(
            Prefix(packed, principal_directions(centers, 8)), x, packed
        )
        np.testing.assert_array_equal(labels, nearest(x, packed))
    assert left.tolist() == [3, 4, 5, 7]
    assert n_evaluated < 5 * 96


def test_where_nearly_all_tiles_are_open_the_panel_is_left():
    """Instead of computing bounds again, row by row, for nothing."""
    r, k, d = np.random.default_rng(3), 400 if COMPILED else 160, 64
    x, centers = (r.normal(size=(n, d)).astype("f4") for n in (60, k))
    packed = pack_centers(centers, np.zeros(d, "f4"))
    _, left, n_evaluated = searched(Prefix(packed, np.eye(8, d, dtype="f4")), x, packed)
    assert len(left) == 60
    assert n_evaluated == 0


def test_principal_directions_keep_most_of_the_variance():
    r = np.random.default_rng(5)
    x = (r.normal(size=(700, 12)) * 2.0 ** -np.arange(12)) @ orthonormal(r.normal(size=(12, 60)))
    x = (x + 3).astype("f4")
    apart = x.astype(float) - x.mean(axis=0)
    most = (np.linalg.svd(apart, compute_uv=False) ** 2).cumsum()

    def kept(vectors):
        return ((apart @ vectors.T) ** 2).sum(axis=0).cumsum()

    found = principal_directions(x, 4)
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-5)
    assert (kept(found) > 0.97 * most[:4]).all()
    again = principal_directions(x, 4, found)
    assert (kept(again) > 0.99 * most[:4]).all()
    more = principal_directions(x, 8, found)
    assert (kept(more) > 0.97 * most[:8]).all()
    # points in fewer dimensions than there are directions
    assert principal_directions(np.ones((9, 20), "f4"), 8).shape == (8, 20)


# --- micro-kernels and their twins ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_smallest_scores_of_tiles_and_which_centres_they_are(dtype):
    centres, vectors, lanes, d, k = 4, 2, 4, 11, 24
    spec, width = Micro(centres, vectors, lanes, MINIMA).code, vectors * lanes
    tile_within = emitted.tile_within

    @njit
    def met(panel, centers, starts, values, labels, minima):
        scan(
            spec, panel, 0, centers, 11, 0, 11, starts, 0, 6, values, labels, 0, minima, 0, panel,
            -1,
        )  # fmt: skip

    @njit
    def within(panel, q, columns, starts, first, limit):
        return tile_within(4, panel, q, 8, columns, 11, starts, first, limit)

    r = np.random.default_rng(1)
    panel, centers = (r.integers(-9, 9, n).astype(dtype) for n in (d * width, k * d))
    starts = r.integers(0, 9, k).astype(dtype)
    starts[20:] = np.inf
    scores = starts[:, None] + centers.reshape(k, d) @ panel.reshape(d, width)
    values, minima = np.full(width, np.inf, dtype), np.empty(6 * width, dtype)
    labels = np.zeros(width, np.int32 if dtype == "f4" else np.int64)
    met(panel, centers, starts, values, labels, minima)
    np.testing.assert_array_equal(minima.reshape(6, width), scores.reshape(6, 4, width).min(axis=1))
    np.testing.assert_array_equal(values, scores.min(axis=0))
    np.testing.assert_array_equal(labels, scores.argmin(axis=0) // 4 * 4)
    columns = centers.reshape(3, 8, d).transpose(0, 2, 1).ravel()
    for q in range(width):
        for first in range(0, k, 4):
            own = scores[first : first + 4, q]
            for limit in (*own, own.min() - 1):
                bits = within(panel, q, columns, starts, first, limit)
                assert bits == sum(1 << j for j in range(4) if own[j] <= limit)


@pytest.mark.parametrize(("dtype", "d"), [("f4", 1), ("f4", 16), ("f4", 45), ("f8", 7), ("f8", 40)])
def test_near_squares(dtype, d):
    near, four = emitted.near_square, emitted.four_near_squares

    @njit
    def one(rows, at, centers, c, d):
        return near(rows, at, centers, c * d, d)

    @njit
    def quad(rows, at, centers, names, d, out):
        four(rows, at, centers, names, d, out)

    r = np.random.default_rng(d)
    rows, centers = (r.integers(-9, 9, n * d).astype(dtype) for n in (3, 6))
    rows[:d] = rows[2 * d :] = np.nan  # what lies around the row is not touched
    names, out = np.array([5, 0, 5, 3], np.int32), np.empty(4, dtype)
    quad(readonly(rows), d, readonly(centers), names, d, out)
    expected = ((rows[d : 2 * d] - centers.reshape(6, d)) ** 2).sum(axis=1)
    np.testing.assert_array_equal(out, expected[names])
    assert [one(rows, d, centers, c, d) for c in range(6)] == expected.tolist()
