"""A few independent pieces of work on threads of this process."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from largek_dask.context import carried
from largek_dask.kernels.compiling import asked_before

__all__ = ["ALONE", "Threads", "on_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process (a forked child has none of its parent's threads) and number of threads. They stay:
kernels keep their scratch arrays by thread."""
_here = threading.local()


def on_threads(
    n_threads: int, function: Callable[[Item], Result], items: Iterable[Item]
) -> list[Result]:
    """Return ``[function(item) for item in items]``, on up to ``n_threads`` threads with this one.

    Kernels release the interpreter's lock while they run. Nothing may depend on which thread does
    what. The first error is raised once all threads have stopped; pieces not yet begun are left
    out. A call on one of these threads has no others for itself.
    """
    items = list(items)
    if n_threads <= 1 or len(items) <= 1 or getattr(_here, "is_one", False):
        return [function(item) for item in items]
    work = _Work(function, items)
    pool = _pool(n_threads - 1)
    helpers: list[Future[None]] = []
    try:
        n_others = min(n_threads, len(items)) - 1
        helpers.extend(pool.submit(carried(work.go)) for _ in range(n_others))
        # This thread begins at once: waking another one may take longer than a short piece.
        _here.is_one = True
        work.go()
    finally:
        _here.is_one = False
        work.left.clear()
        # Threads that have not begun are not waited for.
        wait([helper for helper in helpers if not helper.cancel()])
    if work.errors:
        raise min(work.errors, key=lambda error: error[0])[1]
    return work.results


class _Work(Generic[Item, Result]):
    """Pieces that several threads take one after the other."""

    __slots__ = ("errors", "function", "left", "results")

    def __init__(self, function: Callable[[Item], Result], items: list[Item]) -> None:
        self.function = function
        self.left = deque(enumerate(items))
        self.results: list[Any] = [None] * len(items)
        self.errors: list[tuple[int, BaseException]] = []

    def go(self) -> None:
        """Take pieces while any are left."""
        while True:
            try:
                i, item = self.left.popleft()
            except IndexError:
                return
            try:
                self.results[i] = self.function(item)
            except BaseException as error:
                self.errors.append((i, error))
                self.left.clear()


def _go_on() -> None:
    """Do nothing: there is no stop."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads that a piece of work has for itself, and a check for its end."""

    n: int = 1
    """Number of threads; no result may depend on it."""
    check: Callable[[], object] = _go_on
    """Called before every part of the work; an exception from it ends the work."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return ``[function(item) for item in items]`` by :func:`on_threads`."""

        def checked(item: Item) -> Result:
            self.check()
            with asked_before(self.check):
                return function(item)

        return on_threads(self.n, checked, items)


ALONE = Threads()
"""The calling thread, without a check."""


def _pool(n_threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), n_threads
    if key not in _pools:
        # Threads begin with the first piece of work: a pool that is not used has started none.
        _pools.setdefault(key, ThreadPoolExecutor(n_threads, "largek-kernels", _enlist))
    return _pools[key]


def _enlist() -> None:
    _here.is_one = True
