"""Write and read the events of a fit as JSON lines in numbered files.

A job's folder::

    events/000001.jsonl     the first file
    events/000002.jsonl     the next file; each run begins a new file

Splitting events into several files limits the size of reads, and of rewrites on stores that cannot
append. A local file is synced to disk after a checkpoint, after the last step and on closing; a
power failure may lose events since the last sync.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from largek_dask.driver.events import FORMAT, Event, plain
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError
from largek_dask.version import check_format

PART_BYTES = 1 << 20
"""Maximum size of a local event file in bytes, unless a single event is larger."""
STORE_PART_BYTES = 1 << 17
"""Maximum size of an event file on a store that cannot append, in bytes."""
MOST_UNSAVED = 128
"""Maximum number of event files waiting to be written to a store; the oldest files are dropped."""
UNSTORED = "progress"
"""Kind of event that is not stored."""
SYNCED = ("checkpoint", "stopped")
"""Kinds of events after which a local event file is synced to disk."""
NAME = "events"
HEADS = ("running", "started")
"""Kinds of events that declare the format of the events after them."""
PART = re.compile(r"(\d{6,12})\.jsonl")


class JsonLines:
    """Sink that writes events as JSON lines to a folder at any fsspec URL.

    Events are appended to local files. Object stores cannot append, so there the last file is
    rewritten at most once per ``every`` seconds and on closing; a failed write is retried after
    this time. JSON escapes line breaks, so text in an event cannot forge another event. Raises
    OutputError if the folder cannot be written.
    """

    def __init__(
        self, folder: Folder, *, every: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._every = folder.sub(NAME), every
        self._part_bytes = PART_BYTES if folder.is_local else min(PART_BYTES, STORE_PART_BYTES)
        self._lock = threading.Lock()
        """A lock is needed because a client's event loop may send events from another thread."""
        folder.check_writable()
        self._number = max(_parts(self._folder), default=0) + 1
        self._text = bytearray()
        """Lines that are not yet written to a local file."""
        self._size = 0
        self._file: int | None = None
        self._unsaved: deque[tuple[int, bytes]] = deque(maxlen=MOST_UNSAVED)
        """Numbers and contents of full event files that are not yet written."""
        self._clock = clock
        self._tried = clock()
        self._failed = False

    def __repr__(self) -> str:
        return self._folder.url

    def __call__(self, event: Event) -> None:
        """Write an event; an event that fails with OSError is written by a later call."""
        if event.get("event") == UNSTORED:
            return
        text = json.dumps(plain(event), allow_nan=False, separators=(",", ":"))
        line = text.encode() + b"\n"
        with self._lock:
            if self._size and self._size + len(line) > self._part_bytes:
                self._close_part()
            self._text += line
            self._size += len(line)
            waited = self._clock() - self._tried
            if waited >= self._every or (self._folder.is_local and not self._failed):
                self._flush()
            if self._file is not None and event.get("event") in SYNCED:
                os.fsync(self._file)

    def _close_part(self) -> None:
        if self._file is not None:
            self._close_file()
            self._number += 1
        if self._text:
            # Lines that could not be appended to a local file are written to a new file.
            self._unsaved.append((self._number, bytes(self._text)))
            self._text.clear()
            self._number += 1
        self._size = 0
        if not self._failed:
            self._flush()

    def _flush(self) -> None:
        self._tried, self._failed = self._clock(), True
        while self._unsaved:
            number, text = self._unsaved[0]
            self._folder.publish(_name(number), text)
            self._unsaved.popleft()
        if self._folder.is_local:
            self._append()
        elif self._text:
            self._folder.publish(_name(self._number), bytes(self._text))
        self._failed = False

    def _append(self) -> None:
        if self._file is None and self._text:
            # Another scheduler may still write events of this job, so writers never share a file.
            while not self._folder.create(_name(self._number), b""):
                self._number += 1
            path = self._folder.path(_name(self._number))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        while self._text:
            assert self._file is not None
            del self._text[: os.write(self._file, self._text)]

    def close(self) -> None:
        """Write the remaining events, or raise OSError."""
        with self._lock:
            try:
                self._flush()
            finally:
                self._close_file()

    def _close_file(self) -> None:
        number, self._file = self._file, None
        if number is not None:
            try:
                os.fsync(number)
            finally:
                os.close(number)

    @staticmethod
    def is_in(folder: Folder) -> bool:
        return bool(_parts(folder.sub(NAME)))

    @staticmethod
    def read(folder: Folder) -> Iterator[dict[str, Any]]:
        """Yield the events in a folder, oldest first; skip incomplete lines."""
        with contextlib.suppress(FileNotFoundError):
            yield from Tail(folder).new()

    @staticmethod
    def last(folder: Folder, most: int, most_bytes: float = math.inf) -> list[dict[str, Any]]:
        """Return at most ``most`` of the latest events; stop after reading ``most_bytes`` bytes."""
        found: deque[dict[str, Any]] = deque()
        parts, n_bytes = folder.sub(NAME), 0
        for number in sorted(_parts(parts), reverse=True):
            text = parts.read(_name(number))
            n_bytes += len(text)
            lines = reversed(text.splitlines())
            found.extendleft(event for line in lines for event in _events_in(line, folder))
            if len(found) >= most or n_bytes >= most_bytes:
                break
        return list(found)[-most:]


class Tail:
    """Reader that follows the events of a fit while they are written."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._number = self._offset = 0
        """Number of the file that was read last, and the byte offset in this file."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield all events since the last call, or all events at first; skip incomplete lines.

        Raises FileNotFoundError if there are no events or they have been removed.
        """
        parts = sorted(_parts(self._folder.sub(NAME)))
        if not parts:
            raise FileNotFoundError(f"{self._folder.url} contains no events.")
        for number in (number for number in parts if number >= self._number):
            if number != self._number:
                # Skip an incomplete line at the end of the previous file.
                self._number, self._offset = number, 0
            text = self._folder.read_from(f"{NAME}/{_name(number)}", self._offset)
            whole = text.rfind(b"\n") + 1
            self._offset += whole
            for line in text[:whole].splitlines():
                yield from _events_in(line, self._folder)


def _name(number: int) -> str:
    return f"{number:06d}.jsonl"


def _parts(folder: Folder) -> list[int]:
    found = (PART.fullmatch(name) for name in folder.names())
    return [int(match[1]) for match in found if match]


def _events_in(line: bytes, folder: Folder) -> Iterator[dict[str, Any]]:
    """Yield the event in a complete line; raise OutputError if the event has a newer format."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(event, dict):
        if event.get("event") in HEADS:
            check_format(event, f"the events in {folder.url}", OutputError, FORMAT)
        yield event
