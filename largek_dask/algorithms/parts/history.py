"""What row state is made again from: what the passes since the last anchor did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from largek_dask.algorithms.base import ChunkFunction, RowState

__all__ = ["History"]

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class History(Generic[Entry]):
    """Passes over the same rows, as an algorithm's state keeps them.

    An anchor is a pass that asks nothing of what rows were: what it leaves depends on the rows and
    on itself alone. Entries that share arrays share them in checkpoints, too, and after a resume.
    """

    generation: int = 0
    """Passes so far; the last one wrote the row state of this generation."""
    entries: tuple[Entry, ...] = ()
    """What the passes since the last anchor did, the anchor first."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last(self) -> Entry | None:
        """What the last pass did."""
        return self.entries[-1] if self.entries else None

    def then(
        self, entry: Entry, *, anchor: bool = False, back_to: int | None = None
    ) -> History[Entry]:
        """With one pass more.

        Parameters
        ----------
        entry : object
            What it did.
        anchor : bool
            Nothing before it is needed.
        back_to : int, optional
            How many of the entries still hold: the pass has gone back to what these had left.
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
        """The row state of the pass that comes next; ``broadcast`` makes one of each entry."""
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
        """The same for a pass that only reads what ``rebuild`` has left, into such a total."""
        return replace(self.next_state(name, broadcast), rebuild=rebuild, rebuild_start=start)
