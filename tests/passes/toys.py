"""Toy algorithms with known answers, in plain numpy beside the passes that compute them."""

from __future__ import annotations

from typing import Any

import numpy as np

from largek_dask.algorithms.base import Rng, RowSlice, RowState
from largek_dask.data.memory_rows import ArrayColumn, ArrayRows, SlicedRows
from largek_dask.data.rows import Rows
from largek_dask.errors import DataError


def start() -> np.ndarray:
    return np.zeros(4, np.int64)


def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a += b
    return a


def integers(n: int, d: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, (n, d)).astype(np.float32)


def rows_of(x: np.ndarray, sizes: Any, weight: np.ndarray | None = None) -> SlicedRows:
    """Rows in memory, cut into chunks of these sizes."""
    table = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    assert table[-1] == len(x)
    rows = ArrayRows(x, weight=None if weight is None else ArrayColumn(weight))
    rows.chunk_table = table
    return rows


class StoredRows(Rows):
    """Rows that count their reads, as if they came from a store."""

    def __init__(self, x, n_chunks, weight=None, broken=()):
        sizes = np.full(n_chunks, len(x) // n_chunks)
        sizes[-1] += len(x) - sizes.sum()
        table = np.concatenate([[0], np.cumsum(sizes)])
        self.x, self.broken, self.reads = x, broken, []
        super().__init__(n_features=x.shape[1], dtype=x.dtype, chunk_table=table, weight=weight)

    def _load(self, i, start, stop):
        self.reads.append(i)
        if i in self.broken:
            raise DataError(f"{self.name_chunk(i)} is damaged")
        return self.x[start:stop].copy()


def count_chunk(chunk: Any, total: np.ndarray) -> None:
    """Rows, chunks, sum of the global row numbers, sum of the values."""
    n = len(chunk.x)
    total += [n, 1, n * chunk.start + n * (n - 1) // 2, int(chunk.x.astype(np.int64).sum())]


def path_chunk(chunk: Any, total: np.ndarray, factor: int) -> None:
    """A state that depends on the path: each pass folds its factor into every row's number.

    The total is the sum of the rows' numbers; a chunk that it holds already adds the difference.
    """
    value = chunk.x[:, 0].astype(np.int64)
    before = np.zeros(len(value), np.int64) if chunk.state is None else chunk.state["value"]
    after = (before * 31 + value * factor) % 100_003
    total[0] += int((after - before).sum()) if chunk.counted else int(after.sum())
    total[1] += 1
    total[2] += int(chunk.counted)
    total[3] += int(chunk.state is not None)
    chunk.keep(value=after)


def path_answers(x: np.ndarray, n_passes: int) -> list[int]:
    """The totals of ``n_passes`` passes of :func:`path_chunk` with factors 1, 2, ..."""
    state, answers = np.zeros(len(x), np.int64), []
    for factor in range(1, n_passes + 1):
        state = (state * 31 + x[:, 0].astype(np.int64) * factor) % 100_003
        answers.append(int(state.sum()))
    return answers


def path_pass(
    passes: Any, generation: int, chunk_fn: Any = path_chunk, **options: Any
) -> np.ndarray:
    """One pass of the toy: generation ``g`` uses the factor ``g``."""
    replay = tuple((factor,) for factor in range(1, generation))
    state = RowState("path", generation, replay, **options)
    return passes.reduce(chunk_fn, generation, start=start, combine=combine, state=state)


def size_chunk(chunk: Any, total: np.ndarray) -> None:
    """Rows of the pass, rows of the state that it reads, sum of that state, chunks."""
    value = chunk.state["value"]
    total += [len(chunk.x), len(value), int(value.sum()), 1]


def share_of(x: np.ndarray, end: int | None) -> RowSlice | None:
    """The first ``end`` rows of the seeded order; None: all rows."""
    return None if end is None else RowSlice(Rng(3), 0, end, len(x))


def read_on_share(
    passes: Any, x: np.ndarray, end: int | None, chunk_fn: Any = size_chunk, written: int = 1
) -> Any:
    """A pass over a share of the rows that only reads what the toy's pass ``written`` has left."""
    replay = tuple((factor,) for factor in range(1, written + 1))
    state = RowState("path", written + 1, replay, path_chunk, start)
    rows = share_of(x, end)
    return passes.reduce(chunk_fn, start=start, combine=combine, state=state, rows=rows)
