"""Sums of rows by responsibility, against sums of Python integers and fractions."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact import soft_sums
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.soft_sums import MOST_CANDIDATES, SoftSums
from largek_dask.kernels.exact.transcendental import log
from tests.helpers.covering import in_turns
from tests.kernels.test_statistics import scan
from tests.oracles import mixtures as oracles

KINDS = ["iso", "isoflex", "diag"]


def mixture(means, variances, log_weights=None):
    """A packed mixture's numbers, of variances (1, 1), (k, 1) or (k, d)."""
    k, d = means.shape
    each = np.broadcast_to(variances, (k, d)).astype(np.float64)
    weights = log(np.full(k, 1 / k)) if log_weights is None else log_weights
    diag = variances.shape == (k, d)
    return SimpleNamespace(
        means=means,
        variances=variances,
        constants=weights - 0.5 * log(2 * np.pi * each).sum(axis=1),
        halves=np.full(k, 0.5) if diag else 0.5 / each[:, 0],
        scales=each if diag else np.ones((k, d)),
    )


def search(x, packed, n_candidates):
    """Candidates by log joint, the best ones first, and their squares."""
    rows, means = x.astype(np.float64), packed.means.astype(np.float64)
    squares = ((rows[:, None] - means[None]) ** 2 / packed.scales[None]).sum(axis=2)
    joint = packed.constants - packed.halves * squares
    order = np.argsort(-joint, axis=1, kind="stable")[:, :n_candidates]
    return order.astype(np.int32), np.take_along_axis(squares, order, axis=1)


def case(seed, covariance, dtype="float32", weighted="no", wide=False, n=40, k=5, d=3, width=3):
    """Rows, weights, a mixture and the grid of the rows."""
    r = np.random.default_rng(seed)
    centers = r.normal(size=(k, d)) * 9 + 20
    x = centers[r.integers(0, k, n)] + r.normal(size=(n, d)) * 4
    if wide and weighted != "real":
        x[0] *= 1e9  # one row far out
    x = x.astype(dtype)
    weight = None
    if weighted == "integer":
        weight = r.integers(0, 5, n).astype(float)
        weight[0] = 2
    elif weighted == "real":
        weight = r.uniform(0.5, 3, n) * (r.uniform(size=n) > 0.1)
        if wide:
            weight *= 10.0 ** r.integers(-12, 1, n)
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[covariance]
    statistics = scan(x, weight).finish()
    means = centers.astype(statistics.dtype)
    packed = mixture(means, r.uniform(8, 40, shape))
    grid = statistics.grid
    if wide and weighted != "real":  # what a sample of many rows would have found
        grid = FixedPoint.choose(
            grid.shift,
            statistics.max_abs,
            n_rows=n,
            total_weight=statistics.total_weight,
            max_weight=statistics.max_weight,
            integer_data=x.dtype.kind in "ui",
            spread=1e-6,
        )
    assert grid.wide == wide or x.dtype.kind in "ui"
    return x, weight, packed, grid, *search(x, packed, width)


def sums_of(covariance, x, weight, packed, grid, candidates, squares):
    out = SoftSums(*packed.means.shape, grid, covariance)
    out.add(x, weight, candidates, squares, packed)
    return out


def facts(sums):
    """All results, to the bit."""
    shape = sums.means(np.zeros(sums._sums.shape)).shape
    about = np.linspace(-3, 50, shape[0] * shape[1]).reshape(shape)
    fields = sums.masses, sums.means(about), sums.variances(about, about + 1)
    return [sums.bound, sums.total, sums.squares, *(f.tobytes() for f in fields)]


def part_of(rows, x, weight, packed, grid, candidates, squares):
    w = None if weight is None else weight[rows]
    return x[rows], w, packed, grid, candidates[rows], squares[rows]


kinds = st.sampled_from(KINDS)
dtypes = st.sampled_from(["float32", "float64", "float16", "uint8", "int32"])
weightings = st.sampled_from(["no", "integer", "real"])


@given(kinds, dtypes, weightings, st.integers(0, 2**31), st.integers(1, 5))
def test_sums_are_those_of_python_integers(covariance, dtype, weighted, seed, width):
    check_integers(covariance, case(seed, covariance, dtype, weighted, width=width))


@given(kinds, st.sampled_from(["float32", "float64"]), weightings, st.integers(0, 2**31))
def test_wide_sums_are_those_of_python_integers(covariance, dtype, weighted, seed):
    check_integers(covariance, case(seed, covariance, dtype, weighted, wide=True))


def check_integers(covariance, made):
    x, weight, packed, grid, candidates, squares = made
    found = sums_of(covariance, *made)
    wanted = oracles.soft_sums(x, weight, candidates, squares, packed, grid, covariance)
    wide = found._low.size > 0
    assert wide >= (grid.wide or grid.shift.dtype == np.float64)
    sums = found._sums.astype(object)
    if wide:
        sums = sums * 2**50 + found._low
        assert ((found._low >= 0) & (found._low < 2**50)).all()
    assert (sums == wanted["sums"]).all()
    assert found.masses == pytest.approx(wanted["masses"].astype(float), rel=1e-15, abs=0)
    assert found.bound == float(wanted["bound"])
    assert found.total == float(sum(wanted["masses"]))
    if grid.integer_weights:
        assert found.total == (len(x) if weight is None else weight.sum())
    if covariance == "diag":
        joined = found._squares.astype(object) * 2**50 + found._low_squares
        assert (joined == wanted["squares"]).all()
        units = [Fraction(2) ** -(50 + bits) for bits in found._own_square_bits.tolist()]
        assert found.squares == float(
            sum(int(v) * u for v, u in zip(joined.sum(0), units, strict=True))
        )
    else:
        assert found.squares == float(sum(wanted["squares"]))
    # where the rows are, and how far from any other means, by definition
    grain = 2.0 ** -(grid.bits + 50 * wide)
    new, fallback = found.means(packed.means) + 1, np.full(packed.means.shape, 7.0)
    exact = by_definition(covariance, wanted["entries"], x, new)
    largest = 1 + float(np.abs(x.astype(float) - new.mean(axis=0)).max())
    moved = float(np.abs(new.astype(float) - packed.means).max())
    atol = found.total * largest**2 * 1e-13 + 2 * len(wanted["entries"]) * moved * grain
    np.testing.assert_allclose(found.variances(packed.means, new), exact, rtol=1e-9, atol=atol)
    empty = wanted["masses"] == 0
    assert (found.means(fallback)[empty] == 7).all()
    tolerance = np.finfo(grid.shift.dtype).eps * 2.0 ** (grid.extent + 1)
    for c in np.flatnonzero(~empty):
        weights = [float(s) for _, j, s in wanted["entries"] if j == c]
        rows = x[[i for i, j, _ in wanted["entries"] if j == c]].astype(float)
        mean = np.average(rows, axis=0, weights=weights)
        atol = tolerance + grain * len(rows) / found.masses[c]
        np.testing.assert_allclose(found.means(fallback)[c], mean, rtol=1e-6, atol=atol)


def by_definition(covariance, entries, x, means):
    """Weighted squares about means by responsibility, each sum rounded once."""
    k, d = means.shape
    out = np.zeros((k, d), object)
    for i, c, share in entries:
        difference = [
            Fraction(float(a)) - Fraction(float(b)) for a, b in zip(x[i], means[c], strict=True)
        ]
        out[c] += np.array([share * v * v for v in difference], object)
    if covariance == "diag":
        return out.astype(float)
    each = out.sum(axis=1)[:, None]
    return each.astype(float) if covariance == "isoflex" else each.sum(axis=0)[None].astype(float)


@given(st.sampled_from(["float32", "float64"]), weightings, st.integers(0, 2**31))
def test_features_have_steps_of_their_own(dtype, weighted, seed):
    """Of units 2^-27, 1 and 2^27 each keeps as many digits as if it were the only one."""
    x, weight, packed, grid, candidates, squares = case(seed, "diag", dtype, weighted)
    units = 2.0 ** np.array([-27, 0, 27])
    shift = (grid.shift * units).astype(dtype)
    far = np.abs(x * units - shift.astype(float)).max(axis=0)
    extents = np.frexp(far)[1].astype(np.int64)
    wide = replace(grid, shift=shift, bits=grid.bits + grid.extent - 32, extent=32, extents=extents)
    scaled = mixture((packed.means * units).astype(dtype), packed.variances * units**2)
    made = (x * units).astype(dtype), weight, scaled, wide, candidates, squares
    check_integers("diag", made)
    found = sums_of("diag", *made)
    new = found.means(scaled.means)
    entries = oracles.soft_sums(*made[:2], candidates, squares, scaled, wide, "diag")["entries"]
    exact = by_definition("diag", entries, made[0], new)
    off = np.abs(found.variances(scaled.means, new) - exact)
    assert (off <= 1e-9 * exact + 1e-5 * units**2).all(), off / units**2


@pytest.mark.parametrize("wide", [False, True])
@given(kinds, st.sampled_from(["float32", "float64"]), weightings, st.randoms(), st.data())
def test_no_order_of_adding_and_merging_changes_a_bit(
    wide, covariance, dtype, weighted, random, data
):
    made = case(random.randrange(2**31), covariance, dtype, weighted, wide=wide)
    whole = sums_of(covariance, *made)
    order = np.array(random.sample(range(len(made[0])), len(made[0])))
    step = data.draw(st.integers(7, 40))
    merged = SoftSums(*made[2].means.shape, made[3], covariance)
    for begin in range(0, len(order), step):
        part = sums_of(covariance, *part_of(order[begin : begin + step], *made))
        merged = pickle.loads(pickle.dumps(part)).merge(merged)
    assert facts(merged) == facts(whole)
    assert merged.nbytes > 0
    assert (merged._sums == whole._sums).all()
    assert (merged._low == whole._low).all()
    assert (merged._low_masses == whole._low_masses).all(), "carried wherever it might overflow"


@pytest.mark.parametrize(("covariance", "weighted"), in_turns(KINDS, ["no", "integer", "real"]))
def test_several_blocks_of_rows(covariance, weighted, monkeypatch):
    made = case(3, covariance, "float32", weighted, n=700)
    assert len(made[0]) > 2 * 256  # several blocks of rows in the loop
    whole = facts(sums_of(covariance, *made))
    monkeypatch.setattr(soft_sums, "_ENTRIES", 300)
    assert facts(sums_of(covariance, *made)) == whole


@pytest.mark.parametrize("covariance", KINDS)
def test_rows_of_weight_0_are_absent(covariance):
    x, _, packed, grid, candidates, squares = case(6, covariance)
    keep = np.arange(len(x)) % 3 > 0
    expected = sums_of(covariance, x[keep], None, packed, grid, candidates[keep], squares[keep])
    x, candidates, squares = x.copy(), candidates.copy(), squares.copy()
    x[~keep], candidates[~keep], squares[~keep] = np.nan, 2**30, np.nan
    found = sums_of(covariance, x, keep.astype(float), packed, grid, candidates, squares)
    assert facts(found) == facts(expected)


@pytest.mark.parametrize("covariance", KINDS)
def test_missing_candidates_are_ignored(covariance):
    made = x, _, packed, grid, candidates, squares = case(7, covariance, width=2)
    n = len(x)
    more = np.c_[candidates, np.full(n, -1, np.int32)].astype(np.int32)
    found = sums_of(covariance, x, None, packed, grid, more, np.c_[squares, np.full(n, np.inf)])
    assert facts(found) == facts(sums_of(covariance, *made))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_candidates_need_no_order(dtype):
    x, _, packed, grid, candidates, squares = case(8, "isoflex", dtype, n=300, width=5)
    columns = np.random.default_rng(1).permuted(np.tile(np.arange(5), (len(x), 1)), axis=1)
    assert (columns[:, 0] > 0).any()
    candidates, squares = (np.take_along_axis(t, columns, axis=1) for t in (candidates, squares))
    # the oracle finds the most responsible one wherever it stands
    check_integers("isoflex", (x, None, packed, grid, candidates, squares))


def test_a_retired_component_has_no_share_unless_nothing_else_is_there():
    x, _, packed, grid, _, _ = case(9, "isoflex", k=2)
    packed.constants[1] = -np.inf
    candidates, squares = search(x, packed, 2)
    found = sums_of("isoflex", x, None, packed, grid, candidates, squares)
    assert found.masses.tolist() == [len(x), 0]
    packed.constants[0] = -np.inf
    candidates, squares = search(x[:3], packed, 2)
    found = sums_of("isoflex", x[:3], None, packed, grid, candidates, squares)
    assert found.total == 3
    assert np.isnan(found.bound), "no density is no finite number"


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 44)])
def test_responsibilities_that_round_to_0(dtype, bits):
    means = np.array([[0.0], [1.0]], dtype)
    packed = mixture(means, np.ones((1, 1)))
    for nats, share in ((bits + 1.1, 0), (bits + 0.9, 1)):
        # a row whose second candidate has the odds 2^-nats
        squares = np.array([[0.0, 2 * nats * np.log(2)]])
        grid = FixedPoint.choose(np.zeros(1, dtype), 1.0, n_rows=1)
        found = sums_of("iso", means[:1], None, packed, grid, np.array([[0, 1]], np.int32), squares)
        assert found.masses.tolist() == [1 - share * 2.0**-bits, share * 2.0**-bits]


@given(st.sampled_from(["float32", "float64"]), st.integers(2, 9), st.integers(0, 2**31))
def test_loss_by_rounded_responsibilities_is_bounded(dtype, width, seed):
    r = np.random.default_rng(seed)
    h = 2.0 ** -soft_sums.SHARE_BITS[np.dtype(dtype).itemsize]
    # about the step, where the loss is largest; half a step is the worst
    others = h * 2.0 ** np.r_[-1.0, r.uniform(-3, 3, width - 2)]
    true = np.r_[1 - others.sum(), others]
    steps, _ = oracles.responsibilities(log(true), int(1 / h))
    rounded = [Fraction(s) * Fraction(h) for s in steps]
    assert sum(rounded) == 1
    loss = sum(
        Fraction(oracles.log(float(p / Fraction(t)))) * p
        for p, t in zip(rounded, true.tolist(), strict=True)
        if p > 0
    )
    assert loss <= (width - 1) * h / 2 * (1 + 1e-3) + width**3 * h * h / 4


@pytest.mark.parametrize(
    ("covariance", "own"),
    [*((kind, None) for kind in KINDS), ("diag", [0, -30]), ("diag", [-9, 0])],
)
def test_nothing_overflows_at_the_edge(covariance, own):
    # the largest total of integer weights, all rows as far out as any, halved among two
    d, total = 2, 2.0**36 - 1
    a = 1 - 2.0**-20
    x = np.full((3, d), a, np.float32) * np.float32(2) ** np.array(own or [0, 0], np.float32)
    # those of "diag" are moved to the end of the extent
    means = np.full((2, d), -(2.0**60) if covariance == "diag" else -a, np.float32)
    packed = mixture(means, np.ones({"iso": (1, 1), "isoflex": (2, 1), "diag": (2, d)}[covariance]))
    weight = np.array([2.0**35, 2.0**35 - 2, 1])
    candidates, squares = search(x, packed, 2)
    for spread in (None, 1e-9):
        grid = FixedPoint.choose(
            np.zeros(d, np.float32),
            a,
            n_rows=4,
            total_weight=total,
            max_weight=total,
            spread=spread,
        )
        assert grid.integer_weights
        assert grid.wide == (spread is not None)
        if own:
            grid = replace(grid, extents=np.array(own))
        made = x, weight, packed, grid, candidates, squares
        check_integers(covariance, made)
        found = sums_of(covariance, *made)
        assert found.masses.tolist() == [total / 2] * 2
        assert found._sums.min() > 2**58, "near the edge"
        if covariance == "diag":
            assert found._squares.min() > 2**57, "near the edge"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("covariance", KINDS)
def test_one_row_far_out_hides_no_variance(covariance, dtype):
    r = np.random.default_rng(2)
    n, d = 4000, 2
    x = np.r_[r.normal(size=(n, d)), [[1e6, 1e6]]].astype(dtype)
    means = np.array([[0.1, -0.1], [1e6, 1e6]], dtype)
    grid = FixedPoint.choose(np.zeros(d, dtype), 1e6, n_rows=n + 1, spread=1.0)
    packed = mixture(means, np.ones({"iso": (1, 1), "isoflex": (2, 1), "diag": (2, d)}[covariance]))
    candidates, squares = search(x, packed, 1)
    assert candidates[:, 0].tolist() == [0] * n + [1]
    found = sums_of(covariance, x, None, packed, grid, candidates, squares)
    new = found.means(means)
    exact = ((x[:n].astype(float) - new[0].astype(float)) ** 2).sum(axis=0)
    wanted = {"iso": [[exact.sum()]], "isoflex": [[exact.sum()], [0]], "diag": [exact, [0, 0]]}[
        covariance
    ]
    np.testing.assert_allclose(found.variances(means, new), wanted, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("covariance", KINDS)
def test_tight_components_far_from_the_origin(covariance):
    r = np.random.default_rng(3)
    k, d, n = 3, 2, 300
    centers = 1e6 + r.normal(size=(k, d))
    labels = np.arange(n) % k
    x = centers[labels] + r.normal(size=(n, d)) * 1e-3
    packed = mixture(
        centers + 1e-4,
        np.full({"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[covariance], 1e-6),
    )
    grid = scan(x).finish().grid
    candidates, squares = search(x, packed, 2)
    found = sums_of(covariance, x, None, packed, grid, candidates, squares)
    new = found.means(packed.means)
    entries = oracles.soft_sums(x, None, candidates, squares, packed, grid, covariance)["entries"]
    exact = by_definition(covariance, entries, x, new)
    np.testing.assert_allclose(found.variances(packed.means, new), exact, rtol=1e-6)
    assert (found.variances(packed.means, new) / found.total < 1e-5).all()


@pytest.mark.parametrize("covariance", KINDS)
def test_no_sum_of_squares_is_negative(covariance):
    # every row is a component's only one, and its mean comes from far away
    r = np.random.default_rng(5)
    x = r.normal(size=(200, 2))
    shape = {"iso": (1, 1), "isoflex": (200, 1), "diag": (200, 2)}[covariance]
    packed = mixture(r.normal(size=x.shape) * 9, np.ones(shape))
    grid = scan(x).finish().grid
    candidates = np.arange(200, dtype=np.int32)[:, None]
    squares = ((x - packed.means) ** 2).sum(axis=1)[:, None]
    found = sums_of(covariance, x, None, packed, grid, candidates, squares)
    variances = found.variances(packed.means, found.means(packed.means))
    assert ((variances >= 0) & (variances < 1e-10)).all(), "of sums of about 3e4"
    if covariance != "iso":
        assert (variances == 0).sum() > 20, "some were below"


def test_means_far_from_all_rows():
    x = np.random.default_rng(4).normal(size=(50, 2)).astype(np.float32)
    packed = mixture(np.array([[0, 0], [1e18, -1e18]], np.float32), np.ones((2, 2)))
    grid = scan(x).finish().grid
    candidates = np.tile(np.array([1, 0], np.int32), (50, 1))
    found = SoftSums(2, 2, grid, "diag")
    found.add(x, None, candidates[:, :1], np.full((50, 1), 1e36), packed)  # all for the far one
    new = found.means(packed.means)
    exact = ((x.astype(float) - new[1].astype(float)) ** 2).sum(axis=0)
    np.testing.assert_allclose(found.variances(packed.means, new)[1], exact, rtol=1e-9)


def test_wrong_arguments_are_refused_and_nothing_is_added():
    x, _, packed, grid, candidates, squares = case(12, "iso")
    with pytest.raises(ValueError, match="the grid has 3 features, expected 4"):
        SoftSums(5, 4, grid, "iso")
    with pytest.raises(ValueError, match="got 'full'"):
        SoftSums(5, 3, grid, "full")
    sums = SoftSums(5, 3, grid, "iso")
    empty = facts(sums)
    weight = np.ones(len(x))
    weight[7] = 0.5
    with pytest.raises(ValueError, match=r"row 7 weighs .*0.5.* chosen for integer weights"):
        sums.add(x, weight, candidates, squares, packed)
    many = np.zeros((len(x), MOST_CANDIDATES + 1), np.int32)
    with pytest.raises(ValueError, match="4097 candidates per row"):
        sums.add(x, None, many, many.astype(float), packed)
    assert facts(sums) == empty
    for wide in (False, True):
        _, weight, _, real, _, _ = case(13, "iso", weighted="real", wide=wide)
        sums = SoftSums(5, 3, real, "iso")
        heavy = np.where(np.arange(len(x)) == 3, 1e30, 1.0)
        with pytest.raises(ValueError, match=r"row 3 weighs .*1e\+30.* chosen for other weights"):
            sums.add(x, heavy, candidates, squares, packed)
        sums.add(x, None, candidates, squares, packed)  # rows of weight 1
        assert sums.total == len(x)


def test_no_rows_are_no_sums():
    x, _, packed, grid, candidates, squares = case(14, "diag")
    sums = sums_of("diag", x[:0], None, packed, grid, candidates[:0], squares[:0])
    assert (sums.bound, sums.total, sums.squares) == (0, 0, 0)
    assert sums.means(packed.means).tolist() == packed.means.tolist()
    assert not sums.variances(packed.means, packed.means).any()
