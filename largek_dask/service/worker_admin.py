"""The workers of a scheduler for administrators: overview, retirement, and when there are none."""

from __future__ import annotations

import asyncio
import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from largek_dask import config
from largek_dask.driver.formatting import human_seconds
from largek_dask.driver.stopping import ENDS
from largek_dask.errors import ClusterError, ParameterError
from largek_dask.passes.admission import differences, told_of
from largek_dask.passes.worker import versions
from largek_dask.service.job_state import JobState
from largek_dask.service.job_table import JobTable
from largek_dask.service.lease import Tenure

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Crew", "IdleWorkers"]

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0
"""How long a worker may take to say which versions it has."""
RETIRE_SECONDS = 60.0
"""How long it may take to bring what a worker holds to others."""
STATUS = {"init": "has not started yet", "paused": "is paused by Dask for want of memory",
          "closing": "is closing", "closing_gracefully": "is being retired"}  # fmt: skip
"""States of Dask's in which a worker takes no tasks, in words."""


class Crew:
    """Overview of a scheduler's workers, and retirement; for threads other than its event loop."""

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

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per worker, by name: see ``Service.workers``."""
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
            "memory": int(worker.metrics.get("memory") or 0),
            "memory_limit": worker.memory_limit or None,
            "silent": round(silent, 1),
            "why": _why(worker, told, silent, jobs),
        }

    def _told_versions(self, workers: Iterable[Any]) -> dict[str, dict[str, str] | Exception]:
        """Return the versions of each worker, or the error; they do not change while it runs."""
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
        """Retire a worker by its address or name, and return its address.

        What it holds is moved to others, so jobs lose nothing.
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


async def _asked(client: Any, addresses: list[str]) -> list[Any]:
    async def one(address: str) -> Any:
        asked = client.run(versions, workers=[address], on_error="return", asynchronous=True)
        return (await asyncio.wait_for(asked, ANSWER_SECONDS))[address]

    return await asyncio.gather(*map(one, addresses), return_exceptions=True)


def _why(
    worker: Any, told: dict[str, str] | Exception, silent: float, jobs: list[JobState]
) -> str | None:
    """Return why a worker takes no work of jobs; None if it does, as far as is known."""
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


START_SECONDS = 120.0
AGAIN_SECONDS = 300.0
"""Interval between two such commands while no worker comes: one may have ended just meanwhile."""


class IdleWorkers(threading.Thread):
    """Ends workers that have had no job for ``largek.service.idle-seconds``, and starts others.

    A file of the store says that they are to end, to whatever would start them again; who removes
    it lets them stay for as long once more. Workers begin again by the command
    ``largek.service.start-workers``, if that works here. ``activity`` returns the workers'
    addresses and a value that changes while they work; ``release`` ends all workers.
    """

    def __init__(
        self,
        table: JobTable,
        tenure: Tenure,
        activity: Callable[[], tuple[frozenset[str], Hashable]],
        release: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="largek-idle", daemon=True)
        seconds = config.get("service.idle-seconds")
        self._seconds = None if seconds is None else float(seconds)
        if self._seconds is not None and not self._seconds > 0.0:
            raise ParameterError(
                f"largek.service.idle-seconds is {seconds}: give a number of seconds above 0, or "
                "null for workers that stay."
            )
        self._table = table
        self._tenure = tenure
        self._activity = activity
        self._release = release
        self._clock = clock
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._seen: object = None
        self._since = clock()
        """When there was something to do last."""
        self._asked: float | None = None
        """When workers were asked for, while none has come; None: they have not been."""
        self._advice: str | None = None
        """What has to be done by hand, as that has failed."""

    @property
    def is_on(self) -> bool:
        """Whether workers end at all."""
        return self._seconds is not None

    def run(self) -> None:
        """Look after the workers until this is stopped."""
        trouble = ""
        while not self._over.wait(float(config.get("service.beat-seconds"))):
            try:
                if self._table.loaded.is_set():
                    self.tend()
                trouble = ""
            except Exception as error:
                records = self._tenure.records
                if (reason := records.reason(error)) != trouble:
                    logger.warning("Workers stay as they are: %s: %s", records.url, reason)
                trouble = reason

    def stop(self) -> None:
        """End after what is just being done."""
        self._over.set()

    def tend(self) -> None:
        """End workers that are not wanted, or ask for them."""
        assert self._seconds is not None
        with self._lock:
            records, now = self._tenure.records, self._clock()
            workers, work = self._activity()
            wanted = any(map(self._wants, self._table.jobs()))
            is_idle = records.is_idle()
            if wanted or self._seen != (workers, work, is_idle):
                self._seen, self._since = (workers, work, is_idle), now
            if workers:
                self._asked = self._advice = None
            if wanted:
                self._start(now)
            elif workers and now - self._since >= self._seconds:
                logger.info("No job for %s: workers end", human_seconds(self._seconds))
                if not is_idle:
                    records.set_idle(True)
                self._release()
                # Those that hold something for a client stay, and are asked again as much later.
                self._since = now

    def ask_for_workers(self) -> str | None:
        """Ask for workers if they have ended; return what has to be done by hand, if that fails."""
        if self._seconds is None or not any(map(self._wants, self._table.jobs())):
            return None
        with self._lock:
            return self._start(self._clock())

    def _wants(self, job: JobState) -> bool:
        if job.running:
            return True
        return job.state not in ENDS and job.reason not in ("credentials", "version")

    def _start(self, now: float) -> str | None:
        records = self._tenure.records
        if records.is_idle():
            records.set_idle(False)
        elif self._asked is None or now - self._asked < AGAIN_SECONDS:
            return self._advice
        self._asked, self._advice = now, None
        command = config.get("service.start-workers")
        if command is None:
            reason, line = "largek.service.start-workers is not set", "the command that starts them"
        else:
            words = shlex.split(command) if isinstance(command, str) else list(map(str, command))
            line = f"`{shlex.join(words)}` where you submit jobs"
            if (failed := _failure(words)) is None:
                logger.info("Workers are asked for: %s", shlex.join(words))
                return None
            reason = failed
        self._advice = (
            "the workers have ended, as there was no job, and cannot be started from the "
            f"scheduler's node ({reason}): type {line}; the job begins then"
        )
        logger.warning("%s", self._advice)
        return self._advice


def _failure(words: list[str]) -> str | None:
    """Run a command, and return why that failed, in one line, or None."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=START_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {getattr(error, 'strerror', None) or error}"
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1].strip() if said else f"{words[0]} has ended with {done.returncode}"
