"""What is removed of jobs that have ended: when somebody asks for it, and by their age.

A removal is noted in the job's record before anything goes, and the record goes last: whatever cuts
it off, the next scheduler finishes it. Each job is removed by itself, by threads that are not the
scheduler's event loop, and many are asked for in slices, so that nobody waits for long.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from largek_dask import config
from largek_dask.driver.stopping import ENDS, parse_duration
from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, LargekError, LostJobError, ParameterError
from largek_dask.service.credentials import options_of, output_folder
from largek_dask.service.fitting import (
    CHECKPOINTS,
    JOB_FILES,
    LABELS,
    MODEL,
    UNFINISHED_LABELS,
)
from largek_dask.service.known import KnownJob
from largek_dask.service.lanes import Lanes
from largek_dask.service.lease import claimed_for
from largek_dask.service.listing import moment_of
from largek_dask.service.register import Register
from largek_dask.service.tenure import Tenure

__all__ = ["Sweep", "Sweeper"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
AGAIN_SECONDS = 60.0
"""How often a removal that was cut off is tried to be finished."""
RETENTION_SECONDS = 3_600.0
"""How often it is looked for jobs that are old enough."""
SLICE_SECONDS, SLICE_JOBS = 2.0, 200
"""Bounds of one answer to who removes many."""

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Sweep(BaseModel):
    """Which jobs are to be removed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    older_than: Text
    """A date, or how long ago they have ended."""
    state: Annotated[list[Text], Field(max_length=len(ENDS))] | None = None
    owner: Text | None = None
    keep_last: Annotated[int, Field(ge=0)] = 0
    """How many of them stay, those that have ended last."""
    outputs: bool = False
    """Whether models and labels are removed as well."""
    dry_run: bool = False
    after: Annotated[list[float | str], Field(min_length=2, max_length=2)] | None = None
    """Where the slice before has ended, as its answer says."""

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Sweep:
        """The question in a client's message.

        Raises
        ------
        ParameterError
            It is none.
        """
        try:
            sweep = cls.model_validate(dict(asked))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = first["loc"][0] if first["loc"] else "the question"
            raise ParameterError(f"{where} of gc: {first['msg']}; give it as gc() says.") from None
        for state in sweep.state or ():
            if state not in ENDS:
                raise ParameterError(
                    f"state of gc must be of {', '.join(ENDS)}, got {state[:80]!r}: jobs that "
                    "have not ended are not removed; cancel() them first."
                )
        return sweep

    def before(self, now: float) -> float:
        """Up to when jobs have to have ended, in seconds since 1970.

        Raises
        ------
        ParameterError
            It is no such time, or in the future.
        """
        found = moment_of(self.older_than, "older_than", now)
        if found > now:
            raise ParameterError(
                f"older_than={self.older_than!r} is in the future: no job has ended then; give a "
                "date in the past, or how long ago, such as '30d'."
            )
        return found


class Sweeper(threading.Thread):
    """Removes jobs that have ended.

    Parameters
    ----------
    register : Register
    tenure : Tenure
    clock : callable
        Seconds since 1970.

    Raises
    ------
    ParameterError
        ``largek.service.retention`` says no times.
    """

    def __init__(
        self, register: Register, tenure: Tenure, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(name="largek-sweeper", daemon=True)
        retention()
        self._register = register
        self._tenure = tenure
        self._clock = clock
        self._lanes = Lanes("largek-sweeper")
        self._over = threading.Event()

    # --- what a client may ask --------------------------------------------------------------------

    def keep(self, job_id: str, kept: bool) -> None:
        """Have a job stay, whatever its age and whoever removes others; or no longer.

        Raises
        ------
        ParameterError
            It is being removed.
        """
        job = self._register.find(job_id)
        with self._register.changed:
            if job.record.deleting is not None:
                raise ParameterError(f"job {job_id} is being removed: submit a new one.")
            if changed := job.record.kept is not bool(kept):
                job.change_now(kept=bool(kept))
        self._register.keep(job)
        if changed:
            job.tell({"event": "kept", "run": job.record.run, "kept": bool(kept)})

    def delete(self, job_id: str, outputs: bool = True) -> int:
        """Remove a job that has ended: its record, checkpoints and events.

        Parameters
        ----------
        job_id : str
        outputs : bool
            Whether its model and labels are removed as well.

        Returns
        -------
        int
            Bytes of its files.

        Raises
        ------
        ParameterError
            It has not ended (a job that waits for credentials may be cancelled), it is kept, or
            the values of storage options are needed to remove its files.
        JobNotFoundError
            There is none.
        """
        job = self._register.find(job_id)
        with self._register.alone(job, "deleted", "cancel it first"):
            if job.record.kept:
                raise ParameterError(f"job {job_id} is kept: let it go by keep(False) first.")
            size = self._remove(job, outputs)
        job.feed({"event": "deleted", "run": job.record.run})
        return size

    def sweep(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Remove some of the jobs that are old enough, or only tell them.

        Returns
        -------
        dict
            ``jobs``: of each its ``id``, ``name``, ``state``, ``owner``, ``ended``, the ``bytes``
            of its files, whether it is ``removed``, and else ``why`` not. ``after``: where to go
            on; None at the end.

        Raises
        ------
        ParameterError
            It is no question.
        """
        sweep = Sweep.of(asked)
        before = sweep.before(self._clock())
        self._register.wait_until_ready()
        until, rows = time.monotonic() + SLICE_SECONDS, []
        jobs = self._swept(sweep, before)
        for job in jobs:
            rows.append(self._row(job, sweep))
            if len(rows) >= SLICE_JOBS or time.monotonic() >= until:
                return {"jobs": rows, "after": [*_key(job)]}
        return {"jobs": rows, "after": None}

    def _swept(self, sweep: Sweep, before: float) -> Iterator[KnownJob]:
        """Jobs that are meant, those that have ended first come first."""
        states = ENDS if sweep.state is None else sweep.state
        found = [
            job
            for job in self._register.jobs()
            if job.state in states
            and not job.record.kept
            and sweep.owner in (None, job.record.owner)
        ]
        found.sort(key=_key)
        after = None if sweep.after is None else tuple(sweep.after)
        for job in found[: max(0, len(found) - sweep.keep_last)]:
            key = _key(job)
            if key[0] <= before and (after is None or key > after):
                yield job

    def _row(self, job: KnownJob, sweep: Sweep) -> dict[str, Any]:
        record, size, why = job.record, 0, None
        try:
            if sweep.dry_run:
                folder = self._folder(job)
                size = _size(folder, self._files(job, folder, sweep.outputs))
            else:
                size = self.delete(record.id, sweep.outputs)
        except LostJobError:
            raise
        except Exception as error:  # drivers raise errors of their own kinds
            why = self._told(job, error)
        return {
            "id": record.id,
            "name": record.spec.name,
            "state": job.state,
            "owner": record.owner,
            "ended": datetime.fromtimestamp(job.ended, UTC).isoformat(timespec="seconds"),
            "bytes": size,
            "removed": why is None and not sweep.dry_run,
            "why": why,
        }

    # --- what is done in any case -----------------------------------------------------------------

    def run(self) -> None:
        """Finish what was cut off, and remove what is too old, until it is stopped."""
        again = retained = -float("inf")
        while not self._over.wait(TICK_SECONDS):
            now = time.monotonic()
            if not self._register.loaded.is_set():
                continue
            if now - again >= AGAIN_SECONDS:
                again = now
                self._each(self.finish)
            if now - retained >= RETENTION_SECONDS:
                retained = now
                self._each(self.retain)

    def stop(self) -> None:
        """End after the job that is just being removed."""
        self._over.set()

    def _each(self, look: Callable[[KnownJob], None]) -> None:
        """Look at each job; what cannot be done now is tried again later."""
        for job in self._register.jobs():
            if self._over.is_set() or not self._register.loaded.is_set():
                return
            self._lanes.run(job.record.id, functools.partial(self._look, look, job))

    def _look(self, look: Callable[[KnownJob], None], job: KnownJob) -> None:
        try:
            look(job)
        except Exception as error:  # drivers raise errors of their own kinds
            told = self._told(job, error)
            logger.info("Job %s is not removed yet: %s", job.record.id, told)

    def finish(self, job: KnownJob) -> None:
        """Go on with a removal that was cut off."""
        if (deleting := job.record.deleting) is None:
            return
        try:
            self.delete(job.record.id, deleting == "outputs")
        except JobNotFoundError:
            # Whoever has asked for it was faster.
            return
        logger.info("Job %s is removed, as was asked for before", job.record.id)

    def retain(self, job: KnownJob) -> None:
        """Remove a job, or its checkpoints, if it has ended for as long as that."""
        record = job.record
        if job.state not in ENDS or record.kept or record.deleting is not None:
            return
        age = self._clock() - job.ended
        of_checkpoints, of_jobs = retention()
        if of_jobs is not None and age > of_jobs:
            size = self.delete(record.id, outputs=False)
            logger.info("Job %s is removed, %d bytes: it ended %.0f s ago", record.id, size, age)
        elif of_checkpoints is not None and age > of_checkpoints and not record.cleared:
            self._clear(job)

    def _clear(self, job: KnownJob) -> None:
        """Remove the checkpoints of a job."""
        with self._register.alone(job, "cleared", "wait until it has ended"):
            folder = self._folder(job)
            if claimed_for(folder) in (None, job.record.id):
                for name in CHECKPOINTS:
                    folder.remove(name)
            job.change(self._tenure.records.update, cleared=True)
        logger.info("The checkpoints of job %s are removed", job.record.id)

    # --- one job ----------------------------------------------------------------------------------

    def _remove(self, job: KnownJob, outputs: bool) -> int:
        """Remove a job that the caller has for itself; bytes of its files."""
        records, job_id = self._tenure.records, job.record.id
        folder = self._folder(job)
        outputs = outputs or job.record.deleting == "outputs"
        deleting = "outputs" if outputs else "files"
        if job.record.deleting != deleting:
            job.change(records.update, deleting=deleting)
        names = self._files(job, folder, outputs)
        size = _size(folder, names)
        for name in names:
            folder.remove(name)
        job.forget(lambda: records.remove(job_id))
        self._register.remove(job_id)
        return size

    def _folder(self, job: KnownJob) -> Folder:
        """Where it has written, as long as its store is this scheduler's."""
        spec = job.record.spec
        folder = output_folder(spec, options_of(spec, job.secrets))
        return folder.guarded(self._tenure.records.check)

    def _files(self, job: KnownJob, folder: Folder, outputs: bool) -> list[str]:
        """What there is of it in its folder, in the order in which it goes."""
        if claimed_for(folder) not in (None, job.record.id):
            # A job that has failed because its folder is another's leaves that alone.
            return []
        found = set(folder.names())
        if not outputs:
            # Half of the labels are none.
            is_whole = UNFINISHED_LABELS not in found
            found -= {MODEL, LABELS} if is_whole else {MODEL}
        return [name for name in JOB_FILES if name in found]

    def _told(self, job: KnownJob, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        told: str = job.redact(str(error) if isinstance(error, LargekError) else text)
        return told


def _key(job: KnownJob) -> tuple[float, str]:
    return job.ended, job.record.id


def _size(folder: Folder, names: list[str]) -> int:
    return sum(map(folder.size_of, names))


def retention() -> tuple[float | None, float | None]:
    """Seconds after its end for which a job has its checkpoints, and is there; None: for ever.

    Raises
    ------
    ParameterError
        The configuration says something else.
    """
    where = "service.retention"
    of_checkpoints, of_jobs = (
        None
        if (value := config.get(f"{where}.{name}")) is None
        else parse_duration(value, f"largek.{where}.{name}")
        for name in ("checkpoints", "jobs")
    )
    return of_checkpoints, of_jobs
