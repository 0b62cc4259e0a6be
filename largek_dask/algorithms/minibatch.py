"""Mini-batch k-means: centres are running means of every assignment ever made.

D. Sculley, Web-scale k-means clustering, WWW 2010 (Algorithm 1); ``mbatch`` in the paper on
nested mini-batches (its Algorithm 1), which measures against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Chunk,
    Info,
    KMeansProblem,
    ModelArrays,
    Passes,
    Rng,
    RowSlice,
)
from largek_dask.algorithms.seeding import initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers
from largek_dask.kernels.sums import ClusterSums, FixedPoint, Squares

__all__ = ["BatchTotal", "MiniBatch", "MiniBatchState", "batch_chunk", "running_means"]


class BatchTotal:
    """Exact sums of one batch under the centres it was assigned to."""

    __slots__ = ("n_rows", "squares", "sums")

    def __init__(self, k: int, d: int, grid: FixedPoint) -> None:
        self.sums = ClusterSums(k, d, grid)
        self.squares = Squares(1)
        self.n_rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return self.sums.nbytes + self.squares.nbytes

    def add(
        self, x: NDArray[Any], weight: NDArray[np.float64] | None, centers: PackedCenters
    ) -> None:
        """Assign rows (n, d) of weight (n,) and add them."""
        self.sums.add(x, nearest(x, centers), weight)
        self.squares.add_squares(x, self.sums.grid.shift, weight)
        self.n_rows += len(x)

    @staticmethod
    def combine(a: BatchTotal, b: BatchTotal) -> BatchTotal:
        """Add ``b`` into ``a``."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        a.n_rows += b.n_rows
        return a


def batch_chunk(chunk: Chunk, total: BatchTotal, centers: PackedCenters) -> None:
    """Assign the batch's rows of one chunk."""
    total.add(chunk.x, chunk.weight, centers)


def running_means(
    means: NDArray[np.float64],
    votes: NDArray[np.float64],
    total: BatchTotal,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means (k, d) and votes (k,) after the votes of a batch.

    The mean of all votes is kept, not their sum: the number of votes has no bound, and a
    fixed-point sum of them would have none either.
    """
    added = total.sums.counts
    after = votes + added
    changed = added > 0
    out = means.copy()
    batch_means = total.sums.means_float64(means)
    step = (added[changed] / after[changed])[:, None]
    out[changed] += step * (batch_means[changed] - means[changed])
    return out, after


@dataclass(frozen=True, slots=True)
class MiniBatchState:
    """Between two batches."""

    step: int
    means: NDArray[np.float64]
    """(k, d) running means of every assignment made so far (the starting centre before any)."""
    votes: NDArray[np.float64]
    """(k,) weight of every assignment made so far."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute; its dtype is the compute dtype."""
    begin: int
    """Where the next batch begins, in rows of the seeded order (0 to n_rows)."""


@dataclass(frozen=True)
class MiniBatch:
    """Sculley's mini-batch k-means; a step is one batch.

    Batches are successive slices of every chunk's one seeded permutation, in proportion to the
    chunk's rows, so that data sorted by class are sampled evenly; after the last slice the
    first comes again. The running means never settle to a fixed point: the loop ends by
    ``max_iter`` (batches) or ``max_time``.

    Parameters
    ----------
    batch_rows : int or "auto"
        Rows of a batch; "auto" is ten rows a cluster and at least 4,096.
    """

    batch_rows: int | Literal["auto"] = "auto"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        rows: object = self.batch_rows
        whole = isinstance(rows, int) and not isinstance(rows, bool) and rows >= 1
        if rows != "auto" and not whole:
            raise ParameterError(f"batch_rows must be 'auto' or at least 1, got {rows!r}.")

    def init(self, passes: Passes, rng: Rng) -> MiniBatchState:
        """Starting centres, without votes."""
        assert self.problem is not None
        centers = initial_centers(passes, rng, self.problem.n_clusters, self.problem.init)
        return MiniBatchState(
            0, centers.astype(np.float64), np.zeros(len(centers)), passes.statistics.shift, 0
        )

    def step(self, passes: Passes, rng: Rng, state: MiniBatchState) -> tuple[MiniBatchState, Info]:
        """Assign one batch and let its rows vote."""
        k, d = state.means.shape
        n = passes.n_rows
        rows = max(10 * k, 4096) if self.batch_rows == "auto" else self.batch_rows
        end = min(state.begin + rows, n)
        packed = pack_centers(state.means.astype(state.shift.dtype), state.shift)
        total: BatchTotal = passes.reduce(
            batch_chunk,
            packed,
            start=partial(BatchTotal, k, d, passes.statistics.grid),
            combine=BatchTotal.combine,
            rows=RowSlice(rng, state.begin, end, n),
        )
        means, votes = running_means(state.means, state.votes, total)
        weight = float(total.sums.counts.sum())
        # The batch's cost under the centres that it met, scaled to all rows: an estimate.
        cost = total.sums.cost(packed.centers, total.squares)
        scale = passes.statistics.total_weight / weight if weight > 0 else 0.0
        info = Info(cost=cost * scale, rows=total.n_rows, extra={"batch_rows": float(total.n_rows)})
        begin = 0 if end == n else end
        return MiniBatchState(state.step + 1, means, votes, state.shift, begin), info

    def model(self, state: MiniBatchState) -> ModelArrays:
        """The running means, rounded to the compute dtype."""
        return ModelArrays(state.means.astype(state.shift.dtype), state.votes, state.shift)
