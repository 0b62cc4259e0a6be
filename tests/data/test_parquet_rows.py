"""Columns of lists, in memory and in Parquet files that are read in place."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import largek_dask as lk
from largek_dask.data.arrow_files import ArrowFileRows
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, DataWarning, ParameterError
from tests.data.helpers import read_all
from tests.helpers.covering import every_two, in_turns

TYPES = (np.float64, np.float32, np.float16, np.int8, np.uint8)
N, D = 500, 6


def table_of(dtype):
    return (10 * np.random.default_rng(0).standard_normal((N, D))).astype(dtype)


@pytest.fixture
def small_chunks():
    """Read 100 rows of float32 per chunk."""
    with dask.config.set({"largek.data.read-chunk-bytes": D * 4 * 100}):
        yield


def arrow_lists(x, kind):
    values = pa.array(x.ravel())
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(values, x.shape[1])
    ends = np.arange(len(x) + 1) * x.shape[1]
    made = pa.ListArray if kind == "list" else pa.LargeListArray
    return made.from_arrays(pa.array(ends, pa.int32() if kind == "list" else pa.int64()), values)


def write(x, path, kind="list", *, ids=False, **how):
    columns = {"id": pa.array([f"r{i}" for i in range(len(x))])} if ids else {}
    pq.write_table(pa.table({**columns, "e": arrow_lists(x, kind)}), path, **how)
    return path


IN_MEMORY = {
    "list": lambda x: pa.table({"e": arrow_lists(x, "list")}),
    "large list": lambda x: pa.table({"e": arrow_lists(x, "large")}),
    "fixed list": lambda x: pa.table({"e": arrow_lists(x, "fixed")}),
    "sliced": lambda x: pa.table({"e": arrow_lists(np.vstack([x[:3], x]), "list")}).slice(3),
    "batch": lambda x: pa.RecordBatch.from_pydict({"e": arrow_lists(x, "list")}),
    "pandas arrays": lambda x: pd.DataFrame({"e": list(x)}),
    "pandas arrow": lambda x: pa.table({"e": arrow_lists(x, "list")}).to_pandas(
        types_mapper=pd.ArrowDtype
    ),
    "polars List": lambda x: pl.DataFrame({"e": arrow_lists(x, "list")}),
    "polars Array": lambda x: pl.DataFrame({"e": arrow_lists(x, "fixed")}),
}


@pytest.mark.parametrize(("kind", "dtype"), in_turns([*IN_MEMORY], TYPES))
def test_lists_in_memory(kind, dtype):
    table = table_of(dtype)
    rows = open_rows(IN_MEMORY[kind](table))
    assert rows.shape == (N, D)
    assert rows.dtype == table.dtype
    np.testing.assert_array_equal(read_all(rows), table)


def test_lists_of_python_numbers():
    x = np.array([[1, 2, 3], [4, 5, 6.5]])
    rows = open_rows(pd.DataFrame({"e": [[1, 2, 3], (4, 5, 6.5)]}))
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(read_all(rows), x)


@pytest.mark.parametrize(
    ("group", "dtype", "kind"), every_two([1, 7, 100, 130, N], TYPES, ["list", "large", "fixed"])
)
def test_parquet_in_place(group, dtype, kind, tmp_path, small_chunks):
    table = table_of(dtype)
    path = write(table, tmp_path / "é x.parquet", kind, row_group_size=group)
    rows = open_rows(path)
    assert isinstance(rows, ArrowFileRows)
    assert rows.shape == (N, D)
    assert rows.dtype == table.dtype
    most = 100 * 4 // table.dtype.itemsize
    lengths = np.diff(rows.chunk_table)
    assert lengths.max() <= most
    if group <= most // 2:
        assert lengths.max() > group, "small groups are joined"
    np.testing.assert_array_equal(read_all(rows), table)
    # in any order, from several threads, and in another process
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(rows.n_chunks), 2))
    other = pickle.loads(pickle.dumps(rows))
    with ThreadPoolExecutor(3) as pool:
        for i, part in zip(order, pool.map(other.read, order), strict=True):
            np.testing.assert_array_equal(part, table[slice(*rows.chunk_rows(i))])


def test_a_large_row_group_is_decoded_once_by_reads_in_order(tmp_path, small_chunks, monkeypatch):
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    rows = open_rows(write(x, tmp_path / "x.parquet", row_group_size=N))
    assert rows.n_chunks == 5
    begun = []
    blocks = ArrowFileRows._blocks
    monkeypatch.setattr(ArrowFileRows, "_blocks", lambda *a: begun.append(a) or blocks(*a))
    for _ in range(2):
        read_all(rows)
    assert len(begun) == 2


def test_columns_of_numbers_keep_their_names_and_types(tmp_path):
    frame = pd.DataFrame({"a": [1.5, 2.5], "b": np.array([3, 4], np.int16)})
    frame.to_parquet(tmp_path / "x.parquet")
    rows = open_rows(tmp_path / "x.parquet")
    assert rows.feature_names == ("a", "b")
    np.testing.assert_array_equal(read_all(rows), [[1.5, 3], [2.5, 4]])
    one = open_rows(tmp_path / "x.parquet", column="b")
    assert (one.dtype, one.shape) == (np.int16, (2, 1))


def test_lists_beside_ids_and_text_are_taken_with_a_word(tmp_path):
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    table = pa.table({"n": range(N), "text": ["t"] * N, "e": arrow_lists(x, "list")})
    pq.write_table(table, tmp_path / "x.parquet")
    for source in (table, table.to_pandas(), tmp_path / "x.parquet"):
        with pytest.warns(DataWarning, match=r"its column 'e'; the other columns \('n', 'text'\)"):
            rows = open_rows(source)
        np.testing.assert_array_equal(read_all(rows), x)
        named = open_rows(source, column="e", ids="n")
        np.testing.assert_array_equal(read_all(named), x)
        ids = [named.read_ids(i) for i in range(named.n_chunks)]
        np.testing.assert_array_equal(np.concatenate(ids), range(N))
        assert open_rows(source, column="e").read_ids(0)[0] == 0
        with pytest.raises(ParameterError, match=r"no column 'other'.*'n', 'text', 'e'"):
            open_rows(source, column="other")
        with pytest.raises(ParameterError, match=r"no column 'other'.*'n', 'text', 'e'"):
            open_rows(source, column="e", ids="other")


def test_ids_of_chunks_within_a_row_group(tmp_path, small_chunks):
    x = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    rows = open_rows(write(x, tmp_path / "x.parquet", ids=True), column="e", ids="id")
    assert rows.n_chunks == 5
    ids = np.concatenate([rows.read_ids(i) for i in range(5)])
    assert ids.tolist() == [f"r{i}" for i in range(N)]
    assert pickle.loads(pickle.dumps(rows)).read_ids(3)[1] == "r301"
    given = open_rows(x, ids=np.arange(N)[::-1])
    assert given.read_ids(0)[0] == N - 1
    with pytest.raises(DataError, match="one id per row"):
        open_rows(x, ids=[1, 2])
    with pytest.raises(ParameterError, match="no named columns"):
        open_rows(x, ids="id")


# --- fits -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    """Rows in clusters as float16: the Parquet file, a Zarr store of equal chunks, the array."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((12, D))[rng.integers(0, 12, 3_000)] * 8).astype(np.float16)
    x += rng.standard_normal(x.shape).astype(np.float16)
    folder = tmp_path_factory.mktemp("clustered")
    with dask.config.set({"largek.data.read-chunk-bytes": D * 2 * 250}):
        path = write(x, folder / "x.parquet", row_group_size=1_000)
        store = folder / "x.zarr"
        lk.ingest(path, store, chunk_rows=250, progress=False)
        yield path, store, x


def fitted(rows, **how):
    return lk.KMeans(12, random_state=0, **how).fit(rows)


def test_the_digest_is_that_of_a_zarr_store_with_the_same_chunks(clustered, worker_clients):
    path, store, x = clustered
    chunks = open_rows(path)
    assert chunks.n_chunks == 12
    assert chunks.chunk_table.tolist() == open_rows(store).chunk_table.tolist()
    expected = fitted(store)
    here = fitted(path)
    assert here.model_.digest() == expected.model_.digest()
    np.testing.assert_array_equal(here.predict(path), here.predict(x))
    there = fitted(path, client=worker_clients(2))
    assert there.model_.digest() == expected.model_.digest()
    np.testing.assert_array_equal(there.labels_, here.labels_)


# --- bad input ------------------------------------------------------------------------------------


UNEQUAL = [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0, 7.0]]


@pytest.mark.parametrize("group", [1, 2, 4])
def test_lists_of_other_lengths_are_refused_with_file_group_and_row(group, tmp_path):
    table = pa.table({"e": pa.array(UNEQUAL)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=group)
    pattern = r"row group \d.* of .*x\.parquet.*row 2 of column 'e' of .* list of 1 .* length\.$"
    with pytest.raises(DataError, match=pattern):
        read_all(open_rows(tmp_path / "x.parquet"))
    for source in (table, pd.DataFrame({"e": UNEQUAL}), table.to_pandas()):
        with pytest.raises(DataError, match=r"row 2 of column 'e'.* list of 1 numbers"):
            read_all(open_rows(source))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "memory"])
@pytest.mark.parametrize("in_order", [True, False])
def test_the_row_is_named_in_a_part_of_a_large_group(kind, in_order, tmp_path, small_chunks):
    lists = np.ones((N, D), np.float32).tolist()
    lists[433] = [1.0]
    table = pa.table({"e": pa.array(lists, pa.list_(pa.float32()))})
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path, "uncompressed")
    where = r"chunk 4 \(rows 400 to 499; (row group|record batch) 0 of .*x\..*"
    if kind == "memory":
        where, path = "", pa.concat_tables([table[:250], table[250:430], table[430:]])
    rows = open_rows(path)
    if in_order:
        for i in range(rows.n_chunks - 1):
            rows.read(i)
    with pytest.raises(DataError, match=f"{where}row 433 of column 'e' of .* list of 1 numbers"):
        rows.read(rows.n_chunks - 1)


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.list_(pa.int8(), 2)], ids=str)
def test_missing_lists_and_a_name_with_a_dot(kind, tmp_path):
    table = pa.table(
        {"e.f": pa.array([None, [1, 2], [3, None], None, [5, 6]], kind), "e": range(5)}
    )
    pq.write_table(table, tmp_path / "x.parquet")
    nan = np.nan
    for source in (table, tmp_path / "x.parquet"):
        rows = open_rows(source, column="e.f", ids="e")
        expected = [[nan, nan], [1, 2], [3, nan], [nan, nan], [5, 6]]
        np.testing.assert_array_equal(read_all(rows), expected)
        assert rows.read_ids(0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [[1.0, None], None, [1.0, np.nan]], ids=["null", "no list", "NaN"])
def test_a_missing_number_is_named_by_the_fit(bad, tmp_path):
    table = pa.table({"e": pa.array([[1.0, 2.0], [3.0, 4.0], bad, [0.0, 1.0]])})
    pq.write_table(table, tmp_path / "x.parquet")
    for source in (table, tmp_path / "x.parquet", pd.DataFrame({"e": table["e"].to_pylist()})):
        with pytest.raises(DataError, match=r"row 2\b"):
            lk.KMeans(2).fit(source)


def test_text_inside_lists_and_two_columns_of_lists(tmp_path):
    with pytest.raises(DataError, match=r"not numbers: 'e' \(list<"):
        open_rows(pa.table({"e": [["a", "b"]]}))
    two = pa.table({"a": [[1.0]], "b": [[2.0]]})
    pq.write_table(two, tmp_path / "x.parquet")
    for source in (two, two.to_pandas(), tmp_path / "x.parquet"):
        with pytest.raises(ParameterError, match=r"'a', 'b'.*column="):
            open_rows(source)
        assert open_rows(source, column="b").read(0) == [[2.0]]
