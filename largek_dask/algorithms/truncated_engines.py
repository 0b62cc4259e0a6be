"""Where the passes of the truncated search run: on rows in one piece, or on whoever owns them.

Both carry out the same orders with the same functions and give the same bits. What a pass leaves
on rows is a cache: after a loss, or a resume, the orders since the last anchor are carried out
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, RowState
from largek_dask.algorithms.truncated_rows import Order, RowArrays, advance
from largek_dask.algorithms.truncated_total import (
    PassTotal,
    count_far_rows,
    count_rows,
    truncated_chunk,
)
from largek_dask.kernels.threads import on_threads

__all__ = ["Held", "run_everywhere", "run_on_sample"]

WHOLE = "truncated rows"
"""Where the state of all rows lies among what passes keep, if they lie in one piece."""
STATE = "truncated"
"""Name of the row state."""
LEAST_COUNTED = 1 << 15
"""Rows that a thread adds up, at least."""
WORTH_COUNTING = 8
"""Rows a cluster from which on it pays to add up on several threads, each in sums of its own."""


@dataclass(slots=True)
class Held:
    """Rows in one piece, and what the passes so far have left of them."""

    x: Any
    weight: NDArray[np.float64] | None
    n_threads: int
    check: Callable[[], object]
    """Raises if the search is to stop."""
    origin: NDArray[np.int32] | None = None
    """(n,) labels before the first pass, if that is no anchor."""
    generation: int = -1
    """Of the last pass; -1: nothing is known."""
    rows: RowArrays | None = None
    total: PassTotal | None = None

    def run(
        self, generation: int, replay: tuple[Order, ...], order: Order, step: int, new: Any
    ) -> PassTotal:
        """One pass; ``new`` makes an empty total."""
        rows, total = self.rows, self.total
        known = rows is not None and generation > 1 and self.generation == generation - 1
        if order.is_anchor or rows is None or not known:
            rows = RowArrays.new(len(self.x), order.packed.dtype)
            if self.origin is not None:
                rows.labels[:] = self.origin
            for earlier in replay:
                advance(self.x, self.weight, rows, earlier, self.n_threads, self.check)
            for earlier in replay:
                earlier.forget()
            total = None
        # Forgotten until it is done: what a pass that was cut has touched is never used again.
        self.rows, self.total = None, None
        old = None if order.is_anchor else rows.labels.copy()
        counted = total is not None and old is not None
        if total is None or not counted:
            total = new()
        total.begin(step)
        evaluated, losses = advance(self.x, self.weight, rows, order, self.n_threads, self.check)
        total.n_evaluated += evaluated
        if losses is not None:
            total.add_losses(losses)
        count_far_rows(self.weight, rows, order, total)
        total = self._counted(old, rows.labels, total, counted, new)
        self.rows, self.total, self.generation = rows, total, generation
        return total

    def _counted(
        self, old: Any, labels: NDArray[np.int32], total: PassTotal, counted: bool, new: Any
    ) -> PassTotal:
        """The total brought up to date by all threads; sums are exact, so in any order."""
        n = len(labels)
        step = max(LEAST_COUNTED, -(-n // self.n_threads))
        if counted and np.count_nonzero(labels != old) < WORTH_COUNTING * len(total.sums.counts):
            step = max(n, 1)

        def count(begin: int) -> PassTotal:
            part = total if begin == 0 else new()
            if begin > 0:
                part.begin(total.step)
            at = slice(begin, begin + step)
            weight = None if self.weight is None else self.weight[at]
            before = None if old is None else old[at]
            count_rows(self.x[at], weight, before, labels[at], part, counted)
            return part

        first, *others = on_threads(self.n_threads, count, range(0, max(n, 1), step))
        for part in others:
            PassTotal.combine(first, part)
        return first


def run_everywhere(
    passes: Passes,
    generation: int,
    replay: tuple[Order, ...],
    order: Order,
    step: int,
    wanted: NDArray[np.int64] | None,
) -> tuple[PassTotal, NDArray[np.int32] | None]:
    """One pass over all rows.

    Parameters
    ----------
    passes : Passes
    generation : int
        Counter of passes over all rows, of which this is the next.
    replay : tuple of Order
        Orders since the last anchor, which is the first of them; none: this is an anchor.
    order : Order
    step : int
    wanted : (m,) int64 or None
        Ascending global indices of rows whose labels are asked for.

    Returns
    -------
    total : PassTotal
        Not to be changed.
    labels : (m,) int32 or None
    """
    k, d = order.centers.shape
    new = partial(PassTotal, k, d, passes.statistics.grid)
    whole = passes.whole()
    if whole is not None:
        held: Held | None = passes.scratch.get(WHOLE)
        if held is None or held.x is not whole[0]:
            held = passes.scratch[WHOLE] = Held(
                *whole, passes.driver_threads, passes.raise_if_stopped
            )
        total = held.run(generation, replay, order, step, new)
        assert held.rows is not None
        return total, None if wanted is None else held.rows.labels[wanted]
    total = passes.reduce(
        truncated_chunk,
        order,
        step,
        wanted,
        start=new,
        combine=PassTotal.combine,
        state=RowState(
            STATE, generation, tuple((earlier, -1, None) for earlier in replay), retain=True
        ),
    )
    if wanted is None:
        return total, None
    return total, np.concatenate([total.picked[index] for index in sorted(total.picked)])


def kept_rows(
    passes: Passes,
    generation: int,
    replay: tuple[Order, ...],
    chunk_fn: Callable[..., None],
    *broadcast: Any,
    start: Callable[[], Any],
    combine: Callable[[Any, Any], Any],
) -> Any:
    """What a function finds in the rows' state as of the last pass over all rows.

    Parameters
    ----------
    passes : Passes
    generation : int
        Of that pass.
    replay : tuple of Order
        Orders since the last anchor, up to that pass.
    chunk_fn : callable
        ``chunk_fn(first, weight, rows, total, *broadcast)``: global index of the first row, weights
        or None, the state.
    *broadcast : object
    start, combine : callable
        Of its totals.
    """
    k, d = replay[0].centers.shape
    whole = passes.whole()
    if whole is not None:
        held: Held | None = passes.scratch.get(WHOLE)
        assert held is not None
        assert held.rows is not None
        total = start()
        chunk_fn(0, whole[1], held.rows, total, *broadcast)
        return total
    return passes.reduce(
        state_chunk,
        chunk_fn,
        *broadcast,
        start=start,
        combine=combine,
        state=RowState(
            STATE,
            generation + 1,
            tuple((earlier, -1, None) for earlier in replay),
            truncated_chunk,
            partial(PassTotal, k, d, passes.statistics.grid),
        ),
    )


def state_chunk(chunk: Chunk, total: Any, chunk_fn: Callable[..., None], *broadcast: Any) -> None:
    """Show a function what is kept of a chunk's rows."""
    assert chunk.state is not None
    rows = RowArrays(*(chunk.state[name] for name in ("labels", "upper", "lower")))
    chunk_fn(chunk.start, chunk.weight, rows, total, *broadcast)


def run_on_sample(
    passes: Passes,
    held: Held,
    generation: int,
    replay: tuple[Order, ...],
    order: Order,
    step: int,
) -> tuple[PassTotal, NDArray[np.int32]]:
    """One pass over a sample, in this process; see :func:`run_everywhere`."""
    k, d = order.centers.shape
    new = partial(PassTotal, k, d, passes.statistics.grid)
    total = held.run(generation, replay, order, step, new)
    assert held.rows is not None
    return total, held.rows.labels
