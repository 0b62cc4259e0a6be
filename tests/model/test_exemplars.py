"""Rows nearest to each centre, and farthest from it."""

from __future__ import annotations

from contextlib import ExitStack

import dask
import numpy as np
import pandas as pd
import pytest

import largek_dask as lk
from largek_dask.errors import ParameterError
from tests.conftest import make_client

N, D, K = 700, 4, 6


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(8)
    return rng.standard_normal((K, D))[rng.integers(0, K, N)] * 5 + rng.standard_normal((N, D))


@pytest.fixture(params=[None, "l2"], ids=["Euclidean", "cosine"])
def model(request, x):
    return lk.KMeans(K, random_state=0, normalize=request.param).fit(x).model_


def expected(model, x, n):
    """Rows by numpy: nearest and farthest of each cluster."""
    labels, centers = model.predict(x), model.centers
    if model.normalize == "l2":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        centers = centers / np.linalg.norm(centers, axis=1, keepdims=True)
    distances = np.linalg.norm(x - centers[labels], axis=1)
    if model.normalize == "l2":
        distances = distances**2 / 2
    near, far = np.full((K, n), -1), np.full((K, n), -1)
    for c in range(K):
        mine = np.flatnonzero(labels == c)
        order = mine[np.argsort(distances[mine], kind="stable")][:n]
        near[c, : len(order)] = order
        order = mine[np.argsort(-distances[mine], kind="stable")][:n]
        far[c, : len(order)] = order
    return near, far, distances


@pytest.mark.parametrize("n", [1, 5, 400])
def test_the_rows_are_those_of_numpy(model, x, n):
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}):
        found = model.exemplars(x, n)
    near, far, distances = expected(model, x, n)
    for got, rows in ((found.nearest, near), (found.farthest, far)):
        np.testing.assert_array_equal(got.rows, rows)
        np.testing.assert_array_equal(got.ids, rows)
        wanted = np.where(rows >= 0, distances[rows], np.nan)
        np.testing.assert_allclose(got.distances, wanted, rtol=1e-9, atol=1e-12)


def test_ties_go_to_the_lowest_row(x):
    twice = np.concatenate([x, x])
    model = lk.KMeans(K, random_state=0).fit(x).model_
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}):
        assert lk.open_rows(twice).n_chunks > 1
        found = model.exemplars(twice, 2).nearest.rows
    np.testing.assert_array_equal(found[:, 1], found[:, 0] + N)


def test_ids_and_workers_and_skipped_rows(x, tmp_path):
    model = lk.KMeans(K, random_state=0, on_bad_rows="skip").fit(x).model_
    bad = x.copy()
    bad[10] = np.nan
    frame = pd.DataFrame({"id": [f"r{i}" for i in range(N)], "e": list(bad)})
    frame.to_parquet(tmp_path / "x.parquet")
    with dask.config.set({"largek.data.read-chunk-bytes": 8 * D * 100}), ExitStack() as stack:
        client = make_client(stack, 2, processes=False)
        rows = lk.open_rows(tmp_path / "x.parquet", column="e", ids="id")
        assert rows.n_chunks == 7
        there = model.exemplars(rows, 3, client=client)
    here = model.exemplars(frame, 3, column="e", ids="id")
    for a, b in ((there.nearest, here.nearest), (there.farthest, here.farthest)):
        np.testing.assert_array_equal(a.rows, b.rows)
        np.testing.assert_array_equal(a.distances, b.distances)
        assert 10 not in a.rows
        assert a.ids.tolist() == b.ids.tolist() == [[f"r{i}" for i in row] for row in a.rows]


def test_ids_of_64_bits_and_clusters_of_few_rows(x):
    model = lk.KMeans(K, random_state=0).fit(x).model_
    ids = np.arange(N, dtype=np.uint64) + np.uint64(2**63)
    found = model.exemplars(x, 400, ids=ids).farthest
    expected = [[None if row < 0 else 2**63 + row for row in rows] for rows in found.rows.tolist()]
    assert found.ids.tolist() == expected
    assert None in expected[0]


def test_n_has_to_be_positive(model, x):
    with pytest.raises(ParameterError, match="n=0"):
        model.exemplars(x, 0)
