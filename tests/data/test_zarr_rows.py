"""Zarr arrays of every layout, and errors of damaged or missing stores."""

from __future__ import annotations

import pickle
import threading

import dask
import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from largek_dask.data.sources import open_rows
from largek_dask.data.zarr_rows import ZarrRows
from largek_dask.errors import DataError
from tests.data.helpers import read_all

V2 = {"zarr_format": 2, "compressors": None}
RAW = {"compressors": None}

LAYOUTS = {
    "v3": ({"chunks": (100, 7)}, True),
    "v3 blosc": ({"chunks": (100, 7), "compressors": [BloscCodec()]}, False),
    "v3 two codecs": ({"chunks": (100, 7), "compressors": [ZstdCodec(), Crc32cCodec()]}, True),
    "v3 raw": ({"chunks": (100, 7), **RAW}, True),
    "v3 raw, last chunk short": ({"chunks": (300, 7), **RAW}, True),
    "v3 checksum": ({"chunks": (100, 7), "compressors": [Crc32cCodec()]}, True),
    "v3 big endian": ({"chunks": (100, 7), "serializer": BytesCodec(endian="big"), **RAW}, False),
    "v3 transposed": ({"chunks": (100, 7), "filters": [TransposeCodec(order=(1, 0))]}, False),
    "v3 sharded": ({"chunks": (20, 7), "shards": (200, 7)}, True),
    "v3 sharded raw, one row": ({"chunks": (1, 7), "shards": (300, 7), **RAW}, True),
    "v3 sharded, index first": (
        {
            "chunks": (300, 7),
            "serializer": ShardingCodec(
                chunk_shape=(20, 7), codecs=[BytesCodec(), ZstdCodec()], index_location="start"
            ),
            **RAW,
        },
        True,
    ),
    "v3 sharded blosc": (
        {"chunks": (20, 7), "shards": (200, 7), "compressors": [BloscCodec()]},
        False,
    ),
    "v3 sharded along columns": ({"chunks": (20, 2), "shards": (200, 4), **RAW}, False),
    "v3 split columns": ({"chunks": (100, 3), **RAW}, False),
    "v3 wider chunks": ({"chunks": (100, 9), **RAW}, False),
    "v3 giant chunk": ({"chunks": (5_000, 7), **RAW}, True),
    "v3 one row": ({"chunks": (1, 7), **RAW}, True),
    "v2": ({"chunks": (100, 7), "zarr_format": 2}, False),
    "v2 raw": ({"chunks": (100, 7), **V2}, True),
    "v2 Fortran": ({"chunks": (100, 7), "order": "F", **V2}, False),
    "v2 big endian": ({"chunks": (100, 7), "dtype": ">f4", **V2}, False),
    "v2 slash keys": (
        {
            "chunks": (100, 7),
            "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
            **V2,
        },
        True,
    ),
    "v2 split columns": ({"chunks": (100, 2), "zarr_format": 2}, False),
}


def make(where, x, **options):
    options = {"chunks": (100, 7), "dtype": x.dtype, **options}
    array = zarr.create_array(where, shape=x.shape, **options)
    array[:] = x
    return array


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zarr_rows__every_layout_reads_the_same(layout, x, tmp_path, small_chunks):
    options, raw = LAYOUTS[layout]
    make(tmp_path / "x.zarr", x, **options)
    rows = open_rows(tmp_path / "x.zarr")
    assert (rows._direct is not None) == raw
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(read_all(rows), x)
    again = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(read_all(again), x)


def test_open_rows__zarr_objects(x, tmp_path):
    local = open_rows(make(tmp_path / "x.zarr", x))
    assert local.location == str(tmp_path / "x.zarr")
    here = open_rows(make(zarr.storage.MemoryStore(), x))
    assert here.location is None
    np.testing.assert_array_equal(read_all(here), x)
    group = zarr.open_group(tmp_path / "g.zarr")
    make(group.store, x, name="a/b")
    for rows in (
        open_rows(group["a/b"]),
        open_rows(group, column="a/b"),
        open_rows(tmp_path / "g.zarr", column="a/b"),
        open_rows(f"file://{tmp_path}/g.zarr", column="a"),
    ):
        assert (rows.location, rows.column) == (str(tmp_path / "g.zarr"), "a/b")
        np.testing.assert_array_equal(read_all(pickle.loads(pickle.dumps(rows))), x)


def test_zarr_rows__many_tiny_chunks_are_grouped(tmp_path):
    x = np.arange(40_000, dtype=np.float32).reshape(20_000, 2)
    folder = tmp_path / "x.zarr"
    # what is not there is the fill value, here a million rows less 20,000
    zarr.create_array(folder, shape=(1_000_000, 2), chunks=(10, 2), dtype="f4", **V2)
    for i in range(2_000):
        (folder / f"{i}.0").write_bytes(x[10 * i : 10 * i + 10])
    rows = open_rows(folder, count_missing=False)
    assert np.diff(rows.chunk_table).tolist() == [65_530] * 15 + [17_050]
    np.testing.assert_array_equal(rows.read(0)[:20_000], x)
    assert not rows.read(0)[20_000:].any()


@pytest.mark.parametrize("compressed", [False, True])
def test_zarr_rows__missing_chunks_are_fill_values_in_a_store_of_others(
    compressed, x, tmp_path, small_chunks
):
    options = {} if compressed else RAW
    make(tmp_path / "x.zarr", x, fill_value=2.5, **options)
    (tmp_path / "x.zarr" / "c" / "3" / "0").unlink()
    expected = x.copy()
    expected[300:400] = 2.5
    rows = open_rows(tmp_path / "x.zarr", count_missing=False)
    np.testing.assert_array_equal(read_all(rows), expected)


@pytest.mark.parametrize("options", [{}, RAW])
def test_zarr_rows__chunks_that_a_shard_lacks_are_fill_values(options, x, tmp_path):
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=x.shape,
        chunks=(20, 7),
        shards=(200, 7),
        dtype=x.dtype,
        fill_value=2.5,
        **options,
    )
    expected = np.full_like(x, 2.5)
    for begin, end in [(20, 60), (200, 220), (430, 470)]:
        expected[begin:end] = array[begin:end] = x[begin:end]
    rows = open_rows(tmp_path / "x.zarr", count_missing=False)
    assert rows._direct is not None
    np.testing.assert_array_equal(read_all(rows), expected)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-20] + b"x" + data[-19:], "checksum .crc32c. does not match"),
        (lambda data: data[:100], "100 bytes, but the index of a shard needs 164"),
        (lambda data: data[:20] + data[21:], "checksum|bytes are there|cannot be read"),
    ],
)
def test_zarr_rows__a_damaged_shard_is_named(damage, message, x, tmp_path, small_chunks):
    make(tmp_path / "x.zarr", x, chunks=(20, 7), shards=(200, 7))
    path = tmp_path / "x.zarr" / "c" / "1" / "0"
    path.write_bytes(damage(path.read_bytes()))
    rows = open_rows(tmp_path / "x.zarr")
    rows.read(0)
    with pytest.raises(DataError, match=rf"chunk 2 \(rows 200 .*({message})"):
        rows.read(2)


@pytest.mark.parametrize("layout", ["v3", "v3 raw", "v3 checksum", "v3 sharded", "v2 raw", "v2"])
def test_zarr_rows__a_truncated_chunk_is_named(layout, x, tmp_path, small_chunks):
    make(tmp_path / "x.zarr", x, **LAYOUTS[layout][0])
    rows = open_rows(tmp_path / "x.zarr")
    size = (rows._array.shards or rows._array.chunks)[0]
    damaged = size // 100  # the reading chunk where the second stored chunk begins
    key = rows._array.metadata.encode_chunk_key((1, 0))
    path = tmp_path / "x.zarr" / key
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert rows.n_chunks == 10
    rows.read(0)
    with pytest.raises(
        DataError, match=rf"chunk {damaged} \(rows .*x\.zarr cannot be read"
    ) as caught:
        rows.read(damaged)
    if "raw" in layout:
        assert "bytes instead of" in str(caught.value)


def test_zarr_rows__reading_is_thread_safe(x, tmp_path, small_chunks):
    make(tmp_path / "x.zarr", x)
    rows = open_rows(tmp_path / "x.zarr")
    wrong = []

    def work(offset):
        for turn in range(30):
            i = (turn + offset) % rows.n_chunks
            start, stop = rows.chunk_rows(i)
            if not np.array_equal(rows.read(i), x[start:stop]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_open_rows__weights_from_stores(x, tmp_path, small_chunks):
    make(tmp_path / "x.zarr", x)
    weight = np.arange(1_000, dtype=np.int32)
    one = zarr.create_array(tmp_path / "w.zarr", shape=(1_000,), chunks=(64,), dtype="i4")
    one[:] = weight
    np.save(tmp_path / "w.npy", weight)
    for source in (tmp_path / "w.zarr", str(tmp_path / "w.npy"), one):
        rows = open_rows(tmp_path / "x.zarr", sample_weight=source)
        rows = pickle.loads(pickle.dumps(rows))
        parts = [rows.read_weight(i) for i in range(rows.n_chunks)]
        np.testing.assert_array_equal(np.concatenate(parts), weight)
    with pytest.raises(DataError, match=r"sample_weight .*x\.zarr has shape \(1000, 7\)"):
        open_rows(x, sample_weight=tmp_path / "x.zarr")
    with pytest.raises(DataError, match=r"sample_weight has 1000 values, but .* 10 rows"):
        open_rows(x[:10], sample_weight=tmp_path / "w.zarr")


def test_open_rows__says_what_a_path_is(x, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.zarr").write_text("no store")
    (tmp_path / "broken.zarr").mkdir()
    (tmp_path / "broken.zarr" / "zarr.json").write_text("{")
    make(tmp_path / "flat.zarr", x[:, 0], chunks=(10,))
    make(tmp_path / "empty.zarr", x[:0])
    make(tmp_path / "complex.zarr", x.astype(complex))
    group = zarr.open_group(tmp_path / "group.zarr")
    make(group.store, x, name="a")
    make(group.store, x, name="b")
    for name, message in [
        ("absent.zarr", r"absent\.zarr does not exist"),
        ("folder", r"folder does not exist or is not a Zarr"),
        ("file.zarr", r"file\.zarr is a file, but a Zarr store is a folder"),
        ("broken.zarr", r"broken\.zarr cannot be opened: .*JSON"),
        ("flat.zarr", r"flat\.zarr has 1 dimensions"),
        ("empty.zarr", r"empty\.zarr has no rows \(shape \(0, 7\)\)"),
        ("complex.zarr", r"complex\.zarr has dtype complex128"),
        ("group.zarr", r"it contains a, b\); set column"),
    ]:
        with pytest.raises(DataError, match=message):
            open_rows(tmp_path / name)
    with pytest.raises(DataError, match=r"no array or group named 'c'"):
        open_rows(tmp_path / "group.zarr", column="c")
    with pytest.raises(DataError, match=r"memory://nothing/here does not exist"):
        open_rows("memory://nothing/here")


def test_zarr_rows__sharded_read_does_not_straddle_shards(x, tmp_path):
    make(tmp_path / "x.zarr", x, chunks=(20, 7), shards=(180, 7))
    with dask.config.set({"largek.data.read-chunk-bytes": 7 * 4 * 130}):
        rows = open_rows(tmp_path / "x.zarr")
    assert np.diff(rows.chunk_table)[0] == 60
    assert isinstance(rows, ZarrRows)
    assert isinstance(rows._array.metadata.codecs[0], ShardingCodec)
    np.testing.assert_array_equal(read_all(rows), x)
