"""One value on many workers: one has it from the driver, the others from each other, along a tree.

Dask's own broadcast (``Scheduler.replicate``) goes on asking a worker that has left, half a minute
each time, and keeps all other broadcasts waiting meanwhile. Here nobody waits for whoever has left,
and nothing passes the scheduler but the question.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from distributed.core import send_recv

from largek_dask.points import at
from largek_dask.version import __version__

__all__ = ["SPREAD", "Spreader"]

SPREAD = f"largek-spread-{__version__}"
"""Operation of a worker: have others fetch a value from it."""
RECEIVE = f"largek-receive-{__version__}"
"""Operation of a worker: fetch a value from another one."""
BRANCHES = 2
"""How many fetch from the same worker at a time."""
CONNECT_SECONDS = 3.0
"""A worker that has left refuses connections, and Dask would ask it for them for 30 s."""


class Spreader:
    """A worker's part in the tree."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        worker.handlers[SPREAD] = self.spread
        worker.handlers[RECEIVE] = self.receive

    async def spread(self, key: str, addresses: list[str]) -> list[str]:
        """Have other workers fetch a value that is here.

        Returns
        -------
        list of str
            Those that have it now. Whoever left meanwhile, or could not be reached, has not.
        """
        waiting = deque(addresses)
        sources = deque([self._worker.address] * BRANCHES)
        fetching: dict[asyncio.Task[str | None], tuple[str, str]] = {}
        reached: list[str] = []
        while waiting or fetching:
            while waiting and sources:
                source, address = sources.popleft(), waiting.popleft()
                asked = asyncio.create_task(self._ask(address, key, source))
                fetching[asked] = source, address
            done, _ = await asyncio.wait(fetching, return_when=asyncio.FIRST_COMPLETED)
            for asked in done:
                source, address = fetching.pop(asked)
                gave = asked.result()
                if gave in (source, None):
                    sources.append(source)
                if gave is not None:
                    reached.append(address)
                    sources.extend([address] * BRANCHES)
        return reached

    async def _ask(self, address: str, key: str, source: str) -> str | None:
        """Have a worker fetch the value; who gave it."""
        # Should the one that it is to come from have left, this one is still there.
        sources = list(dict.fromkeys([source, self._worker.address]))
        try:
            comm = await self._worker.rpc.connect(address, timeout=CONNECT_SECONDS)
            try:
                gave: str | None = await send_recv(comm, op=RECEIVE, key=key, sources=sources)
            finally:
                self._worker.rpc.reuse(address, comm)
        except Exception:
            # It has left, or cannot take the value: its tasks meet the same and say what it is.
            return None
        return gave

    async def receive(self, key: str, sources: list[str]) -> str | None:
        """Fetch a value from the first of these workers that gives it; which one did."""
        with at("receive"):
            for source in sources:
                try:
                    comm = await self._worker.rpc.connect(source, timeout=CONNECT_SECONDS)
                except OSError:
                    continue
                self._worker.rpc.reuse(source, comm)
                await self._worker.gather(who_has={key: [source]})
                if key in self._worker.data:
                    # A scheduler that has forgotten the value meanwhile has it dropped here.
                    stimulus = f"{RECEIVE}-{key}"
                    message = {"op": "add-keys", "keys": [key], "stimulus_id": stimulus}
                    self._worker.batched_send(message)
                    return source
        return None
