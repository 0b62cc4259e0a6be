"""The least variance: a feature's own, and never below what the sums resolve."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import largek_dask as lk
from largek_dask.algorithms.mixture import MixtureProblem
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.errors import DataError, DegenerateDataWarning
from tests.fuzz import Case, faults_of
from tests.fuzz.mixtures import faults_of_mixture
from tests.helpers.checks import recorded_warnings
from tests.helpers.covering import in_turns, slow

KINDS = ["iso", "isoflex", "diag"]
UNITS = [[1e-3, 1, 1e4], [1e-8, 1, 1e8], [1e8, 1e-8, 1], [2.0, 2e5, 0.01]]


def fitted(x, k, weight=None, **asked):
    """A mixture, whose warnings are not looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lk.Mixture(k, random_state=0, n_threads=1, **asked).fit(x, sample_weight=weight)


def bounds_of(mixture):
    """F of each iteration of EM."""
    return [step["cost"] for step in mixture.history_ if step["extra"]["iteration"]]


# --- units


@pytest.mark.parametrize(
    ("weights", "dtype", "units"),
    in_turns(["none", "whole", "real"], ["float32", "float64"], UNITS),
)
def test_one_component_has_the_variances_of_the_columns(units, dtype, weights):
    r = np.random.default_rng(0)
    x = (r.normal(size=(2_000, len(units))) * units).astype(dtype)
    weight = {"none": None, "whole": r.integers(0, 4, 2_000), "real": r.random(2_000)}[weights]
    for reg_covar in (1e-6, 0.0):
        mixture = fitted(x, 1, weight, covariance="diag", reg_covar=reg_covar)
        rows = x.astype(np.float64)
        mean = np.average(rows, axis=0, weights=weight)
        expected = np.average((rows - mean) ** 2, axis=0, weights=weight)
        np.testing.assert_allclose(mixture.covariances_[0], expected, rtol=1e-5)
        score = float((-0.5 * np.log(2 * np.pi * expected) - 0.5).sum())
        assert mixture.score(x, sample_weight=weight) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_groups_are_found_whatever_the_units(dtype):
    """Powers of two change no digit of a row: components are those of rows without units."""
    r = np.random.default_rng(1)
    means = r.normal(size=(6, 3)) * 6
    x = (means[r.integers(6, size=3_000)] + r.normal(size=(3_000, 3))).astype(dtype)
    units = (2.0 ** np.array([-27, 0, 27])).astype(dtype)
    plain, other = (
        fitted(rows, 6, covariance="diag", init=start, precisions_init=precisions)
        for rows, start, precisions in (
            (x, x[:6], np.ones((6, 3))),
            (x * units, x[:6] * units, np.tile(units.astype(float) ** -2, (6, 1))),
        )
    )
    assert plain.n_iter_ > 5
    np.testing.assert_array_equal(other.labels_, plain.labels_)
    np.testing.assert_allclose(other.means_, plain.means_ * units, rtol=1e-5)
    scaled = plain.covariances_ * units.astype(float) ** 2
    np.testing.assert_allclose(other.covariances_, scaled, rtol=1e-5)


@pytest.mark.parametrize(
    ("exponents", "weights"), in_turns([[460, 460], [500, 500], [500, 200]], ["none", "real"])
)
def test_variances_of_numbers_near_the_largest(exponents, weights):
    """Squares have steps in which not even their sum overflows."""
    r = np.random.default_rng(9)
    rows, weight = r.normal(size=(500, 2)), {"none": None, "real": r.random(500)}[weights]
    units = 2.0 ** np.array(exponents)
    mixture = fitted(rows * units, 1, weight, covariance="diag")
    mean = np.average(rows, axis=0, weights=weight)
    expected = np.average((rows - mean) ** 2, axis=0, weights=weight)
    np.testing.assert_allclose(mixture.covariances_[0] / units / units, expected, rtol=1e-9)


# --- the limit


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_feature_has_its_own_limit(dtype):
    r = np.random.default_rng(2)
    x = r.normal(size=(400, 3)) * [1e-3, 1, 1e4]
    x[:200] = x[0]  # a component that has nothing but equal rows
    x = x.astype(dtype)
    own = x.astype(float).var(axis=0)
    mixture = fitted(x, 4, covariance="diag", reg_covar=1e-5, init=x[[0, 201, 202, 203]])
    at = int(mixture.predict(x[:1])[0])
    np.testing.assert_allclose(mixture.covariances_[at], 1e-5 * own, rtol=1e-9)
    absolute = fitted(x, 4, covariance="diag", least_variance=0.5, init=x[[0, 201, 202, 203]])
    assert absolute.covariances_[:, 0].tolist() == [0.5] * 4


@pytest.mark.parametrize(("dtype", "reg_covar"), [("float32", 0.0), ("float64", 1e-6)])
def test_columns_that_hardly_vary(dtype, reg_covar):
    """They change nothing in the others, whose groups are found."""
    r = np.random.default_rng(3)
    labels = r.integers(3, size=900)
    x = np.empty((900, 5))
    x[:, 0] = labels * 50 + r.normal(size=900)
    x[:, 1] = 7.0
    x[:, 2] = 0.0
    x[:, 3] = np.where(r.random(900) < 0.5, 1.0, np.nextafter(np.dtype(dtype).type(1), 2))
    x[:, 4] = 1e4 + 1e-2 * r.normal(size=900)
    x = x.astype(dtype)
    mixture = fitted(x, 3, covariance="diag", reg_covar=reg_covar)
    means = np.sort(mixture.means_[:, 0])
    np.testing.assert_allclose(means, [0, 50, 100], atol=0.5)
    assert mixture.means_.dtype == np.float64, "as columns are far from 0 for what they vary"
    eps = float(np.finfo(np.float64).eps)
    np.testing.assert_allclose(mixture.covariances_[:, 1], (7 * eps) ** 2)
    np.testing.assert_allclose(mixture.covariances_[:, 2], eps**2)
    for c in range(3):
        own = x[mixture.labels_ == c][:, 3:].astype(float).var(axis=0)
        assert (mixture.covariances_[c, 3:] < 2 * own + eps**2).all()
        assert (mixture.covariances_[c, 3:] > own / 2).all()
    assert np.isfinite(mixture.log_likelihood_)


@pytest.mark.parametrize(
    ("covariance", "init"), in_turns(KINDS, ["k-means", "two-level", "afk-mc2", "rows"])
)
def test_means_on_all_rows_need_no_reg_covar(covariance, init):
    """Nothing is left of the variance: as many components as rows, or as distinct ones."""
    whole = np.random.default_rng(0).integers(-3, 4, size=(5, 9)).astype(float)
    for x, k in ((whole, 5), (np.repeat(np.eye(3), 20, 0), 3), (np.eye(4) * 1e-140, 4)):
        start = x[:: len(x) // k] if init == "rows" else init
        for reg_covar in (0.0, 1e-300):
            asked = {"covariance": covariance, "reg_covar": reg_covar, "init": start}
            with recorded_warnings() as told:
                mixture = lk.Mixture(k, random_state=0, n_threads=1, **asked).fit(x)
            assert faults_of_mixture(mixture, x, told=told) == []


@given(
    st.integers(0, 2**31),
    st.sampled_from(KINDS),
    st.sampled_from([0.0, 1e-60, 1e-30, 1e-12]),
    st.sampled_from(["float32", "float64"]),
)
def test_f_rises_however_small_variances_may_be(seed, covariance, reg_covar, dtype):
    """Where rows repeat, and lie far from the origin, beside some that do not."""
    r = np.random.default_rng(seed)
    n, d = int(r.integers(4, 60)), int(r.choice([2, 6]))
    distinct = r.normal(size=(max(2, n // 3), d)) * 10.0 ** r.integers(-6, 4, size=d)
    x = distinct[r.integers(len(distinct), size=n)] + 10.0 ** r.integers(0, 6)
    x[: n // 4] += r.normal(size=(n // 4, d)) * 1e-3
    x, k = x.astype(dtype), int(r.integers(1, n + 1))
    if (x == x[0]).all():
        return
    with recorded_warnings() as told:
        mixture = lk.Mixture(
            k, covariance=covariance, reg_covar=reg_covar, random_state=0, n_threads=1, max_iter=12
        ).fit(x)
    assert faults_of_mixture(mixture, x, told=told) == []


def test_given_variances_are_no_smaller_than_the_limit():
    """Otherwise F would fall as soon as they are found anew."""
    x = np.repeat(np.random.default_rng(4).normal(size=(5, 2)), 30, axis=0)
    mixture = fitted(x, 5, covariance="diag", init=x[::30], precisions_init=np.full((5, 2), 1e30))
    bounds = bounds_of(mixture)
    assert len(bounds) > 1
    assert bounds == sorted(bounds)


# --- before the first iteration


@pytest.mark.parametrize("scale", [1.0, 2.0**-20])
def test_the_first_variance_of_diag_has_the_unit_of_the_rows(scale):
    x = np.random.default_rng(6).normal(size=(300, 2)) * scale
    found = fitted(x, 4, covariance="diag", init="random", max_iter=1)
    assert found.history_[0]["extra"]["iteration"] == 0
    assert found.history_[0]["extra"]["energy"] / scale**2 == pytest.approx(0.9, rel=0.7)
    np.testing.assert_allclose(found.covariances_ / scale**2, 0.45, rtol=0.7)


@pytest.mark.parametrize("covariance", ["isoflex", "diag"])
def test_a_fit_that_ends_before_any_iteration_is_no_worse_than_its_bound(covariance):
    x = np.random.default_rng(7).normal(size=(300, 2))
    weights = np.array([0.97, 0.01, 0.01, 0.01])
    found = fitted(x, 4, covariance=covariance, init="random", weights_init=weights, max_iter=1)
    assert found.history_[0]["extra"]["iteration"] == 0
    assert found.log_likelihood_ >= found.lower_bound_ * len(x)
    searched = fitted(x, 250, covariance=covariance, max_iter=1)
    assert searched.history_[0]["extra"]["iteration"] == 0
    assert searched.log_likelihood_ >= searched.lower_bound_ * len(x)


# --- the end right after components were retired


@pytest.mark.parametrize(
    ("covariance", "dtype"), in_turns(["isoflex", "diag"], ["float32", "float64"])
)
def test_a_fit_that_ends_as_components_are_retired(covariance, dtype, tmp_path):
    """It still has them, and is as good as its bound; from there a fit goes on as any other."""
    x = (np.random.default_rng(1).normal(size=(20, 9)) + 1e4).astype(dtype)
    asked = {"covariance": covariance, "tol": 0}
    whole = fitted(x, 20, **asked, max_iter=40)
    ends = [s["step"] for s in whole.history_ if s["extra"].get("retired")]
    assert len(ends) >= 2
    assert not whole.model_.arrays.alive.all()
    for step in ends:
        folder = tmp_path / str(step)
        with pytest.warns(DegenerateDataWarning, match="have collapsed"):
            ended = lk.Mixture(
                20, random_state=0, n_threads=1, checkpoint=folder, max_iter=step, **asked
            ).fit(x)
        extra = ended.history_[-1]["extra"]
        assert extra["retired"]
        assert extra["alive"] == ended.model_.arrays.alive.sum() - extra["retired"]
        assert ended.log_likelihood_ >= ended.lower_bound_ * 20 * (1 - 1e-9)
        resumed = fitted(x, 20, **asked, max_iter=40, checkpoint=folder)
        assert resumed.log_likelihood_ == whole.log_likelihood_
        np.testing.assert_array_equal(resumed.means_, whole.means_)
        np.testing.assert_array_equal(resumed.covariances_, whole.covariances_)


def test_a_mixture_without_time_has_the_variances_of_the_columns():
    """Means are rows of a sample: there was no time for a step."""
    r = np.random.default_rng(8)
    x = (r.normal(size=(50, 4)) * [1e-8, 1, 1e8, 1]).astype(np.float32)
    x[:, 3] = 7.0
    sample = TakenRows(x, None, np.arange(50))
    found = MixtureProblem(3, init="random", mixture="diag").unsearched(sample, x[0], r)
    own = x.astype(float).var(axis=0)
    own[3] = (7 * float(np.finfo(np.float32).eps)) ** 2
    np.testing.assert_allclose(found.variances, np.tile(own, (3, 1)), rtol=1e-6)


# --- what the fuzzer has found


def a_case(seed, kind, n, d, dtype, k, algorithm, init, **more):
    """One in few words."""
    usual = {"layout": "C", "weights": "none", "tol": 1e-4, "max_iter": 40, "source": "array"}
    return Case(seed, kind, n, d, dtype, k=k, algorithm=algorithm, init=init, **(usual | more))


FELL = [
    a_case(
        250, "units", 10, 3, "float32", 10, "mixture lists", "afk-mc2", reg_covar=1e-30,
        weights="whole", also="resume",
    ),
    a_case(
        103, "columns", 25, 2, "uint8", 10, "mixture diag", "two-level", reg_covar=1e-30,
        weights="fractions", also="resume",
    ),
    a_case(
        135, "units", 23, 9, "uint8", 8, "mixture single", "rows", reg_covar=1e-12,
        weights="zeros", max_iter=5, dither=True,
    ),
    a_case(
        208, "repeated", 44, 1, "float32", 14, "mixture single", "k-means", reg_covar=1e-16,
        weights="wide", max_iter=5,
    ),
    a_case(
        228, "repeated", 22, 1, "float64", 21, "mixture iso", "k-means", reg_covar=1e-60,
        weights="wide", also="resume",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", [FELL[0], *slow(*FELL[1:])], ids=[str(case.seed) for case in FELL])
def test_cases_in_which_f_fell(case):
    assert faults_of(case) == []


def test_sums_that_overflow_are_refused():
    rows = np.random.default_rng(9).normal(size=(500, 2)) * 2.0**500
    with pytest.raises(DataError, match="overflow"):
        fitted(rows, 2, np.full(500, 1e20), covariance="diag")
