"""Memory of all partitions up to k.

Their k (k + 1) / 2 centres and sums grow with the square of k.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from largek_dask.algorithms.path_arrays import rows_of_path
from largek_dask.errors import NotEnoughMemoryError

__all__ = ["available_memory", "check_path_memory", "path_memory"]

_COPIES = 6
"""Copies of the centres: before and after a step, sent, packed in two forms, and in a
checkpoint."""
_LIMIT = Path("/sys/fs/cgroup/memory.max")


def path_memory(length: int, n_features: int, itemsize: int, n_threads: int) -> int:
    """Return the bytes that all partitions up to ``length`` take in one process, without rows.

    64-bit sums and weights in two limbs, as in wide grids: once per thread, once merged and
    once as one partition after the other is read.
    """
    sums = 2 * (n_threads + 2) * (n_features + 1) * 8
    return rows_of_path(length) * (n_features * _COPIES * itemsize + sums)


def available_memory() -> int:
    """Return the bytes still available to this process, by the machine or its control group."""
    available = int(psutil.virtual_memory().available)
    if _LIMIT.exists() and (text := _LIMIT.read_text().strip()).isdigit():
        available = min(available, int(text))
    return available


def check_path_memory(
    length: int,
    n_features: int,
    n_threads: int,
    itemsize: int = 8,
    available: int | None = None,
    searched: Callable[[int], int] = int,
) -> None:
    """Refuse a number of clusters whose partitions do not fit into memory.

    Parameters
    ----------
    length : int
        Largest number of clusters requested.
    n_features, n_threads : int
    itemsize : int
        Bytes per number of the compute dtype.
    available : int, optional
        Bytes; default: those of this process.
    searched : callable
        Number of partitions held for a requested number of clusters; default: the same.

    Raises
    ------
    NotEnoughMemoryError
        The message has the largest number that fits.
    """
    room = available_memory() if available is None else available

    def needs(n: int) -> int:
        return path_memory(searched(n), n_features, itemsize, n_threads)

    if needs(length) <= room:
        return
    held = searched(length)
    fits, too_many = 0, length
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if needs(middle) <= room:
            fits = middle
        else:
            too_many = middle
    advice = f"Ask for {fits} clusters at most" if fits else "Take a machine with more memory"
    raise NotEnoughMemoryError(
        f"All partitions into 1 to {held} clusters have {rows_of_path(held)} centres of "
        f"{n_features} features, which need about {needs(length) / 1e6:,.0f} MB with {n_threads} "
        f"threads, and there are {room / 1e6:,.0f} MB. {advice}, or use an algorithm that holds "
        "one partition."
    )
