"""Moves of single rows: what Lloyd's algorithm cannot see.

J. A. Hartigan, M. A. Wong, Algorithm AS 136: a k-means clustering algorithm, Applied Statistics 28
(1979). A row of weight w that goes from cluster a to cluster b, both of which follow their rows,
changes the objective by

    w n_b / (n_b + w) d_b^2 - w n_a / (n_a - w) d_a^2

so it may be worth leaving the nearest centre. Where no row gains, every row of a cluster with
others is strictly nearer to its own centre than to any that is elsewhere: such a partition is still
for Lloyd's algorithm, and the objective is differentiable there. Centres follow each move at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from largek_dask.kernels.descent import Rows, Settled, distance_of
from largek_dask.kernels.jit import njit

__all__ = ["move_rows"]

_WORTH = 1e-12
"""Least gain of a move, as a share of what its row costs: below is rounding."""


def move_rows(rows: Rows, partition: Settled, most_sweeps: int = 100) -> int:
    """Move single rows as long as that lowers the objective, in place.

    Parameters
    ----------
    rows : Rows
    partition : Settled
        Its clusters are those of its labels: what :func:`~.descent.settle` leaves.
    most_sweeps : int
        Times that all rows are gone through, at most.

    Returns
    -------
    int
        Moves. Clusters that rows have left or joined are stale: their centres are means but for
        rounding, and their costs those of before. ``settle`` makes both anew.
    """
    p = partition
    return int(
        _move_rows(
            rows.x, rows.weight, most_sweeps, p.centers, p.counts, p.labels, p.upper, p.lower,
            p.stale,
        )
    )  # fmt: skip


@njit
def _move_rows(
    x: Any, weight: Any, most_sweeps: Any, centers: Any, counts: Any, labels: Any,
    upper: Any, lower: Any, stale: Any,
) -> Any:  # fmt: skip
    k = centers.shape[0]
    # Bounds are kept as if centres stood where they stood at first.
    own, farthest, moves = np.zeros(k), 0.0, 0
    least = counts.min()
    for _ in range(most_sweeps):
        before = moves
        for i in range(x.shape[0]):
            a, w = labels[i], weight[i]
            if counts[a] <= w:
                continue
            keep = counts[a] / (counts[a] - w)
            u, left = upper[i] + own[a], lower[i] - farthest
            if left > 0.0 and least / (least + w) * left * left >= keep * u * u:
                continue
            u = distance_of(x, i, centers, a)
            upper[i] = np.sqrt(u) - own[a]
            b, left = _best_other(x, i, w, centers, counts, a, keep * u)
            lower[i] = np.sqrt(left) + farthest
            if b != a:
                moves += 1
                stale[a] = stale[b] = True
                away = _shift(x, i, centers, a, -w / (counts[a] - w))
                toward = _shift(x, i, centers, b, w / (counts[b] + w))
                counts[a] -= w
                counts[b] += w
                own[a] += away
                own[b] += toward
                farthest += max(away, toward)
                least = counts.min()
                labels[i] = b
                upper[i] = np.sqrt(distance_of(x, i, centers, b)) - own[b]
                # Among the others is now the cluster that it has left.
                lower[i] = min(np.sqrt(left), np.sqrt(u)) - max(away, toward) + farthest
        if moves == before:
            break
    for i in range(x.shape[0]):
        upper[i] += own[labels[i]]
        lower[i] -= farthest
    return moves


@njit
def _best_other(
    x: Any, i: Any, w: Any, centers: Any, counts: Any, a: Any, cost: Any
) -> Any:
    """The cluster in which a row costs least, and the squared distance of the nearest other."""
    best, b, nearest = cost * (1.0 - _WORTH), a, np.inf
    for j in range(centers.shape[0]):
        if j != a:
            v = distance_of(x, i, centers, j)
            nearest = min(nearest, v)
            joined = counts[j] / (counts[j] + w) * v
            if joined < best:
                best, b = joined, j
    return b, nearest


@njit
def _shift(x: Any, i: Any, centers: Any, j: Any, share: Any) -> Any:
    """Move a centre along the line to a row; how far."""
    gap = 0.0
    for f in range(x.shape[1]):
        t = share * (x[i, f] - centers[j, f])
        centers[j, f] += t
        gap += t * t
    return np.sqrt(gap)
