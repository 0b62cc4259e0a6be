"""Plain numpy twins of the emitted kernels of exact sums, for runs without a compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_row", "move_row"]

Array = NDArray[Any]

MAGIC = 6755399441055744.0
MAGIC_BITS = 0x4338000000000000
"""Both as in :mod:`~largek_dask.kernels.emit.sums`."""


def _steps(x: Array, i: int, shift: Array, scale: float) -> NDArray[np.int64]:
    """Return a row in whole steps."""
    magic = (x[i].astype(np.float64) - shift) * scale + MAGIC
    steps: NDArray[np.int64] = magic.view(np.int64) - MAGIC_BITS
    return steps


def add_row(
    x: Array, i: int, shift: Array, scale: float, sums: Array, into: Any, later: Any, ahead: Any
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.sums.add_row`."""
    sums[into] += _steps(x, i, shift, scale)


def move_row(
    x: Array, i: int, shift: Array, scale: float, sums: Array, out_of: Any, into: Any
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.sums.move_row`."""
    steps = _steps(x, i, shift, scale)
    sums[out_of] -= steps
    sums[into] += steps
