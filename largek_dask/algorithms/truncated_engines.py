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

from largek_dask.algorithms.base import Chunk, Passes, RowState
from largek_dask.algorithms.parts.totals import AssignmentTotal
from largek_dask.algorithms.truncated_rows import Order, RowArrays
from largek_dask.algorithms.truncated_total import PassTotal, pass_total, truncated_chunk

__all__ = ["ask_kept_rows", "pass_over"]

STATE = "truncated"
"""Name of the row state."""


def pass_over(
    passes: Passes,
    generation: int,
    replay: tuple[Order, ...],
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
    generation : int
        Counter of passes over these rows, of which this is the next.
    replay : tuple of Order
        Orders since the last anchor, which is the first of them; none: this is an anchor.
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
        state=RowState(STATE, generation, _broadcasts(replay), retain=retain),
        joined=True,
    )
    for earlier in replay:
        earlier.forget()
    if wanted is None:
        return total, None
    picked = total.tally.picked
    return total, np.concatenate([picked[index] for index in sorted(picked)])


def ask_kept_rows(
    passes: Passes,
    generation: int,
    replay: tuple[Order, ...],
    chunk_fn: Callable[..., None],
    *broadcast: Any,
    start: Callable[[], Any],
    combine: Callable[[Any, Any], Any],
) -> Any:
    """What a function finds in the rows' state as of the last pass.

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
    return passes.reduce(
        state_chunk,
        chunk_fn,
        *broadcast,
        start=start,
        combine=combine,
        state=RowState(
            STATE,
            generation + 1,
            _broadcasts(replay),
            truncated_chunk,
            partial(pass_total, k, d, passes.statistics.grid),
        ),
        joined=True,
    )


def _broadcasts(replay: tuple[Order, ...]) -> tuple[tuple[Any, ...], ...]:
    return tuple((order, -1, None) for order in replay)


def state_chunk(chunk: Chunk, total: Any, chunk_fn: Callable[..., None], *broadcast: Any) -> None:
    """Show a function what is kept of a chunk's rows."""
    assert chunk.state is not None
    rows = RowArrays(*(chunk.state[name] for name in ("labels", "upper", "lower")))
    chunk_fn(chunk.start, chunk.weight, rows, total, *broadcast)
