from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels import sampling
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.sampling import (
    bernoulli_by_d2,
    draw_by_d2,
    potentials,
    share_of_chunks,
    shuffle_places,
    update_d2,
)

masses = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9)), min_size=1, max_size=20)
uniform = st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2.0**-53))


def data(dtype, d, n=40, seed=0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((n, d)) * 10 + 20).astype(dtype)
    x[n // 2 :: 3] = x[0]
    return x, rng


def squares(x, centers):
    rows, centers = x.astype(np.float64), centers.astype(np.float64)
    return ((rows[:, None] - centers[None]) ** 2).sum(axis=2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("d", [2, 11])
def test_updates_give_the_distance_to_the_nearest_centre(dtype, d):
    x, rng = data(dtype, d)
    d2 = np.full(len(x), np.inf)
    labels = np.zeros(len(x), np.int32)
    shift = x.mean(axis=0)
    chosen = x[:0]
    for m in (1, 3, 1, 4):
        new = x[rng.choice(len(x), m, replace=False)]
        real = new.astype(np.float64 if dtype == "float64" else np.float32)
        update_d2(x, pack_centers(real, shift), d2, labels, len(chosen))
        chosen = np.concatenate([chosen, new])
        exact = squares(x, chosen)
        np.testing.assert_allclose(d2, exact.min(axis=1), rtol=1e-5)
        np.testing.assert_allclose(exact[np.arange(len(x)), labels], d2, rtol=1e-12)
        assert (d2[(x[:, None] == chosen[None]).all(axis=2).any(axis=1)] == 0).all()


def test_earlier_centres_win_ties():
    x = np.array([[0.0, 0.0], [2.0, 0.0]])
    d2, labels = np.full(2, np.inf), np.zeros(2, np.int32)
    for offset, centers in enumerate(([[1.0, 0.0]], [[1.0, 0.0]], [[3.0, 0.0]])):
        update_d2(x, pack_centers(np.array(centers), np.zeros(2)), d2, labels, offset)
    assert labels.tolist() == [0, 0]
    assert d2.tolist() == [1.0, 1.0]
    update_d2(x, pack_centers(np.array([[2.0, 0.0]]), np.zeros(2)), d2)
    assert d2.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("weights", [None, "integers", "reals"])
@pytest.mark.parametrize("d", [2, 11])
def test_potentials(weights, d, monkeypatch):
    monkeypatch.setattr(sampling, "_SCORES", 50)
    x, rng = data("float64", d)
    candidates, d2 = x[5:9] + 0.1, squares(x, x[:2]).min(axis=1)
    weight = None
    if weights is not None:
        weight = rng.integers(0, 3, len(x)).astype(float)
        weight = weight if weights == "integers" else weight * rng.random(len(x))
    found = potentials(x, pack_centers(candidates, x.mean(axis=0)), d2, weight)
    left = np.minimum(squares(x, candidates), d2[:, None])
    expected = left.T @ (np.ones(len(x)) if weight is None else weight)
    np.testing.assert_allclose(found.values, expected, rtol=1e-10)


def unrounded(sums):
    integers, exponent = sums.integers()
    return [n * Fraction(2) ** exponent for n in integers]


def test_potentials_are_exact_sums():
    x, rng = data("float64", 3)
    packed = pack_centers(x[:5], x.mean(axis=0))
    d2 = rng.random(len(x)) * 1e3
    times = rng.integers(0, 4, len(x))
    weighted = potentials(x, packed, d2, times.astype(float))
    repeated = potentials(np.repeat(x, times, axis=0), packed, np.repeat(d2, times))
    assert unrounded(weighted) == unrounded(repeated)
    order = rng.permutation(len(x))
    parts = potentials(x[order[:13]], packed, d2[order[:13]])
    parts.merge(potentials(x[order[13:]], packed, d2[order[13:]]))
    assert parts.values.tolist() == potentials(x, packed, d2).values.tolist()
    assert potentials(x[:0], packed, d2[:0]).values.tolist() == [0.0] * 5


@given(masses, st.lists(uniform, max_size=8), st.booleans())
def test_draws_follow_the_cumulative_mass(mass, uniforms, weighted):
    mass, uniforms = np.array(mass), np.array(uniforms)
    weight = np.where(np.arange(len(mass)) % 3 == 1, 0.0, 2.0) if weighted else None
    own = mass if weight is None else mass * weight
    rows, total = draw_by_d2(mass, weight, uniforms)
    assert rows.dtype == np.int64
    edges = np.array([float(sum(own[: i + 1].tolist(), start=0.0)) for i in range(len(own))])
    assert total == edges[-1]
    if total == 0:
        assert len(rows) == 0
        return
    assert len(rows) == len(uniforms)
    assert (own[rows] > 0).all()
    for row, u in zip(rows, uniforms, strict=True):
        below = edges[row - 1] if row else 0.0
        assert below <= u * total <= edges[row]
        assert u * total < edges[row] or u == 1 - 2.0**-53


def test_draws_of_nothing():
    rows, mass = draw_by_d2(np.empty(0), None, np.array([0.5]))
    assert (len(rows), mass) == (0, 0.0)


@given(masses, st.floats(0, 10), st.booleans(), st.data())
def test_each_row_is_drawn_by_its_own_uniform(mass, factor, weighted, draw):
    mass = np.array(mass)
    uniforms = np.array(draw.draw(st.lists(uniform, min_size=len(mass), max_size=len(mass))))
    weight = np.arange(len(mass)) % 3.0 if weighted else None
    rows = bernoulli_by_d2(mass, weight, factor, uniforms)
    w = np.ones(len(mass)) if weight is None else weight
    expected = [
        i for i in range(len(mass)) if uniforms[i] < factor * (float(mass[i]) * float(w[i]))
    ]
    assert rows.tolist() == expected
    assert all(Fraction(float(mass[i])) * Fraction(float(w[i])) > 0 for i in rows)


@given(st.lists(uniform, min_size=1, max_size=12), st.data())
def test_places_are_settled_from_the_front_whatever_the_steps(uniforms, data):
    n = len(uniforms)
    whole, parts = np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int32)
    shuffle_places(whole, np.array(uniforms), 0)
    rest, expected = list(range(n)), []
    for i, u in enumerate(uniforms):
        j = int(u * (n - i))
        expected.append(rest[j])
        # the number that stood in front goes where the drawn one was
        rest[j] = rest[0]
        rest = rest[1:]
    assert whole.tolist() == expected
    begin = 0
    for step in [*data.draw(st.lists(st.integers(0, n), max_size=3)), n]:
        before = parts.copy()
        shuffle_places(parts, np.array(uniforms[begin : begin + step]), begin)
        assert parts[:begin].tolist() == before[:begin].tolist()
        begin = min(n, begin + step)
    assert parts.tolist() == expected


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.integers(1, 30),
    st.data(),
    st.sampled_from(["int32", "int64"]),
)
def test_a_share_of_chunks_is_that_of_every_chunk(sizes, of, data, dtype):
    begin = data.draw(st.integers(0, of))
    end = data.draw(st.integers(begin, of))
    table = np.concatenate([[0], np.cumsum(sizes)])
    order = np.random.default_rng(of).permutation(table[-1]).astype(dtype)
    parts = np.split(order, table[1:-1])
    cut = [part[begin * len(part) // of : end * len(part) // of] for part in parts]
    found = share_of_chunks(order, table, begin, end, of)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.concatenate(cut))
