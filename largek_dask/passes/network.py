"""Dask calls of cluster passes, so that no other module depends on the type of client.

The work of a pass is a coroutine on the client's event loop. The calling thread waits for it,
checks for a stop at intervals, and receives Ctrl-C. So the client may be blocking, or asynchronous
with its loop in another thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from largek_dask.errors import ClusterError, ParameterError
from largek_dask.fault_injection import at
from largek_dask.passes.broadcast import SPREAD, keep_replicas
from largek_dask.passes.disconnect import DepartedWorkers, close_stale_connections
from largek_dask.passes.worker_selection import WorkerSelection, current_selection

T = TypeVar("T")

POLL_SECONDS = 0.05
LAST_SECONDS = 5.0
NOBODY = "tcp://0.0.0.0:1"
"""Address that no worker has; an empty list of workers would mean any worker to Dask."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as the scheduler describes it."""

    n_threads: int
    status: str
    """A "running" worker takes tasks; a worker with another status, such as "paused", does not."""
    memory: int
    """Bytes used by the worker's process."""
    memory_limit: int
    """Memory limit in bytes; 0 if there is no limit."""
    last_seen: float
    """Time of the worker's last heartbeat, by the scheduler's clock."""
    tags: frozenset[str] = frozenset()
    """Names of the worker's resources."""


class _Unsent(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    worker: str | None
    answer: asyncio.Future[Future]


def require_open(client: Client) -> None:
    """Raise ClusterError for a client without a connection to its scheduler."""
    if client.status in ("closing", "closed"):
        raise ClusterError(
            "the Dask client is closed, by client.close() or because its scheduler has stopped; "
            "create a new client, such as Client('tcp://host:8786')."
        )


def unreachable(error: OSError) -> ClusterError:
    return ClusterError(
        f"the Dask scheduler cannot be reached any more: {error}. Check that it is running, then "
        "try again with a new client."
    )


def workers_known_to(client: Client) -> dict[str, Any]:
    """Return the scheduler's description of each worker, by address.

    Inside ``use_selection`` only the selected workers are returned. Must not be called on the event
    loop. Raises ClusterError if there is no connection.
    """
    require_open(client)
    try:
        found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    except OSError as error:
        raise unreachable(error) from error
    pick = current_selection()
    if pick is None:
        return found
    return {a: about for a, about in found.items() if pick.allows(about.get("resources") or ())}


class Network:
    """A Dask client, used from a thread that is not its event loop.

    ``job`` is part of every task's name; tasks run only on the workers of ``pick``.
    """

    def __init__(self, client: Client, job: str, pick: WorkerSelection | None = None) -> None:
        self.client = client
        self.job = job
        self.pick = pick
        self.group = f"largek_{job}"
        """Prefix of the names of all tasks."""
        self._background: set[asyncio.Future[Any]] = set()
        self._sending: set[asyncio.Future[Any]] = set()
        self._unsent: list[_Unsent] = []
        self._departed = DepartedWorkers()

    def run(self, work: Coroutine[Any, Any, T], check: Callable[[], None] | None = None) -> T:
        """Run a coroutine on the client's event loop and wait for it.

        ``check`` is called in this thread at intervals; an error that it raises cancels ``work``.
        Raises ParameterError if called on the event loop, which would wait for itself.
        """
        if self._on_loop():
            work.close()
            raise ParameterError(
                "a fit blocks until it is done, so it cannot run on its client's event loop; "
                "use a client with asynchronous=False, or run the fit in a thread."
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
        """Call a function on all reachable workers; wait a few seconds at most."""
        if self.client.status != "running":
            return
        loop = self.client.loop.asyncio_loop
        for waiting in list(self._background):
            loop.call_soon_threadsafe(waiting.cancel)
        work = self.client.run(function, *args, on_error="ignore", asynchronous=True)
        future = asyncio.run_coroutine_threadsafe(work, loop)
        if not self._on_loop():
            concurrent.futures.wait([future], LAST_SECONDS)

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.client.loop.asyncio_loop
        except RuntimeError:
            return False

    def spawn(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Start a background task; :meth:`run_last` cancels it if it is not done."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def register(self, plugin: Any, patience: float) -> None:
        """Install a plugin on every present and future worker; wait for a limited time."""
        task = self.spawn(self.client.register_plugin(plugin))
        done, _ = await asyncio.wait([task], timeout=patience)
        # Ignore the error of a worker without this package; admission will report the worker.
        with contextlib.suppress(ImportError, AttributeError):
            for finished in done:
                finished.result()

    async def prepare_scheduler(self) -> None:
        """Prepare the scheduler for broadcasts, if this package is installed there."""
        # Without these plugins, tasks would fetch dropped replicas from departing workers.
        for change in (keep_replicas, close_stale_connections):
            with contextlib.suppress(ImportError, AttributeError, OSError):
                await self.client._run_on_scheduler(change)

    async def workers(self) -> dict[str, WorkerInfo]:
        """Return the present workers by address; raise ClusterError without a scheduler."""
        require_open(self.client)
        try:
            found = await self.client.scheduler.identity(n_workers=-1)
        except OSError as error:
            raise unreachable(error) from error
        self._departed.note(found["workers"], self.client.rpc)
        return {
            address: WorkerInfo(
                n_threads=worker["nthreads"],
                status=worker["status"],
                memory=worker["metrics"].get("memory", 0),
                memory_limit=worker["memory_limit"] or 0,
                last_seen=worker["last_seen"],
                tags=frozenset(worker.get("resources") or ()),
            )
            for address, worker in found["workers"].items()
        }

    async def call(self, function: Any, *args: Any, worker: str) -> Any:
        """Call a function on a worker, outside of the task queue; return errors as values."""
        try:
            found = await self.client.run(function, *args, workers=[worker], on_error="return")
        except OSError as error:
            return error
        return found[worker]

    async def deaths(self, task: str) -> list[set[str]]:
        """Return the tasks of each worker that was lost while it had ``task``."""
        events = await self.client.scheduler.events(topic="all")
        lost = [
            set(event["processing-tasks"])
            for _, event in events
            if event.get("action") == "remove-worker" and not event["expected"]
        ]
        return [tasks for tasks in lost if task in tasks]

    async def scatter(self, value: Any, worker: str) -> Future:
        """Send a copy of ``value`` to a worker, for :meth:`spread`."""
        key = self._key()
        with at("scatter"):
            # If this call were cancelled half-way, the value would stay on the worker for ever.
            sending = asyncio.ensure_future(
                self.client.scatter({key: value}, hash=False, workers=[worker])
            )
            self._sending.add(sending)
            sending.add_done_callback(self._sent)
            return (await asyncio.shield(sending))[key]

    def _sent(self, sending: asyncio.Future[Any]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            # Retrieve the exception, so that asyncio does not log it.
            sending.exception()

    async def spread(self, sent: Future, source: str, workers: Iterable[str]) -> bool:
        """Copy a scattered value from ``source`` to workers; return False if ``source`` is gone."""
        message = {"op": SPREAD, "key": sent.key, "addresses": list(workers)}
        answers = await self.client.scheduler.broadcast(
            msg=message, workers=[source], on_error="ignore"
        )
        return bool(source in answers)

    async def holders(self, sent: Future) -> set[str]:
        """Return the addresses of the workers that have a copy of a scattered value."""
        found = await self.client.scheduler.who_has(keys=[sent.key])
        return set(found.get(sent.key, ()))

    def _where(self, worker: str | None) -> list[str] | None:
        """Return the workers that a task may run on; None means any worker."""
        if worker is None and self.pick is not None:
            return list(self.pick.chosen) or [NOBODY]
        return None if worker is None else [worker]

    async def submit(self, function: Any, *args: Any, worker: str | None = None) -> Future:
        """Submit a task, preferably to ``worker``; if workers are selected, use only these workers.

        Tasks that are submitted at the same time are sent in one graph, because a graph costs the
        scheduler milliseconds, and each additional task only a tenth of that.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Future] = loop.create_future()
        self._unsent.append(_Unsent(function, args, worker, answer))
        if len(self._unsent) == 1:
            loop.call_soon(self._send)
        return await answer

    def _send(self) -> None:
        """Send all new tasks to the scheduler, in one graph."""
        unsent = [one for one in self._unsent if not one.answer.done()]
        self._unsent = []
        try:
            futures = self._submit_all(unsent)
        except Exception as error:
            for one in unsent:
                one.answer.set_exception(error)
            return
        for one, future in zip(unsent, futures, strict=True):
            one.answer.set_result(future)

    def _submit_all(self, unsent: list[_Unsent]) -> list[Future]:
        keys = [self._key() for _ in unsent]
        where = {key: self._where(one.worker) for key, one in zip(keys, unsent, strict=True)}
        tasks = {key: (one.function, *one.args) for key, one in zip(keys, unsent, strict=True)}
        layers = {}
        for name, bound in (("bound", True), ("free", False)):
            some = {key: task for key, task in tasks.items() if (where[key] is not None) == bound}
            about: dict[str, Any] = {}
            if bound:
                about["workers"] = where.__getitem__
                if self.pick is None:
                    about["allow_other_workers"] = True
            if some:
                layers[f"{name}-{keys[0]}"] = MaterializedLayer(some, annotations=about)
        with at("submit"):
            graph = HighLevelGraph(layers, {name: set() for name in layers})
            return list(self.client.get(graph, keys, sync=False))

    def _key(self) -> str:
        # The part before the dash names one task group for all tasks of the job.
        return f"{self.group}-{uuid4().hex}"
