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
from largek_dask.algorithms.truncated.passes import Kind, Pass
from largek_dask.algorithms.truncated.schedule import Schedule, ended_round
from largek_dask.kernels.bounds.lists import loss_scale
from largek_dask.kernels.exact.movement import beyond, squared_movements

TABLE_AGE = 6
"""Number of passes after which neighbours are computed again."""
WIDTH = 64
"""Minimum number of nearest centres computed for each centre."""
OUTLIER = 2.0**20
"""Maximum loss that is counted for a row when its cluster is removed, in multiples of the mean cost
of a row."""
BEYOND = 0.8
"""Overshoot of a centre beyond the mean of its rows, relative to its movement. With a value below
1, the cost cannot rise; if clusters overlap, overshooting saves passes."""


@dataclass(frozen=True, slots=True)
class Round:
    """State to return to if the moves of a round do not lower the cost."""

    centers: NDArray[Any]
    counts: NDArray[np.float64]
    n_replayed: int
    """Number of passes in ``history`` before the round."""
    neighbours: Neighbours | None
    table: NDArray[np.int32] | None
    split: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TruncatedState:
    """State between two steps."""

    step: int
    schedule: Schedule
    centers: NDArray[Any]
    """(k, d) centres to which the next step assigns rows."""
    counts: NDArray[np.float64]
    shift: NDArray[Any]
    coarse: NDArray[Any]
    everywhere: bool = False
    """True if the last pass was over all rows, not over a sample."""
    history: History[Pass] = field(default_factory=History)
    """Passes over the rows of the last pass, since the last anchor."""
    neighbours: Neighbours | None = None
    table: NDArray[np.int32] | None = None
    """(k, m) nearest centres of each centre, beginning with the centre itself."""
    table_age: int = 0
    unmet: NDArray[np.bool_] | None = None
    """(k,) True for clusters whose rows have not been compared with the list of the cluster; None
    if there are no such clusters."""
    moves: Moves | None = None
    """Moves of the next step, already applied to ``centers``."""
    round: Round | None = None
    failed: tuple[int, ...] = ()
    """Clusters whose split failed when it was tried alone, since the last successful round."""
    restores: bool = False
    """True if the next step restores the labels from before the last round."""
    cost: float = float("inf")
    """Cost of the last labels with ``centers``."""
    far: FarSample | None = None
    """Sample with far rows, drawn after these were found to account for much of the cost."""
    n_read: int = 0
    """Number of times that all rows were read before the search in all features."""

    @property
    def fallback(self) -> Round | None:
        """State before the current round, until the moves of the round lower the cost."""
        stage = self.schedule.stage
        behind = stage.name == "round" and stage.passes > 0 and self.cost >= stage.cost_before
        return self.round if behind or self.moves is not None else None


def with_neighbours(state: TruncatedState, n_threads: int) -> TruncatedState:
    """Return the state with the table of nearest centres, if the next pass needs one."""
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
    """Return the pass of the next step; call ``with_neighbours`` first."""
    schedule, moves, task = state.schedule, state.moves, state.schedule.task
    kind: Kind = "lists" if task.kind == "start" else task.kind
    pass_ = Pass(kind, state.centers, state.shift)
    if task.probes:
        # No row is farther from a centre than the extent of the data.
        known = passes.statistics
        widest = 4 * passes.n_features * known.max_abs**2
        # If all rows are equal to their centres, any positive value will do.
        max_loss = min(widest, OUTLIER * schedule.cost / known.total_weight) or 1.0
        steps = loss_scale(max_loss, known.total_weight)
        pass_ = replace(pass_, max_loss=max_loss, loss_steps=steps)
    if pass_.is_anchor:
        return replace(pass_, coarse=state.coarse) if kind == "cells" else pass_
    if kind == "unsettled":
        drift, reach = _drift_and_reach(state, None, None, passes.threads.n)
        return replace(pass_, drift=drift, reach=reach, save=schedule.opens_round)
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
    drift, reach = _drift_and_reach(state, offsets, listed, passes.threads.n)
    return replace(
        pass_,
        listed=listed,
        # Lists of equal length need no offsets.
        offsets=None if moves is None else offsets,
        recipe=recipe,
        drift=drift,
        reach=reach,
        save=schedule.opens_round,
        restore=state.restores,
    )


def _drift_and_reach(
    state: TruncatedState,
    offsets: NDArray[np.int64] | None,
    listed: NDArray[np.int32] | None,
    n_threads: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (k,) movements of the centres since the last pass, and (k,) maxima over the lists.

    Without lists, the maximum over all centres is returned for every cluster.
    """
    k = len(state.centers)
    last = state.history.last
    if state.restores or last is None:
        # The labels of the rows are known, but not their bounds.
        return np.zeros(k), np.full(k, np.inf)
    drift = np.sqrt(squared_movements(state.centers, last.centers, n_threads))
    unmet, moved = state.unmet, None
    if state.moves is not None:
        moved = state.moves.clusters
        # Rows of these clusters are compared with new lists, which gives new distances.
        drift[moved] = 0
        unmet = np.zeros(k, np.bool_) if unmet is None else unmet.copy()
        unmet[moved] = True
    return drift, reach_of(drift, offsets, listed, unmet, moved)


def with_moves(after: TruncatedState, moves: Moves | None, *, tried: bool) -> TruncatedState:
    """Return the state with the chosen moves, and with a new round if the next step begins one.

    If ``tried``, moves are carried out only in a round, where they can be undone.
    """
    opens = after.schedule.opens_round
    split = () if moves is None else tuple(moves.split.tolist())
    if opens:
        before = after.centers, after.counts, len(after.history), after.neighbours, after.table
        after = replace(after, round=Round(*before, split))
    # An anchor does not need lists of the moved centres.
    is_anchor = after.schedule.task.kind in ("cells", "all") and not tried
    if moves is None or not split or not (opens or is_anchor):
        return after
    return replace(after, centers=moves.apply(after.centers), moves=moves if opens else None)


def back_to_round(state: TruncatedState, begun: Round, *, restores: bool) -> TruncatedState:
    """Return the state with the centres and tables from before the moves of a round.

    If ``restores``, the next pass also restores the labels of the rows.
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
    """Return the clusters whose split is not tried again before another round succeeds.

    If several splits were tried together, none is included, as it is unknown which of them failed.
    """
    if back:
        assert state.round is not None
        return (*state.failed, *state.round.split) if len(state.round.split) == 1 else state.failed
    paid = ended_round(state.schedule, schedule)
    return () if paid or state.everywhere != schedule.everywhere else state.failed


def overstep(
    before: NDArray[Any], means: NDArray[Any], moves: Moves | None, n_threads: int = 1
) -> NDArray[Any]:
    """Return centres (k, d) beyond the means of their rows (over-relaxation).

    Centres that have just been relocated are set to the means.
    """
    centers = beyond(before, means, BEYOND, n_threads)
    if moves is not None:
        centers[moves.clusters] = means[moves.clusters]
    # Read-only arrays are packed without a copy.
    centers.flags.writeable = False
    return centers
