"""Whether this process is compiling kernels, and how many seconds that has taken.

Numba says when it begins to compile a function and when it has ended; what is loaded from the
cache is not compiled. A function that another one calls is compiled inside of that one, all of it
under numba's lock: so there is one compilation at a time, and what is counted here is time on the
wall in which this process makes code. Code of other packages does not count.

Work that has a time limit names who is to be asked before a function is compiled
(:func:`asked_before`): a compilation cannot be ended half-way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numba.core import event

from largek_dask.kernels.jit import is_kernel

__all__ = [
    "Compiled",
    "asked_before",
    "call_after_each",
    "compiled",
    "is_compiling",
    "seconds_ahead",
    "waiting",
]

FIRST_SECONDS = 0.25
"""What one function is taken to need before any has been compiled here: about the mean of the
functions that a first fit compiles."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What this process has compiled so far."""

    functions: int = 0
    seconds: float = 0.0
    """Time on the wall, of what is being compiled now as well."""
    at_it: bool = False
    """Something is being compiled now."""

    def since(self, before: Compiled) -> Compiled:
        """What has come since then."""
        return Compiled(
            self.functions - before.functions, self.seconds - before.seconds, self.at_it
        )

    def mean_seconds(self) -> float:
        """Seconds that a function takes."""
        return self.seconds / self.functions if self.functions else FIRST_SECONDS


class _Here(threading.local):
    """What holds for one thread."""

    ask: Callable[[], object] | None = None
    ahead: float = 0.0


_here = _Here()


def _nobody_asks() -> None:
    """Where nobody has to be asked."""


class _Listener(event.Listener):  # type: ignore[misc]  # numba has no types
    """Counts; numba calls it under its lock, from whichever thread compiles."""

    def __init__(self) -> None:
        self.functions = 0
        self.seconds = 0.0
        self.began: float | None = None
        self.depth = 0
        """Functions that are being compiled, each inside of the one before."""
        self.hook: Callable[[], object] = _nobody_asks

    def on_start(self, told: Any) -> None:
        """Count a function of this package, once it may be compiled."""
        if not is_kernel(told.data["dispatcher"]):
            return
        # Numba tells of an end as well where this raises.
        self.begin()
        if _here.ask is not None:
            _here.ahead = self.now().mean_seconds()
            try:
                _here.ask()
            finally:
                _here.ahead = 0.0
        self.functions += 1

    def on_end(self, told: Any) -> None:
        """Stop the clock when the outermost one is done."""
        if is_kernel(told.data["dispatcher"]):
            self.end()
            self.hook()

    def begin(self) -> None:
        """Start the clock unless it runs."""
        self.depth += 1
        if self.depth == 1:
            self.began = time.perf_counter()

    def end(self) -> None:
        """Stop the clock that :meth:`begin` has started."""
        self.depth -= 1
        if self.depth == 0 and self.began is not None:
            self.seconds += time.perf_counter() - self.began
            self.began = None

    def now(self) -> Compiled:
        """What has been compiled so far."""
        # Read once: another thread may end meanwhile.
        began = self.began
        running = 0.0 if began is None else time.perf_counter() - began
        return Compiled(self.functions, self.seconds + running, began is not None)


_listener = _Listener()
event.register("numba:compile", _listener)


def compiled() -> Compiled:
    """What this process has compiled so far."""
    return _listener.now()


def is_compiling() -> bool:
    """Whether this process makes code now."""
    return _listener.began is not None


def call_after_each(hook: Callable[[], object]) -> None:
    """Have ``hook`` called after each compiled function, under numba's lock, by any thread."""
    _listener.hook = hook


class asked_before:  # a context manager, written out: it is entered very often
    """Have ``ask`` called by this thread before it compiles a function.

    What it raises comes out of the kernel that was called; the function is not compiled then, and
    may be the next time. Functions that had been compiled before are kept.
    """

    __slots__ = ("_ask", "_before")

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask

    def __enter__(self) -> None:
        self._before, _here.ask = _here.ask, self._ask

    def __exit__(self, *_: object) -> None:
        _here.ask = self._before


def seconds_ahead() -> float:
    """About how long a function takes that this thread asks for; 0 where it asks for none."""
    return _here.ahead


@contextmanager
def waiting() -> Iterator[Callable[[], object]]:
    """Count the block's time as compiling: it waits for a process that compiles instead.

    Called under numba's lock. Gives what has to be called again and again meanwhile, and may raise.
    """
    _listener.begin()
    try:
        yield _here.ask or _nobody_asks
    finally:
        _listener.end()
