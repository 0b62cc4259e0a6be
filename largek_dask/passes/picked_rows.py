"""Rows of a sample, picked from a stored table by the workers themselves."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.data.rows import Rows
from largek_dask.kernels.blocks import rows_at, stack_rows
from largek_dask.kernels.projection import Directions, project
from largek_dask.kernels.rows import normalize_rows

LEAST_ROWS, MOST_ROWS = 1 << 12, 1 << 20
"""Approximate minimum and maximum number of rows of a chunk; chunks of the table are not divided.
Small chunks have few rows per centre, and a worker notices a stop only between chunks."""


class PickedRows(Rows):
    """Some rows of a table, as a process that takes them would hold them.

    Only the positions of the rows are pickled. A chunk holds the rows of several consecutive chunks
    of the table. Rows are in the compute dtype; they are first normalised, as in passes over the
    table, and then projected if there are directions.

    Parameters
    ----------
    rows : (n,) int64
        Ascending global indices.
    weight : (n,) float64, optional
        Weights of these rows.
    n_chunks : int
        Approximate number of chunks.
    """

    def __init__(
        self,
        table: Rows,
        rows: NDArray[np.int64],
        weight: NDArray[np.float64] | None,
        dtype: np.dtype[Any],
        *,
        normalize: Literal["l2"] | None,
        directions: Directions | None,
        n_chunks: int,
    ) -> None:
        n = len(rows)
        n_chunks = max(1, min(max(n_chunks, -(-n // MOST_ROWS)), n // LEAST_ROWS))
        starts = np.searchsorted(rows, table.chunk_table)
        edges = np.unique(np.searchsorted(starts, np.arange(n_chunks + 1) * n // n_chunks))
        places = rows - np.repeat(table.chunk_table[:-1], np.diff(starts))
        super().__init__(
            n_features=table.n_features if directions is None else len(directions.vectors),
            dtype=dtype,
            chunk_table=starts[edges],
            location=table.location,
        )
        self.is_sparse = table.is_sparse  # type: ignore[misc]  # of these rows, not of the class
        self.weight = None if weight is None else _Weights(weight)
        self._table, self._edges, self._starts = table, edges.tolist(), starts
        self._places = places.astype(np.min_scalar_type(int(places.max())))
        self._normalize, self._directions = normalize, directions

    @property
    def storage_options(self) -> Any:
        return getattr(self._table, "storage_options", None)

    def name_chunk(self, i: int) -> str:
        """Return the name of the first chunk of the table that chunk ``i`` is read from."""
        return self._table.name_chunk(self._edges[i])

    def _load(self, i: int, start: int, stop: int) -> Any:
        parts = []
        for index in range(self._edges[i], self._edges[i + 1]):
            begin, end = self._starts[index : index + 2]
            if begin < end:
                x = rows_at(self._table.read(index), self._places[begin:end].astype(np.int64))
                parts.append(self._prepared(x))
        return stack_rows(parts)

    def _prepared(self, x: Any) -> Any:
        if self._normalize == "l2":
            x = normalize_rows(x)
        if self._directions is not None:
            return project(x, self._directions)
        return x.astype(self.dtype, copy=False)


class _Weights:
    """Column of weights that are pickled with the rows."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values, self.n_rows = values, len(values)

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        return self._values[start:stop]
