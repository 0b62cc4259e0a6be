"""Starting centres from a sample in memory: k-means++ where k is small, else on two levels.

Two levels: about sqrt(k) coarse centres, found on a part of the sample; every coarse cell gets
a share of the k centres in proportion to the weight of its rows, found among these rows alone.
That takes about 2 sqrt(k) distances a row where k-means++ takes k.
"""

from __future__ import annotations

from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.seeding import AUTO_PLUS_PLUS_CLUSTERS, choose_among
from largek_dask.kernels.distances import nearest, pack_centers

__all__ = ["centers_of_sample"]

COARSE_ROWS = 100
"""Rows a coarse centre on which coarse centres are found."""


def centers_of_sample(
    x: NDArray[Any], weight: NDArray[np.float64], k: int, shift: NDArray[Any], rng: Rng
) -> NDArray[Any]:
    """(k, d) centres of a sample.

    Parameters
    ----------
    x : (n, d) compute dtype
        At least one row.
    weight : (n,) float64
        Positive.
    k : int
        May exceed n; then rows are repeated.
    shift : (d,)
        About the mean of the data.
    rng : Rng
    """
    if k <= AUTO_PLUS_PLUS_CLUSTERS:
        return choose_among(x, weight, k, shift, rng)
    n_coarse = isqrt(k)
    part = slice(None, None, max(1, len(x) // (COARSE_ROWS * n_coarse)))
    coarse = choose_among(x[part], weight[part], n_coarse, shift, rng)
    labels = nearest(x, pack_centers(coarse, shift))
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(n_coarse + 1))
    cells = [order[a:b] for a, b in pairwise(edges)]
    sizes = shares(np.array([sum(weight[cell].tolist()) for cell in cells]), k)
    found = [
        choose_among(x[cell], weight[cell], int(size), shift, rng)
        for cell, size in zip(cells, sizes, strict=True)
        if size
    ]
    return np.concatenate(found)


def shares(mass: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """(m,) integers that add up to ``k``, in proportion to ``mass`` by largest remainders.

    Cells without mass get none.
    """
    wanted = mass * (k / sum(mass.tolist()))
    sizes: NDArray[np.int64] = np.floor(wanted).astype(np.int64)
    # Remainders are ranked; ties go to the lowest index.
    rank = np.argsort(np.where(mass > 0, sizes - wanted, np.inf), kind="stable")
    left = k - int(sizes.sum())
    sizes[rank[: max(left, 0)]] += 1
    return sizes
