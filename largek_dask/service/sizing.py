"""What jobs take of the memory of workers, and whether they fit there together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from largek_dask import config
from largek_dask.driver.plan import Footprint, Share
from largek_dask.driver.words import count_of, human_bytes
from largek_dask.service.spec import JobSpec

__all__ = ["Cluster", "Place", "Standing", "Takes", "cannot_fit", "does_not_fit", "share_of"]

Bytes = Annotated[int, Field(ge=0)]


class Standing(NamedTuple):
    """A worker as its scheduler sees it."""

    tags: frozenset[str]
    is_able: bool
    """It takes tasks."""
    n_threads: int = 1
    memory_limit: int = 0
    """Bytes; 0: none."""


class Takes(BaseModel):
    """A job's footprint, as its record has it: see ``driver.plan.Footprint``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Bytes
    sums: Bytes
    chunk: Bytes
    data: Bytes
    row_state: Bytes

    @classmethod
    def of(cls, found: Footprint) -> Takes:
        """The document of a footprint."""
        return cls(**{name: getattr(found, name) for name in cls.model_fields})

    def footprint(self) -> Footprint:
        """What it is the document of."""
        return Footprint(**self.model_dump())


class Cluster:
    """The workers that there are, by the tags that jobs ask for.

    Parameters
    ----------
    workers : collection of Standing
    """

    def __init__(self, workers: Collection[Standing]) -> None:
        self.workers = workers
        self._allowed: dict[frozenset[str], _Allowed] = {}

    def allowed(self, tags: frozenset[str]) -> _Allowed:
        """The workers that have all these tags."""
        if tags not in self._allowed:
            found = [worker for worker in self.workers if tags.issubset(worker.tags)]
            self._allowed[tags] = _Allowed(
                len(found),
                max((worker.n_threads for worker in found), default=1),
                min((w.memory_limit for w in found if w.memory_limit), default=0),
            )
        return self._allowed[tags]


class _Allowed(NamedTuple):
    """Workers that a job may use: how many, the most threads, the least memory (0: no limit)."""

    n_workers: int
    n_threads: int
    memory: int


class Place(NamedTuple):
    """What a job takes in the smallest of its workers, and what that one has."""

    share: Share
    memory: int


def share_of(spec: JobSpec, takes: Takes | None, cluster: Cluster | None) -> Place | None:
    """What a job takes of the smallest worker that it may use; None where nobody knows.

    Parameters
    ----------
    spec : JobSpec
    takes : Takes or None
    cluster : Cluster or None
    """
    if takes is None or cluster is None:
        return None
    asked = spec.workers
    n, threads, memory = cluster.allowed(frozenset(() if asked is None else asked.tags))
    if not memory:
        return None
    if asked is not None and asked.max is not None:
        n = min(n, asked.max)
    # Documents of earlier versions may say 0.
    limit = None if spec.memory_limit is None else max(1, spec.memory_limit)
    return Place(takes.footprint().on(n, threads, memory, limit), memory)


def cannot_fit(place: Place | None) -> str | None:
    """Why a job would not fit if it were alone; None where it may."""
    if place is None or place.share.needed <= place.memory:
        return None
    share, memory = place
    return (
        f"it takes {human_bytes(share.needed)} of a worker (model and sums "
        f"{human_bytes(share.model)}, chunks {human_bytes(share.chunks)}, kept per row "
        f"{human_bytes(share.row_state)}), and the smallest that it may use has "
        f"{human_bytes(memory)}"
    )


def does_not_fit(place: Place | None, running: Iterable[Share | None]) -> str | None:
    """Why a job has to wait for those that run, for want of memory; None where it need not.

    Parameters
    ----------
    place : Place or None
    running : iterable of Share or None
        What each of those takes; None: not known.
    """
    others = [share for share in running if share is not None]
    if place is None or not others:
        return None
    shares = [*others, place.share]
    cache = min(int(config.get("passes.cache-bytes")), sum(share.cached for share in shares))
    if sum(share.needed for share in shares) + cache <= place.memory:
        return None
    taken = sum(share.needed for share in others)
    return (
        f"{count_of(len(others), 'job')} that {'runs' if len(others) == 1 else 'run'} "
        f"take{'s' if len(others) == 1 else ''} {human_bytes(taken)} of a worker, this one "
        f"{human_bytes(place.share.needed)}, the rows that stay in memory {human_bytes(cache)}, "
        f"and the smallest that it may use has {human_bytes(place.memory)}"
    )
