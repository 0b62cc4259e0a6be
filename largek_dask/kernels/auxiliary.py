"""Exact decrease of the k-means objective when a centre is added, without reading all rows.

Let ``r_a`` be the squared distance of row a to its nearest centre. A new centre at y takes the rows
``B(y) = {a : |y - a|^2 < r_a}`` and lowers the objective by ``z(y) = sum_a w_a max(0, r_a - |y -
a|^2)``. This is the auxiliary problem of incremental algorithms (N. Karmitsa, A. Bagirov, S.
Taheri, equation 10; notation of B. Ordin and A. Bagirov).

A row of cluster j can be nearer to y than to its centre c_j only if ``|y - c_j| < 2 sqrt(r_a)``. So
the rows of each cluster are sorted by r_a, largest first, and a scan stops at the first row with
``r_a <= |y - c_j|^2 / 4``. The cost of a swap (replacing centre j by y) depends on the rows that
are nearer to y than to their second nearest centre; that scan stops at the first row with
``sqrt(d1_a) + sqrt(d2_a) <= |y - c_j|``.

Sums are compensated (TwoSum, including the rounding errors of products with weights), in a fixed
number of lanes, so their error is about 2^-100 of the sum of absolute values. A row of weight 3 and
three equal rows therefore give bit-identical results, unless the exact sum is that close to the
midpoint of two floats.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.numbers import two_product_error
from largek_dask.kernels.jit import njit

_LANES = 32
"""Number of rows per block, and of partial sums."""
_KEPT = 1 - 2.0**-30
"""Safety factor on scan bounds that allows for rounding errors of distances."""

Array = NDArray[np.float64]


class Order(NamedTuple):
    """Row indices grouped by cluster, farthest row first; ties are in row order."""

    order: NDArray[np.int64]
    """(n,) row indices, grouped by cluster."""
    starts: NDArray[np.int64]
    """(k + 1,) start position of each cluster in ``order``."""


class ArrangedRows(NamedTuple):
    """Copy of the rows in scan order, stored column by column; all arrays are read-only."""

    columns: Array
    """(d, n) coordinates."""
    weight: Array
    """(n,) row weights; empty if every weight is 1."""
    r: Array
    """(n,) squared distances to the nearest centre, descending within a cluster."""
    starts: NDArray[np.int64]
    """(k + 1,) start position of each cluster in the other arrays."""
    centers: Array
    """(k, d) centres of the clusters."""


def order_by_distance(labels: NDArray[np.integer[Any]], distances: Array, k: int) -> Order:
    """Sort the rows of each cluster by distance, farthest first.

    Pass squared distances to the nearest centre for :func:`arrange`, or sums of the distances to
    the two nearest centres for :func:`swap_costs`.
    """
    order = np.lexsort((-distances, labels)).astype(np.int64)
    starts = np.searchsorted(labels[order], np.arange(k + 1)).astype(np.int64)
    return Order(order, starts)


def arrange(x: Array, weight: Array, centers: Array, order: Order, r: Array) -> ArrangedRows:
    """Copy rows for many scans.

    Parameters
    ----------
    x : (n, d) float64
        Rows relative to an origin near them (their mean).
    weight : (n,) float64
        Weights of the rows, not negative.
    centers : (k, d) float64
        Centres relative to the same origin.
    order : Order
        Rows sorted by ``r`` within the cluster of their nearest centre.
    r : (n,) float64
        Squared distance of each row to its nearest centre.
    """
    unit = bool((weight == 1).all())
    return ArrangedRows(
        readonly(np.ascontiguousarray(x[order.order].T)),
        readonly(np.empty(0) if unit else weight[order.order]),
        readonly(r[order.order]),
        readonly(order.starts),
        readonly(np.ascontiguousarray(centers)),
    )


def gains_at(rows: ArrangedRows, points: Array) -> Array:
    """Return (q,) decreases of the objective from new centres, not divided by the total weight."""
    out = np.empty(len(points))
    _gains(*rows, readonly(np.ascontiguousarray(points)), out)
    return out


def members_at(rows: ArrangedRows, points: Array) -> tuple[Array, Array, Array]:
    """Return, per point, the decrease of the objective and the weight and sum of captured rows."""
    q, d = points.shape
    out, mass, sums = np.empty(q), np.empty(q), np.empty((q, d))
    _members(*rows, readonly(np.ascontiguousarray(points)), out, mass, sums)
    return out, mass, sums


def descend_from(rows: ArrangedRows, points: Array, steps: int) -> tuple[Array, Array]:
    """Move each point repeatedly to the mean of the rows that it takes from given centres.

    Each point moves at most ``steps`` times. Returns the final points and decreases of the
    objective.
    """
    points = np.array(points, order="C")
    found = np.empty(len(points))
    moving = np.arange(len(points))
    for step in range(steps + 1):
        found[moving], mass, sums = members_at(rows, points[moving])
        if step == steps:
            break
        taken = mass > 0
        means = sums[taken] / mass[taken][:, None]
        moving = moving[taken]
        moved = (means != points[moving]).any(axis=1)
        moving = moving[moved]
        points[moving] = means[moved]
        if not len(moving):
            break
    return points, found


def swap_costs(
    x: Array,
    weight: Array,
    centers: Array,
    order_by_sum: Order,
    first: Array,
    second: Array,
    points: Array,
) -> Array:
    """Return the (q, k) changes of the objective when point q replaces centre j.

    The change for point y is ``sum_a w_a (min(e_a, |y - a|^2) - d1_a)``, with ``e_a = d2_a`` for
    the rows of cluster j and ``e_a = d1_a`` for other rows. A negative change lowers the objective.
    ``first`` (d1) and ``second`` (d2) are squared distances to the two nearest centres; ``second``
    is infinity if there is only one centre. ``order_by_sum`` sorts rows by ``sqrt(first) +
    sqrt(second)``.
    """
    rows = arrange(x, weight, centers, order_by_sum, first)
    far = second[order_by_sum.order]
    reach = np.sqrt(rows.r) + np.sqrt(far)
    out = np.empty((len(points), len(centers)))
    _swap_costs(
        *rows, readonly(far), readonly(reach), readonly(np.ascontiguousarray(points)), out
    )  # fmt: skip
    return out


@njit
def _distance(centers, j, points, q):
    square = 0.0
    for f in range(centers.shape[1]):
        t = points[q, f] - centers[j, f]
        square += t * t
    return square


@njit
def _end_of_scan(keys, begin, end, bound):
    """Return the position of the first key that is at most ``bound``; keys are descending."""
    while begin < end:
        middle = (begin + end) // 2
        if keys[middle] > bound:
            begin = middle + 1
        else:
            end = middle
    return begin


@njit
def _squares(columns, begin, size, points, q, out):
    for i in range(size):
        out[i] = 0.0
    for f in range(columns.shape[0]):
        y = points[q, f]
        column = columns[f, begin : begin + size]
        for i in range(size):
            t = column[i] - y
            out[i] += t * t


@njit
def _add(high, low, values, size):
    """Add values to the high lanes, and rounding errors to the low lanes (Knuth's TwoSum)."""
    for i in range(size):
        a, b = high[i], values[i]
        s = a + b
        t = s - a
        low[i] += (a - (s - t)) + (b - t)
        high[i] = s


@njit
def _add_products(high, low, values, weight, begin, size):
    """Add ``values * weight`` to the lanes, overwriting ``values``; an empty ``weight`` means 1."""
    if weight.shape[0] > 0:
        for i in range(size):
            product = values[i] * weight[begin + i]
            low[i] += two_product_error(values[i], weight[begin + i], product)
            values[i] = product
    _add(high, low, values, size)


@njit
def _joined(high, low):
    """Return the sum of all lanes, added in order."""
    total, rest = 0.0, 0.0
    for i in range(high.shape[0]):
        s = total + high[i]
        t = s - total
        rest += ((total - (s - t)) + (high[i] - t)) + low[i]
        total = s
    return total + rest


@njit
def _gains(columns, weight, r, starts, centers, points, out):
    values = np.empty(_LANES)
    high, low = np.empty(_LANES), np.empty(_LANES)
    for q in range(points.shape[0]):
        high[:] = 0.0
        low[:] = 0.0
        for j in range(centers.shape[0]):
            bound = 0.25 * _KEPT * _distance(centers, j, points, q)
            end = _end_of_scan(r, starts[j], starts[j + 1], bound)
            for begin in range(starts[j], end, _LANES):
                size = min(_LANES, end - begin)
                _squares(columns, begin, size, points, q, values)
                own = r[begin : begin + size]
                for i in range(size):
                    saved = own[i] - values[i]
                    values[i] = saved if saved > 0.0 else 0.0
                _add_products(high, low, values, weight, begin, size)
        out[q] = _joined(high, low)


@njit
def _members(columns, weight, r, starts, centers, points, out, mass, sums):
    d = columns.shape[0]
    values, inside, part = np.empty(_LANES), np.empty(_LANES), np.empty(_LANES)
    # One row of lanes per feature, then one for the gain and one for the mass.
    high, low = np.empty((d + 2, _LANES)), np.empty((d + 2, _LANES))
    for q in range(points.shape[0]):
        high[:] = 0.0
        low[:] = 0.0
        for j in range(centers.shape[0]):
            bound = 0.25 * _KEPT * _distance(centers, j, points, q)
            end = _end_of_scan(r, starts[j], starts[j + 1], bound)
            for begin in range(starts[j], end, _LANES):
                size = min(_LANES, end - begin)
                _squares(columns, begin, size, points, q, values)
                own = r[begin : begin + size]
                taken = 0.0
                for i in range(size):
                    saved = own[i] - values[i]
                    inside[i] = 1.0 if saved > 0.0 else 0.0
                    values[i] = saved if saved > 0.0 else 0.0
                for i in range(size):
                    taken += inside[i]
                if taken == 0.0:
                    continue
                _add_products(high[d], low[d], values, weight, begin, size)
                for f in range(d):
                    column = columns[f, begin : begin + size]
                    for i in range(size):
                        part[i] = inside[i] * column[i]
                    _add_products(high[f], low[f], part, weight, begin, size)
                _add_products(high[d + 1], low[d + 1], inside, weight, begin, size)
        out[q] = _joined(high[d], low[d])
        mass[q] = _joined(high[d + 1], low[d + 1])
        for f in range(d):
            sums[q, f] = _joined(high[f], low[f])


@njit
def _losses(weight, r, far, starts, high, low):
    """Compute suffix sums, per cluster, of the cost increases when its centre is removed."""
    value, total, rest = np.empty(1), np.empty(1), np.empty(1)
    for j in range(starts.shape[0] - 1):
        total[0], rest[0] = 0.0, 0.0
        high[starts[j + 1] + j], low[starts[j + 1] + j] = 0.0, 0.0
        for a in range(starts[j + 1] - 1, starts[j] - 1, -1):
            value[0] = far[a] - r[a] if far[a] < np.inf else 0.0
            _add_products(total, rest, value, weight, a, 1)
            # Positions are shifted by j: each cluster has one extra entry, for the empty sum.
            high[a + j], low[a + j] = total[0], rest[0]


@njit
def _swap_costs(columns, weight, r, starts, centers, far, reach, points, out):
    k = centers.shape[0]
    tails, tail_rests = np.empty(r.shape[0] + k), np.empty(r.shape[0] + k)
    _losses(weight, r, far, starts, tails, tail_rests)
    squares, values = np.empty(_LANES), np.empty(_LANES)
    high, low = np.empty(_LANES), np.empty(_LANES)
    lost, lost_rest = np.empty(_LANES), np.empty(_LANES)
    for q in range(points.shape[0]):
        high[:] = 0.0
        low[:] = 0.0
        for j in range(k):
            lost[:] = 0.0
            lost_rest[:] = 0.0
            bound = np.sqrt(_distance(centers, j, points, q)) * _KEPT
            end = _end_of_scan(reach, starts[j], starts[j + 1], bound)
            for begin in range(starts[j], end, _LANES):
                size = min(_LANES, end - begin)
                _squares(columns, begin, size, points, q, squares)
                own, other = r[begin : begin + size], far[begin : begin + size]
                for i in range(size):
                    saved = own[i] - squares[i]
                    values[i] = saved if saved > 0.0 else 0.0
                _add_products(high, low, values, weight, begin, size)
                for i in range(size):
                    less = squares[i] if squares[i] < other[i] else other[i]
                    values[i] = less - own[i] if less > own[i] else 0.0
                _add_products(lost, lost_rest, values, weight, begin, size)
            lost[0], rest = _sum_of_two(lost[0], tails[end + j])
            lost_rest[0] += rest + tail_rests[end + j]
            out[q, j] = _joined(lost, lost_rest)
        saved = _joined(high, low)
        for j in range(k):
            out[q, j] -= saved


@njit
def _sum_of_two(a, b):
    """Return the sum of two numbers and its rounding error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)
