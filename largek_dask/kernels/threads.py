"""Share work among threads of this process."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from largek_dask.context import carried
from largek_dask.kernels import team
from largek_dask.kernels.atomics import DATA_BYTES
from largek_dask.kernels.compiling import check_now, checked_by, current_check

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE_VALUES = 1 << 17
"""Minimum number of values for another thread in :func:`on_slices`: work of a tenth of a
millisecond, which is about the time to start the thread."""
LONG_SLICE = 1 << 24
"""Maximum number of values between two checks for a stop, about a tenth of a second of copying."""
PART_VALUES = 1 << 13
"""Minimum number of values in a part: work of some microseconds, the time to begin a part."""
PARTS_PER_THREAD = 4
SPIN_SECONDS = 2e-5
"""Time for which a thread waits in compiled code before it sleeps. Longer waiting used up to 8 %
more CPU time, and saved no time."""
END_SPINS, SLEEP_SECONDS = 5_000, 5e-5
_here = threading.local()
_shares = not numba.config.DISABLE_JIT
"""Without a compiler, threads cannot run kernels at the same time."""


class _Memory:
    """Memory that describes a call of :mod:`largek_dask.kernels.team`."""

    def __init__(self) -> None:
        self.control = np.zeros(team.WORDS, np.int64)
        self._data = np.empty(DATA_BYTES, np.uint8)
        self.address = self._data.ctypes.data


class _Team(_Memory):
    """Threads that help the threads of this process, and are reused for all work."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = threading.Lock()
        """Held by the thread whose call is open."""
        self.arguments: object = None
        """Arguments of the open call, which must exist until all threads have left it."""
        self.calls: deque[Callable[[], None]] = deque()
        """Python functions that wait for a thread."""
        self.sleeping: deque[threading.Lock] = deque()
        """Locks of sleeping threads, which are released to wake them."""
        self.spins = _spins()
        self._numbers = count(1)
        self.size = 0
        self._growing = threading.Lock()

    def wake(self, n: int) -> None:
        """Wake up to ``n`` threads, and start threads if there are fewer."""
        if self.size < n:
            with self._growing:
                for _ in range(self.size, n):
                    threading.Thread(target=self._help, name="largek-kernels", daemon=True).start()
                    self.size += 1
        for _ in range(n):
            try:
                self.sleeping.pop().release()
            except IndexError:
                return

    def put(self, calls: list[Callable[[], None]]) -> None:
        self.calls.extend(calls)
        self.control[team.CALLS] = next(self._numbers)
        self.wake(len(calls))

    def _help(self) -> None:
        _here.is_one = True
        awake, seen = threading.Lock(), 0
        awake.acquire()
        while True:
            calls = self.control[team.CALLS]
            try:
                call = self.calls.popleft()
            except IndexError:
                seen = team.serve(self.control, seen, calls, self.spins)
            else:
                call()
                del call  # a waiting thread holds no rows
                continue
            if self.control[team.CALLS] == calls:
                self.sleeping.append(awake)
                # Threads are woken after work has appeared, so none is missed.
                if team.may_join(self.control, seen) or self.control[team.CALLS] != calls:
                    with suppress(ValueError):
                        self.sleeping.remove(awake)
                        continue
                awake.acquire()


_teams: dict[int, _Team] = {}
"""Threads by process ID, because a forked child has none of the threads of its parent."""


@cache
def _spins() -> int:
    """Return the number of checks for new work in `SPIN_SECONDS`."""
    control, tried = np.zeros(team.WORDS, np.int64), 10_000
    team.serve(control, 0, 0, 1)
    begin = time.perf_counter()
    team.serve(control, 0, 0, tried)
    return max(100, round(tried * SPIN_SECONDS / (time.perf_counter() - begin)))


def _team() -> _Team:
    found = _teams.get(os.getpid())
    return found if found is not None else _teams.setdefault(os.getpid(), _Team())


def shared(function: Callable[..., None]) -> Callable[..., None]:
    """Compile ``function(part, thread, *arguments)``; threads share its parts.

    The result is called with the number of threads (or :class:`Threads`), the number of parts, and
    the arguments. Results must not depend on which thread computes a part. ``thread`` is less than
    the number of threads, for scratch arrays. A function must neither raise errors nor allocate
    arrays. With :class:`Threads`, its check is called before every part of the calling thread.
    """
    begin = team.opening(function)

    def run(threads: int | Threads, n_parts: int, *arguments: Any) -> None:
        n, check = (threads, None) if isinstance(threads, int) else (threads.n, threads.check)
        n = min(n, n_parts, team.MOST_JOINED)
        group = None if n <= 1 or not _shares or getattr(_here, "is_one", False) else _team()
        if group is None or not group.owner.acquire(blocking=False):
            _share(_own_memory(), begin, n_parts, 0, arguments, check)
            return
        try:
            group.arguments = arguments
            _share(group, begin, n_parts, n - 1, arguments, check)
        finally:
            group.arguments = None
            group.owner.release()

    return run


def _share(
    memory: _Memory,
    begin: Callable[..., None],
    n_parts: int,
    most: int,
    arguments: tuple[Any, ...],
    check: Callable[[], object] | None,
) -> None:
    control, is_done = memory.control, False
    if check is None:
        begin(control, memory.address, n_parts, most, *arguments)
    else:
        check()
        with checked_by(check):
            begin(control, memory.address, n_parts, most, *arguments)
    try:
        if isinstance(memory, _Team):
            # This thread does not need the GIL when the others wake.
            memory.wake(most)
        while not (is_done := team.work(control, team.UNLIMITED if check is None else 1, 0)):
            assert check is not None
            check()
    finally:
        if not is_done:
            team.cancel(control)
        _end(control)


def _end(control: NDArray[np.int64]) -> None:
    """Wait for threads that have joined, even after Ctrl-C, because they write to arrays."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            if team.end(control, END_SPINS):
                break
            time.sleep(SLEEP_SECONDS)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _own_memory() -> _Memory:
    """Return memory for a call by this thread alone."""
    memory: _Memory | None = getattr(_here, "memory", None)
    if memory is None:
        memory = _here.memory = _Memory()
    return memory


def split(n_threads: int, n_rows: int, row_values: int) -> tuple[int, int]:
    """Return the number of rows in a part, and the number of parts, for :func:`shared`."""
    even = -(-n_rows // (1 if n_threads == 1 else n_threads * PARTS_PER_THREAD))
    step = max(1, PART_VALUES // max(1, row_values), even)
    return step, -(-n_rows // step)


def on_threads(
    n_threads: int, function: Callable[[Item], Result], items: Iterable[Item]
) -> list[Result]:
    """Return ``[function(item) for item in items]``, using up to ``n_threads`` threads.

    The calling thread is one of these threads. Kernels release the GIL while they run. Results must
    not depend on which thread processes an item. The check of the calling thread (``checked_by``)
    is called before every item. After an error, no further items are started, checks in the other
    threads raise, and the error of the earliest failed item is raised once all threads have
    stopped. A nested call uses only the thread that makes the call.
    """
    items = list(items)
    if n_threads <= 1 or len(items) <= 1 or getattr(_here, "is_one", False):
        return [_checked(function, item) for item in items]
    asked = current_check()
    left = deque(enumerate(items))
    results: list[Any] = [None] * len(items)
    errors: list[tuple[int, BaseException]] = []

    def check() -> None:
        if errors:
            raise _Stopped
        if asked is not None:
            asked()

    def work() -> None:
        while True:
            try:
                i, item = left.popleft()
            except IndexError:
                return
            try:
                with checked_by(check):
                    results[i] = _checked(function, item)
            except _Stopped:
                return
            except BaseException as error:
                errors.append((i, error))
                left.clear()

    helpers = [_Helper(carried(work)) for _ in range(min(n_threads, len(items)) - 1)]
    group = _team()
    try:
        group.put([helper.run for helper in helpers])
        # Start on this thread at once: waking another thread may take longer than the call.
        _here.is_one = True
        work()
    except BaseException as error:
        errors.append((-1, error))
    finally:
        _here.is_one = False
        left.clear()
        _await(helpers, errors)
    if errors:
        raise min(errors, key=lambda error: error[0])[1]
    return results


class _Stopped(BaseException):
    """Raised in the other threads after an error in one of them."""


def _checked(function: Callable[[Item], Result], item: Item) -> Result:
    check_now()
    return function(item)


def _await(helpers: list[_Helper], errors: list[tuple[int, BaseException]]) -> None:
    """Wait for threads that have started, even after Ctrl-C, because they write to arrays."""
    while helpers:
        try:
            helpers[-1].cancel_or_wait()
            helpers.pop()
        except KeyboardInterrupt as error:
            errors.append((-1, error))


def on_slices(
    n_threads: int, function: Callable[[slice], object], n_rows: int, row_values: int
) -> None:
    """Call ``function`` for slices of ``n_rows`` rows on threads, with enough values per slice."""
    least, most = (max(1, size // max(1, row_values)) for size in (SLICE_VALUES, LONG_SLICE))
    step = min(most, max(least, -(-n_rows // n_threads)))
    on_threads(
        n_threads, function, [slice(at, min(at + step, n_rows)) for at in range(0, n_rows, step)]
    )


class _Helper:
    """Work for another thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._free, self._done = work, threading.Lock(), threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        try:
            if self._free.acquire(blocking=False):
                self._work()
        finally:
            self._done.release()

    def cancel_or_wait(self) -> None:
        """Cancel the work if no thread has started it; otherwise wait until it ends."""
        if self._free.acquire(blocking=False):
            self._work = _nothing
        else:
            self._done.acquire()


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Threads:
    """Number of threads for a computation, and a function that may cancel the computation."""

    n: int = 1
    """Number of threads; results must not depend on it."""
    check: Callable[[], object] = _nothing
    """Function to call before every item, before every compilation and in long computations. It may
    raise an error to cancel the work."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return ``[function(item) for item in items]``, calling ``check`` before every item."""
        if self.check is _nothing:
            return on_threads(self.n, function, items)
        with checked_by(self.check):
            return on_threads(self.n, function, items)


ALONE = Threads()
"""Use only the calling thread, and only the check that this thread already has."""
