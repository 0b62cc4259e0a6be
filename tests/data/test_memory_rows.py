"""Arrays, ``.npy`` files, sparse matrices and DataFrames as rows."""

from __future__ import annotations

import io
import pickle
import re
import tracemalloc

import dask
import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from largek_dask import KMeans
from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, ParameterError
from tests.data.helpers import read_all
from tests.helpers.covering import in_turns


def test_open_rows__numpy_is_not_copied(x):
    rows = open_rows(x)
    assert np.shares_memory(rows.read(0), x)
    assert rows.location is None
    assert (rows.shape, rows.nbytes) == ((1_000, 7), x.nbytes)
    np.testing.assert_array_equal(read_all(rows), x)
    # the caller's own array stays writable
    assert x.flags.writeable


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "f8", ">f4", ">i8", "u1", "i2", "u2", "i4", "u8", "?"]
)
def test_open_rows__keeps_the_stored_type_in_native_order(x, dtype):
    source = (x > 0 if dtype == "?" else np.abs(x * 10)).astype(dtype)
    rows = open_rows(source)
    expected = np.dtype(np.uint8) if dtype == "?" else source.dtype.newbyteorder("=")
    assert rows.dtype == expected
    np.testing.assert_array_equal(read_all(rows), source)


def test_open_rows__npy_is_mapped_and_pickles_as_its_path(x, tmp_path):
    big = np.tile(x, (100, 1))
    for name, source in (("c.npy", big), ("f.npy", np.asfortranarray(big))):
        np.save(tmp_path / name, source)
        rows = open_rows(tmp_path / name, sample_weight=np.arange(len(big)))
        assert rows.location == str(tmp_path / name)
        packed = pickle.dumps(rows.with_weight(None))
        assert len(packed) < 2_000
        again = pickle.loads(pickle.dumps(rows))
        assert again.chunk_table.tolist() == rows.chunk_table.tolist()
        np.testing.assert_array_equal(again.read_weight(0), rows.read_weight(0))
        np.testing.assert_array_equal(read_all(again), big)


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_open_rows__sparse(format):
    matrix = sp.random(3_000, 40, density=0.1, format=format, random_state=1)
    rows = open_rows(matrix)
    assert rows.n_chunks == 1
    np.testing.assert_array_equal(read_all(rows), matrix.toarray())


def test_open_rows__dataframe(x):
    frame = pd.DataFrame(x).assign(n=np.arange(len(x)), flag=x[:, 0] > 0)
    rows = open_rows(frame)
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(read_all(rows), frame.to_numpy(np.float64))
    nullable = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(read_all(open_rows(nullable)), [[1, 1], [np.nan, 2], [3, 3]])


def test_read_weight__is_float64_and_cut_like_the_rows(x):
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}):
        rows = open_rows(np.tile(x, (3, 1)), sample_weight=np.arange(3_000, dtype=np.int32))
    parts = [rows.read_weight(i) for i in range(rows.n_chunks)]
    assert len(parts) == 3
    assert parts[0].dtype == np.float64
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(3_000))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_read_weight__names_the_row_of_a_bad_weight(x, bad):
    weight = np.ones(1_000)
    weight[17] = bad
    with pytest.raises(DataError, match=rf"sample_weight of row 17 is {bad}.*chunk 0"):
        open_rows(x, sample_weight=weight).read_weight(0)


class OnDevice:
    """An array that numpy cannot read, such as one on a GPU."""

    def __array__(self, *args, **options):
        raise TypeError("Use Tensor.cpu() to copy it first")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros(5), r"1 dimensions \(shape \(5,\)\).*reshape\(-1, 1\)"),
        (np.zeros((2, 3, 4)), r"3 dimensions \(shape \(2, 3, 4\)\).*reshape\(len\(x\), -1\)"),
        (np.float32(3), r"0 dimensions"),
        (np.zeros((0, 4)), r"no rows \(shape \(0, 4\)\)"),
        (np.zeros((4, 0)), r"no columns \(shape \(4, 0\)\)"),
        (np.zeros((4, 2), complex), r"complex128.*real and imaginary parts as columns"),
        (np.array([[1, "a"]], object), r"object.*astype\(float\)"),
        (np.array([["a", "b"]]), r"<U1.*text"),
        (np.zeros((3, 2), "M8[s]"), r"dates"),
        (np.zeros((3, 2), [("a", "f4")]), r"named fields"),
        ([[1, 2], [3]], r"converted to an array of numbers"),
        (object(), r"object cannot be opened as rows"),
        (np.ma.masked_array(np.zeros((3, 2)), mask=True), r"masked array"),
        (pd.DataFrame({"a": [1.0], "city": ["Paris"]}), r"a column that is not numbers: 'city' \("),
        (pd.DataFrame({"a": ["x"]}, dtype=object), r"not numbers: 'a' \(object\)"),
        (np.zeros(3, [("a", "f4"), ("b", "f4")]), r"named fields.*structured_to_unstructured\(x\)"),
        (np.zeros((3, 2), "m8[s]"), r"time spans"),
        (np.zeros((3, 2), "V2"), r"bfloat16, use x\.view\(ml_dtypes\.bfloat16\)"),
        ([[1.0, None]], r"object.*astype\(float\)"),
        (dask.delayed(np.ones((3, 2))), r"Delayed.* cannot be opened as rows"),
        (iter([np.ones((3, 2))]), r"list_iterator cannot be opened as rows"),
        (io.BytesIO(b"1,2"), r"BytesIO cannot be opened as rows.* URL"),
        (OnDevice(), r"converted to an array of numbers: TypeError: Use Tensor\.cpu\(\)"),
        ("", r"the address '' is empty"),
        (" ", r"the address ' ' is empty"),
        (sp.csr_matrix(np.zeros((2, 2), complex)), r"complex128"),
    ],
)
def test_open_rows__says_what_is_wrong_with_a_table(source, message):
    with pytest.raises(DataError, match=message) as caught:
        open_rows(source)
    with pytest.raises(ValueError) as again:
        KMeans(1).fit(source)
    # of plain arrays scikit-learn has its own words
    if not re.search(r"no rows|no columns|objects|object\.\*|1 dimensions", message):
        assert str(again.value) == str(caught.value)


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "uint2"])
def test_types_that_are_added_to_numpy_are_read_as_float32(kind, tmp_path):
    import ml_dtypes as added

    x = np.array([[0, 1], [1, 0], [1, 1], [0, 0]] * 300).astype(getattr(added, kind))
    for source in (x, da.from_array(x, chunks=(400, 2)), x[:, ::-1]):
        rows = open_rows(source, sample_weight=x[:, 0])
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(read_all(rows), np.asarray(source).astype(np.float32))
        np.testing.assert_array_equal(rows.read_weight(0), x[: len(rows.read(0)), 0].astype(float))
    model = KMeans(4, random_state=0, max_iter=3).fit(x)
    assert model.n_features_in_ == 2
    np.testing.assert_array_equal(
        model.labels_, KMeans(4, random_state=0, max_iter=3).fit(x.astype("f4")).labels_
    )
    with pytest.raises(ParameterError, match="X has 1 features, but KMeans is expecting 2"):
        model.predict(x[:, :1])
    stored = ingest(x, tmp_path / "x.zarr", progress=False)
    np.testing.assert_array_equal(read_all(stored), x.astype(np.float32))


def test_open_rows__damaged_numpy_files_are_named(x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-100])
    (tmp_path / "noise.npy").write_bytes(b"not numpy at all")
    np.save(tmp_path / "objects.npy", np.array([[1, "a"]], object), allow_pickle=True)
    for name, message in [
        ("short.npy", "truncated or not a file of this format"),
        ("noise.npy", "truncated or not a file of this format"),
        ("objects.npy", "Python objects instead of numbers"),
        ("absent.npy", "does not exist"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            open_rows(tmp_path / name)
        assert name in str(caught.value)
        assert "allow_pickle" not in str(caught.value)


def claiming(shape, order="C"):
    """An ``.npy`` file of a hundred numbers whose header has this shape."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": order == "F", "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(800)


@pytest.mark.parametrize(
    ("shape", "order", "place"),
    in_turns(
        [(10**13, 4), (26, 4), (-5, 4), (10**12,), (10**9, 4, 2)], ["C", "F"], ["local", "remote"]
    ),
)
def test_open_rows__a_header_that_claims_more_than_the_file_holds(shape, order, place, tmp_path):
    data, path = claiming(shape, order), str(tmp_path / "x.npy")
    if place == "local":
        (tmp_path / "x.npy").write_bytes(data)
    elif place == "remote":
        path = f"memory://{tmp_path.name}/x.npy"
        with fsspec.open(path, "wb") as file:
            file.write(data)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"x\.npy cannot be read: it is truncated"):
            open_rows(path)
        assert place == "remote" or tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
