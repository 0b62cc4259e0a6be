"""Add job ids to log lines, and store the last warnings of each process for error reports.

The log of a worker is lost when the worker dies. Therefore, each worker sends its warnings to the
scheduler as Dask events, and jobs add the last warnings of a worker to their own events about this
worker.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from largek_dask.context import current_job
from largek_dask.redaction import redacted_line
from largek_dask.version import __version__

TOPIC = "largek-warnings"
"""Topic of Dask events with warnings; each event contains a worker's address and log lines."""
MOST_LINES, MOST_LETTERS = 50, 400
"""Maximum number of stored warnings per process, and of characters per warning."""
AT_ONCE, PAUSE_SECONDS = 10, 1.0
"""Number of warnings that a worker sends immediately in each period of this many seconds. The last
of the remaining warnings are sent at the end of the period."""
LOGGERS = ("", "distributed")
"""The root logger, and Dask's logger, which does not propagate to the root."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JobFilter(logging.Filter):
    """Add the job id to log lines of a job, and redact the job's secrets.

    Examples
    --------
    >>> from largek_dask.context import working_for
    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "%d rows", (3,), None)
    >>> with working_for("lk-1"):
    ...     JobFilter().filter(record), record.getMessage()
    (True, '[lk-1] 3 rows')
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job_id = current_job()
        if job_id is not None and not hasattr(record, "job_id"):
            record.job_id = job_id
            record.msg, record.args = redacted_line(f"[{job_id}] {_message_of(record)}"), ()
            if record.exc_info:
                # If exc_text is set, formatters do not format the exception themselves.
                text = logging.Formatter().formatException(record.exc_info)
                record.exc_text = redacted_line(text)
        return True


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg!r} with {record.args!r} cannot be shown: {error!r}"


class LastWarnings(logging.Handler):
    """Store the last warnings and errors of this process, from all libraries."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))
        self.lines: deque[str] = deque(maxlen=MOST_LINES)
        self.nodes: list[Any] = []
        self._n_sent = 0
        self._unsent: deque[str] = deque(maxlen=MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not hasattr(record, "largek_kept"):
                record.largek_kept = True
                self.lines.append(line := redacted_line(self.format(record))[:MOST_LETTERS])
                self._unsent.append(line)
                if self._n_sent < AT_ONCE:
                    self._n_sent += 1
                    self._send()
                    if self._n_sent == 1:
                        timer = threading.Timer(PAUSE_SECONDS, self._end_pause)
                        timer.daemon = True
                        timer.start()
        except Exception:
            self.handleError(record)

    def _end_pause(self) -> None:
        with self.lock:  # type: ignore[union-attr]
            self._n_sent = 0
            if self._unsent:
                self._send()

    def _send(self) -> None:
        for node in self.nodes:
            if hasattr(node, "batched_stream"):
                node.log_event(TOPIC, [node.address, *self._unsent])
        self._unsent.clear()


_filter = JobFilter()
_here = LastWarnings()
_here.addFilter(_filter)


def watch(node: Any) -> None:
    """Store this process's last warnings, and add log lines of all libraries to Dask's logs.

    ``node`` is a scheduler or worker; afterwards, ``node.get_logs`` returns lines of all libraries.
    """
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        # Python uses lastResort only if there is no other handler, so add it explicitly.
        root.addHandler(logging.lastResort)
    if (shown := getattr(node, "_deque_handler", None)) is not None:
        root.addHandler(shown)
    _here.nodes = [*_here.nodes, node]
    for name in LOGGERS:
        logging.getLogger(name).addHandler(_here)
    for logger in (root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            handler.addFilter(_filter)


def unwatch(node: Any) -> None:
    """Undo :func:`watch`; for the last node, also restore the logging of the process."""
    root = logging.getLogger()
    _here.nodes = [other for other in _here.nodes if other is not node]
    if (shown := getattr(node, "_deque_handler", None)) is not None:
        root.removeHandler(shown)
    if not _here.nodes:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(_here)
        if logging.lastResort is not None:
            root.removeHandler(logging.lastResort)


def last_warnings(worker: str | None = None) -> list[str]:
    """Return the last warnings of a worker, even a dead one, or by default of this process."""
    if worker is None:
        return list(_here.lines)
    events = [
        event
        for node in _here.nodes
        if hasattr(node, "get_events")
        for _, event in node.get_events(TOPIC)
    ]
    # Validate each event, because any client can send events.
    lines = [
        str(line)[:MOST_LETTERS]
        for event in events
        if isinstance(event, list | tuple) and event and event[0] == worker
        for line in event[1 : MOST_LINES + 1]
    ]
    return lines[-MOST_LINES:]


class WatchPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Worker plugin that watches the logs of all workers, including workers that join later."""

    name = f"largek-watch-{__version__}"
    idempotent = True

    def setup(self, worker: Any) -> None:
        watch(worker)

    def teardown(self, worker: Any) -> None:
        unwatch(worker)
