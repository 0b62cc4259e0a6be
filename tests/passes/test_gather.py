"""Rows picked out of chunks: all of them, once, in whatever pieces."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.kernels.blocks import dense_rows
from largek_dask.passes import gather
from largek_dask.passes.gather import CollectedRows, some_rows
from largek_dask.passes.taken_rows import HUGE_FROM, empty_rows
from tests.kernels.test_sparse import block_of


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    weighted=st.lists(st.booleans(), min_size=8, max_size=8),
    room=st.integers(1, 12),
    n_threads=st.integers(1, 4),
    split=st.integers(0, 8),
    every=st.integers(1, 5),
    sparse=st.booleans(),
    some=st.booleans(),
)
@settings(max_examples=150)
def test_nothing_is_lost_or_counted_twice(
    sizes, weighted, room, n_threads, split, every, sparse, some
):
    n = sum(sizes)
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    weight = np.arange(1.0, n + 1) % 4
    totals = [CollectedRows(), CollectedRows()]
    order = np.random.default_rng(n).permutation(len(sizes))
    edges = np.cumsum([0, *sizes])
    all_weight = np.ones(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "BLOCK_BYTES", 8 * room)
        patch.setattr(gather, "PART_BYTES", 8)
        for i in order:
            at = slice(edges[i], edges[i + 1])
            own = weight[at] if weighted[i] else None
            if own is not None:
                all_weight[at] = own
            rows = block_of(x[at]) if sparse else x[at]
            if some:
                # Those that are not asked for lie among the others.
                places = np.arange(0, 2 * len(x[at]), 2)
                rows = np.repeat(x[at], 2, axis=0)
                rows = block_of(rows) if sparse else rows
                own = None if own is None else np.repeat(own, 2)
                totals[int(i >= split)].add(np.arange(n)[at], rows, own, places)
            else:
                totals[int(i >= split)].add(np.arange(n)[at], rows, own)
        totals = [pickle.loads(pickle.dumps(total)) for total in totals]
        together = CollectedRows.combine(*totals)
        pieces = list(together.pieces(n_threads))
        nbytes = together.nbytes
        places = np.random.default_rng(n).permutation(n)
        back, back_weight = together.at(np.arange(n), places, 2, np.dtype("f8"))
    if not sparse:
        assert nbytes == n * 16, "only what is filled travels"
    assert all(len(piece.rows) == len(piece.x) for piece in pieces)
    if not n:
        assert not pieces
        return
    assert back.dtype == np.float64
    np.testing.assert_array_equal(dense_rows(back)[places], x)
    assert (back_weight is not None) == any(
        weighted[: len(sizes)][i] for i in np.flatnonzero(sizes)
    )
    if back_weight is not None:
        np.testing.assert_array_equal(back_weight[places], all_weight)
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
    monkeypatch.setattr(gather, "BLOCK_BYTES", 100 * 8)
    total = CollectedRows()
    for begin in range(0, 1000, 80):
        total.add(np.arange(begin, begin + 80), np.zeros((80, 2), np.float32), None)
    assert [block.n for block in total.blocks] == [100] * 10 + [40]
    # so that there is something for every thread
    monkeypatch.setattr(gather, "PART_BYTES", 8)
    assert max(len(piece.rows) for piece in total.pieces(5)) <= 1040 / 5


@pytest.mark.parametrize("n", [0, 3, HUGE_FROM // 32])
def test_room_for_rows(n):
    x = empty_rows(n, 8, np.float32)
    assert x.shape == (n, 8)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    x[:] = 7
    assert (x == 7).all()
