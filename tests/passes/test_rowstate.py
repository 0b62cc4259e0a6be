"""The budget of row state."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.passes.rowstate import RowStateStore

operations = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 5)),
        st.tuples(st.just("put"), st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 5)),
        st.tuples(st.just("reserve"), st.sampled_from("ab"), st.just(0), st.integers(0, 150)),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(operations=operations, limit=st.integers(0, 200), size=st.integers(1, 6))
def test_state_is_what_was_put_or_missing(operations, limit, size):
    """Never another run's, never over budget, and the bytes add up."""
    store = RowStateStore(lambda: limit)
    epochs, put, reserved = {}, {}, {}
    for n, (what, name, epoch, generation) in enumerate(operations):
        if what == "begin":
            store.begin(name, epoch, generation)
            if epochs.get(name) != epoch:
                put = {key: value for key, value in put.items() if key[0] != name}
                reserved.pop(name, None)
            epochs[name] = epoch
        elif what == "reserve":
            reserved.pop(name, None)
            fits = generation <= limit - sum(reserved.values())
            assert store.reserve(name, generation) == fits
            if fits:
                reserved[name] = generation
        else:
            chunk = n % 3
            store.put(name, epoch, chunk, generation, {"v": np.full(size, n, np.int64)})
            if epochs.get(name) == epoch:
                put[name, chunk, generation] = n
        assert store.nbytes <= limit
        held = 0
        for name_ in "ab":
            for chunk in range(3):
                for g in range(1, 6):
                    arrays = store.get(name_, chunk, g)
                    if arrays is not None:
                        held += arrays["v"].nbytes
                        assert arrays["v"].tolist() == [put[name_, chunk, g]] * size
        assert store.nbytes == held + sum(reserved.values())


@settings(max_examples=100)
@given(operations=operations, limit=st.integers(0, 200), size=st.integers(1, 6))
def test_what_there_is_use_for_is_told_whatever_was_kept(operations, limit, size):
    """Two generations of every chunk and all totals, of the latest run of each name."""
    store, epochs, offered, totals = RowStateStore(lambda: limit), {}, {}, {}
    for n, (what, name, epoch, generation) in enumerate(operations):
        if what == "begin":
            store.begin(name, epoch, generation)
            if epochs.get(name) != epoch:
                offered = {key: nbytes for key, nbytes in offered.items() if key[0] != name}
                totals.pop(name, None)
            epochs[name] = epoch
        elif what == "reserve":
            refused = store.evictions + (not store.reserve(name, generation))
            assert store.evictions == refused
            totals[name] = generation
        else:
            store.put(name, epoch, n % 3, generation, {"v": np.zeros(size + n % 2)})
            if epochs.get(name) == epoch:
                offered[name, n % 3] = 8 * (size + n % 2)
                lost = store.get(name, n % 3, generation) is None
                assert store.evictions >= lost
        assert store.wanted == 2 * sum(offered.values()) + sum(totals.values())


@settings(max_examples=50)
@given(operations=operations, again=operations, limit=st.integers(0, 200))
def test_a_store_that_was_cleared_is_like_a_new_one(operations, again, limit):
    used, new = RowStateStore(lambda: limit), RowStateStore(lambda: limit)

    def go(store, some):
        for n, (what, name, epoch, generation) in enumerate(some):
            if what == "begin":
                store.begin(name, epoch, generation)
            elif what == "reserve":
                store.reserve(name, generation)
            else:
                store.put(name, epoch, n % 3, generation, {"v": np.full(3, n)})
            yield store.nbytes, store.wanted, store.evictions - before

    before = 0
    list(go(used, operations))
    used.clear()
    assert (used.nbytes, used.wanted) == (0, 0)
    before = 0
    expected = list(go(new, again))
    before = used.evictions
    assert list(go(used, again)) == expected


def test_older_generations_go_first():
    store = RowStateStore(lambda: 32)
    store.begin("s", 1, 1)
    for chunk in range(3):
        store.put("s", 1, chunk, 1, {"v": np.zeros(1)})
    store.begin("s", 1, 2)
    for chunk in range(3):
        store.put("s", 1, chunk, 2, {"v": np.ones(1)})
    assert all(store.get("s", chunk, 2) is not None for chunk in range(3))
    assert [store.get("s", chunk, 1) is None for chunk in range(3)] == [True, True, False]
    assert store.evictions == 0
    store.begin("s", 1, 3)
    assert store.get("s", 2, 1) is None, "no pass can use it any more"


def test_kept_arrays_are_owned_and_read_only():
    store = RowStateStore(lambda: 1000)
    store.begin("s", 1, 1)
    large = np.arange(100)
    store.put("s", 1, 0, 1, {"v": large[:2]})
    kept = store.get("s", 0, 1)["v"]
    assert kept.base is None
    assert not kept.flags.writeable
    large[0] = 7
    assert kept.tolist() == [0, 1]
