"""k-means inside every cell of a coarse partition, all cells in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import pack_centers
from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.truncated import Lists, search_lists

__all__ = ["cell_means"]

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]


def cell_means(
    x: Array,
    order: Labels,
    starts: Places,
    sizes: Places,
    picks: Places,
    shift: Array,
    n_steps: int = 5,
    weight: NDArray[np.float64] | None = None,
) -> tuple[Array, Labels]:
    """Lloyd steps inside every cell, from rows of the cell.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (cells + 1,)
        ``order[starts[c] : starts[c + 1]]`` are the rows of cell c.
    sizes : int64 array (cells,)
        How many centres each cell gets, k in all; none for a cell without rows.
    picks : int64 array (k,)
        Where in `order` the row stands that each centre begins at, within its own cell.
    shift : array (d,)
        About the mean of the data.
    n_steps : int
        At least 1.
    weight : float64 array (n,), optional

    Returns
    -------
    centers : array (k, d) of the compute dtype
        Those of cell c after those of cell c - 1. One that lost its rows in a step goes to the
        row of its cell that was farthest from its centre, if any was away from it.
    labels : int32 array (n,)
        The centre of each row, of its cell, before the last means were taken; -1 elsewhere.
    """
    _check(order, starts, sizes, picks, n_steps)
    k = len(picks)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    lists = Lists(offsets, np.arange(k, dtype=np.int32))
    dtype = compute_dtype(x.dtype)
    centers = x[order[picks]].astype(dtype)
    labels = np.full(len(x), -1, np.int32)
    upper, lower = np.zeros(len(x), dtype), np.zeros(len(x), dtype)
    given = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
    for _ in range(n_steps):
        packed = pack_centers(centers, shift)
        search_lists(x, order, starts, lists, packed, labels, upper, lower, skip=False, keep=True)
        _means(x, order, starts, readonly(offsets), labels, upper, given, centers)
    return centers, labels


def _check(order: Labels, starts: Places, sizes: Places, picks: Places, n_steps: int) -> None:
    if len(sizes) != len(starts) - 1 or sizes.sum() != len(picks):
        raise ParameterError(
            "sizes must have a number for every cell, picks as many as they add to."
        )
    if (sizes > np.diff(starts)).any():
        raise ParameterError("a cell has fewer rows than it is to get centres.")
    if n_steps < 1:
        raise ParameterError(f"n_steps must be at least 1, got {n_steps}.")
    cells = np.repeat(np.arange(len(sizes)), sizes)
    if not ((starts[cells] <= picks) & (picks < starts[cells + 1])).all():
        raise ParameterError("every centre must begin at a row of its own cell.")


@njit
def _means(
    x: Any, order: Any, starts: Any, offsets: Any, labels: Any, upper: Any, weight: Any,
    centers: Any,
) -> None:  # fmt: skip
    """Means of the rows of each centre; rows are added in the order of `order`."""
    d = x.shape[1]
    for c in range(starts.size - 1):
        first, size = offsets[c], offsets[c + 1] - offsets[c]
        sums, totals = np.zeros((size, d)), np.zeros(size)
        for p in range(starts[c], starts[c + 1] if size > 0 else starts[c]):
            i = order[p]
            j = labels[i] - first
            totals[j] += weight[i]
            for f in range(d):
                sums[j, f] += weight[i] * np.float64(x[i, f])
        for j in range(size):
            if totals[j] > 0:
                for f in range(d):
                    centers[first + j, f] = sums[j, f] / totals[j]
                continue
            far, at = 0.0, -1
            for p in range(starts[c], starts[c + 1]):
                away = np.float64(upper[order[p]])
                if weight[order[p]] * away * away > far:
                    far, at = weight[order[p]] * away * away, p
            if at >= 0:
                upper[order[at]] = 0  # nobody else goes there
                for f in range(d):
                    centers[first + j, f] = x[order[at], f]
