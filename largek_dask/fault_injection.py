"""Named points of a job at which tests can inject faults.

Tests kill processes at each point, and fail if a point is never reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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
    """Call ``watcher("before" or "after", point)`` at every point; None stops the calls."""
    global _watcher
    _watcher = watcher


def at(point: str) -> AbstractContextManager[None]:
    """Report the start of a ``with`` block to the watcher, and its end if the block succeeds."""
    return UNSEEN if _watcher is None else _seen(point, _watcher)


@contextmanager
def _seen(point: str, watcher: Watcher) -> Iterator[None]:
    watcher("before", point)
    yield
    # The watcher may have been removed meanwhile.
    if _watcher is not None:
        _watcher("after", point)
