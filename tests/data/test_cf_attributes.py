"""Arrays encoded by CF attributes are refused; what xarray decodes is read."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows, read_integers
from largek_dask.errors import DataError
from tests.data.helpers import read_all

RAW = np.random.default_rng(0).integers(-100, 100, (300, 3)).astype("i2")
ENCODED = [
    {"_FillValue": -9999},
    {"missing_value": [-9999, -8888]},
    {"scale_factor": 0.01},
    {"add_offset": 273.15, "_FillValue": "NaN"},
    {"_Unsigned": "true"},
    {"_FillValue": "nothing"},
]


@pytest.mark.parametrize("attributes", ENCODED)
def test_encoded_numbers_are_refused(attributes, tmp_path):
    message = rf"placeholders for missing values.*{next(iter(attributes))}=.*xarray\.open_zarr"
    for zarr_format in (2, 3):
        path = tmp_path / f"v{zarr_format}.zarr"
        zarr.create_array(path, data=RAW, attributes=attributes, zarr_format=zarr_format)
        with pytest.raises(DataError, match=message):
            open_rows(path)
    with pytest.raises(DataError, match=message):
        open_rows(xr.DataArray(RAW, dims=("row", "f"), attrs=attributes))
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["v"] = RAW
        for name, value in attributes.items():
            # netCDF writes each attribute as an array of one number.
            file["v"].attrs[name] = value if isinstance(value, str) else np.atleast_1d(value)
    with pytest.raises(DataError, match=message):
        ingest(tmp_path / "x.nc", tmp_path / "out.zarr", progress=False)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("encoding", "is_plain"),
    [
        ({"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}, False),
        ({"dtype": "float32", "_FillValue": -9999.0}, False),
        ({"dtype": "float32"}, True),
        ({"dtype": "float64"}, True),
    ],
)
def test_stores_of_xarray(zarr_format, encoding, is_plain, tmp_path):
    x = np.round(np.random.default_rng(0).normal(size=(300, 3)), 2)
    x[::7, 1] = np.nan
    data = xr.Dataset({"v": (("pixel", "band"), x)})
    options = {"zarr_format": zarr_format, "consolidated": False}
    data.to_zarr(tmp_path / "x.zarr", encoding={"v": encoding}, **options)
    decoded = xr.open_zarr(tmp_path / "x.zarr", consolidated=False)["v"]
    assert np.isnan(decoded.values[::7, 1]).all()
    np.testing.assert_array_equal(read_all(open_rows(decoded)), decoded.values)
    if is_plain:
        found = read_all(open_rows(tmp_path / "x.zarr", column="v"))
        np.testing.assert_array_equal(found, decoded.values)
    else:
        with pytest.raises(DataError, match="_FillValue="):
            open_rows(tmp_path / "x.zarr", column="v")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_fill_value_of_zarr_alone_hides_nothing(zarr_format, tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=RAW, fill_value=0, zarr_format=zarr_format)
    np.testing.assert_array_equal(read_all(open_rows(tmp_path / "x.zarr")), RAW)
    # xarray's own arrays are those with names of dimensions.
    zarr.open_array(tmp_path / "x.zarr").update_attributes({"_ARRAY_DIMENSIONS": ["a", "b"]})
    if zarr_format == 2:
        with pytest.raises(DataError, match="_FillValue=0"):
            open_rows(tmp_path / "x.zarr")


def test_weights_labels_and_sparse_groups_have_to_be_plain(tmp_path):
    attributes = {"_FillValue": -9999, "scale_factor": 0.01}
    zarr.create_array(tmp_path / "x.zarr", data=RAW[:, 1], attributes=attributes)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["v"] = RAW[:, 1]
        file["v"].attrs.update(attributes)
        for weight in (tmp_path / "x.zarr", file["v"]):
            with pytest.raises(DataError, match=r"sample_weight.* packed numbers"):
                open_rows(RAW, sample_weight=weight)
    with pytest.raises(DataError, match=r"labels .*packed numbers"):
        read_integers(tmp_path / "x.zarr", 300, what="labels")
    group = zarr.open_group(tmp_path / "csr.zarr", mode="w", attributes={"shape": [1, 2]})
    group.create_array("data", data=np.array([1.0]), attributes={"scale_factor": 2.0})
    group.create_array("indices", data=np.array([1]))
    group.create_array("indptr", data=np.array([0, 1]))
    with pytest.raises(DataError, match=r"packed numbers .*scale_factor"):
        open_rows(tmp_path / "csr.zarr")
