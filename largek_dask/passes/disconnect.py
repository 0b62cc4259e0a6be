"""Close connections to workers that have left; Dask keeps retrying them.

Dask asks an address that refuses connections again and again, for half a minute. It ends such
attempts when a worker leaves, but not those that begin just then: who has a value was looked up
before, and the connection is opened after. So they are ended some moments later once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

__all__ = ["Leavers", "end_connections"]

MOMENTS = (0.2, 1.0, 5.0)
"""Seconds after a worker has left."""


def _reason(address: str) -> str:
    return f"{address} has left the cluster."


class Leavers:
    """Workers that a client has seen leave, of which it does not hear by itself."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        """Addresses of the workers that were there last."""
        self._since: dict[str, float] = {}
        """Time at which each worker that left was first missed, by the event loop's clock."""

    def note(self, there: Collection[str], connections: Any) -> None:
        """Take over who is there now, and end what is being asked of those who were."""
        now = asyncio.get_running_loop().time()
        self._since.update(dict.fromkeys(self._seen.difference(there), now))
        self._seen = set(there)
        for address, since in list(self._since.items()):
            if address in self._seen or now - since > MOMENTS[-1]:
                del self._since[address]
            else:
                connections.remove(address, reason=_reason(address))


class ConnectionEnder(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Ends a scheduler's own attempts, among them those of whoever has it fetch values."""

    name = "largek-connections"

    def remove_worker(self, scheduler: Any, worker: str, **options: Any) -> None:
        """A worker has left."""
        loop = asyncio.get_running_loop()
        for seconds in MOMENTS:
            loop.call_later(seconds, self._end, scheduler, worker)

    @staticmethod
    def _end(scheduler: Any, worker: str) -> None:
        if worker not in scheduler.workers:
            scheduler.rpc.remove(worker, reason=_reason(worker))


def end_connections(dask_scheduler: Any = None) -> None:
    """Have a scheduler connect to none that has left; called on it."""
    if ConnectionEnder.name not in dask_scheduler.plugins:
        dask_scheduler.add_plugin(ConnectionEnder())
