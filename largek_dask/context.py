"""Id of the job that a thread works for, so that log lines can name it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

_job: contextvars.ContextVar[str | None] = contextvars.ContextVar("largek_job", default=None)


def current_job() -> str | None:
    """Return the id of the job that this thread works for; None if there is none."""
    return _job.get()


@contextmanager
def working_for(job_id: str | None) -> Iterator[None]:
    """Work for a job inside this block."""
    token = _job.set(job_id)
    try:
        yield
    finally:
        _job.reset(token)


def carried(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return ``function`` for a single call on another thread, in the job of this thread."""
    if _job.get() is None:
        return function
    run: Any = contextvars.copy_context().run
    return partial(run, function)
