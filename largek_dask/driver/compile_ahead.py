"""A second process that compiles, for a first fit, what the fit comes to later.

Numba compiles one function at a time in a process. So where no kernel has been compiled yet and
more than one core is free, another process compiles large kernels that are needed in the middle
and at the end of a fit, while the fit compiles what it begins with; it finds the others in the
cache. A kernel that both make is made twice, to the same code: no result hangs on who was first.

The other process ends with its list, with the fit, or with the process that fits: whatever is
first.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba
import numpy as np

from largek_dask import config
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.data.rows import Rows
from largek_dask.kernels.bounds.lists import Lists, order_by_label, search_lists
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.dense.splits import split_clusters
from largek_dask.kernels.distances import nearest, nearest_two, pack_centers
from largek_dask.kernels.jit import cache_folder
from largek_dask.passes.local import available_cpus

__all__ = ["FEW_CLUSTERS", "compiles_ahead", "is_worth_it", "kernels_ahead"]

log = logging.getLogger(__name__)

FEW_CLUSTERS = 128
"""Up to this many clusters all rows meet all centres, and no list of them."""
_ROWS = 1_024
_MOST_CLUSTERS = 300


def is_worth_it(rows: Rows, algorithm: object, n_threads: int | None) -> bool:
    """Whether a fit in this process is going to compile what another process can make meanwhile.

    Parameters
    ----------
    rows : Rows
    algorithm : Algorithm
        What is run.
    n_threads : int, optional
        Threads that the fit may use; None: one a core.
    """
    if numba.config.DISABLE_JIT or not sys.executable:
        return False
    if not isinstance(algorithm, Truncated) or rows.is_sparse or rows.dtype.kind != "f":
        return False
    if min(available_cpus(), n_threads or available_cpus()) < 2 or _is_busy():
        return False
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK) and next(folder.glob("*.bin"), None) is None


def _is_busy() -> bool:
    """Whether others have left this machine no core but one; not known everywhere."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) - 1


@contextmanager
def compiles_ahead(dtype: np.dtype[np.floating], n_features: int, k: int) -> Iterator[None]:
    """Have another process compile kernels while the block runs, and end it then."""
    process = _start(dtype, n_features, k)
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _start(dtype: np.dtype[np.floating], n_features: int, k: int) -> subprocess.Popen[bytes] | None:
    """The other process; None where the system gives none: the fit then compiles alone."""
    command = [sys.executable, "-P", "-m", __name__, dtype.name, str(n_features), str(k)]
    try:
        return subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        log.debug("no process to compile ahead: %r", error)
        return None


def _environment() -> dict[str, str]:
    """What this process was told of kernels by dask.config, that one is told by its environment."""
    found = os.environ | {"DASK_LARGEK__KERNELS__TILE": str(config.get("kernels.tile"))}
    folder = config.get("kernels.cache-dir")
    if folder is not None:
        found["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(folder)
    return found


# --- in a process of its own ----------------------------------------------------------------------


def kernels_ahead(dtype: str, n_features: int, k: int) -> tuple[Callable[[], object], ...]:
    """Calls of the large kernels that a fit comes to, each of which compiles one.

    In the order of a fit, but for those that it has when this process is ready to begin.
    """
    k = min(k, _MOST_CLUSTERS)
    draws = np.random.default_rng(0)
    x = draws.standard_normal((_ROWS, n_features)).astype(dtype)
    centers = x[:k].copy()
    packed = pack_centers(centers, np.zeros(n_features, dtype))
    labels = draws.integers(k, size=_ROWS).astype(np.int32)
    upper, lower = np.zeros(_ROWS, dtype), np.zeros(_ROWS, dtype)
    order, starts = order_by_label(labels, k)

    def in_lists() -> None:
        lists = Lists(np.arange(k + 1, dtype=np.int64), np.arange(k, dtype=np.int32))
        search_lists(x, order, starts, lists, packed, labels, upper, lower)

    def whole() -> None:
        nearest(x, packed)

    def two() -> None:
        nearest_two(x, packed)

    def neighbours() -> None:
        nearest_centers(packed, min(k, 12))

    def halves() -> None:
        split_clusters(x, order, starts, np.arange(k), centers)

    if k <= FEW_CLUSTERS:
        return whole, two, neighbours, halves
    return in_lists, neighbours, halves, two, whole


def _end_with_parent() -> None:
    """Wait until the pipe from the process that fits is closed, as it is when that one ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(dtype: str, n_features: str, k: str) -> None:
    """Compile."""
    if hasattr(os, "nice"):
        os.nice(5)  # the fit comes first
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for compile_one in kernels_ahead(dtype, int(n_features), int(k)):
        compile_one()


if __name__ == "__main__":
    main(*sys.argv[1:])
