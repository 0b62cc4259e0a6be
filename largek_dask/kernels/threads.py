"""Apply a function to several items on threads of this process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from largek_dask.context import carried
from largek_dask.kernels.compiling import check_now, checked_by, current_check

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE_VALUES = 1 << 17
"""Minimum number of values for another thread: work of a tenth of a millisecond, which is about
the time to start the thread."""
LONG_SLICE = 1 << 24
"""Maximum number of values between two checks for a stop, about a tenth of a second of copying."""
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""Thread pools by process ID and number of threads. A forked child has none of the threads of its
parent. Threads are reused, since kernels keep scratch arrays per thread."""
_here = threading.local()


class _Stopped(BaseException):
    """Raised in the other threads after an error in one of them."""


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

    pool = _pool(n_threads - 1)
    helpers: list[Future[None]] = []
    try:
        n_others = min(n_threads, len(items)) - 1
        helpers.extend(pool.submit(carried(work)) for _ in range(n_others))
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


def _checked(function: Callable[[Item], Result], item: Item) -> Result:
    check_now()
    return function(item)


def _await(helpers: list[Future[None]], errors: list[tuple[int, BaseException]]) -> None:
    """Wait for threads that have started, even after Ctrl-C, because they write to arrays."""
    while True:
        try:
            wait([helper for helper in helpers if not helper.cancel()])
            return
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


def _no_check() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Threads:
    """Number of threads for a computation, and a function that may cancel the computation."""

    n: int = 1
    """Number of threads; results must not depend on it."""
    check: Callable[[], object] = _no_check
    """Function to call before every item, before every compilation and in long computations. It may
    raise an error to cancel the work."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return ``[function(item) for item in items]``, calling ``check`` before every item."""
        if self.check is _no_check:
            return on_threads(self.n, function, items)
        with checked_by(self.check):
            return on_threads(self.n, function, items)


ALONE = Threads()
"""Use only the calling thread, and only the check that this thread already has."""


def _pool(n_threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), n_threads
    if key not in _pools:
        # A pool starts threads only when they are needed.
        _pools.setdefault(key, ThreadPoolExecutor(n_threads, "largek-kernels", _enlist))
    return _pools[key]


def _enlist() -> None:
    _here.is_one = True
