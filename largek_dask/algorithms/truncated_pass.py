"""One pass of the truncated search as its driver sees it, and what the rows are then asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.truncated_engines import pass_over
from largek_dask.algorithms.truncated_far import far_from
from largek_dask.algorithms.truncated_look import LabelledSample, gains_of_lists, share_misled
from largek_dask.algorithms.truncated_orders import cells_order, order_for
from largek_dask.algorithms.truncated_rounds import moves_to_try
from largek_dask.algorithms.truncated_rows import Order
from largek_dask.algorithms.truncated_schedule import TUNING
from largek_dask.algorithms.truncated_state import TruncatedState
from largek_dask.algorithms.truncated_total import PassTotal

__all__ = ["Found", "PassDone", "look", "mean_cost", "run_pass"]


@dataclass(frozen=True, slots=True)
class PassDone:
    """A pass, and what it comes to."""

    order: Order
    total: PassTotal
    labels: NDArray[np.int32] | None
    """Of the rows of the sample, if there is one."""
    n_rows: int
    """Rows that the pass was over."""
    scale: float
    """How many times all rows weigh what these do."""
    history: History[Order]
    """Of these rows, this pass included."""
    centers: NDArray[Any]
    """(k, d) means of the rows."""
    cost: float
    """Of all rows, as labelled, with these centres."""
    by_means: float
    """What the means have taken off it."""
    work: float
    """What the pass took, in distances."""


@dataclass(frozen=True, slots=True)
class Found:
    """What rows were asked after a pass."""

    moves: Moves | None = None
    curve: tuple[float, ...] = ()
    """What lists of each length would take off the cost."""
    misled: float = 0.0
    """By what share rows would cost more if coarse cells had led them."""


def mean_cost(passes: Passes, state: TruncatedState) -> float:
    """What a row costs in the mean as the samples so far tell it."""
    return state.schedule.cost / passes.statistics.total_weight


def run_pass(
    passes: Passes,
    state: TruncatedState,
    sample: Passes | None,
    origin: NDArray[np.int32] | None,
) -> PassDone:
    """Carry out the pass that comes next; ``neighbours_for`` has seen to its tables.

    Parameters
    ----------
    passes : Passes
    state : TruncatedState
    sample : Passes or None
        The rows of the pass, or those whose labels are asked for.
    origin : (m,) int32 or None
        Labels of the sample's rows, where the pass is the first over them and no anchor.
    """
    task, step = state.schedule.task, state.step + 1
    order = order_for(passes, state)
    if state.schedule.stage.name == "grow" and state.schedule.cost < float("inf"):
        order = replace(order, far=far_from(mean_cost(passes, state)))
    history = state.history
    if task.everywhere and not state.everywhere:
        history = History()
    if task.everywhere:
        wanted = None if sample is None else sample.take().rows
        total, labels = pass_over(passes, history, order, step, wanted)
        n_rows, scale = passes.n_rows, 1.0
    else:
        assert sample is not None
        total, labels = pass_over(sample, history, order, step, "all", origin)
        n_rows = sample.n_rows
        scale = passes.statistics.total_weight / sum(total.sums.counts.tolist())
    centers = total.sums.means(state.centers)
    cost = scale * total.sums.cost(centers, total.squares)
    by_means = scale * total.sums.cost(state.centers, total.squares) - cost
    back_to, anchor = None, order.is_anchor
    if order.restore:
        # What was undone need not be repeated: from where the round began it leads here too.
        assert state.round is not None
        back_to = state.round.n_replayed
        order = replace(order, restore=False)
    order.forget()
    return PassDone(
        order=order,
        total=total,
        labels=labels,
        n_rows=n_rows,
        scale=scale,
        history=history.then(order.to_keep(), anchor=anchor, back_to=back_to),
        centers=centers,
        cost=cost,
        by_means=by_means,
        work=_work(state, total, n_rows, order, made_table=state.age == 0),
    )


def look(passes: Passes, state: TruncatedState, done: PassDone, sample: Passes | None) -> Found:
    """What the task wants to know of the rows of the sample."""
    task, schedule, threads = state.schedule.task, state.schedule, passes.threads
    if not task.looks:
        return Found()
    assert sample is not None
    assert done.labels is not None
    rows = _labelled(sample, done.labels, done.total, far=state.far is not None)
    moves: Moves | None = None
    curve: tuple[float, ...] = ()
    misled = 0.0
    if schedule.searched and not schedule.dense:
        curve = gains_of_lists(rows, done.centers, state.shift, threads)
        if not task.everywhere:
            assert state.table is not None
            cells = cells_order(done.centers, state.coarse, state.shift)
            misled = share_misled(rows, cells, state.table, schedule.lengths.usual, threads)
    if schedule.search.moves:
        assert state.table is not None
        moves = moves_to_try(state, done.total, done.order, done.centers, rows, threads.n)
    return Found(moves, curve, misled)


def _labelled(
    sample: Passes, labels: NDArray[np.int32], total: PassTotal, far: bool
) -> LabelledSample:
    """The sample as the pass has labelled it."""
    x, weight, _ = sample.take()
    mass = float(len(labels)) if weight is None else sum(weight.tolist())
    scale = sum(total.sums.counts.tolist()) / mass
    return LabelledSample(x, weight, labels, scale, far)


def _work(
    state: TruncatedState, total: PassTotal, n_rows: int, order: Order, *, made_table: bool
) -> float:
    """What a step took, in distances."""
    k = len(state.centers)
    length = k if order.kind == "unsettled" else min(k, state.schedule.task.length)
    n_looked = n_rows if order.is_anchor else total.tally.n_evaluated // length
    work = total.tally.n_evaluated + TUNING.row_work * n_looked + TUNING.pass_work * n_rows
    return work + float(k) * k if made_table else work
