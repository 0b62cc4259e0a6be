"""Placement: balanced by threads, sticky, a function of its arguments alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from largek_dask.passes.placement import place, ranges, room_of, shares, unranges

workers = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 8), min_size=1)
owners = st.dictionaries(st.integers(0, 60), st.sampled_from("abcdefghxyz"))
chunk_sets = st.sets(st.integers(0, 60))


@given(owner=owners, chunks=chunk_sets, workers=workers)
def test_every_chunk_has_one_owner_and_every_worker_its_share(owner, chunks, workers):
    placed = place(owner, chunks, workers)
    assert placed.keys() == chunks
    loads = Counter(placed.values())
    total = sum(workers.values())
    for address, threads in workers.items():
        assert len(chunks) * threads // total <= loads[address]
        assert loads[address] <= -(-len(chunks) * threads // total)


@given(owner=owners, chunks=chunk_sets, workers=workers)
def test_placing_again_moves_nothing(owner, chunks, workers):
    placed = place(owner, chunks, workers)
    assert place(placed, chunks, workers) == placed


@given(owner=owners, chunks=chunk_sets, workers=workers)
def test_order_of_arguments_does_not_matter(owner, chunks, workers):
    def backwards(mapping):
        return dict(reversed(mapping.items()))

    assert place(owner, chunks, workers) == place(
        backwards(owner), sorted(chunks, reverse=True), backwards(workers)
    )


@given(chunks=chunk_sets, workers=workers)
def test_only_a_lost_workers_chunks_move_when_the_others_have_room(chunks, workers):
    before = place({}, chunks, workers)
    lost = sorted(workers)[0]
    left = {address: n for address, n in workers.items() if address != lost}
    if not left:
        return
    after = place(before, chunks, left)
    total = sum(left.values())
    most = {a: -(-len(chunks) * n // total) for a, n in left.items()}
    loads = Counter(before.values())
    moved = Counter(before[c] for c in chunks if after[c] != before[c])
    for address in left:
        # A worker that stays gives away only what exceeds its new share; that can only be
        # rounding, for all shares grow.
        assert moved[address] <= max(0, loads[address] - most[address]) + 1


@given(chunks=chunk_sets, workers=workers)
def test_a_new_worker_takes_its_share_and_nothing_else_moves(chunks, workers):
    before = place({}, chunks, workers)
    after = place(before, chunks, {**workers, "new": 2})
    moved = [c for c in chunks if after[c] != before[c]]
    share = -(-len(chunks) * 2 // (sum(workers.values()) + 2))
    # Besides the new worker's share, floors and ceilings may shift one chunk a worker.
    assert sum(after[c] == "new" for c in chunks) <= share
    assert len(moved) <= share + len(workers)


@given(placed=st.dictionaries(st.integers(0, 60), st.sampled_from("abc")))
def test_shares_are_the_chunks_of_each_worker(placed):
    by_worker = shares(placed)
    assert {c: a for a, chunks in by_worker.items() for c in chunks} == placed
    assert all(chunks == sorted(chunks) and chunks for chunks in by_worker.values())


@given(chunks=chunk_sets)
def test_ranges_and_back(chunks):
    parts = ranges(chunks)
    assert unranges(parts) == sorted(chunks)
    assert all(a[1] < b[0] for a, b in pairwise(parts))


BYTES = st.integers(0, 10**12)
JOBS = st.dictionaries(st.sampled_from("abcde"), st.tuples(BYTES, BYTES), min_size=1)


@given(JOBS)
def test_room_follows_what_is_wanted(jobs):
    limits = {name: limit for name, (limit, _) in jobs.items()}
    wanted = {name: want for name, (_, want) in jobs.items()}
    room = {name: room_of(name, limits, wanted) for name in jobs}
    most = max(limits.values())
    assert all(0 <= room[name] <= limits[name] for name in jobs)
    assert sum(min(room[name], wanted[name]) for name in jobs) <= most, "all of it is there"
    for name in jobs:
        even = min(limits[name], wanted[name], most // len(jobs))
        assert room[name] >= even, "nobody has less than an even share has of use"
        others = sum(wanted[other] for other in jobs if other != name)
        assert room[name] >= min(limits[name], most - others), "what nobody wants is free"


def test_room_that_is_too_little_is_shared_evenly():
    limits, wanted = dict.fromkeys("abc", 90), {"a": 10, "b": 1000, "c": 1000}
    assert [room_of(name, limits, wanted) for name in "abc"] == [10, 40, 40]
    assert room_of("b", limits, wanted | {"c": 20}) == 60
    assert room_of("a", {"a": 90}, {"a": 0}) == 90
