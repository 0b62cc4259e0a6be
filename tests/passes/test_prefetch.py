"""Chunks that are read ahead: each once, no more than a few, and everybody who waits is woken."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from largek_dask.passes.prefetch import Block, ChunkSource
from largek_dask.passes.reading import Span
from tests.helpers.checks import eventually

SPAN = Span(0, 1, 1)
SECONDS = 60.0


@pytest.fixture
def reader():
    with ThreadPoolExecutor(1, "reader") as executor:
        yield executor


class Chunks:
    """Reads that wait until they are let through."""

    def __init__(self, *gated):
        self.gates = {index: threading.Event() for index in gated}
        self.begun = {index: threading.Event() for index in gated}
        self.read, self.recalled = [], []

    def load(self, index):
        self.read.append(index)
        if index in self.gates:
            self.begun[index].set()
            assert self.gates[index].wait(SECONDS)
        return Block(index, SPAN)

    def recall(self, index):
        self.recalled.append(index)
        return Block(index, SPAN, cached=True)

    def source(self, stored, present=(), depth=2):
        return ChunkSource(self.load, self.recall, stored, present, depth)


def taken(source):
    found = []
    while (block := source.next()) is not None:
        found.append(block.index)
    return found


def test_what_is_in_memory_comes_while_others_are_read(reader):
    chunks = Chunks(9)
    source = chunks.source([9], [0, 1])
    source.start(reader)
    assert chunks.begun[9].wait(SECONDS)
    assert [source.next().index, source.next().index] == [0, 1]
    chunks.gates[9].set()
    assert taken(source) == [9]


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_so_many_wait(depth, reader):
    """The reader goes on when one has been taken, and not before."""
    chunks = Chunks(*range(8))
    source = chunks.source(range(8), depth=depth)
    source.start(reader)
    for index in range(8):
        chunks.gates[index].set()
        assert chunks.begun[index].wait(SECONDS)
        if index >= depth:
            # With its place free again this one could be begun.
            assert len(chunks.read) <= index + 1
        if index + 1 >= depth:
            assert source.next().index == index + 1 - depth
    assert taken(source) == list(range(9 - depth, 8))


def test_all_who_wait_are_told_of_the_end(reader):
    """Two wait for one chunk: the one who does not get it hears that there is none."""
    chunks = Chunks(0)
    source = chunks.source([0])
    source.start(reader)
    assert chunks.begun[0].wait(SECONDS)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(source.next) for _ in range(3)]
        eventually(lambda: len(source._changed._waiters) == 3, "all three to wait")
        chunks.gates[0].set()
        found = [task.result(SECONDS) for task in waiting]
    assert sorted(block is None for block in found) == [False, True, True]


def test_a_stop_wakes_all_who_wait_and_what_was_read_stays(reader):
    chunks = Chunks(0, 1)
    source = chunks.source([0, 1, 2], [7])
    source.start(reader)
    assert source.next().index == 7
    assert chunks.begun[0].wait(SECONDS)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(source.next) for _ in range(2)]
        eventually(lambda: len(source._changed._waiters) == 2, "both to wait")
        source.stop()
        assert [task.result(SECONDS) for task in waiting] == [None, None]
    assert source.stopped
    chunks.gates[0].set()
    chunks.gates[1].set()
    reader.submit(int).result(SECONDS)  # the reader has ended
    assert chunks.read == [0], "it reads no further"
    assert source.next() is None
    source.start(reader)
    assert not source.stopped
    assert taken(source) == [0, 1, 2]
    assert chunks.read == [0, 1, 2]


def test_a_reader_that_waits_for_a_place_ends_with_a_stop(reader):
    chunks = Chunks()
    source = chunks.source(range(5), depth=1)
    source.start(reader)
    assert source.next().index == 0
    source.stop()
    reader.submit(int).result(SECONDS)
    source.start(reader)
    assert taken(source) == [1, 2, 3, 4]


def test_begun_again_while_it_reads_it_has_one_reader(reader):
    chunks = Chunks(0)
    source = chunks.source([0, 1])
    source.start(reader)
    assert chunks.begun[0].wait(SECONDS)
    source.stop()
    source.start(reader)
    chunks.gates[0].set()
    assert taken(source) == [0, 1]
    assert chunks.read == [0, 1]
