"""Reduction that every job needs: the statistics of the rows."""

from __future__ import annotations

from largek_dask.algorithms.base import Chunk
from largek_dask.kernels.exact.statistics import RowScan

__all__ = ["scan_chunk"]


def scan_chunk(chunk: Chunk, total: RowScan) -> None:
    """Add a chunk to the statistics; rows with NaN or infinity are counted, not added."""
    total.add(chunk.x, chunk.weight, chunk.start)
