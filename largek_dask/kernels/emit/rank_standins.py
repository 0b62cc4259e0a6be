"""Plain numpy twins of the emitted kernels of the smallest scores, for runs without a compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["insert", "lowest", "lowest_bit", "within"]

Array = NDArray[Any]


def lowest(width: int, values: Array, at: int, count: int, out: Array, out_at: int) -> None:
    """Twin of :func:`largek_dask.kernels.emit.ranks.lowest`."""
    table = values[at : at + count * width].reshape(count, width)
    out[out_at : out_at + width] = np.fmin.reduce(table, axis=0, initial=np.inf)


def insert(width: int, values: Array, at: int, ranks: int, best: Array, own: int) -> None:
    """Twin of :func:`largek_dask.kernels.emit.ranks.insert`."""
    table = best[own : own + ranks * width].reshape(ranks, width)
    both = np.concatenate([table, values[None, at : at + width]])
    table[:] = np.sort(both, axis=0)[:ranks]  # NaN comes last


def within(width: int, values: Array, at: int, limits: Array) -> int:
    """Twin of :func:`largek_dask.kernels.emit.ranks.within`."""
    inside = ~(values[at : at + width] > limits[:width])
    return sum(1 << int(q) for q in np.flatnonzero(inside))


def lowest_bit(mask: int) -> int:
    """Twin of :func:`largek_dask.kernels.emit.ranks.lowest_bit`."""
    return (int(mask) & -int(mask)).bit_length() - 1
