"""Nobody asks long for a value of a worker that has left, whenever it has begun to."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import warnings

import dask
import psutil
from distributed.comm.tcp import TCPConnector
from tornado.ioloop import IOLoop

from largek_dask.data.sources import open_rows
from largek_dask.passes import disconnect
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.disconnect import ConnectionCloser, DepartedWorkers, close_stale_connections
from tests.passes.toys import combine, count_chunk, integers, start


class Connections:
    def __init__(self):
        self.ended = []

    def remove(self, address, reason):
        assert address in reason
        self.ended.append(address)

    def take(self):
        ended, self.ended = sorted(self.ended), []
        return ended


def test_leavers__are_connected_to_no_longer_for_some_moments(monkeypatch):
    monkeypatch.setattr(disconnect, "MOMENTS", (0.0, 0.05))
    leavers, connections = DepartedWorkers(), Connections()

    async def look(*there):
        leavers.note(there, connections)
        return connections.take()

    async def days():
        assert await look("a", "b") == await look("a", "b") == []
        assert await look("b") == ["a"]
        assert await look("c") == ["a", "b"]
        assert await look("a", "c") == ["b"], "one has come back to where it was"
        await asyncio.sleep(0.06)
        assert await look("a", "c") == [], "long ago"
        assert await look("c") == ["a"]

    asyncio.run(days())


async def gathered_while_it_leaves(key, address, pid, dask_scheduler=None):
    """Whether a scheduler gives up a value whose worker leaves between question and call."""
    asked = asyncio.ensure_future(dask_scheduler.gather([key]))
    # Now it knows who has it, and has asked nobody yet.
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert not psutil.wait_procs([psutil.Process(pid)], timeout=120)[1]
    await dask_scheduler.remove_worker(address, stimulus_id="test", close=False)
    done, _ = await asyncio.wait([asked], timeout=120)
    asked.cancel()
    return bool(done)


def test_a_scheduler_gives_up_what_it_asks_of_one_that_has_just_left(fresh_cluster):
    client = fresh_cluster(2)
    with ClusterPasses(open_rows(integers(100)), client) as passes:
        passes.reduce(count_chunk, start=start, combine=combine)
    client.run_on_scheduler(close_stale_connections)
    ours = [name for name in client.run_on_scheduler(plugins) if ConnectionCloser.name in name]
    assert ours == [ConnectionCloser.name], "once"
    value = client.submit(abs, -3, pure=False)
    assert value.result() == 3
    [address] = client.who_has([value])[value.key]
    pid = client.run(os.getpid)[address]
    # Without us Dask keeps trying to connect for that time.
    with dask.config.set({"distributed.comm.timeouts.connect": "1h"}):
        assert client.run_on_scheduler(gathered_while_it_leaves, value.key, address, pid)


def plugins(dask_scheduler=None):
    return list(dask_scheduler.plugins)


def test_connections_that_tests_cancel_leave_no_warning():
    """In any turn of the event loop, also that in which the connection is established."""

    async def connect_and_cancel(address):
        outcomes = set()
        for turns in range(10):
            connecting = asyncio.ensure_future(TCPConnector().connect(address))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            [outcome] = await asyncio.gather(connecting, return_exceptions=True)
            outcomes.add(type(outcome).__name__)
            if not isinstance(outcome, BaseException):
                outcome.abort()
        assert outcomes == {"CancelledError", "TCP"}

    async def forget_ended_loops():
        IOLoop.current()

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        warnings.catch_warnings(record=True) as w,
    ):
        warnings.simplefilter("always")
        port = server.getsockname()[1]
        asyncio.run(connect_and_cancel(f"127.0.0.1:{port}"))
        asyncio.run(forget_ended_loops())
        gc.collect()
    assert [str(one.message) for one in w if str(port) in str(one.message)] == []
