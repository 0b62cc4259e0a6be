from __future__ import annotations

import json
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from largek_dask.errors import DataError
from largek_dask.kernels.exact import scan as scans
from largek_dask.kernels.exact import statistics
from largek_dask.kernels.exact.statistics import RowScan, Statistics
from largek_dask.kernels.rows import compute_dtype
from tests.helpers.covering import in_turns
from tests.oracles import exact_sums


@pytest.fixture(scope="module", autouse=True)
def float32_kernel_for_small_tables():
    """Scan small float32 tables by the kernel of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_MANY_VALUES", 0)
        yield


DTYPES = [
    "float32",
    "float64",
    "float16",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "bool",
    "int32",
    "int64",
]


def values_of(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        width = dtype.itemsize * 8
        limit = {16: 6e4, 32: 2.0**50, 64: 2.0**400}[width]
        return st.floats(-limit, limit, width=width)
    if dtype.kind == "b":
        return st.booleans()
    info = np.iinfo(dtype)
    return st.integers(max(info.min, -(2**62)), min(info.max, 2**62))


@st.composite
def tables(draw, weighted=True):
    dtype = draw(st.sampled_from(DTYPES))
    n, d = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    x = draw(arrays(dtype, (n, d), elements=values_of(dtype)))
    kinds = [st.none()]
    if weighted:
        kinds += [
            st.lists(st.integers(0, 5).map(float), min_size=n, max_size=n),
            # up to a range for which sums are right, and wide
            st.lists(st.floats(2.0**-40, 1e6) | st.just(0.0), min_size=n, max_size=n),
        ]
    weight = draw(st.one_of(kinds))
    return x, None if weight is None else np.array(weight)


def scan(x, weight=None, start_row=0):
    out = RowScan(x.shape[1], x.dtype)
    out.add(x, weight, start_row)
    return out


def without_tiny(x):
    """Rounding errors of products below 2^-900 are left out (``two_product_error``)."""
    return np.where(np.abs(x.astype(np.float64)) < 2.0**-850, x.dtype.type(0), x)


def same(a: Statistics, b: Statistics):
    return a.to_dict() == b.to_dict()


@given(tables())
def test_mean_extent_and_weight_are_exact(table):
    x, weight = table
    x = without_tiny(x)
    found = scan(x, weight).finish()
    w = np.ones(len(x)) if weight is None else weight
    rows, w = x[w > 0].astype(np.float64), w[w > 0]
    assert found.n_total == len(x)
    assert found.n_rows == len(rows)
    # Rows far from 0 are computed in float64.
    assert found.dtype == found.shift.dtype
    assert found.dtype in (compute_dtype(x.dtype), np.float64)
    total = sum(map(Fraction, w.tolist()), Fraction(0))
    assert found.total_weight == float(total)
    if not len(rows):
        assert found.mean.tolist() == found.shift.tolist() == [0.0] * x.shape[1]
        assert found.max_abs == found.max_weight == 0.0
        return
    exact = [exact_sums(c, w, [0] * len(w), 1)[0] / total for c in rows.T]
    assert found.mean.tolist() == [float(m) for m in exact]
    if x.dtype.kind in "biu":
        assert found.shift.tolist() == [np.float64(round(m)).astype(found.dtype) for m in exact]
    else:
        assert found.shift.tolist() == found.mean.astype(found.dtype).tolist()
    assert found.max_abs == np.abs(rows - found.shift.astype(np.float64)).max()
    assert found.max_weight == w.max()
    assert found.integer_weights == bool((w == np.floor(w)).all())


@given(tables(), st.integers(1, 4), st.randoms())
def test_neither_chunks_nor_order_nor_merging_change_a_bit(table, step, random):
    x, weight = table
    order = random.sample(range(len(x)), len(x))
    parts = []
    for begin in range(0, len(x), step):
        rows = order[begin : begin + step]
        parts.append(scan(x[rows], None if weight is None else weight[rows]))
    merged = RowScan(x.shape[1], x.dtype)
    for part in random.sample(parts, len(parts)):
        merged = pickle.loads(pickle.dumps(part)).merge(merged)
    assert same(merged.finish(), scan(x, weight).finish())


@given(tables())
def test_survives_json(table):
    found = scan(*table).finish()
    read = Statistics.from_dict(json.loads(json.dumps(found.to_dict())))
    assert same(read, found)
    assert read.shift.dtype == found.shift.dtype
    assert read.grid.shift is read.shift
    assert not read.mean.flags.writeable
    for name in ("bits", "weight_bits", "integer_weights", "extent", "wide"):
        assert getattr(read.grid, name) == getattr(found.grid, name)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bad_rows_are_found_and_left_out(dtype, weighted):
    x = np.arange(24).reshape(8, 3).astype(dtype)
    x[6, 1], x[3, 2], x[1, 0], x[5] = np.nan, np.inf, -np.inf, np.nan
    weight = np.array([1.0, 0, 1, 2, 1, 1, 1, 1]) if weighted else None
    found = scan(x, weight, start_row=100).finish()
    bad = [3, 5, 6] if weighted else [1, 3, 5, 6]
    assert found.n_bad == len(bad)
    assert found.first_bad == 100 + bad[0]
    assert found.first_bad_weight is None
    good = [0, 2, 4, 7]
    assert found.n_rows == 4
    assert found.mean.tolist() == x[good].astype(float).mean(axis=0).tolist()
    later = scan(x, weight, start_row=500).merge(scan(x, weight, start_row=100))
    assert later.finish().first_bad == 100 + bad[0]
    assert later.finish().n_bad == 2 * len(bad)
    earlier = scan(x, weight, start_row=100).merge(scan(x, weight, start_row=500))
    assert earlier.finish().first_bad == 100 + bad[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("d", [3, 70])
@pytest.mark.parametrize("smallest", [1.0, 2.0**-90])
def test_one_bad_value_anywhere(bad, d, smallest):
    """In whole groups of rows or the rest, and where values differ little or very much."""
    good = np.random.default_rng(0).normal(size=(45, d)).astype("f4")
    good[2, 1] = smallest
    for row in (0, 7, 44):
        x = good.copy()
        x[row, d - 1] = bad
        found, expected = scan(x).finish(), scan(np.delete(x, row, axis=0)).finish()
        assert (found.n_bad, found.first_bad, found.n_rows) == (1, row, 44)
        assert found.max_abs == expected.max_abs
        assert found.mean.tobytes() == expected.mean.tobytes()


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, -np.inf])
def test_bad_weights_are_found_and_left_out(bad):
    x = np.arange(8.0).reshape(4, 2)
    found = scan(x, np.array([1.0, 2.0, bad, bad]), start_row=10)
    found.merge(scan(x, np.ones(4), start_row=20))
    found = found.finish()
    assert found.first_bad_weight == 12
    assert found.n_rows == 6
    assert found.total_weight == 7.0


def test_nothing_but_absent_rows():
    found = scan(np.full((3, 2), np.nan), np.zeros(3)).finish()
    assert (found.n_rows, found.n_total, found.n_bad) == (0, 3, 0)
    found = scan(np.full((3, 2), np.nan)).finish()
    assert (found.n_rows, found.n_total, found.n_bad) == (0, 3, 3)
    found = scan(np.empty((0, 2), np.uint8)).finish()
    assert (found.n_rows, found.n_total) == (0, 0)


@pytest.mark.parametrize(("dtype", "d"), in_turns(DTYPES, [1, 3, 64, 100]))
def test_blocks_and_rows_seen_together(dtype, d, monkeypatch):
    monkeypatch.setattr(statistics, "WIDE", 16)
    rng = np.random.default_rng(d)
    x = (rng.standard_normal((37, d)) * 20 + 30).astype(dtype)
    found = scan(x).finish()
    assert same(found, scan(np.asfortranarray(x)).finish())
    rows = x.astype(np.float64)
    exact = [exact_sums(c, np.ones(37), [0] * 37, 1)[0] / 37 for c in rows.T]
    assert found.mean.tolist() == [float(m) for m in exact]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "weighted"])
def test_many_rows_fill_several_blocks(dtype, monkeypatch):
    monkeypatch.setattr(statistics, "WIDE", 1)
    weight = np.ones(33_000) if dtype == "weighted" else None
    x = np.tile(np.array([[255], [1]], np.float32), (16_500, 1))
    found = scan(x if weight is not None else x.astype(dtype), weight).finish()
    assert found.mean.tolist() == [128.0]


@pytest.mark.parametrize("growth", [2.0**18, 2.0**40])
@pytest.mark.parametrize("tiny", [0.0, 1e-3, 1e-16, 1e-30, 1e-45])
def test_float32_of_all_magnitudes(tiny, growth, monkeypatch):
    """1e-16 times the largest is where two parts no longer hold every bit."""
    monkeypatch.setattr(scans, "BLOCK_VALUES", 200)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((90, 23)).astype(np.float32)
    x *= rng.choice(np.float32([1, 1, tiny, 0, 1e3]), x.shape)
    x[:, 0] = -0.0
    x[:40] *= np.float32(1e-3)  # the scale grows after some blocks
    # Where large numbers cancel, every bit of the small ones shows in the mean.
    x[40:, 1:12] = x[40, 1:12]
    x[41::2, 1:12] *= -1
    x[40:, 6:12] *= np.float32(growth)
    x[7, 1:12] = np.float32(0.3) * np.float32(tiny)
    out = RowScan(23, np.float32)
    for begin in range(0, len(x), 51):
        out.add(x[begin : begin + 51])
    found = out.finish()
    exact = [exact_sums(c, np.ones(len(x)), [0] * len(x), 1)[0] / len(x) for c in x.T]
    assert found.mean.tolist() == [float(m) for m in exact]
    assert found.max_abs == np.abs(x - found.shift.astype(np.float64)).max()


@given(
    arrays(np.float64, (5, 2), elements=st.floats(-1e150, 1e150)),
    st.sampled_from([1.0, 1e-170, 1e-300, 5e-324]),
)
def test_values_at_the_ends_of_float64(x, factor):
    x = x * factor
    found = scan(x).finish()
    exact = [exact_sums(c, np.ones(5), [0] * 5, 1)[0] / 5 for c in x.T]
    assert found.mean.tolist() == [float(m) for m in exact]


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (np.array([[-1e154], [1e154]]), None),
        (np.array([[-1e308], [1e308]]), None),
        (np.array([[-1e19], [1e19]], np.float32), None),
        (np.array([[1.0], [2.0]]), np.array([1.0, 1e160])),
        (np.array([[1e200], [1e200]]), np.array([1.0, 1e149])),
    ],
)
def test_what_would_overflow_is_refused(x, weight):
    with np.errstate(over="ignore"):
        rows = scan(x, weight)
    with pytest.raises(DataError, match="divide data"):
        rows.finish()


def test_wrong_rows_are_refused():
    with pytest.raises(ValueError, match="expected rows with 3 float32"):
        RowScan(3, np.float32).add(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="expected rows with 3 float32"):
        RowScan(3, np.float32).add(np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("whole", [True, False])
def test_of_weights__where_rows_lie_is_kept(whole):
    x = np.random.default_rng(0).normal(size=(50, 3))
    own = np.array([2.0, 3.0, 7.0]) if whole else np.array([0.25, 3.5, 7.0])
    known = scan(x).finish()
    found = known.of_weights(own)
    assert (found.n_rows, found.total_weight) == (3, own.sum())
    assert (found.max_weight, found.min_weight) == (7.0, own.min())
    assert found.integer_weights == whole
    np.testing.assert_array_equal(found.shift, known.shift)
    assert found.max_abs == known.max_abs
    assert known.grid != found.grid
