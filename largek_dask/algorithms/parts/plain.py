"""Nearest centres of dense rows by numpy alone: for a fit that has no time to compile a kernel.

A product of matrices, whose bits are those of whichever BLAS there is, only says which centres come
into question: all that may be nearest within the bound of its error. The squared differences to
these are added up in float64, in the order of the features, and the lowest index wins. So labels do
not depend on BLAS, and beyond 8 features they are those of the kernels.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, TakenRows
from largek_dask.kernels.blocks import dense_rows

__all__ = ["MOST_WORK", "drawn_centers", "label_plainly", "nearest_plainly"]

MOST_WORK = 2e10
"""Most products of a number of a row and one of a centre: beyond it kernels are compiled sooner."""
BLOCK = 1 << 21
"""Distances of a block of rows that are held at a time."""


def drawn_centers(
    rows: TakenRows, k: int, init: str | NDArray[Any], dtype: Any, draws: np.random.Generator
) -> NDArray[Any]:
    """(k, d) distinct rows drawn at random, or the centres that were given.

    Where there are fewer distinct rows than ``k``, some are taken more than once.
    """
    if not isinstance(init, str):
        return np.asarray(init).astype(dtype)
    x = dense_rows(rows.x)
    _, first = np.unique(x, axis=0, return_index=True)
    chosen: NDArray[Any] = x[np.resize(draws.permutation(first), k)].astype(dtype)
    return chosen


def label_plainly(
    passes: Passes, centers: NDArray[Any]
) -> tuple[NDArray[np.int32], float, NDArray[np.float64]] | None:
    """Labels of all rows in one pass, their inertia, and the weight of each cluster's rows.

    None for sparse rows, and where it is too much work.

    Returns
    -------
    labels : (n,) int32
        -1 for rows with NaN or infinity.
    inertia : float
    counts : (k,) float64
    """
    if passes.is_sparse or passes.n_rows * centers.size > MOST_WORK:
        return None
    found: dict[int, tuple[NDArray[np.int32], float, NDArray[np.float64]]] = passes.reduce(
        _label_chunk, centers.astype(np.float64), start=dict, combine=operator.ior
    )
    # In the order of the chunks, whoever had them.
    labels, inertia, counts = zip(*(found[index] for index in sorted(found)), strict=True)
    return np.concatenate(labels), math.fsum(inertia), np.sum(counts, axis=0)


def _label_chunk(chunk: Chunk, total: dict[int, Any], centers: NDArray[np.float64]) -> None:
    x = dense_rows(chunk.x).astype(np.float64)
    labels, distances = nearest_plainly(x, centers)
    weight = np.ones(len(x)) if chunk.weight is None else chunk.weight
    # Rows that are skipped weigh 0, so they count nowhere.
    counts = np.bincount(labels, weight, len(centers))
    if chunk.bad is not None:
        labels[chunk.bad] = -1
    total[chunk.index] = labels, math.fsum(weight * distances), counts


def nearest_plainly(
    x: NDArray[np.float64], centers: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The nearest centre of every row, and the squared distance to it.

    Parameters
    ----------
    x : (n, d) float64
    centers : (k, d) float64

    Returns
    -------
    labels : (n,) int32
        The lowest of equally near ones.
    distances : (n,) float64
    """
    origin = centers.mean(axis=0)
    moved = centers - origin
    lengths = np.einsum("ij,ij->i", moved, moved)
    # Of sums of d products and of what is added to them, whatever their order; doubled for what
    # moving the rows has rounded.
    error = 4 * (x.shape[1] + 4) * np.finfo(np.float64).eps
    labels, distances = np.empty(len(x), np.int32), np.empty(len(x))
    step = max(1, BLOCK // len(centers))
    for begin in range(0, len(x), step):
        rows = slice(begin, begin + step)
        block = x[rows] - origin
        bound = error * (np.einsum("ij,ij->i", block, block) + lengths.max())
        scores = lengths - 2 * (block @ moved.T)
        row, center = np.nonzero(scores <= (scores.min(axis=1) + 2 * bound)[:, None])
        exact = _squared(x[rows], row, centers, center)
        # By row, then by distance, then by index: the first of each row.
        order = np.lexsort((center, exact, row))
        first = order[np.unique(row[order], return_index=True)[1]]
        labels[rows], distances[rows] = center[first], exact[first]
    return labels, distances


def _squared(
    x: NDArray[np.float64],
    row: NDArray[np.int64],
    centers: NDArray[np.float64],
    center: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Squared distances of pairs, added up in the order of the features."""
    total = np.zeros(len(row))
    for j in range(x.shape[1]):
        difference = x[row, j] - centers[center, j]
        total += difference * difference
    return total
