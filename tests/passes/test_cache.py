"""The budget of kept chunks and shares of chunks, and what makes room for what."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.algorithms.base import Rng
from largek_dask.passes.cache import ChunkCache, Part, Span

N = 6
ORDER = Rng(1)
WHOLE = Span(0, N, N)
SHARE = Span(0, 2, N, ORDER)


def part(span: Span, value: float = 0.0, weighted: bool = False) -> Part:
    """Eight bytes a row."""
    n = span.end - span.begin
    return Part(span, np.full((n, 1), value), np.ones(n) if weighted else None)


operations = st.lists(
    st.one_of(
        st.just(("begin",)),
        st.tuples(st.just("limit"), st.integers(0, 150)),
        st.tuples(
            st.sampled_from(["put", "get"]),
            st.integers(0, 3),
            st.sampled_from([WHOLE, SHARE, Span(0, 3, N), Span(0, 5, N, ORDER)]),
        ),
    ),
    max_size=50,
)


@settings(max_examples=200)
@given(operations=operations)
def test_kept_is_what_was_put_last_or_nothing(operations):
    """Never over budget, and the bytes add up."""
    limit = [100]
    cache = ChunkCache(lambda: limit[0])
    latest = {}
    for number, (what, *arguments) in enumerate(operations):
        if what == "begin":
            cache.begin()
            assert cache.nbytes <= limit[0]
        elif what == "limit":
            limit[0] = arguments[0]
        elif what == "put":
            index, span = arguments
            known = cache.get(index, span)
            told = cache.put(index, part(span, number))
            assert told == (cache.get(index, span) is not None) or known is not None
            if told and not (span.whole and known is not None):
                latest[index, span] = number
        else:
            found = cache.get(*arguments)
            assert cache.holds(*arguments) == (found is not None)
            if found is not None:
                assert found.span.holds(arguments[1])
                assert (found.x == latest[arguments[0], found.span]).all()
        entries = [*cache._chunks.values(), *cache._shares.values()]
        assert cache.nbytes == sum(entry.part.nbytes for entry in entries)
    cache.clear()
    assert cache.nbytes == 0
    assert not any(cache.holds(index, SHARE) for index in range(4))


def test_spans_hold_spans():
    for span, other, holds in (
        (WHOLE, SHARE, True),
        (WHOLE, Span(1, 4, N), True),
        (SHARE, Span(0, 1, N, ORDER), True),
        (SHARE, Span(0, 3, N, ORDER), False),
        (SHARE, Span(0, 1, N, Rng(2)), False),
        (SHARE, Span(0, 1, N), False),
        (Span(2, 4, N), Span(1, 3, N), False),
        (Span(0, N, N, ORDER), WHOLE, False),
    ):
        assert span.holds(other) == holds


def test_whole_chunks_make_room_for_shares():
    cache = ChunkCache(lambda: 3 * 8 * N)
    for index in range(4):
        cache.put(index, part(WHOLE))
    assert [cache.holds(index, WHOLE) for index in range(4)] == [True, True, True, False]
    cache.put(0, part(SHARE))
    assert [cache.holds(index, WHOLE) for index in range(4)] == [True, True, False, False]
    assert cache.holds(0, SHARE)
    # a whole chunk takes only what is free
    cache.put(3, part(WHOLE))
    assert not cache.holds(3, WHOLE)
    assert cache.share(0).span == SHARE
    assert cache.share(3) is None


def test_a_share_takes_the_place_of_the_one_before():
    cache = ChunkCache(lambda: 8 * 5)
    cache.put(0, part(SHARE))
    assert cache.put(0, part(Span(0, 5, N, ORDER)))
    assert cache.nbytes == 8 * 5
    assert not cache.put(1, part(SHARE)), "those of other chunks stay where they are"
    assert cache.holds(0, SHARE)


def test_only_what_is_stale_makes_room_for_a_whole_chunk():
    cache = ChunkCache(lambda: 8 * N)
    cache.put(0, part(SHARE))
    for _ in range(4):
        cache.begin()
        assert cache.get(0, SHARE) is not None
    assert not cache.put(1, part(WHOLE)), "asked for in this pass"
    for _ in range(3):
        assert not cache.put(1, part(WHOLE))
        cache.begin()
    assert cache.put(1, part(WHOLE))
    assert not cache.holds(0, SHARE)


def test_the_budget_may_shrink():
    limit = [8 * (2 * N + 2)]
    cache = ChunkCache(lambda: limit[0])
    cache.put(0, part(WHOLE))
    cache.put(1, part(WHOLE))
    cache.put(0, part(SHARE))
    limit[0] = 8 * N + 16
    cache.begin()
    assert [cache.holds(0, WHOLE), cache.holds(1, WHOLE), cache.holds(0, SHARE)] == [
        True,
        False,
        True,
    ]
    limit[0] = 0
    cache.begin()
    assert cache.nbytes == 0
