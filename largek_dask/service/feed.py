"""What a job has told so far: for whoever follows it, and for whoever comes late."""

from __future__ import annotations

import copy
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from largek_dask.driver.event_log import UNKEPT
from largek_dask.driver.events import Event, plain
from largek_dask.driver.job_view import JobView
from largek_dask.driver.worker_figures import seconds_of

__all__ = ["MOST_BYTES", "MOST_EVENTS", "Feed", "Ready", "Shelf"]

MOST_EVENTS = 10_000
"""Events kept; older ones are in the job's folder."""
MOST_BYTES = 3_900_000
"""Bytes that a feed takes, but for the last event: what is counted is less than the 4 MB meant."""
MOST_TOGETHER = 62_000_000
"""The same of the feeds of all jobs, of the 64 MB meant."""
OVERHEAD = 72
"""Bytes that an event takes beside its text."""
STEP_SECONDS = 0.1
"""Steps that follow each other faster are left out, but not of the file."""


class Ready(NamedTuple):
    """Figures of a job as of its last event: a whole object, which nobody has to wait for."""

    at: float = 0.0
    """When that was, in seconds since 1970."""
    figures: Mapping[str, float] = MappingProxyType({})
    seconds: Mapping[str, float] = MappingProxyType({})
    """Seconds by kind."""


class Shelf:
    """Bounds what the feeds of all jobs keep together."""

    def __init__(self, most: int = MOST_TOGETHER) -> None:
        self._most = most
        # Feeds of jobs that are no more go by themselves.
        self._sizes: WeakKeyDictionary[Feed, tuple[int, int]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def note(self, feed: Feed, of_events: int, of_view: int = 0) -> Feed | None:
        """Take over how much a feed keeps; one that has to keep less, if it is too much now.

        Parameters
        ----------
        feed : Feed
        of_events : int
            Bytes of its events, which it can forget.
        of_view : int
            Bytes of its view, which it cannot.
        """
        with self._lock:
            self._sizes[feed] = of_events, of_view
            sizes = dict(self._sizes)
        if sum(map(sum, sizes.values())) <= self._most:
            return None
        return max(sizes, key=lambda name: sizes[name][0])


class Feed:
    """The events of one job, numbered; a sink (see ``driver.events``).

    They are kept as text: that is half of what they take as mappings, and how much it is is known.

    Parameters
    ----------
    job_id : str
    tell : callable
        Called with every event that is kept, in their order.
    is_new : bool
        There are no earlier events, which :meth:`load` would bring.
    shelf : Shelf, optional
        What it shares with the feeds of other jobs.

    Attributes
    ----------
    ready : Ready
        Figures for callers that must not wait.
    view : JobView
        What the events say; updated under a lock of the feed.
    """

    def __init__(
        self,
        job_id: str,
        tell: Callable[[Event], None],
        is_new: bool,
        shelf: Shelf | None = None,
    ) -> None:
        self.is_loaded = is_new
        self._is_whole = is_new
        """Whether the view has the events of all runs."""
        self._job = job_id
        self._tell = tell
        self._shelf = Shelf() if shelf is None else shelf
        self._texts: deque[bytes] = deque()
        self._size = self._of_view = 0
        self._next = 0
        self._lock = threading.Lock()
        self._step_at = -math.inf
        self._left_out: Event | None = None
        """The last step, if it was left out; told after all when none follows."""
        self.view = JobView()
        self._last: str | None = None
        self.ready = Ready()

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        with self._lock:
            kind = event["event"]
            self.view.update(event)
            stamp = str(event.get("time") or datetime.now(UTC).isoformat(timespec="milliseconds"))
            self._last = stamp
            at = seconds_of({"time": stamp})
            figures = {**self.view.metrics(), "last_event_timestamp_seconds": int(at)}
            self.ready = Ready(at, figures, self.view.metric_seconds())
            if kind == UNKEPT:
                return
            if kind == "step":
                now = time.monotonic()
                if now - self._step_at < STEP_SECONDS:
                    self._left_out = event
                    return
                self._step_at = now
                self._left_out = None
            elif kind == "stopped" and self._left_out is not None:
                left_out, self._left_out = self._left_out, None
                self._tell(self._add({"time": stamp, **plain(left_out)}))
            numbered = self._add({**plain(event), "time": stamp})
            # Inside the lock, so that nobody is told of a later one first.
            self._tell(numbered)
        self._make_room()

    def _add(self, event: Event) -> dict[str, Any]:
        """Keep an event under the next number."""
        numbered = {**event, "n": self._next, "job": self._job}
        text = json.dumps(numbered, separators=(",", ":")).encode()
        self._next += 1
        self._texts.append(text)
        self._size += len(text) + OVERHEAD
        self._of_view = self.view.nbytes
        most = MOST_BYTES - self._of_view
        while len(self._texts) > MOST_EVENTS or (self._size > most and len(self._texts) > 1):
            self._drop()
        return numbered

    def _drop(self) -> None:
        self._size -= len(self._texts.popleft()) + OVERHEAD

    def _make_room(self) -> None:
        """Have the largest feed forget its oldest events, as long as all are too large."""
        # Without a lock of one's own: the largest may be another, at work at the same time.
        while (largest := self._note()) is not None:
            if not largest._halve():
                return

    def _note(self) -> Feed | None:
        return self._shelf.note(self, self._size, self._of_view)

    def _halve(self) -> bool:
        """Forget the older half; False where there is but one event."""
        with self._lock:
            goal, before = self._size // 2, len(self._texts)
            while self._size > goal and len(self._texts) > 1:
                self._drop()
            is_less = len(self._texts) < before
        self._note()
        return is_less

    def load(self, events: Iterable[Event]) -> None:
        """Put what an earlier scheduler has told before everything else, once."""
        with self._lock:
            if self.is_loaded:
                return
            self.is_loaded = True
            later = [json.loads(text) for text in self._texts]
            self._clear()
            earlier = list(events)
            for event in [*earlier, *later]:
                self._add(plain(event))
            if not later and not self._is_whole:
                # Counters are of this scheduler's time.
                self.view.update_all(earlier).reset_totals()
                if earlier:
                    self._last = str(earlier[-1].get("time") or "") or None
        self._make_room()

    def unload(self) -> None:
        """Drop the events of a job that has ended, and its series: its file has them."""
        with self._lock:
            self._clear()
            self.view.drop_series()
            self._of_view = 0
            self.is_loaded = self._is_whole = False
        self._shelf.note(self, 0)

    def copy_view(self, *, partial: bool = False) -> JobView | None:
        """Return a copy of the view; None if it lacks earlier events, unless ``partial``."""
        with self._lock:
            return copy.deepcopy(self.view) if self._is_whole or partial else None

    def join(self, earlier: JobView) -> None:
        """Replace the view by one of the events in the job's folder and of later ones kept here.

        Sums stay: they are of this scheduler's time.
        """
        with self._lock:
            later: deque[Event] = deque()
            for text in reversed(self._texts):
                if seconds_of(event := json.loads(text)) <= earlier.last_seconds:
                    break
                later.appendleft(event)
            earlier.update_all(later).take_totals(self.view)
            self.view, self._is_whole = earlier, True
            self._of_view = earlier.nbytes
        self._make_room()

    def _clear(self) -> None:
        self._texts.clear()
        self._size = self._next = 0

    def since(self, n: int, most: int = 1_000) -> list[dict[str, Any]]:
        """At most ``most`` events from number ``n`` on, or from the first one that is kept."""
        with self._lock:
            begin = max(0, n - (self._next - len(self._texts)))
            end = min(begin + most, len(self._texts))
            texts = [self._texts[i] for i in range(begin, end)]
        return [json.loads(text) for text in texts]

    def worth(self, seconds: float) -> int:
        """Workers among whom the longest step so far would take ``seconds``, 1 or more.

        Not more than there are chunks, and one before the first step.
        """
        with self._lock:
            return max(1, min(self.view.n_chunks, math.ceil(self.view.most_work / seconds)))

    def figures(self) -> dict[str, Any]:
        """The last step, and sums over all steps of this scheduler's time: see ``Job.status``."""
        with self._lock:
            return {
                **self.view.figures(),
                "last_event": self._last,
                "n_events": self._next,
            }
