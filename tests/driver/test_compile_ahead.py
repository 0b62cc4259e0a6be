"""The process that compiles ahead: when it is started, and that it never outlives a fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dask.config
import numba
import numpy as np
import pytest
from scipy.sparse import csr_matrix

import largek_dask as lk
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.driver import compile_ahead, fit
from largek_dask.driver.compile_ahead import COMMAND, FIRST, compiles_ahead, is_worth_it
from largek_dask.kernels import code_cache
from largek_dask.kernels.code_cache import cache_folder


@pytest.fixture(autouse=True)
def compiled_by_two(compiled_here, monkeypatch):
    monkeypatch.setattr(fit, "is_worth_it", is_worth_it)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty kernel cache, two cores, and compiling."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    monkeypatch.setattr(compile_ahead, "available_cpus", lambda: 2)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "cache")}):
        yield cache_folder()


@pytest.fixture
def started(monkeypatch):
    """Processes that were started, which would not end by themselves; there is one kernel."""
    monkeypatch.setattr(compile_ahead, "is_cache_empty", lambda: False)
    processes = []
    real = subprocess.Popen

    def start(command, **options):
        assert command[1:4] == ["-P", "-c", COMMAND]
        assert Path(command[4]).is_dir()
        waiting = "import sys; sys.stdin.buffer.read()"
        processes.append(real([sys.executable, "-c", waiting], **options))
        processes[-1].folder = Path(command[4])
        return processes[-1]

    monkeypatch.setattr(compile_ahead.subprocess, "Popen", start)
    return processes


def rows(dtype="float32"):
    return lk.open_rows(np.ones((5, 2), dtype))


def miss(tmp_path, *names):
    """Ask for functions that are not in the cache; which of them are to be compiled here."""
    return [code_cache.may_compile(tmp_path / name) for name in names]


def test_it_is_for_a_fit_of_dense_rows_on_two_cores(empty, monkeypatch):
    algorithm = Truncated()
    # whatever this process did before
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    assert is_worth_it(rows(), algorithm, None)
    assert is_worth_it(rows("float64"), algorithm, 2)
    assert is_worth_it(rows("int16"), algorithm, None)
    assert not is_worth_it(lk.open_rows(csr_matrix(np.eye(5))), algorithm, None)
    assert not is_worth_it(rows(), Lloyd(), None)
    assert not is_worth_it(rows(), algorithm, 1)
    # kernels of other fits
    (empty / "a.bin").touch()
    assert is_worth_it(rows(), algorithm, None)
    monkeypatch.setattr(compile_ahead, "available_cpus", lambda: 1)
    assert not is_worth_it(rows(), algorithm, None)


def test_it_is_not_for_a_folder_that_cannot_be_made(empty):
    empty.parent.parent.mkdir(parents=True, exist_ok=True)
    empty.parent.touch()
    assert not is_worth_it(rows(), Truncated(), None)


def test_nothing_is_compiled_without_numba(empty, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not is_worth_it(rows(), Truncated(), None)


def test_it_is_started_when_several_functions_are_missing(tmp_path, started):
    with compiles_ahead(np.dtype("float32"), 2, 3):
        for name in range(FIRST):
            assert not started
            assert miss(tmp_path, f"{name}.bin") == [True]
        assert len(started) == 1
        assert miss(tmp_path, "d.bin") == [True]
    assert len(started) == 1
    assert code_cache.may_compile(tmp_path / "0.bin"), "nobody is asked any more"


def test_it_is_started_at_once_when_the_cache_is_empty(tmp_path, started, monkeypatch):
    monkeypatch.setattr(compile_ahead, "is_cache_empty", code_cache.is_cache_empty)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "cache")}):
        with compiles_ahead(np.dtype("float32"), 2, 3):
            assert len(started) == 1
            assert miss(tmp_path, *"abcd") == [True] * 4
        assert len(started) == 1
        assert started[0].returncode is not None
        assert not started[0].folder.exists()
        cache_folder().mkdir(parents=True)
        (cache_folder() / "a.bin").touch()
        with compiles_ahead(np.dtype("float32"), 2, 3):
            assert len(started) == 1, "something is there"


def test_it_ends_with_the_block(tmp_path, started):
    def interrupt():
        miss(tmp_path, "a", "b", "c")
        assert started[0].poll() is None
        assert sorted(path.name for path in started[0].folder.iterdir()) == ["a", "b", "c"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), compiles_ahead(np.dtype("float32"), 2, 3):
        interrupt()
    assert started[0].returncode is not None
    assert started[0].stdin.closed
    assert not started[0].folder.exists()


def test_what_it_has_begun_is_waited_for_while_it_lives(tmp_path, started, monkeypatch):
    asked = []
    monkeypatch.setattr(compile_ahead.Claims, "_comes", lambda claims, path: asked.append(path))
    with compiles_ahead(np.dtype("float32"), 2, 3):
        miss(tmp_path, "a", "b", "c")
        (started[0].folder / "d").touch()
        assert miss(tmp_path, "d") == [True]
    assert asked == [tmp_path / "d"]


def test_what_it_had_begun_when_it_was_killed_is_compiled(tmp_path, started):
    with compiles_ahead(np.dtype("float32"), 2, 3):
        miss(tmp_path, "a", "b", "c")
        (started[0].folder / "d").touch()
        started[0].kill()
        started[0].wait()
        assert miss(tmp_path, "d") == [True]


def test_fits_at_the_same_time_may_end_in_any_order(tmp_path, started):
    first, second = (compiles_ahead(np.dtype("float32"), 2, k) for k in (3, 4))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    miss(tmp_path, "a", "b", "c")
    assert len(started) == 1, "the second still has its help"
    second.__exit__(None, None, None)
    assert started[0].returncode is not None
    assert miss(tmp_path, "d", "e", "f", "g") == [True] * 4
    assert len(started) == 1, "nobody is asked for fits that have ended"


def test_for_a_fit_that_has_ended_none_is_started(tmp_path, started):
    """Another thread may be about to compile while it ends."""
    other = compile_ahead._Other(["float32", "2", "3"])
    assert other.may_compile(tmp_path / "a")
    other.end()
    assert [other.may_compile(tmp_path / name) for name in "bcd"] == [True] * 3
    assert started == []


@pytest.mark.parametrize("what", ["subprocess.Popen", "tempfile.TemporaryDirectory"])
def test_a_fit_goes_on_where_there_is_no_process_or_no_room(tmp_path, monkeypatch, what):
    def refuse(*given, **options):
        raise BlockingIOError("no more of it")

    monkeypatch.setattr(compile_ahead.subprocess, "Popen", refuse)
    monkeypatch.setattr(f"largek_dask.driver.compile_ahead.{what}", refuse)
    with compiles_ahead(np.dtype("float32"), 2, 3):
        assert miss(tmp_path, "a", "b", "c", "d") == [True] * 4


def test_a_fit_has_it_while_it_searches(tmp_path, started, monkeypatch):
    monkeypatch.setattr(compile_ahead, "available_cpus", lambda: 2)
    running = []

    def told(*given):
        if not started:
            miss(tmp_path, "a", "b", "c")
        running.append(started[0].poll() is None)

    x = np.random.default_rng(0).random((300, 2), dtype=np.float32)
    lk.KMeans(3, algorithm=lk.Truncated(), random_state=0, callbacks=[told]).fit(x)
    assert any(running)
    assert len(started) == 1
    assert started[0].returncode is not None


def test_it_ends_when_the_other_process_does(tmp_path):
    command = [sys.executable, "-c", COMMAND, str(tmp_path)]
    done = subprocess.run(
        [*command, "float32", "8", "300"], stdin=subprocess.DEVNULL, check=False, timeout=300
    )
    assert done.returncode == 0
