"""Centres for vector indexes: ``to_faiss``, and the files of ``largek export``."""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.cli import main
from largek_dask.errors import MissingDependencyError, ParameterError
from largek_dask.model import Model
from tests.helpers import needs
from tests.helpers.paths import path_model

K, D = 12, 6
X = np.random.default_rng(0).normal(size=(900, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(50, D)).astype(np.float32)


def model_of(centers, normalize=None):
    centers = np.asarray(centers)
    return Model(CenterArrays(centers, np.ones(len(centers)), np.zeros_like(centers[0])), normalize)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def nearest(scores, n):
    """Rows of the n largest scores, in order."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :n]


@pytest.fixture(scope="module")
def model():
    return lk.KMeans(K, random_state=0).fit(X).model_


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    url = str(tmp_path_factory.mktemp("model") / "model.zarr")
    model.save(url)
    return url


def export(url, kind, out, *more, code=0):
    arguments = ["export", url, "--to", kind, "--out", str(out), *more]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, done.output
    return done


# --- faiss ----------------------------------------------------------------------------------------


@pytest.fixture
def faiss():
    return needs.module("faiss", "faiss")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lists_of_the_index_are_the_clusters(faiss, dtype):
    model = lk.KMeans(K, random_state=0).fit(X.astype(dtype)).model_
    index = model.to_faiss()
    assert type(index) is faiss.IndexIVFFlat
    assert (index.is_trained, index.ntotal, index.nlist, index.d) == (True, 0, K, D)
    assert index.metric_type == faiss.METRIC_L2
    np.testing.assert_array_equal(
        index.quantizer.reconstruct_n(0, K), model.centers.astype(np.float32)
    )
    index.add(X)
    labels = model.predict(X.astype(dtype))
    for cluster in range(K):
        n = index.invlists.list_size(cluster)
        rows = faiss.rev_swig_ptr(index.invlists.get_ids(cluster), n)
        assert set(rows) == set(np.flatnonzero(labels == cluster))


@pytest.mark.slow
def test_all_lists_hold_the_exact_neighbours(faiss, model):
    index = model.to_faiss()
    index.add(X)
    index.nprobe = K
    squares = ((QUERIES[:, None].astype(np.float64) - X) ** 2).sum(axis=2)
    np.testing.assert_array_equal(index.search(QUERIES, 10)[1], nearest(-squares, 10))
    index.nprobe = 1
    assert (index.search(QUERIES, 10)[1] != nearest(-squares, 10)).any()


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [lk.SphericalKMeans, lk.KMeans])
def test_normalised_rows_are_compared_by_inner_product(faiss, estimator):
    options = {"normalize": "l2"} if estimator is lk.KMeans else {}
    model = estimator(K, random_state=0, **options).fit(X).model_
    index = model.to_faiss()
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    np.testing.assert_allclose(
        index.quantizer.reconstruct_n(0, K), unit(model.centers), rtol=0, atol=1e-6
    )
    index.add(unit(X))
    index.nprobe = K
    cosines = unit(QUERIES).astype(np.float64) @ unit(X).astype(np.float64).T
    np.testing.assert_array_equal(index.search(unit(QUERIES), 10)[1], nearest(cosines, 10))
    # Either metric can be asked for.
    assert model.to_faiss("l2").metric_type == faiss.METRIC_L2


@pytest.mark.slow
def test_centres_that_are_equal_or_zero_or_alone(faiss):
    for centers in (np.zeros((1, 3)), np.repeat(np.eye(3), 2, axis=0), [[0.0, 0, 0], [3, 4, 0]]):
        for metric in ("l2", "ip"):
            index = model_of(centers).to_faiss(metric)
            index.add(X[:, :3])
            index.nprobe = len(centers)
            assert index.ntotal == len(X)
            assert np.isfinite(index.quantizer.reconstruct_n(0, len(centers))).all()
            assert (index.search(X[:5, :3], 1)[1] >= 0).all()


@pytest.mark.slow
def test_a_path_is_exported_as_its_last_partition(faiss):
    model = path_model(X, 5)
    index = model.to_faiss()  # the quantizer alone would outlive its memory
    centers = index.quantizer.reconstruct_n(0, 5)
    np.testing.assert_array_equal(centers, model.centers.astype(np.float32))


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_faiss_file_is_the_index(faiss, url, model, tmp_path):
    export(url, "faiss", tmp_path / "a.faiss")
    index = faiss.read_index(str(tmp_path / "a.faiss"))
    assert (index.is_trained, index.ntotal) == (True, 0)
    index.add(X)
    np.testing.assert_array_equal(index.quantizer.reconstruct_n(0, K), model.centers)


def test_an_npy_file_is_the_centres(url, model, tmp_path):
    told = json.loads(export(url, "npy", tmp_path / "a.npy", "--json").stdout)
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, model.centers)
    assert told == {
        "out": str(tmp_path / "a.npy"),
        "format": "npy",
        "n_clusters": K,
        "n_features": D,
        "bytes": (tmp_path / "a.npy").stat().st_size,
    }


def test_a_parquet_file_is_a_table_of_one_level(url, model, tmp_path):
    export(url, "parquet", tmp_path / "a.parquet")
    found = pq.read_table(tmp_path / "a.parquet")
    assert found.schema.types == [pa.int32(), pa.int32(), pa.list_(pa.float32())]
    assert found.column_names == ["id", "parent", "vector"]
    assert found["id"].to_pylist() == list(range(K))
    assert found["parent"].null_count == K
    np.testing.assert_array_equal(np.array(found["vector"].to_pylist()), model.centers)


def lists_of(path):
    with pa.ipc.open_file(path) as file:
        return file.read_all()["centroids"].chunk(0)


def test_an_arrow_file_is_a_list_of_the_centres(url, model, tmp_path):
    export(url, "lance", tmp_path / "a.arrow")
    lists = lists_of(tmp_path / "a.arrow")
    assert lists.type == pa.list_(pa.float32(), D)
    np.testing.assert_array_equal(np.array(lists.to_pylist()), model.centers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ"])
def test_lance_takes_the_centres(url, model, tmp_path, kind):
    lance = needs.module("lance")
    export(url, "lance", tmp_path / "a.arrow")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    rows = lance.write_dataset(pa.table({"vector": vectors}), str(tmp_path / "rows.lance"))
    more = {"num_sub_vectors": 2} if kind == "IVF_PQ" else {}
    rows = rows.create_index(
        "vector", kind, metric="L2", ivf_centroids=lists_of(tmp_path / "a.arrow"), **more
    )
    assert rows.get_ivf_model("vector_idx").centroids.to_pylist() == model.centers.tolist()
    nearest_rows = rows.to_table(
        columns=["_distance"],
        nearest={"column": "vector", "q": X[7], "k": 10, "nprobes": K, "refine_factor": 20},
        with_row_id=True,
    )["_rowid"].to_pylist()
    squares = ((X[7].astype(np.float64) - X) ** 2).sum(axis=1)
    assert nearest_rows == nearest(-squares[None], 10)[0].tolist()


def test_files_go_to_any_storage(url, model):
    fs = pytest.importorskip("fsspec").filesystem("memory")
    export(url, "npy", "memory://exported/a.npy")
    with fs.open("/exported/a.npy") as file:
        np.testing.assert_array_equal(np.load(file), model.centers)


# --- errors ---------------------------------------------------------------------------------------


def test_an_output_is_replaced_only_by_force(url, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"mine")
    told = export(url, "npy", path, code=1).stderr
    assert told == f"Error: {path} already exists; choose another --out, or use --force\n"
    assert path.read_bytes() == b"mine"
    export(url, "npy", path, "--force")
    assert np.load(path).shape == (K, D)
    assert [name.name for name in tmp_path.iterdir()] == ["a.npy"]


def test_nothing_is_left_where_nothing_can_be_written(url, tmp_path):
    (tmp_path / "taken").write_text("a file")
    assert "taken" in export(url, "npy", tmp_path / "taken" / "a.npy", code=1).stderr
    (tmp_path / "folder").mkdir()
    assert "cannot be written" in export(url, "npy", tmp_path / "folder", "--force", code=1).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "taken"]


def test_a_mixture_is_refused(tmp_path):
    model = lk.Mixture(3, random_state=0).fit(X).model_
    with pytest.raises(ParameterError, match="kind 'mixture' labels rows differently; fit KMeans"):
        model.to_faiss()
    model.save(str(tmp_path / "model.zarr"))
    for kind in ("faiss", "lance", "parquet", "npy"):
        told = export(str(tmp_path / "model.zarr"), kind, tmp_path / "out", code=1).stderr
        assert "kind 'mixture'" in told
        assert not (tmp_path / "out").exists()


def test_standardised_centres_are_refused():
    x = np.random.default_rng(0).standard_normal((60, 3)) * [1, 10, 100]
    model = lk.KMeans(3, scale="standard", random_state=0).fit(x).model_
    with pytest.raises(ParameterError, match="standardised"):
        model.to_faiss()


def test_other_mistakes():
    with pytest.raises(ParameterError, match="metric='cosine' is not a metric of an index"):
        model_of(X[:3]).to_faiss("cosine")
    with pytest.raises(ParameterError, match=r"the coordinate 1e\+40, but the maximum in float32"):
        model_of([[1e40, 0.0], [0.0, 1.0]]).to_faiss()


def test_a_missing_package_is_named(monkeypatch, url, tmp_path):
    for package, kind, extra in (
        ("faiss", "faiss", "faiss"),
        ("pyarrow", "lance", "parquet"),
        ("pyarrow.parquet", "parquet", "parquet"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            told = export(url, kind, tmp_path / "out", code=1).stderr
            assert f"pip install 'largek_dask[{extra}]'" in told
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependencyError, match="faiss indexes need faiss"):
        model_of(X[:3]).to_faiss()
