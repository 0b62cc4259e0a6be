"""A job as its scheduler knows it: its record, its events, whether it runs or waits, for what."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from largek_dask import config
from largek_dask.data.stores import is_local, normalize
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.events import Event
from largek_dask.driver.plan import ProcessMemory
from largek_dask.driver.run import Snapshot
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError
from largek_dask.redaction import Redactor
from largek_dask.service.credentials import (
    check_secrets,
    known_values,
    missing,
    options_of,
    output_folder,
)
from largek_dask.service.feed import MOST_BYTES, MOST_EVENTS, Feed, Shelf
from largek_dask.service.fitting import loss_in
from largek_dask.service.lease import Contender, Lease
from largek_dask.service.places import Places
from largek_dask.service.store import Record, Result
from largek_dask.version import __version__

__all__ = ["ACTIVE", "STATES", "JobState", "Reason", "unreadable_status"]

ACTIVE = ("queued", "waiting", "running")
"""States of a job that has not ended."""
STATES = (*ACTIVE, *ENDS, "unreadable")
"""All states of a job; the last is that of one whose record cannot be read."""

Why = Literal["cancel", "shutdown", "lost"]
Reason = Literal["storage", "workers", "credentials", "version", "memory"]
"""What a job can wait for."""
WAITS: dict[str, Reason] = {"waiting": "workers", "storage": "storage"}
"""Topics of warnings by which a running fit says that it waits, and for what."""
MOST_UNWRITTEN = 1_000
"""Events that wait for a run to write them; older ones are forgotten."""
GOES_ON = ("workers", "retry", "back")
"""Topics of warnings that a fit gives which does not wait."""


class Waiting(NamedTuple):
    """What a job waits for, and what is known of it."""

    reason: Reason
    text: str


class JobState:
    """A job as this scheduler knows it.

    Parameters
    ----------
    record : Record
    places : Places
        Where it reads and writes.
    secrets : mapping
        Values of storage options that are nowhere but in memory.
    tell : callable
        Called with every event.
    is_new : bool
        No other scheduler has ever had it.
    shelf : Shelf, optional
        Bounds its events together with those of other jobs.
    """

    def __init__(
        self,
        record: Record,
        places: Places,
        secrets: Mapping[str, Any],
        tell: Callable[[Event], None],
        is_new: bool,
        shelf: Shelf | None = None,
    ) -> None:
        self.record = record
        self.has_told_version = False
        """Whether it has been told that the job waits for its version to be accepted."""
        self.is_kept = True
        """Whether the record is in the store as it is here."""
        self.is_gone = False
        """Whether it has been removed there: nobody is to write it again."""
        self._known_since = time.time()
        self.places = places
        self.secrets = dict(secrets)
        self._redactor: tuple[list[Any], Redactor] | None = None
        """Known values of its storage options, and what leaves them out."""
        self.feed = Feed(record.id, tell, is_new, shelf)
        self.running = False
        self.began: float | None = None
        """When the run in progress began, in seconds since 1970; None after its first step."""
        self.note = ""
        """Which scheduler has the job, where it is not this one."""
        self.waiting: Waiting | None = None
        self.lacking: Waiting | None = None
        """What the cluster lacks for it to begin."""
        self.holds: ProcessMemory | None = None
        """What it takes of each worker since it runs; None: not known."""
        self.not_before = 0.0
        """When it is tried again, at the soonest (``time.monotonic``)."""
        self.tries = 0
        """Attempts in a row that ended in waiting and have not come farther than those before."""
        self.waits_since = 0.0
        """When the first of these attempts began to wait (``time.monotonic``)."""
        self._farthest: tuple[float, ...] = ()
        self.about_workers = ""
        """What the run has said last of workers that it goes on without."""
        self.has_run = not is_new
        """What it needs was there once: if that is gone, it is worth waiting for."""
        self.lease: Lease | None = None
        """The last lease, which could perhaps not be given back."""
        self.loss = ""
        """What is damaged of its output, although it has ended with a model."""
        self.snapshot: Snapshot | None = None
        """The snapshot of the last step, while the job runs."""
        self.feature_names: tuple[str, ...] | None = None
        """Names of the columns of the rows that the snapshot is of."""
        self.contender: Contender | None = None
        self._unwritten: deque[Event] = deque(maxlen=MOST_UNWRITTEN)
        self._stop = threading.Event()
        self._why: Why | None = None
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        """Held only for what is fast."""

    def change(self, keep: Callable[[Record], object], **changes: Any) -> None:
        """Keep the record with other fields, and then take them, one change after the other.

        Raises
        ------
        OutputError
            It could not be kept; nothing has changed.
        """
        with self._writing:
            keep(changed := replace(self.record, **changes))
            with self._lock:
                self.record = replace(self.record, **changes)
                self.is_kept = self.record == changed

    def change_now(self, **changes: Any) -> None:
        """Change fields of the record at once; :meth:`keep` has to follow."""
        with self._lock:
            self.record, self.is_kept = replace(self.record, **changes), False

    def keep(self, keep: Callable[[Record], object]) -> None:
        """Keep the record as it is now, if that has not been done.

        Raises
        ------
        OutputError
            It could not be kept; to be tried again.
        """
        with self._writing:
            while not self.is_kept and not self.is_gone:
                keep(record := self.record)
                with self._lock:
                    # What has changed meanwhile is written as well.
                    self.is_kept = record is self.record

    def compare(self, stands: Callable[[Record], bool]) -> bool:
        """Find out whether the record has been written by somebody else, as it is not here.

        Then :meth:`keep` has to follow. What is still to be kept is not compared.
        """
        with self._writing:
            if not self.is_kept or self.is_gone or stands(self.record):
                return False
            with self._lock:
                self.is_kept = False
            return True

    def forget(self, remove: Callable[[], object]) -> None:
        """Remove the record, which no :meth:`keep` brings back."""
        with self._writing:
            remove()
            self.is_gone = True

    def recall(self, folder: Folder) -> None:
        """Take up the last events of earlier schedulers, from the job's folder."""
        if not self.feed.is_loaded:
            self.feed.load(JsonLines.last(folder, MOST_EVENTS, MOST_BYTES))

    def look_at_output(self) -> None:
        """Find out whether the output of a job that has ended is whole.

        Raises
        ------
        LargekError, OSError
            That cannot be said now.
        """
        record, result = self.record, self.record.result
        if result is None or result.digest is None:
            return
        if is_local(normalize(record.spec.output)):
            folder = output_folder(record.spec, options_of(record.spec, self.secrets))
            loss = loss_in(folder, labels=result.labels)
            with self._lock:
                if self.record is record:
                    self.loss = loss

    @property
    def result(self) -> Result | None:
        """How this run ended; one whose output is damaged since has failed."""
        result = self.record.result
        if result is None or not self.loss:
            return result
        message = f"{self.loss} Use submit(resume={self.record.id!r}) to compute it again."
        told = {"state": "failed", "error": "ModelFormatError", "message": message}
        return result.model_copy(update={**told, "digest": None, "labels": False})

    @property
    def redact(self) -> Redactor:
        """Leaves the known values of its storage options out of texts; made once for them."""
        values = known_values(self.record.spec, self.secrets)
        if self._redactor is None or self._redactor[0] != values:
            self._redactor = (values, Redactor(values))
        return self._redactor[1]

    @property
    def state(self) -> str:
        """One of queued, waiting, running, and the states of a result."""
        if (result := self.result) is not None:
            return result.state
        if self.reason is not None:
            return "waiting"
        return "running" if self.running else "queued"

    @property
    def reason(self) -> Reason | None:
        """What it waits for, if it does."""
        if self.record.result is not None:
            return None
        if not self.running and self.needs():
            return "credentials"
        if not self.running and self.is_of_other_version:
            return "version"
        waiting = self._waiting
        return None if waiting is None else waiting.reason

    @property
    def _waiting(self) -> Waiting | None:
        """What has been found to be missing; of a job that runs, by its run."""
        return self.waiting if self.running else self.waiting or self.lacking

    @property
    def ended(self) -> float:
        """When it ended, in seconds since 1970; where that is not known, when it was first seen."""
        return self._known_since if self.record.ended is None else self.record.ended

    @property
    def is_of_other_version(self) -> bool:
        """Whether somebody has to accept that this version goes on with what another one has."""
        versions = self.record.versions
        return bool(versions) and versions[-1] != __version__

    def needs(self) -> list[str]:
        """Storage options that a client has to supply before it can run."""
        return missing(self.record.spec, self.secrets)

    def supply(self, secrets: Mapping[str, Any]) -> None:
        """Take values of storage options that are only in memory.

        Raises
        ------
        ParameterError
            The job has no such option, or a value is too large; nothing has been taken.
        """
        if unknown := sorted(set(secrets) - set(self.record.spec.in_memory)):
            raise ParameterError(
                f"job {self.record.id} has no storage option {unknown[0]!r}: give those that its "
                "status names as needs."
            )
        check_secrets(values := {**self.secrets, **secrets})
        self.secrets = values

    def ask_to_stop(self, why: Why) -> None:
        """End the run at the next chunk; the first reason counts."""
        if self._why is None:
            self._why = why
        self._stop.set()

    def heed(self, event: Event) -> None:
        """Take up what an event of a run tells of whether it waits."""
        kind, topic = event["event"], event.get("topic")
        if kind == "warning" and topic in ("waiting", "workers"):
            self.about_workers = str(event["message"])
        if kind == "warning" and topic in WAITS:
            self.waiting = Waiting(WAITS[topic], str(event["message"]))
        elif kind in ("started", "step", "labels") or (kind == "warning" and topic in GOES_ON):
            self.has_run = True
            self.waiting = None
        at: tuple[float, ...] = ()
        if kind in ("step", "labels"):
            self.began = None
        if kind == "step":
            at = (float(event.get("start", 0)), float(event["step"]))
        elif kind == "labels":
            at = (*self._farthest[:1], math.inf, float(event["rows"]))
        if at > self._farthest:
            # What is only done again is no progress, or a job could try for ever.
            self._farthest, self.tries = at, 0

    def wait_for(self, reason: Reason, text: str) -> float:
        """Put the job aside, longer each time; the seconds that it has waited so far."""
        now = time.monotonic()
        if not self.tries:
            self.waits_since = now
        pause = float(config.get("service.beat-seconds")) * 2.0**self.tries
        longest = float(config.get("service.retry-seconds"))
        self.not_before = now + min(pause, longest)
        self.tries += 1
        self.waiting = Waiting(reason, text)
        return now - self.waits_since

    def go_on(self) -> None:
        """Forget how often it has been tried: something has been done about what it waits for."""
        self.tries, self.not_before = 0, 0.0

    def tell(self, event: Event) -> None:
        """Take in an event that no run tells: the job's folder has it when a run writes there."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {"time": stamp, **event}
        with self._lock:
            self._unwritten.append(told)
        self.feed(told)

    def unwritten(self) -> Iterator[Event]:
        """Events that are in no file yet, each once."""
        while True:
            with self._lock:
                if not self._unwritten:
                    return
                event = self._unwritten.popleft()
            yield event

    def begin(self) -> None:
        """Forget what an earlier attempt was stopped for."""
        self._why = None
        self._stop.clear()
        self.about_workers = ""
        self.running, self.note, self.lacking, self.loss = True, "", None, ""
        self.began = time.time()

    @property
    def stopped_for(self) -> Why | None:
        """Why the run was asked to end."""
        return self._why

    def is_stopped(self) -> bool:
        """Whether the run was asked to end."""
        return self._stop.is_set()

    @property
    def told(self) -> str:
        """What it waits for, in a sentence; nothing if it does not."""
        if self.reason == "credentials" and (needs := self.needs()):
            return f"it needs values of the storage options {', '.join(needs)}: supply() them"
        return self._note()

    def _note(self) -> str:
        if self.record.deleting is not None:
            return "it is being removed"
        if self.reason == "version" and not self.running and self.is_of_other_version:
            return (
                f"it was computed by largek_dask {self.record.versions[-1]}, and this is "
                f"{__version__}: the bits of its result may be others if it goes on, which "
                "submit(resume=id, accept_version=True) accepts"
            )
        waiting = self._waiting
        return self.note if waiting is None else waiting.text

    def status(self) -> dict[str, Any]:
        """Everything known, as plain values."""
        record, result = self.record, self.result
        about = {
            "id": record.id,
            "name": record.spec.name,
            "state": self.state,
            "reason": self.reason,
            "note": self._note(),
            "needs": self.needs() if result is None or record.deleting else [],
            "owner": record.owner,
            "created": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
            "run": record.run,
            "data": record.spec.data,
            "output": record.spec.output,
            "algorithm": record.spec.algorithm.name,
            "n_clusters": record.spec.n_clusters,
            **({} if record.spec.mixture is None else {"mixture": record.spec.mixture}),
            # How far each of them is, is told as "workers".
            **(
                {}
                if (asked := record.spec.workers) is None
                else {"workers_asked": asked.model_dump(mode="json")}
            ),
            "max_iter": record.spec.max_iter,
            "max_time": record.spec.max_time,
            "versions": list(record.versions),
            # Who has all jobs knows its place among them.
            "queue": None,
            **record.spec.objective.told(),
            **self.feed.figures(),
        }
        if result is not None:
            about["result"] = result.model_dump(mode="json")
            about["ended"] = datetime.fromtimestamp(self.ended, UTC).isoformat(timespec="seconds")
        if record.failure is not None:
            about["failure"] = record.failure.model_dump(mode="json")
        return about


def unreadable_status(job_id: str, reason: str) -> dict[str, Any]:
    """The status of a job whose record cannot be read."""
    unknown = ("created", "owner", "data", "output", "algorithm", "n_clusters", "max_iter")
    return {
        "id": job_id,
        "name": None,
        "state": "unreadable",
        "note": f"its record cannot be read: {reason}",
        "reason": None,
        "needs": [],
        "n_events": 0,
        **dict.fromkeys(unknown),
    }
