"""Columns of CSV and Parquet files: an index among them, and several files."""

from __future__ import annotations

import shutil

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, DataWarning, ParameterError
from tests.data.helpers import quiet, read_all

X = np.random.default_rng(3).standard_normal((400, 3))


@pytest.fixture
def frame():
    return pd.DataFrame(X, columns=list("abc"))


def write(frame, path):
    """With its index."""
    frame.to_csv(path) if path.suffix == ".csv" else frame.to_parquet(path, index=True)
    return path


# --- an index


def test_an_index_in_a_csv_file_is_refused(frame, tmp_path):
    path = write(frame, tmp_path / "x.csv")
    for source in (path, pd.read_csv(path), pl.read_csv(path), dd.from_pandas(pd.read_csv(path))):
        name = "" if isinstance(source, pl.DataFrame) else "Unnamed: 0"
        with pytest.raises(DataError, match=f"'{name}'"):
            quiet(source, tmp_path / "x.zarr")
        assert quiet(source, tmp_path / "x.zarr", drop=name).feature_names == ("a", "b", "c")
        rows = quiet(source, tmp_path / "x.zarr", columns=[name, "b"], force=True)
        np.testing.assert_array_equal(read_all(rows)[:, 0], np.arange(400))
        shutil.rmtree(tmp_path / "x.zarr")
    with pytest.raises(DataError):
        open_rows(pd.read_csv(path))


@pytest.mark.parametrize("index", ["__index_level_0__", "id"])
def test_what_pandas_notes_as_the_index_is_left_out(index, frame, tmp_path):
    shuffled = frame.sample(frac=1, random_state=0)
    shuffled = shuffled if index != "id" else shuffled.rename_axis("id")
    path = write(shuffled, tmp_path / "x.parquet")
    sources = [path, pa.Table.from_pandas(shuffled)]
    if index != "id":
        # Without notes it is known by its name.
        sources += [sources[1].replace_schema_metadata(None), pl.read_parquet(path)]
    for source in sources:
        with pytest.warns(DataWarning, match=f"'{index}'"):
            rows = quiet(source, tmp_path / "x.zarr", force=True)
        assert rows.feature_names == ("a", "b", "c")
        kept = quiet(source, tmp_path / "x.zarr", force=True, columns=["a", index])
        np.testing.assert_array_equal(read_all(kept)[:, 1], shuffled.index)
        assert quiet(source, tmp_path / "x.zarr", force=True, drop=index).n_features == 3
    for source in sources[1:]:
        with pytest.warns(DataWarning, match=f"'{index}'"):
            assert open_rows(source).feature_names == ("a", "b", "c")


# --- columns of one file


def test_columns_without_a_header_are_called_by_their_numbers(frame, tmp_path):
    frame.to_csv(tmp_path / "x.csv", index=False, header=False)
    rows = quiet(tmp_path / "x.csv", tmp_path / "x.zarr", columns=[2, 0])
    assert rows.feature_names is None
    np.testing.assert_array_equal(read_all(rows), X[:, [2, 0]])
    with pytest.raises(ParameterError, match=r"no column 'a'; its columns \(3\) are '0', '1', '2'"):
        quiet(tmp_path / "x.csv", tmp_path / "no.zarr", drop="a")


# --- several files


@pytest.fixture
def parts(frame, tmp_path):
    """A folder of three Parquet files; the second has its columns in another order."""
    folder = tmp_path / "parts"
    (folder / "year=2021").mkdir(parents=True)
    frame[:100].to_parquet(folder / "part-0.parquet")
    frame[100:300][["c", "a", "b"]].to_parquet(folder / "part-1.parquet")
    frame[300:].sample(frac=1, random_state=0).sort_index(ascending=False).to_parquet(
        folder / "year=2021" / "part-0.parquet"
    )
    for name in ("_SUCCESS", "_metadata.parquet", ".part-9.parquet", "readme.md"):
        (folder / name).write_text("not data")
    return folder


def test_a_folder_a_pattern_and_a_list_are_one_table(parts, tmp_path):
    expected = np.concatenate([X[:300], X[300:][::-1]])
    for number, (source, rows_wanted) in enumerate(
        [
            (parts, expected),
            (f"{parts}/*.parquet", expected[:300]),
            (f"{parts}/**/*.parquet", expected),
            ([parts / "part-0.parquet", str(parts / "part-1.parquet")], expected[:300]),
        ]
    ):
        rows = quiet(source, tmp_path / f"{number}.zarr", chunk_rows=64)
        assert rows.feature_names == ("a", "b", "c")
        np.testing.assert_array_equal(read_all(rows), rows_wanted)
    # a list stays in its order, which is that of the columns, too
    rows = quiet([parts / "part-1.parquet", parts / "part-0.parquet"], tmp_path / "list.zarr")
    assert rows.feature_names == ("c", "a", "b")
    np.testing.assert_array_equal(read_all(rows)[:200], X[100:300][:, [2, 0, 1]])
    some = quiet(parts, tmp_path / "some.zarr", columns=["b"], shuffle=1)
    np.testing.assert_array_equal(np.sort(read_all(some)[:, 0]), np.sort(X[:, 1]))


def test_files_of_several_types_have_one_that_holds_all(tmp_path):
    pd.DataFrame({"n": [1, 2]}).to_parquet(tmp_path / "0.parquet")
    pd.DataFrame({"n": pd.array([3, None], "Int64")}).to_parquet(tmp_path / "1.parquet")
    pd.DataFrame({"n": [0.5]}, dtype="float32").to_parquet(tmp_path / "2.parquet")
    rows = quiet(f"{tmp_path}/*.parquet", tmp_path / "out.zarr")
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(read_all(rows)[:, 0], [1, 2, 3, np.nan, 0.5])


def test_the_file_that_differs_is_named(parts, frame, tmp_path):
    frame.rename(columns={"b": "B"}).to_parquet(parts / "part-2.parquet")
    message = r"part-2\.parquet does not have the same columns as .*part-0\.parquet, the first .*"
    with pytest.raises(DataError, match=message + r"Missing: 'b'\. Unk"):
        quiet(parts, tmp_path / "x.zarr")
    with pytest.raises(ParameterError, match=r"part-2\.parquet has no column 'b'"):
        quiet(parts, tmp_path / "x.zarr", columns=["a", "b"])
    assert quiet(parts, tmp_path / "x.zarr", columns=["a", "c"]).shape == (800, 2)
    frame.assign(city="Rome").to_parquet(parts / "part-2.parquet")
    with pytest.raises(DataError, match=r"part-2\.parquet .*part-0.*Unknown: 'city'"):
        quiet(parts, tmp_path / "y.zarr")
    frame.to_csv(tmp_path / "0.csv", index=False)
    frame.to_csv(tmp_path / "1.csv", index=False, header=False)
    with pytest.raises(DataError, match=r"1\.csv does not have the same columns as .*0\.csv"):
        quiet([tmp_path / "0.csv", tmp_path / "1.csv"], tmp_path / "y.zarr")
    assert not (tmp_path / "y.zarr").exists()


def test_what_is_no_set_of_files_is_said(parts, frame, tmp_path):
    frame.to_csv(parts / "x.csv")
    (tmp_path / "empty").mkdir()
    for source, message in [
        (parts, "contains files of several formats"),
        (f"{parts}/*.pq", r"no file matches .*/\*\.pq"),
        ([parts / "part-0.parquet", parts / "part-7.parquet"], r"part-7\.parquet does not exist"),
        ([parts / "x.npz"], r"x\.npz does not have the suffix of a table"),
        (tmp_path / "empty", "is not a Zarr array or group"),
    ]:
        with pytest.raises(DataError, match=message):
            quiet(source, tmp_path / "out.zarr")
    frame.assign(t="x").to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="a column that is not numbers: 't'"):
        quiet([tmp_path / "t.parquet"], tmp_path / "out.zarr")


def test_files_in_an_object_store(parts, tmp_path):
    """As on a disk: folders are listed, patterns matched, hidden names skipped."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in sorted(parts.rglob("*")):
        if path.is_file():
            name = path.relative_to(parts).as_posix()
            memory.pipe(f"/table-files/{name}", path.read_bytes())
    for number, (source, n) in enumerate(
        [
            ("memory://table-files", 400),
            ("memory://table-files/*.parquet", 300),
            (["memory://table-files/part-1.parquet"], 200),
        ]
    ):
        assert quiet(source, tmp_path / f"{number}.zarr").n_rows == n
        assert open_rows(source).n_rows == n
    memory.rm("/table-files", recursive=True)
