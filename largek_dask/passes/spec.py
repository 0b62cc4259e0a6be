"""A pass as every process that takes part in it needs to know it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from largek_dask.algorithms.base import ChunkFunction, RowSlice
from largek_dask.passes.chunks import Preparation

__all__ = ["PassSpec", "StateSpec", "total_of"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The part of a ``RowState`` that every pass sends; the replay is sent only when needed."""

    name: str
    epoch: int
    """Number of the run that uses the name: states of different runs never meet."""
    generation: int
    first: bool
    """There is no earlier state: nothing to look up, nothing to replay."""
    retain: bool
    rebuild: ChunkFunction | None = None
    rebuild_start: Callable[[], Any] | None = None
    rebuild_rows: RowSlice | None = None
    """The rows that the generation before was written for; None: all of them."""
    n_before: int | None = None
    """Chunks that there were then: the others have no state yet. None: as many as now."""

    def is_there(self, index: int) -> bool:
        """Return True if a chunk was in the generation before."""
        return self.n_before is None or index < self.n_before


@dataclass(frozen=True, slots=True)
class PassSpec:
    """One pass, as every process that takes part in it needs to know it."""

    chunk_fn: ChunkFunction
    broadcast: tuple[Any, ...]
    start: Callable[[], Any]
    combine: Callable[[Any, Any], Any]
    state: StateSpec | None = None
    rows: RowSlice | None = None
    joined: bool = False
    """Chunks that lie in one piece in a process may be shown as one."""
    preparation: Preparation = field(default_factory=Preparation)


def total_of(spec: PassSpec, totals: Iterable[Any]) -> Any:
    """A new total that holds all of ``totals``, none of which is changed."""
    out = spec.start()
    for total in totals:
        out = spec.combine(out, total)
    return out
