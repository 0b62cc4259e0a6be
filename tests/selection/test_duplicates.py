"""Near-duplicates inside clusters, against all pairs."""

from __future__ import annotations

import csv
import json
import os
import signal

import numpy as np
import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.errors import BadRowsError, OutputError, ParameterError
from largek_dask.selection import duplicates
from tests.oracles.duplicates import near_duplicates as oracle

D = 24
FIELDS = ("kept", "duplicate_of", "similarity")


def table(n=600, seed=0, dtype=np.float32):
    """Rows around a few directions, with equal rows and near-duplicates."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, D))[rng.integers(6, size=n)] + 0.6 * rng.normal(size=(n, D))
    x[n // 2 : n // 2 + 60] = x[:60] + 0.02 * rng.normal(size=(60, D))
    x[-40:] = x[rng.integers(100, size=40)]
    return (x * (30 if np.dtype(dtype).kind == "i" else 1)).astype(dtype)


def model_of(x, k=5, **how):
    return lk.KMeans(k, normalize="l2", random_state=0, **how).fit(x).model_


def bits(found):
    return [getattr(found, name).tobytes() for name in FIELDS]


@pytest.mark.parametrize("order", ["farthest", "nearest", "id"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1"])
def test_all_orders_and_types(order, dtype):
    x = table(dtype=dtype)
    model = model_of(x)
    found = lk.near_duplicates(x, 0.97, model=model, order=order)
    labels = model.predict(x)
    np.testing.assert_array_equal(found.labels, labels)
    assert len(np.unique(labels)) == 5
    unit = x.astype(np.float64)
    unit /= np.sqrt((unit**2).sum(axis=1, keepdims=True))
    unit = unit.astype(np.float64 if dtype == "f8" else np.float32).astype(np.float64)
    distances = ((unit - model.centers[labels]) ** 2).sum(axis=1)
    kept, duplicate_of, similarity = oracle(x, labels, distances, 0.97, order)
    assert 60 < (~kept).sum() < 300
    np.testing.assert_array_equal(found.kept, kept)
    np.testing.assert_array_equal(found.duplicate_of, duplicate_of)
    np.testing.assert_allclose(found.similarity, similarity, rtol=0, atol=1e-13)


def test_fits_a_model_without_one():
    x = table()
    found = lk.near_duplicates(x, n_clusters=4, random_state=3)
    estimator = lk.KMeans(4, normalize="l2", random_state=3).fit(x)
    assert bits(found) == bits(lk.near_duplicates(x, model=estimator))
    assert found.n_kept < len(x)
    assert "600 rows" in repr(found)
    assert lk.near_duplicates(x).model.n_clusters == 1
    assert lk.near_duplicates(np.tile(x, (5, 1)), random_state=0).model.n_clusters == 3


def test_threshold_one_removes_equal_rows_only():
    x = np.repeat(np.random.default_rng(0).normal(size=(20, 7)), 3, axis=0)
    found = lk.near_duplicates(x, 1.0, n_clusters=1, order="id")
    np.testing.assert_array_equal(found.kept, np.arange(60) % 3 == 0)
    np.testing.assert_array_equal(found.duplicate_of[1::3], np.arange(0, 60, 3))
    np.testing.assert_array_equal(found.duplicate_of[2::3], np.arange(0, 60, 3))
    assert (found.similarity[~found.kept] == 1).all()
    # Ties of the distance go to the lowest index, too.
    farthest = lk.near_duplicates(x, 1.0, model=found.model)
    np.testing.assert_array_equal(farthest.kept, found.kept)


def test_a_removed_row_removes_others():
    angles = np.array([0.0, 0.1, 0.2, 0.3])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = lk.near_duplicates(x, np.cos(0.11), n_clusters=1, order="id")
    np.testing.assert_array_equal(found.kept, [True, False, False, False])
    np.testing.assert_array_equal(found.duplicate_of, [-1, 0, 1, 2])


def test_clusters_of_one_row():
    x = np.eye(5, dtype=np.float32)
    found = lk.near_duplicates(x, 0.1, n_clusters=5, random_state=0)
    assert len(np.unique(found.labels)) == 5
    assert found.kept.all()
    assert np.isnan(found.similarity).all()


@pytest.mark.parametrize("order", ["farthest", "id"])
def test_bits_do_not_depend_on_memory_or_threads(order, monkeypatch, tmp_path):
    """Also rows that are read from a store, in several chunks."""
    x = table()
    model = model_of(x, 3)
    found = lk.near_duplicates(x, 0.9, model=model, order=order, n_threads=1)
    monkeypatch.setattr(duplicates, "TASK_ROWS", 16)
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=64, progress=False)
    for n_rows in (60, 250, 10_000):
        monkeypatch.setattr(duplicates, "GROUP_BYTES", n_rows * D * 12)
        for source in (x, str(tmp_path / "x.zarr")):
            for n_threads in (1, 3):
                again = lk.near_duplicates(
                    source, 0.9, model=model, order=order, n_threads=n_threads
                )
                assert bits(again) == bits(found)


def test_two_workers_give_the_same_bits(cluster2, monkeypatch, tmp_path):
    x = table(900)
    model = model_of(x, 8)
    monkeypatch.setattr(duplicates, "GROUP_BYTES", 120 * D * 12)
    expected = lk.near_duplicates(x, 0.9, model=model, n_threads=1)
    seen = []
    run = duplicates._Search._on_workers

    def counted(*given):
        for found in run(*given):
            seen.append(len(found))
            yield found

    monkeypatch.setattr(duplicates._Search, "_on_workers", counted)
    path = str(tmp_path / "x.zarr")
    lk.ingest(x, path, progress=False)
    for source in (x, path):
        assert bits(lk.near_duplicates(source, 0.9, model=model, client=cluster2)) == bits(expected)
    assert len(seen) >= 8
    fitted = lk.near_duplicates(x, n_clusters=8, random_state=1, client=cluster2)
    assert bits(fitted) == bits(lk.near_duplicates(x, n_clusters=8, random_state=1))


@pytest.mark.slow
def test_a_worker_dies_during_the_search(fresh_cluster, monkeypatch, tmp_path):
    x = table(900)
    model = model_of(x, 8)
    monkeypatch.setattr(duplicates, "GROUP_BYTES", 120 * D * 12)
    expected = lk.near_duplicates(x, 0.9, model=model)
    lk.ingest(x, str(tmp_path / "x.zarr"), progress=False)
    client = fresh_cluster(2)
    search, dead = duplicates._Search._on_workers, []

    def killing(*given):
        for found in search(*given):
            if not dead:
                dead.extend(client.run(os.getpid).values())
                os.kill(dead[0], signal.SIGKILL)
            yield found

    monkeypatch.setattr(duplicates._Search, "_on_workers", killing)
    found = lk.near_duplicates(str(tmp_path / "x.zarr"), 0.9, model=model, client=client)
    assert len(dead) == 2
    assert bits(found) == bits(expected)


def test_all_rows_are_equal():
    model = model_of(table(), 3)
    found = lk.near_duplicates(np.full((50, D), 0.1, np.float32), 1.0, model=model)
    assert (found.duplicate_of[0], set(found.duplicate_of[1:])) == (-1, {0})
    assert set(found.similarity[1:]) == {1.0}


def test_skipped_rows_are_kept_and_not_compared():
    x = table(200)
    model = model_of(x, 2, on_bad_rows="skip")
    x[7], x[9, 3], x[11] = 0, np.nan, 0
    found = lk.near_duplicates(x, 0.9, model=model)
    wrong = np.isin(np.arange(200), [7, 9, 11])
    np.testing.assert_array_equal(found.labels == -1, wrong)
    assert found.kept[wrong].all()
    assert np.isnan(found.similarity[wrong]).all()
    with pytest.raises(BadRowsError, match=r"row 9 holds NaN"):
        lk.near_duplicates(x, n_clusters=2)
    x[9, 3] = 0
    with pytest.raises(BadRowsError, match=r"row 7 holds only zeros .*: 2\. Remove"):
        lk.near_duplicates(x, n_clusters=2)


def test_bad_parameters(tmp_path):
    x = table(200)
    for threshold in (0, -1, 1.01, np.nan, True):
        with pytest.raises(ParameterError, match="threshold="):
            lk.near_duplicates(x, threshold)
    with pytest.raises(ParameterError, match="order='near'"):
        lk.near_duplicates(x, order="near")
    with pytest.raises(ParameterError, match="n_clusters=201 is more"):
        lk.near_duplicates(x, n_clusters=201)
    model = model_of(x, 2)
    with pytest.raises(ParameterError, match="either a model or n_clusters"):
        lk.near_duplicates(x, model=model, n_clusters=2)
    with pytest.raises(ParameterError, match="no centres"):
        lk.near_duplicates(x, model="model.zarr")
    with pytest.raises(ParameterError, match="features"):
        lk.near_duplicates(x[:, :5], model=model)
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(ParameterError, match="dense rows"):
        lk.near_duplicates(scipy.csr_matrix(x))
    with pytest.raises(ParameterError, match=r"\.parquet or \.csv"):
        lk.near_duplicates(x, out=str(tmp_path / "kept.npy"))
    (tmp_path / "kept.csv").write_text("mine")
    with pytest.raises(OutputError, match="already exists"):
        lk.near_duplicates(x, out=str(tmp_path / "kept.csv"))
    assert (tmp_path / "kept.csv").read_text() == "mine"
    assert os.listdir(tmp_path) == ["kept.csv"]


def parquet(folder, x):
    """Two files of a column of lists, ids and text; several row groups."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    ids = [f"doc, {i}" for i in range(len(x))]
    columns = {"url": ids, "vector": pa.array(list(x), pa.list_(pa.float32(), x.shape[1]))}
    whole, half = pa.table(columns), len(x) // 2
    folder.mkdir()
    pq.write_table(whole[:half], folder / "a.parquet", row_group_size=50)
    pq.write_table(whole[half:], folder / "b.parquet", row_group_size=50)
    return np.array(ids)


@pytest.mark.usefixtures("chunks_as_stored")
def test_output_has_ids(tmp_path):
    x = table(300)
    ids = parquet(tmp_path / "in", x)
    source, out = str(tmp_path / "in"), tmp_path / "kept.parquet"
    assert lk.open_rows(source, ids="url").n_chunks > 3
    found = lk.near_duplicates(source, n_clusters=3, ids="url", random_state=0, out=str(out))
    assert bits(found) == bits(lk.near_duplicates(x, n_clusters=3, random_state=0))
    np.testing.assert_array_equal(found.ids, ids)
    import pyarrow.parquet as pq

    written = pq.read_table(out).to_pydict()
    assert list(written) == ["id", "kept", "duplicate_of", "similarity"]
    assert written["id"] == ids.tolist()
    assert written["kept"] == found.kept.tolist()
    expected = [None if k else ids[d] for k, d in zip(found.kept, found.duplicate_of, strict=True)]
    assert written["duplicate_of"] == expected
    assert (~found.kept).sum() > 30
    similar = [None if np.isnan(s) else s for s in found.similarity]
    assert written["similarity"] == similar
    lk.near_duplicates(source, model=found.model, ids="url", out=str(tmp_path / "kept.csv"))
    with open(tmp_path / "kept.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["id"] for line in lines] == ids.tolist()
    assert [line["duplicate_of"] or None for line in lines] == expected
    assert [float(line["similarity"] or "nan") for line in lines] == pytest.approx(
        found.similarity, nan_ok=True, abs=0
    )
    assert {line["kept"] for line in lines} == {"true", "false"}


def test_command_line(tmp_path):
    x = table(300)
    np.save(tmp_path / "x.npy", x)
    model_of(x, 3).save(str(tmp_path / "model.zarr"))
    out, source = tmp_path / "kept.csv", str(tmp_path / "x.npy")

    def run(*given):
        return CliRunner().invoke(main, ["dedup", source, "--json", *given])

    done = run("--model", str(tmp_path / "model.zarr"), "--out", str(out), "--threshold", "0.9")
    assert done.exit_code == 0, done.output
    payload = json.loads(done.output)
    found = lk.near_duplicates(x, 0.9, model=model_of(x, 3))
    assert payload["n_removed"] == 300 - found.n_kept > 30
    assert payload["n_clusters"] == 3
    lines = out.read_text().splitlines()
    assert lines[0] == "id,kept,duplicate_of,similarity"
    assert len(lines) == 301
    again = run("-k", "3", "--out", str(out))
    assert again.exit_code == 1
    fitted = run("-k", "2", "--order", "id", "--out", str(tmp_path / "other.csv"))
    assert json.loads(fitted.output)["n_clusters"] == 2
