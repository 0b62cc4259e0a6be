"""Asking a store again that is out of order: for a moment, or for as long as it takes.

Three layers, each where it costs least. :func:`patiently` asks again at once, some seconds
together, for every single read and write. :func:`outlast` waits in the driver for longer, with a
word to whoever listens, for a pass or a write as a whole. What is away for longer than that is
for the service, which puts the job aside (``service/running.py``).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from largek_dask import config

__all__ = ["Trouble", "outlast", "patiently", "trouble", "unanswered"]

T = TypeVar("T")

Trouble = Literal["away", "lacking"]
"""What is wrong with storage: it does not answer, or it does and something is not there, not
allowed, or full. The latter passes only where somebody does something about it."""

NO_TROUBLE = (FileExistsError, IsADirectoryError)
LACKING = (FileNotFoundError, NotADirectoryError, PermissionError)
LACKING_NUMBERS = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS])
LACKING_ANSWERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
"""Answers of an HTTP server, and what a file system would say."""
DRIVERS = (
    "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3",
)  # fmt: skip
"""Packages whose errors are often none of Python's own kinds."""
TRYING_SECONDS = 5.0
"""No further try of a single call after so long: whoever waits longer hears when to stop."""
LONGEST_PAUSE = 8.0
LOOK_SECONDS = 0.1
"""How often it is looked during a pause whether somebody wants it to end."""


def trouble(error: BaseException) -> Trouble | None:
    """What an error says of storage, also through what it was raised from; None: nothing."""
    for found in _causes(error):
        kind = _kind(found)
        if kind is not None:
            return kind
    return None


def unanswered(error: BaseException) -> bool:
    """Whether an error of reading says nothing of what is stored.

    Storage is away, or lets nobody read (a key that has run out): what lies there may be whole.
    What is not there, or makes no sense, is another matter.
    """
    return trouble(error) == "away" or any(
        isinstance(found, PermissionError) for found in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and what is grouped in it."""
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
    # Errors of this package say by their cause what they are; Dask's are about its workers.
    if not isinstance(error, OSError) or package in ("largek_dask", "distributed"):
        return None
    if isinstance(error, LACKING) or error.errno in LACKING_NUMBERS:
        return "lacking"
    return None if isinstance(error, NO_TROUBLE) or error.errno == errno.ENAMETOOLONG else "away"


def patiently(ask: Callable[[], T]) -> T:
    """What ``ask`` gives; asked again a few times if a file system or a network fails.

    ``ask`` must do the same when it is called twice. Its last error is raised: as it is, or as
    an ``OSError`` where it is of a driver's own kind, which not every process could unpack.
    Errors that say something of the files (not there, not allowed, disk full) are raised at once.
    """
    tries = max(1, int(config.get("stores.tries")))
    pause = float(config.get("stores.pause-seconds"))
    until = time.monotonic() + TRYING_SECONDS
    for number in range(1, tries + 1):
        try:
            return ask()
        except Exception as error:
            if trouble(error) == "away" and number < tries and time.monotonic() < until:
                time.sleep(pause * 2 ** (number - 1))
                continue
            if type(error).__module__.partition(".")[0] not in DRIVERS:
                raise
            plain = _plain(error)
        # Out here, so that the driver's own is no context of it.
        raise plain
    raise AssertionError("unreachable")


def _plain(error: Exception) -> OSError:
    """A driver's error as one of Python's own kinds."""
    number = LACKING_ANSWERS.get(getattr(error, "status", None) or 0)
    if number is None and isinstance(error, OSError):
        number = error.errno
    # That of fsspec for what took too long has no words of its own.
    return OSError(number or errno.EIO, f"{type(error).__name__}: {str(error) or error.__cause__}")


def outlast(
    ask: Callable[[], T],
    *,
    also_lacking: Callable[[], bool],
    stop: Callable[[], object],
    is_given_up: Callable[[], bool],
    say: Callable[[str, str], None],
) -> T:
    """What ``ask`` gives; asked again for ``stores.patience-seconds`` while storage is in trouble.

    Parameters
    ----------
    ask : callable
        Must do the same when it is called twice.
    also_lacking : callable
        Whether what is not there, not allowed, or full is worth waiting for too: it was right
        before.
    stop : callable
        Called again and again during a pause; ends it by raising.
    is_given_up : callable
        Asked likewise; true ends the pause with the error of the last attempt.
    say : callable
        ``say("storage", message)`` once: what is waited for; ``say("back", message)``: no longer.
    """
    until, pause = None, 0.0
    while True:
        try:
            found = ask()
        except Exception as error:
            kind = trouble(error)
            if kind is None or (kind == "lacking" and not also_lacking()):
                raise
            now = time.monotonic()
            if until is None:
                pause = max(LOOK_SECONDS, float(config.get("stores.pause-seconds")))
                until = now + float(config.get("stores.patience-seconds"))
                if now < until:
                    say("storage", f"{error}; it is tried again for {until - now:.0f} s")
            if now >= until or not _waited(min(pause, until - now), stop, is_given_up):
                raise
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        if until is not None:
            say("back", "storage answers again: going on")
        return found


def _waited(seconds: float, stop: Callable[[], object], is_given_up: Callable[[], bool]) -> bool:
    """Wait; False if it was given up meanwhile."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        stop()
        if is_given_up():
            return False
        time.sleep(min(left, LOOK_SECONDS))
    return True
