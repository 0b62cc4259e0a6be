"""Where EM begins: the search for first means, and what is known of the rows before it."""

from __future__ import annotations

from functools import partial
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, Rng, RowSample
from largek_dask.algorithms.truncated import Truncated
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.exact.transcendental import log

__all__ = [
    "START",
    "bound_of_labels",
    "mean_variance",
    "random_neighbourhoods",
    "start_rows",
    "steps_of_pairs",
]

START = Truncated(rounds=5)
"""The search for first means."""
COARSE_ROWS = 128
"""Rows a coarse centre of the sample that they are found on."""


def bound_of_labels(cost: float, k: int, d: int, weight: float, floor: float) -> float:
    """F if every row's one candidate is its cluster, and the variance what the cost tells.

    ``-W (log k + D/2 (log 2π σ² + 1))`` with ``σ² = cost / (D W)``, not below the floor.
    """
    variance = max(cost / (d * weight), floor)
    logs = log(np.array([float(k), 2 * pi * variance]))
    within = cost / (d * weight * variance)
    return -weight * float(logs[0] + 0.5 * d * (logs[1] + within))


def mean_variance(rows: Passes) -> float:
    """The mean over the features of the variance of the rows."""
    known = rows.statistics
    total: Squares = rows.reduce(
        _add_squares, known.shift, start=partial(Squares, 1), combine=Squares.merge
    )
    off = known.mean - known.shift.astype(np.float64)
    about_shift = total.value / known.total_weight
    return max(0.0, about_shift - float(np.cumsum(off * off)[-1])) / rows.n_features


def _add_squares(chunk: Chunk, total: Squares, shift: NDArray[Any]) -> None:
    total.add_squares(chunk.x, shift, chunk.weight)


def start_rows(rows: Passes, rng: Rng) -> NDArray[Any]:
    """Rows in random order, for coarse centres."""
    sample = rows.subset(RowSample(rng, "coarse", COARSE_ROWS * 1_024))
    x: NDArray[Any] = sample.take().x
    sample.close()
    return x


def random_neighbourhoods(rng: Rng, k: int, length: int) -> NDArray[np.int32]:
    """(k, length): each component, and others drawn at random, each once."""
    draw = rng.generator(0, "neighbourhoods")
    out = np.empty((k, length), np.int32)
    for c in range(k):
        others = draw.choice(k - 1, length - 1, replace=False)
        out[c, 0], out[c, 1:] = c, others + (others >= c)
    return out


def steps_of_pairs(rows: Passes) -> float:
    """Steps a unit of squared distance: none is above 2^40, and 2^23 of them are an int64."""
    most = 4.0 * rows.n_features * float(rows.statistics.max_abs) ** 2
    return float(2.0 ** (40 - int(np.frexp(most)[1])))
