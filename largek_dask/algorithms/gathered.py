"""Rows of a nested batch that have been gathered in one process, and steps over them.

Sums are exact and a row's result does not depend on where it stands: neither the order of the
rows here, nor how they are cut into parts, nor on how many threads they are computed shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, ChunkFunction, Passes, Rng, RowSlice, RowState
from largek_dask.kernels.blocks import SparseBlock, Table, stack_rows
from largek_dask.kernels.jit import readonly
from largek_dask.kernels.threads import on_threads

__all__ = ["CollectedRows", "Gathered", "Part", "collect_chunk", "collect_some", "some_rows"]

Total = TypeVar("Total")

BLOCK_BYTES = 7 << 19
"""Of gathered rows that lie in one piece: what stays in a cache while a step goes over them several
times. For pieces of 4 MB and more numpy asks for huge pages, and on virtual machines whose free
memory belongs to the host these cost several times what filling them does (measured)."""
PART_BYTES = 1 << 19
"""Of the rows that a thread takes at a time, at least."""
PARTS_A_THREAD = 4


class Block:
    """Rows below each other, and room for more; what is not filled does not travel."""

    __slots__ = ("n", "rows", "weight", "x")

    def __init__(self, like: NDArray[Any]) -> None:
        room = max(1, BLOCK_BYTES // max(1, like.shape[1] * like.itemsize))
        self.n = 0
        self.rows = np.empty(room, np.int64)
        self.x: Table = np.empty((room, like.shape[1]), like.dtype)
        self.weight: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, rows: NDArray[np.int64], x: Table, weight: NDArray[np.float64] | None) -> Block:
        """Exactly these rows."""
        block = cls.__new__(cls)
        block.n, block.rows, block.x, block.weight = len(rows), rows, x, weight
        return block

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return len(self.rows) - self.n

    def add(self, rows: Any, x: Any, weight: NDArray[np.float64] | None) -> None:
        """Copy rows behind those that are there."""
        assert isinstance(self.x, np.ndarray)
        at = slice(self.n, self.n + len(rows))
        self.rows[at], self.x[at] = rows, x
        if weight is not None and self.weight is None:
            self.weight = np.ones(len(self.rows))
        if self.weight is not None:
            self.weight[at] = 1.0 if weight is None else weight
        self.n = at.stop

    def cut(self, begin: int, end: int) -> Block:
        """Some of the rows; nothing is copied."""
        at = slice(begin, min(end, self.n))
        weight = None if self.weight is None else self.weight[at]
        return Block.of(self.rows[at], self.x[at], weight)

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self.cut(0, self.n)
        return Block.of, (whole.rows, whole.x, whole.weight)


class CollectedRows:
    """Rows with their global indices and weights, in whatever order chunks come."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return sum(
            block.x.nbytes * block.n // max(1, len(block.x)) + 8 * block.n for block in self.blocks
        )

    def add(self, rows: NDArray[np.int64], x: Any, weight: NDArray[np.float64] | None) -> None:
        """Add rows: of a dense chunk copies."""
        if isinstance(x, SparseBlock):
            self.blocks.append(Block.of(rows, x, weight))
            return
        begin = 0
        while begin < len(rows):
            if not self.blocks or not self.blocks[-1].room:
                self.blocks.append(Block(x))
            end = begin + self.blocks[-1].room
            part = None if weight is None else weight[begin:end]
            self.blocks[-1].add(rows[begin:end], x[begin:end], part)
            begin = end

    @staticmethod
    def combine(a: CollectedRows, b: CollectedRows) -> CollectedRows:
        """Add ``b`` into ``a``."""
        a.blocks.extend(b.blocks)
        return a

    def pieces(self, n_threads: int) -> Iterable[Block]:
        """All rows, in pieces for so many threads; sparse ones in one piece."""
        blocks = [block for block in self.blocks if block.n]
        if blocks and isinstance(blocks[0].x, SparseBlock):
            weights = [np.ones(b.n) if b.weight is None else b.weight for b in blocks]
            weighted = any(block.weight is not None for block in blocks)
            yield Block.of(
                np.concatenate([block.rows for block in blocks]),
                stack_rows([block.x for block in blocks]),
                np.concatenate(weights) if weighted else None,
            )
            return
        n = sum(block.n for block in blocks)
        for block in blocks:
            most = block.n
            if n_threads > 1:
                least = PART_BYTES // max(1, block.x.nbytes // len(block.x))
                most = max(1, least, -(-n // (PARTS_A_THREAD * n_threads)))
            for begin in range(0, block.n, most):
                yield block.cut(begin, begin + most)


def collect_chunk(chunk: Chunk, total: CollectedRows) -> None:
    """Take the slice's rows of a chunk as they are."""
    assert chunk.rows is not None
    total.add(chunk.start + chunk.rows, chunk.x, chunk.weight)


def collect_some(chunk: Chunk, total: CollectedRows, firsts: NDArray[np.int64], every: int) -> None:
    """Take every so manieth of the slice's rows, from the chunk's own first one on."""
    assert chunk.rows is not None
    chosen = np.arange(firsts[chunk.index], len(chunk.rows), every)
    weight = None if chunk.weight is None else chunk.weight[chosen]
    total.add(chunk.start + chunk.rows[chosen], chosen_rows(chunk.x, chosen), weight)


def chosen_rows(x: Table, rows: NDArray[np.int64]) -> Any:
    """``x[rows]``; numpy takes dense rows several times faster than it indexes them."""
    return x[rows] if isinstance(x, SparseBlock) else x.take(rows, axis=0)


def some_rows(
    parts: Sequence[Block | Part], most: int | None = None
) -> tuple[Any, NDArray[np.float64], NDArray[np.int64]]:
    """Rows (n, d), weights (n,) and global indices (n,), as they lie; weight 0 is left out.

    Of more than ``most`` rows, every so manieth by global index is taken: the first ones would all
    be of the first chunks.
    """
    rows = np.concatenate([part.rows for part in parts])
    weight = np.concatenate(
        [np.ones(len(part.rows)) if part.weight is None else part.weight for part in parts]
    )
    # ascending runs are merged, not sorted
    order = np.argsort(rows, kind="stable")
    order = order[weight[order] > 0]
    if most is not None:
        order = order[:: max(1, -(-len(order) // most))]
    chosen = np.sort(order)
    edges = np.cumsum([0] + [len(part.rows) for part in parts])
    cuts = np.searchsorted(chosen, edges).tolist()
    spans = [slice(*cut) for cut in pairwise(cuts)]
    taken = [chosen[at] - edge for at, edge in zip(spans, edges.tolist(), strict=False)]
    x: Table
    if isinstance(parts[0].x, SparseBlock):
        x = stack_rows([part.x[own] for part, own in zip(parts, taken, strict=True)])
    else:
        x = np.empty((len(chosen), parts[0].x.shape[1]), parts[0].x.dtype)
        for part, own, at in zip(parts, taken, spans, strict=True):
            # "clip" spares a buffer; all indices are inside
            part.x.take(own, axis=0, out=x[at], mode="clip")  # type: ignore[union-attr]
        x = readonly(x)
    return x, weight[chosen], rows[chosen]


@dataclass(slots=True)
class Part:
    """Gathered rows that entered together; implements ``algorithms.base.Chunk``."""

    index: int
    x: Any
    weight: NDArray[np.float64] | None
    rows: NDArray[np.int64]
    """(n,) global indices; bad rows weigh 0 and need no mark of their own."""
    start: int = 0
    bad: NDArray[np.bool_] | None = None
    state: Mapping[str, NDArray[Any]] | None = None
    counted: bool = False
    kept: dict[str, NDArray[Any]] | None = None

    def keep(self, **arrays: NDArray[Any]) -> None:
        """Keep these arrays until the next step."""
        # All rows of a part entered together: which of them did need not be remembered.
        self.kept = {name: array for name, array in arrays.items() if name != "rows"}


@dataclass(slots=True)
class _Held:
    """What a pass over gathered rows has left: one entry a part, and the retained totals."""

    generation: int
    arrays: list[Mapping[str, NDArray[Any]] | None]
    totals: list[Any]
    """Together they are the total; none: nothing is counted."""


class Gathered:
    """The first rows of the nested order, held in this process, in the order of their entry."""

    def __init__(self, rng: Rng, of: int, n_features: int, n_threads: int) -> None:
        self.rng = rng
        self.n_features = n_features
        self.n_threads = n_threads
        self.of = of
        self.edges = [0]
        """Sizes of the batch at which parts begin and end."""
        self.parts: list[Part] = []
        self._n_parts = [0]
        """How many parts make up a batch of each of these sizes."""
        self._held: dict[str, _Held] = {}

    def extend(self, passes: Passes, end: int) -> bool:
        """Gather rows up to a batch of ``end``; False if ``end`` lies inside a part."""
        if end <= self.edges[-1]:
            return end in self.edges
        collected: CollectedRows = passes.reduce(
            collect_chunk,
            start=CollectedRows,
            combine=CollectedRows.combine,
            rows=RowSlice(self.rng, self.edges[-1], end, self.of),
        )
        for piece in collected.pieces(self.n_threads):
            x = piece.x if isinstance(piece.x, SparseBlock) else readonly(piece.x)
            self.parts.append(Part(len(self.parts), x, piece.weight, piece.rows))
        self.edges.append(end)
        self._n_parts.append(len(self.parts))
        return True

    def within(self, end: int) -> list[Part]:
        """The parts of a batch."""
        return self.parts[: self._n_parts[self.edges.index(end)]]

    def some(
        self, end: int, most: int | None = None
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.int64]]:
        """Rows of a batch, their weights and global indices, see :func:`some_rows`."""
        parts = self.within(end)
        if not parts:
            nothing = readonly(np.empty((0, self.n_features), np.float32))
            return nothing, np.empty(0), np.empty(0, np.int64)
        return some_rows(parts, most)

    def points(self, end: int) -> tuple[Any, NDArray[np.float64]]:
        """Rows and weights of a batch by their global index; weight 0 is left out.

        Their order must not tell how they were gathered: after a resume parts are others.
        """
        x, weight, rows = self.some(end)
        order = np.argsort(rows, kind="stable")
        return chosen_rows(x, order), weight[order]

    def reduce(
        self,
        end: int,
        chunk_fn: ChunkFunction,
        broadcast: tuple[Any, ...],
        start: Callable[[], Total],
        combine: Callable[[Total, Total], Total],
        state: RowState | None,
    ) -> Total:
        """One pass over the rows of a batch, in this process."""
        parts = self.within(end)
        # Taken out: what a step that is cut half-way has touched is never used again.
        held = None if state is None else self._held.pop(state.name, None)
        if state is None:
            held = _Held(0, [], [])
        elif not state.replay or held is None or held.generation != state.generation - 1:
            held = self._rebuilt(chunk_fn, state, start)
        assert held is not None
        counted, totals = bool(held.totals), held.totals
        while len(totals) < max(1, min(self.n_threads, len(parts))):
            totals.append(start())
        left = deque(parts)
        arrays: list[Mapping[str, NDArray[Any]] | None] = [None] * len(parts)

        def count(total: Total) -> None:
            while True:
                try:
                    part = left.popleft()
                except IndexError:
                    return
                known = held.arrays[part.index] if part.index < len(held.arrays) else None
                view = replace(part, state=known, counted=counted and known is not None, kept=None)
                chunk_fn(view, total, *broadcast)
                arrays[part.index] = view.kept

        on_threads(self.n_threads, count, totals)
        if state is not None:
            self._held[state.name] = _Held(state.generation, arrays, totals)
        if len(totals) == 1:
            return totals[0]  # type: ignore[no-any-return]  # as ``start`` made it
        together = start()
        for total in totals:
            together = combine(together, total)
        return together

    def _rebuilt(self, chunk_fn: ChunkFunction, state: RowState, start: Callable[[], Any]) -> _Held:
        """The row state of the generation before, from its replay (totals are thrown away)."""
        arrays: list[Mapping[str, NDArray[Any]] | None] = []
        if state.replay:
            assert state.rebuild_rows is not None
            scratch = start()
            for part in self.within(state.rebuild_rows.end):
                known = None
                for broadcast in state.replay:
                    view = replace(part, state=known)
                    chunk_fn(view, scratch, *broadcast)
                    known = view.kept
                arrays.append(known)
        return _Held(state.generation - 1, arrays, [])
