"""Figures and a histogram of cluster sizes, for the event ``sizes``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.formatting import short_number

__all__ = ["sizes_of"]

BINS = 32


def sizes_of(counts: NDArray[np.float64]) -> dict[str, Any]:
    """Return the fields of an event for the rows (or weights) of every cluster; {} if none has any.

    Examples
    --------
    >>> sizes = sizes_of(np.array([0.0, 1.0, 10.0, 1000.0]))
    >>> sizes["n_empty"], sizes["least"], sizes["median"], sizes["most"]
    (1, 1, 10, 1000)
    >>> len(sizes["edges"]), sum(sizes["counts"])
    (33, 3)
    """
    found = np.asarray(counts, np.float64)
    found = found[np.isfinite(found) & (found > 0)]
    if not len(found):
        return {}
    least, most = float(found.min()), float(found.max())
    # If all clusters are equal one bin is as good as any.
    edges = np.geomspace(least, most if most > least else 2 * least, BINS + 1)
    # Rounding must not leave a cluster outside.
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
