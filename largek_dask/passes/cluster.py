"""Passes on a Dask cluster: one task per worker and pass, every chunk counted exactly once.

The driver keeps no row state and receives one total per worker. No result depends on which worker
computes a chunk, so placement affects only the time. Chunks stay where their row state is, and
results lost with a worker are computed again by another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack
from uuid import uuid4

import numpy as np
from distributed import Client, Future
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.rows import Rows
from largek_dask.data.stores import is_local
from largek_dask.errors import ClusterError, ParameterError, raised_on
from largek_dask.fault_injection import at
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.projection import Directions
from largek_dask.kernels.threads import Threads
from largek_dask.passes import waiting
from largek_dask.passes.admission import Workers
from largek_dask.passes.base import BasePasses, PassOptions
from largek_dask.passes.broadcast import Broadcaster
from largek_dask.passes.local import driver_cpus
from largek_dask.passes.network import Network, require_open
from largek_dask.passes.picked_rows import PickedRows
from largek_dask.passes.placement import Pace, Stragglers, place, ranges, shares
from largek_dask.passes.poison_chunks import may_be_other_jobs_fault
from largek_dask.passes.spec import PassSpec, total_of
from largek_dask.passes.spill import remove_spilled, spill, spill_folder
from largek_dask.passes.telemetry import PassReport, nbytes
from largek_dask.passes.waiting import Lost, wait_watching
from largek_dask.passes.worker import (
    Payload,
    Sealed,
    Share,
    ShareResult,
    collect_total,
    combine_totals,
    drop_job,
    take_total,
    work,
)
from largek_dask.passes.worker_selection import current_selection

FAN_IN = 4
"""Number of totals that one task of a reduction tree adds up. A worker keeps all of them in memory.
With 8, the busiest of 64 workers took three times as much CPU time for totals of 8 MB as with 4
(``benchmarks.many``)."""
SLICED = 200
"""Number of workers above which slices become proportionally longer. Each slice costs the scheduler
about 5 ms, so two-second slices on twice this number of workers would fully occupy the
scheduler."""
EMBED_BYTES = 64 << 10
"""Maximum total size of all copies, in bytes, up to which each task carries the payload of its pass
to save a round trip. Dask keeps the last 1,000 messages of less than 1 MB per connection, so larger
payloads would fill the scheduler's memory."""
WORKER_VALUES = 1 << 25
"""Minimum number of values of a subset that workers search. With two workers and k = 4,000, passes
over 2^26 values took the driver a third of its CPU time on workers; passes over 2^24 values took it
as long, and twice the CPU time of all processes (measured)."""
BACKOFF_SECONDS = 0.1
"""Pause before a retry of chunks, in seconds; doubles with every failure of the same chunk."""


@dataclass(slots=True)
class _Slice:
    """A task whose result is awaited."""

    worker: str
    future: Future
    answer: asyncio.Task[ShareResult]
    since: float
    chunks: list[int]

    async def give_up(self) -> None:
        """Cancel the task and stop waiting for the result, which is then lost.

        Cancelling the task is not enough: if it is done, Dask may spend half a minute fetching its
        result from a worker that has left.
        """
        # Cancel the answer before the task; see `waiting.result`.
        self.answer.cancel()
        await asyncio.wait([self.answer])
        await self.future.cancel()


@dataclass(slots=True)
class _Pass:
    """State of one pass in the driver."""

    payload: Payload
    replay: tuple[tuple[Any, ...], ...]
    report: PassReport
    missing: set[int]
    outcomes: list[tuple[ShareResult, list[int]]] = field(default_factory=list)
    failures: Counter[int] = field(default_factory=Counter)
    forgiven: Counter[int] = field(default_factory=Counter)
    """Number of times that all workers of a chunk died while they had tasks of other jobs."""
    suspects: list[int] = field(default_factory=list)
    """Chunks of shares that killed every worker, to be retried one at a time."""
    slices: dict[str, _Slice] = field(default_factory=dict)
    """Slices whose results are awaited, by share."""
    done: dict[str, int] = field(default_factory=dict)
    """Number of finished chunks of each unfinished share."""
    n_chunks: int = 0
    rescued: set[int] = field(default_factory=set)
    """Chunks taken from a straggler, which are not taken again."""
    broadcast: Future | Payload | None = None
    """Future of the payload on the workers, or the payload itself if it is small."""
    size: int = 0
    """Bytes of the payload."""


class ClusterPasses(BasePasses):
    """Passes over rows on the workers of a Dask cluster.

    Use as a context manager, or call :meth:`close`, so that workers forget the job. Raises
    ClusterError if the client is closed, VersionMismatchError and DataError like
    :meth:`Workers.ready`, and OutputError if rows in memory cannot be written for workers.

    Parameters
    ----------
    rows : Rows
        Rows of this process are written once to a temporary store that workers can open
        (``largek.passes.spill-folder``).
    memory_limit : int, optional
        Budget of row state in bytes, per worker.
    options
        See :class:`BasePasses`.
    """

    def __init__(
        self,
        rows: Rows,
        client: Client,
        *,
        memory_limit: int | None = None,
        **options: Unpack[PassOptions],
    ) -> None:
        require_open(client)
        folder = None
        if rows.location is None:
            folder = spill_folder()
            rows = spill(rows, folder)
        assert rows.location is not None
        if is_local(rows.location) and not os.path.isabs(rows.location):
            raise ParameterError(
                f"{rows.location} is a relative path, which workers may resolve differently; use "
                "an absolute path or a URL."
            )
        super().__init__(rows, **options)
        self.job = uuid4().hex[:12]
        self._memory_limit = memory_limit
        pick = current_selection()
        self._network = Network(client, self.job, pick)
        self._workers = Workers(self._network, rows, memory_limit, self._say, pick)
        self._broadcaster = Broadcaster(self._network, self._workers)
        self._owner: dict[int, str] = {}
        self._placed_on: dict[str, int] = {}
        """Number of threads of each worker that owns chunks, by address."""
        self._shares: Counter[str] = Counter()
        """Number of chunks that each worker owns."""
        self._number = 0
        self._stragglers = Stragglers()
        self._present: frozenset[str] = frozenset()
        """Workers that were usable when chunks were last assigned."""
        self._slow: set[str] = set()
        """Stragglers that have not been given any chunks since they were detected."""
        self._current: _Pass | None = None
        self._spent: list[Future] = []
        """Finished tasks, which are released only after the next tasks are sent: Dask sends
        messages 10 ms apart, so releasing tasks first would delay the next tasks."""
        self._finalizer = weakref.finalize(self, _close, self._network, folder)
        try:
            self._network.run(self._workers.begin(), self.raise_if_stopped)
            self._note_workers()
            self._present = self._workers.seen
            _driven.add(self)
        except BaseException:
            self.close()
            raise

    def _run(
        self,
        spec: PassSpec,
        replay: tuple[tuple[Any, ...], ...],
        chunks: Sequence[int],
        report: PassReport,
    ) -> Any:
        self._number += 1
        payload = Payload(self.job, self._number, spec)
        current = _Pass(
            payload, replay, report, set(chunks), size=nbytes(spec), n_chunks=len(chunks)
        )
        self._current = current
        try:
            totals, combined = self._network.run(self._pass(current), self.raise_if_stopped)
        finally:
            self._current = None
        self._note_workers()
        self._note_held(report)
        if combined:
            return totals
        began = time.perf_counter()
        with at("reduce"):
            total = total_of(spec, totals)
        report.reduce += time.perf_counter() - began
        return total

    def progress(self) -> tuple[int, int]:
        """See ``BasePasses.progress``; the counts are updated after each slice of a worker."""
        current = self._current
        if current is None:
            return 0, 0
        # Copy in one call, because the client's event loop changes the dictionary.
        done = current.n_chunks - len(current.missing) + sum(list(current.done.values()))
        return min(done, current.n_chunks), current.n_chunks

    def _note_workers(self) -> None:
        self.workers = sorted(self._workers.seen)
        self.n_workers, self.worker_threads = len(self.workers), self._workers.n_threads
        self.state_limit = self._workers.state_limit
        self.threads_here = max(1, min(driver_cpus(), self._workers.n_threads))

    @property
    def threads(self) -> Threads:
        """The threads of this process, shared by all fits that this process drives."""
        share = driver_cpus() // max(1, len(_driven))
        return Threads(max(1, min(share, self.threads_here)), self.raise_if_stopped)

    def _note_held(self, report: PassReport) -> None:
        """Add up the memory of all workers, including workers without chunks in this pass."""
        there = [figures for name, figures in self.by_worker.items() if name not in self.left]
        report.state_bytes = sum(figures.state_bytes for figures in there)
        report.cache_bytes = sum(figures.cache_bytes for figures in there)

    def on_workers(
        self,
        rows: NDArray[np.int64],
        weight: NDArray[np.float64] | None,
        statistics: Statistics,
        directions: Directions | None,
        *,
        any_order: bool,
    ) -> BasePasses | None:
        """Return passes over some rows, which workers read, pick, and project onto directions.

        The chunks have the rows in the order of the table; ``places`` is None if that is the order
        of ``rows``. None is returned for few rows, for rows for which workers have no room, and for
        rows in another order unless ``any_order``.
        """
        width = self.row_values if directions is None else len(directions.vectors)
        n_bytes = len(rows) * width * statistics.dtype.itemsize
        room = self.n_workers * int(config.get("passes.cache-bytes")) // 2
        ascending = bool((np.diff(rows) > 0).all())
        if len(rows) * width < WORKER_VALUES or n_bytes > room or not (ascending or any_order):
            return None
        order = None if ascending else np.argsort(rows)
        if order is not None:
            rows, weight = rows[order], None if weight is None else weight[order]
        picked = PickedRows(
            self.rows,
            rows,
            weight,
            statistics.dtype,
            normalize=self.normalize,
            directions=directions,
            n_chunks=self._workers.n_threads,
        )
        there = self._within(picked, statistics)
        there.places = order
        return there

    def on_one_worker(self, statistics: Statistics) -> BasePasses | None:
        """See ``BasePasses.on_one_worker``."""
        row = PickedRows(
            self.rows,
            np.zeros(1, np.int64),
            None,
            statistics.dtype,
            normalize=None,
            directions=None,
            n_chunks=1,
        )
        there = self._within(row, statistics)
        # Several fits should not all compute on the same worker.
        workers = sorted(there._workers.seen)
        there._owner = {0: workers[int(self.job, 16) % len(workers)]}
        return there

    def _within(self, picked: PickedRows, statistics: Statistics) -> ClusterPasses:
        """Return passes over picked rows, which belong to this fit."""
        table = weakref.ref(self)

        def is_stopped() -> bool:
            passes = table()
            return passes is not None and passes._stop() is not None

        def say(kind: str, message: str, **about: str) -> None:
            if (passes := table()) is not None:
                passes._say(kind, message, **about)

        there = ClusterPasses(
            picked,
            self._network.client,
            memory_limit=self._memory_limit,
            on_bad_rows="skip",
            statistics=statistics,
            cancelled=is_stopped,
            log=say,
        )
        # Both belong to one fit: it shares no cores with itself, and Dask shows one group of tasks.
        _driven.discard(there)
        there._network.group = self._network.group
        there.by_worker, there.left = self.by_worker, self.left
        return there

    async def _pass(self, current: _Pass) -> tuple[Any, bool]:
        """Return (totals of all workers, False) or (sum of all totals, True)."""
        while True:
            while current.missing:
                await self._hand_out(current)
            current.suspects.clear()
            current.report.workers = len({outcome.worker for outcome, _ in current.outcomes})
            if not any(outcome.parked for outcome, _ in current.outcomes):
                return [outcome.total for outcome, _ in current.outcomes], False
            try:
                return await self._tree(current), True
            except Lost as lost:
                await self._forget_lost(current, lost)

    async def _hand_out(self, current: _Pass) -> None:
        """Give all missing chunks to workers; chunks whose workers fail stay missing."""
        present = await self._workers.enough()
        workers = self._stragglers.left_out(present)
        had = self._shares
        if current.broadcast is None:
            handed = self._assign(current, workers)
            targets = [address for address in workers if address in handed]
            try:
                await self._broadcast(current, targets)
            except Lost as lost:
                await self._count_failure(current, sorted(current.missing), lost)
                await asyncio.sleep(BACKOFF_SECONDS)
                return
            current.report.bytes_moved += current.size * len(targets)
            there = await self._workers.ready()
            workers = {a: n for a, n in workers.items() if a in there} or there
        handed = self._assign(current, workers)
        self._report_changes(present, workers, had)
        park_bytes = int(config.get("passes.tree-bytes")) // max(1, len(handed))
        tasks = {
            asyncio.create_task(self._share(current, address, chunks, park_bytes)): chunks
            for address, chunks in handed.items()
        }
        pace = Pace(len(tasks))
        watch = asyncio.create_task(self._watch(current, pace))
        try:
            waiting = {watch, *tasks}
            while waiting != {watch}:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                    pace.done()
            answers = [(part, task.result()) for task, part in tasks.items()]
        finally:
            for task in (watch, *tasks):
                task.cancel()
            await asyncio.gather(watch, *tasks, return_exceptions=True)
        failed = [(part, error) for part, error in answers if error is not None]
        for part, error in failed:
            await self._count_failure(current, part, error)
        if failed:
            # The broadcast value may have been lost with the failed tasks.
            current.broadcast = None
            worst = max(current.failures[chunk] for part, _ in failed for chunk in part)
            await asyncio.sleep(BACKOFF_SECONDS * 2 ** (worst - 1))

    def _assign(self, current: _Pass, workers: dict[str, int]) -> dict[str, list[int]]:
        """Assign the missing chunks, or a single suspect, to workers."""
        # Place all chunks, because ownership must not depend on the chunks of one pass.
        if workers != self._placed_on:
            self._owner = place(self._owner, range(self.n_chunks), workers)
            self._placed_on = workers
            self._shares = Counter(self._owner.values())
        while current.suspects and current.suspects[-1] not in current.missing:
            current.suspects.pop()
        # Assign a suspect alone, so that a failure proves that this chunk is the cause.
        chunks = current.suspects[-1:] or current.missing
        owner = self._owner
        if current.payload.spec.state is None:
            # Without row state, distribute the missing chunks evenly instead of by owner.
            owner = place(owner, chunks, workers)
        return shares({chunk: owner[chunk] for chunk in chunks})

    def _report_changes(
        self, present: Collection[str], able: Collection[str], had: Counter[str]
    ) -> None:
        """Send events for workers that have joined or left since chunks were last assigned.

        ``present`` contains the usable workers, ``able`` the workers that get chunks, and ``had``
        the previous number of chunks per worker.
        """
        now = frozenset(present)
        gone, new = self._present - now, now - self._present
        back = self._slow.intersection(able) - new
        if not (gone or new or back):
            return
        self._present = now
        self._slow -= gone | new | back
        for address in sorted(gone):
            self.left.add(address)
            self._report_worker(address, "left", had[address])
        for address in sorted(new | back):
            change = "back" if address in self.left | back else "joined"
            self.left.discard(address)
            self._report_worker(address, change, self._shares[address])

    def _report_worker(self, address: str, change: str, n_chunks: int) -> None:
        if self._on_event is not None:
            self._on_event("worker", address=address, change=change, chunks=n_chunks)

    async def _watch(self, current: _Pass, pace: Pace) -> None:
        """Stop waiting for slices of workers that are lost or much slower than the others."""
        while True:
            await asyncio.sleep(waiting.WATCH_SECONDS)
            await self._workers.ready()
            why = pace.is_over()
            for one in list(current.slices.values()):
                lost = self._workers.is_lost(one.worker, one.since)
                if why is not None and current.rescued.isdisjoint(one.chunks):
                    self._stragglers.add(one.worker)
                    current.rescued.update(one.chunks)
                    message = f"{one.worker} {why}: its chunks go to others"
                    self._say("slow", message, worker=one.worker)
                    self._slow.add(one.worker)
                    self._report_worker(one.worker, "slow", len(one.chunks))
                    lost = True
                if lost:
                    await one.give_up()

    async def _broadcast(self, current: _Pass, workers: Collection[str]) -> None:
        payload = current.payload
        if current.size * len(workers) <= EMBED_BYTES:
            current.broadcast = payload
        else:
            current.broadcast = await self._broadcaster.send(payload, workers, self._number)

    async def _count_failure(self, current: _Pass, chunks: list[int], error: Lost) -> None:
        """Count a failure for each chunk of a share; raise an error after too many failures."""
        current.failures.update(chunks)
        current.report.retries += len(chunks)
        most = max(current.failures[chunk] for chunk in chunks)
        is_over = most > int(config.get("passes.chunk-retries"))
        # One failure proves nothing: Dask may move a share from one dying worker to the next.
        is_proven = len(chunks) == 1 and (is_over or (error.killed and most > 1))
        if is_proven and not await may_be_other_jobs_fault(
            self._network, error.task, chunks[0], current.forgiven
        ):
            named = self.rows.name_chunk(chunks[0])
            failure = ClusterError(
                f"{named} killed every worker that it was given to: {error} Does it need more "
                "memory than a worker has? Smaller chunks or larger workers help."
                if error.killed
                else f"{named} failed {most} times with its worker, last: {error}; see its log."
            )
            raise raised_on(error.worker, failure)
        if error.killed or is_over:
            current.suspects.extend(chunks)
        about = {"worker": error.worker} if error.worker else {}
        self._say("retry", f"{len(chunks)} chunks are handed out again: {error}", **about)

    async def _share(
        self, current: _Pass, address: str, chunks: list[int], park_bytes: int
    ) -> Lost | None:
        """Compute one worker's chunks, slice by slice; return (do not raise) ``Lost``."""
        share = Share(
            id=uuid4().hex,
            owner=address,
            parts=ranges(chunks),
            park_bytes=park_bytes,
            slice_seconds=float(config.get("passes.slice-seconds"))
            * max(1.0, len(self._shares) / SLICED),
            again=sum(chunk in current.failures for chunk in chunks),
        )
        replay: Future | None = None
        target = address
        while True:
            arguments = [share, current.broadcast] + ([] if replay is None else [replay])
            future = None
            try:
                future = await self._network.submit(work, *arguments, worker=target)
                self._spent.clear()
                answer = asyncio.ensure_future(waiting.result(future))
                current.slices[share.id] = _Slice(target, future, answer, time.monotonic(), chunks)
                outcome: ShareResult = await waiting.unless_given_up(answer)
                if outcome.error is not None:
                    raise raised_on(outcome.worker, outcome.error.unpacked())
                current.done[share.id] = outcome.done
                if outcome.worker != target:
                    # Dask moved the task, because its worker died or another worker was idle.
                    current.report.retries += len(chunks)
                    target = outcome.worker
                if outcome.unknown:
                    self._workers.forget(target)
                    await self._workers.ready(wait_for=[target])
                elif outcome.needs_replay:
                    replay = await self._broadcaster.send(Sealed(current.replay), [target])
            except Lost as lost:
                lost.task, lost.worker = "" if future is None else future.key, target
                current.done.pop(share.id, None)
                return lost
            finally:
                current.slices.pop(share.id, None)
            if outcome.finished:
                break
            if not self._workers.takes_tasks(target):
                # Stop here, because Dask would give the whole share to one other worker.
                del current.done[share.id]
                refused = Lost(ClusterError(f"{target} takes no tasks any more"))
                refused.worker = target
                return refused
        if not outcome.parked:
            self._spent.append(future)
        current.report.add(outcome.report)
        self.by_worker.setdefault(target, PassReport()).add(outcome.report)
        current.report.bytes_moved += outcome.size
        current.outcomes.append((outcome, chunks))
        current.missing -= set(chunks)
        del current.done[share.id]
        if target != address:
            # The new worker now has the row state.
            self._owner.update(dict.fromkeys(chunks, target))
            self._placed_on = {}
        return None

    async def _tree(self, current: _Pass) -> Any:
        began = time.perf_counter()
        workers = await self._workers.ready()
        await self._take_totals(current, workers)
        if current.broadcast is None:
            await self._broadcast(current, workers)
        layer: list[Future] = []
        inline = [outcome.total for outcome, _ in current.outcomes if not outcome.parked]
        if inline:
            together = Sealed(total_of(current.payload.spec, inline))
            layer.append(await self._broadcaster.send(together, workers, self._number))
        parked = [outcome for outcome, _ in current.outcomes if outcome.parked]
        submit, payload = self._network.submit, current.broadcast
        layer += await asyncio.gather(
            *(submit(collect_total, one.share, payload, worker=one.worker) for one in parked)
        )
        while len(layer) > FAN_IN:
            groups = [layer[i : i + FAN_IN] for i in range(0, len(layer), FAN_IN)]
            layer = await asyncio.gather(
                *(submit(combine_totals, payload, *group) for group in groups)
            )
        combined = await submit(combine_totals, payload, *layer)
        with at("reduce"):
            result = await wait_watching(waiting.result(combined), workers, self._workers)
        current.report.reduce += time.perf_counter() - began
        return result

    async def _take_totals(self, current: _Pass, workers: Collection[str]) -> None:
        """Fetch totals from workers that take no more tasks but are still present.

        These totals pass through the scheduler, which is faster than computing them again.
        """
        for outcome, _ in current.outcomes:
            if outcome.parked and outcome.worker not in workers:
                call = self._network.call(
                    take_total, self.job, outcome.share, worker=outcome.worker
                )
                with contextlib.suppress(Lost):
                    total = await wait_watching(call, [outcome.worker], self._workers)
                    if total is not None and not isinstance(total, Exception):
                        outcome.total, outcome.parked = total, False

    async def _forget_lost(self, current: _Pass, lost: Lost) -> None:
        workers = await self._workers.ready()
        await self._take_totals(current, workers)
        current.broadcast = None
        kept = []
        for outcome, chunks in current.outcomes:
            if outcome.parked and outcome.worker not in workers:
                gone = Lost(ClusterError(f"{outcome.worker} is gone"))
                await self._count_failure(current, chunks, gone)
                current.missing |= set(chunks)
            else:
                kept.append((outcome, chunks))
        if len(kept) == len(current.outcomes) and not lost.left:
            # A total was lost although all workers are present, so compute everything again.
            chunks = [chunk for _, part in current.outcomes for chunk in part]
            lost = Lost(ClusterError("totals were lost on their workers"))
            await self._count_failure(current, chunks, lost)
            current.missing |= set(chunks)
            kept = []
        current.outcomes = kept
        await asyncio.sleep(BACKOFF_SECONDS)

    def close(self) -> None:
        """Drop the job on all workers, and close all subsets."""
        _driven.discard(self)
        self.begin_run()
        self._spent.clear()
        self._finalizer()


_driven: weakref.WeakSet[ClusterPasses] = weakref.WeakSet()
"""Passes of all fits driven by this process, which share the cores of the process."""


def _close(network: Network, folder: str | None) -> None:
    network.run_last(drop_job, network.job)
    if folder is not None:
        remove_spilled(folder)
