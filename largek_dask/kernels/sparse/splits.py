"""Gain from splitting a cluster of sparse rows in two.

The method is that for dense rows (:mod:`~largek_dask.kernels.dense.splits`). A plane orthogonal to
the direction of largest variance divides the rows, and steps of 2-means move this plane. Every
second row is used to fit the halves, and the other rows are used to evaluate them. Only stored
numbers are read. Columns without stored numbers are 0 in both means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, readonly
from largek_dask.kernels.jit import njit
from largek_dask.kernels.threads import on_threads

POWER_STEPS = 3
STEPS = 4
"""Maximum number of steps of 2-means."""
WORTH = 1.005
"""2-means stops if the gain increases by less than this factor."""
LEAST_ROWS = 6
"""Clusters with fewer rows are not split."""
_PART = 16

Array = NDArray[Any]


def split_sparse(
    x: SparseBlock,
    order: NDArray[np.int32],
    starts: NDArray[np.int64],
    clusters: NDArray[np.int64],
    centers: Array,
    weight: NDArray[np.float64] | None = None,
    max_rows: int = 256,
    n_threads: int = 1,
) -> tuple[NDArray[np.float64], Array]:
    """Return the decrease of the cost from splitting each given cluster, and the two means.

    Arguments and results are the same as for
    :func:`~largek_dask.kernels.dense.splits.split_clusters`, except that rows `x` are sparse and
    centres have the compute dtype.
    """
    gains = np.zeros(len(clusters))
    halves = np.zeros((len(clusters), 2, x.n_features), centers.dtype)
    parts = x.parts(centers.dtype)
    given = readonly(np.empty(0) if weight is None else np.ascontiguousarray(weight, np.float64))

    def work(begin: int) -> None:
        part = slice(begin, begin + _PART)
        _split(
            *parts, readonly(order), readonly(starts),
            readonly(clusters[part]), given, max_rows, gains[part], halves[part],
        )  # fmt: skip

    on_threads(n_threads, work, range(0, len(clusters), _PART))
    left = np.flatnonzero(~(gains > 0))
    gains[left] = 0
    halves[left] = centers[clusters[left]][:, None]
    return gains, halves


@njit
def _split(data, indices, indptr, order, starts, clusters, weight, max_rows, gains, halves):
    d = halves.shape[2]
    everything, mean, direction, sums = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d)
    is_met, columns = np.zeros(d, np.bool_), np.empty(d, np.int32)
    rows, weights = np.empty(max_rows, np.int64), np.empty(max_rows)
    along, also = np.empty(max_rows), np.empty(max_rows)
    for number in range(clusters.size):
        begin = starts[clusters[number]]
        all_rows = starts[clusters[number] + 1] - begin
        count = min(all_rows, max_rows)
        if count < LEAST_ROWS:
            continue
        n_met, total, n_fitted = 0, 0.0, (count + 1) // 2
        for p in range(count):
            # Rows at even positions fit the split, and rows at odd positions evaluate the split.
            place = 2 * p if p < n_fitted else 2 * (p - n_fitted) + 1
            i = order[begin + place * all_rows // count]
            rows[p], weights[p] = i, weight[i] if weight.size > 0 else 1.0
            if p < n_fitted:
                total += weights[p]
            for at in range(indptr[i], indptr[i + 1]):
                f = indices[at]
                if not is_met[f]:
                    is_met[f] = True
                    columns[n_met] = f
                    n_met += 1
        met, pair = columns[:n_met], halves[number]
        fitted = data, indices, indptr, rows[:n_fitted]
        _add_up(fitted, weights, met, everything)
        for f in met:
            mean[f] = everything[f] / total
        if _principal(fitted, weights, mean, met, along, direction, sums) and _cut(
            fitted, weights, everything, total, mean, met, along, direction, sums, pair
        ):
            others = data, indices, indptr, rows[n_fitted:count]
            gain = _gain(others, weights[n_fitted:count], mean, met, pair, along, also, direction)
            gains[number] = gain * all_rows / (count - n_fitted)
        for f in met:
            is_met[f] = False


@njit
def _gain(parts, weights, mean, met, halves, along, also, direction):
    """Return the decrease of the cost if the nearer of two means replaces a single mean."""
    count, gain = parts[3].size, 0.0
    for half in range(2):
        # |x - m|² - |x - a|² = 2 x·(a - m) - (a - m)·(a + m)
        lean = 0.0
        for f in met:
            direction[f] = halves[half, f] - mean[f]
            lean += direction[f] * (halves[half, f] + mean[f])
        _products(parts, direction, along if half == 0 else also)
        for p in range(count):
            if half == 0:
                along[p] = 2.0 * along[p] - lean
            else:
                gain += weights[p] * max(along[p], 2.0 * also[p] - lean)
    return gain


@njit
def _add_up(parts, shares, met, sums):
    data, indices, indptr, rows = parts
    for f in met:
        sums[f] = 0.0
    for p in range(rows.size):
        share = shares[p]
        if share != 0.0:
            for at in range(indptr[rows[p]], indptr[rows[p] + 1]):
                sums[indices[at]] += share * data[at]


@njit
def _products(parts, direction, along):
    data, indices, indptr, rows = parts
    for p in range(rows.size):
        product = 0.0
        for at in range(indptr[rows[p]], indptr[rows[p] + 1]):
            product += data[at] * direction[indices[at]]
        along[p] = product


@njit
def _product(a, b, met):
    total = 0.0
    for f in met:
        total += a[f] * b[f]
    return total


@njit
def _principal(parts, weights, mean, met, along, direction, sums):
    """Write the approximate direction of largest variance; return False if all rows are equal."""
    data, indices, indptr, rows = parts
    _products(parts, mean, along)
    square, farthest, far = _product(mean, mean, met), 0.0, -1
    for p in range(rows.size):
        length = 0.0
        for at in range(indptr[rows[p]], indptr[rows[p] + 1]):
            length += np.float64(data[at]) * data[at]
        distance = weights[p] * (length - 2.0 * along[p] + square)
        # Ignore rows that differ from the mean only by rounding errors.
        if distance > farthest and length - 2.0 * along[p] + square > 1e-12 * length:
            farthest, far = distance, p
    if far < 0:
        return False
    for f in met:
        direction[f] = -mean[f]
    for at in range(indptr[rows[far]], indptr[rows[far] + 1]):
        direction[indices[at]] += data[at]
    for _ in range(POWER_STEPS):
        _products(parts, direction, along)
        middle, pull = _product(mean, direction, met), 0.0
        for p in range(rows.size):
            along[p] = weights[p] * (along[p] - middle)
            pull += along[p]
        _add_up(parts, along, met, sums)
        for f in met:
            sums[f] -= pull * mean[f]
        square = _product(sums, sums, met)
        if not square > 0.0:
            break
        scale = 1.0 / np.sqrt(square)
        for f in met:
            direction[f] = sums[f] * scale
    return True


@njit
def _cut(parts, weights, everything, total, mean, met, along, direction, sums, halves):
    """Run 2-means and write the best means; return False if the cluster cannot be split."""
    count, gain, limit = parts[3].size, 0.0, _product(mean, direction, met)
    for _ in range(STEPS):
        _products(parts, direction, along)
        part = 0.0
        for p in range(count):
            along[p] = weights[p] if along[p] > limit else 0.0
            part += along[p]
        if not (part > 0.0 and part < total):
            break
        _add_up(parts, along, met, sums)
        one, two = 1.0 / part, 1.0 / (total - part)
        gap, lean = 0.0, 0.0
        for f in met:
            a, b = sums[f] * one, (everything[f] - sums[f]) * two
            direction[f] = a - b
            gap += (a - b) * (a - b)
            lean += (a - b) * (a + b)
        new = part * (total - part) / total * gap
        if new > gain:
            for f in met:
                halves[0, f] = sums[f] * one
                halves[1, f] = (everything[f] - sums[f]) * two
        if not new > WORTH * gain:
            return max(new, gain) > 0.0
        gain, limit = new, 0.5 * lean
    return gain > 0.0
