from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.dense import copying
from largek_dask.kernels.dense.copying import copy_rows
from tests.helpers.covering import in_turns

DTYPES = ["bool", "uint8", "float16", "int16", "float32", "float64", "int64"]


@pytest.mark.parametrize(
    ("dtype", "layout", "d"), in_turns(DTYPES, ["C", "F", "every second"], [1, 3, 40])
)
def test_rows_are_copied_as_they_are(dtype, layout, d):
    r = np.random.default_rng(d)
    x = (r.normal(size=(400, d)) * 50).astype(dtype)
    if dtype.startswith("float"):
        x[7], x[8] = np.nan, -0.0
    x = {"C": x, "F": np.asfortranarray(x), "every second": x[::2]}[layout]
    assert x.flags.c_contiguous == (layout == "C" or (layout == "F" and d == 1))
    places = np.concatenate([[0, 7, 8, len(x) - 1], r.integers(len(x), size=90)])
    assert len(places) > copying._ROWS_AHEAD
    room = np.full((100, d), 1, x.dtype)
    copy_rows(x, places, room[:94])
    assert room[:94].tobytes() == x[places].tobytes()
    assert (room[94:] == 1).all()


def test_of_wide_rows_few_are_asked_for_and_of_none_nothing():
    x = np.random.default_rng(0).normal(size=(5, 2_000))
    assert x[0].nbytes > copying._BYTES_AHEAD
    out = np.empty_like(x)
    copy_rows(x, np.arange(5)[::-1], out)
    assert (out == x[::-1]).all()
    copy_rows(x, np.empty(0, np.int64), out[:0])
    copy_rows(x[:, :0], np.arange(5), np.empty((5, 0)))
