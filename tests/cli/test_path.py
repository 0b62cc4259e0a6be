"""Commands with a model that holds every partition: ``elbow`` and others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.cli import main
from largek_dask.cli.elbow import path_picture
from largek_dask.driver.provenance import named_arrays
from largek_dask.model import PathModel, load_model
from tests.helpers.paths import PathToy, path_arrays, path_model, squares

K = 6
X = np.random.default_rng(8).normal(size=(300, 2)).astype(np.float32)
X[:, 0] += 10 * (np.arange(300) % 3)


def run(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def run_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def model() -> PathModel:
    arrays = path_arrays(X, K)
    bound, still = arrays.inertia / 2, arrays.stationarity.copy()
    bound[:2] = arrays.inertia[:2]
    bound[1] *= 1 - 5e-4
    still[3] = 0.25, 7, 1234, -3.5
    stability = arrays.stability.copy()
    stability[-1] = np.nan
    return replace(
        path_model(X, K),
        arrays=replace(arrays, lower_bound=bound, stationarity=still, stability=stability),
    )


@pytest.fixture
def saved(model: PathModel, tmp_path: Path) -> Path:
    model.save(str(tmp_path / "run" / "model.zarr"))
    return tmp_path / "run"


# --- elbow


def test_path__as_json(model: PathModel, saved: Path) -> None:
    told = run_json("elbow", saved / "model.zarr")
    assert len(told["partitions"]) == K
    assert told["partitions"] == model.path_.records()
    assert told["partitions"][3] == {
        "n_clusters": 4,
        "inertia": model.path_.inertia[3],
        "lower_bound": model.path_.lower_bound[3],
        "gap": 0.5,
        "movement": 0.25,
        "ties": 7,
        "moves": 1234,
        "swap": -3.5,
        "stability": model.path_.stability[3],
    }
    assert told["partitions"][-1]["stability"] is None
    found = model.path_.suggest_k()
    names = ("k", "runner_up", "clear", "words")
    assert {name: told[name] for name in names} == {name: getattr(found, name) for name in names}
    # A job's folder is taken for its model.
    assert run_json("elbow", saved) == told | {"data": str(saved)}
    assert "--k-max is for data" in run("elbow", saved, "-k", 9, code=2).stderr


def test_path__as_a_table(model: PathModel, saved: Path) -> None:
    shown = run("elbow", saved).stdout
    [fourth] = [line.split() for line in shown.splitlines() if line.split()[:1] == ["4"]]
    assert {f"{model.path_.inertia[3]:.6g}", "7", "1,234", "-3.5"} <= set(fourth)
    [last] = [line.split() for line in shown.splitlines() if line.split()[:1] == [str(K)]]
    assert last[-1] == "-", "what is not known"
    assert "No partition is better by 0.1% or more for: 1, 2 clusters." in shown
    found = model.path_.suggest_k()
    assert " ".join(found.words.split()) in " ".join(shown.split())


def spectral_bounds(x: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """What no partitions into 1 to k clusters fall below: the smallest eigenvalues' sums."""
    centered = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    values = np.linalg.eigvalsh(centered.T @ centered)[::-1]
    return np.array([values[i:].sum() for i in range(k)]) * (1 - 1e-9)


def drawn(saved: Path) -> Any:
    """The picture of a model of every partition."""
    model = load_model(str(saved))
    assert isinstance(model, PathModel)
    return path_picture(model)


def test_path__three_groups_are_suggested_and_drawn(tmp_path: Path) -> None:
    stability = np.array([1, 0.5, 1.0, 0.6, 0.5, 0.4])
    arrays = path_arrays(X, K, lower_bound=spectral_bounds(X, K), stability=stability)
    replace(path_model(X, K), arrays=arrays).save(str(tmp_path / "m.zarr"))
    told = run_json("elbow", tmp_path / "m.zarr")
    assert (told["k"], told["clear"]) == (3, True)
    figure = drawn(tmp_path / "m.zarr")
    lines = {line.get_label(): line.get_xydata() for line in figure.axes[0].lines}
    np.testing.assert_array_equal(lines["suggested: 3 clusters"], [[3, arrays.inertia[2]]])
    assert "3 clusters: halves of the data agree" in run("elbow", tmp_path / "m.zarr").stdout
    restless = replace(arrays, stability=np.array([1, 0.5, 0.5, 0.6, 0.5, 0.4]))
    replace(path_model(X, K), arrays=restless).save(str(tmp_path / "n.zarr"))
    assert run_json("elbow", tmp_path / "n.zarr")["k"] is None
    assert "No clear k" in run("elbow", tmp_path / "n.zarr").stdout


def test_path__weak_bounds_are_no_certificate(tmp_path: Path) -> None:
    path_model(X, 3).save(str(tmp_path / "m.zarr"))
    assert "No partition is better" not in run("elbow", tmp_path / "m.zarr").stdout


def test_path__of_another_model(tmp_path: Path) -> None:
    lk.KMeans(3, random_state=0).fit(X).model_.save(str(tmp_path / "m.zarr"))
    done = run("elbow", tmp_path / "m.zarr", code=1)
    assert "holds one partition, not a path of them: fit with --algorithm dcdbundle" in done.stderr
    assert "does not exist" in run("elbow", tmp_path / "none", code=1).stderr


# --- charts


def test_picture__the_elbow(model: PathModel, saved: Path, tmp_path: Path) -> None:
    figure = drawn(saved)
    elbow = figure.axes[0]
    lines = {line.get_label(): line.get_xydata() for line in elbow.lines}
    np.testing.assert_array_equal(lines["inertia"][:, 1], model.path_.inertia)
    np.testing.assert_array_equal(lines["lower bound"][:, 1], model.path_.lower_bound)
    assert elbow.get_xlabel() == "clusters"
    assert run_json("elbow", saved, "--out", tmp_path / "run.png")["out"]
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


# --- all that takes a model


def test_predict_and_score(model: PathModel, saved: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    of, data = saved / "model.zarr", tmp_path / "x.npy"
    run("predict", of, data, "--out", tmp_path / "labels.zarr")
    found = squares(X, model.centers)
    labels = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")[...]
    np.testing.assert_array_equal(labels, found.argmin(1))
    assert run_json("score", of, data)["inertia"] == pytest.approx(found.min(1).sum(), rel=1e-6)
    assert "is for mixtures" in run("predict", of, data, "--out", "x", "--proba", code=1).stderr


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
    assert run_json("elbow", out)["partitions"] == km.path_.records()
    shown = run("fit", *asked, "--out", tmp_path / "again").stdout
    # A long path goes on in the next line.
    assert f"largekelbow{tmp_path / 'again'}" in "".join(shown.split())
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
    assert len(run_json("elbow", tmp_path / "run")["partitions"]) == 3
    run("report", tmp_path / "run", "--out", tmp_path / "run.png")


def test_fit__an_effort_that_nobody_hears(tmp_path: Path) -> None:
    asked = ("x.npy", "-k", 3, "--out", tmp_path / "run", "--effort", "best")
    done = run("fit", *asked, "--algorithm", "lloyd", code=2)
    assert "Lloyd has none: leave it out" in done.stderr
    assert "VCGMM has none" in run("fit", *asked, "--mixture", "iso", code=2).stderr
