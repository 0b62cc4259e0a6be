"""State of a job on its scheduler: its record, recent events, and current run."""

from __future__ import annotations

import copy
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from largek_dask import config
from largek_dask.algorithms.objective import value_in
from largek_dask.driver.event_log import UNSTORED, JsonLines
from largek_dask.driver.events import Event, plain, seconds_of
from largek_dask.driver.job_view import JobView
from largek_dask.driver.plan import ProcessMemory
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError
from largek_dask.redaction import Redactor
from largek_dask.service.lease import Claimant, Lease
from largek_dask.service.spec import known_values, missing, options_of, output_folder
from largek_dask.service.store import Record

logger = logging.getLogger(__name__)

ACTIVE = ("queued", "waiting", "running")
STATES = (*ACTIVE, *ENDS)

Why = Literal["cancel", "shutdown", "lost"]
Reason = Literal["storage", "workers", "credentials", "version", "memory"]
WAITS: dict[str, Reason] = {"waiting": "workers", "storage": "storage"}
"""Reason for which a running fit waits, by topic of its warning."""
MOST_UNWRITTEN = 1_000
"""Maximum number of unwritten events that wait for the next run; older events are dropped."""
CONTINUES = ("workers", "retry", "back")
"""Topics of warnings which show that a fit no longer waits."""
LISTED_FIGURES = ("step", "cost", "share", "rows_per_second", "eta_s")


class Waiting(NamedTuple):
    reason: Reason
    text: str


class JobState:
    """State of a job on this scheduler.

    ``secrets`` are values of storage options that are kept in memory only. ``is_new`` means that no
    other scheduler has run the job.
    """

    def __init__(self, record: Record, secrets: Mapping[str, Any], is_new: bool) -> None:
        self.record = record
        self.is_saved = True
        self.is_removed = False
        self.secrets = dict(secrets)
        self._redactor: tuple[list[Any], Redactor] | None = None
        self.feed = Feed(record.id, is_new)
        self.running = False
        self.began: float | None = None
        """Start of the current run as Unix time; None after the first step."""
        self.note = ""
        """Reason why the job does not start, for example because another scheduler holds it."""
        self.waiting: Waiting | None = None
        self.shortage: Waiting | None = None
        self.reserved_memory: ProcessMemory | None = None
        """Memory that the running job uses on each worker; None if unknown."""
        self.not_before = 0.0
        """Earliest time of the next attempt, by ``time.monotonic``."""
        self.tries = 0
        """Number of consecutive attempts without progress that ended in waiting."""
        self.waiting_since = 0.0
        """End of the first attempt counted in ``tries``, by ``time.monotonic``."""
        self._farthest: tuple[float, ...] = ()
        self.has_run = not is_new
        """Whether data and output have existed before, so that the job should wait for them."""
        self.lease: Lease | None = None
        """The last lease, which an error may have left unreleased."""
        self.claimant: Claimant | None = None
        self._unwritten: deque[Event] = deque(maxlen=MOST_UNWRITTEN)
        self.stopped_for: Why | None = None
        """Reason of the first request to stop the run; None without a request."""
        self._writing = threading.Lock()
        self._lock = threading.Lock()

    def change(self, save: Callable[[Record], object], **changes: Any) -> None:
        """Write the record with changed fields, then apply the changes in memory."""
        with self._writing:
            save(changed := replace(self.record, **changes))
            with self._lock:
                self.record = replace(self.record, **changes)
                self.is_saved = self.record == changed

    def change_unsaved(self, **changes: Any) -> None:
        """Change fields of the record in memory; the caller must then call :meth:`save`."""
        with self._lock:
            self.record, self.is_saved = replace(self.record, **changes), False

    def save(self, save: Callable[[Record], object]) -> None:
        """Write the record if it has changed; log an error if this fails."""
        try:
            with self._writing:
                while not self.is_saved and not self.is_removed:
                    save(record := self.record)
                    with self._lock:
                        # Changes made during the write are written in the next iteration.
                        self.is_saved = record is self.record
        except Exception as error:  # storage drivers raise their own types of errors
            kind = type(error).__name__
            logger.warning("The record of job %s cannot be written yet: %s", self.record.id, kind)

    def was_overwritten(self, is_stored: Callable[[Record], bool]) -> bool:
        """Return whether another scheduler has changed the record; if so, call :meth:`save`."""
        with self._writing:
            if not self.is_saved or self.is_removed or is_stored(self.record):
                return False
            with self._lock:
                self.is_saved = False
            return True

    def remove_record(self, remove: Callable[[], object]) -> None:
        """Remove the record; later calls of :meth:`save` do not write it again."""
        with self._writing:
            remove()
            self.is_removed = True

    def folder(self) -> Folder:
        return output_folder(self.record.spec, options_of(self.record.spec, self.secrets))

    def load_events(self, folder: Folder) -> None:
        """Load the last events that earlier schedulers wrote to the job's folder."""
        if not self.feed.is_loaded:
            self.feed.load(JsonLines.last(folder, MOST_EVENTS, MOST_BYTES))

    @property
    def redact(self) -> Redactor:
        """Redactor of all known storage option values, cached."""
        values = known_values(self.record.spec, self.secrets)
        if self._redactor is None or self._redactor[0] != values:
            self._redactor = (values, Redactor(values))
        return self._redactor[1]

    @property
    def state(self) -> str:
        """One of ``STATES``."""
        if (result := self.record.result) is not None:
            return result.state
        if self.reason is not None:
            return "waiting"
        return "running" if self.running else "queued"

    @property
    def reason(self) -> Reason | None:
        if self.record.result is not None:
            return None
        if not self.running and self.needs():
            return "credentials"
        waiting = self._waiting
        return None if waiting is None else waiting.reason

    @property
    def _waiting(self) -> Waiting | None:
        return self.waiting if self.running else self.waiting or self.shortage

    @property
    def ended(self) -> float:
        """End of the job as Unix time; the time of submission if unknown."""
        return self.record.created if self.record.ended is None else self.record.ended

    def needs(self) -> list[str]:
        """Return the names of storage options that a client must supply before the job can run."""
        return missing(self.record.spec, self.secrets)

    def supply(self, secrets: Mapping[str, Any]) -> None:
        """Set storage options that are kept in memory only; set all or, on an error, none."""
        if unknown := sorted(set(secrets) - set(self.record.spec.in_memory)):
            raise ParameterError(
                f"job {self.record.id} does not need the storage option {unknown[0]!r}: supply the "
                "options listed under needs in its status."
            )
        self.secrets = {**self.secrets, **secrets}

    def ask_to_stop(self, why: Why) -> None:
        """Request the run to stop at its next chunk; later requests do not change the reason."""
        if self.stopped_for is None:
            self.stopped_for = why

    def update_waiting(self, event: Event) -> None:
        """Use an event to update whether the run waits or makes progress."""
        kind, topic = event["event"], event.get("topic")
        if kind == "warning" and topic in WAITS:
            self.waiting = Waiting(WAITS[topic], str(event["message"]))
        elif kind in ("started", "step", "labels") or (kind == "warning" and topic in CONTINUES):
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
            # Repeated steps do not count as progress; otherwise a job could be retried forever.
            self._farthest, self.tries = at, 0

    def postpone(self, reason: Reason, text: str) -> float:
        """Postpone the next attempt with exponential backoff; return the seconds waited so far."""
        now = time.monotonic()
        if not self.tries:
            self.waiting_since = now
        pause = float(config.get("service.beat-seconds")) * 2.0**self.tries
        longest = float(config.get("service.retry-seconds"))
        self.not_before = now + min(pause, longest)
        self.tries += 1
        self.waiting = Waiting(reason, text)
        return now - self.waiting_since

    def reset_retries(self) -> None:
        """Retry immediately, because the missing resource may now be available."""
        self.tries, self.not_before = 0, 0.0

    def emit(self, event: Event) -> None:
        """Add an event outside a run; the next run writes the event to the job's folder."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        stamped = {"time": stamp, **event}
        with self._lock:
            self._unwritten.append(stamped)
        self.feed(stamped)

    def unwritten(self) -> Iterator[Event]:
        """Remove and yield the events that are not yet written to a file."""
        while True:
            with self._lock:
                if not self._unwritten:
                    return
                event = self._unwritten.popleft()
            yield event

    def begin(self) -> None:
        self.stopped_for = None
        self.running, self.note, self.shortage = True, "", None
        self.began = time.time()

    def is_stopped(self) -> bool:
        return self.stopped_for is not None

    @property
    def explanation(self) -> str:
        """Explanation of why the job waits; empty if the job does not wait."""
        if self.reason == "credentials" and (needs := self.needs()):
            return f"it needs the storage options {', '.join(needs)}: supply() their values"
        waiting = self._waiting
        return self.note if waiting is None else waiting.text

    def about(self) -> dict[str, Any]:
        """Return the fields common to a list of jobs and a status."""
        record, spec = self.record, self.record.spec
        return {
            "id": record.id,
            "name": spec.name,
            "state": self.state,
            "reason": self.reason,
            "owner": record.owner,
            "created": utc_text(record.created),
            "ended": None if record.result is None else utc_text(self.ended),
            "algorithm": spec.algorithm.name,
            "n_clusters": spec.n_clusters,
            "data": spec.data,
            "output": spec.output,
        }

    def row(self) -> dict[str, Any]:
        """Return the fields for a list of jobs; these are few because a list may be long."""
        row, result = self.about(), self.record.result
        if result is not None:
            _, value = value_in(vars(result))
            row |= {"step": result.n_iter, "cost": value, "seconds": result.seconds}
            row["share"] = float(result.state == "finished")
        elif self.running:
            figures = self.feed.figures()
            row |= {name: figures[name] for name in LISTED_FIGURES if name in figures}
            row |= {"seconds": figures.get("elapsed"), "workers": figures["workers"]}
        return row

    def status(self) -> dict[str, Any]:
        record, spec, result = self.record, self.record.spec, self.record.result
        asked = None if spec.workers is None else spec.workers.model_dump(mode="json")
        return {
            **self.about(),
            "note": self.explanation,
            "needs": self.needs() if result is None else [],
            "run": record.run,
            **({} if spec.mixture is None else {"mixture": spec.mixture}),
            **({} if asked is None else {"workers_asked": asked}),
            "max_iter": spec.max_iter,
            "max_time": spec.max_time,
            "versions": list(record.versions),
            **spec.objective.describe(),
            **self.feed.figures(),
            **({} if result is None else {"result": result.model_dump(mode="json")}),
        }


def utc_text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


MOST_EVENTS, MOST_BYTES = 5_000, 4_000_000
"""Maximum number of events in memory and of bytes read; older events remain in the job's folder."""


class JobMetrics(NamedTuple):
    """Metrics of a job after its last event; replaced as a whole, so readers need no lock."""

    at: float = 0.0
    figures: Mapping[str, float] = MappingProxyType({})
    seconds: Mapping[str, float] = MappingProxyType({})


class Feed:
    """Event sink (see ``driver.events``) that numbers and stores the events of one job.

    Events are stored as text, which takes half the memory of mappings. ``metrics`` can be read
    without blocking, and ``view`` is the state that results from the events. ``is_new`` means that
    there are no earlier events to :meth:`load`.
    """

    def __init__(self, job_id: str, is_new: bool) -> None:
        self.is_loaded = is_new
        self._job = job_id
        self._texts: deque[bytes] = deque(maxlen=MOST_EVENTS)
        self._next = 0
        self._lock = threading.Lock()
        self.view = JobView()
        self._last: str | None = None
        self.metrics = JobMetrics()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.view.update(event)
            stamp = str(event.get("time") or datetime.now(UTC).isoformat(timespec="milliseconds"))
            self._last = stamp
            at = seconds_of({"time": stamp})
            figures = {**self.view.metrics(), "last_event_timestamp_seconds": int(at)}
            self.metrics = JobMetrics(at, figures, self.view.metric_seconds())
            if event["event"] == UNSTORED:
                return
            self._add({**plain(event), "time": stamp})

    def _add(self, event: Event) -> None:
        numbered = {**event, "n": self._next, "job": self._job}
        self._next += 1
        self._texts.append(json.dumps(numbered, separators=(",", ":")).encode())

    def load(self, events: Iterable[Event]) -> None:
        """Insert the events of earlier schedulers before all others; later calls do nothing."""
        with self._lock:
            if self.is_loaded:
                return
            self.is_loaded = True
            later = [json.loads(text) for text in self._texts]
            self._texts.clear()
            self._next = 0
            every = [plain(event) for event in (*events, *later)]
            self.view = JobView().update_all(every)
            for event in every:
                self._add(event)
            if every and not later:
                self._last = str(every[-1].get("time") or "") or None

    def unload(self) -> None:
        """Drop the events and series of an ended job; the job's folder still has the events."""
        with self._lock:
            self._texts.clear()
            self._next = 0
            self.view.drop_series()
            self.is_loaded = False

    def copy_view(self) -> JobView:
        with self._lock:
            return copy.deepcopy(self.view)

    def since(self, n: int, most: int = 1_000) -> list[dict[str, Any]]:
        """Return at most ``most`` events, from number ``n`` or the first event in memory."""
        with self._lock:
            begin = max(0, n - (self._next - len(self._texts)))
            end = min(begin + most, len(self._texts))
            texts = [self._texts[i] for i in range(begin, end)]
        return [json.loads(text) for text in texts]

    def worth(self, seconds: float) -> int:
        """Return the number of workers with which the longest step so far would take ``seconds``.

        The result is at least 1 and at most the number of chunks.
        """
        with self._lock:
            return max(1, min(self.view.n_chunks, math.ceil(self.view.most_work / seconds)))

    def figures(self) -> dict[str, Any]:
        """Return values of the last step and sums over all steps, as in ``Job.status``."""
        with self._lock:
            return {**self.view.figures(), "last_event": self._last, "n_events": self._next}
