"""A fitted estimator of a model that was loaded."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.errors import ParameterError
from largek_dask.model import Model

X = np.random.default_rng(0).normal(size=(400, 3)) + 6 * np.repeat(np.eye(4, 3), 100, axis=0)
K_MEANS = [
    lk.KMeans(4, random_state=3, n_threads=1),
    lk.KMeans(4, random_state=3, effort="fast", normalize="l2", on_bad_rows="skip"),
    lk.KMeans(4, random_state=3, algorithm="partition-path", effort="fast"),
    lk.MiniBatchKMeans(4, random_state=3, batch_size=50, max_iter=9),
    lk.SphericalKMeans(4, random_state=3, max_time=3_600),
]
MIXTURES = [
    lk.Mixture(4, random_state=3),
    lk.Mixture(4, random_state=3, covariance="diag", candidates=3, explore=2, reg_covar=1e-4),
    lk.Mixture(1, random_state=3, covariance="isoflex", moves=False),
]


def saved(estimator, tmp_path):
    """The model of an estimator, written and read."""
    estimator.model_.save(str(tmp_path / "model.zarr"))
    return lk.load_model(str(tmp_path / "model.zarr"))


def attributes(estimator):
    return {name for name in vars(estimator) if name.endswith("_")}


@pytest.mark.parametrize("estimator", K_MEANS, ids=repr)
def test_k_means_of_a_model(estimator, tmp_path):
    fitted = clone(estimator).fit(X)
    km = type(estimator).from_model(saved(fitted, tmp_path))
    check_is_fitted(km)
    assert attributes(km) == attributes(fitted) - {"labels_"}
    np.testing.assert_array_equal(km.predict(X), fitted.labels_)
    np.testing.assert_array_equal(km.transform(X), fitted.transform(X))
    np.testing.assert_array_equal(km.cluster_centers_, fitted.cluster_centers_)
    assert km.score(X) == pytest.approx(-fitted.inertia_, rel=1e-6)
    assert (km.inertia_, km.n_iter_, km.stop_reason_, km.n_features_in_) == (
        fitted.inertia_, fitted.n_iter_, fitted.stop_reason_, 3,
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(km)).get_params() == km.get_params()
    for name in ("n_clusters", "normalize", "on_bad_rows"):
        assert km.get_params().get(name) == estimator.get_params().get(name)
    assert hasattr(km, "path_") == (estimator.algorithm == "partition-path")


@pytest.mark.parametrize("estimator", MIXTURES, ids=repr)
def test_mixture_of_a_model(estimator, tmp_path):
    fitted = clone(estimator).fit(X)
    mx = lk.Mixture.from_model(saved(fitted, tmp_path))
    assert attributes(mx) == attributes(fitted) - {"labels_"}
    for name in ("means_", "weights_", "covariances_", "precisions_"):
        np.testing.assert_array_equal(getattr(mx, name), getattr(fitted, name))
    for name in ("lower_bound_", "log_likelihood_", "converged_", "n_iter_", "n_features_in_"):
        assert getattr(mx, name) == getattr(fitted, name)
    np.testing.assert_array_equal(mx.predict(X), fitted.labels_)
    np.testing.assert_array_equal(mx.score_samples(X), fitted.score_samples(X))
    np.testing.assert_allclose(mx.to_sklearn().score_samples(X), mx.score_samples(X), rtol=1e-5)
    assert (mx.n_components, mx.covariance) == (estimator.n_components, estimator.covariance)


def test_other_parameters_are_for_what_comes_next(worker_clients):
    model = lk.KMeans(4, random_state=0, max_iter=5).fit(X).model_
    client = worker_clients(2)
    km = lk.KMeans.from_model(model, n_threads=1, client=client, max_iter=300)
    assert (km.n_threads, km.client, km.max_iter) == (1, client, 300)
    np.testing.assert_array_equal(km.predict(X), model.predict(X))


def test_partial_fit_goes_on_from_it(tmp_path):
    fitted = lk.KMeans(4, random_state=0).fit(X)
    km = lk.KMeans.from_model(saved(fitted, tmp_path)).partial_fit(X[:50])
    assert km.model_.digest() == fitted.partial_fit(X[:50]).model_.digest()
    assert km.n_iter_ == fitted.n_iter_
    online = lk.KMeans(4, random_state=5, init="random").partial_fit(X)
    again = lk.KMeans.from_model(online.model_)
    np.testing.assert_array_equal(again.predict(X), online.labels_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_made_by_hand(dtype):
    centers = np.eye(3, dtype=dtype)
    arrays = CenterArrays(centers, np.ones(3), np.zeros(3, dtype))
    km = lk.KMeans.from_model(Model(arrays))
    assert km.get_params() == lk.KMeans(3).get_params()
    np.testing.assert_array_equal(km.predict(centers), [0, 1, 2])
    assert not hasattr(km, "inertia_")
    assert km.partial_fit(centers).n_iter_ == 1
    sphere = lk.SphericalKMeans.from_model(Model(arrays, normalize="l2"))
    np.testing.assert_array_equal(sphere.predict(9 * centers), [0, 1, 2])


@pytest.mark.parametrize(
    ("kind", "model", "message"),
    [
        (lk.KMeans, "model.zarr", r"needs a CentersModel, such as load_model\(url\) .*, got str"),
        (lk.KMeans, lk.KMeans(2), "needs a CentersModel, .*, got KMeans"),
        (lk.KMeans, lk.Mixture(2), "got MixtureModel"),
        (lk.Mixture, lk.KMeans(2), "needs a MixtureModel, .*, got CentersModel"),
        (lk.SphericalKMeans, lk.KMeans(2), "unit length; for other models, use KMeans.from_model"),
        (lk.SphericalKMeans, lk.KMeans(2, normalize="l2"), "unit length"),
    ],
)
def test_what_is_no_such_model_is_refused(kind, model, message):
    if isinstance(model, (lk.KMeans, lk.Mixture)) and "got KMeans" not in message:
        model = clone(model).fit(X).model_
    with pytest.raises(ParameterError, match=message):
        kind.from_model(model)
