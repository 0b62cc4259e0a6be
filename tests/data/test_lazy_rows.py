"""Dask arrays, dask DataFrames and xarray: lazy, one block at a time."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr

from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError
from tests.data.helpers import read_all


class Tracked(np.ndarray):
    """An array that counts itself, its copies and views while they are alive."""

    alive = 0

    def __array_finalize__(self, source):
        Tracked.alive += 1

    def __del__(self):
        Tracked.alive -= 1


class Watch:
    """Record which blocks are computed, and check that only one is alive at a time."""

    def __init__(self, x):
        self.x = x
        self.computed = []

    def __call__(self, block_info=None):
        assert Tracked.alive == 0
        (r0, r1), (c0, c1) = block_info[None]["array-location"]
        self.computed.append((r0, c0))
        return self.x[r0:r1, c0:c1].copy().view(Tracked)

    def array(self, chunks):
        return da.map_blocks(self, chunks=chunks, dtype=self.x.dtype, meta=self.x[:0])


def test_dask_array__computes_one_block_a_chunk_and_nothing_before(x, small_chunks):
    watch = Watch(x)
    rows = open_rows(watch.array(((300, 0, 50, 20, 130, 500), (7,))))
    assert rows.chunk_table.tolist() == [0, 300, 370, 500, 1_000]
    assert rows.location is None
    assert watch.computed == []
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(rows.read(2), x[370:500])
        assert watch.computed == [(370, 0)]
        watch.computed.clear()
        np.testing.assert_array_equal(read_all(rows), x)
    # the block without rows, too: else nothing would show that it has none
    assert watch.computed == [(0, 0), (300, 0), (300, 0), (350, 0), (370, 0), (500, 0)]


def test_dask_array__blocks_along_columns_come_one_after_the_other(x, small_chunks):
    watch = Watch(x)
    rows = open_rows(watch.array(((600, 400), (3, 4))))
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(read_all(rows), x)
    assert watch.computed == [(0, 0), (0, 3), (600, 0), (600, 3)]


def test_dask_array__unknown_lengths_are_counted_without_keeping_blocks(x, small_chunks):
    array = da.from_array(x, chunks=(400, 7))
    array = array[array[:, 0] > 0]
    assert np.isnan(array.shape[0])
    rows = open_rows(array)
    expected = x[x[:, 0] > 0]
    assert rows.shape == expected.shape
    assert rows.n_chunks == 3
    np.testing.assert_array_equal(read_all(rows), expected)


def test_dask_array__sparse_blocks(x):
    matrix = sp.csr_matrix(x * (x > 1))
    array = da.from_array(x, chunks=(300, 7)).map_blocks(lambda b: sp.csr_matrix(b * (b > 1)))
    np.testing.assert_array_equal(read_all(open_rows(array)), matrix.toarray())


def test_dask_array__errors_name_the_block(x, small_chunks):
    def fail(block, block_info=None):
        if block_info[0]["chunk-location"][0] == 1:
            raise RuntimeError("disk on fire")
        return block

    rows = open_rows(da.from_array(x, chunks=(300, 7)).map_blocks(fail, dtype=x.dtype))
    rows.read(0)
    with pytest.raises(
        DataError, match=r"block 1 .*chunk 1 \(rows 300 to 599\).*RuntimeError: disk on fire"
    ):
        rows.read(1)


def test_weights_of_dask_pandas_and_xarray(x):
    weight = np.arange(1_000.0)
    for source in (
        da.from_array(weight, chunks=300),
        dd.from_pandas(pd.Series(weight), npartitions=3),
        pd.Series(weight),
        xr.DataArray(weight),
    ):
        rows = open_rows(da.from_array(x, chunks=(450, 7)), sample_weight=source)
        parts = [rows.read_weight(i) for i in range(rows.n_chunks)]
        np.testing.assert_array_equal(np.concatenate(parts), weight)
    with pytest.raises(DataError, match="sample_weight has 3 values, but the data has 1000 rows"):
        open_rows(x, sample_weight=da.ones(3))


def test_dask_frame__one_partition_at_a_time_and_empty_ones_vanish(x, small_chunks):
    frame = pd.DataFrame(x, columns=list("abcdefg"))
    seen = []

    def note(part):
        # dask calls it with an empty part to learn the columns
        if len(part):
            seen.append(int(part.index[0]))
        return part

    lazy = dd.from_pandas(frame, npartitions=5, sort=False).map_partitions(note, meta=frame[:0])
    lazy = lazy.map_partitions(lambda part: part[part.index < 600], meta=frame[:0])
    assert seen == []
    rows = open_rows(lazy)
    assert rows.shape == (600, 7)
    assert rows.n_chunks == 3
    seen.clear()
    np.testing.assert_array_equal(rows.read(1), x[200:400])
    assert seen == [200]
    np.testing.assert_array_equal(read_all(rows), x[:600])


def test_xarray__in_memory_lazy_file_and_dask(x, tmp_path):
    array = xr.DataArray(x, dims=("row", "feature"), name="table")
    assert np.shares_memory(open_rows(array).read(0), x)
    np.testing.assert_array_equal(read_all(open_rows(array.chunk(row=300))), x)
    dataset = array.to_dataset()
    dataset.to_zarr(tmp_path / "x.zarr", consolidated=False)
    np.testing.assert_array_equal(read_all(open_rows(tmp_path / "x.zarr")), x)
    lazy = xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False)["table"]
    rows = open_rows(lazy)
    np.testing.assert_array_equal(read_all(rows), x)
    # reading its slices did not load the array behind them
    assert not lazy.variable._in_memory


# --- blocks that are not what their collection declares -------------------------------------------


def blocks_of(x, change, **declared):
    """A dask array of 10 changed blocks that declares the given chunks and dtype."""
    array = da.from_array(x, chunks=(100, 4)).map_blocks(change, **{"dtype": x.dtype, **declared})
    assert array.shape == (1_000, 4)
    assert array.numblocks == (10, 1)
    return array


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda b: b.mean(0, keepdims=True), r"shape \(1, 4\), but \(100, 4\) was declared"),
        (lambda b: b[:, :1], r"shape \(100, 1\), but \(100, 4\)"),
        (lambda b: b[0], r"shape \(4,\), but \(100, 4\)"),
        (lambda b: 3.0, r"shape \(\), but \(100, 4\)"),
        (lambda b: np.concatenate([b, b]), r"shape \(200, 4\), but \(100, 4\)"),
        (lambda b: sp.csr_matrix(b[:1]), r"shape \(1, 4\), but \(100, 4\)"),
        (lambda b: b.astype(object), "it has dtype object, but real numbers"),
        (lambda b: b.astype(str), "text"),
        (lambda b: b.astype(complex), "Complex"),
        (lambda b: b.astype("g").astype("M8[s]"), "dates"),
    ],
    ids=[
        "one-row",
        "one-column",
        "row",
        "scalar",
        "twice",
        "sparse",
        "object",
        "text",
        "complex",
        "dates",
    ],
)
def test_a_block_of_another_shape_or_no_numbers_is_refused_by_its_number(change, told):
    x = np.random.default_rng(0).normal(size=(1_000, 4))

    def some(block, block_info=None):
        return block if block_info[0]["chunk-location"][0] < 7 else change(block)

    rows = open_rows(blocks_of(x, some))
    with pytest.raises(DataError, match=rf"block 7 \(chunk 0 \(rows 0 to 999\).*{told}"):
        read_all(rows)


@pytest.mark.parametrize(
    ("declared", "held"),
    [("i8", "f8"), ("f4", "f8"), ("u1", "i2"), ("?", "f4"), ("i8", "u8"), ("f2", "f4")],
)
def test_a_block_of_a_type_that_the_declared_one_cannot_hold_is_refused(declared, held):
    x = np.arange(4_000.0).reshape(1_000, 4) % 100
    array = blocks_of(x.astype(held), lambda b: b, dtype=declared)
    assert array.dtype == declared
    with pytest.raises(DataError, match=f"block 0 .* has dtype {np.dtype(held)}, which") as caught:
        read_all(open_rows(array))
    # and the advice is true
    assert f"(100, 4) and dtype {np.dtype(held)}" in str(caught.value)
    mended = array.map_blocks(np.asarray, dtype=held)
    np.testing.assert_array_equal(read_all(open_rows(mended)), array.compute())


FRAME = pd.DataFrame({"a": np.arange(6), "b": np.arange(6) * 2 + 1})


def changed(change, first=1, meta=FRAME[:0]):
    """A dask DataFrame of FRAME in three partitions, changed from one partition on."""
    parts = [FRAME[begin : begin + 2] for begin in (0, 2, 4)]
    parts[first:] = map(change, parts[first:])
    return dd.from_map(lambda i: parts[i], range(3), meta=meta)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: (p - 2.5) / 3, "dtype is float64, .* the declared int64"),
        (lambda p: p.where(p.a > 3), "dtype is float64, .* the declared int64"),
        (lambda p: p.astype({"b": "uint64"}), "dtype is float64, .* the declared int64"),
        (lambda p: p.rename(columns={"a": "z"}), "KeyError.*'a'"),
        (lambda p: p[["a"]], "KeyError.*'b'"),
        (lambda p: p.set_axis(["a", "a"], axis=1), "KeyError.*'b'"),
        (lambda p: p.a, "Series"),
        (lambda p: p.astype({"a": str}), "not numbers: 'a'"),
        (lambda p: p.astype("category"), "not numbers: 'a'"),
    ],
    ids=["scaled", "nan", "unsigned", "renamed", "missing", "twice", "series", "text", "category"],
)
def test_a_partition_of_other_columns_or_types_is_refused_by_its_number(change, told):
    lazy = changed(change)
    assert lazy.npartitions == 3
    with pytest.raises(DataError, match=rf"partition 1 \(chunk 0 \(rows 0 to 5\).*{told}"):
        read_all(open_rows(lazy))


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p[["b", "a"]],
        lambda p: p.astype("int16"),
        lambda p: p > 3,
        lambda p: pd.concat([p, p]),
        lambda p: p[:0].astype(object),
    ],
    ids=["reordered", "narrower", "bool", "longer", "empty"],
)
def test_a_partition_that_means_the_same_is_read_as_computing_gives_it(change):
    lazy = changed(change)
    computed = lazy.compute()
    assert not lazy.partitions[1].compute().equals(FRAME[2:4])
    rows = open_rows(lazy)
    assert rows.feature_names == ("a", "b")
    np.testing.assert_array_equal(read_all(rows), computed[["a", "b"]].astype(np.int64))
