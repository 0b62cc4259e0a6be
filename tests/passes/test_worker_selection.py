"""Which workers of a cluster a job uses, and what is told of those that it lacks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import dask
import pytest

from largek_dask.data.sources import open_rows
from largek_dask.passes import admission
from largek_dask.passes.admission import Workers
from largek_dask.passes.network import Network, WorkerInfo, workers_known_to
from largek_dask.passes.worker_selection import (
    WorkerSelection,
    current_selection,
    explain_shortage,
    use_selection,
)
from tests.helpers.checks import eventually
from tests.passes.test_admission import YES, A, B
from tests.passes.test_admission import Network as MadeUp
from tests.passes.toys import integers

C = "tcp://10.0.0.3:4000"


def test_pick__the_same_ones_while_they_can_compute():
    pick = WorkerSelection(most=2)
    assert pick.choose({B: 1, C: 2}, [B, C]) == {B: 1, C: 2}
    assert pick.choose({A: 1, B: 1, C: 2}, [A, B, C]) == {B: 1, C: 2}, "none comes in its place"
    # One that does not answer just now is kept, and nobody takes its place.
    assert pick.choose({A: 1, C: 2}, [A, B, C]) == {C: 2}
    assert pick.choose({A: 1, B: 1, C: 2}, [A, B, C]) == {B: 1, C: 2}
    assert pick.choose({A: 1, C: 2}, [A, C]) == {C: 2, A: 1}, "B is gone"
    assert pick.choose({A: 1, B: 1, C: 2}, [A, B, C]) == {C: 2, A: 1}
    assert pick.chosen == (C, A)
    assert WorkerSelection().choose({A: 1, B: 1}, [A, B]) == {A: 1, B: 1}


def test_pick__takes_those_that_other_jobs_have_not():
    one, two, three = WorkerSelection(most=1), WorkerSelection(most=1), WorkerSelection(most=1)
    there = {A: 1, B: 1}
    with use_selection(one):
        assert current_selection() is one
        assert list(one.choose(there, there)) == [A]
        with use_selection(two):
            assert list(two.choose(there, there)) == [B]
            assert list(two.choose(there, there)) == [B]
        assert current_selection() is one
    assert current_selection() is None
    # That job is over.
    assert list(three.choose(there, there)) == [A]


def test_pick__tags_and_numbers():
    pick = WorkerSelection(2, 3, ["gpu", "bigmem"])
    assert pick.allows({"gpu", "bigmem", "other"})
    assert not pick.allows({"gpu"})
    assert [pick.count(n) for n in (1, 3, 9)] == [1, 3, 3]
    assert [WorkerSelection().count(n) for n in (0, 9)] == [0, 9]


def test_lacking__a_sentence():
    told = explain_shortage(WorkerSelection(2, None, ["a", "b"]), 1, [{"a", "b"}, {"a"}])
    assert told == "it wants 2 workers with a, b, and of the 2 there 1 can be used"
    told = explain_shortage(WorkerSelection(1, None, ["a", "b"]), 0, [{"a"}, ()])
    assert told.endswith("; no worker has b (dask worker --resources b=1)")


@pytest.fixture
def network(monkeypatch):
    network = MadeUp()
    network.answers = {A: YES, B: YES, C: YES}
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: network.now))
    monkeypatch.setattr(admission, "WAIT_SECONDS", 0.0)
    with dask.config.set({"largek.passes.silent-seconds": 60}):
        yield network


@pytest.fixture
def workers(network):
    """``workers(pick)``, and what they have said."""
    said = []

    def make(pick):
        rows = open_rows(integers(4))
        return Workers(network, rows, None, lambda kind, text: said.append((kind, text)), pick)

    return make, said


def test_enough__waits_for_the_least_and_uses_no_more_than_the_most(network, workers):
    make, said = workers
    of = make(WorkerSelection(2, 2, ["bigmem"]))
    moments = iter(range(10))

    def change():
        now = next(moments, 10)
        if now == 0:
            network.has(A)
            network.has(B, tags=frozenset({"bigmem"}))
        if now == 5:
            network.has(C, tags=frozenset({"bigmem"}))

    network.before_look = change

    async def scenario():
        assert await of.ready() == {B: 1}, "whoever only looks does not wait"
        assert await of.enough() == {B: 1, C: 1}
        assert said == [
            (
                "waiting",
                "it wants 2 workers with bigmem, and of the 2 there 1 can be used; "
                "waiting for more",
            ),
            ("workers", "2 workers are available: continuing"),
        ]
        assert A not in network.calls, "it is not asked, and sent nothing"
        network.has("tcp://10.0.0.0:1", tags=frozenset({"bigmem"}))
        network.answers["tcp://10.0.0.0:1"] = YES
        assert await of.enough() == {B: 1, C: 1}
        assert of.seen == {B, C}
        assert len(said) == 2

    asyncio.run(scenario())


def test_ready__nobody_with_the_tags(network, workers):
    make, said = workers
    of = make(WorkerSelection(1, None, ["gpu"]))
    network.has(A)

    def come():
        if network.now > 105:
            network.has(B, tags=frozenset({"gpu"}))

    network.before_look = come

    async def scenario():
        assert await of.ready() == {B: 1}
        assert said == [
            (
                "waiting",
                "it wants 1 worker with gpu, and of the 1 there 0 can be used; no worker has gpu "
                "(dask worker --resources gpu=1); waiting for one",
            ),
            ("workers", "1 worker is available: continuing"),
        ]

    asyncio.run(scenario())


def test_tasks_go_to_no_other_workers():
    found = []

    def get(graph, keys, sync):
        [layer], [key] = graph.layers.values(), keys
        about = layer.annotations or {}
        workers, others = about.get("workers"), about.get("allow_other_workers", False)
        found.append((None if workers is None else workers(key), others))
        return [None]

    pick = WorkerSelection()
    pick.choose({A: 1, B: 1}, [A, B])
    client = SimpleNamespace(get=get)
    for network in (Network(client, "m_1", pick), Network(client, "m_1")):
        asyncio.run(network.submit(abs, 1, worker=B))
        asyncio.run(network.submit(abs, 1))
    assert found == [([B], False), ([A, B], False), ([B], True), (None, False)]


def test_tasks_go_to_nobody_where_all_picked_workers_have_left(worker_clients):
    """As a sum of totals may, just when they leave: others have neither the job nor its tags."""
    client = worker_clients(1)
    [there] = client.scheduler_info(n_workers=-1)["workers"]
    pick = WorkerSelection()
    network = Network(client, "m_1", pick)
    task = network.run(network.submit(abs, -1))
    states = client.cluster.scheduler.tasks
    eventually(lambda: task.key in states and states[task.key].state == "no-worker", "a refusal")
    pick.choose({there: 1}, [there])
    other = network.run(network.submit(abs, -2))
    assert other.result(60) == 2, "there is one that could"
    assert not task.done()
    for one in (task, other):
        one.release()


def test_the_scheduler_s_workers_are_those_that_may_be_used():
    told = {
        "nthreads": 1, "status": "running", "metrics": {}, "memory_limit": 9, "last_seen": 1.0,
    }  # fmt: skip
    table = {A: {**told, "resources": {"gpu": 1.0}}, B: {**told, "resources": {}}}

    async def identity(n_workers):
        return {"workers": table}

    client = SimpleNamespace(
        status="running",
        scheduler_info=lambda n_workers: {"workers": table},
        scheduler=SimpleNamespace(identity=identity),
        rpc=None,  # nobody has left
    )
    assert set(workers_known_to(client)) == {A, B}
    with use_selection(WorkerSelection(tags=["gpu"])):
        assert set(workers_known_to(client)) == {A}
    found = asyncio.run(Network(client, "m_1").workers())
    assert found[A] == WorkerInfo(1, "running", 0, 9, 1.0, frozenset({"gpu"}))
    assert found[B].tags == frozenset()
