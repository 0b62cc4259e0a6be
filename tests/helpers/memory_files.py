"""``memory://`` for tests with many threads.

fsspec's own looks through all files while other threads add and remove some. Now and then that
fails ("dictionary changed size during iteration", of a tuple of them as well), and with it a job.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["LOCK", "MemoryFiles"]

LOCK = threading.RLock()
"""Held while files are looked through or changed."""
OPERATIONS = (
    "_open", "cat_file", "exists", "find", "info", "ls", "makedirs", "mkdir", "pipe_file", "rm",
    "rm_file", "rmdir",
)  # fmt: skip


def _alone(name: str) -> Any:
    """An operation that no other one comes in between."""
    operation = getattr(MemoryFileSystem, name)

    @functools.wraps(operation)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with LOCK:
            return operation(self, *args, **kwargs)

    return alone


class MemoryFiles(MemoryFileSystem):
    """The files of this process; one operation at a time."""


for _name in OPERATIONS:
    setattr(MemoryFiles, _name, _alone(_name))
fsspec.register_implementation("memory", MemoryFiles, clobber=True)
