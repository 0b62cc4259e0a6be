"""Advice for xarray's arrays that are not tables makes tables of them."""

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


@pytest.mark.parametrize("chunks", [None, {}, {"y": 2}])
@pytest.mark.parametrize("coords", [{}, {"band": ["r", "g", "b"]}])
def test_images_of_bands_are_stacked_as_is_said(coords, chunks):
    array = xr.DataArray(VALUES, dims=("band", "y", "x"), coords=coords)
    array = array if chunks is None else array.chunk(chunks)
    with pytest.raises(DataError) as caught:
        open_rows(array)
    with pytest.raises(DataError) as again:
        KMeans(2).fit(array)
    assert str(again.value) == str(caught.value)
    stack = re.search(r"array\.stack\(.*?\)\)", str(caught.value))[0]
    rows = open_rows(eval(stack, {"array": array}).transpose("row", ...))
    np.testing.assert_array_equal(read_all(rows), VALUES.reshape(3, -1).T)
    assert rows.feature_names == (tuple("rgb") if coords else None)


def test_a_dataset_of_arrays_of_one_shape():
    dataset = xr.Dataset({"a": (("y", "x"), VALUES[0]), "b": (("y", "x"), -VALUES[0])})
    with pytest.raises(DataError, match="Dataset"):
        open_rows(dataset)
    table = dataset.to_dataarray("feature").stack(row=("y", "x")).transpose("row", "feature")
    rows = open_rows(table)
    assert rows.feature_names == ("a", "b")
    np.testing.assert_array_equal(read_all(rows), [[v, -v] for v in VALUES[0].ravel()])
