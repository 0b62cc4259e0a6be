"""Close connections to workers that have left; Dask keeps retrying them.

Dask retries an address that refuses connections for half a minute. When a worker leaves, Dask ends
current attempts to connect, but a task that has just looked up the address may begin another
attempt. So this module ends attempts again some moments later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

MOMENTS = (0.2, 1.0, 5.0)
"""Delays after the departure of a worker at which attempts to connect are ended, in seconds."""


def _reason(address: str) -> str:
    return f"{address} has left the cluster."


class DepartedWorkers:
    """Detect workers that have left, because the scheduler does not report them to clients."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        """Addresses of the workers that were present at the last update."""
        self._since: dict[str, float] = {}
        """Time at which each worker was first found missing, by the event loop's clock."""

    def note(self, there: Collection[str], connections: Any) -> None:
        """Update the present workers, and end attempts to connect to those that have left."""
        now = asyncio.get_running_loop().time()
        self._since.update(dict.fromkeys(self._seen.difference(there), now))
        self._seen = set(there)
        for address, since in list(self._since.items()):
            if address in self._seen or now - since > MOMENTS[-1]:
                del self._since[address]
            else:
                connections.remove(address, reason=_reason(address))


class ConnectionCloser(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Scheduler plugin that ends the scheduler's attempts to connect to workers that have left."""

    name = "largek-connections"

    def remove_worker(self, scheduler: Any, worker: str, **options: Any) -> None:
        """End attempts to connect to a worker shortly after the worker has left."""
        loop = asyncio.get_running_loop()
        for seconds in MOMENTS:
            loop.call_later(seconds, self._end, scheduler, worker)

    @staticmethod
    def _end(scheduler: Any, worker: str) -> None:
        if worker not in scheduler.workers:
            scheduler.rpc.remove(worker, reason=_reason(worker))


def close_stale_connections(dask_scheduler: Any = None) -> None:
    """Close connections to workers that leave; called on the scheduler."""
    if ConnectionCloser.name not in dask_scheduler.plugins:
        dask_scheduler.add_plugin(ConnectionCloser())
