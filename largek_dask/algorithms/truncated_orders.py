"""The orders that the steps of the truncated search give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.truncated_lists import Near, Recipe, reach_of
from largek_dask.algorithms.truncated_rows import Order
from largek_dask.algorithms.truncated_state import TruncatedState
from largek_dask.kernels.bounds.lists import loss_scale, order_by_label
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.exact.movement import squared_movements

__all__ = ["NEAR_CELLS", "cells_order", "neighbours_for", "order_for"]

NEAR_CELLS = 3
"""Coarse cells whose centres the rows of one of them meet at first."""
TABLE_AGE = 6
"""Passes after which neighbours are found anew."""
WIDTH = 64
"""Nearest centres that are found for every centre, at least."""
OUTLIER = 2.0**20
"""A row that costs so many times the mean counts no more than that for what its cluster loses."""


def neighbours_for(state: TruncatedState, n_threads: int) -> TruncatedState:
    """The state with nearest centres of each centre that do for the next step."""
    task, k = state.schedule.task, len(state.centers)
    if task.kind not in ("start", "lists", "unsettled") and not (
        task.looks and state.schedule.search.moves
    ):
        return state
    table, width = state.table, min(k, 0 if task.kind in ("all", "unsettled") else task.length)
    fits = table is not None and table.shape[1] >= width
    if fits and state.moves is None and state.age < TABLE_AGE:
        return state
    near = Near(state.centers, state.shift, min(k, max(WIDTH, width)))
    return replace(state, near=near, table=near.table(n_threads), age=0)


def order_for(passes: Passes, state: TruncatedState) -> Order:
    """What the next step does to rows; ``neighbours_for`` has seen to its tables."""
    schedule, centers, shift = state.schedule, state.centers, state.shift
    task = schedule.task
    max_loss, steps = _limits_of_losses(passes, schedule.cost) if task.looks else (0.0, 0.0)
    if task.kind == "all":
        return Order("all", centers, shift, max_loss=max_loss, loss_steps=steps)
    if task.kind == "cells":
        return cells_order(centers, state.coarse, shift)
    if task.kind == "unsettled":
        ways = _ways(state, None, None)
        return Order("unsettled", centers, shift, ways=ways, save=schedule.opens_round)
    assert state.near is not None
    assert state.table is not None
    recipe, before, moves = Recipe(state.near, task.length), None, state.moves
    if moves is not None:
        assert state.round is not None
        recipe = replace(recipe, before=state.round.near, split=moves.split, removed=moves.removed)
        before = state.round.table
    offsets, listed = recipe.make(state.table, before)
    ways = _ways(state, offsets, listed)
    return Order(
        "lists",
        centers,
        shift,
        listed=listed,
        # Lists of one length need none.
        offsets=None if moves is None else offsets,
        recipe=recipe,
        ways=ways,
        max_loss=max_loss,
        loss_steps=steps,
        skip=not task.looks,
        save=schedule.opens_round,
        restore=state.restores,
    )


def cells_order(centers: NDArray[Any], coarse: NDArray[Any], shift: NDArray[Any]) -> Order:
    """A pass in which rows meet the centres of their nearest coarse cell, and of those near it."""
    cells = nearest(centers, pack_centers(coarse, shift))
    members, starts = order_by_label(cells, len(coarse))
    near = nearest_centers(pack_centers(coarse, shift), min(NEAR_CELLS, len(coarse)))
    lists = []
    for own in near:
        met = np.concatenate([members[starts[c] : starts[c + 1]] for c in own])
        # Cells without a centre anywhere near: the nearest one there is.
        lists.append(np.sort(met) if len(met) else _lent(coarse[own[:1]], centers, shift))
    offsets = np.concatenate([[0], np.cumsum([len(met) for met in lists])])
    return Order("cells", centers, shift, np.concatenate(lists), offsets, coarse)


def _lent(coarse: NDArray[Any], centers: NDArray[Any], shift: NDArray[Any]) -> NDArray[np.int32]:
    return nearest(coarse, pack_centers(centers, shift))


def _limits_of_losses(passes: Passes, cost: float) -> tuple[float, float]:
    """The largest loss of a row that counts, and how many steps a loss of 1 is."""
    statistics = passes.statistics
    # No row is farther from a centre than the data are wide.
    widest = 4 * passes.n_features * statistics.max_abs**2
    largest = min(widest, OUTLIER * cost / statistics.total_weight)
    # With all rows on their centres any scale will do.
    largest = largest if largest > 0 else 1.0
    return largest, loss_scale(largest, statistics.total_weight)


def _ways(
    state: TruncatedState, offsets: NDArray[np.int64] | None, listed: NDArray[np.int32] | None
) -> NDArray[np.float64]:
    """(2, k) how far centres have gone since the last pass, and the farthest of each list.

    Without lists: of all centres.
    """
    k = len(state.centers)
    last = state.history.last
    if state.restores or last is None:
        # Nothing is known of the rows but their labels.
        return np.stack([np.zeros(k), np.full(k, np.inf)])
    drift = np.sqrt(squared_movements(state.centers, last.centers))
    strange, moved = state.strange, None
    if state.moves is not None:
        moved = np.concatenate([state.moves.split, state.moves.removed])
        # Their rows meet other lists, with new distances.
        drift[moved] = 0
        strange = np.zeros(k, np.bool_) if strange is None else strange.copy()
        strange[moved] = True
    return np.stack([drift, reach_of(drift, offsets, listed, strange, moved)])
