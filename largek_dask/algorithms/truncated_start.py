"""The two-level start: coarse centres of a sample, then the centres of every coarse cell.

About sqrt(k) coarse centres are found on a part of the sample. Every coarse cell gets a share of
the k centres in proportion to its rows, found among these rows alone: that takes about 2 sqrt(k)
distances a row and step where Lloyd's steps on k centres take k.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.truncated_rows import Order
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.threads import on_threads

__all__ = ["cells_order", "coarse_centers", "is_restarted", "sample_sizes", "two_level_start"]

FIRST_ROWS, START_ROWS = 8, 32
"""Rows a centre of the sample that gives the first centres, and of the one to go on from."""
GROWTH = 4
"""Further samples are so many times as large as the one before."""
LARGEST_SHARE = 3
"""A sample has at most one row out of so many."""
START_VALUES, LARGEST_VALUES = 1 << 25, 1 << 26
"""Values (rows times features) of the sample to go on from, at most, and of further ones."""
LEAST_ROWS = 4
"""Rows a centre of any sample, however many values that are."""
WHOLE_VALUES = 1 << 27
"""Values up to which few rows a centre are all taken."""
COARSE_ROWS = 100
"""Rows of the sample a coarse centre."""
NEAR_CELLS = 3
"""Coarse cells whose centres the rows of one of them meet at first."""
STEPS = 5
"""Lloyd steps on each level."""
RESTARTED = 32
"""Up to so many clusters the best of several starts is taken, ..."""
RESTART_ROWS, LEAST_RESTART_ROWS = 64, 2_048
"""... on so many rows a centre, and at least so many."""


def is_restarted(k: int) -> bool:
    """Whether there are so few clusters that the best of several starts is taken."""
    return k <= RESTARTED


def sample_sizes(n_rows: int, n_features: int, k: int) -> tuple[int, ...]:
    """Rows of the samples that the search begins on, in ascending order; at least one."""
    restarted = is_restarted(k)
    first = max(RESTART_ROWS * k, LEAST_RESTART_ROWS) if restarted else FIRST_ROWS * k
    if n_rows <= LARGEST_SHARE * first and n_rows * n_features <= WHOLE_VALUES:
        return (n_rows,)
    most = n_rows // LARGEST_SHARE
    wanted = first if restarted else START_ROWS * k
    sizes = [min(wanted, most, max(LEAST_ROWS * k, START_VALUES // n_features))]
    while GROWTH * sizes[-1] <= min(most, LARGEST_VALUES // n_features):
        sizes.append(GROWTH * sizes[-1])
    return (first, *sizes) if GROWTH * first <= sizes[0] else tuple(sizes)


def coarse_centers(x: NDArray[Any], k: int, shift: NDArray[Any]) -> NDArray[Any]:
    """(about sqrt(k), d) coarse centres of rows (n, d), n >= 1, that lie in random order."""
    n_coarse = max(1, min(isqrt(k), len(x)))
    n = min(len(x), COARSE_ROWS * n_coarse)
    picks = np.arange(n_coarse)
    places = np.arange(n, dtype=np.int32)
    return cell_means(x[:n], places, np.array([0, n]), np.array([n_coarse]), picks, shift, STEPS)[0]


def two_level_start(
    x: NDArray[Any],
    weight: NDArray[np.float64] | None,
    k: int,
    shift: NDArray[Any],
    n_threads: int,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32]]:
    """Starting centres of a sample.

    Parameters
    ----------
    x : (n, d)
        Rows of any real type in random order, at least one.
    weight : (n,) float64 or None
    k : int
        May exceed n: then rows are repeated.
    shift : (d,)
        About the mean of the data.
    n_threads : int
        No result depends on it.

    Returns
    -------
    centers : (k, d)
    coarse : (about sqrt(k), d)
    labels : (n,) int32
        About the nearest centre of each row.
    """
    coarse = coarse_centers(x, k, shift)
    if len(x) <= k:
        rows = x.astype(coarse.dtype, copy=False)
        return np.resize(rows, (k, x.shape[1])), coarse, np.arange(len(x), dtype=np.int32)
    packed = pack_centers(coarse, shift)
    cells = np.empty(len(x), np.int32)
    step = -(-len(x) // n_threads)

    def label(begin: int) -> None:
        nearest(x[begin : begin + step], packed, cells[begin : begin + step])

    on_threads(n_threads, label, range(0, len(x), step))
    order, starts = order_by_label(cells, len(coarse))
    sizes = shares(np.diff(starts), k)

    # Rows lie in random order: the first ones of a cell are random ones.
    first = np.repeat(starts[:-1], sizes)
    rank = np.arange(k) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    centers, labels = cell_means(
        x, order, starts, sizes, first + rank, shift, STEPS, weight, n_threads=n_threads
    )
    return centers, coarse, labels


def shares(counts: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """(m,) integers that add up to k, in proportion to counts by largest remainders.

    No more than the count; at least 1 where there is any, as far as k allows. k is at most the sum
    of the counts.
    """
    total = int(counts.sum())
    wanted = counts * (k / total)
    sizes = np.minimum(np.maximum(np.floor(wanted), counts > 0), counts).astype(np.int64)
    for sign, left in ((1, k - int(sizes.sum())), (-1, int(sizes.sum()) - k)):
        while left > 0:
            open_to = sizes < counts if sign > 0 else sizes > (1 if sizes.max() > 1 else 0)
            rank = np.argsort(np.where(open_to, sign * (sizes - wanted), np.inf), kind="stable")
            chosen = rank[: min(left, int(np.count_nonzero(open_to)))]
            sizes[chosen] += sign
            left -= len(chosen)
    out: NDArray[np.int64] = sizes
    return out


def cells_order(centers: NDArray[Any], coarse: NDArray[Any], shift: NDArray[Any]) -> Order:
    """A pass in which rows meet the centres of their nearest coarse cell, and of those near it."""
    cells = nearest(centers, pack_centers(coarse, shift))
    members, starts = order_by_label(cells, len(coarse))
    near = nearest_centers(pack_centers(coarse, shift), min(NEAR_CELLS, len(coarse)))
    lists = []
    for own in near:
        met = np.concatenate([members[starts[c] : starts[c + 1]] for c in own])
        # Cells without a centre anywhere near: the nearest one there is.
        lists.append(np.sort(met) if len(met) else _lent(coarse[own[:1]], centers, shift))
    offsets = np.concatenate([[0], np.cumsum([len(met) for met in lists])])
    return Order("cells", centers, shift, np.concatenate(lists), offsets, coarse)


def _lent(coarse: NDArray[Any], centers: NDArray[Any], shift: NDArray[Any]) -> NDArray[np.int32]:
    return nearest(coarse, pack_centers(centers, shift))
