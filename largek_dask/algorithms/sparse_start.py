"""The two-level start on sparse rows: as on dense ones, by the kernels that sparse rows have.

About sqrt(k) coarse centres are found on a part of the sample, and in every coarse cell, among its
rows alone, its share of the k centres. The sample stays sparse; beside it there are the centres,
and the sums of the cells that threads are at.
"""

from __future__ import annotations

from functools import partial
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.truncated_start import COARSE_ROWS, STEPS, shares
from largek_dask.kernels.distances import nearest, pack_centers, squared_distances
from largek_dask.kernels.sparse import SparseBlock
from largek_dask.kernels.sums import ClusterSums, FixedPoint
from largek_dask.kernels.threads import on_threads
from largek_dask.kernels.truncated import order_by_label

__all__ = ["sparse_start"]

LEAST_PIECE = 2_048
"""Rows that one thread finds the cells of, at least."""

Labels = NDArray[np.int32]
Weights = NDArray[np.float64]


def sparse_start(
    x: SparseBlock, weight: Weights | None, k: int, grid: FixedPoint, n_threads: int
) -> NDArray[Any]:
    """Starting centres of a sample of sparse rows.

    Parameters
    ----------
    x : (n, d) compute dtype
        Rows in random order, at least one.
    weight : (n,) float64 or None
        Positive.
    k : int
        May exceed n: then rows are repeated.
    grid : FixedPoint
        Of the rows that the sample is from.
    n_threads : int
        No result depends on it.

    Returns
    -------
    (k, d) array
    """
    n, d = x.shape
    if n <= k:
        return np.resize(x.toarray(), (k, d))
    n_coarse = max(1, isqrt(k))
    few = slice(0, COARSE_ROWS * n_coarse)
    coarse = _lloyd(x[few], None if weight is None else weight[few], n_coarse, grid)
    order, starts = order_by_label(_cells(x, coarse, grid, n_threads), n_coarse)
    sizes = shares(np.diff(starts), k)
    ends = np.cumsum(sizes)
    centers = np.empty((k, d), coarse.dtype)

    def search(cell: int) -> None:
        # Rows lie in random order: the first ones of a cell are random ones.
        own = order[starts[cell] : starts[cell + 1]]
        of = None if weight is None else weight[own]
        m = int(sizes[cell])
        centers[ends[cell] - m : ends[cell]] = _lloyd(x[own], of, m, grid)

    on_threads(n_threads, search, np.flatnonzero(sizes).tolist())
    return centers


def _cells(x: SparseBlock, coarse: NDArray[Any], grid: FixedPoint, n_threads: int) -> Labels:
    """(n,) nearest coarse centre of every row."""
    packed = pack_centers(coarse, grid.shift)
    step = max(LEAST_PIECE, -(-len(x) // n_threads))

    def label(begin: int) -> Labels:
        return nearest(x[begin : begin + step], packed)

    return np.concatenate(on_threads(n_threads, label, range(0, len(x), step)))


def _lloyd(x: SparseBlock, weight: Weights | None, m: int, grid: FixedPoint) -> NDArray[Any]:
    """(m, d) centres after Lloyd steps on rows, of which the first m are what they begin at."""
    centers: NDArray[Any] = x[:m].toarray()
    packed_with = partial(pack_centers, shift=grid.shift)
    for _ in range(STEPS):
        labels = nearest(x, packed_with(centers))
        sums = ClusterSums(m, x.n_features, grid)
        sums.add(x, labels, weight)
        centers = sums.means(centers)
        empty = np.flatnonzero(np.bincount(labels, minlength=m) == 0)
        if len(empty):
            costs = squared_distances(x, packed_with(centers), labels).astype(np.float64)
            far = _farthest(costs, weight, labels, len(empty))
            centers[empty[: len(far)]] = x[far].toarray()
    return centers


def _farthest(
    costs: NDArray[np.float64], weight: Weights | None, labels: Labels, most: int
) -> NDArray[np.int64]:
    """Rows that cost most, at most so many, and none of those that cost nothing.

    Rows that are alike cost alike beside one centre; one of them is enough.
    """
    _, rows = np.unique(np.stack([labels, costs], axis=1), axis=0, return_index=True)
    rows = rows[costs[rows] > 0]
    mass = costs[rows] if weight is None else costs[rows] * weight[rows]
    far: NDArray[np.int64] = rows[np.argsort(-mass, kind="stable")[:most]]
    return far
