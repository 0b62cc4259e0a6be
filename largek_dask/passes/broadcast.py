"""The driver's part in a broadcast: one worker gets the value, and the others get it from there.

How they do is in ``spreading.py``. Here it is followed: whoever leaves meanwhile is not waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from distributed import Future

from largek_dask.errors import ClusterError
from largek_dask.passes import waiting
from largek_dask.passes.admission import Workers
from largek_dask.passes.network import Network
from largek_dask.passes.waiting import Lost, attended, told

__all__ = ["Broadcaster"]


class Broadcaster:
    """Sends values to workers.

    Parameters
    ----------
    workers : Workers
        Tell who is still there.
    """

    def __init__(self, network: Network, workers: Workers) -> None:
        self._network = network
        self._workers = workers

    async def send(self, value: Any, addresses: Collection[str], turn: int = 0) -> Future:
        """Copies of a value on workers, as far as they do not leave meanwhile.

        Parameters
        ----------
        turn : int, optional
            Whose turn it is to be the first: not always the same one has most to send.

        Raises
        ------
        Lost
            All of them have left.
        """
        left = deque(addresses)
        left.rotate(-turn)
        while True:
            source = left.popleft()
            try:
                scattered = told(self._network.scatter(value, source))
                sent = await attended(scattered, [source], self._workers)
                await self._spread(sent, source, left)
                return sent
            except Lost:
                there = await self._workers.ready()
                left = deque(address for address in left if address in there)
                if not left:
                    raise

    async def _spread(self, sent: Future, source: str, others: Collection[str]) -> None:
        """Have a value go from one worker to the others; those that leave are not waited for."""
        if not others:
            return
        begin = time.monotonic()
        task = asyncio.ensure_future(told(self._network.spread(sent, source, others)))
        try:
            while not (await asyncio.wait([task], timeout=waiting.WATCH_SECONDS))[0]:
                await self._workers.ready()
                if self._workers.is_lost(source, begin):
                    raise Lost(ClusterError(f"{source} does not answer"))
                without = set(others) - await told(self._network.holders(sent))
                if all(self._workers.is_lost(address, begin) for address in without):
                    return
            if not task.result():
                raise Lost(ClusterError(f"{source} is gone"))
        finally:
            task.cancel()
