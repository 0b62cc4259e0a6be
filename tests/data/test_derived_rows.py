"""Rows computed from others: noise for integers, standardised features."""

import pickle

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.data.derived_rows import DitheredRows, Scaling, StandardizedRows, dithered
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError

RNG = np.random.default_rng(1)
PAST = 2**64 - 1


def split_mix(z):
    """SplitMix64 in Python's integers."""
    z = (z + 0x9E3779B97F4A7C15) & PAST
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & PAST
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & PAST
    return z ^ (z >> 31)


def integers(dtype, shape=(200, 7)):
    info = np.iinfo(dtype)
    x = RNG.integers(max(info.min, -(2**31)), min(info.max, 2**31), shape, dtype, endpoint=True)
    x[0], x[1] = max(info.min, -(2**31)), min(info.max, 2**31)
    return x


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "int64"])
def test_the_noise_is_a_hash_of_key_row_and_feature(dtype):
    x, first, key = integers(dtype), 12_345, 2**63 + 11
    found = dithered(x, first, key)
    assert found.dtype == (np.float32 if x.itemsize <= 2 else np.float64)
    bits = (24 if x.itemsize <= 2 else 53) - min(32, 8 * x.itemsize)
    start = split_mix(key)
    for i in (0, 1, 57, 199):
        for f in range(7):
            place = (first + i) * 7 + f
            noise = split_mix((start + place * 0x9E3779B97F4A7C15) & PAST) >> (64 - bits)
            # Without rounding: there is room for these bits.
            assert float(found[i, f]) == int(x[i, f]) + noise / 2**bits
    np.testing.assert_array_equal(np.floor(found), x)


def test_it_is_uniform_and_independent():
    noise = dithered(np.zeros((4_000, 5), np.uint8), 0, 3)
    counts = np.histogram(noise, bins=50, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 85  # 0.1 % of chi-squared with 49 degrees
    assert np.abs(np.corrcoef(noise.T) - np.eye(5)).max() < 0.06
    assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.06
    assert not np.array_equal(noise, dithered(np.zeros((4_000, 5), np.uint8), 0, 4))


@pytest.mark.parametrize("kind", ["array", "store"])
def test_rows_are_those_of_the_whole_in_any_chunks(kind, tmp_path, chunks_as_stored):
    x, weight = integers("uint8", (500, 3)), np.arange(500.0)
    source = x
    if kind == "store":
        source = str(tmp_path / "x.zarr")
        lk.ingest(x, source, chunk_rows=128, progress=False)
    rows = DitheredRows(open_rows(source, sample_weight=weight), 9)
    assert rows.n_chunks == (4 if kind == "store" else 1)
    whole = dithered(x, 0, 9)
    for one in (rows, pickle.loads(pickle.dumps(rows))):
        parts = [one.read(i) for i in range(one.n_chunks)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        np.testing.assert_array_equal(one.read_part(0, 20, 50), whole[20:50])
        assert one.stretch(0, 20, 50) == open_rows(source).stretch(0, 20, 50)
        assert not parts[0].flags.writeable
        np.testing.assert_array_equal(one.read_weight(0), weight[: len(parts[0])])
    assert (rows.shape, rows.dtype) == ((500, 3), np.float32)
    assert rows.stored_statistics() is None
    assert rows.in_memory() is None
    plain = open_rows(source, sample_weight=weight).fingerprint()
    told = rows.fingerprint()
    assert told["content"] != plain["content"]
    assert {**told, "content": 0} == {**plain, "content": 0}
    assert told != DitheredRows(open_rows(source, sample_weight=weight), 10).fingerprint()


@pytest.mark.parametrize("x", [np.eye(3), scipy.sparse.eye(3, dtype=np.int32, format="csr")])
def test_others_are_refused(x):
    with pytest.raises(
        ParameterError, match="dither requires dense rows of integers, but the rows are"
    ):
        DitheredRows(open_rows(x), 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64"])
def test_standardised_rows(dtype, tmp_path, chunks_as_stored):
    x = RNG.integers(0, 99, (500, 3)).astype(dtype)
    scaling = Scaling(np.array([0.1, 50, -3]), np.array([2.0, 7, 1]))
    source = str(tmp_path / "x.zarr")
    lk.ingest(x, source, chunk_rows=128, progress=False)
    rows = StandardizedRows(open_rows(source), scaling)
    assert rows.n_chunks == 4
    whole = ((x.astype(float) - scaling.mean) / scaling.scale).astype(rows.dtype)
    assert rows.dtype == ("f8" if dtype in ("float64", "int64") else "f4")
    for one in (rows, pickle.loads(pickle.dumps(rows))):
        np.testing.assert_array_equal(np.concatenate([one.read(i) for i in range(4)]), whole)
        np.testing.assert_array_equal(one.read_part(1, 5, 50), whole[133:178])
    assert rows.stored_statistics() is None
    np.testing.assert_allclose(scaling.restore(whole), x, rtol=1e-5, atol=1e-4)
    assert scaling.restore(whole).dtype == rows.dtype
    with pytest.raises(ParameterError, match=r"scale='standard' needs dense rows.*MaxAbsScaler"):
        StandardizedRows(open_rows(scipy.sparse.eye(3, format="csr")), scaling)
