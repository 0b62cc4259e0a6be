"""Plain numpy twins of the emitted kernels of boxes, for runs without a compiler.

As in :mod:`~largek_dask.kernels.emit.standins`: the coordinates are added in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["boxes_within", "each_within", "gap_square", "listed_bits", "points_within", "turn"]

Array = NDArray[Any]
LANES, ROWS = 16, 4


def turn(
    width: int, rows: Array, places: Array, shift: Array, n_features: int, basis: Array, out: Array
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.boxes.turn`."""
    own = out.reshape(len(places), width + 1)
    for turned, at in zip(own, places.tolist(), strict=True):
        moved = rows[at : at + n_features].astype(np.float64) - shift
        turned[:width] = (moved[:, None] * basis.reshape(n_features, width)).sum(axis=0)
        turned[width] = (moved * moved).sum()


def points_within(width: int, columns: Array, at: int, point: Array, limit: Any, out: Array) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.points_within`."""
    others = columns[at : at + LANES * width].reshape(width, LANES)
    out[:LANES] = ((others - point[:width, None]) ** 2).sum(axis=0, dtype=np.float32)
    return _bits(out[:LANES] <= limit)


def boxes_within(
    width: int, low: Array, high: Array, at: int, point: Array, limit: Any, out: Array, out_at: int
) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.boxes_within`."""
    lower, upper = (part[at : at + LANES * width].reshape(width, LANES) for part in (low, high))
    own = point[:width, None]
    gaps = np.maximum(np.maximum(lower - own, own - upper), np.float32(0))
    out[out_at : out_at + LANES] = (gaps**2).sum(axis=0, dtype=np.float32)
    return _bits(out[out_at : out_at + LANES] <= limit)


def each_within(values: Array, at: int, limits: Array, limits_at: int) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.each_within`."""
    return _bits(values[at : at + LANES] <= limits[limits_at : limits_at + LANES])


def gap_square(points: Array, at: int, others: Array, others_at: int, count: int) -> Any:
    """Twin of :func:`largek_dask.kernels.emit.boxes.gap_square`."""
    gaps = points[at : at + count] - others[others_at : others_at + count]
    return (gaps * gaps).sum(dtype=np.float32)


def listed_bits(mask: Any, base: Any, out: Array, at: int, table: Array, sizes: Array) -> int:
    """Twin of :func:`largek_dask.kernels.emit.boxes.listed_bits`."""
    for half in (0, 8):
        byte = int(mask) >> half & 255
        out[at : at + 8] = base + half + table[8 * byte : 8 * byte + 8]
        at += int(sizes[byte])
    return at


def _bits(within: Array) -> int:
    """Return an integer with the bits that are true."""
    return sum(1 << int(j) for j in np.flatnonzero(within))
