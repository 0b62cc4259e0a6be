"""Every error and warning a user meets.

Each message says what is wrong, where (row, chunk, URL, parameter), and what to do next.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Literal, ParamSpec, TypeVar

__all__ = [
    "BadRowsError",
    "CancelledFit",
    "CancelledJobError",
    "CheckpointError",
    "ClusterError",
    "DataChangedError",
    "DataError",
    "DataWarning",
    "DegenerateDataWarning",
    "FailedJobError",
    "IncompleteStoreError",
    "InterruptedFitWarning",
    "JobNotFoundError",
    "LargekError",
    "LostJobError",
    "MissingChunksWarning",
    "MissingDependencyError",
    "MissingOptionError",
    "ModelFormatError",
    "NoModelError",
    "NotEnoughMemoryError",
    "OtherSchedulerError",
    "OutputError",
    "ParameterError",
    "ParameterWarning",
    "RecoveryWarning",
    "SchedulerAwayError",
    "VersionMismatchError",
    "VersionMismatchWarning",
    "raised_on",
    "warn",
    "warnings_heard_by",
    "without_causes",
    "worker_of",
]

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


P = ParamSpec("P")
T = TypeVar("T")
Error = TypeVar("Error", bound=BaseException)
Hearer = Callable[[str, type[Warning]], None]
_hearer: ContextVar[Hearer | None] = ContextVar("largek-warnings", default=None)


@contextmanager
def warnings_heard_by(hearer: Hearer) -> Iterator[None]:
    """Hand warnings of this thread to ``hearer``, as Python's own filters belong to all threads."""
    token = _hearer.set(hearer)
    try:
        yield
    finally:
        _hearer.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Warn, pointing at the line outside this package that led here."""
    if (hearer := _hearer.get()) is not None:
        hearer(message, category)
        return
    # Level 1 is the line below, 2 the caller. (From Python 3.12 on: skip_file_prefixes.)
    level = 2
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def raised_on(worker: str, error: Error) -> Error:
    """Return ``error`` with the address of the worker that it comes from, if it is known."""
    if worker:
        with suppress(AttributeError):
            error.largek_worker = worker  # type: ignore[attr-defined]
    return error


def worker_of(error: BaseException) -> str | None:
    """Return the address of the worker that an error comes from; None if it is not known."""
    found: str | None = getattr(error, "largek_worker", None)
    return found


class LargekError(Exception):
    """Base of every error raised on purpose by this package."""


def without_causes(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: its errors show no other errors, as their texts say it all.

    Inside of a job causes are kept: they tell whether storage is away, and is to be waited for.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except LargekError as error:
            if _hearer.get() is not None:
                raise
            raise error from None

    return call


class ParameterError(LargekError, ValueError):
    """A parameter has a value that cannot work with these data."""


class MissingOptionError(ParameterError):
    """A storage option has no value: it was in memory, or in an environment, that is gone."""


class DataError(LargekError, ValueError):
    """The input cannot be read or is not a table of numbers."""


class BadRowsError(DataError):
    """Rows hold NaN or infinity; the message names the first row and its chunk."""


class IncompleteStoreError(DataError):
    """A store whose writing did not end: it is refused as data."""


class DataChangedError(DataError):
    """The data differ from those a checkpoint or job was made with."""


class MissingDependencyError(LargekError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class OutputError(LargekError, OSError):
    """An output exists already or cannot be written."""


class CheckpointError(LargekError):
    """A checkpoint folder holds another job, or nothing that can be read."""


class ModelFormatError(LargekError, ValueError):
    """A file is not a model of a format this version reads."""


class NoModelError(LargekError, RuntimeError):
    """The fit was stopped (time limit, cancel) before it had a model.

    ``reason`` is "max_time" or "cancelled".
    """

    def __init__(
        self, message: str, reason: Literal["max_time", "cancelled"] = "cancelled"
    ) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[NoModelError], tuple[str, str]]:
        return type(self), (str(self), self.reason)


class NotEnoughMemoryError(LargekError, MemoryError):
    """The plan does not fit the memory there is; found before computing."""


class ClusterError(LargekError, RuntimeError):
    """The Dask cluster cannot do the work; the message names worker and chunk."""


class VersionMismatchError(ClusterError):
    """Workers run another version of this package."""


class SchedulerAwayError(ClusterError):
    """A scheduler has not answered for as long as a client waits; jobs go on when it is back."""


class OtherSchedulerError(ClusterError):
    """The jobs are those of another scheduler; the message says where that one is."""


class LostJobError(LargekError, RuntimeError):
    """Another scheduler has taken over a job; this one must not write it any more."""


class JobNotFoundError(LargekError, LookupError):
    """There is no such job."""


class FailedJobError(LargekError, RuntimeError):
    """A job failed with an error that is none of this package's; the message tells it."""


class CancelledJobError(LargekError, RuntimeError):
    """A job was cancelled: it has no result, though perhaps a best model so far."""


class CancelledFit(LargekError):
    """Raised inside a pass when the driver asked for a stop; never reaches a user."""


class DataWarning(UserWarning):
    """Data are not taken as they lie there, or not all that they say can be checked; says what."""


class DegenerateDataWarning(UserWarning):
    """The data have fewer distinct rows than clusters were asked for."""


class InterruptedFitWarning(UserWarning):
    """The fit was interrupted; the model is the best one so far."""


class MissingChunksWarning(UserWarning):
    """A store lacks some of its chunks, which are read as its fill value; says how many."""


class ParameterWarning(UserWarning):
    """A parameter is not taken as it was given; says what is taken instead."""


class RecoveryWarning(UserWarning):
    """Something was damaged or lost and has been worked around; says what."""


class VersionMismatchWarning(UserWarning):
    """A scheduler and its client have different versions of this package."""
