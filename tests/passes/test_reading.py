"""Shares of chunks: which rows they are, what is read for them, and what is kept."""

from __future__ import annotations

import pickle
from itertools import pairwise

import dask
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

import largek_dask as lk
from largek_dask.algorithms.base import Rng, RowSlice, RowState
from largek_dask.data.csr_rows import CSRRows
from largek_dask.data.direct_chunks import DirectChunks
from largek_dask.data.memory_rows import ArrayColumn, ArrayRows, SparseRows
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.data.zarr_rows import ZarrRows
from largek_dask.errors import BadRowsError
from largek_dask.kernels.blocks import dense_rows
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.spill import SpilledRows, remove_spilled, spill, spill_folder
from tests.oracles import row_order
from tests.passes.toys import integers, rows_of

RNG = Rng(5)


class PieceRows(Rows):
    """Rows of a store that reads pieces of ``piece`` rows, and notes which."""

    def __init__(self, x, sizes, piece=None, shuffled=False, weight=None):
        table = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        column = None if weight is None else ArrayColumn(weight)
        self.x, self.piece, self.shuffled, self.reads = x, piece, shuffled, []
        super().__init__(n_features=x.shape[1], dtype=x.dtype, chunk_table=table, weight=column)

    def _load(self, i, start, stop):
        self.reads.append((i, 0, stop - start))
        return self.x[start:stop].copy()

    def stretch(self, i, begin, end):
        if self.piece is None:
            return super().stretch(i, begin, end)
        start, stop = self.chunk_rows(i)
        return begin // self.piece * self.piece, min(
            -(-end // self.piece) * self.piece, stop - start
        )

    def read_part(self, i, begin, end):
        if self.piece is None:
            return super().read_part(i, begin, end)
        assert begin < end
        self.reads.append((i, begin, end))
        start, _ = self.chunk_rows(i)
        return self.x[start + begin : start + end].copy()

    @property
    def n_read(self):
        return sum(end - begin for _, begin, end in self.reads)


def share_chunk(chunk, total):
    """Note the rows that are seen; keep as many numbers, so that a state is kept."""
    assert not isinstance(chunk.x, np.ndarray) or not chunk.x.flags.writeable
    total[chunk.index] = (chunk.rows, dense_rows(chunk.x).copy(), chunk.weight)
    chunk.keep(n=np.arange(len(chunk.x)))


def merge(a, b):
    a.update(b)
    return a


def shares(passes, begin, end, generation=None, of=None):
    """What every chunk contributes; with row state if there is a generation."""
    state = None
    rows = RowSlice(RNG, begin, end, passes.n_rows if of is None else of)
    if generation is not None:
        # The passes before may have been without state: as after a resume.
        replay = () if generation == 1 else ((),)
        state = RowState("share", generation, replay, rebuild_rows=rows)
    return passes.reduce(share_chunk, start=dict, combine=merge, state=state, rows=rows)


def expected(rows, index, begin, end, of):
    """Positions inside the chunk, by the definition of a share."""
    start, stop = rows.chunk_rows(index)
    n = stop - start
    order = np.arange(n) if rows.shuffled else row_order(RNG, index, n)
    return np.sort(order[begin * n // of : end * n // of])


def check(rows, found, x, weight, begin, end, of):
    for index in range(rows.n_chunks):
        wanted = expected(rows, index, begin, end, of)
        if index not in found:
            assert not len(wanted)
            continue
        positions, values, weights = found[index]
        start, _ = rows.chunk_rows(index)
        np.testing.assert_array_equal(positions, wanted)
        np.testing.assert_array_equal(values, x[start + wanted])
        if weight is not None:
            np.testing.assert_array_equal(weights, weight[start + wanted])


# --- which rows -----------------------------------------------------------------------------------

sizes_of_chunks = st.lists(st.integers(1, 23), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(
    sizes=sizes_of_chunks,
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=8),
    piece=st.sampled_from([None, 1, 4, 7]),
    kind=st.sampled_from(["stored", "shuffled", "memory", "sparse"]),
    weighted=st.booleans(),
    budget=st.sampled_from([0, 100, 400, 1 << 20]),
    state_budget=st.sampled_from([0, 1 << 20]),
)
def test_shares_are_the_same_whatever_is_kept(
    sizes, steps, piece, kind, weighted, budget, state_budget
):
    """Growing, shrinking, apart: always the rows of the definition, with their weights."""
    x = integers(sum(sizes))
    weight = np.arange(1.0, len(x) + 1) if weighted else None
    if kind == "memory":
        rows = rows_of(x, sizes, weight)
    elif kind == "sparse":
        rows = SparseRows(sp.csr_matrix(x), weight=None if weight is None else ArrayColumn(weight))
    else:
        rows = PieceRows(x, sizes, piece, kind == "shuffled", weight)
    with (
        dask.config.set({"largek.passes.cache-bytes": budget}),
        LocalPasses(rows, n_threads=2, memory_limit=state_budget) as passes,
    ):
        _ = passes.statistics
        for generation, (one, other, stateful) in enumerate(steps, start=1):
            begin, end = min(one, other), max(one, other)
            found = shares(passes, begin, end, generation if stateful else None, 40)
            check(rows, found, x, weight, begin, end, 40)
            assert passes.last.cache_bytes <= budget


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.one_of(sizes_of_chunks, st.integers(1, 40).map(lambda n: [1] * n)),
    ends=st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True),
    shuffled=st.booleans(),
)
def test_every_entry_iteration_has_its_share_of_every_chunk(sizes, ends, shuffled):
    """Within one row, in a batch of every age (section 3.3 of the nested mini-batch paper)."""
    x = integers(sum(sizes))
    rows = PieceRows(x, sizes, 4, shuffled)
    edges = [0, *sorted(ends)]
    with LocalPasses(rows, n_threads=1) as passes:
        _ = passes.statistics
        entered = []
        for t, end in enumerate(edges[1:], start=1):
            batch = {i: found[0] for i, found in shares(passes, 0, end, t, of=99).items()}
            before = {i: np.concatenate([e[i] for e in entered]) for i in batch} if entered else {}
            new = {i: np.setdiff1d(batch[i], before.get(i, [])) for i in batch}
            for i, positions in batch.items():
                assert set(before.get(i, [])) <= set(positions.tolist()), "batches are nested"
            entered.append(new)
            for s, (begin, stop) in enumerate(pairwise(edges[: t + 1])):
                for i, n in enumerate(sizes):
                    now = np.intersect1d(entered[s][i], batch[i])
                    assert abs(len(now) - n * (stop - begin) / 99) < 1


# --- what is read ---------------------------------------------------------------------------------


def nested(passes, n_steps, end, generation=1):
    """Steps on one batch; what each of them cost."""
    reports = []
    for g in range(generation, generation + n_steps):
        shares(passes, 0, end, g)
        reports.append(passes.last)
    return reports


def test_a_share_of_a_table_larger_than_memory_is_read_once():
    """An eighth of the rows stays, in memory for a fifth of them."""
    x = integers(64_000, 16)
    rows = PieceRows(x, [4_000] * 16)
    with (
        dask.config.set({"largek.passes.cache-bytes": x.nbytes // 5}),
        LocalPasses(rows, n_threads=2) as passes,
    ):
        _ = passes.statistics
        rows.reads.clear()
        first, *others = nested(passes, 6, 8_000)
        # some chunks were there from the scan
        assert 10 <= len(rows.reads) <= 16
        assert first.copied == 8_000 * (64 + 8)
        for report in others:
            assert report.bytes_read == report.copied == report.rebuilt == 0
            assert report.cached == 16
            assert report.cache_bytes == 8_000 * (64 + 8)
        rows.reads.clear()
        grown, again = nested(passes, 2, 9_000, 7)
        assert len(rows.reads) == 16, "new rows: every chunk once more"
        assert grown.bytes_read == x.nbytes
        assert again.bytes_read == again.copied == 0


def test_a_table_that_fits_is_not_read_again_as_the_batch_grows():
    x = integers(6_000, 4)
    rows = PieceRows(x, [1_000] * 6)
    with LocalPasses(rows, n_threads=2) as passes:
        for generation, end in enumerate([100, 100, 200, 400, 400, 6_000], start=1):
            report = nested(passes, 1, end, generation)[0]
            assert (report.bytes_read > 0) == (generation == 1)
            assert (report.copied > 0) == (generation in (1, 3, 4))
        assert len(rows.reads) == 6


@pytest.mark.parametrize("budget", [0, 3_000])
def test_without_memory_for_shares(budget):
    """Chunks whose share does not fit are read in every step; the others are not."""
    x = integers(600, 2)
    rows = PieceRows(x, [100] * 6)
    with (
        dask.config.set({"largek.passes.cache-bytes": budget}),
        LocalPasses(rows, n_threads=1) as passes,
    ):
        nested(passes, 2, 480)
        rows.reads.clear()
        report = nested(passes, 1, 480, 3)[0]
        # 80 rows of a chunk: 16 bytes each, of numbers and of places
        assert len(rows.reads) == 6 - budget // (80 * 16)
        assert report.cached == budget // (80 * 16)


def test_passes_without_row_state_leave_no_share():
    """Nobody will ask for the rows of a mini-batch again before many others."""
    rows = ArrayRows(integers(5_000, 8))
    with LocalPasses(rows, n_threads=2) as passes:
        shares(passes, 0, 700)
        assert passes.last.cache_bytes == 0
        assert passes.last.state_bytes == 4 * 5_000 + 8 * rows.n_chunks, "but the permutation stays"
        shares(passes, 700, 1_400)
        assert passes.last.state_bytes == 4 * 5_000 + 8 * rows.n_chunks


def test_a_share_without_rows_is_not_read():
    rows = PieceRows(integers(60, 2), [10] * 6)
    with LocalPasses(rows, n_threads=1) as passes:
        _ = passes.statistics
    rows.reads.clear()
    with LocalPasses(rows, n_threads=1, statistics=passes.statistics) as again:
        found = shares(again, 0, 1, 1)
        assert rows.reads == []
        assert [len(found[i][0]) for i in range(6)] == [0] * 6
        assert found[0][1].shape == (0, 2)


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_only_new_pieces_of_shuffled_rows_are_read(budget):
    x = integers(8_000, 4)
    weight = np.arange(8_000.0) + 1
    rows = PieceRows(x, [2_000] * 4, 100, True, weight)
    with (
        dask.config.set({"largek.passes.cache-bytes": budget}),
        LocalPasses(rows, n_threads=2) as passes,
        dask.config.set({"largek.passes.cache-bytes": 0}),
        LocalPasses(rows, n_threads=2) as other,
    ):
        passes._statistics = other.statistics
        rows.reads.clear()
        ends = [200, 200, 400, 440, 1_000, 2_000, 2_000, 8_000]
        pieces = [1, 1, 1, 2, 3, 5, 5, 20]
        for generation, end in enumerate(ends, start=1):
            before = len(rows.reads)
            found = shares(passes, 0, end, generation)
            check(rows, found, x, weight, 0, end, 8_000)
            now, earlier = pieces[generation - 1], max(pieces[: generation - 1], default=0)
            wanted = [(i, 100 * earlier if budget else 0, 100 * now) for i in range(4)]
            if budget and now == earlier:
                wanted = []
            assert sorted(rows.reads[before:]) == wanted
            assert passes.last.bytes_read == sum(e - b for _, b, e in wanted) * 16
            if budget:
                assert passes.last.copied == 0


def test_shuffled_rows_in_large_pieces_are_kept_without_the_rest():
    x = integers(4_000, 8)
    rows = PieceRows(x, [1_000] * 4, None, True)
    with (
        dask.config.set({"largek.passes.cache-bytes": x.nbytes // 4}),
        LocalPasses(rows, n_threads=1) as passes,
    ):
        _ = passes.statistics
        nested(passes, 3, 800)
        rows.reads.clear()
        for report in nested(passes, 3, 800, 4):
            assert report.bytes_read == report.copied == 0
            assert report.cache_bytes <= x.nbytes // 4
        assert rows.reads == []
        # a view of a kept chunk would keep all of it alive
        kept = [passes._engine.cache.share(i) for i in range(4)]
        grown = nested(passes, 1, 900, 7)[0]
        assert grown.bytes_read == 32_000 * len(rows.reads)
        assert all(
            part is None or part.x.base is None or part.x.base.nbytes == part.x.nbytes
            for part in kept
        )


# --- stores ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shuffled_store(tmp_path_factory):
    """64 inner chunks of 64 rows, in shards of 16."""
    x = integers(4_096, 6)
    out = str(tmp_path_factory.mktemp("shuffled") / "x.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("largek_dask.data.ingest.INNER_ROWS", 64)
        rows = lk.ingest(x, out, shuffle=3, chunk_rows=1_024, progress=False)
    assert rows.n_chunks == 1
    return out


@pytest.fixture
def four_chunks():
    with dask.config.set({"largek.data.read-chunk-bytes": 1_024 * 6 * 4}):
        yield


@pytest.fixture
def decoded(monkeypatch):
    """Bytes of every stored chunk that is read directly."""
    sizes = []
    real = DirectChunks._decode

    def counting(direct, file, n_bytes, offset):
        sizes.append(n_bytes)
        return real(direct, file, n_bytes, offset)

    monkeypatch.setattr(DirectChunks, "_decode", counting)
    return sizes


def test_a_sixteenth_of_a_shuffled_store_reads_a_sixteenth_of_its_bytes(
    shuffled_store, four_chunks, decoded
):
    rows = open_rows(shuffled_store)
    assert rows.n_chunks == 4
    x = np.concatenate([rows.read(i) for i in range(4)])
    whole = sum(decoded)
    decoded.clear()
    with LocalPasses(rows, n_threads=2) as passes:
        check(rows, shares(passes, 0, 256, 1), x, None, 0, 256, 4_096)
        assert len(decoded) == 4
        assert sum(decoded) == whole // 16
        assert passes.last.bytes_read == x.nbytes // 16
        assert passes.last.copied == 0
        report = nested(passes, 1, 256, 2)[0]
        assert report.bytes_read == report.copied == 0
        decoded.clear()
        check(rows, shares(passes, 0, 512, 3), x, None, 0, 512, 4_096)
        assert sum(decoded) == whole // 16, "of twice the rows, the new half"


def root(array):
    """The array that owns the memory of another."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("way", ["direct", "zarr"])
def test_parts_of_chunks(way, shuffled_store, four_chunks, monkeypatch):
    if way == "zarr":
        monkeypatch.setattr(DirectChunks, "of", lambda array: None)
    rows = open_rows(shuffled_store, sample_weight=np.arange(4_096.0))
    assert (rows._direct is None) == (way == "zarr")
    for begin, end in [(0, 1), (0, 64), (63, 65), (64, 128), (100, 1_000), (1_023, 1_024), (7, 7)]:
        part = rows.read_part(2, begin, end)
        np.testing.assert_array_equal(part, rows.read(2)[begin:end])
        assert root(part).nbytes == part.nbytes, "nothing else is kept alive"
        assert part.flags.c_contiguous
        assert not part.flags.writeable
        np.testing.assert_array_equal(
            rows.read_weight(2, begin, end), np.arange(2_048.0 + begin, 2_048 + end)
        )
        first, last = rows.stretch(2, begin, end)
        assert first <= begin
        assert last >= end
        assert first % 64 == last % 64 == 0


def test_zarr_itself_reads_no_more_than_the_inner_chunks(shuffled_store, four_chunks, monkeypatch):
    """Rows of a store that is not on a local disk."""
    rows = ZarrRows(in_memory_copy(shuffled_store))
    assert rows._direct is None
    sizes = []
    real = MemoryStore.get

    async def counting(store, key, prototype=None, byte_range=None):
        found = await real(store, key, prototype, byte_range)
        sizes.append(0 if found is None else len(found))
        return found

    monkeypatch.setattr(MemoryStore, "get", counting)
    rows.read(1)
    whole, sizes[:] = sum(sizes), []
    rows.read_part(1, 0, 64)
    # and the index of the shard
    assert whole / 16 <= sum(sizes) <= whole / 16 + 16 * 16 + 4


def test_rows_know_that_they_are_shuffled(shuffled_store, tmp_path):
    rows = open_rows(shuffled_store)
    assert rows.shuffled
    assert pickle.loads(pickle.dumps(rows)).shuffled
    assert rows.with_weight(ArrayColumn(np.ones(4_096))).shuffled
    plain = lk.ingest(integers(100), str(tmp_path / "plain.zarr"), progress=False)
    assert not plain.shuffled
    assert not pickle.loads(pickle.dumps(plain)).shuffled
    sparse = lk.ingest(sp.csr_matrix(integers(50)), str(tmp_path / "csr.zarr"), progress=False)
    assert isinstance(sparse, CSRRows)
    assert not sparse.shuffled
    seed0 = lk.ingest(integers(50), str(tmp_path / "0.zarr"), shuffle=0, progress=False)
    assert seed0.shuffled, "a seed of 0 is a seed"


def in_memory_copy(url):
    """A shuffled store that only this process has."""
    source = zarr.open_array(url, mode="r")
    copy = zarr.create_array(
        MemoryStore(),
        shape=source.shape,
        chunks=source.chunks,
        shards=source.shards,
        dtype=source.dtype,
        attributes=dict(source.attrs),
    )
    copy[:] = source[:]
    return copy


def test_shuffled_rows_stay_so_where_they_are_written_for_workers(shuffled_store, four_chunks):
    rows = ZarrRows(in_memory_copy(shuffled_store))
    assert rows.shuffled
    folder = spill_folder()
    try:
        spilled = pickle.loads(pickle.dumps(spill(rows, folder)))
        assert isinstance(spilled, SpilledRows)
        assert spilled.shuffled
        np.testing.assert_array_equal(spilled.read_part(3, 5, 900), rows.read(3)[5:900])
        assert spilled.stretch(3, 5, 900) == (0, 1_024)
        plain = spill(ArrayRows(integers(100)), spill_folder())
        assert not pickle.loads(pickle.dumps(plain)).shuffled
        remove_spilled(plain.location.removesuffix("/rows.zarr"))
    finally:
        remove_spilled(folder)


def test_workers_take_the_same_shares(shuffled_store, four_chunks, cluster2):
    rows = open_rows(shuffled_store)
    x = np.concatenate([rows.read(i) for i in range(4)])
    with ClusterPasses(rows, cluster2) as passes:
        for generation, end in enumerate([256, 256, 700], start=1):
            check(rows, shares(passes, 0, end, generation), x, None, 0, end, 4_096)
            assert passes.last.bytes_read == x.nbytes * {1: 4, 2: 0, 3: 8}[generation] // 64
            assert passes.last.copied == 0
        assert passes.last.cache_bytes > 0


# --- replays and bad rows -------------------------------------------------------------------------


def grow_chunk(chunk, total, factor):
    """Sums of each row's factors, over a batch that grows."""
    n = len(chunk.x)
    value = np.zeros(n, np.int64)
    rows = np.arange(n) if chunk.rows is None else chunk.rows
    if chunk.state is not None:
        value[np.searchsorted(rows, chunk.state["rows"])] = chunk.state["value"]
    value += factor * chunk.x[:, 0].astype(np.int64)
    total[0] += int(value.sum())
    chunk.keep(value=value, rows=rows)


def zeros():
    return np.zeros(1, np.int64)


def add(a, b):
    a += b
    return a


@pytest.mark.parametrize(
    ("shuffled", "budget", "memory_limit"),
    [(False, 0, 0), (True, 2_000, 0), (False, 2_000, 700), (True, 1 << 20, 700), (True, 0, None)],
)
def test_a_lost_state_is_rebuilt_on_the_rows_of_before(shuffled, budget, memory_limit):
    """State of a chain of two passes, each on more rows than the one before."""
    x = integers(400)
    rows = PieceRows(x, [50, 150, 120, 80], 16, shuffled)
    with (
        dask.config.set({"largek.passes.cache-bytes": budget}),
        LocalPasses(rows, n_threads=2, memory_limit=memory_limit) as passes,
    ):
        _ = passes.statistics
        for begin, end in [(40, 90), (90, 200), (200, 400)]:
            for generation, now in ((1, begin), (2, end)):
                before = RowSlice(RNG, 0, begin, 400)
                state = RowState(
                    "grow", generation, ((1,),) * (generation - 1), rebuild_rows=before
                )
                slice_now = None if now == 400 else RowSlice(RNG, 0, now, 400)
                total = passes.reduce(
                    grow_chunk, generation, start=zeros, combine=add, state=state, rows=slice_now
                )
                wanted = 0
                for i in range(4):
                    column = x[rows.chunk_table[i] :, 0].astype(np.int64)
                    wanted += generation * int(column[expected(rows, i, 0, now, 400)].sum())
                    if generation == 2:
                        wanted += int(column[expected(rows, i, 0, begin, 400)].sum())
                assert total[0] == wanted
            if memory_limit == 0:
                assert passes.last.rebuilt == 4


@pytest.mark.parametrize("shuffled", [False, True])
def test_bad_rows_of_a_share_are_named(shuffled):
    x = integers(400)
    rows = PieceRows(x, [100] * 4, 10, shuffled)
    inside = expected(rows, 2, 0, 100, 400)
    x[200 + inside[-1]] = np.nan
    with LocalPasses(rows, n_threads=2) as passes:
        for generation in (1, 2):
            with pytest.raises(BadRowsError, match=rf"row {200 + inside[-1]} "):
                shares(passes, 0, 100, generation)


def bad_chunk(chunk, total):
    bad = np.zeros(len(chunk.x), np.bool_) if chunk.bad is None else chunk.bad
    assert np.isfinite(chunk.x).all()
    total[chunk.index] = (chunk.rows[bad], chunk.x[bad], chunk.weight)
    chunk.keep(n=np.zeros(1))


@pytest.mark.parametrize(
    ("shuffled", "weighted", "normalize"), [(False, True, None), (True, False, "l2")]
)
def test_bad_rows_of_a_share_are_skipped(shuffled, weighted, normalize):
    """Also of one that is kept: what is kept is the rows as they were read."""
    x = integers(400) + 1
    x[::7] = np.nan
    weight = np.full(400, 2.0) if weighted else None
    rows = PieceRows(x, [100] * 4, 10, shuffled, weight)
    with LocalPasses(rows, n_threads=2, on_bad_rows="skip", normalize=normalize) as passes:
        _ = passes.statistics
        for generation in (1, 2):
            state = RowState("bad", generation, () if generation == 1 else ((),))
            share = RowSlice(RNG, 0, 100, 400)
            found = passes.reduce(bad_chunk, start=dict, combine=merge, state=state, rows=share)
            for i in range(4):
                inside = expected(rows, i, 0, 100, 400)
                wrong = np.isnan(x[100 * i + inside, 0])
                assert wrong.any()
                np.testing.assert_array_equal(found[i][0], inside[wrong])
                assert (found[i][1] == passes.statistics.shift).all()
                weights = np.where(wrong, 0, 2.0 if weighted else 1.0)
                np.testing.assert_array_equal(found[i][2], weights)
