"""Rows gathered in one process: all of them, once, in whatever pieces; and threads over them."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.algorithms import gathered
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.gathered import CollectedRows, some_rows
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.memory import HUGE_FROM, empty_rows
from largek_dask.algorithms.nested import gather, sample_points
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.data.sources import open_rows
from largek_dask.kernels.blocks import dense_rows
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import blobs
from tests.kernels.test_sparse import block_of
from tests.passes.toys import rows_of

RNG = Rng(5)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    weighted=st.lists(st.booleans(), min_size=8, max_size=8),
    room=st.integers(1, 12),
    n_threads=st.integers(1, 4),
    split=st.integers(0, 8),
    every=st.integers(1, 5),
    sparse=st.booleans(),
)
@settings(max_examples=150)
def test_nothing_is_lost_or_counted_twice(sizes, weighted, room, n_threads, split, every, sparse):
    n = sum(sizes)
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    weight = np.arange(1.0, n + 1) % 4
    totals = [CollectedRows(), CollectedRows()]
    order = np.random.default_rng(n).permutation(len(sizes))
    edges = np.cumsum([0, *sizes])
    all_weight = np.ones(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "BLOCK_BYTES", 8 * room)
        patch.setattr(gathered, "PART_BYTES", 8)
        for i in order:
            at = slice(edges[i], edges[i + 1])
            own = weight[at] if weighted[i] else None
            if own is not None:
                all_weight[at] = own
            rows = block_of(x[at]) if sparse else x[at]
            totals[int(i >= split)].add(np.arange(n)[at], rows, own)
        totals = [pickle.loads(pickle.dumps(total)) for total in totals]
        together = CollectedRows.combine(*totals)
        pieces = list(together.pieces(n_threads))
    if not sparse:
        assert together.nbytes == n * 16, "only what is filled travels"
    assert all(len(piece.rows) == len(piece.x) for piece in pieces)
    if not n:
        assert not pieces
        return
    rows = np.concatenate([piece.rows for piece in pieces])
    np.testing.assert_array_equal(np.sort(rows), np.arange(n))
    got, got_weight, got_rows = some_rows(pieces, most=-(-n // every))
    back = np.argsort(got_rows)
    present = np.flatnonzero(all_weight > 0)
    expected = present[:: max(1, -(-len(present) // -(-n // every)))]
    np.testing.assert_array_equal(got_rows[back], expected)
    np.testing.assert_array_equal(dense_rows(got)[back], x[expected])
    np.testing.assert_array_equal(got_weight[back], all_weight[expected])


def test_rows_of_a_block_lie_in_blocks_of_limited_size(monkeypatch):
    monkeypatch.setattr(gathered, "BLOCK_BYTES", 100 * 8)
    total = CollectedRows()
    for begin in range(0, 1000, 80):
        total.add(np.arange(begin, begin + 80), np.zeros((80, 2), np.float32), None)
    assert [block.n for block in total.blocks] == [100] * 10 + [40]
    # so that there is something for every thread
    monkeypatch.setattr(gathered, "PART_BYTES", 8)
    assert max(len(piece.rows) for piece in total.pieces(5)) <= 1040 / 5


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("end", [7, 100, 900])
def test_a_sample_is_the_same_rows_wherever_they_are(end, weighted):
    x = blobs(900, 3, 4)
    weight = np.arange(900) % 3.0 if weighted else None
    found = []
    for ahead in (False, True):
        with LocalPasses(rows_of(x, [300, 0, 1, 599], weight)) as passes:
            if ahead:
                gather(passes, RNG, end)
            for most in (3, 40, 10_000):
                got, got_weight, rows = sample_points(passes, RNG, end, most)
                order = np.argsort(rows)
                np.testing.assert_array_equal(got[order], x[rows[order]])
                expected = 1.0 if weight is None else weight[rows[order]]
                np.testing.assert_array_equal(got_weight[order], expected)
                n_before = passes.total.passes
                sample_points(passes, RNG, end, most)
                assert passes.total.passes == n_before, "kept"
                found.append((ahead, most, rows[order].tolist()))
    assert [f[1:] for f in found if f[0]] == [f[1:] for f in found if not f[0]]


def states_of(x, n_threads, bounds, sparse):
    algorithm = NMBatch(b0=600, gather=1 << 40, bounds=bounds, problem=KMeansProblem(12, x[:12]))
    rows = open_rows(sp.csr_matrix(x)) if sparse else rows_of(x, [900, 1500, 600])
    with LocalPasses(rows, n_threads=n_threads) as passes:
        state, out = algorithm.init(passes, RNG), []
        for _ in range(14):
            state, info = algorithm.step(passes, RNG, state)
            arrays = dataclasses.replace(state, bounds=None, previous=None)
            out.append((pickle.dumps(arrays.centers), state.rows, dataclasses.asdict(info)))
        n_parts = len(gather(passes, RNG, 600).parts)
    return out, n_parts


@pytest.mark.parametrize(("bounds", "sparse"), [(False, False), ("groups", False), (False, True)])
def test_threads_over_parts_change_no_bit(bounds, sparse, monkeypatch):
    x = blobs(3000, 5, 20, spread=2.0)
    one, _ = states_of(x, 1, bounds, sparse)
    monkeypatch.setattr(gathered, "PART_BYTES", 64)
    three, n_parts = states_of(x, 3, bounds, sparse)
    assert n_parts > 3 or sparse
    assert one == three


@pytest.mark.parametrize("n", [0, 3, HUGE_FROM // 32])
def test_room_for_rows(n):
    x = empty_rows(n, 8, np.float32)
    assert x.shape == (n, 8)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    x[:] = 7
    assert (x == 7).all()
