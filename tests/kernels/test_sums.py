from __future__ import annotations

import dataclasses
import operator
import pickle
from fractions import Fraction

import numba
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.emit import row_sums as emitted
from largek_dask.kernels.emit import standins
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.jit import njit
from tests.helpers.covering import in_turns
from tests.kernels.test_statistics import scan, tables
from tests.oracles import fixed_point_sums, row_square

COMPILED = not numba.config.DISABLE_JIT
K = 3


def labels_for(x):
    return arrays(np.int32, len(x), elements=st.integers(-1, K - 1))


def sums_of(x, labels, weight, grid):
    out = ClusterSums(K, x.shape[1], grid)
    out.add(x, labels, weight)
    return out


def remove(sums, x, labels, weight=None):
    sums.move(x, labels, np.full_like(labels, -1), weight)


def same(a, b):
    return all((p == q).all() for p, q in zip(a.limbs(), b.limbs(), strict=True))


def integers_of(found):
    """The sums and weights in steps of the lowest limb."""
    sums, weights = found.limbs()
    if not found.grid.wide:
        return sums.tolist(), weights.tolist()
    assert (sums[1] >= 0).all()
    assert (sums[1] < 2**50).all()
    assert (weights[1] >= 0).all()
    assert (weights[1] < 2**50).all()
    joined = [part[0].astype(object) * 2**50 + part[1] for part in (sums, weights)]
    return joined[0].tolist(), joined[1].tolist()


@given(tables(), st.data())
def test_sums_are_those_of_python_integers(table, data):
    x, weight = table
    labels = data.draw(labels_for(x))
    grid = scan(x, weight).finish().grid
    found = sums_of(x, labels, weight, grid)
    w = np.ones(len(x)) if weight is None else weight
    sums, totals = fixed_point_sums(x, labels, w, K, grid)
    assert integers_of(found) == (sums, totals)
    low = 50 * grid.wide
    assert found.counts.tolist() == [
        float(Fraction(t) / Fraction(2) ** (grid.weight_bits + low)) for t in totals
    ]


def exact_means(x, weight):
    """Mean of every feature; weighted subnormal numbers are not lost."""
    w = [Fraction(float(one)) for one in weight]
    columns = [[Fraction(float(number)) for number in column] for column in x.T]
    return [float(sum(map(operator.mul, column, w)) / sum(w)) for column in columns]


@given(tables(), st.data())
def test_means_are_right(table, data):
    x, weight = table
    labels = data.draw(labels_for(x))
    statistics = scan(x, weight).finish()
    found = sums_of(x, labels, weight, statistics.grid)
    w = np.ones(len(x)) if weight is None else weight
    fallback = np.full((K, x.shape[1]), 7)
    means = found.means(fallback)
    assert means.dtype == statistics.dtype
    tolerance = np.finfo(means.dtype).eps * (statistics.max_abs + np.abs(statistics.shift).max())
    # (where that is nothing: the least that two numbers differ by, of which a mean is rounded)
    least = float(np.finfo(means.dtype).smallest_subnormal)
    grid = statistics.grid
    assert grid.least_weight(statistics.max_abs) <= statistics.min_weight or not w.any()
    promised = 2.0**-grid.bits
    if not grid.integer_weights and w.any():
        a, lightest = np.frexp(statistics.max_abs)[1], np.frexp(statistics.min_weight)[1] - 1
        digits = min(grid.bits + a, grid.weight_bits) + 50 * grid.wide + lightest
        assert digits >= (24 if means.dtype == np.float32 else 32)
        promised = 2.0 ** (a - digits)
    for j in range(K):
        if found.counts[j] == 0:
            assert means[j].tolist() == fallback[j].tolist()
            continue
        exact = exact_means(x[labels == j], w[labels == j])
        np.testing.assert_allclose(means[j], exact, rtol=0, atol=4 * tolerance + promised + least)


@given(tables(), st.data())
def test_no_order_of_adding_removing_and_merging_changes_a_bit(table, data):
    x, weight = table
    labels, before = data.draw(labels_for(x)), data.draw(labels_for(x))
    grid = scan(x, weight).finish().grid
    expected = sums_of(x, labels, weight, grid)

    def part(rows):
        return x[rows], labels[rows], None if weight is None else weight[rows]

    order = np.array(data.draw(st.permutations(range(len(x)))), int)
    cut = data.draw(st.integers(0, len(x)))
    first, second = ClusterSums(K, x.shape[1], grid), ClusterSums(K, x.shape[1], grid)
    first.add(*part(order[:cut]))
    second.add(*part(order[cut:]))
    assert same(pickle.loads(pickle.dumps(second)).merge(first), expected)

    moved = sums_of(x, before, weight, grid)
    moved.move(x, before, labels, weight)
    assert same(moved, expected)

    moved.add(x, before, weight)
    remove(moved, x, labels, weight)
    assert same(moved, sums_of(x, before, weight, grid))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moving_reads_only_rows_that_change(dtype):
    x = np.arange(12).reshape(6, 2).astype(dtype)
    grid = scan(x).finish().grid
    old = np.array([0, 1, 2, 0, 1, -1], np.int32)
    new = np.array([0, 2, 2, -1, 1, 1], np.int32)
    moved = sums_of(x, old, None, grid)
    poisoned = x.copy()
    poisoned[old == new] = np.nan
    moved.move(poisoned, old, new)
    assert same(moved, sums_of(x, new, None, grid))


@pytest.mark.parametrize(
    ("layout", "dtype", "d"),
    in_turns(["C", "F", "strided"], ["f4", "f8", "u1", "i2"], [1, 7, 8, 9, 21]),
)
def test_rows_of_any_type_and_layout_are_added_and_moved(d, dtype, layout):
    rng = np.random.default_rng(d)
    x = (rng.normal(size=(200, d)) * 40 + 90).astype(dtype)
    x = {"C": x, "F": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=1)[:, ::2]}[layout]
    assert x.flags.c_contiguous == (layout == "C" or (d == 1 and layout == "F"))
    grid = scan(np.ascontiguousarray(x)).finish().grid
    assert grid.integer_weights
    assert not grid.wide
    old, new = rng.integers(-1, K, size=(2, 200)).astype(np.int32)
    for before, after in ((-1, 0), (0, -1), (0, 1), (1, 1)):
        assert ((old.clip(max=1) == before) & (new.clip(max=1) == after)).any()
    weights = np.ones(200)
    added = sums_of(x, old, None, grid)
    assert integers_of(added) == fixed_point_sums(x, old, weights, K, grid)
    added.move(x, old, new)
    assert integers_of(added) == fixed_point_sums(x, new, weights, K, grid)
    remove(added, x, new)
    assert not any(part.any() for part in added.limbs())


@pytest.mark.skipif(not COMPILED, reason="one of the two is not compiled")
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i2"])
def test_emitted_kernels_agree_with_their_twins(dtype):
    @njit
    def add(x, shift, sums):
        emitted.add_row(x, 1, shift, 1024.0, sums, 2, 2, 0)

    @njit
    def move(x, shift, sums):
        emitted.move_row(x, 2, shift, 0.25, sums, 2, 0)

    rng = np.random.default_rng(0)
    for d in (1, 8, 19):
        x, shift = (rng.normal(size=(3, d)) * 50 + 80).astype(dtype), rng.normal(size=d)
        found, plain = np.zeros((2, 3, d), np.int64)
        add(x, shift, found)
        standins.add_row(x, 1, shift, 1024.0, plain, 2, 2, 0)
        assert found[2].all()
        np.testing.assert_array_equal(found, plain)
        move(x, shift, found)
        standins.move_row(x, 2, shift, 0.25, plain, 2, 0)
        assert found[0].all()
        np.testing.assert_array_equal(found, plain)


def largest_total(values, weight, integer, real_weights=False):
    """Sums of rows that all lie at the extent, with the grid chosen for them."""
    shift = np.zeros(1)
    n = len(values)
    grid = FixedPoint.choose(
        shift,
        float(np.abs(values).max()),
        n_rows=n,
        total_weight=None if weight is None else float(sum(map(Fraction, weight.tolist()))),
        max_weight=1.0 if weight is None else float(weight.max()),
        min_weight=None if weight is None else float(weight.min()),
        integer_weights=not real_weights,
        integer_data=integer,
    )
    labels = np.zeros(n, np.int32)
    out = ClusterSums(1, 1, grid)
    out.add(values[:, None], labels, weight)
    w = np.ones(n) if weight is None else weight
    sums, totals = fixed_point_sums(values[:, None], labels, w, 1, grid)
    return out, sums[0][0], totals[0], grid


WEIGHTS = [
    None,
    [1.0, 2.0**20, 2.0**35],
    [2.0**35 - 1, 2.0**34, 2.0**34],
    [0.5, 1e-3, 3.7],
    [1e-30, 1e-29, 1e-28],
    [1e-15, 1.0, 0.7],
    [2.0**-49, 1.0, 1.0],
    [1e140, 3e140, 1e139],
    [2.0**60, 2.0**62, 3.0],
]
"""The first three are whole numbers."""


@pytest.mark.parametrize(
    ("extent", "sign", "weights", "integer"),
    in_turns([1.5, 1 - 2.0**-53, 1e150, 5e-324, 2.0**50, 2.0**62], [1, -1], WEIGHTS, [False, True]),
)
def test_largest_totals_do_not_overflow(extent, sign, weights, integer):
    real = weights not in WEIGHTS[:3]
    if integer and extent != round(extent):
        extent = float(round(extent))
    values = np.full(3, sign * extent)
    weight = None if weights is None else np.array(weights)
    found, total, mass, grid = largest_total(values, weight, integer, real)
    assert abs(total) <= 2 ** (62 + 50 * grid.wide)
    assert abs(mass) <= 2 ** (62 + 50 * grid.wide)
    assert integers_of(found) == ([[total]], [mass])
    total /= 2 ** (50 * grid.wide)
    if not integer and extent > 1e-250:
        # not coarse for nothing: one of the two limits is nearly reached
        heaviest = extent * (weight.max() if real else 1.0)
        assert abs(total) >= 2**58 or heaviest * 2.0**grid.bits >= 2**48


def test_sums_may_wrap_around_on_the_way():
    values, weight = np.full(8, 1.0), np.full(8, 2.0**32 - 1)
    grid = largest_total(values, weight, False)[3]
    sums = ClusterSums(1, 1, grid)
    x, labels = values[:, None], np.zeros(8, np.int32)
    with np.errstate(over="ignore"):
        for _ in range(9):
            sums.add(x, labels, weight)
        assert sums.sums[0, 0] < 0
        for _ in range(8):
            remove(sums, x, labels, weight)
    once = ClusterSums(1, 1, grid)
    once.add(x, labels, weight)
    assert same(sums, once)


@given(tables(), st.data())
def test_cost_is_the_inertia_of_any_centres(table, data):
    x, weight = table
    labels = data.draw(arrays(np.int32, len(x), elements=st.integers(0, K - 1)))
    statistics = scan(x, weight).finish()
    spread = statistics.max_abs
    centers = statistics.shift + (spread * np.arange(K)[:, None] / K).astype(statistics.dtype)
    sums = sums_of(x, labels, weight, statistics.grid)
    squares = ExactSums()
    squares.add(row_squares(x, statistics.shift), weight)
    w = np.ones(len(x)) if weight is None else weight
    exact = (w * ((x.astype(float) - centers.astype(float)[labels]) ** 2).sum(axis=1)).sum()
    scale = statistics.total_weight * x.shape[1] * spread**2
    assert sums.cost(centers, squares.value) == pytest.approx(exact, rel=1e-9, abs=1e-11 * scale)


@given(tables(weighted=False), st.integers(1, 5), st.data())
def test_row_squares_are_added_in_eight_sums(table, copies, data):
    x = np.tile(table[0], (1, copies))
    shift = x[0].astype(np.float64)
    expected = [row_square(row - shift) for row in x.astype(np.float64)]
    assert row_squares(x, shift).tolist() == expected
    rows = np.array(data.draw(st.lists(st.integers(0, len(x) - 1))), np.int64)
    assert row_squares(x, shift, rows).tolist() == [expected[i] for i in rows]


def test_a_part_is_a_copy():
    grid = FixedPoint(np.zeros(1), 0, 0, True, 1)
    sums = ClusterSums(3, 1, grid)
    sums.add(np.array([[1.0], [2.0], [3.0]]), np.array([0, 1, 2], np.int32))
    part = sums.part(slice(1, 3))
    part.add(np.array([[5.0]]), np.zeros(1, np.int32))
    assert part.sums.tolist() == [[7], [3]]
    assert part.counts.tolist() == [2, 1]
    assert sums.sums.tolist() == [[1], [2], [3]]


def test_rows_without_features_still_count():
    grid = FixedPoint.choose(np.zeros(0, np.float32), 0.0, n_rows=3)
    sums = ClusterSums(2, 0, grid)
    sums.add(np.ones((3, 4), np.float32)[:, :0], np.array([0, 1, 1], np.int32))
    assert sums.counts.tolist() == [1.0, 2.0]


def test_a_grid_of_other_features_is_refused():
    with pytest.raises(ValueError, match="2 features, expected 3"):
        ClusterSums(1, 3, FixedPoint.choose(np.zeros(2), 1.0, n_rows=1))


# --- light and heavy rows


def wide_case(dtype="float64", n=60, seed=0):
    """Rows of weights over fifteen orders of magnitude, with the grid of all of them."""
    r = np.random.default_rng(seed)
    x = (r.normal(size=(n, 5)) * 3 + 100).astype(dtype)
    weight = 10.0 ** r.uniform(-15, 0, n)
    statistics = scan(x, weight).finish()
    assert statistics.grid.wide
    return x, r.integers(-1, K, n).astype(np.int32), weight, statistics


@pytest.mark.parametrize(
    ("dtype", "sparse"),
    in_turns(["float32", "float64", "int16", "uint16"], [False, True, True, False]),
)
def test_wide_sums_are_those_of_python_integers(dtype, sparse):
    x, labels, weight, statistics = wide_case(dtype)
    grid = statistics.grid
    if sparse:
        grid = dataclasses.replace(grid, shift=np.zeros_like(grid.shift), bits=grid.bits - 7)
        x = np.where(x > 100, x, 0).astype(dtype)
    rows = sparse_rows(x) if sparse else x
    found = sums_of(rows, labels, weight, grid)
    assert integers_of(found) == fixed_point_sums(x, labels, weight, K, grid)
    # negative totals as well, and what comes back is nothing at all
    remove(found, rows, labels, weight)
    remove(found, rows, labels, weight)
    sums, totals = fixed_point_sums(x, labels, weight, K, grid)
    taken = [[-v for v in row] for row in sums], [-t for t in totals]
    assert integers_of(found) == taken
    found.add(rows, labels, weight)
    assert same(found, ClusterSums(K, 5, grid))


def sparse_rows(x):
    csr = scipy.sparse.csr_matrix(x)
    return SparseBlock(csr.data, csr.indices, csr.indptr.astype(np.int64), x.shape[1])


@pytest.mark.parametrize("sparse", [False, True])
def test_wide_sums_in_any_order(sparse):
    x, labels, weight, statistics = wide_case()
    grid = statistics.grid
    if sparse:
        grid = dataclasses.replace(grid, shift=np.zeros_like(grid.shift), bits=grid.bits - 7)
    rows = sparse_rows if sparse else np.ascontiguousarray
    r = np.random.default_rng(1)
    before = r.integers(-1, K, len(x)).astype(np.int32)
    expected = sums_of(rows(x), labels, weight, grid)
    order = r.permutation(len(x))
    parts = [ClusterSums(K, 5, grid) for _ in range(3)]
    for part, at in zip(parts, np.array_split(order, 3), strict=True):
        part.add(rows(x[at]), before[at], weight[at])
    together = pickle.loads(pickle.dumps(parts[2])).merge(parts[0]).merge(parts[1])
    together.move(rows(x), before, labels, weight)
    assert same(together, expected)
    again = ClusterSums.of(*together.limbs(), grid)
    assert same(again, expected)
    remove(again, rows(x[:9]), labels[:9], weight[:9])
    assert not same(again, expected)
    assert same(together, expected), "limbs were copied"


def test_wide_sums_may_wrap_around_on_the_way():
    x, weight = np.full((3, 1), 1.5), np.array([1.0, 1.0, 2.0**-49])
    grid = largest_total(x[:, 0], weight, False, True)[3]
    assert grid.wide
    labels = np.zeros(3, np.int32)
    once, doubled = ClusterSums(1, 1, grid), ClusterSums(1, 1, grid)
    once.add(x, labels, weight)
    doubled.merge(once)
    for _ in range(62):
        doubled.merge(pickle.loads(pickle.dumps(doubled)))
    whole = 2**62 * integers_of(once)[0][0][0]
    assert whole > 2**120, "far beyond 2^63 steps"
    assert (integers_of(doubled)[0][0][0] - whole) % 2**114 == 0
    assert once.nbytes == 2 * 2 * 8


@pytest.mark.parametrize(
    ("dtype", "digits", "n_rows"), [("float32", 24, 80_000_000), ("float64", 32, 1_000)]
)
def test_sums_are_wide_only_if_light_rows_need_it(dtype, digits, n_rows):
    def grid_for(lightest, **options):
        return FixedPoint.choose(
            np.zeros(2, dtype), 1.5, n_rows=n_rows, total_weight=n_rows * 0.9, max_weight=0.9,
            min_weight=lightest, **{"integer_weights": False, **options},
        )  # fmt: skip

    single = grid_for(0.9)
    assert not single.wide
    edge = single.least_weight(1.5)
    assert single.weight_bits + np.log2(edge) == digits
    assert not grid_for(edge).wide
    below = grid_for(edge * (1 - 2.0**-53))
    assert below.wide
    # the rest is that of the narrow grid: heavy rows are summed alike
    assert dataclasses.replace(below, wide=False).bits == single.bits
    assert below.least_weight(1.5) == edge * 2.0**-50
    assert below.least_weight(1.5) <= 1e-15
    assert below.least_weight(1.5) > edge * 2.0**-50 * (1 - 2.0**-53)
    assert not grid_for(1e-30, integer_weights=True).wide


# --- outliers


def many_and_one(dtype="float32", far=1e15, n=60):
    """Rows of unit size and one far out, with the grid of all of them."""
    r = np.random.default_rng(3)
    x = r.normal(size=(n, 5)).astype(dtype)
    x[n // 2] = far
    return x, r.integers(-1, K, n).astype(np.int32)


@pytest.mark.parametrize(("sparse", "heaviest"), [(False, None), (True, 3), (False, 2**30)])
def test_wide_sums_of_integer_weights_are_those_of_python_integers(sparse, heaviest):
    x, labels = many_and_one()
    weight = None
    if heaviest is not None:
        weight = np.random.default_rng(4).integers(0, heaviest + 1, len(x)).astype(float)
        weight[len(x) // 2] = heaviest
    grid = scan(x, weight).finish().grid
    assert grid.wide
    assert grid.integer_weights
    assert grid.shift.any()
    if sparse:
        grid = dataclasses.replace(grid, shift=np.zeros_like(grid.shift), bits=grid.bits - 7)
        x = np.where(np.abs(x) > 0.5, x, 0).astype(x.dtype)
    rows = sparse_rows(x) if sparse else x
    found = sums_of(rows, labels, weight, grid)
    w = np.ones(len(x)) if weight is None else weight
    expected = fixed_point_sums(x, labels, w, K, grid)
    assert integers_of(found) == expected
    remove(found, rows, labels, weight)
    remove(found, rows, labels, weight)
    assert integers_of(found)[0] == [[-v for v in row] for row in expected[0]]
    found.add(rows, labels, weight)
    assert same(found, ClusterSums(K, 5, grid))


WIDE_FROM = {"float32": 1e12, "float64": 1e12, "int64": 1e17}
"""With 3,000 rows; integers have no rounding as long as their sums fit."""


@pytest.mark.parametrize(
    ("dtype", "far", "weighted"),
    in_turns(list(WIDE_FROM), [10.0, 1e8, 1e9, 1e12, 1e15, 1e17], [False, True]),
)
def test_means_next_to_outliers(dtype, far, weighted):
    x, labels = many_and_one("float64", far, n=3_000)
    spread = 1_000.0 if dtype == "int64" else 1.0
    x *= spread
    x[len(x) // 2] = far
    x = (np.rint(x) if dtype == "int64" else x).astype(dtype)
    labels[len(x) // 2] = -1
    weight = np.random.default_rng(6).uniform(0.5, 1, len(x)) if weighted else None
    statistics = scan(x, weight).finish()
    assert statistics.grid.wide == (far >= (1e15 if weighted and spread > 1 else WIDE_FROM[dtype]))
    found = sums_of(x, labels, weight, statistics.grid).means_float64(np.zeros((K, 5)))
    for j in range(K):
        own = labels == j
        of_own = None if weight is None else weight[own]
        exact = np.average(x[own].astype(float), axis=0, weights=of_own)
        np.testing.assert_allclose(found[j], exact, rtol=0, atol=2e-6 * spread)


@pytest.mark.parametrize("heaviest", [1e-300, 1e-150, 1.0, 2.0**499])
def test_any_unit_of_weights(heaviest):
    x, labels, weight, _ = wide_case()
    weight *= heaviest
    statistics = scan(x, weight).finish()
    if heaviest < 1e-290:
        assert statistics.grid.least_weight(statistics.max_abs) > statistics.min_weight
        return
    assert statistics.grid.least_weight(statistics.max_abs) <= statistics.min_weight
    means = sums_of(x, labels, weight, statistics.grid).means(np.zeros((K, 5)))
    for j in range(K):
        own = labels == j
        exact = np.average(x[own], axis=0, weights=weight[own] / weight[own].max())
        np.testing.assert_allclose(means[j], exact, rtol=1e-12)


# --- weights that a grid cannot represent


UNITS = FixedPoint.choose(np.zeros(2, np.float32), 3.0, n_rows=9)
REALS = FixedPoint.choose(
    np.zeros(2, np.float32), 3.0, n_rows=9, total_weight=4.0, max_weight=0.9, min_weight=0.01,
    integer_weights=False,
)  # fmt: skip
WIDE = dataclasses.replace(REALS, wide=True)
assert (REALS.wide, WIDE.wide) == (False, True)


@pytest.mark.parametrize(
    ("dtype", "sparse"), [("float32", True), ("float32", False), ("float16", False)]
)
def test_a_weight_that_the_grid_cannot_represent_is_refused(dtype, sparse, monkeypatch):
    """And not taken for another one; of float16 rows it is the first of a block of eight."""
    monkeypatch.setattr("largek_dask.kernels.rows._BLOCK_VALUES", 16)
    for grid, wrongs in (
        (UNITS, (0.5, 1.25, 2.0**51, -1.0, np.nan, np.inf, 1e-300, 1e300)),
        (REALS, (1e-20, 2.0**20, -0.5, np.nan, np.inf)),
        (WIDE, (1e-35, 2.0**20, -0.5, np.nan, np.inf)),
    ):
        for wrong in wrongs:
            refuse(grid, wrong, dtype, sparse)


def refuse(grid, wrong, dtype, sparse):
    n = 50
    x = np.random.default_rng(0).integers(-3, 4, (n, 2)).astype(dtype)
    rows = sparse_rows(x.astype(np.float32)) if sparse else x
    weight = np.full(n, 1.0 if grid is UNITS else 0.25)
    old, new = np.zeros(n, np.int32), (np.arange(n) % 4 < 2).astype(np.int32)
    sums = ClusterSums(2, 2, grid)
    sums.add(rows, old, weight)
    before = pickle.loads(pickle.dumps(sums))
    spoiled = weight.copy()
    spoiled[n - 2] = wrong
    assert new[n - 2] == 1
    for change in (
        lambda: sums.add(rows, old, spoiled),
        lambda: sums.move(rows, old, new, spoiled),
    ):
        with pytest.raises(ValueError, match=f"row {n - 2} weighs .* chosen for"):
            change()
        assert same(sums, before)
    new[n - 2] = 0
    sums.move(rows, old, new, spoiled)  # that row is not looked at


def test_rows_without_weights_weigh_one_on_any_grid():
    x, labels = np.float32([[1, 2], [3, -1], [0.5, 0.25]]), np.int32([0, 1, 0])
    for grid in (UNITS, REALS, WIDE):
        found = sums_of(x, labels, None, grid)
        assert same(found, sums_of(x, labels, np.ones(3), grid))
        assert found.counts.tolist() == [2, 1, 0]
    heavy = FixedPoint.choose(
        np.zeros(2, np.float32), 3.0, n_rows=9, total_weight=2.0**70, max_weight=2.0**69,
        integer_weights=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="row 0 weighs"):
        sums_of(x, labels, None, heavy)
