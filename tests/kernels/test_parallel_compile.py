"""What a second process compiles: each call is one that a fit of this sort makes."""

from __future__ import annotations

import io
import types

import pytest

from largek_dask.kernels import parallel_compile
from tests.helpers.covering import slow


@pytest.mark.parametrize(("d", "k", "few"), [(2, 6, 128), (2, 6, 5), (9, 6, 5)])
@pytest.mark.parametrize("dtype", ["float32", *slow("float64")])
def test_each_call_can_be_made(monkeypatch, dtype, d, k, few):
    monkeypatch.setattr(parallel_compile, "_ROWS", 60)
    monkeypatch.setattr(parallel_compile, "FEW_CLUSTERS", few)
    calls = parallel_compile.calls_in_reverse(dtype, d, k)
    names = [call.__name__ for call in calls]
    # The last that a fit comes to is the first.
    assert names[0] == "halves"
    assert ("in_lists" in names) == (k > few)
    # Few features have a kernel for one and two centres.
    assert ("one" in names) == (d > 8)
    assert [call() for call in calls] == [None] * len(calls)


def test_all_are_made_in_their_order(monkeypatch):
    made = []

    def two(*given):
        return (lambda: made.append(("first", *given)), lambda: made.append(("second", *given)))

    monkeypatch.setattr(parallel_compile, "calls_in_reverse", two)
    monkeypatch.setattr(parallel_compile, "_end_with_parent", lambda: None)
    parallel_compile.main("float32", "8", "3")
    assert made == [("first", "float32", 8, 3), ("second", "float32", 8, 3)]


def test_it_ends_when_the_pipe_is_closed(monkeypatch):
    ended = []
    monkeypatch.setattr(
        parallel_compile.sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b""))
    )
    monkeypatch.setattr(parallel_compile.os, "_exit", ended.append)
    parallel_compile._end_with_parent()
    assert ended == [0]
