"""Tasks on a worker, called without a cluster."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from largek_dask.passes import worker as worker_module
from largek_dask.passes.engine import PassSpec, StateSpec
from largek_dask.passes.placement import ranges
from largek_dask.passes.worker import JobSpec, Payload, Sealed, Share, WorkPlugin, work
from tests.passes.toys import combine, integers, path_answers, path_chunk, rows_of, start

HERE, ELSEWHERE = "tcp://here:1", "tcp://elsewhere:1"


@pytest.fixture
def x():
    return integers(60)


@pytest.fixture
def plugin(x, monkeypatch):
    """The plugin of a worker that knows the job "job" with six chunks."""
    plugin = WorkPlugin()
    dask_worker = SimpleNamespace(
        address=HERE,
        plugins={WorkPlugin.name: plugin},
        memory_manager=SimpleNamespace(memory_limit=1 << 30),
        state=SimpleNamespace(nthreads=1),
    )
    monkeypatch.setattr(worker_module, "get_worker", lambda: dask_worker)
    plugin.setup(dask_worker)
    plugin.admit(JobSpec("job", pickle.dumps(rows_of(x, [10] * 6)), None, 0))
    yield plugin
    plugin.teardown(dask_worker)


def share_of(generation, chunks, owner=HERE):
    """What the worker answers for a share of the pass that writes ``generation``."""
    state = StateSpec("path", 1, generation, first=generation == 1, retain=True)
    payload = Payload("job", generation, PassSpec(path_chunk, (generation,), start, combine, state))
    share = Share(f"{generation} {owner}", owner, ranges(chunks), 1 << 20, 60.0)
    replay = Sealed(tuple((g,) for g in range(1, generation)))
    outcome = work(share, payload, replay)
    assert outcome.finished
    return outcome.total


@pytest.mark.parametrize("guest_first", [True, False])
def test_a_share_of_another_worker_leaves_the_retained_totals_alone(guest_first, x, plugin):
    """Dask may move a share to a worker that has one of its own in the same pass."""
    share_of(1, range(4))
    answers = {}
    for owner in (ELSEWHERE, HERE) if guest_first else (HERE, ELSEWHERE):
        chunks = range(4) if owner == HERE else [4, 5]
        answers[owner] = share_of(2, chunks, owner)
    assert answers[HERE][0] == path_answers(x[:40], 2)[-1]
    assert answers[HERE][2] == 4, "it went on from the totals of the pass before"
    assert answers[ELSEWHERE][0] == path_answers(x[40:], 2)[-1]
    after = share_of(3, range(6))
    assert after[0] == path_answers(x, 3)[-1]
    assert after[2] == 8, "four chunks in both passes"
