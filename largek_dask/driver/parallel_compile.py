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

__all__ = ["compiles_in_parallel", "is_worth_it"]

log = logging.getLogger(__name__)

COMMAND = f"import sys; from {kernels_in_parallel.__name__} import main; main(*sys.argv[1:])"
"""Code of the second process, which takes arguments."""
FIRST = 3
"""Functions compiled before the second process starts where the cache is not empty: after a similar
fit at most a few are missing, which are not worth a process."""


def is_worth_it(rows: Rows, algorithm: object, n_threads: int | None) -> bool:
    """Return whether a second process, on a second core, could compile what a fit here needs.

    The load of the machine does not matter: it is a mean over a minute, and two processes get a
    larger share than one.
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
    """Run a second process that compiles kernels for a compute dtype, until the block ends.

    It starts at once if the cache is empty, otherwise after `FIRST` functions were compiled here.
    """
    lock, before = threading.Lock(), compiled()
    started: list[subprocess.Popen[bytes] | None] = []
    """At most one process; None if it cannot start, or the block has ended."""

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
    """Return the environment with this process's settings for kernels."""
    found = os.environ | {"DASK_LARGEK__KERNELS__TILE": str(config.get("kernels.tile"))}
    folder = config.get("kernels.cache-dir")
    if folder is not None:
        found["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(folder)
    return found
