"""Report kernel compilation during a fit, and speed up compilation with a second process.

If the cache folder is writable, each kernel is compiled only once per machine. So compile time is
excluded from rates, but time limits include it. A long compilation is reported on standard error,
once per process and even without ``verbose``, because a silent call seems to hang.

Numba compiles one function at a time per process. So if a fit has to compile and there is more than
one core, a second process compiles the same functions in reverse order
(:mod:`largek_dask.kernels.parallel_compile`), and the fit loads them from the cache: ``KMeans(8)``
takes 10.5 instead of 19 s on two cores. The result is the same, because the fit compiles all
functions that are not in the cache. The second process ends when its list is done or the fit ends.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from largek_dask import config
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.data.rows import Rows
from largek_dask.driver.events import Events, compiling_words
from largek_dask.kernels import parallel_compile as kernels_in_parallel
from largek_dask.kernels.code_cache import cache_folder, is_cache_empty, unsaved
from largek_dask.kernels.compiling import call_after_each, compiled, is_compiling
from largek_dask.kernels.jit import saves_code
from largek_dask.kernels.parallel_compile import FEW_CLUSTERS
from largek_dask.passes.base import BasePasses
from largek_dask.passes.local import available_cpus

log = logging.getLogger(__name__)

COMMAND = f"import sys; from {kernels_in_parallel.__name__} import main; main(*sys.argv[1:])"
"""Code that the second process runs with command-line arguments."""
FIRST = 3
"""Number of functions compiled before the second process starts, if the cache is not empty. After a
similar fit, only a few functions are missing, and a second process is not worthwhile."""
NOTICE_SECONDS = 2.0
"""Compile time in seconds after which a message is printed to standard error."""
FUNCTIONS_LABELS, FUNCTIONS_FEW, FUNCTIONS_MANY = 23, 52, 81
"""Number of functions compiled by a first ``predict``, by a first fit with at most `FEW_CLUSTERS`
clusters, and by a first fit with more clusters."""
LEAST_FUNCTIONS = 5
"""Minimum number of compiled functions before the remaining time is estimated."""
SILENT_SECONDS = 0.5
"""Shortest compile time that is reported, in seconds."""
EVERY_SECONDS = 1.0
"""Minimum time between two events, in seconds."""


def _estimate(functions: int | None, *, is_helped: bool = False) -> Callable[[], float | None]:
    """Return a function that estimates the remaining compile time in seconds, or None if unknown.

    The estimate assumes that the cache was empty at the start, that ``functions`` functions are
    needed in total (None if unknown), and that each takes the mean time so far. ``is_helped`` is
    True if a second process compiles as well.
    """
    before = compiled()

    def seconds_left() -> float | None:
        here = compiled().since(before)
        made = sum(1 for _ in cache_folder().glob("*.bin"))
        if not is_helped and made > here.functions:
            return None  # the cache was not empty
        done, at_once = (made, 2) if is_helped else (here.functions, 1)
        if functions is None or not LEAST_FUNCTIONS <= done < functions:
            return None
        return (functions - done) * here.mean_seconds() / at_once

    return seconds_left


class _Notice:
    """Print one message to standard error, once per process, if compilation takes long."""

    def __init__(self) -> None:
        self.seconds_left = _estimate(FUNCTIONS_LABELS)
        self._is_written = False

    def __call__(self) -> None:
        if self._is_written or compiled().seconds < NOTICE_SECONDS:
            return
        self._is_written = True
        words = compiling_words(self.seconds_left())
        if (error := unsaved()) is not None:
            words += f"; they cannot be saved ({error}), so every process compiles them again"
            if isinstance(error, OSError):
                words += ": set largek.kernels.cache-dir to a folder that can be written"
        print(f"largek_dask: {words}", file=sys.stderr, flush=True)


_notice = _Notice()
call_after_each(_notice)


class CompileWatch:
    """Track compilation in this process during a fit of ``n_clusters`` clusters, and send events.

    ``is_helped`` is True if a second process compiles into the same cache folder.
    """

    def __init__(
        self, events: Events, n_clusters: int | None = None, *, is_helped: bool = False
    ) -> None:
        self._events = events
        self._before = compiled()
        functions = None
        if self._before.functions == 0 and n_clusters is not None and is_cache_empty():
            functions = FUNCTIONS_FEW if n_clusters <= FEW_CLUSTERS else FUNCTIONS_MANY
        _notice.seconds_left = self._seconds_left = _estimate(functions, is_helped=is_helped)
        self._reported_at = -EVERY_SECONDS
        self._lock = threading.Lock()

    def report(self) -> bool:
        """Send an event if functions are being compiled; any thread of the fit may call this often.

        Returns False, so that it can serve as a cancel condition that is never met.
        """
        # Test the usual case first, because this method is called very often.
        if not is_compiling() or not self._lock.acquire(blocking=False):
            return False
        try:
            now = compiled().since(self._before)
            is_due = time.monotonic() - self._reported_at >= EVERY_SECONDS
            if is_due and now.seconds >= SILENT_SECONDS:
                self._reported_at = time.monotonic()
                self._events.emit(
                    "compiling",
                    functions=now.functions,
                    seconds=now.seconds,
                    left_s=self._seconds_left(),
                )
        finally:
            self._lock.release()
        return False

    def seconds(self, passes: BasePasses) -> float:
        """Return wall seconds of compilation so far: in this process plus on the slowest worker."""
        there = max((report.compiled for report in passes.by_worker.values()), default=0.0)
        return compiled().since(self._before).seconds + there


def is_worth_it(rows: Rows, algorithm: object, n_threads: int | None) -> bool:
    """Return whether a second process could compile kernels for this fit on another core.

    The load of the machine is ignored: the load average lags behind by a minute, and on a busy
    machine two processes get a larger share than one.
    """
    if not isinstance(algorithm, Truncated) or rows.is_sparse:
        return False
    if not saves_code() or not sys.executable:
        return False
    if min(available_cpus(), n_threads or available_cpus()) < 2:
        return False
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@contextmanager
def compiles_in_parallel(dtype: np.dtype[np.floating], n_features: int, k: int) -> Iterator[None]:
    """Compile kernels for a compute dtype in a second process until the block ends.

    The process starts at once if the cache is empty, otherwise after this process has compiled
    `FIRST` functions.
    """
    lock, before = threading.Lock(), compiled()
    started: list[subprocess.Popen[bytes] | None] = []
    """Contains the process, or None if the process could not start or the block has ended."""

    def start_if_needed(least: int = FIRST) -> None:
        if compiled().since(before).functions >= least:
            with lock:
                if not started:
                    started.append(_start([dtype.name, str(n_features), str(k)]))

    stop = call_after_each(start_if_needed)
    try:
        if is_cache_empty():
            start_if_needed(0)
        yield
    finally:
        stop()
        with lock:
            started.append(None)
        if (process := started[0]) is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _start(arguments: list[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", COMMAND, *arguments],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:  # the fit compiles alone
        log.debug("cannot start a process that compiles: %r", error)
        return None


def _environment() -> dict[str, str]:
    """Return environment variables with this process's kernel settings."""
    found = os.environ | {"DASK_LARGEK__KERNELS__TILE": str(config.get("kernels.tile"))}
    folder = config.get("kernels.cache-dir")
    if folder is not None:
        found["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(folder)
    return found
