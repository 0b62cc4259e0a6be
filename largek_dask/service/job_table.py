"""The jobs of a store as the scheduler that has it knows them: read, found, kept."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from largek_dask import config
from largek_dask.driver.events import Event
from largek_dask.driver.space import room_of
from largek_dask.driver.stopping import ENDS
from largek_dask.errors import (
    ClusterError,
    JobNotFoundError,
    LargekError,
    ParameterError,
    warnings_heard_by,
)
from largek_dask.service.feed import Shelf
from largek_dask.service.job_state import JobState
from largek_dask.service.lanes import Lanes
from largek_dask.service.places import Places
from largek_dask.service.store import Record, Records, checked_id
from largek_dask.service.tenure import Tenure

__all__ = ["JobTable", "Tender"]

logger = logging.getLogger(__name__)

END_SECONDS = 30.0
"""How long a job may take to clean up after its last event."""
START_SECONDS = 60.0
"""How long to wait for a scheduler that is starting."""
MOST_LOOKED_AT = 200
"""Jobs whose outputs are looked at when a scheduler starts: those that have ended last."""
OUTPUT_SECONDS = 5.0
"""How long after a start questions wait until outputs have been looked at."""
LOOK_PAUSE = 50.0
"""A pause between two looks whether records are as they have been written, in times of a look."""


class JobTable:
    """All jobs of a store, for as long as this scheduler has it.

    Parameters
    ----------
    tenure : Tenure
    tell : callable
        Called with every event of every job.
    changed : Condition
        That of the tenure.
    ready : callable, optional
        Called each time that the jobs are here.

    Attributes
    ----------
    changed : Condition
        Everything here changes under it, and whoever waits for something is told by it.
    loaded : Event
        Set while the jobs are here.
    unreadable : dict
        Jobs whose records cannot be read at the moment, and why.
    """

    def __init__(
        self,
        tenure: Tenure,
        tell: Callable[[Event], None],
        changed: threading.Condition,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.changed = changed
        self._ready = ready
        self.loaded = threading.Event()
        self.unreadable: dict[str, str] = {}
        self._tenure = tenure
        self._tell = tell
        self.shelf = Shelf()
        """What the events of all jobs share."""
        self._lanes = Lanes("largek-places")
        self._jobs: dict[str, JobState] = {}
        self._stamps: dict[str, int] = {}
        """Marks of all records, when they were looked at last."""
        self._look: threading.Thread | None = None
        """Looks at the outputs of jobs that had ended."""
        self._look_until = 0.0
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
        """Another scheduler has taken the store: nothing here is this one's any more."""
        self.loaded.clear()
        for job in self._jobs.values():
            job.ask_to_stop("lost")
        self._jobs.clear()
        self.unreadable.clear()

    def _load(self) -> None:
        records = self._tenure.records
        # What is written while they are read is looked at again.
        stamps = records.stamps()
        with warnings_heard_by(lambda message, _: logger.warning(message)):
            found, unreadable = records.all()
        jobs = {record.id: self._earlier(record) for record in found}
        with self.changed:
            if not self._tenure.is_held or self._tenure.records is not records:
                return
            self._jobs.update(jobs)
            self.unreadable = unreadable
            self._stamps = stamps
            self._look_until = time.monotonic() + OUTPUT_SECONDS
            ended = (job for job in jobs.values() if job.record.result is not None)
            latest = sorted(ended, key=lambda job: job.ended)[-MOST_LOOKED_AT:]
            look = partial(self._look_at_outputs, latest)
            self._look = threading.Thread(target=look, name="largek-outputs", daemon=True)
            self._look.start()
            self.loaded.set()
            self.changed.notify_all()

    @staticmethod
    def _look_at_outputs(jobs: list[JobState]) -> None:
        """Find out of which jobs that have ended the output is damaged, the last ones first.

        In a thread of its own: a folder of a network may not answer for long.
        """
        for job in reversed(jobs):
            # Where it cannot be said it shows when the model is asked for.
            with contextlib.suppress(LargekError, OSError):
                job.look_at_output()

    def wait_until_looked(self) -> None:
        """Wait until the jobs have been read, and for a moment until their outputs are looked at.

        Raises
        ------
        ClusterError
            As of :meth:`wait_until_ready`.
        """
        self.wait_until_ready()
        if self._look is not None:
            self._look.join(max(0.0, self._look_until - time.monotonic()))

    def _earlier(self, record: Record) -> JobState:
        """A job that an earlier scheduler had."""
        job = JobState(
            record, Places.of(record.spec, links=False), {}, self._tell, False, self.shelf
        )

        def find_place() -> None:
            job.places = Places.of(record.spec)

        self._lanes.run(record.id, find_place)
        return job

    def wait_until_ready(self) -> None:
        """Wait until the jobs have been read, as after a start.

        Raises
        ------
        ClusterError
            Another scheduler has them, or they cannot be read.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: self.loaded.is_set() or self._tenure.holder, START_SECONDS
            )
            if not self.loaded.is_set():
                raise self._tenure.refusal()

    # --- who is in it -----------------------------------------------------------------------------

    def jobs(self) -> tuple[JobState, ...]:
        """All jobs whose records can be read; never waits."""
        return tuple(self._jobs.values())

    def free(self) -> tuple[JobState, ...]:
        """Those of them that no thread has for itself, who may begin; never waits."""
        busy = tuple(self._busy)
        return tuple(job for job in self.jobs() if job.record.id not in busy)

    def ids(self) -> frozenset[str]:
        """Ids of all jobs that there are; never waits."""
        return frozenset((*tuple(self._jobs), *tuple(self.unreadable)))

    def find(self, job_id: str) -> JobState:
        """The job of this id.

        Raises
        ------
        JobNotFoundError
            There is none.
        ClusterError
            Its record cannot be read, or another scheduler has it.
        """
        checked_id(job_id)
        self.wait_until_ready()
        with self.changed:
            if job_id in self.unreadable:
                raise ClusterError(
                    f"the record of job {job_id} cannot be read at the moment; it is tried again "
                    f"and again: {self.unreadable[job_id]}; wait for it."
                )
            if job_id not in self._jobs:
                raise JobNotFoundError(
                    f"there is no job {job_id}; the jobs there are: "
                    f"{', '.join(list(self._jobs)[-5:]) or 'none'}."
                )
            return self._jobs[job_id]

    def add(self, job: JobState, records: Records) -> None:
        """Take in a job that these records have.

        Whoever has taken the store since has found it there.
        """
        with self.changed:
            if self.loaded.is_set() and self._tenure.records is records:
                self._jobs[job.record.id] = job
                self.changed.notify_all()

    def remove(self, job_id: str) -> None:
        """Let go of a job whose record is no more."""
        with self.changed:
            self._jobs.pop(job_id, None)

    @contextlib.contextmanager
    def alone(self, job: JobState, what: str, otherwise: str) -> Iterator[None]:
        """Hold a job that has ended for one thread; other jobs stay free.

        Raises
        ------
        ParameterError
            It has not ended, or somebody else has it.
        """
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

    # --- their records ----------------------------------------------------------------------------

    def keep(self, job: JobState) -> None:
        """Keep the record of a job; where that fails it is tried again."""
        try:
            job.keep(self._tenure.records.update)
        except (LargekError, OSError) as error:
            kind = type(error).__name__
            logger.warning("The record of %s cannot be written yet: %s", job.record.id, kind)

    def tend(self) -> None:
        """Write and read the records that could not be before."""
        for job in self.jobs():
            if not job.is_kept:
                self.keep(job)
        records = self._tenure.records
        for job_id in tuple(self.unreadable):
            try:
                record = records.read(job_id)
            except JobNotFoundError:
                record = None
            except (ParameterError, OSError) as error:
                with self.changed:
                    if job_id in self.unreadable:
                        self.unreadable[job_id] = records.reason(error)
                continue
            found = None if record is None else self._earlier(record)
            with self.changed:
                # Meanwhile the store may have gone to somebody else.
                if self._tenure.records is not records or self.unreadable.pop(job_id, None) is None:
                    return
                if found is not None:
                    self.add(found, records)

    def look(self) -> None:
        """See to it that the store has the records that this scheduler has written, and no others.

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
                is_none = job is None and job_id not in self.unreadable
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
    """Looks after a table's records again and again, and after what else lies in its store."""

    def __init__(self, table: JobTable, tenure: Tenure, *also: Callable[[], None]) -> None:
        super().__init__(name="largek-records", daemon=True)
        self._table = table
        self._tenure = tenure
        self._also = also
        self.room: dict[str, float] = {}
        """Figures of the disk of the store, by the names of ``observe.metrics``."""
        self._over = threading.Event()

    def run(self) -> None:
        """Write and read records until it is stopped."""
        next_look = time.monotonic()
        while not self._over.wait(float(config.get("service.beat-seconds"))):
            try:
                if self._table.loaded.is_set():
                    self._table.tend()
                    for call in self._also:
                        call()
                    if (room := room_of(self._tenure.records.folder)) is not None:
                        self.room = {"free_bytes": room.free, "size_bytes": room.total}
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
