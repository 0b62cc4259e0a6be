"""State of the truncated search from step to step, and the next pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.truncated.far import FarSample
from largek_dask.algorithms.truncated.lists import Neighbours, Recipe, reach_of
from largek_dask.algorithms.truncated.passes import Pass
from largek_dask.algorithms.truncated.schedule import Schedule, ended_round
from largek_dask.kernels.bounds.lists import loss_scale
from largek_dask.kernels.exact.movement import squared_movements

TABLE_AGE = 6
"""Passes after which neighbours are computed again."""
WIDTH = 64
"""Minimum nearest centres computed for every centre."""
OUTLIER = 2.0**20
"""Largest loss of a row that counts for its cluster, in multiples of the mean cost of a row."""
BEYOND = 0.8
"""Overshoot of a centre beyond the mean of its rows, relative to its movement. Below 1 the rows
cost no more than before even if none of them changes its cluster, and where clusters have no clear
borders, centres that follow each other through the data come to rest after fewer passes."""


@dataclass(frozen=True, slots=True)
class Round:
    """State to go back to if moves do not pay."""

    centers: NDArray[Any]
    """(k, d) centres before the moves."""
    counts: NDArray[np.float64]
    """(k,)"""
    n_replayed: int
    """Passes that lead there from the last anchor: the first of the state's ``history``."""
    neighbours: Neighbours | None
    table: NDArray[np.int32] | None
    """(k, m) nearest centres there, and ``neighbours`` to compute them from, if they are needed."""
    split: tuple[int, ...] = ()
    """Clusters that the moves of the round split."""


@dataclass(frozen=True, slots=True)
class TruncatedState:
    """State between two steps."""

    step: int
    schedule: Schedule
    """The next step, and everything that later decisions depend on."""
    centers: NDArray[Any]
    """(k, d) centres that the next step assigns rows to."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last assignment, scaled to all rows."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""
    coarse: NDArray[Any]
    """(about sqrt(k), d) coarse centres."""
    everywhere: bool = False
    """The last pass was over all rows, not over the sample."""
    history: History[Pass] = field(default_factory=History)
    """Passes over the rows that the last one was over."""
    neighbours: Neighbours | None = None
    table: NDArray[np.int32] | None = None
    """(k, m) nearest centres of each centre, itself first; ``neighbours`` recomputes them."""
    table_age: int = 0
    """Passes since the table was made."""
    unmet: NDArray[np.bool_] | None = None
    """(k,) clusters whose rows have not met the list of their cluster; None: there are none."""
    moves: Moves | None = None
    """Moves of the next step; ``centers`` is after them."""
    round: Round | None = None
    """State before the last round."""
    failed: tuple[int, ...] = ()
    """Clusters whose split, tried alone, has failed since the last one that paid."""
    restores: bool = False
    """The next step restores that state."""
    cost: float = float("inf")
    """Cost of the rows as labelled by the last step, with the centres that it left."""
    far: FarSample | None = None
    """Rows drawn once far rows were found to carry the cost."""
    n_read: int = 0
    """Reads of all rows before they were searched in all features."""

    @property
    def fallback(self) -> Round | None:
        """State before the present round, while its moves have not lowered the cost."""
        stage = self.schedule.stage
        behind = stage.name == "round" and stage.passes > 0 and self.cost >= stage.cost_before
        return self.round if behind or self.moves is not None else None


# --- the next pass --------------------------------------------------------------------------------


def with_neighbours(state: TruncatedState, n_threads: int) -> TruncatedState:
    """Return the state with the nearest centres of each centre that the next pass needs."""
    (task, setting), k = (state.schedule.task, state.schedule.setting), len(state.centers)
    has_lists = task.kind in ("start", "lists")
    is_needed = has_lists or task.kind == "unsettled" or (task.probes and setting.moves)
    if setting.sparse or not is_needed:
        return state
    width = min(k, 0 if task.kind in ("all", "unsettled") else task.length)
    fits = state.table is not None and state.table.shape[1] >= width
    if fits and state.moves is None and state.table_age < TABLE_AGE:
        return state
    if state.neighbours is not None:
        state.neighbours.last.clear()
    neighbours = Neighbours(state.centers, state.shift, min(k, max(WIDTH, width)))
    return replace(state, neighbours=neighbours, table=neighbours.table(n_threads), table_age=0)


def next_pass(passes: Passes, state: TruncatedState) -> Pass:
    """Return the pass of the next step; ``with_neighbours`` has made its tables."""
    schedule, moves, task = state.schedule, state.moves, state.schedule.task
    max_loss = loss_steps = 0.0
    if task.probes:
        # No row is farther from a centre than the data are wide.
        known = passes.statistics
        widest = 4 * passes.n_features * known.max_abs**2
        # If all rows are on their centres any scale will do.
        max_loss = min(widest, OUTLIER * schedule.cost / known.total_weight) or 1.0
        loss_steps = loss_scale(max_loss, known.total_weight)
    if task.kind in ("all", "cells"):
        coarse = state.coarse if task.kind == "cells" else None
        return Pass(
            task.kind,
            state.centers,
            state.shift,
            coarse=coarse,
            max_loss=max_loss,
            loss_steps=loss_steps,
        )
    if task.kind == "unsettled":
        drift, reach = _drift_and_reach(state, None, None)
        save = schedule.opens_round
        return Pass("unsettled", state.centers, state.shift, drift=drift, reach=reach, save=save)
    assert state.neighbours is not None
    assert state.table is not None
    recipe = Recipe(state.neighbours, task.length)
    if moves is None:
        offsets, listed = state.neighbours.lists(state.table, task.length)
    else:
        begun = state.round
        assert begun is not None
        recipe = Recipe(recipe.near, task.length, begun.neighbours, moves.split, moves.removed)
        offsets, listed = recipe.make(state.table, begun.table)
    drift, reach = _drift_and_reach(state, offsets, listed)
    return Pass(
        "lists",
        state.centers,
        state.shift,
        listed=listed,
        # Lists of equal length need no offsets.
        offsets=None if moves is None else offsets,
        recipe=recipe,
        drift=drift,
        reach=reach,
        max_loss=max_loss,
        loss_steps=loss_steps,
        save=schedule.opens_round,
        restore=state.restores,
    )


def _drift_and_reach(
    state: TruncatedState, offsets: NDArray[np.int64] | None, listed: NDArray[np.int32] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return movements of centres since the last pass, (k,), and the largest in each list, (k,).

    Without lists the latter is that of all centres.
    """
    k = len(state.centers)
    last = state.history.last
    if state.restores or last is None:
        # Only the labels of the rows are known.
        return np.zeros(k), np.full(k, np.inf)
    drift = np.sqrt(squared_movements(state.centers, last.centers))
    unmet, moved = state.unmet, None
    if state.moves is not None:
        moved = state.moves.clusters
        # Their rows meet other lists, with new distances.
        drift[moved] = 0
        unmet = np.zeros(k, np.bool_) if unmet is None else unmet.copy()
        unmet[moved] = True
    return drift, reach_of(drift, offsets, listed, unmet, moved)


# --- after it -------------------------------------------------------------------------------------


def with_moves(after: TruncatedState, moves: Moves | None, *, tried: bool) -> TruncatedState:
    """Return the state with its next round begun, if one begins, and with the chosen moves.

    ``tried``: carry out only moves of a round, which may have to be undone.
    """
    opens = after.schedule.opens_round
    split = () if moves is None else tuple(moves.split.tolist())
    if opens:
        before = after.centers, after.counts, len(after.history), after.neighbours, after.table
        after = replace(after, round=Round(*before, split))
    if moves is None or not split:
        return after
    if opens:
        return replace(after, centers=moves.apply(after.centers), moves=moves)
    if after.schedule.task.kind in ("cells", "all") and not tried:
        # The next pass is an anchor: no list has to lead rows there.
        return replace(after, centers=moves.apply(after.centers))
    return after


def back_to_round(state: TruncatedState, begun: Round, *, restores: bool) -> TruncatedState:
    """Return the state with the centres, and their tables, from before a round's moves.

    ``restores``: the next pass restores the rows' labels.
    """
    return replace(
        state,
        centers=begun.centers,
        counts=begun.counts,
        neighbours=begun.neighbours,
        table=begun.table,
        unmet=None if restores else state.unmet,
        moves=None,
        restores=restores,
    )


def failed_splits(state: TruncatedState, schedule: Schedule, back: bool) -> tuple[int, ...]:
    """Return the clusters whose split is not tried again before something pays.

    Of several splits that were tried together it is unknown which one failed.
    """
    if back:
        assert state.round is not None
        return (*state.failed, *state.round.split) if len(state.round.split) == 1 else state.failed
    paid = ended_round(state.schedule, schedule)
    return () if paid or state.everywhere != schedule.everywhere else state.failed


def overstep(before: NDArray[Any], means: NDArray[Any], moves: Moves | None) -> NDArray[Any]:
    """Return centres (k, d) beyond the means of their rows (over-relaxation).

    Centres that have just been moved across the data go to the mean.
    """
    centers: NDArray[Any] = means + means.dtype.type(BEYOND) * (means - before)
    if moves is not None:
        centers[moves.clusters] = means[moves.clusters]
    # Packing need not copy a read-only array.
    centers.flags.writeable = False
    return centers
