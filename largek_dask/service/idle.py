"""Workers end while no job wants them, and are asked for again when one does."""

from __future__ import annotations

import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Hashable

from largek_dask import config
from largek_dask.driver.stopping import ENDS
from largek_dask.driver.words import human_seconds
from largek_dask.errors import ParameterError
from largek_dask.service.job_state import JobState
from largek_dask.service.job_table import JobTable
from largek_dask.service.tenure import Tenure

__all__ = ["IdleWorkers"]

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Timeout of the command that starts workers."""
AGAIN_SECONDS = 300.0
"""Interval between two such commands while no worker comes: one may have ended just meanwhile."""


class IdleWorkers(threading.Thread):
    """Ends workers that have had no job for ``largek.service.idle-seconds``, and starts others.

    A file of the store says that they are to end, to whatever would start them again; who removes
    it lets them stay for as long once more. Workers begin again by the command
    ``largek.service.start-workers``, if that works here.

    Parameters
    ----------
    table : JobTable
    tenure : Tenure
    activity : callable
        Gives the workers that there are, as addresses, and anything that changes while they work.
    release : callable
        Ends all workers that hold nothing for anybody.
    clock : callable
        Seconds.

    Raises
    ------
    ParameterError
        The configuration is no number of seconds above 0.
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
        """Find out whether workers are wanted; end them, or ask for them."""
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
        """Ask for workers if they have ended; what has to be done by hand, if that fails.

        Returns
        -------
        str or None
            A sentence for whoever has submitted a job; None where workers come, or are there.
        """
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
    """Run a command; why that failed, in one line, or None."""
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
