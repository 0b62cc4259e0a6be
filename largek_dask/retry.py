"""Retry a call with growing pauses, until a deadline passes or the caller cancels."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TICK_SECONDS = 0.1
"""Interval between two calls of ``cancelled`` during a pause."""


def retry(
    call: Callable[[], T],
    limit: Callable[[Exception], float | None],
    *,
    pause: float,
    longest_pause: float | None = None,
    tries: int | None = None,
    from_first_error: bool = False,
    cancelled: Callable[[], object] | None = None,
    report: Callable[[Exception, float], None] | None = None,
    report_after: float = 0.0,
) -> T:
    """Return the result of a call, which is retried after temporary errors.

    Parameters
    ----------
    call : callable
        Must be safe to call twice.
    limit : callable
        Returns the number of seconds to continue after an error; None raises the error at once.
    pause : float
        Seconds before the first retry; each further pause is twice as long.
    longest_pause : float, optional
        Maximum pause in seconds; by default ``pause``, so that all pauses are equal.
    tries : int, optional
        Maximum number of calls.
    from_first_error : bool
        Count the seconds from the first error, and not from the first call.
    cancelled : callable, optional
        Called every ``TICK_SECONDS`` of a pause; ends it by raising, or by returning a true
        value, which raises the error of the last call.
    report : callable, optional
        ``report(error, seconds_left)``, called once before the pause that follows
        ``report_after`` seconds.
    report_after : float

    Raises
    ------
    Exception
        The error of the last call.
    """
    begun = None if from_first_error else time.monotonic()
    for number in itertools.count(1):
        try:
            return call()
        except Exception as error:
            seconds = limit(error)
            if seconds is None or number == tries:
                raise
            now = time.monotonic()
            begun = now if begun is None else begun
            left = begun + seconds - now
            if left <= 0:
                raise
            if report is not None and now - begun >= report_after:
                report(error, left)
                report = None
            if _pause(min(pause, left), cancelled):
                raise
            pause = pause if longest_pause is None else min(2 * pause, longest_pause)
    raise AssertionError("unreachable")


def _pause(seconds: float, cancelled: Callable[[], object] | None) -> bool:
    """Wait for ``seconds``; return True if cancelled while waiting."""
    if cancelled is None:
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if cancelled():
            return True
        time.sleep(min(left, TICK_SECONDS))
    return False
