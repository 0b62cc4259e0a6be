"""What a second process compiles for a first fit, beginning at the fit's end.

The fit compiles what it needs when it needs it, this process the same from the other end; they
meet where both have got to. Neither compiles what the other has begun (:mod:`~.claims`).

Nothing is imported here but kernels: a process that begins late is of little use.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from largek_dask.kernels.bounds.lists import Lists, order_by_label, search_lists
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.claims import Claims
from largek_dask.kernels.code_cache import asks_whether_to_compile
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
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint

__all__ = ["FEW_CLUSTERS", "kernels_ahead", "main"]

FEW_CLUSTERS = 128
"""Up to this many clusters all rows meet all centres, and no list of them."""
_ROWS = 1_024
_MOST_CLUSTERS = 300


def kernels_ahead(dtype: str, n_features: int, k: int) -> tuple[Callable[[], object], ...]:
    """Calls of what a fit of dense rows comes to, the last first.

    Not of what it begins with: that is made before another process could have begun.
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
        Squares(1).add(np.ones(_ROWS))

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
    """Wait until the pipe from the process that fits is closed, as it is when that one ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(folder: str, dtype: str, n_features: str, k: str) -> None:
    """Compile; claims are made in `folder`."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # The other one lives as long as this one.
    claims = Claims(Path(folder), lambda: True)
    with asks_whether_to_compile(claims.take):
        for compile_one in kernels_ahead(dtype, int(n_features), int(k)):
            compile_one()
