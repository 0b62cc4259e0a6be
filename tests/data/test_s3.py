"""s3:// against an object store on this machine."""

from __future__ import annotations

import pickle

import dask
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import s3fs
import zarr

from largek_dask import KMeans
from largek_dask.data.fingerprint import same_data
from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, MissingChunksWarning, OutputError
from tests.data.helpers import read_all


@pytest.fixture
def options(object_store):
    """Storage options for a bucket ``data``."""
    object_store.bucket("data")
    return object_store.options


def test_s3__zarr_round_trip(x, options, small_chunks):
    array = zarr.create_array(
        "s3://data/x.zarr", shape=x.shape, chunks=(100, 7), dtype="f4", storage_options=options
    )
    array[:] = x
    rows = open_rows("s3://data/x.zarr", storage_options=options)
    assert rows.location == "s3://data/x.zarr"
    assert rows.n_chunks == 10
    np.testing.assert_array_equal(read_all(rows), x)
    again = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(again.read(3), x[300:400])
    from_array = pickle.loads(pickle.dumps(open_rows(array)))
    assert from_array.location == "s3://data/x.zarr"
    np.testing.assert_array_equal(from_array.read(9), x[900:])

    before = rows.fingerprint()
    assert same_data(before, again.fingerprint()) is None
    array[250] += 1
    again = open_rows("s3://data/x.zarr", storage_options=options)
    assert "values of the rows have changed" in same_data(before, again.fingerprint())
    assert before["stamps"][2] != again.fingerprint()["stamps"][2]
    assert before["stamps"][3] == again.fingerprint()["stamps"][3]


def test_s3__ingest_and_missing_chunk(x, options):
    rows = ingest(x, "s3://data/out.zarr", chunk_rows=300, progress=False, storage_options=options)
    assert rows.stored_statistics()["n_rows"] == 1_000
    np.testing.assert_array_equal(read_all(rows), x)
    with pytest.raises(OutputError, match=r"s3://data/out\.zarr already exists"):
        ingest(x, "s3://data/out.zarr", progress=False, storage_options=options)
    other = ingest(-x, "s3://data/out.zarr", force=True, progress=False, storage_options=options)
    np.testing.assert_array_equal(read_all(other), -x)

    s3fs.S3FileSystem(**options).rm("data/out.zarr/c/0/0")
    again = open_rows("s3://data/out.zarr", storage_options=options)
    with pytest.raises(DataError, match=r"chunk 0 .*s3://data/out\.zarr.*c/0/0.* is missing"):
        again.read(0)


def test_s3__numpy_files_by_ranges(x, options):

    fs = s3fs.S3FileSystem(**options)
    for name, source in (("c.npy", x), ("f.npy", np.asfortranarray(x))):
        with fs.open(f"data/{name}", "wb") as file:
            np.save(file, source)
        rows = open_rows(f"s3://data/{name}", storage_options=options)
        np.testing.assert_array_equal(read_all(pickle.loads(pickle.dumps(rows))), x)
        assert rows.fingerprint()["stamps"] == pickle.loads(pickle.dumps(rows))._stamps()


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
def test_s3__tables_of_lists_read_by_workers(suffix, x, options, tmp_path, cluster2):
    table = pa.table({"id": [f"r{i}" for i in range(len(x))], "e": list(x)})
    for part in (0, 1):
        path, half = tmp_path / f"{part}{suffix}", table[500 * part : 500 * part + 500]
        if suffix == ".parquet":
            pq.write_table(half, path, row_group_size=100)
        elif suffix == ".feather":
            feather.write_feather(half, path, "lz4", chunksize=100)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, half.schema) as writer:
                writer.write_table(half, max_chunksize=100)
    s3fs.S3FileSystem(**options).put(f"{tmp_path}/", f"data/lists{suffix}s/", recursive=True)
    how = {"column": "e", "ids": "id"}
    with dask.config.set({"largek.data.read-chunk-bytes": 100 * 7 * 4}):
        local = open_rows(tmp_path, **how)
        rows = open_rows(f"s3://data/lists{suffix}s", storage_options=options, **how)
    assert rows.n_chunks == local.n_chunks == 10
    assert rows.read_ids(9)[-1] == "r999"
    digests = [
        KMeans(5, random_state=0, client=client).fit(source).model_.digest()
        for source, client in ((local, None), (rows, None), (rows, cluster2))
    ]
    assert len(set(digests)) == 1


def test_s3__nothing_there(options):
    with pytest.raises(DataError, match=r"s3://data/absent\.zarr does not exist"):
        open_rows("s3://data/absent.zarr", storage_options=options)
    with pytest.raises(DataError, match=r"s3://data/absent\.npy does not exist"):
        open_rows("s3://data/absent.npy", storage_options=options)
    with pytest.raises(DataError, match=r"s3://nobucket/x\.zarr"):
        open_rows("s3://nobucket/x.zarr", storage_options=options)


def test_s3__missing_chunks_are_counted(x, options):
    """One listing is made, and must not come from the cache of an earlier call."""
    array = zarr.create_array(
        "s3://data/lost.zarr", shape=x.shape, chunks=(100, 7), dtype="f4", storage_options=options
    )
    array[:] = x
    open_rows("s3://data/lost.zarr", storage_options=options)
    fs = s3fs.S3FileSystem(**options)
    fs.rm("data/lost.zarr/c/3/0")
    told = r"s3://data/lost\.zarr lacks 1 of 10 .*'c/3/0'"
    with pytest.warns(MissingChunksWarning, match=told):
        open_rows("s3://data/lost.zarr", storage_options=options)
