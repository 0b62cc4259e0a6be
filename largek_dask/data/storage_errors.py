"""Classify storage errors, and retry single reads and writes.

There are three layers of retries. :func:`retry_io` repeats a single read or write for a few
seconds. ``BasePasses.retry`` repeats a pass or a write of results for a longer time, and reports
the retries. If both fail, the service interrupts the job and tries again later
(``service/runner.py``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from largek_dask import config
from largek_dask.errors import DataError, LargekError, OutputError
from largek_dask.retry import retry

T = TypeVar("T")

Trouble = Literal["away", "lacking"]
"""Kind of storage error: "away" if storage does not respond; "lacking" if something is missing,
forbidden or full, so that a retry does not help."""
NO_TROUBLE = (FileExistsError, IsADirectoryError)
LACKING = (FileNotFoundError, NotADirectoryError, PermissionError)
LACKING_NUMBERS = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS])
LACKING_ANSWERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
"""Error numbers that correspond to HTTP status codes."""
DRIVERS = (
    "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3",
)  # fmt: skip
"""Packages that define their own error classes for storage."""
RETRY_SECONDS = 5.0
"""Maximum time for retries of a single call, in seconds; a cancellation does not end them early."""


def trouble(error: BaseException) -> Trouble | None:
    """Classify a storage error by the error or its causes; return None for other errors."""
    return next((kind for found in _causes(error) if (kind := _kind(found)) is not None), None)


def unanswered(error: BaseException) -> bool:
    """Return True if a failed read says nothing about the stored data.

    This is the case if storage does not respond or denies access, e.g. because a key has expired.
    """
    return trouble(error) == "away" or any(
        isinstance(found, PermissionError) for found in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its causes, and the errors of exception groups."""
    seen = set()
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting.append(
            found.__cause__
            if found.__cause__ is not None or found.__suppress_context__
            else found.__context__
        )
        if isinstance(found, BaseExceptionGroup):
            waiting.extend(found.exceptions)


def _kind(error: BaseException) -> Trouble | None:
    package = type(error).__module__.partition(".")[0]
    if package in DRIVERS:
        lacking = getattr(error, "status", None) in LACKING_ANSWERS or isinstance(error, LACKING)
        return "lacking" if lacking else "away"
    # Errors of this package are classified by their cause; errors of Dask concern its workers.
    if not isinstance(error, OSError) or package in ("largek_dask", "distributed"):
        return None
    if isinstance(error, LACKING) or error.errno in LACKING_NUMBERS:
        return "lacking"
    return None if isinstance(error, NO_TROUBLE) or error.errno == errno.ENAMETOOLONG else "away"


def retry_io(call: Callable[[], T]) -> T:
    """Return the result of a read or write, which is retried while storage does not respond.

    ``call`` must be safe to repeat. Errors that retries cannot fix (missing file, no permission,
    full disk) are raised at once. An error of a storage driver is raised as an ``OSError``, because
    other processes may be unable to unpickle the driver's class.
    """
    pause = float(config.get("stores.pause-seconds"))
    try:
        return retry(
            call,
            lambda error: RETRY_SECONDS if trouble(error) == "away" else None,
            pause=pause,
            longest_pause=RETRY_SECONDS,
            tries=max(1, int(config.get("stores.tries"))),
        )
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in DRIVERS:
            raise
        plain = _plain(error)
    # Raised outside the handler, so that the driver's error does not become the context.
    raise plain


def _plain(error: Exception) -> OSError:
    number = LACKING_ANSWERS.get(getattr(error, "status", None) or 0)
    if number is None and isinstance(error, OSError):
        number = error.errno
    # fsspec's timeout error has no message
    return OSError(number or errno.EIO, f"{type(error).__name__}: {str(error) or error.__cause__}")


@contextmanager
def reading(what: str, advice: str = "check that it is complete and readable.") -> Iterator[None]:
    """Convert errors of codecs and drivers to a ``DataError`` that names ``what``."""
    try:
        yield
    except MemoryError:
        raise
    except LargekError as error:
        raise DataError(f"{what} cannot be read: {error}") from error
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{what} cannot be read: {reason}; {advice}") from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Convert errors of codecs and drivers to an ``OutputError`` that names ``what``."""
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        raise OutputError(
            f"{what} cannot be written: {error}; check free space and permissions."
        ) from error
