"""History of passes since the last anchor, used to rebuild row state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from largek_dask.algorithms.base import ChunkFunction, RowState

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class History(Generic[Entry]):
    """Record of passes over the same rows, stored in the state of an algorithm.

    An anchor is a pass whose result does not depend on row state. Arrays shared by several entries
    are also shared in checkpoints and after a resume.
    """

    generation: int = 0
    """Number of passes so far, which is also the generation of the last row state."""
    entries: tuple[Entry, ...] = ()
    """Entries of the passes since the last anchor, the anchor first."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last(self) -> Entry | None:
        """Entry of the last pass; None if there is none."""
        return self.entries[-1] if self.entries else None

    def then(
        self, entry: Entry, *, anchor: bool = False, back_to: int | None = None
    ) -> History[Entry]:
        """Return the history with one more pass; an anchor removes all earlier entries.

        If the pass first restored an earlier state, ``back_to`` is the number of entries up to that
        state.
        """
        before = () if anchor else self.entries[:back_to]
        return History(self.generation + 1, (*before, entry))

    def next_state(
        self,
        name: str,
        broadcast: Callable[[Entry], tuple[Any, ...]],
        *,
        anchor: bool = False,
        retain: bool = False,
    ) -> RowState:
        """Return the row state of the next pass; ``broadcast`` turns an entry into arguments."""
        entries = () if anchor else self.entries
        replay = tuple(map(broadcast, entries))
        return RowState(name, self.generation + 1, replay, retain=retain)

    def read_state(
        self,
        name: str,
        broadcast: Callable[[Entry], tuple[Any, ...]],
        rebuild: ChunkFunction,
        start: Callable[[], Any],
    ) -> RowState:
        """Return the row state for a pass that only reads what ``rebuild`` has written."""
        return replace(self.next_state(name, broadcast), rebuild=rebuild, rebuild_start=start)
