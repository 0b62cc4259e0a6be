"""Which workers of a cluster a job may use: those with its tags, not too few, not too many.

A tag is one of Dask's worker resources: ``dask worker --resources bigmem=1`` has the tag bigmem. No
bit of a result depends on any of it.
"""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

__all__ = ["Pick", "declared", "lacking", "picked", "picking"]


class Pick:
    """The workers of one run of a job; those that it has once it keeps while they can compute.

    Parameters
    ----------
    least : int
        With fewer it waits.
    most : int or None
        It never uses more; None: as many as there are.
    tags : collection of str
        Each of its workers has all of them.
    """

    def __init__(self, least: int = 1, most: int | None = None, tags: Collection[str] = ()) -> None:
        self.least = least
        self.most = most
        self.tags = frozenset(tags)
        self.chosen: tuple[str, ...] = ()
        """Addresses, in the order in which they came."""

    def __str__(self) -> str:
        tags = f" with {', '.join(sorted(self.tags))}" if self.tags else ""
        return f"at least {self.least:,}{tags}"

    def allows(self, tags: Iterable[str]) -> bool:
        """Whether a worker that has these tags may be one of them."""
        return self.tags.issubset(tags)

    def count(self, n_allowed: int) -> int:
        """How many of so many workers are used."""
        return n_allowed if self.most is None else min(n_allowed, self.most)

    def of(self, ready: Mapping[str, int], able: Collection[str]) -> dict[str, int]:
        """Those of the workers that are ready which the job is to use.

        Parameters
        ----------
        ready : mapping of str to int
            Threads by address of those that are allowed and know the job.
        able : collection of str
            Those that are allowed and could compute: who does not answer just now is kept.
        """
        kept = [address for address in self.chosen if address in able]
        crowd = Counter(a for pick in tuple(_PICKS) if pick is not self for a in pick.chosen)
        # Those that the fewest other jobs have picked come first.
        new = sorted(set(ready).difference(kept), key=lambda address: (crowd[address], address))
        free = len(new) if self.most is None else max(0, self.most - len(kept))
        self.chosen = (*kept, *new[:free])
        return {address: ready[address] for address in self.chosen if address in ready}


_PICKS: list[Pick] = []
"""Those of all jobs that run in this process."""
_picked: contextvars.ContextVar[Pick | None] = contextvars.ContextVar("largek_pick", default=None)


_declared: contextvars.ContextVar[int] = contextvars.ContextVar("largek_declared", default=0)


def declared() -> int:
    """Bytes of row state that each worker keeps for passes opened here, whoever else comes."""
    return _declared.get()


def picked() -> Pick | None:
    """The pick that holds for passes that are opened here; None: all workers are used."""
    return _picked.get()


@contextmanager
def picking(pick: Pick | None, row_state: int = 0) -> Iterator[None]:
    """Passes that are opened inside this block use these workers.

    Parameters
    ----------
    pick : Pick or None
        None: all that there are.
    row_state : int
        Bytes of row state that each of them keeps, though others may want them as well.
    """
    token, before = _picked.set(pick), _declared.set(row_state)
    if pick is not None:
        _PICKS.append(pick)
    try:
        yield
    finally:
        _picked.reset(token)
        _declared.reset(before)
        if pick is not None:
            _PICKS[:] = [other for other in _PICKS if other is not pick]


def lacking(pick: Pick, n_able: int, tags: Iterable[Collection[str]]) -> str:
    """What a cluster lacks that has too few workers for a job, in a sentence.

    Parameters
    ----------
    n_able : int
        Workers that the job may use.
    tags : iterable of collection of str
        Tags of each worker that there is.
    """
    there = [frozenset(of) for of in tags]
    wanted = "1 worker" if pick.least == 1 else f"{pick.least:,} workers"
    with_tags = f" with {', '.join(sorted(pick.tags))}" if pick.tags else ""
    told = f"it wants {wanted}{with_tags}, and of the {len(there):,} there {n_able:,} can be used"
    if nobody := sorted(pick.tags.difference(*there)):
        told += f"; no worker has {', '.join(nobody)} (dask worker --resources {nobody[0]}=1)"
    return told
