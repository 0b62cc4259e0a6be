"""Starts on samples of dense rows: the best of several, and on two levels."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.starts.samples import (
    BEST_STEPS,
    FIRST_STEPS,
    _candidates,
    cost_of,
    greedy_start,
    shares,
    two_level_start,
)
from largek_dask.kernels.dense.greedy import greedy_rows
from tests import oracles
from tests.helpers.covering import in_turns


def test_the_best_of_several_starts():
    r = np.random.default_rng(0)
    centers = 20 * r.standard_normal((12, 4))
    x = (centers[r.integers(12, size=3_000)] + r.standard_normal((3_000, 4))).astype(np.float32)
    costs = []
    for starts in (1, 8):
        found, cost = greedy_start(x, None, 12, x.mean(axis=0), Rng(1), starts, 1)
        true = ((x[:, None].astype(float) - found[None]) ** 2).sum(axis=2).min(axis=1).sum()
        assert cost == pytest.approx(true, rel=1e-5)
        costs.append(cost)
        same = greedy_start(x, None, 12, x.mean(axis=0), Rng(1), starts, 2)
        assert same[0].tobytes() == found.tobytes()
    assert costs[1] <= costs[0]
    twice = greedy_start(x, np.full(3_000, 2.0), 12, x.mean(axis=0), Rng(1), 8, 1)
    assert twice[0].tobytes() == found.tobytes()
    few, cost = greedy_start(x[:3], None, 5, x.mean(axis=0), Rng(1), 8, 1)
    assert few.tolist() == x[[0, 1, 2, 0, 1]].tolist()
    assert cost == 0


def lloyd_in_numpy(x, mass, centers, steps):
    """Centres after so many steps, and what rows then cost."""
    for _ in range(steps):
        labels, _ = oracles.assign(x, centers)
        held = [(mass * (labels == j))[:, None] for j in range(len(centers))]
        assert all(of.any() for of in held)
        centers = np.array([(of * x).sum(axis=0) / of.sum() for of in held])
    labels, _ = oracles.assign(x, centers)
    return centers, float((mass[:, None] * (x - centers[labels]) ** 2).sum())


@pytest.mark.parametrize(("seed", "weighted"), in_turns(range(6), [False, True]))
def test_only_the_best_starts_continue(seed, weighted):
    """Those that are best after a few steps, a fourth of them."""
    r = np.random.default_rng(seed)
    x, k, starts = r.standard_normal((400, 3)), 9, 9
    mass = r.uniform(0.5, 2, 400) if weighted else np.ones(400)
    columns = np.ascontiguousarray(x.T)
    shape = k, _candidates(k)
    picks = [
        greedy_rows(columns, mass, Rng(seed).generator(start, "greedy").random(shape))
        for start in range(starts)
    ]
    begun = [lloyd_in_numpy(x, mass, x[rows], FIRST_STEPS)[1] for rows in picks]
    best = np.argsort(begun)[:3]
    wanted = min(
        (lloyd_in_numpy(x, mass, x[picks[i]], BEST_STEPS) for i in best), key=itemgetter(1)
    )
    weight = mass if weighted else None
    found, cost = greedy_start(x, weight, k, x.mean(axis=0), Rng(seed), starts, 1)
    np.testing.assert_allclose(found, wanted[0], rtol=1e-9, atol=1e-9)
    assert cost == pytest.approx(wanted[1], rel=1e-9)
    assert cost_of(x, weight, found, x.mean(axis=0)) == cost


# --- on two levels ------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [200, 300])
def test_few_rows_are_the_centres(k):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    centers, _, labels = two_level_start(x, None, k, np.zeros(3, np.float32), 1)
    np.testing.assert_array_equal(centers, np.resize(x, (k, 3)))
    np.testing.assert_array_equal(labels, np.arange(200))


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any), part=st.floats(0, 1)
)
def test_shares(counts, part):
    counts = np.array(counts)
    k = max(1, int(part * counts.sum()))
    sizes = shares(counts, k)
    assert sizes.sum() == k
    assert (sizes <= counts).all()
    assert (sizes >= 0).all()
    if k < np.count_nonzero(counts):
        assert sizes.max() <= 1
        return
    assert (sizes[counts > 0] > 0).all()
    # Nowhere would one that is given to another cell bring both nearer to what they are due.
    beyond = sizes - counts * (k / counts.sum())
    gives, takes = beyond[sizes > 1], beyond[sizes < counts]
    if len(gives) and len(takes):
        assert gives.max() - takes.min() <= 1 + 1e-9
