"""Whoever leaves while a value goes to all workers is not waited for: a made-up network."""

from __future__ import annotations

import asyncio

import pytest

from largek_dask.passes import waiting
from largek_dask.passes.broadcast import Broadcaster
from largek_dask.passes.waiting import Lost

A, B, C = "tcp://a:1", "tcp://b:1", "tcp://c:1"


class Cluster:
    """A network and its workers; that one has left is known when they are looked at again."""

    def __init__(self):
        self.left = set()
        self.known = set()
        self.have = set()
        self.scattered = []
        self.spreads = []
        self.at_scatter = self.at_spread = lambda *workers: None
        self.hangs = False

    def leave(self, *workers):
        self.left.update(workers)

    async def ready(self):
        self.known |= self.left
        return {address: 1 for address in (A, B, C) if address not in self.known}

    def is_lost(self, address, since):
        assert since > 0
        return address in self.known

    async def scatter(self, value, worker):
        self.scattered.append(worker)
        self.at_scatter(worker)
        if worker in self.left:
            raise KeyError(worker)
        self.have = {worker}
        return f"copies of {value}"

    async def spread(self, sent, source, workers):
        self.spreads.append((source, list(workers)))
        self.at_spread(source, *workers)
        self.have |= set(workers) - self.left
        if self.hangs:
            await asyncio.Future()
        return source not in self.left

    async def holders(self, sent):
        return self.have


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(waiting, "WATCH_SECONDS", 0.0)
    return Cluster()


def send(cluster, addresses=(A, B, C), turn=0):
    async def sending():
        async with asyncio.timeout(10.0):  # to fail, not to hang
            sent = await Broadcaster(cluster, cluster).send("x", addresses, turn)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, "nothing goes on behind it"
        return sent

    return asyncio.run(sending())


def test_workers_take_turns_to_be_the_first(cluster):
    for turn in (0, 1, 5):
        assert send(cluster, turn=turn) == "copies of x"
    assert send(cluster, [B]) == "copies of x"
    assert cluster.scattered == [A, B, C, B]
    assert cluster.spreads == [(A, [B, C]), (B, [C, A]), (C, [A, B])]


def test_where_the_first_one_has_left_the_next_is_the_first(cluster):
    cluster.at_scatter = lambda worker: cluster.leave(A, B)
    assert send(cluster) == "copies of x"
    assert cluster.scattered == [A, C], "the second had left as well"
    assert cluster.spreads == []


def test_where_all_have_left_it_is_lost(cluster):
    cluster.leave(A, B, C)
    with pytest.raises(Lost, match="a:1"):
        send(cluster)
    assert cluster.scattered == [A]


@pytest.mark.parametrize("hangs", [False, True])
def test_where_the_first_one_leaves_on_the_way_it_begins_again(hangs, cluster):
    def leave(source, *workers):
        if source == A:
            cluster.leave(A)
            cluster.hangs = hangs
        else:
            cluster.hangs = False

    cluster.at_spread = leave
    assert send(cluster) == "copies of x"
    assert cluster.spreads == [(A, [B, C]), (B, [C])]


@pytest.mark.parametrize("gone", [[C], [B, C]])
def test_others_that_leave_on_the_way_are_not_waited_for(gone, cluster):
    cluster.hangs = True
    cluster.at_spread = lambda *workers: cluster.leave(*gone)
    assert send(cluster) == "copies of x"
    assert cluster.scattered == [A]
    assert cluster.have == {A, B, C} - set(gone)


def test_whoever_is_there_is_waited_for(cluster, monkeypatch):
    """Also where another one has left."""
    looks = []
    ready = cluster.ready

    async def counted():
        looks.append(len(cluster.have))
        if len(looks) == 5:
            cluster.have.add(B)
        return await ready()

    async def slowly(sent, source, workers):
        cluster.leave(C)
        await asyncio.Future()

    monkeypatch.setattr(cluster, "ready", counted)
    monkeypatch.setattr(cluster, "spread", slowly)
    assert send(cluster) == "copies of x"
    assert looks == [1, 1, 1, 1, 1]
    assert cluster.have == {A, B}
