"""History of passes since the last anchor, from which row state is rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from largek_dask.algorithms.base import ChunkFunction, RowState

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class History(Generic[Entry]):
    """Passes over the same rows, stored in an algorithm's state.

    An anchor is a pass whose result does not depend on row state. Arrays that entries share are
    also shared in checkpoints and after a resume.
    """

    generation: int = 0
    """Number of passes so far, and the generation of the row state that the last one wrote."""
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

        ``back_to`` is the number of entries that remain valid, if the pass first restored the state
        after them.
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
        """Return the row state of the next pass; ``broadcast`` makes arguments from an entry."""
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
        """Return the row state of a pass that only reads what ``rebuild`` wrote into its totals."""
        return replace(self.next_state(name, broadcast), rebuild=rebuild, rebuild_start=start)
