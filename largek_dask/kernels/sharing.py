"""Threads that share a job whose parts do not meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["share"]

Part = TypeVar("Part")


def share(work: Callable[[Part], None], parts: Iterable[Part], n_threads: int) -> None:
    """Call ``work(part)`` for all parts, by so many threads; the first error is raised."""
    if n_threads == 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(work, parts):
            pass
