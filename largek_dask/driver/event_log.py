"""Events in a folder: lines of JSON in parts, each written once but the open one.

A job's folder::

    events/000001.jsonl     the first part
    events/000002.jsonl     the next; every run begins one of its own

So nothing grows without bound that is read or written as a whole: neither the log of a job of
many steps nor, on a store that cannot append, the part that is written anew again and again. There
parts are the smaller. Earlier versions wrote one file ``events.jsonl``, which is read still.

A local part is synced to the disk when a checkpoint has been written, when steps end, and when it
is closed: a power failure may cost the events since.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from largek_dask.driver.events import Event, Sink, plain
from largek_dask.driver.storage import Folder

__all__ = ["JsonLines", "Tail", "open_sinks"]

PART_BYTES = 1 << 20
"""A local part is not longer, unless by a single event."""
STORE_PART_BYTES = 1 << 17
"""Nor is one on a store that cannot append."""
MOST_UNSAVED = 128
"""Parts that wait for a store which is away; of more the oldest are lost."""
UNKEPT = "progress"
"""A kind of event that says nothing later, and is in no file."""
SYNCED = ("checkpoint", "stopped")
"""Kinds of events with which all before them are written to the disk."""
NAME = "events"
PART = re.compile(r"(\d{6,12})\.jsonl")


class JsonLines:
    """A sink that keeps events as lines of JSON in a folder of any fsspec URL.

    Local parts grow line by line; object stores cannot append, so there the open part is written
    anew at most every ``every`` seconds and on closing. JSON escapes line ends, so that no text
    inside an event can forge another one.

    Parameters
    ----------
    folder : Folder
        Where the folder of parts lies.
    name : str
        Its name.
    every : float
        Seconds between two writes to an object store, and between two tries where one failed.
    clock : callable
        Seconds.

    Raises
    ------
    OutputError
        Nothing can be written there.
    """

    def __init__(
        self,
        folder: Folder,
        name: str = NAME,
        *,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._every = folder.sub(name), every
        self._part_bytes = PART_BYTES if folder.is_local else min(PART_BYTES, STORE_PART_BYTES)
        self._lock = threading.Lock()
        """Passes tell from the thread of a client's event loop."""
        folder.check_writable()
        self._number = max(_parts(self._folder), default=0) + 1
        self._text = bytearray()
        """The open part, as far as it is not in a local file."""
        self._size = 0
        self._file: int | None = None
        self._unsaved: deque[tuple[int, bytes]] = deque(maxlen=MOST_UNSAVED)
        """Parts that are full and not written yet."""
        self._clock = clock
        self._tried = clock()
        self._failed = False

    def __repr__(self) -> str:
        return self._folder.url

    def __call__(self, event: Event) -> None:
        """Add one event.

        Raises
        ------
        OSError
            It cannot be written now; it is kept, and written with a later one.
        """
        if event.get("event") == UNKEPT:
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
        """Begin the next part."""
        if self._file is not None:
            self._close_file()
            self._number += 1
        if self._text:
            # Of a local part what could not be written to it: a part of its own then.
            self._unsaved.append((self._number, bytes(self._text)))
            self._text.clear()
            self._number += 1
        self._size = 0
        if not self._failed:
            self._flush()

    def _flush(self) -> None:
        """Write what is not written yet."""
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
            # Of two writers, one of which has lost the job, each has a part of its own: what is
            # replaced here would go on being written, and be read by nobody.
            while not self._folder.create(_name(self._number), b""):
                self._number += 1
            path = self._folder.path(_name(self._number))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        while self._text:
            assert self._file is not None
            del self._text[: os.write(self._file, self._text)]

    def close(self) -> None:
        """Write what is left.

        Raises
        ------
        OSError
            It cannot be written.
        """
        with self._lock:
            try:
                self._flush()
            finally:
                if self._file is not None:
                    self._close_file()

    def _close_file(self) -> None:
        """Close the local part, which is on the disk then."""
        assert self._file is not None
        number, self._file = self._file, None
        try:
            os.fsync(number)
        finally:
            os.close(number)

    @staticmethod
    def is_in(folder: Folder) -> bool:
        """Whether there are events in a folder."""
        return folder.exists(f"{NAME}.jsonl") or bool(_parts(folder.sub(NAME)))

    @staticmethod
    def read(folder: Folder) -> Iterator[dict[str, Any]]:
        """The events in a folder, the oldest first; lines that a kill has cut are left out."""
        for line in folder.lines(f"{NAME}.jsonl"):
            yield from _events_in(line)
        parts = folder.sub(NAME)
        for number in sorted(_parts(parts)):
            for line in parts.read(_name(number)).splitlines():
                yield from _events_in(line)

    @staticmethod
    def last(folder: Folder, most: int, most_bytes: float = math.inf) -> list[dict[str, Any]]:
        """At most ``most`` of the last events in a folder; no more parts are read than needed.

        Nor any part after so many bytes.
        """
        found: deque[dict[str, Any]] = deque()
        parts, n_bytes = folder.sub(NAME), 0
        for number in sorted(_parts(parts), reverse=True):
            text = parts.read(_name(number))
            n_bytes += len(text)
            lines = reversed(text.splitlines())
            found.extendleft(event for line in lines for event in _events_in(line))
            if len(found) >= most or n_bytes >= most_bytes:
                return list(found)[-most:]
        older = folder.lines(f"{NAME}.jsonl")
        early = deque((event for line in older for event in _events_in(line)), most - len(found))
        return [*early, *found]


class Tail:
    """What is added to the events in a folder, as it is added.

    Parameters
    ----------
    folder : Folder
        That of the fit.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._number = 0
        """The part that was read last; 0 is the one file of earlier versions."""
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Events that have been added since the last call, of whole lines; all at the first.

        Raises
        ------
        FileNotFoundError
            There are none, or none any more.
        OSError
            They cannot be read now.
        """
        parts = sorted(_parts(self._folder.sub(NAME)))
        is_old = self._number == 0 and self._folder.exists(f"{NAME}.jsonl")
        if not parts and not is_old:
            raise FileNotFoundError(f"{self._folder.url} holds no events.")
        for number in [0] * is_old + [number for number in parts if number >= self._number]:
            if number != self._number:
                # What a kill has cut off at the end of the part before stays cut off.
                self._number, self._offset = number, 0
            name = f"{NAME}/{_name(number)}" if number else f"{NAME}.jsonl"
            text = self._folder.read_from(name, self._offset)
            whole = text.rfind(b"\n") + 1
            self._offset += whole
            for line in text[:whole].splitlines():
                yield from _events_in(line)


def _name(number: int) -> str:
    return f"{number:06d}.jsonl"


def _parts(folder: Folder) -> list[int]:
    found = (PART.fullmatch(name) for name in folder.names())
    return [int(match[1]) for match in found if match]


def _events_in(line: bytes) -> Iterator[dict[str, Any]]:
    """The event that a line holds, if it is whole."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(event, dict):
        yield event


def open_sinks(sinks: Iterable[Sink | str], folder: Folder | None) -> list[Sink]:
    """Sinks from callables and URLs of folders, and one in the job's folder if it has one.

    Raises
    ------
    OutputError
        Events cannot be written.
    """
    opened: list[Sink] = []
    for sink in sinks:
        if isinstance(sink, str):
            opened.append(JsonLines(*Folder(sink).parent()))
        else:
            opened.append(sink)
    if folder is not None:
        opened.append(JsonLines(folder))
    return opened
