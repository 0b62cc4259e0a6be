"""Passes over rows held in the driver's memory, such as samples and growing batches.

These passes use the statistics of the whole table, so that all results have the same origin and
grid. On a cluster, workers read the rows of a large sample as well, and run the passes with row
state; what is computed does not depend on where.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Chunk,
    ChunkFunction,
    ProjectedRows,
    RowSample,
    RowSlice,
    RowState,
    SpacedRows,
    TakenRows,
)
from largek_dask.kernels.blocks import readonly, rows_at
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.projection import Directions, project
from largek_dask.passes.base import BasePasses
from largek_dask.passes.chunks import Preparation
from largek_dask.passes.gather import (
    CollectedRows,
    collect_projected,
    collect_shares,
    collect_spaced,
    combine_shares,
    new_shares,
    some_rows,
)
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.rowstate import process_memory
from largek_dask.passes.spec import PassSpec
from largek_dask.passes.taken_rows import HeldRows
from largek_dask.passes.telemetry import PassReport

T = TypeVar("T")

AS_HELD = Preparation()
WORKER_DISTANCES = 1 << 18
"""Minimum number of distances in one labelling of a subset that a worker searches. The parts of a
search then take a quarter of a second on average, and a pass 25 ms (not tuned)."""

SubsetRows = RowSlice | RowSample | SpacedRows | ProjectedRows | NDArray[np.int64]


class Subset(LocalPasses):
    """Passes over rows of a table that are held in memory; ``of`` are the passes over the table.

    With ``own_weights``, the weights and the grid of sums differ from those of the table. With
    ``directions``, the rows have been projected, and all statistics differ. ``any_order`` allows
    workers to run passes with row state: None never, False if the rows are in the table's order,
    True also if they are not (see ``Passes.places``).
    """

    lends = True  # Copying would cost as much as a small pass.

    def __init__(
        self,
        of: BasePasses,
        rows: HeldRows,
        *,
        own_weights: bool = False,
        directions: Directions | None = None,
        any_order: bool | None = None,
    ) -> None:
        statistics = None if directions is not None else of.statistics
        if own_weights:
            assert statistics is not None
            weight = rows.together().weight
            statistics = statistics.of_weights(np.ones(rows.n_rows) if weight is None else weight)
        # Do not limit the row state, which is small compared with the rows.
        super().__init__(
            rows,
            n_threads=of.threads.n,
            memory_limit=process_memory(),
            on_bad_rows="skip",
            statistics=statistics,
        )
        self.row_values = of.row_values if directions is None else rows.row_values
        self.held = rows
        self.directions, self.any_order = directions, any_order
        self._of = weakref.ref(of)
        self._edges: dict[RowSlice, int] = {}

    def extend(self, pieces: Sequence[TakenRows], asked: RowSlice) -> None:
        """Add rows as new chunks, so that the subset holds the rows of ``asked``."""
        self.held.extend(pieces)
        self._engine.extend()
        self.n_rows, self.n_chunks = self.held.n_rows, self.held.n_chunks
        self.chunk_table = self.held.chunk_table
        self._edges[asked] = self.n_chunks

    def is_cut_at(self, slices: Sequence[RowSlice]) -> bool:
        """Return True if a chunk ends at the end of each of these slices."""
        return all(rows in self._edges for rows in slices)

    def pieces(self, rows: RowSlice) -> list[TakenRows] | None:
        """Return the rows of a slice that was requested before, or None."""
        return self.held.pieces(self._edges[rows]) if rows in self._edges else None

    def take(self, rows: NDArray[np.int64] | None = None) -> TakenRows:
        """Return some rows by their positions, or all rows in order; see ``BasePasses.take``."""
        x, weight, numbers = self.held.together()
        if rows is not None:
            x, weight = rows_at(x, rows, self.threads.n), None if weight is None else weight[rows]
            numbers = numbers[rows]
        return TakenRows(x.astype(self.statistics.dtype, copy=False), weight, numbers)

    def reduce(
        self, chunk_fn: ChunkFunction, *broadcast: Any, rows: RowSlice | None = None, **how: Any
    ) -> Any:
        """See ``algorithms.base.Passes.reduce``; ``rows`` must be None."""
        if rows is not None:
            raise ValueError(
                "a subset cannot be divided further; request a smaller subset of the table"
            )
        return super().reduce(chunk_fn, *broadcast, **how)

    @cached_property
    def _on_workers(self) -> BasePasses | None:
        """Passes that workers run over the same rows; None if this process runs all passes."""
        of, any_order = self._of(), self.any_order
        if of is None or any_order is None or not self.n_rows:
            return None
        (_, weight, rows), how = self.held.together(), {"any_order": any_order}
        return of.retry(
            lambda: of.on_workers(rows, weight, self.statistics, self.directions, **how)
        )

    def on_workers(
        self,
        rows: NDArray[np.int64],
        weight: NDArray[np.float64] | None,
        statistics: Statistics,
        directions: Directions | None,
        *,
        any_order: bool,
    ) -> BasePasses | None:
        """See ``BasePasses.on_workers``; the rows of a subset are rows of the table."""
        of = self._of()
        if of is None or self.any_order is None:
            return None
        numbers = self.held.together().rows[rows]
        directions = self.directions if directions is None else directions
        return of.on_workers(numbers, weight, statistics, directions, any_order=any_order)

    @property
    def places(self) -> NDArray[np.int64] | None:  # type: ignore[override]  # made at first use
        """See ``algorithms.base.Passes.places``."""
        return None if self._on_workers is None else self._on_workers.places

    def _run(
        self,
        spec: PassSpec,
        replay: tuple[tuple[Any, ...], ...],
        chunks: Sequence[int],
        report: PassReport,
    ) -> Any:
        there = None if spec.state is None else self._on_workers
        if there is None:
            return super()._run(spec, replay, chunks, report)
        spec = replace(spec, joined=False, preparation=there._preparation())
        return there._run(spec, replay, range(there.n_chunks), report)

    def _timed(
        self, spec: PassSpec, replay: tuple[tuple[Any, ...], ...], chunks: Sequence[int]
    ) -> Any:
        """Run one pass, and add its cost to that of the table's passes."""
        try:
            return super()._timed(spec, replay, chunks)
        finally:
            there = None if spec.state is None else self.__dict__.get("_on_workers")
            self.count_subset(self.last, there is not None)

    def compute(self, function: Callable[..., Any], *given: Any, distances: int) -> Any:
        """See ``algorithms.base.Passes.compute``."""
        x, weight, _ = self.take()
        there = self._one_worker if distances >= WORKER_DISTANCES else None
        if there is None:
            of = self._of()
            return function(x, weight, self.threads if of is None else of.threads, *given)
        # The rows are sent only to a worker that does not have them yet.
        replay = ((x, weight),)
        spec = PassSpec(
            compute_held,
            (function, given),
            start=list,
            combine=operator.iadd,
            state=there._state_spec(RowState("rows", 1, replay, rebuild=hold_rows), None),
            all_threads=True,
            preparation=there._preparation(),
        )
        found: list[Any] = there._timed(spec, replay, [0])
        self.count_subset(there.last, True)
        return found[0]

    @cached_property
    def _one_worker(self) -> BasePasses | None:
        of = self._of()
        return None if of is None else of.retry(lambda: of.on_one_worker(self.statistics))

    def count_subset(self, report: PassReport, on_workers: bool) -> None:
        """See ``BasePasses.count_subset``."""
        if (of := self._of()) is not None:
            of.count_subset(report, on_workers)

    def retry(self, call: Callable[[], T]) -> T:
        """See ``BasePasses.retry``; messages are those of the table's passes."""
        of = self._of()
        return super().retry(call) if of is None else of.retry(call)

    def _written_for(self, state: RowState) -> tuple[RowSlice | None, int | None]:
        """Return the number of chunks of the last generation too; later rows form new chunks."""
        before = state.rebuild_rows
        if before is None:
            return None, None
        if before not in self._edges:
            raise ValueError(
                f"row state {state.name!r}: generation {state.generation - 1} was written for "
                f"{before}, which must first be requested as a subset"
            )
        return None, self._edges[before]

    def _preparation(self) -> Preparation:
        return AS_HELD

    def _stop(self) -> BaseException | None:
        of = self._of()
        return None if of is None else of._stop()

    def close(self) -> None:
        """End the threads, and release the rows, here and on workers."""
        super().close()
        self.any_order = None
        for name in ("_on_workers", "_one_worker"):
            if (there := self.__dict__.pop(name, None)) is not None:
                there.close()
        if (of := self._of()) is not None:
            of.forget_subset(self)


def hold_rows(
    chunk: Chunk, total: object, x: NDArray[Any], weight: NDArray[np.float64] | None
) -> None:
    """Keep the rows of a subset as row state of the chunk."""
    chunk.keep(x=x, **({} if weight is None else {"weight": weight}))


def compute_held(
    chunk: Chunk, total: list[Any], function: Callable[..., Any], given: Sequence[Any]
) -> None:
    """Add the result of a function of the rows that :func:`hold_rows` has kept."""
    assert chunk.state is not None
    total.append(function(chunk.state["x"], chunk.state.get("weight"), chunk.threads, *given))


@dataclass(frozen=True, slots=True)
class _Kept:
    asked: SubsetRows
    weights: NDArray[np.float64] | None
    own_weights: bool
    passes: Subset

    def is_for(
        self, asked: SubsetRows, weights: NDArray[np.float64] | None, own_weights: bool
    ) -> bool:
        if own_weights != self.own_weights:
            return False
        if isinstance(asked, np.ndarray):
            same = np.array_equal(asked, self.asked)  # type: ignore[arg-type]  # of one kind
        else:
            same = asked == self.asked
        if weights is None or self.weights is None:
            return same and weights is self.weights
        return same and np.array_equal(weights, self.weights)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Drawn rows; for any n, the first n rows are a sample."""

    of: RowSample
    rows: NDArray[np.int64]
    """(m,) global indices of rows of positive weight."""
    weight: NDArray[np.float64] | None
    x: Any = None
    """(m, d) rows; None if the whole table is in memory."""


class Subsets:
    """Cache of subsets, which keeps the last subset of each type of argument."""

    def __init__(self) -> None:
        self._kept: dict[type, _Kept] = {}
        self._drawn: _Drawn | None = None

    def find(
        self,
        of: BasePasses,
        asked: SubsetRows,
        weights: NDArray[np.float64] | None = None,
        *,
        own_weights: bool = False,
        cuts: Sequence[int] = (),
    ) -> Subset:
        """Return a kept or new subset; see ``algorithms.base.Passes.subset``."""
        known = self._kept.get(type(asked))
        if isinstance(asked, RowSlice):
            ends = sorted({asked.end, *(cut for cut in cuts if asked.begin < cut < asked.end)})
            return self._slice(of, [replace(asked, end=end) for end in ends], known)
        if known is not None and known.is_for(asked, weights, own_weights):
            return known.passes
        if known is not None:
            # Keep the drawn rows, because the next sample may begin with them.
            del self._kept[type(asked)]
        if isinstance(asked, ProjectedRows):
            return self._keep(asked, weights, self._projected(of, asked, known))
        if known is not None:
            known.passes.close()
        any_order = None if own_weights or isinstance(asked, SpacedRows) else False
        if isinstance(asked, RowSample):
            any_order, taken = asked.any_order, self._sample(of, asked)
        elif isinstance(asked, SpacedRows):
            taken = self._spaced(of, asked)
        else:
            # Use positions in `of`, which may itself be a subset.
            taken = of.take(asked)._replace(rows=np.asarray(asked, np.int64))
            if weights is not None:
                own = weights if taken.weight is None else taken.weight * weights
                taken = taken._replace(weight=own)
        rows = HeldRows(of.n_features, of.statistics.dtype, of.is_sparse, taken)
        passes = Subset(of, rows, own_weights=own_weights, any_order=any_order)
        return self._keep(asked, weights, passes, own_weights)

    def _keep(
        self,
        asked: SubsetRows,
        weights: NDArray[np.float64] | None,
        passes: Subset,
        own_weights: bool = False,
    ) -> Subset:
        self._kept[type(asked)] = _Kept(asked, weights, own_weights, passes)
        return passes

    def forget(self, passes: Subset) -> None:
        """Forget a subset that has been closed."""
        for kind, known in list(self._kept.items()):
            if known.passes is passes:
                del self._kept[kind]
                if kind is RowSample:
                    self._drawn = None

    def clear(self) -> None:
        """Close all subsets."""
        for known in list(self._kept.values()):
            known.passes.close()

    def _slice(self, of: BasePasses, asked: Sequence[RowSlice], known: _Kept | None) -> Subset:
        """Return a subset with the rows of the last slice; each slice contains the slice before it.

        Rows of an earlier slice are reused if its chunks end at the same rows.
        """
        there = None if known is None else known.asked
        n_there = 0
        if known is not None and isinstance(there, RowSlice):
            # Fetch only the rows that follow, in pieces that end where the slices end.
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
            # Use one pass, because every pass over an unshuffled store reads whole chunks.
            begins = [begin, *(rows.end for rows in missing[:-1])]
            shares: list[CollectedRows] = of.reduce(
                collect_shares,
                [replace(rows, begin=at) for rows, at in zip(missing, begins, strict=True)],
                start=partial(new_shares, len(missing)),
                combine=combine_shares,
                rows=replace(asked[-1], begin=begin),
                joined=True,
            )
            for rows, share in zip(missing, shares, strict=True):
                held.extend(list(share.pieces(of.threads.n)), rows)
        return self._keep(asked[-1], None, held)

    def _spaced(self, of: BasePasses, asked: SpacedRows) -> TakenRows:
        """Return evenly spaced rows of a slice; fetch only these rows if it is not in memory."""
        rows = asked.rows
        known = self._kept.get(RowSlice)
        pieces = None if known is None else known.passes.pieces(rows)
        if pieces is None:
            edges = [np.diff(of.chunk_table) * end // rows.of for end in (rows.begin, rows.end)]
            sizes = edges[1] - edges[0]
            # Rows of weight 0 would be counted, so this path requires that there are none.
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
        """Return rows of positive weight, projected onto some directions, in the table's order.

        Earlier projections onto the first directions are reused. Rows of a subset keep their order.
        """
        directions, there = asked.directions, None
        if isinstance(of, Subset):
            assert asked.within is None
            if known is not None:
                known.passes.close()
            seen = of.take()
            x = readonly(project(seen.x, directions, of.threads.n))
            seen = TakenRows(x, seen.weight, np.arange(len(x)))
            rows = HeldRows(len(directions.vectors), directions.vectors.dtype, False, seen)
            return Subset(of, rows, directions=directions, any_order=of.any_order)
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
        return Subset(of, rows, directions=asked.directions, any_order=False)

    def _sample(self, of: BasePasses, asked: RowSample) -> TakenRows:
        """Return a seeded sample; the largest sample is read once and contains smaller samples."""
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
    """Return the ascending indices of a sample, with extra rows to replace rows of weight 0."""
    everything = of.n_rows
    n = min(everything, -(-asked.n * everything // max(1, of.statistics.n_rows)))
    rows = asked.rng.generator(0, asked.purpose).choice(everything, n, replace=False)
    rows.sort()
    return rows


def _draw(of: BasePasses, asked: RowSample) -> _Drawn:
    everything, count, n = of.n_rows, of.statistics.n_rows, asked.n
    enough = min(n, count) // 2
    # Draw extra rows to replace rows of weight 0.
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
        # Draw more, because too few of the drawn rows have positive weight.
        n = min(4 * n, everything)
    if weight is not None and (weight == 1).all():
        weight = None
    return _Drawn(asked, rows, weight, x)


def _one_piece(pieces: Sequence[TakenRows], of: BasePasses) -> TakenRows:
    rows = HeldRows(of.n_features, of.statistics.dtype, of.is_sparse)
    rows.extend(pieces)
    return rows.together()
