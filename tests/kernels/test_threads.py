"""Run functions on several threads."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from itertools import count

import numpy as np
import pytest

from largek_dask.kernels import threads
from largek_dask.kernels.compiling import check_now, checked_by
from largek_dask.kernels.threads import Threads, on_threads
from tests.helpers.checks import eventually


def test_threads_keep_the_order_and_work_at_the_same_time():
    barrier = threading.Barrier(3, timeout=60)

    def meet(item):
        barrier.wait()
        return item * item

    assert on_threads(3, meet, range(6)) == [0, 1, 4, 9, 16, 25]
    assert on_threads(1, threading.Thread.is_alive, [threading.current_thread()]) == [True]
    assert on_threads(4, abs, []) == []
    with pytest.raises(ZeroDivisionError):
        on_threads(2, lambda item: 1 // item, [1, 0, 1])


def test_the_caller_works_too_and_does_not_wait_for_threads_that_have_not_begun():
    barrier, me = threading.Barrier(2, timeout=60), threading.current_thread()

    def meet(item):
        barrier.wait()
        return threading.current_thread()

    took_part = on_threads(2, meet, range(4))
    assert len(set(took_part)) == 2
    assert me in took_part

    # Occupy all threads of this process, from another thread.
    n = 1 + threads._team().size
    busy, end = threading.Barrier(n + 1, timeout=60), threading.Event()

    def occupy(item):
        busy.wait()
        assert end.wait(60)

    other = threading.Thread(target=on_threads, args=(n, occupy, range(n)))
    other.start()
    busy.wait()
    try:
        assert on_threads(n, lambda item: threading.current_thread(), range(4)) == 4 * [me]
        assert other.is_alive()
    finally:
        end.set()
    other.join(60)


def test_nested_calls_run_on_one_thread():
    both = threading.Barrier(3, timeout=60)

    def inner(item):
        time.sleep(0.01)  # enough for another thread to take an item
        return threading.current_thread()

    def outer(item):
        both.wait()
        # Threads of another pool would be free.
        return threading.current_thread(), set(on_threads(2, inner, range(6)))

    found = on_threads(3, outer, range(3))
    assert all(own == {thread} for thread, own in found)
    assert threading.current_thread() in {thread for thread, _ in found}
    # Afterwards this thread may use others again.
    two = threading.Barrier(2, timeout=60)
    assert len(on_threads(2, lambda item: two.wait(), range(2))) == 2


def test_the_error_of_the_first_item_is_raised():
    second = threading.Event()

    def fail(item):
        if item == 0:
            assert second.wait(60)
            raise ValueError("of the first piece")
        second.set()
        raise ValueError("of another one")

    with pytest.raises(ValueError, match="first piece"):
        on_threads(2, fail, range(2))


def test_remaining_items_are_dropped_if_a_thread_cannot_start(monkeypatch):
    class Failing(threading.Thread):
        def start(self):
            raise RuntimeError("no more threads")

    monkeypatch.setattr(threads, "_teams", {})
    monkeypatch.setattr(threading, "Thread", Failing)
    done = []
    with pytest.raises(RuntimeError, match="no more threads"):
        on_threads(3, done.append, range(50))
    assert done == []
    assert not getattr(threads._here, "is_one", False)


def until_stopped():
    """Work with checks until one of them raises."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        check_now()
    raise AssertionError("no check has raised")


def test_an_error_raises_in_the_checks_of_other_threads():
    both = threading.Barrier(2, timeout=60)

    def work(item):
        both.wait()
        if item == 1:
            raise ValueError("of one thread")
        until_stopped()

    with pytest.raises(ValueError, match="of one thread"):
        on_threads(2, work, range(2))


def test_ctrl_c_waits_until_other_threads_have_stopped():
    both, me, stopped = threading.Barrier(2, timeout=60), threading.main_thread(), []

    def work(item):
        both.wait()
        if threading.current_thread() is not me:
            signal.pthread_kill(me.ident, signal.SIGINT)
            try:
                until_stopped()
            finally:
                stopped.append(item)

    with pytest.raises(KeyboardInterrupt):
        on_threads(2, work, range(2))
    assert len(stopped) == 1
    assert not threads._here.is_one
    assert len(set(on_threads(2, lambda item: both.wait(), range(2)))) == 2


def test_ctrl_c_while_waiting_for_other_threads(monkeypatch):
    both, wait, interrupted = threading.Barrier(2, timeout=60), threads._Helper.cancel_or_wait, []

    def cancel_or_wait(helper):
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        wait(helper)
        interrupted.append(2)

    monkeypatch.setattr(threads._Helper, "cancel_or_wait", cancel_or_wait)
    with pytest.raises(KeyboardInterrupt):
        on_threads(2, lambda item: both.wait(), range(2))
    assert interrupted == [1, 2]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_take_over_the_check_of_the_caller(n_threads):
    asked = []
    with checked_by(lambda: asked.append(threading.current_thread())):
        assert on_threads(n_threads, lambda item: check_now(), range(6)) == 6 * [None]
        assert len(asked) == 12, "before and in every item"
        assert Threads(n_threads).map(abs, [-1, -2]) == [1, 2]
        assert len(asked) == 14
    assert on_threads(n_threads, lambda item: check_now(), range(6)) == 6 * [None]
    assert len(asked) == 14


def test_an_error_is_raised_after_all_threads_have_stopped(monkeypatch):
    begun, release, started, ended = threading.Event(), threading.Event(), [], []
    asking = threading.current_thread()

    def work(item):
        started.append(item)
        if item == 0:
            assert begun.wait(60)
            raise ValueError("the first")
        begun.set()
        if threading.current_thread() is not asking:
            # Released when remaining items are dropped and threads are waited for.
            assert release.wait(60)
        ended.append(item)

    class Waiting(threads._Helper):
        def cancel_or_wait(self):
            release.set()
            super().cancel_or_wait()

    monkeypatch.setattr(threads, "_Helper", Waiting)
    with pytest.raises(ValueError, match="the first"):
        on_threads(2, work, range(50))
    assert ended
    assert sorted(started) == sorted([0, *ended])


def test_threads_are_kept_and_nested_calls_do_not_deadlock():
    def inner(item):
        return threading.current_thread().name

    def outer(item):
        return on_threads(2, inner, range(3))

    names = {name for found in on_threads(2, outer, range(8)) for name in found}
    again = {name for found in on_threads(2, outer, range(8)) for name in found}
    assert 1 <= len(names | again) <= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    assert on_threads(2, abs, [-1, -2]) == [1, 2]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if on_threads(2, abs, [-1, -2]) == [1, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_check_cancels_the_work(n_threads):
    done, asked, numbers = [], [], count(1)

    def check():
        number = next(numbers)
        asked.append(number)
        if number > 4:
            raise InterruptedError("stop")

    assert Threads(n_threads).map(abs, [-1, -2, -3]) == [1, 2, 3], "there is no check"
    assert Threads(n_threads, check).map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert len(asked) == 3, "called before every item"
    with pytest.raises(InterruptedError, match="stop"):
        Threads(n_threads, check).map(done.append, range(50))
    assert len(done) == 1


def test_threads_that_wait_hold_no_arrays():
    held = []

    def call():
        rows = np.zeros(10)
        held.append(weakref.ref(rows))
        on_threads(3, lambda item: rows.sum(), range(3))

    for _ in range(20):
        call()
    eventually(lambda: not any(ref() is not None for ref in held), "all arrays to be released")
