"""``largek score``: how far clusters lie apart, and how far they agree with known classes."""

import json

import fsspec
import numpy as np
import pytest
import zarr

import largek_dask as lk
from tests.helpers.commands import run, run_json

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

NAMES = ["accuracy", "nmi", "ari", "purity"]
TRUTH = np.random.default_rng(2).integers(3, size=400)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """400 rows of three classes in four chunks; two hold NaN."""
    x = np.eye(3)[TRUTH] * 4 + np.random.default_rng(3).normal(size=(400, 3))
    x[[7, 390]] = np.nan
    path = tmp_path_factory.mktemp("data") / "x.zarr"
    zarr.create_array(str(path), data=x.astype(np.float32), chunks=(100, 3))
    assert lk.open_rows(str(path)).n_chunks == 4
    return str(path)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    """Five clusters, and the labels of the fit."""
    km = lk.KMeans(5, random_state=0, on_bad_rows="skip").fit(data)
    url = str(tmp_path_factory.mktemp("model") / "model.zarr")
    km.model_.save(url)
    return url, km.labels_


def write(folder, values, kind):
    """Classes where the command line finds them."""
    url = f"memory:/{folder}/truth" if kind.startswith("remote") else f"{folder}/truth"
    if kind.endswith("npy"):
        with fsspec.open(f"{url}.npy", "wb") as file:
            np.save(file, values)
        return f"{url}.npy"
    zarr.create_array(f"{url}.zarr", data=values, chunks=(150, *values.shape[1:]))
    return f"{url}.zarr"


@pytest.mark.parametrize("kind", ["zarr", "npy", "remote zarr", "remote npy"])
@pytest.mark.parametrize("dtype", ["int64", "uint8", ">i4"])
def test_it_tells_what_the_functions_tell(data, model, tmp_path, kind, dtype):
    url, labels = model
    plain = run_json("score", url, data)
    told = run_json("score", url, data, "--labels", write(tmp_path, TRUTH.astype(dtype), kind))
    assert [told[name] for name in NAMES] == [
        getattr(lk.scores, name)(labels, TRUTH) for name in NAMES
    ]
    assert 0.5 < told["accuracy"] < told["purity"] < 1
    assert (told["n_left_out"], told["n_rows"]) == (2, 400)
    # The score of the model is what it is without classes.
    assert told["score"] == plain["score"]
    assert told.keys() - plain.keys() == {*NAMES, "n_left_out"}


@pytest.mark.parametrize("kind", ["zarr", "npy", "remote npy"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        (TRUTH[:-1], "has 399 entries, but the data have 400 rows"),
        (np.append(TRUTH, 0), "has 401 entries, but the data have 400 rows"),
        (TRUTH.astype(float), "has dtype float64, but integers"),
        (TRUTH > 0, "has dtype bool, but integers"),
        (TRUTH[:, None], "has shape (400, 1); give one integer per row"),
        (np.where(TRUTH, TRUTH, -2), "--labels is -2 in row"),
        (np.full(400, -1), "no rows to score"),
    ],
)
def test_what_is_not_one_integer_a_row_is_refused(data, model, tmp_path, kind, values, words):
    url = write(tmp_path, values, kind)
    done = run("score", model[0], data, "--labels", url, code=1)
    assert words in done.stderr
    assert "no row" in words or "--labels" in done.stderr
    assert done.stdout == ""


def test_chunks_that_are_lost_are_no_classes(data, model, tmp_path):
    """A complete store without one of its chunks is not one of zeros."""
    run("predict", model[0], data, "--out", tmp_path / "labels.zarr")
    chunks = sorted(path for path in (tmp_path / "labels.zarr" / "c").rglob("*") if path.is_file())
    chunks[0].unlink()
    done = run("score", model[0], data, "--labels", tmp_path / "labels.zarr", code=1)
    assert "cannot be read" in done.stderr
    assert "is missing" in done.stderr


@pytest.mark.filterwarnings("default")
def test_an_accuracy_that_does_not_fit_leaves_the_others(data, model, tmp_path, monkeypatch):
    url = write(tmp_path, TRUTH, "npy")
    expected = run_json("score", model[0], data, "--labels", url)
    monkeypatch.setattr(
        "largek_dask.selection.scores.check_output_fits",
        lambda shape, itemsize, advice: (_ for _ in ()).throw(
            lk.errors.NotEnoughMemoryError(f"An array of shape {shape} is too large. {advice}")
        ),
    )
    done = run("score", model[0], data, "--labels", url, "--json")
    told = json.loads(done.stdout)
    assert told["accuracy"] is None
    assert [told[name] for name in NAMES[1:]] == [expected[name] for name in NAMES[1:]]
    assert "Warning: The accuracy is not computed. An array of shape (5, 3)" in done.stderr


# --- how far clusters lie apart -------------------------------------------------------------------

APART = ["silhouette", "davies_bouldin", "calinski_harabasz"]


def test_it_tells_how_far_clusters_lie_apart(data, model):
    loaded = lk.load_model(model[0])
    told = run_json("score", model[0], data)
    assert [told[name] for name in APART] == [
        getattr(lk.scores, name)(loaded, data) for name in APART
    ]
    shown = run("score", model[0], data).stdout
    for name in APART:
        assert f"{told[name]:.10g}" in shown


@pytest.mark.filterwarnings("default")
def test_one_cluster_lies_apart_from_none(data, tmp_path):
    km = lk.KMeans(1, on_bad_rows="skip").fit(data)
    km.model_.save(str(tmp_path / "one.zarr"))
    done = run("score", tmp_path / "one.zarr", data, "--json")
    told = json.loads(done.stdout)
    assert told["score"] == km.score(data)
    assert [told[name] for name in APART] == [None] * 3
    assert "not computed: 1 cluster has rows" in done.stderr
