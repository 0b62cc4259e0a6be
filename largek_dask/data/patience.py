"""Asking a store again that was out of order for a moment."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from largek_dask import config

__all__ = ["patiently"]

T = TypeVar("T")

FINAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
FINAL_NUMBERS = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG])
"""What will be the same in a second: full, out of quota, read-only."""


def patiently(ask: Callable[[], T]) -> T:
    """What ``ask`` gives; asked again a few times if a file system or a network fails.

    ``ask`` must do the same when it is called twice. Its last error is raised as it is. Errors
    that say something of the files (not there, not allowed, disk full) are raised at once.
    """
    tries = max(1, int(config.get("stores.tries")))
    pause = float(config.get("stores.pause-seconds"))
    for number in range(1, tries):
        try:
            return ask()
        except OSError as error:
            if isinstance(error, FINAL) or error.errno in FINAL_NUMBERS:
                raise
            time.sleep(pause * 2 ** (number - 1))
    return ask()
