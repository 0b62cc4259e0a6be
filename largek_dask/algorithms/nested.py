"""A nested batch as a door to its rows: on whoever owns the chunks, or gathered in one place.

A batch of ``end`` of ``n`` rows is, in every chunk, the first share of that chunk's one seeded
permutation. While a batch is small, a pass over a cluster costs more than its computation: then
its rows are gathered once, in the driver's process, and steps run there with the same functions.
Sums are exact and a row's result does not depend on where it stands, so no bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import ChunkFunction, Passes, Rng, RowSlice, RowState
from largek_dask.algorithms.gathered import CollectedRows, Gathered, collect_some, some_rows
from largek_dask.kernels.exact.statistics import Statistics

__all__ = ["Batch", "Gathered", "gather", "open_batch", "sample_points"]

Total = TypeVar("Total")

GATHERED = "nested rows"
"""Where the gathered rows lie among what passes keep."""
SAMPLE = "nested sample"
"""Where a sample of a batch lies among what passes keep."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A nested batch; what it offers is that of ``Passes``, restricted to its rows."""

    passes: Passes
    rng: Rng
    end: int
    """Rows of the batch out of ``passes.n_rows``."""
    gathered: Gathered | None
    """Where its rows are, if they have been gathered."""

    @property
    def n_features(self) -> int:
        """Features of a row."""
        return self.passes.n_features

    @property
    def statistics(self) -> Statistics:
        """Statistics of all rows."""
        return self.passes.statistics

    def slice(self) -> RowSlice:
        """The rows of the batch, as a share of every chunk."""
        return RowSlice(self.rng, 0, self.end, self.passes.n_rows)

    def reduce(
        self,
        chunk_fn: ChunkFunction,
        *broadcast: Any,
        start: Callable[[], Total],
        combine: Callable[[Total, Total], Total],
        state: RowState | None = None,
    ) -> Any:
        """One map-reduce over the rows of the batch; see ``Passes.reduce``."""
        if self.gathered is not None:
            return self.gathered.reduce(self.end, chunk_fn, broadcast, start, combine, state)
        # All rows are no share: nothing needs to be picked out of a chunk.
        rows = None if self.end == self.passes.n_rows else self.slice()
        return self.passes.reduce(
            chunk_fn, *broadcast, start=start, combine=combine, state=state, rows=rows
        )


def gather(passes: Passes, rng: Rng, *ends: int) -> Gathered:
    """Gather the rows of batches of these ascending sizes, what is there already excepted."""
    kept: Gathered | None = passes.scratch.get(GATHERED)
    if kept is not None and kept.rng == rng and all(kept.extend(passes, end) for end in ends):
        return kept
    fresh = Gathered(rng, passes.n_rows, passes.n_features, passes.driver_threads)
    passes.scratch[GATHERED] = fresh
    for end in ends:
        fresh.extend(passes, end)
    return fresh


def open_batch(passes: Passes, rng: Rng, before: int, end: int, *, gathered: bool) -> Batch:
    """The batch of ``end`` rows that follows one of ``before`` rows."""
    ends = (before, end) if before else (end,)
    return Batch(passes, rng, end, gather(passes, rng, *ends) if gathered else None)


def sample_points(
    passes: Passes, rng: Rng, end: int, most: int
) -> tuple[Any, NDArray[np.float64], NDArray[np.int64]]:
    """Rows of a batch, at most so many, in any order: coordinates, weights, global indices.

    Of a batch that has not been gathered, only these rows are fetched.
    """
    kept: Gathered | None = passes.scratch.get(GATHERED)
    there = kept is not None and kept.rng == rng and end in kept.edges
    sizes = np.diff(passes.chunk_table) * end // passes.n_rows
    # Where some rows count for nothing, which is the how-manieth is known to who has them all.
    if there or passes.statistics.n_rows < passes.n_rows or not sizes.any():
        return gather(passes, rng, end).some(end, most)
    every = max(1, -(-int(sizes.sum()) // most))
    key, known = (rng, end, every), passes.scratch.get(SAMPLE)
    if known is None or known[0] != key:
        before = np.cumsum(sizes) - sizes
        collected: CollectedRows = passes.reduce(
            collect_some,
            -before % every,
            every,
            start=CollectedRows,
            combine=CollectedRows.combine,
            rows=RowSlice(rng, 0, end, passes.n_rows),
        )
        passes.scratch[SAMPLE] = known = (key, some_rows(list(collected.pieces(1))))
    points: tuple[Any, NDArray[np.float64], NDArray[np.int64]] = known[1]
    return points
