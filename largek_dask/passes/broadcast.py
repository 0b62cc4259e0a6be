"""Broadcast a value to workers along a tree, and keep the replicas until no task needs them.

Dask's own broadcast (``Scheduler.replicate``) tries to reach a departed worker for half a minute
and blocks all other broadcasts during that time. This broadcast does not wait for departed workers,
and only the request passes through the scheduler.

Every two seconds, Dask's active memory manager drops replicas of a value if there are more replicas
than tasks waiting for the value. During a broadcast no task is waiting yet, so all replicas but one
would be dropped, and all tasks would fetch the value again from the same few workers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from distributed import Future
from distributed.active_memory_manager import ReduceReplicas
from distributed.core import send_recv

from largek_dask.errors import ClusterError
from largek_dask.fault_injection import at
from largek_dask.passes import waiting
from largek_dask.passes.waiting import Lost, scheduler_reply, wait_watching
from largek_dask.version import __version__

if TYPE_CHECKING:
    from largek_dask.passes.admission import Workers
    from largek_dask.passes.network import Network

OURS = "largek_"
"""Prefix of the Dask keys of all values that passes send."""
SPREAD = f"largek-spread-{__version__}"
"""Name of the worker operation that makes other workers fetch a value."""
RECEIVE = f"largek-receive-{__version__}"
"""Name of the worker operation that fetches a value from another worker."""
BRANCHES = 2
"""Maximum number of workers that fetch from the same worker at the same time."""
CONNECT_SECONDS = 3.0
"""Timeout of connections, in seconds; Dask would keep trying to reach a departed worker for 30
s."""


class Broadcaster:
    """Driver side of a broadcast: sends the value to one worker, which passes it on."""

    def __init__(self, network: Network, workers: Workers) -> None:
        self._network = network
        self._workers = workers

    async def send(self, value: Any, addresses: Collection[str], turn: int = 0) -> Future:
        """Copy a value to workers, without waiting for workers that leave in the meantime.

        ``turn`` determines which worker receives the value first, and so sends the most data.
        Raises Lost if all workers have left.
        """
        left = deque(addresses)
        left.rotate(-turn)
        while True:
            source = left.popleft()
            try:
                scattered = scheduler_reply(self._network.scatter(value, source))
                sent = await wait_watching(scattered, [source], self._workers)
                await self._spread(sent, source, left)
                return sent
            except Lost:
                there = await self._workers.ready()
                left = deque(address for address in left if address in there)
                if not left:
                    raise

    async def _spread(self, sent: Future, source: str, others: Collection[str]) -> None:
        if not others:
            return
        begin = time.monotonic()
        task = asyncio.ensure_future(scheduler_reply(self._network.spread(sent, source, others)))
        try:
            while not (await asyncio.wait([task], timeout=waiting.WATCH_SECONDS))[0]:
                await self._workers.ready()
                if self._workers.is_lost(source, begin):
                    raise Lost(ClusterError(f"{source} does not answer"))
                without = set(others) - await scheduler_reply(self._network.holders(sent))
                if all(self._workers.is_lost(address, begin) for address in without):
                    return
            if not task.result():
                raise Lost(ClusterError(f"{source} is gone"))
        finally:
            task.cancel()


class BroadcastRelay:
    """Worker side of a broadcast: fetches values, and makes other workers fetch them."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        worker.handlers[SPREAD] = self.spread
        worker.handlers[RECEIVE] = self.receive

    async def spread(self, key: str, addresses: list[str]) -> list[str]:
        """Make other workers fetch a value from this worker; return those that received it."""
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
        """Make a worker fetch the value; return the address of the worker that sent the value."""
        # This worker is the fallback if the source has left.
        sources = list(dict.fromkeys([source, self._worker.address]))
        try:
            comm = await self._worker.rpc.connect(address, timeout=CONNECT_SECONDS)
            try:
                gave: str | None = await send_recv(comm, op=RECEIVE, key=key, sources=sources)
            finally:
                self._worker.rpc.reuse(address, comm)
        except Exception:
            # The worker has left or cannot store the value; its tasks will raise the same error.
            return None
        return gave

    async def receive(self, key: str, sources: list[str]) -> str | None:
        """Fetch a value from the first source that has it; return the address of this source."""
        with at("receive"):
            for source in sources:
                try:
                    comm = await self._worker.rpc.connect(source, timeout=CONNECT_SECONDS)
                except OSError:
                    continue
                self._worker.rpc.reuse(source, comm)
                await self._worker.gather(who_has={key: [source]})
                if key in self._worker.data:
                    # A scheduler that has forgotten the value makes this worker drop the value.
                    stimulus = f"{RECEIVE}-{key}"
                    message = {"op": "add-keys", "keys": [key], "stimulus_id": stimulus}
                    self._worker.batched_send(message)
                    return source
        return None


class ReduceOtherReplicas(ReduceReplicas):  # type: ignore[misc]  # distributed has no types
    """Variant of Dask's ``ReduceReplicas`` policy that keeps replicas of values sent by passes."""

    def run(self) -> Iterator[Any]:
        return (one for one in super().run() if not str(one.ts.key).startswith(OURS))


def keep_replicas(dask_scheduler: Any = None) -> None:
    """Keep replicas of broadcast values; called on the scheduler."""
    manager = dask_scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if type(policy) is ReduceReplicas:
            manager.policies.remove(policy)
            manager.add_policy(ReduceOtherReplicas())
