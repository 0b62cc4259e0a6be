"""Compile a first fit's kernels in two processes.

Numba compiles one function at a time in a process. So where a fit has to compile and more than one
core is free, a second process compiles what the fit needs in reverse order
(:mod:`largek_dask.kernels.parallel_compile`), and the fit loads that from the cache: 10.5 instead
of 19 s for ``KMeans(8)`` on two cores. The result is the same, and the fit does not need it: it
compiles whatever the cache lacks. The second process ends with its list or with the fit.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from largek_dask import config
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.data.rows import Rows
from largek_dask.kernels import parallel_compile as kernels_in_parallel
from largek_dask.kernels.code_cache import cache_folder, is_cache_empty
from largek_dask.kernels.compiling import call_after_each, compiled
from largek_dask.kernels.jit import saves_code
from largek_dask.passes.local import available_cpus

__all__ = ["compiles_in_parallel", "is_possible", "is_worth_it"]

log = logging.getLogger(__name__)

COMMAND = f"import sys; from {kernels_in_parallel.__name__} import main; main(*sys.argv[1:])"
"""Code of the second process, which takes arguments."""
FIRST = 3
"""Functions compiled before the second process starts where the cache is not empty: after a similar
fit at most a few are missing, which are not worth a process."""


def is_worth_it(rows: Rows, algorithm: object, n_threads: int | None) -> bool:
    """Return whether a second process could compile what a fit in this process needs.

    The load of the machine does not matter: it is a mean over a minute, and two processes get a
    larger share than one.
    """
    return isinstance(algorithm, Truncated) and not rows.is_sparse and is_possible(n_threads)


def is_possible(n_threads: int | None = None) -> bool:
    """Return whether a second process may compile, on a second core, what this one then loads."""
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
    """Run a second process that compiles kernels for a compute dtype, until the block ends.

    It starts at once if the cache is empty, otherwise after `FIRST` functions were compiled here.
    """
    process = _Process([dtype.name, str(n_features), str(k)])
    before = compiled()

    def start_if_needed() -> None:
        if compiled().since(before).functions >= FIRST:
            process.start()

    stop = call_after_each(start_if_needed)
    try:
        if is_cache_empty():
            process.start()
        yield
    finally:
        stop()
        process.end()


class _Process:
    """The second process, started at most once and never after :meth:`end`."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._may_start = True
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless it was started or the fit has ended."""
        with self._lock:
            if not self._may_start:
                return
            self._may_start = False
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", COMMAND, *self._arguments],
                    env=_environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError as error:  # the fit compiles alone
                log.debug("cannot start a process that compiles: %r", error)

    def end(self) -> None:
        with self._lock:
            self._may_start = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()


def _environment() -> dict[str, str]:
    """Return the environment with this process's settings for kernels."""
    found = os.environ | {"DASK_LARGEK__KERNELS__TILE": str(config.get("kernels.tile"))}
    folder = config.get("kernels.cache-dir")
    if folder is not None:
        found["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(folder)
    return found
