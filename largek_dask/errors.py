"""Errors and warnings of this package.

Each message says what is wrong, where the problem is (row, chunk, URL or parameter), and what to
do.
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
    "handle_warnings",
    "raised_on",
    "warn",
    "without_causes",
    "worker_of",
]

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


P = ParamSpec("P")
T = TypeVar("T")
Error = TypeVar("Error", bound=BaseException)
Handler = Callable[[str, type[Warning]], None]
_handler: ContextVar[Handler | None] = ContextVar("largek-warnings", default=None)


@contextmanager
def handle_warnings(handler: Handler) -> Iterator[None]:
    """Pass warnings of this thread to ``handler``; Python's own filters affect all threads."""
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the calling line outside this package."""
    if (handler := _handler.get()) is not None:
        handler(message, category)
        return
    # Level 1 is the call of warnings.warn below, and level 2 is the caller of this function.
    level = 2
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def raised_on(worker: str, error: Error) -> Error:
    """Return ``error`` with the address of the worker that raised it, if the address is known."""
    if worker:
        with suppress(AttributeError):
            error.largek_worker = worker  # type: ignore[attr-defined]
    return error


def worker_of(error: BaseException) -> str | None:
    """Return the address of the worker that raised an error; None if it is not known."""
    found: str | None = getattr(error, "largek_worker", None)
    return found


class LargekError(Exception):
    """Base class of all errors of this package."""


def without_causes(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function so that its errors do not show their causes.

    The messages are complete without causes. Inside a job, causes are kept, because they show
    whether the job should wait for unavailable storage.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except LargekError as error:
            if _handler.get() is not None:
                raise
            raise error from None

    return call


class ParameterError(LargekError, ValueError):
    """A parameter has an invalid value, or a value that does not fit the data."""


class MissingOptionError(ParameterError):
    """A storage option is missing, because the process that had its value has ended."""


class DataError(LargekError, ValueError):
    """The input cannot be read or is not a table of numbers."""


class BadRowsError(DataError):
    """Rows contain NaN or infinity; the message names the first such row and its chunk."""


class IncompleteStoreError(DataError):
    """A store was not written completely."""


class DataChangedError(DataError):
    """The data differ from the data of the checkpoint or job."""


class MissingDependencyError(LargekError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class OutputError(LargekError, OSError):
    """An output already exists, or cannot be written."""


class CheckpointError(LargekError):
    """A checkpoint folder belongs to another job, or cannot be read."""


class ModelFormatError(LargekError, ValueError):
    """A file is not a model, is damaged, or has a format that this version cannot read."""


class NoModelError(LargekError, RuntimeError):
    """A fit was cancelled or reached its time limit before it had a model.

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
    """A fit needs more memory than is available; raised before the fit starts."""


class ClusterError(LargekError, RuntimeError):
    """The Dask cluster cannot do the work; the message names the worker and chunk."""


class VersionMismatchError(ClusterError):
    """Workers have a different version of this package."""


class SchedulerAwayError(ClusterError):
    """A scheduler did not answer within the client's timeout; its jobs continue later."""


class OtherSchedulerError(ClusterError):
    """The jobs belong to another scheduler; the message gives its address."""


class LostJobError(LargekError, RuntimeError):
    """A different scheduler now owns the job, so this scheduler must not write the job's files."""


class JobNotFoundError(LargekError, LookupError):
    """No job has this id."""


class FailedJobError(LargekError, RuntimeError):
    """A job failed with an error of another package; the message contains it."""


class CancelledJobError(LargekError, RuntimeError):
    """A job was cancelled; it has no result, but may have a model."""


class CancelledFit(LargekError):
    """A pass was stopped because the driver requested it; users never see this error."""


class DataWarning(UserWarning):
    """Data are converted when they are read, or cannot be checked completely."""


class DegenerateDataWarning(UserWarning):
    """The data have fewer distinct rows than requested clusters."""


class InterruptedFitWarning(UserWarning):
    """A fit was interrupted; its best model so far is kept."""


class MissingChunksWarning(UserWarning):
    """A store lacks some chunks, which are read as fill values."""


class ParameterWarning(UserWarning):
    """The value of a parameter is replaced by another value."""


class RecoveryWarning(UserWarning):
    """A damaged or missing file was detected, but the fit continues."""


class VersionMismatchWarning(UserWarning):
    """A scheduler and its client have different versions of this package."""
