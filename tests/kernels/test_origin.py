"""The origin serves the many: few rows far out neither draw it away nor cost the others digits."""

from __future__ import annotations

import pickle

import numba
import numpy as np
import pytest

from largek_dask.kernels import distances
from largek_dask.kernels.dense import search as dense
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.exact import origin
from largek_dask.kernels.exact.origin import DistinctRows, Middle
from largek_dask.kernels.exact.statistics import RowScan
from largek_dask.kernels.rows import compute_dtype, native_blocks
from tests import oracles
from tests.helpers.covering import in_turns

COMPILED = not numba.config.DISABLE_JIT
N = 4_000 if COMPILED else 400
K = 10


def sample_of(x, step=None, order=None):
    """The sample of rows in chunks, each by itself, merged in any order."""
    parts = []
    for begin in range(0, len(x), step or len(x)):
        part = DistinctRows(x.shape[1], compute_dtype(x.dtype))
        for _, block in native_blocks(x[begin : begin + (step or len(x))]):
            part.add(block)
        parts.append(pickle.loads(pickle.dumps(part)))
    whole = DistinctRows(x.shape[1], compute_dtype(x.dtype))
    for part in parts if order is None else [parts[i] for i in order]:
        whole.merge(part)
    return whole.rows


def scanned(x, weight=None, step=None):
    scan = RowScan(x.shape[1], x.dtype)
    for begin in range(0, len(x), step or len(x)):
        rows = slice(begin, begin + (step or len(x)))
        scan.add(x[rows], None if weight is None else weight[rows], begin)
    return scan.finish()


def rounded_mean(x):
    return x.astype(np.float64).mean(axis=0).astype(compute_dtype(x.dtype))


def doubts_of(x, packed, monkeypatch):
    """Labels, and how many rows the search has left in doubt."""
    found, run = [], distances._run

    def counted(*args):
        doubtful = run(*args)
        found.append(len(doubtful[0]))
        return doubtful

    with monkeypatch.context() as patch:
        patch.setattr(dense, "LITTLE", 0)  # else few are decided before they are counted
        patch.setattr(distances, "_run", counted)
        labels = nearest(x, packed)
    assert found, "the dense search has not been asked"
    return labels, sum(found)


# --- the sample


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i2", "f2", "i8", "?"])
def test_the_rows_of_the_smallest_hashes(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 5))
    x = x > 0 if dtype == "?" else (30 * x).astype(dtype)
    found = sample_of(x)
    native = x.view("u1") if dtype == "?" else x.astype({"f2": "f4", "i8": "f8"}.get(dtype, dtype))
    by_hash = {oracles.row_hash(row): row for row in native}
    expected = [by_hash[h] for h in sorted(by_hash)[: origin.MOST_ROWS]]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == compute_dtype(x.dtype)
    assert len(found) == (origin.MOST_ROWS if dtype != "?" else 32)


@pytest.mark.parametrize("dtype", ["f4", "u1"])
def test_neither_order_nor_chunks_nor_repeats_change_the_sample(dtype):
    rng = np.random.default_rng(1)
    x = (30 * rng.normal(size=(N, 9))).astype(dtype)
    expected = sample_of(x)
    for step in (1, 7, 100, 1_024) if N < 1_000 else (37, 1_024):
        order = rng.permutation(-(-N // step))
        np.testing.assert_array_equal(sample_of(x, step, order), expected)
    shuffled = np.repeat(x, rng.integers(1, 4, N), axis=0)
    np.testing.assert_array_equal(sample_of(rng.permutation(shuffled), 300), expected)


def test_of_long_rows_few_are_kept():
    for d, size in ((1, 256), (1_024, 256), (1_025, 255), (16_384, 16), (100_000, 16)):
        assert DistinctRows(d, np.dtype("f4")).size == size


# --- the origin


def bulk(d, dtype="f4", n=N):
    rng = np.random.default_rng(d)
    return rng.normal(size=(n, d)).astype(dtype)


@pytest.mark.parametrize(("d", "far"), in_turns([9, 32, 64], [1e8, 1e4, 1e6]))
def test_one_far_outlier_leaves_no_other_row_in_doubt(d, far, monkeypatch):
    x = bulk(d)
    centers = x[:K].copy()
    x[N // 2] = far
    centers[K - 1] = far
    found = scanned(x)
    labels, n_doubtful = doubts_of(x, pack_centers(centers, found.shift), monkeypatch)
    np.testing.assert_array_equal(labels, oracles.squared_distances(x, centers).argmin(axis=1))
    assert n_doubtful <= 0.002 * N + 1
    if far == 1e8:
        about_mean = pack_centers(centers, rounded_mean(x))
        same, n_before = doubts_of(x, about_mean, monkeypatch)
        np.testing.assert_array_equal(labels, same)
        assert n_before > 0.9 * N, "about the mean no row is in doubt: nothing has been tested"


@pytest.mark.parametrize("share", [0.01, 0.2, 0.4])
def test_many_outliers_are_still_few(share, monkeypatch):
    x = bulk(16)
    rng = np.random.default_rng(3)
    out = rng.random(N) < share
    x[out] = 1e7 * (1 + rng.random((out.sum(), 16)))
    centers = x[~out][:K]
    found = scanned(x)
    labels, n_doubtful = doubts_of(x[~out], pack_centers(centers, found.shift), monkeypatch)
    assert n_doubtful <= 0.002 * N
    squares = oracles.squared_distances(x[~out], centers)
    np.testing.assert_array_equal(labels, squares.argmin(axis=1))
    _, n_before = doubts_of(x[~out], pack_centers(centers, rounded_mean(x)), monkeypatch)
    assert n_before > 0.9 * (~out).sum(), "about the mean no row is in doubt"


WITHOUT = {
    "one cluster": lambda r, d: r.normal(size=(N, d)),
    "clusters": lambda r, d: (
        (6 * r.normal(size=(12, d)))[r.integers(12, size=N)] + r.normal(size=(N, d))
    ),
    "two far apart": lambda r, d: 20 * r.integers(2, size=(N, 1)) + r.normal(size=(N, d)),
    "two unequal": lambda r, d: 20 * (r.random((N, 1)) < 0.3) + r.normal(size=(N, d)),
    "tight groups": lambda r, d: (
        r.uniform(-10, 10, (30, d))[r.integers(30, size=N)] + 0.003 * r.normal(size=(N, d))
    ),
    "columns of all sizes": lambda r, d: r.normal(size=(N, d)) * 10.0 ** r.uniform(-3, 3, d),
    "far from 0": lambda r, d: 1e5 + r.normal(size=(N, d)),
    "log-normal": lambda r, d: r.lognormal(0, 1.5, (N, d)),
    "Student's t": lambda r, d: r.standard_t(2, (N, d)),
    "rare ones": lambda r, d: (r.random((N, d)) < 0.1).astype("u1"),
}


@pytest.mark.parametrize(("dtype", "d", "kind"), in_turns(["f4", "f8"], [9, 64], list(WITHOUT)))
def test_without_outliers_it_is_the_mean(kind, d, dtype):
    x = WITHOUT[kind](np.random.default_rng(4), d)
    x = x.astype(dtype) if x.dtype.kind == "f" else x
    found = scanned(x)
    mean = found.mean if x.dtype.kind == "f" else np.rint(found.mean)
    np.testing.assert_array_equal(found.shift, mean.astype(found.dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_what_counts_are_distinct_rows_of_positive_weight(dtype):
    """Neither weights, nor repeats, nor the order or the chunks change the origin."""
    x = np.rint(100 * bulk(20)).astype(dtype)
    x[5] = 30_000 if dtype == "i2" else 1e17
    rng = np.random.default_rng(5)
    times = rng.integers(0, 4, N)
    times[5] = 900 if dtype == "i2" else 3
    weighted = scanned(x, times.astype(np.float64), 300)
    repeated = scanned(rng.permutation(np.repeat(x, times, axis=0)))
    np.testing.assert_array_equal(weighted.shift, repeated.shift)
    assert weighted.grid.bits == repeated.grid.bits
    about = rounded_mean(np.repeat(x, times, axis=0))
    assert np.abs(weighted.shift - about).min() > 100, "it is about the mean: nothing is tested"
    assert (weighted.shift == np.rint(weighted.shift)).all()
    halved = scanned(x, times / 2)
    np.testing.assert_array_equal(halved.shift, weighted.shift)


def test_of_few_features_sums_are_all_that_may_lose_digits():
    x = bulk(8)
    x[3] = 1e6
    np.testing.assert_array_equal(scanned(x).shift, rounded_mean(x))
    x[3] = 1e15
    assert np.abs(scanned(x).shift).max() < 1


def test_fewer_rows_tell_nothing():
    x = bulk(12, n=16)
    x[3] = 1e12
    assert np.abs(scanned(x).shift).max() < 10
    np.testing.assert_array_equal(scanned(x[:15]).shift, rounded_mean(x[:15]))


def test_half_of_the_rows_lie_within_the_spread():
    middle = Middle(bulk(50)[:255])
    squares = oracles.squared_distances(middle._rows, middle.point[None])[:, 0]
    assert middle.square == pytest.approx(np.median(squares))
    assert 0.9 < middle.spread < 1.1
