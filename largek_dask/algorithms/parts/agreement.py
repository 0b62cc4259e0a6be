"""Agreement of two partitions: the adjusted Rand index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["rand_of_labels"]


def rand_of_labels(one: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]]) -> float:
    """Return the adjusted Rand index (Hubert and Arabie, "Comparing partitions", 1985, eq. 5).

    Parameters
    ----------
    one, other : (n,)
        Labels of the same rows, numbers from 0 on.

    Returns
    -------
    float
        -0.5 to 1; 1 for the same partition, also if both have one part only, or one per row.
    """
    width = int(other.max()) + 1
    cells = np.bincount(one.astype(np.int64) * width + other)
    sizes = [found[found > 0].tolist() for found in (cells, np.bincount(one), np.bincount(other))]
    if len(sizes[0]) == len(sizes[1]) == len(sizes[2]):
        return 1.0
    n = len(one)
    # Ordered pairs, as integers of Python: products of them exceed 64 bits.
    both, first, second = (sum(size**2 for size in each) - n for each in sizes)
    # Σ over cells minus its expectation, over its maximum minus that; times the pairs.
    pairs = n * (n - 1)
    expected = 2 * first * second
    return float((2 * both * pairs - expected) / ((first + second) * pairs - expected))
