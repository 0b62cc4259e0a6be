r"""Logs for machines: one JSON object a line, also of Dask and of the libraries below.

``dask scheduler … --largek-log json``, or the scheduler's configuration ``largek.log: json``, asks
for it; workers do the same from the first job on. A line has

========== =======================================================================
time       UTC, ISO form, milliseconds
level      as in Python: ``DEBUG`` to ``CRITICAL``
logger     name of the logger
message    its text, and the traceback of an error below it
job_id     the job that the thread works for, or null
run        number of the job's run, or null
worker     address of the worker, or null on the scheduler
========== =======================================================================

Nothing in a message can end a line or steer a terminal: JSON has escapes for all that is not
ASCII and for control characters. Secrets of jobs are left out as they are of events.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from largek_dask.context import working
from largek_dask.errors import ParameterError
from largek_dask.redaction import redacted_line

__all__ = ["FORMS", "JsonLine", "message_of", "set_up"]

FORMS = ("plain", "json")
DELETE = "\x7f"
"""The one control character for which JSON needs no escape."""


class JsonLine(logging.Formatter):
    r"""Lines of JSON.

    Parameters
    ----------
    worker : str, optional
        Address of the worker whose log it is.

    Examples
    --------
    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "two\nlines", (), None)
    >>> json.loads(JsonLine().format(record))["message"]
    'two\nlines'
    """

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self.worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
        job = working()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": redacted_line(message_of(record)),
            "job_id": None if job is None else job.job_id,
            "run": None if job is None else job.run,
            "worker": self.worker,
        }
        return json.dumps(line).replace(DELETE, "\\u007f")


def message_of(record: logging.LogRecord) -> str:
    """The message of a line, and whatever was raised."""
    try:
        return _plain.format(record)
    except Exception as error:
        # A log is not worth a job: whoever logged gave arguments that do not fit.
        return f"{record.msg!r} with {record.args!r} cannot be shown: {error!r}"


_plain = logging.Formatter()


def set_up(form: str, worker: str | None = None) -> None:
    """Give this process's log a form.

    Parameters
    ----------
    form : str
        ``"plain"``, as Dask has set it up, or ``"json"``.
    worker : str, optional
        Address of the worker that this process is; of several in a process the last one counts.

    Raises
    ------
    ParameterError
        There is no such form.
    """
    if form not in FORMS:
        raise ParameterError(f"largek.log is {form!r}: it is one of {', '.join(FORMS)}.")
    if form == "plain":
        return
    formatter = JsonLine(worker)
    root = logging.getLogger()
    if all(getattr(handler, "is_beside", False) for handler in root.handlers):
        root.addHandler(logging.StreamHandler())
    loggers = [root, *(item for item in logging.root.manager.loggerDict.values())]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            # Files and services have been set up by somebody who wants them as they are.
            if type(handler) is logging.StreamHandler:
                handler.setFormatter(formatter)
    own = logging.getLogger("largek_dask")
    if own.level == logging.NOTSET:
        own.setLevel(logging.INFO)
    logging.captureWarnings(True)
