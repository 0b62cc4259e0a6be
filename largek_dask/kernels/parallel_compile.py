"""Compile in a second process, in reverse order, the kernels that a first fit needs.

The fit compiles kernels when it needs them, this process the same in reverse order, until they
meet. Only kernels are imported here: a process that starts late is of little use.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np

from largek_dask.kernels.bounds.lists import Lists, order_by_label, search_lists
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.dense.greedy import greedy_rows
from largek_dask.kernels.dense.splits import split_clusters
from largek_dask.kernels.distances import (
    nearest,
    nearest_two,
    pack_centers,
    scores,
    squared_distances,
)
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint

__all__ = ["FEW_CLUSTERS", "calls_in_reverse", "main"]

FEW_CLUSTERS = 128
"""Up to this many clusters rows are compared with all centres, without lists."""
_ROWS = 1_024
_MOST_CLUSTERS = 300


def calls_in_reverse(dtype: str, n_features: int, k: int) -> tuple[Callable[[], object], ...]:
    """Return calls of the kernels of a fit of dense rows, the last first.

    The first ones are left out: the fit compiles them before a second process has started.
    """
    k, d = min(k, _MOST_CLUSTERS), n_features
    draws = np.random.default_rng(0)
    x = draws.standard_normal((_ROWS, d)).astype(dtype)
    centers, shift = x[:k].copy(), np.zeros(d, dtype)
    packed = pack_centers(centers, shift)
    labels = draws.integers(k, size=_ROWS).astype(np.int32)
    order, starts = order_by_label(labels, k)

    def halves() -> None:
        split_clusters(x, order, starts, np.arange(k), centers)

    def compared() -> None:
        scores(x, packed)

    def sums() -> None:
        grid = FixedPoint.choose(shift, 8.0, n_rows=_ROWS)
        total = ClusterSums(k, d, grid)
        total.add(x, labels)
        total.cost(centers, 0.0)

    def squares() -> None:
        ExactSums(1).add(np.ones(_ROWS))

    def in_lists() -> None:
        lists = Lists(np.arange(k + 1, dtype=np.int64), np.arange(k, dtype=np.int32))
        upper, lower = np.zeros(_ROWS, dtype), np.zeros(_ROWS, dtype)
        search_lists(x, order, starts, lists, packed, labels, upper, lower)
        order_by_label(labels, k, upper, lower)

    def neighbours() -> None:
        nearest_centers(packed, min(k, 12))

    def distances() -> None:
        squared_distances(x, packed, labels)

    def one() -> None:
        nearest(x, packed)

    def two() -> None:
        nearest_two(x, packed)

    def steps() -> None:
        begins, sizes = np.array((0, _ROWS)), np.array((k,))
        rows = np.arange(_ROWS, dtype=np.int32)
        cell_means(x, rows, begins, sizes, np.arange(k), shift, 1, n_full=1)

    def drawn() -> None:
        greedy_rows(np.ascontiguousarray(x.T), np.ones(_ROWS), draws.random((k, 3)))

    if k <= FEW_CLUSTERS:
        return halves, sums, neighbours, squares, distances, two, steps, drawn
    # Of few features `nearest` calls the kernel of `nearest_two`, until it was called often.
    found = (two,) if packed.direct else (one, two)
    return halves, compared, squares, sums, in_lists, neighbours, distances, *found, steps


def _end_with_parent() -> None:
    """Exit when the pipe from the parent process is closed, as it is when that one ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(dtype: str, n_features: str, k: str) -> None:
    """Compile what a fit needs; end early with the parent process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for compile_one in calls_in_reverse(dtype, int(n_features), int(k)):
        compile_one()
