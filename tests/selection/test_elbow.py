"""`lk.suggest_k`: planted numbers are named with their uncertainty, and where none is none is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import largek_dask as lk
from largek_dask.errors import ParameterError
from largek_dask.model.suggest_k import SuggestedK
from largek_dask.selection import elbow as module
from largek_dask.selection import nested as nested_module
from tests.helpers.covering import in_turns

R = np.random.default_rng(11)
K = 9
CENTERS = 15 * R.normal(size=(K, 3))
X = (CENTERS[R.integers(K, size=3_000)] + R.normal(size=(3_000, 3))).astype(np.float32)


@pytest.fixture
def nests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any table is too large for a fit of all partitions, and more so for a search of all rows."""
    monkeypatch.setattr(module, "PATH_ROWS", 0)
    monkeypatch.setattr(module, "LEAST_SAMPLE", 1_024)
    monkeypatch.setattr(module, "SAMPLE_A_CLUSTER", 64)
    monkeypatch.setattr(module, "LEAST_HELD_OUT", 256)
    monkeypatch.setattr(nested_module, "LEAST_ROWS", 512)


def inertia_of(model: Any, x: Any, weight: Any = None) -> float:
    return -float(model.score(x, sample_weight=weight))


# --- a number, and how sure it is


def test_planted_groups_are_counted_by_all_partitions():
    found = lk.suggest_k(X, 20, random_state=0)
    assert isinstance(found, SuggestedK)
    assert (found.method, found.k, found.clear) == ("partition-path", K, True), str(found)
    assert found.halves == (K, K)
    assert found.range == (K, K)
    assert found.n_clusters.tolist() == list(range(1, 21))
    assert (found.n_searched, found.n_rows) == (3_000, 3_000)
    assert not found.errors.any()
    path = lk.KMeans(20, algorithm="partition-path", random_state=0).fit(X).path_
    assert found.inertia.tolist() == path.inertia.tolist()
    assert path.suggest_k().k == K


@pytest.mark.usefixtures("nests")
def test_planted_groups_are_counted_by_nested_partitions():
    found = lk.suggest_k(X, 40, random_state=0)
    assert (found.method, found.k, found.clear) == ("nested", K, True), str(found)
    assert found.halves == (K, K)
    assert found.n_searched == 40 * 64 < found.n_rows == 3_000
    assert {*range(1, 17), 24, 32, 40} <= set(found.n_clusters.tolist())
    assert f"{K} clusters: halves of the data agree" in str(found)
    assert f"suggest {K} and {K} clusters" in str(found)


@pytest.mark.parametrize(
    ("kind", "nested"), in_turns(["Gaussian", "cube", "circle", "line"], [True, False])
)
def test_nothing_is_named_where_nothing_is(kind, nested, request):
    r = np.random.default_rng(4)
    angle = r.uniform(0, 2 * np.pi, size=2_000)
    x = {
        "Gaussian": r.normal(size=(2_000, 4)) * [4, 2, 1, 1],
        "cube": r.random((2_000, 3)),
        "circle": np.stack([np.cos(angle), np.sin(angle)], axis=1),
        "line": r.random((2_000, 1)),
    }[kind]
    if nested:
        request.getfixturevalue("nests")
    found = lk.suggest_k(x, 24, random_state=0)
    assert found.method == ("nested" if nested else "partition-path")
    assert (found.k, found.clear, found.range) == (None, False, None), kind
    assert found.words.startswith("No clear k")


@pytest.mark.parametrize("nested", [False, True])
def test_where_the_curve_ends_there_may_be_more(nested, request):
    if nested:
        request.getfixturevalue("nests")
    found = lk.suggest_k(X, K, random_state=0)
    assert (found.k, found.clear) == (K, False), str(found)
    assert f"No clear k: {K} clusters or more" in str(found)
    assert "clusters or more" in found.plot().axes[0].get_legend().get_texts()[-1].get_text()


# --- what it costs, exactly or about


@pytest.mark.usefixtures("nests")
def test_a_sample_says_how_far_off_it_may_be():
    found = lk.suggest_k(X, 12, sample=1_500, random_state=0)
    assert found.n_searched == 1_500
    assert (found.errors > 0).all()
    exact = [inertia_of(found.model(int(k)), X) for k in found.n_clusters]
    # the standard error is of few rows that were held out
    assert (np.abs(found.inertia - exact) < 5 * found.errors).all()
    assert (found.errors < 0.2 * found.inertia).all()
    counts = found.model(K).counts
    assert counts.sum() == pytest.approx(len(X))


@pytest.mark.usefixtures("nests")
def test_all_rows_are_counted_exactly():
    found = lk.suggest_k(X, 12, sample="all", random_state=0)
    assert found.n_searched == 1_024 < len(X)
    assert not found.errors.any()
    exact = [inertia_of(found.model(int(k)), X) for k in found.n_clusters]
    np.testing.assert_allclose(found.inertia, exact, rtol=1e-12)
    assert (np.diff(found.inertia) < 0).all()
    # steps over all rows: the mean is that of all
    np.testing.assert_allclose(found.model(1).centers[0], X.mean(axis=0), rtol=1e-5)


@pytest.mark.usefixtures("nests")
def test_weights_count_as_rows():
    weight = R.integers(0, 3, size=len(X)).astype(float)
    found = lk.suggest_k(X, 12, sample="all", sample_weight=weight, random_state=0)
    assert found.k == K
    assert found.n_rows == np.count_nonzero(weight)
    exact = [inertia_of(found.model(int(k)), X, weight) for k in found.n_clusters]
    np.testing.assert_allclose(found.inertia, exact, rtol=1e-9)


# --- tables of every kind


def test_sparse_rows():
    x = np.zeros((900, 40), np.float32)
    home = np.arange(900) % 6
    x[np.arange(900), home] = 10
    x[np.arange(900), 6 + R.integers(34, size=900)] = R.random(900)
    found = lk.suggest_k(sp.csr_matrix(x), 12, random_state=0)
    assert (found.method, found.k) == ("nested", 6), str(found)
    assert found.inertia[0] == pytest.approx(((x - x.mean(axis=0)) ** 2).sum(), rel=1e-5)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 17])
def test_few_rows(n, nested, request):
    if nested:
        request.getfixturevalue("nests")
    x = np.random.default_rng(n).normal(size=(n, 2))
    found = lk.suggest_k(x, 30, random_state=0)
    assert found.n_clusters[0] == 1
    assert found.n_clusters[-1] <= n
    assert found.inertia[0] == pytest.approx(((x - x.mean(axis=0)) ** 2).sum(), abs=1e-12)
    assert not found.clear or found.k is not None
    assert str(found)


@pytest.mark.parametrize("sample", ["auto", 400])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_more_clusters_than_distinct_rows(dtype, sample):
    """Centres of equal rows are rounded: what that leaves of the cost is no partition's gain."""
    distinct = 100 + 3 * np.random.default_rng(0).normal(size=(3, 5))
    x = np.repeat(distinct, 400, axis=0).astype(dtype)
    found = lk.suggest_k(x, 12, sample=sample, random_state=0)
    assert found.method == ("partition-path" if sample == "auto" else "nested")
    assert (found.k, found.range, int(found.n_clusters[-1])) == (3, (3, 3), 3)


@pytest.mark.usefixtures("nests", "chunks_as_stored")
def test_threads_and_storage_change_no_bit(tmp_path: Path):
    lk.ingest(X, str(tmp_path / "x.zarr"), chunk_rows=500, progress=False)
    assert lk.open_rows(str(tmp_path / "x.zarr")).n_chunks == 6
    found = [
        lk.suggest_k(source, 24, random_state=3, n_threads=n_threads)
        for source, n_threads in ((X, 1), (str(tmp_path / "x.zarr"), 2))
    ]
    one = found[0]
    for other in found[1:]:
        assert other.n_clusters.tolist() == one.n_clusters.tolist()
        assert other.inertia.tobytes() == one.inertia.tobytes()
        assert other.stability.tobytes() == one.stability.tobytes()
        assert other.model(8).digest() == one.model(8).digest()
    assert lk.suggest_k(X, 24, random_state=4).inertia.tobytes() != one.inertia.tobytes()


@pytest.mark.usefixtures("nests", "chunks_as_stored")
def test_a_cluster_reads_the_rows(cluster2, tmp_path: Path):
    lk.ingest(X, str(tmp_path / "x.zarr"), chunk_rows=500, progress=False)
    url = str(tmp_path / "x.zarr")
    here = lk.suggest_k(url, 24, sample="all", random_state=0)
    there = lk.suggest_k(url, 24, sample="all", random_state=0, client=cluster2)
    assert there.inertia.tobytes() == here.inertia.tobytes()
    assert there.stability.tobytes() == here.stability.tobytes()


# --- what is said


@pytest.mark.usefixtures("nests")
def test_only_partitions_that_are_kept_are_models():
    found = lk.suggest_k(X, 40, random_state=0)
    assert found.model(32).predict(X).max() == 31
    with pytest.raises(
        ParameterError, match=r"into 30 clusters; the nearest partitions have .* and 32 clusters"
    ):
        found.model(30)


@pytest.mark.usefixtures("nests")
def test_no_time_for_more_is_said():
    found = lk.suggest_k(X, 40, random_state=0, max_time=0)
    assert found.k is None
    assert "The time limit ended the run early" in str(found)
    assert found.n_clusters[0] == 1


def test_records_and_picture():
    found = lk.suggest_k(X, 12, random_state=0)
    records = found.records()
    assert [record["n_clusters"] for record in records] == list(range(1, 13))
    assert records[0]["gaussian"] is None
    assert records[K - 1]["stability"] >= 0.9
    assert repr(found) == f"<ElbowCurve to 12 clusters: {found.words}>"
    figure = found.plot()
    assert "Partitions of 3,000 rows" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"k_max": 0}, "k_max must be an integer of at least 1"),
        ({"sample": 0}, "sample must be"),
        ({"sample": "most"}, "sample must be"),
        ({"normalize": "l1"}, "normalize must be one of"),
        ({"max_time": "soon"}, "max_time must be"),
    ],
)
def test_what_cannot_be_right_is_refused(asked, words):
    with pytest.raises(ParameterError, match=words):
        lk.suggest_k(X, **asked)
