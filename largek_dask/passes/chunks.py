"""Chunks as passed to chunk functions, with rows normalised and bad rows handled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import RowSlice
from largek_dask.data.columns import listed
from largek_dask.data.rows import Rows
from largek_dask.errors import BadRowsError
from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.dense.copying import copy_rows
from largek_dask.kernels.rows import finite_rows, normalize_rows
from largek_dask.kernels.threads import ALONE, Threads
from largek_dask.passes.cache import Part

JOINED = -1
"""Index of the single chunk that contains all rows."""
PIECE_BYTES = 7 << 19
"""Bytes of rows that are copied at once (see ``passes.gather.BLOCK_BYTES``)."""


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Make the array writable if it owns its data; otherwise return a writable copy."""
    if not array.flags.owndata:
        return array.copy()
    array.flags.writeable = True
    return array


@dataclass(slots=True)
class ChunkView:
    """View of the rows of a chunk; implements ``algorithms.base.Chunk``."""

    index: int
    start: int
    x: Any
    weight: NDArray[np.float64] | None
    rows: NDArray[np.int64] | None = None
    bad: NDArray[np.bool_] | None = None
    state: Mapping[str, NDArray[Any]] | None = None
    counted: bool = False
    kept: dict[str, NDArray[Any]] | None = None
    threads: Threads = ALONE
    known: NDArray[np.int64] | None = None
    """Result of :meth:`numbers` if it differs from the positions of the rows."""
    release: Callable[[], object] | None = None
    """Function that drops ``state`` from the store, so that the arrays can be overwritten in
    place."""
    spread: bool = False
    """True if ``x`` and ``weight`` contain all rows of the table, and ``rows`` selects this
    chunk."""
    find: Callable[[RowSlice], NDArray[np.int64]] | None = None
    """Implementation of :meth:`locate`."""

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    def pieces(self, rows: slice) -> Iterator[tuple[slice, Any, NDArray[np.float64] | None]]:
        """Yield ``x`` and ``weight`` of some rows; see ``algorithms.base.Chunk.pieces``."""
        begin, end, _ = rows.indices(len(self))
        if not self.spread:
            weight = None if self.weight is None else self.weight[begin:end]
            yield slice(begin, end), self.x[begin:end], weight
            return
        assert self.rows is not None
        row_bytes = max(1, self.x.shape[1] * self.x.itemsize)
        n = min(max(1, PIECE_BYTES // row_bytes), max(1, end - begin))
        # Reuse one buffer, because new memory pages cost more than copying rows (measured).
        room = np.empty((n, self.x.shape[1]), self.x.dtype)
        for first in range(begin, end, n):
            at = slice(first, min(first + n, end))
            places = self.rows[at]
            x = room[: len(places)]
            copy_rows(self.x, places, x)
            weight = None if self.weight is None else self.weight[places]
            yield at, readonly(x), weight

    def numbers(self, places: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return global indices of rows; see ``algorithms.base.Chunk.numbers``."""
        if self.known is not None:
            return self.known if places is None else self.known[places]
        if places is not None:
            apart = None if self.spread else self.rows
            return self.start + (places if apart is None else apart[places])
        if self.rows is not None:
            return self.start + self.rows
        return np.arange(self.start, self.start + len(self.x))

    def locate(self, rows: RowSlice) -> NDArray[np.int64]:
        """Return the positions in ``x`` of a slice's rows; see ``algorithms.base.Chunk.locate``."""
        assert self.find is not None
        return self.find(rows)

    def take_state(self) -> dict[str, NDArray[Any]]:
        """Return writable arrays of ``state``; ``state`` must not be used afterwards."""
        assert self.state is not None
        if self.release is None:
            return {name: array.copy() for name, array in self.state.items()}
        self.release()
        return {name: writable(array) for name, array in self.state.items()}

    def keep(self, **arrays: NDArray[Any]) -> None:
        """Store these arrays as the chunk's row state of this generation; they become read-only.

        A later call replaces the arrays of an earlier call.
        """
        self.kept = arrays

    def again(self, state: Mapping[str, NDArray[Any]] | None) -> ChunkView:
        """Return a view of the same rows with another state and without kept arrays."""
        return replace(self, state=state, counted=False, kept=None, release=None)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Settings for preparing rows before they are passed to the chunk function."""

    normalize: Literal["l2"] | None = None
    """"l2" scales rows to unit length."""
    on_bad_rows: Literal["raise", "skip"] = "raise"
    check: bool = False
    """True if rows may contain NaN or infinity and must be checked."""
    shift: NDArray[Any] | None = None
    """(d,) values that replace a bad row."""


class Preparer:
    """Prepare the rows of a chunk as a :class:`ChunkView`, on the computing threads."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        # Remember chunks without bad rows, so that each chunk is checked only once.
        self._clean: set[int] = set()

    def __call__(self, index: int, part: Part, preparation: Preparation, sliced: bool) -> ChunkView:
        """Return the chunk that a pass sees; ``sliced`` is True if the pass uses a ``RowSlice``.

        Raises BadRowsError for a row with NaN or infinity if ``on_bad_rows`` is "raise".
        """
        if index == JOINED:
            known = self._rows.numbers(None)
            spread = part.rows is not None
            return ChunkView(index, 0, part.x, part.weight, part.rows, known=known, spread=spread)
        start = int(self._rows.chunk_table[index])
        x, weight, chosen = part.x, part.weight, part.rows
        if sliced and chosen is None:
            chosen = np.arange(part.span.begin, part.span.end)
        bad = None
        if preparation.check and x.dtype.kind == "f" and index not in self._clean:
            bad = self._find_bad(index, x, weight, chosen, preparation)
        if preparation.normalize == "l2":
            x = normalize_rows(x)
        if bad is not None:
            assert preparation.shift is not None
            if isinstance(x, SparseBlock):
                x = x.with_rows_zero(bad)
            else:
                x = np.where(bad[:, None], preparation.shift.astype(x.dtype), x)
            weight = np.where(bad, 0.0, 1.0 if weight is None else weight)
        if not isinstance(x, SparseBlock):
            x = readonly(x)
        return ChunkView(index, start, x, weight, chosen, bad, known=self._rows.numbers(index))

    def _find_bad(
        self,
        index: int,
        x: Table,
        weight: NDArray[np.float64] | None,
        chosen: NDArray[np.int64] | None,
        preparation: Preparation,
    ) -> NDArray[np.bool_] | None:
        bad = ~finite_rows(x)
        if not bad.any():
            if chosen is None:
                with self._lock:
                    self._clean.add(index)
            return None
        # Rows of weight 0 may contain any values.
        present = bad if weight is None else bad & (weight > 0)
        if preparation.on_bad_rows == "raise" and present.any():
            first = int(np.argmax(present))
            inside = first if chosen is None else int(chosen[first])
            raise bad_row_error(self._rows, int(self._rows.chunk_table[index]) + inside, index)
        return bad


def bad_row_error(rows: Rows, row: int, index: int) -> BadRowsError:
    """Return the error for a row with NaN or infinity, with the names of the bad columns."""
    inside = row - int(rows.chunk_table[index])
    columns = name_bad_columns(rows, rows.read_part(index, inside, inside + 1))
    where = ", ".join(part for part in (rows.name_chunk(index), columns) if part)
    return BadRowsError(
        f"row {row} holds NaN or infinity ({where}); "
        "clean the data, or skip such rows with on_bad_rows='skip'."
    )


def name_bad_columns(rows: Rows, x: Table) -> str:
    """Name the columns without any finite value in these rows; "" if there are none."""
    if isinstance(x, SparseBlock):
        bad = ~np.isfinite(x.data[x.stored])
        found, counts = np.unique(x.indices[x.stored][bad], return_counts=True)
        places = found[counts == len(x)].tolist()
    else:
        places = np.flatnonzero(~np.isfinite(x).any(axis=0)).tolist()
    if not places:
        return ""
    names = rows.feature_names
    shown = listed(places if names is None else [names[place] for place in places], 5)
    return f"{'column' if len(places) == 1 else 'columns'} {shown}"
