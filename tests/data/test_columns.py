"""Column names: where they come from, selection by name, and rows of selected columns."""

from __future__ import annotations

import pickle
from decimal import Decimal

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

from largek_dask.data.columns import order_by_name
from largek_dask.data.derived_rows import ColumnRows
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, ParameterError
from tests.data.helpers import quiet, read_all

NAMES = ("a", "b", "c", "d", "e", "f", "g")


def frame_of(x):
    return pd.DataFrame(x, columns=list(NAMES))


SOURCES = {
    "pandas": frame_of,
    "polars": lambda x: pl.DataFrame(frame_of(x)),
    "arrow table": lambda x: pa.table(frame_of(x)),
    "arrow batch": lambda x: pa.RecordBatch.from_pandas(frame_of(x)),
    "dask frame": lambda x: dd.from_pandas(frame_of(x), npartitions=3),
    "xarray": lambda x: xr.DataArray(x, dims=("row", "f"), coords={"f": list(NAMES)}),
    "lazy xarray": lambda x: xr.DataArray(
        da.from_array(x, chunks=(300, 7)), dims=("row", "f"), coords={"f": list(NAMES)}
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_names_are_those_of_the_source_and_go_to_the_store(kind, x, tmp_path):
    source = SOURCES[kind](x)
    rows = open_rows(source)
    assert rows.feature_names == NAMES
    np.testing.assert_array_equal(read_all(rows), x)
    stored = quiet(source, tmp_path / "all.zarr")
    assert stored.feature_names == NAMES
    np.testing.assert_array_equal(read_all(stored), x)
    assert pickle.loads(pickle.dumps(stored)).feature_names == NAMES
    some = quiet(source, tmp_path / "some.zarr", columns=["f", "a", "c"], shuffle=None)
    assert some.feature_names == ("f", "a", "c")
    np.testing.assert_array_equal(read_all(some), x[:, [5, 0, 2]])
    rest = quiet(source, tmp_path / "rest.zarr", drop="b")
    assert rest.feature_names == ("a", "c", "d", "e", "f", "g")
    np.testing.assert_array_equal(read_all(rest), np.delete(x, 1, axis=1))
    # from a store, too, and without a word of names the numbers are the same data
    again = quiet(tmp_path / "all.zarr", tmp_path / "again.zarr", columns=("g", "a"))
    np.testing.assert_array_equal(read_all(again), x[:, [6, 0]])
    assert rows.fingerprint()["content"] == open_rows(read_all(rows)).fingerprint()["content"]


def test_there_are_no_names_without_texts(x, tmp_path):
    for source in (x, pd.DataFrame(x), da.from_array(x), xr.DataArray(x), sp.csr_matrix(x)):
        assert open_rows(source).feature_names is None
    assert quiet(x, tmp_path / "x.zarr").feature_names is None
    # some numbers among texts are called by these
    assert open_rows(pd.DataFrame(x).assign(n=1)).feature_names == (*"0123456", "n")
    some = quiet(pd.DataFrame(x), tmp_path / "some.zarr", columns=[5, 2], force=True)
    assert some.feature_names is None
    np.testing.assert_array_equal(read_all(some), x[:, [5, 2]])


def test_sparse_rows_keep_their_names_and_show_some_columns(x, tmp_path):
    matrix = sp.csr_matrix(np.where(x > 0.5, x, 0))
    rows = open_rows(matrix).with_names(NAMES)
    stored = quiet(rows, tmp_path / "x.zarr")
    assert stored.is_sparse
    assert stored.feature_names == NAMES
    for places in ([6, 0, 3], [1], list(range(7))[::-1]):
        part = ColumnRows(stored, places)
        np.testing.assert_array_equal(read_all(part), matrix.toarray()[:, places])
        assert part.feature_names == tuple(NAMES[place] for place in places)
        assert part.is_sparse


def test_column_rows__are_rows_with_all_their_ways(x, tmp_path, small_chunks):
    weight = np.arange(1_000.0)
    stored = quiet(frame_of(x), tmp_path / "x.zarr", chunk_rows=100, shuffle=3)
    rows = ColumnRows(open_rows(stored, sample_weight=weight), [4, 0])
    expected = read_all(stored)[:, [4, 0]]
    assert rows.n_chunks == stored.n_chunks > 1
    np.testing.assert_array_equal(read_all(rows), expected)
    assert rows.shuffled
    assert rows.location == stored.location
    assert rows.stretch(2, 10, 20) == stored.stretch(2, 10, 20)
    np.testing.assert_array_equal(rows.read_part(2, 10, 20), expected[210:220])
    np.testing.assert_array_equal(rows.read_weight(1), weight[100:200])
    assert rows.stored_statistics() is None
    np.testing.assert_array_equal(read_all(pickle.loads(pickle.dumps(rows))), expected)
    assert rows.fingerprint()["stamps"] == stored.fingerprint()["stamps"]
    assert (
        rows.fingerprint()["content"]
        == open_rows(expected, sample_weight=weight).fingerprint()["content"]
    )


def test_names_are_as_many_as_columns(x, tmp_path):
    with pytest.raises(DataError, match="the data has 7 columns, but 2 column names"):
        open_rows(x).with_names(["a", "b"])
    assert open_rows(x).with_names(NAMES).with_names(None).feature_names is None
    quiet(frame_of(x), tmp_path / "x.zarr")
    for names, message in [
        (["a"], "7 columns, but 1 column names"),
        ("abcdefg", "not a list of strings"),
    ]:
        array = zarr.open_array(tmp_path / "x.zarr")
        array.update_attributes({"largek": {**array.attrs["largek"], "feature_names": names}})
        with pytest.raises(DataError, match=message):
            _ = open_rows(tmp_path / "x.zarr").feature_names


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_anndata__has_the_names_of_its_variables(zarr_format, x, tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=zarr_format)
    group.create_array("X", data=x)
    group.create_group("layers").create_array("counts", data=x)
    group.create_group("obsm").create_array("X_pca", data=x)
    var = group.create_group("var", attributes={"_index": "gene"})
    var.create_array("gene", shape=(7,), dtype=str)[:] = np.array(NAMES)
    for source, column in [
        (str(tmp_path / "a.zarr"), None),
        (str(tmp_path / "a.zarr"), "X"),
        (str(tmp_path / "a.zarr"), "layers/counts"),
        (group, None),
        (group["X"], None),
    ]:
        assert open_rows(source, column=column).feature_names == NAMES
    assert open_rows(str(tmp_path / "a.zarr"), column="obsm/X_pca").feature_names is None
    some = quiet(tmp_path / "a.zarr", tmp_path / "some.zarr", columns=["c", "a"])
    np.testing.assert_array_equal(read_all(some), x[:, [2, 0]])


def test_h5ad__has_the_names_of_its_variables_and_other_files_numbers(x, tmp_path):
    matrix = sp.csr_matrix(np.where(x > 0, x, 0))
    with h5py.File(tmp_path / "dense.h5ad", "w") as file:
        file["X"] = x
        file.create_group("var").attrs["_index"] = "_index"
        file["var/_index"] = np.array(NAMES, h5py.string_dtype())
    with h5py.File(tmp_path / "sparse.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", matrix.shape
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(matrix, name)
        # as newer versions may write it
        index = file.create_group("var/_index")
        file["var"].attrs["_index"] = "_index"
        index["values"] = np.array(NAMES, h5py.string_dtype())
        index["mask"] = np.zeros(7, bool)
    for name, wanted in [("dense", x), ("sparse", matrix.toarray())]:
        rows = quiet(tmp_path / f"{name}.h5ad", tmp_path / f"{name}.zarr", drop=["b", "g"])
        assert rows.feature_names == ("a", "c", "d", "e", "f")
        np.testing.assert_array_equal(read_all(rows), wanted[:, [0, 2, 3, 4, 5]])
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["table"] = x
    rows = quiet(tmp_path / "plain.h5", tmp_path / "plain.zarr", columns=["6", "2"])
    assert rows.feature_names is None
    np.testing.assert_array_equal(read_all(rows), x[:, [6, 2]])


@pytest.mark.parametrize(
    ("columns", "drop", "message"),
    [
        (["price", "sise"], None, r"no column 'sise'; its columns \(3\) are 'price', "),
        (["size", "size"], None, "'size' .* selected twice, or both selected and dropped"),
        (["size", "price"], ["price"], "'price' .* selected twice, or both selected and dropped"),
        (None, ["price", "size", "n"], "no column .* is selected"),
        ([], None, "no column .* is selected"),
    ],
)
def test_selection__says_what_is_wrong(columns, drop, message, tmp_path):
    frame = pd.DataFrame({"price": [1.0], "size": [2.0], "n": [3]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    stored = quiet(frame, tmp_path / "x.zarr")
    for source in (frame, tmp_path / "x.csv", tmp_path / "x.parquet", stored):
        with pytest.raises(ParameterError, match=message):
            quiet(source, tmp_path / "out.zarr", columns=columns, drop=drop)
    assert not (tmp_path / "out.zarr").exists()


def test_order_by_name__is_where_they_are_or_an_error():
    assert order_by_name(["a", "b"], ["a", "b"], "x") is None
    assert order_by_name(["a", "b", "c"], ["c", "a", "b"], "x") == [1, 2, 0]
    assert order_by_name(["a", "a"], ["a", "a"], "x") is None
    for fitted, found, message in [
        (["a", "b"], ["a", "c"], r"Missing: 'b'\. Unknown: 'c'\. Pass"),
        (["a"], ["a", "b"], r"fitted on\. Unknown: 'b'\. Pass"),
        (["a", "b"], ["b", "a", "a"], "A name occurs more than once"),
        (["a", "a", "b"], ["b", "a", "a"], "A name occurs more than once"),
    ]:
        with pytest.raises(ParameterError, match=message):
            order_by_name(fitted, found, "x")


def in_parquet(table, path, columns=None, **options):
    pq.write_table(table, path, **options)
    return quiet(path, f"{path}.zarr", columns=columns)


MISSING = {
    "pandas": lambda table, path: open_rows(table.to_pandas().convert_dtypes()),
    "pandas of Arrow": lambda table, path: open_rows(table.to_pandas(types_mapper=pd.ArrowDtype)),
    "polars": lambda table, path: open_rows(pl.from_arrow(table)),
    "arrow table": lambda table, path: open_rows(table),
    "arrow batch": lambda table, path: open_rows(table.combine_chunks().to_batches()[0]),
    "Parquet": in_parquet,
    "Parquet, no statistics": lambda table, path: in_parquet(table, path, write_statistics=False),
    "Parquet, small groups": lambda table, path: in_parquet(table, path, row_group_size=1),
}


@pytest.mark.parametrize("kind", MISSING)
def test_missing_values_of_any_column_are_nan_whoever_made_it(kind, tmp_path):
    columns = {"a": [1, None, 3], "b": [True, False, None], "c": [1.5, 2.5, None], "d": [7, 8, 9]}
    rows = MISSING[kind](pa.table(columns), tmp_path / "x.parquet")
    assert rows.dtype == np.float64
    assert rows.feature_names == tuple("abcd")
    expected = [[1, 1, 1.5, 7], [np.nan, 0, 2.5, 8], [3, np.nan, np.nan, 9]]
    np.testing.assert_array_equal(read_all(rows), expected)


def test_lists_of_one_length_are_features_and_missing_ones_are_nan(tmp_path):
    lists = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    ones = pa.array([[1], [2], None], pa.list_(pa.int64(), 1))
    chunks = pa.chunked_array([lists[:2], lists[2:]])
    table = pa.table({"n": [5, 6, 7], "e": chunks, "o": ones})
    assert table.column("e").num_chunks == 2
    expected = [[5, 1, 2, 1], [6, np.nan, np.nan, 2], [7, 3, 4, np.nan]]
    every = ("n", "e", "o")
    with pytest.raises(ParameterError, match="several columns of lists"):
        open_rows(table)
    for rows in (
        quiet(table, tmp_path / "x.zarr", columns=every),
        in_parquet(table, tmp_path / "x.parquet", columns=every),
    ):
        assert rows.feature_names == ("n", "e[0]", "e[1]", "o")
        np.testing.assert_array_equal(read_all(rows), expected)
    part = pa.table({"e": pa.array([[1, None]], pa.list_(pa.int64(), 2))})
    np.testing.assert_array_equal(read_all(open_rows(part)), [[1, np.nan]])
    stored = in_parquet(part, tmp_path / "y.parquet")
    np.testing.assert_array_equal(read_all(stored), [[1, np.nan]])


MONEY = [Decimal(number).scaleb(-2) for number in (110, 333_333_333_333_333, -7)]


@pytest.mark.parametrize(
    "source",
    [
        pa.table({"a": pa.array([*MONEY, None], pa.decimal128(20, 2))}),
        pa.table({"a": pa.array([*MONEY, None], pa.decimal256(50, 2))}),
        pl.DataFrame({"a": pl.Series([*MONEY, None], dtype=pl.Decimal(20, 2))}),
        pd.DataFrame({"a": pd.Series([*MONEY, None], dtype=pd.ArrowDtype(pa.decimal128(20, 2)))}),
    ],
    ids=["arrow", "arrow 256", "polars", "pandas"],
)
def test_decimals_become_the_nearest_float(source, tmp_path):
    expected = [[float(number)] for number in MONEY] + [[np.nan]]
    rows = open_rows(source)
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(read_all(rows), expected)
    table = source if isinstance(source, pa.Table) else pa.table(source)
    stored = in_parquet(table, tmp_path / "x.parquet")
    np.testing.assert_array_equal(read_all(stored), expected)


@pytest.mark.parametrize(
    "columns",
    [
        pd.get_dummies(pd.Series(list("abca")), sparse=True),
        pd.get_dummies(pd.Series(list("abca")), sparse=True, dtype=float).assign(n=[1, 2, 3, 4]),
        pd.DataFrame({"f": pd.arrays.SparseArray([np.nan, 1.5])}),
        pd.DataFrame({"i": pd.arrays.SparseArray([0, 7, 0], fill_value=7)}),
    ],
    ids=["bool", "mixed", "nan", "fill"],
)
def test_sparse_columns_of_pandas(columns):
    assert any(isinstance(kind, pd.SparseDtype) for kind in columns.dtypes)
    rows = open_rows(columns)
    np.testing.assert_array_equal(read_all(rows), np.column_stack([columns[n] for n in columns]))


TEXT = {
    "plain": pd.array(["x", "y"], dtype=object),
    "string": pd.array(["x", "y"], dtype="string[pyarrow]"),
    "arrow": pd.array(["x", "y"], dtype=pd.ArrowDtype(pa.string())),
    "dictionary": pd.array(["x", "y"], dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))),
    "category": pd.Categorical(["x", "y"]),
    "day": pd.to_datetime(["2020-01-01", "2020-01-02"]),
}


def test_all_columns_that_are_not_numbers_are_named_with_the_option(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], **TEXT, "n": pd.array([1, 2], dtype="int64[pyarrow]")})
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    table = pa.table(frame)
    sources = (frame, table, pl.DataFrame(table), tmp_path / "x.csv", tmp_path / "x.parquet")
    for number, source in enumerate(sources):
        with pytest.raises(DataError) as caught:
            quiet(source, tmp_path / f"{number}.zarr")
        message = str(caught.value)
        assert all(f"{name!r} (" in message for name in TEXT), message
        assert f"drop={list(TEXT)!r}" in message
        assert not (tmp_path / f"{number}.zarr").exists()
        rows = quiet(source, tmp_path / f"{number}.zarr", drop=list(TEXT))
        assert rows.feature_names == ("a", "n")
        np.testing.assert_array_equal(read_all(rows), [[1, 1], [2, 2]])
