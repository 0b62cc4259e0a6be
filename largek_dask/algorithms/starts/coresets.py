"""Lightweight coresets: weighted samples that approximate the cost of any centres.

O. Bachem, M. Lucic, A. Krause, Scalable k-means clustering via lightweight coresets, KDD 2018,
algorithm 1. Half of the draws are by weight, half by weight times squared distance to the mean:

    q = w / 2W + w |x - mean|^2 / 2 sum(w |x - mean|^2)

Every draw of a row adds ``w / (n q)`` to its weight in the coreset, so any sum over the coreset is
an unbiased estimate of the sum over all rows. Distant rows, which a uniform sample may miss, are
certain to be drawn if they contribute enough to the cost.

Unlike in the paper, draws are evenly spaced along the rows unless independent draws are requested.
Estimates from spaced draws are also unbiased and vary less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng
from largek_dask.algorithms.starts.weighted_sampling import draw_by_mass
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly


@dataclass(frozen=True, slots=True, eq=False)
class Coreset:
    """Weighted rows that represent all rows.

    ``passes.subset(coreset.rows, coreset.factors, own_weights=True)`` returns passes over these
    rows.
    """

    rows: NDArray[np.int64]
    """(m,) distinct global indices, ascending."""
    factors: NDArray[np.float64]
    """(m,) factors by which the weights of the rows are multiplied."""
    n_evaluated: int = 0

    def including(self, rows: NDArray[np.int64]) -> Coreset:
        """Return the coreset with these rows added at their own weight."""
        together = np.union1d(self.rows, rows)
        factors = np.ones(len(together))
        others = ~np.isin(self.rows, rows)
        factors[np.searchsorted(together, self.rows[others])] = self.factors[others]
        return replace(self, rows=readonly(together), factors=readonly(factors))


def draw_coreset(
    passes: Passes, rng: Rng, n: int, *, uniform: bool = False, independent: bool = False
) -> Coreset:
    """Draw a coreset with n draws in two passes; n may exceed the number of rows.

    The second pass reads only chunks with drawn rows. The result does not depend on chunks, threads
    or workers. ``uniform`` draws by weight alone, for comparison. ``independent`` makes independent
    draws, as in the paper; otherwise draw ``i`` comes from the ``i``-th of n equal parts of the
    total mass. Raises ``ParameterError`` if n is below 1, and ``DataError`` if no row has positive
    weight.
    """
    if n < 1:
        raise ParameterError(f"a coreset needs at least one draw, got n={n}.")
    center, generator = None if uniform else passes.statistics.mean, rng.generator(0, "coreset")
    drawn = draw_by_mass(passes, generator, n, center, spaced=not independent)
    rows, first, times = np.unique(drawn.rows, return_index=True, return_counts=True)
    factors = times / (n * drawn.probabilities[first])
    evaluated = 0 if uniform else passes.statistics.n_rows
    return Coreset(readonly(rows), readonly(factors), evaluated)
