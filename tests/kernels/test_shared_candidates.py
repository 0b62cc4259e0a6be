"""The published search: every row meets the neighbourhoods of its candidates."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.bounds import shared_candidates
from largek_dask.kernels.bounds.shared_candidates import (
    PairSums,
    search_neighbourhoods,
    steps_of_pairs,
)
from largek_dask.kernels.mixtures import pack_mixture
from tests.helpers.covering import every_two
from tests.oracles import mixtures as oracles


def table(k, width, r):
    """(k, width) neighbourhoods at random, each component the first of its own."""
    rows = [[c, *r.choice(np.delete(np.arange(k), c), width - 1, replace=False)] for c in range(k)]
    return np.array(rows, np.int32)


@pytest.mark.parametrize(
    ("shape", "n_drawn", "dtype", "kind"),
    every_two(
        [(1, 1, 1), (7, 3, 2), (30, 5, 4)], [0, 2], ["f4", "f8", "u1", "f2"], ["iso", "isoflex"]
    ),
)
def test_rows_find_the_best_of_what_they_meet(shape, n_drawn, dtype, kind, monkeypatch):
    k, n_candidates, width = shape
    r = np.random.default_rng(k + n_drawn)
    n, d = 300, 5
    x = (r.normal(size=(n, d)) * 20 + 60).astype(dtype)
    real = np.float32 if dtype != "f8" else np.float64
    means = (r.normal(size=(k, d)) * 20 + 60).astype(real)
    variances = r.uniform(50, 200, (1, 1) if kind == "iso" else (k, 1))
    packed = pack_mixture(means, variances, np.full(k, -np.log(k)), means.mean(0))
    near, drawn = table(k, width, r), r.integers(0, k, (n, n_drawn)).astype(np.int32)
    candidates = r.integers(0, k, (n, n_candidates)).astype(np.int32)
    candidates[::17] = -1
    candidates[5::19, -1] = -1
    before, squares = candidates.copy(), np.empty((n, n_candidates))
    # several blocks, the last one not full
    monkeypatch.setattr(shared_candidates, "BLOCK", 128)
    state = candidates, squares
    evaluated, pairs = search_neighbourhoods(x, near, drawn, packed, *state, 2.0**20)
    expected = oracles.union_search(x, near, drawn, packed, before)
    assert evaluated == expected[2]
    np.testing.assert_array_equal(candidates, expected[0])
    np.testing.assert_allclose(squares, expected[1], rtol=1e-12)
    assert pairs.keys.tolist() == sorted(expected[3])
    for key, steps, count in zip(pairs.keys.tolist(), pairs.steps, pairs.counts, strict=True):
        assert count == len(expected[3][key])
        assert steps / 2.0**20 == pytest.approx(sum(expected[3][key]), abs=count * 2.0**-20)


def test_a_member_is_not_lost_to_its_equal():
    """Three components in one place: a candidate stays one."""
    means = np.array([[0.0, 0], [0, 0], [0, 0], [9, 9]])
    packed = pack_mixture(means, np.ones((1, 1)), np.full(4, -np.log(4)), np.zeros(2))
    near = np.array([[0, 1], [1, 0], [2, 0], [3, 2]], np.int32)
    candidates = np.array([[2], [1], [0]], np.int32)
    drawn = np.empty((3, 0), np.int32)
    search_neighbourhoods(np.zeros((3, 2)), near, drawn, packed, candidates, np.empty((3, 1)), 1.0)
    assert candidates[:, 0].tolist() == [2, 1, 0]


def test_pairs_add_up_in_any_order():
    r = np.random.default_rng(0)
    parts = []
    for _ in range(4):
        keys = np.unique(r.integers(0, 40, 12))
        parts.append([keys, *r.integers(1, 1 << 40, (2, len(keys)))])
    forth, back = PairSums.nothing(), PairSums.nothing()
    for part in parts:
        forth.merge(PairSums(*part))
    for part in reversed(parts):
        back.merge(PairSums(*part))
    for name in ("keys", "steps", "counts"):
        np.testing.assert_array_equal(getattr(forth, name), getattr(back, name))
    assert forth.steps.sum() == sum(part[1].sum() for part in parts)
    assert forth.nbytes == 3 * 8 * len(forth.keys)


def test_neighbourhoods_keep_previous_ones_if_too_few_were_met():
    """Component 0 has met 2 (mean 4) and 1 (mean 5), 1 only 3, 2 none; 3 equal ones."""
    keys = np.array([0 * 4 + 1, 0 * 4 + 2, 1 * 4 + 3, 3 * 4 + 0, 3 * 4 + 1, 3 * 4 + 2])
    pairs = PairSums(keys, np.array([10, 4, 7, 6, 6, 3]), np.array([2, 1, 1, 2, 2, 1]))
    before = np.array([[0, 3, 1], [1, 2, 0], [2, 0, 1], [3, 1, 2]], np.int32)
    expected = [[0, 2, 1], [1, 3, 2], [2, 0, 1], [3, 0, 1]]
    assert pairs.neighbourhoods(before).tolist() == expected


@pytest.mark.parametrize(("d", "largest"), [(1, 1.0), (784, 255.0), (3, 1e-20), (64, 1e15)])
def test_steps_hold_the_largest_squared_distance(d, largest):
    steps = steps_of_pairs(d, largest)
    assert 2.0**38 < steps * 4 * d * largest**2 <= 2.0**40
    assert np.log2(steps) % 1 == 0
