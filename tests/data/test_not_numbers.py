"""Columns that are not numbers are named, with their types and values; leaving them out works."""

from __future__ import annotations

import re
from decimal import Decimal

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from largek_dask import KMeans
from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError
from tests.data.helpers import read_all

N = 40
FRAME = pd.DataFrame(
    {
        "x": np.linspace(0, 1, N) ** 2,
        "city": ["Paris", None, "Rome", "Rome"] * (N // 4),
        "price": ["1.5", "2"] * (N // 2),
        "day": pd.Timestamp("2020-01-01"),
        "rows": [[1.0, 2.0]] * N,
    }
)
TEXTS = ["city", "price", "day", "rows"]


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pl.DataFrame, pa.table, lambda f: dd.from_pandas(f, npartitions=2), None]
)
def test_all_columns_are_named_and_can_be_left_out(make, tmp_path):
    if make is None:
        source = tmp_path / "x.parquet"
        pq.write_table(pa.table(FRAME), source)
    else:
        source = make(FRAME[["x", "city"]] if make.__name__ == "<lambda>" else FRAME)
        with pytest.raises(DataError) as opened:
            open_rows(source)
        with pytest.raises(DataError) as fitted:
            KMeans(2).fit(source)
        assert str(fitted.value) == str(opened.value)
    with pytest.raises(DataError) as caught:
        ingest(source, tmp_path / "x.zarr", progress=False)
    drop = eval(re.search(r"ingest\(\.\.\., drop=(\[.*?\])\)", str(caught.value))[1])
    assert drop == (["city"] if isinstance(source, dd.DataFrame) else TEXTS)
    rows = ingest(source, tmp_path / "x.zarr", drop=drop, progress=False)
    np.testing.assert_array_equal(read_all(rows), FRAME[["x"]])


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (["a"] * 30, "'a' in row 0"),
        ([None] * 30, "'c' (object). "),
        ([None, "1", "b"], "'b' in row 2"),
        ([Decimal(1), None], "'c' (object). "),
        (np.ones(3, complex), "'c' (complex128) with (1+0j) in row 0"),
        (pd.to_timedelta([1, 2], unit="D"), "'c' (timedelta64"),
        (pd.period_range("2020", periods=3, freq="D"), "'c' (period[D])"),
        ([np.ones(2), None], "[1. 1.] in row 0"),
        (["x" * 100] * 3, f"with {'x' * 39!r}"[:-1] + "... in row 0"),
    ],
)
def test_the_first_value_that_is_no_number_is_shown(column, said):
    with pytest.raises(DataError) as caught:
        open_rows(pd.DataFrame({"c": pd.Series(column), "x": np.ones(len(column))}))
    assert said in str(caught.value)
