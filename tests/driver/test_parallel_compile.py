"""The process that compiles ahead: when it is started, and that it never outlives a fit."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import dask.config
import numba
import numpy as np
import pytest
from numba.core import event
from scipy.sparse import csr_matrix

import largek_dask as lk
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.driver import compile_watch, fit
from largek_dask.driver.compile_watch import COMMAND, FIRST, compiles_in_parallel, is_worth_it
from largek_dask.kernels import code_cache
from largek_dask.kernels.code_cache import cache_folder


@pytest.fixture(autouse=True)
def compiled_by_two(compiled_here, monkeypatch):
    monkeypatch.setattr(fit, "is_worth_it", is_worth_it)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty kernel cache, two cores, and compiling."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    monkeypatch.setattr(compile_watch, "available_cpus", lambda: 2)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "cache")}):
        yield cache_folder()


@pytest.fixture
def started(monkeypatch):
    """Processes that were started, which would not end by themselves; there is one kernel."""
    monkeypatch.setattr(compile_watch, "is_cache_empty", lambda: False)
    processes = []
    real = subprocess.Popen

    def start(command, **options):
        assert command[1:4] == ["-P", "-c", COMMAND]
        waiting = "import sys; sys.stdin.buffer.read()"
        processes.append(real([sys.executable, "-c", waiting], **options))
        return processes[-1]

    monkeypatch.setattr(compile_watch.subprocess, "Popen", start)
    return processes


def rows(dtype="float32"):
    return lk.open_rows(np.ones((5, 2), dtype))


def compile_functions(count):
    """Have kernels compiled here, as numba reports it."""
    dispatcher = SimpleNamespace(is_largek_kernel=True)
    for _ in range(count):
        with event.trigger_event("numba:compile", {"dispatcher": dispatcher}):
            pass


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
    monkeypatch.setattr(compile_watch, "available_cpus", lambda: 1)
    assert not is_worth_it(rows(), algorithm, None)


def test_it_is_started_at_once_when_the_cache_is_empty(tmp_path, started, monkeypatch):
    monkeypatch.setattr(compile_watch, "is_cache_empty", code_cache.is_cache_empty)
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "cache")}):
        with compiles_in_parallel(np.dtype("float32"), 2, 3):
            assert len(started) == 1
            compile_functions(FIRST)
        assert len(started) == 1
        assert started[0].returncode is not None
        cache_folder().mkdir(parents=True)
        (cache_folder() / "a.bin").touch()
        with compiles_in_parallel(np.dtype("float32"), 2, 3):
            assert len(started) == 1, "something is there"


def test_it_ends_with_the_block(started):
    def interrupt():
        compile_functions(FIRST)
        assert started[0].poll() is None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), compiles_in_parallel(np.dtype("float32"), 2, 3):
        interrupt()
    assert started[0].returncode is not None
    assert started[0].stdin.closed


def test_a_fit_goes_on_where_there_is_no_process(monkeypatch):
    def refuse(*given, **options):
        raise BlockingIOError("no more of it")

    monkeypatch.setattr(compile_watch.subprocess, "Popen", refuse)
    with compiles_in_parallel(np.dtype("float32"), 2, 3):
        compile_functions(FIRST + 1)


def test_a_fit_has_it_while_it_searches(started, monkeypatch):
    monkeypatch.setattr(compile_watch, "available_cpus", lambda: 2)
    running = []

    def told(*given):
        if not started:
            compile_functions(FIRST)
        running.append(started[0].poll() is None)

    x = np.random.default_rng(0).random((300, 2), dtype=np.float32)
    lk.KMeans(3, algorithm=lk.Truncated(), random_state=0, callbacks=[told]).fit(x)
    assert any(running)
    assert len(started) == 1
    assert started[0].returncode is not None


def test_it_ends_when_the_other_process_does():
    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(
        [*command, "float32", "8", "300"], stdin=subprocess.DEVNULL, check=False, timeout=300
    )
    assert done.returncode == 0
