"""Description of a pass for all processes that compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from largek_dask.algorithms.base import ChunkFunction, RowSlice
from largek_dask.passes.chunks import Preparation


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The part of a ``RowState`` that every pass sends; the replay is sent only when needed."""

    name: str
    epoch: int
    """Number of the run that uses the name; states of different runs are separate."""
    generation: int
    first: bool
    """True if there is no earlier state to look up or replay."""
    retain: bool
    rebuild: ChunkFunction | None = None
    rebuild_start: Callable[[], Any] | None = None
    rebuild_rows: RowSlice | None = None
    """Rows for which the last generation was written; None means all rows."""
    n_before: int | None = None
    """Number of chunks that existed in the last generation; None if no chunks were added since."""

    def is_there(self, index: int) -> bool:
        """Return True if a chunk existed in the last generation."""
        return self.n_before is None or index < self.n_before


@dataclass(frozen=True, slots=True)
class PassSpec:
    """Specification of one pass, for all processes that compute it."""

    chunk_fn: ChunkFunction
    broadcast: tuple[Any, ...]
    start: Callable[[], Any]
    combine: Callable[[Any, Any], Any]
    state: StateSpec | None = None
    rows: RowSlice | None = None
    joined: bool = False
    """True if chunks that form one array in a process may be shown as one chunk."""
    all_threads: bool = False
    """True if the only chunk of the pass is computed on all threads of its process."""
    preparation: Preparation = field(default_factory=Preparation)


def total_of(spec: PassSpec, totals: Iterable[Any]) -> Any:
    """Combine ``totals``, which are not changed, into a new total."""
    out = spec.start()
    for total in totals:
        out = spec.combine(out, total)
    return out
