"""What is said of columns that are not numbers: each piece of advice is followed, and works."""

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
        "customer_id": np.random.default_rng(0).permutation(N),
        "n": np.arange(N) + 5,
        "x": np.linspace(0, 1, N) ** 2,
        "city": ["Paris", None, "Rome", "Rome"] * (N // 4),
        "code": [f"k{i}" for i in range(N)],
        "price": ["1.5", "2"] * (N // 2),
        "day": pd.Timestamp("2020-01-01"),
        "rows": [[1.0, 2.0]] * N,
    }
)
TEXTS = ["city", "code", "price", "day", "rows"]


def refusal(source):
    """What is said, in open_rows and in a fit alike."""
    with pytest.raises(DataError) as caught:
        open_rows(source)
    with pytest.raises(DataError) as again:
        KMeans(2).fit(source)
    assert str(again.value) == str(caught.value)
    return str(caught.value)


def followed(message, pattern, **names):
    """The value of the code in a message that a pattern finds."""
    found = re.search(pattern, message)
    assert found is not None, message
    return eval(found[0], {"pandas": pd, "polars": pl, "np": np, **names})


def assert_rows(source):
    rows = open_rows(source)
    assert rows.n_rows == N
    return read_all(rows)


DROPPED = FRAME.drop(columns=TEXTS).to_numpy()
ENCODED = pd.get_dummies(FRAME["city"]).to_numpy().sum(axis=0)


def test_pandas():
    message = refusal(FRAME)
    assert "'city' (str) with 'Paris' in row 0" in message.replace("(object)", "(str)")
    assert "'rows' (object) with a list in row 0" in message
    assert "leave out 'code', 'customer_id', 'n' if that is what they are" in message
    assert "largek ingest" not in message
    for pattern in (r"df\.drop\(columns=.*?\]\)", r"df\.select_dtypes\(.*?\]\)"):
        np.testing.assert_array_equal(assert_rows(followed(message, pattern, df=FRAME)), DROPPED)
    encoded = followed(message, r"pandas\.get_dummies\(df, columns=.*?\]\)", df=FRAME)
    assert encoded.filter(like="city_").sum().tolist() == ENCODED.tolist()
    floats = followed(message, r"df\.astype\(.*?\}\)", df=FRAME)
    assert floats["price"].tolist() == [1.5, 2.0] * (N // 2)
    assert_rows(followed(message, r"np\.stack\(list\(df\[.*?\]\)\)", df=FRAME))


def test_polars():
    frame = pl.DataFrame(FRAME)
    message = refusal(frame)
    assert "'city' (String) with 'Paris' in row 0" in message
    for pattern in (r"df\.drop\(.*?\]\)", r"df\.select\(.*?\(\)\)"):
        np.testing.assert_array_equal(assert_rows(followed(message, pattern, df=frame)), DROPPED)
    followed(message, r"df\.to_dummies\(.*?\]\)", df=frame)
    floats = followed(message, r"df\.with_columns\(.*?Float64\)\)", df=frame)
    assert floats["price"].to_list() == [1.5, 2.0] * (N // 2)
    assert_rows(followed(message, r"np\.stack\(list\(df\[.*?\]\)\)", df=frame))


def test_arrow():
    table = pa.table(FRAME)
    message = refusal(table)
    assert "leave out 'code', 'customer_id', 'n' if" in message
    np.testing.assert_array_equal(
        assert_rows(followed(message, r"table\.drop_columns\(.*?\]\)", table=table)), DROPPED
    )
    followed(message, r"pandas\.get_dummies\(.*?\]\)", table=table)
    assert_rows(followed(message, r"np\.stack\(table.*?pylist\(\)\)", table=table))


def test_dask():
    lazy = dd.from_pandas(FRAME[["customer_id", "x", "city"]], npartitions=2)
    message = refusal(lazy)
    assert "leave out 'customer_id' if that is what it is" in message
    for pattern in (r"df\.drop\(columns=.*?\]\)", r"df\.select_dtypes\(.*?\]\)"):
        assert_rows(followed(message, pattern, df=lazy))
    import dask

    assert_rows(followed(message, r"dask\.data.*?\]\)(?:, columns=.*?\]\))", df=lazy, dask=dask))


def test_a_dict_of_arrays():
    data = {"id": np.arange(N), "x": np.ones(N), "city": FRAME["city"].fillna("Oslo").to_list()}
    message = refusal(data)
    assert "leave out 'id' if that is what it is" in message
    assert_rows(followed(message, r"pandas\.DataFrame\(data\)\.drop\(.*?\]\)", data=data))


def test_lists_in_a_file(tmp_path):
    pq.write_table(pa.table({"e": FRAME["rows"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"largek ingest --drop e .*np\.stack\(") as caught:
        ingest(tmp_path / "x.parquet", tmp_path / "x.zarr", progress=False)
    file = tmp_path / "x.parquet"
    assert_rows(followed(str(caught.value), r"np\.stack\(.*?\]\)", file=file))


@pytest.mark.parametrize(
    ("column", "said", "unsaid"),
    [
        (["a"] * 30, "get_dummies", "Ids"),
        ([f"a{i}" for i in range(30)], "leave out 'c' if that is what it is", "get_dummies"),
        ([None] * 30, "'c' (object)", "encode"),
        ([Decimal(1), None], "df.astype({'c': 'float'})", "get_dummies"),
        (np.ones(3, complex), "a column for each part", "select_dtypes"),
        (pd.to_timedelta([1, 2], unit="D"), "the days since the first one", "select_dtypes"),
        (pd.period_range("2020", periods=3, freq="D"), "the days since", "get_dummies"),
        ([np.ones(2), None], "np.stack(list(df['c']))", "get_dummies"),
        (["x" * 100] * 3, f"with {'x' * 39!r}"[:-1] + "... in row 0", "Ids"),
    ],
    ids=["text", "ids", "nothing", "decimals", "complex", "spans", "periods", "arrays", "long"],
)
def test_advice_is_for_what_a_column_holds(column, said, unsaid):
    message = refusal(pd.DataFrame({"c": pd.Series(column), "x": np.ones(len(column))}))
    assert said in message
    assert unsaid not in message


@pytest.mark.parametrize("name", ["id", "ID", "user_id", "userId", "row.ids", "uuid", "Cust ID"])
def test_ids_by_their_names(name):
    frame = pd.DataFrame({name: [3, 1], "text": ["a", "a"]})
    assert f"leave out {name!r} if" in refusal(frame)
    # numbers alone are taken
    assert open_rows(frame[[name]]).n_rows == 2


@pytest.mark.parametrize("name", ["idle", "width", "valid", "paid", "Madrid", "n"])
def test_other_names_are_no_ids(name):
    assert "Ids" not in refusal(pd.DataFrame({name: [3, 1], "text": ["a", "a"]}))
