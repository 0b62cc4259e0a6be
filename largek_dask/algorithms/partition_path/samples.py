"""Rows that are searched in the driver's process: all rows, or a weighted sample.

The sample is a coreset (:mod:`~largek_dask.algorithms.starts.coresets`) and the rows farthest from
the mean. A far row may determine a centre, and a coreset may lack that row: on ``eeg``, a search on
a plain sample ends at many times the possible cost. The farthest rows do not depend on the draws,
so they have their own weight and all other rows have their weight in the coreset; a sum over the
sample is still an unbiased estimate of the sum over all rows.

A row may also be far from every centre without being far from the mean. Once there are partitions,
:func:`draw_far` finds the rows farthest from their centres, and :meth:`Sample.including` adds them
with their own weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample
from largek_dask.algorithms.parts.relocation import FarthestRows, farthest_chunk
from largek_dask.algorithms.starts.coresets import draw_coreset
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.descent import CenteredRows
from largek_dask.kernels.distances import pack_centers

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Weighted rows that represent all rows."""

    rows: NDArray[np.int64]
    """(m,) global indices of distinct rows, ascending."""
    factors: Floats
    """(m,) factors on the rows' weights."""

    def including(self, rows: NDArray[np.int64]) -> Sample:
        """Return the sample with the rows at these global indices added, at their own weight."""
        together = np.union1d(self.rows, rows)
        factors = np.ones(len(together))
        others = ~np.isin(self.rows, rows)
        factors[np.searchsorted(together, self.rows[others])] = self.factors[others]
        return Sample(readonly(together), readonly(factors))


def draw_sample(passes: Passes, rng: Rng, n: int, n_far: int) -> Sample:
    """Draw a sample in three passes, one of which only reads chunks that hold drawn rows.

    The coreset has ``n`` draws, which may exceed the number of rows. The ``n_far`` distinct rows
    farthest from the mean are always in the sample, except for rows equal to the mean.
    """
    coreset = draw_coreset(passes, rng, n)
    mean = passes.statistics.mean.astype(passes.statistics.dtype)[None]
    return Sample(coreset.rows, coreset.factors).including(draw_far(passes, mean, n_far))


def draw_far(passes: Passes, centers: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Return indices of up to n distinct rows farthest from their nearest centre, farthest first.

    This takes one pass. Ties go to the lowest index. Rows equal to one of the ``centers`` (k, d)
    are left out.
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


def take_rows(passes: Passes, rng: Rng, sample: Sample | None = None) -> tuple[Floats, Floats]:
    """Return the rows of a sample, or all rows, with positive weights, in float64.

    The rows are cached between steps, so a cluster sends them only once.
    """
    if sample is None:
        whole = RowSample(rng, "all rows", passes.n_rows, ascending=True)
        x, weight, _ = passes.subset(whole).take()
    else:
        x, weight, _ = passes.subset(sample.rows, sample.factors, own_weights=True).take()
    x = np.asarray(x, np.float64)
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
    present = weight > 0
    return (x, weight) if present.all() else (x[present], weight[present])


def rows_to_search(passes: Passes, rng: Rng, origin: Floats, sample: Sample | None) -> CenteredRows:
    """Return the rows to search, relative to an origin (d,), arranged for the kernels."""
    x, weight = take_rows(passes, rng, sample)
    return CenteredRows.of(x - origin, weight)


def count_distinct(x: Floats, enough: int) -> int:
    """Return the number of distinct rows, at most ``enough``."""
    few = x[: 4 * enough]
    if len(few) < len(x) and len(np.unique(few, axis=0)) >= enough:
        return enough
    return min(enough, len(np.unique(x, axis=0)))
