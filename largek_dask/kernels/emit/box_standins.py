"""Plain numpy twins of the emitted kernels of boxes, for runs without a compiler.

As in :mod:`~largek_dask.kernels.emit.standins`: the coordinates are added in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["boxes_within", "points_within", "turn", "values_within"]

Array = NDArray[Any]
LANES = 16


def turn(
    width: int, rows: Array, at: int, shift: Array, n_features: int, basis: Array, out: Array
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.boxes.turn`."""
    moved = rows[at : at + n_features].astype(np.float64) - shift
    out[:width] = (moved[:, None] * basis.reshape(n_features, width)).sum(axis=0)
    out[width] = (moved * moved).sum()


def points_within(width: int, columns: Array, at: int, point: Array, limit: Any, out: Array) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.points_within`."""
    others = columns[at : at + LANES * width].reshape(width, LANES)
    out[:LANES] = ((others - point[:width, None]) ** 2).sum(axis=0, dtype=np.float32)
    return values_within(out, 0, limit)


def boxes_within(
    width: int, low: Array, high: Array, at: int, point: Array, limit: Any, out: Array, out_at: int
) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.boxes_within`."""
    lower, upper = (part[at : at + LANES * width].reshape(width, LANES) for part in (low, high))
    own = point[:width, None]
    gaps = np.maximum(np.maximum(lower - own, own - upper), np.float32(0))
    out[out_at : out_at + LANES] = (gaps**2).sum(axis=0, dtype=np.float32)
    return values_within(out, out_at, limit)


def values_within(values: Array, at: int, limit: Any) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.values_within`."""
    return sum(1 << int(j) for j in np.flatnonzero(values[at : at + LANES] <= limit))
