"""Starting centres of samples of sparse rows, which stay sparse: on two levels, or in rounds by D².

On two levels as on dense rows: about sqrt(k) coarse centres are found on a part of the sample, and
in every coarse cell, among its rows alone, its share of the k centres.

In rounds each row is drawn in proportion to its squared distance to the rows drawn before, as by
k-means++ (D. Arthur, S. Vassilvitskii, SODA 2007), but as many in a round as there are already: so
the sample meets k rows in all, in log k passes over it. Sparse rows meet many centres for little
more than a pass over the same rows takes, and rows of few numbers in common have no coarse cells:
if such a pass is affordable, this is the better start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.starts.dense_sample import COARSE_ROWS, LEVEL_STEPS, shares
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers, squared_distances
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint
from largek_dask.kernels.sampling import draw_by_d2, update_d2
from largek_dask.kernels.threads import on_threads

__all__ = ["different_rows", "rounds_start", "sparse_start"]

TRIED = 4
"""Rows drawn per centre to find different ones."""
FAR_COST = 10.0
"""Largest mean cost of the k costliest rows, relative to that of all rows, with which rows drawn
by weight alone are a start. In texts it is 1.2, in counts of cells 4 to 8."""
LEAST_PIECE = 2_048
"""Minimum rows that one thread takes at a time."""

Result = TypeVar("Result")
Labels = NDArray[np.int32]
Weights = NDArray[np.float64]


def sparse_start(
    x: SparseBlock, weight: Weights | None, k: int, grid: FixedPoint, n_threads: int
) -> NDArray[Any]:
    """Return starting centres of a sample of sparse rows.

    Parameters
    ----------
    x : (n, d) compute dtype
        Rows in random order, at least one.
    weight : (n,) float64 or None
        Positive.
    k : int
        May exceed n: then rows are repeated.
    grid : FixedPoint
        Grid of the rows that the sample is from.
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
    order, starts = order_by_label(
        _nearest(x, pack_centers(coarse, grid.shift), n_threads), n_coarse
    )
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


def rounds_start(
    x: SparseBlock,
    weight: Weights,
    k: int,
    grid: FixedPoint,
    generator: np.random.Generator,
    n_threads: int,
) -> NDArray[Any]:
    """Return starting centres of a sample of sparse rows: draw in rounds, then one Lloyd step.

    Parameters
    ----------
    x : (n, d) compute dtype
        At least one row, in an order independent of chunks.
    weight : (n,) float64
        Positive.
    k, grid, n_threads
        As in :func:`sparse_start`.
    generator : Generator

    Returns
    -------
    (k, d) array
    """
    n, d = x.shape
    if n <= k:
        return np.resize(x.toarray(), (k, d))
    d2 = np.full(n, np.inf)
    new, _ = draw_by_d2(weight, None, generator.random(1))
    drawn = new

    def account(packed: PackedCenters, at: slice) -> None:
        update_d2(x[at], packed, d2[at])

    while len(drawn) < k:
        packed = pack_centers(x[new].toarray(), grid.shift)
        _by_pieces(partial(account, packed), n, n_threads)
        most = min(len(drawn), k - len(drawn))
        picks, _ = draw_by_d2(d2, weight, generator.random(most))
        if not len(picks):
            # Every row lies on a centre: some are repeated, empty clusters are moved later.
            break
        new = _different(x, picks)
        drawn = np.concatenate([drawn, new])
    centers: NDArray[Any] = x[np.resize(drawn, k)].toarray()
    sums = ClusterSums(k, d, grid)
    sums.add(x, _nearest(x, pack_centers(centers, grid.shift), n_threads), weight)
    return sums.means(centers)


def different_rows(
    x: SparseBlock,
    weight: Weights,
    k: int,
    grid: FixedPoint,
    generator: np.random.Generator,
    n_threads: int,
) -> tuple[NDArray[Any], Labels] | None:
    """Draw different rows by weight as starting centres.

    Parameters
    ----------
    x : (n, d) compute dtype
    weight : (n,) float64
        Positive.
    k, grid, generator, n_threads
        As in :func:`rounds_start`.

    Returns
    -------
    centers : (k, d) array
    labels : (n,) int32
        The nearest of them.
    None
        Such a start will not do: too many rows are alike, or a few, which drawing by D² would
        find, cost far more than others.
    """
    picks, _ = draw_by_d2(weight, None, generator.random(TRIED * k))
    rows = _different(x, picks)[:k]
    if len(rows) < k:
        return None
    centers: NDArray[Any] = x[rows].toarray()
    packed = pack_centers(centers, grid.shift)
    labels = _nearest(x, packed, n_threads)
    costs = squared_distances(x, packed, labels) * weight
    highest = np.partition(costs, len(x) - k)[-k:]
    # (in this order: means of nothing but zeros are alike)
    if highest.mean() > FAR_COST * costs.mean():
        return None
    return centers, labels


def _different(x: SparseBlock, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of each group of equal rows."""
    kinds: dict[tuple[bytes, bytes], int] = {}
    for row in rows.tolist():
        at = slice(x.indptr[row], x.indptr[row + 1])
        kinds.setdefault((x.indices[at].tobytes(), x.data[at].tobytes()), row)
    return np.array(list(kinds.values()), np.int64)


def _nearest(x: SparseBlock, packed: PackedCenters, n_threads: int) -> Labels:
    """Return (n,) nearest centre of every row."""
    return np.concatenate(_by_pieces(lambda at: nearest(x[at], packed), len(x), n_threads))


def _by_pieces(function: Callable[[slice], Result], n: int, n_threads: int) -> list[Result]:
    """Apply a function to pieces of the rows, on threads; return the results in order."""
    step = max(LEAST_PIECE, -(-n // n_threads))
    return on_threads(n_threads, function, [slice(i, i + step) for i in range(0, n, step)])


def _lloyd(x: SparseBlock, weight: Weights | None, m: int, grid: FixedPoint) -> NDArray[Any]:
    """Return (m, d) centres after Lloyd steps that begin at the first m rows."""
    centers: NDArray[Any] = x[:m].toarray()
    packed_with = partial(pack_centers, shift=grid.shift)
    for _ in range(LEVEL_STEPS):
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
    """Return up to ``most`` rows of the highest cost, without rows of cost 0.

    Equal rows have equal costs at one centre; one of them is enough.
    """
    _, rows = np.unique(np.stack([labels, costs], axis=1), axis=0, return_index=True)
    rows = rows[costs[rows] > 0]
    mass = costs[rows] if weight is None else costs[rows] * weight[rows]
    far: NDArray[np.int64] = rows[np.argsort(-mass, kind="stable")[:most]]
    return far
