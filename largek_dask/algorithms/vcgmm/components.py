"""Components of a mixture, and the M-step.

``iso``: one variance, equal weights. ``isoflex``: a variance and a weight per component. ``diag``:
a variance per component and feature, and a weight per component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.choices import Covariance
from largek_dask.algorithms.mixture import MixtureArrays
from largek_dask.kernels.exact.soft_sums import SoftSums
from largek_dask.kernels.exact.transcendental import log
from largek_dask.kernels.mixtures import PackedMixture, pack_mixture

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Components:
    """Means, variances and weights; read-only."""

    means: NDArray[Any]
    """(k, d), compute dtype."""
    variances: Real
    """Variances: (1, 1) if all share one, (k, 1) per component, or (k, d) per component and
    feature."""
    log_weights: Real
    """(k,) log weights; minus infinity for retired components."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""

    def packed(self) -> PackedMixture:
        """Return the components packed for the kernels."""
        return pack_mixture(self.means, self.variances, self.log_weights, self.shift)

    @property
    def nbytes(self) -> int:
        """Size of the arrays with k rows, in bytes."""
        return self.means.nbytes + self.variances.nbytes + self.log_weights.nbytes

    def arrays(self, counts: Real) -> MixtureArrays:
        """Return the components as arrays of a model."""
        return MixtureArrays(
            means=self.means,
            variances=self.variances,
            log_weights=self.log_weights,
            alive=np.isfinite(self.log_weights),
            counts=counts,
            shift=self.shift,
        )


def equal_components(
    means: NDArray[Any], variance: float | Real, shift: NDArray[Any], covariance: Covariance
) -> Components:
    """Return components of equal weight; ``variance`` is a number, (1,), or for "diag" (d,)."""
    k, d = means.shape
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[covariance]
    return Components(means, np.full(shape, variance), _equal_log_weights(np.ones(k, bool)), shift)


def updated(
    before: Components, sums: SoftSums, covariance: Covariance, floor: Real, *, shared: bool
) -> Components:
    """Run the M-step: return the components that maximise F, given summed responsibilities.

    Components without mass keep the mean and variance that they had ``before``. No variance is
    below ``floor``, (1,) or (d,). If ``shared``, all components have equal weights and the same
    variance (for "diag", the same one per feature).
    """
    masses = sums.masses
    means = sums.means(before.means)
    squares = sums.variances(before.means, means)
    d = means.shape[1]
    total = sums.total
    if shared or covariance == "iso":
        # Added in order, so that the sums have the same bits on any machine.
        variance = np.cumsum(squares, axis=0)[-1] / (total * (1 if covariance == "diag" else d))
        alive = np.isfinite(before.log_weights)
        variances = np.full(before.variances.shape, np.maximum(variance, floor))
        return Components(means, variances, _equal_log_weights(alive), before.shift)
    known = masses > 0
    divisor = np.where(known, masses, 1.0)[:, None] * (d if covariance == "isoflex" else 1)
    variances = np.where(known[:, None], np.maximum(squares / divisor, floor), before.variances)
    with np.errstate(divide="ignore"):
        log_weights = np.where(known, log(np.where(known, masses, 1.0)), -np.inf)
    log_weights = log_weights - _log(total)
    return Components(means, variances, log_weights, before.shift)


def _equal_log_weights(alive: NDArray[np.bool_]) -> Real:
    """Return (k,) log weights: minus the log of the number alive, or minus infinity if retired."""
    out: Real = np.where(alive, -_log(float(np.count_nonzero(alive))), -np.inf)
    return out


def _log(value: float) -> float:
    return float(log(np.array([value]))[0])
