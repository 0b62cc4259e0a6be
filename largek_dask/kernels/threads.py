"""A few independent pieces of work on threads of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

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
    """``[function(item) for item in items]`` on up to ``n_threads`` threads.

    Kernels give the interpreter back while they run. Nothing may depend on which thread does what.
    The first error is raised when nobody is at work any more; pieces not yet begun are left out.
    What is called on one of these threads has no others for itself.
    """
    items = list(items)
    if n_threads <= 1 or len(items) <= 1 or getattr(_here, "is_one", False):
        return [function(item) for item in items]
    pool = _pool(n_threads)
    futures = [pool.submit(carried(function), item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def _go_on() -> None:
    """Nobody asks for a stop."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads that a piece of work has for itself, and who says that it is to end."""

    n: int = 1
    """No result may depend on it."""
    check: Callable[[], object] = _go_on
    """Called before every part of the work; what it raises ends the work."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """``[function(item) for item in items]``, as :func:`on_threads` does it."""

        def checked(item: Item) -> Result:
            self.check()
            with asked_before(self.check):
                return function(item)

        return on_threads(self.n, checked, items)


ALONE = Threads()
"""The thread that asks, and nobody who ends the work."""


def _pool(n_threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), n_threads
    if key not in _pools:
        # Threads begin with the first piece of work: who comes second has made nothing.
        _pools.setdefault(key, ThreadPoolExecutor(n_threads, "largek-kernels", _enlist))
    return _pools[key]


def _enlist() -> None:
    _here.is_one = True
