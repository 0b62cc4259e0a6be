"""Rounds of moves: which moves are tried, where a round begins, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.parts.moves import Moves, choose_moves, losses_of_merging
from largek_dask.algorithms.truncated_look import LabelledSample, splits_of
from largek_dask.algorithms.truncated_rows import Order
from largek_dask.algorithms.truncated_schedule import Schedule, ended_round
from largek_dask.algorithms.truncated_state import Round, TruncatedState
from largek_dask.algorithms.truncated_total import PassTotal

__all__ = ["failed_splits", "moves_to_try", "opened", "overstep", "strange_clusters"]

SPLITS = 8
"""Clusters in which a split is tried, for each that may be made."""
MORE_MOVES = 6
"""More than twice as many moves as were found last time are not looked for, but for so many."""
SHARE_TRIED = 16
"""In one cluster out of so many a split is tried at least."""
LOCKED = 8
"""Nearest centres of a removed one that stay."""
BEYOND = 0.8
"""How much farther than to the mean of its rows a centre goes. Below 1 the rows cost no more than
before even if none of them changes its cluster, and where clusters have no borders to speak of,
centres that follow each other through the data come to rest after fewer passes."""


def moves_to_try(
    state: TruncatedState,
    total: PassTotal,
    order: Order,
    centers: NDArray[Any],
    rows: LabelledSample,
    n_threads: int,
) -> Moves:
    """The moves that may pay."""
    assert total.tally.losses is not None
    assert state.table is not None
    schedule, table = state.schedule, state.table
    losses, costs = total.tally.losses / order.loss_steps
    k = len(centers)
    most = schedule.most_moves
    # What costs most has most to gain; where few moves were found few will be.
    tried = max(SPLITS * min(most, 2 * schedule.rounds.n_found + MORE_MOVES), k // SHARE_TRIED)
    wanted = np.sort(np.argsort(-costs, kind="stable")[:tried])
    splits = splits_of(rows, centers, order.shift, wanted, n_threads)
    splits.gains[np.isin(splits.clusters, state.failed)] = 0
    if schedule.dense:
        losses = np.minimum(losses, losses_of_merging(centers, total.sums.counts, order.shift))
    cheapest = np.argsort(losses, kind="stable")
    near = table[cheapest, 1 : LOCKED + 1]
    return choose_moves(
        splits, losses, cheapest, near, most=most, factor=schedule.rounds.factor, split_takers=True
    )


def opened(after: TruncatedState, moves: Moves | None, back: bool, tried: bool) -> TruncatedState:
    """The state with its next round begun, or its last one undone."""
    if back:
        assert after.round is not None
        return replace(
            after,
            centers=after.round.centers,
            counts=after.round.counts,
            near=after.round.near,
            table=after.round.table,
            strange=None,
            restores=True,
        )
    if after.schedule.opens_round:
        replayed = len(after.history)
        begun = Round(after.centers, after.counts, replayed, after.near, after.table)
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


def failed_splits(state: TruncatedState, schedule: Schedule, back: bool) -> tuple[int, ...]:
    """Clusters whose split is not tried again before something pays, as the step has left it.

    Of several that were tried together nobody knows which one it was.
    """
    if back:
        assert state.round is not None
        return (*state.failed, *state.round.split) if len(state.round.split) == 1 else state.failed
    paid = ended_round(state.schedule, schedule)
    return () if paid or state.everywhere != schedule.everywhere else state.failed


def strange_clusters(moves: Moves | None, k: int) -> NDArray[np.bool_] | None:
    """(k,) clusters that met the lists of moves."""
    if moves is None:
        return None
    strange = np.zeros(k, np.bool_)
    strange[moves.split] = strange[moves.removed] = True
    return strange


def overstep(before: NDArray[Any], means: NDArray[Any], moves: Moves | None) -> NDArray[Any]:
    """Centres (k, d) beyond the means of their rows, seen from where they were (over-relaxation).

    Those that have just been moved across the data go to the mean.
    """
    beyond: NDArray[Any] = means + means.dtype.type(BEYOND) * (means - before)
    if moves is not None:
        moved = np.concatenate([moves.split, moves.removed])
        beyond[moved] = means[moved]
    return beyond
