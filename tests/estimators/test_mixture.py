"""Mixture: scikit-learn's face over vc-GMM."""

import inspect
from dataclasses import fields

import dask
import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

import largek_dask as lk
from largek_dask.data.derived_rows import dithered
from largek_dask.driver.options import OPTIONS
from largek_dask.errors import CheckpointError, InterruptedFitWarning, ParameterError
from largek_dask.model import MixtureModel
from tests.helpers.covering import in_turns, slow
from tests.helpers.mixtures import log_joints, log_sums

K, D = 4, 6
KINDS = ["iso", "isoflex", "diag"]
SHAPES = {"iso": (K,), "isoflex": (K,), "diag": (K, D)}
RNG = np.random.default_rng(5)
MIDDLES = 6 * np.eye(K, D, -1)
SPREADS = np.array([0.5, 1, 1.5, 2])
WHICH = RNG.choice(K, 600, p=[0.1, 0.2, 0.3, 0.4])
X = MIDDLES[WHICH] + SPREADS[WHICH, None] * RNG.normal(size=(600, D))

pytestmark = pytest.mark.usefixtures("chunks_as_stored")


def fitted(kind="isoflex", x=X, k=K, *, weight=None, **parameters):
    mixture = lk.Mixture(k, covariance=kind, **{"random_state": 0, "n_threads": 1, **parameters})
    return mixture.fit(x, sample_weight=weight)


def joints_of(mixture, x=X):
    """As numpy computes them from the attributes."""
    variances = mixture.covariances_.reshape(len(mixture.means_), -1)
    return log_joints(x, mixture.means_, variances, np.log(mixture.weights_))


# --- what a fit gives -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_attribute(kind):
    mixture = fitted(kind)
    assert mixture.means_.shape == (K, D)
    assert mixture.weights_.shape == (K,)
    assert mixture.weights_.sum() == pytest.approx(1, abs=1e-15)
    assert mixture.covariances_.shape == mixture.precisions_.shape == SHAPES[kind]
    np.testing.assert_allclose(mixture.precisions_ * mixture.covariances_, 1)
    joints = joints_of(mixture)
    np.testing.assert_array_equal(mixture.labels_, joints.argmax(1))
    assert mixture.labels_.dtype == np.int32
    assert mixture.log_likelihood_ == pytest.approx(log_sums(joints).sum(), rel=1e-12)
    # F of the last iteration: a bound, and EM has come to rest.
    mean = mixture.log_likelihood_ / len(X)
    assert mean - 1e-3 < mixture.lower_bound_ <= mean
    assert mixture.lower_bound_ * len(X) == pytest.approx(mixture.history_[-1]["cost"])
    assert mixture.converged_
    assert mixture.stop_reason_ == "tol"
    assert len(mixture.history_) == mixture.n_iter_ > 2
    assert mixture.n_features_in_ == D
    assert isinstance(mixture.model_, MixtureModel)
    assert mixture.model_.digest() == fitted(kind).model_.digest()


@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_what_was_planted(kind):
    mixture = fitted(kind)
    near = ((mixture.means_[:, None] - MIDDLES) ** 2).sum(-1).argmin(0)
    assert sorted(near) == list(range(K))
    np.testing.assert_allclose(mixture.means_[near], MIDDLES, atol=1)
    if kind == "iso":
        assert len(set(mixture.covariances_)) == len(set(mixture.weights_)) == 1
        return
    spreads = np.sqrt(mixture.covariances_[near].reshape(K, -1).mean(1))
    np.testing.assert_allclose(spreads, SPREADS, rtol=0.15)
    np.testing.assert_allclose(mixture.weights_[near], [0.1, 0.2, 0.3, 0.4], atol=0.05)


def test_coreset_and_candidates():
    mixture = fitted("diag", coreset=200, candidates=2, neighbours=3, explore=1)
    engine = mixture.model_.provenance["engine"]
    asked = {"coreset": 200, "candidates": 2, "neighbours": 3, "explore": 1, "covariance": "diag"}
    assert asked.items() <= engine.items()
    assert max(entry["rows"] for entry in mixture.history_) <= 200
    assert abs(mixture.lower_bound_ - mixture.log_likelihood_ / len(X)) < 0.5
    np.testing.assert_array_equal(mixture.labels_, joints_of(mixture).argmax(1))


# --- what it is used for --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_it_is_a_mixture_of_scikit_learn(kind, dtype):
    x = X.astype(dtype)
    mixture, new = fitted(kind, x), (x[::2] * 1.5).astype(dtype)
    other = mixture.to_sklearn()
    assert isinstance(other, GaussianMixture)
    np.testing.assert_allclose(mixture.score_samples(new), other.score_samples(new), atol=1e-5)
    np.testing.assert_array_equal(mixture.predict(new), other.predict(new))
    np.testing.assert_allclose(mixture.predict_proba(new), other.predict_proba(new), atol=1e-5)
    assert mixture.score(new) == pytest.approx(other.score(new), rel=1e-6)
    if kind != "iso":
        assert mixture.bic(new) == pytest.approx(other.bic(new), rel=1e-6)
        assert mixture.aic(new) == pytest.approx(other.aic(new), rel=1e-6)
    # scikit-learn has no mixture of one variance and equal weights.
    n_less = 2 * K - 2 if kind == "iso" else 0
    assert other.aic(new) - mixture.aic(new) == pytest.approx(2 * n_less, abs=1e-2)
    assert (other.converged_, other.n_iter_) == (mixture.converged_, mixture.n_iter_)
    assert other.lower_bound_ == mixture.lower_bound_
    assert other.sample(10)[0].shape == (10, D)


@pytest.mark.parametrize("kind", ["diag", *slow("iso", "isoflex")])
def test_scikit_learn_agrees_far_from_the_origin_where_it_is_given_float64(kind):
    x = (X + 3_000).astype(np.float32)
    mixture = fitted(kind, x)
    expected = mixture.to_sklearn().score_samples(x.astype(float))
    np.testing.assert_allclose(mixture.score_samples(x), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore::largek_dask.errors.DegenerateDataWarning")
@pytest.mark.parametrize(("kind", "k"), in_turns(KINDS, [20, K]))
def test_a_strange_row_has_the_lowest_density_or_a_component_alone(kind, k):
    x = X.copy()
    x[17] = 300
    mixture = fitted(kind, x, k)
    alone = np.flatnonzero(mixture.model_.counts[mixture.labels_] < 2)
    lowest = mixture.score_samples(x).argmin()
    assert 17 in {lowest, *alone}
    assert len(alone) < 5


# --- what it is given -----------------------------------------------------------------------------


def test_sample_weight__number_zero_and_repeats():
    start = X[:K]
    base = fitted(init=start)
    assert fitted(init=start, weight=1).model_.digest() == base.model_.digest()
    weight = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    repeated = np.repeat(np.arange(len(X)), weight.astype(int))
    # Later components move, by rows that are drawn by their number.
    asked = {"init": start, "max_iter": 4}
    weighted, plain = fitted(weight=weight, **asked), fitted(x=X[repeated], **asked)
    np.testing.assert_array_equal(weighted.means_, plain.means_)
    np.testing.assert_array_equal(weighted.covariances_, plain.covariances_)
    np.testing.assert_array_equal(weighted.labels_[repeated], plain.labels_)
    assert weighted.log_likelihood_ == plain.log_likelihood_
    assert weighted.lower_bound_ == plain.lower_bound_


def test_rows_that_are_skipped():
    x = X.copy()
    x[[3, 77], 1] = np.nan
    mixture = fitted(x=x, on_bad_rows="skip")
    assert np.flatnonzero(mixture.labels_ == -1).tolist() == [3, 77]
    kept = np.delete(np.arange(len(X)), [3, 77])
    expected = log_sums(joints_of(mixture, x[kept])).sum()
    assert mixture.log_likelihood_ == pytest.approx(expected, rel=1e-12)
    assert mixture.predict(x)[3] == -1


def test_unit_length_is_part_of_the_model():
    x = X + 3
    mixture = fitted("diag", x, normalize="l2")
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(
        mixture.score_samples(x), mixture.to_sklearn().score_samples(unit), atol=1e-5
    )


def test_integers_are_dithered_on_request(tmp_path):
    x = np.clip(X * 3 + 12, 0, 60).astype(np.uint8)
    mixture = fitted("diag", x, dither=True)
    noisy = dithered(x, 0, 0)
    assert mixture.model_.provenance["parameters"]["dither"] == "uniform"
    assert mixture.model_.digest() == fitted("diag", noisy).model_.digest()
    expected = log_sums(joints_of(mixture, noisy))
    np.testing.assert_allclose(mixture.score_samples(x), expected, rtol=1e-9)
    assert mixture.score(x) == pytest.approx(expected.mean(), rel=1e-9)
    np.testing.assert_array_equal(mixture.predict(x), mixture.labels_)
    # Whoever has the model has its noise, and chunks are no matter.
    mixture.model_.save(str(tmp_path / "model.zarr"))
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=150, progress=False)
    loaded = lk.load_model(str(tmp_path / "model.zarr"))
    found = loaded.score_samples(str(tmp_path / "x.zarr"))
    np.testing.assert_array_equal(found, mixture.score_samples(x))
    other = fitted("diag", str(tmp_path / "x.zarr"), dither=True, checkpoint=tmp_path / "run")
    assert other.model_.digest() == mixture.model_.digest()
    assert fitted("diag", x).model_.digest() != mixture.model_.digest()
    with pytest.raises(CheckpointError, match="another job: its dither is 'uniform', not None"):
        fitted("diag", str(tmp_path / "x.zarr"), checkpoint=tmp_path / "run")


@pytest.mark.parametrize(
    ("x", "dither", "message"),
    [
        (X, True, "dither requires dense rows of integers, but the rows are float64"),
        (X, "uniform", "dither must be True or False, got 'uniform'"),
    ],
)
def test_what_cannot_be_dithered(x, dither, message):
    with pytest.raises(ParameterError, match=message):
        fitted(x=x, dither=dither)


def test_checkpoint__goes_on_and_only_with_the_same_job(tmp_path):
    folder = tmp_path / "run"
    with dask.config.set({"largek.checkpoints.seconds": 0}):
        first = fitted("diag", max_iter=3, checkpoint=folder)
        assert first.n_iter_ == 3
        again = fitted("diag", checkpoint=folder)
    assert again.history_[:3] == first.history_
    assert again.model_.digest() == fitted("diag").model_.digest()


def test_interrupted__the_best_so_far(monkeypatch):
    def interrupt(snapshot):
        if snapshot.record["step"] == 4:
            raise KeyboardInterrupt

    with pytest.warns(InterruptedFitWarning, match="after 4 steps"):
        mixture = fitted(callbacks=[interrupt])
    assert mixture.means_.shape == (K, D)
    np.testing.assert_array_equal(mixture.labels_, joints_of(mixture).argmax(1))


# --- parameters -----------------------------------------------------------------------------------


OTHERS = {
    "n_components": 7, "init": "random", "n_init": 2, "max_iter": 5, "tol": 0.25, "max_time": 9.0,
    "on_bad_rows": "skip", "normalize": "l2", "scale": "standard", "memory_limit": 1234,
    "weights_init": np.full(1, 1.0), "precisions_init": np.full(1, 2.0), "covariance": "diag",
    "random_state": 4,
    "dither": True, "candidates": 3, "neighbours": 9, "explore": 2, "coreset": 500,
    "reg_covar": 1e-3, "least_variance": 0.5, "moves": False,
}  # fmt: skip
"""Another value than the default of every parameter that is an option, or one of the algorithm."""
CALLED = {"n_components": "n_clusters", "random_state": "seed", "covariance": "mixture"}
SURROUNDINGS = {"client", "n_threads", "checkpoint", "verbose", "callbacks"}
OF_KMEANS = {"algorithm", "effort", "empty_clusters"}
OF_PAPERS = {"initial_e_steps", "problem", "moves", "least_variance"}


def test_others_are_all_parameters():
    mine = set(inspect.signature(lk.Mixture.__init__).parameters) - {"self"}
    assert set(OTHERS) == mine - SURROUNDINGS
    known = {CALLED.get(name, name) for name in mine}
    assert set(OPTIONS) - known == OF_KMEANS
    assert {field.name for field in fields(lk.VCGMM)} - set(OTHERS) <= OF_PAPERS


@pytest.mark.parametrize("name", OTHERS)
def test_it_passes_them_on(name, monkeypatch):
    found = []

    def heard(rows, options, **_):
        found.append(options)
        raise StopIteration

    monkeypatch.setattr("largek_dask.estimators.base.fit", heard)
    with pytest.raises(StopIteration):
        lk.Mixture(**{name: OTHERS[name]}).fit(X)
    [options] = found
    there = options if CALLED.get(name, name) in OPTIONS else options.algorithm
    expected = "uniform" if name == "dither" else OTHERS[name]
    assert getattr(there, CALLED.get(name, name)) == expected
    # The very algorithm that will run: its covariance is that of the problem.
    assert options.make_algorithm() == options.algorithm


@pytest.mark.parametrize(
    "name", sorted(set(OTHERS) - {"n_components", "random_state", "covariance", "dither", "init"})
)
def test_defaults_are_those_of_the_options_and_of_the_algorithm(name):
    default = inspect.signature(lk.Mixture.__init__).parameters[name].default
    expected = OPTIONS[name].default if name in OPTIONS else getattr(lk.VCGMM(), name)
    assert default == expected


# --- how it begins --------------------------------------------------------------------------------


def first_bound(mixture):
    return mixture.history_[0]["cost"]


def bound_of(means, variances, weights):
    return log_sums(log_joints(X, means, variances, np.log(weights))).sum()


def test_arrays():
    weights, precisions = np.array([0.4, 0.3, 0.2, 0.1]), np.array([1, 2, 0.5, 0.25])
    given = {"init": MIDDLES + 0.1, "weights_init": weights, "precisions_init": precisions}
    begun = fitted(max_iter=1, candidates=K, **given)
    expected = bound_of(MIDDLES + 0.1, 1 / precisions[:, None], weights)
    assert first_bound(begun) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("init", [lk.KMeans(K), None, "k-mean"], ids=repr)
def test_what_is_no_start_is_refused(init):
    with pytest.raises(ParameterError, match="init"):
        fitted(init=init)
