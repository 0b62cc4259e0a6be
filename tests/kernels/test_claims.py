"""Two processes that compile for one fit: neither begins what the other has begun."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import dask.config
import numba
import pytest

from largek_dask.kernels import claims
from largek_dask.kernels.claims import Claims
from largek_dask.kernels.code_cache import asks_whether_to_compile
from largek_dask.kernels.compiling import asked_before, compiled
from largek_dask.kernels.jit import njit


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Where the code of a function is to be kept."""
    return tmp_path / "kernel.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where two processes say what they begin."""
    path = tmp_path / "claims"
    path.mkdir()
    return path


def alive() -> bool:
    return True


def test_one_of_two_compiles_and_the_other_waits_for_it(folder: Path, made: Path) -> None:
    first, second = Claims(folder, alive), Claims(folder, alive)
    assert first.take(made)
    assert first.take(made), "begun again by the one that has begun it"
    asked = []

    def ask() -> None:
        asked.append(compiled().at_it)
        if len(asked) == 2:
            made.touch()

    before = compiled()
    with asked_before(ask):
        assert not second.take(made)
    assert asked == [True, True], "it waits, and that counts as compiling"
    found = compiled().since(before)
    assert (found.functions, found.at_it) == (0, False)
    assert found.seconds > 0
    assert not second.take(made), "it is there"


def test_whoever_waits_may_be_stopped(folder: Path, made: Path) -> None:
    assert Claims(folder, alive).take(made)

    def refuse() -> None:
        raise TimeoutError("no time")

    with asked_before(refuse), pytest.raises(TimeoutError, match="no time"):
        Claims(folder, alive).take(made)
    assert not compiled().at_it


def test_what_a_dead_process_had_begun_is_compiled(folder: Path, made: Path) -> None:
    assert Claims(folder, alive).take(made)
    assert Claims(folder, lambda: False).take(made)


def test_nothing_is_waited_for_for_ever(
    folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "PATIENCE", 0.0)
    assert Claims(folder, alive).take(made)
    assert Claims(folder, alive).take(made)


def test_whoever_did_not_come_once_is_not_waited_for_again(
    folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stopped, or have no room to keep what it makes: each wait would be in vain."""
    monkeypatch.setattr(claims, "PATIENCE", 0.01)
    first, second = Claims(folder, alive), Claims(folder, alive)
    other = made.with_name("other.bin")
    assert first.take(made)
    assert first.take(other)
    assert second.take(made), "in vain"
    asked: list[int] = []
    with asked_before(lambda: asked.append(1)):
        assert second.take(other)
    assert asked == [], "at once"


def test_without_the_folder_everything_is_compiled(tmp_path: Path, made: Path) -> None:
    assert Claims(tmp_path / "gone", alive).take(made)


def twice(x: float) -> float:
    return 2 * x


def misses(kernel: Any) -> int:
    return sum(kernel.stats.cache_misses.values())


def test_a_kernel_that_is_made_elsewhere_is_loaded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path)}):
        other = Claims(folder, alive)
        mine = Claims(folder, alive)
        began, asked = threading.Event(), []

        def begins(path: Path) -> bool:
            asked.append(path.name)
            return mine.take(path)

        # What the other process has begun: its kernel is there when this one has waited.
        def waits(path: Path) -> bool:
            assert other.take(path)
            with asks_whether_to_compile(alive_path):
                njit(twice)(1.0)
            began.set()
            return begins(path)

        with asks_whether_to_compile(waits):
            kernel = njit(twice)
            assert kernel(1.5) == 3.0
        assert began.is_set()
        assert len(asked) == 1
        assert misses(kernel) == 0
        # Nobody is asked afterwards, nor for what is there.
        assert njit(lambda x: x + 1)(1.0) == 2.0
        with asks_whether_to_compile(begins):
            assert njit(twice)(1.5) == 3.0
        assert len(asked) == 1


def alive_path(path: Path) -> bool:
    return True
