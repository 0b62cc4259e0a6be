"""Passes over some of the rows, held where the driver is: samples, and batches that grow.

They are passes like any other over rows in memory, so row state, retained totals, threads and the
way to end one are those of :mod:`~largek_dask.passes.engine`. What they are not told again is the
statistics: those are of the whole table, so that all computing has one origin and one grid.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    ChunkFunction,
    ProjectedRows,
    RowSample,
    RowSlice,
    RowState,
    SpacedRows,
    TakenRows,
)
from largek_dask.kernels.blocks import readonly, rows_at
from largek_dask.kernels.projection import project
from largek_dask.passes.base import BasePasses
from largek_dask.passes.chunks import Preparation
from largek_dask.passes.gather import (
    CollectedRows,
    CollectedShares,
    collect_projected,
    collect_shares,
    collect_spaced,
    some_rows,
)
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.rowstate import process_memory
from largek_dask.passes.spec import PassSpec
from largek_dask.passes.taken_rows import HeldRows

__all__ = ["Asked", "Subset", "Subsets"]

AS_HELD = Preparation()

Asked = RowSlice | RowSample | SpacedRows | ProjectedRows | NDArray[np.int64]


class Subset(LocalPasses):
    """Passes over held rows of the table that ``of`` passes over, which end with it.

    With ``own_weights``, weights and the grid of sums are not those of the table; with
    ``own_features``, no statistics are.
    """

    # There may be many small passes, and copies would cost as much as these.
    lends = True

    def __init__(
        self,
        of: BasePasses,
        rows: HeldRows,
        *,
        own_weights: bool = False,
        own_features: bool = False,
    ) -> None:
        statistics = None if own_features else of.statistics
        if own_weights:
            assert statistics is not None
            weight = rows.together().weight
            statistics = statistics.of_weights(np.ones(rows.n_rows) if weight is None else weight)
        # What is kept of the rows is little beside them: it is not limited.
        super().__init__(
            rows,
            n_threads=of.threads.n,
            memory_limit=process_memory(),
            on_bad_rows="skip",
            statistics=statistics,
        )
        self.row_values = rows.row_values if own_features else of.row_values
        self.held = rows
        self._of = weakref.ref(of)
        self._edges: dict[RowSlice, int] = {}

    def extend(self, pieces: Sequence[TakenRows], asked: RowSlice) -> None:
        """Hold further rows, as new chunks; all of them are now those of ``asked``."""
        self.held.extend(pieces)
        self._engine.extend()
        self.n_rows, self.n_chunks = self.held.n_rows, self.held.n_chunks
        self.chunk_table = self.held.chunk_table
        self._edges[asked] = self.n_chunks

    def is_cut_at(self, slices: Sequence[RowSlice]) -> bool:
        """Return True if no chunk goes beyond the end of any of these slices."""
        return all(rows in self._edges for rows in slices)

    def pieces(self, rows: RowSlice) -> list[TakenRows] | None:
        """The rows of a slice that has been asked for."""
        return self.held.pieces(self._edges[rows]) if rows in self._edges else None

    def take(self, rows: NDArray[np.int64] | None = None) -> TakenRows:
        """Some of the rows, numbered from 0, or all as they lie; see ``BasePasses.take``."""
        x, weight, numbers = self.held.together()
        if rows is not None:
            x, weight = rows_at(x, rows), None if weight is None else weight[rows]
            numbers = numbers[rows]
        return TakenRows(x.astype(self.statistics.dtype, copy=False), weight, numbers)

    def reduce(
        self, chunk_fn: ChunkFunction, *broadcast: Any, rows: RowSlice | None = None, **how: Any
    ) -> Any:
        """Run one map-reduce; see ``algorithms.base.Passes.reduce``. A subset has no shares."""
        if rows is not None:
            raise ValueError("a subset has no shares: ask its table for a smaller one")
        return super().reduce(chunk_fn, *broadcast, **how)

    def _timed(
        self, spec: PassSpec, replay: tuple[tuple[Any, ...], ...], chunks: Sequence[int]
    ) -> Any:
        """One pass; whoever watches the table's passes is to see where time goes."""
        try:
            return super()._timed(spec, replay, chunks)
        finally:
            if (of := self._of()) is not None:
                of.count_beside(self.last.compute)

    def count_beside(self, seconds: float) -> None:
        """Count a pass over a subset of this one: it is computed in the same process."""
        if (of := self._of()) is not None:
            of.count_beside(seconds)

    def _written_for(self, state: RowState) -> tuple[RowSlice | None, int | None]:
        """Rows that have entered since the generation before are chunks of their own."""
        before = state.rebuild_rows
        if before is None:
            return None, None
        if before not in self._edges:
            raise ValueError(
                f"row state {state.name!r}: generation {state.generation - 1} was written for "
                f"{before}, which has to be asked for as a subset before"
            )
        return None, self._edges[before]

    def _preparation(self) -> Preparation:
        """Rows are held as passes show them."""
        return AS_HELD

    def _stop(self) -> BaseException | None:
        of = self._of()
        return None if of is None else of._stop()

    def close(self) -> None:
        """End the threads, and let the rows go."""
        super().close()
        if (of := self._of()) is not None:
            of.forget_subset(self)


@dataclass(frozen=True, slots=True)
class _Kept:
    asked: Asked
    weights: NDArray[np.float64] | None
    own_weights: bool
    passes: Subset

    def is_for(self, asked: Asked, weights: NDArray[np.float64] | None, own_weights: bool) -> bool:
        if own_weights != self.own_weights:
            return False
        if isinstance(asked, np.ndarray):
            same = np.array_equal(asked, self.asked)  # type: ignore[arg-type]  # of one kind
        else:
            same = asked == self.asked
        return same and (
            weights is self.weights
            or (
                (weights is not None and self.weights is not None)
                and np.array_equal(weights, self.weights)
            )
        )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Rows that samples are the first ones of."""

    of: RowSample
    rows: NDArray[np.int64]
    """(m,) global indices; all of positive weight."""
    weight: NDArray[np.float64] | None
    x: Any = None
    """(m, d); None: they lie in this process anyway, and are taken from there."""


class Subsets:
    """The subsets that passes keep: of each kind of question the last one."""

    def __init__(self) -> None:
        self._kept: dict[type, _Kept] = {}
        self._drawn: _Drawn | None = None

    def find(
        self,
        of: BasePasses,
        asked: Asked,
        weights: NDArray[np.float64] | None = None,
        *,
        own_weights: bool = False,
        cuts: Sequence[int] = (),
    ) -> Subset:
        """Return a subset, kept or new; see ``algorithms.base.Passes.subset``."""
        known = self._kept.get(type(asked))
        if isinstance(asked, RowSlice):
            ends = sorted({asked.end, *(cut for cut in cuts if asked.begin < cut < asked.end)})
            return self._slice(of, [replace(asked, end=end) for end in ends], known)
        if known is not None and known.is_for(asked, weights, own_weights):
            return known.passes
        if known is not None:
            # What a sample was drawn from stays, for the next one may begin with it.
            del self._kept[type(asked)]
        if isinstance(asked, ProjectedRows):
            return self._keep(asked, weights, self._projected(of, asked, known))
        if known is not None:
            known.passes.close()
        if isinstance(asked, RowSample):
            taken = self._sample(of, asked)
        elif isinstance(asked, SpacedRows):
            taken = self._spaced(of, asked)
        else:
            # Of the rows of a subset, the places in it.
            taken = of.take(asked)._replace(rows=np.asarray(asked, np.int64))
            if weights is not None:
                own = weights if taken.weight is None else taken.weight * weights
                taken = taken._replace(weight=own)
        rows = HeldRows(of.n_features, of.statistics.dtype, of.is_sparse, taken)
        return self._keep(asked, weights, Subset(of, rows, own_weights=own_weights), own_weights)

    def _keep(
        self,
        asked: Asked,
        weights: NDArray[np.float64] | None,
        passes: Subset,
        own_weights: bool = False,
    ) -> Subset:
        self._kept[type(asked)] = _Kept(asked, weights, own_weights, passes)
        return passes

    def forget(self, passes: Subset) -> None:
        """Let go of a subset that has been closed."""
        for kind, known in list(self._kept.items()):
            if known.passes is passes:
                del self._kept[kind]
                if kind is RowSample:
                    self._drawn = None

    def clear(self) -> None:
        """Close all."""
        for known in list(self._kept.values()):
            known.passes.close()

    # --- slices -----------------------------------------------------------------------------------

    def _slice(self, of: BasePasses, asked: Sequence[RowSlice], known: _Kept | None) -> Subset:
        """The rows of the last of these slices, each of which begins the next one.

        Those of a slice that has been asked for, cut as it is to be, are there already.
        """
        there = None if known is None else known.asked
        n_there = 0
        if known is not None and isinstance(there, RowSlice):
            # What comes behind it is fetched, in pieces that end where the others do.
            n_there = sum(rows.end <= there.end for rows in asked)
            follows = replace(there, end=asked[-1].end) == asked[-1] and there.end <= asked[-1].end
            if not follows or not known.passes.is_cut_at([*asked[:n_there], there]):
                n_there, there = 0, None
        if known is not None and there is not None:
            assert isinstance(there, RowSlice)
            held, begin = known.passes, there.end
        else:
            if known is not None:
                known.passes.close()
            held = Subset(of, HeldRows(of.n_features, of.statistics.dtype, of.is_sparse))
            begin = asked[-1].begin
        if missing := asked[n_there:]:
            # All in one pass: of a store that was not shuffled every pass reads whole chunks.
            begins = [begin, *(rows.end for rows in missing[:-1])]
            collected: CollectedShares = of.reduce(
                collect_shares,
                [replace(rows, begin=at) for rows, at in zip(missing, begins, strict=True)],
                start=partial(CollectedShares, len(missing)),
                combine=CollectedShares.combine,
                rows=replace(asked[-1], begin=begin),
                joined=True,
            )
            for rows, share in zip(missing, collected.shares, strict=True):
                held.extend(list(share.pieces(of.threads.n)), rows)
        return self._keep(asked[-1], None, held)

    def _spaced(self, of: BasePasses, asked: SpacedRows) -> TakenRows:
        """Evenly spaced rows of a slice: of one that is not held only these are fetched."""
        rows = asked.rows
        known = self._kept.get(RowSlice)
        pieces = None if known is None else known.passes.pieces(rows)
        if pieces is None:
            edges = [np.diff(of.chunk_table) * end // rows.of for end in (rows.begin, rows.end)]
            sizes = edges[1] - edges[0]
            # Where rows count for nothing, who comes next is known to nobody who has not seen all.
            if of.statistics.n_rows == of.n_rows and sizes.any():
                every = max(1, -(-int(sizes.sum()) // asked.most))
                found: CollectedRows = of.reduce(
                    collect_spaced,
                    (sizes - np.cumsum(sizes)) % every,
                    every,
                    start=CollectedRows,
                    combine=CollectedRows.combine,
                    rows=rows,
                )
                return _one_piece(list(found.pieces(1)), of)
            pieces = self.find(of, rows).pieces(rows)
            assert pieces is not None
        return some_rows(pieces, asked.most) if pieces else _one_piece([], of)

    def _projected(self, of: BasePasses, asked: ProjectedRows, known: _Kept | None) -> Subset:
        """Rows that count as they are seen in some directions, in the order of the table.

        Those as they are seen in the first of them are there already, if these were asked for.
        Rows of a subset stay as they lie.
        """
        directions, there = asked.directions, None
        if isinstance(of, Subset):
            assert asked.within is None
            if known is not None:
                known.passes.close()
            seen = of.take()
            seen = seen._replace(x=readonly(project(seen.x, directions)))
            rows = HeldRows(len(directions.vectors), directions.vectors.dtype, False, seen)
            return Subset(of, rows, own_features=True)
        wanted = None if asked.within is None else _numbers(of, asked.within)
        if known is not None:
            assert isinstance(known.asked, ProjectedRows)
            same_rows = known.asked.within == asked.within
            if same_rows and directions.extends(known.asked.directions):
                there = known.passes.held.together().x
                directions = directions.beyond(there.shape[1])
            known.passes.close()
        found: CollectedRows = of.reduce(
            collect_projected,
            directions,
            wanted,
            start=CollectedRows,
            combine=CollectedRows.combine,
            joined=True,
        )
        numbers = np.sort(found.numbers())
        m, dtype = len(directions.vectors), directions.vectors.dtype
        x, weight = found.at(numbers, np.arange(len(numbers)), m, dtype)
        if there is not None:
            x = np.concatenate([there, x], axis=1)
        rows = HeldRows(x.shape[1], dtype, False, TakenRows(x, weight, numbers))
        return Subset(of, rows, own_features=True)

    # --- samples ----------------------------------------------------------------------------------

    def _sample(self, of: BasePasses, asked: RowSample) -> TakenRows:
        """A seeded sample; where rows have to be read, the largest one is, once."""
        draw = replace(asked, n=max(asked.n, asked.largest), largest=0)
        drawn = self._drawn
        if drawn is None or drawn.of != draw:
            self._drawn = None
            drawn = self._drawn = _draw(of, draw)
        n = asked.n
        rows, weight = drawn.rows[:n], None if drawn.weight is None else drawn.weight[:n]
        x = of.take(rows).x if drawn.x is None else drawn.x[:n]
        return TakenRows(x, weight, rows)


def _numbers(of: BasePasses, asked: RowSample) -> NDArray[np.int64]:
    """Return the ascending indices of a sample, with extra ones for rows of weight 0."""
    everything = of.n_rows
    n = min(everything, -(-asked.n * everything // max(1, of.statistics.n_rows)))
    rows = asked.rng.generator(0, asked.purpose).choice(everything, n, replace=False)
    rows.sort()
    return rows


def _draw(of: BasePasses, asked: RowSample) -> _Drawn:
    everything, count, n = of.n_rows, of.statistics.n_rows, asked.n
    enough = min(n, count) // 2
    # As many more as there are rows that do not count.
    n = min(everything, -(-n * everything // max(1, count)))
    while True:
        if n == everything and asked.ascending:
            rows = np.arange(everything)
        else:
            rows = asked.rng.generator(0, asked.purpose).choice(everything, n, replace=False)
            if asked.ascending:
                rows.sort()
        whole = of.in_one_piece()
        if whole is None:
            x, weight, _ = of.take(rows)
        else:
            x, weight = None, None if whole[1] is None else whole[1][rows]
        if weight is not None and not weight.all():
            there = weight > 0
            rows, weight = rows[there], weight[there]
            x = None if x is None else x[there]
        if len(rows) >= enough or n == everything:
            break
        # Those that count are rare, or not where they were looked for.
        n = min(4 * n, everything)
    if weight is not None and (weight == 1).all():
        weight = None
    return _Drawn(asked, rows, weight, x)


def _one_piece(pieces: Sequence[TakenRows], of: BasePasses) -> TakenRows:
    rows = HeldRows(of.n_features, of.statistics.dtype, of.is_sparse)
    rows.extend(pieces)
    return rows.together()
