"""Select the workers of a cluster that a job uses, by tags and by minimum and maximum number.

A tag is one of Dask's worker resources: ``dask worker --resources bigmem=1`` starts a worker with
the tag bigmem.
Results do not depend on the selection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar


class WorkerSelection:
    """Workers of one run of a job; a chosen worker is used as long as it can compute.

    The job waits for at least ``least`` workers and uses at most ``most`` (None means no limit).
    Each worker must have all of these ``tags``.
    """

    def __init__(self, least: int = 1, most: int | None = None, tags: Collection[str] = ()) -> None:
        self.least = least
        self.most = most
        self.tags = frozenset(tags)
        self.chosen: tuple[str, ...] = ()
        """Addresses of the chosen workers, the oldest choice first."""

    def __str__(self) -> str:
        tags = f" with {', '.join(sorted(self.tags))}" if self.tags else ""
        return f"at least {self.least:,}{tags}"

    def allows(self, tags: Iterable[str]) -> bool:
        """Return True if a worker with these tags may be used."""
        return self.tags.issubset(tags)

    def count(self, n_allowed: int) -> int:
        """Return the number of workers to use if ``n_allowed`` workers are allowed."""
        return n_allowed if self.most is None else min(n_allowed, self.most)

    def choose(self, ready: Mapping[str, int], able: Collection[str]) -> dict[str, int]:
        """Return the workers to use, out of ``ready``, which maps addresses to numbers of threads.

        ``able`` contains allowed workers that can compute; a chosen worker in ``able`` stays chosen
        even if it does not answer.
        """
        kept = [address for address in self.chosen if address in able]
        others = [other for other in tuple(_SELECTIONS) if other is not self]
        uses = Counter(address for other in others for address in other.chosen)
        # Prefer workers that are used by the fewest other jobs.
        new = sorted(set(ready).difference(kept), key=lambda address: (uses[address], address))
        free = len(new) if self.most is None else max(0, self.most - len(kept))
        self.chosen = (*kept, *new[:free])
        return {address: ready[address] for address in self.chosen if address in ready}


_SELECTIONS: list[WorkerSelection] = []
"""Selections of all running jobs of this process."""
_selection: ContextVar[WorkerSelection | None] = ContextVar("largek_selection", default=None)
_row_state: ContextVar[int] = ContextVar("largek_declared_row_state", default=0)


def declared_row_state() -> int:
    """Return the bytes of row state that each worker reserves for passes opened in this context."""
    return _row_state.get()


def current_selection() -> WorkerSelection | None:
    """Return the selection for passes opened in this context; None means all workers."""
    return _selection.get()


@contextmanager
def use_selection(selection: WorkerSelection | None, row_state: int = 0) -> Iterator[None]:
    """Use only these workers (None means all workers) for passes opened inside the block.

    Each worker reserves ``row_state`` bytes for these passes, even if other jobs need memory.
    """
    token, before = _selection.set(selection), _row_state.set(row_state)
    if selection is not None:
        _SELECTIONS.append(selection)
    try:
        yield
    finally:
        _selection.reset(token)
        _row_state.reset(before)
        if selection is not None:
            _SELECTIONS[:] = [other for other in _SELECTIONS if other is not selection]


def explain_shortage(
    selection: WorkerSelection, n_able: int, tags: Iterable[Collection[str]]
) -> str:
    """Explain why there are too few workers; ``n_able`` workers can be used."""
    there = [frozenset(of) for of in tags]
    wanted = "1 worker" if selection.least == 1 else f"{selection.least:,} workers"
    wanted += f" with {', '.join(sorted(selection.tags))}" if selection.tags else ""
    text = f"it wants {wanted}, and of the {len(there):,} there {n_able:,} can be used"
    if missing := sorted(selection.tags.difference(*there)):
        text += f"; no worker has {', '.join(missing)} (dask worker --resources {missing[0]}=1)"
    return text
