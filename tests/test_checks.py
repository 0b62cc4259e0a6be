"""The checks that the table and the fuzzer share see what is wrong, and the fuzzer says it."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.choices import EFFORTS
from largek_dask.errors import DegenerateDataWarning
from tests.checks import faults_of_fit, faults_of_means, recorded_warnings, unit_rows
from tests.fuzz import Case, faults_of
from tests.fuzz.__main__ import as_test, smaller
from tests.fuzz.cases import ALGORITHMS, ALSO, DTYPES, KINDS, LARGE, MIXTURES, WEIGHTS, draw
from tests.fuzz.mixtures import faults_of_mixture

WEIGHT = np.random.default_rng(1).integers(0, 3, 300).astype(float)


@pytest.fixture(scope="module")
def x() -> Any:
    return np.random.default_rng(0).normal(size=(300, 9)).astype(np.float32)


@pytest.fixture(scope="module")
def fitted(x: Any) -> Any:
    km = lk.KMeans(7, algorithm="lloyd", random_state=0, tol=0).fit(x, sample_weight=WEIGHT)
    assert km.stop_reason_ == "converged"
    assert faults_of_fit(km, x, WEIGHT) == faults_of_means(km, x, WEIGHT) == []
    return km


def changed(km: Any, **values: Any) -> Any:
    other = copy.copy(km)
    for name, value in values.items():
        setattr(other, name, value)
    return other


def test_one_label_that_is_not_the_nearest(fitted: Any, x: Any) -> None:
    distances = fitted.transform(x)
    closest = int(np.argmin(np.diff(np.sort(distances, axis=1)[:, :2], axis=1)))
    labels = fitted.labels_.copy()
    labels[closest] = np.argsort(distances[closest])[1]
    faults = faults_of_fit(changed(fitted, labels_=labels), x, WEIGHT)
    assert faults[0].startswith("labels: 1 of 300 rows are not at their nearest centre")


@pytest.mark.parametrize("factor", [1 + 1e-13, 1 - 1e-13, 0.0, np.nan])
def test_an_inertia_that_is_not_exact(factor: float, fitted: Any, x: Any) -> None:
    wrong = changed(fitted, inertia_=fitted.inertia_ * factor)
    (fault,) = faults_of_fit(wrong, x, WEIGHT)
    assert fault.startswith("inertia:")


def test_counts_without_the_weights(fitted: Any, x: Any) -> None:
    counts = np.bincount(fitted.labels_, minlength=7).astype(float)
    (fault,) = faults_of_fit(changed(fitted, model_=SimpleNamespace(counts=counts)), x, WEIGHT)
    assert fault.startswith("counts:")


def test_clusters_that_are_not_used(x: Any) -> None:
    far = np.full((1, 9), 1e3)
    km = lk.KMeans(3, init=np.concatenate([x[:2], far]), empty_clusters="keep").fit(x)
    (fault,) = faults_of_fit(km, x)
    assert fault == "clusters: 2 of 3 are used, and there are 300 distinct rows"


def test_a_warning_without_need_and_one_with_a_wrong_number(fitted: Any, x: Any) -> None:
    with recorded_warnings() as told:
        warnings.warn("2 of 7 clusters are empty", DegenerateDataWarning, stacklevel=1)
    (fault,) = faults_of_fit(fitted, x, WEIGHT, told=told)
    assert fault == "warning: DegenerateDataWarning: 2 of 7 clusters are empty"
    rows = np.repeat(np.eye(9), 5, axis=0)
    with recorded_warnings() as told:
        km = lk.KMeans(12, random_state=0).fit(rows)
    assert faults_of_fit(km, rows, told=told) == []
    assert faults_of_fit(km, rows) == ["warning: none of 12 clusters for 9 distinct rows"]


def test_a_centre_that_is_not_the_mean(fitted: Any, x: Any) -> None:
    centers = fitted.cluster_centers_.copy()
    centers[2, 3] += 1e-5
    (fault,) = faults_of_means(changed(fitted, cluster_centers_=centers), x, WEIGHT)
    assert fault.startswith("means: centre 2 is 1e-05 off")


# --- of mixtures


@pytest.fixture(scope="module")
def mixture(x: Any) -> Any:
    found = lk.Mixture(4, covariance="diag", random_state=0).fit(x, sample_weight=WEIGHT)
    assert sum(step["extra"]["iteration"] > 1 for step in found.history_) > 2
    assert faults_of_mixture(found, x, WEIGHT) == []
    return found


def with_arrays(mixture: Any, **values: Any) -> Any:
    arrays = replace(mixture.model_.arrays, **values)
    return changed(mixture, model_=replace(mixture.model_, arrays=arrays))


def test_a_label_that_is_not_the_most_probable_component(mixture: Any, x: Any) -> None:
    shares = mixture.predict_proba(x)
    row = int(np.argmin(np.diff(np.sort(shares, axis=1)[:, -2:], axis=1)))
    labels = mixture.labels_.copy()
    labels[row] = np.argsort(shares[row])[-2]
    faults = faults_of_mixture(changed(mixture, labels_=labels), x, WEIGHT)
    assert faults[0].startswith("labels: 1 of 300 rows are not at their most probable component")


def test_components_that_are_not_those_of_the_fit(mixture: Any, x: Any) -> None:
    arrays = mixture.model_.arrays
    (fault,) = faults_of_mixture(with_arrays(mixture, variances=-arrays.variances), x, WEIGHT)
    assert fault.startswith("variances: from -")
    weights = arrays.log_weights + 1e-3
    (fault,) = faults_of_mixture(with_arrays(mixture, log_weights=weights), x, WEIGHT)
    assert fault.startswith("weights: they add up to 1.001")
    wider = with_arrays(mixture, variances=arrays.variances * 1.001)
    assert "log-likelihood" in {f.split(":")[0] for f in faults_of_mixture(wider, x, WEIGHT)}


def test_likelihoods_and_shares_that_are_wrong(mixture: Any, x: Any) -> None:
    class Wrong(lk.Mixture):
        def score_samples(self, X: Any) -> Any:
            return super().score_samples(X) + 1e-6

        def predict_proba(self, X: Any, *, dense: bool | None = None) -> Any:
            return 0.999 * super().predict_proba(X, dense=dense)

    wrong = changed(mixture)
    wrong.__class__ = Wrong
    kinds = {fault.split(":")[0] for fault in faults_of_mixture(wrong, x, WEIGHT)}
    assert kinds == {"score_samples", "log-likelihood", "predict_proba"}


def test_a_bound_that_falls_or_is_none(mixture: Any, x: Any) -> None:
    history = copy.deepcopy(mixture.history_)
    history[-2]["cost"] = history[-1]["cost"] * (1 - 1e-4)
    (fault,) = faults_of_mixture(changed(mixture, history_=history), x, WEIGHT)
    assert fault.startswith("F: ")
    assert f"in step {history[-1]['step']}" in fault
    history = copy.deepcopy(mixture.history_)
    history[-1]["cost"] = mixture.log_likelihood_ * (1 - 1e-4)
    (fault,) = faults_of_mixture(changed(mixture, history_=history), x, WEIGHT)
    assert "is above the log-likelihood" in fault


def test_who_is_retired_without_a_word(mixture: Any, x: Any) -> None:
    with recorded_warnings() as told:
        warnings.warn("1 of 4 components are retired", DegenerateDataWarning, stacklevel=1)
    (fault,) = faults_of_mixture(mixture, x, WEIGHT, told=told)
    assert fault.startswith("warning: DegenerateDataWarning: 1 of 4")


def test_a_row_of_nan_that_has_a_label(x: Any) -> None:
    x = x.copy()
    x[3, 1] = np.nan
    km = lk.KMeans(4, on_bad_rows="skip", random_state=0).fit(x)
    assert km.labels_[3] == -1
    assert faults_of_fit(km, x) == []
    labels = np.maximum(km.labels_, 0)
    assert faults_of_fit(changed(km, labels_=labels), x) == [
        "skipped: 0 rows, and 1 are not finite"
    ]


def test_directions_that_are_not_of_unit_length(x: Any) -> None:
    km = lk.SphericalKMeans(4, random_state=0).fit(x)
    rows = unit_rows(x, x.dtype)
    assert faults_of_fit(km, rows) == []
    longer = changed(km, cluster_centers_=km.cluster_centers_ * np.float32(1.001))
    assert any(fault.startswith("directions:") for fault in faults_of_fit(longer, rows))


# --- the fuzzer


def test_everything_there_is_is_drawn() -> None:
    cases = [draw(seed) for seed in range(3_000)]
    assert {case.kind for case in cases} == set(KINDS)
    assert {case.weights for case in cases} == {"none", *WEIGHTS}
    assert {case.algorithm for case in cases} == {*ALGORITHMS, *MIXTURES}
    assert {case.source for case in cases} == {"array", "store", "dask", "workers"}
    assert {case.also for case in cases} == set(ALSO)
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {(case.n, case.d, case.k) for case in cases} >= set(LARGE)
    assert {case.effort for case in cases} == set(EFFORTS)
    assert {case.normalize for case in cases} == {False, True}
    assert {case.estimator for case in cases} == {"KMeans", "SphericalKMeans", "MiniBatchKMeans"}
    assert draw(17) == draw(17)
    bad = [case for case in cases if case.bad and case.n > 10 * case.k][:5]
    assert bad
    assert all(not np.isfinite(case.rows()).all() for case in bad)
    for case in cases[:100]:
        assert case.rows().shape == (case.n, case.d)
        weight = case.weight()
        assert weight is None or (weight > 0).sum() >= case.k


def test_a_case_that_fails_is_made_simpler_and_printed_as_a_test() -> None:
    """As if all fits of more than 10 clusters on int16 rows failed."""

    def broken(case: Case) -> list[str]:
        return ["labels: wrong"] if case.k > 10 and case.dtype == "int16" else []

    case = next(c for c in map(draw, range(10**6)) if broken(c) and c.also == "resume")
    simple, faults = smaller(case, broken(case), broken)
    assert (simple.dtype, simple.d, simple.max_iter, simple.also) == ("int16", 1, 1, "")
    assert 10 < simple.k <= 20
    namespace: dict[str, Any] = {}
    exec(as_test(simple, faults), namespace)
    said: list[Case] = []
    namespace["faults_of"] = lambda other: said.append(other) or []
    namespace[f"test_case_{simple.seed}"]()
    assert said == [simple]


def test_an_exception_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(lk.KMeans, "fit", broken)
    case = next(case for case in map(draw, range(100)) if case.algorithm in ALGORITHMS)
    assert faults_of(case) == ["raised: ZeroDivisionError: by nothing"]
