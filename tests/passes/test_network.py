"""What is asked of a scheduler, and what is made of its answers; here it is a made-up one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from largek_dask.errors import ClusterError
from largek_dask.passes.network import Network, WorkerInfo


class Scheduler:
    """Answers with what a test has put here."""

    def __init__(self):
        self.workers, self.told, self.copies, self.asked = {}, [], {}, []

    async def identity(self, n_workers):
        self.asked.append(n_workers)
        if self.workers is None:
            raise OSError("connection refused")
        return {"workers": self.workers}

    async def events(self, topic):
        assert topic == "all"
        return list(enumerate(self.told))

    async def who_has(self, keys):
        return {key: self.copies[key] for key in keys if key in self.copies}

    async def broadcast(self, msg, workers, on_error):
        self.asked.append(msg)
        assert on_error == "ignore"
        return {worker: None for worker in workers if worker in self.workers}


class Connections:
    def __init__(self):
        self.removed = []

    def remove(self, address, reason):
        assert address in reason
        self.removed.append(address)


@pytest.fixture
def scheduler():
    return Scheduler()


@pytest.fixture
def network(scheduler):
    return Network(SimpleNamespace(status="running", scheduler=scheduler, rpc=Connections()), "m_5")


def worker(**changes):
    known = {"nthreads": 2, "status": "running", "metrics": {"memory": 7}, "memory_limit": 100}
    return {**known, "last_seen": 12.5, **changes}


def test_workers_are_told_as_they_are_and_connections_to_those_that_left_are_dropped(
    scheduler, network
):
    scheduler.workers = {"a": worker(), "b": worker(metrics={}, memory_limit=None, status="paused")}
    found = asyncio.run(network.workers())
    assert found == {
        "a": WorkerInfo(2, "running", 7, 100, 12.5),
        "b": WorkerInfo(2, "paused", 0, 0, 12.5),
    }
    assert scheduler.asked == [-1], "all of them, and not the first five"
    assert network.client.rpc.removed == []
    scheduler.workers = {"c": worker()}
    assert list(asyncio.run(network.workers())) == ["c"]
    assert sorted(network.client.rpc.removed) == ["a", "b"]
    scheduler.workers = None
    with pytest.raises(ClusterError, match=r"cannot be reached any more: connection refused"):
        asyncio.run(network.workers())


def lost(*tasks, **changes):
    return {"action": "remove-worker", "expected": False, "processing-tasks": tasks, **changes}


def test_deaths_are_of_workers_that_nobody_sent_away_and_that_had_the_task(scheduler, network):
    scheduler.told = [
        {"action": "add-worker"},
        {"worker": "a"},
        lost("mine", "other"),
        lost("other"),
        lost("mine", expected=True),
        lost(),
        lost("mine"),
    ]
    assert asyncio.run(network.deaths("mine")) == [{"mine", "other"}, {"mine"}]
    assert asyncio.run(network.deaths("nobody's")) == []


class Told:
    """A client that notes what it tells its scheduler."""

    def __init__(self):
        self.graphs, self.fails = [], False

    def get(self, graph, keys, sync):
        assert sync is False
        if self.fails:
            raise OSError("gone")
        self.graphs.append({
            key: (task, {name: value(key) if callable(value) else value
                         for name, value in (layer.annotations or {}).items()})
            for layer in graph.layers.values() for key, task in dict(layer).items()
        })  # fmt: skip
        return keys


def told_by(work, pick=None):
    network = Network(Told(), "m_5", pick)

    async def all_of_it():
        return await asyncio.gather(*work(network), return_exceptions=True)

    return network.client, asyncio.run(all_of_it())


def test_tasks_of_the_same_moment_are_told_together_each_with_its_worker():
    def work(network):
        yield network.submit(abs, -1, worker="a")
        yield network.submit(max, 1, 2, worker="b")
        yield network.submit(min, 3)

    client, keys = told_by(work)
    [graph] = client.graphs
    assert len(set(keys)) == 3
    assert [graph[key] for key in keys] == [
        ((abs, -1), {"workers": ["a"], "allow_other_workers": True}),
        ((max, 1, 2), {"workers": ["b"], "allow_other_workers": True}),
        ((min, 3), {}),
    ]


def test_of_picked_workers_none_is_another_one():
    pick = SimpleNamespace(chosen=["a", "b"])
    client, keys = told_by(lambda n: [n.submit(abs, -1, worker="a"), n.submit(abs, -2)], pick)
    [graph] = client.graphs
    assert [graph[key][1] for key in keys] == [{"workers": ["a"]}, {"workers": ["a", "b"]}]


def test_a_task_that_nobody_waits_for_is_not_told():
    async def given_up(network):
        task = asyncio.ensure_future(network.submit(abs, -1, worker="a"))
        other = asyncio.ensure_future(network.submit(abs, -2, worker="b"))
        await asyncio.sleep(0)
        task.cancel()
        return await other

    client, [key] = told_by(lambda network: [given_up(network)])
    about = {"workers": ["b"], "allow_other_workers": True}
    assert client.graphs == [{key: ((abs, -2), about)}]


def test_all_hear_of_it_when_the_scheduler_cannot_be_told():
    def work(network):
        network.client.fails = True
        return [network.submit(abs, -1, worker="a"), network.submit(abs, -2, worker="a")]

    _, errors = told_by(work)
    assert [str(error) for error in errors] == ["gone", "gone"]
