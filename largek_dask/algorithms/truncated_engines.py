"""Passes of the truncated search: over all rows, or over a subset that is held by the driver.

What a pass leaves on rows is a cache: after a loss, or a resume, the orders since the last anchor
are carried out again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.totals import AssignmentTotal
from largek_dask.algorithms.truncated_rows import Order, RowArrays
from largek_dask.algorithms.truncated_total import PassTotal, pass_total, truncated_chunk

__all__ = ["ask_kept_rows", "pass_over"]

STATE = "truncated"
"""Name of the row state."""


def pass_over(
    passes: Passes,
    history: History[Order],
    order: Order,
    step: int,
    wanted: NDArray[np.int64] | Literal["all"] | None,
    origin: NDArray[np.int32] | None = None,
    *,
    retain: bool = True,
) -> tuple[PassTotal, NDArray[np.int32] | None]:
    """One pass.

    Parameters
    ----------
    passes : Passes
    history : History
        Of passes over these rows, of which this is the next.
    order : Order
    step : int
    wanted, origin
        See :func:`truncated_chunk`.
    retain : bool
        The search goes on from this pass.

    Returns
    -------
    total : PassTotal
        Not to be changed.
    labels : (m,) int32 or None
        Of the rows that were asked for.
    """
    k, d = order.centers.shape
    total = passes.reduce(
        truncated_chunk,
        order,
        step,
        wanted,
        origin,
        start=partial(pass_total, k, d, passes.statistics.grid),
        combine=AssignmentTotal.combine,
        state=history.next_state(STATE, _broadcast, anchor=order.is_anchor, retain=retain),
        joined=True,
    )
    for earlier in history.entries:
        earlier.forget()
    if wanted is None:
        return total, None
    picked = total.tally.picked
    return total, np.concatenate([picked[index] for index in sorted(picked)])


def ask_kept_rows(
    passes: Passes,
    history: History[Order],
    chunk_fn: Callable[..., None],
    *broadcast: Any,
    start: Callable[[], Any],
    combine: Callable[[Any, Any], Any],
) -> Any:
    """What a function finds in the rows' state as of the last pass.

    Parameters
    ----------
    passes : Passes
    history : History
        Up to that pass.
    chunk_fn : callable
        ``chunk_fn(first, weight, rows, total, *broadcast)``: global index of the first row, weights
        or None, the state.
    *broadcast : object
    start, combine : callable
        Of its totals.
    """
    k, d = history.entries[0].centers.shape
    return passes.reduce(
        state_chunk,
        chunk_fn,
        *broadcast,
        start=start,
        combine=combine,
        state=history.read_state(
            STATE, _broadcast, truncated_chunk, partial(pass_total, k, d, passes.statistics.grid)
        ),
        joined=True,
    )


def _broadcast(order: Order) -> tuple[Any, ...]:
    """What repeats a pass; nobody asks for its figures."""
    return order, -1, None


def state_chunk(chunk: Chunk, total: Any, chunk_fn: Callable[..., None], *broadcast: Any) -> None:
    """Show a function what is kept of a chunk's rows."""
    assert chunk.state is not None
    rows = RowArrays(*(chunk.state[name] for name in ("labels", "upper", "lower")))
    chunk_fn(chunk.start, chunk.weight, rows, total, *broadcast)
