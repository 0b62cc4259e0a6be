"""Cache of rows that a process keeps between passes.

Losing an entry costs time, but never changes results. The cache declines entries that do not fit:
passes repeatedly visit the chunks in the same order, so a cache that evicts the least recently used
entry would evict each entry just before its next use. Entries are dropped only if no recent pass
has used them, or if they are whole chunks and the next passes need only shares of chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.kernels.blocks import Table

STALE_PASSES = 2
"""Number of consecutive passes without use after which an entry may be dropped."""


class Span(NamedTuple):
    """Rows of a chunk at positions ``begin`` to ``end`` (exclusive) in a given order."""

    begin: int
    end: int
    of: int
    """Number of rows in the chunk."""
    order: Rng | None = None
    """Generator of the permutation; None means the order in storage."""

    @property
    def whole(self) -> bool:
        """True if the span covers all rows in the order of storage."""
        return self.order is None and self.end - self.begin == self.of

    def holds(self, other: Span) -> bool:
        """Return True if this span contains all rows of ``other``."""
        if self.whole:
            return True
        return self.order == other.order and self.begin <= other.begin and other.end <= self.end


@dataclass(slots=True)
class Part:
    """Rows of a span, in ascending order of their positions in the chunk; never modified.

    The class is not frozen, because frozen instances are slower to create and every pass creates
    one instance per chunk.
    """

    span: Span
    x: Table
    weight: NDArray[np.float64] | None = None
    rows: NDArray[np.int64] | None = None
    """(n,) ascending positions in the chunk; None means consecutive positions from
    ``span.begin``."""
    room: NDArray[Any] | None = None
    """Array that begins with ``x`` and has space for the rows that follow."""

    @property
    def nbytes(self) -> int:
        others = sum(array.nbytes for array in (self.weight, self.rows) if array is not None)
        return self.x.nbytes + others


@dataclass(slots=True)
class _Entry:
    part: Part
    used: int


class ChunkCache:
    """Cache of chunks and shares of chunks, with a limit in bytes.

    ``limit`` returns the budget in bytes, which changes if several jobs share the process.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._chunks: dict[int, _Entry] = {}
        self._shares: dict[int, _Entry] = {}
        self._pass = 0
        self._declined = [0, 0]
        """Bytes that did not fit in the current pass and in the previous pass."""
        self.nbytes = 0

    def begin(self) -> None:
        """Begin a pass; make room if the budget has shrunk."""
        with self._lock:
            self._pass += 1
            self._declined = [0, self._declined[0]]
            if self.nbytes > self._limit():
                self._make_room(0, (self._chunks, self._shares))

    @property
    def wanted(self) -> int:
        """Bytes that the cache could use without a limit."""
        return self.nbytes + max(self._declined)

    def get(self, index: int, span: Span) -> Part | None:
        """Return cached rows of a chunk that include the rows of ``span``, or None."""
        with self._lock:
            for entries in (self._shares, self._chunks):
                entry = entries.get(index)
                if entry is not None and entry.part.span.holds(span):
                    entry.used = self._pass
                    return entry.part
        return None

    def share(self, index: int) -> Part | None:
        """Return the cached share of the chunk, if there is one."""
        entry = self._shares.get(index)
        return None if entry is None else entry.part

    def holds(self, index: int, span: Span) -> bool:
        """Return True if the cache contains the rows of ``span``."""
        entries = (self._shares.get(index), self._chunks.get(index))
        return any(entry is not None and entry.part.span.holds(span) for entry in entries)

    def put(self, index: int, part: Part) -> bool:
        """Store the rows if they fit; return True if they are stored.

        The rows replace an earlier share of the chunk, except that a whole chunk does not replace a
        share in permuted order.
        """
        size = part.nbytes
        with self._lock:
            whole = part.span.whole
            if whole and index in self._chunks:
                return True
            entries = self._chunks if whole else self._shares
            share = self._shares.get(index)
            # A whole chunk does not replace a share in permuted order.
            if share is not None and not (whole and share.part.span.order is not None):
                self.nbytes -= self._shares.pop(index).part.nbytes
            # Update the count first, because the limit depends on `wanted`.
            self._declined[0] += size
            self._make_room(size, () if whole else (self._chunks,))
            if self.nbytes + size > self._limit():
                return False
            self._declined[0] -= size
            entries[index] = _Entry(part, self._pass)
            self.nbytes += size
            return True

    def _make_room(self, size: int, fresh: tuple[dict[int, _Entry], ...]) -> None:
        """Drop stale entries, then the last entries of ``fresh``, until ``size`` bytes fit."""
        limit = self._limit()
        if self.nbytes + size <= limit or size > limit:
            return
        oldest = self._pass - STALE_PASSES
        for entries in (self._chunks, self._shares):
            for index in [i for i, entry in entries.items() if entry.used < oldest]:
                self.nbytes -= entries.pop(index).part.nbytes
                if self.nbytes + size <= limit:
                    return
        for entries in fresh:
            for index in sorted(entries, reverse=True):
                self.nbytes -= entries.pop(index).part.nbytes
                if self.nbytes + size <= limit:
                    return

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()
            self._shares.clear()
            self._declined = [0, 0]
            self.nbytes = 0
