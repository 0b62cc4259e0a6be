"""Labels with ids and distances, as a table or as a dataset by cluster."""

from __future__ import annotations

import os
from contextlib import ExitStack

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.errors import DataError, OutputError, ParameterError
from largek_dask.model import predictions
from tests.conftest import make_client

N, D, K = 900, 5, 7


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(4)
    return (rng.standard_normal((K, D))[rng.integers(0, K, N)] * 6 + rng.standard_normal((N, D))
            ).astype(np.float32)  # fmt: skip


@pytest.fixture(scope="module")
def source(x, tmp_path_factory):
    """Embeddings beside ids in Parquet, in several row groups."""
    path = tmp_path_factory.mktemp("rows") / "x.parquet"
    pq.write_table(pa.table({"id": [f"r{i}" for i in range(N)], "e": list(x)}), path,
                   row_group_size=100)  # fmt: skip
    return str(path)


@pytest.fixture
def few_rows_per_chunk():
    """Nine chunks of 100 rows."""
    with dask.config.set({"largek.data.read-chunk-bytes": 100 * D * 4}):
        yield


@pytest.fixture(params=[None, "l2"], ids=["Euclidean", "cosine"])
def model(request, x):
    return lk.KMeans(K, random_state=0, normalize=request.param).fit(x).model_


def distances_of(model, x):
    """Distances to all centres by numpy."""
    x, centers = x.astype(np.float64), model.centers.astype(np.float64)
    if model.normalize == "l2":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return 1 - x @ (centers / np.linalg.norm(centers, axis=1, keepdims=True)).T
    return np.linalg.norm(x[:, None] - centers, axis=2)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_ids_distances_and_second_centres(suffix, model, x, source, tmp_path, few_rows_per_chunk):
    rows = lk.open_rows(source, column="e", ids="id")
    assert rows.n_chunks == 9
    out = tmp_path / f"out.{suffix}"
    include = ("id", "distance", "second")
    assert model.predict(source, out=out, column="e", ids="id", include=include) is None
    table = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out)
    assert table.columns.tolist() == ["id", "label", "distance", "second", "second_distance"]
    assert table["id"].tolist() == [f"r{i}" for i in range(N)]
    labels = model.predict(x)
    np.testing.assert_array_equal(table["label"], labels)
    expected = distances_of(model, x)
    row = np.arange(N)
    np.testing.assert_allclose(table["distance"], expected[row, labels], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(table["second_distance"], expected[row, table["second"]],
                               rtol=1e-5, atol=1e-9)  # fmt: skip
    if model.normalize is None:
        np.testing.assert_array_equal(table["second"], np.argsort(expected, axis=1)[:, 1])
    assert os.listdir(tmp_path) == [f"out.{suffix}"]


def test_the_table_is_the_same_on_workers(model, source, tmp_path, few_rows_per_chunk):
    tables = []
    with ExitStack() as stack:
        client = make_client(stack, 2, processes=False)
        for number, where in enumerate((None, client)):
            out = tmp_path / f"{number}.parquet"
            model.predict(source, out=out, column="e", ids="id", include=("id", "distance"),
                          client=where)  # fmt: skip
            tables.append(pq.read_table(out))
    assert tables[0].equals(tables[1])


def test_a_dataset_by_cluster(x, source, tmp_path, monkeypatch, few_rows_per_chunk):
    model = lk.KMeans(K, random_state=0).fit(x).model_
    monkeypatch.setattr(predictions, "HELD_BYTES", 8_000)
    model.predict(source, out=tmp_path / "out", column="e", ids="id", include=("id", "distance"),
                  partition_by="cluster")  # fmt: skip
    assert sorted(os.listdir(tmp_path / "out")) == [f"cluster={c:05d}" for c in range(K)]
    assert len(os.listdir(tmp_path / "out" / "cluster=00000")) > 1, "written in several parts"
    found = dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pandas()
    found = found.set_index("id").loc[[f"r{i}" for i in range(N)]]
    np.testing.assert_array_equal(found["cluster"].astype(int), model.predict(x))
    assert os.listdir(tmp_path) == ["out"]


def test_skipped_rows_and_the_order_of_a_dataset(x, tmp_path, monkeypatch, few_rows_per_chunk):
    model = lk.KMeans(K, random_state=0, on_bad_rows="skip").fit(x).model_
    bad = x.copy()
    bad[[3, 500]] = np.nan
    monkeypatch.setattr(predictions, "HELD_BYTES", 8_000)
    model.predict(bad, out=tmp_path / "out", include=["id"], partition_by="cluster")
    assert "cluster=-1" in os.listdir(tmp_path / "out")
    found = dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pandas()
    labels = model.predict(bad)
    for cluster in range(-1, K):
        ids = found.loc[found["cluster"] == cluster, "id"]
        np.testing.assert_array_equal(ids, np.flatnonzero(labels == cluster))


def test_one_file_is_open_at_a_time(x, tmp_path, monkeypatch):
    model = lk.KMeans(300, init=x[:300], max_iter=1).fit(x).model_
    n_open, write = [], predictions.write_parquet

    def counted(file, tables):
        n_open.append(len(os.listdir("/dev/fd")))
        write(file, tables)

    monkeypatch.setattr(predictions, "write_parquet", counted)
    model.predict(x, out=tmp_path / "out", include=["id"], partition_by="cluster")
    assert len(n_open) == len(os.listdir(tmp_path / "out")) > 250
    assert max(n_open) - min(n_open) < 10


def test_skipped_rows_have_no_cluster(x, tmp_path):
    model = lk.KMeans(K, random_state=0, on_bad_rows="skip").fit(x).model_
    bad = x.copy()
    bad[[3, 500]] = np.nan
    model.predict(bad, out=tmp_path / "out.parquet", include=("id", "distance", "second"))
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert np.flatnonzero(table["label"] == -1).tolist() == [3, 500]
    assert table.loc[3, "second"] == -1
    assert np.isnan(table.loc[[3, 500], ["distance", "second_distance"]]).to_numpy().all()
    assert table["id"].tolist() == list(range(N)), "row numbers where there are no ids"


def test_missing_and_repeated_ids_stay(x, tmp_path):
    model = lk.KMeans(K, random_state=0).fit(x).model_
    ids = pa.array([None, 7, 7, *range(N - 3)], pa.int64())
    table = pa.table({"n": ids, "e": list(x)})
    model.predict(table, out=tmp_path / "out.parquet", column="e", ids="n", include=["id"])
    assert pq.read_table(tmp_path / "out.parquet").column("id").to_pylist() == ids.to_pylist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_all_ids_of_the_first_chunks_are_missing(kind, x, tmp_path, few_rows_per_chunk):
    ids = pa.array([None] * 250 + list(range(N - 250)), pa.int64()).cast(kind)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": ids, "e": list(x)}), path)
    model = lk.KMeans(K, random_state=0).fit(x).model_
    rows = lk.open_rows(path, column="e", ids="n")
    assert rows.n_chunks == 9
    model.predict(rows, out=tmp_path / "out.parquet", include=["id"])
    lk.near_duplicates(rows, model=model, out=tmp_path / "kept.parquet")
    for name in ("out.parquet", "kept.parquet"):
        found = pq.read_table(tmp_path / name).column("id")
        assert (found.type, found.to_pylist()) == (kind, ids.to_pylist())


@pytest.mark.parametrize("error", [DataError, KeyboardInterrupt])
def test_an_error_leaves_nothing(error, x, source, tmp_path, monkeypatch, few_rows_per_chunk):
    model = lk.KMeans(K, random_state=0).fit(x).model_
    rows = lk.open_rows(source, column="e", ids="id")
    read = type(rows).read_ids

    def torn(self, i):
        if i == 5:
            raise error("torn")
        return read(self, i)

    monkeypatch.setattr(type(rows), "read_ids", torn)
    monkeypatch.setattr(predictions, "HELD_BYTES", 1_000)
    for out, how in (("a.parquet", None), ("a.csv", None), ("folder", "cluster")):
        with pytest.raises(error, match="torn"):
            model.predict(rows, out=tmp_path / out, include=["id"], partition_by=how)
        assert os.listdir(tmp_path) == []


def test_what_a_killed_run_has_left_is_removed(x, tmp_path):
    model = lk.KMeans(K, random_state=0).fit(x).model_
    left = tmp_path / "out.partial" / "cluster=00000"
    left.mkdir(parents=True)
    (left / "part-00007.parquet").write_text("half")
    model.predict(x, out=tmp_path / "out", include=["id"], partition_by="cluster")
    assert os.listdir(tmp_path) == ["out"]
    assert dataset.dataset(tmp_path / "out", partitioning="hive").count_rows() == N


def test_wrong_requests_are_refused_before_computing(x, tmp_path, monkeypatch):
    model = lk.KMeans(K, random_state=0).fit(x).model_
    monkeypatch.setattr(type(model), "_passes", None)
    (tmp_path / "there.parquet").write_text("x")
    for error, match, given in (
        (ParameterError, "out=", {"include": ["id"]}),
        (ParameterError, "id, distance, second", {"out": tmp_path / "a.csv", "include": ["far"]}),
        (ParameterError, "several columns", {"out": tmp_path / "a.npy", "include": ["id"]}),
        (ParameterError, "'cluster'", {"out": tmp_path / "a", "partition_by": "label"}),
        (OutputError, "exists", {"out": tmp_path / "there.parquet", "include": ["id"]}),
    ):
        with pytest.raises(error, match=match):
            model.predict(x, **given)
    mixture = lk.Mixture(2, random_state=0).fit(x).model_
    with pytest.raises(ParameterError, match="no distances"):
        mixture.predict(x, out=tmp_path / "m.parquet", include=["distance"])
    assert os.listdir(tmp_path) == ["there.parquet"]


def test_one_cluster_has_no_second_centre(x, tmp_path):
    one = lk.KMeans(1, random_state=0).fit(x).model_
    with pytest.raises(ParameterError, match="two clusters"):
        one.predict(x, out=tmp_path / "a.parquet", include=["second"])
    assert os.listdir(tmp_path) == []


def test_the_command_writes_the_same_table(model, source, tmp_path):
    model.save(str(tmp_path / "model.zarr"))
    include = ("id", "distance")
    model.predict(source, out=tmp_path / "a.parquet", column="e", ids="id", include=include)
    words = ["predict", str(tmp_path / "model.zarr"), source, "--out", str(tmp_path / "b.parquet"),
             "--column", "e", "--ids", "id", "--include", "id,distance"]  # fmt: skip
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))
