"""For which job this thread works: what a line of a log says, whoever writes it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

__all__ = ["Working", "carried", "working", "working_for"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Working:
    """A run of a job."""

    job_id: str
    run: int
    """Number of the run: a job that goes on has several."""


_working: contextvars.ContextVar[Working | None] = contextvars.ContextVar(
    "largek_working", default=None
)


def working() -> Working | None:
    """What is worked for here; None where it is no job's."""
    return _working.get()


@contextmanager
def working_for(job: Working | None) -> Iterator[None]:
    """Work for a job inside this block."""
    token = _working.set(job)
    try:
        yield
    finally:
        _working.reset(token)


def carried(function: Callable[..., Result]) -> Callable[..., Result]:
    """``function``, to be called once by another thread, for the same job as here."""
    if _working.get() is None:
        return function
    run: Any = contextvars.copy_context().run
    return partial(run, function)
