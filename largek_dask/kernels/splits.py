"""What it would gain to split a cluster in two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.jit import njit, readonly
from largek_dask.kernels.rows import compute_dtype

__all__ = ["split_clusters"]

_POWER_STEPS = 3
_STEPS = 4

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]


def split_clusters(
    x: Array,
    order: Labels,
    starts: Places,
    clusters: NDArray[Any],
    centers: Array,
    weight: NDArray[np.float64] | None = None,
    max_rows: int = 256,
) -> tuple[NDArray[np.float64], Array]:
    """Two halves of each given cluster, and how much smaller they make the cost.

    A plane across the direction along which the rows lie widest (a few steps of the power method
    from the farthest row) cuts them in two, and a few steps of 2-means move it.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (k + 1,)
        ``order[starts[j] : starts[j + 1]]`` are the rows of cluster j.
    clusters : integer array (c,)
        Which clusters to split.
    centers : array (k, d)
    weight : float64 array (n,), optional
    max_rows : int
        Of more rows, so many evenly spaced ones are looked at.

    Returns
    -------
    gains : float64 array (c,)
        By how much the weighted sum of squared distances of all rows of the cluster would fall;
        0 where there is nothing to split.
    halves : array (c, 2, d) of the compute dtype
        The two means; the centre twice where there is nothing to split.
    """
    dtype = compute_dtype(x.dtype)
    gains = np.zeros(len(clusters))
    halves = np.repeat(centers[clusters][:, None].astype(dtype), 2, axis=1)
    for number, j in enumerate(clusters):
        rows = order[starts[j] : starts[j + 1]]
        if len(rows) < 2:
            continue
        kept = min(len(rows), max_rows)
        rows = rows[np.arange(kept) * len(rows) // kept]
        values = x[rows].astype(np.float64) - centers[j]
        given = np.ones(kept) if weight is None else weight[rows]
        gain = _halve(readonly(values), readonly(given), halves[number])
        gains[number] = gain * (starts[j + 1] - starts[j]) / kept
    return gains, halves


@njit
def _halve(y: Any, weight: Any, halves: Any) -> Any:
    """Move both halves, which are the centre, to the means of two sides; the gain."""
    n, d = y.shape
    direction, sums = np.empty(d), np.empty(d)
    far, at = -1.0, 0
    total = 0.0
    for i in range(n):
        square = 0.0
        for f in range(d):
            square += y[i, f] * y[i, f]
        if square > far:
            far, at = square, i
        total += weight[i]
    direction[:] = y[at]
    for _ in range(_POWER_STEPS):
        sums[:] = 0.0
        for i in range(n):
            along = 0.0
            for f in range(d):
                along += y[i, f] * direction[f]
            along *= weight[i]
            for f in range(d):
                sums[f] += along * y[i, f]
        length = 0.0
        for f in range(d):
            length += sums[f] * sums[f]
        if not length > 0.0:
            return 0.0
        for f in range(d):
            direction[f] = sums[f] / np.sqrt(length)
    everything = np.zeros(d)
    for i in range(n):
        for f in range(d):
            everything[f] += weight[i] * y[i, f]
    limit, gain = 0.0, 0.0
    first, second = np.empty(d), np.empty(d)
    for _ in range(_STEPS):
        sums[:] = 0.0
        part = 0.0
        for i in range(n):
            along = 0.0
            for f in range(d):
                along += y[i, f] * direction[f]
            if along > limit:
                part += weight[i]
                for f in range(d):
                    sums[f] += weight[i] * y[i, f]
        if not (part > 0.0 and part < total):
            break
        a, b, gap = 0.0, 0.0, 0.0
        for f in range(d):
            p, q = sums[f] / part, (everything[f] - sums[f]) / (total - part)
            a += p * p
            b += q * q
            gap += (p - q) * (p - q)
            direction[f] = p - q
            first[f], second[f] = p, q
        limit = 0.5 * (a - b)
        new = part * (total - part) / total * gap
        if not new > gain:
            break
        gain = new
    if gain > 0.0:
        for f in range(d):
            halves[1, f] = halves[0, f] + second[f]
            halves[0, f] = halves[0, f] + first[f]
    return gain
