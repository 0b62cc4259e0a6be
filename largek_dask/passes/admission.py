"""Which workers may take part in a job: the right versions, and access to the data."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from distributed import Client

from largek_dask import config
from largek_dask.data.rows import Rows
from largek_dask.errors import DataError, VersionMismatchError
from largek_dask.passes.local import state_budget
from largek_dask.passes.network import Network, WorkerInfo
from largek_dask.passes.worker import WorkPlugin, admit, drop_job, versions

__all__ = ["Workers", "check_workers"]

WAIT_SECONDS = 0.2
"""How often a cluster without workers is asked whether there are any."""
SLOW_SECONDS = 5.0
"""A worker that has not answered for so long is mentioned."""
RETRY_SECONDS = 5.0
"""A worker that could not be asked is asked again after this."""


@dataclass(slots=True)
class _Ask:
    """A question to one worker whether it can take part."""

    address: str
    answer: asyncio.Future[Any]
    since: float
    mentioned: bool = False
    error: str = ""
    """Why there was no answer."""


@dataclass(frozen=True, slots=True)
class _Absence:
    """Why a worker takes no work."""

    kind: Literal["paused", "silent", "failed"]
    text: str


class Workers:
    """The workers that know a job.

    Parameters
    ----------
    network : Network
    rows : Rows
        What they have to be able to open.
    memory_limit : int or None
        Budget of row state in bytes, per worker.
    say : callable
        ``say(kind, message)``, for what a user should know meanwhile.
    """

    def __init__(
        self,
        network: Network,
        rows: Rows,
        memory_limit: int | None,
        say: Callable[[str, str], None],
    ) -> None:
        self._network = network
        self._where = rows.location
        self._shape = rows.shape
        self._say = say
        # Plain values: workers of other versions have to understand them too.
        self._job: dict[str, Any] = {
            "id": network.job,
            "rows": pickle.dumps(rows),
            "memory_limit": memory_limit,
            "cache_bytes": int(config.get("passes.cache-bytes")),
            "versions": versions(),
        }
        self.state_limit: int | None = None
        """Bytes of row state that the workers seen last may keep together; None: not known."""
        self.n_threads = 0
        """Threads of the workers that were ready last."""
        self._admitted: set[str] = set()
        self._asks: dict[str, _Ask] = {}
        """Questions to workers that are not admitted."""
        self._heard: dict[str, tuple[float, float]] = {}
        """Last heartbeat of each worker by the scheduler's clock, and when it was new here."""
        self._absent: dict[str, _Absence] = {}
        self._told: tuple[bool, frozenset[tuple[str, str]]] = (True, frozenset())

    async def begin(self) -> None:
        """Prepare all workers, present and future."""
        await self._network.register(WorkPlugin(), _patience())
        await self.ready(wait_for=None)

    async def look(self) -> None:
        """As :meth:`begin`, but without waiting for workers where there are none."""
        await self._network.register(WorkPlugin(), _patience())
        if await self._network.workers():
            await self.ready(wait_for=None)

    async def ready(self, wait_for: Collection[str] | None = ()) -> dict[str, int]:
        """Threads by address of the workers that may compute; waits while there are none.

        Workers that are paused or silent are left out, and named. Those that have just come answer
        when they have loaded their code: the others do not wait for that, but for a moment.

        Parameters
        ----------
        wait_for : collection of str or None
            Workers whose answers are waited for nevertheless; None: all.

        Raises
        ------
        VersionMismatchError
            Some have other versions of this package, of Python or of numba.
        DataError
            Some cannot open the data, or find something else there.
        """
        while True:
            present = self._look(await self._network.workers())
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
            if answered := [ask for ask in asked if ask.answer.done()]:
                self._take_answers(answered)
                continue
            ready = {a: n for a, n in present.items() if a in self._admitted}
            self._tell(len(ready))
            if ready:
                self.n_threads = sum(ready.values())
                return ready
            await asyncio.sleep(WAIT_SECONDS)

    def forget(self, address: str) -> None:
        """Ask a worker again: it no longer knows the job, or never did."""
        self._admitted.discard(address)
        self._asks.pop(address, None)

    def is_lost(self, address: str, since: float) -> bool:
        """Whether not to wait for a worker any longer, asked for something at ``since``.

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
        self._asks = {
            address: ask
            for address, ask in self._asks.items()
            if address in found and not (ask.error and now - ask.since > RETRY_SECONDS)
        }
        limits = [info.memory_limit for info in found.values()]
        # Chunks are shared out evenly, so the smallest worker tells; 0 is no limit that is known.
        least = state_budget(self._job["memory_limit"], min(limits, default=0))
        self.state_limit = len(limits) * least or None
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
            elif ask is not None and ask.error:
                self._absent[address] = _Absence("failed", f"did not answer: {ask.error}")
            elif info.status == "running":
                present[address] = info.n_threads
        return present

    def _asked_of(self, present: Iterable[str]) -> list[_Ask]:
        """Questions to all present workers that are not admitted yet."""
        new = [address for address in present if address not in self._admitted]
        for address in new:
            if address not in self._asks:
                call = self._network.call(admit, self._job, self._shape, worker=address)
                self._asks[address] = _Ask(address, self._network.spawn(call), time.monotonic())
        return [self._asks[address] for address in new]

    def _mention(self, asked: list[_Ask]) -> None:
        """Say once of whoever is slow to answer that it is waited for."""
        for ask in asked:
            slow = time.monotonic() - ask.since > SLOW_SECONDS and not ask.answer.done()
            if slow and not ask.mentioned:
                ask.mentioned = True
                self._say("waiting", f"{ask.address} has not answered yet; waiting for it")

    def _take_answers(self, asked: list[_Ask]) -> None:
        """Admit workers by their answers."""
        wrong, blind = [], []
        for ask in asked:
            address, answer = ask.address, ask.answer.result()
            if isinstance(answer, ImportError | AttributeError):
                wrong.append(f"{address} cannot import this version of largek_dask ({answer})")
            elif isinstance(answer, Exception):
                # It left meanwhile; if it did not, it is asked again.
                ask.error = str(answer) or type(answer).__name__
                continue
            elif answer[0] != self._job["versions"]:
                wrong.append(f"{address} has {_differences(answer[0], self._job['versions'])}")
            elif answer[1] is not None:
                blind.append(f"{address}: {answer[1]}")
            else:
                self._admitted.add(address)
            self._asks.pop(address, None)
        if wrong:
            raise VersionMismatchError(
                "workers run other versions than this process: " + "; ".join(wrong) + ". "
                "Install the same versions everywhere and restart the workers."
            )
        if blind:
            raise DataError(
                f"workers cannot open {self._where}: " + "; ".join(blind) + ". "
                "Every worker has to reach the data under this very address (rows of this "
                "process are written to largek.passes.spill-folder)."
            )

    def _tell(self, n_ready: int) -> None:
        """Say what has changed: nobody there, somebody again, somebody left out."""
        now = (n_ready > 0, frozenset((a, why.kind) for a, why in self._absent.items()))
        if now == self._told:
            return
        before, self._told = self._told, now
        reasons = "; ".join(f"{address} {why.text}" for address, why in self._absent.items())
        if not n_ready and reasons:
            self._say("waiting", f"no worker can take work: {reasons}; waiting for one")
        elif not n_ready:
            self._say("waiting", "the cluster has no workers; waiting for one")
        elif not before[0]:
            without = f" without: {reasons}" if reasons else ""
            self._say("workers", f"{n_ready} workers are there: going on{without}")
        elif reasons:
            self._say("workers", f"{n_ready} workers go on without: {reasons}")


def _patience() -> float:
    """Seconds without a sign after which a worker is no longer waited for."""
    return float(config.get("passes.silent-seconds"))


def _differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    return ", ".join(
        f"{name} {found.get(name)} instead of {version}"
        for name, version in wanted.items()
        if found.get(name) != version
    )


def check_workers(client: Client, rows: Rows, seconds: float) -> None:
    """Ask the workers that are there whether they can take part in a job over these rows.

    Workers that do not answer in time, or are not there yet, are asked when the job begins.

    Raises
    ------
    VersionMismatchError, DataError
        See :meth:`Workers.ready`.
    """
    network = Network(client, uuid4().hex[:12])
    workers = Workers(network, rows, None, lambda kind, message: None)
    until = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > until:
            raise TimeoutError

    try:
        with contextlib.suppress(TimeoutError):
            network.run(workers.look(), check)
    finally:
        network.run_last(drop_job, network.job)
