"""Moves of single rows: as brute force finds them, and none left at the end."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.descent import CenteredRows, add_center, label_rows, settle
from largek_dask.kernels.single_moves import count_moves, move_rows
from tests.helpers.covering import in_turns
from tests.kernels.test_descent import (
    KINDS,
    check_bounds,
    check_settled,
    make,
    rounding,
    settled,
    weights,
)
from tests.oracles import dcd_search as oracles

COMPILED = not numba.config.DISABLE_JIT
FREE = ["blobs", "uniform", "heavy"]
"""Kinds of rows without ties."""


def check_means(rows, p):
    """Centres, counts and costs follow the labels but for rounding."""
    means = oracles.means_of(rows.x, rows.weight, p.labels, p.centers)
    np.testing.assert_allclose(p.centers, means, rtol=1e-9, atol=100 * rounding(rows.x))
    counts = oracles.counts_of(rows.weight, p.labels, len(means))
    np.testing.assert_allclose(p.counts, counts, rtol=1e-9, atol=1e-12 * rows.weight.max())


@pytest.mark.parametrize(
    ("kind", "d", "weight"), in_turns(FREE, [1, 2, 3, 14], ["none", "whole", "wide"])
)
def test_moves_are_those_of_brute_force(kind, d, weight):
    r = np.random.default_rng(d)
    total = 0
    for k in (1, 2, 5, 12):
        x = make(kind, 60, d, r)
        rows = CenteredRows.of(x, weights(weight, 60, r))
        p = settled(rows, x[r.choice(60, k, replace=False)])
        for sweeps in (1, 100):
            before = p.cost
            args = x, rows.weight, p.labels, p.centers, sweeps
            labels, moves, gained = oracles.move_rows(*args)
            expected = oracles.count_moves(x, rows.weight, p.labels, k)
            assert count_moves(rows, p) == expected
            assert (expected > 0) == (moves > 0)
            start = p.labels.copy()
            assert move_rows(rows, p, sweeps) == moves
            np.testing.assert_array_equal(p.labels, labels)
            total += moves
            touched = np.unique(np.concatenate([start[start != labels], labels[start != labels]]))
            assert p.stale[touched].all()
            check_bounds(rows, p)
            check_means(rows, p)
            settle(rows, p, 0)
            np.testing.assert_array_equal(p.labels, labels)
            assert p.cost == pytest.approx(before - gained, rel=1e-9)
            assert (p.cost < before) == (moves > 0)
        assert count_moves(rows, p) == oracles.count_moves(x, rows.weight, p.labels, k) == 0
        settle(rows, p)
        np.testing.assert_array_equal(p.labels, labels)
        check_settled(rows, p)
    assert total > 0


def partition_of(rows, labels, centers):
    """A partition by labels, with exact bounds; clusters without rows keep these centres."""
    p, _ = label_rows(rows, oracles.means_of(rows.x, rows.weight, labels, centers))
    p.labels[:] = labels
    d = np.sqrt(oracles.distances(rows.x, p.centers))
    p.upper[:] = d[np.arange(len(d)), labels]
    d[np.arange(len(d)), labels] = np.inf
    p.lower[:] = d.min(axis=1)
    p.counts[:] = oracles.counts_of(rows.weight, labels, len(centers))
    return p


def test_a_row_that_leaves_one_other_for_a_row_alone():
    """It saves twice its cost and pays half: that cluster is almost three times as far."""
    rows = CenteredRows.of(np.array([[-1.0], [1.0], [2.9]]))
    p = partition_of(rows, np.array([0, 0, 1]), np.zeros((2, 1)))
    assert count_moves(rows, p) == 1
    assert move_rows(rows, p) == 1
    np.testing.assert_array_equal(p.labels, [0, 1, 1])


def test_a_row_that_has_joined_a_cluster_may_be_the_farthest_there():
    """It goes on to a third one, which has come near by then."""
    x = np.array([0.0097, 8.0076, 4.0099, 4.0023, 2.0067, 8.0003, 0.0042, 0.0079])[:, None]
    rows = CenteredRows.of(x)
    p = partition_of(rows, np.array([0, 2, 0, 0, 0, 2, 2, 1]), np.zeros((3, 1)))
    labels, moves, _ = oracles.move_rows(x, rows.weight, p.labels, p.centers)
    assert move_rows(rows, p) == moves == 6
    np.testing.assert_array_equal(p.labels, labels)


@pytest.mark.parametrize("weight", ["none", "wide"])
def test_moves_of_few_rows_from_anywhere(weight):
    r = np.random.default_rng(7)
    total = empty = 0
    for _ in range(600 if COMPILED else 150):
        n, k = r.integers(2, 10), r.integers(1, 5)
        x = r.standard_t(2, (n, int(r.integers(1, 3))))
        rows = CenteredRows.of(x, weights(weight, n, r))
        p = partition_of(rows, r.integers(k, size=n), 100 * r.standard_normal((k, x.shape[1])))
        empty += (p.counts == 0).any()
        assert count_moves(rows, p) == oracles.count_moves(x, rows.weight, p.labels, k)
        labels, moves, _ = oracles.move_rows(x, rows.weight, p.labels, p.centers)
        assert move_rows(rows, p) == moves
        np.testing.assert_array_equal(p.labels, labels)
        # What centres far away have moved is rounded to their size.
        check_bounds(rows, p, slack=1e-12)
        total += moves
    assert total > 100
    assert empty > 10


@pytest.mark.parametrize(
    ("kind", "weight", "k"), in_turns(KINDS, ["none", "whole", "wide"], [2, 7, 25])
)
def test_no_move_is_left(kind, weight, k):
    r = np.random.default_rng(k)
    n = 300 if COMPILED else 80
    for d in (1, 2):
        x = make(kind, n, d, r)
        rows = CenteredRows.of(x, weights(weight, n, r))
        p = settled(rows, x[r.choice(n, k, replace=False)])
        for _ in range(30):
            assert count_moves(rows, p) == oracles.count_moves(x, rows.weight, p.labels, k)
            sizes, before = np.bincount(p.labels, minlength=k), p.cost
            moves = move_rows(rows, p)
            assert (np.bincount(p.labels, minlength=k)[sizes > 0] > 0).all()
            check_bounds(rows, p)
            if moves == 0:
                break
            settle(rows, p)
            assert p.cost < before
            check_settled(rows, p)
        else:
            raise AssertionError("moves go on for ever")
        assert oracles.count_moves(x, rows.weight, p.labels, k) == 0


def test_count_moves_knows_bounds_below_zero():
    """A bound that says nothing is below zero after long descents; its square would say a lot."""
    r = np.random.default_rng(0)
    x = make("uniform", 300, 2, r)
    rows = CenteredRows.of(x)
    for k in (5, 10, 20):
        p = settled(rows, x[r.choice(300, k, replace=False)])
        expected = oracles.count_moves(x, rows.weight, p.labels, k)
        assert expected > 0
        q = p.copy()
        q.lower[:] = -1e3
        assert count_moves(rows, q) == expected
        q.lower[:] = -1e3
        moves = move_rows(rows, p)
        assert move_rows(rows, q) == moves > 0
        np.testing.assert_array_equal(p.labels, q.labels)


def test_a_cluster_is_never_emptied():
    """Counts are added to and taken from: rounding must not say that a row has company."""
    r = np.random.default_rng(2)
    drifted = 0
    for _ in range(300 if COMPILED else 60):
        x = np.repeat(r.integers(0, 4, (6, 1)).astype(float), 3, axis=0) / 3
        weight = np.full(len(x), 0.1)
        rows = CenteredRows.of(x, weight)
        k = 5
        p, _ = label_rows(rows, x[:k])
        # Clusters whose rows are anywhere, as those of a search may be for a step.
        p.labels[:] = np.append(np.arange(k), r.integers(k, size=len(x) - k))
        p.upper[:], p.lower[:], p.stale[:] = 10.0, 0.0, True
        settle(rows, p, 0)
        move_rows(rows, p)
        sizes = np.bincount(p.labels, minlength=k)
        assert (sizes > 0).all()
        drifted += ((sizes == 1) & (p.counts > 0.1)).any()
        check_means(rows, p)
    assert drifted > 0


def test_a_row_that_outweighs_its_cluster_stays():
    """If the others weigh next to nothing, the cluster without it is lost in rounding."""
    x = np.array([[0.0], [1.0], [5.0], [6.0]])
    rows = CenteredRows.of(x, np.array([1e20, 1.0, 1.0, 1.0]))
    p = settled(rows, x[[0, 2]])
    assert p.counts[0] == 1e20
    assert count_moves(rows, p) == 0
    assert move_rows(rows, p) == 0


def test_equal_rows_in_several_clusters_stay():
    """Their centres differ by rounding, and so does what they cost: no move is worth that."""
    x = np.repeat([[0.1], [0.7], [-0.8]], 40, axis=0)
    rows = CenteredRows.of(x)
    p, _ = label_rows(rows, x[::40])
    p = add_center(rows, p, x[0])
    for size in (3, 10, 17):
        q = p.copy()
        q.labels[:size] = 3
        q.stale[:] = True
        settle(rows, q, 0)
        if size == 3:
            assert 0 < q.cost < 1e-25
        assert q.counts[3] == size
        assert count_moves(rows, q) == oracles.count_moves(x, rows.weight, q.labels, 4) == 0
        assert move_rows(rows, q) == 0


def test_rows_in_the_middle_of_clusters_are_not_looked_at():
    r = np.random.default_rng(5)
    middles = np.array([[0.0, 0.0], [3.0, 0.0], [100.0, 0.0], [200.0, 0.0], [-5e4, 0.0]])
    of = np.append(np.repeat(np.arange(4), 80), 4)
    x = middles[of] + r.standard_normal((len(of), 2))
    x -= x.mean(axis=0)
    rows = CenteredRows.of(x)
    p = settled(rows, np.stack([x[of == j].mean(axis=0) for j in range(5)]))
    # One row alone in its cluster could take any other at half its distance: far ones it cannot.
    np.testing.assert_array_equal(np.flatnonzero(p.counts == 1), [4])
    hidden = x.copy()
    hidden[np.isin(of, [2, 3, 4])] = np.nan
    assert count_moves(rows, p) > 0
    q = p.copy()
    moves = move_rows(rows, p)
    assert move_rows(CenteredRows.of(hidden), q) == moves > 0
    np.testing.assert_array_equal(p.labels, q.labels)


@given(st.data())
def test_where_no_row_moves_the_nearest_center_is_unique(data):
    d = data.draw(st.integers(1, 2))
    n = data.draw(st.integers(1, 14))
    values = st.lists(st.integers(0, 4), min_size=d, max_size=d)
    x = np.array(data.draw(st.lists(values, min_size=n, max_size=n)), float)
    k = data.draw(st.integers(1, min(n, 5)))
    weight = None
    if data.draw(st.booleans()):
        weight = np.array(data.draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)), float)
    rows = CenteredRows.of(x, weight)
    p = settled(rows, x[:k])
    move_rows(rows, p)
    settle(rows, p, 0)
    assert count_moves(rows, p) == oracles.count_moves(x, rows.weight, p.labels, k) == 0
    near = oracles.distances(x, p.centers)
    sizes = np.bincount(p.labels, minlength=k)
    for i, a in enumerate(p.labels):
        elsewhere = (p.centers != p.centers[a]).any(axis=1)
        if sizes[a] > 1 and elsewhere.any():
            assert near[i, a] < near[i, elsewhere].min() * (1 - 1e-9)
    labels = p.labels.copy()
    settle(rows, p)
    np.testing.assert_array_equal(p.labels, labels)
    check_settled(rows, p)
