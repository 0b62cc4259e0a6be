"""Two reductions that every job needs: the statistics of the rows, and a few rows by index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.kernels.blocks import dense_rows
from largek_dask.kernels.exact.statistics import RowScan

__all__ = ["TakenRows", "scan_chunk", "take_chunk"]


def scan_chunk(chunk: Chunk, total: RowScan) -> None:
    """Add a chunk to the statistics; rows with NaN or infinity are counted, not added."""
    total.add(chunk.x, chunk.weight, chunk.start)


class TakenRows:
    """Rows picked out of some chunks."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: dict[int, NDArray[Any]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return sum(part.nbytes for part in self.parts.values())

    @staticmethod
    def combine(a: TakenRows, b: TakenRows) -> TakenRows:
        """Add ``b`` into ``a``."""
        a.parts.update(b.parts)
        return a

    def in_order(self) -> NDArray[Any]:
        """All rows in ascending order of their global index."""
        return np.concatenate([self.parts[index] for index in sorted(self.parts)])


def take_chunk(
    chunk: Chunk, total: TakenRows, rows: NDArray[np.int64], dtype: np.dtype[Any]
) -> None:
    """Pick the rows of this chunk out of the ascending global indices ``rows``."""
    begin, end = np.searchsorted(rows, [chunk.start, chunk.start + len(chunk.x)])
    total.parts[chunk.index] = dense_rows(chunk.x[rows[begin:end] - chunk.start]).astype(dtype)
