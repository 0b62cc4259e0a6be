from __future__ import annotations

import json
import math
import shutil
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array

import largek_dask as lk
from largek_dask.algorithms import kmeans
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.data.sources import open_rows
from largek_dask.driver import labels as labels_module
from largek_dask.driver import plan
from largek_dask.errors import (
    BadRowsError,
    ModelFormatError,
    NotEnoughMemoryError,
    OutputError,
    ParameterError,
)
from largek_dask.model import Model, load_model
from tests import oracles
from tests.driver.toy import CutRows, Toy, toy_rows
from tests.helpers.checks import fit_asked
from tests.helpers.covering import in_turns

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

DATA_FILES = Path(__file__).parents[1] / "data_files"
X = toy_rows(200, 3)


def fitted(**options: Any) -> tuple[Model, NDArray[np.int32]]:
    asked: dict[str, Any] = {"seed": 1, "max_iter": 4, "tol": 0, **options}
    result = fit_asked(open_rows(X), algorithm=Toy(), n_clusters=5, n_threads=1, **asked)
    assert result.labels is not None
    return Model.of(result), result.labels


@pytest.fixture(scope="module")
def model() -> Model:
    return fitted()[0]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nine chunks of 24 rows, in groups of two."""
    import dask.config

    monkeypatch.setattr("largek_dask.data.memory_rows.MIN_CHUNK_ROWS", 1)
    monkeypatch.setattr(labels_module, "GROUP_ROWS", 48)
    with dask.config.set({"largek.data.memory-chunk-bytes": 24 * 3 * 8}):
        assert open_rows(X).n_chunks == 9
        yield


# --- using it


@pytest.mark.parametrize("options", [{}, {"normalize": "l2"}, {"on_bad_rows": "skip"}])
def test_predict_gives_the_labels_of_the_fit(options: dict[str, Any], chunks: None) -> None:
    model, labels = fitted(**options)
    found = model.predict(X)
    np.testing.assert_array_equal(found, labels, strict=True)
    assert model.normalize == options.get("normalize")


def test_predict_takes_what_open_rows_takes(model: Model, tmp_path: Path) -> None:
    stored = zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(64, 3))
    assert open_rows(stored).n_chunks == 4
    expected = model.predict(X)
    np.testing.assert_array_equal(model.predict(stored), expected)
    np.testing.assert_array_equal(model.predict(str(tmp_path / "x.zarr")), expected)
    np.testing.assert_array_equal(model.predict(X.astype(np.float32)), expected)
    np.testing.assert_array_equal(model.predict(X.astype(np.int16)), expected)


def test_rows_with_nan(model: Model) -> None:
    x = X.copy()
    x[9, 1] = np.nan
    with pytest.raises(BadRowsError, match="row 9 "):
        model.predict(x)
    skipping = fitted(on_bad_rows="skip")[0]
    found = skipping.predict(x)
    assert found is not None
    assert np.flatnonzero(found == -1).tolist() == [9]
    assert np.isnan(skipping.transform(x)[9]).all()
    assert skipping.score(x) == skipping.score(np.delete(x, 9, axis=0))


@pytest.mark.parametrize("method", ["predict", "transform", "score"])
def test_another_number_of_columns_is_named(model: Model, method: str) -> None:
    with pytest.raises(ParameterError, match=r"rows have 2 features.*fitted on rows with 3"):
        getattr(model, method)(X[:, :2])


def test_distances_that_do_not_fit_are_found_first(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "process_memory", lambda: 200 * 5 * 8 - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"shape \(200, 5\) needs"):
        model.transform(X)


def test_nothing_is_drawn_from_the_rows_of_predict(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predict makes one pass: no scan for statistics."""
    monkeypatch.setattr("largek_dask.passes.base.RowScan", None)
    assert model.predict(X) is not None


# --- labels to storage


class Killed(BaseException):
    pass


@pytest.mark.parametrize(("dies_in", "regular"), [(1, True), (5, False), (9, True)])
def test_a_killed_predict_goes_on_where_it_was(
    dies_in: int,
    regular: bool,
    model: Model,
    chunks: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = open_rows(X) if regular else CutRows(X, [30, 7, 31, 12, 20, 33, 34, 13, 20])
    out = str(tmp_path / "labels.zarr")
    original, calls = kmeans.nearest_pruned, [0]

    def dying(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == dies_in:
            raise Killed
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kmeans, "nearest_pruned", dying)
        with pytest.raises(Killed):
            model.predict(x, out=out, n_threads=1)
    unfinished = zarr.open_array(out, mode="r")
    assert unfinished.attrs["largek"]["complete"] is False  # type: ignore[index,call-overload]
    done = next(i for i in range(10) if i == 9 or -2 in unfinished[slice(*x.chunk_rows(i))])
    assert done >= dies_in - 2  # groups of at most two chunks
    calls[0] = 1000
    with monkeypatch.context() as patch:
        patch.setattr(kmeans, "nearest_pruned", dying)
        assert model.predict(x, out=out, n_threads=1) is None
    assert calls[0] <= 1000 + 9 - (dies_in - 2)
    if dies_in > 2:
        assert calls[0] < 1000 + 9
    stored = zarr.open_array(out, mode="r")
    np.testing.assert_array_equal(stored[...], model.predict(X))
    notes = dict(stored.attrs["largek"])
    assert notes["model"] == model.digest()
    assert notes["inertia"] == -model.score(X)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.zarr"]


def test_unfinished_labels_of_another_model_are_refused(
    model: Model, chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "labels.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(kmeans, "nearest_pruned", None)
        with pytest.raises(TypeError):
            model.predict(X, out=out)
    other = fitted(normalize="l2")[0]
    with pytest.raises(OutputError, match="unfinished labels of another model"):
        other.predict(X, out=out)
    with pytest.raises(OutputError, match="unfinished labels of another model"):
        model.predict(X[:100], out=out)
    (tmp_path / "labels.zarr.progress.json").write_text("{")
    with pytest.raises(OutputError, match=r"progress\.json cannot be read"):
        model.predict(X, out=out)


def test_labels_never_overwrite(model: Model, tmp_path: Path) -> None:
    out = str(tmp_path / "labels.zarr")
    model.predict(X, out=out)
    with pytest.raises(OutputError, match="already exists"):
        model.predict(X, out=out)


# --- storage


def assert_same_model(a: Model, b: Model) -> None:
    assert a.digest() == b.digest()
    np.testing.assert_array_equal(a.arrays.shift, b.arrays.shift, strict=True)
    assert (a.normalize, a.on_bad_rows) == (b.normalize, b.on_bad_rows)
    assert list(a.history) == list(b.history)
    assert json.loads(json.dumps(a.provenance)) == b.provenance
    np.testing.assert_array_equal(a.predict(X), b.predict(X))


@pytest.mark.parametrize("place", ["local", "memory"])
def test_save_and_load(place: str, tmp_path: Path) -> None:
    model = fitted(normalize="l2", on_bad_rows="skip")[0]
    url = str(tmp_path / "m.zarr") if place == "local" else f"memory://{tmp_path.name}/m.zarr"
    model.save(url)
    assert_same_model(model, load_model(url))


def test_digest_is_over_type_shape_and_bytes() -> None:
    shift = np.zeros(2, np.float32)

    def digest(centers: NDArray[Any], counts: NDArray[np.float64]) -> str:
        return Model(CenterArrays(centers, counts, shift)).digest()

    centers, counts = np.ones((3, 2), np.float32), np.arange(3.0)
    base = digest(centers, counts)
    assert len(base) == 64
    assert digest(centers.astype(">f4"), counts) == base
    assert digest(np.asfortranarray(centers), counts) == base
    assert digest(centers.astype(np.float64), counts) != base
    assert digest(centers.reshape(2, 3), counts) != base
    assert digest(np.nextafter(centers, np.float32(2)), counts) != base
    assert digest(centers, counts[::-1]) != base


def test_save_does_not_overwrite_unless_told(model: Model, tmp_path: Path) -> None:
    url = str(tmp_path / "m.zarr")
    model.save(url)
    with pytest.raises(OutputError, match=r"already exists.*overwrite=True"):
        model.save(url)
    other = fitted(normalize="l2")[0]
    other.save(url, overwrite=True)
    assert_same_model(other, load_model(url))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    with pytest.raises(OutputError, match="already exists"):
        model.save(str(tmp_path / "precious"), overwrite=True)
    assert (tmp_path / "precious/file").read_text() == "mine"


def test_a_place_that_cannot_be_written(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        model.save(str(tmp_path / "file/m.zarr"))


@pytest.mark.parametrize(
    ("dtype", "d", "k", "layout"),
    in_turns(["f4", "f8"], [2, 8, 9, 33], [3, 150, 150, 3], ["dense", "dense", "sparse"]),
)
def test_predict_of_rows_whose_distances_overflow(dtype: str, d: int, k: int, layout: str) -> None:
    """A fit refuses such rows, with some of which all sums are infinite; a model may meet them."""
    top = np.sqrt(float(np.finfo(dtype).max))
    rng = np.random.default_rng(d * k)
    x = (1e-3 * top * rng.normal(size=(400, d))).astype(dtype)
    queries = rng.normal(size=(60, d))
    queries *= top / np.linalg.norm(queries, axis=1)[:, None]
    queries = np.concatenate([f * queries for f in (1e-3, 0.3, 0.9, 1.2, 10, 1e6)]).astype(dtype)
    with np.errstate(over="ignore"):
        assert np.isinf(np.square(queries).sum(axis=1)).any()
    given = csr_array(x), csr_array(queries)
    given = given if layout == "sparse" else (x, queries)
    model = lk.KMeans(k, random_state=0, max_iter=2).fit(given[0]).model_
    labels = model.predict(given[1])
    exponent = -int(np.frexp(float(np.abs(queries).max()))[1])
    squares = oracles.squared_distances(
        np.ldexp(queries.astype("f8"), exponent), np.ldexp(model.centers.astype("f8"), exponent)
    )
    found = squares[np.arange(len(labels)), labels]
    assert (found <= squares.min(axis=1) * (1 + 1e-15)).all()
    # Far rows are told apart, too: nothing is the label of all.
    assert (np.bincount(labels[-60:], minlength=k) < 60).all()


@pytest.fixture(scope="module")
def saved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.zarr"
    model.save(str(path))
    return path


def notes_of(path: Path) -> dict[str, Any]:
    notes: dict[str, Any] = json.loads((path / "zarr.json").read_text())["attributes"]["largek"]
    return notes


def edited(saved: Path, tmp_path: Path, change: Any) -> str:
    path = tmp_path / "m.zarr"
    shutil.copytree(saved, path)
    node = json.loads((path / "zarr.json").read_text())
    change(node["attributes"]["largek"])
    (path / "zarr.json").write_text(json.dumps(node))
    return str(path)


def test_what_is_no_model_says_so(saved: Path, tmp_path: Path) -> None:
    refused: list[tuple[Any, str]] = [
        (
            lambda n: n.update(format=4),
            "format 4.*reads formats up to 3; install the newer version",
        ),
        (lambda n: n.update(format="1"), "not a model: its kind is 'model', and its format is '1'"),
        (lambda n: n.update(format=0), "not a model: its kind is 'model', and its format is 0"),
        (lambda n: n.update(format=True), "format is True"),
        (lambda n: n.update(kind="labels"), "not a model: its kind is 'labels'"),
        (lambda n: n.pop("arrays"), "damaged: 'arrays'"),
        (lambda n: n.pop("history"), "damaged: 'history'"),
        (lambda n: n["arrays"]["centers"].update(shape=[3, 5]), r"\(3, 5\)"),
        (lambda n: n["arrays"]["centers"].update(shape=[1 << 40, 1 << 40]), "too large"),
        (lambda n: n["arrays"]["centers"].update(shape=[10**400, 3]), "too large"),
        (lambda n: n["arrays"]["centers"].update(shape=[-5, 3]), "shape"),
        (lambda n: n["arrays"]["centers"].update(dtype="O"), "damaged"),
        (lambda n: n["arrays"]["centers"].update(dtype="nonsense"), "damaged"),
        (
            lambda n: n["arrays"]["centers"].update(sha256="0"),
            "does not match its recorded SHA-256 hash",
        ),
        (lambda n: n["arrays"].update(shift=n["arrays"]["counts"]), "damaged"),
        (lambda n: n["arrays"].update({"../x": n["arrays"]["counts"]}), r", but has \['\.\./x'"),
        (lambda n: n.update(digest="0"), "the digest does not match the arrays"),
        (lambda n: n.update(normalize="zscore"), "normalize='zscore'"),
        (lambda n: n.update(on_bad_rows="ignore"), "on_bad_rows='ignore'"),
        (lambda n: n.update(feature_names=["a", "b", "a"]), "columns have the same name: 'a'"),
        (lambda n: n.update(feature_names=["a", "b"]), "2 names for 3 columns"),
        (lambda n: n.update(history={"step": 1}), "the history is not a list"),
        (lambda n: n["history"].append({"step": 5, "cost": "low"}), "an invalid step"),
        (lambda n: n["provenance"].update(inertia="low"), "inertia is 'low'"),
        (lambda n: n.clear(), "not a model"),
    ]
    for at, (change, message) in enumerate(refused):
        with pytest.raises(ModelFormatError, match=message):
            load_model(edited(saved, tmp_path / str(at), change))


@pytest.mark.parametrize("name", ["centers/c/0/0", "counts/c/0", "shift/zarr.json", "zarr.json"])
@pytest.mark.parametrize("how", ["torn", "gone"])
def test_damage_is_named(name: str, how: str, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    shutil.copytree(saved, path)
    data = (path / name).read_bytes()
    (path / name).unlink()
    if how == "torn":
        (path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFormatError, match=r"damaged|not a (readable )?model"):
        load_model(str(path))


def claiming(path: Path, name: str, n: int) -> None:
    """Let the array ``name`` of a saved model have ``n`` rows, as far as all JSON goes."""
    node = json.loads((path / "zarr.json").read_text())
    record = node["attributes"]["largek"]["arrays"][name]
    record["shape"][0] = n
    (path / "zarr.json").write_text(json.dumps(node))
    node = json.loads((path / name / "zarr.json").read_text())
    node["shape"][0] = n
    size = np.dtype(record["dtype"]).itemsize * math.prod(record["shape"][1:])
    node["chunk_grid"]["configuration"]["chunk_shape"][0] = (64 << 20) // size
    (path / name / "zarr.json").write_text(json.dumps(node))


@pytest.mark.parametrize(
    ("name", "n", "chunk", "place"),
    in_turns(
        ["centers", "counts"],
        [30_000_000, 10**9, 10**9, 30_000_000],
        ["gone", "there", "whole"],
        ["local", "memory", "memory", "local"],
    ),
)
def test_a_model_that_claims_more_than_is_there_takes_no_memory(
    name: str, n: int, chunk: str, place: str, saved: Path, tmp_path: Path
) -> None:
    path, url = tmp_path / "m.zarr", str(tmp_path / "m.zarr")
    shutil.copytree(saved, path)
    claiming(path, name, n)
    first = path / name / "c" / ("0/0" if name == "centers" else "0")
    if chunk == "gone":
        first.unlink()
    elif chunk == "whole":  # the first of several
        size = 24 if name == "centers" else 8
        with first.open("wb") as file:
            file.truncate((64 << 20) // size * size)
    if place == "memory":
        url = f"memory://{tmp_path.name}/m.zarr"
        fsspec.filesystem("memory").put(str(path), f"/{tmp_path.name}/m.zarr", recursive=True)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match=rf"{name} .* bytes, but its chunk"):
            load_model(url)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 100 << 20


def test_every_array_is_looked_at_before_one_is_read(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.zarr"
    shutil.copytree(saved, path)
    (path / "shift" / "c" / "0").unlink()
    assert list(notes_of(path)["arrays"])[-1] == "shift"
    monkeypatch.setattr("largek_dask.driver.storage.sha256_of", None)
    with pytest.raises(ModelFormatError, match=r"shift has shape .* its chunk c/0 is missing"):
        load_model(str(path))


def with_one(array: NDArray[Any], value: float) -> NDArray[Any]:
    changed = array.copy()
    changed.flat[-1] = value
    return changed


@pytest.mark.parametrize(
    ("name", "value"), in_turns(["centers", "counts", "shift"], [np.nan, np.inf, -np.inf])
)
def test_numbers_that_are_none_are_refused(
    name: str, value: float, model: Model, tmp_path: Path
) -> None:
    array = with_one(getattr(model.arrays, name), value)
    replace(model, arrays=replace(model.arrays, **{name: array})).save(str(tmp_path / "m.zarr"))
    with pytest.raises(ModelFormatError, match=rf"is damaged: .*\[.*\] is {value}, which is not a"):
        load_model(str(tmp_path / "m.zarr"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": np.array([1, 2, 3, -4.0, 5])}, r"counts at \[3\] is -4.0, .* at least 0"),
        (
            {"centers": np.ones((0, 3)), "counts": np.ones(0)},
            r"centres have an invalid shape \(0, 3\)",
        ),
        (
            {"centers": np.ones((5, 0)), "shift": np.ones(0)},
            r"centres have an invalid shape \(5, 0\)",
        ),
        ({"centers": np.ones((5, 3), np.int64)}, "centres have .* type int64"),
    ],
)
def test_centres_that_are_none_are_refused(
    changes: dict[str, Any], message: str, model: Model, tmp_path: Path
) -> None:
    replace(model, arrays=replace(model.arrays, **changes)).save(str(tmp_path / "m.zarr"))
    with pytest.raises(ModelFormatError, match=message):
        load_model(str(tmp_path / "m.zarr"))


def test_a_compressed_array_is_refused(saved: Path, tmp_path: Path) -> None:
    """What would grow without bounds on reading is not read."""
    path = tmp_path / "m.zarr"
    shutil.copytree(saved, path)
    counts = load_model(str(saved)).counts
    group = zarr.open_group(str(path), mode="r+")
    group.create_array("counts", data=counts, overwrite=True)
    with pytest.raises(ModelFormatError, match="counts is compressed"):
        load_model(str(path))


def test_a_description_nested_without_end_is_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    shutil.copytree(saved, path)
    (path / "zarr.json").write_text("[" * 200_000)
    with pytest.raises(ModelFormatError, match="is not a readable model: maximum recursion"):
        load_model(str(path))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="does not exist; check the address"):
        load_model(str(tmp_path / "nothing.zarr"))
    zarr.create_group(str(tmp_path / "group.zarr"))
    told = r"group\.zarr is a Zarr store, but not a model; pass .*Model\.save, or the folder"
    with pytest.raises(ModelFormatError, match=told):
        load_model(str(tmp_path / "group.zarr"))
    lk.ingest(np.ones((5, 2)), tmp_path / "rows.zarr", progress=False)
    with pytest.raises(ModelFormatError, match=r"rows\.zarr is a Zarr store, but not a model"):
        load_model(str(tmp_path / "rows.zarr"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        ModelFormatError, match=r"folder is not a model and does not contain model\.zarr"
    ):
        load_model(str(tmp_path / "folder"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelFormatError, match=r"file is not a readable model: |does not exist"):
        load_model(str(tmp_path / "file"))


def test_the_folder_of_a_fit_stands_for_its_model(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "run" / "model.zarr")
    digest = load_model(str(saved)).digest()
    for where in ("run", "run/", "run/model.zarr"):
        assert load_model(f"{tmp_path}/{where}").digest() == digest
    # A model that is damaged is not taken for a folder without one.
    (tmp_path / "run" / "model.zarr" / "counts" / "c" / "0").unlink()
    with pytest.raises(ModelFormatError, match=r"run/model\.zarr is damaged"):
        load_model(f"{tmp_path}/run")
    # Something else that calls itself a store is not looked into.
    zarr.create_group(str(tmp_path / "run"), overwrite=False)
    with pytest.raises(ModelFormatError, match=r"run is a Zarr store, but not a model"):
        load_model(f"{tmp_path}/run")


@pytest.mark.parametrize("change", [b"{", b"[]", b'{"attributes": {}}', b'{"attributes": []}'])
def test_no_error_shows_what_python_says_of_a_key(
    change: bytes, saved: Path, tmp_path: Path
) -> None:
    path = tmp_path / "m.zarr"
    shutil.copytree(saved, path)
    (path / "zarr.json").write_bytes(change)
    with pytest.raises(ModelFormatError) as caught:
        load_model(str(path))
    assert "KeyError" not in str(caught.value)
    assert "TypeError" not in str(caught.value)
    assert "m.zarr is" in str(caught.value)


# --- for ever


def test_a_model_of_the_first_version_is_read_for_ever() -> None:
    """``model-v1.zarr`` was written by version 0.1.0 and never changes."""
    model = load_model(str(DATA_FILES / "model-v1.zarr"))
    expected = json.loads((DATA_FILES / "model-v1.json").read_text())
    assert model.digest() == expected["digest"]
    assert model.centers.tolist() == expected["centers"]
    assert model.counts.tolist() == expected["counts"]
    assert model.arrays.shift.tolist() == expected["shift"]
    assert model.centers.dtype == expected["dtype"]
    assert (model.normalize, model.on_bad_rows) == ("l2", "skip")
    assert [record["cost"] for record in model.history] == expected["costs"]
    assert model.provenance["parameters"]["seed"] == expected["seed"]
    labels = model.predict(np.array(expected["rows"], np.float32))
    assert labels is not None
    assert labels.tolist() == expected["labels"]


# --- showing it


def test_html_escapes(model: Model) -> None:
    evil = Model(model.arrays, provenance={"parameters": {"algorithm": {"name": "<script>"}}})
    shown = evil._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
