"""Count compilations, time them, and refuse them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask.config
import numba
import pytest
from numba.core import event

from largek_dask.kernels import compiling
from largek_dask.kernels.compiling import (
    Compiled,
    checked_by,
    compiled,
    is_compiling,
    seconds_ahead,
)
from largek_dask.kernels.jit import njit

with_compiler = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that tests set."""
    seconds = [100.0]
    monkeypatch.setattr(compiling, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    return seconds


def compiling_one(ours: bool = True) -> Any:
    """The events of numba when it compiles a function."""
    dispatcher = SimpleNamespace(is_largek_kernel=True) if ours else SimpleNamespace()
    return event.trigger_event("numba:compile", {"dispatcher": dispatcher})


def test_functions_inside_of_one_are_counted_and_their_time_once(now: list[float]) -> None:
    before = compiled()
    with compiling_one():
        now[0] += 1.0
        with compiling_one():
            now[0] += 2.0
            assert compiled().since(before) == Compiled(2, 3.0)
        assert is_compiling()
    assert not is_compiling()
    now[0] += 50.0
    found = compiled().since(before)
    assert (found, found.mean_seconds()) == (Compiled(2, 3.0), 1.5)


def test_code_of_others_does_not_count(now: list[float]) -> None:
    before = compiled()
    with compiling_one(ours=False):
        now[0] += 1.0
        assert not is_compiling()
    assert compiled().since(before) == Compiled(0, 0.0)


def test_a_check_may_refuse_a_compilation(now: list[float]) -> None:
    before = compiled()
    ahead: list[float] = []

    def refuse() -> None:
        ahead.append(seconds_ahead())
        raise TimeoutError("no time")

    with checked_by(refuse), pytest.raises(TimeoutError), compiling_one():
        raise AssertionError("it was compiled")
    assert ahead[0] > 0
    assert seconds_ahead() == 0
    assert compiled().since(before) == Compiled(0, 0.0)
    with compiling_one():
        now[0] += 1.0
    assert compiled().since(before) == Compiled(1, 1.0), "there is no check any more"


def twice(x: float) -> float:
    return 2 * x


@with_compiler
def test_a_kernel_that_is_refused_is_compiled_the_next_time(tmp_path: Any) -> None:
    """Callees compiled before are kept."""
    inner = njit(twice)
    outer = njit(lambda x: inner(x) + 1)
    asked = [0]

    def once() -> None:
        asked[0] += 1
        if asked[0] == 2:
            raise TimeoutError("no time for the inner one")

    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        before = compiled()
        with checked_by(once), pytest.raises(TimeoutError, match="no time for the inner one"):
            outer(1.0)
        assert not inner.signatures
        assert not outer.signatures
        assert not is_compiling()
        assert outer(1.0) == 3.0
        assert compiled().since(before).functions == 3, "the outer one twice, as it was begun twice"


@with_compiler
def test_loading_is_not_counted(tmp_path: Any) -> None:
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        before = compiled()
        assert njit(twice)(1.5) == 3.0
        assert compiled().since(before).functions == 1
        assert njit(twice)(1.5) == 3.0
        assert compiled().since(before).functions == 1
