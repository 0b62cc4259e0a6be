"""Arrays of xarray that are no tables: what is said makes one of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr

from largek_dask import KMeans
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError
from tests.data.helpers import read_all

VALUES = np.arange(60.0).reshape(3, 4, 5)


def advice(source, **names):
    """What is said of something, in open_rows and in a fit, and the arrays that its code makes."""
    with pytest.raises(DataError) as caught:
        open_rows(source)
    with pytest.raises(DataError) as again:
        KMeans(2).fit(source)
    message = str(again.value)
    assert message == str(caught.value)
    made = [
        eval(code, names) for code in re.findall(r"\b(?:array|dataset)\.\S.*?\)(?= for)", message)
    ]
    assert made, message
    return message, made


@pytest.mark.parametrize("chunks", [None, {}, {"y": 2}])
@pytest.mark.parametrize("dims", [("band", "y", "x"), ("y", "x", "band"), ("x", "time", "y")])
def test_images_of_bands(dims, chunks):
    array = xr.DataArray(VALUES, dims=dims)
    array = array if chunks is None else array.chunk(chunks)
    feature = next(dim for dim in dims if dim in ("band", "time"))
    _, (pixels, images) = advice(array, array=array)
    assert read_all(open_rows(images)).tolist() == VALUES.reshape(3, -1).tolist()
    expected = np.moveaxis(VALUES, dims.index(feature), -1).reshape(-1, array.sizes[feature])
    np.testing.assert_array_equal(read_all(open_rows(pixels)), expected)
    assert open_rows(pixels).feature_names is None


def test_dimensions_that_are_called_as_the_advice_calls_its_own():
    array = xr.DataArray(VALUES, dims=("row", "y", "feature"))
    _, (pixels, images) = advice(array, array=array)
    assert read_all(open_rows(pixels)).shape == (12, 5)
    assert read_all(open_rows(images)).shape == (3, 20)


def test_names_of_bands_are_kept():
    array = xr.DataArray(VALUES, dims=("band", "y", "x"), coords={"band": ["r", "g", "b"]})
    _, (pixels, _) = advice(array, array=array)
    assert open_rows(pixels).feature_names == ("r", "g", "b")


def test_one_dimension():
    array = xr.DataArray(VALUES[0, 0])
    _, (table,) = advice(array, array=array)
    assert open_rows(table).shape == (5, 1)


@pytest.mark.parametrize("values", [VALUES[0, 0], VALUES[0], VALUES])
def test_a_dataset_of_arrays_of_one_shape(values):
    dims = ("t", "y", "x")[: values.ndim]
    dataset = xr.Dataset({"a": (dims, values), "b": (dims, -values)})
    message, (table,) = advice(dataset, dataset=dataset)
    assert ("pass component= one of a, b" in message) == (values.ndim == 2)
    rows = open_rows(table)
    assert rows.feature_names == ("a", "b")
    np.testing.assert_array_equal(read_all(rows), [[v, -v] for v in values.ravel()])


def test_a_dataset_of_arrays_of_several_shapes():
    dataset = xr.Dataset({"a": (("y", "x"), VALUES[0]), "b": ("t", VALUES[0, 0])})
    with pytest.raises(DataError, match=r"pass component= one of a\.$"):
        open_rows(dataset)
    np.testing.assert_array_equal(read_all(open_rows(dataset, component="a")), VALUES[0])
    with pytest.raises(DataError, match=r"no array 'c'; pass component= one of 'a', 'b'"):
        open_rows(dataset, component="c")
    with pytest.raises(DataError, match=r"one dimension \('t',\)"):
        open_rows(dataset, component="b")
    with pytest.raises(DataError, match="pass component= the name of one"):
        open_rows(dataset.drop_dims("x").assign(c=("u", [1.0])))
