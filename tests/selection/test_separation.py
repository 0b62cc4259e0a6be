"""Silhouette, Davies-Bouldin and Calinski-Harabasz: scikit-learn's values, twins in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.errors import BadRowsError, DataError, ParameterError
from largek_dask.model import CentersModel
from largek_dask.selection import scores as module
from tests.helpers.covering import every_two

pytestmark = pytest.mark.usefixtures("chunks_as_stored")


NAMES = ("silhouette", "davies_bouldin", "calinski_harabasz")
SCORES: dict[str, Callable[..., float]] = {name: getattr(lk.scores, name) for name in NAMES}
PEERS: dict[str, Callable[[Any, Any], float]] = {
    "davies_bouldin": davies_bouldin_score,
    "calinski_harabasz": calinski_harabasz_score,
}
every_score = pytest.mark.parametrize("name", NAMES)
every_peer = pytest.mark.parametrize("name", PEERS)


def make_rows(n: int = 1_200, d: int = 5, seed: int = 0) -> NDArray[np.float64]:
    """Groups that overlap, so that no score is trivial."""
    rng = np.random.default_rng(seed)
    groups = rng.normal(size=(12, d)) * 4
    return groups[rng.integers(12, size=n)] + rng.normal(size=(n, d))


def silhouette_twin(
    x: NDArray[Any], centers: NDArray[Any], own: NDArray[Any] | None = None, weight: Any = None
) -> float:
    """The definition, with all distances."""
    distances = np.sqrt(((x[:, None].astype(float) - centers[None].astype(float)) ** 2).sum(-1))
    rows = np.arange(len(x))
    own = distances.argmin(1) if own is None else own
    a = distances[rows, own]
    distances[rows, own] = np.inf
    b = distances.min(1)
    largest = np.maximum(a, b)
    found = np.where(largest > 0, (b - a) / np.where(largest > 0, largest, 1), 0)
    return float(np.average(found, weights=weight))


def model_of(centers: Any, counts: Any = None, **options: Any) -> CentersModel:
    centers = np.asarray(centers)
    counts = np.ones(len(centers)) if counts is None else np.asarray(counts, float)
    return CentersModel(CenterArrays(centers, counts, np.zeros_like(centers[0])), **options)


X = make_rows()


@cache
def fitted() -> lk.KMeans:
    return lk.KMeans(9, random_state=0).fit(X)


@cache
def fitted_labels() -> NDArray[np.int32]:
    return fitted().predict(X)


# --- peers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "k"), every_two(list(PEERS), ["float32", "float64", "int16"], [2, 9, 300])
)
def test_scikit_learn_gives_the_same(name: str, dtype: str, k: int) -> None:
    x = (X * 10).astype(dtype)
    # Stopped early: the model's centres are not the means of their rows.
    km = lk.KMeans(k, algorithm="lloyd", random_state=0, max_iter=1, tol=0).fit(x)
    labels = km.predict(x)
    assert len(np.unique(labels)) == k
    means = np.array([x[labels == j].mean(axis=0) for j in range(k)])
    assert np.abs(means - km.cluster_centers_).max() > 1e-3
    expected = PEERS[name](x.astype(float), labels)
    found = SCORES[name](km, x)
    assert found == pytest.approx(expected, rel=1e-6)
    # Of labels too, whatever their numbers are.
    assert SCORES[name](7 * labels.astype(np.int64) + 3, x) == pytest.approx(expected, rel=1e-6)
    assert SCORES[name](km.model_, x) == found


@every_peer
def test_scikit_learn_gives_the_same_for_a_mixture(name: str) -> None:
    mx = lk.Mixture(6, covariance="diag", random_state=0).fit(X)
    labels = mx.predict(X)
    by_mean = np.square(X[:, None] - mx.means_).sum(-1).argmin(1)
    assert (labels != by_mean).any()
    assert SCORES[name](mx, X) == pytest.approx(PEERS[name](X, labels), rel=1e-6)


def test_silhouette_is_that_of_the_definition() -> None:
    assert SCORES["silhouette"](fitted(), X) == pytest.approx(
        silhouette_twin(X, fitted().cluster_centers_), rel=1e-12
    )
    # Not scikit-learn's, which takes pairs of rows.
    assert abs(SCORES["silhouette"](fitted(), X) - silhouette_score(X, fitted_labels())) > 0.01
    means = np.array([X[j == fitted_labels()].mean(axis=0) for j in range(9)])
    assert SCORES["silhouette"](fitted_labels(), X) == pytest.approx(
        silhouette_twin(X, means, fitted_labels()), rel=1e-9
    )


def test_silhouette_of_a_mixture_is_about_its_own_means() -> None:
    mx = lk.Mixture(6, covariance="diag", random_state=0).fit(X)
    twin = silhouette_twin(X, mx.means_, mx.predict(X))
    assert twin != pytest.approx(silhouette_twin(X, mx.means_), rel=1e-6)
    assert SCORES["silhouette"](mx, X) == pytest.approx(twin, rel=1e-12)


# --- the same bits --------------------------------------------------------------------------------


def bits(*given: Any, **options: Any) -> list[str]:
    return [score(*given, **options).hex() for score in SCORES.values()]


def test_chunks_threads_and_workers_change_no_bit(tmp_path: Any, worker_clients: Any) -> None:
    x = X.astype(np.float32)
    weight = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], len(x))
    model = lk.KMeans(9, random_state=0).fit(x).model_
    options: dict[str, Any] = {"sample_weight": weight}
    expected = bits(model, x, n_threads=1, **options)
    urls = [str(tmp_path / f"{size}.zarr") for size in (100, 333)]
    for url, size in zip(urls, (100, 333), strict=True):
        zarr.create_array(url, data=x, chunks=(size, 5))
    assert [lk.open_rows(url).n_chunks for url in urls] == [12, 4]
    for url in urls:
        assert bits(model, url, n_threads=3, **options) == expected
    assert bits(model, urls[0], client=worker_clients(2), **options) == expected


def test_labels_on_a_cluster(tmp_path: Any, worker_clients: Any) -> None:
    url = str(tmp_path / "x.zarr")
    zarr.create_array(url, data=X, chunks=(100, 5))
    assert bits(fitted_labels(), url, client=worker_clients(2)) == bits(fitted_labels(), X)


@every_score
def test_sparse_rows(name: str) -> None:
    x = np.where(X > 2, X, 0).astype(np.float32)
    csr = sp.csr_matrix(x)
    assert csr.nnz < x.size / 2
    km = lk.KMeans(8, random_state=0).fit(csr)
    expected = (
        silhouette_twin(x, km.cluster_centers_)
        if name == "silhouette"
        else PEERS[name](x.astype(float), km.predict(x))
    )
    assert SCORES[name](km, csr) == pytest.approx(expected, rel=1e-6)
    assert SCORES[name](km.labels_, csr) == pytest.approx(SCORES[name](km.labels_, x), rel=1e-12)


# --- rows of every kind ---------------------------------------------------------------------------


@every_score
def test_a_weight_is_as_many_rows(name: str) -> None:
    weight = np.random.default_rng(2).integers(4, size=len(X))
    repeated = np.repeat(X, weight, axis=0)
    assert (weight == 0).any()
    found = SCORES[name](fitted(), X, sample_weight=weight)
    assert found == pytest.approx(SCORES[name](fitted(), repeated), rel=1e-12)
    of_labels = SCORES[name](fitted_labels(), X, sample_weight=weight)
    assert of_labels == pytest.approx(
        SCORES[name](np.repeat(fitted_labels(), weight), repeated), rel=1e-12
    )


@every_score
def test_rows_that_are_skipped_are_left_out(name: str) -> None:
    x = X.copy()
    x[[3, 700]] = np.nan
    km = lk.KMeans(9, random_state=0, on_bad_rows="skip").fit(x)
    kept = ~np.isnan(x[:, 0])
    expected = SCORES[name](km, x[kept])
    found = SCORES[name](km, x)
    assert found == pytest.approx(expected, rel=1e-13)
    # Their labels are -1, which leaves them out as well.
    assert SCORES[name](km.labels_, x) == pytest.approx(
        SCORES[name](km.labels_[kept], x[kept]), rel=1e-12
    )
    with pytest.raises(BadRowsError, match="row 3 "):
        SCORES[name](fitted(), x)


@every_score
def test_bad_rows_with_a_label(name: str) -> None:
    x, labels = X.copy(), fitted_labels().copy()
    x[7] = np.inf
    with pytest.raises(BadRowsError, match="row 7 "):
        SCORES[name](labels, x)
    labels[8] = -1
    with pytest.raises(
        DataError, match=r"1 labelled rows contain NaN or infinity; .*row 7 .*columns 0, 1"
    ):
        SCORES[name](labels, x)


@every_score
def test_normalised_rows(name: str) -> None:
    km = lk.KMeans(6, normalize="l2", random_state=0).fit(X)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    expected = (
        silhouette_twin(unit, km.cluster_centers_)
        if name == "silhouette"
        else PEERS[name](unit, km.predict(X))
    )
    assert SCORES[name](km, X) == pytest.approx(expected, rel=1e-9)


def test_clusters_without_rows() -> None:
    """One that had none in the fit is nobody's neighbour; one that has none here has no mean."""
    centers = np.vstack([fitted().cluster_centers_, X.mean(axis=0) + 0.1, np.full(5, 1e3)])
    assert (np.bincount(np.square(X[:, None] - centers).sum(-1).argmin(1), minlength=11) > 0)[9]
    counts = np.r_[fitted().model_.counts, 0, 5]
    model = model_of(centers, counts)
    labels = model.predict(X)
    assert labels is not None
    # Rows go where predict puts them, also where nobody was.
    distances = np.sqrt(((X[:, None] - centers) ** 2).sum(-1))
    a = distances.min(1)
    others = distances.copy()
    others[np.arange(len(X)), labels] = np.inf
    others[:, 9] = np.inf
    b = others.min(1)
    found = {name: score(model, X) for name, score in SCORES.items()}
    assert found["silhouette"] == pytest.approx(((b - a) / np.maximum(a, b)).mean(), rel=1e-12)
    assert found["davies_bouldin"] == pytest.approx(davies_bouldin_score(X, labels), rel=1e-9)
    assert found["calinski_harabasz"] == pytest.approx(calinski_harabasz_score(X, labels), rel=1e-9)


def test_rows_on_centres() -> None:
    # Integers, so that means of equal rows are these rows to the bit.
    x = np.repeat(3 * np.eye(3), 4, axis=0)
    assert {name: score(model_of(3 * np.eye(3)), x) for name, score in SCORES.items()} == {
        "silhouette": 1,
        "davies_bouldin": 0,
        "calinski_harabasz": calinski_harabasz_score(x, np.repeat([0, 1, 2], 4)),
    }
    # Two centres in one place: 0 of 0 is 0, and they are not compared.
    twice = model_of(3 * np.vstack([np.eye(3), np.eye(3)[:1]]))
    assert SCORES["silhouette"](twice, x) == pytest.approx(8 / 12)
    labels = np.arange(12) % 6
    same = np.repeat(np.eye(2), 6, axis=0)
    assert SCORES["davies_bouldin"](labels, same) == davies_bouldin_score(same, labels)


def test_rows_far_out() -> None:
    """So far that float32 overflows: their distances are those of float64."""
    x = X.astype(np.float32)
    x[0] = 3e30
    model = model_of(fitted().cluster_centers_.astype(np.float32))
    assert float(x[0, 0]) ** 2 > float(np.finfo(np.float32).max)
    assert SCORES["silhouette"](model, x) == pytest.approx(
        silhouette_twin(x, model.centers), rel=1e-6
    )


@every_score
def test_one_cluster_has_no_score(name: str) -> None:
    km = lk.KMeans(1, random_state=0).fit(X)
    with pytest.raises(ParameterError, match=r"1 cluster has rows, .* at least two clusters"):
        SCORES[name](km, X)
    with pytest.raises(ParameterError, match="1 cluster has rows"):
        SCORES[name](np.zeros(len(X), int), X)
    with pytest.raises(ParameterError, match="no cluster has rows"):
        SCORES[name](np.full(len(X), -1), X)


def test_light_rows_have_no_calinski_harabasz() -> None:
    weight = np.full(len(X), 1 / len(X))
    with pytest.raises(ParameterError, match="sum to 1 and there are 9 clusters"):
        SCORES["calinski_harabasz"](fitted(), X, sample_weight=weight)
    # The other two do not know how much all rows weigh.
    for name in ("silhouette", "davies_bouldin"):
        found = SCORES[name](fitted(), X, sample_weight=weight)
        assert found == pytest.approx(SCORES[name](fitted(), X), rel=1e-9)


@every_score
def test_input_that_is_refused(name: str) -> None:
    score = SCORES[name]
    for bad in (
        X,
        fitted_labels().astype(float),
        fitted_labels()[:, None],
        "model.zarr",
        None,
        fitted().get_params(),
    ):
        with pytest.raises(ParameterError, match=r"^clustering"):
            score(bad, X)
    with pytest.raises(ParameterError, match=r"1,199 labels, .* 1,200 rows"):
        score(fitted_labels()[1:], X)
    with pytest.raises(ParameterError, match="clustering is -2 in row 4"):
        score(np.where(np.arange(1_200) == 4, -2, fitted_labels()), X)
    with pytest.raises(ParameterError, match=r"rows have 4 features, .* rows with 5"):
        score(fitted(), X[:, :4])


# --- how it is told -------------------------------------------------------------------------------


def test_scores_share_passes() -> None:
    passes: list[str] = []
    original = module._first_chunk, module._second_chunk

    def first(*arguments: Any) -> None:
        passes.append("first")
        original[0](*arguments)

    def second(*arguments: Any) -> None:
        passes.append("second")
        original[1](*arguments)

    with (
        pytest.MonkeyPatch.context() as patch,
        dask.config.set({"largek.data.memory-chunk-bytes": 2**30}),
    ):
        patch.setattr(module, "_first_chunk", first)
        patch.setattr(module, "_second_chunk", second)
        found = module.separation(fitted(), X)
        assert passes == ["first", "second"]
        passes.clear()
        assert SCORES["silhouette"](fitted(), X) == found["silhouette"]
        assert passes == ["first"]
    assert {name: SCORES[name](fitted(), X) for name in NAMES} == found


def test_pairs_of_centres_are_compared_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    km = lk.KMeans(50, random_state=0).fit(X)
    exact = SCORES["davies_bouldin"](km, X)
    monkeypatch.setattr(module, "PAIRS", 350)
    assert SCORES["davies_bouldin"](km, X) == exact
