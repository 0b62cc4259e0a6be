"""Nested batches that are read from stores: the same bits wherever their rows are kept."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.storage import MemoryStore

import largek_dask as lk
from tests.algorithms.conftest import bits, blobs
from tests.faults import Killer, WithBarrier
from tests.helpers.checks import computing_workers, join, watched_passes
from tests.helpers.covering import slow

N, D, K = 8_000, 10, 24
CHUNK = 1_024
IN_PLACE = lk.NMBatch(b0=500, rho=0.3, gather=0)
SIZES = {"b0": 500, "rho": 0.3}


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return blobs(N, D, 30, seed=11, spread=1.5)


@pytest.fixture(scope="module")
def stores(x, tmp_path_factory) -> dict[str, str]:
    """The same rows, in random order and not; chunks of 1,024 rows, inner ones of 64."""
    folder = tmp_path_factory.mktemp("stores")
    found = {name: str(folder / f"{name}.zarr") for name in ("shuffled", "plain", "bad", "sparse")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("largek_dask.data.ingest.INNER_ROWS", 64)
        lk.ingest(x, found["shuffled"], shuffle=1, chunk_rows=CHUNK, progress=False)
        bad = x.copy()
        bad[::11, 3] = np.nan
        lk.ingest(bad, found["bad"], shuffle=1, chunk_rows=CHUNK, progress=False)
    lk.ingest(x, found["plain"], chunk_rows=CHUNK, progress=False)
    rare = sp.csr_matrix(np.where(x > 1.5, x, 0))
    lk.ingest(rare, found["sparse"], chunk_rows=CHUNK, progress=False)
    return found


@pytest.fixture(autouse=True)
def small_reads():
    """Eight chunks that are read by themselves."""
    with dask.config.set({"largek.data.read-chunk-bytes": CHUNK * D * 4}):
        yield


def fit(data, algorithm=IN_PLACE, *, cache=None, sample_weight=None, **options):
    options = {"init": "k-means++", "max_iter": 10, "tol": 0, "random_state": 7} | options
    if isinstance(data, str):
        assert lk.open_rows(data).n_chunks == 8
    config = {} if cache is None else {"largek.passes.cache-bytes": cache}
    with dask.config.set(config):
        model = lk.KMeans(K, algorithm=algorithm, **options)
        return model.fit(data, sample_weight=sample_weight)


CASES = {
    "shuffled": {"normalize": "l2"},
    "sparse": {"init": "random"},
    "bad": {"on_bad_rows": "skip", "sample_weight": np.arange(N) % 5.0},
}


@pytest.fixture(params=["shuffled", "sparse", *slow("bad")])
def case(request, stores):
    """A store, and with what it is fitted."""
    return stores[request.param], CASES[request.param]


def test_no_bit_depends_on_where_rows_are_kept(case, cluster2):
    """Gathered, kept, read again in every step, rebuilt in every step, on workers."""
    url, options = case
    clean = bits(fit(url, lk.NMBatch(**SIZES, gather=N), n_threads=1, **options))
    assert bits(fit(url, n_threads=2, **options)) == clean
    assert bits(fit(url, cache=0, n_threads=1, **options)) == clean
    with dask.config.set({"largek.passes.row-state-bytes": 0}):
        assert bits(fit(url, cache=40_000, n_threads=2, **options)) == clean
    with watched_passes() as seen:
        assert bits(fit(url, client=cluster2, **options)) == clean
    assert computing_workers(seen[0]) == 2


def test_a_worker_that_is_killed(stores, tmp_path, fresh_cluster):
    """While the batch grows: its rows of before are read anew, and its state is rebuilt on them."""
    clean = bits(fit(stores["shuffled"], n_threads=1, max_iter=5))
    client = fresh_cluster(n_workers=2)
    killer = Killer(tmp_path)
    killer.start()
    algorithm = WithBarrier(IN_PLACE, str(tmp_path))
    killed = fit(stores["shuffled"], algorithm, client=client, max_iter=5)
    join(killer)
    assert bits(killed) == clean
    assert algorithm.spent()["rebuilt"] > 0


def test_shuffled_rows_of_this_process_are_taken_as_they_lie_on_workers_too(stores, cluster2):
    """They are written to a store for the workers, which has to say so."""
    source = zarr.open_array(stores["shuffled"], mode="r")
    copy = zarr.create_array(
        MemoryStore(),
        shape=source.shape,
        chunks=source.chunks,
        shards=source.shards,
        dtype=source.dtype,
        attributes=dict(source.attrs),
    )
    copy[:] = source[:]
    here = bits(fit(copy))
    assert here == bits(fit(stores["shuffled"]))
    assert bits(fit(copy, client=cluster2)) == here


def test_batches_of_shuffled_rows_are_their_first_rows(stores):
    """The order of the store decides, and no seed."""
    rows = lk.open_rows(stores["shuffled"])
    first = np.concatenate(
        [rows.read(i)[: 500 * len(rows.read(i)) // N] for i in range(rows.n_chunks)]
    )
    one_step = {"max_iter": 1, "init": rows.read(5)[:K]}
    fits = [fit(rows, random_state=seed, **one_step) for seed in (1, 2)]
    assert bits(fits[0]) == bits(fits[1])
    np.testing.assert_array_equal(
        fits[0].cluster_centers_, fit(first, lk.Lloyd(), **one_step).cluster_centers_
    )


def test_minibatch_takes_shuffled_rows_as_they_lie(stores, cluster2):
    """Two rounds of batches that begin anywhere inside the inner chunks."""
    algorithm = lk.MiniBatch(batch_rows=1_700, votes="latest")
    options = {"max_iter": 16, "init": "random"}
    clean = bits(fit(stores["shuffled"], algorithm, n_threads=1, **options))
    assert bits(fit(stores["shuffled"], algorithm, cache=0, **options)) == clean
    assert bits(fit(stores["shuffled"], algorithm, client=cluster2, **options)) == clean
