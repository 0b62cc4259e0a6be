from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from largek_dask.errors import DataError
from largek_dask.kernels import rows as module
from largek_dask.kernels.rows import compute_dtype, finite_rows, native_blocks, normalize_rows

FLOAT32 = ["float16", "float32", "bool", "int8", "uint8", "int16", "uint16"]
FLOAT64 = ["float64", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", FLOAT32 + FLOAT64)
def test_compute_dtype(dtype):
    assert compute_dtype(dtype) == (np.float32 if dtype in FLOAT32 else np.float64)


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "S3", "M8[ns]", "longdouble"])
def test_what_is_no_number_is_refused(dtype):
    with pytest.raises(DataError, match="not a table of numbers"):
        compute_dtype(dtype)


@pytest.mark.parametrize("dtype", FLOAT32 + FLOAT64)
def test_blocks_are_all_rows_in_a_native_type(dtype, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_VALUES", 6)
    x = (np.arange(21).reshape(7, 3) % 5).astype(dtype)
    seen = np.full((7, 3), np.nan)
    for where, block in native_blocks(x):
        assert block.dtype in ("float32", "float64", "uint8", "int16")
        assert block.dtype == x.dtype or dtype == "bool" or block.size <= 6
        assert not block.flags.writeable
        seen[where] = block
    assert (seen == x).all()
    assert all(len(block) == 0 for _, block in native_blocks(x[:0]))


@given(
    st.sampled_from(["float16", "float32", "float64"]).flatmap(lambda dtype: arrays(dtype, (5, 3)))
)
def test_finite_rows(x):
    assert finite_rows(x).tolist() == np.isfinite(x).all(axis=1).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_each_bad_value_is_seen(dtype):
    for bad in (np.nan, np.inf, -np.inf, -np.nan):
        x = np.full((4, 3), np.finfo(dtype).max, dtype)
        x[2, 1] = bad
        assert finite_rows(x).tolist() == [True, True, False, True]


def test_integers_are_finite():
    assert finite_rows(np.full((2, 2), -1, np.int16)).tolist() == [True, True]
    assert finite_rows(np.empty((0, 2), np.float32)).tolist() == []


@given(
    arrays(np.float64, (3, 4), elements=st.floats(-1e300, 1e300)),
    st.sampled_from(["float64", "float32", "int16", "bool"]),
    st.sampled_from([1.0, 1e-300]),
)
def test_rows_of_unit_length(x, dtype, factor):
    x = x * factor
    if dtype != "float64":
        x = np.clip(x, -3e4, 3e4).astype(dtype)
    unit = normalize_rows(x)
    assert unit.dtype == compute_dtype(dtype)
    for row, found in zip(x, unit, strict=True):
        exact = [Fraction(float(v)) for v in row]
        square = sum(v * v for v in exact)
        if square == 0:
            assert found.tolist() == [0.0] * 4
            continue
        scale = max(map(abs, exact))
        norm = float(square / scale**2) ** 0.5
        expected = [float(v / scale) / norm for v in exact]
        np.testing.assert_allclose(found, expected, rtol=0, atol=4 * np.finfo(unit.dtype).eps)


def test_bad_rows_stay_bad():
    with np.errstate(invalid="ignore"):
        unit = normalize_rows(np.array([[np.nan, 1.0], [np.inf, 1.0], [3.0, 4.0]]))
    assert finite_rows(unit).tolist() == [False, False, True]
