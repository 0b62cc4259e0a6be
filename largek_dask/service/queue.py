"""Queue that loads, starts (first come, first served) and deletes the jobs of a store."""

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
from largek_dask.service.lease import StoreLease, claimed_for
from largek_dask.service.runner import Runner
from largek_dask.service.scheduler_file import publish_address
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import JOB_FILES, MODEL, UNFINISHED, Records, checked_id

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
END_SECONDS = 30.0
"""Timeout for the cleanup after a job's last event, in seconds."""
START_SECONDS = 60.0
"""Timeout for requests during start-up, in seconds."""
MOST_FEEDS = 10
"""Number of ended jobs whose events stay in memory; events of older jobs are loaded on request."""
CHECK_PAUSE = 50.0
"""Pause between checks of all records, as a multiple of the duration of a check."""


class Queue:
    """Queue of the jobs in a store, while this scheduler holds the store.

    The lock ``changed`` guards all state. The event ``loaded`` is set while the jobs are in memory.
    Parameters are described in :class:`largek_dask.service.jobs.Jobs`.
    """

    def __init__(
        self,
        store_lease: StoreLease,
        changed: threading.Condition,
        owner: str = "",
        connect: Callable[[], Client | None] = lambda: None,
        workers: Callable[[], Collection[SchedulerWorker] | None] = lambda: None,
        scheduler_file: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.changed = changed
        self.loaded = threading.Event()
        self._store_lease, self._owner = store_lease, owner
        self._connect, self._workers, self._scheduler_file = connect, workers, scheduler_file
        self._jobs: dict[str, JobState] = {}
        self._stamps: dict[str, int] = {}
        self._unreadable: frozenset[str] = frozenset()
        self._busy: dict[str, str] = {}
        """Current exclusive operation by job id, as a participle such as "deleted"."""
        self._workers_seen: WorkerPool | None = None
        self._runners: set[Runner] = set()
        self._closing = False
        self._next_check = 0.0
        beat = partial(config.get, "service.beat-seconds")
        tick, late = lambda: TICK_SECONDS, "The jobs in %s have to wait: %s"
        unchecked = "The records in %s cannot be checked: %s"
        self._threads = [
            threading.Thread(target=self._repeat, args=args, name=name, daemon=True)
            for name, *args in (
                ("largek-queue", self._start_due_jobs, tick, late),
                ("largek-records", self._maintain_records, beat, unchecked),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float) -> list[str]:
        """Start no more jobs, stop running jobs, and release the store.

        Returns the names of jobs that have not stopped after ``seconds``.
        """
        until = time.monotonic() + seconds
        runners = self.stop()
        for thread in (*runners, *self._threads):
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))
        self._store_lease.release()
        return [runner.name for runner in runners if runner.is_alive()]

    def stop(self) -> list[Runner]:
        """Start no more jobs, request running jobs to stop, and return their threads."""
        with self.changed:
            self._store_lease.stop_claiming()
            self._closing = True
            self.changed.notify_all()
            for job in self.jobs():
                if job.running:
                    job.ask_to_stop("shutdown")
            return list(self._runners)

    def _repeat(self, turn: Callable[[], None], seconds: Callable[[], float], words: str) -> None:
        """Call ``turn`` periodically until the queue is closed; log each new error once."""
        trouble = ""
        while not self._closing:
            try:
                turn()
                trouble = ""
            except Exception as error:
                # Catch all errors, because all jobs depend on this thread.
                records = self._store_lease.records
                if (reason := records.reason(error)) != trouble:
                    logger.warning(words, records.url, reason)
                trouble = reason
            with self.changed:
                if not self._closing:
                    self.changed.wait(seconds())

    # --- the store --------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Claim the store and load its jobs, unless another scheduler holds the store."""
        if not self._store_lease.is_held:
            self._store_lease.claim(self._drop_jobs)
        if self._store_lease.is_held and not self.loaded.is_set():
            self._load()
            self._publish_address()

    def _drop_jobs(self) -> None:
        self.loaded.clear()
        for job in self._jobs.values():
            job.ask_to_stop("lost")
        self._jobs.clear()

    def _load(self) -> None:
        records = self._store_lease.records
        # Take the stamps before reading, so that later writes are noticed.
        stamps = records.stamps()
        with handle_warnings(lambda message, _: logger.warning(message)):
            found = records.all()
        jobs = {record.id: JobState(record, {}, False) for record in found}
        with self.changed:
            if not self._store_lease.is_held or self._store_lease.records is not records:
                return
            self._jobs.update(jobs)
            self._unreadable = frozenset(stamps) - set(jobs)
            self._stamps = stamps
            self.loaded.set()
            self.changed.notify_all()

    def wait_until_ready(self) -> None:
        """Wait until the jobs are loaded; raise ClusterError if another scheduler has them."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.loaded.is_set() or self._store_lease.holder, START_SECONDS
            )
            if not self.loaded.is_set():
                raise self._store_lease.refusal()

    # --- jobs -------------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobState, ...]:
        return tuple(self._jobs.values())

    def free(self) -> tuple[JobState, ...]:
        """Return the jobs that are not reserved for a thread, without blocking."""
        busy = tuple(self._busy)
        return tuple(job for job in self.jobs() if job.record.id not in busy)

    def unload_feeds(self, busy: Collection[JobState]) -> None:
        """Drop the events of ended jobs, except for the latest jobs and for jobs in ``busy``."""
        loaded = [job for job in self.jobs() if job.feed.is_loaded and job.state in ENDS]
        for job in loaded[:-MOST_FEEDS]:
            if job not in busy:
                job.feed.unload()

    def find(self, job_id: str) -> JobState:
        """Return the job with this id, or raise JobNotFoundError or ClusterError."""
        checked_id(job_id)
        self.wait_until_ready()
        with self.changed:
            if job_id not in self._jobs:
                raise JobNotFoundError(
                    f"there is no job {job_id}; the latest jobs are: "
                    f"{', '.join(list(self._jobs)[-5:]) or 'none'}."
                )
            return self._jobs[job_id]

    def add(self, job: JobState, records: Records) -> None:
        """Add a stored job, unless another scheduler has claimed the store in the meantime."""
        with self.changed:
            if self.loaded.is_set() and self._store_lease.records is records:
                self._jobs[job.record.id] = job
                self.changed.notify_all()

    @contextlib.contextmanager
    def exclusively(self, job: JobState, what: str, otherwise: str) -> Iterator[None]:
        """Reserve an ended job for one thread; if this is impossible, raise ParameterError."""
        job_id = job.record.id
        with self.changed:
            # Also wait until the thread of the job has released the lease and ended.
            if job.state in ENDS:
                self.changed.wait_for(lambda: not job.running, END_SECONDS)
            if doing := self._busy.get(job_id):
                raise ParameterError(f"job {job_id} is being {doing}; try again later.")
            if self._jobs.get(job_id) is not job:
                raise JobNotFoundError(
                    f"job {job_id} has been deleted; jobs() lists the existing jobs."
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
        """Delete the record, checkpoints and events of a job that has ended.

        With ``outputs``, the model and labels are deleted as well. After an interrupted deletion,
        the job still exists and can be deleted again. Deletion requires the values of all storage
        options.
        """
        job = self.find(job_id)
        with self.exclusively(job, "deleted", "cancel it first"):
            records = self._store_lease.records
            folder = job.folder().guarded(records.check)
            for name in _files(job, folder, outputs):
                folder.remove(name)
            job.remove_record(lambda: records.remove(job_id))
            with self.changed:
                self._jobs.pop(job_id, None)

    # --- records ----------------------------------------------------------------------------------

    def save(self, job: JobState) -> None:
        job.save(self._store_lease.records.update)

    def check_records(self) -> None:
        """Ensure that the store contains exactly the records that this scheduler has written.

        A former scheduler may have been suspended between checking its lease and writing a record.
        At the next load, such a late record would restore a deleted job or undo later changes.
        """
        records = self._store_lease.records
        stamps = records.stamps()
        for job_id in [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp]:
            with self.changed:
                if not self.loaded.is_set() or self._store_lease.records is not records:
                    return
                job = self._jobs.get(job_id)
                is_none = job is None and job_id not in self._unreadable
            if job is not None and job.was_overwritten(records.is_stored):
                logger.warning(
                    "A scheduler that had lost the store overwrote the record of job %s; the "
                    "record is restored", job_id,
                )  # fmt: skip
                self.save(job)
            elif is_none and not records.is_new(job_id) and records.quarantine(job_id):
                logger.warning(
                    "The record of job %s is from a scheduler that had lost the store %s; the "
                    "record is moved to late/", job_id, records.url,
                )  # fmt: skip
        self._stamps = stamps

    def _maintain_records(self) -> None:
        """Retry writing unsaved records, and check all stored records."""
        if not self.loaded.is_set():
            return
        for job in self.jobs():
            if not job.is_saved:
                self.save(job)
        # Check often, because the next scheduler would load a late record as a valid job.
        if (begun := time.monotonic()) >= self._next_check:
            self.check_records()
            now = time.monotonic()
            self._next_check = now + CHECK_PAUSE * (now - begun)
        self._publish_address()

    def _publish_address(self) -> None:
        if self._scheduler_file is not None:
            publish_address(self._store_lease, self._scheduler_file)

    # --- starting jobs ----------------------------------------------------------------------------

    def _start_due_jobs(self) -> None:
        self.acquire()
        with self.changed:
            if self.loaded.is_set() and not self._closing:
                self._update_shortages()
                # Repeat, because if a job could not be started, another one may start instead.
                while jobs := self.due():
                    for job in jobs:
                        self._start_job(job)

    def _update_shortages(self) -> None:
        """Update the shortage of workers for each job that has not begun."""
        waiting = [job for job in self.free() if job.state in ACTIVE and not job.running]
        workers = self._workers() if waiting else None
        self._workers_seen = None if workers is None else WorkerPool(workers)
        for job in waiting:
            before, job.shortage = job.shortage, _shortage_of(job, self._workers_seen)
            if before is None and job.shortage is not None and job.feed.is_loaded:
                # Emit only one event per shortage, even if the number of workers changes.
                reason, text = job.shortage
                run = job.record.run
                job.emit({"event": "waiting", "run": run, "reason": reason, "message": text})

    def due(self) -> list[JobState]:
        now = time.monotonic()
        jobs = self.jobs()
        waiting = [
            job
            for job in self.free()
            if job.state in ACTIVE and now >= job.not_before and not job.running
            if job.record.cancel or not job.needs()
        ]
        # Start cancelled jobs, which end at once, even if the maximum number of jobs is running.
        chosen = [job for job in waiting if job.record.cancel]
        waiting = [job for job in waiting if not (job.record.cancel or job.shortage)]
        free = int(config.get("service.concurrent-jobs")) - sum(job.running for job in jobs)
        in_turn = self._fitting(
            sorted(waiting, key=lambda job: (job.record.created, job.record.id)), jobs
        )
        return [*chosen, *itertools.islice(in_turn, max(0, free))]

    def _memory_of(self, job: JobState) -> ProcessMemory | None:
        return worker_memory(job.record.spec, job.record.takes, self._workers_seen)

    def _fitting(self, in_turn: Iterable[JobState], jobs: Iterable[JobState]) -> Iterator[JobState]:
        """Yield the next jobs that fit into the workers' memory in addition to running jobs.

        Jobs do not overtake a job that does not fit, which could otherwise wait forever.
        """
        running = [job.reserved_memory for job in jobs if job.running]
        for job in in_turn:
            memory = self._memory_of(job)
            if (why := why_wait(memory, running)) is not None:
                job.note = why
                return
            yield job
            running.append(memory)

    def _start_job(self, job: JobState) -> None:
        job.begin()
        # Keep this reservation while the job runs, even if workers change.
        job.reserved_memory = self._memory_of(job)
        records = self._store_lease.records
        runner = Runner(job, records, self._owner, self._connect, lambda: self._ended_run(runner))
        self._runners.add(runner)
        try:
            runner.start()
        except Exception as error:
            # Starting failed, for example because no thread is available.
            self._runners.discard(runner)
            job.running = False
            job.not_before = time.monotonic() + float(config.get("service.beat-seconds"))
            logger.warning("Job %s cannot start now: %s", job.record.id, error)

    def _ended_run(self, runner: Runner) -> None:
        with self.changed:
            self._runners.discard(runner)
            self.changed.notify_all()
            # Keep the events of jobs whose thread still runs and may emit more events.
            self.unload_feeds([other.job for other in self._runners])


def _files(job: JobState, folder: Folder, outputs: bool) -> list[str]:
    """Return the files of a job in its folder, in order of deletion."""
    if claimed_for(folder) not in (None, job.record.id):
        # Delete no files, because the folder belongs to another job.
        return []
    found = set(folder.names())
    if not outputs:
        # Also delete incomplete labels and predictions, which are useless.
        found -= {MODEL, *(name for name, mark in UNFINISHED.items() if mark not in found)}
    return [name for name in JOB_FILES if name in found]


def _shortage_of(job: JobState, cluster: WorkerPool | None) -> Waiting | None:
    """Return why the workers are insufficient for a job; None if they suffice or are unknown."""
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
    why = why_never_fits(worker_memory(spec, job.record.takes, cluster))
    return None if why is None else Waiting("memory", why)


class SchedulerWorker(NamedTuple):
    """Properties of a worker, as known to the scheduler."""

    tags: frozenset[str]
    is_able: bool
    n_threads: int = 1
    memory_limit: int = 0
    """Memory limit in bytes; 0 means no limit."""


class WorkerPool:
    """Workers of a cluster, with a cached summary of their resources per set of tags."""

    def __init__(self, workers: Collection[SchedulerWorker]) -> None:
        self.workers = workers
        self.allowed = cache(self._allowed)

    def _allowed(self, tags: frozenset[str]) -> tuple[int, int, int]:
        """Return the number, maximum threads and minimum memory of workers with these tags."""
        found = [worker for worker in self.workers if tags.issubset(worker.tags)]
        threads = max((worker.n_threads for worker in found), default=1)
        return (
            len(found),
            threads,
            min((w.memory_limit for w in found if w.memory_limit), default=0),
        )


def worker_memory(
    spec: JobSpec, takes: FitMemory | None, cluster: WorkerPool | None
) -> ProcessMemory | None:
    """Return the memory that a job needs on the smallest of its workers; None if unknown."""
    if takes is None or cluster is None:
        return None
    asked = spec.workers
    n, threads, memory = cluster.allowed(frozenset(() if asked is None else asked.tags))
    if not memory:
        return None
    if asked is not None and asked.max is not None:
        n = min(n, asked.max)
    # Documents of earlier versions may contain 0.
    limit = None if spec.memory_limit is None else max(1, spec.memory_limit)
    return takes.per_process(n, threads, memory, limit)


def why_never_fits(memory: ProcessMemory | None) -> str | None:
    """Return why a job can never fit into the workers' memory; None if it may fit."""
    if memory is None or memory.needed <= memory.available:
        return None
    return (
        f"the job needs {format_bytes(memory.needed)} per worker (model and sums "
        f"{format_bytes(memory.model)}, chunks {format_bytes(memory.chunks)}, row state "
        f"{format_bytes(memory.row_state)}), but the smallest allowed worker has "
        f"{format_bytes(memory.available)}"
    )


def why_wait(memory: ProcessMemory | None, running: Iterable[ProcessMemory | None]) -> str | None:
    """Return why a job must wait until running jobs free memory; None if it need not wait.

    ``running`` contains the memory of each running job, or None if unknown.
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
        f"per worker, {count_of(len(others), 'running job')} take {format_bytes(taken)}, this job "
        f"needs {format_bytes(memory.needed)} and the chunk cache {format_bytes(cache)}, but the "
        f"smallest allowed worker has {format_bytes(memory.available)}"
    )
