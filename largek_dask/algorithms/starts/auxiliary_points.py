"""Starting points of the auxiliary problem, which adds one centre to a partition.

B. Ordin, A. Bagirov, A heuristic algorithm for solving the minimum sum-of-squares clustering
problems, Journal of Global Optimization 61 (2015).

z(y) is the reduction of the cost by a centre at y, and B(y) is the set of rows that would be
assigned to this centre (:mod:`largek_dask.kernels.auxiliary`). For rows y with ``z(y) >= gamma_1
max z``, the means c of B(y) are computed. The means with ``z(c) >= gamma_2 max z(c)`` are the
starting points.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.auxiliary import ArrangedRows, descend_from, gains_at
from largek_dask.kernels.threads import Threads

_POINTS = 256
"""Number of points between two checks for a requested stop."""

Array = NDArray[np.float64]


def starting_points(
    rows: ArrangedRows, points: Array, gammas: tuple[float, float], near: float, threads: Threads
) -> Array:
    """Return starting points, best first, or an empty array if no new centre lowers the cost.

    ``points`` (q, d) are the distinct rows. ``gammas`` are the minimum shares of the largest z for
    rows and for means. Among points within a squared distance of ``near``, only the best is used.
    """

    def by_parts(points: Array, function: Callable[[Array], Array]) -> Array:
        parts = [points[at : at + _POINTS] for at in range(0, len(points), _POINTS)]
        joined: Array = np.concatenate(threads.map(function, parts))
        return joined

    def means_and_gains(part: Array) -> Array:
        means, gains = descend_from(rows, part, 1)
        return np.concatenate([means, gains[:, None]], axis=1)

    gains = by_parts(points, lambda part: gains_at(rows, part))
    if gains.max() <= 0:
        return points[:0]
    kept = gains >= gammas[0] * gains.max()
    points, gains = points[kept], gains[kept]
    found = by_parts(points[best_apart(points, gains, near)], means_and_gains)
    means, gains = np.ascontiguousarray(found[:, :-1]), found[:, -1]
    kept = gains >= gammas[1] * gains.max()
    best: Array = means[kept]
    return best[best_apart(best, gains[kept], near)]


def best_apart(points: Array, gains: Array, near: float) -> list[int]:
    """Return indices of points, best first, without points near a better one; ties go by index."""
    chosen: list[int] = []
    open_ = np.ones(len(points), np.bool_)
    for i in np.argsort(-gains, kind="stable").tolist():
        if open_[i]:
            chosen.append(i)
            squares = sum(
                (column - at) ** 2 for column, at in zip(points.T, points[i], strict=True)
            )
            open_ &= squares > near
    return chosen
