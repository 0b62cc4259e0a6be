"""A few independent pieces of work on threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["on_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(
    n_threads: int, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """``[function(item) for item in items]`` on up to ``n_threads`` threads.

    Kernels give the interpreter back while they run. Nothing may depend on which thread does what.
    """
    n_threads = min(n_threads, len(items))
    if n_threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(n_threads, "largek-gathered") as pool:
        return list(pool.map(function, items))
