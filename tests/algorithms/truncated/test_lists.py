"""Lists of centres, with moves and without, and the movement of the centres in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.algorithms.parts.moves import Splits, choose_moves
from largek_dask.algorithms.truncated.lists import Neighbours, lists_of, lists_with_moves, reach_of


@pytest.fixture
def table() -> np.ndarray:
    """Centres on a line: neighbours by distance, ties to the lower one."""
    at = np.arange(40)
    distance = np.abs(at[:, None] - at[None])
    return np.argsort(distance, axis=1, kind="stable")[:, :24].astype(np.int32)


@given(seed=st.integers(0, 1_000))
def test_moves_never_touch_a_centre_twice(seed):
    r = np.random.default_rng(seed)
    k = int(r.integers(3, 60))
    near = r.normal(size=(k, 2))
    distance = ((near[:, None] - near[None]) ** 2).sum(axis=2)
    table = np.argsort(distance, axis=1)[:, : min(k, 24)].astype(np.int32)
    losses, splits = r.random(k), Splits(np.arange(k), 2 * r.random(k), np.zeros((k, 2, 2)))
    cheapest = np.argsort(losses)
    moves = choose_moves(
        splits, losses, cheapest, table[cheapest, 1:9], most=k, factor=0.5, split_takers=True
    )
    touched = np.concatenate([moves.split, moves.removed])
    assert len(set(touched.tolist())) == len(touched)
    offsets, listed = lists_with_moves(table, 8, table, moves.split, moves.removed)
    assert offsets[-1] == len(listed)
    for j in range(k):
        own = listed[offsets[j] : offsets[j + 1]]
        assert (np.diff(own) > 0).all()
        assert len(own) > 0
    for j, removed in zip(moves.split, moves.removed, strict=True):
        assert listed[offsets[j] : offsets[j + 1]].tolist() == sorted((j, removed))
        refuge = set(listed[offsets[removed] : offsets[removed + 1]].tolist())
        # the place of a removed centre is one only as the half of a split cluster that it is near
        for other in refuge & set(moves.removed.tolist()):
            assert moves.split[moves.removed.tolist().index(other)] in refuge


def test_last_lists_are_cached(table):
    near = Neighbours(np.zeros((40, 1), np.float32), np.zeros(1, np.float32), 24)
    first = near.lists(table, 8)
    for got, want in zip(first, lists_of(table, 8), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    assert near.lists(table, 8)[1] is first[1]
    assert not first[1].flags.writeable
    near.forget()
    assert near.lists(table, 8)[1] is first[1], "passes let go of tables only"
    # other lists take their place: no more than one set of them is held
    longer = near.lists(table, 16)
    np.testing.assert_array_equal(longer[1], lists_of(table, 16)[1])
    assert list(near.last) == [16]
    assert "last" not in near.__getstate__()


def test_reach_is_the_farthest_drift_in_a_list(table):
    offsets, listed = lists_of(table, 4)
    drift = np.arange(40.0)
    reach = reach_of(drift, offsets, listed, None, None)
    assert reach[10] == table[10, :4].max()
    assert reach.tolist() == table[:, :4].max(axis=1).tolist()
    unmet = np.zeros(40, bool)
    unmet[7] = True
    reach = reach_of(drift, offsets, listed, unmet, np.array([20]))
    assert reach[7] == np.inf
    assert (reach[[19, 20, 21]] == np.inf).all()
    assert np.isfinite(reach[30])
    assert drift[20] == 20
