"""Greedy k-means++ in one call, for rows that fit into a cache.

The algorithm k-means++ is by D. Arthur and S. Vassilvitskii (k-means++: the advantages of careful
seeding, SODA 2007). The greedy form draws several candidates for each centre and keeps the best.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.jit import njit

_LANES = 8
"""Number of partial sums; rows are added to the sums in turn."""


def greedy_rows(
    columns: NDArray[Any], weight: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Choose initial centres among the rows by greedy k-means++.

    Squared distances are summed in the order of the features, so draws do not depend on the
    machine's vector width.

    Parameters
    ----------
    columns : (d, n) float32 or float64, C-contiguous
        The rows, transposed so that distances are computed for many rows at a time.
    weight : (n,) float64
        Weights, not negative, with a positive sum.
    uniforms : (k, m) float64 in [0, 1)
        Random numbers that draw the m candidates of each centre. The first centre is drawn by
        weight alone, with the first random number.

    Returns
    -------
    (k,) int64
        Chosen rows. If fewer than k rows are distinct, the first chosen row fills the rest.
    """
    k, m = uniforms.shape
    n = columns.shape[1]
    picks = np.empty(k, np.int64)
    d2, edges = np.full(n, np.inf, columns.dtype), np.empty(n)
    tried = np.empty((m, n), columns.dtype)
    given = readonly(np.ascontiguousarray(weight, np.float64))
    _greedy(readonly(columns), given, readonly(uniforms), d2, edges, tried, picks)
    return picks


@njit
def _greedy(columns, weight, uniforms, d2, edges, tried, picks):
    k, m = uniforms.shape
    n = columns.shape[1]
    parts = np.empty(_LANES)
    total = 0.0
    for i in range(n):
        total += weight[i]
        edges[i] = total
    for t in range(k):
        best, left = -1, np.inf
        for c in range(1 if t == 0 else m):
            row = _drawn(edges, uniforms[t, c])
            _distances(columns, row, tried[c])
            now = _left(weight, d2, tried[c], parts)
            if now < left:
                left, best = now, c
                picks[t] = row
        total = 0.0
        for i in range(n):
            d2[i] = min(d2[i], tried[best, i])
            total += weight[i] * np.float64(d2[i])
            edges[i] = total
        if total == 0.0:
            # Every row coincides with a centre.
            for rest in range(t + 1, k):
                picks[rest] = picks[0]
            break


@njit
def _left(weight, d2, tried, parts):
    """Return the cost that remains if a candidate becomes a centre."""
    n = weight.shape[0]
    whole = n // _LANES * _LANES
    parts[:] = 0.0
    for begin in range(0, whole, _LANES):
        for q in range(_LANES):
            i = begin + q
            parts[q] += weight[i] * np.float64(min(d2[i], tried[i]))
    for i in range(whole, n):
        parts[i - whole] += weight[i] * np.float64(min(d2[i], tried[i]))
    total = 0.0
    for q in range(_LANES):
        total += parts[q]
    return total


@njit
def _drawn(edges, uniform):
    """Draw a row with a probability proportional to its mass, given a uniform random number."""
    n = edges.shape[0]
    target = uniform * edges[n - 1]
    low, high = 0, n - 1
    # If the target is rounded up to the total mass, return the first row that reaches it.
    while low < high:
        middle = (low + high) // 2
        if edges[middle] > target or edges[middle] == edges[n - 1]:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def _distances(columns, row, out):
    d, n = columns.shape
    for i in range(n):
        out[i] = 0
    for f in range(d):
        value = columns[f, row]
        for i in range(n):
            gap = columns[f, i] - value
            out[i] += gap * gap
