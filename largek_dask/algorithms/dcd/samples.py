"""Weighted samples on which partitions of large tables are searched.

A coreset (:mod:`~largek_dask.algorithms.starts.coresets`) and the rows farthest from the mean. A
row far out may determine a centre, and a coreset may lack it: for ``eeg`` a plain
sample ends at many times the possible cost. Which rows are the farthest does not depend on
the draws, so they count with their own weight, all others with that of the coreset, and a sum over
the sample still is an unbiased estimate of the sum over all rows.

A row may also be far from every centre without being far from the mean. Once there are partitions,
:func:`draw_far` finds the rows that lie farthest from their centres, and :meth:`Sample.including`
lets them count with their own weight as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng
from largek_dask.algorithms.parts.relocation import FarthestRows, farthest_chunk
from largek_dask.algorithms.starts.coresets import draw_coreset
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.distances import PackedCenters, pack_centers

__all__ = ["FEWEST_FAR", "Sample", "draw_far", "draw_sample"]

FEWEST_FAR = 64
"""Rows farthest out that every sample holds, if there are as many distinct ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Weighted rows that represent all rows."""

    rows: NDArray[np.int64]
    """(m,) global indices, ascending, each once."""
    factors: NDArray[np.float64]
    """(m,) factors on the rows' weights."""

    def including(self, rows: NDArray[np.int64]) -> Sample:
        """Return the sample with these rows, any number of global indices, at their own weight."""
        together = np.union1d(self.rows, rows)
        factors = np.ones(len(together))
        others = ~np.isin(self.rows, rows)
        factors[np.searchsorted(together, self.rows[others])] = self.factors[others]
        return Sample(readonly(together), readonly(factors))


def draw_sample(passes: Passes, rng: Rng, n: int, n_far: int = FEWEST_FAR) -> Sample:
    """Draw a sample, independent of chunks, threads and workers.

    Parameters
    ----------
    passes : Passes
        Takes three passes, one of them only over chunks that hold drawn rows.
    rng : Rng
    n : int
        Draws of the coreset, at least 1; may exceed the number of rows.
    n_far : int
        Distinct rows farthest from the mean that are always among them; ties by global index.
        Rows that lie on the mean are never far.

    Raises
    ------
    ParameterError
        ``n`` is below 1.
    DataError
        No row has positive weight.
    """
    coreset = draw_coreset(passes, rng, n)
    statistics = passes.statistics
    mean = statistics.mean.astype(statistics.dtype)[None]
    far = _farthest(passes, pack_centers(mean, statistics.shift), n_far)
    return Sample(coreset.rows, coreset.factors).including(far)


def draw_far(passes: Passes, centers: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Return the distinct rows farthest from their nearest centre, ties by index. One pass.

    Parameters
    ----------
    passes : Passes
    centers : (k, d)
        Centres of the last partition, compute dtype.
    n : int
        Maximum number of rows; rows that lie on a centre are left out.

    Returns
    -------
    (m,) int64
        Global indices, the farthest first.
    """
    return _farthest(passes, pack_centers(centers, passes.statistics.shift), n)


def _farthest(passes: Passes, centers: PackedCenters, n: int) -> NDArray[np.int64]:
    if n < 1:
        return np.empty(0, np.int64)
    k = centers.n_clusters
    found: FarthestRows = passes.reduce(
        farthest_chunk,
        centers,
        np.ones(k, np.bool_),
        start=partial(FarthestRows, n, k, passes.n_features, centers.dtype),
        combine=FarthestRows.combine,
    )
    return found.rows
