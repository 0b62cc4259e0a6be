"""Plain numpy twins of the emitted kernels of gathered rows, for runs without a compiler."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

__all__ = ["fetch", "gather"]

Array = NDArray[Any]


def gather(
    lengths: int,
    rows: Array,
    places: Array,
    place: int,
    stride: int,
    shift: Array,
    feature: int,
    counted: int,
    panel: Array,
    panel_at: int,
    width: int,
    norms: Array,
    norms_at: int,
) -> None:
    """Twin of :func:`largek_dask.kernels.emit.gather.gather`."""
    side = 32 // rows.itemsize
    for r in range(side):
        first = int(places[place + r]) * stride + feature
        moved = rows[first : first + side] - shift[feature : feature + side]
        panel[panel_at + r : panel_at + r + (side - 1) * width + 1 : width] = moved
        if lengths:
            norms[norms_at + r] += (moved[counted:] ** 2).sum()


def fetch(rows: Array, at: int) -> None:
    """Twin of :func:`largek_dask.kernels.emit.gather.fetch`."""
