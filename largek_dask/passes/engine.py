"""Computation of chunks in one process, used by local passes and by Dask workers.

An engine belongs to one job. It owns the computing and reading threads, the row state, the retained
totals and the cache of chunks. A :class:`Ticket` is one process's share of one pass; it may be
computed in several time slices, and its total is collected once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from largek_dask.algorithms.base import RowSlice
from largek_dask.context import carried
from largek_dask.data.rows import Rows
from largek_dask.fault_injection import at
from largek_dask.kernels.compiling import checked_by, compiled
from largek_dask.kernels.threads import Threads
from largek_dask.passes.cache import ChunkCache, Part
from largek_dask.passes.chunks import JOINED, ChunkView, Preparer
from largek_dask.passes.prefetch import Block, ChunkSource
from largek_dask.passes.reading import ChunkReader
from largek_dask.passes.rowstate import RowStateStore
from largek_dask.passes.spec import PassSpec, StateSpec, total_of
from largek_dask.passes.telemetry import PassReport, nbytes

Stop = Callable[[], BaseException | None]
"""Function called between chunks; returns the error that ends the pass, or None."""

POLL_SECONDS = 0.05
"""Interval between two checks for a stop while chunks are computed, in seconds."""


@dataclass(slots=True)
class _Retained:
    """Totals kept between passes, one per thread, and the chunks counted in these totals."""

    epoch: int
    generation: int
    totals: list[Any]
    members: frozenset[int]


@dataclass(slots=True)
class Ticket:
    """Share of one pass that one process computes."""

    spec: PassSpec
    chunks: frozenset[int]
    totals: list[Any]
    """One partial total per thread."""
    counted: frozenset[int]
    """Chunks already counted in the retained totals of the last generation."""
    retains: bool
    source: ChunkSource
    replay: tuple[tuple[Any, ...], ...] | None
    waiting: list[int]
    """Chunks that need a replay that has not been supplied yet."""
    report: PassReport = field(default_factory=PassReport)
    done: set[int] = field(default_factory=set)
    scratch: dict[int, Any] = field(default_factory=dict)
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    read_seen: float = 0.0

    @property
    def finished(self) -> bool:
        """True if every chunk has been counted."""
        return len(self.done) == len(self.chunks)


class _Ended(BaseException):
    """Raised when the pass is stopped while a chunk is being computed."""


def _raise_if_stopped(ticket: Ticket, stop: Stop) -> None:
    if ticket.source.stopped:
        raise _Ended
    if (error := stop()) is not None:
        raise error


class Engine:
    """Compute passes over the rows of one job in this process.

    ``state_limit`` and ``cache_limit`` return the budgets of row state and of cached chunks, in
    bytes.
    """

    def __init__(
        self,
        rows: Rows,
        n_threads: int,
        state_limit: Callable[[], int],
        cache_limit: Callable[[], int],
    ) -> None:
        self.rows = rows
        self.n_threads = n_threads
        self.store = RowStateStore(state_limit)
        self.cache = ChunkCache(cache_limit)
        self._rows = ChunkReader(rows, self.store, self.cache)
        self._prepare = Preparer(rows)
        self._retained: dict[str, _Retained] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._reader: ThreadPoolExecutor | None = None

    def joined(self) -> Part | None:
        """Return all rows if they are one array in this process, otherwise None."""
        return self._rows.join()

    def extend(self) -> None:
        """Update the sizes of chunks after rows have been added at the end."""
        self._rows.measure()

    def open(
        self,
        spec: PassSpec,
        chunks: Iterable[int],
        replay: tuple[tuple[Any, ...], ...] | None = (),
        retain: bool = True,
    ) -> Ticket:
        """Begin a share of a pass.

        ``replay`` contains the broadcasts that rebuild missing row state. If it is None, chunks
        that need a replay wait (``ticket.waiting``) for :meth:`supply`. With ``retain=False``, the
        retained totals of this process are neither used nor replaced.
        """
        members = frozenset(chunks)
        # Only a process that has all chunks can show them as one.
        together = spec.joined and len(members) == self.rows.n_chunks
        joined = together and self._rows.join() is not None
        members = frozenset([JOINED]) if joined else members
        n_totals = max(1, min(self.n_threads, len(members)))
        state = spec.state
        if state is not None:
            self.store.begin(state.name, state.epoch, state.generation)
        elif spec.rows is not None:
            members = self._nonempty(members, spec.rows)
        held, retains = self._held(state, members) if retain else (None, False)
        totals = [] if held is None else held.totals
        while len(totals) < n_totals:
            totals.append(spec.start())
        if retains:
            assert state is not None
            retains = self.store.reserve(state.name, nbytes(totals))
        ready, waiting = self._order(state, members, replay)
        ticket = Ticket(
            spec=spec,
            chunks=members,
            totals=totals,
            counted=frozenset() if held is None else held.members,
            retains=retains,
            source=self._rows.source(ready, spec.rows, self.n_threads + 1),
            replay=replay,
            waiting=waiting,
        )
        self.cache.begin()
        return ticket

    def _nonempty(self, chunks: frozenset[int], rows: RowSlice) -> frozenset[int]:
        spans = {index: self._rows.span(index, rows) for index in chunks}
        return frozenset(index for index, span in spans.items() if span.begin < span.end)

    def _held(
        self, state: StateSpec | None, chunks: frozenset[int]
    ) -> tuple[_Retained | None, bool]:
        """Return the retained totals to continue from, and whether this share retains totals."""
        if state is None or not state.retain:
            return None, False
        held = self._retained.get(state.name)
        if held is not None and held.epoch == state.epoch and held.generation == state.generation:
            # This share belongs to a lost worker or repeats a pass, so keep the retained totals.
            return None, False
        # Remove the retained totals, which become invalid if this pass fails half-way.
        self._retained.pop(state.name, None)
        if (
            held is not None
            and held.epoch == state.epoch
            and held.generation == state.generation - 1
            and held.members <= chunks
        ):
            return held, True
        return None, True

    def _order(
        self, state: StateSpec | None, chunks: frozenset[int], replay: object
    ) -> tuple[list[int], list[int]]:
        """Return the chunks that can be computed now, and those that wait for a replay."""
        order = sorted(chunks)
        if state is None or state.first or replay is not None:
            return order, []
        before = state.generation - 1
        missing = [i for i in order if self.store.get(state.name, i, before) is None]
        lost = set(missing)
        return [i for i in order if i not in lost], missing

    def supply(self, ticket: Ticket, replay: tuple[tuple[Any, ...], ...]) -> None:
        """Provide the replay that the chunks in ``ticket.waiting`` need."""
        ticket.replay = replay
        ticket.waiting.clear()
        left = sorted(ticket.chunks - ticket.done)
        ticket.source = self._rows.source(left, ticket.spec.rows, self.n_threads + 1)
        ticket.read_seen = 0.0

    def advance(self, ticket: Ticket, stop: Stop, until: float | None = None) -> bool:
        """Compute chunks of a ticket on all threads; return True if only waiting chunks are left.

        ``stop`` is called between chunks; an error that it returns ends the pass. No chunk is
        started after the time ``until`` (``time.monotonic``). When all threads have finished, this
        raises the error of the failed chunk with the lowest index, or the error from ``stop``.
        """
        before = compiled()
        if len(ticket.totals) == 1 and ticket.source.in_memory:
            # Avoid another thread, because starting it would take as long as a small pass.
            ticket.source.start(None)
            self._work(ticket, 0, ticket.report, stop, until)
        else:
            self._on_pool(ticket, stop, until)
        ticket.report.compiled += compiled().since(before).seconds
        ticket.source.stop()
        ticket.report.read += ticket.source.read_seconds - ticket.read_seen
        ticket.read_seen = ticket.source.read_seconds
        if ticket.errors:
            raise min(ticket.errors, key=lambda item: item[0])[1]
        return len(ticket.done) + len(ticket.waiting) == len(ticket.chunks)

    def _on_pool(self, ticket: Ticket, stop: Stop, until: float | None) -> None:
        """Compute on all threads, and check for a stop at intervals."""
        futures: list[Future[None]] = []
        try:
            pool, reader = self._threads()
            ticket.source.start(reader)
            futures.extend(
                pool.submit(carried(self._work_apart), ticket, slot, stop, until)
                for slot in range(len(ticket.totals))
            )
            while wait(futures, POLL_SECONDS).not_done:
                if (error := stop()) is not None:
                    ticket.errors.append((-1, error))
                    ticket.source.stop()
        except BaseException:
            self._interrupt(ticket, futures)
            raise
        for future in futures:
            future.result()

    def _threads(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        if self._pool is None or self._reader is None:
            self._pool = ThreadPoolExecutor(self.n_threads, "largek-compute")
            self._reader = ThreadPoolExecutor(4, "largek-read")
            # All threads start here, because Ctrl-C in a pass might leave a half-started thread.
            barrier = threading.Barrier(self.n_threads)
            wait([self._pool.submit(barrier.wait) for _ in range(self.n_threads)])
        return self._pool, self._reader

    def _interrupt(self, ticket: Ticket, futures: Sequence[Future[None]]) -> None:
        ticket.source.stop()
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                wait(futures)
                self._shut_down()
                return

    def collect(self, ticket: Ticket, *, lent: bool = False) -> Any:
        """Return the total of a finished ticket.

        Retained totals are copied, with two exceptions. With ``lent``, a single retained total is
        not copied: the caller must not change it, and must drop it before the next pass. The total
        of all rows as one chunk is never copied, because it stays in this process.
        """
        spec = ticket.spec
        began = time.perf_counter()
        if ticket.retains:
            assert spec.state is not None
            alone = ticket.chunks == {JOINED} or (lent and len(ticket.totals) == 1)
            total = ticket.totals[0] if alone else total_of(spec, ticket.totals)
            self._retained[spec.state.name] = _Retained(
                spec.state.epoch, spec.state.generation, ticket.totals, ticket.chunks
            )
        else:
            total = ticket.totals[0]
            for other in ticket.totals[1:]:
                total = spec.combine(total, other)
        ticket.report.reduce += time.perf_counter() - began
        ticket.report.state_bytes = self.store.nbytes
        ticket.report.cache_bytes = self.cache.nbytes
        return total

    def close(self) -> None:
        """End the threads; drop row state, retained totals and cached chunks."""
        self._shut_down()
        self._retained.clear()
        self.store.clear()
        self.cache.clear()

    def _shut_down(self) -> None:
        for executor in (self._pool, self._reader):
            if executor is not None:
                executor.shutdown(wait=True)
        self._pool = self._reader = None

    def _work_apart(self, ticket: Ticket, slot: int, stop: Stop, until: float | None) -> None:
        report = PassReport()
        try:
            self._work(ticket, slot, report, stop, until)
        finally:
            with ticket.lock:
                ticket.report.add(report)

    def _work(
        self, ticket: Ticket, slot: int, report: PassReport, stop: Stop, until: float | None
    ) -> None:
        while True:
            began = time.perf_counter()
            block = ticket.source.next()
            report.wait += time.perf_counter() - began
            if block is None:
                break
            if (error := stop()) is not None:
                ticket.errors.append((-1, error))
                ticket.source.stop()
                break
            try:
                with at("chunk"), checked_by(partial(_raise_if_stopped, ticket, stop)):
                    self._count(ticket, slot, block, stop, report)
            except _Ended:
                break
            except BaseException as failure:
                failure.add_note(f"It happened in {self._named(block.index)}.")
                ticket.errors.append((block.index, failure))
                ticket.source.stop()
                break
            # Check the time after a chunk, so that even the shortest slice makes progress.
            if until is not None and time.monotonic() >= until:
                break

    def _named(self, index: int) -> str:
        if index == JOINED:
            return f"all rows of {self.rows.describe_source(self.rows.location)}"
        return self.rows.name_chunk(index)

    def _count(
        self, ticket: Ticket, slot: int, block: Block, stop: Stop, report: PassReport
    ) -> None:
        """Add one chunk to this thread's total, and keep the row state of the chunk."""
        spec, state, index = ticket.spec, ticket.spec.state, block.index
        began = time.perf_counter()
        # Cache the rows of passes with row state, because later passes use the same rows.
        part = self._rows.take(block, block.span, state is not None, report)
        view = self._prepare(index, part, spec.preparation, spec.rows is not None)
        view.find = partial(self._rows.locate, index, part)
        if index == JOINED or spec.all_threads:
            view.threads = self._threads_of(ticket, stop)
        if state is not None and not state.first and state.is_there(index):
            arrays = self.store.get(state.name, index, state.generation - 1)
            if arrays is None and ticket.replay is None:
                with ticket.lock:
                    ticket.waiting.append(index)
                return
            if arrays is None:
                arrays = self._rebuild(ticket, slot, block, view, report)
                report.rebuilt += 1
            view.state = arrays
            if index == JOINED:
                # If the pass fails half-way, the released state is lost and must be rebuilt.
                view.release = partial(self.store.release, state.name, index, state.generation - 1)
        view.counted = index in ticket.counted
        spec.chunk_fn(view, ticket.totals[slot], *spec.broadcast)
        if state is not None and view.kept is not None:
            before = self.store.evictions
            self.store.put(state.name, state.epoch, index, state.generation, view.kept)
            report.evictions += self.store.evictions - before
        report.compute += time.perf_counter() - began
        report.rows += len(view)
        report.chunks += 1
        report.cached += block.cached
        report.bytes_read += block.bytes_read
        with ticket.lock:
            ticket.done.add(index)

    def _threads_of(self, ticket: Ticket, stop: Stop) -> Threads:
        """Return threads for the only chunk of a pass, which end if the pass is stopped."""

        def check() -> None:
            if (error := stop()) is not None:
                ticket.errors.append((-1, error))
                ticket.source.stop()
            if ticket.source.stopped:
                raise _Ended

        return Threads(self.n_threads, check)

    def _rebuild(
        self, ticket: Ticket, slot: int, block: Block, view: ChunkView, report: PassReport
    ) -> Mapping[str, NDArray[Any]] | None:
        """Rebuild the chunk's lost row state by a replay, and discard the totals of the replay."""
        spec, state = ticket.spec, ticket.spec.state
        assert state is not None
        assert ticket.replay is not None
        function = state.rebuild or spec.chunk_fn
        if slot not in ticket.scratch:
            ticket.scratch[slot] = (state.rebuild_start or spec.start)()
        rows = state.rebuild_rows
        if rows != spec.rows:
            span = self._rows.span(block.index, rows)
            part = self._rows.take(block, span, False, report)
            view = self._prepare(block.index, part, spec.preparation, rows is not None)
        arrays = None
        for broadcast in ticket.replay:
            view = view.again(arrays)
            function(view, ticket.scratch[slot], *broadcast)
            arrays = view.kept
        if arrays is not None:
            # Store the state here, because a pass that only reads the state does not store it.
            self.store.put(state.name, state.epoch, view.index, state.generation - 1, arrays)
        return arrays
