"""Await results; raise ``Lost`` if the worker that was to give them is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from distributed import Future

from largek_dask.errors import ClusterError

if TYPE_CHECKING:
    from largek_dask.passes.admission import Workers

__all__ = ["WATCH_SECONDS", "Lost", "attended", "granted", "result", "told"]

T = TypeVar("T")

WATCH_SECONDS = 1.0
"""Interval between two looks at workers whose results are awaited, in seconds."""
RETRIED = (
    "KilledWorker", "FutureCancelledError", "FuturesCancelledError", "CommClosedError",
    "LostTotalError",
)  # fmt: skip
"""Errors about workers, not about the computation (some are private to Dask)."""

_ASKED: set[asyncio.Future[Any]] = set()
"""Questions under way: their event loop alone would not keep them alive."""


class Lost(Exception):
    """A share has to be handed out again; ``killed`` if its workers died of it.

    ``left``: a worker was given up, and nothing is known to be lost but what it had.
    """

    def __init__(self, error: BaseException, left: bool = False) -> None:
        super().__init__(str(error))
        self.killed = type(error).__name__ == "KilledWorker"
        self.left = left
        self.task = ""
        """Key of the task that was awaited; empty if it was not a task."""
        self.worker = ""
        """Address of the worker that was waited for, where it is known."""


async def attended(work: Awaitable[T], needed: Iterable[str], workers: Workers) -> T:
    """Wait for what needs all these workers; ``Lost`` if it would be for ever."""
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


async def told(asked: Awaitable[T]) -> T:
    """An answer of the scheduler; what Dask raises for workers that are gone becomes ``Lost``."""
    try:
        return await asked
    except (KeyError, OSError, ValueError) as error:
        # Which of them depends on when they went.
        raise Lost(error) from error


async def result(future: Future) -> Any:
    """Return the value of a task; failures about workers become ``Lost``.

    It can be cancelled at any moment. Dask answers simultaneous requests for values together: a
    cancelled one takes the answers of the others along, and, before the request has been sent, of
    all later ones of that client. So a value on its way is awaited.
    """
    asked: asyncio.Future[Any] = asyncio.ensure_future(future.result())
    _ASKED.add(asked)
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


async def granted(answer: asyncio.Future[T]) -> T:
    """An answer, which others may cancel; then ``Lost``."""
    try:
        return await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Lost(ClusterError("its worker was given up")) from error


def _answered(asked: asyncio.Future[Any]) -> None:
    _ASKED.discard(asked)
    if not asked.cancelled():
        # Whoever still waits gets it; nobody else has to hear of it.
        asked.exception()
