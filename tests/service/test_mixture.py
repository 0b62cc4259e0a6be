"""Jobs that fit mixtures, on a cluster with two workers in this process."""

from __future__ import annotations

import threading

import dask
import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.algorithms.mixture import MIXTURE
from largek_dask.algorithms.objective import objective_in, value_in
from largek_dask.errors import ParameterError
from largek_dask.model import MixtureModel
from tests.service.conftest import begun, wait_until

K = 5


def test_a_job_gives_the_model_of_the_estimator(service, rows_url, tmp_path):
    told = {"candidates": 3, "neighbours": 4}
    job = service.submit(
        rows_url,
        n_clusters=K,
        mixture="diag",
        algorithm=lk.VCGMM(**told),
        max_iter=8,
        init="random",
        output=str(tmp_path / "out"),
    )
    model = job.result("120s")
    mixture = lk.Mixture(
        K, covariance="diag", init="random", max_iter=8, random_state=0, **told
    ).fit(rows_url)
    assert isinstance(model, MixtureModel)
    assert model.digest() == mixture.model_.digest()
    assert model.provenance["parameters"] == mixture.model_.provenance["parameters"]
    labels = zarr.open_array(str(tmp_path / "out" / "labels.zarr"), mode="r")[...]
    np.testing.assert_array_equal(labels, mixture.labels_)
    status = job.status()
    assert objective_in(status) == MIXTURE
    assert value_in(status["result"]) == (MIXTURE, mixture.log_likelihood_)
    assert status["mixture"] == "diag"
    figures = status["result"]["figures"]
    assert figures == model.fit_figures()
    assert figures["F"] == mixture.lower_bound_
    assert figures["energy"] == mixture.history_[-1]["extra"]["energy"]
    told = {line.split()[2]: line for line in job.logs()}
    assert f"F {mixture.lower_bound_:.8g}, mean log likelihood" in told["finished"]
    assert "per row" in told["step"][told["step"].index("energy") :]


def test_an_estimator_on_the_cluster(service, rows_url, tmp_path):
    """Everything that goes through rows is computed there, to the same bits."""
    asked = {"covariance": "diag", "max_iter": 8, "random_state": 0}
    there = lk.Mixture(K, client=service.client, **asked).fit(rows_url)
    here = lk.Mixture(K, **asked).fit(rows_url)
    assert there.model_.digest() == here.model_.digest()
    done = len(service.client.get_task_stream())
    for name in ("predict", "score_samples", "predict_proba", "score", "bic", "aic"):
        found, expected = (getattr(mixture, name)(rows_url) for mixture in (there, here))
        np.testing.assert_array_equal(found, expected)
        assert len(service.client.get_task_stream()) > done, f"{name} ran here"
        done = len(service.client.get_task_stream())
    there.score_samples(rows_url, out=str(tmp_path / "densities.zarr"))
    found = zarr.open_array(str(tmp_path / "densities.zarr"), mode="r")[...]
    np.testing.assert_array_equal(found, here.score_samples(rows_url))


def test_words_of_mixtures_are_checked_when_it_is_submitted(service, rows_url, tmp_path):
    asked = {"n_clusters": K, "output": str(tmp_path / "out")}
    with pytest.raises(ParameterError, match="mixture: must be 'iso', 'isoflex' or 'diag'"):
        service.submit(rows_url, mixture="full", **asked)
    with pytest.raises(ParameterError, match=r"init must be one of .auto., .k-means., .two-level."):
        service.submit(rows_url, mixture="iso", init="k-means||", **asked)
    with pytest.raises(ParameterError, match="for a mixture, got Lloyd"):
        service.submit(rows_url, mixture="iso", algorithm="lloyd", **asked)
    with pytest.raises(ParameterError, match="candidates must be an integer of 1 to 32, got 0"):
        service.submit(rows_url, mixture="iso", algorithm=lk.VCGMM(candidates=0), **asked)
    with pytest.raises(ParameterError, match="coreset=4 is less than n_clusters=5"):
        service.submit(rows_url, mixture="iso", algorithm=lk.VCGMM(coreset=4), **asked)
    with pytest.raises(
        ParameterError, match="dither requires dense rows of integers, but the rows are"
    ):
        service.submit(rows_url, mixture="iso", dither="uniform", **asked)
    assert not (tmp_path / "out").exists()


def test_a_cancelled_job_leaves_a_mixture(open_jobs, document, rows_url, monkeypatch):
    """Made of its last checkpoint, without rows."""
    jobs = open_jobs()
    step, never = lk.VCGMM.step, threading.Event()

    def slow(self, passes, rng, state):
        while state.step >= 3 and not passes.cancelled():
            never.wait(0.01)
        return step(self, passes, rng, state)

    monkeypatch.setattr(lk.VCGMM, "step", slow)
    with dask.config.set({"largek.checkpoints.seconds": 0}):
        job_id = jobs.submit(
            document(algorithm=lk.VCGMM(), mixture="isoflex", init="random"), {}, "me"
        )
        begun(jobs, job_id, 3)
        jobs.cancel(job_id)
        wait_until(jobs, job_id, "cancelled")
    model = jobs.model(job_id)
    assert isinstance(model, MixtureModel)
    assert model.provenance["n_iter"] == 3
    mixture = lk.Mixture(7, covariance="isoflex", init="random", max_iter=3, random_state=0)
    mixture.fit(rows_url)
    np.testing.assert_array_equal(model.arrays.means, mixture.means_)
    np.testing.assert_array_equal(model.arrays.variances[:, 0], mixture.covariances_)
