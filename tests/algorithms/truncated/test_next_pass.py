"""What the truncated search orders, and what it adds up over rows: compared with what is said."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.truncated import TruncatedState
from largek_dask.algorithms.truncated.lists import Near, Recipe, reach_of
from largek_dask.algorithms.truncated.passes import (
    LEAST_COUNTED,
    NEAR_CELLS,
    WORTH_COUNTING,
    Order,
    RowArrays,
    cells_order,
    count_far_rows,
    count_rows,
    pass_total,
)
from largek_dask.algorithms.truncated.state import (
    OUTLIER,
    TABLE_AGE,
    WIDTH,
    Round,
    neighbours_for,
    order_for,
)
from largek_dask.kernels.bounds.lists import loss_scale
from largek_dask.kernels.exact.sums import FixedPoint
from largek_dask.kernels.threads import Threads

K, D = 90, 3
CENTERS = np.random.default_rng(0).normal(size=(K, D)).astype(np.float32)
SHIFT = np.zeros(D, np.float32)
MOVES = Moves(np.array([3, 8]), np.array([5, 1]), CENTERS[:4].reshape(2, 2, D), 1.0)


def state(kind: str, length: int = 4, looks: bool = False, moves: bool = True, **changes: Any):
    """Between two steps, before one that does this."""
    task = SimpleNamespace(kind=kind, length=length, looks=looks)
    schedule: Any = SimpleNamespace(
        task=task, search=SimpleNamespace(moves=moves), cost=250.0, opens_round=True
    )
    some = {"counts": np.ones(K), "shift": SHIFT, "coarse": CENTERS[::9], **changes}
    return TruncatedState(5, schedule, CENTERS, **some)


def with_table(width: int) -> dict[str, Any]:
    near = Near(CENTERS, SHIFT, width)
    return {"near": near, "table": near.table()}


# --- neighbours


@pytest.mark.parametrize(
    ("before", "width"),
    [
        (state("all"), None),
        (state("cells"), None),
        (state("all", looks=True), WIDTH),
        (state("all", looks=True, moves=False), None),
        (state("lists"), WIDTH),
        (state("unsettled"), WIDTH),
        (state("start"), WIDTH),
        (state("lists", WIDTH + 1), WIDTH + 1),
        (state("lists", 10 * K), K),
    ],
    ids=lambda given: given.schedule.task.kind if isinstance(given, TruncatedState) else None,
)
def test_neighbours_are_found_where_they_are_needed(before, width):
    after = neighbours_for(before, 2)
    if width is None:
        assert after is before
        return
    assert after.table.shape == (K, width)
    d2 = np.square(CENTERS[:, None].astype(float) - CENTERS).sum(axis=2)
    np.testing.assert_array_equal(after.table, d2.argsort(axis=1)[:, :width])
    assert (after.near.width, after.age) == (width, 0)


def test_neighbours_are_kept_while_they_do():
    known = with_table(8)
    for age in range(TABLE_AGE):
        for kind, length in (("lists", 8), ("lists", 7), ("unsettled", 99)):
            before = state(kind, length, age=age, **known)
            assert neighbours_for(before, 1) is before
    for other in (
        state("lists", 8, age=TABLE_AGE, **known),
        state("lists", 9, **known),
        replace(state("lists", 8, **known), moves=MOVES),
    ):
        after = neighbours_for(other, 1)
        assert (after.table.shape[1], after.age) == (WIDTH, 0)


# --- orders


PASSES: Any = SimpleNamespace(
    n_features=D, statistics=SimpleNamespace(max_abs=5.0, total_weight=100.0)
)


def test_limits_of_losses_are_those_of_the_rows_that_there_can_be():
    order = order_for(PASSES, state("all", looks=True))
    assert order.max_loss == 4 * D * 25.0, "no row is farther away"
    assert order.loss_steps == loss_scale(order.max_loss, 100.0)
    cheap = state("all", looks=True)
    cheap.schedule.cost = 1e-4
    order = order_for(PASSES, cheap)
    assert order.max_loss == OUTLIER * 1e-6
    cheap.schedule.cost = 0.0
    assert order_for(PASSES, cheap).max_loss == 1.0
    order = order_for(PASSES, state("all"))
    assert (order.kind, order.max_loss, order.loss_steps) == ("all", 0, 0)


@pytest.mark.parametrize("looks", [False, True])
def test_an_order_of_lists(looks):
    then = Order("all", CENTERS[::-1].copy(), SHIFT)
    before = state("lists", 6, looks, history=History().then(then, anchor=True), **with_table(8))
    order = order_for(PASSES, before)
    expected = np.sort(before.table[:, :6], axis=1)
    np.testing.assert_array_equal(order.listed.reshape(K, 6), expected)
    assert order.offsets is None
    assert order.recipe == Recipe(before.near, 6)
    drift = np.sqrt(np.square(CENTERS[::-1].astype(float) - CENTERS).sum(axis=1))
    np.testing.assert_allclose(order.ways, [drift, drift[expected].max(axis=1)])
    assert (order.skip, order.save, order.restore) == (not looks, True, False)
    assert (order.max_loss > 0) is looks


def test_an_order_of_what_is_unsettled():
    then = Order("all", CENTERS + np.float32(1), SHIFT)
    strange = np.arange(K) == 7
    before = state("unsettled", history=History().then(then, anchor=True), strange=strange)
    order = order_for(PASSES, before)
    assert (order.kind, order.save, order.listed) == ("unsettled", True, None)
    reach = np.full(K, np.sqrt(3.0))
    np.testing.assert_allclose(order.ways, [reach, np.where(strange, np.inf, reach)], rtol=1e-6)


@pytest.mark.parametrize("restores", [False, True])
def test_of_rows_that_no_pass_has_left_anything_is_possible(restores):
    history = History().then(Order("all", CENTERS, SHIFT), anchor=True) if restores else History()
    before = state("lists", 6, history=history, restores=restores, **with_table(8))
    order = order_for(PASSES, before)
    assert order.restore is restores
    np.testing.assert_array_equal(order.ways, [np.zeros(K), np.full(K, np.inf)])


def test_an_order_that_carries_moves_out():
    known = with_table(20)
    back = Round(CENTERS, np.ones(K), 1, known["near"], known["table"])
    then = Order("all", CENTERS + np.float32(0.5), SHIFT)
    strange = np.arange(K) == 7
    before = replace(
        state("lists", 6, history=History().then(then, anchor=True), strange=strange, **known),
        moves=MOVES,
        round=back,
    )
    order = order_for(PASSES, before)
    moved = [*MOVES.split, *MOVES.removed]
    np.testing.assert_array_equal(order.recipe.split, MOVES.split)
    np.testing.assert_array_equal(order.recipe.removed, MOVES.removed)
    assert order.recipe.before is back.near
    offsets, listed = order.recipe.again()
    np.testing.assert_array_equal(order.offsets, offsets)
    np.testing.assert_array_equal(order.listed, listed)
    drift, reach = order.ways
    assert (drift[moved] == 0).all()
    others = np.setdiff1d(np.arange(K), moved)
    np.testing.assert_allclose(drift[others], np.sqrt(0.75), rtol=1e-6)
    unknown = strange.copy()
    unknown[moved] = True
    np.testing.assert_array_equal(reach, reach_of(drift, offsets, listed, unknown, np.array(moved)))
    assert np.isinf(reach[[*moved, 7]]).all()
    assert np.isfinite(reach).any()
    assert np.flatnonzero(strange).tolist() == [7], "it is the state's own"


@pytest.mark.parametrize("n_cells", [1, 2, 3, 10])
def test_rows_of_a_cell_meet_its_centres_and_those_of_the_cells_nearest_to_it(n_cells):
    coarse = np.concatenate([CENTERS[:n_cells], CENTERS[:1] + np.float32(50)])
    order = cells_order(CENTERS, coarse, SHIFT)
    of = np.square(CENTERS[:, None].astype(float) - coarse).sum(axis=2).argmin(axis=1)
    between = np.square(coarse[:, None].astype(float) - coarse).sum(axis=2)
    assert (order.kind, len(order.offsets)) == ("cells", len(coarse) + 1)
    for cell, near in enumerate(between.argsort(axis=1)[:, :NEAR_CELLS]):
        met = order.listed[order.offsets[cell] : order.offsets[cell + 1]]
        np.testing.assert_array_equal(met, np.flatnonzero(np.isin(of, near)))


def test_a_cell_without_a_centre_anywhere_near_is_lent_one():
    far = CENTERS[:1] + np.float32([[50], [51], [52]])
    order = cells_order(CENTERS, np.concatenate([CENTERS[:1], far]), SHIFT)
    lent = order.listed[order.offsets[2] : order.offsets[3]]
    assert lent.tolist() == [np.square(CENTERS - far[1]).sum(axis=1).argmin()]


# --- what is added up


GRID = FixedPoint.choose(np.zeros(D, np.float32), 12.0, n_rows=10 * (4 * LEAST_COUNTED))


def contents(total):
    tally = total.tally
    sums = total.sums.totals.tolist(), total.sums.counts.tolist(), total.squares.values.tolist()
    return *sums, tally.n_rows, tally.n_changed


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("n_threads", "counted", "n_changed", "parts"),
    [
        (1, False, 10_000, 1),
        (3, False, 0, 3),
        (99, False, 10_000, 4),
        # Where few rows have moved they are soon counted.
        (3, True, WORTH_COUNTING * K - 1, 1),
        (3, True, WORTH_COUNTING * K, 3),
    ],
)
def test_rows_are_counted_alike_on_any_threads(weighted, n_threads, counted, n_changed, parts):
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
        made = pass_total(K, D, GRID)
        made.begin(1)
        if counted:
            made.assign(x, weight, None, old, False)
            made.begin(2)
        return made

    expected, found, asked = total(), total(), []
    expected.assign(x, weight, old, new, counted)
    threads = Threads(n_threads, lambda: asked.append(1))
    count_rows(x, weight, old, new, found, counted, threads)
    assert contents(found) == contents(expected)
    assert len(asked) == parts


@pytest.mark.parametrize("weighted", [False, True])
def test_far_rows_are_those_beyond_the_limit_that_have_a_label(weighted):
    upper = np.array([1, 2, 3, 4, 5], np.float32)
    weight = np.array([1, 2, 3, 4, 5.0]) if weighted else None
    rows = RowArrays(np.array([0, 1, 2, -1, 4], np.int32), upper, np.zeros(5, np.float32))
    total = pass_total(K, D, GRID)
    count_far_rows(weight, rows, Order("all", CENTERS, SHIFT), total)
    assert total.tally.far.value == 0, "nobody asks"
    count_far_rows(weight, rows, Order("all", CENTERS, SHIFT, far=4.0), total)
    assert total.tally.far.value == (3 * 9 + 5 * 25 if weighted else 9 + 25)
