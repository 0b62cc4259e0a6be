"""Sample a few rows for a model if the time limit passes before a search has one."""

from __future__ import annotations

import numpy as np

from largek_dask.algorithms.selection import TakenRows
from largek_dask.passes.base import BasePasses

__all__ = ["rows_at_hand"]

LEAST_ROWS = 2_048
ROWS_PER_CLUSTER = 4
CHUNKS = 4
"""Number of stored chunks that are read, evenly spaced; more if they have too few rows."""


def rows_at_hand(passes: BasePasses, k: int, draws: np.random.Generator) -> TakenRows:
    """Draw at least ``k`` rows of positive weight, if there are as many.

    They come evenly from all rows in memory, or from a few chunks of a store.
    """
    wanted = min(passes.n_rows, max(LEAST_ROWS, ROWS_PER_CLUSTER * k))
    table, n_chunks = passes.chunk_table, passes.n_chunks
    n_read = n_chunks if passes.rows.in_memory() is not None else min(n_chunks, CHUNKS)
    while True:
        chunks = np.unique(np.linspace(0, n_chunks - 1, n_read).astype(np.int64))
        there = np.concatenate([np.arange(table[i], table[i + 1]) for i in chunks])
        if len(there) >= wanted:
            there = np.sort(draws.choice(there, wanted, replace=False))
        taken = passes.take(there)
        if taken.weight is not None:
            some = np.flatnonzero(taken.weight > 0)
            taken = TakenRows(taken.x[some], taken.weight[some], taken.rows[some])
        if len(taken.x) >= k or n_read == n_chunks:
            return taken
        wanted, n_read = 2 * wanted, min(n_chunks, 2 * n_read)
