"""Every algorithm on sparse rows: same bits wherever they are computed, right figures."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import largek_dask as lk
from largek_dask.data.sources import open_rows
from largek_dask.data.store_writer import CSRWriter
from largek_dask.errors import BadRowsError
from tests import oracles
from tests.algorithms.conftest import bits
from tests.helpers.checks import computing_workers, watched_passes
from tests.helpers.covering import slow

N, D, K = 6_000, 60, 12

ALGORITHMS = {
    "lloyd": lk.Lloyd(),
    "minibatch": lk.MiniBatch(batch_rows=700),
    "latest": lk.MiniBatch(batch_rows=700, votes="latest"),
    # One step on gathered rows, then one on each doubled batch.
    "nmbatch": lk.NMBatch(b0=750, rho=0.1, gather=750),
    "truncated": lk.Truncated(),
    "incremental": lk.IncrementalLloyd(rounds=4),
    "vrkm": lk.VRKM(round_rows=1500),
}
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture(scope="module")
def matrix() -> sp.csr_matrix:
    """Topics: in each some columns are frequent."""
    rng = np.random.default_rng(5)
    topics = rng.random((K, D)) ** 6
    share = topics[rng.integers(K, size=N)]
    return sp.csr_matrix(((rng.random((N, D)) < share) * rng.random((N, D))).astype(np.float32))


@pytest.fixture(autouse=True)
def small_chunks():
    with dask.config.set({"largek.data.read-chunk-bytes": 20_000}):
        yield


@pytest.fixture(scope="module")
def url(matrix, tmp_path_factory) -> str:
    out = str(tmp_path_factory.mktemp("sparse") / "rows.zarr")
    rows = open_rows(matrix)
    writer = CSRWriter(out, n_features=D, dtype=rows.dtype)
    for i in range(rows.n_chunks):
        writer.append(rows.read(i))
    writer.finish({})
    return out


def fit(data, name, **options):
    options = {"init": "k-means++", "max_iter": 9, "tol": 0, "random_state": 7} | options
    algorithm = options.pop("algorithm", ALGORITHMS[name])
    return lk.KMeans(K, algorithm=algorithm, **options).fit(data)


@pytest.fixture(scope="module")
def clean(url) -> dict[str, tuple[str, bytes, float, int]]:
    with dask.config.set({"largek.data.read-chunk-bytes": 20_000}):
        assert open_rows(url).n_chunks > 5
        return {name: bits(fit(url, name, n_threads=1)) for name in ALGORITHMS}


@every_algorithm
def test_threads(name, url, clean):
    assert bits(fit(url, name, n_threads=3)) == clean[name]


@every_algorithm
def test_workers(name, url, clean, worker_clients):
    with watched_passes() as seen:
        assert bits(fit(url, name, client=worker_clients(2))) == clean[name]
    assert computing_workers(seen[0]) == 2


@pytest.mark.parametrize("name", ["nmbatch", "incremental", *slow("truncated", "vrkm")])
def test_resume(name, url, clean, tmp_path):
    folder = str(tmp_path / "job")
    fit(url, name, max_iter=4, checkpoint=folder)
    assert bits(fit(url, name, checkpoint=folder)) == clean[name]


@pytest.mark.parametrize("sample_weight", [None, np.arange(N) % 3], ids=["alike", "weighted"])
def test_memory__on_workers_and_on_threads(matrix, worker_clients, sample_weight):
    """A matrix of this process is written to where workers can read it."""
    km = lk.KMeans(K, algorithm=lk.Lloyd(), max_iter=4, random_state=1)
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}), watched_passes() as seen:
        here = bits(km.fit(matrix, sample_weight=sample_weight))
        km.set_params(client=worker_clients(2))
        assert bits(km.fit(matrix, sample_weight=sample_weight)) == here
    assert [passes.n_chunks for passes in seen] == [2, 2]
    assert computing_workers(seen[1]) == 2


def test_lloyd__does_not_see_the_chunks(matrix, url):
    x = matrix.toarray()
    assert open_rows(matrix).n_chunks != open_rows(url).n_chunks
    assert bits(fit(matrix, "lloyd", init=x[:K])) == bits(fit(url, "lloyd", init=x[:K]))


@every_algorithm
def test_figures__are_those_of_the_dense_rows(name, matrix):
    x = matrix.toarray()
    km = fit(matrix, name)
    labels, inertia = oracles.assign(x.astype(np.float64), km.cluster_centers_.astype(np.float64))
    assert km.inertia_ == pytest.approx(inertia, rel=1e-6)
    assert (km.labels_ != labels).sum() <= 2  # rounding
    assert km.inertia_ < 1.1 * fit(x, "lloyd", max_iter=50).inertia_
    np.testing.assert_array_equal(km.predict(matrix), km.labels_)
    assert (km.predict(x) != km.labels_).sum() <= 2
    assert km.score(matrix) == pytest.approx(-inertia, rel=1e-6)
    expected = np.sqrt(oracles.squared_distances(x[:50], km.cluster_centers_))
    np.testing.assert_allclose(km.transform(matrix[:50]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", ["unsorted", "duplicates", "int64", "float64", "stored zeros"])
def test_any_layout__gives_the_same(change, matrix, url):
    other = matrix.copy()
    if change == "unsorted":
        for a, b in zip(other.indptr[:-1], other.indptr[1:], strict=True):
            other.indices[a:b] = other.indices[a:b][::-1].copy()
            other.data[a:b] = other.data[a:b][::-1].copy()
    elif change == "duplicates":
        # every number as the sum of two halves
        other = sp.csr_matrix(
            (np.repeat(other.data / 2, 2), np.repeat(other.indices, 2), 2 * other.indptr),
            shape=other.shape,
        )
    elif change == "int64":
        other.indices, other.indptr = other.indices.astype("i8"), other.indptr.astype("i8")
    elif change == "stored zeros":
        coo, zeros = matrix.tocoo(), np.arange(100)
        rows, columns = np.append(coo.row, zeros), np.append(coo.col, zeros % D)
        data = np.append(coo.data, np.zeros(100, np.float32))
        other = sp.csr_matrix((data, (rows, columns)), shape=matrix.shape)
        assert other.nnz > matrix.nnz
    init = matrix.toarray()[:K]
    if change == "float64":
        found = fit(other.astype(np.float64), "lloyd", init=init)
        assert found.cluster_centers_.dtype == np.float64
        assert found.inertia_ == pytest.approx(fit(matrix, "lloyd", init=init).inertia_, rel=1e-3)
        return
    before = other.indices.copy()
    assert bits(fit(other, "lloyd", init=init)) == bits(fit(url, "lloyd", init=init))
    np.testing.assert_array_equal(other.indices, before)


@every_algorithm
def test_degenerate_rows(name):
    """Rows without numbers, equal rows, one column."""
    x = sp.csr_matrix(np.repeat([[0.0], [0.0], [3.0], [4.0]], 300, axis=0))
    with pytest.warns(lk.errors.DegenerateDataWarning):
        km = lk.KMeans(5, algorithm=ALGORITHMS[name], random_state=0, max_iter=30).fit(x)
    assert km.inertia_ == 0
    assert len(set(km.labels_.tolist())) == 3


def test_bad_rows__are_named_or_skipped(matrix, url, tmp_path):
    bad = matrix.copy()
    bad.data[bad.indptr[4321]] = np.nan
    with pytest.raises(BadRowsError, match=r"row 4321 holds NaN or infinity \(chunk 0 "):
        fit(bad, "lloyd")
    km = fit(bad, "lloyd", on_bad_rows="skip", init=matrix.toarray()[:K])
    assert km.labels_[4321] == -1
    without = sp.vstack([matrix[:4321], matrix[4322:]]).tocsr()
    other = fit(without, "lloyd", init=matrix.toarray()[:K])
    np.testing.assert_array_equal(km.cluster_centers_, other.cluster_centers_)
    assert np.isnan(km.transform(bad)[4321]).all()


def test_normalize(matrix):
    km = fit(matrix, "lloyd", normalize="l2", init=np.eye(K, D, dtype=np.float32))
    lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1)).A1
    unit = sp.csr_matrix(matrix.multiply(1 / np.maximum(lengths, 1e-30)[:, None]), dtype="f4")
    other = fit(unit, "lloyd", init=np.eye(K, D, dtype=np.float32))
    assert km.inertia_ == pytest.approx(other.inertia_, rel=1e-3)


def test_partial_fit(matrix):
    km = lk.KMeans(K, random_state=0)
    for begin in range(0, 6000, 1000):
        km.partial_fit(matrix[begin : begin + 1000])
    assert -km.score(matrix) < 1.3 * fit(matrix, "lloyd").inertia_
