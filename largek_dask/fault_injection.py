"""Named points of a job at which tests inject faults; nothing happens there otherwise.

Tests kill processes at each of them, and fail if one is never reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

__all__ = ["POINTS", "at", "watch"]

POINTS = (
    "scatter",
    "receive",
    "submit",
    "chunk",
    "reduce",
    "step",
    "checkpoint",
    "publish",
    "labels",
    "claim",
    "renewal",
)
Watcher = Callable[[str, str], object]
UNSEEN = nullcontext()
_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """Call ``watcher("before" or "after", point)`` in this process from now on, unless None."""
    global _watcher
    _watcher = watcher


def at(point: str) -> AbstractContextManager[None]:
    """Report the begin and the end of a block to the watcher; not the end if the block fails."""
    return UNSEEN if _watcher is None else _seen(point, _watcher)


@contextmanager
def _seen(point: str, watcher: Watcher) -> Iterator[None]:
    watcher("before", point)
    yield
    # The watcher may have been removed meanwhile.
    if _watcher is not None:
        _watcher("after", point)
