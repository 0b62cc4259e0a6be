"""Stops within steps: Ctrl-C, cancels, time limits, errors of threads, and forks after a fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask.config
import numba
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.starts.samples import two_level_start
from largek_dask.data.sources import open_rows
from largek_dask.driver.run import Clock
from largek_dask.kernels import arguments, distances, threads
from largek_dask.kernels.arguments import LONG_WORK
from largek_dask.kernels.blocks import rows_at, sparse_rows
from largek_dask.kernels.bounds import neighbours
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.compiling import checked_by
from largek_dask.kernels.dense.splits import split_clusters
from largek_dask.kernels.distances import nearest_two, pack_centers, scores
from largek_dask.kernels.projection import Directions, project
from largek_dask.passes.prefetch import ChunkSource
from tests.helpers.checks import fit_asked

ROWS, STRETCH = 2_048, 64
X = np.random.default_rng(0).normal(size=(ROWS, 10)).astype(np.float32)

compiled_only = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="plain kernels are too slow")


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("way", ["Ctrl-C", "cancel", "time limit"])
def test_a_stop_is_answered_between_two_stretches_of_a_chunk(
    way: str, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "LONG_WORK", 1)
    monkeypatch.setattr(arguments, "_LEAST_ROWS", STRETCH)
    run, lock, steps = distances._run, threading.Lock(), list[Any]()
    done, asked, at_stop = [0], [0], list[int]()
    me, stopped, stop_source = threading.main_thread(), threading.Event(), ChunkSource.stop

    def counted(*given: Any) -> Any:
        with lock:
            done[0] += 1
            if len(steps) == 1 and not asked[0]:
                asked[0] = done[0]
                if way == "Ctrl-C":
                    signal.pthread_kill(me.ident or 0, signal.SIGINT)
        if asked[0] and way == "Ctrl-C" and threading.current_thread() is not me:
            stopped.wait(60)
        return run(*given)

    def stop(source: ChunkSource) -> None:
        stop_source(source)
        if asked[0]:
            stopped.set()

    def event(about: Any) -> None:
        if about["event"] == "stopped":
            at_stop.append(done[0])

    monkeypatch.setattr(distances, "_run", counted)
    monkeypatch.setattr(ChunkSource, "stop", stop)
    is_over = lambda: bool(asked[0])  # noqa: E731
    if way == "time limit":
        monkeypatch.setattr(Clock, "seconds", lambda self: 100.0 * is_over())
    with dask.config.set({"largek.data.memory-chunk-bytes": X.nbytes // n_threads}):
        rows = open_rows(X)
        result = fit_asked(
            rows, algorithm="lloyd", n_clusters=10, init="random", seed=0, tol=0, max_iter=5,
            n_threads=n_threads, callbacks=[steps.append], events=[event], labels=False,
            **({"max_time": 50} if way == "time limit" else {}),
            **({"cancelled": is_over} if way == "cancel" else {}),
        )  # fmt: skip
    assert rows.n_chunks == n_threads
    reasons = {"Ctrl-C": "interrupted", "cancel": "cancelled", "time limit": "max_time"}
    assert result.stop_reason.startswith(reasons[way])
    assert result.n_iter == 1
    # Each thread may finish the stretch that it has begun; a whole step has 32 stretches.
    assert ROWS // STRETCH == 32
    assert at_stop[0] - asked[0] <= n_threads + (way == "Ctrl-C")


PROCESS = """
import json, sys
import numpy as np
import zarr
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import fit
from largek_dask.driver.options import FitOptions

n, d, k = map(int, sys.argv[2:])
x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
zarr.create_array(sys.argv[1], shape=x.shape, chunks=(n // 2, d), dtype=x.dtype)[:] = x
rows = open_rows(sys.argv[1])
assert rows.n_chunks == 2

def tell(event):
    if event["event"] in ("step", "stopped"):
        print(json.dumps(event), flush=True)

options = FitOptions(n_clusters=k, algorithm="lloyd", init="random", max_iter=9, tol=0)
fit(rows, options, n_threads=2, events=[tell])
"""


@pytest.mark.slow
@compiled_only
def test_ctrl_c_in_a_process_interrupts_a_step_and_then_the_last_pass(tmp_path: Path) -> None:
    n, d, k = 600_000, 32, 4_000  # too few features and clusters for pruned searches
    assert n * d * k >= 2 * 16 * LONG_WORK, "a step is many stretches of one chunk per thread"
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, *map(str, (tmp_path / "x.zarr", n, d, k))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        json.loads(process.stdout.readline())  # compiles
        step = json.loads(process.stdout.readline())
        seconds = step["seconds"]["total"]
        time.sleep(seconds / 8)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        stopped = json.loads(process.stdout.readline())
        answered = time.monotonic() - begun
        assert (stopped["event"], stopped["reason"]) == ("stopped", "interrupted")
        assert stopped["n_iter"] == 2
        assert answered < seconds / 2, f"a step took {seconds} s"
        # The last pass labels all rows; another Ctrl-C ends it too.
        time.sleep(seconds / 8)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=300)[1]
        assert "KeyboardInterrupt" in errors
        assert process.returncode != 0
    finally:
        process.kill()
        process.wait()


# --- work that is no pass over rows


def of_neighbours() -> object:
    return nearest_centers(pack_centers(X, X[0]), 9, 2)


def of_start() -> object:
    return two_level_start(X, None, 100, X[0], 2)


def of_splits() -> object:
    labels = np.arange(ROWS, dtype=np.int32) % 100
    order, starts = order_by_label(labels, 100)
    return split_clusters(X, order, starts, np.arange(100), X[:100], None, 64, 2)


def of_projection() -> object:
    return project(X, Directions.of(np.eye(10)[:3], X[0]), 2)


def of_copy() -> object:
    return rows_at(X, np.arange(ROWS), 2)


@pytest.mark.parametrize("work", [of_neighbours, of_start, of_splits, of_projection, of_copy])
def test_work_between_passes_is_stopped_between_parts(
    work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LONG_SLICE", 10 * STRETCH)
    expected, asked = work(), [0]

    def check() -> None:
        asked[0] += 1
        if asked[0] > most:
            raise InterruptedError

    most = 10**9
    with checked_by(check):
        np.testing.assert_equal(work(), expected)
    in_all, asked[0], most = asked[0], 0, 2
    assert in_all >= 4
    with checked_by(check), pytest.raises(InterruptedError):
        work()
    assert asked[0] <= most + 2, "each of two threads asks once more"


@pytest.mark.parametrize("rows", [X, X.astype(np.float16), sparse_rows(X)])
@pytest.mark.parametrize("k", [1, 40])
def test_stretches_do_not_change_what_is_found(
    rows: Any, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, n_checks = pack_centers(X[:k], X[0]), [0]
    expected = nearest_two(rows, packed), scores(X, packed)
    monkeypatch.setattr(arguments, "LONG_WORK", 1)
    monkeypatch.setattr(arguments, "_LEAST_ROWS", STRETCH - 1)
    with checked_by(lambda: n_checks.__setitem__(0, n_checks[0] + 1)):
        found = nearest_two(rows, packed), scores(X, packed)
    assert n_checks[0] >= ROWS // STRETCH
    np.testing.assert_equal(found, expected)


# --- errors and forks


@compiled_only
def test_an_error_in_a_thread_reaches_the_caller_and_the_next_fit_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.random.default_rng(1).normal(size=(6_000, 6)).astype(np.float32)
    km = lk.KMeans(140, random_state=0, n_threads=2, max_iter=4)
    expected, compare, failed = km.fit(x).model_.digest(), neighbours._compare, list[str]()

    def fail(*block: Any) -> None:
        if failed:
            return compare(*block)
        failed.append(threading.current_thread().name)
        raise MemoryError("of one part")

    monkeypatch.setattr(neighbours, "_compare", fail)
    with pytest.raises(MemoryError, match="of one part"):
        km.fit(x)
    assert len(failed) == 1
    assert km.fit(x).model_.digest() == expected


FORKS = """
import multiprocessing, os, sys, threading
import numpy as np
import zarr
import largek_dask as lk

x = np.random.default_rng(0).normal(size=(9_000, 8)).astype(np.float32)

def digests():
    made = []
    for algorithm, source in (("auto", x), ("lloyd", sys.argv[1])):
        km = lk.KMeans(140, algorithm=algorithm, random_state=0, n_threads=2, max_iter=4)
        made.append(km.fit(source).model_.digest())
    names = {thread.name for thread in threading.enumerate()}
    return made, "largek-kernels" in names

if __name__ == "__main__":
    zarr.create_array(sys.argv[1], shape=x.shape, chunks=(1_500, 8), dtype=x.dtype)[:] = x
    first = digests()
    assert first[1], "there were threads"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if digests() == first else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(digests) == first
    assert digests() == first
"""


@compiled_only
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_forked_after_a_fit_fits_with_the_same_bits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "x.zarr")],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
