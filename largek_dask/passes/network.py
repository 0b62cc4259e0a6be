"""Every call to Dask that cluster passes make, so that nothing else depends on whose client it is.

The work of a pass is a coroutine on the client's event loop; the thread that asked for it waits,
asks for a stop now and then, and takes Ctrl-C. So it makes no difference whether the client is
a user's blocking one or an asynchronous one whose loop runs in another thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar
from uuid import uuid4

from distributed import Client, Future

from largek_dask.errors import ClusterError, ParameterError

__all__ = ["Network"]

T = TypeVar("T")

POLL_SECONDS = 0.05
LAST_SECONDS = 5.0


class Network:
    """A Dask client, from a thread that is not its event loop.

    Parameters
    ----------
    client : distributed.Client
    job : str
        Part of every task's name.
    """

    def __init__(self, client: Client, job: str) -> None:
        self.client = client
        self.job = job

    def run(
        self,
        work: Coroutine[Any, Any, T],
        check: Callable[[], None] | None = None,
    ) -> T:
        """Run a coroutine on the client's event loop and wait for it.

        Parameters
        ----------
        work : coroutine
        check : callable, optional
            Called in this thread every now and then; what it raises cancels ``work``.

        Raises
        ------
        ParameterError
            Called on the event loop itself, which would wait for itself.
        """
        if self._on_loop():
            work.close()
            raise ParameterError(
                "a fit blocks until it is done, so it cannot run on its client's event loop; "
                "use a client made with asynchronous=False, or run it in a thread."
            )
        future = asyncio.run_coroutine_threadsafe(work, self.client.loop.asyncio_loop)
        try:
            while not concurrent.futures.wait([future], POLL_SECONDS).done:
                if check is not None:
                    check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def run_last(self, function: Any, *args: Any) -> None:
        """Call a function on all workers if they can still be reached; wait at most a little."""
        if self.client.status != "running":
            return
        work = self.client.run(function, *args, on_error="ignore", asynchronous=True)
        future = asyncio.run_coroutine_threadsafe(work, self.client.loop.asyncio_loop)
        if not self._on_loop():
            concurrent.futures.wait([future], LAST_SECONDS)

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.client.loop.asyncio_loop
        except RuntimeError:
            return False

    # --- on the event loop ----------------------------------------------------------------------

    async def register(self, plugin: Any) -> None:
        """Give every worker, now and later, a plugin."""
        await self.client.register_plugin(plugin)

    async def workers(self) -> dict[str, int]:
        """Threads by address of the workers there are now.

        Raises
        ------
        ClusterError
            The scheduler cannot be reached.
        """
        try:
            found: dict[str, int] = await self.client.nthreads()
        except OSError as error:
            raise ClusterError(f"the Dask scheduler cannot be reached any more: {error}") from error
        return dict(found)

    async def run_on(self, function: Any, *args: Any, workers: Iterable[str]) -> dict[str, Any]:
        """Call a function on workers, outside the task queue; errors come back as values."""
        found: dict[str, Any] = await self.client.run(
            function, *args, workers=list(workers), on_error="return"
        )
        return found

    async def broadcast(self, value: Any, workers: Iterable[str] | None = None) -> Future:
        """A copy of ``value`` on every worker (or on these)."""
        return await self.client.scatter(
            value,
            broadcast=True,
            hash=False,
            workers=None if workers is None else list(workers),
        )

    def submit(self, function: Any, *args: Any, worker: str | None = None) -> Future:
        """One task, if possible on ``worker``."""
        return self.client.submit(
            function,
            *args,
            workers=None if worker is None else [worker],
            allow_other_workers=worker is not None,
            pure=False,
            key=f"largek_{self.job}-{uuid4().hex}",
        )
