"""How far a pass is, told while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["ProgressTeller", "Tell"]

EVERY_SECONDS = 1.0
"""Least time between two words on it, and from the beginning of a pass to the first."""


class Tell(Protocol):
    """Sends an event: what the driver should know besides what a pass returns."""

    def __call__(self, kind: str, **values: Any) -> object:
        """Send an event of this kind, such as "worker", with its fields."""


class ProgressTeller:
    """Tells of a pass that takes long, as ``progress``: nothing is computed or sent for it.

    Parameters
    ----------
    ask : callable
        Gives chunks that are done, and all of the pass; called often by any thread.
    """

    def __init__(self, ask: Callable[[], tuple[int, int]], tell: Tell) -> None:
        self._ask = ask
        self._tell = tell
        self._due = time.monotonic() + EVERY_SECONDS
        self._told = (0, 0)
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Another pass begins."""
        self._due = time.monotonic() + EVERY_SECONDS

    def look(self) -> None:
        """Tell how far the pass is, if it is time to and anything is new."""
        if time.monotonic() < self._due or not self._lock.acquire(blocking=False):
            return
        try:
            if time.monotonic() < self._due:
                # Another thread has been here a moment ago.
                return
            self._due = time.monotonic() + EVERY_SECONDS
            done, n_chunks = told = self._ask()
            # Of one chunk there is nothing to tell.
            if n_chunks > 1 and told != self._told:
                self._told = told
                self._tell("progress", done=done, n_chunks=n_chunks)
        finally:
            self._lock.release()
