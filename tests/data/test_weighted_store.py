"""Stores of rows with weights are whole or refused, and keep their own weights."""

import pickle
import shutil

import numpy as np
import pytest
import zarr

from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows
from largek_dask.data.store_writer import write_weighted_rows
from largek_dask.data.stores import ATTRIBUTE
from largek_dask.errors import DataError, IncompleteStoreError

X = np.arange(12.0).reshape(4, 3)
WEIGHTS = np.array([1.0, 0.5, 0.0, 7.0])
ROWS = np.array([3, 5, 6, 2**40])


@pytest.fixture
def store(tmp_path):
    write_weighted_rows(tmp_path / "few.zarr", X, WEIGHTS, ROWS, {"kind": "coreset", "seed": 4})
    return tmp_path / "few.zarr"


def test_weighted_store__comes_back(store):
    for rows in (open_rows(store), pickle.loads(pickle.dumps(open_rows(store)))):
        np.testing.assert_array_equal(rows.read(0), X)
        np.testing.assert_array_equal(rows.read_weight(0), WEIGHTS)
    np.testing.assert_array_equal(open_rows(store, column="rows").read(0)[:, 0], ROWS)
    notes = zarr.open_group(store, mode="r").attrs[ATTRIBUTE]
    assert notes["kind"] == "coreset"
    assert notes["seed"] == 4


def test_weighted_store__other_weights_go_first(store):
    np.testing.assert_array_equal(
        open_rows(store, sample_weight=np.full(4, 2.0)).read_weight(0), np.full(4, 2.0)
    )


def test_weighted_store__what_is_not_whole_is_refused(store):
    shutil.rmtree(store / "weights")
    with pytest.raises(DataError, match="does not contain 'weights'"):
        open_rows(store)
    group = zarr.open_group(store, mode="r+")
    group.update_attributes({ATTRIBUTE: dict(group.attrs[ATTRIBUTE]) | {"complete": False}})
    with pytest.raises(IncompleteStoreError):
        open_rows(store)


def test_weighted_store__a_lost_chunk_is_found(store):
    chunks = [path for path in (store / "X" / "c").rglob("*") if path.is_file()]
    assert chunks
    for path in chunks:
        path.unlink()
    with pytest.raises(DataError, match="missing"):
        open_rows(store).read(0)


def test_ingest__loses_no_weights(store, tmp_path):
    with pytest.raises(DataError, match="weights, which ingest does not write"):
        ingest(store, tmp_path / "other.zarr", progress=False)
    other = ingest(store, tmp_path / "other.zarr", column="X", progress=False)
    np.testing.assert_array_equal(other.read(0), X)


def test_weighted_store__a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    target = str(tmp_path / "few.zarr")
    begun = []

    def fail(*_):
        begun.extend(path.name for path in tmp_path.iterdir())
        raise OSError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr("largek_dask.data.store_writer.StoreWriter.append", fail)
        with pytest.raises(OSError, match="full"):
            write_weighted_rows(target, X, WEIGHTS, np.arange(len(X)), {})
    assert begun == ["few.zarr"]
    assert not list(tmp_path.iterdir())
    write_weighted_rows(target, X, WEIGHTS, np.arange(len(X)), {})
