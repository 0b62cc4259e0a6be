"""Workers that keep others waiting are noticed, left out for a while, and taken back."""

import os
import threading
from functools import partial

import dask
import pytest

from largek_dask.passes import waiting
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.placement import FIRST_SECONDS, Pace, Stragglers
from tests.faults import barrier_chunk
from tests.helpers.checks import join
from tests.passes.test_cluster import N, path, rows, x  # noqa: F401
from tests.passes.toys import combine, count_chunk, path_chunk, path_pass, start


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    with dask.config.set({"largek.passes.straggler-seconds": 3.0}):
        yield Clock()


def test_pace__needs_half_of_the_others(clock):
    pace = Pace(4, clock)
    clock.now += 1
    pace.done()
    clock.now += 1000
    assert pace.is_over() is None
    pace.done()
    assert pace.is_over() is None  # the median of 1 s and 1,001 s is still ahead
    pace.done()
    clock.now += 5000
    assert "has not answered for 6001 s" in pace.is_over()


def test_pace__is_measured(clock):
    pace = Pace(2, clock)
    clock.now += 2.0
    pace.done()
    clock.now += 5.9
    assert pace.is_over() is None
    clock.now += 0.2
    assert pace.is_over() == "has not answered for 8 s, and the others needed 2.0 s"


def test_pace__alone_there_is_nothing_to_compare_with(clock):
    pace = Pace(1, clock)
    clock.now += 1e6
    assert pace.is_over() is None


def test_stragglers__come_back_later_each_time(clock):
    stragglers, both = Stragglers(clock), {"a": 1, "b": 2}
    assert stragglers.left_out(both) == both
    stragglers.add("a")
    assert stragglers.left_out(both) == {"b": 2}
    assert stragglers.left_out({"a": 1}) == {"a": 1}
    clock.now += FIRST_SECONDS
    assert stragglers.left_out(both) == both
    stragglers.add("a")
    clock.now += FIRST_SECONDS
    assert stragglers.left_out(both) == {"b": 2}
    clock.now += FIRST_SECONDS
    assert stragglers.left_out(both) == both


def test_a_worker_that_stands_still_loses_its_chunks(
    rows,  # noqa: F811
    fresh_cluster,
    tmp_path,
    monkeypatch,
):
    """It answers heartbeats, as a slow one does; what it answers in the end counts nothing."""
    client = fresh_cluster(2)
    pids = {pid: address for address, pid in client.run(os.getpid).items()}
    for name in ("pid", "go"):
        os.mkfifo(tmp_path / name)
    monkeypatch.setattr(waiting, "WATCH_SECONDS", 0.05)
    slow = []

    def hold():
        with open(tmp_path / "pid") as fifo:
            slow.append(pids[int(fifo.read())])

    holder = threading.Thread(target=hold)
    holder.start()
    said, told = [], []
    with (
        dask.config.set({"largek.passes.straggler-seconds": 0.3}),
        ClusterPasses(
            rows,
            client,
            log=lambda kind, text, **about: said.append((kind, text)),
            cancelled=lambda: False,
            on_event=lambda kind, **event: told.append(event) if kind == "worker" else None,
        ) as passes,
        LocalPasses(rows, n_threads=1) as local,
    ):
        expected = [path_pass(local, g)[:2].tolist() for g in (1, 2, 3)]
        function = partial(barrier_chunk, str(tmp_path), count_chunk)
        total = passes.reduce(function, start=start, combine=combine)
        join(holder)
        assert total[:2].tolist() == [N, passes.n_chunks]
        assert passes.last.retries == passes.n_chunks // 2
        [text] = [text for kind, text in said if kind == "slow"]
        assert text.startswith(f"{slow[0]} has not answered for")
        # it goes on, and answers what nobody waits for any more
        with open(tmp_path / "go", "w") as fifo:
            fifo.write("x")
        for generation in (1, 2, 3):
            found = path_pass(passes, generation, path_chunk)
            assert found[:2].tolist() == expected[generation - 1]
            assert passes.last.workers == 1
            assert passes.last.retries == 0
        half = passes.n_chunks // 2
        assert told == [{"address": slow[0], "change": "slow", "chunks": half}]
        passes._stragglers._until.clear()
        # On a busy machine either one may be slow.
        with dask.config.set({"largek.passes.straggler-seconds": 3600.0}):
            assert passes.reduce(count_chunk, start=start, combine=combine)[0] == N
        assert told[1:] == [{"address": slow[0], "change": "back", "chunks": half}]
