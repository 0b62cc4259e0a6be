"""Warnings and errors that are logged for a job go to its scheduler at once.

A worker that dies takes its log with it, unless somebody has it already. So each line that a thread
logs while it works for a job (``context.working``), of level ``WARNING`` and above, is sent as it
is logged: at most 10 a second and 1,000 a job from one process, 2 kB each, without the secrets that
this process knows of. What is left out is counted, and told with the next line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from largek_dask.context import Working, working
from largek_dask.observe.logs import message_of
from largek_dask.redaction import redacted_line

__all__ = ["MOST_OF_JOB", "OPERATION", "Limits", "carry", "carry_no_more", "entry_of", "sender"]

OPERATION = "largek-log"
"""What a worker calls the scheduler's stream with."""
MOST_A_SECOND, MOST_OF_JOB, MOST_BYTES = 10, 1_000, 2_000
LOGGERS = ("", "distributed")
"""Loggers that are listened to: the root, and that of Dask, whose lines do not come there."""

SENT = "largek_sent"
"""Mark of a line that two loggers hand on."""

Send = Callable[[dict[str, Any]], object]


class Limits:
    """How many lines of each job are let through.

    Parameters
    ----------
    clock : callable
        Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second, self._in_second = -1, 0
        self._of_job: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, job_id: str) -> int | None:
        """How many lines of this job were left out before this one; None: so is this one."""
        with self._lock:
            second = int(self._clock())
            if second != self._second:
                self._second, self._in_second = second, 0
            if self._in_second >= MOST_A_SECOND or self._of_job[job_id] >= MOST_OF_JOB:
                self._left_out[job_id] += 1
                return None
            self._in_second += 1
            self._of_job[job_id] += 1
            return self._left_out.pop(job_id, 0)


class Carrier(logging.Handler):
    """Sends the lines of this process's jobs, those of each worker by itself."""

    is_beside = True
    """It stands beside handlers that print, and in place of none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.drivers: list[Send] = []
        self.workers: dict[Any, Send] = {}
        self.limits = Limits()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line, if it is a job's."""
        try:
            job = working()
            if job is not None and not getattr(record, SENT, False):
                setattr(record, SENT, True)
                senders = self._senders()
                left_out = self.limits.take(job.job_id) if senders else None
                if left_out is not None:
                    entry = entry_of(record, job, left_out)
                    for send in senders:
                        send(entry)
        except Exception:
            # A log is not worth a job.
            self.handleError(record)
        if self._is_alone(record) and logging.lastResort is not None:
            # Python prints what nobody handles; this handler is nobody in that sense.
            logging.lastResort.handle(record)

    def _senders(self) -> list[Send]:
        """Those of whoever this thread belongs to."""
        if (worker := _this_worker()) is not None:
            return [self.workers[worker]] if worker in self.workers else []
        if self.drivers:
            # Of several schedulers in a process each knows which jobs are its own.
            return list(self.drivers)
        # A thread of its own, of a process that is a worker.
        return list(self.workers.values())[:1]

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """Whether no other handler is asked about this line."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


_carrier = Carrier()


def carry(send: Send, worker: Any = None) -> None:
    """Send lines of jobs from now on.

    Parameters
    ----------
    send : callable
        Takes an entry; called by any thread, and must not wait.
    worker : distributed.Worker, optional
        Whose lines they are; without it those of a scheduler.
    """
    if worker is None:
        _carrier.drivers.append(send)
    else:
        _carrier.workers[worker] = send
    for name in LOGGERS:
        logging.getLogger(name).addHandler(_carrier)


def carry_no_more(send: Send | None = None, worker: Any = None) -> None:
    """Send no lines of this scheduler, or this worker, any more."""
    if send in _carrier.drivers:
        _carrier.drivers.remove(send)
    _carrier.workers.pop(worker, None)
    if not (_carrier.drivers or _carrier.workers):
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(_carrier)


def sender(worker: Any) -> Send:
    """Sends entries of a worker to its scheduler."""

    def sent(entry: dict[str, Any]) -> None:
        # A worker that has lost its scheduler has nobody to tell.
        with contextlib.suppress(OSError):
            worker.batched_stream.send({"op": OPERATION, "entry": entry})

    return lambda entry: worker.loop.add_callback(sent, entry)


def entry_of(record: logging.LogRecord, job: Working, left_out: int = 0) -> dict[str, Any]:
    """A line as it is sent: in all no more than 2 kB of JSON."""
    entry: dict[str, Any] = {
        "job": job.job_id,
        "run": job.run,
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname[:20],
        "logger": record.name[:100],
        "message": redacted_line(message_of(record)),
        **({"left_out": left_out} if left_out else {}),
    }
    return shortened(entry)


def shortened(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of no more than 2 kB: its message is cut."""
    message = str(entry["message"])[: MOST_BYTES + 1]
    if len(message) > MOST_BYTES:
        entry = {**entry, "message": message}
    while (over := len(json.dumps(entry)) - MOST_BYTES) > 0 and message:
        # A letter takes up to 12 bytes of JSON, and the mark of what is left out 6.
        message = message[: max(0, len(message) - over // 12 - 1)]
        entry = {**entry, "message": f"{message}…"}
    return entry


def _this_worker() -> Any:
    """The worker that this thread works for; None for others."""
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None
