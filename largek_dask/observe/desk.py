"""Answers for whoever watches jobs: one thread makes them, and everybody gets the same bytes.

An answer is made when somebody asks for it, and then made anew every second for as long as somebody
has asked within the last five. Where that takes long it is made less often, so that watching takes
a small share of a core however many jobs there are. What has not changed keeps its tag, so that
a browser is sent nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import logging
import math
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from largek_dask.driver.events import Event, is_number
from largek_dask.driver.formatting import printable
from largek_dask.driver.job_view import JobView
from largek_dask.driver.stopping import ENDS
from largek_dask.errors import ClusterError, JobNotFoundError, LargekError, ParameterError
from largek_dask.observe.snapshot import row, snapshot

__all__ = ["PAGE_JOBS", "Answer", "Desk", "Key", "Source"]

logger = logging.getLogger(__name__)

Status = Mapping[str, Any]

WANTED_SECONDS = 5.0
"""How long after a question its answer is kept up to date."""
EVERY_SECONDS = 1.0
"""Least time between two answers to one question."""
SHARE = 0.004
"""Share of its time that the thread takes to keep one answer up to date."""
FRESH_SECONDS = 3.0
"""An older answer is not handed out while a newer one can be made."""
PATIENCE_SECONDS = 20.0
"""How long whoever asks first waits."""
CATCH_UP_SECONDS = 20.0
"""How often the views of running jobs are updated, also while nobody looks."""
HEARD_SECONDS = 0.1
"""How long a view takes events of earlier times before an answer is made of those so far."""
READ_AT_ONCE = 100
"""Events of a file in one piece."""
BREATH_SECONDS = 0.002
"""Pause after each piece, in which an event loop of this process gets Python's lock at once."""
MOST_AT_ONCE = 1_000
"""Events that are asked for at once."""
AFTER_ALL = "~"
"""Later than any time."""
MOST_ANSWERS = 256
"""Answers that are kept; those that were asked for the longest ago go first."""
MOST_VIEWS = 40
"""Views of jobs that do not run; those that were looked at the longest ago go first."""
PAGE_JOBS = 50
"""Jobs in one answer of the list."""
MOST_SEARCH = 200
"""Characters of a search."""
RANKS = {"running": 0, "waiting": 1, "queued": 2, "unreadable": 3}
"""Order of states in the list; all others come last."""
SEARCHED = ("name", "id", "state", "algorithm", "data", "output", "owner")

Key = tuple[str, ...]
"""A question: ``("jobs", search, from)``, ``("job", id)``, ``("known", id)`` whether there is one,
of a chart ``("figure", id, panel, theme, axis, "log" or "")``."""


class Source(Protocol):
    """Who has jobs; all of it is called from threads, and may wait."""

    def jobs(self) -> Sequence[Status]:
        """The status of every job."""

    def status(self, job_id: str) -> Status:
        """That of one; raises ``JobNotFoundError``."""

    def events(self, job_id: str, n: int, most: int) -> Sequence[Event]:
        """Events that are in memory, from number ``n`` on; each has its number as ``n``."""

    def history(self, job_id: str) -> Iterable[Event]:
        """All events from files, the oldest first."""

    def cancel(self, job_id: str, who: str) -> str:
        """Ask a job to end; its state."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes that are ready to be sent."""

    body: bytes
    """JSON, compressed by gzip."""
    tag: str
    """A name for the content, in quotation marks as HTTP wants it."""
    status: int = 200
    """HTTP's number for how it went."""


def answer_of(content: Any, status: int = 200) -> Answer:
    """An answer of JSON."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    # Without a time in it, so that the same content has the same bytes.
    return Answer(gzip.compress(data, 5, mtime=0), f'"{hashlib.sha256(data).hexdigest()[:20]}"',
                  status)  # fmt: skip


class Reader(threading.Thread):
    """Reads events of earlier times from files, so that nobody waits for a store.

    It reads on while it is waited for. Two threads that want Python's lock all the time would keep
    it from the event loop of this process for longer than one does.

    Parameters
    ----------
    source : Source
    job_id : str
    until : str
        Time of an event that is known from elsewhere; those from then on are left out.

    Attributes
    ----------
    trouble : str
        Why no more could be read; empty if nothing went wrong.
    """

    def __init__(self, source: Source, job_id: str, until: str) -> None:
        super().__init__(name=f"largek-reader-{job_id}", daemon=True)
        self.trouble = ""
        self._source, self._job_id, self._until = source, job_id, until
        self._read: queue.Queue[list[Event]] = queue.Queue(1)
        self._is_wanted = threading.Event()
        self._is_over = False

    def run(self) -> None:
        """Read, in pieces, until all is read or nobody wants it any more."""
        piece: list[Event] = []
        try:
            for event in self._source.history(self._job_id):
                if str(event.get("time")) >= self._until:
                    break
                piece.append(event)
                if len(piece) == READ_AT_ONCE:
                    self._hand_on(piece)
                    piece = []
                if self._is_over:
                    return
        except Exception as error:
            # Of files that anybody could have written, or a store that is away.
            self.trouble = f"{type(error).__name__}: {error}"
        finally:
            self._hand_on(piece)
            self._hand_on([])

    def _hand_on(self, piece: list[Event]) -> None:
        """Hand on a piece, and wait until another one is wanted."""
        while not self._is_over:
            with contextlib.suppress(queue.Full):
                self._read.put(piece, timeout=1.0)
                break
        while piece and not self._is_over:
            if self._is_wanted.wait(1.0):
                break
        self._is_wanted.clear()

    def next(self, until: float) -> list[Event] | None:
        """The next piece, waited for until this time at most; empty: that was all."""
        self._is_wanted.set()
        try:
            return self._read.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Read no more."""
        self._is_over = True


class Watched:
    """The view of one job, and the events that it has taken.

    Parameters
    ----------
    job_id : str
    """

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.status: Status = {}
        self._reader: Reader | None = None
        self._anew: Watched | None = None
        """Hears all that files have, once a job has ended: of quick steps memory has not all."""
        self._begin()

    def _begin(self) -> None:
        self.close()
        self.view = JobView({"id": self.job_id})
        self.trouble = ""
        self._is_joined = self._is_whole = False
        self._is_behind = False
        """Whether there was no time for all that is in memory."""
        self._next = 0
        self._latest = ""
        self._passed_over = ""
        """Events of this time and earlier have been heard before."""

    @property
    def is_reading(self) -> bool:
        """Whether events of earlier times are still to be heard."""
        return self._reader is not None or self._is_behind

    def close(self) -> None:
        """Read no more files."""
        if self._anew is not None:
            self._anew.close()
            self._anew = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def update(
        self, source: Source, seconds: float, is_urgent: Callable[[], bool] = lambda: False
    ) -> bool:
        """Hear what is new, for about as long as this; whether anything was.

        Of files no more is heard once ``is_urgent()``: somebody waits for something else.
        """
        until = time.monotonic() + seconds
        status = source.status(self.job_id)
        changed = status != self.status
        if self.status.get("run", status.get("run")) != status.get("run"):
            # It is gone on with: what files and memory say is joined anew.
            self._begin()
        self.status = status
        self.view.set_status(status)
        if status.get("state") == "unreadable":
            # Neither its events nor where they are is known now.
            return changed
        if not self._is_joined:
            self._is_joined = True
            self._join(source)
        if self._reader is not None:
            changed = True
            if not self._hear_earlier(self._reader, until, is_urgent):
                return True
        n_events = status.get("n_events")
        if is_number(n_events) and n_events < self._next:
            # They are numbered anew, as by another scheduler.
            self._next, self._passed_over = 0, self._latest
        while found := source.events(self.job_id, self._next, MOST_AT_ONCE):
            if found[0]["n"] > self._next:
                # Those between are only in files by now.
                self._next = int(found[0]["n"])
                self._read(source, found[0])
                return True
            self._next = int(found[-1]["n"]) + 1
            for event in found:
                changed |= self._hear(event)
            self._is_behind = self._next < (n_events if is_number(n_events) else 0)
            if self._is_behind and time.monotonic() >= until:
                return changed
        self._is_behind = False
        if status.get("state") not in ENDS:
            self._is_whole = False
        elif not self._is_whole:
            changed |= self._hear_anew(source, until, is_urgent)
        return changed

    def _hear_anew(self, source: Source, until: float, is_urgent: Callable[[], bool]) -> bool:
        """Hear files on another view, which takes this one's place; whether it did."""
        self._anew = self._anew or Watched(self.job_id)
        self._anew.update(source, until - time.monotonic(), is_urgent)
        if self._anew.is_reading:
            return False
        found, self._anew = self._anew, None
        self._is_whole = True
        if not found.trouble and found._latest >= self._latest:
            self.view = found.view
            return True
        return False

    def _join(self, source: Source) -> None:
        """Have files read where what is at hand does not begin at the beginning."""
        if self.status.get("state") in ENDS:
            self._is_whole = True
            self._read(source, {"time": AFTER_ALL})
            return
        found = source.events(self.job_id, 0, 1)
        if not found:
            self._read(source, {"time": AFTER_ALL})
        elif found[0]["n"] > 0 or found[0].get("event") != "queued":
            self._next = int(found[0]["n"])
            self._read(source, found[0])

    def _read(self, source: Source, until: Event) -> None:
        """Have files read up to an event that is in memory."""
        self._passed_over = self._latest
        self._reader = Reader(source, self.job_id, str(until.get("time")))
        self._reader.start()

    def _hear_earlier(self, reader: Reader, until: float, is_urgent: Callable[[], bool]) -> bool:
        """Hear events from files; whether that is done."""
        while (piece := reader.next(until)) is not None:
            for event in piece:
                self._hear(event)
            time.sleep(BREATH_SECONDS)
            if not piece:
                self.trouble, self._reader = reader.trouble, None
                self._passed_over = "" if reader.trouble else self._latest
                return True
            if time.monotonic() >= until or is_urgent():
                break
        return False

    def _hear(self, event: Event) -> bool:
        when = str(event.get("time") or "")
        if self._passed_over and when <= self._passed_over:
            return False
        self._latest = max(self._latest, when)
        self.view.update(event)
        return True


class Desk(threading.Thread):
    """Makes answers in a thread of its own, and hands out those that are ready.

    Parameters
    ----------
    source : Source
    draws : bool
        Whether there is Bokeh, so that charts can be drawn.
    prepare : callable, optional
        Called in the thread before anything else.
    """

    def __init__(
        self,
        source: Source,
        draws: bool = True,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="largek-desk", daemon=True)
        self.source = source
        self._draws = draws
        self._prepare = prepare
        self._lock = threading.Lock()
        """Held only for what is fast: the event loop takes it."""
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._asked: OrderedDict[Key, float] = OrderedDict()
        self._answers: dict[Key, Answer] = {}
        self._made_at: dict[Key, float] = {}
        self._due_at: dict[Key, float] = {}
        self._waiting: dict[Key, list[tuple[Any, asyncio.Future[Answer]]]] = {}
        self._views: OrderedDict[str, Watched] = OrderedDict()
        self._panels: dict[str, dict[str, Any]] = {}
        self._failed: set[Key] = set()
        self._caught_up_at = time.monotonic()

    # --- on the event loop ------------------------------------------------------------------------

    async def answer(self, key: Key) -> Answer:
        """The answer to a question; one that is ready if it is fresh.

        Raises
        ------
        TimeoutError
            There is none in time.
        """
        with self._lock:
            now = time.monotonic()
            self._asked[key] = now
            self._asked.move_to_end(key)
            if now - self._made_at.get(key, -math.inf) < FRESH_SECONDS:
                return self._answers[key]
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Answer] = loop.create_future()
            self._waiting.setdefault(key, []).append((loop, future))
        self._wake.set()
        return await asyncio.wait_for(future, PATIENCE_SECONDS)

    def expect(self, key: Key) -> None:
        """Have an answer made that somebody is about to ask for."""
        with self._lock:
            self._asked[key] = time.monotonic()
            self._asked.move_to_end(key)
        self._wake.set()

    def close(self) -> None:
        """Make no more answers."""
        self._closed.set()
        self._wake.set()

    # --- in the thread ----------------------------------------------------------------------------

    def run(self) -> None:
        """Make answers until it is closed."""
        try:
            self._prepare()
        except Exception:
            # Whoever needs it is told by its own failing.
            self._log_once(("prepare",))
        while not self._closed.is_set():
            self._wake.wait(EVERY_SECONDS / 4 if self._wanted() else CATCH_UP_SECONDS)
            self._wake.clear()
            while (key := self._next_key()) is not None and not self._closed.is_set():
                self._make(key)
            if time.monotonic() - self._caught_up_at >= CATCH_UP_SECONDS:
                try:
                    self._catch_up()
                except Exception:
                    # Whatever it is, whoever asks is answered.
                    self._log_once(("all",))

    def _next_key(self) -> Key | None:
        """What is to be made next: what somebody waits for, then what is due."""
        wanted, now = self._wanted(), time.monotonic()
        for key in wanted:
            if key in self._waiting:
                return key
        due = [key for key in wanted if self._due_at.get(key, 0.0) <= now]
        return min(due, key=lambda key: self._made_at.get(key, 0.0), default=None)

    def _wanted(self) -> list[Key]:
        """Questions of the last few seconds; others are forgotten when there are too many."""
        with self._lock:
            while len(self._asked) > MOST_ANSWERS:
                old, _ = self._asked.popitem(last=False)
                for kept in (self._answers, self._made_at, self._due_at):
                    kept.pop(old, None)
            since = time.monotonic() - WANTED_SECONDS
            return [
                key for key, asked in self._asked.items() if asked >= since or key in self._waiting
            ]

    def _make(self, key: Key) -> None:
        """Make one answer, and give it to whoever waits."""
        # Seconds of a core: a busy machine is no reason to tell less.
        began = time.thread_time()
        with self._lock:
            before = self._answers.get(key)
        try:
            found = self._made(key, before)
        except JobNotFoundError as error:
            found = answer_of({"error": str(error)}, 404)
        except ParameterError as error:
            found = answer_of({"error": str(error)}, 400)
        except (ClusterError, LargekError, OSError) as error:
            found = answer_of({"error": f"{error}"}, 503)
        except Exception as error:
            # Whatever it is, the others are answered, and jobs go on.
            self._log_once(key)
            found = answer_of({"error": f"this cannot be shown: {type(error).__name__}"}, 500)
        taken = time.thread_time() - began
        with self._lock:
            now = time.monotonic()
            self._answers[key], self._made_at[key] = found, now
            self._due_at[key] = now + max(EVERY_SECONDS - taken, taken / SHARE)
            if self._is_reading(key):
                self._due_at[key] = now
            waiting = self._waiting.pop(key, [])
        for loop, future in waiting:
            # A loop that has ended has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_give, future, found)

    def _log_once(self, key: Key) -> None:
        """Tell of what nobody foresaw: not every second again."""
        if key[:2] not in self._failed and len(self._failed) < MOST_ANSWERS:
            self._failed.add(key[:2])
            logger.exception("largek's page has no answer for %r", key[:2])

    def _waits(self, key: Key) -> bool:
        """Whether somebody waits for something else."""
        return len(self._waiting) > (key in self._waiting)

    def _is_reading(self, key: Key) -> bool:
        watched = self._views.get(key[1]) if key[0] == "job" else None
        return watched is not None and watched.is_reading

    def _made(self, key: Key, before: Answer | None) -> Answer:
        match key:
            case ("jobs", search, begin):
                found = answer_of(self._list(search, int(begin)))
                return before if before is not None and before.tag == found.tag else found
            case ("known", job_id):
                self.source.status(job_id)
                return answer_of({})
            case ("job", job_id):
                watched = self._view(job_id)
                if not self._hears(watched, key, before) and before is not None:
                    return before
                return answer_of(self._job(watched))
            case ("figure", job_id, kind, theme, axis, log):
                return self._figure(job_id, kind, theme, axis, log)
        raise ParameterError(f"nobody knows what {key!r} asks: load the page again.")

    def _hears(self, watched: Watched, key: Key, before: Answer | None) -> bool:
        """Have a view hear what is new; whether there is another answer than the one before."""
        # Files are heard in longer turns once there is something to be looked at.
        seconds = HEARD_SECONDS if before is None else 3 * HEARD_SECONDS
        changed = watched.update(self.source, seconds, lambda: self._waits(key))
        return changed or before is None or before.status != 200

    # --- jobs -------------------------------------------------------------------------------------

    def _list(self, search: str, begin: int) -> dict[str, Any]:
        """At most ``PAGE_JOBS`` of the jobs that a search finds, running ones first."""
        statuses = self.source.jobs()
        running = [status for status in statuses if status.get("state") == "running"]
        words = search.casefold().split()
        found = [status for status in statuses if _is_found(status, words)] if words else statuses
        # Newest first, but for what somebody waits for; the sort keeps that order.
        newest = sorted(found, key=lambda s: str(s.get("created") or ""), reverse=True)
        ordered = sorted(newest, key=lambda s: RANKS.get(str(s.get("state")), 9))
        states: dict[str, int] = {}
        for status in statuses:
            state = printable(status.get("state"))
            states[state] = states.get(state, 0) + 1
        speeds = [status.get("rows_per_second") for status in running]
        workers = {name for status in running for name in (status.get("workers") or ())}
        return {
            "jobs": [row(status) for status in ordered[begin : begin + PAGE_JOBS]],
            "from": begin,
            "found": len(found),
            "of": len(statuses),
            "states": states,
            "rows_per_second": round(sum(s for s in speeds if is_number(s))),
            "workers": len(workers),
        }

    def _view(self, job_id: str) -> Watched:
        """The view of a job, which may be empty yet."""
        watched = self._views.get(job_id)
        if watched is None:
            # Before anything is kept of it: there may be no such job.
            self.source.status(job_id)
            watched = self._views[job_id] = Watched(job_id)
        self._views.move_to_end(job_id)
        idle = [name for name, w in self._views.items() if w.status.get("state") != "running"]
        for name in idle[: max(0, len(idle) - MOST_VIEWS)]:
            self._forget(name)
        return watched

    def _forget(self, job_id: str) -> None:
        if (watched := self._views.pop(job_id, None)) is not None:
            watched.close()
        self._panels.pop(job_id, None)

    def _job(self, watched: Watched) -> dict[str, Any]:
        content = snapshot(watched.view)
        panels = [dict(panel) for panel in content.get("panels", ())]
        if self._draws:
            from largek_dask.observe.figures import key as key_of

            for panel in panels:
                if panel.get("series"):
                    panel["figure"] = hashlib.sha256(repr(key_of(panel)).encode()).hexdigest()[:8]
        self._panels[watched.job_id] = {panel["kind"]: panel for panel in panels}
        about = {"panels": panels, "reading": watched.is_reading}
        if watched.trouble and "error" not in content:
            about["error"] = f"not all that it told can be read: {watched.trouble}"
        return {**content, **about}

    def _chart(self, job_id: str, kind: str) -> dict[str, Any]:
        """A panel that has lines."""
        if job_id not in self._panels:
            watched = self._view(job_id)
            watched.update(self.source, HEARD_SECONDS)
            self._job(watched)
        panel: dict[str, Any] | None = self._panels[job_id].get(kind)
        if panel is None or not panel["series"]:
            raise JobNotFoundError(f"job {job_id} has no chart {kind[:40]!r}: load its page again.")
        return panel

    def _figure(self, job_id: str, kind: str, theme: str, axis: str, log: str) -> Answer:
        """What BokehJS draws a panel from; it depends on no data."""
        panel = self._chart(job_id, kind)
        if not self._draws:
            raise JobNotFoundError(
                f"charts of job {job_id} need bokeh: install it where this page comes from."
            )
        from largek_dask.observe.figures import item

        return answer_of(item(panel, theme, x=axis or None, log=log == "log" or None))

    def _catch_up(self) -> None:
        """Have the views of running jobs take what would be forgotten, and drop ended ones' rest.

        Jobs that nobody has looked at have a view as well, so that whoever looks at last sees all
        at once.
        """
        self._caught_up_at = time.monotonic()
        try:
            statuses = self.source.jobs()
        except (LargekError, OSError):
            # Whoever looks is told; here there is nothing to be done.
            return
        ids = {str(status.get("id")) for status in statuses}
        for name in [name for name in self._views if name not in ids]:
            self._forget(name)
        for status in statuses:
            if status.get("state") != "running":
                continue
            job_id = str(status["id"])
            watched = self._views.get(job_id)
            if watched is None:
                watched = self._views[job_id] = Watched(job_id)
            try:
                watched.update(self.source, HEARD_SECONDS)
            except (LargekError, OSError):
                continue


def _give(future: asyncio.Future[Answer], found: Answer) -> None:
    if not future.done():
        future.set_result(found)


def _is_found(status: Status, words: Iterable[str]) -> bool:
    """Whether all words are in what a job is called."""
    text = " ".join(str(status.get(name) or "") for name in SEARCHED).casefold()
    return all(word in text for word in words)
