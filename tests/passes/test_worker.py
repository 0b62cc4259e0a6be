"""Tasks on a worker, called without a cluster."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from largek_dask.context import current_job
from largek_dask.errors import CancelledFit
from largek_dask.passes import worker as worker_module
from largek_dask.passes.cache import Part, Span
from largek_dask.passes.placement import ranges
from largek_dask.passes.spec import PassSpec, StateSpec
from largek_dask.passes.worker import (
    LostTotalError,
    Payload,
    Sealed,
    Share,
    WorkPlugin,
    WorkSpec,
    admit,
    collect_total,
    take_total,
    work,
)
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
        handlers={},
        plugins={WorkPlugin.name: plugin},
        memory_manager=SimpleNamespace(memory_limit=1 << 30),
        state=SimpleNamespace(nthreads=1),
    )
    monkeypatch.setattr(worker_module, "get_worker", lambda: dask_worker)
    plugin.setup(dask_worker)
    plugin.admit(WorkSpec("job", pickle.dumps(rows_of(x, [10] * 6)), None, 0))
    yield plugin
    plugin.teardown(dask_worker)


def share_of(generation, chunks, owner=HERE, job="job", told=None):
    """What the worker answers for a share of the pass that writes ``generation``.

    Its report is added to the list ``told``.
    """
    state = StateSpec("path", 1, generation, first=generation == 1, retain=True)
    payload = Payload(job, generation, PassSpec(path_chunk, (generation,), start, combine, state))
    share = Share(f"{generation} {owner}", owner, ranges(chunks), 1 << 20, 60.0)
    replay = Sealed(tuple((g,) for g in range(1, generation)))
    outcome = work(share, payload, replay)
    assert outcome.finished
    if told is not None:
        told.append(outcome.report)
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


def test_small_jobs_leave_a_large_one_its_row_state(x, plugin):
    """Room follows what jobs keep, not how many there are."""
    large, small = pickle.dumps(rows_of(x, [10] * 6)), pickle.dumps(rows_of(x[:4], [4]))
    plugin.drop("job")
    # Two generations of 60 numbers, the total, and a little for the others.
    limit = 2 * 60 * 8 + 32 + 3 * (2 * 4 * 8 + 32)
    plugin.admit(WorkSpec("large", large, limit, 0))
    for job in ("a", "b", "c"):
        plugin.admit(WorkSpec(job, small, limit, 0))
    answers, told = [], []
    for generation in range(1, 5):
        answers.append(share_of(generation, range(6), job="large", told=told)[0])
        for job in ("a", "b", "c"):
            total = share_of(generation, [0], job=job, told=told)
            assert total[0] == path_answers(x[:4], generation)[-1]
    assert answers == path_answers(x, 4)
    assert {report.rebuilt for report in told} == {0}
    assert told[-4].state_bytes == 2 * 60 * 8 + 32, "both generations"
    assert told[-1].state_bytes == 2 * 4 * 8 + 32


def test_jobs_that_want_more_than_there_is_have_the_same(x, plugin):
    large = pickle.dumps(rows_of(x, [10] * 6))
    limit = 1_000
    plugin.drop("job")
    for job in ("a", "b"):
        plugin.admit(WorkSpec(job, large, limit, 0))
    told = []
    for generation in (1, 2, 3):
        for job in ("a", "b"):
            share_of(generation, range(6), job=job, told=told)
    assert all(limit // 2 - 80 < report.state_bytes <= limit // 2 for report in told[-2:])
    plugin.drop("b")
    for generation in (4, 5):
        share_of(generation, range(6), job="a", told=told)
    assert told[-1].state_bytes == 2 * 60 * 8 + 32, "all of it is there again"


def test_what_a_job_has_declared_is_not_taken_from_it(x, plugin):
    large = pickle.dumps(rows_of(x, [10] * 6))
    limit = 1_000
    plugin.drop("job")
    plugin.admit(WorkSpec("a", large, limit, 0, declared=limit))
    plugin.admit(WorkSpec("b", large, limit, 0))
    told = []
    for generation in (1, 2, 3):
        for job in ("a", "b"):
            share_of(generation, range(6), job=job, told=told)
    assert told[-2].state_bytes == 2 * 60 * 8 + 32, "as if it were alone"
    assert told[-1].state_bytes <= limit // 2, "it has declared nothing"


def test_kept_chunks_of_small_jobs_leave_room_for_those_of_a_large_one(x, plugin):
    limit = x.nbytes + 3 * x[:4].nbytes
    plugin.drop("job")
    plugin.admit(WorkSpec("large", pickle.dumps(rows_of(x, [10] * 6)), None, limit))
    for job in ("a", "b", "c"):
        plugin.admit(WorkSpec(job, pickle.dumps(rows_of(x[:4], [4])), None, limit))
    caches = {job: plugin.jobs[job].engine.cache for job in ("large", "a", "b", "c")}
    for index in range(6):
        assert caches["large"].put(index, Part(Span(0, 10, 10), x[10 * index : 10 * index + 10]))
    for job in ("a", "b", "c"):
        assert caches[job].put(0, Part(Span(0, 4, 4), x[:4]))
    assert sum(cache.nbytes for cache in caches.values()) == limit, "it is full"
    assert not caches["large"].put(6, Part(Span(0, 10, 10), x[:10]))
    assert caches["c"].put(1, Part(Span(0, 4, 4), x[:4])), "less than an even share"


def test_a_job_unheard_of_for_long_makes_room_for_the_next(x, plugin, monkeypatch):
    """Where a driver has died nobody says that its job is over."""
    now = [plugin.jobs["job"].used]
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    spec = WorkSpec("", pickle.dumps(rows_of(x, [10] * 6)), None, 0)
    now[0] += 500
    share_of(1, range(6))
    ended = plugin.jobs["job"]
    for name, seconds, known in [
        ("a", 600, {"job", "a"}),
        ("b", 1, {"a", "b"}),
        ("b", 9_999, {"a", "b"}),  # it is known already: nobody needs room
    ]:
        now[0] += seconds
        plugin.admit(replace(spec, id=name))
        assert set(plugin.jobs) == known
    assert ended.engine.store.nbytes == 0, "what it kept is gone"
    payload = Payload("job", 2, PassSpec(path_chunk, (2,), start, combine, None))
    assert work(Share("s", HERE, ((0, 6),), 1 << 20, 60.0), payload).unknown


def test_a_later_pass_ends_those_before(x, plugin):
    """Nothing is left of a pass that was cancelled, and no share of it goes on."""
    large = PassSpec(path_chunk, (1,), start, combine, StateSpec("path", 1, 1, True, False))
    parked = work(Share("one", HERE, ((0, 6),), 0, 60.0), Payload("job", 1, large))
    assert parked.parked
    assert parked.total is None
    assert take("one")[0] == path_answers(x, 1)[-1]
    assert take("two") is None
    half = work(Share("half", HERE, ((0, 6),), 0, 0.0), Payload("job", 1, large))
    assert not half.finished
    share_of(2, range(6))
    assert take("one") is None
    for name in ("one", "half"):
        share = Share(name, HERE, ((0, 6),), 0, 60.0)
        error = work(share, Payload("job", 1, large)).error
        assert isinstance(error.unpacked(), CancelledFit)
    with pytest.raises(LostTotalError):
        collect_total("one", Payload("job", 2, large))
    with pytest.raises(LostTotalError):
        collect_total("one", Payload("unknown", 2, large))


def take(share):
    return take_total("job", share, worker_module.get_worker())


@pytest.mark.parametrize("room", [31, 32])
def test_totals_that_are_too_large_stay_here(room, x, plugin):
    spec = PassSpec(path_chunk, (1,), start, combine, StateSpec("path", 1, 1, True, False))
    outcome = work(Share("s", HERE, ((0, 6),), room, 60.0), Payload("job", 1, spec))
    assert outcome.size == start().nbytes == 32
    assert outcome.parked == (room < 32)
    total = collect_total("s", Payload("job", 1, spec)) if outcome.parked else outcome.total
    assert total[0] == path_answers(x, 1)[-1]


def test_a_full_scratch_is_logged_for_the_job(x, plugin, tmp_path, monkeypatch):
    dask_worker, heard = plugin.worker, []
    dask_worker.local_directory = str(tmp_path)
    told = logging.Handler(logging.WARNING)
    told.emit = lambda record: heard.append((current_job(), record.getMessage()))
    logger = logging.getLogger(worker_module.__name__)
    spec = WorkSpec("b", pickle.dumps(rows_of(x, [60])), None, 0, service_job="lk-1")
    logger.addHandler(told)
    try:
        assert admit(spec, (60, x.shape[1]), dask_worker) is None
        assert heard == []
        monkeypatch.setattr(worker_module, "LEAST_SCRATCH", 1 << 80)
        assert admit(replace(spec, id="c"), (60, x.shape[1]), dask_worker) is None
        dask_worker.local_directory = str(tmp_path / "gone")
        assert admit(replace(spec, id="d"), (60, x.shape[1]), dask_worker) is None
    finally:
        logger.removeHandler(told)
    [(job, text)] = heard
    assert job == spec.service_job
    assert f" MB free for scratch in {tmp_path}: " in text
