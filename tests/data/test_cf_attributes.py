"""Numbers under CF attributes are those that xarray reads, in every format and on every path."""

from __future__ import annotations

import pickle
import warnings

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import largek_dask as lk
from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows, read_integers
from largek_dask.errors import BadRowsError, DataError
from largek_dask.kernels.exact.statistics import Statistics
from tests.data.helpers import read_all

RAW = np.random.default_rng(0).integers(-100, 100, (300, 3))
FILL = 9.969209968386869e36


def raw_of(dtype, *fills):
    raw = RAW.astype(dtype)
    for place, fill in enumerate(fills):
        raw[place::7, 1] = fill
    return raw


f4, f8, i2 = np.float32, np.float64, np.int16
CASES = {
    "int16": (raw_of("i2", -9999), {"_FillValue": i2(-9999)}),
    "int32": (raw_of("i4", -9999), {"_FillValue": np.int32(-9999)}),
    "uint8": (raw_of("u1", 255), {"_FillValue": np.uint8(255)}),
    "float32": (raw_of("f4", -9999), {"_FillValue": f4(-9999)}),
    "netCDF's own": (raw_of("f4", FILL), {"_FillValue": f4(FILL)}),
    "float64": (raw_of("f8", 1e20), {"missing_value": f8(1e20)}),
    "float16": (raw_of("f2", -99), {"missing_value": np.float16(-99)}),
    "two": (raw_of("i2", -9999, -1), {"_FillValue": i2(-9999), "missing_value": i2(-1)}),
    "several": (raw_of("i2", -9999, -8888), {"missing_value": np.array([-9999, -8888], "i2")}),
    "packed": (raw_of("i2", -9999), {"_FillValue": i2(-9999), "scale_factor": 0.01}),
    "float32 packs": (raw_of("i2", -99), {"_FillValue": i2(-99), "scale_factor": f4(0.1)}),
    "both": (raw_of("i2"), {"scale_factor": f4(0.1), "add_offset": f4(273.15)}),
    "both of int32": (raw_of("i4"), {"scale_factor": f4(0.1), "add_offset": f4(273.15)}),
    "offset": (raw_of("u1"), {"add_offset": f4(5)}),
    "floats packed": (raw_of("f4", np.nan), {"_FillValue": f4(np.nan), "scale_factor": 2.5}),
    "unsigned": (raw_of("i1", -1), {"_Unsigned": "true", "_FillValue": np.int8(-1)}),
    "unsigned only": (raw_of("i1"), {"_Unsigned": "true"}),
    "unsigned, packed": (
        raw_of("i2", -1),
        {"_Unsigned": "true", "_FillValue": i2(-1), "scale_factor": 0.5, "add_offset": 3.0},
    ),
    "never there": (raw_of("u1"), {"missing_value": -9999}),
    "valid": (raw_of("f4", 99), {"valid_min": f4(0), "valid_max": f4(5), "valid_range": [0, 5]}),
    "none": (raw_of("i2", -9999), {"units": "m"}),
}


def expected_of(raw, attributes):
    """What xarray reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xr.SerializationWarning)
        data = xr.Dataset({"v": (("pixel", "band"), raw, attributes)})
        return xr.decode_cf(data)["v"].values


def plain_of(attributes):
    """As they stand in JSON."""
    plain = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in attributes.items()}
    return {k: "NaN" if v != v else v for k, v in plain.items()}


def write_zarr(path, raw, attributes, zarr_format, **options):
    plain = plain_of(attributes)
    zarr.create_array(
        path, data=raw, zarr_format=zarr_format, attributes=plain, chunks=(100, 3), **options
    )
    return path


def rows_of(kind, path, raw, attributes):
    """Rows under these attributes, and the numbers that xarray reads there."""
    expected = expected_of(raw, attributes)
    if kind in ("little", "big"):
        # netCDF writes each attribute as an array of one number, and text as bytes.
        with h5py.File(path / "x.nc", "w") as file:
            file["v"] = raw.astype(raw.dtype.newbyteorder(kind))
            for key, value in attributes.items():
                text = isinstance(value, str)
                file["v"].attrs[key] = value.encode() if text else np.atleast_1d(value)
        rows = ingest(path / "x.nc", path / "out.zarr", chunk_rows=100, progress=False)
        with h5py.File(path / "x.nc") as file:
            np.testing.assert_array_equal(read_all(open_rows(file["v"])), expected)
    elif kind in ("memory", "dask"):
        data = xr.DataArray(raw, dims=("pixel", "band"), attrs=attributes)
        return open_rows(data.chunk({"pixel": 100}) if kind == "dask" else data), expected
    else:
        rows = open_rows(write_zarr(path / "x.zarr", raw, attributes, int(kind[1])))
        assert (rows._direct is not None) == (kind == "v3")
        plain = plain_of(attributes)
        if raw.dtype.kind == "f" and plain.get("_FillValue") == "NaN":
            plain["_FillValue"] = np.nan
        expected = expected_of(raw, plain)
    assert rows.n_chunks == 3
    return rows, expected


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize("kind", ["little", "big", "v2", "v3", "memory", "dask"])
def test_rows_are_those_that_xarray_reads(kind, tmp_path, chunks_as_stored):
    n_missing = 0
    for name, (raw, attributes) in CASES.items():
        (tmp_path / name).mkdir()
        rows, expected = rows_of(kind, tmp_path / name, raw, attributes)
        found = read_all(rows)
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)
        n_missing += np.isnan(found).any()
        first, stop = rows.chunk_table[-2:]
        some = rows.read_part(rows.n_chunks - 1, 3, 9)
        np.testing.assert_array_equal(some, found[first:stop][3:9])
    assert n_missing > 10


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "encoding",
    [
        {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999},
        {"dtype": "uint8", "_FillValue": 255, "scale_factor": 0.05, "add_offset": -3.0},
        {"dtype": "float32", "_FillValue": -9999.0},
        {"dtype": "float64", "_FillValue": FILL},
        {"dtype": "float32"},
    ],
)
def test_stores_of_xarray(zarr_format, encoding, tmp_path):
    x = np.round(np.random.default_rng(0).normal(size=(300, 3)), 2)
    x[::7, 1] = np.nan
    data = xr.Dataset({"v": (("pixel", "band"), x)})
    options = {"zarr_format": zarr_format, "consolidated": False}
    data.to_zarr(tmp_path / "x.zarr", encoding={"v": encoding}, **options)
    expected = xr.open_zarr(tmp_path / "x.zarr", consolidated=False)["v"]
    assert np.isnan(expected.values[::7, 1]).all()
    rows = open_rows(tmp_path / "x.zarr", component="v")
    assert rows.dtype == expected.dtype
    np.testing.assert_array_equal(read_all(rows), expected.values)
    np.testing.assert_array_equal(read_all(pickle.loads(pickle.dumps(rows))), expected.values)
    # What is in memory is decoded already.
    np.testing.assert_array_equal(read_all(open_rows(expected)), expected.values)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_fill_value_of_zarr_alone_hides_nothing(zarr_format, tmp_path):
    x = raw_of("i4", 0)
    zarr.create_array(tmp_path / "x.zarr", data=x, fill_value=0, zarr_format=zarr_format)
    rows = open_rows(tmp_path / "x.zarr")
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(read_all(rows), x)


def test_chunks_that_are_not_stored_are_missing(tmp_path, chunks_as_stored):
    raw, attributes = CASES["packed"]
    options = {"fill_value": -9999, "compressors": None}
    path = write_zarr(tmp_path / "x.zarr", raw, attributes, 3, **options)
    (path / "c" / "1" / "0").unlink()
    rows = open_rows(path, count_missing=False)
    assert rows.n_chunks == 3
    assert rows._direct is not None
    assert np.isnan(rows.read(1)).all()


def test_fits_refuse_missing_rows_by_name_or_skip_them(tmp_path):
    raw, attributes = CASES["packed"]
    path = write_zarr(tmp_path / "x.zarr", raw, attributes, 3)
    with pytest.raises(BadRowsError, match=r"row 0 .*column 1, .* -9999 stands for a missing num"):
        lk.KMeans(3).fit(path)
    km = lk.KMeans(3, on_bad_rows="skip", random_state=0).fit(path)
    assert ((km.labels_ == -1) == (np.arange(300) % 7 == 0)).all()
    assert np.abs(km.cluster_centers_).max() <= 1


def test_statistics_of_other_numbers_do_not_count(tmp_path):
    ingest(raw_of("f4", -9999), tmp_path / "x.zarr", progress=False)
    zarr.open_array(tmp_path / "x.zarr").update_attributes({"_FillValue": -9999})
    rows = open_rows(tmp_path / "x.zarr")
    assert np.isnan(rows.read(0)[0, 1])
    assert rows.stored_statistics() is None
    # Written once more, they are of the numbers that are meant.
    again = ingest(rows, tmp_path / "again.zarr", progress=False)
    found = Statistics.from_dict(again.stored_statistics())
    assert found.n_bad == np.isnan(rows.read(0)).any(axis=1).sum() > 0
    before = open_rows(raw_of("f4", -9999)).fingerprint()["content"]
    assert rows.fingerprint()["content"] != before


def test_weights_are_decoded_and_labels_have_to_be_plain(tmp_path):
    raw, attributes = raw_of("i2", -9999)[:, 1], {"_FillValue": -9999, "scale_factor": 0.01}
    zarr.create_array(tmp_path / "x.zarr", data=raw, attributes=attributes)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["v"] = raw
        file["v"].attrs.update(attributes)
        for weight in (tmp_path / "x.zarr", file["v"]):
            rows = open_rows(RAW, sample_weight=weight)
            with pytest.raises(DataError, match="sample_weight of row 0 is nan"):
                rows.read_weight(0)
    with pytest.raises(DataError, match=r"labels .*stand for missing .*_FillValue"):
        read_integers(tmp_path / "x.zarr", 300, what="labels")


@pytest.mark.parametrize(
    "attributes",
    [{"scale_factor": "half"}, {"add_offset": [1.0, 2.0]}, {"_FillValue": "nothing"}],
)
def test_attributes_that_are_no_numbers_are_refused(attributes, tmp_path):
    write_zarr(tmp_path / "x.zarr", RAW, {}, 3)
    zarr.open_array(tmp_path / "x.zarr").update_attributes(attributes)
    with pytest.raises(DataError, match=next(iter(attributes))):
        open_rows(tmp_path / "x.zarr")


def test_sparse_groups_that_are_packed_are_refused(tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", attributes={"shape": [1, 2]})
    group.create_array("data", data=np.array([1.0]), attributes={"scale_factor": 2.0})
    group.create_array("indices", data=np.array([1]))
    group.create_array("indptr", data=np.array([0, 1]))
    with pytest.raises(DataError, match=r"packed numbers, .*scale_factor"):
        open_rows(tmp_path / "x.zarr")
