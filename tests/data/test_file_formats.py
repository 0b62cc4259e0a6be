"""Guarantees for all files that are read in place, and iterators of batches for ``ingest``."""

from __future__ import annotations

import contextlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import dask
import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import largek_dask as lk
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, LargekError, ParameterError
from tests.data.helpers import read_all

N, D = 3_000, 6


def lists(x):
    return pa.table({"id": range(len(x)), "e": list(x)} if len(x) else {"id": [], "e": none(x)})


def none(x):
    return pa.array([], pa.list_(pa.from_numpy_dtype(x.dtype)))


def stream(x, path, table=lists):
    """Write batches of 130 rows, as the library datasets does."""
    found = table(x)
    with pa.OSFile(os.fspath(path), "wb") as file, pa.ipc.new_stream(file, found.schema) as writer:
        writer.write_table(found, max_chunksize=130)


def vectors(x, path):
    widths = np.full((len(x), 1), x.shape[1], "<i4").view(np.uint8)
    path.write_bytes(
        np.hstack([widths, x.view(np.uint8).reshape(len(x), x.itemsize * x.shape[1])]).tobytes()
    )


def matrix(x, path):
    path.write_bytes(np.array(x.shape, "<u4").tobytes() + x.tobytes())


def zarr_store(x, path):
    with dask.config.set({"largek.data.read-chunk-bytes": 1 << 20}):
        lk.ingest(x, path, progress=False)


WRITERS = {
    "parquet": (".parquet", "f4", lambda x, p: pq.write_table(lists(x), p, row_group_size=500)),
    "feather": (".feather", "f2", lambda x, p: feather.write_feather(lists(x), p, "lz4", 7, 900)),
    "arrow file": (".arrow", "f4", lambda x, p: feather.write_feather(lists(x), p, "uncompressed")),
    "arrow stream": (".arrow", "f8", stream),
    "polars": (".arrow", "i1", lambda x, p: pl.from_arrow(lists(x)).write_ipc(p)),
    "npy": (".npy", "f2", lambda x, p: np.save(p, x)),
    "fvecs": (".fvecs", "f4", vectors),
    "bvecs": (".bvecs", "u1", vectors),
    "ivecs": (".ivecs", "i4", vectors),
    "fbin": (".fbin", "f4", matrix),
    "u8bin": (".u8bin", "u1", matrix),
    "i8bin": (".i8bin", "i1", matrix),
    "zarr": (".zarr", "f4", zarr_store),
}
COLUMNS = {".parquet", ".feather", ".arrow"}
FILES = [name for name in WRITERS if name != "zarr"]


def opened(source, suffix, **how):
    return open_rows(source, column="e" if suffix in COLUMNS else None, **how)


@pytest.fixture(autouse=True)
def small_chunks():
    """Read about 200 rows of float32 per chunk; of plain arrays, at least 1,024."""
    sizes = {"largek.data.read-chunk-bytes": 5_000, "largek.data.memory-chunk-bytes": 1}
    with dask.config.set(sizes):
        yield


@pytest.fixture(params=WRITERS)
def written(request, tmp_path):
    """A path with spaces and unicode; the suffix, the rows and the function that writes them."""
    return _written(request.param, tmp_path)


@pytest.fixture(params=FILES)
def file(request, tmp_path):
    return _written(request.param, tmp_path)


def _written(name, folder):
    suffix, dtype, write = WRITERS[name]
    rng = np.random.default_rng(0)
    x = (40 + 4 * rng.standard_normal((N, D)) + 9 * rng.integers(0, 5, (N, 1))).astype(dtype)
    path = folder / f"ö x{suffix}"
    write(x, path)
    return path, suffix, x, write


def test_shape_dtype_and_rows_in_any_order_and_from_threads(written):
    path, suffix, x, _ = written
    rows = opened(path, suffix)
    assert (rows.shape, rows.dtype) == (x.shape, x.dtype)
    assert rows.n_chunks > 1 or suffix == ".zarr"
    np.testing.assert_array_equal(read_all(rows), x)
    other = pickle.loads(pickle.dumps(rows))
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(rows.n_chunks), 2))
    with ThreadPoolExecutor(3) as pool:
        for i, part in zip(order, pool.map(other.read, order), strict=True):
            np.testing.assert_array_equal(part, x[slice(*rows.chunk_rows(i))])
            assert part.flags.c_contiguous
            assert not part.flags.writeable


def test_several_files_with_empty_ones(file, tmp_path):
    path, suffix, x, write = file
    folder = tmp_path / "a folder"
    folder.mkdir()
    for i, part in enumerate([x[:1_100], x[:0], x[1_100:1_101], x[1_101:], x[:0]]):
        write(part, folder / f"data-0000{i}-of-00005{suffix}")
    write(x[:5], folder / f"_hidden{suffix}")
    if suffix == ".arrow":
        write(x[:5], folder / "cache-0123.arrow")
    (folder / "state.json").write_text("{}")
    paths = sorted(folder.glob("data*"))
    for source in (folder, folder / f"data*{suffix}", paths, f"file://{folder}"):
        rows = pickle.loads(pickle.dumps(opened(source, suffix)))
        assert rows.shape == x.shape
        np.testing.assert_array_equal(read_all(rows), x)
    if suffix not in COLUMNS:
        assert rows.chunk_table.tolist() == opened(path, suffix).chunk_table.tolist()
    with pytest.raises(DataError, match="has no rows"):
        opened(paths[1], suffix)
    with pytest.raises(DataError, match="has no rows"):
        opened([paths[1], paths[4]], suffix)


def test_a_file_of_another_width_is_named(file, tmp_path):
    path, suffix, x, write = file
    wrong = tmp_path / f"wrong{suffix}"
    write(np.ascontiguousarray(x[:, :4]), wrong)
    with pytest.raises(DataError, match=rf"wrong\{suffix} has .*4 .*{D}"):
        opened([path, wrong], suffix)
    (tmp_path / "y.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=r"several formats .*y\.csv"):
        open_rows([path, tmp_path / "y.csv"])


def test_types_of_arrays_in_several_files(tmp_path):
    np.save(tmp_path / "0.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "1.npy", np.ones((3, 2)))
    with pytest.raises(DataError, match=r"1\.npy has 2 columns of float64, and .*0\.npy"):
        open_rows(tmp_path)
    np.save(tmp_path / "1.npy", np.ones(3, np.float32))
    with pytest.raises(DataError, match=r"1\.npy has 1 dimensions"):
        open_rows(tmp_path)


def test_truncated_files(file):
    path, suffix, _, _ = file
    whole = path.read_bytes()
    # Formats without a number of rows cannot tell of a cut between two rows.
    for cut in (1, 3, 9, 103, len(whole) // 2 + 1, len(whole) - 7, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=rf"ö x\{suffix}"):
            read_all(opened(path, suffix))
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"ö x\{suffix}"):
        opened(path, suffix)
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        opened(path, suffix)


@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_never_end_the_process(file):
    """Without checksums, some damage is only other numbers; anything else is an error."""
    path, suffix, _, _ = file
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in [*range(0, 60, 5), *rng.integers(0, len(whole), 16), *range(-60, 0, 5)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with contextlib.suppress(LargekError):
            rows = opened(path, suffix)
            assert read_all(rows).shape == rows.shape


def test_another_length_of_a_vector_is_named(tmp_path):
    x = np.ones((2_000, 2), np.float32)
    vectors(x, tmp_path / "x.fvecs")
    data = np.fromfile(tmp_path / "x.fvecs", np.int32).reshape(-1, 3)
    data[1_500, 0] = 7
    data.tofile(tmp_path / "x.fvecs")
    with pytest.raises(DataError, match=r"row 1500 of .*x\.fvecs has length 7, .* first row 2"):
        read_all(open_rows(tmp_path / "x.fvecs"))


def test_a_file_that_changes_has_another_stamp(file):
    path, suffix, x, write = file
    rows = opened(path, suffix)
    before = rows.fingerprint()["stamps"]
    assert len(before) == rows.n_chunks
    assert opened(path, suffix).fingerprint()["stamps"] == before
    path.unlink()
    write(x[::-1].copy(), path)
    os.utime(path, ns=(1, 1))
    assert opened(path, suffix).fingerprint()["stamps"] != before
    if suffix in COLUMNS:
        with pytest.raises(DataError, match="has changed since it was opened"):
            rows.read(1)


def test_the_digest_of_a_fit_is_that_of_a_zarr_store_with_the_same_chunks(file, tmp_path, cluster2):
    path, suffix, x, _ = file
    rows = opened(path, suffix)
    length = int(rows.chunk_table[1])
    store = lk.ingest(x, tmp_path / "store.zarr", chunk_rows=length, progress=False)
    how = {} if suffix not in COLUMNS else {"column": "e"}
    if rows.chunk_table.tolist() != store.chunk_table.tolist():
        store = open_rows(store, count_missing=False)
        store.chunk_table = rows.chunk_table
    here = lk.KMeans(8, random_state=0).fit(path, **how)
    there = lk.KMeans(8, random_state=0).fit(store)
    assert here.model_.digest() == there.model_.digest()
    if suffix in COLUMNS:
        workers = lk.KMeans(8, random_state=0, client=cluster2).fit(path, **how)
        assert workers.model_.digest() == here.model_.digest()


# --- Arrow ----------------------------------------------------------------------------------------


def test_columns_and_ids_of_arrow_files(tmp_path):
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    ids = pa.array([f"r{i % 70}" for i in range(N)])

    def table(x):
        plain = {"e": list(x), "text": ids, "group": ids.dictionary_encode()}
        return pa.table({**plain, "a": pa.array([None, 1] * (N // 2)), "b": x[:, 0]})

    stream(x, tmp_path / "s.arrow", table)
    for compression in ("uncompressed", "lz4", "zstd"):
        feather.write_feather(table(x), tmp_path / f"{compression}.arrow", compression)
    for path in tmp_path.iterdir():
        for name in ("text", "group"):
            rows = open_rows(path, column="e", ids=name)
            found = [rows.read_ids(i) for i in np.arange(rows.n_chunks)[::-1]]
            assert np.concatenate(found[::-1]).tolist() == ids.to_pylist()
            np.testing.assert_array_equal(read_all(rows), x)
        numbers = open_rows(path, column="a")
        assert numbers.dtype == np.float64
        assert np.isnan(read_all(numbers)[::2]).all()
        with pytest.raises(ParameterError, match="no column 'c'"):
            open_rows(path, column="c")
    pd.DataFrame(x, columns=list("abcdef")).to_feather(tmp_path / "x.feather")
    rows = open_rows(tmp_path / "x.feather")
    assert rows.feature_names == tuple("abcdef")
    np.testing.assert_array_equal(read_all(rows), x)
    (tmp_path / "v1.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(DataError, match=r"v1\.feather .*to_feather"):
        open_rows(tmp_path / "v1.feather")


def test_remote_files(file):
    import fsspec

    path, suffix, x, _ = file
    url = f"memory://formats/x{suffix}"
    fsspec.filesystem("memory").pipe(url, path.read_bytes())
    rows = opened(url, suffix)
    np.testing.assert_array_equal(read_all(rows), x)
    np.testing.assert_array_equal(read_all(opened([url, url], suffix)), np.vstack([x, x]))
    assert rows.fingerprint()["stamps"]


# --- bfloat16, and formats that are not read ------------------------------------------------------


def test_bfloat16_in_npy_files(tmp_path):
    x = np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match=r"x\.npy .*x\.view\(ml_dtypes\.bfloat16\)"):
        open_rows(tmp_path / "x.npy")
    rows = open_rows(np.load(tmp_path / "x.npy", mmap_mode="r").view(ml_dtypes.bfloat16))
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(read_all(rows), x.astype(np.float32))


@pytest.mark.parametrize(
    ("suffix", "code"),
    [(".npz", "numpy.load"), (".mat", "loadmat"), (".pt", "torch"), (".safetensors", "safetensors"),
     (".jsonl", "read_json"), (".avro", "read_avro"), (".orc", "read_orc"), (".lance", "ingest")],
)  # fmt: skip
def test_formats_that_must_be_converted(suffix, code, tmp_path):
    path = tmp_path / f"x{suffix}"
    path.mkdir() if suffix == ".lance" else path.write_text("x")
    for call in (open_rows, lambda source: lk.ingest(source, tmp_path / "out.zarr")):
        with pytest.raises(DataError, match=rf"the format \{suffix}, .*{code}.*x\{suffix}"):
            call(path)
    assert not (tmp_path / "out.zarr").exists()


# --- iterators of batches -------------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((1_000, D)).astype(np.float32)
NAMED = pa.table({name: X[:, j] for j, name in enumerate("abcdef")})


def parts(make=lambda x: x):
    return (make(X[i : i + 130]) for i in range(0, len(X), 130))


BATCHES = {
    "arrays": parts,
    "bfloat16": lambda: parts(lambda x: x.astype(ml_dtypes.bfloat16)),
    "some are empty": lambda: (x for part in parts() for x in (part[:0], part)),
    "frames": lambda: parts(lambda x: pd.DataFrame(x, columns=list("abcdef"))),
    "reader": lambda: NAMED.to_reader(130),
    "Arrow batches": lambda: iter(NAMED.to_batches(130)),
    "lists": lambda: lists(X).drop(["id"]).to_reader(130),
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("shuffle", [None, 0])
def test_ingest_of_batches(kind, shuffle, tmp_path):
    rows = lk.ingest(BATCHES[kind](), tmp_path / "x.zarr", shuffle=shuffle, progress=False)
    assert (rows.shape, rows.dtype) == (X.shape, X.dtype)
    is_named = kind in ("frames", "reader", "Arrow batches")
    assert rows.feature_names == (tuple("abcdef") if is_named else None)
    expected = X.astype(ml_dtypes.bfloat16).astype(np.float32) if kind == "bfloat16" else X
    found = read_all(rows)
    if shuffle is not None:
        assert not np.array_equal(found, expected)
        found, expected = found[np.argsort(found[:, 0])], expected[np.argsort(expected[:, 0])]
    if kind != "bfloat16" or shuffle is None:
        np.testing.assert_array_equal(found, expected)


def test_columns_of_batches(tmp_path):
    for out, how in {"a": {"columns": ["b", "c"]}, "b": {"drop": list("adef")}}.items():
        rows = lk.ingest(NAMED.to_reader(130), tmp_path / out, progress=False, **how)
        assert rows.feature_names == ("b", "c")
        np.testing.assert_array_equal(read_all(rows), X[:, 1:3])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([X[:3], X[:3, :2]], r"batch 1 .* has 2 columns of float32, and the first has 6"),
        ([X[:0], X[:3], X[:3].astype(float)], "batch 2 .* of float64, and the first"),
        ([1.5], "batch 0 of the iterator is a float; give arrays"),
        ([X[:3], X[0]], "batch 1 of the iterator: .* 1 dimensions"),
        ([X[:3], np.array([["a"] * D])], "batch 1 of the iterator: .*text"),
        ([], "the iterator has no rows"),
        ([X[:0]], "the iterator has no rows"),
    ],
)
def test_batches_that_differ(batches, message, tmp_path):
    with pytest.raises(DataError, match=message):
        lk.ingest(iter(batches), tmp_path / "x.zarr", progress=False)
    assert not (tmp_path / "x.zarr").exists()
    with pytest.raises(DataError, match=r"iterator of batches to a store first.*ingest"):
        open_rows(iter(batches))
