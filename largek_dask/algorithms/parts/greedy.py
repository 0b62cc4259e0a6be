"""The best of several greedy k-means++ starts, on a sample in the driver's process.

With few clusters the start decides, and costs next to nothing compared with passes over all rows.
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.kernels.blocks import Table
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.dense.greedy import greedy_rows
from largek_dask.kernels.distances import nearest, pack_centers, squared_distances
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.threads import on_threads

__all__ = ["cost_of", "greedy_start", "n_starts"]

FIRST_STEPS, STEPS = 3, 10
"""Lloyd steps from every start, and from the best ones of these."""
KEPT = 4
"""One start in four is among the best."""
MOST_STARTS = 64
"""Maximum number of starts."""
PASSES = 16
"""Maximum cost of all starts together, in passes over all rows, ..."""
LEAST_WORK = 1 << 25
"""... or in products, if that is more: a few hundredths of a second."""


def n_starts(n_rows: int, n_sampled: int, n_features: int, k: int) -> int:
    """Return the number of starts that pay on a sample of a table."""
    a_row = n_features * k
    one = n_sampled * a_row * (FIRST_STEPS + STEPS // KEPT + _candidates(k))
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
    found = _lloyd(x, weight, [picks[start] for start in best], shift, STEPS, n_threads)
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
    packed, total = pack_centers(centers, shift), Squares(1)
    total.add(squared_distances(x, packed, nearest(x, packed)), weight)
    return float(total.value)


def _candidates(k: int) -> int:
    """Return the number of rows tried for each centre, as in scikit-learn."""
    return 2 + int(log(k))
