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
from largek_dask.observe.totals import Totals

__all__ = ["MOST_EVENTS", "Feed"]

MOST_EVENTS = 10_000
"""Events kept; older ones are in the job's folder."""
STEP_SECONDS = 0.1
"""Steps that follow each other faster are left out, but not of the file."""


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
        self._left_out: Event | None = None
        """The last step, if it was left out; told after all when none follows."""
        self._totals = Totals()
        self._n_chunks = 1

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        with self._lock:
            kind = event["event"]
            self._totals.count(event)
            if kind == "step":
                now = time.monotonic()
                if now - self._step_at < STEP_SECONDS:
                    self._left_out = event
                    return
                self._step_at = now
                self._left_out = None
            elif kind == "started":
                self._n_chunks = int(event["n_chunks"])
            elif kind == "stopped" and self._left_out is not None:
                self._keep(self._left_out)
                self._left_out = None
            self._keep(event)

    def _keep(self, event: Event) -> None:
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
            earlier = list(events)
            for event in [*earlier, *later]:
                self._events.append({**plain(event), "n": self._next, "job": self._job})
                self._next += 1
            if not later:
                self._totals.recall(earlier)

    def unload(self) -> None:
        """Let the events of a job that has ended go: its file has them."""
        with self._lock:
            self._events.clear()
            self._next = 0
            self.is_loaded = False

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
            return max(1, min(self._n_chunks, math.ceil(self._totals.most_work / seconds)))

    def figures(self) -> dict[str, Any]:
        """The last step, and sums over all steps of this scheduler's time: see ``Job.status``."""
        with self._lock:
            return {**self._totals.figures(), "n_events": self._next}
