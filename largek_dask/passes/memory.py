"""Memory for rows that are kept, without huge pages.

For arrays of 4 MB and more numpy asks for huge pages. On a virtual machine whose free memory goes
back to its host, the first touch of one costs what 512 small pages cost there, and the guest's own
small ones are mostly at hand: measured, five times the time for the same rows. Rows are gone
through in order, so larger pages spare them little.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["empty_rows"]

HUGE_FROM = 1 << 22
"""Bytes from which on numpy asks for huge pages."""


def empty_rows(n: int, d: int, dtype: DTypeLike) -> NDArray[Any]:
    """(n, d) array whose values are not set; what is not written to takes no memory."""
    n_bytes = n * d * np.dtype(dtype).itemsize
    if n_bytes < HUGE_FROM or not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty((n, d), dtype)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(n, d)
