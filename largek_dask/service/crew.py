"""The workers of a scheduler, as whoever looks after them sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from largek_dask import config
from largek_dask.errors import ClusterError, ParameterError
from largek_dask.passes.admission import differences, told_of
from largek_dask.passes.worker import versions
from largek_dask.service.job_state import JobState

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Crew"]

ANSWER_SECONDS = 3.0
"""How long a worker may take to say which versions it has."""
RETIRE_SECONDS = 60.0
"""How long it may take to bring what a worker holds to others."""
STATUS = {"init": "has not started yet", "paused": "is paused by Dask for want of memory",
          "closing": "is closing", "closing_gracefully": "is being retired"}  # fmt: skip
"""States of Dask's in which a worker takes no tasks, in words."""


class Crew:
    """Tells of the workers of a scheduler, and lets one go. From any thread but its event loop.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    running : callable
        Gives the jobs that run.
    connect : callable
        Gives the client of all jobs.
    loop : event loop
        The scheduler's.
    clock : callable
        Seconds since 1970: the scheduler's clock, by which workers were last seen.
    """

    def __init__(
        self,
        scheduler: Any,
        running: Callable[[], list[JobState]],
        connect: Callable[[], Client],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._scheduler = scheduler
        self._running = running
        self._connect = connect
        self._loop = loop
        self._clock = clock
        self._versions: dict[str, dict[str, str]] = {}
        """What each worker has answered, by Dask's name of its process."""

    def rows(self) -> list[dict[str, Any]]:
        """Of each worker, the first by name first: see ``Service.workers``."""
        # The copy of the table is one step of the interpreter.
        workers = tuple(dict.values(self._scheduler.workers))
        told = self._told_versions(workers)
        jobs = self._running()
        rows = [self._row(worker, told[worker.address], jobs) for worker in workers]
        return sorted(rows, key=lambda row: (row["name"], row["address"]))

    def _row(
        self, worker: Any, told: dict[str, str] | Exception, jobs: list[JobState]
    ) -> dict[str, Any]:
        known = told if isinstance(told, dict) else {}
        silent = max(0.0, self._clock() - float(worker.last_seen))
        return {
            "address": worker.address,
            "name": str(worker.name),
            "tags": {str(name): float(n) for name, n in worker.resources.items()},
            "version": known.get("largek_dask"),
            "threads": int(worker.nthreads),
            "status": worker.status.name,
            "chunks": sum(_chunks(job, worker.address) for job in jobs),
            "memory": int(worker.metrics.get("memory") or 0),
            "memory_limit": worker.memory_limit or None,
            "silent": round(silent, 1),
            "why": _why(worker, told, silent, jobs),
        }

    def _told_versions(self, workers: Iterable[Any]) -> dict[str, dict[str, str] | Exception]:
        """Versions that each worker has, or why it does not say; none changes while it runs."""
        workers = tuple(workers)
        there = {worker.server_id for worker in workers}
        self._versions = {name: told for name, told in self._versions.items() if name in there}
        new = [worker.address for worker in workers if worker.server_id not in self._versions]
        answers = {}
        if new:
            client = self._connect()
            answers = dict(zip(new, client.sync(_asked, client, new), strict=True))
        found: dict[str, dict[str, str] | Exception] = {}
        for worker in workers:
            told = self._versions.get(worker.server_id, answers.get(worker.address))
            if isinstance(told, dict):
                self._versions[worker.server_id] = told
                found[worker.address] = told
            else:
                found[worker.address] = (
                    told if isinstance(told, Exception) else TimeoutError("no answer")
                )
        return found

    def retire(self, name: str) -> str:
        """Let a worker go: what it holds is brought to others, and it ends. Its address.

        Jobs lose nothing: its chunks go to others.

        Parameters
        ----------
        name : str
            Its address or name.

        Raises
        ------
        ParameterError
            There is none.
        ClusterError
            It cannot go now.
        """
        workers = tuple(dict.values(self._scheduler.workers))
        found = [str(w.address) for w in workers if name in (w.address, str(w.name))]
        if len(found) != 1:
            there = ", ".join(sorted(worker.address for worker in workers)[:5]) or "none"
            raise ParameterError(
                f"there is no worker {str(name)[:100]!r}, or several: give an address, such as "
                f"one of {there}."
            )
        work = self._scheduler.retire_workers(workers=found, close_workers=True, remove=True)
        asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            gone = asked.result(RETIRE_SECONDS)
        except TimeoutError:
            asked.cancel()
            gone = {}
        if found[0] not in gone:
            raise ClusterError(
                f"the worker {found[0]} cannot be retired now: no other one takes what it holds. "
                "Start another worker first, or try again."
            )
        return found[0]


def _chunks(job: JobState, address: str) -> int:
    """Chunks that a worker has computed for a job since it runs here, as it was told last."""
    figures = job.feed.figures().get("workers") or {}
    return int(figures.get(address, {}).get("chunks", 0))


async def _asked(client: Any, addresses: list[str]) -> list[Any]:
    """What each worker says of its versions, or the error."""

    async def one(address: str) -> Any:
        asked = client.run(versions, workers=[address], on_error="return", asynchronous=True)
        return (await asyncio.wait_for(asked, ANSWER_SECONDS))[address]

    return await asyncio.gather(*map(one, addresses), return_exceptions=True)


def _why(
    worker: Any, told: dict[str, str] | Exception, silent: float, jobs: list[JobState]
) -> str | None:
    """Why a worker takes no work of jobs; None where it does, as far as that is known."""
    if silent > float(config.get("passes.silent-seconds")):
        return f"has not been heard of for {silent:.0f} s"
    if worker.status.name != "running":
        return STATUS.get(worker.status.name, f"is {worker.status.name}")
    if isinstance(told, ImportError | AttributeError):
        return f"cannot import this version of largek_dask ({told})"
    if isinstance(told, Exception):
        return f"does not answer ({type(told).__name__})"
    if differ := differences(told):
        return f"has {differ}"
    for job in jobs:
        if (why := told_of(job.about_workers, worker.address)) is not None:
            return f"{why} (job {job.record.id})"
    return None
