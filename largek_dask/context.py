"""Store the id of each thread's job, so that log lines can name the job."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

_job: contextvars.ContextVar[str | None] = contextvars.ContextVar("largek_job", default=None)


def current_job() -> str | None:
    """Return the id of this thread's job; None if the thread does not work for a job."""
    return _job.get()


@contextmanager
def working_for(job_id: str | None) -> Iterator[None]:
    """Set the job of this thread inside a ``with`` block."""
    token = _job.set(job_id)
    try:
        yield
    finally:
        _job.reset(token)


def carried(function: Callable[..., Result]) -> Callable[..., Result]:
    """Bind ``function`` to the job of this thread, for a single call on another thread."""
    if _job.get() is None:
        return function
    run: Any = contextvars.copy_context().run
    return partial(run, function)
