"""What the truncated search keeps from step to step, and the pass that this makes next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.parts.derived import Derives
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.truncated.far import FarRows
from largek_dask.algorithms.truncated.lists import Neighbours, Recipe, reach_of
from largek_dask.algorithms.truncated.passes import Pass
from largek_dask.algorithms.truncated.schedule import Schedule, ended_round
from largek_dask.kernels.bounds.lists import loss_scale
from largek_dask.kernels.exact.movement import beyond, squared_movements

__all__ = [
    "Projected",
    "Round",
    "Shown",
    "TruncatedState",
    "failed_splits",
    "moved_clusters",
    "next_pass",
    "overstep",
    "where_it_began",
    "with_neighbours",
    "with_round",
    "without_round",
]

TABLE_AGE = 6
"""Passes after which neighbours are found again."""
WIDTH = 64
"""Nearest centres that are found for every centre, at least."""
OUTLIER = 2.0**20
"""A row that costs more than this times the mean counts as that much in what its cluster loses."""
BEYOND = 0.8
"""How much farther than to the mean of its rows a centre goes. Below 1 the rows cost no more than
before even if none of them changes its cluster, and where clusters have no borders to speak of,
centres that follow each other through the data come to rest after fewer passes."""


@dataclass(frozen=True, slots=True)
class Round:
    """Where to go back to if moves do not pay."""

    centers: NDArray[Any]
    """(k, d) before the moves."""
    counts: NDArray[np.float64]
    """(k,)"""
    n_replayed: int
    """Passes that lead there from the last anchor: the first of the state's ``history``."""
    neighbours: Neighbours | None
    table: NDArray[np.int32] | None
    """(k, m) nearest centres there, and what they are found from, if anybody needs them."""
    split: tuple[int, ...] = ()
    """Clusters that the moves of the round split."""


@dataclass(frozen=True, slots=True)
class TruncatedState:
    """Between two steps."""

    step: int
    schedule: Schedule
    """What the next step does, and all that decides what follows."""
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
    """(k, m) nearest centres of each centre, itself first, and what they are found from."""
    table_age: int = 0
    """Passes since the table was made."""
    unmet: NDArray[np.bool_] | None = None
    """(k,) clusters whose rows have not met the list of their cluster; None: there are none."""
    moves: Moves | None = None
    """Moves that the next step carries out; ``centers`` is after them."""
    round: Round | None = None
    """Where the last round began."""
    failed: tuple[int, ...] = ()
    """Clusters whose split, tried alone, has not paid since something did."""
    restores: bool = False
    """The next step goes back there."""
    cost: float = float("inf")
    """What the rows cost as the last step has labelled them, with the centres that it has left."""
    far: FarRows | None = None
    """Rows that were drawn since those that are far from all centres count."""
    n_read: int = 0
    """How often all rows were gone through before they were searched in all features."""
    projected: Projected | None = None
    """The search among projected rows that comes first; ``centers`` are its means in all features
    then, as of its last round, and ``schedule`` what follows. None: it is over, or there is none"""

    @property
    def fallback(self) -> Round | None:
        """Where the present round began, while its moves have not lowered the cost."""
        stage = self.schedule.stage
        behind = stage.name == "round" and stage.passes > 0 and self.cost >= stage.cost_before
        return self.round if behind or self.moves is not None else None


@dataclass(frozen=True, eq=False)
class Shown(Derives):
    """Labels of rows as these have last counted for means in all features.

    Rows that have kept theirs need not be touched the next time.
    """

    generation: int = 0
    """How many times they have counted."""

    @cached_property
    def labels(self) -> NDArray[np.int32] | None:
        """(m,) cluster of each row that is searched.

        None: they are not known, as after a resume. Checkpoints do without them.
        """
        return None

    def then(self, labels: NDArray[np.int32]) -> Shown:
        """Once more, with these labels."""
        shown = Shown(self.generation + 1)
        shown.__dict__["labels"] = labels
        return shown


@dataclass(frozen=True, slots=True)
class Projected:
    """A search among rows as they are seen in few directions."""

    vectors: NDArray[Any]
    """(m, d) the directions."""
    origin: NDArray[Any]
    """(d,) what rows are seen about."""
    search: TruncatedState
    """The search itself, of m features."""
    left_out: float
    """Share of the variance outside of the directions."""
    beside: float
    """What rows cost outside, as of the last round; before it, by the sample of the directions."""
    round_cost: float
    """What they cost in all features when that began; infinity: there has been none."""
    shown: Shown
    """What rows have counted for when the last round began."""
    is_ahead: bool = False
    """The search is better than the means in all features that are known: it may be so while larger
    samples are searched, until means of all rows are."""
    expected: float = float("inf")
    """What all rows are expected to cost with the means of a sample; infinity: there are none."""
    n_rows: int = 0
    """Rows of the sample that is searched; 0: all of them are."""
    scale: float = 1.0
    """How many times all rows weigh what these do."""


# --- the next pass --------------------------------------------------------------------------------


def with_neighbours(state: TruncatedState, n_threads: int) -> TruncatedState:
    """The state with nearest centres of each centre that do for the next pass."""
    task, k = state.schedule.task, len(state.centers)
    if state.schedule.search.sparse:
        return state
    if task.kind not in ("start", "lists", "unsettled") and not (
        task.looks and state.schedule.search.moves
    ):
        return state
    table, width = state.table, min(k, 0 if task.kind in ("all", "unsettled") else task.length)
    fits = table is not None and table.shape[1] >= width
    if fits and state.moves is None and state.table_age < TABLE_AGE:
        return state
    if state.neighbours is not None:
        state.neighbours.forget_lists()
    neighbours = Neighbours(state.centers, state.shift, min(k, max(WIDTH, width)))
    return replace(state, neighbours=neighbours, table=neighbours.table(n_threads), table_age=0)


def next_pass(passes: Passes, state: TruncatedState) -> Pass:
    """What the next step does to rows; ``with_neighbours`` has seen to its tables."""
    schedule, centers, shift = state.schedule, state.centers, state.shift
    task = schedule.task
    max_loss, steps = _limits_of_losses(passes, schedule.cost) if task.looks else (0.0, 0.0)
    if task.kind == "all":
        return Pass("all", centers, shift, max_loss=max_loss, loss_steps=steps)
    if task.kind == "cells":
        return Pass("cells", centers, shift, coarse=state.coarse)
    if task.kind == "unsettled":
        drift, reach = _drift_and_reach(state, None, None)
        return Pass(
            "unsettled", centers, shift, drift=drift, reach=reach, save=schedule.opens_round
        )
    assert state.neighbours is not None
    assert state.table is not None
    recipe, before, moves = Recipe(state.neighbours, task.length), None, state.moves
    if moves is not None:
        assert state.round is not None
        recipe = replace(
            recipe, before=state.round.neighbours, split=moves.split, removed=moves.removed
        )
        before = state.round.table
    if moves is None:
        offsets, listed = state.neighbours.lists(state.table, task.length)
    else:
        offsets, listed = recipe.make(state.table, before)
    drift, reach = _drift_and_reach(state, offsets, listed)
    return Pass(
        "lists",
        centers,
        shift,
        listed=listed,
        # Lists of one length need none.
        offsets=None if moves is None else offsets,
        recipe=recipe,
        drift=drift,
        reach=reach,
        max_loss=max_loss,
        loss_steps=steps,
        skip=not task.looks,
        save=schedule.opens_round,
        restore=state.restores,
    )


def _limits_of_losses(passes: Passes, cost: float) -> tuple[float, float]:
    """The largest loss of a row that counts, and how many steps a loss of 1 is."""
    statistics = passes.statistics
    # No row is farther from a centre than the data are wide.
    widest = 4 * passes.n_features * statistics.max_abs**2
    largest = min(widest, OUTLIER * cost / statistics.total_weight)
    # With all rows on their centres any scale will do.
    largest = largest if largest > 0 else 1.0
    return largest, loss_scale(largest, statistics.total_weight)


def _drift_and_reach(
    state: TruncatedState, offsets: NDArray[np.int64] | None, listed: NDArray[np.int32] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far centres have gone since the last pass, each (k,), and the farthest of each list.

    Without lists: of all centres.
    """
    k = len(state.centers)
    last = state.history.last
    if state.restores or last is None:
        # Nothing is known of the rows but their labels.
        return np.zeros(k), np.full(k, np.inf)
    drift = np.sqrt(squared_movements(state.centers, last.centers))
    unmet, moved = state.unmet, None
    if state.moves is not None:
        moved = np.concatenate([state.moves.split, state.moves.removed])
        # Their rows meet other lists, with new distances.
        drift[moved] = 0
        unmet = np.zeros(k, np.bool_) if unmet is None else unmet.copy()
        unmet[moved] = True
    return drift, reach_of(drift, offsets, listed, unmet, moved)


# --- after it -------------------------------------------------------------------------------------


def with_round(after: TruncatedState, moves: Moves | None, *, tried: bool) -> TruncatedState:
    """The state with its next round begun, if one begins, and with moves that were chosen.

    Parameters
    ----------
    after : TruncatedState
    moves : Moves or None
    tried : bool
        Only those of a round are carried out: they may have to be undone.
    """
    if after.schedule.opens_round:
        replayed = len(after.history)
        begun = Round(after.centers, after.counts, replayed, after.neighbours, after.table)
        after = replace(after, round=begun)
    if moves is None or not len(moves.split):
        return after
    if after.schedule.opens_round:
        assert after.round is not None
        begun = replace(after.round, split=tuple(moves.split.tolist()))
        return replace(after, centers=moves.apply(after.centers), moves=moves, round=begun)
    if after.schedule.task.kind in ("cells", "all") and not tried:
        # The next pass asks nothing of what rows were: no list has to lead them there.
        return replace(after, centers=moves.apply(after.centers))
    return after


def without_round(after: TruncatedState) -> TruncatedState:
    """The state with its last round undone; the next pass gives the rows their labels back."""
    assert after.round is not None
    return replace(where_it_began(after, after.round), unmet=None, restores=True)


def where_it_began(state: TruncatedState, begun: Round) -> TruncatedState:
    """The state with the centres from before the moves of a round, and what belongs to them."""
    return replace(
        state,
        centers=begun.centers,
        counts=begun.counts,
        neighbours=begun.neighbours,
        table=begun.table,
        moves=None,
    )


def failed_splits(state: TruncatedState, schedule: Schedule, back: bool) -> tuple[int, ...]:
    """Clusters whose split is not tried again before something pays, as the step has left it.

    Of several that were tried together nobody knows which one it was.
    """
    if back:
        assert state.round is not None
        return (*state.failed, *state.round.split) if len(state.round.split) == 1 else state.failed
    paid = ended_round(state.schedule, schedule)
    return () if paid or state.everywhere != schedule.everywhere else state.failed


def moved_clusters(moves: Moves | None, k: int) -> NDArray[np.bool_] | None:
    """(k,) clusters that met the lists of moves."""
    if moves is None:
        return None
    moved = np.zeros(k, np.bool_)
    moved[moves.split] = moved[moves.removed] = True
    return moved


def overstep(before: NDArray[Any], means: NDArray[Any], moves: Moves | None) -> NDArray[Any]:
    """Centres (k, d) beyond the means of their rows, seen from where they were (over-relaxation).

    Those that have just been moved across the data go to the mean.
    """
    centers = beyond(means, before, BEYOND)
    if moves is not None:
        moved = np.concatenate([moves.split, moves.removed])
        centers[moved] = means[moved]
    # Packing needs no copy of what nobody can change.
    centers.flags.writeable = False
    return centers
