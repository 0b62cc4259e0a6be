"""Nested batches of rows, held in the driver's process or read on the workers.

J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016, section 3.3: a row costs more in the
step in which it enters a batch, so every thread or worker should have an equal part of the rows
that entered in each step. Here a batch is the same share of every chunk, in the order of a seeded
permutation of that chunk, so a smaller batch is always part of a larger one.

No result depends on whether a batch is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, PlannedTable, Rng, RowSlice, SpacedRows, TableShape
from largek_dask.kernels.blocks import rows_at

SAMPLE_VALUES = 1 << 25
"""Maximum values (rows times features) of a sample."""
GATHERED_VALUES = 1 << 25
"""Maximum values of a gathered batch."""
GATHERED_WORK = 1 << 31
"""Maximum multiplications to assign a gathered batch, if workers could share them: tens of
milliseconds, about as long as a pass takes on a cluster of machines."""

COPIES = 3
"""Number of copies of a sample from which centres are drawn: as read, in one piece, and in
order."""


@dataclass(frozen=True, slots=True)
class NestedBatch:
    """Access to the rows of one batch."""

    passes: Passes
    """Passes over the rows of the batch, or over a larger set of rows."""
    share: RowSlice | None
    """Slice of the rows in ``passes`` that forms the batch; None for all of them."""
    gathered: bool
    """True if the rows are held in the driver's process."""


@dataclass(frozen=True, slots=True)
class NestedRows:
    """All rows of a table, in the nested order."""

    passes: Passes
    rng: Rng

    def first(self, rows: int) -> RowSlice:
        """Return the first rows of the nested order, counted over all chunks together."""
        return RowSlice(self.rng, 0, rows, self.passes.n_rows)

    def batch(self, rows: int, rows_before: int, gathered: bool) -> NestedBatch:
        """Return the batch of the first rows; ``rows_before`` is the size of the previous batch."""
        if gathered:
            if rows_before not in (0, rows):
                # Entering rows come after those of the previous batch.
                self.passes.subset(self.first(rows_before))
            return NestedBatch(self.passes.subset(self.first(rows)), None, True)
        everything = rows == self.passes.n_rows
        return NestedBatch(self.passes, None if everything else self.first(rows), False)

    def sample(self, rows: int, k: int) -> tuple[Any, NDArray[np.float64], int]:
        """Return the first rows (m, d) of positive weight, their weights, and how many were read.

        More rows than requested are returned if there would otherwise be fewer than k, as few have
        positive weight or chunks are small; fewer rows if they would take too much memory.
        """
        n = self.passes.n_rows
        size = min(rows, room_of_sample(self.passes, k))
        while True:
            x, weight, rows_of_x = self.passes.subset(self.first(size)).take()
            weight = np.ones(len(x)) if weight is None else weight
            # Sorted by index, since after a resume the rows are in another order.
            order = np.argsort(rows_of_x, kind="stable")
            order = order[weight[order] > 0]
            if len(order) >= k or size == n:
                return rows_at(x, order), weight[order], size
            size = min(2 * size, n)

    def spaced_sample(self, rows: int, least: int, k: int, each: int) -> Passes:
        """Return up to ``each`` rows per cluster of k, evenly spaced among the first rows.

        These are the first ``least`` rows; their number doubles, up to ``rows``, while they are too
        few.
        """
        most = min(rows, room_of_sample(self.passes, k))
        size = min(least, most)
        while size < each * k and 2 * size <= most:
            size *= 2
        return self.passes.subset(SpacedRows(self.first(size), each * k))


def worth_gathering(table: Passes | PlannedTable, rows: int, k: int, n_passes: int = 1) -> bool:
    """Return True if a step on few rows is as fast in one process as on a cluster of machines."""
    values = rows * table.row_values
    alone = table.n_threads == 1
    return values <= GATHERED_VALUES and (alone or values * k // n_passes <= GATHERED_WORK)


def room_of_sample(table: TableShape, k: int) -> int:
    """Return the maximum number of rows of a sample, at least one per cluster."""
    return max(k, SAMPLE_VALUES // table.row_values)
