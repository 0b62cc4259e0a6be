"""Report kernels that are compiled during a fit, and keep their time out of rates.

A kernel is compiled once on a machine whose cache folder can be written, so the time it takes does
not predict the rest of a fit; a time limit counts it all the same. Once per process, one line on
standard error reports it, whatever ``verbose`` is, as a silent call looks like one that hangs.
"""

from __future__ import annotations

import sys
import threading
import time

from largek_dask.driver.events import Events, compiling_words
from largek_dask.kernels.code_cache import cache_folder, is_cache_empty, unsaved
from largek_dask.kernels.compiling import call_after_each, compiled, is_compiling
from largek_dask.kernels.parallel_compile import FEW_CLUSTERS
from largek_dask.passes.base import BasePasses

__all__ = ["CompileWatch"]

NOTICE_SECONDS = 2.0
"""Seconds of compiling after which one line on standard error reports it."""
FUNCTIONS_LABELS, FUNCTIONS_FEW, FUNCTIONS_MANY = 23, 52, 67
"""Functions that a first ``predict`` compiles, and a first fit up to `FEW_CLUSTERS` and above."""
LEAST_FUNCTIONS = 5
"""Functions compiled before the rest is estimated."""
SILENT_SECONDS = 0.5
"""Do not report compile times below this, in seconds."""
EVERY_SECONDS = 1.0
"""Minimum time between two events."""


class _Expected:
    """Estimate the seconds of compiling that are left in a process that began without a cache.

    Of this number of functions (None: unknown). ``is_helped``: a second process compiles as well.
    """

    def __init__(self, functions: int | None, *, is_helped: bool = False) -> None:
        self._before = compiled()
        self._functions, self._is_helped = functions, is_helped

    def seconds_left(self) -> float | None:
        """Return the estimate, as long per function as so far; None if there is no basis."""
        here = compiled().since(self._before)
        made = sum(1 for _ in cache_folder().glob("*.bin"))
        if not self._is_helped and made > here.functions:
            return None  # the cache was not empty
        done, at_once = (made, 2) if self._is_helped else (here.functions, 1)
        if self._functions is None or not LEAST_FUNCTIONS <= done < self._functions:
            return None
        return (self._functions - done) * here.mean_seconds() / at_once


class _Notice:
    """Write one line on standard error, once per process, when compiling takes long."""

    def __init__(self) -> None:
        self.expected = _Expected(FUNCTIONS_LABELS)
        self._is_written = False

    def __call__(self) -> None:
        if self._is_written or compiled().seconds < NOTICE_SECONDS:
            return
        self._is_written = True
        words = compiling_words(self.expected.seconds_left())
        if (error := unsaved()) is not None:
            words += f"; they cannot be saved ({error}), so every process compiles them again"
            if isinstance(error, OSError):
                words += ": set largek.kernels.cache-dir to a folder that can be written"
        print(f"largek_dask: {words}", file=sys.stderr, flush=True)


_notice = _Notice()
call_after_each(_notice)


class CompileWatch:
    """Follow what this process compiles during a fit of ``n_clusters``, and send events.

    ``is_helped``: a second process compiles as well, into the same folder.
    """

    def __init__(
        self, events: Events, n_clusters: int | None = None, *, is_helped: bool = False
    ) -> None:
        self._events = events
        self._before = compiled()
        functions = None
        if self._before.functions == 0 and n_clusters is not None and is_cache_empty():
            functions = FUNCTIONS_FEW if n_clusters <= FEW_CLUSTERS else FUNCTIONS_MANY
        _notice.expected = self._expected = _Expected(functions, is_helped=is_helped)
        self._reported_at = -EVERY_SECONDS
        self._lock = threading.Lock()

    def report(self) -> bool:
        """Send an event if functions are being compiled; called often, by any thread of the fit.

        Returns False, as a condition that ends nothing.
        """
        # Called before every piece of work, so the usual case comes first.
        if not is_compiling() or not self._lock.acquire(blocking=False):
            return False
        try:
            now = compiled().since(self._before)
            if (
                now.at_it
                and now.seconds >= SILENT_SECONDS
                and time.monotonic() - self._reported_at >= EVERY_SECONDS
            ):
                self._reported_at = time.monotonic()
                self._events.emit(
                    "compiling",
                    functions=now.functions,
                    seconds=now.seconds,
                    left_s=self._expected.seconds_left(),
                )
        finally:
            self._lock.release()
        return False

    def seconds(self, passes: BasePasses) -> float:
        """Return wall seconds of compiling so far: here, plus the worker with most of them."""
        there = max((report.compiled for report in passes.by_worker.values()), default=0.0)
        return compiled().since(self._before).seconds + there
