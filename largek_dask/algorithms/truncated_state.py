"""What the truncated search keeps from step to step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.truncated_far import FarRows
from largek_dask.algorithms.truncated_lists import Near
from largek_dask.algorithms.truncated_rows import Order
from largek_dask.algorithms.truncated_schedule import Schedule

__all__ = ["Round", "TruncatedState"]


@dataclass(frozen=True, slots=True)
class Round:
    """Where to go back to if moves do not pay."""

    centers: NDArray[Any]
    """(k, d) before the moves."""
    counts: NDArray[np.float64]
    """(k,)"""
    n_replayed: int
    """Orders that lead there from the last anchor: the first of the state's ``history``."""
    near: Near | None
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
    history: History[Order] = field(default_factory=History)
    """Of the rows that the last pass was over."""
    near: Near | None = None
    table: NDArray[np.int32] | None = None
    """(k, m) nearest centres of each centre, itself first, and what they are found from."""
    age: int = 0
    """Passes since the table was made."""
    strange: NDArray[np.bool_] | None = None
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
    """Of the rows as the last step has labelled them, with the centres that it has left."""
    far: FarRows | None = None
    """Rows that were drawn since those that are far from all centres count."""

    @property
    def fallback(self) -> Round | None:
        """Where the present round began, while its moves have not lowered the cost."""
        stage = self.schedule.stage
        behind = stage.name == "round" and stage.passes > 0 and self.cost >= stage.cost_before
        return self.round if behind or self.moves is not None else None
