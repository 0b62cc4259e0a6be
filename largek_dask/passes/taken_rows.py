"""Rows picked from a table and held in this process."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.base import TakenRows
from largek_dask.data.memory_rows import memory_table
from largek_dask.data.rows import Rows
from largek_dask.kernels.blocks import Table, readonly, stack_rows

CHUNK_BYTES = 1 << 21
"""Size of a chunk in bytes. The configured size is not used, because results for rows picked from a
table must not depend on the machine."""

HUGE_FROM = 1 << 22
"""Size in bytes from which numpy requests huge pages. Huge pages are slow to access at first on a
virtual machine that returns free memory to its host: copying rows took five times as long
(measured)."""


def empty_rows(n: int, d: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialized (n, d) array without huge pages."""
    n_bytes = n * d * np.dtype(dtype).itemsize
    if n_bytes < HUGE_FROM or not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty((n, d), dtype)
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(n, d)


class HeldRows(Rows):
    """Table of rows in memory, which may be empty; each piece is a chunk, and pieces may be added.

    ``dtype`` is the compute dtype; pieces may have a smaller dtype. If ``whole`` is given, it is
    one piece with all rows; it is cut into chunks, and no pieces are added later.
    """

    def __init__(
        self, n_features: int, dtype: np.dtype[Any], is_sparse: bool, whole: TakenRows | None = None
    ) -> None:
        # Do not call `super().__init__`, which refuses a table without rows.
        self.n_features, self.dtype, self.location, self.weight = n_features, dtype, None, None
        self.is_sparse = is_sparse  # type: ignore[misc]  # of these rows, not of the class
        self.n_rows = 0
        self.chunk_table = np.zeros(1, np.int64)
        self._pieces: list[TakenRows] = []
        self._whole = whole
        if whole is not None:
            n = len(whole.rows)
            edges = memory_table(n, n_features, dtype, CHUNK_BYTES).tolist() if n else [0]
            self.extend([_cut(whole, *cut) for cut in pairwise(edges)])

    def extend(self, pieces: Sequence[TakenRows]) -> None:
        """Add chunks at the end."""
        self._pieces.extend(pieces)
        lengths = [len(piece.rows) for piece in self._pieces]
        self.chunk_table = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.n_rows = int(self.chunk_table[-1])

    def pieces(self, n: int | None = None) -> list[TakenRows]:
        """Return the first ``n`` chunks, or all chunks if None."""
        return self._pieces[:n]

    def together(self) -> TakenRows:
        """Return all rows in one piece."""
        if self._whole is not None:
            return self._whole
        if not self._pieces:
            nothing = readonly(np.empty((0, self.n_features), self.dtype))
            return TakenRows(nothing, None, np.empty(0, np.int64))
        weight = None
        if any(piece.weight is not None for piece in self._pieces):
            weight = np.concatenate([_weights(piece) for piece in self._pieces])
        rows = np.concatenate([piece.rows for piece in self._pieces])
        return TakenRows(stack_rows([piece.x for piece in self._pieces]), weight, rows)

    def read(self, i: int) -> Any:
        """Return chunk ``i``."""
        return self._pieces[i].x

    def read_weight(
        self, i: int, begin: int = 0, end: int | None = None
    ) -> NDArray[np.float64] | None:
        """Return the weights of the rows of chunk ``i``, or None if every row has weight 1."""
        weight = self._pieces[i].weight
        return None if weight is None else weight[begin:end]

    def numbers(self, i: int | None) -> NDArray[np.int64] | None:
        """Return the indices of the rows of a chunk (None: all rows) in the original table."""
        if i is not None:
            return self._pieces[i].rows
        assert self._whole is not None
        return self._whole.rows

    def in_memory(self) -> Table | None:
        """Return all rows if they are in one piece; None otherwise."""
        return None if self._whole is None else self._whole.x

    def describe_source(self, location: str | None) -> str:
        """Return the name of these rows in messages."""
        return "a subset of the rows"

    def _load(self, i: int, start: int, stop: int) -> Any:
        return self.read(i)


def _cut(rows: TakenRows, begin: int, end: int) -> TakenRows:
    weight = None if rows.weight is None else rows.weight[begin:end]
    return TakenRows(rows.x[begin:end], weight, rows.rows[begin:end])


def _weights(piece: TakenRows) -> NDArray[np.float64]:
    return np.ones(len(piece.rows)) if piece.weight is None else piece.weight
