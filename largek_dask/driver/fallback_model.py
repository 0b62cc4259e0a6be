"""A few rows for a model whose fit had no time to look for one."""

from __future__ import annotations

import numpy as np

from largek_dask.algorithms.selection import TakenRows
from largek_dask.passes.base import BasePasses

__all__ = ["rows_at_hand"]

LEAST_ROWS = 2_048
ROWS_A_CLUSTER = 4
CHUNKS = 4
"""Chunks that are read where rows do not lie in memory, evenly spaced; more if they are small."""


def rows_at_hand(passes: BasePasses, k: int, draws: np.random.Generator) -> TakenRows:
    """Some rows that weigh something, drawn evenly from all, or from a few chunks of a store.

    Parameters
    ----------
    passes : BasePasses
    k : int
        At least as many rows are wanted.
    draws : Generator
    """
    wanted = min(passes.n_rows, max(LEAST_ROWS, ROWS_A_CLUSTER * k))
    table, n_chunks = passes.chunk_table, passes.n_chunks
    n_read = n_chunks if passes.rows.in_memory() is not None else min(n_chunks, CHUNKS)
    while True:
        chunks = np.unique(np.linspace(0, n_chunks - 1, n_read).astype(np.int64))
        there = np.concatenate([np.arange(table[i], table[i + 1]) for i in chunks])
        if len(there) >= wanted:
            there = np.sort(draws.choice(there, wanted, replace=False))
        taken = passes.take(there)
        counts = _that_count(taken)
        if len(counts.x) >= k or n_read == n_chunks:
            return counts
        wanted, n_read = 2 * wanted, min(n_chunks, 2 * n_read)


def _that_count(rows: TakenRows) -> TakenRows:
    """Those of the rows that weigh something."""
    if rows.weight is None:
        return rows
    some = np.flatnonzero(rows.weight > 0)
    return TakenRows(rows.x[some], rows.weight[some], rows.rows[some])
