"""Start of EM: the search for first means, and the value of F for its labels."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample
from largek_dask.algorithms.truncated import Truncated
from largek_dask.kernels.exact.transcendental import log

START = Truncated(rounds=5)
"""The search for first means."""
COARSE_ROWS = 128
"""Sample rows per coarse centre, from which the coarse centres are found."""

Real = NDArray[np.float64]


def bound_of_labels(cost: float, k: float, d: int, weight: float, floor: Real) -> float:
    """Return F with its cluster as each row's only candidate, and the variance given by the cost.

    ``-W (log k + D/2 (log 2π σ² + 1))`` with ``σ² = cost / (D W)``, not below the floor. If weights
    are at least 1 / k, or floors differ between features, the value is a lower bound of F.
    """
    variances = np.maximum(cost / (d * weight), floor)
    logs = np.cumsum(log(2 * pi * variances))[-1] / len(variances)
    within = cost / (d * weight * float(variances.min()))
    return -weight * float(log(np.array([k]))[0] + 0.5 * d * (logs + within))


def start_rows(rows: Passes, rng: Rng) -> NDArray[Any]:
    """Return sample rows in random order, from which to compute coarse centres."""
    sample = rows.subset(RowSample(rng, "coarse", COARSE_ROWS * 1_024))
    x: NDArray[Any] = sample.take().x
    sample.close()
    return x
