"""A row far out costs the others nothing: labels are nearest, centres right, bits the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import largek_dask as lk
from tests import oracles
from tests.helpers.checks import computing_workers, watched_passes
from tests.helpers.covering import in_turns, slow

N, D, K = 3_000, 12, 6
ALGORITHMS = {
    "lloyd": lk.Lloyd(),
    "nmbatch": lk.NMBatch(b0=N),
    "truncated": lk.Truncated(moves=False),
    "incremental": lk.IncrementalLloyd(),
    "vrkm": lk.VRKM(),
}


def rows(far: float, dtype: str = "f4") -> tuple[NDArray[Any], NDArray[Any]]:
    """Round clusters and one row far out, and a row of each to begin with."""
    r = np.random.default_rng(0)
    of = r.integers(K - 1, size=N)
    x = (8 * r.normal(size=(K - 1, D)))[of] + r.normal(size=(N, D))
    x[N // 2] = far
    of[N // 2] = K - 1
    return x.astype(dtype), x[[int(np.flatnonzero(of == j)[0]) for j in range(K)]].astype(dtype)


def fit(data: Any, init: NDArray[Any], algorithm: str, **options: Any) -> Any:
    options = {"n_threads": 1, "tol": 0, "random_state": 0} | options
    return lk.KMeans(K, algorithm=ALGORITHMS[algorithm], init=init, **options).fit(data)


@pytest.mark.parametrize(
    ("algorithm", "far", "dtype"),
    in_turns(list(ALGORITHMS), [1e15, 1e4, 1e8], ["f4", "f8", "f8", "f4"]),
)
def test_labels_are_nearest_and_centres_are_means(algorithm: str, far: float, dtype: str) -> None:
    x, init = rows(far, dtype)
    model = fit(x, init, algorithm)
    squares = oracles.squared_distances(x, model.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, squares.argmin(axis=1))
    assert np.bincount(model.labels_).min() == 1, "the row far out has no cluster of its own"
    for j in range(K):
        mean = x[model.labels_ == j].astype("f8").mean(axis=0)
        np.testing.assert_allclose(model.cluster_centers_[j], mean, rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if name != "vrkm"] + slow("vrkm")
)
def test_chunks_threads_and_workers_change_no_bit(
    algorithm: str, cluster2: Any, tmp_path: Any
) -> None:
    """Stores that no one has scanned: every fit does, chunk by chunk."""
    x, init = rows(1e15)
    expected = fit(x, init, algorithm).model_.digest()
    for chunk_rows in (64, 1_000):
        url = str(tmp_path / f"{chunk_rows}.zarr")
        zarr.create_array(url, shape=x.shape, dtype=x.dtype, chunks=(chunk_rows, D))[:] = x
        for options in ({}, {"n_threads": 2}, {"client": cluster2}):
            with watched_passes() as seen:
                found = fit(url, init, algorithm, **options)
            assert seen[0].n_chunks == -(-N // chunk_rows)
            assert seen[0].rows.stored_statistics() is None
            assert computing_workers(seen[0]) == (2 if "client" in options else 0)
            assert np.abs(seen[0].statistics.shift).max() < 100, "it is about the mean"
            assert seen[0].statistics.grid.wide
            assert found.model_.digest() == expected
