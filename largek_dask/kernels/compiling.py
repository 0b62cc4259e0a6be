"""Count the kernels that this process compiles, and the seconds it takes.

Numba reports when it starts and ends compiling a function; what is loaded from the cache is not
compiled. A function is compiled inside the compilation of its caller, all of it under numba's lock:
so there is one compilation at a time, and the seconds counted are wall time. Code of other packages
does not count.

A compilation cannot be stopped half-way, so work with a time limit may refuse to start one
(:class:`checked_by`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba.core import event

from largek_dask.kernels.jit import is_kernel

FIRST_SECONDS = 0.25
"""Expected seconds per function before any was compiled: about the mean of a first fit."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Functions that this process has compiled so far, and their time."""

    functions: int = 0
    seconds: float = 0.0
    """Wall time, including that of a compilation under way."""

    def since(self, before: Compiled) -> Compiled:
        """Return the difference to an earlier count."""
        return Compiled(self.functions - before.functions, self.seconds - before.seconds)

    def mean_seconds(self) -> float:
        """Return seconds per function."""
        return self.seconds / self.functions if self.functions else FIRST_SECONDS


class _ThreadState(threading.local):
    check: Callable[[], object] | None = None
    """Called before a function is compiled; may raise."""
    seconds_ahead: float = 0.0


_thread = _ThreadState()


class _Listener(event.Listener):  # type: ignore[misc]  # numba has no types
    """Count compilations; numba calls it under its lock, from the compiling thread."""

    def __init__(self) -> None:
        self.functions = 0
        self.seconds = 0.0
        self.began: float | None = None
        self.depth = 0
        """Functions under way, each inside the one before."""
        self.hooks: list[Callable[[], object]] = []

    def on_start(self, event: Any) -> None:
        """Count a kernel, unless this thread's check refuses it."""
        if not is_kernel(event.data["dispatcher"]):
            return
        # Numba reports an end as well if this raises.
        self.depth += 1
        if self.depth == 1:
            self.began = time.perf_counter()
        if _thread.check is not None:
            _thread.seconds_ahead = self.now().mean_seconds()
            try:
                _thread.check()
            finally:
                _thread.seconds_ahead = 0.0
        self.functions += 1

    def on_end(self, event: Any) -> None:
        """Stop the clock with the outermost function, and call the hooks."""
        if not is_kernel(event.data["dispatcher"]):
            return
        self.depth -= 1
        if self.depth == 0 and self.began is not None:
            self.seconds += time.perf_counter() - self.began
            self.began = None
        for hook in tuple(self.hooks):
            hook()

    def now(self) -> Compiled:
        """Return the functions and seconds compiled so far."""
        # Read once: another thread may end meanwhile.
        began = self.began
        running = 0.0 if began is None else time.perf_counter() - began
        return Compiled(self.functions, self.seconds + running)


_listener = _Listener()
event.register("numba:compile", _listener)


def compiled() -> Compiled:
    """Return the functions and seconds that this process has compiled so far."""
    return _listener.now()


def is_compiling() -> bool:
    """Return whether a compilation is under way."""
    return _listener.began is not None


def call_after_each(hook: Callable[[], object]) -> Callable[[], None]:
    """Call ``hook`` after each compiled function, under numba's lock, from any thread.

    The function returned removes the hook.
    """
    _listener.hooks.append(hook)
    return lambda: _listener.hooks.remove(hook)


class checked_by:  # a context manager, written out: it is entered very often
    """Call ``check`` in this thread before it compiles a function.

    An exception that it raises comes out of the kernel that was called; the function is then not
    compiled, but may be the next time. Functions compiled before are kept.
    """

    __slots__ = ("_before", "_check")

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check

    def __enter__(self) -> None:
        self._before, _thread.check = _thread.check, self._check

    def __exit__(self, *_: object) -> None:
        _thread.check = self._before


def seconds_ahead() -> float:
    """Return the expected seconds of the function that this thread is about to compile, or 0."""
    return _thread.seconds_ahead
