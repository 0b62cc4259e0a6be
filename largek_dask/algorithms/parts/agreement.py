"""How far two partitions agree: the adjusted Rand index from counted pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["adjusted_rand", "rand_of_labels"]


def adjusted_rand(
    cells: NDArray[np.integer[Any]] | NDArray[np.float64],
    clusters: NDArray[Any],
    classes: NDArray[Any],
) -> float:
    """The adjusted Rand index (Hubert and Arabie, "Comparing partitions", 1985, eq. 5).

    Parameters
    ----------
    cells : (m,)
        Rows in each cell of the contingency table that has any.
    clusters, classes : (r,) (c,)
        Rows in each of its rows and columns, all of them 1 or more.

    Returns
    -------
    float
        -0.5 to 1; 1 for the same partition, also where both have one part only, or one a row.
    """
    if len(cells) == len(clusters) == len(classes):
        return 1.0
    n = _summed(clusters, 1)
    # Ordered pairs, as integers of Python: there are 10^16 of 10^8 rows, and products of them.
    both, one, other = (_summed(sizes, 2) - n for sizes in (cells, clusters, classes))
    # Σ over cells minus what is expected of it, over its most minus that; times the pairs.
    pairs = n * (n - 1)
    return 2 * (both * pairs - one * other) / ((one + other) * pairs - 2 * one * other)


def rand_of_labels(one: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]]) -> float:
    """The adjusted Rand index of two labels (n,) of the same rows, numbers from 0 on."""
    width = int(other.max()) + 1
    cells = np.bincount(one.astype(np.int64) * width + other)
    sizes: Iterable[NDArray[np.int64]] = (cells, np.bincount(one), np.bincount(other))
    return adjusted_rand(*(found[found > 0] for found in sizes))


def _summed(sizes: NDArray[Any], power: int) -> int:
    values, counts = np.unique(sizes, return_counts=True)
    return sum(int(size) ** power * int(times) for size, times in zip(values, counts, strict=True))
