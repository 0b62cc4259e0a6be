"""Admit workers to a job: they need the right versions, and access to the data."""

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

__all__ = ["Workers", "check_workers", "differences"]

WAIT_SECONDS = 0.2
"""Interval between two looks at a cluster without workers, in seconds."""
SLOW_SECONDS = 5.0
"""A worker that has not answered for so long is mentioned."""
RETRY_SECONDS = {"failed": 5.0, "versions": 30.0, "data": 30.0}
"""A worker that could not be asked, or cannot take part, is asked again after this."""


@dataclass(slots=True)
class _Ask:
    address: str
    answer: asyncio.Future[Any]
    since: float
    mentioned: bool = False


@dataclass(frozen=True, slots=True)
class _Absence:
    """Reason why a worker takes no work."""

    kind: Literal["paused", "silent", "failed", "versions", "data"]
    text: str
    since: float = 0.0
    """Time at which it was found out."""


class _Unfit(Exception):
    def __init__(self, kind: Literal["versions", "data"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Workers:
    """The workers that know a job over these rows.

    Parameters
    ----------
    memory_limit : int or None
        Budget of row state in bytes, per worker.
    say : callable
        ``say(kind, message)`` reports progress to the user.
    pick : WorkerSelection, optional
        Which workers the job may use, at least and at most.
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
        """Bytes of row state that the workers seen last may keep together; None: not known."""
        self.n_threads = 0
        """Threads of the workers that were ready last."""
        self._ready: frozenset[str] = frozenset()
        self._admitted: set[str] = set()
        self._asks: dict[str, _Ask] = {}
        """Questions to workers that are not admitted."""
        self._refused: dict[str, _Absence] = {}
        """Workers that cannot take part or be asked; some time later they are asked again."""
        self._heard: dict[str, tuple[float, float]] = {}
        """Last heartbeat of each worker by the scheduler's clock, and when it was new here."""
        self._absent: dict[str, _Absence] = {}
        self._told: tuple[bool, frozenset[tuple[str, str]]] = (True, frozenset())
        self._pick = pick
        self._tags: list[frozenset[str]] = []
        """Tags of all workers of the cluster when they were looked at last."""
        self._short: tuple[Any, ...] | None = None
        """State that was reported with the shortage of workers; None: there are enough."""

    async def begin(self) -> None:
        """Prepare all workers, present and future."""
        await self._network.register(WorkPlugin(), _patience())
        await self._network.prepare_scheduler()
        await self.ready(wait_for=None, begin=True)

    async def look(self) -> None:
        """As :meth:`begin`, but without waiting for workers where there are none."""
        await self._network.register(WorkPlugin(), _patience())
        if await self._found():
            await self.ready(wait_for=None, begin=True)

    async def ready(
        self, wait_for: Collection[str] | None = (), begin: bool = False
    ) -> dict[str, int]:
        """Return the threads by address of the workers that may compute; wait while there are none.

        Workers that are paused or silent, have other versions or cannot open the data are left out,
        and named. New workers, which load their code first, are not waited for, except briefly.

        Raises VersionMismatchError if all have other versions, or some have and the others cannot
        open the data; and DataError if none can open the data.

        Parameters
        ----------
        wait_for : collection of str or None
            Workers whose answers are waited for nevertheless; None: all.
        begin : bool
            There has to be a worker that can take part, or may be able to.
        """
        while True:
            found = await self._found()
            present = self._look(found)
            asked = self._asked_of(present)
            awaited = [ask for ask in asked if wait_for is None or ask.address in wait_for]
            if not any(address in self._admitted for address in present):
                awaited = asked
            if awaited:
                # Whoever does not answer is waited for until it counts as silent.
                waiting = [ask.answer for ask in awaited]
                if (await asyncio.wait(waiting, timeout=WAIT_SECONDS))[1]:
                    self._mention(awaited)
                    continue
            elif new := [ask for ask in asked if time.monotonic() - ask.since < WAIT_SECONDS]:
                # One that has its code already is there in a moment.
                await asyncio.wait([ask.answer for ask in new], timeout=WAIT_SECONDS)
            if answered := [ask for ask in self._asks.values() if ask.answer.done()]:
                self._take_answers(answered)
                continue
            ready = {a: n for a, n in present.items() if a in self._admitted}
            if self._pick is not None:
                ready = self._pick.choose(ready, present)
            if begin and found:
                self._raise_if_all_are_unfit(found)
            self._tell(len(ready))
            self._ready = frozenset(ready)
            if ready:
                self.n_threads = sum(ready.values())
                return ready
            await asyncio.sleep(WAIT_SECONDS)

    async def enough(self) -> dict[str, int]:
        """As :meth:`ready`; waits while there are fewer than the job asks for."""
        while True:
            ready = await self.ready()
            if self._pick is None or len(ready) >= self._pick.least:
                break
            if self._short != self._told:
                # Again where something else has been said meanwhile.
                self._short = self._told
                why = explain_shortage(self._pick, len(ready), self._tags)
                self._say("waiting", f"{why}; waiting for more")
            await asyncio.sleep(WAIT_SECONDS)
        if self._short is not None:
            self._short = None
            self._say("workers", f"{len(ready):,} workers are there: going on")
        return ready

    async def _found(self) -> dict[str, WorkerInfo]:
        """The workers that the job may use, by address."""
        found = await self._network.workers()
        self._tags = [info.tags for info in found.values()]
        if self._pick is None:
            return found
        return {a: info for a, info in found.items() if self._pick.allows(info.tags)}

    @property
    def seen(self) -> frozenset[str]:
        """Those that could compute when they were looked at last."""
        return self._ready

    def takes_tasks(self, address: str) -> bool:
        """Return True if a worker could compute when they were looked at last."""
        return address in self._ready

    def forget(self, address: str) -> None:
        """Ask a worker again: it no longer knows the job, or never did."""
        self._admitted.discard(address)
        self._refused.pop(address, None)
        self._asks.pop(address, None)

    def is_lost(self, address: str, since: float) -> bool:
        """Return True if a worker that was asked at ``since`` is no longer waited for.

        The scheduler has removed it: at once. (Dask gives its tasks to another worker, all to the
        same, and to nobody if there is nobody at that moment.) It is silent: at once, too. Or it
        has been paused all the time that one would wait for a silent one.
        """
        if address not in self._heard:
            return True
        why = self._absent.get(address)
        if why is None:
            return False
        return why.kind == "silent" or time.monotonic() - since > _patience()

    def _look(self, found: dict[str, WorkerInfo]) -> dict[str, int]:
        """Threads of the workers that take tasks; why the others do not is kept."""
        now = time.monotonic()
        # By the clock of this process, as the scheduler's may be another: a worker is silent
        # once its last heartbeat has been the same one for too long.
        self._heard = {
            address: before
            if (before := self._heard.get(address, (0.0, 0.0)))[0] == info.last_seen
            else (info.last_seen, now)
            for address, info in found.items()
        }
        self._admitted &= set(found)
        self._asks = {a: ask for a, ask in self._asks.items() if a in found}
        self._refused = {a: why for a, why in self._refused.items() if a in found}
        limits = [info.memory_limit for info in found.values()]
        # Chunks are shared out evenly, so the smallest worker tells; 0 is no limit that is known.
        least = state_budget(self._job.memory_limit, min(limits, default=0))
        n_used = len(limits) if self._pick is None else self._pick.count(len(limits))
        self.state_limit = n_used * least or None
        self._absent, present = {}, {}
        for address, info in found.items():
            ask = self._asks.get(address)
            unheard = now - self._heard[address][1]
            unanswered = now - ask.since if ask and not ask.answer.done() else 0.0
            if max(unheard, unanswered) > _patience():
                what = "been heard of" if unheard >= unanswered else "answered"
                text = f"has not {what} for {max(unheard, unanswered):.0f} s"
                self._absent[address] = _Absence("silent", text)
            elif info.status == "paused":
                used = f"{info.memory / 1e9:.1f} of {info.memory_limit / 1e9:.1f} GB used"
                text = f"is paused by Dask for want of memory ({used})"
                self._absent[address] = _Absence("paused", text)
            elif address in self._refused:
                self._absent[address] = why = self._refused[address]
                if ask is None and now - why.since > RETRY_SECONDS[why.kind]:
                    self._ask(address)
            elif info.status == "running":
                present[address] = info.n_threads
        return present

    def _asked_of(self, present: Iterable[str]) -> list[_Ask]:
        new = [address for address in present if address not in self._admitted]
        for address in new:
            if address not in self._asks:
                self._ask(address)
        return [self._asks[address] for address in new]

    def _ask(self, address: str) -> None:
        answer = self._network.spawn(self._answer(address))
        self._asks[address] = _Ask(address, answer, time.monotonic())

    async def _answer(self, address: str) -> None:
        """Ask a worker whether it can take part.

        The data's storage options go to nobody who has other versions: there they might be logged.
        """
        found = await self._network.call(versions, worker=address)
        if isinstance(found, ImportError | AttributeError):
            raise _Unfit("versions", f"cannot import this version of largek_dask ({found})")
        if isinstance(found, Exception):
            raise found
        if found != self._versions:
            raise _Unfit("versions", f"has {differences(found)}")
        why_not = await self._network.call(admit, self._job, self._shape, worker=address)
        if isinstance(why_not, Exception):
            raise why_not
        if why_not is not None:
            raise _Unfit("data", f"cannot open {self._where}: {why_not}")

    def _mention(self, asked: list[_Ask]) -> None:
        """Say once of whoever is slow to answer that it is waited for."""
        for ask in asked:
            slow = time.monotonic() - ask.since > SLOW_SECONDS and not ask.answer.done()
            if slow and not ask.mentioned:
                ask.mentioned = True
                self._say("waiting", f"{ask.address} has not answered yet; waiting for it")

    def _take_answers(self, asked: list[_Ask]) -> None:
        now = time.monotonic()
        for ask in asked:
            del self._asks[ask.address]
            error = ask.answer.exception()
            if error is None:
                self._refused.pop(ask.address, None)
                self._admitted.add(ask.address)
            elif isinstance(error, _Unfit):
                self._refused[ask.address] = _Absence(error.kind, str(error), now)
            else:
                # It left meanwhile; if it did not, it is asked again.
                text = f"did not answer: {str(error) or type(error).__name__}"
                self._refused[ask.address] = _Absence("failed", text, now)

    def _raise_if_all_are_unfit(self, found: Iterable[str]) -> None:
        """Say why nobody who is there can take part; nothing if anybody may."""
        why = {address: self._absent.get(address) for address in found}
        kinds = {"" if absence is None else absence.kind for absence in why.values()}
        reasons = "; ".join(
            f"{address} {absence.text}" for address, absence in why.items() if absence
        )
        if "versions" in kinds and kinds <= {"versions", "data"}:
            raise VersionMismatchError(
                f"no worker can take part: {reasons}. "
                "Install the same versions everywhere and restart the workers."
            )
        if kinds == {"data"}:
            # To whoever would wait: what is not there may be again.
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._where)
            raise DataError(
                f"no worker can open the data: {reasons}. "
                "Every worker has to reach the data under this very address (rows of this "
                "process are written to largek.passes.spill-folder)."
            ) from gone

    def _tell(self, n_ready: int) -> None:
        """Say what has changed: nobody there, somebody again, somebody left out."""
        now = (n_ready > 0, frozenset((a, why.kind) for a, why in self._absent.items()))
        if now == self._told:
            return
        before, self._told = self._told, now
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
            there = "1 worker is" if n_ready == 1 else f"{n_ready:,} workers are"
            self._say("workers", f"{there} there: going on{without}")
        elif reasons:
            go = "1 worker goes" if n_ready == 1 else f"{n_ready:,} workers go"
            self._say("workers", f"{go} on without: {reasons}")


def _patience() -> float:
    return float(config.get("passes.silent-seconds"))


def differences(found: dict[str, str]) -> str:
    """Return how the versions of a worker differ from those of this process; "" if they do not."""
    return ", ".join(
        f"{name} {found.get(name)} instead of {version}"
        for name, version in versions().items()
        if found.get(name) != version
    )


def check_workers(client: Client, rows: Rows, seconds: float) -> None:
    """Ask the workers that are there whether they can take part in a job over these rows.

    Workers that do not answer in time, or are not there yet, are asked when the job begins.
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
