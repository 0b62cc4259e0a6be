"""The jobs of a store, as its scheduler keeps them: read, listed, deleted."""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import translate
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from largek_dask import config
from largek_dask.driver.stopping import ENDS, parse_duration
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    ClusterError,
    JobNotFoundError,
    LargekError,
    ParameterError,
    warnings_heard_by,
)
from largek_dask.service.job_state import STATES, JobState, written
from largek_dask.service.lease import Tenure, claimed_for
from largek_dask.service.spec import Places, options_of, output_folder
from largek_dask.service.store import (
    JOB_FILES,
    LABELS,
    MODEL,
    UNFINISHED_LABELS,
    Record,
    Records,
    checked_id,
)

__all__ = ["JobTable", "Lanes", "Query", "Tender", "listing", "moment_of"]

logger = logging.getLogger(__name__)

END_SECONDS = 30.0
"""Timeout of a job's cleaning up after its last event."""
START_SECONDS = 60.0
"""Timeout of requests to a scheduler that is starting."""
MOST_LOOKED_AT = 200
"""Jobs whose outputs are looked at when a scheduler starts: those that have ended last."""
OUTPUT_SECONDS = 5.0
"""Time after a start during which requests wait until outputs have been looked at."""
FEEDS = 10
"""Jobs that have ended whose events are kept in memory; those of others are read when asked for."""
LOOK_PAUSE = 50.0
"""Pause between two checks of all records, in durations of a check."""


class JobTable:
    """All jobs of a store, for as long as this scheduler has it.

    ``changed`` guards everything here. ``loaded`` is set while the jobs are here; ``unreadable``
    has the reason by job whose record cannot be read now. ``ready`` is called each time that the
    jobs are here.
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
        self.unreadable: dict[str, str] = {}
        self._tenure = tenure
        self._lanes = Lanes("largek-places")
        self._jobs: dict[str, JobState] = {}
        self._stamps: dict[str, int] = {}
        self._look: threading.Thread | None = None
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
        """Find damaged outputs of jobs that have ended, the last ones first.

        In a thread of its own: a folder of a network may not answer for long.
        """
        for job in reversed(jobs):
            # Where it cannot be said it shows when the model is asked for.
            with contextlib.suppress(LargekError, OSError):
                job.look_at_output()

    def wait_until_looked(self) -> None:
        """Wait until the jobs have been read, and briefly until their outputs are looked at."""
        self.wait_until_ready()
        if self._look is not None:
            self._look.join(max(0.0, self._look_until - time.monotonic()))

    def _earlier(self, record: Record) -> JobState:
        job = JobState(record, Places.of(record.spec, links=False), {}, False)

        def find_place() -> None:
            job.places = Places.of(record.spec)

        self._lanes.run(record.id, find_place)
        return job

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

    def delete(self, job_id: str, outputs: bool = True) -> int:
        """Delete a job that has ended: its record, checkpoints and events; return their bytes.

        With ``outputs`` its model and labels as well. A deletion that was interrupted leaves the
        job, to be deleted again. Values of storage options are needed.
        """
        job = self.find(job_id)
        with self.alone(job, "deleted", "cancel it first"):
            records, spec = self._tenure.records, job.record.spec
            # As long as the store is this scheduler's.
            folder = output_folder(spec, options_of(spec, job.secrets)).guarded(records.check)
            names = _files(job, folder, outputs)
            size = sum(map(folder.size_of, names))
            for name in names:
                folder.remove(name)
            job.forget(lambda: records.remove(job_id))
            with self.changed:
                self._jobs.pop(job_id, None)
        return size

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
                # Meanwhile another scheduler may have taken the store.
                if self._tenure.records is not records or self.unreadable.pop(job_id, None) is None:
                    return
                if found is not None:
                    self.add(found, records)

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
    """Writes and reads records that could not be before, and checks the others, periodically."""

    def __init__(self, table: JobTable, tenure: Tenure, *also: Callable[[], None]) -> None:
        super().__init__(name="largek-records", daemon=True)
        self._table = table
        self._tenure = tenure
        self._also = also
        self.room: dict[str, float] = {}
        """Figures of the disk of the store, by the names of ``service.metrics``."""
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
                    if (room := self._tenure.records.folder.disk_usage()) is not None:
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


WAIT_SECONDS, WAIT_AGAIN_SECONDS = 2.0, 0.1
"""Timeout of work, and timeout while other work hangs."""
MOST_LANES = 64
"""Maximum number of threads that hang."""


class Lanes:
    """Threads by job: at most one each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def run(self, job_id: str, work: Callable[[], object]) -> bool:
        """Do the work of a job, which handles its own errors, and wait for its end, for a while.

        Returns False if it has not ended: it continues, or has not begun as earlier work still
        hangs.
        """
        with self._lock:
            hanging = {name: one for name, one in self._busy.items() if one.is_alive()}
            self._busy = hanging
            if job_id in hanging or len(hanging) >= MOST_LANES:
                return False
            thread = threading.Thread(target=work, name=f"{self._name}-{job_id}", daemon=True)
            hanging[job_id] = thread
            thread.start()
            seconds = WAIT_SECONDS if len(hanging) == 1 else WAIT_AGAIN_SECONDS
        thread.join(seconds)
        return not thread.is_alive()


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


OF_LAST_STEP = ("step", "cost", "rows_per_second", "eta_s")
DATE = re.compile(r"\d{4}-\d\d-\d\d")

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Query(BaseModel):
    """Filters of a listing; None: no filter."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    state: Annotated[list[Text], Field(max_length=20)] | None = None
    owner: Text | None = None
    name: Text | None = None
    """A pattern such as ``"night*"``; case-sensitive."""
    since: float | None = None
    """Submitted at or after this time, in seconds since 1970."""
    ended_before: float | None = None
    """Ended at or before this time, in seconds since 1970."""
    limit: Annotated[int, Field(ge=1)] | None = 100

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Query:
        """Return the query in a client's message, or raise ParameterError."""
        try:
            query = cls.model_validate(dict(asked))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = first["loc"][0] if first["loc"] else "the question"
            raise ParameterError(
                f"{where} of a listing of jobs: {first['msg']}; give it as jobs() says."
            ) from None
        for state in query.state or ():
            if state not in STATES:
                raise ParameterError(
                    f"state of a listing must be of {', '.join(STATES)}, got {state[:80]!r}."
                )
        return query


def moment_of(value: object, name: str, now: float | None = None) -> float:
    """Return the seconds since 1970 of a date, or of a time before now.

    ``value`` is ``"2026-11-25"``, ``"2026-11-25T08:30"`` (UTC unless it says otherwise), a
    datetime, or an age such as ``"90m"`` or ``"30d"``. One that is neither, or in the future, is a
    ParameterError.
    """
    now = time.time() if now is None else now
    found = value
    if isinstance(value, str) and DATE.match(value.strip()):
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            found = None
    moment = None
    if isinstance(found, datetime):
        moment = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    elif isinstance(found, str):
        with contextlib.suppress(ParameterError):
            moment = now - parse_duration(found, name)
    if moment is None or moment > now:
        raise ParameterError(
            f"{name} must be a date in the past such as '2026-11-25' or '2026-11-25T08:30', or how "
            f"long ago, such as '12h' or '30d', got {value!r}."
        )
    return moment


def listing(
    jobs: Iterable[JobState], unreadable: Mapping[str, str], query: Query
) -> dict[str, Any]:
    """Return the jobs that a query selects.

    ``jobs`` are rows, the oldest first; ``counts``, numbers of jobs by state, whatever state is
    asked for; ``total``, the number of jobs selected, beyond the limit too.
    """
    # Jobs whose records cannot be read count as the newest, and pass no filter.
    named = None if query.name is None else re.compile(translate(query.name)).match
    since = -math.inf if query.since is None else query.since
    found: list[tuple[float, str, str, JobState | None]] = []
    for job in jobs:
        record, state = job.record, job.state
        if (
            since <= record.created
            and query.owner in (None, record.owner)
            and (named is None or named(record.spec.name or ""))
            and (query.ended_before is None or (state in ENDS and job.ended <= query.ended_before))
        ):
            found.append((record.created, record.id, state, job))
    filters = (query.owner, query.name, query.since, query.ended_before)
    if all(wanted is None for wanted in filters):
        found += [(math.inf, job_id, "unreadable", None) for job_id in unreadable]
    counts = Counter(state for _, _, state, _ in found)
    found = [one for one in found if query.state is None or one[2] in query.state]
    limit = len(found) if query.limit is None else query.limit
    newest = heapq.nlargest(limit, found, key=lambda one: one[:2])
    return {
        "jobs": [_row(job_id, state, job) for _, job_id, state, job in reversed(newest)],
        "counts": {state: counts[state] for state in STATES if counts[state]},
        "total": len(found),
    }


def _row(job_id: str, state: str, job: JobState | None) -> dict[str, Any]:
    if job is None:
        return {"id": job_id, "name": None, "state": state}
    ended = written(job.ended) if state in ENDS else None
    figures = job.feed.figures() if state == "running" else {}
    last = {name: figures[name] for name in OF_LAST_STEP if name in figures}
    return {**job.summary(), "state": state, "ended": ended, **last}
