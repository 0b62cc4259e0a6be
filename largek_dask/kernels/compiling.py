"""Count the kernels that this process compiles, and measure their compile time.

Numba reports the start and end of each compilation. Functions that are loaded from the cache and
functions of other packages are not counted. Called functions are compiled while their caller is
being compiled, and numba's lock allows one compilation at a time, so the counted seconds are wall
time.

A compilation cannot be interrupted, so work with a time limit may refuse to start one
(:class:`checked_by`). The same check ends long computations (:func:`check_now`).
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
"""Assumed compile time before any function is compiled, about the mean of a first fit."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Number of functions that this process has compiled so far, and their compile time."""

    functions: int = 0
    seconds: float = 0.0
    """Wall time, including the compilation in progress."""

    def since(self, before: Compiled) -> Compiled:
        """Return the functions and seconds counted since an earlier count."""
        return Compiled(self.functions - before.functions, self.seconds - before.seconds)

    def mean_seconds(self) -> float:
        return self.seconds / self.functions if self.functions else FIRST_SECONDS


class _ThreadState(threading.local):
    check: Callable[[], object] | None = None
    """Function to call before a function is compiled and during long work; it may raise."""
    seconds_ahead: float = 0.0


_thread = _ThreadState()


class _Listener(event.Listener):  # type: ignore[misc]  # numba has no types
    """Count compilations; numba calls the methods in the compiling thread, under a lock."""

    def __init__(self) -> None:
        self.functions = 0
        self.seconds = 0.0
        self.began: float | None = None
        self.depth = 0
        """Number of nested compilations in progress."""
        self.hooks: list[Callable[[], object]] = []

    def on_start(self, event: Any) -> None:
        """Count a compilation, unless the check of this thread raises."""
        if not is_kernel(event.data["dispatcher"]):
            return
        # Numba reports the end even if this method raises.
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
        """Stop the clock when the outermost compilation ends, and call the hooks."""
        if not is_kernel(event.data["dispatcher"]):
            return
        self.depth -= 1
        if self.depth == 0 and self.began is not None:
            self.seconds += time.perf_counter() - self.began
            self.began = None
        for hook in tuple(self.hooks):
            hook()

    def now(self) -> Compiled:
        """Return the number of functions compiled so far, and their compile time."""
        # Read once: a compilation in another thread may end in the meantime.
        began = self.began
        running = 0.0 if began is None else time.perf_counter() - began
        return Compiled(self.functions, self.seconds + running)


_listener = _Listener()
event.register("numba:compile", _listener)


def compiled() -> Compiled:
    """Return the number of functions that this process has compiled, and their compile time."""
    return _listener.now()


def is_compiling() -> bool:
    return _listener.began is not None


def call_after_each(hook: Callable[[], object]) -> Callable[[], None]:
    """Call ``hook`` after each compiled function, under numba's lock, from any thread.

    Call the returned function to remove the hook.
    """
    _listener.hooks.append(hook)
    return lambda: _listener.hooks.remove(hook)


class checked_by:  # a class is faster than @contextmanager
    """Call ``check`` whenever this thread is about to compile a function, and in long computations.

    If ``check`` raises, the exception propagates from the kernel call and the function is not
    compiled; the next call may compile the function. Functions compiled earlier remain usable.
    """

    __slots__ = ("_before", "_check")

    def __init__(self, check: Callable[[], object]) -> None:
        self._check = check

    def __enter__(self) -> None:
        self._before, _thread.check = _thread.check, self._check

    def __exit__(self, *_: object) -> None:
        _thread.check = self._before


def check_now() -> None:
    """Call the check of this thread, if there is one."""
    if _thread.check is not None:
        _thread.check()


def current_check() -> Callable[[], object] | None:
    """Return the check of this thread, to pass it on to other threads."""
    return _thread.check


def seconds_ahead() -> float:
    """Return the expected seconds of the compilation that this thread is about to start, or 0."""
    return _thread.seconds_ahead
