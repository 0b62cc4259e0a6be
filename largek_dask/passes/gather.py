"""Collect rows from chunks, with global indices and weights, as the total of a pass.

Chunks arrive in any order; the indices restore the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, RowSlice, TakenRows
from largek_dask.kernels.blocks import SparseBlock, Table, dense_rows, readonly, rows_at, stack_rows
from largek_dask.kernels.dense.copying import copy_rows
from largek_dask.kernels.projection import Directions, project

BLOCK_BYTES = 7 << 19
"""Bytes of collected rows per array: small enough to stay in the processor's cache while a step
uses them several times. For arrays of 4 MB or more, numpy requests huge pages, which are slow on
virtual machines that return free memory to the host (measured)."""
PART_BYTES = 1 << 19
"""Minimum size of one thread's piece of the rows, in bytes."""
PARTS_A_THREAD = 4
PROJECTED_ROWS = 4_096
"""Minimum number of rows that a thread projects at a time."""


class RowBlock:
    """Contiguous rows with free space for more rows; free space is not pickled."""

    __slots__ = ("n", "rows", "weight", "x")

    def __init__(self, like: NDArray[Any]) -> None:
        room = max(1, BLOCK_BYTES // max(1, like.shape[1] * like.itemsize))
        self.n = 0
        self.rows = np.empty(room, np.int64)
        self.x: Table = np.empty((room, like.shape[1]), like.dtype)
        self.weight: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, rows: NDArray[np.int64], x: Table, weight: NDArray[np.float64] | None) -> RowBlock:
        """Return a block of exactly these rows."""
        block = cls.__new__(cls)
        block.n, block.rows, block.x, block.weight = len(rows), rows, x, weight
        return block

    @property
    def room(self) -> int:
        """Number of rows that can still be appended."""
        return len(self.rows) - self.n

    def add(
        self,
        rows: NDArray[np.int64],
        x: NDArray[Any],
        places: NDArray[Any] | None,
        weight: NDArray[np.float64] | None,
    ) -> None:
        """Append copies of the rows of ``x`` at positions ``places``, or of all rows if None."""
        assert isinstance(self.x, np.ndarray)
        at = slice(self.n, self.n + len(rows))
        self.rows[at] = rows
        if places is None:
            self.x[at] = x
        else:
            copy_rows(x, places, self.x[at])
        if weight is not None and self.weight is None:
            self.weight = np.ones(len(self.rows))
        if self.weight is not None:
            self.weight[at] = 1.0 if weight is None else weight
        self.n = at.stop

    def cut(self, begin: int, end: int) -> RowBlock:
        """Return the rows ``begin`` to ``end`` (exclusive), without copying."""
        at = slice(begin, min(end, self.n))
        weight = None if self.weight is None else self.weight[at]
        return RowBlock.of(self.rows[at], self.x[at], weight)

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.cut(0, self.n)
        return RowBlock.of, (whole.rows, whole.x, whole.weight)


class CollectedRows:
    """Rows with their global indices and weights, in order of arrival."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: list[RowBlock] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the pickled rows."""
        return sum(
            block.x.nbytes * block.n // max(1, len(block.x)) + 8 * block.n for block in self.blocks
        )

    def add(
        self,
        rows: NDArray[np.int64],
        x: Any,
        weight: NDArray[np.float64] | None,
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Add rows with these global indices; dense rows are copied.

        ``x`` and ``weight`` belong to the whole chunk; ``places`` are the positions of the added
        rows in the chunk, or None for all rows.
        """
        if weight is not None and places is not None:
            weight = weight[places]
        if isinstance(x, SparseBlock):
            x = x if places is None else x[places]
            self.blocks.append(RowBlock.of(rows, x, weight))
            return
        begin = 0
        while begin < len(rows):
            if not self.blocks or not self.blocks[-1].room:
                self.blocks.append(RowBlock(x))
            at = slice(begin, min(begin + self.blocks[-1].room, len(rows)))
            part = x[at] if places is None else x
            own = None if weight is None else weight[at]
            self.blocks[-1].add(rows[at], part, None if places is None else places[at], own)
            begin = at.stop

    @staticmethod
    def combine(a: CollectedRows, b: CollectedRows) -> CollectedRows:
        """Add ``b`` into ``a``."""
        a.blocks.extend(b.blocks)
        return a

    def numbers(self) -> NDArray[np.int64]:
        """Return the global indices of all rows, in the order of arrival."""
        rows = [block.rows[: block.n] for block in self.blocks]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def pieces(self, n_threads: int) -> Iterable[TakenRows]:
        """Yield all rows in pieces for ``n_threads`` threads; sparse rows in one piece."""
        blocks = [block.cut(0, block.n) for block in self.blocks if block.n]
        if blocks and isinstance(blocks[0].x, SparseBlock):
            x = stack_rows([block.x for block in blocks])
            yield TakenRows(x, *_together(blocks))
            return
        n = sum(block.n for block in blocks)
        for block in blocks:
            most = block.n
            if n_threads > 1:
                least = PART_BYTES // max(1, block.x.nbytes // block.n)
                most = max(1, least, -(-n // (PARTS_A_THREAD * n_threads)))
            for begin in range(0, block.n, most):
                part = block.cut(begin, begin + most)
                yield TakenRows(readonly(dense_rows(part.x)), part.weight, part.rows)

    def at(
        self, wanted: NDArray[np.int64], places: NDArray[np.int64], d: int, dtype: np.dtype[Any]
    ) -> tuple[Any, NDArray[np.float64] | None]:
        """Return rows and weights with row ``wanted[i]`` at ``places[i]``, and clear ``blocks``."""
        blocks = [block.cut(0, block.n) for block in self.blocks if block.n]
        self.blocks.clear()
        if blocks and isinstance(blocks[0].x, SparseBlock):
            weight, rows = _together(blocks)
            order = np.empty(len(rows), np.int64)
            order[places[np.searchsorted(wanted, rows)]] = np.arange(len(rows))
            x = stack_rows([block.x for block in blocks])[order]
            return x.astype(dtype), None if weight is None else weight[order]
        out = np.empty((len(wanted), d), dtype)
        weighted = any(block.weight is not None for block in blocks)
        weight = np.ones(len(wanted)) if weighted else None
        for block in reversed(blocks):
            at = places[np.searchsorted(wanted, block.rows)]
            out[at] = block.x
            if weight is not None and block.weight is not None:
                weight[at] = block.weight
            blocks.pop()
        return readonly(out), weight


def _together(blocks: Sequence[RowBlock]) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
    """Return the weights and indices of all blocks."""
    weight = None
    if any(block.weight is not None for block in blocks):
        weight = np.concatenate(
            [np.ones(block.n) if block.weight is None else block.weight for block in blocks]
        )
    return weight, np.concatenate([block.rows for block in blocks])


def fetch(passes: Passes, rows: NDArray[np.int64], dtype: np.dtype[Any]) -> TakenRows:
    """Return the rows with these global indices, in this order, and visit only their chunks."""
    # Fetch each distinct row once, and repeat rows at the end.
    places = np.argsort(rows, kind="stable")
    wanted, inverse = rows[places], None
    if (np.diff(wanted) == 0).any():
        wanted, inverse = np.unique(rows, return_inverse=True)
        places = np.arange(len(wanted))
    touched = np.unique(np.searchsorted(passes.chunk_table, wanted, side="right") - 1)
    found: CollectedRows = passes.reduce(
        collect_rows,
        wanted,
        start=CollectedRows,
        combine=CollectedRows.combine,
        chunks=touched.tolist(),
    )
    x, weight = found.at(wanted, places, passes.n_features, dtype)
    if inverse is not None:
        x, weight = rows_at(x, inverse), None if weight is None else weight[inverse]
    return TakenRows(x, weight, rows)


def collect_rows(chunk: Chunk, total: CollectedRows, wanted: NDArray[np.int64]) -> None:
    """Collect this chunk's rows among the ascending global indices ``wanted``."""
    begin, end = np.searchsorted(wanted, [chunk.start, chunk.start + len(chunk.x)])
    rows = wanted[begin:end]
    total.add(rows, chunk.x, chunk.weight, rows - chunk.start)


def new_shares(n: int) -> list[CollectedRows]:
    """Return the empty total of :func:`collect_shares`."""
    return [CollectedRows() for _ in range(n)]


def combine_shares(a: list[CollectedRows], b: list[CollectedRows]) -> list[CollectedRows]:
    """Add the rows of each slice in ``b`` to those in ``a``."""
    return [CollectedRows.combine(own, other) for own, other in zip(a, b, strict=True)]


def collect_shares(chunk: Chunk, total: list[CollectedRows], slices: Sequence[RowSlice]) -> None:
    """Collect the rows of several slices of a chunk."""

    def take(share: tuple[CollectedRows, RowSlice]) -> None:
        collected, rows = share
        places = chunk.locate(rows)
        collected.add(chunk.numbers(places), chunk.x, chunk.weight, places)

    chunk.threads.map(take, zip(total, slices, strict=True))


def collect_spaced(
    chunk: Chunk, total: CollectedRows, firsts: NDArray[np.int64], every: int
) -> None:
    """Collect every ``every``-th row of a chunk, from position ``firsts[chunk.index]`` on."""
    places = np.arange(firsts[chunk.index], len(chunk), every)
    total.add(chunk.numbers(places), chunk.x, chunk.weight, places)


def collect_projected(
    chunk: Chunk, total: CollectedRows, directions: Directions, wanted: NDArray[np.int64] | None
) -> None:
    """Collect the projections of a dense chunk's rows of positive weight onto some directions.

    ``wanted`` are the ascending global indices of the rows to project; None means all rows.
    """
    numbers, places = chunk.numbers(), None
    if wanted is not None:
        begin, end = np.searchsorted(wanted, [chunk.start, chunk.start + len(chunk.x)])
        numbers = wanted[begin:end]
        places = numbers - chunk.start
    n = len(numbers)
    step = max(PROJECTED_ROWS, -(-n // (PARTS_A_THREAD * chunk.threads.n)))

    def see(begin: int) -> CollectedRows:
        part = CollectedRows()
        at: Any = slice(begin, begin + step)
        rows = numbers[at]
        at = at if places is None else places[at]
        weight = None if chunk.weight is None else chunk.weight[at]
        there = None if weight is None or weight.all() else np.flatnonzero(weight)
        x = chunk.x[at]
        if there is not None:
            x, rows = x[there], rows[there]
            weight = None if weight is None else weight[there]
        # Use a separate block, so that the rows are not copied again.
        part.blocks.append(RowBlock.of(rows, project(x, directions), weight))
        return part

    for part in chunk.threads.map(see, range(0, n, step)):
        CollectedRows.combine(total, part)


def some_rows(parts: Sequence[TakenRows], most: int) -> TakenRows:
    """Return at most ``most`` rows of positive weight, evenly spaced by index, ascending."""
    rows = np.concatenate([part.rows for part in parts])
    weight = np.concatenate(
        [np.ones(len(part.rows)) if part.weight is None else part.weight for part in parts]
    )
    # A stable sort is fast here, because it merges ascending runs.
    order = np.argsort(rows, kind="stable")
    order = order[weight[order] > 0]
    chosen = np.sort(order[:: max(1, -(-len(order) // most))])
    edges = np.cumsum([0] + [len(part.rows) for part in parts])
    cuts = np.searchsorted(chosen, edges).tolist()
    spans = [slice(*cut) for cut in pairwise(cuts)]
    taken = [chosen[at] - edge for at, edge in zip(spans, edges.tolist(), strict=False)]
    x: Table
    if isinstance(parts[0].x, SparseBlock):
        x = stack_rows([rows_at(part.x, own) for part, own in zip(parts, taken, strict=True)])
    else:
        x = np.empty((len(chosen), parts[0].x.shape[1]), parts[0].x.dtype)
        for part, own, at in zip(parts, taken, spans, strict=True):
            part.x.take(own, axis=0, out=x[at], mode="clip")
        x = readonly(x)
    return TakenRows(x, weight[chosen], rows[chosen])
