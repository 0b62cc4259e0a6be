"""Moves of single rows that lower the objective but are not found by Lloyd's algorithm.

Source: J. A. Hartigan and M. A. Wong, "Algorithm AS 136: a k-means clustering algorithm", Applied
Statistics 28 (1979).

If a row of weight w moves from cluster a to cluster b, and both centres are updated, the objective
changes by

    w n_b / (n_b + w) d_b^2 - w n_a / (n_a - w) d_a^2

So leaving the nearest centre may lower the objective. If no move lowers the objective, every row
that shares its cluster with other rows is strictly nearer to its own centre than to any different
centre, except for rounding errors. Then Lloyd's algorithm would not change the partition either,
and the objective is differentiable. Centres are updated after every move.
"""

from __future__ import annotations

import numpy as np

from largek_dask.kernels.descent import CenteredRows, PartitionState, distance_of
from largek_dask.kernels.jit import njit

_MANY = 1e300
_WORTH = 1e-12
"""Minimum gain of a move, relative to the cost of the row. Smaller gains are rounding errors."""
_SAME = 1e-28
"""Minimum gain of a move, relative to the squared norm of the row, since means of equal rows are
rounded."""


def move_rows(rows: CenteredRows, partition: PartitionState, most_sweeps: int = 100) -> int:
    """Move single rows in place while this lowers the objective; return the number of moves.

    At most `most_sweeps` sweeps over all rows are made. The partition must come from
    :func:`~.descent.settle`. Clusters that gain or lose rows become stale: their centres are means
    except for rounding errors, and their costs are out of date until ``settle`` updates both.
    """
    p = partition
    state = p.centers, p.counts, p.labels, p.upper, p.lower, p.stale
    return int(_move_rows(rows.x, rows.weight, most_sweeps, *state))


def count_moves(rows: CenteredRows, partition: PartitionState) -> int:
    """Count the rows for which a move would lower the objective."""
    p = partition
    return int(_count_moves(rows.x, rows.weight, p.centers, p.counts, p.labels, p.upper, p.lower))


@njit
def _count_moves(x, weight, centers, counts, labels, upper, lower):
    k, found, least = centers.shape[0], 0, counts.min()
    gaps = np.empty((k, k))
    for a in range(k):
        _measure(centers, a, gaps)
    for i in range(x.shape[0]):
        a, w = labels[i], weight[i]
        if counts[a] <= w:
            continue
        keep, left = counts[a] / (counts[a] - w), lower[i]
        if left > 0.0 and least / (least + w) * left * left >= keep * upper[i] * upper[i]:
            continue
        square = distance_of(x, i, centers, a)
        b, _ = _best_other(x, i, w, centers, counts, gaps, a, np.sqrt(square), keep * square)
        if b != a:
            found += 1
    return found


@njit
def _move_rows(x, weight, most_sweeps, centers, counts, labels, upper, lower, stale):
    k = centers.shape[0]
    # Bounds refer to the initial positions of the centres.
    own, farthest, moves = np.zeros(k), 0.0, 0
    radius, gaps, least = np.zeros(k), np.empty((k, k)), np.empty(k)
    equal = weight.min() == weight.max()
    # Counts are rounded, so they cannot show which clusters have a single row.
    sizes = np.zeros(k, np.int64)
    for i in range(x.shape[0]):
        sizes[labels[i]] += 1
        radius[labels[i]] = max(radius[labels[i]], upper[i]) if equal else np.inf
    for a in range(k):
        _measure(centers, a, gaps)
    _find_least(counts, gaps, radius, least)
    for _ in range(most_sweeps):
        before = moves
        for i in range(x.shape[0]):
            a, w = labels[i], weight[i]
            if sizes[a] == 1 or counts[a] <= w:
                continue
            keep = counts[a] / (counts[a] - w)
            u, left = upper[i] + own[a], lower[i] - farthest
            if left > 0.0 and least[a] / (least[a] + w) * left * left >= keep * u * u:
                continue
            square = distance_of(x, i, centers, a)
            u = np.sqrt(square)
            upper[i] = u - own[a]
            if left > 0.0 and least[a] / (least[a] + w) * left * left >= keep * square:
                continue
            b, left = _best_other(x, i, w, centers, counts, gaps, a, u, keep * square)
            lower[i] = left + farthest
            if b == a:
                continue
            moves += 1
            stale[a] = stale[b] = True
            away = _shift(x, i, centers, a, -w / (counts[a] - w))
            toward = _shift(x, i, centers, b, w / (counts[b] + w))
            counts[a] -= w
            counts[b] += w
            sizes[a] -= 1
            sizes[b] += 1
            own[a] += away
            own[b] += toward
            farthest += max(away, toward)
            # The cluster that the row has left is now one of the other clusters.
            lower[i] = min(left, u) - max(away, toward) + farthest
            labels[i], u = b, np.sqrt(distance_of(x, i, centers, b))
            upper[i] = u - own[b]
            radius[a], radius[b] = radius[a] + away, max(radius[b] + toward, u)
            _measure(centers, a, gaps)
            _measure(centers, b, gaps)
            _find_least(counts, gaps, radius, least)
        if moves == before:
            break
    for i in range(x.shape[0]):
        upper[i] += own[labels[i]]
        lower[i] -= farthest
    return moves


@njit
def _measure(centers, a, gaps):
    for b in range(centers.shape[0]):
        gaps[a, b] = gaps[b, a] = np.sqrt(distance_of(centers, a, centers, b))


@njit
def _find_least(counts, gaps, radius, least):
    """Find the smallest weight among the clusters that rows of each cluster could join.

    If all rows have the same weight, removing a row from a cluster saves at most twice the cost of
    the row, and adding a row costs at least half of the squared distance to the new centre. So rows
    do not join a cluster whose centre is more than three cluster radii away, unless the cluster is
    empty. If weights differ, the radius is infinite.
    """
    for a in range(counts.shape[0]):
        least[a] = _MANY
        for b in range(counts.shape[0]):
            if b != a and (gaps[a, b] < 3.0 * radius[a] or counts[b] == 0.0):
                least[a] = min(least[a], counts[b])


@njit
def _best_other(x, i, w, centers, counts, gaps, a, u, cost):
    """Return the cheapest cluster for a row, and a lower bound on distances to other centres."""
    norm = 0.0
    for f in range(x.shape[1]):
        norm += x[i, f] * x[i, f]
    best, b, nearest = cost * (1.0 - _WORTH) - _SAME * norm, a, np.inf
    for j in range(centers.shape[0]):
        if j == a:
            continue
        share, gap = counts[j] / (counts[j] + w), gaps[a, j] - u
        if gap > 0.0 and share * gap * gap >= best:
            nearest = min(nearest, gap)
            continue
        square = distance_of(x, i, centers, j)
        nearest = min(nearest, np.sqrt(square))
        if share * square < best:
            best, b = share * square, j
    return b, nearest


@njit
def _shift(x, i, centers, j, share):
    """Move a centre towards a row (away if `share` is negative), and return the distance."""
    gap = 0.0
    for f in range(x.shape[1]):
        t = share * (x[i, f] - centers[j, f])
        centers[j, f] += t
        gap += t * t
    return np.sqrt(gap)
