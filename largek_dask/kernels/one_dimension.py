"""Exact k-means in one dimension: the best partitions into l clusters for all l up to k.

In one dimension, the clusters of a best partition are intervals of the sorted values, so dynamic
programming can find a best partition. Let f(l, m) be the smallest objective of l clusters for the
first m values. Then

    f(l, m) = min over j < m of f(l - 1, j) + cost(j, m),

where cost(j, m) is the cost of values j to m - 1 about their mean. The best j never decreases as m
grows, because the cost is concave Monge. So the best j for the middle m limits the candidates for
all other m, and the total work is O(k n log n).

Costs are differences of cumulative sums and may lose all digits: values at 1e9 +- 1 have squares of
1e18. So values are taken relative to the middle value, and each sum is stored as two float64, a
high and a low part. A search first computes costs and error bounds from the high parts. Then it
compares the few remaining candidates by costs from both parts.

Sources: X. Wu, "Optimal quantization by matrix searching", Journal of Algorithms 12 (1991), for
divide and conquer; H. Wang and M. Song, "Ckmeans.1d.dp", The R Journal 3/2 (2011), for the
recurrence; T. J. Dekker, "A floating-point technique for extending the available precision" (1971).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.numbers import two_product_error
from largek_dask.kernels.jit import njit

Floats = NDArray[np.float64]

_OFF = 2.0**-50
"""Bound on the relative error of a cost after eight roundings. If a weight loses most of its
digits, the mean and the error bound become very large."""
_FINE = 2.0**-43
"""A cost is computed again unless the difference of its bounds is below this fraction of the
cost."""
_DEPTH = 128
"""Maximum size of the stack of intervals, which is enough to halve any number of rows."""


def distinct_values(values: NDArray[Any], weight: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the distinct values of rows in ascending order, and the weight of each value.

    `values` (n,) must be finite and may have any real type. Rows of weight 0 are skipped; by
    default, each row has weight 1. Weights of equal values are added in row order.
    """
    values = values.astype(np.float64) + 0.0  # -0 and 0 are one value
    if weight is not None:
        values, weight = values[weight > 0], weight[weight > 0]
    found, places = np.unique(values, return_inverse=True)
    weights = np.bincount(places, weight, minlength=len(found)).astype(np.float64)
    return found, weights


def optimal_partitions(
    values: Floats, weights: Floats, n_clusters: int
) -> tuple[Floats, list[Floats]]:
    """Return the best partitions into 1, 2, ... clusters.

    Parameters
    ----------
    values, weights : (n,) float64
        At least one value, as :func:`distinct_values` returns them. Each value needs about 80
        bytes, plus a quarter of a byte per cluster.
    n_clusters : int
        Largest number of clusters, k.

    Returns
    -------
    objectives : (min(k, n),) float64
        Sum of ``w (x - c)^2`` of each partition, up to rounding errors; :func:`objective_bounds`
        returns rigorous lower bounds. The objective of n clusters is 0.
    centers : list of float64 arrays (l, 1)
        Means of the clusters of the best partition, ascending, for each l. If there are several
        best partitions, the one whose last cluster starts first is returned.
    """
    n = len(values)
    k = min(n_clusters, n)
    mass = np.cumsum(weights)
    middle = int(np.searchsorted(mass, mass[-1] / 2))
    values, weights = readonly(values), readonly(weights)
    sums = np.zeros((6, n + 1))
    _sums_from(values, weights, middle, sums)
    sums = readonly(sums)
    before, after, scratch = np.zeros(n + 1), np.zeros(n + 1), np.empty((2, n))
    _costs_of_one(sums, before)
    packed = []
    for size in range(2, k + 1):
        first = np.zeros(n + 1, np.int64)
        # The last level needs only its last entry.
        begin = size if size < k else n
        with np.errstate(all="ignore"):  # a cost is NaN if a weight rounds to 0
            _level(sums, readonly(before), size, begin, scratch, after, first)
        packed.append(_packed(first, begin))
        before, after = after, before
    cuts = _cuts(packed, n, k)
    objectives, means = np.zeros(k), np.zeros((k, k))
    _finish(sums, readonly(cuts), float(values[middle]), objectives, means)
    return objectives, [means[size, : size + 1, None].copy() for size in range(k)]


def objective_bounds(objectives: Floats) -> Floats:
    """Return lower bounds on the smallest objectives for 1, 2, ... clusters.

    The relative error of a cluster's cost is at most 2^-44 in the search, plus at most 2^-44 in a
    comparison. Storing sums as two float64 adds an error of 2^-98 times the objective of a single
    cluster, which matters only if the range of all values is 10^14 times the range of a cluster.
    """
    shares = np.arange(2, len(objectives) + 2) * 2.0**-43
    found: Floats = objectives * (1 - shares) - 2.0**-98 * objectives[0]
    return found.clip(0.0)


def _packed(first: NDArray[np.int64], begin: int) -> tuple[NDArray[np.uint8], int]:
    """Pack the ascending numbers ``first[begin:]`` with about 2 bits per number.

    A set bit represents a number, and a zero bit increases the next number by 1.
    """
    kept = first[begin:]
    bits = np.zeros(int(kept[-1]) + len(kept), np.bool_)
    bits[kept + np.arange(len(kept))] = True
    return np.packbits(bits), begin


def _cuts(packed: list[tuple[NDArray[np.uint8], int]], n: int, k: int) -> NDArray[np.int64]:
    """Return (k, k + 1) cuts: the starts of the clusters of each partition, followed by n."""
    cuts = np.zeros((k, k + 1), np.int64)
    cuts[np.arange(k), np.arange(k) + 1] = n
    for size in range(k, 1, -1):
        bits, begin = packed[size - 2]
        ones = np.flatnonzero(np.unpackbits(bits))
        # ends of cluster number `size` in all partitions with at least `size` clusters
        ends = cuts[size - 1 :, size] - begin
        cuts[size - 1 :, size - 1] = ones[ends] - ends
    return cuts


@njit
def _two_sum(a, b):
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@njit
def _plus(high, low, other, other_low):
    """Return the sum of two numbers, each of which is stored as two float64."""
    total, rest = _two_sum(high, other)
    rest += low + other_low
    joined = total + rest
    return joined, rest - (joined - total)


@njit
def _sums_from(values, weights, middle, sums):
    """Write cumulative sums of w, w y and w y^2, where y is the value minus the middle value.

    Rows 0 to 2 of ``sums`` contain the high parts, and rows 3 to 5 the low parts. Sums are 0 at the
    middle value, and terms to the left are subtracted.
    """
    n = values.shape[0]
    terms = np.empty((3, 2))
    for step in range(n):
        right = step < n - middle
        i = middle + step if right else n - 1 - step
        sign = 1.0 if right else -1.0
        y, rest = _two_sum(values[i], -values[middle])
        w = weights[i]
        terms[0, 0], terms[0, 1] = w, 0.0
        terms[1, 0] = w * y
        terms[1, 1] = two_product_error(w, y, terms[1, 0]) + w * rest
        square = y * y
        square_rest = two_product_error(y, y, square) + 2.0 * y * rest
        terms[2, 0] = w * square
        terms[2, 1] = two_product_error(w, square, terms[2, 0]) + w * square_rest
        old, new = (i, i + 1) if right else (i + 1, i)
        for part in range(3):
            sums[part, new], sums[part + 3, new] = _plus(
                sums[part, old], sums[part + 3, old], sign * terms[part, 0], sign * terms[part, 1]
            )


@njit
def _costs_of_one(sums, out):
    for m in range(1, out.shape[0]):
        out[m] = _cost(sums, 0, m)


@njit
def _moments(sums, j, m):
    """Return the weight, sum, error of the sum, mean and error of the mean of values j to m - 1."""
    w, w_low = _plus(sums[0, m], sums[3, m], -sums[0, j], -sums[3, j])
    s, s_low = _plus(sums[1, m], sums[4, m], -sums[1, j], -sums[4, j])
    mean = s / w
    product = mean * w
    rest = (s - product) - two_product_error(mean, w, product) + (s_low - mean * w_low)
    return w, s, s_low, mean, rest / w


@njit
def _cost(sums, j, m):
    """Return the cost of values j to m - 1, computed from both parts of the sums.

    Let W, S and Q be the sums of w, w y and w y^2, t the mean and r its error. The cost is Q - t (S
    + W r) - W r^2.
    """
    if m - j < 2:
        return 0.0
    w, s, s_low, mean, rest = _moments(sums, j, m)
    q, q_low = _plus(sums[2, m], sums[5, m], -sums[2, j], -sums[5, j])
    product = mean * s
    total, lost = _two_sum(q, -product)
    lost += q_low - two_product_error(mean, s, product) - mean * (s_low + w * rest)
    return max(0.0, total + (lost - w * rest * rest))


@njit
def _level(sums, before, size, begin, scratch, after, first):
    """Find the best partitions of the first m values into ``size`` clusters, for m >= ``begin``.

    ``before`` (n + 1,) contains the objectives of ``size - 1`` clusters. ``after`` receives the
    objectives, and ``first`` receives the starts of the last clusters.
    """
    n = after.shape[0] - 1
    waiting = np.empty((_DEPTH, 4), np.int64)
    waiting[0, 0], waiting[0, 1], waiting[0, 2], waiting[0, 3] = begin, n, size - 1, n - 1
    held = 1
    w, s, q, lows, highs = sums[0], sums[1], sums[2], scratch[0], scratch[1]
    while held > 0:
        held -= 1
        low, high = waiting[held, 0], waiting[held, 1]
        least, most = waiting[held, 2], waiting[held, 3]
        m = (low + high) // 2
        found, after[m] = _search(sums, w, s, q, before, m, least, min(most, m - 1), lows, highs)
        first[m] = found
        if low < m:
            waiting[held, 0], waiting[held, 1] = low, m - 1
            waiting[held, 2], waiting[held, 3] = least, found
            held += 1
        if m < high:
            waiting[held, 0], waiting[held, 1] = m + 1, high
            waiting[held, 2], waiting[held, 3] = found, most
            held += 1


@njit
def _search(sums, w, s, q, before, m, least, most, lows, highs):
    """Return the best start of the last cluster for the first m values, and the objective.

    The start is between ``least`` and ``most``, inclusive. The first three rows of ``sums`` are
    passed as w, s and q, because creating views would be slow. ``lows`` and ``highs`` (n,) are
    scratch arrays for the bounds of objectives.
    """
    w_m, s_m, q_m = w[m], s[m], q[m]
    n = most + 1 - least
    # Only loops that start at 0 are vectorized.
    w_j, s_j, q_j, before_j = w[least:], s[least:], q[least:], before[least:]
    for i in range(n):
        weight, total = w_m - w_j[i], s_m - s_j[i]
        mean = total / weight
        value = before_j[i] + ((q_m - q_j[i]) - total * mean)
        weights = abs(w_m) + abs(w_j[i])
        size = abs(mean) * ((abs(s_m) + abs(s_j[i])) + abs(mean) * weights)
        off = _OFF * ((before_j[i] + abs(q_m)) + (abs(q_j[i]) + size))
        lows[i] = value - off
        highs[i] = value + off
    bound = _least(highs, n)
    found, smallest = least, np.inf
    for i in range(n):
        # Bounds are NaN if the weight rounds to 0.
        if not lows[i] > bound:
            if highs[i] - lows[i] < _FINE * highs[i]:
                value = 0.5 * (lows[i] + highs[i])
            else:
                value = before[least + i] + _cost(sums, least + i, m)
            if value < smallest:
                found, smallest = least + i, value
    return found, smallest


@njit
def _least(values, n):
    """Return the minimum of the first n values, ignoring NaN."""
    a, b, c, d = np.inf, np.inf, np.inf, np.inf
    for i in range(0, n - 3, 4):
        a = values[i] if values[i] < a else a
        b = values[i + 1] if values[i + 1] < b else b
        c = values[i + 2] if values[i + 2] < c else c
        d = values[i + 3] if values[i + 3] < d else d
    for i in range(n // 4 * 4, n):
        a = values[i] if values[i] < a else a
    return min(min(a, b), min(c, d))


@njit
def _finish(sums, cuts, middle, objectives, means):
    """Compute the objectives and cluster means of all partitions."""
    for size in range(means.shape[0]):
        for c in range(size + 1):
            begin, end = cuts[size, c], cuts[size, c + 1]
            objectives[size] += _cost(sums, begin, end)
            _, _, _, mean, rest = _moments(sums, begin, end)
            total, lost = _two_sum(mean, middle)
            means[size, c] = total + (lost + rest)
