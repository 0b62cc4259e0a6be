"""Labels of rows, and bounds of their distances, from one assignment to the next.

A row keeps its label and, with bounds, ``upper`` and ``lower``. Bounds never change which centre
is nearest, only how many distances are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.bounds import bounds
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.bounds.pruned import nearest_pruned, nearest_two_pruned
from largek_dask.kernels.distances import PackedCenters

__all__ = ["UNKNOWN", "Kept", "label_rows", "label_with_margins"]

UNKNOWN = {"labels": -1, "upper": np.inf, "lower": -np.inf}
"""Values of an unknown row: no label, and bounds that every test fails."""

Kept = Mapping[str, NDArray[Any]]
"""Arrays kept of rows, by name."""


def label_rows(
    x: Any, centers: PackedCenters | BoundedCenters, before: Kept | None
) -> tuple[Kept, int]:
    """Return the nearest centre of each row; bounds leave out centres that cannot be nearest.

    Rows without a label are compared with all centres, which gives them bounds.

    Parameters
    ----------
    x : (n, d)
    centers : PackedCenters or BoundedCenters
    before : mapping or None
        Arrays kept of these rows. If it is None or has no bounds, all distances are computed.

    Returns
    -------
    kept : mapping
        Arrays to keep of the rows.
    n_evaluated : int
        Number of distances computed. Without bounds all count, also those skipped for centres in
        boxes, whose number depends on threads and workers.
    """
    if isinstance(centers, PackedCenters):
        labels, _ = nearest_pruned(x, centers)
        return {"labels": labels}, len(x) * centers.n_clusters
    if before is None or "lower" not in before:
        labels, upper, lower, n_evaluated = bounds.start(x, centers)
        return {"labels": labels, "upper": upper, "lower": lower}, n_evaluated
    labels, upper, lower = (before[name].copy() for name in ("labels", "upper", "lower"))
    new = labels < 0
    if not new.any():
        n_evaluated = bounds.assign(x, centers, labels, upper, lower)
    elif new.all():
        labels, upper, lower, n_evaluated = bounds.start(x, centers)
    else:
        n_evaluated = 0
        for rows in (np.flatnonzero(new), np.flatnonzero(~new)):
            if new[rows[0]]:
                *part, count = bounds.start(x[rows], centers)
            else:
                part = [labels[rows], upper[rows], lower[rows]]
                count = bounds.assign(x[rows], centers, *part)
            labels[rows], upper[rows], lower[rows] = part
            n_evaluated += count
    return {"labels": labels, "upper": upper, "lower": lower}, n_evaluated


def label_with_margins(
    x: Any, centers: PackedCenters | BoundedCenters, before: Kept | None
) -> tuple[Kept, int, NDArray[np.float64]]:
    """Do the same and find the margins to the second nearest centre, by all distances.

    Returns
    -------
    kept, n_evaluated
        As in :func:`label_rows`.
    margins : (n,) float64
        Differences of squared distances: the extra cost of a row if its centre were removed.
    """
    packed = centers if isinstance(centers, PackedCenters) else centers.packed
    labels, first, _, second = nearest_two_pruned(x, packed)
    margins = (second - first).astype(np.float64)
    n_evaluated = len(x) * packed.n_clusters
    if isinstance(centers, PackedCenters):
        return {"labels": labels}, n_evaluated, margins
    if before is None or "lower" not in before:
        upper = np.full(len(x), UNKNOWN["upper"], np.float32)
        lower = np.full((len(x), centers.n_groups), UNKNOWN["lower"], np.float32)
    else:
        upper, lower = before["upper"].copy(), before["lower"].copy()
        # Lower bounds leave out the own centre, so they do not hold for another label.
        other = labels != before["labels"]
        upper[other], lower[other] = UNKNOWN["upper"], UNKNOWN["lower"]
    return {"labels": labels, "upper": upper, "lower": lower}, n_evaluated, margins
