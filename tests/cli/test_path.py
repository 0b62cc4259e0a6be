"""Commands with a model that holds every partition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.driver.provenance import named_arrays
from largek_dask.model import load_model
from tests.helpers.commands import run, run_json
from tests.helpers.paths import PathToy, path_model, squares

K = 6
X = np.random.default_rng(8).normal(size=(300, 2)).astype(np.float32)
X[:, 0] += 10 * (np.arange(300) % 3)


# --- all that takes a model


def test_predict_and_score(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    of, data, model = tmp_path / "model.zarr", tmp_path / "x.npy", path_model(X, K)
    model.save(str(of))
    run("predict", of, data, "--out", tmp_path / "labels.zarr")
    found = squares(X, model.centers)
    labels = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")[...]
    np.testing.assert_array_equal(labels, found.argmin(1))
    assert run_json("score", of, data)["inertia"] == pytest.approx(found.min(1).sum(), rel=1e-6)
    assert "requires a mixture" in run("predict", of, data, "--out", "x", "--proba", code=1).stderr


# --- fit


def test_fit__into_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(ALGORITHMS, "path-toy", PathToy)
    np.save(tmp_path / "x.npy", X)
    asked = (tmp_path / "x.npy", "-k", K, "--algorithm", "path-toy")
    planned = run_json("fit", *asked, "--plan")
    assert planned["n_clusters"] == K
    out = tmp_path / "run"
    told = run_json("fit", *asked, "--effort", "best", "--out", out)
    km = lk.KMeans(K, algorithm="path-toy", effort="best", random_state=0).fit(X)
    assert told["digest"] == km.model_.digest()
    assert (told["n_clusters"], told["partitions"]) == (K, K)
    found = load_model(str(out / "model.zarr"))
    assert found.provenance["parameters"]["algorithm"] == {"name": "PathToy", "effort": "best"}
    for name, array in named_arrays(km.model_.arrays).items():
        np.testing.assert_array_equal(getattr(found.arrays, name), array)
    run("report", out, "--out", tmp_path / "charts.png")


@pytest.mark.filterwarnings("always::largek_dask.errors.DegenerateDataWarning")
def test_fit__ends_where_rows_are_distinct_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ALGORITHMS, "path-toy", PathToy)
    np.save(tmp_path / "x.npy", np.repeat(np.eye(3), 4, axis=0))
    asked = (tmp_path / "x.npy", "-k", 5, "--algorithm", "path-toy", "--out", tmp_path / "run")
    done = run("fit", *asked, "--json")
    assert "Warning: the rows have only 3 distinct values" in done.stderr
    told = json.loads(done.stdout)
    assert (told["n_clusters"], told["partitions"], told["inertia"]) == (3, 3, 0)
    run("report", tmp_path / "run", "--out", tmp_path / "run.png")


def test_fit__an_effort_that_nobody_hears(tmp_path: Path) -> None:
    asked = ("x.npy", "-k", 3, "--out", tmp_path / "run", "--effort", "best")
    done = run("fit", *asked, "--algorithm", "lloyd", code=2)
    assert "Lloyd has no effort" in done.stderr
    assert "VCGMM has no effort" in run("fit", *asked, "--mixture", "iso", code=2).stderr
