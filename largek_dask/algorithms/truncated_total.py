"""What a pass of the truncated search adds up over rows, and a pass over a chunk as a whole.

Sums are exact, so nothing depends on where rows lie or in what order they are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.algorithms.truncated_rows import Order, RowArrays, advance
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.exact.sums import FixedPoint
from largek_dask.kernels.threads import Threads

__all__ = ["PassTotal", "pass_total", "truncated_chunk"]

LEAST_COUNTED = 1 << 15
"""Rows that a thread adds up, at least."""
WORTH_COUNTING = 8
"""Rows a cluster from which on it pays to add up on several threads, each in sums of its own."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


@dataclass
class PassTally(Tally):
    """What one pass finds out."""

    losses: NDArray[np.int64] | None = None
    """(2, k) what removing each cluster would cost, and what its rows cost, in the order's steps
    of losses."""
    picked: dict[int, Labels] = field(default_factory=dict)
    """Labels of the rows that were asked for, by chunk."""
    far: Squares = field(default_factory=Squares)
    """What rows that are far away cost."""


PassTotal = AssignmentTotal[PassTally]


def pass_total(k: int, d: int, grid: FixedPoint) -> PassTotal:
    """An empty total of a pass."""
    return AssignmentTotal(k, d, grid, PassTally)


def count_rows(
    x: Array,
    weight: NDArray[np.float64] | None,
    old: Labels | None,
    labels: Labels,
    total: PassTotal,
    counted: bool,
    threads: Threads,
) -> None:
    """Bring a total up to date with rows' new labels.

    Parameters
    ----------
    x, weight
        Rows and their weights.
    old : (n,) int32 or None
        Their labels before.
    labels : (n,) int32
    total : PassTotal
    counted : bool
        The total holds the rows with their labels before.
    threads : Threads
        Sums are exact, so they may be added up in any order.
    """
    n = len(labels)
    step = max(LEAST_COUNTED, -(-n // threads.n))
    if counted and old is not None and step < n:
        n_changed = np.count_nonzero(labels != old)
        step = step if n_changed >= WORTH_COUNTING * len(total.sums.counts) else n

    def count(begin: int) -> PassTotal:
        part = total if begin == 0 else total.empty()
        at = slice(begin, begin + step)
        own = None if weight is None else weight[at]
        part.assign(x[at], own, None if old is None else old[at], labels[at], counted)
        return part

    for part in threads.map(count, range(0, max(n, 1), step))[1:]:
        AssignmentTotal.combine(total, part)


def count_far_rows(
    weight: NDArray[np.float64] | None, rows: RowArrays, order: Order, total: PassTotal
) -> None:
    """Add what rows cost that are far from their centres, if the order asks for it."""
    if not order.far > 0:
        return
    # The comparison takes one reading of the distances; most often nothing is found.
    least = rows.upper.dtype.type(np.sqrt(order.far))
    found = np.flatnonzero((rows.upper > least) & (rows.labels >= 0))
    squares = rows.upper[found].astype(np.float64) ** 2
    total.tally.far.add(squares, None if weight is None else weight[found])


def truncated_chunk(
    chunk: Chunk,
    total: PassTotal,
    order: Order,
    step: int,
    wanted: NDArray[np.int64] | Literal["all"] | None,
    origin: Labels | None = None,
) -> None:
    """One pass over a chunk.

    Parameters
    ----------
    chunk, total
    order : Order
    step : int
    wanted : (m,) int64, "all" or None
        Rows whose labels are asked for: global indices, ascending.
    origin : (n_rows,) int32, optional
        Labels before the first pass, if that is no anchor.
    """
    old: Labels | None = None
    if chunk.state is not None:
        kept = chunk.take_state()
        rows, old = RowArrays(**kept), kept["labels"].copy()
    else:
        rows = RowArrays.new(len(chunk.x), order.packed.dtype)
        if origin is not None:
            old = origin[chunk.start : chunk.start + len(chunk.x)]
            rows.labels[:] = old
    total.begin(step)
    evaluated, losses = advance(chunk.x, chunk.weight, rows, order, chunk.threads)
    total.tally.n_evaluated += evaluated
    if losses is not None:
        known = total.tally.losses
        total.tally.losses = losses if known is None else known + losses
    count_far_rows(chunk.weight, rows, order, total)
    count_rows(chunk.x, chunk.weight, old, rows.labels, total, chunk.counted, chunk.threads)
    if isinstance(wanted, np.ndarray):
        begin, end = np.searchsorted(wanted, [chunk.start, chunk.start + len(chunk.x)])
        total.tally.picked[chunk.index] = rows.labels[wanted[begin:end] - chunk.start]
    elif wanted == "all":
        total.tally.picked[chunk.index] = rows.labels
    chunk.keep(**rows.named())
