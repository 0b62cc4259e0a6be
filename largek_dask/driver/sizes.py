"""How many rows clusters have, as the event ``sizes`` tells it: a few figures and a histogram."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.formatting import short_number

__all__ = ["Sizes", "sizes_of"]

EVERY_SECONDS = 30.0
"""Least time between two events about sizes."""
BINS = 32


class Sizes:
    """Says when the sizes of clusters are to be told again.

    Parameters
    ----------
    clock : callable
        Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told_at = clock()

    def due(self, counts: Callable[[], NDArray[np.float64]]) -> dict[str, Any]:
        """The fields of an event; nothing if it is too soon, or nothing is known.

        Parameters
        ----------
        counts : callable
            Gives the rows of every cluster, or their weight; called only if it is time.
        """
        if self._clock() - self._told_at < EVERY_SECONDS:
            return {}
        self._told_at = self._clock()
        return sizes_of(counts())


def sizes_of(counts: NDArray[np.float64]) -> dict[str, Any]:
    """The fields of an event about clusters with these rows; nothing where none has any.

    Parameters
    ----------
    counts : (k,)
        Rows of every cluster, or their weight.

    Examples
    --------
    >>> told = sizes_of(np.array([0.0, 1.0, 10.0, 1000.0]))
    >>> told["n_empty"], told["least"], told["median"], told["most"]
    (1, 1, 10, 1000)
    >>> len(told["edges"]), sum(told["counts"])
    (33, 3)
    """
    found = np.asarray(counts, np.float64)
    found = found[np.isfinite(found) & (found > 0)]
    if not len(found):
        return {}
    least, most = float(found.min()), float(found.max())
    # Of clusters that are all alike one bin is as good as any.
    edges = np.geomspace(least, most if most > least else 2 * least, BINS + 1)
    # Whatever rounding makes of the outer ones, every cluster is between them.
    edges[0], edges[-1] = least, max(most, edges[-1])
    binned, _ = np.histogram(found, edges)
    return {
        "n_empty": len(counts) - len(found),
        "least": short_number(least),
        "median": short_number(float(np.median(found))),
        "mean": short_number(float(found.mean())),
        "most": short_number(most),
        "edges": [short_number(float(edge)) for edge in edges],
        "counts": [int(n) for n in binned],
    }
