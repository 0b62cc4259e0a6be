"""Names of columns, from the table to whatever a model is used for: by name or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import zarr

import largek_dask as lk
from largek_dask.data.derived_rows import ColumnRows
from largek_dask.errors import DataWarning, ModelFormatError, ParameterError
from largek_dask.model import Model
from tests.helpers.checks import computing_workers, watched_passes
from tests.helpers.commands import run

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

NAMES = ("height", "weight", "age")
K = 4
RNG = np.random.default_rng(8)
# The columns differ in size: in another order every row has another nearest centre.
CENTERS = RNG.normal(size=(K, 3)) * [100, 10, 1] + [500, 50, 5]
X = (CENTERS[RNG.integers(K, size=900)] + RNG.normal(size=(900, 3)) * [3, 0.3, 0.03]).astype("f4")
FRAME = pd.DataFrame(X, columns=list(NAMES))
OTHER = FRAME[["age", "height", "weight"]]

ESTIMATORS = {
    "kmeans": lambda: lk.KMeans(K, random_state=0),
    "path": lambda: lk.KMeans(K, algorithm="partition-path", random_state=0),
    "mixture": lambda: lk.Mixture(K, covariance="diag", random_state=0, max_iter=20),
}
"""One for each kind of model."""
USES: dict[str, list[str]] = {
    "kmeans": ["predict", "transform", "score"],
    "path": ["predict", "transform", "score"],
    "mixture": ["predict", "score", "score_samples", "predict_proba", "bic", "aic"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of the rows, with columns in two orders, and without names."""
    place = tmp_path_factory.mktemp("rows")
    for name, source in [("rows", FRAME), ("other", OTHER), ("plain", X)]:
        lk.ingest(source, place / f"{name}.zarr", chunk_rows=200, progress=False)
        assert lk.open_rows(place / f"{name}.zarr").n_chunks == 5
    return place


@pytest.fixture(scope="module", params=list(ESTIMATORS))
def fitted(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Any]:
    """The kind, and an estimator that has been fitted on a store."""
    return request.param, ESTIMATORS[request.param]().fit(folder / "rows.zarr")


def saved(model: Model, place: Path) -> Model:
    model.save(str(place / "model.zarr"))
    return lk.load_model(str(place / "model.zarr"))


# --- from the table to the model


def test_names_go_from_a_table_to_the_model_that_is_loaded(
    fitted: tuple[str, Any], tmp_path: Path
) -> None:
    kind, estimator = fitted
    assert estimator.feature_names_in_.tolist() == list(NAMES)
    model = saved(estimator.model_, tmp_path)
    assert model.feature_names == NAMES
    assert model.digest() == estimator.model_.digest()
    # names are no part of what was found
    assert ESTIMATORS[kind]().fit(X).model_.digest() == model.digest()
    assert ESTIMATORS[kind]().fit(X).model_.feature_names is None
    if kind == "path":
        assert model.path_.model(2).feature_names == NAMES
    again = type(estimator).from_model(model)
    assert again.feature_names_in_.tolist() == list(NAMES)
    with pytest.raises(ValueError, match="in the same order as they were in fit"):
        again.predict(OTHER)


@pytest.mark.parametrize("kind", ["rows", "frame", "polars"])
def test_names_are_kept_whatever_was_fitted(kind: str) -> None:
    source = {"rows": lk.open_rows(FRAME), "frame": FRAME, "polars": pl.DataFrame(FRAME)}[kind]
    km = lk.KMeans(K, random_state=0).fit(source, sample_weight=2.0)
    assert km.feature_names_in_.tolist() == list(NAMES)
    assert km.n_features_in_ == 3
    assert km.model_.feature_names == NAMES
    assert (km.predict(source) == km.labels_).all()
    # and forgotten by the next fit
    assert not hasattr(km.fit(X), "feature_names_in_")
    assert km.model_.feature_names is None


def test_partial_fit_knows_the_names_of_the_first_batch() -> None:
    km = lk.KMeans(K, random_state=0).partial_fit(FRAME[:500]).partial_fit(FRAME[500:])
    assert km.model_.feature_names == NAMES
    with pytest.raises(ValueError, match="in the same order as they were in fit"):
        km.partial_fit(OTHER)
    path = lk.KMeans(K, algorithm="partition-path", random_state=0).fit(FRAME)
    assert path.partial_fit(FRAME).model_.feature_names == NAMES


# --- models take columns by name


def test_a_model_takes_columns_by_their_names(
    fitted: tuple[str, Any], folder: Path, tmp_path: Path
) -> None:
    kind, estimator = fitted
    model = saved(estimator.model_, tmp_path)
    for use in (use for use in USES[kind] if hasattr(model, use)):
        expected = getattr(model, use)(folder / "rows.zarr")
        for source in (FRAME, OTHER, pl.DataFrame(OTHER), folder / "other.zarr"):
            np.testing.assert_array_equal(getattr(model, use)(source), expected)
        # what it would be without names is something else
        with pytest.warns(DataWarning, match="no column names.*'height', 'weight', 'age'"):
            wrong = getattr(model, use)(OTHER.to_numpy())
        assert not np.array_equal(wrong, expected)
        with pytest.warns(DataWarning):
            np.testing.assert_array_equal(getattr(model, use)(folder / "plain.zarr"), expected)
    model.predict(OTHER, out=str(tmp_path / "labels.zarr"))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "labels.zarr"), model.predict(FRAME))


def test_a_model_refuses_other_columns(fitted: tuple[str, Any]) -> None:
    kind, estimator = fitted
    for use in (use for use in USES[kind] if hasattr(estimator.model_, use)):
        for source, message in [
            (FRAME.rename(columns={"age": "years"}), r"Missing: 'age'\. Unknown: 'years'\. Pass"),
            (
                FRAME[["height", "age"]],
                r"Missing: 'weight'\. Pass exactly the columns of the fit \('he",
            ),
            (FRAME.assign(id=1), "Unknown: 'id'"),
        ]:
            with pytest.raises(ParameterError, match=message):
                getattr(estimator.model_, use)(source)


def test_a_model_without_names_takes_columns_as_they_come(folder: Path) -> None:
    model = lk.KMeans(K, random_state=0).fit(X).model_
    np.testing.assert_array_equal(model.predict(FRAME), model.predict(X))


def test_weights_and_noise_go_with_the_rows_that_are_put_in_order(tmp_path: Path) -> None:
    weight = np.arange(900.0)
    km = lk.KMeans(K, random_state=0).fit(FRAME)
    model = km.model_
    assert model.score(OTHER, sample_weight=weight) == model.score(FRAME, sample_weight=weight)
    whole = FRAME.round().astype("int16")
    mixture = lk.Mixture(K, dither=True, random_state=0, max_iter=5).fit(whole).model_
    np.testing.assert_array_equal(
        mixture.score_samples(whole[["age", "height", "weight"]]), mixture.score_samples(whole)
    )


# --- estimators hold to scikit-learn's rules, wherever rows come from


def test_an_estimator_wants_the_order_of_the_fit(fitted: tuple[str, Any], folder: Path) -> None:
    kind, estimator = fitted
    uses = [use for use in USES[kind] if hasattr(estimator, use)]
    for use in uses:
        for source in (OTHER, pl.DataFrame(OTHER), folder / "other.zarr"):
            with pytest.raises(ValueError, match="The feature names should match") as caught:
                getattr(estimator, use)(source)
            assert "in the same order as they were in fit" in str(caught.value)
        with pytest.raises(ParameterError, match=r"Missing: 'age'\. Unknown: 'years'\."):
            getattr(estimator, use)(pl.DataFrame(FRAME.rename(columns={"age": "years"})))
        with pytest.warns(UserWarning, match="X does not have valid feature names, but") as heard:
            getattr(estimator, use)(X)
        with pytest.warns(UserWarning, match="X does not have valid feature names, but") as more:
            getattr(estimator, use)(folder / "plain.zarr")
        assert len(heard) == len(more) == 1
    nameless = ESTIMATORS[kind]().fit(X)
    with pytest.warns(UserWarning, match="X has feature names, but .* was fitted without"):
        nameless.predict(folder / "rows.zarr")
    with pytest.raises(ParameterError, match=r"X has 2 features, but .* is expecting 3 features"):
        nameless.predict(pl.DataFrame(FRAME).select("age", "weight"))


# --- files of models


def test_models_of_before_there_were_names_are_read() -> None:
    model = lk.load_model(str(Path(__file__).parents[1] / "data_files" / "model-v1.zarr"))
    assert model.feature_names is None


def test_names_that_cannot_be_those_of_the_model_are_damage(tmp_path: Path) -> None:
    lk.KMeans(K, random_state=0).fit(FRAME).model_.save(str(tmp_path / "m.zarr"))
    path = tmp_path / "m.zarr" / "zarr.json"
    node = json.loads(path.read_text())
    assert node["attributes"]["largek"]["feature_names"] == list(NAMES)
    for names in (["a", "b"], "abc", [1, 2, 3], {"a": 1}):
        node["attributes"]["largek"]["feature_names"] = names
        path.write_text(json.dumps(node))
        with pytest.raises(ModelFormatError, match=r"m\.zarr is damaged: .* names "):
            lk.load_model(str(tmp_path / "m.zarr"))


# --- on a cluster, and from the shell


def test_on_a_cluster_columns_are_put_in_order_by_the_workers(
    cluster2: Any, folder: Path, tmp_path: Path
) -> None:
    with watched_passes() as seen:
        km = lk.KMeans(K, random_state=0, client=cluster2).fit(FRAME)
    assert computing_workers(seen[-1]) == 1
    assert km.model_.feature_names == NAMES
    local = lk.KMeans(K, random_state=0).fit(FRAME)
    assert km.model_.digest() == local.model_.digest()
    model = saved(km.model_, tmp_path)
    for source in (OTHER, folder / "other.zarr", folder / "rows.zarr"):
        labels = model.predict(source, client=cluster2)
        np.testing.assert_array_equal(labels, local.labels_)
    opened = model._open(folder / "other.zarr")
    assert isinstance(opened, ColumnRows)
    with model._passes(opened, cluster2, None) as passes:
        labels, _ = model._label(passes, None)
        assert computing_workers(passes) == 2
    np.testing.assert_array_equal(labels, local.labels_)
    with pytest.raises(ParameterError, match="Unknown: 'years'"):
        model.predict(FRAME.rename(columns={"age": "years"}), client=cluster2)


def test_from_the_shell(tmp_path: Path) -> None:
    named = FRAME.assign(city="Rome, Italy").rename(columns={"age": "age, in years"})
    for number in range(2):
        named[450 * number : 450 * (number + 1)].to_csv(tmp_path / f"{number}.csv", index=False)
    files = [tmp_path / "0.csv", tmp_path / "1.csv"]
    refused = run("ingest", *files, tmp_path / "x.zarr", code=1)
    assert "drop=['city']" in refused.stderr
    shown = run("ingest", *files, tmp_path / "x.zarr", "--drop", "city")
    assert "height, weight, age, in years" in shown.stdout
    columns = '"age, in years",height,weight'
    told = run("ingest", *files, tmp_path / "y.zarr", "--columns", columns, "--json").stdout
    assert json.loads(told)["columns"] == ["age, in years", "height", "weight"]
    assert json.loads(told)["n_rows"] == 900
    run("fit", tmp_path / "x.zarr", "-k", K, "--out", tmp_path / "run")
    model = tmp_path / "run" / "model.zarr"
    assert lk.load_model(str(model)).feature_names == ("height", "weight", "age, in years")
    run("predict", model, tmp_path / "y.zarr", "--out", tmp_path / "labels.zarr")
    np.testing.assert_array_equal(
        zarr.open_array(tmp_path / "labels.zarr"), zarr.open_array(tmp_path / "run" / "labels.zarr")
    )
    scores = [
        json.loads(run("score", model, tmp_path / f"{name}.zarr", "--json").stdout)["score"]
        for name in "xy"
    ]
    assert scores[0] == scores[1]
    run("ingest", tmp_path / "x.zarr", tmp_path / "less.zarr", "--drop", "weight")
    for command in (["predict", model, tmp_path / "less.zarr", "--out", tmp_path / "no.zarr"],
                    ["score", model, tmp_path / "less.zarr"]):  # fmt: skip
        refused = run(*command, code=1)
        assert "Missing: 'weight'" in refused.stderr
    run("coreset", tmp_path / "y.zarr", tmp_path / "few.zarr", "--rows", 50)
    few = lk.open_rows(tmp_path / "few.zarr")
    assert few.feature_names == ("age, in years", "height", "weight")
    assert lk.load_model(str(model)).predict(few) is not None


@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_a_model_has_no_names_that_several_columns_have(how: str, tmp_path: Path) -> None:
    """It could not tell columns by them, and none such is read."""
    table = pa.table([pa.array(column) for column in X.T], names=["a", "b", "a"])
    with pytest.warns(DataWarning, match=r"several columns with the same name \('a'\)"):
        km = getattr(lk.KMeans(K, random_state=0), how)(table)
    assert km.model_.feature_names is None
    np.testing.assert_array_equal(km.labels_, getattr(lk.KMeans(K, random_state=0), how)(X).labels_)
    km.model_.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(
        lk.load_model(tmp_path / "m.zarr").predict(table), km.predict(table)
    )
