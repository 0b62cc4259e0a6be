"""Jobs as their folders tell of them: a page without a scheduler.

A folder is that of one fit (``checkpoint=`` of a fit, ``--out`` of ``largek fit``), or the store
of a scheduler, whose records say where each job's folder is. A thread for each follows what grows
there, so that a store which does not answer keeps nobody waiting; nothing is written.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from largek_dask.algorithms.objective import objective_in
from largek_dask.driver.checkpoint import description_in
from largek_dask.driver.event_log import JsonLines, Tail
from largek_dask.driver.events import Event
from largek_dask.driver.storage import Folder
from largek_dask.driver.words import printable
from largek_dask.errors import JobNotFoundError, LargekError, ParameterError
from largek_dask.redaction import Redactor
from largek_dask.service.credentials import options_of, output_folder
from largek_dask.service.feed import Feed
from largek_dask.service.known import KnownJob, unreadable_status
from largek_dask.service.lanes import Lanes
from largek_dask.service.places import Places
from largek_dask.service.store import Record, Records

__all__ = ["Folders"]

logger = logging.getLogger(__name__)

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 5.0
"""Pauses between two looks into a folder of this machine, and into one elsewhere."""
PATIENCE_SECONDS = 10.0
"""How long a question waits for the first look."""
WATCHED_SECONDS = 30.0
"""How long after a question the folder of a job that has ended is looked into."""
MOST_EVENTS = 2_000
"""Events of a job in memory; older ones are read from its files when they are asked for."""
ODD = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What is raised over an event of a file that anybody could have written: a field may be missing,
of another type, infinite, or nested without end. Such an event is passed over."""
FORESEEN = (LargekError, OSError)
"""What is raised where a store is away, or holds something else."""


class Trouble:
    """Why something cannot be read, and since when."""

    def __init__(self) -> None:
        self.text = ""

    def told(self, what: str, reason: str) -> None:
        """It cannot be read now; when that began is known from the first time."""
        if not self.text.startswith(f"{what} cannot be read since"):
            since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
            self.text = f"{what} cannot be read since {since} UTC: {reason}"

    def over(self) -> None:
        """It can be read."""
        self.text = ""

    def failed(self, what: str, error: Exception, options: Mapping[str, Any]) -> None:
        """It cannot be read now because of an error; of one that nobody foresaw the log has more.

        Such as one of a storage driver's own kind. The next look may go well.
        """
        clean = Redactor(options)
        if not isinstance(error, FORESEEN) and not self.text:
            lines = "".join(traceback.format_exception(error))
            logger.error("%s cannot be read, and nobody foresaw why: %s", what, clean(lines))
        self.told(what, printable(clean(f"{type(error).__name__}: {error}")))


class FolderJob:
    """A job or a fit, as its folder tells of it.

    Parameters
    ----------
    job_id : str
    """

    def __init__(self, job_id: str) -> None:
        self.id = job_id
        self.trouble = Trouble()
        self.asked_at = -math.inf
        self.n_events = 0
        self._tail: Tail | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)

    def folder(self) -> Folder:
        """Where it is."""
        raise NotImplementedError

    def take(self, event: Event) -> None:
        """Take in an event."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """What is known of it, by the names of ``Job.status``."""
        raise NotImplementedError

    @property
    def has_ended(self) -> bool:
        """Whether nothing is expected of it any more."""
        raise NotImplementedError

    def look(self) -> None:
        """Take in what is new."""
        folder = None
        try:
            folder = self.folder()
            self._tail = self._tail or Tail(folder)
            for event in self._tail.new():
                self._events.append({**event, "n": self.n_events})
                self.n_events += 1
                with contextlib.suppress(*ODD):
                    self.take(event)
        except FileNotFoundError:
            gone = "its events are gone" if self.n_events else "it holds no events yet"
            self.trouble.told("The folder" if folder is None else folder.url, gone)
        except Exception as error:
            options = {} if folder is None else folder.storage_options
            self.trouble.failed("The folder" if folder is None else folder.url, error, options)
        else:
            self.trouble.over()

    def status(self) -> dict[str, Any]:
        """See ``Job.status``."""
        note = {"note": self.trouble.text} if self.trouble.text else {}
        return {**self.figures(), **note, "n_events": self.n_events}

    def since(self, n: int, most: int) -> list[dict[str, Any]]:
        """Events in memory from number ``n`` on."""
        held = list(self._events)
        begin = max(0, n - held[0]["n"]) if held else 0
        return held[begin : begin + most]


class FitJob(FolderJob):
    """A fit without a scheduler.

    Parameters
    ----------
    job_id : str
    folder : Folder
    """

    def __init__(self, job_id: str, folder: Folder) -> None:
        super().__init__(job_id)
        self._folder = folder
        self._about: dict[str, Any] = {}
        self._objective: dict[str, Any] = {}
        self._feed = Feed(job_id, lambda event: None, is_new=True)
        self._state = "queued"

    def folder(self) -> Folder:
        """Where it is."""
        return self._folder

    @property
    def has_ended(self) -> bool:
        """Never: another fit may go on in that folder."""
        return False

    def look(self) -> None:
        """Take in what is new."""
        super().look()
        if not self._about and self.n_events:
            # Without it what is fitted stays unknown; the folder's own trouble says more.
            with contextlib.suppress(LargekError, OSError):
                self._about = description_in(self._folder) or {}

    def take(self, event: Event) -> None:
        """Take in an event."""
        kind = event.get("event")
        if kind == "started":
            self._objective = objective_in(event).told()
        if kind in ("started", "step"):
            self._state = "running"
        elif kind == "best" or (kind == "stopped" and "start" not in event):
            reason = event.get("reason")
            self._state = "cancelled" if reason in ("cancelled", "interrupted") else "finished"
        self._feed(event)

    def figures(self) -> dict[str, Any]:
        """What is known of it."""
        job = _mapping(self._about.get("job"))
        where = _mapping(self._about.get("data")).get("location")
        return {
            "id": self.id,
            "title": self.id,
            "state": self._state,
            "data": where or "rows in memory",
            "output": self._folder.url,
            "algorithm": _mapping(job.get("algorithm")).get("name"),
            "n_clusters": job.get("n_clusters"),
            **({"mixture": job["mixture"]} if job.get("mixture") else {}),
            **self._objective,
            **self._feed.figures(),
        }


class StoreJob(FolderJob):
    """A job of a scheduler's store.

    Parameters
    ----------
    record : Record
    """

    def __init__(self, record: Record) -> None:
        super().__init__(record.id)
        self._known = KnownJob(
            record, Places.of(record.spec, links=False), {}, lambda event: None, is_new=True
        )
        self._is_looked_at = False

    def know(self, record: Record) -> None:
        """Take in the record as it is now."""
        self._is_looked_at &= record == self._known.record
        self._known.record = record

    def look(self) -> None:
        """Take in what is new, and of one that has ended whether its output is whole."""
        super().look()
        if not self._is_looked_at and self._known.record.result is not None:
            self._is_looked_at = True
            self._known.look_at_output()

    def folder(self) -> Folder:
        """Where it is; its options have to be in the environment of this process."""
        spec = self._known.record.spec
        return output_folder(spec, options_of(spec, {}))

    @property
    def has_ended(self) -> bool:
        """Whether its record says so, and its output has been looked at."""
        return self._is_looked_at

    def take(self, event: Event) -> None:
        """Take in an event."""
        if event.get("event") in ("running", "interrupted"):
            self._known.running = event["event"] == "running"
        self._known.heed(event)
        self._known.feed(event)

    def figures(self) -> dict[str, Any]:
        """What is known of it."""
        return self._known.status()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


class Root(threading.Thread):
    """Follows one folder: that of a fit, or a store of jobs.

    Parameters
    ----------
    folder : Folder
    name : str
        What a fit in it is called.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        super().__init__(name=f"largek-root-{name}", daemon=True)
        self.url = folder.url
        self.trouble = Trouble()
        self.has_looked = threading.Event()
        self.jobs: dict[str, FolderJob] = {}
        self.unreadable: dict[str, str] = {}
        """Jobs whose records cannot be read, as those of a newer version, and why."""
        self._folder, self._label = folder, name
        self._lanes = Lanes("largek-folder")
        self._over = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        pause = LOCAL_SECONDS if self._folder.is_local else REMOTE_SECONDS
        while True:
            try:
                self.look()
            except Exception as error:
                # One look that fails is no reason to look no more.
                self.trouble.failed(self.url, error, self._folder.storage_options)
            self.has_looked.set()
            if self._over.wait(pause):
                return

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def look(self) -> None:
        """Find jobs, and what is new of those that run or are watched."""
        try:
            names = self._folder.names()
            if "jobs" in names:
                self._look_for_jobs()
            elif self._label not in self.jobs and {"events", "events.jsonl"} & set(names):
                self.jobs[self._label] = FitJob(self._label, self._folder)
            if "jobs" not in names and any(isinstance(job, StoreJob) for job in self.jobs.values()):
                self.trouble.told(self.url, "its records of jobs are gone")
            elif self.jobs or "jobs" in names:
                self.trouble.over()
            else:
                self.trouble.told(self.url, "it holds neither events of a fit nor a store of jobs")
        except Exception as error:
            self.trouble.failed(self.url, error, self._folder.storage_options)
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if self._over.is_set():
                return
            if not job.has_ended or now - job.asked_at < WATCHED_SECONDS:
                self._lanes.run(job.id, functools.partial(self._look_at, job))

    def _look_at(self, job: FolderJob) -> None:
        try:
            job.look()
        except Exception as error:
            # Whatever is wrong with one job, the others are looked at.
            job.trouble.failed("The folder", error, self._folder.storage_options)

    def _look_for_jobs(self) -> None:
        records, unreadable = Records(self._folder).found()
        found = {record.id: record for record in records}
        for job_id, record in found.items():
            job = self.jobs.get(job_id)
            if isinstance(job, StoreJob):
                job.know(record)
            else:
                self.jobs[job_id] = StoreJob(record)
        # Whoever looks meanwhile finds a job in one of both, or in both.
        self.unreadable = unreadable
        for job_id in [job_id for job_id in self.jobs if job_id not in found]:
            del self.jobs[job_id]


class Folders:
    """Jobs in folders, as ``observe.desk.Source`` asks for them.

    Parameters
    ----------
    urls : sequence of str
        Folders of fits, and stores.
    storage_options : mapping, optional
        For all of them.
    """

    def __init__(
        self, urls: Sequence[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._roots: list[Root] = []
        taken: set[str] = set()
        for url in urls:
            folder = Folder(url, storage_options)
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.url.rpartition("/")[2])[:60] or "fit"
            label, number = name, 1
            while label in taken:
                number += 1
                label = f"{name}-{number}"
            taken.add(label)
            self._roots.append(Root(folder, label))
        for root in self._roots:
            root.start()

    def close(self) -> None:
        """Look no more."""
        for root in self._roots:
            root.close()

    def trouble(self) -> list[str]:
        """What cannot be read at the moment, and since when."""
        return [root.trouble.text for root in self._roots if root.trouble.text]

    def jobs(self) -> list[dict[str, Any]]:
        """The status of every job."""
        until = time.monotonic() + PATIENCE_SECONDS
        for root in self._roots:
            root.has_looked.wait(max(0.0, until - time.monotonic()))
        # A record may just become readable, or unreadable: looked at before and after.
        unreadable = self._unreadable()
        known = [job.status() for root in self._roots for job in list(root.jobs.values())]
        unreadable |= self._unreadable()
        for status in known:
            unreadable.pop(status["id"], None)
        return [*known, *(unreadable_status(*about) for about in unreadable.items())]

    def _unreadable(self) -> dict[str, str]:
        return {name: why for root in self._roots for name, why in root.unreadable.items()}

    def status(self, job_id: str) -> dict[str, Any]:
        """That of one."""
        for root in self._roots:
            root.has_looked.wait(PATIENCE_SECONDS)
            if (reason := root.unreadable.get(job_id)) is not None:
                return unreadable_status(job_id, reason)
        return self._find(job_id).status()

    def events(self, job_id: str, n: int, most: int) -> list[dict[str, Any]]:
        """Events that are in memory; no file is read."""
        return self._find(job_id).since(n, most)

    def history(self, job_id: str) -> Iterable[Event]:
        """All events in the job's folder."""
        return JsonLines.read(self._find(job_id).folder())

    def cancel(self, job_id: str, who: str) -> str:
        """Nothing can be done from folders alone."""
        raise ParameterError(
            f"job {job_id} can be cancelled by its scheduler only: use largek cancel {job_id}."
        )

    def _find(self, job_id: str) -> FolderJob:
        for root in self._roots:
            root.has_looked.wait(PATIENCE_SECONDS)
            if (job := root.jobs.get(job_id)) is not None:
                job.asked_at = time.monotonic()
                return job
        raise JobNotFoundError(
            f"there is no job {job_id[:80]!r} in these folders: choose one of the list."
        )
