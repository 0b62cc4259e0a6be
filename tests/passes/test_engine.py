"""What only workers ask of the engine: shares in slices, replays that come later, guests."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from largek_dask.errors import CancelledFit
from largek_dask.passes.engine import Engine
from largek_dask.passes.spec import PassSpec, StateSpec
from tests.passes.toys import (
    StoredRows,
    combine,
    integers,
    path_answers,
    path_chunk,
    rows_of,
    start,
)


@pytest.fixture
def x():
    return integers(60)


@pytest.fixture
def engine(x):
    engine = Engine(rows_of(x, [10] * 6), 2, lambda: 1 << 20, lambda: 0)
    yield engine
    engine.close()


def spec(generation: int) -> PassSpec:
    state = StateSpec("path", 1, generation, first=generation == 1, retain=True)
    return PassSpec(path_chunk, (generation,), start, combine, state)


def never():
    return None


def whole(engine, generation, chunks, **options):
    ticket = engine.open(spec(generation), chunks, **options)
    assert engine.advance(ticket, never)
    assert ticket.finished
    return engine.collect(ticket)


def replay(generation):
    return tuple((g,) for g in range(1, generation))


def test_replay_is_asked_for_and_only_the_chunks_that_need_it_wait(x, engine):
    whole(engine, 1, range(4))
    ticket = engine.open(spec(2), range(6), None)
    assert sorted(ticket.waiting) == [4, 5]
    assert engine.advance(ticket, never)
    assert not ticket.finished
    assert ticket.done == {0, 1, 2, 3}
    engine.supply(ticket, replay(2))
    assert engine.advance(ticket, never)
    assert ticket.finished
    assert ticket.report.rebuilt == 2
    assert engine.collect(ticket)[0] == path_answers(x, 2)[-1]


def test_state_that_goes_while_a_pass_runs_is_asked_for(x, engine):
    whole(engine, 1, range(6))
    ticket = engine.open(spec(2), range(6), None)
    assert ticket.waiting == []
    engine.store._states["path"].pop(3)
    assert engine.advance(ticket, never)
    assert ticket.waiting == [3]
    assert not ticket.finished
    engine.supply(ticket, replay(2))
    assert engine.advance(ticket, never)
    assert ticket.report.rebuilt == 1
    assert engine.collect(ticket)[0] == path_answers(x, 2)[-1]


def test_a_slice_without_time_computes_one_chunk_a_thread(x, engine):
    ticket = engine.open(spec(1), range(6))
    done = []
    while not engine.advance(ticket, never, until=0.0):
        done.append(len(ticket.done))
    assert done == [2, 4]
    assert engine.collect(ticket)[0] == path_answers(x, 1)[-1]


def test_a_closed_engine_holds_nothing(x):
    engine = Engine(StoredRows(x, 6), 2, lambda: 1 << 20, lambda: 1 << 20)
    before = set(threading.enumerate())
    whole(engine, 1, range(6))
    held = engine.store.nbytes, engine.store.wanted, engine.cache.nbytes, len(engine._retained)
    assert held[:3] == (480 + 64, 2 * 480 + 64, x.nbytes)
    assert held[3] == 1
    threads = set(threading.enumerate()) - before
    assert threads
    engine.close()
    assert engine.store.nbytes == engine.store.wanted == engine.cache.nbytes == 0
    assert engine._retained == {}
    assert not any(thread.is_alive() for thread in threads)


def test_a_stop_is_asked_for_before_every_chunk_and_not_after_the_last(x):
    """A pass that has been through all chunks is not thrown away."""
    asked = []

    def late():
        asked.append(None)
        return None if len(asked) <= 6 else CancelledFit("too late")

    engine = Engine(rows_of(x, [10] * 6), 1, lambda: 1 << 20, lambda: 0)
    ticket = engine.open(spec(1), range(6))
    assert engine.advance(ticket, late)
    assert ticket.report.chunks == len(asked) == 6
    assert engine.collect(ticket)[0] == path_answers(x, 1)[-1]
    ticket = engine.open(spec(2), range(6))
    with pytest.raises(CancelledFit, match="too late"):
        engine.advance(ticket, late)
    assert ticket.report.chunks == 0
    engine.close()


def test_one_chunk_in_memory_wakes_no_thread(x):
    engine = Engine(rows_of(x, [10] * 6), 4, lambda: 1 << 20, lambda: 0)
    here = set()

    def noted(chunk, total, generation):
        here.add(threading.get_ident())
        path_chunk(chunk, total, generation)

    for generation in (1, 2):
        ticket = engine.open(replace(spec(generation), chunk_fn=noted), [3])
        assert len(ticket.totals) == 1
        assert engine.advance(ticket, never)
        assert engine.collect(ticket)[0] == path_answers(x[30:40], generation)[-1]
    assert here == {threading.get_ident()}
    assert engine._pool is None
    engine.close()
