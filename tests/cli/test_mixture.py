"""Mixtures of Gaussians from the shell."""

import re

import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.model import MixtureModel
from tests.helpers.checks import watched_passes
from tests.helpers.commands import run, run_json

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

K = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A Zarr store of 600 rows about four middles, in four chunks."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(K, 3)) * 8)[rng.integers(K, size=600)] + rng.normal(size=(600, 3))
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    zarr.create_array(str(path), data=x.astype(np.float32), chunks=(150, 3))
    assert lk.open_rows(str(path)).n_chunks == 4
    return str(path)


@pytest.mark.parametrize("kind", ["iso", "isoflex", "diag"])
def test_fit__says_what_the_estimator_says(data, tmp_path, kind):
    options = ["--seed", 3, "--set", "candidates=2", "--set", "neighbours=3", "--max-iter", 12]
    told = run_json("fit", data, "-k", K, "--mixture", kind, "--out", tmp_path / "run", *options)
    mixture = lk.Mixture(
        K, covariance=kind, init="auto", candidates=2, neighbours=3, max_iter=12, random_state=3
    ).fit(data)
    assert told["digest"] == mixture.model_.digest()
    assert told["log_likelihood"] == mixture.log_likelihood_
    assert (told["stop_reason"], told["n_iter"]) == (mixture.stop_reason_, mixture.n_iter_)
    model = lk.load_model(told["model"])
    assert isinstance(model, MixtureModel)
    assert model.provenance["parameters"] == mixture.model_.provenance["parameters"]
    labels = zarr.open_array(told["labels"], mode="r")[...]
    np.testing.assert_array_equal(labels, mixture.labels_)


def test_fit__tells_F_energy_and_likelihood(data, tmp_path):
    base = ["fit", data, "-k", K, "--mixture", "diag", "--out", tmp_path / "run"]
    done = run(*base)
    rows = [line.strip().split("  ", 1) for line in done.stdout.splitlines() if "  " in line]
    shown = {row[0]: row[1].strip() for row in rows if len(row) == 2}
    told = run_json(*base)
    last = lk.load_model(told["model"]).history[-1]
    assert told["mixture"] == "diag"
    assert (shown["mixture"], shown["clusters"]) == ("diag", str(K))
    assert told["F"] == last["extra"]["lower_bound"] == pytest.approx(last["cost"] / 600)
    assert told["energy"] == last["extra"]["energy"]
    assert told["mean_log_likelihood"] == pytest.approx(told["log_likelihood"] / 600)
    assert told["F"] <= told["mean_log_likelihood"]
    assert told["retired_components"] == 0
    for name in ("F", "energy", "mean_log_likelihood", "log_likelihood", "retired_components"):
        assert float(shown[name.replace("_", " ")]) == pytest.approx(told[name], rel=1e-9)
    assert re.search(r"F -[\d.]+, energy [\d.]+ per row", done.stderr)
    for words in (done.stdout, done.stderr):
        assert "inertia" not in words


def test_fit__the_algorithm_by_its_name(data, tmp_path):
    base = ["fit", data, "-k", K, "--mixture", "iso", "--max-iter", 3]
    told = [
        run_json(*base, "--algorithm", name, "--out", tmp_path / name)["digest"]
        for name in ("auto", "vc-gmm")
    ]
    assert told[0] == told[1]
    done = run(*base, "--algorithm", "lloyd", "--out", tmp_path / "other", code=1)
    assert "algorithm must be 'auto', 'vc-gmm' or a VCGMM() for a mixture" in done.stderr
    done = run(*base, "--set", "batch_rows=5", "--out", tmp_path / "other", code=2)
    assert "VCGMM has no parameter 'batch_rows'" in done.stderr


def test_plan(data):
    told = run_json("fit", data, "-k", K, "--mixture", "diag", "--plan")
    assert told["n_clusters"] == K
    # Four components and five candidates: one pass over all components is one step.
    assert told["anchors"].startswith("in every step")
    assert told["row_state"] == 2 * 600 * told["row_bytes"] > 0
    assert told["memory_row_state"] == told["row_state"]
    assert told["memory_held"] == 0
    assert told["fits"]
    # Statistics, the mean variance, and rows to begin with; labels.
    assert (told["passes_before"], told["passes_after"]) == (3, 1)
    assert told["passes_most"] == 3 + 300 + 1


def test_plan__of_a_coreset_reads_nothing_in_steps(data, tmp_path):
    """As many passes as it then takes."""
    options = ["-k", K, "--mixture", "diag", "--set", "coreset=100", "--set", "neighbours=2"]
    options += ["--set", "candidates=2"]
    told = run_json("fit", data, *options, "--plan")
    assert told["rows_step"] == 100
    assert told["row_bytes"] == 0
    assert told["memory_held"] >= 100 * (3 * 4 + 8)
    assert told["memory"] >= told["memory_held"]
    assert told["steps_per_reading"] is None
    assert told["passes_after"] == 1
    with watched_passes() as seen:
        run("fit", data, *options, "--out", tmp_path / "run")
    assert [passes.total.passes for passes in seen] == [told["passes_most"]]


@pytest.fixture(scope="module")
def fitted(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("fitted") / "run"
    return run_json("fit", data, "-k", K, "--mixture", "diag", "--max-iter", 9, "--out", out)


def test_predict_and_score(data, fitted, tmp_path):
    model = lk.load_model(fitted["model"])
    scored = run_json("score", fitted["model"], data)
    assert scored["score"] == model.score(data)
    assert scored["score"] == pytest.approx(fitted["log_likelihood"] / 600, rel=1e-12)
    told = run_json("predict", fitted["model"], data, "--out", tmp_path / "labels.zarr")
    assert (told["holds"], told["n_rows"]) == ("labels", 600)
    labels = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")[...]
    np.testing.assert_array_equal(labels, model.predict(data))


def test_predict__densities_and_probabilities(data, fitted, tmp_path):
    base = ["predict", fitted["model"], data, "--out", tmp_path / "densities.zarr", "--density"]
    assert run_json(*base)["holds"] == "log_likelihoods"
    found = zarr.open_array(str(tmp_path / "densities.zarr"), mode="r")[...]
    np.testing.assert_array_equal(found, lk.load_model(fitted["model"]).score_samples(data))
    assert "already exists" in run(*base, code=1).stderr
    base = ["predict", fitted["model"], data, "--out", tmp_path / "shares.zarr", "--proba"]
    assert run_json(*base)["holds"] == "probabilities"
    assert lk.open_rows(str(tmp_path / "shares.zarr")).shape == (600, K)


def test_predict__one_thing_a_run(data, fitted, tmp_path):
    base = ["predict", fitted["model"], data, "--out", tmp_path / "out.zarr"]
    done = run(*base, "--proba", "--density", code=2)
    assert "--density and --proba" in done.stderr


def test_predict__centres_have_no_densities(data, tmp_path):
    told = run_json("fit", data, "-k", K, "--max-iter", 2, "--out", tmp_path / "run")
    for what in ("--density", "--proba"):
        done = run("predict", told["model"], data, what, "--out", tmp_path / "out.zarr", code=1)
        assert f"{what} requires a mixture" in done.stderr
        assert "fit a mixture with --mixture" in done.stderr
    assert not (tmp_path / "out.zarr").exists()
