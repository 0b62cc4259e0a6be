"""Samples that include the rows that carry the cost, if these are far from all centres and few.

A uniform sample of one row in a hundred may miss a group of much less than a hundred rows, however
far away they are; and with centres from such a sample, the cost of all rows may be that of a few.
If the first pass over all rows finds this, rows are drawn again: a row that the uniform sample may
have missed, because it is far from its centre or because few rows share its centre, is more likely
(sensitivities: D. Feldman, M. Langberg, A unified framework for approximating and clustering data,
STOC 2011). Each represents as many rows as it was likely to be passed over for, so sums over them
approximate those over all rows, for any centres.

Which rows are drawn depends on the seed, their indices and the centres, not on chunks: the numbers
drawn for rows are hashes of their indices, and those of the lowest number for their chance are
taken (N. Duffield, C. Lund, M. Thorup, Priority sampling for estimation of arbitrary subset sums,
J. ACM 2007).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.selection import numbers_of
from largek_dask.algorithms.truncated.passes import Pass, RowArrays, read_row_state

__all__ = ["FarRows", "carry_the_cost", "draw_rows", "far_from"]

BEYOND = 8.0
"""Multiple of the mean squared distance, estimated by samples, beyond which rows are far. A uniform
sample has some of every group that costs as much as a cluster with its rows nearer than that."""
SHARE = 0.05
"""Share of the cost above which far rows count."""
ROWS, LEAST, MOST = 128, 2_048, 1 << 18
"""Rows drawn per centre; minimum and maximum in all."""
VALUES = 1 << 26
"""Maximum values (rows times features) of the drawn rows."""

Places = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FarRows:
    """Drawn rows, including far ones."""

    rows: Places
    """(m,) global indices, ascending."""
    shares: Weights
    """(m,) number of rows that each represents, itself included."""


def far_from(mean: float) -> float:
    """Return the squared distance beyond which rows are far, given the mean of all rows."""
    return BEYOND * mean


def rows_to_draw(n_rows: int, row_values: int, k: int) -> int:
    """Return the number of rows to draw."""
    return min(n_rows, max(LEAST, min(ROWS * k, MOST, VALUES // row_values)))


def carry_the_cost(far: float, cost: float) -> bool:
    """Return True if far rows have a substantial share of the cost."""
    return far > SHARE * cost


class Drawn:
    """The rows of the lowest numbers so far."""

    __slots__ = ("chances", "keys", "most", "rows")

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows = np.empty(0, np.int64)
        self.keys, self.chances = np.empty(0), np.empty(0)

    @property
    def nbytes(self) -> int:
        """Bytes of this total when it is sent."""
        return self.rows.nbytes + self.keys.nbytes + self.chances.nbytes

    def add(self, rows: Places, keys: Weights, chances: Weights) -> None:
        """Keep the first ``most`` of these and the present rows; of equal keys by index."""
        rows, keys = np.concatenate([self.rows, rows]), np.concatenate([self.keys, keys])
        chances = np.concatenate([self.chances, chances])
        if len(rows) > self.most:
            # Most rows are left out by one reading, and sorting is short.
            chosen = np.flatnonzero(keys <= np.partition(keys, self.most - 1)[self.most - 1])
            chosen = chosen[np.lexsort((rows[chosen], keys[chosen]))[: self.most]]
            rows, keys, chances = rows[chosen], keys[chosen], chances[chosen]
        self.rows, self.keys, self.chances = rows, keys, chances

    @staticmethod
    def combine(a: Drawn, b: Drawn) -> Drawn:
        """Add ``b`` into ``a``."""
        a.add(b.rows, b.keys, b.chances)
        return a


def draw_rows(
    passes: Passes,
    rng: Rng,
    history: History[Pass],
    counts: Weights,
    mean: float,
) -> FarRows:
    """Draw rows, preferring those that are far from their centres or share theirs with few.

    Parameters
    ----------
    passes : Passes
    rng : Rng
    history : History
        Up to the last pass over all rows.
    counts : (k,) float64
        Weight of the rows of each cluster after it.
    mean : float
        Squared distance of a row to its centre that doubles its probability.
    """
    n = rows_to_draw(passes.n_rows, passes.row_values, len(counts))
    even = passes.statistics.total_weight / len(counts)
    fewer = np.divide(even, counts, out=np.zeros_like(counts), where=counts > 0)
    seed = int(rng.generator(0, "far rows").integers(1 << 63))
    drawn: Drawn = read_row_state(
        passes, history, draw_chunk, seed, fewer, mean,
        start=partial(Drawn, n + 1), combine=Drawn.combine,
    )  # fmt: skip
    order = np.lexsort((drawn.rows, drawn.keys))
    # Inclusion probabilities follow from the first key that was not drawn.
    limit = float(drawn.keys[order[n]]) if len(order) > n else np.inf
    chosen = order[:n][np.argsort(drawn.rows[order[:n]])]
    # Whole numbers: if weights are integers, sums hold nothing finer.
    shares = np.rint(np.maximum(1.0, 1.0 / (limit * drawn.chances[chosen])))
    return FarRows(drawn.rows[chosen], shares)


def draw_chunk(
    first: int,
    weight: Weights | None,
    rows: RowArrays,
    total: Drawn,
    seed: int,
    fewer: Weights,
    mean: float,
) -> None:
    """Draw among the rows of a chunk."""
    present = np.flatnonzero(rows.labels >= 0)
    chances = rows.upper[present].astype(np.float64) ** 2 / mean
    chances += 1.0 + fewer[rows.labels[present]]
    if weight is not None:
        chances *= weight[present]
    keys = numbers_of(first + present, seed) / chances
    total.add(first + present, keys, chances)
