"""One value on many workers: who has it, who is asked for it, and that it is let go again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from distributed import Scheduler

import largek_dask.passes.cluster as cluster_module
from largek_dask.data.sources import open_rows
from largek_dask.passes import broadcast
from largek_dask.passes.broadcast import SPREAD, BroadcastRelay
from largek_dask.passes.cluster import ClusterPasses
from tests.helpers.checks import eventually
from tests.passes.toys import combine, integers, start

N = 100


def keys_of(dask_worker):
    """Keys of broadcasts, and whether any is known but not there."""
    return {key for key in dask_worker.data if str(key).startswith("largek")}


def sum_chunk(chunk, total, values):
    total[:2] += [values.sum(), len(chunk.x)]


@pytest.fixture
def passes(worker_clients, tmp_path, monkeypatch):
    """Passes on five workers; every broadcast is a large one."""
    monkeypatch.setattr(cluster_module, "EMBED_BYTES", 0)
    with ClusterPasses(open_rows(integers(N)), worker_clients(5)) as passes:
        yield passes


def reduced(passes, values):
    return passes.reduce(sum_chunk, values, start=start, combine=combine)[:2].tolist()


@pytest.mark.parametrize("direct", [False, True])
def test_every_worker_has_it_and_one_of_them_from_the_driver(
    direct, passes, worker_clients, monkeypatch
):
    """The others have it from each other, at most two at a time from the same."""
    client = passes._network.client
    monkeypatch.setattr(client, "direct_to_workers", direct)
    monkeypatch.setattr(Scheduler, "replicate", None)
    given = []
    receive = BroadcastRelay.receive

    async def noted(self, key, sources):
        given.append((sources[0], self._worker.address))
        return await receive(self, key, sources)

    for worker in client.cluster.workers.values():
        spreader = worker.handlers[SPREAD].__self__
        monkeypatch.setitem(worker.handlers, broadcast.RECEIVE, noted.__get__(spreader))
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])

    async def send():
        sent = await passes._broadcaster.send(np.arange(N), workers)
        return await passes._network.holders(sent)

    assert passes._network.run(send()) == set(workers)
    first = {source for source, _ in given} - {address for _, address in given}
    assert len(first) == 1, "one had it from the driver"
    assert sorted([*first, *(address for _, address in given)]) == workers, "everybody once"
    assert [source for source, _ in given[:2]] == 2 * list(first)
    assert {source for source, _ in given[2:]} - first, "no longer from the first one alone"


def test_it_is_let_go_after_the_pass(passes):
    assert reduced(passes, np.ones(N, np.int64)) == [N * passes.n_chunks, N]
    client = passes._network.client

    def is_let_go():
        passes._spent.clear()
        return not any(client.run(keys_of).values())

    eventually(is_let_go, "the workers to let go of it")


def test_one_that_was_given_up_on_its_way_is_let_go_when_it_is_there(passes, monkeypatch):
    client = passes._network.client
    there, goes_on = asyncio.Event(), asyncio.Event()
    scatter = client.scatter

    async def slow(*args, **kwargs):
        sent = await scatter(*args, **kwargs)
        there.set()
        await goes_on.wait()
        return sent

    monkeypatch.setattr(client, "scatter", slow)
    worker = min(client.scheduler_info(n_workers=-1)["workers"])

    async def give_up():
        waiting = asyncio.ensure_future(passes._network.scatter(np.ones(N, np.int64), worker))
        await there.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        (sending,) = passes._network._sending
        assert not sending.done()
        goes_on.set()
        await asyncio.wait([sending])

    passes._network.run(give_up())
    assert not passes._network._sending
    eventually(lambda: not any(client.run(keys_of).values()), "the workers to let go of it")


def test_whoever_cannot_be_reached_is_left_out(passes, monkeypatch):
    """Nor does a worker wait for the one that it was to have the value from."""
    monkeypatch.setattr(broadcast, "CONNECT_SECONDS", 0.05)
    client = passes._network.client
    one, other, third, *_ = sorted(client.scheduler_info(n_workers=-1)["workers"])
    nobody, nor_here = "tcp://127.0.0.1:9", "tcp://127.0.0.1:10"
    spreader = (
        {w.address: w for w in client.cluster.workers.values()}[one].handlers[SPREAD].__self__
    )

    async def send():
        sent = await passes._network.scatter(np.ones(N, np.int64), one)
        # As many as have it from the first one at a time: it still gives it to the next.
        assert broadcast.BRANCHES == 2
        assert await spreader.spread(sent.key, [nobody, nor_here, other]) == [other]
        assert await spreader._ask(third, sent.key, nobody) == one
        return await passes._network.holders(sent)

    assert passes._network.run(send()) == {one, other, third}
