"""Rows picked out of chunks, with their global indices and weights: a total like any other.

In whatever order chunks come and are added up: who needs an order finds it by the indices.
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

__all__ = [
    "CollectedRows",
    "CollectedShares",
    "collect_projected",
    "collect_shares",
    "collect_spaced",
    "fetch",
    "some_rows",
]

BLOCK_BYTES = 7 << 19
"""Bytes of collected rows that lie in one piece: what stays in a cache while a step goes over them
several times. For pieces of 4 MB and more numpy asks for huge pages, and on virtual machines whose
free memory belongs to the host these cost several times what filling them does (measured)."""
PART_BYTES = 1 << 19
"""Bytes of the rows that a thread takes at a time, at least."""
PARTS_A_THREAD = 4
PROJECTED_ROWS = 4_096
"""Rows that a thread projects at a time, at least."""


class RowBlock:
    """Rows below each other, and room for more; what is not filled does not travel."""

    __slots__ = ("n", "rows", "weight", "x")

    def __init__(self, like: NDArray[Any]) -> None:
        room = max(1, BLOCK_BYTES // max(1, like.shape[1] * like.itemsize))
        self.n = 0
        self.rows = np.empty(room, np.int64)
        self.x: Table = np.empty((room, like.shape[1]), like.dtype)
        self.weight: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, rows: NDArray[np.int64], x: Table, weight: NDArray[np.float64] | None) -> RowBlock:
        """Exactly these rows."""
        block = cls.__new__(cls)
        block.n, block.rows, block.x, block.weight = len(rows), rows, x, weight
        return block

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return len(self.rows) - self.n

    def add(
        self,
        rows: NDArray[np.int64],
        x: NDArray[Any],
        places: NDArray[Any] | None,
        weight: NDArray[np.float64] | None,
    ) -> None:
        """Copy rows of ``x``, those at ``places`` or all, behind those that are there."""
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
        """Some of the rows; nothing is copied."""
        at = slice(begin, min(end, self.n))
        weight = None if self.weight is None else self.weight[at]
        return RowBlock.of(self.rows[at], self.x[at], weight)

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.cut(0, self.n)
        return RowBlock.of, (whole.rows, whole.x, whole.weight)


class CollectedRows:
    """Rows with their global indices and weights, in whatever order chunks come."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: list[RowBlock] = []

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
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
        """Add rows with these global indices, of a dense chunk copies.

        ``x`` and ``weight`` are of the chunk, and ``places`` the rows' positions in it; None: all.
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
        """Global indices of all rows, in whatever order they have come."""
        rows = [block.rows[: block.n] for block in self.blocks]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def pieces(self, n_threads: int) -> Iterable[TakenRows]:
        """All rows, in pieces for so many threads; sparse ones in one piece."""
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
        """Rows and weights, where row ``wanted[i]``, ascending, belongs at ``places[i]``.

        The blocks are let go of one by one.
        """
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
    """Weights and indices of all blocks."""
    weight = None
    if any(block.weight is not None for block in blocks):
        weight = np.concatenate(
            [np.ones(block.n) if block.weight is None else block.weight for block in blocks]
        )
    return weight, np.concatenate([block.rows for block in blocks])


def fetch(passes: Passes, rows: NDArray[np.int64], dtype: np.dtype[Any]) -> TakenRows:
    """The rows with these global indices, in this order, out of the chunks that hold any."""
    # Where each row belongs; those that are asked for more than once are put apart last.
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
    """Take this chunk's rows out of the ascending global indices ``wanted``."""
    begin, end = np.searchsorted(wanted, [chunk.start, chunk.start + len(chunk.x)])
    rows = wanted[begin:end]
    total.add(rows, chunk.x, chunk.weight, rows - chunk.start)


class CollectedShares:
    """Rows of several slices, each apart."""

    __slots__ = ("shares",)

    def __init__(self, n: int) -> None:
        self.shares = [CollectedRows() for _ in range(n)]

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return sum(share.nbytes for share in self.shares)

    @staticmethod
    def combine(a: CollectedShares, b: CollectedShares) -> CollectedShares:
        """Add ``b`` into ``a``."""
        for own, other in zip(a.shares, b.shares, strict=True):
            CollectedRows.combine(own, other)
        return a


def collect_shares(chunk: Chunk, total: CollectedShares, slices: Sequence[RowSlice]) -> None:
    """Take the rows of several slices out of a chunk, in one go."""

    def take(share: tuple[CollectedRows, RowSlice]) -> None:
        collected, rows = share
        places = chunk.locate(rows)
        collected.add(chunk.numbers(places), chunk.x, chunk.weight, places)

    chunk.threads.map(take, zip(total.shares, slices, strict=True))


def collect_spaced(
    chunk: Chunk, total: CollectedRows, firsts: NDArray[np.int64], every: int
) -> None:
    """Take one out of ``every`` rows of a slice, from the chunk's own first one on."""
    places = np.arange(firsts[chunk.index], len(chunk), every)
    total.add(chunk.numbers(places), chunk.x, chunk.weight, places)


def collect_projected(
    chunk: Chunk, total: CollectedRows, directions: Directions, wanted: NDArray[np.int64] | None
) -> None:
    """Take rows of a dense chunk that weigh anything, as they are seen in some directions.

    Those out of the ascending global indices ``wanted``; None: all.
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
        # A block of its own, which is not copied again.
        part.blocks.append(RowBlock.of(rows, project(x, directions), weight))
        return part

    for part in chunk.threads.map(see, range(0, n, step)):
        CollectedRows.combine(total, part)


def some_rows(parts: Sequence[TakenRows], most: int) -> TakenRows:
    """No more than ``most`` rows that weigh anything, evenly spaced by index, as they lie."""
    rows = np.concatenate([part.rows for part in parts])
    weight = np.concatenate(
        [np.ones(len(part.rows)) if part.weight is None else part.weight for part in parts]
    )
    # ascending runs are merged, not sorted
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
