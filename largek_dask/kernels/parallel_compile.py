"""Compile the kernels for a first fit in a second process, in reverse order.

The fit compiles kernels in the order of use, and the second process compiles the same kernels in
reverse order, until all kernels are compiled. This module imports only kernels, so that the process
starts quickly.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from largek_dask.kernels.bounds.lists import Lists, ListSearch, order_by_label
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
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums

FEW_CLUSTERS = 128
"""Up to this number of clusters, rows are compared with all centres and not with lists of
centres."""
_ROWS = 1_024
_MOST_CLUSTERS = 300


def calls_in_reverse(dtype: str, n_features: int, k: int) -> dict[str, Callable[[], object]]:
    """Return calls of all kernels for a fit of dense rows, by name, in reverse order of use.

    The kernels that a fit needs first are omitted, because the fit compiles them before the second
    process starts.
    """
    k, d = min(k, _MOST_CLUSTERS), n_features
    draws = np.random.default_rng(0)
    x = draws.standard_normal((_ROWS, d)).astype(dtype)
    centers, shift = x[:k].copy(), np.zeros(d, dtype)
    packed = pack_centers(centers, shift)
    labels = draws.integers(k, size=_ROWS).astype(np.int32)
    order, starts = order_by_label(labels, k)

    def add_to_sums() -> None:
        total = ClusterSums(k, d, FixedPoint.choose(shift, 8.0, n_rows=_ROWS))
        total.add(x, labels)
        total.cost(centers, 0.0)

    def search_in_lists() -> None:
        lists = Lists(np.arange(k + 1, dtype=np.int64), np.arange(k, dtype=np.int32))
        upper, lower = np.zeros(_ROWS, dtype), np.zeros(_ROWS, dtype)
        ListSearch(x, order, starts, lists, packed, (labels, upper, lower)).run((0, k))
        order_by_label(labels, k, upper, lower)

    begins, sizes = np.array((0, _ROWS)), np.array((k,))
    rows = np.arange(_ROWS, dtype=np.int32)
    columns, weights = np.ascontiguousarray(x.T), np.ones(_ROWS)
    calls: dict[str, Callable[[], object]] = {
        "splits": partial(split_clusters, x, order, starts, np.arange(k), centers),
        "scores": partial(scores, x, packed),
        "sums": add_to_sums,
        "neighbours": partial(nearest_centers, packed, min(k, 12)),
        "squares": partial(ExactSums().add, weights),
        "lists": search_in_lists,
        "distances": partial(squared_distances, x, packed, labels),
        "nearest": partial(nearest, x, packed),
        "two": partial(nearest_two, x, packed),
        "cells": partial(cell_means, x, rows, begins, sizes, np.arange(k), shift, 1, n_full=1),
        "greedy": partial(greedy_rows, columns, weights, draws.random((k, 3))),
    }
    if k <= FEW_CLUSTERS:
        names = "splits sums neighbours squares distances two cells greedy"
    elif packed.direct:  # `nearest` starts with the kernel of `nearest_two`
        names = "splits scores squares sums lists neighbours distances two cells"
    else:
        names = "splits scores squares sums lists neighbours distances nearest two cells"
    return {name: calls[name] for name in names.split()}


def _end_with_parent() -> None:
    """Exit when standard input is closed, which happens when the parent process ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def main(dtype: str, n_features: str, k: str) -> None:
    """Compile the kernels of a fit; stop early if the parent process ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for compile_one in calls_in_reverse(dtype, int(n_features), int(k)).values():
        compile_one()
