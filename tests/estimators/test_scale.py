"""``scale="standard"``: the fit of standardised rows, and a model that takes rows as they are."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import scipy.sparse
import zarr
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

import largek_dask as lk
from largek_dask.driver.checkpoint import description_in
from largek_dask.driver.fit import find_scaling, open_passes
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    BadRowsError,
    CheckpointError,
    DataError,
    ModelFormatError,
    ParameterError,
)
from tests.helpers.checks import computing_workers, watched_passes

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

K = 3
R = np.random.default_rng(3)
WHICH = R.integers(0, K, 900)
UNITS, ORIGIN = np.array([1.0, 40, 0.05, 7]), np.array([5.0, 100, 0.5, 10])
X = (np.eye(K, 4)[WHICH] * 9 + R.normal(size=(900, 4))) * UNITS + ORIGIN
WEIGHT = R.integers(0, 4, 900).astype(float)
PARAMETERS = {"random_state": 0, "n_threads": 1}


def kmeans(x=X, k=K, weight=None, **parameters):
    asked = {"scale": "standard", **PARAMETERS, **parameters}
    return lk.KMeans(k, **asked).fit(x, sample_weight=weight)


def mixture(x=X, weight=None, **parameters):
    asked = {"scale": "standard", "covariance": "diag", **PARAMETERS, **parameters}
    return lk.Mixture(K, **asked).fit(x, sample_weight=weight)


def by_hand(x, weight=None):
    scaler = StandardScaler().fit(np.asarray(x, float), sample_weight=weight)
    return scaler, scaler.transform(np.asarray(x, float))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8", "int32"])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_fit_of_rows_that_are_scaled_by_hand(dtype, weighted):
    x, weight = X.astype(dtype), WEIGHT if weighted else None
    scaler, scaled = by_hand(x, weight)
    found = kmeans(x, weight=weight)
    expected = lk.KMeans(K, **PARAMETERS).fit(scaled, sample_weight=weight)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=1e-5)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-4)
    scaling = found.model_.scaling
    np.testing.assert_allclose(scaling.mean, scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, scaler.scale_, rtol=1e-12)
    means = [np.average(x[found.labels_ == j], axis=0, weights=None if weight is None else
             weight[found.labels_ == j]) for j in range(K)]  # fmt: skip
    np.testing.assert_allclose(scaling.restore(found.cluster_centers_), means, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(found.predict(x), found.labels_)
    np.testing.assert_allclose(found.transform(x), expected.transform(scaled), rtol=1e-3, atol=1e-3)
    assert found.score(x, sample_weight=weight) == pytest.approx(-found.inertia_, rel=1e-12)
    assert found.labels_.dtype == np.int32


@pytest.mark.parametrize("k", [1, 2, 32, 33, 128, 129])
def test_any_number_of_clusters(k):
    found, expected = kmeans(k=k), lk.KMeans(k, **PARAMETERS).fit(by_hand(X)[1])
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=1e-2)
    np.testing.assert_array_equal(found.predict(X), found.labels_)


def test_mixtures():
    scaler, scaled = by_hand(X, WEIGHT)
    found = mixture(weight=WEIGHT)
    expected = lk.Mixture(K, covariance="diag", **PARAMETERS).fit(scaled, sample_weight=WEIGHT)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    assert found.log_likelihood_ == pytest.approx(expected.log_likelihood_, rel=1e-9)
    for name in ("predict_proba", "score_samples", "score", "bic", "aic"):
        one, other = getattr(found, name)(X), getattr(expected, name)(scaled)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
    rows, components = found.sample(300, random_state=1)
    np.testing.assert_allclose(rows, scaler.inverse_transform(expected.sample(300, 1)[0]))
    assert (found.predict(rows) == components).mean() > 0.95
    assert lk.Mixture.from_model(found.model_).scale == "standard"


def test_rows_that_are_skipped_do_not_count():
    x = X.copy()
    x[::7, 1], x[3, 0] = np.nan, np.inf
    good = np.isfinite(x).all(axis=1)
    found, expected = kmeans(x, on_bad_rows="skip"), kmeans(x[good])
    np.testing.assert_array_equal(found.model_.scaling.mean, expected.model_.scaling.mean)
    np.testing.assert_array_equal(found.model_.scaling.scale, expected.model_.scaling.scale)
    np.testing.assert_array_equal(found.labels_[good], expected.labels_)
    assert (found.labels_[~good] == -1).all()
    with pytest.raises(BadRowsError, match="row 0 holds NaN or infinity"):
        kmeans(np.concatenate([x[:1], X]))


def test_constant_features_and_rows_far_from_zero():
    x = np.column_stack([X, np.full(900, 0.1)])
    x[:, 1] += 1e9
    found = kmeans(x)
    assert (found.model_.scaling.scale[4], found.model_.scaling.mean[4]) == (1, 0.1)
    assert not found.cluster_centers_[:, 4].any()
    np.testing.assert_array_equal(found.labels_, kmeans().labels_)
    assert kmeans(np.full((5, 2), 3.5), k=1).inertia_ == 0


def test_normalize_comes_after_it():
    scaled = by_hand(X)[1]
    found = kmeans(normalize="l2")
    expected = lk.KMeans(K, normalize="l2", **PARAMETERS).fit(scaled)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=1e-9)
    np.testing.assert_array_equal(found.predict(X), found.labels_)


def test_the_model_keeps_it(tmp_path):
    found = kmeans(algorithm="partition-path")
    found.model_.save(str(tmp_path / "model.zarr"))
    loaded = lk.load_model(str(tmp_path / "model.zarr"))
    assert loaded.digest() == found.model_.digest()
    np.testing.assert_array_equal(loaded.predict(X), found.labels_)
    np.testing.assert_array_equal(loaded.path_.model(2).predict(X), found.path_.model(2).predict(X))
    assert loaded.path_.model(2).scaling is loaded.scaling
    assert "scale: standard" in repr(loaded)
    again = lk.KMeans.from_model(loaded)
    assert (again.scale, clone(again).scale) == ("standard", "standard")
    np.testing.assert_array_equal(again.predict(X), found.labels_)
    with pytest.raises(ParameterError, match=r"SphericalKMeans.from_model needs a model of norm"):
        lk.SphericalKMeans.from_model(loaded)
    # The digest depends on it, and damage is noticed.
    assert kmeans(X * 2, algorithm="partition-path").model_.digest() != loaded.digest()
    zarr.open_group(str(tmp_path / "model.zarr"))["scale"][1] = -1.0
    with pytest.raises(ModelFormatError, match="is damaged"):
        lk.load_model(str(tmp_path / "model.zarr"))
    del zarr.open_group(str(tmp_path / "model.zarr"))["scale"]
    with pytest.raises(ModelFormatError, match="is damaged"):
        lk.load_model(str(tmp_path / "model.zarr"))


def test_a_store_gives_the_same_bits_anywhere(tmp_path, worker_clients):
    url = str(tmp_path / "x.zarr")
    lk.ingest(X.astype("f4"), url, chunk_rows=150, progress=False)
    assert lk.open_rows(url).n_chunks == 6
    here = kmeans(url)
    for n_threads in (2, 3):
        assert kmeans(url, n_threads=n_threads).model_.digest() == here.model_.digest()
    for n_workers in (1, 2, 3):
        with watched_passes() as passes:
            there = kmeans(url, client=worker_clients(n_workers))
        assert len(passes) == 2
        assert {computing_workers(one) for one in passes} == {n_workers}
        assert there.model_.digest() == here.model_.digest()
        np.testing.assert_array_equal(there.predict(url), here.labels_)
    assert kmeans(X.astype("f4")).model_.scaling.mean.tolist() == here.model_.scaling.mean.tolist()


def test_a_fit_resumes_without_another_pass(tmp_path, monkeypatch):
    asked = {"algorithm": "lloyd", "checkpoint": str(tmp_path / "run"), "tol": 0.0, "k": 40}
    with dask.config.set({"largek.checkpoints.seconds": 0}):
        kmeans(max_iter=2, **asked)
        assert description_in(Folder(str(tmp_path / "run")))["scaling"]["scale"][1] > 100
        monkeypatch.setattr("largek_dask.driver.fit.find_scaling", None)
        resumed = kmeans(**asked)
    monkeypatch.undo()
    whole = kmeans(**{**asked, "checkpoint": None})
    assert resumed.model_.digest() == whole.model_.digest()
    with pytest.raises(CheckpointError, match="its scale is 'standard', not None"):
        kmeans(scale=None, **asked)
    record = tmp_path / "run" / "job.json"
    record.write_text(record.read_text().replace('"scaling": {', '"scaled": {'))
    with pytest.raises(CheckpointError, match="no readable scaling"):
        kmeans(**asked)


def test_what_is_refused():
    with pytest.raises(ParameterError, match=r"scale='standard' needs dense rows"):
        kmeans(scipy.sparse.csr_matrix(X))
    with pytest.raises(ParameterError, match="partial_fit cannot be used with scale='standard'"):
        lk.KMeans(K, scale="standard").partial_fit(X)
    with pytest.raises(ParameterError, match="partial_fit cannot be used with scale=None or a"):
        kmeans().set_params(scale=None).partial_fit(X)
    with pytest.raises(ParameterError, match="scale must be one of None, 'standard', got 'robust'"):
        kmeans(scale="robust")
    with pytest.raises(ParameterError, match="init is a function, which would see rows"):
        kmeans(init=lambda x, k, random_state: x[:k])
    far = X.copy()
    far[5, 2] = 1e200
    with pytest.raises(DataError, match=r"variance of column 2 overflows float64, .* reach 1e"):
        kmeans(far)
    named = lk.open_rows(far).with_names(("a", "b", "width", "d"))
    with pytest.raises(DataError, match="variance of column width overflows"):
        kmeans(named)
    with pytest.raises(DataError, match="all sample weights are zero"):
        kmeans(weight=np.zeros(900))


def test_wide_float32_values_need_no_division():
    """Their squares overflow float32, those of standardised rows do not."""
    x = (X * 1e25).astype("f4")
    np.testing.assert_array_equal(kmeans(x).labels_, kmeans().labels_)


def test_one_pass_finds_the_scaling():
    with open_passes(lk.open_rows(X), n_threads=2) as passes:
        find_scaling(passes)
        assert passes.total.passes == 1
