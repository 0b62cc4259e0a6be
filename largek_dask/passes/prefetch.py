"""Hand the chunks of a pass to computing threads, and prefetch stored chunks in the background."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from largek_dask.context import carried
from largek_dask.passes.cache import Part, Span


@dataclass(slots=True)
class Block:
    """Rows of a chunk as they were read, or the error that reading raised."""

    index: int
    span: Span
    """Rows that the pass needs."""
    part: Part | None = None
    """Rows that were read, including all rows of ``span``."""
    error: BaseException | None = None
    cached: bool = False
    bytes_read: int = 0


class ChunkSource:
    """Chunks of one pass; each chunk is given to the next thread that asks for one.

    Chunks in memory or in the cache are handed out while the next stored chunk is being read, so
    that reading and computing overlap during the whole pass. ``read(index)`` is called for
    ``stored`` chunks on the reading thread only, and ``recall(index)`` for ``present`` chunks on
    the thread that calls :meth:`next`. At most ``depth`` chunks are read in advance.
    """

    def __init__(
        self,
        read: Callable[[int], Block],
        recall: Callable[[int], Block],
        stored: Iterable[int],
        present: Iterable[int],
        depth: int,
    ) -> None:
        self._read = read
        self._recall = recall
        self._stored = deque(stored)
        self._present = deque(present)
        self._ready: deque[Block] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._reading = False
        self._stopped = True
        self.read_seconds = 0.0

    @property
    def in_memory(self) -> bool:
        """True if nothing has to be read."""
        return not (self._stored or self._reading or self._ready)

    def start(self, executor: Executor | None) -> None:
        """Allow threads to take chunks; read on a thread of ``executor`` if it is not None."""
        with self._changed:
            self._stopped = False
            if executor is None or self._reading or not self._stored:
                return
            self._reading = True
        executor.submit(carried(self._fill))

    def stop(self) -> None:
        """Pause reading until the next ``start``; chunks that have been read are kept."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        """True if no more chunks are handed out."""
        return self._stopped

    def next(self) -> Block | None:
        """Return the next chunk; None if none is left or the source is stopped."""
        with self._changed:
            while True:
                if self._stopped:
                    return None
                if self._ready:
                    block = self._ready.popleft()
                    self._changed.notify_all()
                    return block
                if self._present:
                    index = self._present.popleft()
                    break
                if not self._stored and not self._reading:
                    return None
                self._changed.wait()
        return self._recall(index)

    def _fill(self) -> None:
        while True:
            with self._changed:
                while len(self._ready) >= self._depth and not self._stopped:
                    self._changed.wait()
                if self._stopped or not self._stored:
                    self._reading = False
                    self._changed.notify_all()
                    return
                index = self._stored.popleft()
            began = time.perf_counter()
            block = self._read(index)
            elapsed = time.perf_counter() - began
            with self._changed:
                self.read_seconds += elapsed
                self._ready.append(block)
                self._changed.notify_all()
