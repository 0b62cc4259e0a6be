"""The next pass of the truncated search, and counts of rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.parts.totals import (
    LEAST_COUNTED,
    WORTH_COUNTING,
    AssignmentTotal,
    count_rows,
)
from largek_dask.algorithms.truncated import TruncatedState
from largek_dask.algorithms.truncated import passes as passes_module
from largek_dask.algorithms.truncated.lists import (
    NEAR_CELLS,
    Neighbours,
    Recipe,
    lists_of_cells,
    reach_of,
)
from largek_dask.algorithms.truncated.passes import PARTS_PER_THREAD, SHORT_WORK, Pass, group_cuts
from largek_dask.algorithms.truncated.state import (
    BEYOND,
    OUTLIER,
    TABLE_AGE,
    WIDTH,
    Round,
    next_pass,
    overstep,
    with_neighbours,
)
from largek_dask.kernels.arguments import LONG_WORK
from largek_dask.kernels.bounds.lists import loss_scale
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.threads import ALONE, Threads

K, D = 90, 3
CENTERS = np.random.default_rng(0).normal(size=(K, D)).astype(np.float32)
SHIFT = np.zeros(D, np.float32)
MOVES = Moves(np.array([3, 8]), np.array([5, 1]), CENTERS[:4].reshape(2, 2, D), 1.0)


def state(
    kind: str,
    length: int = 4,
    probes: bool = False,
    moves: bool = True,
    sparse: bool = False,
    **changes: Any,
):
    """A state before a step of this kind."""
    task = SimpleNamespace(kind=kind, length=length, probes=probes)
    setting = SimpleNamespace(moves=moves, sparse=sparse)
    schedule: Any = SimpleNamespace(task=task, setting=setting, cost=250.0, opens_round=True)
    some = {"counts": np.ones(K), "shift": SHIFT, "coarse": CENTERS[::9], **changes}
    return TruncatedState(5, schedule, CENTERS, **some)


def with_table(width: int) -> dict[str, Any]:
    neighbours = Neighbours(CENTERS, SHIFT, width)
    return {"neighbours": neighbours, "table": neighbours.table()}


def test_neighbours_are_reused_while_they_suffice():
    known = with_table(8)
    for age in range(TABLE_AGE):
        for kind, length in (("lists", 8), ("lists", 7), ("unsettled", 99)):
            before = state(kind, length, table_age=age, **known)
            assert with_neighbours(before, 1) is before
    for other in (
        state("lists", 8, table_age=TABLE_AGE, **known),
        state("lists", 9, **known),
        replace(state("lists", 8, **known), moves=MOVES),
    ):
        after = with_neighbours(other, 1)
        assert (after.table.shape[1], after.table_age) == (WIDTH, 0)


# --- the next pass


def test_centres_go_beyond_the_means():
    before, means = np.zeros((K, 2)), np.ones((K, 2))
    assert (overstep(before, means, None) == 1 + BEYOND).all()
    moved = np.isin(np.arange(K), MOVES.clusters)
    expected = np.where(moved, 1.0, 1 + BEYOND)
    np.testing.assert_array_equal(overstep(before, means, MOVES)[:, 0], expected)


PASSES: Any = SimpleNamespace(
    n_features=D, statistics=SimpleNamespace(max_abs=5.0, total_weight=100.0), threads=ALONE
)


def test_limits_of_losses():
    made = next_pass(PASSES, state("all", probes=True))
    assert made.max_loss == 4 * D * 25.0, "no row is farther away"
    assert made.loss_steps == loss_scale(made.max_loss, 100.0)
    cheap = state("all", probes=True)
    cheap.schedule.cost = 1e-4
    made = next_pass(PASSES, cheap)
    assert made.max_loss == OUTLIER * 1e-6
    cheap.schedule.cost = 0.0
    assert next_pass(PASSES, cheap).max_loss == 1.0
    made = next_pass(PASSES, state("all"))
    assert (made.kind, made.max_loss, made.loss_steps) == ("all", 0, 0)


@pytest.mark.parametrize("probes", [False, True])
def test_a_pass_of_lists(probes):
    then = Pass("all", CENTERS[::-1].copy(), SHIFT)
    before = state("lists", 6, probes, history=History().then(then, anchor=True), **with_table(8))
    made = next_pass(PASSES, before)
    expected = np.sort(before.table[:, :6], axis=1)
    np.testing.assert_array_equal(made.listed.reshape(K, 6), expected)
    assert made.offsets is None
    assert made.recipe == Recipe(before.neighbours, 6)
    drift = np.sqrt(np.square(CENTERS[::-1].astype(float) - CENTERS).sum(axis=1))
    np.testing.assert_allclose(made.drift, drift)
    np.testing.assert_allclose(made.reach, drift[expected].max(axis=1))
    assert (made.save, made.restore) == (True, False)
    assert (made.max_loss > 0) is probes


def test_a_pass_over_unsettled_rows():
    then = Pass("all", CENTERS + np.float32(1), SHIFT)
    unmet = np.arange(K) == 7
    before = state("unsettled", history=History().then(then, anchor=True), unmet=unmet)
    made = next_pass(PASSES, before)
    assert (made.kind, made.save, made.listed) == ("unsettled", True, None)
    reach = np.full(K, np.sqrt(3.0))
    np.testing.assert_allclose(made.drift, reach, rtol=1e-6)
    np.testing.assert_allclose(made.reach, np.where(unmet, np.inf, reach), rtol=1e-6)


@pytest.mark.parametrize("restores", [False, True])
def test_bounds_are_infinite_without_an_earlier_pass(restores):
    history = History().then(Pass("all", CENTERS, SHIFT), anchor=True) if restores else History()
    before = state("lists", 6, history=history, restores=restores, **with_table(8))
    made = next_pass(PASSES, before)
    assert made.restore is restores
    np.testing.assert_array_equal(made.drift, np.zeros(K))
    np.testing.assert_array_equal(made.reach, np.full(K, np.inf))


def test_a_pass_that_carries_moves_out():
    known = with_table(20)
    back = Round(CENTERS, np.ones(K), 1, known["neighbours"], known["table"])
    then = Pass("all", CENTERS + np.float32(0.5), SHIFT)
    unmet = np.arange(K) == 7
    before = replace(
        state("lists", 6, history=History().then(then, anchor=True), unmet=unmet, **known),
        moves=MOVES,
        round=back,
    )
    made = next_pass(PASSES, before)
    moved = [*MOVES.split, *MOVES.removed]
    np.testing.assert_array_equal(made.recipe.split, MOVES.split)
    np.testing.assert_array_equal(made.recipe.removed, MOVES.removed)
    assert made.recipe.before is back.neighbours
    offsets, listed = made.recipe.remake()
    np.testing.assert_array_equal(made.offsets, offsets)
    np.testing.assert_array_equal(made.listed, listed)
    drift, reach = made.drift, made.reach
    assert (drift[moved] == 0).all()
    others = np.setdiff1d(np.arange(K), moved)
    np.testing.assert_allclose(drift[others], np.sqrt(0.75), rtol=1e-6)
    unknown = unmet.copy()
    unknown[moved] = True
    np.testing.assert_array_equal(reach, reach_of(drift, offsets, listed, unknown, np.array(moved)))
    assert np.isinf(reach[[*moved, 7]]).all()
    assert np.isfinite(reach).any()
    assert np.flatnonzero(unmet).tolist() == [7], "it is the state's own"


@pytest.mark.parametrize("n_cells", [1, 2, 3, 10])
def test_rows_of_a_cell_meet_the_centres_of_the_nearest_cells(n_cells):
    coarse = np.concatenate([CENTERS[:n_cells], CENTERS[:1] + np.float32(50)])
    offsets, listed = lists_of_cells(CENTERS, coarse, SHIFT)
    of = np.square(CENTERS[:, None].astype(float) - coarse).sum(axis=2).argmin(axis=1)
    between = np.square(coarse[:, None].astype(float) - coarse).sum(axis=2)
    assert len(offsets) == len(coarse) + 1
    for cell, near in enumerate(between.argsort(axis=1)[:, :NEAR_CELLS]):
        met = listed[offsets[cell] : offsets[cell + 1]]
        np.testing.assert_array_equal(met, np.flatnonzero(np.isin(of, near)))


def test_an_isolated_cell_meets_the_nearest_centre():
    far = CENTERS[:1] + np.float32([[50], [51], [52]])
    offsets, listed = lists_of_cells(CENTERS, np.concatenate([CENTERS[:1], far]), SHIFT)
    lent = listed[offsets[2] : offsets[3]]
    assert lent.tolist() == [np.square(CENTERS - far[1]).sum(axis=1).argmin()]


# --- what threads share


@given(
    st.lists(st.integers(0, 1 << 30), min_size=1, max_size=200),
    st.integers(1, 20),
    st.sampled_from([1, 1 << 10, SHORT_WORK]),
    st.sampled_from([1, 64]),
)
def test_group_cuts_are_all_groups_and_shrink(each, n_threads, short, n_features):
    work = np.cumsum(each)
    with mock.patch.object(passes_module, "SHORT_WORK", short):
        cuts = group_cuts(work, n_threads, n_features)
    assert (cuts[0], cuts[-1]) == (0, len(each))
    shares = list(pairwise(cuts))
    assert all(begin < end for begin, end in shares)
    # none is more than what is bearable, but for the group that goes across its end
    total = int(work[-1])
    most = max(short, total // (PARTS_PER_THREAD * n_threads))
    most = min(most, LONG_WORK // n_features)
    assert all(work[end - 1] - work[begin] <= most for begin, end in shares)


# --- what is added up


GRID = FixedPoint.choose(np.zeros(D, np.float32), 12.0, n_rows=10 * (4 * LEAST_COUNTED))


def contents(total):
    tally = total.tally
    sums = total.sums.totals.tolist(), total.sums.counts.tolist(), total.squares.values.tolist()
    return *sums, tally.n_rows, tally.n_changed


@pytest.mark.parametrize(
    ("n_threads", "counted", "n_changed", "shared", "weighted"),
    [
        (1, False, 10_000, False, True),
        (3, False, 0, True, False),
        (99, False, 10_000, True, True),
        # Where few rows have moved they are soon counted.
        (3, True, WORTH_COUNTING * K - 1, False, False),
        (3, True, WORTH_COUNTING * K, True, True),
    ],
)
def test_counts_do_not_depend_on_threads(n_threads, counted, n_changed, shared, weighted):
    n = 3 * LEAST_COUNTED + 5
    r = np.random.default_rng(1)
    x = r.normal(size=(n, D)).astype(np.float32)
    weight = r.integers(0, 5, n).astype(float) if weighted else None
    old = r.integers(0, K, n).astype(np.int32)
    new = old.copy()
    new[r.choice(n, n_changed, replace=False)] += 1
    new %= K
    assert np.count_nonzero(new != old) == n_changed

    def total():
        empty = AssignmentTotal(K, D, GRID)
        empty.begin(1)
        if counted:
            empty.assign(x, weight, None, old, False)
            empty.begin(2)
        return empty

    expected, found, asked = total(), total(), []
    expected.assign(x, weight, old, new, counted)
    threads = Threads(n_threads, lambda: asked.append(1))
    count_rows(x, weight, old, new, found, counted, threads)
    assert contents(found) == contents(expected)
    assert (len(asked) > 1) == shared
