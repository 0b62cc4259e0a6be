"""A second kind of problem: a mixture is asked for by an option; k-means hears nothing of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.mixture import MIXTURE, MixtureArrays, MixtureProblem
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.objective import INERTIA
from largek_dask.algorithms.problem import Final
from largek_dask.driver.fit import FitResult
from largek_dask.driver.options import FitOptions
from largek_dask.driver.provenance import identity_of
from largek_dask.driver.starts import best_saved
from largek_dask.driver.storage import Folder
from largek_dask.errors import CheckpointError, ParameterError
from tests.helpers.checks import fit_asked
from tests.helpers.mixtures import PlainMixture, log_joints, log_sums

K, D = 5, 3
RNG = np.random.default_rng(3)
MIDDLES = RNG.normal(size=(K, D)) * 6
X = (MIDDLES[RNG.integers(K, size=900)] + RNG.normal(size=(900, D))).astype(np.float32)
WEIGHT = RNG.integers(0, 4, len(X)).astype(np.float64)
START = MIDDLES + 0.5
COVARIANCES = ["iso", "isoflex", "diag"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "vc-gmm", PlainMixture)


def mix(covariance: str = "isoflex", **asked: Any) -> FitResult:
    options: dict[str, Any] = {
        "n_clusters": K, "mixture": covariance, "init": START, "max_iter": 60, "n_threads": 2,
    }  # fmt: skip
    return fit_asked(lk.open_rows(X, sample_weight=WEIGHT), **{**options, **asked})


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_labels_and_value_are_those_of_all_components(covariance: str) -> None:
    result = mix(covariance)
    arrays = result.arrays
    assert isinstance(arrays, MixtureArrays)
    assert arrays.variances.shape == {"iso": (1, 1), "isoflex": (K, 1), "diag": (K, D)}[covariance]
    joints = log_joints(X, arrays.means, arrays.variances, arrays.log_weights)
    np.testing.assert_array_equal(result.labels, joints.argmax(1))
    assert result.objective == MIXTURE
    assert result.value == pytest.approx((WEIGHT * log_sums(joints)).sum(), rel=1e-12)
    counts = np.bincount(joints.argmax(1), WEIGHT, minlength=K)
    np.testing.assert_array_equal(arrays.counts, counts)
    assert result.provenance["log_likelihood"] == result.value
    values = [record["cost"] for record in result.history]
    assert len(values) > 3
    assert values == sorted(values), "no step lowers F"  # type: ignore[type-var]
    assert result.stop_reason == "tol"
    gains = [record["extra"]["gain"] for record in result.history]
    assert gains[-1] <= 1e-4 < gains[-2]  # type: ignore[operator]


def test_the_likelier_start_is_kept(tmp_path: Any) -> None:
    result = mix("diag", init="random", n_init=4, max_iter=15, seed=1, checkpoint=str(tmp_path))
    values = []
    for start in range(4):
        place = Folder(str(tmp_path) if not start else f"{tmp_path}/starts/{start:02d}")
        values.append(float.fromhex(json.loads(place.read("counted.json"))["log_likelihood"]))
    assert len(set(values)) > 1
    assert result.value == max(values)
    assert result.provenance["start"] == values.index(max(values))


# --- how it is asked for


def test_a_job_of_a_mixture_is_another_one_than_that_of_k_means(tmp_path: Any) -> None:
    """Even by the same algorithm: of k-means the folder of old says nothing of mixtures."""
    mixture = FitOptions(n_clusters=K, mixture="diag", weights_init=np.full(K, 0.2))
    told = identity_of(mixture)
    assert told["mixture"] == "diag"
    assert told["weights_init"]["shape"] == [K]
    assert told["precisions_init"] is None
    assert told["algorithm"] == {"name": "PlainMixture", "covariance": "diag"}
    plain = FitOptions(n_clusters=K, algorithm=PlainMixture("diag"))
    assert identity_of(plain).keys() == told.keys() - {
        "mixture", "weights_init", "precisions_init", "dither",
    }  # fmt: skip
    mix("diag", checkpoint=str(tmp_path))
    with pytest.raises(CheckpointError, match="its algorithm covariance is 'diag', not 'iso'"):
        mix("iso", checkpoint=str(tmp_path))
    with pytest.raises(
        CheckpointError, match="contains another job: its mixture is 'diag', not None"
    ):
        mix(None, algorithm=PlainMixture("diag"), checkpoint=str(tmp_path))  # type: ignore[arg-type]


def test_a_checkpoint_is_read_as_of_its_own_problem(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an algorithm that answers both kinds, the class does not say which it was asked."""
    monkeypatch.setattr(PlainMixture, "solves", KMeansProblem)
    with dask.config.set({"largek.checkpoints.seconds": 0}):
        result = mix(checkpoint=str(tmp_path))
    saved = best_saved(Folder(str(tmp_path)))
    assert saved is not None
    assert saved.objective == MIXTURE
    assert saved.objective != INERTIA == PlainMixture().solves.objective
    assert saved.n_iter == result.n_iter
    np.testing.assert_array_equal(saved.arrays.means, result.arrays.means)  # type: ignore[attr-defined]


# --- what it begins with


def test_starts_are_given() -> None:
    weights = np.arange(1, K + 1) / 15
    precisions = np.linspace(0.5, 2, K)
    begun = mix(max_iter=1, weights_init=weights, precisions_init=precisions)
    joints = log_joints(X, START.astype("f4"), 1 / precisions[:, None], np.log(weights))
    expected = (WEIGHT * log_sums(joints)).sum()
    assert begun.history[0]["cost"] == pytest.approx(expected, rel=1e-9)
    other = mix(max_iter=1)
    assert other.history[0]["cost"] != begun.history[0]["cost"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"init": "k-means++"}, "init must be one of 'auto', 'k-means', 'two-level', 'afk-mc2'"),
        ({"init": START[:2]}, r"init has shape \(2, 3\); with n_clusters=5"),
        ({"init": START * np.nan}, "init: centre 0 holds NaN"),
        ({"init": None}, r"init has shape \(\)"),
        ({"weights_init": np.full(4, 0.25)}, r"weights_init must have shape \(5,\), got \(4,"),
        ({"weights_init": np.full(K, 0.3)}, "weights_init must sum to 1, got a sum of 1.5"),
        ({"weights_init": [0.5, 0.5, 0.5, -0.5, 0]}, "weights_init must contain only positive"),
        ({"weights_init": [0.3, 0.3, 0.2, 0.1, 0.1]}, 'weights_init must be equal for an "iso"'),
        ({"weights_init": "equal"}, r"weights_init must have shape \(5,\), got \(\)"),
        ({"precisions_init": np.ones((K, D))}, r"must have shape \(5,\), got \(5, 3\)"),
        ({"precisions_init": np.zeros(K)}, "precisions_init must contain only positive"),
        ({"precisions_init": np.full(K, np.inf)}, "precisions_init must contain only positive"),
        ({"mixture": "diag", "precisions_init": np.ones(K)}, r"must have shape \(5, 3\)"),
        ({"n_clusters": 901, "init": "auto"}, "n_clusters=901 is more than the number of rows"),
    ],
)
def test_wrong_starts_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        mix(**{"covariance": asked.pop("mixture", "iso"), **asked})


def test_retired_and_collapsed_components_are_told_of() -> None:
    arrays = mix(max_iter=1).arrays
    assert isinstance(arrays, MixtureArrays)
    final = Final(arrays, 0.0, None, n_empty=2)

    def told(final: Final, **last: float) -> str | None:
        return MixtureProblem(K).complaint(final, had_time=True, last=last)

    assert told(final) is None
    assert told(final, collapsed=0.0) is None
    assert "2 of 5 components have collapsed" in (told(final, collapsed=2.0) or "")
    retired = replace(
        final, arrays=replace(arrays, alive=np.array([True, False, True, True, False]))
    )
    assert "2 of 5 components are retired (1, 4)" in (told(retired, collapsed=0.0) or "")
    many = replace(final, arrays=replace(arrays, alive=np.zeros(40, bool)))
    both = told(many, collapsed=1.0) or ""
    assert "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)" in both
    assert "1 of 5 components have collapsed" in both
