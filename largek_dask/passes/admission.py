"""Admit workers to a job if they have the right versions and access to the data."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from distributed import Client

from largek_dask import config
from largek_dask.context import current_job
from largek_dask.data.rows import Rows
from largek_dask.errors import DataError, VersionMismatchError
from largek_dask.passes.local import state_budget
from largek_dask.passes.network import Network, WorkerInfo
from largek_dask.passes.worker import WorkPlugin, WorkSpec, admit, drop_job, versions
from largek_dask.passes.worker_selection import (
    WorkerSelection,
    current_selection,
    declared_row_state,
    explain_shortage,
)

WAIT_SECONDS = 0.2
"""Interval between two checks of a cluster without workers, in seconds."""
SLOW_SECONDS = 5.0
"""Time after which a worker that has not answered is reported, in seconds."""
RETRY_SECONDS = {"failed": 5.0, "versions": 30.0, "data": 30.0}
"""Time after which a worker that failed or was refused is asked again, in seconds."""


@dataclass(slots=True)
class _AdmissionRequest:
    address: str
    answer: asyncio.Future[Any]
    since: float
    reported: bool = False


@dataclass(frozen=True, slots=True)
class _Absence:
    """Reason why a worker is given no tasks."""

    kind: Literal["paused", "silent", "failed", "versions", "data"]
    text: str
    since: float = 0.0


class _UnfitWorker(Exception):
    def __init__(self, kind: Literal["versions", "data"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Workers:
    """Workers admitted to a job over these rows.

    ``memory_limit`` is the budget of row state per worker, in bytes; ``say(kind, message)`` reports
    progress to the user; ``pick`` selects the workers that the job may use.
    """

    def __init__(
        self,
        network: Network,
        rows: Rows,
        memory_limit: int | None,
        say: Callable[[str, str], None],
        pick: WorkerSelection | None = None,
    ) -> None:
        self._network = network
        self._where = rows.location
        self._shape = rows.shape
        self._say = say
        self._job = WorkSpec(
            id=network.job,
            rows=pickle.dumps(rows),
            memory_limit=memory_limit,
            cache_bytes=int(config.get("passes.cache-bytes")),
            service_job=current_job(),
            declared=declared_row_state(),
        )
        self._versions = versions()
        self.state_limit: int | None = None
        """Bytes of row state that all workers together may keep; None if unknown."""
        self.n_threads = 0
        """Number of threads of the workers that were usable at the last check."""
        self._ready: frozenset[str] = frozenset()
        self._admitted: set[str] = set()
        self._requests: dict[str, _AdmissionRequest] = {}
        """Pending requests by the address of the worker."""
        self._refused: dict[str, _Absence] = {}
        """Workers that cannot compute for this job, or did not answer."""
        self._heartbeats: dict[str, tuple[float, float]] = {}
        """Last heartbeat of each worker by the scheduler's clock, and the local time of its
        arrival."""
        self._absent: dict[str, _Absence] = {}
        self._reported: tuple[bool, frozenset[tuple[str, str]]] = (True, frozenset())
        self._pick = pick
        self._tags: list[frozenset[str]] = []
        """Tags of all present workers of the cluster."""
        self._short: tuple[Any, ...] | None = None
        """Value of ``_reported`` at the last report of a shortage of workers; None without a
        shortage."""

    async def begin(self) -> None:
        """Prepare all current and future workers."""
        await self._network.register(WorkPlugin(), _silent_seconds())
        await self._network.prepare_scheduler()
        await self.ready(wait_for=None, begin=True)

    async def look(self) -> None:
        """Prepare the workers that are present, without waiting for more."""
        await self._network.register(WorkPlugin(), _silent_seconds())
        if await self._found():
            await self.ready(wait_for=None, begin=True)

    async def ready(
        self, wait_for: Collection[str] | None = (), begin: bool = False
    ) -> dict[str, int]:
        """Return the threads of each usable worker, by address; wait for at least one worker.

        Workers that are paused or silent, have other versions or cannot open the data are excluded,
        and the reason is reported. New workers are awaited only briefly, because importing the
        package takes them some time.

        Raises DataError if no worker can open the data, and VersionMismatchError if all workers
        are unusable and at least one of them has other versions.

        Parameters
        ----------
        wait_for : collection of str or None
            Workers to wait for until they answer; None means all of them.
        begin : bool
            Raise an error if no present worker is usable.
        """
        while True:
            found = await self._found()
            present = self._look(found)
            asked = self._requests_to(present)
            awaited = [
                request for request in asked if wait_for is None or request.address in wait_for
            ]
            if not any(address in self._admitted for address in present):
                awaited = asked
            if awaited:
                # Wait until workers that do not answer count as silent.
                waiting = [request.answer for request in awaited]
                if (await asyncio.wait(waiting, timeout=WAIT_SECONDS))[1]:
                    self._report_slow(awaited)
                    continue
            elif new := [
                request for request in asked if time.monotonic() - request.since < WAIT_SECONDS
            ]:
                # Wait briefly, because a worker that has imported the package answers at once.
                await asyncio.wait([request.answer for request in new], timeout=WAIT_SECONDS)
            if answered := [
                request for request in self._requests.values() if request.answer.done()
            ]:
                self._take_answers(answered)
                continue
            ready = {a: n for a, n in present.items() if a in self._admitted}
            if self._pick is not None:
                ready = self._pick.choose(ready, present)
            if begin and found:
                self._raise_if_all_are_unfit(found)
            self._report_changes(len(ready))
            self._ready = frozenset(ready)
            if ready:
                self.n_threads = sum(ready.values())
                return ready
            await asyncio.sleep(WAIT_SECONDS)

    async def enough(self) -> dict[str, int]:
        """Like :meth:`ready`, but wait for the minimum number of workers of the job."""
        while True:
            ready = await self.ready()
            if self._pick is None or len(ready) >= self._pick.least:
                break
            if self._short != self._reported:
                # Repeat the report of a shortage after any other report.
                self._short = self._reported
                why = explain_shortage(self._pick, len(ready), self._tags)
                self._say("waiting", f"{why}; waiting for more")
            await asyncio.sleep(WAIT_SECONDS)
        if self._short is not None:
            self._short = None
            self._say("workers", f"{len(ready):,} workers are available: continuing")
        return ready

    async def _found(self) -> dict[str, WorkerInfo]:
        """Return the workers that the job may use, by address."""
        found = await self._network.workers()
        self._tags = [info.tags for info in found.values()]
        if self._pick is None:
            return found
        return {a: info for a, info in found.items() if self._pick.allows(info.tags)}

    @property
    def seen(self) -> frozenset[str]:
        """Workers that were usable at the last check."""
        return self._ready

    def takes_tasks(self, address: str) -> bool:
        """Return True if a worker was usable at the last check."""
        return address in self._ready

    def forget(self, address: str) -> None:
        """Cancel the admission of a worker that does not know the job, to ask it again."""
        self._admitted.discard(address)
        self._refused.pop(address, None)
        self._requests.pop(address, None)

    def is_lost(self, address: str, since: float) -> bool:
        """Return True if a worker that was given work at time ``since`` is lost.

        A worker is lost if it has left the cluster, is silent, or has been paused for as long as a
        worker may be silent. When a worker leaves, Dask gives all of its tasks to one other worker.
        """
        if address not in self._heartbeats:
            return True
        why = self._absent.get(address)
        if why is None:
            return False
        return why.kind == "silent" or time.monotonic() - since > _silent_seconds()

    def _look(self, found: dict[str, WorkerInfo]) -> dict[str, int]:
        """Return the threads of workers that take tasks; record why other workers do not."""
        now = time.monotonic()
        # The scheduler's clock may differ, so silence is measured with the local clock.
        self._heartbeats = {
            address: before
            if (before := self._heartbeats.get(address, (0.0, 0.0)))[0] == info.last_seen
            else (info.last_seen, now)
            for address, info in found.items()
        }
        self._admitted &= set(found)
        self._requests = {a: request for a, request in self._requests.items() if a in found}
        self._refused = {a: why for a, why in self._refused.items() if a in found}
        limits = [info.memory_limit for info in found.values()]
        # Chunks are distributed evenly, so the worker with the least memory sets the limit.
        least = state_budget(self._job.memory_limit, min(limits, default=0))
        n_used = len(limits) if self._pick is None else self._pick.count(len(limits))
        self.state_limit = n_used * least or None
        self._absent, present = {}, {}
        for address, info in found.items():
            request = self._requests.get(address)
            unheard = now - self._heartbeats[address][1]
            unanswered = now - request.since if request and not request.answer.done() else 0.0
            if max(unheard, unanswered) > _silent_seconds():
                what = "sent a heartbeat" if unheard >= unanswered else "answered"
                text = f"has not {what} for {max(unheard, unanswered):.0f} s"
                self._absent[address] = _Absence("silent", text)
            elif info.status == "paused":
                used = f"{info.memory / 1e9:.1f} of {info.memory_limit / 1e9:.1f} GB used"
                text = f"is paused by Dask for lack of memory ({used})"
                self._absent[address] = _Absence("paused", text)
            elif address in self._refused:
                self._absent[address] = why = self._refused[address]
                if request is None and now - why.since > RETRY_SECONDS[why.kind]:
                    self._ask(address)
            elif info.status == "running":
                present[address] = info.n_threads
        return present

    def _requests_to(self, present: Iterable[str]) -> list[_AdmissionRequest]:
        new = [address for address in present if address not in self._admitted]
        for address in new:
            if address not in self._requests:
                self._ask(address)
        return [self._requests[address] for address in new]

    def _ask(self, address: str) -> None:
        answer = self._network.spawn(self._answer(address))
        self._requests[address] = _AdmissionRequest(address, answer, time.monotonic())

    async def _answer(self, address: str) -> None:
        """Raise an error if a worker cannot compute for this job.

        The storage options of the data are sent only to workers with matching versions, because
        other versions might log these options.
        """
        found = await self._network.call(versions, worker=address)
        if isinstance(found, ImportError | AttributeError):
            raise _UnfitWorker("versions", f"cannot import this version of largek_dask ({found})")
        if isinstance(found, Exception):
            raise found
        if found != self._versions:
            raise _UnfitWorker("versions", f"has {differences(found)}")
        why_not = await self._network.call(admit, self._job, self._shape, worker=address)
        if isinstance(why_not, Exception):
            raise why_not
        if why_not is not None:
            raise _UnfitWorker("data", f"cannot open {self._where}: {why_not}")

    def _report_slow(self, asked: list[_AdmissionRequest]) -> None:
        """Report workers that are slow to answer, each only once."""
        for request in asked:
            slow = time.monotonic() - request.since > SLOW_SECONDS and not request.answer.done()
            if slow and not request.reported:
                request.reported = True
                self._say("waiting", f"{request.address} has not answered yet; waiting for it")

    def _take_answers(self, asked: list[_AdmissionRequest]) -> None:
        now = time.monotonic()
        for request in asked:
            del self._requests[request.address]
            error = request.answer.exception()
            if error is None:
                self._refused.pop(request.address, None)
                self._admitted.add(request.address)
            elif isinstance(error, _UnfitWorker):
                self._refused[request.address] = _Absence(error.kind, str(error), now)
            else:
                # The worker may have left; if it is still there, it is asked again.
                text = f"did not answer: {str(error) or type(error).__name__}"
                self._refused[request.address] = _Absence("failed", text, now)

    def _raise_if_all_are_unfit(self, found: Iterable[str]) -> None:
        """Raise an error if all workers have other versions or cannot open the data."""
        why = {address: self._absent.get(address) for address in found}
        kinds = {"" if absence is None else absence.kind for absence in why.values()}
        reasons = "; ".join(
            f"{address} {absence.text}" for address, absence in why.items() if absence
        )
        if "versions" in kinds and kinds <= {"versions", "data"}:
            raise VersionMismatchError(
                f"no worker can be used: {reasons}. "
                "Install the same versions everywhere and restart the workers."
            )
        if kinds == {"data"}:
            # Chain this error, so that retries treat missing data as a temporary failure.
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._where)
            raise DataError(
                f"no worker can open the data: {reasons}. "
                "Every worker must be able to read the data at this location (rows in memory are "
                "written to largek.passes.spill-folder)."
            ) from gone

    def _report_changes(self, n_ready: int) -> None:
        """Report when no workers are left, when workers are back, or when workers are excluded."""
        now = (n_ready > 0, frozenset((a, why.kind) for a, why in self._absent.items()))
        if now == self._reported:
            return
        before, self._reported = self._reported, now
        reasons = "; ".join(f"{address} {why.text}" for address, why in self._absent.items())
        if not n_ready and reasons:
            self._say("waiting", f"no worker can take work: {reasons}; waiting for one")
        elif not n_ready and self._pick is not None:
            why = explain_shortage(self._pick, 0, self._tags)
            self._say("waiting", f"{why}; waiting for one")
        elif not n_ready:
            self._say("waiting", "the cluster has no workers; waiting for one")
        elif not before[0]:
            without = f" without: {reasons}" if reasons else ""
            workers = "1 worker is" if n_ready == 1 else f"{n_ready:,} workers are"
            self._say("workers", f"{workers} available: continuing{without}")
        elif reasons:
            workers = "1 worker continues" if n_ready == 1 else f"{n_ready:,} workers continue"
            self._say("workers", f"{workers} without: {reasons}")


def _silent_seconds() -> float:
    return float(config.get("passes.silent-seconds"))


def differences(found: dict[str, str]) -> str:
    """Describe how a worker's versions differ from those of this process; "" if they agree."""
    return ", ".join(
        f"{name} {found.get(name)} instead of {version}"
        for name, version in versions().items()
        if found.get(name) != version
    )


def check_workers(client: Client, rows: Rows, seconds: float) -> None:
    """Check that the present workers can run a job over these rows.

    Workers that do not answer in time, or join later, are checked when the job begins.
    """
    network = Network(client, uuid4().hex[:12], current_selection())
    workers = Workers(network, rows, None, lambda kind, message: None, current_selection())
    until = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > until:
            raise TimeoutError

    try:
        with contextlib.suppress(TimeoutError):
            network.run(workers.look(), check)
    finally:
        network.run_last(drop_job, network.job)
