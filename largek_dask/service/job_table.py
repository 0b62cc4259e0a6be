"""The jobs of a store, as its scheduler keeps them: read, listed, deleted."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator

from largek_dask import config
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    JobNotFoundError,
    ParameterError,
    warnings_heard_by,
)
from largek_dask.service.job_state import JobState
from largek_dask.service.lease import Tenure, claimed_for
from largek_dask.service.spec import options_of, output_folder
from largek_dask.service.store import (
    JOB_FILES,
    LABELS,
    MODEL,
    UNFINISHED_LABELS,
    Records,
    checked_id,
)

__all__ = ["JobTable", "Tender"]

logger = logging.getLogger(__name__)

END_SECONDS = 30.0
"""Timeout of a job's cleaning up after its last event."""
START_SECONDS = 60.0
"""Timeout of requests to a scheduler that is starting."""
FEEDS = 10
"""Jobs that have ended whose events are kept in memory; those of others are read when asked for."""
LOOK_PAUSE = 50.0
"""Pause between two checks of all records, in durations of a check."""


class JobTable:
    """All jobs of a store, for as long as this scheduler has it.

    ``changed`` guards everything here. ``loaded`` is set while the jobs are here.
    ``ready`` is called each time that they are here.
    """

    def __init__(
        self,
        tenure: Tenure,
        changed: threading.Condition,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.changed = changed
        self._ready = ready
        self.loaded = threading.Event()
        self._tenure = tenure
        self._jobs: dict[str, JobState] = {}
        self._stamps: dict[str, int] = {}
        self._passed_over: frozenset[str] = frozenset()
        self._busy: dict[str, str] = {}
        """Jobs that one thread has for itself, and what it does with them."""

    # --- the store comes and goes -----------------------------------------------------------------

    def take_up(self) -> None:
        """Take the store and its jobs, unless they are here or another scheduler has them."""
        if not self._tenure.is_held:
            self._tenure.claim(self._drop)
        if self._tenure.is_held and not self.loaded.is_set():
            self._load()
            self._ready()

    def _drop(self) -> None:
        self.loaded.clear()
        for job in self._jobs.values():
            job.ask_to_stop("lost")
        self._jobs.clear()

    def _load(self) -> None:
        records = self._tenure.records
        # What is written while they are read is looked at again.
        stamps = records.stamps()
        with warnings_heard_by(lambda message, _: logger.warning(message)):
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
            records, spec = self._tenure.records, job.record.spec
            # As long as the store is this scheduler's.
            folder = output_folder(spec, options_of(spec, job.secrets)).guarded(records.check)
            for name in _files(job, folder, outputs):
                folder.remove(name)
            job.forget(lambda: records.remove(job_id))
            with self.changed:
                self._jobs.pop(job_id, None)

    # --- their records ----------------------------------------------------------------------------

    def keep(self, job: JobState) -> None:
        """Keep the record of a job; where that fails it is tried again."""
        job.try_keep(self._tenure.records.update)

    def tend(self) -> None:
        """Write the records that could not be before."""
        for job in self.jobs():
            if not job.is_kept:
                self.keep(job)

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


class Tender(threading.Thread):
    """Writes records that could not be before, and checks the others, periodically."""

    def __init__(self, table: JobTable, tenure: Tenure, *also: Callable[[], None]) -> None:
        super().__init__(name="largek-records", daemon=True)
        self._table = table
        self._tenure = tenure
        self._also = also
        self._over = threading.Event()

    def run(self) -> None:
        """Write records until it is stopped."""
        next_look = time.monotonic()
        while not self._over.wait(float(config.get("service.beat-seconds"))):
            try:
                if self._table.loaded.is_set():
                    self._table.tend()
                    for call in self._also:
                        call()
                    # Soon, as the next scheduler would take a record that came late for a job.
                    if (begun := time.monotonic()) >= next_look:
                        self._table.look()
                        now = time.monotonic()
                        next_look = now + LOOK_PAUSE * (now - begun)
            except Exception as error:
                records = self._tenure.records
                reason = records.reason(error)
                logger.warning("No look after records in %s: %s", records.url, reason)

    def stop(self) -> None:
        """End after what is just being done."""
        self._over.set()


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
