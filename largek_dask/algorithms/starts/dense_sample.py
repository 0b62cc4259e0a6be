"""Starts on a sample of dense rows in the driver's process: on two levels, or the best of several.

On two levels, about sqrt(k) coarse centres are found on a part of the sample. Every coarse cell
gets a share of the k centres in proportion to its rows, found among these rows alone: that takes
about 2 sqrt(k) distances per row and step where Lloyd's steps on k centres take k.

With few clusters the start decides, and costs next to nothing compared with passes over all rows:
then several greedy k-means++ starts are made.
"""

from __future__ import annotations

from math import isqrt, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.kernels.blocks import Table
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.dense.greedy import greedy_rows
from largek_dask.kernels.distances import nearest, pack_centers, squared_distances
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.threads import on_threads

__all__ = [
    "COARSE_ROWS",
    "LEVEL_STEPS",
    "coarse_centers",
    "cost_of",
    "greedy_start",
    "n_starts",
    "shares",
    "two_level_start",
]

COARSE_ROWS = 100
"""Rows of the sample per coarse centre."""
LEVEL_STEPS = 5
"""Lloyd steps on each level."""

FIRST_STEPS, BEST_STEPS = 3, 10
"""Lloyd steps from every start, and from the best ones of these."""
KEPT = 4
"""One start in four is among the best."""
MOST_STARTS = 64
"""Maximum number of starts."""
PASSES = 16
"""Maximum cost of all starts together, in passes over all rows, ..."""
LEAST_WORK = 1 << 25
"""... or in products, if that is more: a few hundredths of a second."""


def coarse_centers(x: NDArray[Any], k: int, shift: NDArray[Any]) -> NDArray[Any]:
    """Return (about sqrt(k), d) coarse centres of rows (n, d), n >= 1, in random order."""
    n_coarse = max(1, min(isqrt(k), len(x)))
    n = min(len(x), COARSE_ROWS * n_coarse)
    picks = np.arange(n_coarse)
    places = np.arange(n, dtype=np.int32)
    return cell_means(
        x[:n], places, np.array([0, n]), np.array([n_coarse]), picks, shift, LEVEL_STEPS
    )[0]


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
        x, order, starts, sizes, first + rank, shift, LEVEL_STEPS, weight, n_threads=n_threads
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


# --- the best of several -------------------------------------------------------------------------


def n_starts(n_rows: int, n_sampled: int, n_features: int, k: int) -> int:
    """Return the number of starts that pay on a sample of a table."""
    a_row = n_features * k
    one = n_sampled * a_row * (FIRST_STEPS + BEST_STEPS // KEPT + _candidates(k))
    return max(1, min(MOST_STARTS, max(PASSES * n_rows * a_row, LEAST_WORK) // max(one, 1)))


def greedy_start(
    x: NDArray[Any],
    weight: NDArray[np.float64] | None,
    k: int,
    shift: NDArray[Any],
    rng: Rng,
    n_starts: int,
    n_threads: int,
) -> tuple[NDArray[Any], float]:
    """Return starting centres of a sample.

    Parameters
    ----------
    x : (n, d)
        Rows, at least one.
    weight : (n,) float64 or None
    k : int
        May exceed n: then rows are repeated.
    shift : (d,)
        Near the mean of the data.
    rng : Rng
    n_starts : int
    n_threads : int
        No result depends on it.

    Returns
    -------
    centers : (k, d) of the compute dtype
    cost : float
        Weighted sum of squared distances of the rows to them.
    """
    dtype, n = compute_dtype(x.dtype), len(x)
    if n <= k:
        return np.resize(x.astype(dtype), (k, x.shape[1])), 0.0
    columns = np.ascontiguousarray(x.T, dtype)
    mass = np.ones(n) if weight is None else weight
    shape = k, _candidates(k)

    def begun(start: int) -> NDArray[np.int64]:
        return greedy_rows(columns, mass, rng.generator(start, "greedy").random(shape))

    picks = on_threads(n_threads, begun, range(n_starts))
    found = _lloyd(x, weight, picks, shift, FIRST_STEPS, n_threads)
    costs = [cost_of(x, weight, centers, shift) for centers in found]
    best = sorted(range(n_starts), key=costs.__getitem__)[: -(-n_starts // KEPT)]
    found = _lloyd(x, weight, [picks[start] for start in best], shift, BEST_STEPS, n_threads)
    costs = [cost_of(x, weight, centers, shift) for centers in found]
    least = min(range(len(best)), key=costs.__getitem__)
    return found[least], costs[least]


def _lloyd(
    x: NDArray[Any],
    weight: NDArray[np.float64] | None,
    picks: list[NDArray[np.int64]],
    shift: NDArray[Any],
    n_steps: int,
    n_threads: int,
) -> list[NDArray[Any]]:
    """Return centres after ``n_steps`` Lloyd steps from each of several starts at rows."""
    n, m, k = len(x), len(picks), len(picks[0])
    # The starts are as many cells, all of the same rows.
    order = np.tile(np.arange(n, dtype=np.int32), m)
    places = np.concatenate([start * n + rows for start, rows in enumerate(picks)])
    begins, sizes = np.arange(m + 1) * n, np.full(m, k)
    found, _ = cell_means(
        x, order, begins, sizes, places, shift, n_steps, weight, n_full=n_steps, n_threads=n_threads
    )
    return np.split(found, m)


def cost_of(
    x: Table, weight: NDArray[np.float64] | None, centers: NDArray[Any], shift: NDArray[Any]
) -> float:
    """Return the weighted sum of squared distances of rows to their nearest centres."""
    packed, total = pack_centers(centers, shift), ExactSums(1)
    total.add(squared_distances(x, packed, nearest(x, packed)), weight)
    return float(total.value)


def _candidates(k: int) -> int:
    """Return the number of rows tried for each centre, as in scikit-learn."""
    return 2 + int(log(k))
