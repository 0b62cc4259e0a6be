"""Variances of the rows, and lower limits for the variances of mixture components."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.algorithms.choices import Covariance
from largek_dask.errors import DataError
from largek_dask.kernels.exact.soft_sums import resolved_bits
from largek_dask.kernels.exact.squares import FeatureSquares

MARGIN = 8
"""Number of bits between the smallest variance and its rounding error. The free energy F then
changes by less than 2^-18 of the contribution of a row."""
LEAST = 2.0**-960
"""Smallest variance allowed; the variance and its inverse are normal floating-point numbers."""

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of the rows in each feature."""

    variances: Real
    sizes: Real
    """(d,) absolute values of the feature means."""
    extents: NDArray[np.int64]
    """(d,) exponents of the powers of 2 that bound the distances of the rows from the shift."""

    @property
    def mean(self) -> float:
        return float(np.cumsum(self.variances)[-1]) / len(self.variances)

    def floor(
        self, rows: Passes, covariance: Covariance, reg_covar: float, least_variance: float
    ) -> Real:
        """Return lower limits of the variances of components: (d,) for "diag", otherwise (1,).

        The limit is the maximum of ``least_variance``, ``reg_covar`` times the variance of the
        rows, and the resolution of the sums. With one variance per component, the variance of the
        rows is the mean over all features.

        The mean of a component has an error relative to the extent of the feature. As the mean
        moves by about the spread of the rows, the error of squared distances is the product of
        error and spread. If all rows are equal in a feature, the resolution is the rounding error
        of their value, or of 1 if the value is 0.
        """
        known = rows.statistics
        variances, sizes, extents = self.variances, self.sizes, self.extents
        if covariance != "diag":
            variances = np.array([self.mean])
            sizes = np.sqrt(np.cumsum(sizes * sizes)[-1:] / len(sizes))
            extents = np.array([known.grid.extent])
        bits = resolved_bits(known.grid, known.total_weight / known.n_rows)
        resolved = np.ldexp(np.sqrt(variances), extents + (MARGIN - bits))
        rounding = float(np.finfo(known.dtype).eps) * np.where(sizes > 0, sizes, 1.0)
        resolved = np.where(variances > 0, resolved, rounding * rounding)
        return np.maximum(np.maximum(reg_covar * variances, resolved), max(least_variance, LEAST))


def spread_of(rows: Passes) -> Spread:
    """Return the variances of the rows, in one pass.

    Raises DataError if their weighted sums of squared distances overflow.
    """
    known = rows.statistics
    weight = max(1.0, known.total_weight)
    # The factor 4 leaves room for sums of squares about other means.
    with np.errstate(over="ignore"):
        largest = np.ldexp(4.0 * len(known.shift) * weight, 2 * known.grid.extent)
    if not np.isfinite(largest):
        raise DataError(
            f"rows reach 2^{known.grid.extent} and weigh {known.total_weight:.3g} in total: sums "
            "of squared distances overflow float64. Divide the data or the weights by a constant."
        )
    found: FeatureSquares = rows.reduce(
        _add_squares, start=partial(FeatureSquares, known.shift), combine=FeatureSquares.merge
    )
    about_shift = found.sums.values / known.total_weight
    off = known.mean - known.shift.astype(np.float64)
    variances = about_shift - off * off
    # If all rows are equal, rounding may produce a positive variance.
    variances = np.where(variances > about_shift * 2.0**-50, variances, 0.0)
    extents = (np.frexp(found.largest)[1].astype(np.int64) + 1) // 2
    extents = np.where(found.largest > 0, extents, known.grid.extent)
    return Spread(variances, np.abs(known.mean), extents)


def _add_squares(chunk: Chunk, total: FeatureSquares) -> None:
    total.add(chunk.x, chunk.weight)
