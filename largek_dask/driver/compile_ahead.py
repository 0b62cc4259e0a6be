"""A second process that compiles, for a first fit, what the fit comes to later.

Numba compiles one function at a time in a process. So where a fit has to compile and more than one
core is free, another process begins at the other end of what the fit needs
(:mod:`largek_dask.kernels.ahead`), and the fit finds that in the cache. Which of them makes a
kernel hangs on who comes first, the kernel does not.

The other process ends with its list, with the fit, or with the process that fits: whatever is
first. Without it the fit compiles everything.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from largek_dask import config
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.data.rows import Rows
from largek_dask.kernels import ahead
from largek_dask.kernels.claims import Claims
from largek_dask.kernels.code_cache import asks_whether_to_compile, cache_folder, is_cache_empty
from largek_dask.kernels.jit import saves_code
from largek_dask.passes.local import available_cpus

__all__ = ["compiles_ahead", "is_possible", "is_worth_it"]

log = logging.getLogger(__name__)

COMMAND = f"import sys; from {ahead.__name__} import main; main(*sys.argv[1:])"
"""What the other process runs, with its arguments."""
FIRST = 3
"""Functions missing from a cache that is not empty before it begins: after a fit of the same sort
none or a few are missing, which do not pay for a process."""


def is_worth_it(rows: Rows, algorithm: object, n_threads: int | None) -> bool:
    """Whether another process could compile what a fit in this process needs.

    How busy the machine is does not matter. Two processes get more of it than one; and its load,
    a mean over a minute, is high after anything that this process itself did before.

    Parameters
    ----------
    rows : Rows
    algorithm : Algorithm
        What is run.
    n_threads : int, optional
        Threads that the fit may use; None: one a core.
    """
    return isinstance(algorithm, Truncated) and not rows.is_sparse and is_possible(n_threads)


def is_possible(n_threads: int | None = None) -> bool:
    """Return whether another process may compile, on a second core, what this one then loads.

    Parameters
    ----------
    n_threads : int, optional
        Threads that this process may use; None: one per core.
    """
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
def compiles_ahead(dtype: np.dtype[np.floating], n_features: int, k: int) -> Iterator[None]:
    """Have another process compile kernels while the block runs, and end it then.

    It begins at once if the cache is empty, otherwise when `FIRST` functions are missing.

    Parameters
    ----------
    dtype : numpy.dtype
        The type in which kernels compute with the rows.
    n_features, k : int
    """
    other = _Other([dtype.name, str(n_features), str(k)])
    try:
        if is_cache_empty():
            other.start()
        with asks_whether_to_compile(other.may_compile):
            yield
    finally:
        other.end()


class _Other:
    """The other process, and what either has begun.

    Parameters
    ----------
    what : list of str
        Its last arguments: what is fitted.
    """

    def __init__(self, what: list[str]) -> None:
        self._what = what
        self._missing = 0
        self._lock = threading.Lock()
        self._is_over = False
        """Whether the fit has ended: other threads may still be about to compile."""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._claims: Claims | None = None

    def may_compile(self, path: Path) -> bool:
        """Whether to compile here what is not in the cache; False: it is there now.

        Called under numba's lock.
        """
        with self._lock:
            if self._is_over:
                return True
            self._missing += 1
            self._begin(is_worth_it=self._missing >= FIRST)
        return self._claims is None or self._claims.take(path)

    def start(self) -> None:
        """Start the process now, whatever is missing."""
        with self._lock:
            self._begin(is_worth_it=True)

    def _begin(self, *, is_worth_it: bool) -> None:
        """Make the folder of claims, and start the process once it is worth it."""
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(
                    prefix="largek-", ignore_cleanup_errors=True
                )
                self._claims = Claims(Path(self._folder.name), self._is_alive)
            if is_worth_it and self._process is None:
                self._process = _started(self._folder.name, self._what)
        except OSError as error:  # the fit then compiles alone
            log.debug("no process to compile ahead: %r", error)

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        """End it, whatever it does."""
        with self._lock:
            self._is_over = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
        if self._folder is not None:
            self._folder.cleanup()


def _started(folder: str, what: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, folder, *what],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _environment() -> dict[str, str]:
    """What this process was told of kernels by dask.config, that one is told by its environment."""
    found = os.environ | {"DASK_LARGEK__KERNELS__TILE": str(config.get("kernels.tile"))}
    folder = config.get("kernels.cache-dir")
    if folder is not None:
        found["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(folder)
    return found
