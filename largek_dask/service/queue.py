"""The jobs of a store on its scheduler: read, begun first come, first served, kept, deleted."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import format_bytes

from largek_dask import config
from largek_dask.driver.formatting import count_of
from largek_dask.driver.plan import FitMemory, ProcessMemory
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, ParameterError, handle_warnings
from largek_dask.passes.worker_selection import explain_shortage
from largek_dask.service.job_state import ACTIVE, JobState, Waiting
from largek_dask.service.lease import Tenure, claimed_for
from largek_dask.service.runner import Runner
from largek_dask.service.scheduler_file import post
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import (
    JOB_FILES,
    LABELS,
    MODEL,
    UNFINISHED_LABELS,
    Records,
    checked_id,
)

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Cluster", "Queue", "Standing", "cannot_fit", "does_not_fit", "worker_memory"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
END_SECONDS = 30.0
"""Timeout of a job's cleaning up after its last event."""
START_SECONDS = 60.0
"""Timeout of requests to a scheduler that is starting."""
FEEDS = 10
"""Jobs that have ended whose events are kept in memory; those of others are read when asked for."""
LOOK_PAUSE = 50.0
"""Pause between two checks of all records, in durations of a check."""


class Queue:
    """The jobs of a store, for as long as this scheduler has it, each begun in its turn.

    ``changed`` guards everything here. ``loaded`` is set while the jobs are here. Other parameters
    are those of :class:`largek_dask.service.jobs.Jobs`.
    """

    def __init__(
        self,
        tenure: Tenure,
        changed: threading.Condition,
        owner: str = "",
        connect: Callable[[], Client | None] = lambda: None,
        workers: Callable[[], Collection[Standing] | None] = lambda: None,
        made: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.changed = changed
        self.loaded = threading.Event()
        self._tenure, self._owner = tenure, owner
        self._connect, self._workers, self._made = connect, workers, made
        self._jobs: dict[str, JobState] = {}
        self._stamps: dict[str, int] = {}
        self._passed_over: frozenset[str] = frozenset()
        self._busy: dict[str, str] = {}
        """Jobs that one thread has for itself, and what it does with them."""
        self._cluster: Cluster | None = None
        self._runners: set[Runner] = set()
        self._closing = False
        self._next_look = 0.0
        beat = partial(config.get, "service.beat-seconds")
        turns: dict[str, tuple[Any, ...]] = {
            "largek-queue": (self._turn, lambda: TICK_SECONDS, "The jobs in %s have to wait: %s"),
            "largek-records": (self._tend, beat, "No look after records in %s: %s"),
        }
        self._threads = [
            threading.Thread(target=self._repeat, args=args, name=name, daemon=True)
            for name, args in turns.items()
        ]

    def start(self) -> None:
        """Take the store, and begin its jobs until the queue is closed."""
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float) -> list[str]:
        """Begin no further job, ask those that run to stop, and give the store back.

        Returns the names of those that had not stopped after ``seconds``.
        """
        until = time.monotonic() + seconds
        runners = self.stop()
        for thread in (*runners, *self._threads):
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))
        self._tenure.give_back()
        return [runner.name for runner in runners if runner.is_alive()]

    def stop(self) -> list[Runner]:
        """Begin no further job, and ask the running ones to stop; these are returned."""
        with self.changed:
            self._tenure.claim_no_more()
            self._closing = True
            self.changed.notify_all()
            for job in self.jobs():
                if job.running:
                    job.ask_to_stop("shutdown")
            return list(self._runners)

    def _repeat(self, turn: Callable[[], None], seconds: Callable[[], float], words: str) -> None:
        """Take turns, so many seconds apart, until the queue is closed; log once why they fail."""
        trouble = ""
        while not self._closing:
            try:
                turn()
                trouble = ""
            except Exception as error:
                # Whatever it is, it must not be the end of all jobs.
                records = self._tenure.records
                if (reason := records.reason(error)) != trouble:
                    logger.warning(words, records.url, reason)
                trouble = reason
            with self.changed:
                if not self._closing:
                    self.changed.wait(seconds())

    # --- the store comes and goes -----------------------------------------------------------------

    def take_up(self) -> None:
        """Take the store and its jobs, unless they are here or another scheduler has them."""
        if not self._tenure.is_held:
            self._tenure.claim(self._drop)
        if self._tenure.is_held and not self.loaded.is_set():
            self._load()
            self._post()

    def _drop(self) -> None:
        self.loaded.clear()
        for job in self._jobs.values():
            job.ask_to_stop("lost")
        self._jobs.clear()

    def _load(self) -> None:
        records = self._tenure.records
        # What is written while they are read is looked at again.
        stamps = records.stamps()
        with handle_warnings(lambda message, _: logger.warning(message)):
            found = records.all()
        jobs = {record.id: JobState(record, {}, False) for record in found}
        with self.changed:
            if not self._tenure.is_held or self._tenure.records is not records:
                return
            self._jobs.update(jobs)
            # Records that are none stay where they are.
            self._passed_over = frozenset(stamps) - set(jobs)
            self._stamps = stamps
            self.loaded.set()
            self.changed.notify_all()

    def wait_until_ready(self) -> None:
        """Wait until the jobs have been read; raise ClusterError if another scheduler has them."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.loaded.is_set() or self._tenure.holder, START_SECONDS
            )
            if not self.loaded.is_set():
                raise self._tenure.refusal()

    # --- who is in it -----------------------------------------------------------------------------

    def jobs(self) -> tuple[JobState, ...]:
        """Return all jobs whose records can be read, without blocking."""
        return tuple(self._jobs.values())

    def free(self) -> tuple[JobState, ...]:
        """Return the jobs that no thread holds for itself, without blocking."""
        busy = tuple(self._busy)
        return tuple(job for job in self.jobs() if job.record.id not in busy)

    def unload_feeds(self, busy: Collection[JobState]) -> None:
        """Drop the events of jobs that have ended, except the last ones and those of ``busy``."""
        loaded = [job for job in self.jobs() if job.feed.is_loaded and job.state in ENDS]
        for job in loaded[:-FEEDS]:
            if job not in busy:
                job.feed.unload()

    def find(self, job_id: str) -> JobState:
        """Return the job of this id, or raise JobNotFoundError or ClusterError."""
        checked_id(job_id)
        self.wait_until_ready()
        with self.changed:
            if job_id not in self._jobs:
                raise JobNotFoundError(
                    f"there is no job {job_id}; the jobs there are: "
                    f"{', '.join(list(self._jobs)[-5:]) or 'none'}."
                )
            return self._jobs[job_id]

    def add(self, job: JobState, records: Records) -> None:
        """Add a job that these records have, unless another scheduler has taken the store."""
        with self.changed:
            if self.loaded.is_set() and self._tenure.records is records:
                self._jobs[job.record.id] = job
                self.changed.notify_all()

    @contextlib.contextmanager
    def alone(self, job: JobState, what: str, otherwise: str) -> Iterator[None]:
        """Hold a job that has ended for one thread; raise ParameterError if it has not ended."""
        job_id = job.record.id
        with self.changed:
            # Its thread has to have ended too, which gives its lease back last.
            if job.state in ENDS:
                self.changed.wait_for(lambda: not job.running, END_SECONDS)
            if doing := self._busy.get(job_id):
                raise ParameterError(
                    f"job {job_id} is just being {doing}: try again when that is done."
                )
            if self._jobs.get(job_id) is not job:
                raise JobNotFoundError(
                    f"there is no job {job_id} any more: see jobs() for those there are."
                )
            if job.state not in ENDS or job.running:
                raise ParameterError(f"job {job_id} is {job.state}: {otherwise}.")
            self._busy[job_id] = what
        try:
            yield
        finally:
            with self.changed:
                del self._busy[job_id]
                self.changed.notify_all()

    def delete(self, job_id: str, outputs: bool = True) -> None:
        """Delete a job that has ended: its record, checkpoints and events.

        With ``outputs`` its model and labels as well. A deletion that was interrupted leaves the
        job, to be deleted again. Values of storage options are needed.
        """
        job = self.find(job_id)
        with self.alone(job, "deleted", "cancel it first"):
            records = self._tenure.records
            # As long as the store is this scheduler's.
            folder = job.folder().guarded(records.check)
            for name in _files(job, folder, outputs):
                folder.remove(name)
            job.forget(lambda: records.remove(job_id))
            with self.changed:
                self._jobs.pop(job_id, None)

    # --- their records ----------------------------------------------------------------------------

    def keep(self, job: JobState) -> None:
        """Keep the record of a job; where that fails it is tried again."""
        job.keep(self._tenure.records.update)

    def look(self) -> None:
        """Ensure that the store has the records that this scheduler has written, and no others.

        Who had it before may have been stopped, or a write been on its way, between the look
        whether the store is still that one's and the end of the write. Such a record would come
        back from the dead, or take back what was done since, when the store is read the next time.
        """
        records = self._tenure.records
        stamps = records.stamps()
        for job_id in [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp]:
            with self.changed:
                if not self.loaded.is_set() or self._tenure.records is not records:
                    return
                job = self._jobs.get(job_id)
                is_none = job is None and job_id not in self._passed_over
            if job is not None and job.compare(records.stands):
                logger.warning(
                    "The record of %s was changed by a scheduler that has lost it: it is written "
                    "anew", job_id,
                )  # fmt: skip
                self.keep(job)
            elif is_none and not records.is_new(job_id) and records.put_away(job_id):
                logger.warning(
                    "The record of %s came from a scheduler that has lost %s: it is in late/ there "
                    "now, and none of a job", job_id, records.url,
                )  # fmt: skip
        self._stamps = stamps

    def _tend(self) -> None:
        """Write records that could not be before, and check the others."""
        if not self.loaded.is_set():
            return
        for job in self.jobs():
            if not job.is_kept:
                self.keep(job)
        # Soon, as the next scheduler would take a record that came late for a job.
        if (begun := time.monotonic()) >= self._next_look:
            self.look()
            now = time.monotonic()
            self._next_look = now + LOOK_PAUSE * (now - begun)
        self._post()

    def _post(self) -> None:
        if self._made is not None:
            post(self._tenure, self._made)

    # --- whose turn it is -------------------------------------------------------------------------

    def _turn(self) -> None:
        self.take_up()
        with self.changed:
            if self.loaded.is_set() and not self._closing:
                self._look_at_workers()
                # Again, as the place of one that cannot begin now is another's.
                while jobs := self.due():
                    for job in jobs:
                        self._launch(job)

    def _look_at_workers(self) -> None:
        """Note what the workers lack for each job that has not begun."""
        waiting = [job for job in self.free() if job.state in ACTIVE and not job.running]
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
        jobs = self.jobs()
        waiting = [
            job
            for job in self.free()
            if job.state in ACTIVE and now >= job.not_before and not job.running
            if job.record.cancel or not job.needs()
        ]
        # Ending a job takes no place of one that computes.
        chosen = [job for job in waiting if job.record.cancel]
        waiting = [job for job in waiting if not (job.record.cancel or job.lacking)]
        free = int(config.get("service.concurrent-jobs")) - sum(job.running for job in jobs)
        in_turn = self._fitting(
            sorted(waiting, key=lambda job: (job.record.created, job.record.id)), jobs
        )
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
        with self.changed:
            self._runners.discard(runner)
            self.changed.notify_all()
            # Of a job with a runner the last event is still to be told, a moment after its state.
            self.unload_feeds([other.job for other in self._runners])


def _files(job: JobState, folder: Folder, outputs: bool) -> list[str]:
    """Return a job's files in its folder, in the order in which they are deleted."""
    if claimed_for(folder) not in (None, job.record.id):
        # A job that failed because its folder belongs to another one leaves that folder alone.
        return []
    found = set(folder.names())
    if not outputs:
        # Incomplete labels are useless.
        is_whole = UNFINISHED_LABELS not in found
        found -= {MODEL, LABELS} if is_whole else {MODEL}
    return [name for name in JOB_FILES if name in found]


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
        self.allowed = cache(self._allowed)

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
