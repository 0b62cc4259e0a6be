"""Await results; raise ``Lost`` if the worker that should return them is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from distributed import Future

from largek_dask.errors import ClusterError

if TYPE_CHECKING:
    from largek_dask.passes.admission import Workers

T = TypeVar("T")

WATCH_SECONDS = 1.0
"""Interval between two checks of workers whose results are awaited, in seconds."""
RETRIED = (
    "KilledWorker", "FutureCancelledError", "FuturesCancelledError", "CommClosedError",
    "LostTotalError",
)  # fmt: skip
"""Names of errors that concern workers, not the computation; some are private to Dask."""

_PENDING: set[asyncio.Future[Any]] = set()
"""Pending requests; the event loop alone would not keep them alive."""


class Lost(Exception):
    """Raised when a share has to be computed again.

    ``killed`` is True if the share killed its workers. ``left`` is True if a worker was abandoned,
    so that only results on that worker are lost.
    """

    def __init__(self, error: BaseException, left: bool = False) -> None:
        super().__init__(str(error))
        self.killed = type(error).__name__ == "KilledWorker"
        self.left = left
        self.task = ""
        """Key of the task that was awaited; empty if it was not a task."""
        self.worker = ""
        """Address of the worker whose result was awaited, if known."""


async def wait_watching(work: Awaitable[T], needed: Iterable[str], workers: Workers) -> T:
    """Await a result that needs all of these workers; raise ``Lost`` if one of them is lost."""
    begin = time.monotonic()
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=WATCH_SECONDS))[0]:
            await workers.ready()
            for address in needed:
                if workers.is_lost(address, begin):
                    raise Lost(ClusterError(f"{address} does not answer"), left=True)
        return task.result()
    finally:
        task.cancel()


async def scheduler_reply(asked: Awaitable[T]) -> T:
    """Await a reply of the scheduler; Dask's errors about lost workers become ``Lost``."""
    try:
        return await asked
    except (KeyError, OSError, ValueError) as error:
        # The class of the error depends on the moment of the loss.
        raise Lost(error) from error


async def result(future: Future) -> Any:
    """Return the value of a task; failures of workers become ``Lost``.

    The call can be cancelled at any moment, but its request to Dask is always awaited to the end.
    Dask answers simultaneous requests together, so cancelling one request drops the answers to
    others (and to all later requests, if it has not been sent yet).
    """
    asked: asyncio.Future[Any] = asyncio.ensure_future(future.result())
    _PENDING.add(asked)
    asked.add_done_callback(_answered)
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            if future.status != "finished":
                asked.cancel()
            raise
        raise Lost(error) from error
    except Exception as error:
        if type(error).__name__ in RETRIED:
            raise Lost(error) from error
        raise


async def unless_given_up(answer: asyncio.Future[T]) -> T:
    """Await an answer; raise ``Lost`` if other code cancels it."""
    try:
        return await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Lost(ClusterError("its worker was given up")) from error


def _answered(asked: asyncio.Future[Any]) -> None:
    _PENDING.discard(asked)
    if not asked.cancelled():
        # Retrieve the exception, so that asyncio does not log it.
        asked.exception()
