"""Relocation of centres without rows to the rows farthest from their centres.

Scikit-learn's ``KMeans`` relocates centres as well. Here the result does not depend on the order of
rows: candidates are distinct rows, ranked by exact squared distance and then by global row index.
Two equal rows count once, like one row of weight 2.

A row gets a centre only if its cluster contains other rows: a cluster of equal rows needs no second
centre, however far their rounded mean is from them. If every cluster contains equal rows only, the
number of distinct rows is known.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, RowSlice, RowState
from largek_dask.kernels.blocks import SparseBlock, Table, dense_rows
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, squared_distances


class FarthestRows:
    """The ``size`` farthest distinct rows, and the clusters that contain distinct rows.

    Rows are compared in the compute ``dtype``.
    """

    __slots__ = ("distances", "labels", "rows", "several", "single", "single_x", "size", "x")

    def __init__(self, size: int, k: int, d: int, dtype: np.dtype[Any]) -> None:
        self.size = size
        self.distances = np.empty(0, np.float64)
        """Squared distances of the farthest rows to their centres, descending."""
        self.rows = np.empty(0, np.int64)
        """Global indices of the farthest rows; the lowest index of equal rows."""
        self.labels = np.empty(0, np.int32)
        self.x = np.empty((0, d), dtype)
        self.several = np.zeros(k, np.bool_)
        """Mask of clusters that contain distinct rows."""
        self.single = np.empty(0, np.int32)
        """Indices of clusters whose rows are all equal, ascending."""
        self.single_x = np.empty((0, d), dtype)
        """Coordinates of one row of each cluster in ``single``."""

    @property
    def nbytes(self) -> int:
        names = (name for name in self.__slots__ if name != "size")
        return sum(getattr(self, name).nbytes for name in names)

    def add(
        self,
        distances: NDArray[np.float64],
        rows: NDArray[np.int64],
        labels: NDArray[np.int32],
        x: Table,
    ) -> None:
        """Add rows (n, d) with their squared distances, global indices and clusters."""
        x = x.astype(self.x.dtype)
        best = _farthest(distances, rows, x, self.size, self.least)
        distances = np.concatenate([self.distances, distances[best]])
        rows = np.concatenate([self.rows, rows[best]])
        labels = np.concatenate([self.labels, labels[best]])
        together = np.concatenate([self.x, dense_rows(x[best])])
        best = _farthest(distances, rows, together, self.size)
        self.distances, self.rows = distances[best], rows[best]
        self.labels, self.x = labels[best], together[best]

    @property
    def least(self) -> float:
        """Squared distance below which no row can be among the farthest."""
        return float(self.distances[-1]) if len(self.distances) == self.size else 0.0

    def compare(self, distances: NDArray[np.float64], labels: NDArray[np.int32], x: Table) -> None:
        """Find clusters that contain distinct rows; all rows must be passed."""
        order = np.flatnonzero(~self.several[labels])
        if not len(order):
            return
        order = order[np.argsort(labels[order], kind="stable")]
        starts, sizes = _runs(labels[order])
        own = distances[order]
        # Equal rows have equal distances, so most clusters need no comparison of rows.
        alike = np.minimum.reduceat(own, starts) == np.maximum.reduceat(own, starts)
        self.several[labels[order[starts[~alike]]]] = True
        order = order[np.repeat(alike, sizes)]
        if not len(order):
            return
        starts, sizes = _runs(labels[order])
        numbers = _numbers(x[order].astype(self.x.dtype))
        differ = numbers != np.repeat(numbers[starts], sizes)
        self.several[labels[order[differ]]] = True
        firsts = order[starts]
        self._compare_singles(labels[firsts], dense_rows(x[firsts]).astype(self.x.dtype))

    def _compare_singles(self, labels: NDArray[np.int32], x: NDArray[Any]) -> None:
        """Compare one row of each cluster in ``labels``, ascending, with the row known so far."""
        labels = np.concatenate([self.single, labels])
        x = np.concatenate([self.single_x, x])
        order = np.argsort(labels, kind="stable")
        before, after = order[:-1], order[1:]
        twice = labels[before] == labels[after]
        differ = (x[before[twice]] != x[after[twice]]).any(axis=1)
        self.several[labels[after[twice][differ]]] = True
        first = np.concatenate([[True], ~twice])[: len(order)]
        order = order[first & ~self.several[labels[order]]]
        self.single, self.single_x = labels[order], x[order]

    @staticmethod
    def combine(a: FarthestRows, b: FarthestRows) -> FarthestRows:
        """Add ``b`` into ``a``."""
        a.add(b.distances, b.rows, b.labels, b.x)
        a.several |= b.several
        a._compare_singles(b.single, b.single_x)
        return a


def _farthest(
    distances: NDArray[np.float64], rows: NDArray[np.int64], x: Table, size: int, least: float = 0.0
) -> NDArray[np.int64]:
    """Return the ``size`` farthest distinct rows, farthest first; of equal rows, the first."""
    kept = np.flatnonzero(distances >= least)
    values = np.unique(distances[kept])
    if len(values) > size:
        # Different distances imply distinct rows, so nearer rows are not needed.
        kept = kept[distances[kept] >= values[-size]]
    kept = kept[np.lexsort((rows[kept], -distances[kept]))]
    _, first = np.unique(_numbers(x[kept]), return_index=True)
    chosen: NDArray[np.int64] = kept[np.sort(first)[:size]]
    return chosen


def _numbers(x: Table) -> NDArray[np.int64]:
    """Return (n,) integers, one per row, that are equal for equal rows."""
    if isinstance(x, SparseBlock):
        known: dict[tuple[bytes, bytes], int] = {}
        numbers = np.empty(len(x), np.int64)
        for i in range(len(x)):
            at = slice(x.indptr[i], x.indptr[i + 1])
            data = x.data[at]
            stored = data != 0
            key = data[stored].tobytes(), x.indices[at][stored].tobytes()
            numbers[i] = known.setdefault(key, len(known))
        return numbers
    plain = np.ascontiguousarray(x + x.dtype.type(0))  # -0 becomes 0
    values = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1])))
    _, numbers = np.unique(values.ravel(), return_inverse=True)
    return numbers.astype(np.int64)


def _runs(labels: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and length of each run of equal values in ascending labels."""
    starts = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
    return starts, np.diff(np.concatenate([starts, [len(labels)]]))


def farthest_chunk(
    chunk: Chunk, total: FarthestRows, centers: PackedCenters, several: NDArray[np.bool_] | None
) -> None:
    """Add the rows of a chunk that differ from their centre.

    If the chunk has row state, it contains the labels. ``several`` is a mask of the clusters to
    search. If None, all clusters are searched, and those with distinct rows are recorded.
    """
    known = chunk.state
    labels = nearest_pruned(chunk.x, centers)[0] if known is None else known["labels"]
    distances = squared_distances(chunk.x, centers, labels)
    x = chunk.x
    rows = chunk.numbers()
    if chunk.weight is not None:
        present = np.flatnonzero(chunk.weight > 0)
        labels, distances, rows, x = labels[present], distances[present], rows[present], x[present]
    away = distances > 0
    if several is None:
        total.compare(distances, labels, x)
    else:
        away &= several[labels]
    # Do not copy rows that are too near.
    keep = np.flatnonzero(away & (distances >= total.least))
    total.add(distances[keep], rows[keep], labels[keep], x[keep])


class Relocation(NamedTuple):
    centers: NDArray[Any]
    n_moved: int
    distinct: tuple[NDArray[np.int32], NDArray[Any]] | None
    """Clusters (n,) and their rows (n, d) if all rows of every cluster are equal, otherwise
    None."""


def relocate_empty(
    passes: Passes,
    packed: PackedCenters,
    centers: NDArray[Any],
    empty: NDArray[np.int64],
    rows: RowSlice | None = None,
    state: RowState | None = None,
) -> Relocation:
    """Move centres without rows to the rows that are farthest from their own centres.

    Parameters
    ----------
    passes : Passes
    packed : PackedCenters
        Centres to which the rows are assigned now.
    centers : ndarray of shape (k, d)
        Centres to change in a copy (the means of the rows assigned to ``packed``).
    empty : ndarray of int64
        Indices of clusters without rows. Some stay empty if too few clusters hold distinct rows.
    rows : RowSlice, optional
        The rows that are assigned to centres; None for all rows.
    state : RowState, optional
        Row state with ``labels``, if the nearest centres are known.
    """

    def search(several: NDArray[np.bool_] | None) -> FarthestRows:
        found: FarthestRows = passes.reduce(
            farthest_chunk,
            packed,
            several,
            start=partial(FarthestRows, len(empty), len(centers), passes.n_features, centers.dtype),
            combine=FarthestRows.combine,
            state=state,
            rows=rows,
        )
        return found

    found = search(None)
    several = found.several
    if not several.any():
        return Relocation(centers, 0, (found.single, found.single_x))
    x = found.x[several[found.labels]]
    if len(x) < len(found.x) == found.size:
        # Rows of clusters of equal rows took up candidates, so search again without them.
        x = search(several).x
    moved = centers.copy()
    moved[empty[: len(x)]] = x
    n_moved = int(np.count_nonzero((moved[empty] != centers[empty]).any(axis=1)))
    return Relocation(moved, n_moved, None)


def returns(centers: NDArray[Any], before: NDArray[Any] | None) -> bool:
    """Return True if the centres equal those of two steps ago, so the fit would cycle forever.

    Rows that differ by less than a grid step have the same mean. Two centres moved to such rows
    coincide afterwards, and one of them is empty again.
    """
    return before is not None and np.array_equal(centers, before)
