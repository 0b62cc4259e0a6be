"""Store of the row state that a process keeps between passes, within a budget.

Losing an entry costs time (a replay), but never changes results, so the store declines entries that
do not fit: passes repeatedly visit the chunks in the same order, so a cache that evicts the least
recently used entry would evict each entry just before its next use.

``Engine._rebuild`` rebuilds missing states by a replay. ``algorithms.parts.history`` stores the
broadcasts to replay, and ``ClusterPasses`` sends them to workers that need them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

GENERATIONS = 2
"""Maximum number of states kept per chunk: the last state and the previous state."""

Arrays = Mapping[str, NDArray[Any]]


def process_memory() -> int:
    """Return the memory of the machine, or the limit of the process's control group, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total


def owned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as read-only; copy a view, which would keep a larger array in memory."""
    array = np.asarray(array)
    if array.base is not None:
        array = array.copy()
    array.setflags(write=False)
    return array


class RowStateStore:
    """Row state of one job's chunks: arrays by name, chunk and generation.

    The retained totals of passes count against the same budget (:meth:`reserve`); ``limit`` returns
    the budget in bytes. While a pass writes generation ``g``, the arrays of generation ``g - 1``
    are kept if they fit, so that a failed pass can be repeated without a replay. They are the first
    to be dropped when space is short.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        # Maps name, chunk and generation to arrays; a chunk has at most two generations.
        self._states: dict[str, dict[int, dict[int, Arrays]]] = {}
        self._epochs: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        # Maps name and chunk to the bytes of the chunk's last arrays, whether kept or not.
        self._offered: dict[str, dict[int, int]] = {}
        self._totals: dict[str, int] = {}
        self.nbytes = 0
        """Bytes kept, including those reserved for totals."""
        self.wanted = 0
        """Bytes that would be kept without a limit: all generations, and the totals."""
        self.evictions = 0

    def begin(self, name: str, epoch: int, generation: int) -> None:
        """Drop other epochs, and the states that a pass writing ``generation`` cannot use."""
        with self._lock:
            if self._epochs.get(name) != epoch:
                self._epochs[name] = epoch
                self.wanted -= GENERATIONS * sum(self._offered.pop(name, {}).values())
                self.wanted -= self._totals.pop(name, 0)
                self.nbytes -= self._reserved.pop(name, 0)
                for versions in self._states.pop(name, {}).values():
                    self.nbytes -= sum(map(_nbytes, versions.values()))
            chunks = self._states.get(name, {})
            for chunk in list(chunks):
                versions = chunks[chunk]
                for old in [g for g in versions if g not in (generation - 1, generation)]:
                    self.nbytes -= _nbytes(versions.pop(old))
                if not versions:
                    del chunks[chunk]

    def reserve(self, name: str, nbytes: int) -> bool:
        """Reserve bytes for the retained totals of a row state; return False if they cannot fit.

        The new reservation replaces an earlier reservation of the same name. Row state is dropped
        if necessary.
        """
        with self._lock:
            self.wanted += nbytes - self._totals.get(name, 0)
            self._totals[name] = nbytes
            self.nbytes -= self._reserved.pop(name, 0)
            if nbytes > self._limit() - sum(self._reserved.values()):
                self.evictions += 1
                return False
            self._reserved[name] = nbytes
            self.nbytes += nbytes
            self._make_room(-self._limit(), {})
            for chunks in self._states.values():
                for chunk in sorted(chunks, reverse=True):
                    if self.nbytes <= self._limit():
                        return True
                    self.nbytes -= sum(map(_nbytes, chunks.pop(chunk).values()))
            return True

    def get(self, name: str, chunk: int, generation: int) -> Arrays | None:
        """Return the arrays of this chunk and generation, or None."""
        with self._lock:
            return self._states.get(name, {}).get(chunk, {}).get(generation)

    def release(self, name: str, chunk: int, generation: int) -> None:
        """Forget the arrays of one generation, because the caller will overwrite them."""
        with self._lock:
            arrays = self._states.get(name, {}).get(chunk, {}).pop(generation, None)
            if arrays is not None:
                self.nbytes -= _nbytes(arrays)

    def put(self, name: str, epoch: int, chunk: int, generation: int, arrays: Arrays) -> None:
        """Keep the arrays if they fit; ignore arrays of another run."""
        arrays = MappingProxyType({key: owned(array) for key, array in arrays.items()})
        size = _nbytes(arrays)
        with self._lock:
            if self._epochs.get(name) != epoch:
                return
            offered = self._offered.setdefault(name, {})
            self.wanted += GENERATIONS * (size - offered.get(chunk, 0))
            offered[chunk] = size
            versions = self._states.setdefault(name, {}).setdefault(chunk, {})
            if generation in versions:
                self.nbytes -= _nbytes(versions.pop(generation))
            self._make_room(size - self._limit(), versions)
            if self.nbytes + size <= self._limit():
                versions[generation] = arrays
                self.nbytes += size
            else:
                self.evictions += 1

    def _make_room(self, offset: int, own: dict[int, Arrays]) -> None:
        """Drop older generations until ``nbytes + offset`` is not positive.

        First, older generations of chunks with a newer generation are dropped; then all generations
        in ``own``, which belong to the chunk that is being stored.
        """
        if self.nbytes + offset <= 0:
            return
        for chunks in self._states.values():
            for versions in chunks.values():
                if len(versions) > 1:
                    self.nbytes -= _nbytes(versions.pop(min(versions)))
                    if self.nbytes + offset <= 0:
                        return
        for old in list(own):
            self.nbytes -= _nbytes(own.pop(old))

    def clear(self) -> None:
        with self._lock:
            self._states.clear()
            self._epochs.clear()
            self._reserved.clear()
            self._offered.clear()
            self._totals.clear()
            self.nbytes = self.wanted = 0


def _nbytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
