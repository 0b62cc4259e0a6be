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
COARSE_ROWS = 128
"""Number of rows in the sample per coarse centre."""

Real = NDArray[np.float64]


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


def start_rows(rows: Passes, rng: Rng) -> NDArray[Any]:
    """Return a sample of rows in random order, from which coarse centres are computed."""
    sample = rows.subset(RowSample(rng, "coarse", COARSE_ROWS * 1_024))
    x: NDArray[Any] = sample.take().x
    sample.close()
    return x
