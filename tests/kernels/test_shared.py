"""Parts of compiled functions that threads share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import get_context

import numba
import numpy as np
import pytest

from largek_dask.kernels import threads
from largek_dask.kernels.atomics import load, pause, store
from largek_dask.kernels.threads import Threads, on_threads, shared, split
from tests.helpers.checks import eventually

COMPILED = not numba.config.DISABLE_JIT
compiled = pytest.mark.skipif(not COMPILED, reason="threads share only compiled functions")


@shared
def write_squares(part, thread, step, values, out, by):
    for i in range(part * step, min((part + 1) * step, values.size)):
        out[i] += values[i] * values[i]
        by[part] = thread


@shared
def meet(part, thread, words, patience):
    """Wait for the other part."""
    store(words, 8 * part, 1)
    for _ in range(patience):
        if load(words, 8 * (1 - part)) == 1:
            store(words, 8 * part + 1, thread + 1)
            return
        pause()


@shared
def hold(part, thread, words):
    """Wait until the test ends the call."""
    store(words, 8, 1)
    while load(words, 0) == 0:
        pause()


@shared
def busy(part, thread, values, repetitions, done):
    for _ in range(repetitions):
        for i in range(values.size):
            values[i] = values[i] * 0.5 + 1
    done[part] = 1


def squares(n_threads, n=10_000, step=None):
    values, out = np.arange(float(n)), np.zeros(n)
    step, n_parts = split(n_threads, n, 1) if step is None else (step, -(-n // step))
    by = np.full(n_parts, -1)
    write_squares(n_threads, n_parts, step, values, out, by)
    np.testing.assert_array_equal(out, values * values)
    assert (by >= 0).all()
    assert (by < max(1, n_threads)).all()
    return by


def meets(n_threads=2, patience=2 * 10**9):
    words = np.zeros(16, np.int64)
    meet(n_threads, 2, words, patience)
    return sorted(words[1::8].tolist())


@pytest.mark.parametrize("n", [0, 1, 5, 50_000])
def test_every_part_is_computed_once(n):
    for n_threads in (1, 2, 3, 50):
        squares(n_threads, n)


def test_every_part_is_computed_once_in_thousands_of_calls(monkeypatch):
    monkeypatch.setattr(threads, "_shares", True)
    for i in range(2_000 if COMPILED else 50):
        squares(2 + i % 3, 200, step=7)


@compiled
def test_threads_that_compete_for_tiny_parts_compute_none_twice():
    for _ in range(20):
        eventually(lambda: set(squares(2, 200_000, step=1)) == {0, 1}, "both threads to take part")


@compiled
def test_threads_compute_parts_at_the_same_time():
    assert meets() == [1, 2]
    group = threads._team()
    eventually(lambda: len(group.sleeping) == group.size, "all threads to sleep")
    assert meets() == [1, 2]


@compiled
def test_a_call_while_another_is_open_or_inside_another_uses_one_thread():
    words = np.zeros(16, np.int64)
    other = threading.Thread(target=lambda: hold(2, 2, words))
    other.start()
    try:
        eventually(lambda: words[8] == 1, "the other call")
        assert set(squares(2, 200_000)) == {0}
        assert other.is_alive(), "the other call is still open"
    finally:
        words[0] = 1
    other.join(60)
    for by in on_threads(2, lambda item: squares(2), range(4)):
        assert set(by) == {0}
    assert meets() == [1, 2]


@compiled
def test_the_check_cancels_the_parts_that_have_not_begun():
    asked, values, done = [], np.ones(1_000), np.zeros(1_000, np.int64)

    def check():
        asked.append(1)
        if len(asked) > 3:
            raise InterruptedError("stop")

    for n_threads in (1, 2):
        asked.clear()
        done[:] = 0
        with pytest.raises(InterruptedError, match="stop"):
            busy(Threads(n_threads, check), 1_000, values, 2_000, done)
        n_done = done.sum()
        assert 0 < n_done < 1_000
        time.sleep(0.05)
        assert done.sum() == n_done, "no thread still works"
    assert meets() == [1, 2]


def test_without_helpers_the_caller_computes_everything(monkeypatch):
    class Idle(threading.Thread):
        def start(self):
            pass

    monkeypatch.setattr(threads, "_teams", {})
    monkeypatch.setattr(threads, "_shares", True)
    monkeypatch.setattr(threading, "Thread", Idle)
    assert set(squares(3, 200_000)) == {0}
    monkeypatch.setattr(threads, "_here", threading.local())

    class Failing(threading.Thread):
        def start(self):
            raise RuntimeError("no more threads")

    monkeypatch.setattr(threads, "_teams", {})
    monkeypatch.setattr(threading, "Thread", Failing)
    with pytest.raises(RuntimeError, match="no more threads"):
        squares(3, 200_000)
    monkeypatch.undo()
    squares(3, 200_000)


def in_child(answers):
    answers.put((meets(), on_threads(2, abs, [-1, -2])))


@compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    assert meets() == [1, 2]
    context = get_context("fork")
    answers = context.Queue()
    child = context.Process(target=in_child, args=(answers,))
    child.start()
    assert answers.get(timeout=120) == ([1, 2], [1, 2])
    child.join(60)
    assert meets() == [1, 2]


INTERRUPTED = """
import numpy as np
from largek_dask.kernels.threads import Threads
from tests.kernels.test_shared import busy, meets
values, done, told = np.ones(1000), np.zeros(10**6, np.int64), []

def tell():
    if done.any() and not told:
        told.append(1)
        print("begun", flush=True)

try:
    busy(Threads(2, tell), 10**6, values, 2000, done)
except KeyboardInterrupt:
    print("interrupted", 0 < done.sum() < 10**6, meets(), flush=True)
"""


@compiled
def test_a_keyboard_interrupt_ends_a_call():
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted True [1, 2]\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_split_gives_each_thread_several_parts_of_enough_values():
    for n_threads in (1, 2, 16):
        for n, values in ((0, 5), (10, 1), (100_000, 64), (7, 10**6)):
            step, n_parts = split(n_threads, n, values)
            assert (n_parts - 1) * step < max(n, 1) <= max(n_parts * step, 1)
    assert split(1, 100_000, 64)[1] == 1
    assert split(4, 100_000, 64)[1] > 4
    assert split(4, 10, 1)[1] == 1
