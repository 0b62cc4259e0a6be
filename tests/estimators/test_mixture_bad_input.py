"""What a mixture cannot be fitted to is refused before anything is computed; odd data are not."""

import itertools

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.errors import DataError, ParameterError, ParameterWarning
from tests.helpers.checks import watched_passes
from tests.helpers.covering import in_turns, slow
from tests.helpers.mixtures import log_joints, log_sums

KINDS = ["iso", "isoflex", "diag"]
RNG = np.random.default_rng(2)
MIDDLES = np.array([[0, 0], [8, 0], [0, 8]], float)
X = MIDDLES[RNG.integers(3, size=300)] + RNG.normal(size=(300, 2))


def fitted(x=X, k=3, kind="isoflex", weight=None, **parameters):
    mixture = lk.Mixture(k, covariance=kind, **{"random_state": 0, "n_threads": 1, **parameters})
    return mixture.fit(x, sample_weight=weight)


def log_likelihoods(mixture, x):
    """As numpy computes them."""
    variances = mixture.covariances_.reshape(len(mixture.means_), -1)
    return log_sums(log_joints(x, mixture.means_, variances, np.log(mixture.weights_)))


def assert_sound(mixture, x, weight=None):
    """F has never fallen, and the log-likelihood is that of the attributes."""
    for name in ("means_", "covariances_", "precisions_", "weights_"):
        assert np.isfinite(getattr(mixture, name)).all()
    assert (mixture.covariances_ > 0).all()
    weight = np.ones(len(x)) if weight is None else weight
    expected = (weight * log_likelihoods(mixture, x)).sum()
    assert mixture.log_likelihood_ == pytest.approx(expected, rel=1e-9)
    bounds = np.array([entry["cost"] for entry in mixture.history_ if entry["extra"]["iteration"]])
    assert len(bounds) > 1
    assert (np.diff(bounds) >= -1e-12 * np.abs(bounds[1:])).all()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"covariance": "full"}, "one of 'iso', 'isoflex', 'diag', got 'full'"),
        ({"covariance": "spherical"}, "must be one of 'iso', 'isoflex', 'diag', got 'spherical'"),
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"n_components": 2.0}, "n_components must be an integer of at least 1, got 2.0"),
        (
            {"n_components": 301},
            r"n_components=301 is more than the number of rows \(n_samples=300\)",
        ),
        ({"candidates": 0}, "candidates must be an integer of 1 to 32, got 0"),
        ({"candidates": 33}, "candidates must be an integer of 1 to 32, got 33"),
        ({"neighbours": 0}, "neighbours must be an integer of at least 1, got 0"),
        ({"explore": -1}, "explore must be an integer of 0 to 32, got -1"),
        ({"coreset": 0}, "coreset must be an integer of at least 1, got 0"),
        ({"coreset": 2}, "coreset=2 is less than n_components=3. Use a coreset with several"),
        ({"reg_covar": -1e-6}, "reg_covar must be a number of at least 0"),
        ({"reg_covar": float("nan")}, "reg_covar must be a number of at least 0"),
        ({"init": "k-means++"}, "init must be one of 'auto', 'k-means', 'two-level', 'afk-mc2'"),
        ({"init": MIDDLES[:2]}, r"init has shape \(2, 2\); with n_components=3 and rows of 2 feat"),
        ({"weights_init": [0.5, 0.5]}, r"weights_init must have shape \(3,\), got \(2,\)"),
        ({"precisions_init": [1, 1, 0]}, "precisions_init must contain only positive"),
        ({"tol": -1}, "tol must be a number of at least 0"),
        ({"on_bad_rows": "drop"}, "on_bad_rows must be one of 'raise', 'skip', got 'drop'"),
        ({"random_state": -1}, "random_state must not be negative"),
        ({"n_threads": 0}, "n_threads must be an integer of at least 1, got 0"),
        ({"client": "tcp://x"}, "client must be a distributed.Client"),
        ({"callbacks": [3]}, "callbacks must be a list of callables"),
        ({"checkpoint": 3}, "checkpoint must be a URL or path, got 3"),
    ],
)
def test_wrong_parameters_are_refused_before_rows_are_read(asked, message):
    mixture = lk.Mixture(**{"n_components": 3, "covariance": "isoflex", "random_state": 0, **asked})
    with watched_passes() as seen, pytest.raises(ParameterError, match=message):
        mixture.fit(X)
    assert seen == [], "passes were opened"


def test_more_components_than_rows_that_count():
    weight = np.zeros(len(X))
    weight[:2] = 1
    with pytest.raises(ParameterError, match=r"n_components=3 is more than .* of positive weight"):
        fitted(weight=weight)


def test_sparse_rows_are_refused_by_name():
    sparse = scipy.sparse.csr_matrix(X * (X > 0))
    with pytest.raises(ValueError, match=r"[Ss]parse"):
        fitted(sparse)
    with pytest.raises(ParameterError, match="Mixtures require dense rows"):
        fitted(lk.open_rows(sparse))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rows_are_refused(kind):
    with pytest.raises(DataError, match=r"All rows are equal \(n_samples=20\)"):
        fitted(np.full((20, 2), 3.25), kind=kind)
    # Those that differ do not count.
    x, weight = np.full((20, 2), 3.25), np.ones(20)
    x[7], weight[7] = 9, 0
    with pytest.raises(DataError, match="All rows are equal"):
        fitted(x, kind=kind, weight=weight)


# --- what is cut ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "like", "message"),
    [
        ({"candidates": 7}, {"candidates": 3}, "^candidates=7 is changed to 3: there are 3"),
        (
            {"candidates": 2, "neighbours": 9},
            {"candidates": 2, "neighbours": 3},
            "9 is changed to 3",
        ),
        (
            {"candidates": 2, "neighbours": 1},
            {"candidates": 2, "neighbours": 2},
            "1 is changed to 2",
        ),
        (
            {"candidates": 7, "neighbours": 9},
            {"candidates": 3},
            "7 is changed to 3 and neighbours=9",
        ),
    ],
)
def test_too_many_candidates_and_neighbours_are_cut_with_one_warning(asked, like, message):
    with pytest.warns(ParameterWarning, match=message) as told:
        mixture = fitted(**asked, n_init=2)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert mixture.model_.digest() == fitted(**like, n_init=2).model_.digest()


def test_a_coreset_of_more_rows_than_there_are_is_all_of_them():
    found, plain = fitted(coreset=len(X)), fitted()
    assert found.model_.digest() == plain.model_.digest()
    assert [entry["rows"] for entry in found.history_] == [len(X)] * found.n_iter_
    assert fitted(coreset=len(X) - 1).model_.digest() != plain.model_.digest()


# --- what works -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "init"),
    [("diag", "k-means"), *slow(*itertools.product(KINDS, ["two-level", "afk-mc2", "random"]))],
)
def test_one_component_is_the_normal_distribution_of_the_rows(kind, init):
    weight = RNG.integers(0, 4, len(X)).astype(float)
    mixture = fitted(k=1, kind=kind, init=init, weight=weight)
    mean = np.average(X, axis=0, weights=weight)
    variance = np.average((X - mean) ** 2, axis=0, weights=weight)
    np.testing.assert_allclose(mixture.means_[0], mean, rtol=1e-12)
    expected = variance if kind == "diag" else variance.mean()
    np.testing.assert_allclose(mixture.covariances_[0], expected, rtol=1e-6)
    assert mixture.weights_.tolist() == [1.0]
    assert_sound(mixture, X, weight)


@pytest.mark.parametrize(("kind", "dtype"), in_turns([*KINDS], [np.float32, np.float64]))
def test_a_constant_feature_has_the_least_variance(kind, dtype):
    x = np.column_stack([X, np.full(len(X), 0.1)]).astype(dtype)
    mixture = fitted(x, kind=kind)
    assert_sound(mixture, x)
    if kind == "diag":
        # A feature that does not vary has no share of the others' variances: only rounding is left.
        assert mixture.means_.dtype == dtype
        least = (float(x[0, 2]) * float(np.finfo(dtype).eps)) ** 2
        np.testing.assert_allclose(mixture.covariances_[:, 2], least, rtol=1e-6)
        own = x[:, :2].astype(float).var(axis=0)
        assert (mixture.covariances_[:, :2] > 1e-6 * own).all()
    np.testing.assert_array_equal(mixture.means_[:, 2], x[0, 2])
    plain = fitted(X.astype(dtype), kind=kind)
    np.testing.assert_allclose(
        np.sort(mixture.means_[:, :2], 0), np.sort(plain.means_, 0), atol=0.05
    )


@pytest.mark.parametrize("kind", KINDS)
def test_weights_over_twelve_orders_of_magnitude(kind):
    weight = 10.0 ** RNG.uniform(-6, 6, len(X))
    assert weight.max() / weight.min() > 1e11
    mixture = fitted(kind=kind, weight=weight)
    assert_sound(mixture, X, weight)
    # From there EM of all rows and all components, in plain numpy, goes nowhere.
    joints = log_joints(
        X, mixture.means_, mixture.covariances_.reshape(3, -1), np.log(mixture.weights_)
    )
    shares = weight[:, None] * np.exp(joints - log_sums(joints)[:, None])
    means = (shares.T @ X) / shares.sum(0)[:, None]
    scale = np.sqrt(mixture.covariances_.reshape(3, -1).max(1, keepdims=True))
    assert (np.abs(means - mixture.means_) / scale).max() < 0.1


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("diag", np.float32),
        ("iso", np.float64),
        *slow(("isoflex", np.float32), ("diag", np.float64)),
    ],
)
def test_rows_far_from_the_origin(kind, dtype):
    """At 1e6 ± 1 float32 has four bits; what these are is found as it is about 0."""
    grid = np.round(RNG.normal(scale=0.05, size=(300, 2)) * 16) / 16
    near = (np.array([[-1, -1], [1, -1], [0, 1]])[RNG.integers(3, size=300)] + grid).astype(dtype)
    far = (near.astype(float) + 1e6).astype(dtype)
    np.testing.assert_array_equal(far.astype(float) - 1e6, near)
    there, here = fitted(far, kind=kind), fitted(near, kind=kind)
    np.testing.assert_allclose(there.means_.astype(float) - 1e6, here.means_, atol=0.04)
    assert there.score(far) == pytest.approx(here.score(near), abs=0.05)
    np.testing.assert_array_equal(there.predict(far), there.labels_)
    if dtype == np.float64:
        np.testing.assert_allclose(there.covariances_, here.covariances_, rtol=1e-6)
        assert_sound(there, far)
