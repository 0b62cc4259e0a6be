"""Named moments of a job, at which a test may strike; nothing happens there otherwise.

What survives a kill is only known of the moments at which something was killed. So the moments that
matter have names, tests see to it that each of them is struck, and a point that no test has ever
come to is an error there.
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
"""Each has a moment before it and one after it."""

Watcher = Callable[[str, str], object]
UNSEEN = nullcontext()
_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """Call ``watcher("before" or "after", point)`` in this process from now on; None: nobody."""
    global _watcher
    _watcher = watcher


def at(point: str) -> AbstractContextManager[None]:
    """Between the two moments of a point; the later one is not met if something fails."""
    return UNSEEN if _watcher is None else _seen(point, _watcher)


@contextmanager
def _seen(point: str, watcher: Watcher) -> Iterator[None]:
    watcher("before", point)
    yield
    # Whoever watched before may have stopped watching meanwhile.
    if _watcher is not None:
        _watcher("after", point)
