"""Parts of compiled functions that threads share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from multiprocessing import get_context

import numba
import numpy as np
import pytest

from largek_dask.kernels import team, threads
from largek_dask.kernels.atomics import DATA_BYTES, load, pause, store
from largek_dask.kernels.threads import Threads, on_threads, shared, split
from tests.helpers.checks import eventually

COMPILED = not numba.config.DISABLE_JIT
TINY = 200_000 if COMPILED else 5_000


@pytest.fixture(autouse=True)
def sharing(monkeypatch):
    """Without a compiler, threads share plain functions in these tests, one at a time."""
    monkeypatch.setattr(threads, "_shares", True)


def add_squares(part, thread, step, values, out, by):
    for i in range(part * step, min((part + 1) * step, values.size)):
        out[i] += values[i] * values[i]
        by[part] = thread


write_squares = shared(add_squares)


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
def outlast(part, thread, words):
    """Keep the other thread in the call until the caller waits for it."""
    if thread == 0:
        while load(words, 8) == 0:
            pause()
    else:
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


def test_every_part_is_computed_once_in_thousands_of_calls():
    for i in range(2_000 if COMPILED else 50):
        squares(2 + i % 3, 200, step=7)


def test_threads_that_compete_for_tiny_parts_compute_none_twice():
    for _ in range(20 if COMPILED else 2):
        eventually(lambda: set(squares(2, TINY, step=1)) == {0, 1}, "both threads to take part")


def test_threads_compute_parts_at_the_same_time():
    assert meets() == [1, 2]
    group = threads._team()
    eventually(lambda: len(group.sleeping) == group.size, "all threads to sleep")
    assert meets() == [1, 2]


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


def test_the_check_cancels_the_parts_that_have_not_begun():
    asked, done = [], np.zeros(1_000, np.int64)
    values = np.ones(1_000 if COMPILED else 1)

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
from tests.kernels.test_shared import COMPILED, busy, meets, threads
threads._shares = True
values, done, told = np.ones(1000 if COMPILED else 1), np.zeros(10**6, np.int64), []

def tell():
    if done.any() and not told:
        told.append(1)
        print("begun", flush=True)

try:
    busy(Threads(2, tell), 10**6, values, 2000, done)
except KeyboardInterrupt:
    print("interrupted", 0 < done.sum() < 10**6, meets(), flush=True)
"""


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


def test_the_caller_waits_for_other_threads_even_after_a_keyboard_interrupt(monkeypatch):
    words, slept = np.zeros(16, np.int64), []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 1:
            raise KeyboardInterrupt
        words[0] = 1

    with monkeypatch.context() as patched:
        patched.setattr(threads.time, "sleep", sleep)
        with pytest.raises(KeyboardInterrupt):
            outlast(2, 2, words)
    assert len(slept) > 1
    assert words[0] == words[8] == 1
    assert meets() == [1, 2]


class Told(deque):
    """Sleeping threads, of which the first is told of work when it has said that it sleeps."""

    def __init__(self, tell):
        self.tell, self.told = tell, threading.Event()

    def append(self, lock):
        super().append(lock)
        if not self.told.is_set():
            self.tell(self)
            self.told.set()


@pytest.mark.parametrize("is_awake", [False, True], ids=["not woken", "already woken"])
def test_a_thread_about_to_sleep_notices_new_work(monkeypatch, is_awake):
    monkeypatch.setattr(threads, "_teams", {})
    group, done = threads._team(), threading.Event()

    def tell(sleeping):
        group.calls.append(done.set)
        group.control[team.CALLS] = -1
        if is_awake:
            sleeping.pop().release()

    group.sleeping = Told(tell)
    group.wake(1)
    assert group.sleeping.told.wait(60)
    assert done.wait(60)
    assert meets() == [1, 2]


def test_a_call_ends_when_those_that_joined_have_finished():
    control = np.zeros(team.WORDS, np.int64)
    data = np.empty(DATA_BYTES, np.uint8)
    values, out, by = np.ones(4), np.zeros(4), np.full(4, -1)
    begin = team.opening(add_squares)
    begin(control, data.ctypes.data, 4, 1, 1, values, out, by)
    control[team.STATE] += 1  # a thread joins
    assert not team.may_join(control, 0), "no more threads may join"
    assert team.serve(control, 0, 0, 10) == 0
    assert team.work(control, team.UNLIMITED, 0)
    assert not team.end(control, 10)
    control[team.LEFT] += 1
    assert team.end(control, 10)
    assert out.tolist() == [1] * 4
    assert by.tolist() == [0] * 4


def test_a_thread_joins_each_call_once_until_it_has_something_else_to_do():
    control = np.zeros(team.WORDS, np.int64)
    data = np.empty(DATA_BYTES, np.uint8)
    values, out, by = np.ones(4), np.zeros(4), np.full(4, -1)
    begin = team.opening(add_squares)
    for call in (1, 2):
        begin(control, data.ctypes.data, 4, 1, 1, values, out, by)
        assert team.may_join(control, call - 1)
        assert team.serve(control, call - 1, 0, 10) == call
        assert not team.may_join(control, call)
        assert team.end(control, 10)
        assert out.tolist() == [call] * 4
        assert by.tolist() == [1] * 4
    control[team.CALLS] = 1
    assert team.serve(control, 2, 0, 10**15) == 2, "returns at once"


def test_split_gives_each_thread_several_parts_of_enough_values():
    for n_threads in (1, 2, 16):
        for n, values in ((0, 5), (10, 1), (100_000, 64), (7, 10**6)):
            step, n_parts = split(n_threads, n, values)
            assert (n_parts - 1) * step < max(n, 1) <= max(n_parts * step, 1)
    assert split(1, 100_000, 64)[1] == 1
    assert split(4, 100_000, 64)[1] > 4
    assert split(4, 10, 1)[1] == 1
