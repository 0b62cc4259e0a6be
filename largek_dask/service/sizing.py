"""Memory that jobs take of workers, and whether they fit there together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from largek_dask import config
from largek_dask.driver.plan import FitMemory, ProcessMemory
from largek_dask.driver.words import count_of, human_bytes
from largek_dask.service.spec import JobSpec

__all__ = ["Cluster", "Standing", "cannot_fit", "does_not_fit", "worker_memory"]


class Standing(NamedTuple):
    """A worker as its scheduler sees it."""

    tags: frozenset[str]
    is_able: bool
    """It takes tasks."""
    n_threads: int = 1
    memory_limit: int = 0
    """Bytes; 0: none."""


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


def worker_memory(
    spec: JobSpec, takes: FitMemory | None, cluster: Cluster | None
) -> ProcessMemory | None:
    """Return the memory of the smallest worker that a job may use; None if it is not known.

    Parameters
    ----------
    spec : JobSpec
    takes : FitMemory or None
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
    return takes.per_process(n, threads, memory, limit)


def cannot_fit(memory: ProcessMemory | None) -> str | None:
    """Return why a job would not fit if it were alone; None if it may."""
    if memory is None or memory.needed <= memory.available:
        return None
    return (
        f"it takes {human_bytes(memory.needed)} of a worker (model and sums "
        f"{human_bytes(memory.model)}, chunks {human_bytes(memory.chunks)}, kept per row "
        f"{human_bytes(memory.row_state)}), and the smallest that it may use has "
        f"{human_bytes(memory.available)}"
    )


def does_not_fit(
    memory: ProcessMemory | None, running: Iterable[ProcessMemory | None]
) -> str | None:
    """Return why a job has to wait for running ones, for lack of memory; None if it need not.

    Parameters
    ----------
    memory : ProcessMemory or None
    running : iterable of ProcessMemory or None
        That of each running job; None: not known.
    """
    others = [one for one in running if one is not None]
    if memory is None or not others:
        return None
    taken = sum(one.needed for one in others)
    cached = memory.cached + sum(one.cached for one in others)
    cache = min(int(config.get("passes.cache-bytes")), cached)
    if taken + memory.needed + cache <= memory.available:
        return None
    return (
        f"{count_of(len(others), 'job')} that {'runs' if len(others) == 1 else 'run'} "
        f"take{'s' if len(others) == 1 else ''} {human_bytes(taken)} of a worker, this one "
        f"{human_bytes(memory.needed)}, the rows that stay in memory {human_bytes(cache)}, "
        f"and the smallest that it may use has {human_bytes(memory.available)}"
    )
