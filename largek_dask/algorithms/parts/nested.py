"""Nested batches of rows, read on the workers or gathered in the driver's process.

J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016, section 3.3: a row costs more in the
step in which it enters a batch, so every worker should get an equal number of new rows. Here a
batch is the same share of every chunk, in the order of a seeded permutation, so every batch
contains all smaller batches.

Results do not depend on whether a batch is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, PlannedTable, Rng, RowSlice, SpacedRows, TableShape
from largek_dask.kernels.blocks import rows_at

SAMPLE_VALUES = 1 << 25
GATHERED_VALUES = 1 << 25
GATHERED_WORK = 1 << 31
"""Maximum number of multiplications to assign a gathered batch that workers could share. These take
tens of milliseconds, about as long as a pass on a cluster."""

COPIES = 3
"""Number of copies of a sample from which centres are drawn: as read, concatenated, and sorted."""


@dataclass(frozen=True, slots=True)
class NestedBatch:
    passes: Passes
    """Passes over the rows of the batch, or over a larger set of rows."""
    share: RowSlice | None
    """Slice of ``passes`` that forms the batch; None if the batch is all of ``passes``."""
    gathered: bool


@dataclass(frozen=True, slots=True)
class NestedRows:
    """All rows of a table, in the nested order."""

    passes: Passes
    rng: Rng

    def first(self, rows: int) -> RowSlice:
        """Return a slice of the first rows in the nested order."""
        return RowSlice(self.rng, 0, rows, self.passes.n_rows)

    def batch(self, rows: int, rows_before: int, gathered: bool) -> NestedBatch:
        """Return a batch of the first rows; ``rows_before`` is the size of the previous batch."""
        if gathered:
            if rows_before not in (0, rows):
                # Request the previous batch first, so that new rows come after its rows.
                self.passes.subset(self.first(rows_before))
            return NestedBatch(self.passes.subset(self.first(rows)), None, True)
        everything = rows == self.passes.n_rows
        return NestedBatch(self.passes, None if everything else self.first(rows), False)

    def sample(self, rows: int, k: int) -> tuple[Any, NDArray[np.float64], int]:
        """Return the first rows of positive weight, their weights, and the number of rows read.

        The sample is enlarged while it has fewer than k rows of positive weight, and reduced if it
        would take too much memory.
        """
        n = self.passes.n_rows
        size = min(rows, room_of_sample(self.passes, k))
        while True:
            x, weight, rows_of_x = self.passes.subset(self.first(size)).take()
            weight = np.ones(len(x)) if weight is None else weight
            # Sort by index, because the order of rows may change after a resume.
            order = np.argsort(rows_of_x, kind="stable")
            order = order[weight[order] > 0]
            if len(order) >= k or size == n:
                return rows_at(x, order), weight[order], size
            size = min(2 * size, n)

    def spaced_sample(self, rows: int, least: int, k: int, each: int) -> Passes:
        """Return a sample of up to ``each * k`` evenly spaced rows of the nested order.

        The sample is taken from the first ``least`` rows; this number doubles, up to ``rows``,
        while it is below ``each * k``.
        """
        most = min(rows, room_of_sample(self.passes, k))
        size = min(least, most)
        while size < each * k and 2 * size <= most:
            size *= 2
        return self.passes.subset(SpacedRows(self.first(size), each * k))


def halved(n: int, least: int) -> int:
    """Halve n, rounding up, as long as at least ``least`` remain; doubling then leads back to n."""
    while -(-n // 2) >= least:
        n = -(-n // 2)
    return n


def worth_gathering(table: Passes | PlannedTable, rows: int, k: int, n_passes: int = 1) -> bool:
    """Return True if one process takes no longer than a cluster for a step on these rows."""
    values = rows * table.row_values
    alone = table.n_threads == 1
    return values <= GATHERED_VALUES and (alone or values * k // n_passes <= GATHERED_WORK)


def room_of_sample(table: TableShape, k: int) -> int:
    """Return the maximum number of rows in a sample, which is at least k."""
    return max(k, SAMPLE_VALUES // table.row_values)
