"""Write and read events in a folder, as parts of JSON lines.

A job's folder::

    events/000001.jsonl     the first part
    events/000002.jsonl     the next part; each run begins a new one

Parts limit the size of reads, and of rewrites on a store that cannot append. A local part is synced
after a checkpoint, after the last step and on closing; a power failure may lose later events.
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
"""Maximum size of a local part, unless a single event is larger."""
STORE_PART_BYTES = 1 << 17
"""Maximum size of a part on a store that cannot append."""
MOST_UNSAVED = 128
"""Maximum number of parts that wait to be written to a store; the oldest are dropped."""
UNSTORED = "progress"
"""Kind of event that is not stored."""
SYNCED = ("checkpoint", "stopped")
"""Kinds of events after which a local part is synced."""
NAME = "events"
HEADS = ("running", "started")
"""Kinds of events that declare the format of the events after them."""
PART = re.compile(r"(\d{6,12})\.jsonl")


class JsonLines:
    """Sink that writes events as lines of JSON to a folder at any fsspec URL.

    Events are appended to local parts. Object stores cannot append, so the open part is rewritten
    at most once per ``every`` seconds and on closing, and a failed write is retried after this
    time. As JSON escapes line ends, no text can forge an event. Raises OutputError if the folder
    cannot be written.
    """

    def __init__(
        self, folder: Folder, *, every: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._every = folder.sub(NAME), every
        self._part_bytes = PART_BYTES if folder.is_local else min(PART_BYTES, STORE_PART_BYTES)
        self._lock = threading.Lock()
        """Needed because events may come from the thread of a client's event loop."""
        folder.check_writable()
        self._number = max(_parts(self._folder), default=0) + 1
        self._text = bytearray()
        """Lines that are not yet in a local file."""
        self._size = 0
        self._file: int | None = None
        self._unsaved: deque[tuple[int, bytes]] = deque(maxlen=MOST_UNSAVED)
        """Full parts that are not yet written."""
        self._clock = clock
        self._tried = clock()
        self._failed = False

    def __repr__(self) -> str:
        return self._folder.url

    def __call__(self, event: Event) -> None:
        """Write an event; after an OSError, the event is written together with a later one."""
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
            # Lines that could not be appended to a local part become a part of their own.
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
            # A scheduler that has lost the job may still write, so writers never share a part.
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
        """Yield the events in a folder, oldest first, without torn lines."""
        with contextlib.suppress(FileNotFoundError):
            yield from Tail(folder).new()

    @staticmethod
    def last(folder: Folder, most: int, most_bytes: float = math.inf) -> list[dict[str, Any]]:
        """Return at most the ``most`` last events; read no more parts after ``most_bytes``."""
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
    """Follow the events in the folder of a fit."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._number = self._offset = 0
        """Last part that was read, and the offset in it in bytes."""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call, or all events at first; skip incomplete lines.

        Raises FileNotFoundError if there are no events or they have been removed.
        """
        parts = sorted(_parts(self._folder.sub(NAME)))
        if not parts:
            raise FileNotFoundError(f"{self._folder.url} holds no events.")
        for number in (number for number in parts if number >= self._number):
            if number != self._number:
                # A torn line at the end of the last part is skipped.
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
    """Yield the event in a complete line; raise OutputError if it declares a newer format."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(event, dict):
        if event.get("event") in HEADS:
            check_format(event, f"the events in {folder.url}", OutputError, FORMAT)
        yield event
