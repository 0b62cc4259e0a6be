"""The log of a process: lines name their job, and the last warnings are kept for its events.

A worker that dies takes its log along. So each worker sends its last warnings to the scheduler's
process, where jobs add them to the events that are about this worker.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from largek_dask.context import current_job
from largek_dask.passes.worker import WorkPlugin
from largek_dask.redaction import redacted_line
from largek_dask.service import metrics
from largek_dask.version import __version__

__all__ = [
    "OPERATION",
    "JobFilter",
    "WatchPlugin",
    "last_warnings",
    "sender",
    "take",
    "unwatch",
    "watch",
]

OPERATION = "largek-warnings"
"""Operation of the scheduler's stream by which a worker sends its last warnings."""
MOST_LINES, MOST_LETTERS = 50, 400
"""Warnings kept of a process, and characters of each."""
MOST_WORKERS = 1_000
"""Workers whose warnings are kept; those that were heard of first go first."""
SEND_SECONDS = 0.1
LOGGERS = ("", "distributed")
"""Dask's logger does not propagate to the root."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JobFilter(logging.Filter):
    """Begin log lines of a job with its id, and leave its secrets out.

    Examples
    --------
    >>> from largek_dask.context import working_for
    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "%d rows", (3,), None)
    >>> with working_for("lk-1"):
    ...     JobFilter().filter(record), record.getMessage()
    (True, '[lk-1] 3 rows')
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, once."""
        job_id = current_job()
        if job_id is not None and not hasattr(record, "job_id"):
            record.job_id = job_id
            record.msg, record.args = redacted_line(f"[{job_id}] {_message_of(record)}"), ()
            if record.exc_info:
                # Formatters take this text, if there is one.
                text = logging.Formatter().formatException(record.exc_info)
                record.exc_text = redacted_line(text)
        return True


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg!r} with {record.args!r} cannot be shown: {error!r}"


class LastWarnings(logging.Handler):
    """Keep the last warnings and errors of this process, of whatever library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.senders: dict[int, Callable[[], object] | None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        try:
            if not hasattr(record, "largek_kept"):
                record.largek_kept = True
                self.lines.append(redacted_line(self.format(record))[:MOST_LETTERS])
                for send in filter(None, list(self.senders.values())):
                    send()
        except Exception:
            self.handleError(record)


_filter = JobFilter()
_here = LastWarnings()
_here.addFilter(_filter)
_of_workers: dict[str, list[str]] = {}


def watch(node: Any, send: Callable[[], object] | None = None) -> None:
    """Keep the last warnings of this process, and show lines of all libraries in Dask's logs.

    ``node`` is a scheduler or worker, whose ``get_logs`` has these lines, too. ``send`` is called
    after each warning, by any thread; it must not wait.
    """
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        # Python prints warnings only as long as there is no handler at all.
        root.addHandler(logging.lastResort)
    if (shown := getattr(node, "_deque_handler", None)) is not None:
        root.addHandler(shown)
    _here.senders[id(node)] = send
    for name in LOGGERS:
        logging.getLogger(name).addHandler(_here)
    for logger in (root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            handler.addFilter(_filter)


def unwatch(node: Any) -> None:
    """Undo :func:`watch`; the logging of a process without any node is as it was before."""
    root = logging.getLogger()
    _here.senders.pop(id(node), None)
    if (shown := getattr(node, "_deque_handler", None)) is not None:
        root.removeHandler(shown)
    if not _here.senders:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(_here)
        if logging.lastResort is not None:
            root.removeHandler(logging.lastResort)


def sender(worker: Any) -> Callable[[], None]:
    """Return what sends the last warnings of a worker to its scheduler soon."""
    is_due, sent_at = False, float("-inf")

    def send() -> None:
        nonlocal is_due, sent_at
        is_due, sent_at = False, time.monotonic()
        with contextlib.suppress(OSError):
            worker.batched_stream.send({"op": OPERATION, "lines": list(_here.lines)})

    def send_soon() -> None:
        nonlocal is_due
        if not is_due:
            is_due = True
            delay = max(0.0, sent_at + SEND_SECONDS - time.monotonic())
            worker.loop.add_callback(worker.loop.call_later, delay, send)

    return send_soon


def take(worker: str, lines: Any) -> None:
    """Keep the last warnings that a worker has sent."""
    if isinstance(lines, list | tuple):
        _of_workers.pop(worker, None)
        _of_workers[worker] = [str(line)[:MOST_LETTERS] for line in lines[-MOST_LINES:]]
        while len(_of_workers) > MOST_WORKERS:
            del _of_workers[next(iter(_of_workers))]


def last_warnings(worker: str | None = None) -> list[str]:
    """Return the last warnings of a worker, also of a dead one; without one, of this process."""
    return list(_here.lines) if worker is None else _of_workers.get(worker, [])


NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("rows", "bytes", "retries", "state_bytes", "cache_bytes"), 0),
    "seconds": {},
}


class WatchPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Set up on every worker of a cluster that has a service, also on those that join later."""

    name = f"largek-watch-{__version__}"
    idempotent = True

    def setup(self, worker: Any) -> None:
        """Called by Dask on each worker."""
        self.worker = worker
        metrics.watch_worker(self.figures)
        watch(worker, sender(worker))

    def teardown(self, worker: Any) -> None:
        """Called by Dask when the worker closes."""
        metrics.forget(self.figures)
        unwatch(worker)

    def figures(self) -> Mapping[str, Any]:
        """Return figures of the passes of all jobs on this worker, without blocking."""
        plugin: WorkPlugin | None = self.worker.plugins.get(WorkPlugin.name)
        limit = self.worker.memory_manager.memory_limit
        return {
            **(NOTHING if plugin is None else plugin.figures()),
            **({"memory_limit_bytes": limit} if limit else {}),
        }
