"""What passes since the last anchor are kept, and how they come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.parts.history import History
from largek_dask.data.sources import open_rows
from largek_dask.driver.checkpoint import decode, encode
from largek_dask.passes.local import LocalPasses
from tests.passes.toys import path_chunk, start


@dataclass(frozen=True)
class Entry:
    factor: int
    table: NDArray[np.int64]


@dataclass(frozen=True)
class State:
    history: History[Entry]


def broadcast(entry):
    return (entry.factor,)


def test_an_anchor_is_the_first_entry_and_going_back_leaves_out():
    history: History[int] = History()
    assert history.last is None
    assert history.next_state("s", lambda e: (e,)).replay == ()
    for entry in (1, 2, 3):
        history = history.then(entry)
    assert (history.generation, history.entries, history.last, len(history)) == (3, (1, 2, 3), 3, 3)
    state = history.next_state("s", lambda e: (e,), retain=True)
    assert (state.name, state.generation, state.replay) == ("s", 4, ((1,), (2,), (3,)))
    assert state.retain
    first = history.next_state("s", lambda e: (e,), anchor=True)
    assert (first.generation, first.replay) == (4, ())
    assert history.then(9, anchor=True) == History(4, (9,))
    assert history.then(9, back_to=1) == History(4, (1, 9))
    read = history.read_state("s", lambda e: (e,), path_chunk, start)
    assert (read.generation, read.replay, read.retain) == (4, state.replay, False)
    assert (read.rebuild, read.rebuild_start) == (path_chunk, start)


def test_a_checkpoint_holds_what_entries_share_once():
    table = np.arange(100)
    history = History(7, tuple(Entry(factor, table) for factor in range(5)))
    arrays: dict[str, np.ndarray] = {}
    tree = encode(State(history), arrays)
    assert len(arrays) == 1
    back = decode(tree, arrays, State).history
    assert isinstance(back, History)
    assert back.generation == 7
    assert [entry.factor for entry in back.entries] == list(range(5))
    assert len({id(entry.table) for entry in back.entries}) == 1
    np.testing.assert_array_equal(back.last.table, table)
    again: dict[str, np.ndarray] = {}
    assert encode(State(back), again) == tree
    assert len(again) == 1


def test_of_exact_assignments_the_last_one_is_kept(rows_20k):
    x = rows_20k[:4_000]
    algorithm = Lloyd().bind(KMeansProblem(40, x[:40], "keep"))
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, Rng(0))
        assert (state.step, len(state.history)) == (0, 0)
        for step in range(1, 5):
            before = state.centers
            state, _ = algorithm.step(passes, Rng(0), state)
            assert (state.step, len(state.history)) == (step, 1)
            assert state.history.last is before
    arrays = {}
    assert decode(encode(state, arrays), arrays, type(state)).step == 4
