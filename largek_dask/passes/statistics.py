"""Reductions that every job needs: the statistics of the rows, and the number farthest out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.exact.statistics import RowScan

__all__ = ["Farthest", "farthest_chunk", "scan_chunk"]


def scan_chunk(chunk: Chunk, total: RowScan) -> None:
    """Add a chunk to the statistics; rows with NaN or infinity are counted, not added."""
    total.add(chunk.x, chunk.weight, chunk.start)


@dataclass
class Farthest:
    """The number of some rows that is farthest from an origin, and where it is."""

    distance: float = -1.0
    value: float = 0.0
    row: int = -1
    column: int = -1

    def merge(self, other: Farthest) -> Farthest:
        """Return the farther one, of equal ones that of the first row."""
        return max(self, other, key=lambda each: (each.distance, -each.row))


def farthest_chunk(chunk: Chunk, total: Farthest, origin: NDArray[Any]) -> None:
    """Find the number of a chunk that is farthest from the origin, of sparse rows from 0."""
    x = chunk.x
    if isinstance(x, SparseBlock):
        rows, columns, values = x.row_numbers(), x.indices[x.stored], x.data[x.stored]
        apart = np.abs(values.astype(np.float64))
    else:
        values = np.asarray(x, np.float64)
        rows, columns = np.ogrid[: len(values), : values.shape[1]]
        # (halves do not overflow)
        apart = np.abs(values / 2 - origin.astype(np.float64) / 2)
    if chunk.weight is not None:
        apart[np.broadcast_to(chunk.weight[rows] == 0, apart.shape)] = -1
    if not apart.size:
        return
    at = np.unravel_index(int(np.argmax(apart)), apart.shape)
    row, column = (np.broadcast_to(part, apart.shape)[at] for part in (rows, columns))
    if apart[at] > total.distance:
        total.distance, total.value = float(apart[at]), float(values[at])
        total.row, total.column = int(chunk.numbers()[row]), int(column)
