"""How far a pass is: told by what the driver hears anyway, seldom, and never wrong."""

from __future__ import annotations

from itertools import pairwise

import pytest

from largek_dask.passes import telemetry as module
from largek_dask.passes import waiting
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from tests.passes.test_cluster import N, path, rows, x  # noqa: F401
from tests.passes.toys import StoredRows, combine, count_chunk, integers, rows_of, start


@pytest.fixture
def stored(request):
    """The rows of ``test_cluster``."""
    return request.getfixturevalue("rows")


@pytest.fixture
def often(monkeypatch):
    """Progress is told whenever it may be."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)


def counted(passes):
    return passes.reduce(count_chunk, start=start, combine=combine).tolist()


class Told:
    def __init__(self):
        self.events = []

    def __call__(self, kind, **values):
        assert kind == "progress"
        self.events.append((values["done"], values["n_chunks"]))


def test_local__counts_the_chunks_of_each_pass(often):
    told = Told()
    with LocalPasses(rows_of(integers(60), [10] * 6), n_threads=1, on_event=told) as passes:
        assert passes.progress() == (0, 0)
        answer = counted(passes)
        assert told.events == [(0, 6), (1, 6), (2, 6), (3, 6), (4, 6), (5, 6)]
        assert passes.progress() == (0, 0)
        passes.reduce(count_chunk, start=start, combine=combine, chunks=[1, 4])
        assert told.events[6:] == [(0, 2), (1, 2)]
    with LocalPasses(rows_of(integers(60), [10] * 6), n_threads=1) as silent:
        assert counted(silent) == answer


def test_local__of_threads_that_ask_at_the_same_time_one_tells(often):
    told = Told()
    with LocalPasses(StoredRows(integers(400), 40), n_threads=4, on_event=told) as passes:
        for _ in range(5):
            counted(passes)
    assert {n for _, n in told.events} == {40}
    assert len(told.events) <= 5 * 41
    done = [n for n, _ in told.events]
    assert max(done) < 41
    falls = sum(after < before for before, after in pairwise(done))
    assert falls <= 4, "within a pass it only grows"


def test_a_single_chunk_and_a_short_pass_are_not_told(often, monkeypatch):
    told = Told()
    with LocalPasses(rows_of(integers(60), [60]), n_threads=1, on_event=told) as passes:
        counted(passes)
    monkeypatch.setattr(module, "EVERY_SECONDS", 60.0)
    with LocalPasses(rows_of(integers(60), [10] * 6), n_threads=1, on_event=told) as passes:
        counted(passes)
    assert told.events == []


def test_cluster__is_told_by_the_slices_that_come_back_and_by_nothing_else(
    stored, cluster2, often, quick_slices, monkeypatch
):
    """As many tasks and answers as where nobody is told; the driver looks after each."""
    real, answers = waiting.result, []

    async def watched(future):
        outcome = await real(future)
        answers.append(outcome.done)
        looked.append(passes.progress())
        return outcome

    monkeypatch.setattr(waiting, "result", watched)
    looked, told = [], Told()
    with ClusterPasses(stored, cluster2) as passes:
        silent = counted(passes)
    n_answers, looked[:] = len(answers), []
    with ClusterPasses(stored, cluster2, on_event=told) as passes:
        assert counted(passes) == silent
        assert passes.progress() == (0, 0)
        n_chunks = passes.n_chunks
    assert n_answers > 2, "slices came back before their shares were done"
    assert max(answers) == n_chunks // 2
    assert len(answers) - n_answers == pytest.approx(n_answers, abs=2), "an empty slice or two"
    assert {n for _, n in looked} == {n_chunks}
    done = [n for n, _ in looked]
    assert done == sorted(done)
    assert 0 < done[-1] < n_chunks, "what the last slice brings is seen after it"
    assert set(told.events) <= {(n, n_chunks) for n in range(n_chunks + 1)}


def test_cluster__what_a_lost_share_had_done_is_not_counted_twice(
    stored, worker_clients, quick_slices, monkeypatch
):
    real, lost, looked = waiting.result, [], []

    async def lossy(future):
        outcome = await real(future)
        looked.append(passes.progress())
        if not lost and outcome.done > 1:
            lost.append(outcome.done)
            raise waiting.Lost(RuntimeError("the answer is lost"))
        return outcome

    monkeypatch.setattr(waiting, "result", lossy)
    with ClusterPasses(stored, worker_clients(2), log=lambda *_, **__: None) as passes:
        assert counted(passes)[:2] == [N, passes.n_chunks]
        n_chunks = passes.n_chunks
    assert lost
    assert max(n for n, _ in looked) < n_chunks
