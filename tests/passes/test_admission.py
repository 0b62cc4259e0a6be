"""Who may take part, and who is not waited for: a made-up network and a made-up clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import dask
import pytest

from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, VersionMismatchError
from largek_dask.passes import admission
from largek_dask.passes.admission import Workers
from largek_dask.passes.network import WorkerInfo
from largek_dask.passes.worker import admit
from tests.passes.toys import integers

A, B = "tcp://a:1", "tcp://b:1"


class Network:
    """Workers as the test wants them; every look at them takes a second."""

    job = "job"

    def __init__(self):
        self.now = 100.0
        self.found = {}
        self.frozen = set()
        """Workers without heartbeat."""
        self.answers = {}
        """Answer to the question for versions; an absent one never comes."""
        self.calls = []
        self.data = {}
        """Why a worker cannot open the data."""
        self.given = []
        """Workers that were told where the data are."""
        self.before_look = lambda: None

    def has(self, address, **changes):
        about = {"n_threads": 1, "status": "running", "memory": 0, "memory_limit": 0}
        self.found[address] = WorkerInfo(**{**about, **changes}, last_seen=self.now)

    async def workers(self):
        self.now += 1
        assert self.now < 10_000, "the workers are looked at again and again"
        self.before_look()
        for address, info in self.found.items():
            if address not in self.frozen:
                self.found[address] = replace(info, last_seen=self.now)
        await asyncio.sleep(0)
        return dict(self.found)

    def spawn(self, work):
        return asyncio.ensure_future(work)

    async def call(self, function, *args, worker):
        if function is admit:
            self.given.append(worker)
            answer = self.data.get(worker)
        else:
            self.calls.append(worker)
            if worker not in self.answers:
                await asyncio.Future()
            answer = self.answers[worker]
        return answer.pop(0) if isinstance(answer, list) else answer


YES = admission.versions()
OTHER = {**YES, "numba": "0.1"}


@pytest.fixture
def network(monkeypatch):
    network = Network()
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: network.now))
    monkeypatch.setattr(admission, "WAIT_SECONDS", 0.0)
    return network


@pytest.fixture
def said():
    return []


@pytest.fixture
def workers(network, said):
    with dask.config.set({"largek.passes.silent-seconds": 60}):
        rows = open_rows(integers(4))
        yield Workers(network, rows, None, lambda kind, text: said.append((kind, text)))


def test_paused_workers_are_named_and_waited_for(network, workers, said):
    async def scenario():
        network.answers = {A: YES, B: YES}
        network.has(A, status="paused", memory=3_300_000_000, memory_limit=4_000_000_000)

        def resume():
            if network.now > 130:
                network.has(A)

        network.before_look = resume
        assert await workers.ready() == {A: 1}
        assert said == [
            (
                "waiting",
                f"no worker can take work: {A} is paused by Dask for lack of memory "
                "(3.3 of 4.0 GB used); waiting for one",
            ),
            ("workers", "1 worker is available: continuing"),
        ]

    asyncio.run(scenario())


def test_one_paused_worker_is_left_out_and_waited_for_in_the_end(network, workers, said):
    async def scenario():
        network.answers = {A: YES, B: YES}
        network.has(A)
        network.has(B, n_threads=2)
        assert await workers.ready() == {A: 1, B: 2}
        network.has(B, n_threads=2, status="paused")
        asked = network.now
        assert await workers.ready() == {A: 1}
        assert await workers.ready() == {A: 1}
        assert [kind for kind, _ in said] == ["workers"], "once"
        assert f"1 worker continues without: {B} is paused" in said[0][1]
        assert not workers.is_lost(B, asked)
        assert not workers.is_lost(A, asked - 1000)
        network.now += 60
        assert workers.is_lost(B, asked)
        network.has(B, n_threads=2)
        assert await workers.ready() == {A: 1, B: 2}
        assert not workers.is_lost(B, asked)
        assert network.calls == [A, B], "no worker is asked twice"

    asyncio.run(scenario())


def test_a_worker_that_never_answers_is_given_up(network, workers, said):
    """It is not asked twice, and takes part as soon as it answers after all."""

    async def scenario():
        later = asyncio.Event()
        call = network.call

        async def slow(function, *args, worker):
            if worker == B:
                await later.wait()
            return await call(function, *args, worker=worker)

        network.call = slow
        network.answers = {A: YES, B: YES}
        network.has(A)
        network.has(B)
        began = network.now
        assert await workers.ready() == {A: 1}
        assert 60 <= network.now - began < 70
        assert said[0] == ("waiting", f"{B} has not answered yet; waiting for it")
        assert said[1][0] == "workers"
        assert f"1 worker continues without: {B} has not answered for 62 s" in said[1][1]
        before = network.now
        assert await workers.ready() == {A: 1}
        assert network.now - before == 1, "nobody waits for it again"
        later.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await workers.ready() == {A: 1, B: 1}
        assert network.calls == [A, B]

    asyncio.run(scenario())


def test_a_silent_worker_is_lost_at_once_and_comes_back(network, workers, said):
    async def scenario():
        network.answers = {A: YES}
        network.has(A)
        await workers.ready()
        network.frozen.add(A)
        network.now += 59
        assert await workers.ready() == {A: 1}, "60 s are allowed"

        lost = []

        def look():
            if network.now > 300:
                network.frozen.clear()
            lost.append(workers.is_lost(A, network.now))

        network.before_look = look
        assert await workers.ready() == {A: 1}
        assert said[0][0] == "waiting"
        assert f"no worker can take work: {A} has not sent a heartbeat for 6" in said[0][1]
        assert said[1] == ("workers", "1 worker is available: continuing")
        assert lost[:2] == [False, True], "before and after the look that found it silent"

    asyncio.run(scenario())


def test_a_worker_that_is_gone_is_lost_at_once(network, workers):
    async def scenario():
        network.answers = {A: YES, B: YES}
        network.has(A)
        network.has(B)
        await workers.ready()
        assert not workers.is_lost(A, network.now - 1000)
        del network.found[A]
        assert await workers.ready() == {B: 1}
        assert workers.is_lost(A, network.now)
        assert not workers.is_lost(B, network.now - 1000)
        network.has(A)
        await workers.ready()
        assert not workers.is_lost(A, network.now - 1000), "it is back"

    asyncio.run(scenario())


@pytest.mark.parametrize("question", ["versions", "data"])
def test_a_worker_that_cannot_be_asked_does_not_hold_up_the_others(
    network, workers, said, question
):
    async def scenario():
        gone = [OSError("gone"), YES if question == "versions" else None]
        network.answers = {A: YES, B: gone if question == "versions" else YES}
        network.data = {B: gone} if question == "data" else {}
        network.has(A)
        network.has(B)
        assert await workers.ready() == {A: 1}
        assert said == [("workers", f"1 worker continues without: {B} did not answer: gone")]
        network.now += 10
        assert await workers.ready() == {A: 1}, "asked again, and not waited for"
        await asyncio.sleep(0)
        assert await workers.ready() == {A: 1, B: 1}

    asyncio.run(scenario())


def test_a_worker_that_has_just_come_does_not_hold_up_the_others(network, workers):
    async def scenario():
        network.answers = {A: YES, B: YES}
        network.has(A)
        assert await workers.ready() == {A: 1}
        network.has(B)
        assert await workers.ready() == {A: 1}
        await asyncio.sleep(0)
        assert await workers.ready() == {A: 1, B: 1}
        workers.forget(B)
        assert await workers.ready() == {A: 1}
        workers.forget(B)
        assert await workers.ready(wait_for=[B]) == {A: 1, B: 1}
        workers.forget(A)
        assert await workers.ready(wait_for=None) == {A: 1, B: 1}

    asyncio.run(scenario())


MISFITS = [
    (OTHER, None, VersionMismatchError, "has numba 0.1 instead of"),
    (ImportError("no largek_dask"), None, VersionMismatchError, "cannot import this version"),
    (YES, "OSError: no such folder", DataError, "OSError: no such folder"),
]


@pytest.mark.parametrize(("answer", "why_not", "error", "text"), MISFITS)
def test_a_worker_that_cannot_take_part_is_left_out(
    network, workers, said, answer, why_not, error, text
):
    """It is named once, asked again now and then, and taken when it can take part after all."""

    async def scenario():
        network.answers = {A: YES}
        network.has(A)
        assert await workers.ready(None, begin=True) == {A: 1}
        network.answers[B], network.data[B] = answer, why_not
        network.has(B)
        for _ in range(100):
            assert await workers.ready() == {A: 1}
            await asyncio.sleep(0)
        assert [kind for kind, _ in said] == ["workers"]
        assert said[0][1].startswith(f"1 worker continues without: {B} ")
        assert text in said[0][1]
        assert 3 <= network.calls.count(B) <= 5, "every 30 s"
        assert (B in network.given) == (answer == YES), "misfits are not told of the data"
        assert workers.is_lost(B, network.now - 61)
        network.answers[B] = YES
        network.data.pop(B, None)
        network.now += 31
        await workers.ready()
        await asyncio.sleep(0)
        assert await workers.ready() == {A: 1, B: 1}

    asyncio.run(scenario())


@pytest.mark.parametrize(("answer", "why_not", "error", "text"), MISFITS)
def test_a_job_begins_with_whoever_can_take_part(
    network, workers, said, answer, why_not, error, text
):
    async def scenario():
        network.answers = {A: answer, B: YES}
        network.data[A] = why_not
        network.has(A)
        with pytest.raises(error, match=text):
            await workers.ready(None, begin=True)
        network.has(B)
        assert await workers.ready(None, begin=True) == {B: 1}
        assert f"1 worker continues without: {A} " in said[0][1]

    asyncio.run(scenario())


def test_a_job_does_not_begin_where_each_has_its_own_reason(network, workers):
    async def scenario():
        network.answers = {A: OTHER, B: YES}
        network.data[B] = "OSError: no such folder"
        network.has(A)
        network.has(B)
        with pytest.raises(VersionMismatchError, match=r"numba 0\.1.*no such folder"):
            await workers.ready(None, begin=True)

    asyncio.run(scenario())


def test_a_worker_that_has_left_and_comes_back_is_asked_at_once(network, workers):
    async def scenario():
        network.answers = {A: YES, B: OTHER}
        network.has(A)
        network.has(B)
        assert await workers.ready(None, begin=True) == {A: 1}
        del network.found[B]
        assert await workers.ready() == {A: 1}
        network.answers[B] = YES
        network.has(B)
        assert await workers.ready(None) == {A: 1, B: 1}

    asyncio.run(scenario())


def test_a_job_that_runs_waits_where_nobody_can_take_part(network, workers, said):
    async def scenario():
        network.answers = {A: YES, B: OTHER}
        network.has(A)
        network.has(B)
        assert await workers.ready(None, begin=True) == {A: 1}
        del network.found[A]
        told = len(said)

        def come_back():
            if len(said) > told:
                network.has(A)

        network.before_look = come_back
        assert await workers.ready() == {A: 1}
        assert [kind for kind, _ in said[told:]] == ["waiting", "workers"]
        assert f"no worker can take work: {B} has numba 0.1" in said[told][1]

    asyncio.run(scenario())


def test_one_that_may_be_able_later_is_waited_for_at_the_beginning(network, workers, said):
    async def scenario():
        network.answers = {A: OTHER, B: YES}
        network.has(A)
        network.has(B, status="paused")
        network.before_look = lambda: network.has(B) if said else None
        assert await workers.ready(None, begin=True) == {B: 1}
        assert said[0][0] == "waiting"
        assert f"{A} has numba" in said[0][1]

    asyncio.run(scenario())


def test_who_takes_tasks_is_known_as_of_the_last_look(network, workers):
    async def scenario():
        def able():
            return [address for address in (A, B) if workers.takes_tasks(address)]

        assert (able(), workers.n_threads) == ([], 0), "nobody has looked yet"
        network.answers = {A: YES, B: YES}
        network.has(A, n_threads=2)
        network.has(B, n_threads=3)
        assert await workers.ready() == {A: 2, B: 3}
        assert (able(), workers.n_threads) == ([A, B], 5)
        network.has(B, n_threads=3, status="paused")
        assert able() == [A, B]
        assert await workers.ready() == {A: 2}
        assert (able(), workers.n_threads) == ([A], 2)
        network.has(B, n_threads=3)
        assert await workers.ready() == {A: 2, B: 3}
        del network.found[A]
        assert await workers.ready() == {B: 3}
        assert (able(), workers.n_threads) == ([B], 3)

    asyncio.run(scenario())
