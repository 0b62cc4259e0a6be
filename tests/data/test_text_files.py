"""Text files as programs and people write them are read correctly, or refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import largek_dask as lk
from largek_dask.data import tables
from largek_dask.data.ingest import ingest
from largek_dask.errors import BadRowsError, DataError, ParameterError
from tests.data.helpers import read_all

X = np.random.default_rng(3).standard_normal((60, 4))


def quiet(source, out, **options):
    return ingest(source, out, progress=False, force=True, **options)


@pytest.fixture
def read(tmp_path):
    """Write a text or bytes to a file and ingest that."""

    def read(content, name="x.csv", **options):
        content = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(content)
        return quiet(tmp_path / name, tmp_path / "out.zarr", **options)

    return read


def text_of(frame=None, **options):
    frame = pd.DataFrame(X) if frame is None else frame
    return frame.to_csv(**options)


def saved(x=X, **options):
    """As ``numpy.savetxt`` writes it."""
    text = io.StringIO()
    np.savetxt(text, x, **options)
    return text.getvalue()


# --- a first line of numbers


@pytest.mark.parametrize("text", [text_of(index=False), "0 1 2 3\n" + saved()])
def test_names_that_count_the_columns_are_a_header(text, read):
    rows = read(text)
    np.testing.assert_array_equal(read_all(rows), X)
    assert rows.feature_names is None


ROWS = {
    "floats": text_of(header=False, index=False),
    "whole numbers among others": "5,3,0,2\n" + text_of(header=False, index=False),
    "one row": "1,2,3\n",
    "one column": "0\n7\n",
    "missing": "5.5,,1.4\n4.9,2.5,1.5\n",
    "negative": "-1,0,1,2\n1,-2,3,9\n0,1,7,3\n",
}


@pytest.mark.parametrize("name", ROWS)
def test_a_first_row_is_no_header(name, read):
    text = ROWS[name]
    rows = read(text)
    expected = pd.read_csv(io.StringIO(text), header=None).to_numpy(float)
    assert rows.feature_names is None
    np.testing.assert_array_equal(read_all(rows), expected)


def test_header_says_what_the_first_line_is(tmp_path, read):
    rows = read("5.5,3.5,setosa\n4.9,3.0,setosa\n", name="iris.data", header=False, drop=2)
    np.testing.assert_array_equal(read_all(rows), [[5.5, 3.5], [4.9, 3.0]])
    years = text_of(pd.DataFrame(X, columns=range(2019, 2023)), index=False)
    assert read(years, header=True).feature_names == ("2019", "2020", "2021", "2022")
    with pytest.raises(ParameterError):
        quiet(X, tmp_path / "x.zarr", header=True)
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text("0,1\n0.5,1.5\n")
    assert quiet(f"{tmp_path}/[01].csv", tmp_path / "x.zarr", header=True).shape == (2, 2)
    assert quiet(f"{tmp_path}/[01].csv", tmp_path / "x.zarr", header=False).shape == (4, 2)


# --- separators and signs


def german(sep, columns=4):
    return text_of(
        pd.DataFrame(X[:, :columns], columns=list("abcd")[:columns]),
        sep=sep,
        decimal=",",
        index=False,
    )


QUOTED = ("a, b", "c;d", 'e "f"', "g h")
TEXTS = {
    "spaces": saved(),
    "aligned": "\n".join("  ".join(f"{v!r:>24}" for v in row) for row in X.tolist()),
    "spaces and tabs": "".join(" \t ".join(map(repr, row)) + "  \n" for row in X.tolist()),
    "tabs": saved(delimiter="\t"),
    "pipes": saved(delimiter="|"),
    "semicolons": saved(delimiter=";"),
    "commas and spaces": saved(delimiter=", "),
    "header in a comment": saved(header="a b c d"),
    "header in a comment, commas": saved(header="a,b,c,d", delimiter=","),
    "comments": "# made by hand\n% twice\n\n" + saved(delimiter=","),
    "sep=": "sep=;\n" + text_of(pd.DataFrame(X, columns=list("abcd")), sep=";", index=False),
    "decimal commas": german(";"),
    "decimal commas and tabs": german("\t"),
    "decimal commas in quotes": german(","),
    "quotes": text_of(pd.DataFrame(X, columns=QUOTED), index=False, quoting=1),
    "CRLF": text_of(pd.DataFrame(X, columns=list("abcd")), index=False, lineterminator="\r\n"),
    "CR": text_of(pd.DataFrame(X, columns=list("abcd")), index=False, lineterminator="\r"),
    "no final newline": saved(delimiter=",").rstrip("\n"),
    "blank lines": "\n\n" + saved(delimiter=",").replace("\n", "\n\n"),
    "many columns": saved(np.tile(X, 600), delimiter=","),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_read_as_they_were_written(name, read, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1)
    found = read(TEXTS[name], name="x.txt")
    expected = np.tile(X, 600) if name == "many columns" else X
    np.testing.assert_array_equal(read_all(found), expected)
    if name == "quotes":
        assert found.feature_names == QUOTED


def test_numbers_are_those_that_were_written(read):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5_000, 4)) * 10.0 ** rng.integers(-100, 100, (5_000, 4))
    for text in (
        text_of(pd.DataFrame(x, columns=list("abcd")), index=False),
        saved(x, delimiter=","),
    ):
        np.testing.assert_array_equal(read_all(read(text)), x)
    hard = ["9007199254740993", "0.1", "1e-320", "2.2250738585072014e-308", "123456789012345678"]
    found = read_all(read("a\n" + "\n".join(hard)))[:, 0]
    assert found.tolist() == [float(number) for number in hard]


def test_thousands_are_refused_for_what_they_are(read):
    for text, value in [
        ("a;b\n1,234;2\n5,678;3\n", "1,234"),
        ("a;b\n1.234,5;2\n5,5;3\n", "1.234,5"),
    ]:
        with pytest.raises(DataError, match=f"'a' .'{value}' in data row 0"):
            read(text)


# --- encodings and packing


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_marks_of_encodings(encoding, read):
    text = text_of(pd.DataFrame(X, columns=["größe", "b", "c", "d"]), index=False)
    rows = read(text.encode(encoding))
    assert rows.feature_names == ("größe", "b", "c", "d")
    np.testing.assert_array_equal(read_all(rows), X)


def test_latin_1_matters_in_names_only(read):
    rows = read("name,b\nJosé,2\nMüller,4\n".encode("latin-1"), drop="name")
    np.testing.assert_array_equal(read_all(rows)[:, 0], [2, 4])
    with pytest.raises(DataError, match=r"not UTF-8 \(column 'gr.+e'\).*iconv"):
        read("größe,b\n1,2\n".encode("latin-1"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n".encode("utf-16-le"), "not UTF-8 text: .*UTF-16 without a byte-order mark"),
        (b"1,2\n\0\0\0\0", "null bytes"),
        (b"", "has no rows"),
        (b"# only this\n\n", "has no rows"),
    ],
)
def test_what_is_no_text_is_said(content, message, read):
    with pytest.raises(DataError, match=message):
        read(content)


def zipped(data, names=("x.csv",)):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return file.getvalue()


PACKING = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
    "zip": zipped,
}


@pytest.mark.parametrize("end", PACKING)
def test_packed_texts(end, read, tmp_path):
    data = text_of(pd.DataFrame(np.tile(X, (50, 1)), columns=list("abcd")), index=False).encode()
    packed = PACKING[end](data)
    for content, name in [(packed, f"x.csv.{end}"), (data, f"x.csv.{end}"), (packed, "x.csv")]:
        rows = read(content, name=name)
        np.testing.assert_array_equal(read_all(rows), np.tile(X, (50, 1)))
    if end not in ("zst", "zip"):
        # As parallel packers write them, and appending does.
        halves = PACKING[end](data[:5_000]) + PACKING[end](data[5_000:])
        assert read(halves, name=f"x.csv.{end}").n_rows == 3_000
    with pytest.raises(DataError, match=r"cannot be read|is not a table"):
        read(packed[: len(packed) // 2], name=f"x.csv.{end}")
    assert not (tmp_path / "half.zarr").exists()


# --- columns of nothing


@pytest.mark.parametrize(
    "text", [text_of(), "a,b\n1,2,\n3,4,\n", "a,b,\n1,2,\n3,4,\n", '"a" "b"\n"r1" 1 2\n"r2" 3 4\n']
)
def test_columns_without_a_name_are_refused(text, read):
    with pytest.raises(DataError, match="name"):
        read(text)


def test_columns_without_a_name_are_taken_where_they_are_asked_for(read):
    assert read(text_of(), drop="Unnamed: 0").shape == X.shape
    assert read("a,b,\n1,2,\n3,4,\n", columns=["a", "b"]).feature_names == ("a", "b")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_without_a_number_is_named(suffix, tmp_path):
    frame = pd.DataFrame({"a": X[:, 0], "size": np.nan, "b": X[:, 1], "full": np.inf})
    path = tmp_path / f"x{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    rows = quiet(path, tmp_path / "x.zarr", chunk_rows=20, shuffle=1)
    for data in (rows, frame):
        with pytest.raises(BadRowsError, match=r"row 0 .*columns 'size', 'full'\)"):
            lk.KMeans(2).fit(data)
        with pytest.raises(DataError, match=r"all 60 rows .*columns 'size', 'full': no number in"):
            lk.KMeans(2, on_bad_rows="skip").fit(data)
