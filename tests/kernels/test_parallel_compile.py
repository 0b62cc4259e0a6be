"""Calls by which a second process compiles the kernels of a fit."""

from __future__ import annotations

import io
import types
from functools import partial

import pytest

from largek_dask.kernels import parallel_compile
from tests.helpers.covering import slow


@pytest.mark.parametrize(("d", "k", "few"), [(2, 6, 128), (2, 6, 5), (9, 6, 5)])
@pytest.mark.parametrize("dtype", ["float32", *slow("float64")])
def test_each_call_can_be_made(monkeypatch, dtype, d, k, few):
    monkeypatch.setattr(parallel_compile, "_ROWS", 60)
    monkeypatch.setattr(parallel_compile, "FEW_CLUSTERS", few)
    calls = parallel_compile.calls_in_reverse(dtype, d, k)
    # The last kernel of a fit is the first.
    assert next(iter(calls)) == "splits"
    assert ("lists" in calls) == (k > few)
    # Few features have one kernel for the nearest centre and the nearest two.
    assert ("nearest" in calls) == (d > 8)
    for call in calls.values():
        call()


def test_all_calls_are_made_in_order(monkeypatch):
    made = []

    def two(*given):
        return {name: partial(made.append, (name, *given)) for name in ("first", "second")}

    monkeypatch.setattr(parallel_compile, "calls_in_reverse", two)
    monkeypatch.setattr(parallel_compile, "_end_with_parent", lambda: None)
    parallel_compile.main("float32", "8", "3")
    assert made == [("first", "float32", 8, 3), ("second", "float32", 8, 3)]


def test_the_process_ends_when_the_pipe_is_closed(monkeypatch):
    ended = []
    monkeypatch.setattr(
        parallel_compile.sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b""))
    )
    monkeypatch.setattr(parallel_compile.os, "_exit", ended.append)
    parallel_compile._end_with_parent()
    assert ended == [0]
