"""Subsets of the rows, held where the driver is, are passes like any other."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import closing
from functools import partial
from itertools import pairwise

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import largek_dask as lk
from largek_dask.algorithms.base import Rng, RowSample, RowSlice, RowState, SpacedRows
from largek_dask.errors import CancelledFit
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.passes import gather, reading
from largek_dask.passes.chunks import JOINED
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.helpers.checks import dense
from tests.passes.toys import combine, integers, path_answers, path_chunk, path_pass, rows_of, start

N, D = 900, 3
RNG = Rng(5)
SIZES = [300, 1, 200, 399]
TABLE = np.cumsum([0, *SIZES])


def first_rows(end, rng=RNG, table=TABLE, n=N):
    """The rows of a nested slice, ascending: in every chunk the first ones of its permutation."""
    rows = []
    for index, (begin, stop) in enumerate(pairwise(table)):
        order = oracles.row_order(rng, index, int(stop - begin))
        rows.append(begin + order[: end * (stop - begin) // n])
    return np.sort(np.concatenate(rows))


def nested(end, rng=RNG):
    return RowSlice(rng, 0, end, N)


@pytest.fixture
def x():
    return integers(N, D, seed=4)


@pytest.fixture(params=["in memory", "stored", "sparse", "cluster"])
def passes(request, x, tmp_path):
    """Passes over four chunks, the second of which is one row; weights from 0 to 4."""
    weight = np.arange(N) % 5.0
    if request.param == "in memory":
        opened = LocalPasses(rows_of(x, SIZES, weight), n_threads=2)
    else:
        url = str(tmp_path / "rows.zarr")
        given = sp.csr_array(x) if request.param == "sparse" else x
        lk.ingest(given, url, chunk_rows=300, progress=False)
        with dask.config.set({"largek.data.read-chunk-bytes": 1}):
            rows = lk.open_rows(url, sample_weight=weight)
        assert rows.n_chunks == 3
        if request.param == "cluster":
            opened = ClusterPasses(rows, request.getfixturevalue("cluster2"))
        else:
            opened = LocalPasses(rows, n_threads=2)
    with opened:
        yield opened


def by_number(taken):
    """Rows, weights and indices of taken rows, ascending by index."""
    order = np.argsort(taken.rows)
    weight = np.ones(len(order)) if taken.weight is None else taken.weight
    return dense(taken.x)[order], weight[order], taken.rows[order]


def test_every_kind_holds_the_rows_that_were_asked_for(passes, x):
    table, weight = passes.chunk_table, np.arange(N) % 5.0
    chosen = np.array([700, 3, 4, 650, 10])
    slice_rows = first_rows(200, table=table)
    heavy = slice_rows[weight[slice_rows] > 0]
    expected = {
        "indices": (chosen, chosen),
        "slice": (nested(200), slice_rows),
        "spaced": (SpacedRows(nested(200), 30), heavy[:: -(-len(heavy) // 30)]),
    }
    for asked, rows in expected.values():
        held = passes.subset(asked)
        assert held is passes.subset(asked)
        found, own, numbers = by_number(held.take())
        np.testing.assert_array_equal(numbers, np.sort(rows))
        np.testing.assert_array_equal(found, x[np.sort(rows)])
        np.testing.assert_array_equal(own, weight[np.sort(rows)])
        assert held.n_rows == len(rows)
        assert held.statistics is passes.statistics
        assert (held.n_features, held.is_sparse) == (passes.n_features, passes.is_sparse)
        assert held.row_values == passes.row_values
        assert held.n_threads == held.threads.n == passes.threads.n
    np.testing.assert_array_equal(passes.subset(chosen).take().rows, chosen)
    some = passes.subset(chosen).take(np.array([1, 3, 3]))
    np.testing.assert_array_equal(some.rows, chosen[[1, 3, 3]])
    np.testing.assert_array_equal(dense(some.x), x[chosen[[1, 3, 3]]])
    sample = passes.subset(RowSample(RNG, "test", 60))
    found, own, numbers = sample.take()
    np.testing.assert_array_equal(dense(found), x[numbers])
    np.testing.assert_array_equal(own, weight[numbers])
    assert (own > 0).all()
    assert 30 <= len(numbers) <= 75


def test_weights_multiply_those_of_the_rows(passes):
    chosen, shares = np.array([8, 7, 6]), np.array([10.0, 20.0, 30.0])
    held = passes.subset(chosen, shares)
    np.testing.assert_array_equal(held.take().weight, [30.0, 40.0, 30.0])
    assert passes.subset(chosen.copy(), shares.copy()) is held
    assert passes.subset(chosen, shares + 1) is not held
    np.testing.assert_array_equal(passes.subset(chosen).take().weight, [3.0, 2.0, 1.0])


@pytest.mark.parametrize("retain", [False, True])
def test_row_state_replay_and_retained_totals(passes, x, retain, monkeypatch):
    monkeypatch.setattr("largek_dask.data.memory_rows.MIN_CHUNK_ROWS", 90)
    chosen, counted = np.random.default_rng(0).permutation(N)[:400], 0
    monkeypatch.setattr("largek_dask.passes.taken_rows.CHUNK_BYTES", 1)
    held = passes.subset(chosen)
    assert held.n_chunks == 5
    for g, answer in enumerate(path_answers(x[chosen], 4), start=1):
        found = path_pass(held, g, densely_path, retain=retain)
        assert found[0] == answer
        # What is retained holds the chunks that were counted in earlier passes, too.
        counted += 5 if retain and g > 1 else 0
        assert found[2] == counted
        assert held.last.rebuilt == 0
    # After a resume the state is made anew from the broadcasts.
    passes.begin_run()
    again = passes.subset(chosen)
    assert again is not held
    assert path_pass(again, 4, densely_path, retain=retain)[0] == answer
    assert again.last.rebuilt == again.n_chunks > 0
    assert held.statistics is again.statistics


def densely_path(chunk, total, factor):
    chunk.x = dense(chunk.x)
    path_chunk(chunk, total, factor)


def latest_chunk(chunk, total, factor):
    """A state of the last pass alone: the sum of it, of the one before, and how many chunks."""
    value = dense(chunk.x)[:, 0].astype(np.int64) * factor
    before = np.zeros_like(value) if chunk.state is None else chunk.state["value"]
    total[0] += int((value - before).sum()) if chunk.counted else int(value.sum())
    total[1] += int(before.sum())
    total[2] += int(chunk.counted)
    total[3] += int(chunk.state is not None)
    chunk.keep(value=value)


def entered_pass(passes, generation, before):
    """One pass over a batch, the state of which was written for one of ``before`` rows."""
    replay, rows = ((generation - 1,),), nested(before)
    state = RowState("latest", generation, replay, retain=True, rebuild_rows=rows)
    if generation == 1:
        state = RowState("latest", 1, retain=True)
    return passes.reduce(latest_chunk, generation, start=start, combine=combine, state=state)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_batch_that_grows_keeps_what_it_knows(passes, x, resumed):
    """Rows that enter have no state; those that were there have theirs, and are counted."""
    table, value = passes.chunk_table, x[:, 0].astype(np.int64)
    last, earlier = 0, np.zeros(4, np.int64)
    assert passes.statistics.n_total == len(x)
    for generation, end in enumerate((100, 100, 300, 900), start=1):
        if resumed:
            passes.begin_run()
        if last:
            passes.subset(nested(last))
        before, rows = first_rows(last, table=table), first_rows(end, table=table)
        n_fetched = passes.total.rows
        held = passes.subset(nested(end))
        assert passes.total.rows - n_fetched == len(rows) - len(before)
        found = entered_pass(held, generation, last)
        assert found[0] == generation * value[rows].sum()
        known = held.pieces(nested(last)) if last else []
        # What is retained holds the counts of earlier passes, too.
        added = found - (0 if resumed else earlier)
        counted = 0 if resumed else len(known)
        expected = [(generation - 1) * value[before].sum(), counted, len(known)]
        assert added[1:].tolist() == expected
        assert held.last.rebuilt == (len(known) if resumed else 0)
        last, earlier = end, found.copy()


def test_a_state_of_rows_that_were_not_asked_for_is_refused(passes):
    held = passes.subset(nested(300))
    entered_pass(held, 1, 0)
    with pytest.raises(ValueError, match="'latest': generation 1 was written for RowSlice"):
        entered_pass(held, 2, 100)
    with pytest.raises(ValueError, match="cannot be divided"):
        held.reduce(path_chunk, 1, start=start, combine=combine, rows=nested(10))


def test_what_is_kept_and_for_how_long(passes):
    small, other = passes.subset(nested(100)), passes.subset(np.array([1, 2]))
    sample = passes.subset(RowSample(RNG, "test", 9))
    assert passes.subset(nested(300)) is small, "grown"
    assert passes.subset(nested(100)) is not small, "smaller: made anew"
    elsewhere = passes.subset(nested(100, Rng(6)))
    np.testing.assert_array_equal(
        np.sort(elsewhere.take().rows), first_rows(100, Rng(6), passes.chunk_table)
    )
    # One of each kind.
    assert passes.subset(np.array([1, 2])) is other
    assert passes.subset(RowSample(RNG, "test", 9)) is sample
    passes.subset(np.array([1, 3]))
    assert passes.subset(np.array([1, 2])) is not other
    sample.close()
    again = passes.subset(RowSample(RNG, "test", 9))
    assert again is not sample
    np.testing.assert_array_equal(again.take().rows, sample.held.together().rows)
    passes.begin_run()
    assert passes.subset(RowSample(RNG, "test", 9)) is not again


def test_samples_are_the_first_rows_of_the_largest_which_is_read_once(passes):
    few = passes.subset(RowSample(RNG, "test", 20, largest=200)).take()
    n_before = passes.total.passes
    many = passes.subset(RowSample(RNG, "test", 200, largest=200)).take()
    assert passes.total.passes == n_before
    np.testing.assert_array_equal(many.rows[: len(few.rows)], few.rows)
    alone = passes.subset(RowSample(RNG, "test", 200)).take()
    np.testing.assert_array_equal(alone.rows, many.rows)


@pytest.mark.parametrize("ascending", [True, False])
def test_a_sample_of_all_rows_stays_where_they_lie(x, ascending):
    """An ascending one: it takes no memory, and neither do its chunks. A smaller one is a copy."""
    with LocalPasses(rows_of(x, SIZES), n_threads=1) as passes:
        everything = passes.subset(RowSample(RNG, "trial", N, ascending=ascending))
        assert np.shares_memory(everything.take().x, x) == ascending
        assert np.shares_memory(everything.held.read(0), x) == ascending
        some = passes.subset(RowSample(RNG, "trial", N // 2, ascending=ascending))
        assert not np.shares_memory(some.take().x, x)


def test_evenly_spaced_rows_are_the_same_whether_their_slice_is_held(passes):
    found = []
    for ahead in (False, True):
        passes.begin_run()
        if ahead:
            passes.subset(nested(100))
            passes.subset(nested(300))
        for end in (100, 300):
            for most in (3, 40, 10_000):
                taken = passes.subset(SpacedRows(nested(end), most)).take()
                found.append((ahead, end, most, np.sort(taken.rows).tolist()))
    assert [f[1:] for f in found if f[0]] == [f[1:] for f in found if not f[0]]


def test_a_subset_of_a_subset(passes, x):
    """Its rows are numbered by their places in the first one, however they were asked for."""
    asked = np.array([5, 900 - 1, 77, 12])
    held = passes.subset(asked, np.ones(4), own_weights=True)
    inner = held.subset(np.array([2, 0]))
    np.testing.assert_array_equal(dense(inner.take().x), x[[77, 5]])
    np.testing.assert_array_equal(inner.take().rows, [2, 0])
    np.testing.assert_array_equal(dense(held.take(inner.take().rows).x), x[[77, 5]])
    sample = held.subset(RowSample(Rng(3), "some", 4))
    rows = sample.take().rows
    assert len(rows) >= 2, "few of them weigh nothing"
    np.testing.assert_array_equal(dense(sample.take().x), dense(held.take(rows).x))


def test_computing_over_a_subset_is_told_beside_that_over_the_table(passes):
    """Whoever asks where the time of a fit goes has only the table's passes to ask."""
    passes.statistics  # noqa: B018  # a pass of its own
    held = passes.subset(np.arange(40))
    inner = held.subset(np.arange(20))
    computed = passes.total.compute
    assert passes.subset_seconds == 0
    path_pass(held, 1, densely_path)
    first = held.last.compute
    assert passes.subset_seconds == first > 0
    path_pass(inner, 1, densely_path)
    assert passes.subset_seconds == first + inner.last.compute > first
    assert passes.total.compute == computed


def test_no_rows(passes):
    for asked in (nested(0), np.empty(0, np.int64), SpacedRows(nested(0), 5)):
        held = passes.subset(asked)
        assert held.n_rows == len(held.take().rows) == 0
        assert held.take().x.shape == (0, D)
        assert path_pass(held, 1).tolist() == [0, 0, 0, 0]


# --- chunks as one, threads, and the end ----------------------------------------------------------


def seen_chunk(chunk, total, seen, n_parts=7):
    """Rows that the chunk shows, its threads; a state that grows by one in every pass."""
    parts = chunk.threads.map(lambda i: i, range(n_parts))
    value = np.zeros(len(chunk.x)) if chunk.state is None else chunk.take_state()["value"]
    value += 1
    chunk.keep(value=value)
    total += [len(chunk.x), 1, int(value.sum()), chunk.threads.n]
    seen.append((chunk.index, threading.get_ident(), len(parts)))


def seen_pass(passes, generation, seen, chunk_fn=seen_chunk, **options):
    replay = tuple((seen,) for _ in range(1, generation))
    state = RowState("seen", generation, replay)
    options = {"state": state, "joined": True} | options
    return passes.reduce(chunk_fn, seen, start=start, combine=combine, **options).tolist()


def test_rows_in_one_piece_are_shown_as_one_chunk(x, monkeypatch):
    weight = np.arange(N) % 3.0
    with LocalPasses(rows_of(x, SIZES, weight), n_threads=3) as passes:
        held = passes.subset(np.arange(0, N, 2))
        for of in (passes, held):
            seen = []
            for g in (1, 2, 3):
                assert seen_pass(of, g, seen) == [of.n_rows, 1, g * of.n_rows, 3]
                assert of.last.rebuilt == 0
            assert {index for index, _, _ in seen} == {JOINED}
        # So is a share of them, the rows of which are at its places among all.
        assert seen_pass(passes, 1, [], state=None, rows=nested(300)) == [N, 1, N, 3]
        # Where they are not in one piece, or are shown otherwise than they lie, chunk by chunk.
        assert seen_pass(passes, 1, [], state=None, chunks=[0, 2])[1] == 2
        assert seen_pass(passes.subset(nested(N)), 1, [])[3] == passes.subset(nested(N)).n_chunks
        assert seen_pass(passes, 1, [], joined=False)[1] == 4
    with LocalPasses(rows_of(x, SIZES), n_threads=3, normalize="l2") as passes:
        assert seen_pass(passes, 1, [])[1] == 4
    x[500] = np.nan
    with LocalPasses(rows_of(x, SIZES), n_threads=3, on_bad_rows="skip") as passes:
        assert seen_pass(passes, 1, [])[1] == 4


def numbers_chunk(chunk, total, expected):
    np.testing.assert_array_equal(chunk.x, expected[chunk.numbers()])
    total += [1, len(chunk.x), int(chunk.numbers().sum()), int(chunk.weight.sum())]


def test_chunks_tell_the_numbers_of_their_rows(x):
    weight = np.arange(N) % 3.0
    chosen = np.random.default_rng(1).permutation(N)[:500]
    with LocalPasses(rows_of(x, SIZES, weight), n_threads=2) as passes:
        run = partial(passes.reduce, numbers_chunk, x, start=start, combine=combine)
        everything = [N, N * (N - 1) // 2, weight.sum()]
        assert run()[1:].tolist() == run(joined=True)[1:].tolist() == everything
        rows = first_rows(300)
        share = [len(rows), rows.sum(), weight[rows].sum()]
        assert run(rows=nested(300))[1:].tolist() == share
        for asked, own in ((chosen, chosen), (nested(300), rows)):
            held = passes.subset(asked)
            for joined in (False, True):
                found = held.reduce(numbers_chunk, x, start=start, combine=combine, joined=joined)
                assert found[1:].tolist() == [len(own), own.sum(), weight[own].sum()]


@pytest.mark.parametrize(("n_threads", "on"), [(3, "table"), (1, "subset")])
def test_a_stop_is_heard_inside_a_chunk_that_is_everything(x, n_threads, on):
    """What it has touched is made again by the next pass."""
    with LocalPasses(rows_of(x, SIZES), n_threads=n_threads) as table:
        passes = table if on == "table" else table.subset(np.arange(100))
        seen, asked = [], []
        assert seen_pass(passes, 1, seen)[2] == passes.n_rows

        def cancelled():
            asked.append(None)
            return table.began

        def stopped_chunk(chunk, total, seen):
            if chunk.state is not None and int(chunk.state["value"][0]) == 1 and not table.began:
                chunk.take_state()["value"][:] = 99
                table.began = True
            seen_chunk(chunk, total, seen)

        table.began = False
        table.cancelled = cancelled
        with pytest.raises(CancelledFit, match="asked for a stop"):
            seen_pass(passes, 2, seen, stopped_chunk)
        assert table.began
        assert len(seen) == 1, "ended between two parts"
        with pytest.raises(CancelledFit):
            passes.threads.map(print, range(3))
        table.cancelled = None
        assert seen_pass(passes, 2, seen, stopped_chunk)[2] == 2 * passes.n_rows
        assert passes.last.rebuilt == 1


def failing_chunk(chunk, total, number):
    def fail(part):
        if part == number:
            raise ZeroDivisionError(f"part {part}")

    chunk.threads.map(fail, range(9))


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_in_a_chunk_that_is_everything_is_told_as_it_is(x, n_threads):
    with LocalPasses(rows_of(x, SIZES), n_threads=n_threads) as table:
        for passes, named in ((table, "all rows of the data"), (table.subset(nested(N)), "chunk")):
            with pytest.raises(ZeroDivisionError, match="part 4") as caught:
                passes.reduce(failing_chunk, 4, start=start, combine=combine, joined=True)
            assert named in caught.value.__notes__[0]
        held = table.subset(np.arange(9))
        with pytest.raises(ZeroDivisionError) as caught:
            held.reduce(failing_chunk, 4, start=start, combine=combine, joined=True)
        assert "all rows of a subset of the rows" in caught.value.__notes__[0]


def test_whoever_forgets_to_close_leaves_nothing_behind(x):
    passes = LocalPasses(rows_of(x, SIZES), n_threads=2)
    held = weakref.ref(passes.subset(nested(300)))
    path_pass(held(), 1)
    assert [t for t in threading.enumerate() if t.name.startswith("largek-compute")]
    del passes
    gc.collect()
    assert held() is None
    assert not [t for t in threading.enumerate() if t.name.startswith("largek-compute")]


def test_a_subset_lends_its_one_total(x):
    """There may be hundreds of passes over few rows, and a copy costs as much as one of them."""
    with LocalPasses(rows_of(x, SIZES), n_threads=1) as passes:
        held = passes.subset(np.arange(50))
        lent = [path_pass(held, g, retain=True) for g in (1, 2)]
        copies = [path_pass(passes, g, retain=True) for g in (1, 2)]
    assert held.n_chunks == 1
    assert lent[0] is lent[1]
    assert copies[0] is not copies[1]


def test_weights_of_their_own_have_a_grid_of_their_own(x):
    """Real factors are none that the table's grid, of whole weights, represents."""
    rows = np.arange(0, N, 3)
    factors = np.random.default_rng(2).uniform(0.5, 1e6, len(rows))
    with LocalPasses(lk.open_rows(x)) as passes:
        table = passes.statistics
        assert table.integer_weights
        assert not np.array_equal(factors, np.floor(factors))
        like_the_table = passes.subset(rows, factors)
        assert like_the_table.statistics is table
        own = passes.subset(rows, factors, own_weights=True)
        known = own.statistics
        assert own is not like_the_table
        assert (known.n_rows, known.integer_weights) == (len(rows), False)
        assert known.total_weight == pytest.approx(factors.sum(), rel=1e-15)
        assert (known.max_weight, known.min_weight) == (factors.max(), factors.min())
        np.testing.assert_array_equal(known.mean, table.mean)
        sums = ClusterSums(1, D, known.grid)
        sums.add(x[rows], np.zeros(len(rows), np.int32), factors)
        expected = (factors[:, None] * x[rows]).sum(0) / factors.sum()
        np.testing.assert_allclose(sums.means_float64(np.zeros((1, D)))[0], expected, rtol=1e-12)
        with pytest.raises(ValueError, match="grid of these sums"):
            ClusterSums(1, D, table.grid).add(x[rows], np.zeros(len(rows), np.int32), factors)


def test_chunks_of_picked_rows_are_not_configured():
    """What comes of a subset must not hang on the machine that it is held on."""
    x = np.random.default_rng(0).normal(size=(9_000, 40)).astype(np.float32)
    tables = []
    for size in (1, 1 << 21, 1 << 30):
        with dask.config.set({"largek.data.memory-chunk-bytes": size}):
            passes = LocalPasses(lk.open_rows(x))
            with closing(passes), closing(passes.subset(np.arange(0, 9_000, 2))) as subset:
                tables.append((passes.n_chunks, subset.chunk_table.tolist()))
    assert [n for n, _ in tables] == [9, 1, 1]
    assert tables[0][1] == tables[1][1] == tables[2][1] == [0, 4_500]


# --- slices that are cut --------------------------------------------------------------------------


def list_numbers(chunk, total):
    total.extend([chunk.numbers()])


def rows_between(held, passes, cuts):
    """The rows of the chunks that lie between neighbouring cuts."""
    sizes = np.diff(passes.chunk_table)
    places = [int((sizes * cut // N).sum()) for cut in cuts]
    edges = np.searchsorted(held.chunk_table, places)
    assert held.chunk_table[edges].tolist() == places, "a chunk lies across a cut"
    return [
        np.sort(
            np.concatenate(
                held.reduce(
                    list_numbers,
                    start=list,
                    combine=lambda a, b: a + b,
                    chunks=list(range(begin, end)),
                )
            )
        )
        for begin, end in pairwise(edges.tolist())
    ]


def test_no_chunk_lies_across_a_cut(passes):
    table = passes.chunk_table
    held = passes.subset(nested(200), cuts=[50, 120, 700])
    (first, second, third) = rows_between(held, passes, [0, 50, 120, 200])
    np.testing.assert_array_equal(first, first_rows(50, table=table))
    np.testing.assert_array_equal(
        np.sort(np.concatenate([first, second])), first_rows(120, table=table)
    )
    np.testing.assert_array_equal(
        np.sort(np.concatenate([first, second, third])), first_rows(200, table=table)
    )
    assert passes.subset(nested(200), cuts=[50]) is held
    # What comes behind it is cut as well, and what is there is not fetched again.
    n_chunks = held.n_chunks
    assert passes.subset(nested(500), cuts=[50, 120, 300]) is held
    assert len(rows_between(held, passes, [0, 50, 120, 200, 300, 500])) == 5
    assert held.n_chunks > n_chunks
    # Cuts that it lacks: it is made anew.
    other = passes.subset(nested(500), cuts=[40])
    assert other is not held
    rows_between(other, passes, [0, 40, 500])


@pytest.mark.parametrize(
    ("ahead", "weighted", "n_threads", "as_one"),
    [(1, False, 3, True), (8, True, 1, True), (1, True, 3, False), (8, False, 1, False)],
)
def test_rows_between_all_cuts_come_in_one_pass(x, as_one, n_threads, weighted, ahead, monkeypatch):
    """From an array in memory, which is shown as one chunk, and from chunks."""
    monkeypatch.setattr(reading, "SETTLED_AHEAD", ahead)
    monkeypatch.setattr(reading, "SETTLED_AT_ONCE", 1)
    if not as_one:
        monkeypatch.setattr("largek_dask.passes.reading.ChunkReader.join", lambda self: None)
    weight = np.arange(N) % 5.0 if weighted else None
    cuts = [40, 41, 120, 300, 450, 900]
    with LocalPasses(rows_of(x, SIZES, weight), n_threads=n_threads) as passes:
        assert passes.statistics.n_rows
        before = passes.total.passes
        chunks = passes.total.chunks
        passes.subset(nested(120), cuts=cuts)
        assert passes.total.passes == before + 1
        # The chunk of one row has none of these.
        assert passes.total.chunks - chunks == (1 if as_one else 3)
        held = passes.subset(nested(900), cuts=cuts)
        assert passes.total.passes == before + 2
        edges = [0, *cuts]
        for rows, (begin, end) in zip(
            rows_between(held, passes, edges), pairwise(edges), strict=True
        ):
            np.testing.assert_array_equal(rows, np.setdiff1d(first_rows(end), first_rows(begin)))
        taken = held.take()
        np.testing.assert_array_equal(taken.x, x[taken.rows])
        np.testing.assert_array_equal(np.sort(taken.rows), np.arange(N))
        if weighted:
            np.testing.assert_array_equal(taken.weight, weight[taken.rows])


# --- a share of rows in memory, shown as one chunk ------------------------------------------------


def pieces_chunk(chunk, total):
    """Which rows there are, what they hold, and in how many pieces they are shown."""
    n = len(chunk)
    shown, at_before = [], 0
    for at, x, weight in chunk.pieces(slice(1, n)):
        assert at.start == 1 + at_before
        at_before += at.stop - at.start
        assert len(x) == at.stop - at.start == (len(x) if weight is None else len(weight))
        shown.append((np.array(x), None if weight is None else weight.copy()))
    assert at_before == n - 1
    total.append((chunk.index, chunk.numbers(), shown))


@pytest.mark.parametrize(("weighted", "as_one"), [(True, False), (True, True), (False, True)])
def test_pieces_of_a_share(x, weighted, as_one, monkeypatch):
    monkeypatch.setattr("largek_dask.passes.chunks.PIECE_BYTES", 4 * D * 30)
    weight = np.arange(N) % 5.0 if weighted else None
    rows = nested(400)
    with LocalPasses(rows_of(x, SIZES, weight), n_threads=1) as passes:
        # The second chunk has one row, and less than half of it is none.
        for _ in range(2):
            found = passes.reduce(
                pieces_chunk, start=list, combine=lambda a, b: a + b, joined=as_one,
                rows=rows, chunks=None if as_one else [0, 2, 3],
            )  # fmt: skip
            assert [index for index, _, _ in found] == ([JOINED] if as_one else [0, 2, 3])
            numbers = np.concatenate([part[1] for part in found])
            np.testing.assert_array_equal(numbers, first_rows(400))
            own = [part[1][1:] for part in found]
            for (_, _, shown), wanted in zip(found, own, strict=True):
                np.testing.assert_array_equal(np.concatenate([p[0] for p in shown]), x[wanted])
                assert (len(shown) > 1) == as_one
                if weighted:
                    weights = np.concatenate([p[1] for p in shown])
                    np.testing.assert_array_equal(weights, weight[wanted])
        whole = passes.reduce(
            pieces_chunk, start=list, combine=lambda a, b: a + b, joined=True,
            rows=RowSlice(RNG, 0, N, N),
        )  # fmt: skip
        np.testing.assert_array_equal(whole[0][1], np.arange(N))


def share_chunk(chunk, total, generation):
    """The state of a share is the one that was left for its rows."""
    if chunk.state is not None:
        np.testing.assert_array_equal(chunk.state["numbers"], chunk.numbers())
        np.testing.assert_array_equal(chunk.state["generation"], generation - 1)
        total[1] += 1
    total[0] += len(chunk)
    chunk.keep(numbers=chunk.numbers(), generation=np.full(len(chunk), generation))


@pytest.mark.parametrize("memory_limit", [None, 0])
def test_row_state_of_shares_that_take_turns(x, memory_limit):
    with LocalPasses(rows_of(x, SIZES), n_threads=1, memory_limit=memory_limit) as passes:
        for generation in (1, 2, 3):
            for q in range(3):
                share = RowSlice(RNG, q * N // 3, (q + 1) * N // 3, N)
                replay = ((generation - 1,),) if generation > 1 else ()
                n, known, *_ = passes.reduce(
                    share_chunk, generation, start=start, combine=combine, joined=True, rows=share,
                    state=RowState(f"turn-{q}", generation, replay, rebuild_rows=share),
                )  # fmt: skip
                assert n == len(np.setdiff1d(first_rows(share.end), first_rows(share.begin)))
                assert known == (generation > 1)
                lost = memory_limit == 0 and generation > 1
                assert passes.last.rebuilt == lost


def test_sparse_rows_in_one_piece(x, monkeypatch):
    """All of them are one chunk, and some of them, or a share of every chunk, are copied once."""
    monkeypatch.setattr("largek_dask.data.memory_rows.SPARSE_CHUNK_ROWS", 300)
    table = sp.csr_array(np.where(x % 3 == 0, x, 0))
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}):
        rows = lk.open_rows(table)
    assert rows.n_chunks == 3
    chosen = np.random.default_rng(2).permutation(N)[:500]
    with LocalPasses(rows, n_threads=3) as passes:
        whole, weight = passes.in_one_piece()
        assert weight is None
        assert np.shares_memory(whole.data, table.data)
        assert seen_pass(passes, 1, [])[1:] == [1, N, 3]
        monkeypatch.setattr(passes, "reduce", None)
        taken = passes.take(chosen)
        np.testing.assert_array_equal(taken.x.toarray(), table[chosen].toarray())
        assert passes.take(np.arange(N)).x is whole
        monkeypatch.undo()
        held = passes.subset(chosen)
        assert seen_pass(held, 1, [])[1] == 1
        np.testing.assert_array_equal(held.in_one_piece()[0].toarray(), table[chosen].toarray())
        seen = []
        monkeypatch.setattr(
            "largek_dask.passes.subset.collect_shares",
            lambda chunk, *more: (seen.append(chunk.index), gather.collect_shares(chunk, *more)),
        )
        share = passes.subset(nested(300)).take()
        assert seen == [JOINED]
        expected = first_rows(300, table=np.array([0, 300, 600, 900]))
        np.testing.assert_array_equal(np.sort(share.rows), expected)
        np.testing.assert_array_equal(share.x.toarray(), table[share.rows].toarray())
