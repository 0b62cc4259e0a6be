"""Components of a mixture, and the M-step.

"iso": one variance and equal weights. "isoflex": a variance and a weight per component. "diag": a
variance per component and feature, and a weight per component.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
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
    """Means, variances and weights of all components; the arrays are read-only."""

    means: NDArray[Any]
    """(k, d) means, in the compute dtype."""
    variances: Real
    """Shape (1, 1): one variance for all components; (k, 1): one per component; (k, d): one per
    component and feature."""
    log_weights: Real
    """(k,) logarithms of the weights; -infinity for retired components."""
    shift: NDArray[Any]

    def packed(self) -> PackedMixture:
        return pack_mixture(self.means, self.variances, self.log_weights, self.shift)

    @property
    def nbytes(self) -> int:
        return self.means.nbytes + self.variances.nbytes + self.log_weights.nbytes

    def arrays(self, counts: Real) -> MixtureArrays:
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
    """Return components of equal weight; ``variance`` is a number, (1,), or (d,) for "diag"."""
    k, d = means.shape
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[covariance]
    return Components(means, np.full(shape, variance), _equal_log_weights(np.ones(k, bool)), shift)


def updated(
    before: Components, sums: SoftSums, covariance: Covariance, floor: Real, *, shared: bool
) -> Components:
    """Run the M-step: return the components that maximise F, given summed responsibilities.

    Components without mass keep the mean and variance that they had ``before``. No variance is
    below ``floor``, (1,) or (d,). If ``shared``, all components have equal weights and the same
    variance (for "diag", the same variance per feature).
    """
    masses = sums.masses
    means = sums.means(before.means)
    squares = sums.variances(before.means, means)
    d = means.shape[1]
    total = sums.total
    if shared or covariance == "iso":
        # Add in a fixed order, for bit-identical results on any machine.
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


def bound_of_labels(cost: float, k: float, d: int, weight: float, floor: Real) -> float:
    """Return F if each row has only its cluster as a candidate; the cost gives the variance.

    The value is ``-W (log k + D/2 (log 2π σ² + 1))`` with ``σ² = cost / (D W)``, not below the
    floor. If weights are at least 1 / k, or floors differ between features, it is a lower bound of
    F.
    """
    variances = np.maximum(cost / (d * weight), floor)
    logs = np.cumsum(log(2 * pi * variances))[-1] / len(variances)
    within = cost / (d * weight * float(variances.min()))
    return -weight * float(log(np.array([k]))[0] + 0.5 * d * (logs + within))


def _equal_log_weights(alive: NDArray[np.bool_]) -> Real:
    """Return (k,) equal log weights for components in the mask ``alive``, else -infinity."""
    out: Real = np.where(alive, -_log(float(np.count_nonzero(alive))), -np.inf)
    return out


def _log(value: float) -> float:
    return float(log(np.array([value]))[0])
