"""Rows that are searched in one process: all rows, or a weighted sample.

The sample consists of a coreset (:mod:`~largek_dask.algorithms.starts.coresets`) and the rows
farthest from the mean. A single far row may determine a centre, and a coreset may lack that row: on
``eeg``, a search on a plain coreset ends at many times the possible cost.

The farthest rows do not depend on the draws, so they keep their own weight, while all other rows
have their weight in the coreset. A sum over the sample remains an unbiased estimate of the sum over
all rows.

A row may be far from every centre without being far from the mean. Once partitions exist,
:func:`draw_far` finds the rows farthest from their centres, and ``Coreset.including`` adds them
with their own weight.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample
from largek_dask.algorithms.parts.relocation import FarthestRows, farthest_chunk
from largek_dask.algorithms.starts.coresets import Coreset, draw_coreset
from largek_dask.kernels.descent import CenteredRows
from largek_dask.kernels.distances import pack_centers

Floats = NDArray[np.float64]


def draw_sample(passes: Passes, rng: Rng, n: int, n_far: int) -> Coreset:
    """Draw a sample in three passes.

    The coreset has ``n`` draws, which may exceed the number of rows. The sample also contains the
    ``n_far`` distinct rows farthest from the mean, except for rows equal to the mean.
    """
    mean = passes.statistics.mean.astype(passes.statistics.dtype)[None]
    return draw_coreset(passes, rng, n).including(draw_far(passes, mean, n_far))


def draw_far(passes: Passes, centers: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Return indices of up to n distinct rows, farthest from their nearest centre first.

    This takes one pass. Ties go to the lowest index. Rows equal to a centre are left out.
    """
    k = len(centers)
    farthest: FarthestRows = passes.reduce(
        farthest_chunk,
        pack_centers(centers, passes.statistics.shift),
        np.ones(k, np.bool_),
        start=partial(FarthestRows, n, k, passes.n_features, centers.dtype),
        combine=FarthestRows.combine,
    )
    return farthest.rows


def take_rows(passes: Passes, rng: Rng, sample: Coreset | None = None) -> tuple[Floats, Floats]:
    """Return the rows of positive weight of a sample or of all rows, and their weights.

    Rows are cached between steps, so a cluster sends them only once.
    """
    x, weight, _ = searched_rows(passes, rng, sample).take()
    return present_rows(x, weight)


def searched_rows(passes: Passes, rng: Rng, sample: Coreset | None = None) -> Passes:
    """Return passes over a sample or over all rows."""
    if sample is None:
        return passes.subset(RowSample(rng, "all rows", passes.n_rows, ascending=True))
    return passes.subset(sample.rows, sample.factors, own_weights=True)


def present_rows(x: NDArray[Any], weight: Floats | None) -> tuple[Floats, Floats]:
    """Return the rows of positive weight in float64, and their weights."""
    x = np.asarray(x, np.float64)
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
    present = weight > 0
    return (x, weight) if present.all() else (x[present], weight[present])


def rows_to_search(x: NDArray[Any], weight: Floats | None, origin: Floats) -> CenteredRows:
    """Return the rows of positive weight, with ``origin`` (d,) subtracted."""
    present, weight = present_rows(x, weight)
    return CenteredRows.of(present - origin, weight)


def count_distinct(x: Floats, enough: int) -> int:
    """Return the number of distinct rows, at most ``enough``."""
    few = x[: 4 * enough]
    if len(few) < len(x) and len(np.unique(few, axis=0)) >= enough:
        return enough
    return min(enough, len(np.unique(x, axis=0)))
