"""Report kernels that are compiled meanwhile, and keep their time out of rates.

A kernel is compiled once on a machine, where its cache folder can be written; so how long that
takes says nothing of how long the rest will take. A time limit counts it all the same.

One line on standard error says so in any process that uses this package, whether it fits or
predicts, and whatever ``verbose`` is: a call that is silent for a minute looks like one that hangs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from largek_dask.driver.events import Events, compiling_words
from largek_dask.kernels.code_cache import cache_folder, is_cache_empty, unsaved
from largek_dask.kernels.compiling import Compiled, call_after_each, compiled, is_compiling
from largek_dask.kernels.parallel_compile import FEW_CLUSTERS
from largek_dask.passes.base import BasePasses

__all__ = ["CompileWatch"]

NOTICE_SECONDS = 2.0
"""Seconds of compiling after which one line on standard error says so."""
AGAIN_SECONDS = 10.0
"""Seconds of compiling after which a process that was quiet since the line writes it again."""
QUIET_SECONDS = 60.0
"""Seconds without compiling after which a process is quiet."""
FUNCTIONS_LABELS = 23
"""Functions that the first ``predict`` of a process compiles, without a cache."""

FUNCTIONS_FEW, FUNCTIONS_MANY = 52, 67
"""About how many functions a first fit compiles, up to `FEW_CLUSTERS` and with more of them."""
LEAST_FUNCTIONS = 5
"""Functions that have been compiled before it is said how long the others will take."""
SILENT_SECONDS = 0.5
"""Less compiling than this is not worth a word."""
EVERY_SECONDS = 1.0
"""Least time between two events."""


class _Notice:
    """Write one line on standard error when compiling takes long: once, unless it was quiet."""

    def __init__(self) -> None:
        self._before = Compiled()
        self._left: Callable[[Compiled], float | None] = _left_of_labels
        self._seconds, self._at = 0.0, time.monotonic()
        """Seconds compiled in all, and the time, at the latest call."""
        self._begun = 0.0
        """Seconds compiled in all when it was quiet for the last time."""
        self._was_quiet, self._is_written = False, False

    def begin(self, left: Callable[[Compiled], float | None]) -> None:
        """Begin a fit; ``left`` estimates the seconds to come."""
        self._before, self._left = compiled(), left

    def __call__(self) -> None:
        now, at = compiled(), time.monotonic()
        if self._is_written and at - self._at - (now.seconds - self._seconds) > QUIET_SECONDS:
            self._begun, self._was_quiet, self._is_written = self._seconds, True, False
        self._seconds, self._at = now.seconds, at
        limit = AGAIN_SECONDS if self._was_quiet else NOTICE_SECONDS
        if self._is_written or now.seconds - self._begun < limit:
            return
        self._is_written = True
        words = compiling_words(self._left(now.since(self._before)))
        if (error := unsaved()) is not None:
            words += f"; they cannot be saved ({error}), so every process compiles them again"
            if isinstance(error, OSError):
                words += ": set largek.kernels.cache-dir to a folder that can be written"
        print(f"largek_dask: {words}", file=sys.stderr, flush=True)


def _left_of_labels(now: Compiled) -> float | None:
    """Seconds until a ``predict`` has compiled all of its functions, if nothing was cached."""
    missing = FUNCTIONS_LABELS - now.functions
    return missing * now.mean_seconds() if _made() <= now.functions and missing > 0 else None


def _made() -> int:
    """Number of functions in the cache."""
    return sum(1 for _ in cache_folder().glob("*.bin"))


_notice = _Notice()
call_after_each(_notice)


class CompileWatch:
    """Follows what this process compiles during a fit.

    Parameters
    ----------
    events : Events
        Told of it, as ``compiling``.
    n_clusters : int, optional
        From which it is known about how many functions the fit needs.
    is_helped : bool
        Another process compiles as well, into the same folder.
    """

    def __init__(
        self, events: Events, n_clusters: int | None = None, *, is_helped: bool = False
    ) -> None:
        self._events = events
        self._is_helped = is_helped
        self._before = compiled()
        self._expected: int | None = None
        is_first = self._before.functions == 0 and n_clusters is not None
        if is_first and is_cache_empty():
            # Nothing is there: whatever the fit needs is going to be compiled.
            assert n_clusters is not None
            self._expected = FUNCTIONS_FEW if n_clusters <= FEW_CLUSTERS else FUNCTIONS_MANY
        self._told_at = -EVERY_SECONDS
        self._lock = threading.Lock()
        _notice.begin(self._left)

    def tell(self) -> bool:
        """Send an event if functions are being compiled; called often, by any thread of the fit.

        False: never a reason to end anything.
        """
        # (at once: it is asked before every piece of work)
        if not is_compiling() or not self._lock.acquire(blocking=False):
            return False
        try:
            now = compiled().since(self._before)
            if (
                now.at_it
                and now.seconds >= SILENT_SECONDS
                and time.monotonic() - self._told_at >= EVERY_SECONDS
            ):
                self._told_at = time.monotonic()
                self._events.emit(
                    "compiling",
                    functions=now.functions,
                    seconds=now.seconds,
                    left_s=self._left(now),
                )
        finally:
            self._lock.release()
        return False

    def _left(self, now: Compiled) -> float | None:
        """Seconds for the functions that are still to come; None where they are not known.

        As many as a first fit compiles, each as long as those before it have taken.
        """
        made, at_once = (_made(), 2) if self._is_helped else (now.functions, 1)
        if self._expected is None or not LEAST_FUNCTIONS <= made < self._expected:
            return None
        return (self._expected - made) * now.mean_seconds() / at_once

    def seconds(self, passes: BasePasses) -> float:
        """Seconds on the wall that went into compiling so far, here and on workers.

        Workers compile at the same time: the longest counts.
        """
        there = max((report.compiled for report in passes.by_worker.values()), default=0.0)
        return compiled().since(self._before).seconds + there
