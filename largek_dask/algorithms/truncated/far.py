"""Samples that include the rows that carry the cost, if these are far from all centres and few.

A uniform sample of one row in a hundred may miss a group of much less than a hundred rows, however
far away they are; and with centres from such a sample, the cost of all rows may be that of a few.
If the first pass over all rows finds this, rows are drawn again: a row that the uniform sample may
have missed, because it is far from its centre or because few rows share its centre, is more likely
(sensitivities: D. Feldman, M. Langberg, A unified framework for approximating and clustering data,
STOC 2011). Each represents as many rows as it was likely to be passed over for, so sums over them
approximate those over all rows, for any centres.

Which rows are drawn depends on the seed, their indices and the centres, not on chunks: every row
has a pseudorandom number, a hash of its index, and those with the lowest ratio of number to chance
are taken (N. Duffield, C. Lund, M. Thorup, Priority sampling for estimation of arbitrary subset
sums, J. ACM 2007).
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
"""Multiple of the mean squared distance, estimated by samples, beyond which rows are far. A uniform
sample has some of every group that costs as much as a cluster with its rows nearer than that."""
FAR_COST = 0.05
"""Share of the cost above which far rows count."""
LEAST = 2_048
"""Minimum number of rows to draw."""

Indices = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FarSample:
    """Drawn rows, including far ones."""

    rows: Indices
    """(m,) global indices, ascending."""
    shares: Weights
    """(m,) number of rows that each represents, itself included."""


class PrioritySample:
    """The ``size`` rows of the lowest keys so far."""

    __slots__ = ("chances", "keys", "rows", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows = np.empty(0, np.int64)
        self.keys, self.chances = np.empty(0), np.empty(0)

    @property
    def nbytes(self) -> int:
        """Bytes of this total when it is sent."""
        return self.rows.nbytes + self.keys.nbytes + self.chances.nbytes

    def add(self, rows: Indices, keys: Weights, chances: Weights) -> None:
        """Keep the first ``size`` of these and the present rows; of equal keys by index."""
        rows, keys = np.concatenate([self.rows, rows]), np.concatenate([self.keys, keys])
        chances = np.concatenate([self.chances, chances])
        if len(rows) > self.size:
            # Most rows are left out by one reading, and sorting is short.
            chosen = np.flatnonzero(keys <= np.partition(keys, self.size - 1)[self.size - 1])
            chosen = chosen[np.lexsort((rows[chosen], keys[chosen]))[: self.size]]
            rows, keys, chances = rows[chosen], keys[chosen], chances[chosen]
        self.rows, self.keys, self.chances = rows, keys, chances

    @staticmethod
    def combine(a: PrioritySample, b: PrioritySample) -> PrioritySample:
        """Add ``b`` into ``a``."""
        a.add(b.rows, b.keys, b.chances)
        return a


def draw_rows(
    passes: Passes, rng: Rng, history: History[Pass], counts: Weights, mean: float
) -> FarSample:
    """Draw rows, preferring those that are far from their centres or share theirs with few.

    ``history`` leads to the last pass over all rows, and ``counts`` (k,) are the weights of the
    clusters after it. A squared distance of ``mean`` to its centre doubles a row's probability.
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
    # Inclusion probabilities follow from the first key that was not drawn.
    limit = float(drawn.keys[order[n]]) if len(order) > n else np.inf
    chosen = order[:n][np.argsort(drawn.rows[order[:n]])]
    # Whole numbers: if weights are integers, sums hold nothing finer.
    shares = np.rint(np.maximum(1.0, 1.0 / (limit * drawn.chances[chosen])))
    return FarSample(drawn.rows[chosen], shares)


def draw_chunk(chunk: Chunk, total: PrioritySample, seed: int, fewer: Weights, mean: float) -> None:
    """Draw among the rows of a chunk."""
    assert chunk.state is not None
    labels, upper = chunk.state["labels"], chunk.state["upper"]
    present = np.flatnonzero(labels >= 0)
    chances = upper[present].astype(np.float64) ** 2 / mean
    chances += 1.0 + fewer[labels[present]]
    if chunk.weight is not None:
        chances *= chunk.weight[present]
    rows = chunk.start + present
    total.add(rows, numbers_of(rows, seed) / chances, chances)
