"""Passes on threads: every chunk once, row state by replay, retained totals, slices, errors."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.algorithms.base import Rng, RowSlice, RowState
from largek_dask.errors import BadRowsError, CancelledFit, DataError, ParameterError
from largek_dask.passes import base, engine, local, prefetch
from largek_dask.passes.local import LocalPasses, available_cpus, driver_cpus
from largek_dask.passes.prefetch import ChunkSource
from tests.oracles import row_order
from tests.passes.toys import (
    StoredRows,
    combine,
    count_chunk,
    integers,
    path_answers,
    path_chunk,
    path_pass,
    read_on_share,
    rows_of,
    share_of,
    size_chunk,
    start,
)


def counted(passes, **options):
    return passes.reduce(count_chunk, start=start, combine=combine, **options).tolist()


def expected(x, rows=None):
    rows = np.arange(len(x)) if rows is None else rows
    return [len(rows), int(rows.sum()), int(x[rows].astype(np.int64).sum())]


# --- every chunk once -----------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    n_threads=st.integers(1, 4),
)
def test_reduce_counts_every_chunk_once(sizes, n_threads):
    x = integers(sum(sizes))
    with LocalPasses(rows_of(x, sizes), n_threads=n_threads) as passes:
        n, chunks, numbers, values = counted(passes)
    assert [n, numbers, values] == expected(x)
    assert chunks == len(sizes)


def test_reduce_over_some_chunks():
    x = integers(100)
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2) as passes:
        for chunks in ([3, 1, 1], [], [9]):
            n, n_chunks, numbers, values = counted(passes, chunks=chunks)
            rows = [np.arange(10 * c, 10 * c + 10) for c in {*chunks}]
            assert [n, numbers, values] == expected(x, np.concatenate(rows or [np.arange(0)]))
            assert n_chunks == len({*chunks})
        with pytest.raises(ParameterError, match="from 0 to 9"):
            counted(passes, chunks=[10])


@pytest.mark.parametrize(("here", "weighted"), [(False, True), (True, False)])
def test_take_keeps_the_order_and_repeats(here, weighted, monkeypatch):
    x, weight = integers(100), np.arange(100) + 0.5 if weighted else None
    if not here:
        monkeypatch.setattr("largek_dask.data.memory_rows.ArrayRows.in_memory", lambda self: None)
    with LocalPasses(rows_of(x, [30, 30, 40], weight), n_threads=2) as passes:
        for wanted, n_chunks in (([99, 3, 3, 50, 0], 3), ([99, 3, 50, 0], 3), ([31], 1)):
            n_before = passes.total.chunks + 3 * (passes.total.passes == 0)
            taken = passes.take(np.array(wanted))
            np.testing.assert_array_equal(taken.x, x[wanted])
            np.testing.assert_array_equal(taken.rows, wanted)
            assert (taken.weight is not None) == weighted
            if weighted:
                np.testing.assert_array_equal(taken.weight, weight[wanted])
            assert taken.x.dtype == np.float32
            assert passes.total.chunks == n_before + (0 if here else n_chunks)
        everything = passes.take()
        np.testing.assert_array_equal(everything.x, x)
        assert np.shares_memory(everything.x, x) == here
        assert passes.take(np.array([], np.int64)).x.shape == (0, 2)
        with pytest.raises(ParameterError, match="from 0 to 99"):
            passes.take(np.array([100]))


# --- row state ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retain", "memory_limit", "n_threads"),
    [(True, None, 3), (False, None, 1), (True, 0, 3), (True, 500, 1), (False, 500, 3)],
)
def test_path_dependent_state(retain, memory_limit, n_threads):
    """With no memory, or too little, chunks are replayed: same answers."""
    x = integers(200)
    with LocalPasses(
        rows_of(x, [20] * 10), n_threads=n_threads, memory_limit=memory_limit
    ) as passes:
        answers = [path_pass(passes, g, retain=retain) for g in range(1, 7)]
        assert [a[0] for a in answers] == path_answers(x, 6)
        # The state was there from the second pass on, and with `retain` only differences came.
        retained = retain and memory_limit != 0
        assert answers[-1][3] == 10 * (6 - 1 if retained else 1)
        totals = 32 * n_threads * retained
        kept = {None: 10, 0: 0, 500: (500 - totals) // 160}[memory_limit]
        assert passes.last.rebuilt == 10 - kept
        most = 10 * 160 * 2 + totals if memory_limit is None else memory_limit
        assert passes.last.state_bytes <= most
        assert (passes.total.evictions > 0) == (memory_limit is not None)


@pytest.mark.parametrize("retain", [False, True])
def test_a_lost_chunk_is_rebuilt_alone(retain):
    """A retained total still holds the chunk: only differences are added."""
    x = integers(100)
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2) as passes:
        answers = [path_pass(passes, g, retain=retain)[0] for g in range(1, 4)]
        del passes._engine.store._states["path"][4]
        for g, rebuilt in ((4, 1), (5, 0)):
            answers.append(path_pass(passes, g, retain=retain)[0])
            assert passes.last.rebuilt == rebuilt
    assert answers == path_answers(x, 5)


def test_returned_total_is_not_the_retained_one():
    x = integers(50)
    with LocalPasses(rows_of(x, [10] * 5), n_threads=2) as passes:
        first = path_pass(passes, 1, retain=True)
        first[:] = -1
        assert path_pass(passes, 2, retain=True)[0] == path_answers(x, 2)[-1]


def test_retained_total_grows_and_shrinks_with_the_chunks():
    """More chunks are added to it; fewer make it start anew."""
    x = integers(40)
    factors = (1, 2, 3, 4)
    members = [[0, 1], [0, 1, 2], [0, 1, 2, 3], [1, 2]]
    held = [0, 2, 3, 0]
    with LocalPasses(rows_of(x, [10] * 4), n_threads=2) as passes:
        for factor, chunks, n_held in zip(factors, members, held, strict=True):
            replay = tuple((f,) for f in range(1, factor))
            state = RowState("path", factor, replay, retain=True)
            total = passes.reduce(
                path_chunk, factor, start=start, combine=combine, state=state, chunks=chunks
            )
            assert passes.last.chunks == len(chunks)
            rows = np.concatenate([x[10 * c : 10 * c + 10] for c in chunks])
            assert total[0] == path_answers(rows, factor)[-1]
            counters = passes._engine._retained["path"].totals
            assert passes._engine._retained["path"].members == frozenset(chunks)
            assert sum(int(t[2]) for t in counters) >= n_held


def test_retained_total_that_missed_a_pass_is_dropped():
    """The state has advanced twice since: differences would be wrong."""
    x = integers(40)
    with LocalPasses(rows_of(x, [10] * 4), n_threads=2) as passes:
        answers = [path_pass(passes, g, retain=g != 2)[0] for g in (1, 2, 3, 4)]
        assert answers == path_answers(x, 4)


def failing_chunk(chunk, total, factor, gate):
    path_chunk(chunk, total, factor)
    if gate and chunk.index == 7:
        raise ZeroDivisionError(f"chunk {chunk.index}")


@pytest.mark.parametrize("retain", [False, True])
def test_pass_that_failed_half_way_is_run_again(retain):
    """Rows that have advanced do not advance twice."""
    x = integers(100)
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2) as passes:

        def run(g, gate):
            replay = tuple((f, False) for f in range(1, g))
            state = RowState("path", g, replay, retain=retain)
            return passes.reduce(failing_chunk, g, gate, start=start, combine=combine, state=state)[
                0
            ]

        answers = [run(1, False), run(2, False)]
        with pytest.raises(ZeroDivisionError, match="chunk 7"):
            run(3, True)
        answers.append(run(3, False))
        assert passes.last.rebuilt == 0, "the generation before was kept while there was room"
        answers.append(run(4, False))
        assert answers == path_answers(x, 4)


def test_another_run_with_the_same_name_starts_empty():
    """Generations of an earlier run never feed a later one, even where its first pass was not."""
    x = integers(100)
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2) as passes:
        for g in range(1, 6):
            path_pass(passes, g)
        assert path_pass(passes, 1)[0] == path_answers(x, 1)[-1]
        assert path_pass(passes, 2)[0] == path_answers(x, 2)[-1]
        # a resume in the middle, of a run that this process has not seen
        assert path_pass(passes, 5)[0] == path_answers(x, 5)[-1]
        assert passes.last.rebuilt == 10


def read_chunk(chunk, total):
    total[0] += int(chunk.state["value"].sum())
    with pytest.raises(ValueError, match="read-only"):
        chunk.state["value"][0] = 1


@pytest.mark.parametrize("memory_limit", [None, 0])
def test_pass_that_only_reads_a_state(memory_limit):
    x = integers(60)
    with LocalPasses(rows_of(x, [10] * 6), n_threads=2, memory_limit=memory_limit) as passes:
        for g in (1, 2):
            path_pass(passes, g)
        state = RowState("path", 3, ((1,), (2,)), path_chunk, start)
        for _ in range(2):
            total = passes.reduce(read_chunk, start=start, combine=combine, state=state)
            assert total[0] == path_answers(x, 2)[-1]
        assert path_pass(passes, 3)[0] == path_answers(x, 3)[-1]


@pytest.mark.parametrize(
    ("written", "read", "memory_limit"),
    [
        (None, 30, None),
        (300, None, 0),
        (300, 30, 100),
        (40, 300, None),
        (None, 300, 100),
        (40, 30, 0),
    ],
)
def test_what_a_share_reads_does_not_depend_on_a_loss(written, read, memory_limit):
    """The state is that of the rows that wrote it, whoever reads it and wherever it has been."""
    x = integers(1000)
    with LocalPasses(rows_of(x, [100] * 10), n_threads=2) as passes:
        state = RowState("path", 1)
        rows = share_of(x, written)
        passes.reduce(path_chunk, 1, start=start, combine=combine, state=state, rows=rows)
        whole = read_on_share(passes, x, read).tolist()
        assert passes.last.rebuilt == 0
        assert whole[:2] == [read or 1000, written or 1000]
    with LocalPasses(rows_of(x, [100] * 10), n_threads=2, memory_limit=memory_limit) as passes:
        passes.reduce(path_chunk, 1, start=start, combine=combine, state=state, rows=rows)
        for again in range(2):
            if memory_limit is None:
                lost = [2, 7] if again else [4]
                for index in lost:
                    del passes._engine.store._states["path"][index]
            assert read_on_share(passes, x, read).tolist() == whole
            assert passes.last.rebuilt > 0
        # Reading has written nothing: the next pass that writes goes on from the same rows.
        state = RowState("path", 2, ((1,),))
        passes._engine.store.clear()
        total = passes.reduce(path_chunk, 2, start=start, combine=combine, state=state, rows=rows)
        assert total[3] == 10
        assert passes.last.rebuilt == 10


def test_whoever_only_reads_a_state_has_not_written_it():
    x = integers(1000)
    with LocalPasses(rows_of(x, [100] * 10), n_threads=2) as passes:
        for g in (1, 2):
            path_pass(passes, g)
        earlier = read_on_share(passes, x, 30).tolist()
        passes._engine.store.clear()
        assert read_on_share(passes, x, 30).tolist() == earlier
        assert read_on_share(passes, x, 30, written=2).tolist()[:2] == [30, 1000]
        assert passes.last.rebuilt == 10


def test_rows_that_nobody_remembers_have_to_be_named():
    """After a resume: the pass before was another process's."""
    x = integers(1000)
    with LocalPasses(rows_of(x, [100] * 10), n_threads=2) as passes:
        assert read_on_share(passes, x, None).tolist()[:2] == [1000, 1000]
    with LocalPasses(rows_of(x, [100] * 10), n_threads=2) as passes:
        with pytest.raises(ValueError, match=r"'path'.*rebuild_rows.*generation 1"):
            read_on_share(passes, x, 30)
        everyone = RowSlice(Rng(3), 0, 1000, 1000)
        state = RowState("path", 2, ((1,),), path_chunk, start, rebuild_rows=everyone)
        total = passes.reduce(
            size_chunk, start=start, combine=combine, state=state, rows=share_of(x, 30)
        )
        assert total.tolist()[:2] == [30, 1000]


@pytest.mark.parametrize("limit", [31, 111, 192])
def test_retained_totals_count_against_the_budget(limit):
    """Totals of 32 bytes and 80 bytes of numbers a chunk: what does not fit is made anew."""
    x = integers(60)
    retained = limit >= 32
    kept = min(6, (limit - 32 * retained) // 80)
    with LocalPasses(rows_of(x, [10] * 6), n_threads=1, memory_limit=limit) as passes:
        for g, answer in enumerate(path_answers(x, 4), start=1):
            total = path_pass(passes, g, retain=True)
            assert total[0] == answer
            assert total[1] == (6 * g if retained else 6), "passes that the total has seen"
            assert 32 * retained + 80 * kept <= passes.last.state_bytes <= limit
            assert passes.last.rebuilt == (0 if g == 1 else 6 - kept)


# --- slices ---------------------------------------------------------------------------------------


def positions_chunk(chunk, total):
    assert (np.diff(chunk.rows) > 0).all()
    total.setdefault(chunk.index, []).append((chunk.rows, chunk.x.copy(), chunk.weight))


def merge_positions(a, b):
    for index, parts in b.items():
        a.setdefault(index, []).extend(parts)
    return a


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8).filter(any),
    cuts=st.lists(st.integers(0, 50), max_size=4),
    weighted=st.booleans(),
)
def test_slices_cut_every_chunk_evenly(sizes, cuts, weighted):
    """Successive slices visit every row once, each chunk's share in proportion."""
    n = sum(sizes)
    x = integers(n)
    weight = np.arange(1.0, n + 1) if weighted else None
    rows = rows_of(x, sizes, weight)
    edges = [0, *sorted(cuts), 50]
    seen = np.zeros(n, int)
    with LocalPasses(rows, n_threads=2) as passes:
        for begin, end in pairwise(edges):
            parts = passes.reduce(
                positions_chunk,
                start=dict,
                combine=merge_positions,
                rows=RowSlice(Rng(5), begin, end, 50),
            )
            for index, size in enumerate(sizes):
                first = int(rows.chunk_table[index])
                permutation = row_order(Rng(5), index, size)
                wanted = np.sort(permutation[begin * size // 50 : end * size // 50])
                if not len(wanted):
                    assert index not in parts, "chunks without rows are not visited"
                    continue
                [(positions, values, weights)] = parts[index]
                np.testing.assert_array_equal(positions, wanted)
                np.testing.assert_array_equal(values, x[first + wanted])
                if weighted:
                    np.testing.assert_array_equal(weights, weight[first + wanted])
                seen[first + positions] += 1
    assert (seen == 1).all()


# --- statistics, bad rows, weights, unit length -----------------------------------------------


def test_statistics_are_scanned_once():
    x = integers(100)
    rows = StoredRows(x, 10)
    with LocalPasses(rows, n_threads=2) as passes:
        assert passes.statistics.n_rows == 100
        np.testing.assert_array_equal(passes.statistics.mean, x.mean(axis=0, dtype=np.float64))
        assert passes.total.passes == 1


@pytest.mark.parametrize(("bad", "scan"), [(np.nan, True), (-np.inf, False)])
def test_bad_rows_are_named(bad, scan):
    """By the scan, and by a pass that comes before any scan."""
    x = integers(40)
    x[33, 1] = bad
    with LocalPasses(rows_of(x, [10] * 4), n_threads=2) as passes:
        with pytest.raises(BadRowsError, match=r"row 33 .*chunk 3 .*on_bad_rows='skip'"):
            assert passes.statistics if scan else counted(passes)
        assert counted(passes, chunks=[0, 1])[0] == 20, "the pool is still usable"


def weights_chunk(chunk, total):
    total[0] += int(chunk.weight.sum()) if chunk.weight is not None else len(chunk.x)
    total[1] += 0 if chunk.bad is None else int(chunk.bad.sum())
    assert np.isfinite(chunk.x).all()


@pytest.mark.parametrize(("weighted", "normalize"), [(False, None), (True, "l2")])
def test_bad_rows_are_skipped(weighted, normalize):
    x = integers(40) + 1
    x[[3, 4, 25], 0] = np.nan
    weight = np.full(40, 2.0) if weighted else None
    rows = rows_of(x, [10] * 4, weight)
    with LocalPasses(rows, n_threads=2, on_bad_rows="skip", normalize=normalize) as passes:
        assert passes.statistics.n_bad == 3
        total = passes.reduce(weights_chunk, start=start, combine=combine)
        assert total[:2].tolist() == [37 * (2 if weighted else 1), 3]
        np.testing.assert_array_equal(passes.take(np.array([25])).x[0], passes.statistics.shift)


def test_bad_rows_of_weight_zero_are_absent():
    x = integers(20)
    x[7] = np.inf
    weight = np.ones(20)
    weight[7] = 0
    with LocalPasses(rows_of(x, [10, 10], weight), n_threads=1) as passes:
        assert passes.statistics.n_bad == 0
        assert passes.reduce(weights_chunk, start=start, combine=combine)[0] == 19


def test_nothing_left():
    x = np.full((5, 2), np.nan, np.float32)
    with (
        LocalPasses(rows_of(x, [5]), n_threads=1, on_bad_rows="skip") as passes,
        pytest.raises(DataError, match="all 5 rows contain NaN"),
    ):
        assert passes.statistics
    with (
        LocalPasses(rows_of(integers(5), [5], np.zeros(5)), n_threads=1) as passes,
        pytest.raises(DataError, match="all sample weights are zero"),
    ):
        assert passes.statistics


def test_wrong_weights_are_named():
    for wrong in (-1.0, np.nan, np.inf):
        weight = np.ones(20)
        weight[13] = wrong
        with (
            LocalPasses(rows_of(integers(20), [10, 10], weight), n_threads=2) as passes,
            pytest.raises(DataError, match=r"sample_weight of row 13 .*chunk 1"),
        ):
            assert passes.statistics


def unit_chunk(chunk, total):
    np.testing.assert_allclose((chunk.x**2).sum(axis=1), 1, rtol=1e-6)
    total[0] += len(chunk.x)


def test_rows_of_unit_length():
    x = integers(30) + 1
    with LocalPasses(rows_of(x, [15, 15]), n_threads=2, normalize="l2") as passes:
        assert passes.reduce(unit_chunk, start=start, combine=combine)[0] == 30
        np.testing.assert_allclose(
            passes.statistics.mean, (x / np.linalg.norm(x, axis=1)[:, None]).mean(axis=0), rtol=1e-6
        )
        assert passes.take(np.array([4])).x[0] @ passes.take(np.array([4])).x[0] == pytest.approx(1)


def test_wrong_parameters():
    for name, value in (("n_threads", 0), ("normalize", "l1"), ("on_bad_rows", "ignore")):
        with pytest.raises(ParameterError, match=name):
            LocalPasses(rows_of(integers(3), [3]), **{name: value})


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cache", "reads"), [(0, 30), (10 * 20 * 8, 10), (4 * 20 * 8, 4 + 3 * 6)])
def test_chunks_are_read_again_only_where_the_cache_is_full(cache, reads, monkeypatch):
    """The first chunks that fit stay; a cyclic scan would flush anything cleverer."""
    x = integers(200)
    rows = StoredRows(x, 10)
    with dask.config.set({"largek.passes.cache-bytes": cache}), LocalPasses(rows, n_threads=2) as p:
        for _ in range(3):
            assert counted(p)[3] == expected(x)[2]
        assert p.total.bytes_read == reads * 20 * 8
        assert p.total.cached == 30 - reads
    assert len(rows.reads) == reads


def test_damaged_chunk_is_named_and_the_pool_lives_on():
    rows = StoredRows(integers(100), 10, broken=(6,))
    with LocalPasses(rows, n_threads=2) as passes:
        with pytest.raises(DataError, match=r"chunk 6 .* is damaged"):
            counted(passes)
        assert counted(passes, chunks=range(6))[0] == 60


def test_what_is_lacking_is_waited_for_only_after_a_pass_that_had_it():
    lacking, said = threading.Event(), []

    def chunk_fn(chunk, total):
        if lacking.is_set():
            raise FileNotFoundError("it is not there")
        count_chunk(chunk, total)

    def hear(kind, message):
        said.append((kind, message))
        lacking.clear()

    lacking.set()
    with (
        dask.config.set({"largek.stores.patience-seconds": 120}),
        LocalPasses(rows_of(integers(30), [10] * 3), n_threads=1, log=hear) as passes,
    ):
        with pytest.raises(FileNotFoundError, match="it is not there"):
            passes.reduce(chunk_fn, start=start, combine=combine)
        assert said == [], "perhaps it never was"
        lacking.clear()
        assert passes.reduce(chunk_fn, start=start, combine=combine)[:2].tolist() == [30, 3]
        lacking.set()
        assert passes.reduce(chunk_fn, start=start, combine=combine)[:2].tolist() == [30, 3]
    assert [kind for kind, _ in said] == ["storage", "back"]
    assert said[0][1].startswith("it is not there")


# --- stopping -------------------------------------------------------------------------------------


def test_cancel_takes_effect_between_chunks():
    rows = rows_of(integers(1000), [10] * 100)
    done = []

    def chunk_fn(chunk, total):
        done.append(chunk.index)

    with LocalPasses(rows, n_threads=1, cancelled=lambda: len(done) >= 5) as passes:
        with pytest.raises(CancelledFit, match="asked for a stop"):
            passes.reduce(chunk_fn, start=start, combine=combine)
        assert done == [0, 1, 2, 3, 4]
        passes.cancelled = None
        assert counted(passes)[0] == 1000


def test_a_pass_that_is_to_end_does_not_begin():
    """Not even one over no chunk, and what earlier ones have left stays."""
    x = integers(100)
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2) as passes:
        for g in (1, 2):
            path_pass(passes, g, retain=True)
        kept = passes._engine._retained["path"]
        passes.cancelled = lambda: True
        for ask in (
            lambda: passes.reduce(count_chunk, start=start, combine=combine, chunks=[]),
            lambda: path_pass(passes, 3, retain=True),
        ):
            with pytest.raises(CancelledFit):
                ask()
        assert passes._engine._retained == {"path": kept}
        passes.cancelled = None
        passes.deadline = 0.0
        with pytest.raises(CancelledFit, match="time limit"):
            passes.reduce(count_chunk, start=start, combine=combine, chunks=[])
        passes.deadline = None
        total = path_pass(passes, 3, retain=True)
        assert (total[0], total[2]) == (path_answers(x, 3)[-1], 20), "all were counted before"


def test_cancelled_pass_with_retained_totals_starts_anew():
    x = integers(100)
    stop = []
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2, cancelled=lambda: bool(stop)) as passes:

        def chunk_fn(chunk, total, factor):
            path_chunk(chunk, total, factor)
            if factor == 3 and chunk.index == 5:
                stop.append(1)

        for g in (1, 2):
            path_pass(passes, g, chunk_fn, retain=True)
        with pytest.raises(CancelledFit):
            path_pass(passes, 3, chunk_fn, retain=True)
        passes.cancelled = None
        assert path_pass(passes, 3, chunk_fn, retain=True)[0] == path_answers(x, 3)[-1]
        assert path_pass(passes, 4, chunk_fn, retain=True)[0] == path_answers(x, 4)[-1]


def test_ctrl_c_leaves_no_thread_at_work(monkeypatch):
    """KeyboardInterrupt comes out of the pass once its threads have stopped."""
    inside, stopped = threading.Event(), threading.Event()
    before = threading.active_count()
    stop = ChunkSource.stop

    def tell(source):
        stop(source)
        stopped.set()

    monkeypatch.setattr(ChunkSource, "stop", tell)

    def chunk_fn(chunk, total):
        if not inside.is_set():
            inside.set()
            # A real signal: it interrupts the main thread's wait.
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        stopped.wait(60)
        total[0] += 1

    with LocalPasses(rows_of(integers(1000), [1] * 1000), n_threads=2) as passes:
        with pytest.raises(KeyboardInterrupt):
            passes.reduce(chunk_fn, start=start, combine=combine)
        assert threading.active_count() == before
        assert 1 <= passes.last.chunks <= 2, "those that were under way"
        assert counted(passes)[0] == 1000


def test_forgotten_passes_leave_no_threads():
    before = threading.active_count()
    passes = LocalPasses(rows_of(integers(5000), [1000] * 5), n_threads=3)
    counted(passes)
    assert threading.active_count() > before
    del passes
    assert threading.active_count() == before


def test_threads_are_as_many_as_the_cores_of_this_process(monkeypatch):
    cores = {0: {1, 4, 5}, 1: {0}}
    monkeypatch.setattr(os, "sched_getaffinity", cores.get, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert available_cpus() == 3
    with LocalPasses(rows_of(integers(4), [2, 2])) as passes:
        assert passes.n_threads == passes.threads.n == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cpus() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus() == 1


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b", {"a/b/cpu.max": "150000 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/on/the/host", {"cpu.max": "50000 100000"}, 1),
        ("0::/a", {"a/cpu.max": "9900000 100000"}, 12),
        (
            "4:memory:/a\n2:cpu,cpuacct:/a\n0::/",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "400000", "cpu,cpuacct/a/cpu.cfs_period_us": "1e5"},
            4,
        ),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 12),
        ("2:memory:/", {"memory/cpu.max": "50000 100000"}, 12),
        ("0::/", {}, 12),
        (None, {}, 12),
    ],
)
def test_threads_respect_the_quota_of_a_control_group(groups, files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", {0: set(range(12))}.get, raising=False)
    monkeypatch.setattr(local, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(local, "GROUPS", tmp_path / "groups")
    if groups is not None:
        (tmp_path / "own").write_text(groups + "\n")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert available_cpus() == cores


def test_a_driver_takes_no_more_cores_than_it_was_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", {0: set(range(12))}.get, raising=False)
    monkeypatch.setattr(local, "_quota", lambda: 9.5)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert driver_cpus() == 10, "a limit of a cgroup"
    for text, cores in (("4", 4), ("0", 1), ("64", 10), ("x", 10)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", text)
        assert driver_cpus() == cores
    monkeypatch.setattr(os, "sched_getaffinity", {0: {7}}.get)
    assert driver_cpus() == 1


def test_report_adds_up():
    x = integers(100)
    with LocalPasses(rows_of(x, [10] * 10), n_threads=2) as passes:
        for g in (1, 2):
            path_pass(passes, g)
        last = asdict(passes.last)
        assert last["rows"] == 100
        assert last["chunks"] == 10
        assert last["state_bytes"] == 2 * 800
        assert 0 < last["seconds"] < passes.total.seconds
        assert passes.total.rows == 200
        assert passes.total.passes == 2


class ThreadClock(threading.local):
    """A clock of each thread's own, which goes only where it is told to."""

    now = 0.0

    def __call__(self):
        return self.now

    def goes_on(self, seconds, result=None):
        self.now += seconds
        return result


@pytest.mark.parametrize(("kept", "n_threads"), [(True, 1), (False, 3)])
def test_seconds_are_told_under_their_names(n_threads, kept, monkeypatch):
    clock, next_block = ThreadClock(), ChunkSource.next
    clocks = SimpleNamespace(perf_counter=clock, monotonic=time.monotonic)
    for module in (base, engine, prefetch):
        monkeypatch.setattr(module, "time", clocks)
    monkeypatch.setattr(ChunkSource, "next", lambda source: clock.goes_on(7, next_block(source)))
    rows = StoredRows(integers(50), 5)
    load = rows._load
    rows._load = lambda *where: clock.goes_on(3, load(*where))

    def chunk_fn(chunk, total):
        count_chunk(chunk, total)
        clock.goes_on(5)

    def merged(a, b):
        return clock.goes_on(2, combine(a, b))

    with (
        dask.config.set({"largek.passes.cache-bytes": (1 << 20) * kept}),
        LocalPasses(rows, n_threads=n_threads) as passes,
    ):
        for number in (1, 2):
            passes.reduce(chunk_fn, start=start, combine=merged)
            last = passes.last
            from_memory = kept and number == 2
            assert last.cached == 5 * from_memory
            assert last.read == 3 * 5 * (not from_memory)
            assert last.compute == 5 * 5
            # Every thread asks once more, to be told that there is no further chunk.
            assert last.wait == 7 * (5 + n_threads)
            assert last.reduce == 2 * (n_threads - 1)
            here = last.compute + last.wait if from_memory and n_threads == 1 else 0
            assert last.seconds == here + last.reduce, "what the calling thread has waited"
        assert passes.total.seconds == last.seconds + 2 * (n_threads - 1)
        assert passes.total.read == 3 * len(rows.reads)
