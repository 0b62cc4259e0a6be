"""What a job has told so far: for whoever follows it, and for whoever comes late."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from largek_dask.driver.events import Event, plain

__all__ = ["MOST_EVENTS", "Feed"]

MOST_EVENTS = 10_000
"""Events kept; older ones are in the job's folder."""
STEP_SECONDS = 0.1
"""Steps that follow each other faster are left out, but not of the file."""
SUMMED = ("rows", "bytes", "retries", "rebuilt", "evictions")
HELD = ("state_bytes", "cache_bytes")
SHOWN = ("step", "cost", "n_changed", "rows_per_second", "elapsed", "eta_s")


class Feed:
    """The events of one job, numbered; a sink (see ``driver.events``).

    Parameters
    ----------
    job_id : str
    tell : callable
        Called with every event that is kept, in their order.
    is_new : bool
        There are no earlier events, which :meth:`load` would bring.
    """

    def __init__(self, job_id: str, tell: Callable[[Event], None], is_new: bool) -> None:
        self.is_loaded = is_new
        self._job = job_id
        self._tell = tell
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._next = 0
        self._lock = threading.Lock()
        self._step_at = -math.inf
        self._progress: dict[str, Any] = {}
        self._sums: dict[str, Any] = dict.fromkeys(SUMMED, 0)
        self._seconds: dict[str, float] = {}
        self._workers: dict[str, Any] = {}
        self._n_chunks = 1
        self._most_work = 0.0

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        with self._lock:
            kind = event["event"]
            if kind == "step":
                self._count(event)
                now = time.monotonic()
                if now - self._step_at < STEP_SECONDS:
                    return
                self._step_at = now
            elif kind == "started":
                self._n_chunks = int(event["n_chunks"])
            elif kind == "workers":
                self._workers = plain(event["workers"])
            stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
            numbered = {"time": stamp, **plain(event), "n": self._next, "job": self._job}
            self._next += 1
            self._events.append(numbered)
            # Inside the lock, so that nobody is told of a later one first.
            self._tell(numbered)

    def load(self, events: Iterable[Event]) -> None:
        """Put what an earlier scheduler has told before everything else, once."""
        with self._lock:
            if self.is_loaded:
                return
            self.is_loaded = True
            later = list(self._events)
            self._events.clear()
            self._next = 0
            for event in [*events, *later]:
                self._events.append({**plain(event), "n": self._next, "job": self._job})
                self._next += 1
                if event.get("event") == "step" and not later:
                    self._progress = {name: event.get(name) for name in (*SHOWN, *HELD)}

    def unload(self) -> None:
        """Let the events of a job that has ended go: its file has them."""
        with self._lock:
            self._events.clear()
            self._next = 0
            self.is_loaded = False

    def _count(self, event: Event) -> None:
        self._progress = {name: plain(event[name]) for name in (*SHOWN, *HELD)}
        for name in SUMMED:
            self._sums[name] += event[name] or 0
        for name, seconds in event["seconds"].items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        work = sum(event["seconds"].get(name, 0.0) for name in ("compute", "read"))
        self._most_work = max(self._most_work, work)

    def since(self, n: int, most: int = 1_000) -> list[dict[str, Any]]:
        """At most ``most`` events from number ``n`` on, or from the first one that is kept."""
        with self._lock:
            first = self._events[0]["n"] if self._events else 0
            begin = max(0, n - first)
            return [self._events[i] for i in range(begin, min(begin + most, len(self._events)))]

    def worth(self, seconds: float) -> int:
        """Workers among whom the longest step so far would take ``seconds``, 1 or more.

        Not more than there are chunks, and one before the first step.
        """
        with self._lock:
            return max(1, min(self._n_chunks, math.ceil(self._most_work / seconds)))

    def figures(self) -> dict[str, Any]:
        """The last step, and sums over all steps of this scheduler's time: see ``Job.status``."""
        with self._lock:
            return {
                **self._progress,
                **self._sums,
                "seconds": dict(self._seconds),
                "workers": self._workers,
                "n_events": self._next,
            }
