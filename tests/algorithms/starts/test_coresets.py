"""Coresets: probabilities of rows, estimates, and independence of chunks and threads."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.starts import weighted_sampling
from largek_dask.algorithms.starts.coresets import draw_coreset
from largek_dask.algorithms.starts.weighted_sampling import (
    FULL,
    POSITION_BITS,
    _positions,
    draw_by_mass,
)
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, ParameterError
from largek_dask.passes.local import LocalPasses
from tests.helpers.covering import every_two, in_turns
from tests.oracles.mixtures import coreset_probabilities, rows_at
from tests.passes.toys import rows_of


def coreset_of(x, n, seed=0, *, weight=None, chunk=None, n_threads=1, bad="raise", **how):
    sizes = [len(x)] if chunk is None else [min(chunk, len(x) - b) for b in range(0, len(x), chunk)]
    with LocalPasses(rows_of(x, sizes, weight), n_threads=n_threads, on_bad_rows=bad) as passes:
        assert passes.n_chunks == len(sizes)
        return draw_coreset(passes, Rng(seed), n, **how)


def same(a, b):
    return a.rows.tobytes() == b.rows.tobytes() and a.factors.tobytes() == b.factors.tobytes()


def heavy_tails(n=300, d=5):
    r = np.random.default_rng(1)
    return (r.normal(size=(n, d)) * np.exp(2 * r.normal(size=n))[:, None]).astype(np.float32)


@pytest.mark.parametrize(("weighted", "uniform", "independent"), every_two(*3 * [[False, True]]))
def test_coresets_are_those_of_exact_fractions(weighted, uniform, independent):
    x, n = heavy_tails(), 64
    weight = np.exp(np.random.default_rng(2).normal(size=len(x)) * 3) if weighted else None
    w = np.ones(len(x)) if weight is None else weight
    coreset = coreset_of(x, n, 7, weight=weight, uniform=uniform, independent=independent)
    with LocalPasses(rows_of(x, [len(x)], weight), n_threads=1) as passes:
        center = None if uniform else passes.statistics.mean.astype(np.float32)
    q = coreset_probabilities(x, w, center)
    by_weight = coreset_probabilities(x, w)
    by_square = [2 * a - b for a, b in zip(q, by_weight, strict=True)]
    lines = [by_weight] if uniform else [by_weight, by_square]
    bits = Rng(7).generator(0, "coreset").integers(1 << POSITION_BITS, size=n).tolist()
    places = [Fraction(b, 1 << POSITION_BITS) for b in bits]
    if not independent:
        places = [(i + place) / n for i, place in enumerate(places)]
    rows, counts = np.unique(rows_at(places, lines), return_counts=True)
    np.testing.assert_array_equal(coreset.rows, rows)
    expected = [count / (n * float(q[row])) for row, count in zip(rows, counts, strict=True)]
    np.testing.assert_allclose(coreset.factors, expected, rtol=1e-9)
    assert coreset.n_evaluated == (0 if uniform else len(x))
    assert (np.diff(coreset.rows) > 0).all()
    assert counts.max() > 1 or uniform, "no row was drawn twice"


@pytest.mark.parametrize(("weighted", "uniform"), in_turns([True, False], [False, True]))
def test_coresets_do_not_depend_on_chunks_and_threads(weighted, uniform):
    x = heavy_tails(1500)
    weight = np.exp(np.random.default_rng(2).normal(size=len(x)) * 3) if weighted else None
    whole = coreset_of(x, 200, weight=weight, uniform=uniform)
    for chunk in (1, 7, 1000):
        for n_threads in (1, 3):
            other = coreset_of(
                x, 200, weight=weight, uniform=uniform, chunk=chunk, n_threads=n_threads
            )
            assert same(whole, other)
    assert not same(whole, coreset_of(x, 200, 1, weight=weight, uniform=uniform))


def test_masses_have_the_finest_scale_that_fits(monkeypatch):
    """However far the sum of squares lies below its bound, and whichever chunk overflows."""
    lines = []
    line_of = weighted_sampling._line
    monkeypatch.setattr(
        weighted_sampling, "_line", lambda *how: lines.append(line_of(*how)) or lines[-1]
    )
    for outlier in (1e2, 1e6, 1e12):
        x = np.random.default_rng(0).normal(size=(1000, 3))
        x[77] = outlier
        weight = np.full(len(x), 1.0)
        weight[77] = 1e-12
        found = [coreset_of(x, 50, weight=weight, chunk=chunk) for chunk in (None, 1, 999)]
        assert same(found[0], found[1])
        assert same(found[0], found[2])
        assert all(1 << 46 <= line.mass < 1 << 62 for line in lines)
    assert len({line.scale for line in lines}) > 2, "one scale did for all"


def test_weights_are_repeated_rows():
    """The same draws fall on a row of weight 3 and on one of three like it."""
    x = heavy_tails(250)
    times = np.random.default_rng(3).integers(0, 4, len(x))
    weighted = coreset_of(x, 150, weight=times.astype(np.float64))
    repeated = coreset_of(np.repeat(x, times, axis=0), 150)
    of = np.repeat(np.arange(len(x)), times)[repeated.rows]
    np.testing.assert_array_equal(np.unique(of), weighted.rows)
    sums = np.bincount(of, repeated.factors, len(x))[weighted.rows]
    np.testing.assert_allclose(sums, weighted.factors * times[weighted.rows], rtol=1e-9)


def test_rows_without_weight_and_bad_rows_are_never_drawn():
    x = heavy_tails(100)
    x[10] = np.nan
    x[20, 2] = np.inf
    x[30] = 1e6
    weight = np.ones(len(x))
    weight[[30, 40]] = 0
    weight[50] = 1e-12
    for uniform in (False, True):
        coreset = coreset_of(x, 5000, weight=weight, bad="skip", chunk=16, uniform=uniform)
        left = set(range(100)) - {10, 20, 30, 40}
        assert left - {50} <= set(coreset.rows.tolist()) <= left


class Given:
    """A generator of given numbers."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def integers(self, end, size):
        assert end == 1 << POSITION_BITS
        assert size == len(self.numbers)
        return np.array(self.numbers)


def test_positions_on_the_edges_of_rows():
    """An edge belongs to the next row that has any mass; and however little that is, it has one."""
    weight = np.array([0, 1, 0, 1e-20, 0, 1, 0])
    x = np.arange(7.0)[:, None]
    last = (1 << POSITION_BITS) - 1
    for chunk in (1, 2, 7):
        with LocalPasses(rows_of(x, [chunk] * (7 // chunk) + [1] * (7 % chunk), weight)) as passes:
            generator = Given(0, last // 2 - 2, last // 2 + 1, last)
            drawn = draw_by_mass(passes, generator, 4)
        np.testing.assert_array_equal(drawn.rows, [1, 1, 3, 5])
        np.testing.assert_allclose(drawn.probabilities, [0.5, 0.5, 2.0**-60, 0.5], rtol=1e-9)


@pytest.mark.parametrize(
    ("masses", "spaced"),
    in_turns([(1,), (FULL - 1,), (3, FULL - 1), (FULL // 3, 2**32 - 1)], [False, True, True]),
)
def test_positions_are_exact_integers(masses, spaced):
    bits = np.random.default_rng(0).integers(1 << POSITION_BITS, size=3000)
    bits[:4] = 0, 1, (1 << POSITION_BITS) - 1, 1 << POSITION_BITS - 1
    n, seen = len(bits), 0
    lines = _positions(Given(*bits), n, masses, spaced=spaced)
    for which, (mass, (draws, positions)) in enumerate(zip(masses, lines, strict=True)):
        assert (np.diff(positions) >= 0).all()
        assert set(draws.tolist()) <= set(range(n))
        for draw, at in zip(draws.tolist(), positions.tolist(), strict=True):
            place = Fraction(int(bits[draw]), 1 << POSITION_BITS)
            if spaced:
                place = (draw + place) / n
            place = place * len(masses) - which
            assert 0 <= place < 1
            assert at == int(place * mass)
            seen += 1
    assert seen == n


@pytest.mark.parametrize("spread", [0.0, 1e-170])
def test_rows_that_are_all_equal(spread):
    """Or whose squares are too small for a number: then drawn by weight alone."""
    x = spread * np.arange(50.0)[:, None] if spread else np.full((50, 3), 0.1)
    weight = np.arange(50.0)
    coreset = coreset_of(x, 10_000, weight=weight)
    np.testing.assert_array_equal(coreset.rows, np.arange(1, 50))
    # a row's number of draws is off by less than 2
    draws = 10_000 * weight[1:] / weight.sum()
    assert (np.abs(coreset.factors - 1) * draws < 2).all()


@pytest.mark.parametrize("weight", [None, 1e-12])
def test_an_outlier_is_always_drawn(weight):
    """And its weight is not overstated: half of all draws hit it."""
    x = np.random.default_rng(0).normal(size=(5000, 3)).astype(np.float32)
    x[1234] = 1e6
    weights = None
    if weight is not None:
        weights = np.ones(len(x))
        weights[1234] = weight
    coreset = coreset_of(x, 100, weight=weights, chunk=700)
    at = np.flatnonzero(coreset.rows == 1234)
    if weight is None:
        # every draw by square hits it, unless it falls on what the other rows have of these
        np.testing.assert_allclose(coreset.factors[at], 1, rtol=0.03)
    rest = np.delete(coreset.factors, at)
    assert rest.min() > 0
    assert 40 <= len(rest) <= 100


def test_weights_over_twelve_orders_of_magnitude():
    x = np.random.default_rng(0).normal(size=(2000, 2))
    weight = 10.0 ** np.random.default_rng(1).uniform(-6, 6, len(x))
    sums = []
    for seed in range(200):
        coreset = coreset_of(x, 64, seed, weight=weight)
        assert np.isfinite(coreset.factors).all()
        sums.append(weight[coreset.rows] @ coreset.factors)
    assert abs(np.mean(sums) - weight.sum()) < 4 * np.std(sums) / np.sqrt(200) + 1e-9 * weight.sum()
    # what a coreset does not depend on: the unit of the weights
    one, other = (coreset_of(x, 64, weight=weight * unit) for unit in (1.0, 2.0**-90))
    assert same(one, other)


def test_n_spaced_draws_of_n_equal_rows_are_all_rows():
    x = heavy_tails(333)
    coreset = coreset_of(x, 333, uniform=True, chunk=50)
    np.testing.assert_array_equal(coreset.rows, np.arange(333))
    assert (coreset.factors == 1.0).all()


def test_sparse_rows():
    import scipy.sparse as scipy_sparse

    x = np.round(heavy_tails(200) * (np.arange(5) % 2), 2)
    sparse = open_rows(scipy_sparse.csr_matrix(x))
    with LocalPasses(sparse, n_threads=1) as passes:
        assert passes.is_sparse
        assert same(draw_coreset(passes, Rng(2), 60), coreset_of(x, 60, 2))


def test_impossible_draws_are_errors():
    x = heavy_tails(20)
    with pytest.raises(ParameterError, match="at least one draw, got n=0"):
        coreset_of(x, 0)
    with LocalPasses(rows_of(x, [20]), n_threads=1) as passes:
        nothing = passes.subset(np.arange(20), np.zeros(20))
        with pytest.raises(DataError, match="at least one row must have a positive weight"):
            draw_by_mass(nothing, Rng(0).generator(0, "any"), 5)
        heavy = passes.subset(np.arange(20), np.full(20, 2.0**40))
        with pytest.raises(ValueError, match="weigh more than the statistics"):
            draw_by_mass(heavy, Rng(0).generator(0, "any"), 5)
