"""Cost of a pass (rows, seconds, bytes, retries), and its progress while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

import numpy as np

WHOLE = (int, np.integer)
EVERY_SECONDS = 1.0
"""Minimum time, in seconds, between two progress events and before the first one of a pass."""


@dataclass(slots=True)
class PassReport:
    """Cost of one pass, or total cost of several passes.

    ``compute``, ``read`` and ``wait`` are sums over threads and workers; ``seconds`` is elapsed
    time.
    """

    passes: int = 0
    rows: int = 0
    """Number of rows that were processed by chunk functions and counted in the total."""
    chunks: int = 0
    seconds: float = 0.0
    compute: float = 0.0
    """Time for preparing chunks and for chunk functions, in seconds."""
    read: float = 0.0
    """Time for reading chunks, in seconds."""
    wait: float = 0.0
    """Time in which computing threads had no chunk, in seconds."""
    reduce: float = 0.0
    """Time for combining totals, in seconds."""
    compiled: float = 0.0
    """Time for compiling kernels during the pass, in seconds; included in the other times."""
    bytes_read: int = 0
    """Bytes of rows read from storage, in whole stored pieces."""
    copied: int = 0
    """Bytes of shares that were copied, because the rows of the store are not in random order."""
    bytes_moved: int = 0
    """Bytes of broadcasts and totals between processes."""
    cached: int = 0
    """Number of chunks, or shares of chunks, that did not have to be read again."""
    rebuilt: int = 0
    """Number of chunks whose row state was rebuilt by a replay."""
    evictions: int = 0
    """Number of times that row state did not fit its budget."""
    retries: int = 0
    """Number of chunks that were retried after a failure."""
    workers: int = 0
    state_bytes: int = 0
    """Bytes of row state and retained totals in memory at the end of the pass."""
    cache_bytes: int = 0
    """Bytes of chunks and shares of chunks in the cache at the end of the pass."""

    def add(self, other: PassReport) -> None:
        """Add the costs in another report; replace the number of workers and the memory in use."""
        for name in ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.workers = other.workers
        self.state_bytes = other.state_bytes
        self.cache_bytes = other.cache_bytes


ADDED = tuple(
    each.name
    for each in fields(PassReport)
    if each.name not in ("workers", "state_bytes", "cache_bytes")
)
"""Names of the fields that are summed."""


def nbytes(value: Any) -> int:
    """Estimate the bytes of the arrays in an object, to decide how it is sent."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, WHOLE):
        return int(size)
    if isinstance(value, bytes | bytearray | memoryview | str):
        return len(value)
    if isinstance(value, partial):
        return nbytes(value.args) + nbytes(value.keywords)
    if isinstance(value, dict):
        return sum(nbytes(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(nbytes(item) for item in value)
    names = [
        *getattr(value, "__dict__", ()),
        *(name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())),
    ]
    return 8 + sum(nbytes(getattr(value, name, None)) for name in names)


class EventCallback(Protocol):
    """Callback for events during a pass."""

    def __call__(self, kind: str, **values: Any) -> object:
        """Send an event of this kind, such as "worker", with its fields."""


class ProgressReporter:
    """Send ``progress`` events during a long pass.

    ``ask`` returns the numbers of finished chunks and of all chunks; any thread may call it often.
    """

    def __init__(self, ask: Callable[[], tuple[int, int]], on_event: EventCallback) -> None:
        self._ask = ask
        self._on_event = on_event
        self._due = time.monotonic() + EVERY_SECONDS
        self._sent = (0, 0)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin to report another pass."""
        self._due = time.monotonic() + EVERY_SECONDS

    def look(self) -> None:
        """Send an event if one is due and the progress has changed."""
        if time.monotonic() < self._due or not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() < self._due:
                return  # Another thread has just sent the event.
            self._due = time.monotonic() + EVERY_SECONDS
            done, n_chunks = progress = self._ask()
            # Do not report a single chunk, which has no progress.
            if n_chunks > 1 and progress != self._sent:
                self._sent = progress
                self._on_event("progress", done=done, n_chunks=n_chunks)
        finally:
            self._lock.release()
