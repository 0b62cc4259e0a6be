"""Centres without rows are moved to the rows farthest from their own centres.

What scikit-learn's ``KMeans`` does too, here without order dependence: candidates are ranked by
exact squared distance, ties by global row index, and no two centres go to equal rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, ChunkFunction
from largek_dask.kernels.distances import PackedCenters, nearest, squared_distances
from largek_dask.kernels.sparse import Table, dense_rows
from largek_dask.kernels.statistics import Statistics

__all__ = ["FarthestRows", "relocate_empty"]

Total = TypeVar("Total")


class Reducible(Protocol):
    """What of ``Passes`` is needed here; a batch of rows offers it as well."""

    @property
    def n_features(self) -> int:
        """Features of a row."""

    @property
    def statistics(self) -> Statistics:
        """Statistics of all rows."""

    def reduce(
        self,
        chunk_fn: ChunkFunction,
        *broadcast: Any,
        start: Callable[[], Total],
        combine: Callable[[Total, Total], Total],
    ) -> Any:
        """One map-reduce."""


class FarthestRows:
    """The ``size`` rows with the largest squared distance to their nearest centre."""

    __slots__ = ("distances", "rows", "size", "x")

    def __init__(self, size: int, d: int, dtype: np.dtype[Any]) -> None:
        self.size = size
        self.distances = np.empty(0, np.float64)
        self.rows = np.empty(0, np.int64)
        self.x = np.empty((0, d), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return self.distances.nbytes + self.rows.nbytes + self.x.nbytes

    def add(self, distances: NDArray[np.float64], rows: NDArray[np.int64], x: Table) -> None:
        """Offer rows: squared distances (n,), global indices (n,), coordinates (n, d)."""
        best = np.lexsort((rows, -distances))[: self.size]
        distances = np.concatenate([self.distances, distances[best]])
        rows = np.concatenate([self.rows, rows[best]])
        x = np.concatenate([self.x, dense_rows(x[best]).astype(self.x.dtype)])
        best = np.lexsort((rows, -distances))[: self.size]
        self.distances, self.rows, self.x = distances[best], rows[best], x[best]

    @staticmethod
    def combine(a: FarthestRows, b: FarthestRows) -> FarthestRows:
        """Add ``b`` into ``a``."""
        a.add(b.distances, b.rows, b.x)
        return a


def farthest_chunk(
    chunk: Chunk, total: FarthestRows, centers: PackedCenters, resolution: float
) -> None:
    """Offer the chunk's rows that lie off their centre by more than the resolution."""
    distances = squared_distances(chunk.x, centers, nearest(chunk.x, centers))
    away = distances > resolution
    if chunk.weight is not None:
        away &= chunk.weight > 0
    keep = np.flatnonzero(away)
    if len(keep) > total.size:
        # Enough to hold the `size` farthest and every tie with the last of them.
        threshold = np.partition(distances[keep], -total.size)[-total.size]
        keep = keep[distances[keep] >= threshold]
    rows = keep if chunk.rows is None else chunk.rows[keep]
    total.add(distances[keep], chunk.start + rows, chunk.x[keep])


def relocate_empty(
    passes: Reducible,
    packed: PackedCenters,
    centers: NDArray[Any],
    empty: NDArray[np.int64],
) -> tuple[NDArray[Any], int]:
    """Move the centres ``empty`` to the rows farthest from the centres ``packed``.

    Parameters
    ----------
    passes : Passes, or a batch of their rows
    packed : PackedCenters
        Centres that the rows are assigned to now.
    centers : ndarray of shape (k, d)
        Centres to change a copy of (the means of the rows assigned to ``packed``).
    empty : ndarray of int64
        Clusters without rows.

    Returns
    -------
    centers : ndarray of shape (k, d)
    n_moved : int
        How many were moved: fewer than ``len(empty)`` where fewer distinct rows lie off their
        centres, 0 where every row lies on its centre.
    """
    # A mean of equal rows may differ from them by a step of the sums' grid in every feature.
    step = 2.0**-passes.statistics.grid.bits
    resolution = passes.n_features * (2 * step) ** 2
    # Duplicates of one far row must not take every place, hence some candidates to spare.
    size = 4 * len(empty) + 64
    farthest: FarthestRows = passes.reduce(
        farthest_chunk,
        packed,
        resolution,
        start=partial(FarthestRows, size, passes.n_features, centers.dtype),
        combine=FarthestRows.combine,
    )
    _, first = np.unique(farthest.x, axis=0, return_index=True)
    chosen = np.sort(first)[: len(empty)]
    moved = centers.copy()
    moved[empty[: len(chosen)]] = farthest.x[chosen]
    return moved, len(chosen)
