"""Passes over selected rows of a table in place, for large coresets on workers.

Chunk functions see the selected rows of each chunk as one chunk of dense rows. The whole chunk is
read unless it is in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, ChunkFunction, Passes, RowState, TakenRows
from largek_dask.algorithms.parts.chunk_results import ChunkResults
from largek_dask.algorithms.starts.coresets import Coreset
from largek_dask.kernels.threads import Threads

HELD_VALUES = 1 << 25
"""Maximum number of values of a coreset that the driver's process holds; not tuned."""


def rows_of_coreset(passes: Passes, coreset: Coreset | None) -> Any:
    """Return passes over a coreset, held in this process if small; None means all rows."""
    if coreset is None:
        return passes
    if len(coreset.rows) * passes.n_features <= HELD_VALUES:
        return passes.subset(coreset.rows, coreset.factors, own_weights=True)
    return RowsInPlace(passes, coreset.rows, coreset.factors)


class RowsInPlace:
    """Passes over selected rows of a table, without support for slices and subsets.

    Creation takes one pass if the rows of the table have weights.

    Parameters
    ----------
    passes : Passes
        Passes over the table.
    rows : (m,) int64
        Distinct global indices, ascending.
    factors : (m,) float64
        Factors on the rows' weights.
    """

    places = None

    def __init__(
        self, passes: Passes, rows: NDArray[np.int64], factors: NDArray[np.float64]
    ) -> None:
        self._of = passes
        self._chosen = _Chosen(rows, factors)
        self.n_rows, self.n_features, self.is_sparse = len(rows), passes.n_features, False
        self.row_values = passes.row_values
        self.n_threads, self.state_limit = passes.n_threads, passes.state_limit
        self.chunk_table = np.searchsorted(rows, passes.chunk_table).astype(np.int64)
        known, weights = passes.statistics, factors
        if not known.min_weight == known.max_weight == 1:
            found: ChunkResults = passes.reduce(
                _on_chosen, _weigh, self._chosen, start=ChunkResults, combine=ChunkResults.combine
            )
            weights = np.concatenate(found.in_order())
        self.statistics = known.of_weights(weights)

    @property
    def threads(self) -> Threads:
        return self._of.threads

    def reduce(
        self,
        chunk_fn: ChunkFunction,
        *broadcast: Any,
        start: Callable[[], Any],
        combine: Callable[[Any, Any], Any],
        state: RowState | None = None,
        **how: Any,
    ) -> Any:
        if state is not None:
            first = state.rebuild or chunk_fn, self._chosen
            state = replace(
                state,
                replay=tuple((*first, *before) for before in state.replay),
                rebuild=None if state.rebuild is None else _on_chosen,
            )
        how |= {"start": start, "combine": combine, "state": state}
        return self._of.reduce(_on_chosen, chunk_fn, self._chosen, *broadcast, **how)

    def take(self, rows: NDArray[np.int64]) -> TakenRows:
        """Return selected rows by their position among all selected rows."""
        x, weight, numbers = self._of.take(self._chosen.rows[rows])
        factors = self._chosen.factors[rows]
        return TakenRows(x, factors if weight is None else weight * factors, numbers)


@dataclass(frozen=True, slots=True)
class _Chosen:
    rows: NDArray[np.int64]
    factors: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _ChunkInPlace:
    """Selected rows of a chunk, as passed to chunk functions; see ``Chunk``."""

    of: Chunk
    start: int
    places: NDArray[np.int64]
    x: Any
    weight: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.places)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def numbers(self) -> NDArray[np.int64]:
        return self.of.numbers(self.places)


def _on_chosen(
    chunk: Chunk, total: Any, function: ChunkFunction, chosen: _Chosen, *broadcast: Any
) -> None:
    """Call a chunk function on the selected rows of a chunk."""
    begin, end = np.searchsorted(chosen.rows, [chunk.start, chunk.start + len(chunk)])
    places, weight = chosen.rows[begin:end] - chunk.start, chosen.factors[begin:end]
    if chunk.weight is not None:
        weight = weight * chunk.weight[places]
    view = _ChunkInPlace(chunk, int(begin), places, chunk.x.take(places, axis=0), weight)
    function(view, total, *broadcast)


def _weigh(chunk: Chunk, total: ChunkResults) -> None:
    assert chunk.weight is not None
    total.chunks[chunk.index] = chunk.weight
