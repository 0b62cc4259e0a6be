"""A nested batch as a door to its rows: on whoever owns the chunks, or gathered in one place.

A batch of ``end`` of ``n`` rows is, in every chunk, the first share of that chunk's one seeded
permutation. While a batch is small, a pass over a cluster costs more than its computation: then
its rows are gathered once, in the driver's process, and steps run there with the same functions.
Sums are exact and a row's result does not depend on where it stands, so no bit depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, ChunkFunction, Passes, Rng, RowSlice, RowState
from largek_dask.kernels.jit import readonly
from largek_dask.kernels.sparse import Table, stack_rows
from largek_dask.kernels.statistics import Statistics

__all__ = ["Batch", "Gathered", "gather", "open_batch"]

Total = TypeVar("Total")

SCRATCH = "nested rows"
"""Where the gathered rows lie among what passes keep."""


class CollectedRows:
    """Rows by chunk: global indices, coordinates, weights."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: dict[int, tuple[NDArray[np.int64], Table, NDArray[np.float64] | None]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return sum(rows.nbytes + x.nbytes for rows, x, _ in self.chunks.values())

    @staticmethod
    def combine(a: CollectedRows, b: CollectedRows) -> CollectedRows:
        """Add ``b`` into ``a``."""
        a.chunks.update(b.chunks)
        return a


def collect_chunk(chunk: Chunk, total: CollectedRows) -> None:
    """Take the slice's rows of a chunk as they are."""
    assert chunk.rows is not None
    total.chunks[chunk.index] = (chunk.start + chunk.rows, chunk.x, chunk.weight)


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
    """What a pass over gathered rows has left: one entry a part, and the retained total."""

    generation: int
    arrays: list[Mapping[str, NDArray[Any]] | None]
    total: Any


class Gathered:
    """The first rows of the nested order, held in this process, in the order of their entry."""

    def __init__(self, rng: Rng, of: int, n_features: int) -> None:
        self.rng = rng
        self.n_features = n_features
        self.of = of
        self.edges = [0]
        """Sizes of the batch at which parts begin and end."""
        self.parts: list[Part] = []
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
        parts = [collected.chunks[index] for index in sorted(collected.chunks)]
        weights = [np.ones(len(x)) if weight is None else weight for _, x, weight in parts]
        if parts:
            rows = np.concatenate([rows for rows, _, _ in parts])
            x = stack_rows([x for _, x, _ in parts])
        else:
            rows, x = np.empty(0, np.int64), readonly(np.empty((0, passes.n_features), np.float32))
        weighted = any(weight is not None for _, _, weight in parts)
        weight = np.concatenate(weights) if weighted else None
        self.parts.append(Part(len(self.parts), x, weight, rows))
        self.edges.append(end)
        return True

    def within(self, end: int) -> list[Part]:
        """The parts of a batch."""
        return self.parts[: self.edges.index(end)]

    def points(self, end: int, most: int | None = None) -> tuple[Any, NDArray[np.float64]]:
        """Rows (n, d) and weights (n,) of a batch by their global index; weight 0 is left out.

        Their order must not tell how they were gathered: after a resume parts are others. Of more
        than ``most`` rows every so manieth is taken: the first ones would all be of the first
        chunks.
        """
        parts = [part for part in self.within(end) if len(part.rows)]
        if not parts:
            return readonly(np.empty((0, self.n_features), np.float32)), np.empty(0)
        rows = np.concatenate([part.rows for part in parts])
        weight = np.concatenate(
            [np.ones(len(part.rows)) if part.weight is None else part.weight for part in parts]
        )
        # ascending runs are merged, not sorted
        order = np.argsort(rows, kind="stable")
        order = order[weight[order] > 0]
        if most is not None:
            order = order[:: max(1, -(-len(order) // most))]
        return stack_rows([part.x for part in parts])[order], weight[order]

    def reduce(
        self,
        end: int,
        chunk_fn: ChunkFunction,
        broadcast: tuple[Any, ...],
        start: Callable[[], Total],
        state: RowState | None,
    ) -> Total:
        """One pass over the rows of a batch, in this thread."""
        parts = self.within(end)
        if state is None:
            total = start()
            for part in parts:
                chunk_fn(replace(part, kept=None), total, *broadcast)
            return total
        # Taken out: what a step that is cut half-way has touched is never used again.
        held = self._held.pop(state.name, None)
        if not state.replay or held is None or held.generation != state.generation - 1:
            held = self._rebuilt(chunk_fn, state, start)
        arrays: list[Mapping[str, NDArray[Any]] | None] = []
        counted = held.total is not None
        total = held.total if counted else start()
        for part in parts:
            known = held.arrays[part.index] if part.index < len(held.arrays) else None
            view = replace(part, state=known, counted=counted and known is not None)
            chunk_fn(view, total, *broadcast)
            arrays.append(view.kept)
        self._held[state.name] = _Held(state.generation, arrays, total)
        return total

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
        return _Held(state.generation - 1, arrays, None)


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
            return self.gathered.reduce(self.end, chunk_fn, broadcast, start, state)
        # All rows are no share: nothing needs to be picked out of a chunk.
        rows = None if self.end == self.passes.n_rows else self.slice()
        return self.passes.reduce(
            chunk_fn, *broadcast, start=start, combine=combine, state=state, rows=rows
        )


def gather(passes: Passes, rng: Rng, *ends: int) -> Gathered:
    """Gather the rows of batches of these ascending sizes, what is there already excepted."""
    kept: Gathered | None = passes.scratch.get(SCRATCH)
    if kept is not None and kept.rng == rng and all(kept.extend(passes, end) for end in ends):
        return kept
    passes.scratch[SCRATCH] = fresh = Gathered(rng, passes.n_rows, passes.n_features)
    for end in ends:
        fresh.extend(passes, end)
    return fresh


def open_batch(passes: Passes, rng: Rng, before: int, end: int, *, gathered: bool) -> Batch:
    """The batch of ``end`` rows that follows one of ``before`` rows."""
    ends = (before, end) if before else (end,)
    return Batch(passes, rng, end, gather(passes, rng, *ends) if gathered else None)
