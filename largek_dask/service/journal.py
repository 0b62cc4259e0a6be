"""What processes have logged for each job: warnings and errors, in ``logs.jsonl`` of its folder."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from largek_dask.driver.storage import DamagedError, Folder
from largek_dask.errors import JobNotFoundError, LostJobError, ParameterError
from largek_dask.observe.carrying import MOST_OF_JOB, shortened
from largek_dask.service.credentials import options_of, output_folder
from largek_dask.service.fitting import LOG
from largek_dask.service.known import KnownJob
from largek_dask.service.lanes import Lanes
from largek_dask.service.lease import claimed_for
from largek_dask.service.register import Register

__all__ = ["LEVELS", "Journal", "Source"]

logger = logging.getLogger(__name__)

Source = Literal["driver", "worker"]
LEVELS = ("warning", "error", "critical")
WRITE_SECONDS = 0.25
MOST_BYTES = 8 << 20
"""A file of more is none of ours: 1,000 lines of 2 kB."""
FIELDS = {"run": int, "time": str, "level": str, "logger": str, "message": str, "left_out": int}


class _Log:
    """The lines of one job that are not in its file yet, or may be asked for."""

    def __init__(self) -> None:
        self.earlier: list[dict[str, Any]] | None = None
        """Those that the file had before; None: it has not been read."""
        self.lines: list[dict[str, Any]] = []
        self.n_written = 0

    def all(self) -> list[dict[str, Any]]:
        """All lines, the oldest first."""
        return [*(self.earlier or ()), *self.lines][:MOST_OF_JOB]


class Journal(threading.Thread):
    """Takes what is logged for jobs, and writes it into their folders.

    Parameters
    ----------
    register : Register
    """

    def __init__(self, register: Register) -> None:
        super().__init__(name="largek-journal", daemon=True)
        self._register = register
        self._logs: dict[str, _Log] = {}
        self._lock = threading.Lock()
        self._lanes = Lanes("largek-journal")
        self._over = threading.Event()
        self._in_trouble: set[str] = set()

    def take(self, source: Source, worker: str | None, entry: Mapping[str, Any]) -> None:
        """Take a line in; never waits. Whatever is no line of a job that there is, is dropped."""
        job_id = entry.get("job")
        if not isinstance(job_id, str) or job_id not in self._register.ids():
            return
        line = {name: entry[name] for name, kind in FIELDS.items() if type(entry.get(name)) is kind}
        if not {"time", "level", "message"} <= set(line):
            return
        with self._lock:
            log = self._logs.setdefault(job_id, _Log())
            if len(log.lines) < MOST_OF_JOB:
                log.lines.append({**line, "source": source, "worker": worker})

    def run(self) -> None:
        """Write lines as they come, until it is stopped; then those that are left."""
        while not self._over.wait(WRITE_SECONDS):
            self.write()
        self.write()

    def stop(self) -> None:
        """End after a last write."""
        self._over.set()

    def write(self) -> None:
        """Write all lines that are in no file yet."""
        if not self._register.loaded.is_set():
            return
        with self._lock:
            logs = dict(self._logs)
        for job_id, log in logs.items():
            self._lanes.run(job_id, partial(self._tend, job_id, log))

    def _tend(self, job_id: str, log: _Log) -> None:
        """Write the lines of one job, and let go of them where that is over."""
        try:
            job = self._register.find(job_id)
            self._write(job, log)
            self._in_trouble.discard(job_id)
        except (JobNotFoundError, LostJobError, FileNotFoundError):
            # It is removed, or another scheduler's.
            self._let_go(job_id, log)
        except Exception as error:  # drivers raise errors of their own kinds
            if job_id not in self._in_trouble:
                self._in_trouble.add(job_id)
                kind = type(error).__name__
                logger.warning("The log of %s cannot be written yet: %s", job_id, kind)
        else:
            if not job.running:
                self._let_go(job_id, log, if_written=True)

    def _let_go(self, job_id: str, log: _Log, *, if_written: bool = False) -> None:
        with self._lock:
            # A line may have come since the last look.
            if if_written and log.n_written < len(log.lines):
                return
            if self._logs.get(job_id) is log:
                del self._logs[job_id]

    def _write(self, job: KnownJob, log: _Log) -> None:
        count = len(log.lines)
        if count == log.n_written:
            return
        if job.lease is None:
            raise LostJobError(f"job {job.record.id} is not this scheduler's: wait for its claim.")
        folder = self._folder(job).guarded(job.lease.check)
        if log.earlier is None:
            log.earlier = _read(folder)
        for n in range(log.n_written, count):
            # Whatever the worker knew of: its scheduler knows all secrets of the job.
            log.lines[n] = shortened(_redacted(job, log.lines[n]))
        if lines := log.all():
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            folder.publish(LOG, text.encode())
        log.n_written = count

    def _folder(self, job: KnownJob) -> Folder:
        return output_folder(job.record.spec, options_of(job.record.spec, job.secrets))

    def lines(
        self,
        job_id: str,
        worker: str | None = None,
        source: str | None = None,
        level: str | None = None,
        n: int | None = None,
    ) -> list[dict[str, Any]]:
        """What has been logged for a job, the oldest first.

        Parameters
        ----------
        job_id : str
        worker : str, optional
            Of this worker alone, by its address.
        source : str, optional
            ``"driver"`` or ``"worker"``.
        level : str, optional
            Of this level or above: ``"warning"``, ``"error"`` or ``"critical"``.
        n : int, optional
            The last so many of these.

        Raises
        ------
        ParameterError
            There is no such source, level or number.
        """
        check_asked(source, level, n)
        job = self._register.find(job_id)
        with self._lock:
            log = self._logs.get(job_id)
        if log is not None:
            self._lanes.run(job_id, partial(self._tend, job_id, log))
        if log is not None and log.earlier is not None:
            # Some may not be written yet, where the folder hangs.
            found = [_redacted(job, line) for line in log.all()]
        else:
            folder = self._folder(job)
            is_own = claimed_for(folder) in (None, job_id)
            found = _read(folder) if is_own else []
        levels = LEVELS if level is None else LEVELS[LEVELS.index(level) :]
        found = [
            line
            for line in found
            if source in (None, line.get("source"))
            and worker in (None, line.get("worker"))
            and (level is None or str(line.get("level")).lower() in levels)
        ]
        return found if n is None else found[max(0, len(found) - n) :]


def _redacted(job: KnownJob, line: Mapping[str, Any]) -> dict[str, Any]:
    """A line without the job's secrets."""
    told = {name: job.redact(line.get(name, "")) for name in ("message", "logger")}
    return {**line, **told}


def check_asked(source: object, level: object, n: object) -> None:
    """Refuse a question about no log.

    Raises
    ------
    ParameterError
    """
    if source not in (None, "driver", "worker"):
        raise ParameterError(f"source must be 'driver' or 'worker', got {str(source)[:80]!r}.")
    if level is not None and level not in LEVELS:
        raise ParameterError(f"level must be one of {', '.join(LEVELS)}, got {str(level)[:80]!r}.")
    if n is not None and (type(n) is not int or n < 0):
        raise ParameterError(f"n must be a number of lines, 0 or more, got {str(n)[:80]!r}.")


def _read(folder: Folder) -> list[dict[str, Any]]:
    """The lines of a file, as far as they are any; nothing if there is none."""
    try:
        data = folder.read(LOG, MOST_BYTES)
    except (FileNotFoundError, DamagedError):
        return []
    found = []
    for text in data.splitlines()[:MOST_OF_JOB]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
