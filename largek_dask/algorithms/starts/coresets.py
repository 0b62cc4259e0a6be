"""Lightweight coresets: a few weighted rows on which the cost of any centres is about that on all.

O. Bachem, M. Lucic, A. Krause, Scalable k-means clustering via lightweight coresets, KDD 2018,
algorithm 1. Half of the draws are by weight, half by weight times squared distance to the mean:

    q = w / 2W + w |x - mean|^2 / 2 sum(w |x - mean|^2)

and a row that was drawn weighs ``w / (n q)`` for each time, so that any sum over the coreset is an
unbiased estimate of the sum over all rows. Rows far out, which a uniform sample may lack
altogether, are drawn for certain as soon as they matter for the cost.

Unlike there, draws are spaced evenly along the rows unless independent ones are requested: the
estimates stay unbiased, and vary less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng
from largek_dask.algorithms.starts.weighted_sampling import draw_by_mass
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly


@dataclass(frozen=True, slots=True, eq=False)
class Coreset:
    """Weighted rows that represent all rows.

    ``passes.subset(coreset.rows, coreset.factors, own_weights=True)`` are passes over them.
    """

    rows: NDArray[np.int64]
    """(m,) global indices, ascending, each once."""
    factors: NDArray[np.float64]
    """(m,) factors on the rows' weights."""
    n_draws: int
    """At least m: a row drawn several times is one row of the summed weight."""
    uniform: bool
    """Drawn by weight alone."""
    independent: bool
    """Draws were independent, not evenly spaced."""
    n_evaluated: int
    """Number of distances to the mean that were computed."""


def draw_coreset(
    passes: Passes, rng: Rng, n: int, *, uniform: bool = False, independent: bool = False
) -> Coreset:
    """Draw a coreset by n draws, which may be more than there are rows, in two passes.

    The second pass is only over chunks that hold drawn rows. The result does not depend on chunks,
    threads or workers. ``uniform``: draw by weight alone, for comparison. ``independent``:
    independent draws, as published; otherwise draw ``i`` is from the ``i``-th of n equal parts of
    all rows' mass. Raises ``ParameterError`` if n is below 1, and ``DataError`` if no row has
    positive weight.
    """
    if n < 1:
        raise ParameterError(f"a coreset needs at least 1 row, got {n}.")
    center, generator = None if uniform else passes.statistics.mean, rng.generator(0, "coreset")
    drawn = draw_by_mass(passes, generator, n, center, spaced=not independent)
    rows, first, times = np.unique(drawn.rows, return_index=True, return_counts=True)
    factors = times / (n * drawn.probabilities[first])
    evaluated = 0 if uniform else passes.statistics.n_rows
    return Coreset(readonly(rows), readonly(factors), n, uniform, independent, evaluated)
