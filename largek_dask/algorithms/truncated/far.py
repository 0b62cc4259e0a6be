"""Samples that include rare rows far from all centres, if these account for much of the cost.

A uniform sample of one row in a hundred may miss a group of far fewer than a hundred rows, however
distant they are, and then these rows may account for most of the cost. If the first pass over all
rows finds this, a new sample is drawn, which prefers rows that are far from their centres or in
small clusters (sensitivity sampling: D. Feldman, M. Langberg, A unified framework for approximating
and clustering data, STOC 2011). Each drawn row is weighted by the inverse of its probability, so
sums over the sample approximate sums over all rows.

The sample depends on the seed, the row indices and the centres, not on chunks: every row has a
pseudorandom number, a hash of its index, and the rows with the lowest ratio of this number to their
sampling weight are drawn (N. Duffield, C. Lund, M. Thorup, Priority sampling for estimation of
arbitrary subset sums, J. ACM 2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, Rng
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.randomness import numbers_of
from largek_dask.algorithms.truncated.passes import Pass, stored_state

FAR_DISTANCE = 8.0
"""A row is far if its squared distance to its centre is more than this factor times the mean.
Uniform samples also contain rows of nearer groups that cost as much as a cluster."""
FAR_COST = 0.05
"""If far rows account for more than this share of the cost, a new sample is drawn."""
LEAST = 2_048
"""Minimum number of rows to draw."""

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FarSample:
    """Sample of rows, including far rows."""

    rows: Indices
    shares: Weights
    """(m,) number of rows that each drawn row represents, including itself."""


class PrioritySample:
    """Sample of the ``size`` rows with the lowest keys."""

    __slots__ = ("chances", "keys", "rows", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows = np.empty(0, np.int64)
        self.keys, self.chances = np.empty(0), np.empty(0)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.keys.nbytes + self.chances.nbytes

    def add(self, rows: Indices, keys: Weights, chances: Weights) -> None:
        """Keep the ``size`` rows with the lowest keys; ties are broken by row index."""
        rows, keys = np.concatenate([self.rows, rows]), np.concatenate([self.keys, keys])
        chances = np.concatenate([self.chances, chances])
        if len(rows) > self.size:
            # Discard most rows before sorting the rest.
            chosen = np.flatnonzero(keys <= np.partition(keys, self.size - 1)[self.size - 1])
            chosen = chosen[np.lexsort((rows[chosen], keys[chosen]))[: self.size]]
            rows, keys, chances = rows[chosen], keys[chosen], chances[chosen]
        self.rows, self.keys, self.chances = rows, keys, chances

    @staticmethod
    def combine(a: PrioritySample, b: PrioritySample) -> PrioritySample:
        """Add ``b`` to ``a``."""
        a.add(b.rows, b.keys, b.chances)
        return a


def draw_rows(
    passes: Passes, rng: Rng, history: History[Pass], counts: Weights, mean: float
) -> FarSample:
    """Draw rows, preferring rows that are far from their centres or in small clusters.

    ``history`` ends with the last pass over all rows; ``counts`` (k,) are the cluster weights after
    this pass; ``mean`` is the mean squared distance of the rows to their centres.
    """
    n = max(LEAST, min(128 * len(counts), 1 << 18, (1 << 26) // passes.row_values))
    n = min(passes.n_rows, n)
    even = passes.statistics.total_weight / len(counts)
    fewer = np.divide(even, counts, out=np.zeros_like(counts), where=counts > 0)
    seed = int(rng.generator(0, "far rows").integers(1 << 63))
    drawn: PrioritySample = passes.reduce(
        draw_chunk,
        seed,
        fewer,
        mean,
        start=partial(PrioritySample, n + 1),
        combine=PrioritySample.combine,
        state=stored_state(passes, history),
        joined=True,
    )
    order = np.lexsort((drawn.rows, drawn.keys))
    # The lowest key that was not drawn determines the inclusion probabilities.
    limit = float(drawn.keys[order[n]]) if len(order) > n else np.inf
    chosen = order[:n][np.argsort(drawn.rows[order[:n]])]
    # Use integers: if all weights are integers, exact sums cannot represent fractions.
    shares = np.rint(np.maximum(1.0, 1.0 / (limit * drawn.chances[chosen])))
    return FarSample(drawn.rows[chosen], shares)


def draw_chunk(chunk: Chunk, total: PrioritySample, seed: int, fewer: Weights, mean: float) -> None:
    assert chunk.state is not None
    labels, upper = chunk.state["labels"], chunk.state["upper"]
    present = np.flatnonzero(labels >= 0)
    chances = upper[present].astype(np.float64) ** 2 / mean
    chances += 1.0 + fewer[labels[present]]
    if chunk.weight is not None:
        chances *= chunk.weight[present]
    rows = chunk.start + present
    total.add(rows, numbers_of(rows, seed) / chances, chances)
