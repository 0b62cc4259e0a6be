"""The two-level start: coarse centres of a sample, then the centres of every coarse cell.

About sqrt(k) coarse centres are found on a part of the sample. Every coarse cell gets a share of
the k centres in proportion to its rows, found among these rows alone: that takes about 2 sqrt(k)
distances per row and step where Lloyd's steps on k centres take k.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.threads import on_threads

__all__ = ["COARSE_ROWS", "STEPS", "coarse_centers", "shares", "two_level_start"]

COARSE_ROWS = 100
"""Rows of the sample per coarse centre."""
STEPS = 5
"""Lloyd steps on each level."""


def coarse_centers(x: NDArray[Any], k: int, shift: NDArray[Any]) -> NDArray[Any]:
    """Return (about sqrt(k), d) coarse centres of rows (n, d), n >= 1, in random order."""
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
    """Return starting centres of a sample.

    Parameters
    ----------
    x : (n, d)
        Rows of any real type in random order, at least one.
    weight : (n,) float64 or None
    k : int
        May exceed n: then rows are repeated.
    shift : (d,)
        Near the mean of the data.
    n_threads : int
        No result depends on it.

    Returns
    -------
    centers : (k, d)
    coarse : (about sqrt(k), d)
    labels : (n,) int32
        Approximately the nearest centre of each row.
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
    """Return (m,) integers that add up to k, in proportion to counts by largest remainders.

    None exceeds its count; a count that is not 0 gets at least 1, as far as k allows. k is at most
    the sum of the counts.
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
