"""What `auto` says of every row is what a search through all centres finds: 30 sets of rows."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from tests.helpers.covering import in_turns, slow


def drawn(seed):
    """Rows of a random shape, number of clusters, dtype, weights and spread."""
    r = np.random.default_rng(seed)
    n, d = int(r.integers(1_001, 6_000)), int(r.choice([1, 2, 3, 7, 8, 9, 16, 33, 70]))
    k = int(r.integers(2, 300))
    m = int(r.integers(1, 2 * k))
    x = 10.0 ** r.uniform(-1, 1) * r.normal(size=(m, d))[r.integers(m, size=n)]
    x += r.normal(size=(n, d)) + 10.0 ** r.uniform(-2, 2)
    dtype = r.choice(["f4", "f8", "u1"])
    x = np.clip(np.abs(16 * x), 0, 255).astype("u1") if dtype == "u1" else x.astype(dtype)
    weight = r.exponential(size=n) if r.random() < 0.3 else None
    return x, k, weight


def sorted_by_class(r):
    return np.repeat(20 * r.normal(size=(50, 6)), 60, axis=0) + r.normal(size=(3000, 6)), 50


def heavy_tails(r):
    return r.standard_t(1.2, size=(3000, 8)), 120


def duplicates(r):
    return r.normal(size=(200, 10))[r.integers(200, size=4000)], 150


def one_outlier(r):
    x = r.normal(size=(3000, 12))
    x[7] = 1e5
    return x, 64


def far_from_the_origin(r):
    return r.normal(size=(3000, 12)) + 1e4, 100


def on_a_line(r):
    return np.outer(r.random(3000), np.arange(1, 13)), 90


def lattice(r):
    """Every row is as far from several centres."""
    return r.integers(0, 4, (3000, 5)).astype(float), 200


def very_unequal(r):
    big = r.normal(scale=0.01, size=(2900, 9))
    return np.concatenate([big, 100 * r.normal(size=(100, 9))]), 110


def one_blob_without_structure(r):
    return r.random((3000, 20)), 256


def nearly_as_many_clusters_as_rows(r):
    return r.normal(size=(1200, 6)), 1_100


ADVERSARIAL = (
    sorted_by_class,
    heavy_tails,
    duplicates,
    one_outlier,
    far_from_the_origin,
    on_a_line,
    lattice,
    very_unequal,
    one_blob_without_structure,
    nearly_as_many_clusters_as_rows,
)


def check(x, k, weight=None):
    km = lk.KMeans(k, random_state=0).fit(x, sample_weight=weight)
    centers = km.cluster_centers_.astype(np.float64)
    x = x.astype(np.float64)
    squares = np.stack([((x - center) ** 2).sum(axis=1) for center in centers], axis=1)
    nearest = squares.min(axis=1)
    own = squares[np.arange(len(x)), km.labels_]
    # Of two centres that rounding cannot tell apart either will do: kernels compute about the mean.
    eps = np.finfo(km.cluster_centers_.dtype).eps
    error = 16 * eps * (((x - x.mean(axis=0)) ** 2).sum(axis=1) + nearest)
    assert (own <= nearest + error).all()
    surely = np.sort(squares, axis=1)[:, 1] > nearest + error
    assert surely.mean() > 0.5 or len(np.unique(x, axis=0)) < len(x), "nothing has been compared"
    np.testing.assert_array_equal(km.labels_[surely], squares.argmin(axis=1)[surely])
    own_inertia = (own if weight is None else weight * own).sum()
    np.testing.assert_allclose(km.inertia_, own_inertia, rtol=1e-5, atol=error.sum())
    if len(np.unique(x, axis=0)) >= k:
        assert len(np.unique(km.labels_)) == k
    return km


# Those first are of every dtype, and of more than 8 features: others have kernels of their own.
@pytest.mark.parametrize("seed", [0, 4, 9, 14, *slow(*range(1, 20, 4))])
def test_random_sets(seed):
    check(*drawn(seed))


@pytest.mark.parametrize(
    ("make", "dtype"),
    [*((make, "f4") for make in ADVERSARIAL), *slow(*((make, "f8") for make in ADVERSARIAL[::3]))],
)
def test_adversarial_sets(make, dtype):
    x, k = make(np.random.default_rng(0))
    km = check(x.astype(dtype), k)
    assert km.model_.provenance["engine"]["name"] == "Truncated"


def tight(d, spread, dtype, n=1_500):
    """30 groups at extent 10, in each of which the rows lie close together."""
    r = np.random.default_rng(d)
    middles = r.uniform(-10, 10, size=(30, d))
    return (middles[r.integers(30, size=n)] + spread * r.normal(size=(n, d))).astype(dtype)


def assert_nearest(x, centers, labels):
    """No row is nearer to another centre, but for the rounding of sums (x - c)² themselves."""
    centers, x = centers.astype(np.float64), x.astype(np.float64)
    squares = np.stack([((x - center) ** 2).sum(axis=1) for center in centers], axis=1)
    own = squares[np.arange(len(x)), labels]
    assert (own <= squares.min(axis=1) * (1 + 2 * (x.shape[1] + 4) * 2.0**-52)).all()


def products_err(x, centers):
    """Whether |x|² - 2 x·c + |c|² about the mean would put rows elsewhere."""
    x, centers = x - x.mean(axis=0), centers - x.mean(axis=0)
    d2 = (centers**2).sum(axis=1) - 2 * (x @ centers.T)
    own = ((x - centers[d2.argmin(axis=1)]) ** 2).sum(axis=1)
    nearest = np.min([((x - center) ** 2).sum(axis=1) for center in centers], axis=0)
    return bool((own > 1.01 * nearest).any())


@pytest.mark.parametrize(
    ("algorithm", "k", "rows"),
    in_turns(
        ["auto", "lloyd", "minibatch", "nmbatch", "truncated", "incremental"],
        [8, 60, 200],
        [(9, 3e-3, "f4"), (17, 1e-1, "f4"), (64, 1e-3, "f4"), (300, 1e-2, "f4"), (9, 1e-9, "f8")],
    ),
)
def test_tight_groups_far_apart(algorithm, rows, k):
    _, spread, _ = rows
    x = tight(*rows)
    km = lk.KMeans(k, algorithm=algorithm, random_state=0, max_iter=20).fit(x)
    assert_nearest(x, km.cluster_centers_, km.labels_)
    np.testing.assert_array_equal(km.predict(x), km.labels_)
    if k > 30 and spread < 0.1:
        assert products_err(x, km.cluster_centers_), "products would have done: nothing is tested"
