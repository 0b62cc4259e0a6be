"""The process that compiles ahead: when it is started, and that it never outlives a fit."""

from __future__ import annotations

import os
import subprocess
import sys

import dask.config
import numba
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.truncated.algorithm import Truncated
from largek_dask.driver import compile_ahead, fit
from largek_dask.driver.compile_ahead import compiles_ahead, is_worth_it
from largek_dask.kernels.jit import cache_folder


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty kernel cache, two cores, and compiling."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 0)
    monkeypatch.setattr(compile_ahead, "available_cpus", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.9, 3.0, 3.0))
    with dask.config.set({"largek.kernels.cache-dir": str(tmp_path / "cache")}):
        yield cache_folder()


@pytest.fixture
def started(monkeypatch):
    """Processes that were started, which would not end by themselves."""
    processes = []
    real = subprocess.Popen

    def start(command, **options):
        assert command[1:4] == ["-P", "-m", "largek_dask.driver.compile_ahead"]
        waiting = "import sys; sys.stdin.buffer.read()"
        processes.append(real([sys.executable, "-c", waiting], **options))
        return processes[-1]

    monkeypatch.setattr(compile_ahead.subprocess, "Popen", start)
    return processes


def rows(dtype="float32"):
    return lk.open_rows(np.ones((5, 2), dtype))


def test_it_is_for_a_first_fit_on_two_cores(empty, monkeypatch):
    algorithm = Truncated()
    assert is_worth_it(rows(), algorithm, None)
    assert is_worth_it(rows("float64"), algorithm, 2)
    assert not is_worth_it(rows("int16"), algorithm, None)
    assert not is_worth_it(rows(), Lloyd(), None)
    assert not is_worth_it(rows(), algorithm, 1)
    (empty / "a.bin").touch()
    assert not is_worth_it(rows(), algorithm, None)
    (empty / "a.bin").unlink()
    assert is_worth_it(rows(), algorithm, None)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.1, 0.0, 0.0))
    assert not is_worth_it(rows(), algorithm, None)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(compile_ahead, "available_cpus", lambda: 1)
    assert not is_worth_it(rows(), algorithm, None)


def test_it_is_not_for_a_folder_that_cannot_be_made(empty):
    empty.parent.parent.mkdir(parents=True, exist_ok=True)
    empty.parent.touch()
    assert not is_worth_it(rows(), Truncated(), None)


def test_nothing_is_compiled_without_numba(empty, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not is_worth_it(rows(), Truncated(), None)


def test_it_ends_with_the_block(empty, started):
    def interrupt():
        assert started[0].poll() is None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), compiles_ahead(np.dtype("float32"), 2, 3):
        interrupt()
    assert started[0].returncode is not None
    assert started[0].stdin.closed


def test_a_fit_goes_on_where_no_process_can_be_started(empty, monkeypatch):
    def refuse(command, **options):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(compile_ahead.subprocess, "Popen", refuse)
    with compiles_ahead(np.dtype("float32"), 2, 3):
        went_on = True
    assert went_on


def test_a_fit_has_it_while_it_searches(started, monkeypatch):
    monkeypatch.setattr(fit, "is_worth_it", lambda *given: True)
    running = []

    def told(*given):
        running.append(started[0].poll() is None)

    x = np.random.default_rng(0).random((300, 2), dtype=np.float32)
    lk.KMeans(3, algorithm=lk.Truncated(), random_state=0, callbacks=[told]).fit(x)
    assert any(running)
    assert len(started) == 1
    assert started[0].returncode is not None


def test_it_ends_when_the_other_process_does():
    command = [sys.executable, "-m", "largek_dask.driver.compile_ahead", "float32", "8", "300"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=300)
    assert done.returncode == 0
