"""What a pass of the truncated search adds up over rows, and a pass over a chunk as a whole.

Sums are exact, so nothing depends on where rows lie or in what order they are added.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.truncated_rows import Order, RowArrays, advance
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint
from largek_dask.kernels.threads import Threads

__all__ = ["PassTotal", "truncated_chunk"]

LEAST_COUNTED = 1 << 15
"""Rows that a thread adds up, at least."""
WORTH_COUNTING = 8
"""Rows a cluster from which on it pays to add up on several threads, each in sums of its own."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


class PassTotal:
    """Sufficient statistics of the rows as they are labelled, and what one pass found.

    ``sums`` and ``squares`` may be retained between passes; the rest belongs to one step, see
    :class:`~largek_dask.algorithms.lloyd.AssignTotal`.
    """

    __slots__ = ("far", "losses", "n_changed", "n_evaluated", "picked", "squares", "step", "sums")

    def __init__(self, k: int, d: int, grid: FixedPoint) -> None:
        self.sums = ClusterSums(k, d, grid)
        self.squares = Squares(1)
        self.step = -1
        self.n_changed = self.n_evaluated = 0
        self.losses: NDArray[np.int64] | None = None
        """(2, k) what removing each cluster would cost, and what its rows cost, in the order's
        steps of losses."""
        self.picked: dict[int, Labels] = {}
        """Labels of the rows that were asked for, by chunk."""
        self.far = Squares(1)
        """What rows that are far away cost."""

    def begin(self, step: int) -> None:
        """Forget what belongs to an earlier step."""
        if step != self.step:
            self.step, self.n_changed, self.n_evaluated = step, 0, 0
            self.losses, self.picked, self.far = None, {}, Squares(1)

    def empty(self) -> PassTotal:
        """A total of the same shape that holds nothing."""
        k, d = self.sums.sums.shape
        return PassTotal(k, d, self.sums.grid)

    def add_losses(self, losses: NDArray[np.int64]) -> None:
        """Add to the losses."""
        self.losses = losses.copy() if self.losses is None else self.losses + losses

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        picked = sum(labels.nbytes for labels in self.picked.values())
        losses = 0 if self.losses is None else self.losses.nbytes
        return self.sums.nbytes + self.squares.nbytes + self.far.nbytes + picked + losses

    @staticmethod
    def combine(a: PassTotal, b: PassTotal) -> PassTotal:
        """Add ``b`` into ``a``."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        if b.step > a.step:
            a.begin(b.step)
        if b.step == a.step:
            a.n_changed += b.n_changed
            a.n_evaluated += b.n_evaluated
            a.picked.update(b.picked)
            if b.losses is not None:
                a.add_losses(b.losses)
            a.far.merge(b.far)
        return a


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
    changed = labels >= 0 if old is None else labels != old
    n, n_changed = len(labels), int(np.count_nonzero(changed))
    total.n_changed += n_changed
    step = max(LEAST_COUNTED, -(-n // threads.n))
    if counted and n_changed < WORTH_COUNTING * len(total.sums.counts):
        step = max(n, 1)

    def count(begin: int) -> PassTotal:
        part = total if begin == 0 else total.empty()
        at = slice(begin, begin + step)
        own = None if weight is None else weight[at]
        if counted and old is not None:
            part.sums.move(x[at], old[at], labels[at], own)
        else:
            part.sums.add(x[at], labels[at], own)
            part.squares.add_squares(x[at], part.sums.grid.shift, own)
        return part

    for part in threads.map(count, range(0, max(n, 1), step))[1:]:
        PassTotal.combine(total, part)


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
    total.far.add(squares, None if weight is None else weight[found])


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
    total.n_evaluated += evaluated
    if losses is not None:
        total.add_losses(losses)
    count_far_rows(chunk.weight, rows, order, total)
    count_rows(chunk.x, chunk.weight, old, rows.labels, total, chunk.counted, chunk.threads)
    if isinstance(wanted, np.ndarray):
        begin, end = np.searchsorted(wanted, [chunk.start, chunk.start + len(chunk.x)])
        total.picked[chunk.index] = rows.labels[wanted[begin:end] - chunk.start]
    elif wanted == "all":
        total.picked[chunk.index] = rows.labels
    chunk.keep(**rows.named())
