"""The queue of a scheduler, first come, first served, and the memory that jobs need."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from dask.utils import format_bytes

from largek_dask import config
from largek_dask.driver.formatting import count_of
from largek_dask.driver.plan import FitMemory, ProcessMemory
from largek_dask.passes.worker_selection import explain_shortage
from largek_dask.service.job_state import ACTIVE, JobState, Waiting
from largek_dask.service.job_table import JobTable
from largek_dask.service.lease import Tenure
from largek_dask.service.runner import Runner
from largek_dask.service.spec import JobSpec

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Cluster", "Queue", "Standing", "cannot_fit", "does_not_fit", "worker_memory"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5


class Queue(threading.Thread):
    """Takes up the jobs of a store and runs them, each when its turn has come.

    ``connect`` and ``workers`` are those of :class:`largek_dask.service.jobs.Jobs`.
    """

    def __init__(
        self,
        table: JobTable,
        tenure: Tenure,
        owner: str,
        connect: Callable[[], Client | None],
        workers: Callable[[], Collection[Standing] | None] = lambda: None,
    ) -> None:
        super().__init__(name="largek-queue", daemon=True)
        self._table = table
        self._tenure = tenure
        self._owner = owner
        self._connect = connect
        self._workers = workers
        self._cluster: Cluster | None = None
        self._changed = table.changed
        self._runners: set[Runner] = set()
        self._closing = False

    def run(self) -> None:
        """Begin jobs until the queue is closed."""
        trouble = ""
        while not self._closing:
            try:
                self._turn()
                trouble = ""
            except Exception as error:
                # Whatever it is, it must not be the end of all jobs.
                records = self._tenure.records
                if (reason := records.reason(error)) != trouble:
                    logger.warning("The jobs in %s have to wait: %s", records.url, reason)
                trouble = reason
            with self._changed:
                if not self._closing:
                    self._changed.wait(TICK_SECONDS)

    def _turn(self) -> None:
        self._table.take_up()
        with self._changed:
            if self._table.loaded.is_set() and not self._closing:
                self._look_at_workers()
                # Again, as the place of one that cannot begin now is another's.
                while jobs := self.due():
                    for job in jobs:
                        self._launch(job)

    def _look_at_workers(self) -> None:
        """Note what the workers lack for each job that has not begun."""
        waiting = [job for job in self._table.free() if job.state in ACTIVE and not job.running]
        workers = self._workers() if waiting else None
        self._cluster = None if workers is None else Cluster(workers)
        for job in waiting:
            before, job.lacking = job.lacking, _lacking(job, self._cluster)
            if before is None and job.lacking is not None and job.feed.is_loaded:
                # Once, however the number changes.
                reason, text = job.lacking
                told = {"run": job.record.run, "reason": reason, "message": text}
                job.emit({"event": "waiting", **told})

    def due(self) -> list[JobState]:
        """Jobs to begin now."""
        now = time.monotonic()
        jobs = self._table.jobs()
        waiting = [
            job
            for job in self._table.free()
            if job.state in ACTIVE and now >= job.not_before and not job.running and not job.needs()
        ]
        # Ending a job takes no place of one that computes.
        chosen = [job for job in waiting if job.record.cancel]
        waiting = [job for job in waiting if not (job.record.cancel or job.lacking)]
        free = int(config.get("service.concurrent-jobs")) - sum(job.running for job in jobs)
        in_turn = self._fitting(sorted(waiting, key=_age), jobs)
        return [*chosen, *itertools.islice(in_turn, max(0, free))]

    def _memory_of(self, job: JobState) -> ProcessMemory | None:
        return worker_memory(job.record.spec, job.record.takes, self._cluster)

    def _fitting(self, in_turn: Iterable[JobState], jobs: Iterable[JobState]) -> Iterator[JobState]:
        """Yield the jobs in turn that fit the workers beside those that run.

        None overtakes one that does not: that one would wait for ever.
        """
        running = [job.holds for job in jobs if job.running]
        for job in in_turn:
            memory = self._memory_of(job)
            if (why := does_not_fit(memory, running)) is not None:
                job.note = why
                return
            yield job
            running.append(memory)

    def _launch(self, job: JobState) -> None:
        job.begin()
        # A running job keeps this memory, even if workers change.
        job.holds = self._memory_of(job)
        records = self._tenure.records
        runner = Runner(job, records, self._owner, self._connect, lambda: self._over(runner))
        self._runners.add(runner)
        try:
            runner.start()
        except Exception as error:
            # Such as no thread to be had: others may have more luck, and this one next time.
            self._runners.discard(runner)
            job.running = False
            job.not_before = time.monotonic() + float(config.get("service.beat-seconds"))
            logger.warning("Job %s cannot begin now: %s", job.record.id, error)

    def _over(self, runner: Runner) -> None:
        with self._changed:
            self._runners.discard(runner)
            self._changed.notify_all()
            # Of a job with a runner the last event is still to be told, a moment after its state.
            self._table.unload_feeds([other.job for other in self._runners])

    def close(self) -> list[Runner]:
        """Begin no further job, and ask the running ones to stop; these are returned."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            for job in self._table.jobs():
                if job.running:
                    job.ask_to_stop("shutdown")
            return list(self._runners)


def _age(job: JobState) -> tuple[float, str]:
    return job.record.created, job.record.id


def _lacking(job: JobState, cluster: Cluster | None) -> Waiting | None:
    """Return what a cluster lacks for a job to begin; None if nothing, or unknown."""
    if cluster is None:
        return None
    spec = job.record.spec
    if spec.workers is not None:
        pick, workers = spec.workers.pick(), cluster.workers
        n_able = sum(worker.is_able and pick.allows(worker.tags) for worker in workers)
        if n_able < pick.least:
            return Waiting(
                "workers", explain_shortage(pick, n_able, (worker.tags for worker in workers))
            )
    why = cannot_fit(worker_memory(spec, job.record.takes, cluster))
    return None if why is None else Waiting("memory", why)


class Standing(NamedTuple):
    """A worker as its scheduler sees it."""

    tags: frozenset[str]
    is_able: bool
    n_threads: int = 1
    memory_limit: int = 0
    """Bytes; 0: none."""


class Cluster:
    """The workers that there are, by the tags that jobs ask for."""

    def __init__(self, workers: Collection[Standing]) -> None:
        self.workers = workers
        self.allowed = functools.cache(self._allowed)

    def _allowed(self, tags: frozenset[str]) -> tuple[int, int, int]:
        """Return number, most threads and least memory (0: no limit) of those with these tags."""
        found = [worker for worker in self.workers if tags.issubset(worker.tags)]
        threads = max((worker.n_threads for worker in found), default=1)
        return (
            len(found),
            threads,
            min((w.memory_limit for w in found if w.memory_limit), default=0),
        )


def worker_memory(
    spec: JobSpec, takes: FitMemory | None, cluster: Cluster | None
) -> ProcessMemory | None:
    """Return the memory of the smallest worker that a job may use; None if it is not known."""
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
        f"it takes {format_bytes(memory.needed)} of a worker (model and sums "
        f"{format_bytes(memory.model)}, chunks {format_bytes(memory.chunks)}, kept per row "
        f"{format_bytes(memory.row_state)}), and the smallest that it may use has "
        f"{format_bytes(memory.available)}"
    )


def does_not_fit(
    memory: ProcessMemory | None, running: Iterable[ProcessMemory | None]
) -> str | None:
    """Return why a job has to wait for running ones, for lack of memory; None if it need not.

    ``running`` has the memory of each running job; None where it is not known.
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
        f"take{'s' if len(others) == 1 else ''} {format_bytes(taken)} of a worker, this one "
        f"{format_bytes(memory.needed)}, the rows that stay in memory {format_bytes(cache)}, "
        f"and the smallest that it may use has {format_bytes(memory.available)}"
    )
