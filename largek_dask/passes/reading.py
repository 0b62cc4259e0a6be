"""Provide the rows of a chunk that a pass asks for, from storage, the cache or memory.

If a store's rows are in random order, a share of a chunk (``RowSlice``) is its first rows: only the
stored pieces with these rows are read, and nothing is copied. Otherwise the whole chunk is read,
and its share is selected by a seeded permutation. Shares that will be used again are cached, within
the cache's budget, so that nothing is read or copied while a batch stays the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import RowSlice
from largek_dask.data.frame_rows import FrameRows
from largek_dask.data.mapped_files import MappedRows
from largek_dask.data.memory_rows import ArrayRows, SparseRows
from largek_dask.data.rows import Rows
from largek_dask.kernels.blocks import SparseBlock, Table, readonly, stack_rows
from largek_dask.kernels.sampling import share_of_chunks, shuffle_places
from largek_dask.passes.cache import ChunkCache, Part, Span
from largek_dask.passes.chunks import JOINED
from largek_dask.passes.prefetch import Block, ChunkSource
from largek_dask.passes.rowstate import Arrays, RowStateStore
from largek_dask.passes.taken_rows import HeldRows, empty_rows
from largek_dask.passes.telemetry import PassReport

SETTLED_AT_ONCE = 2_048
"""Minimum number of positions in a chunk's permutation that are drawn the first time."""
SETTLED_AHEAD = 8
"""Ratio of drawn positions to positions that a share needs."""
SORTED_SHARE = 32
"""Ratio of chunk size to share size from which positions are sorted by comparison instead of
marking (measured)."""


class ChunkReader:
    """Provider of rows for passes; ``store`` keeps permutations of shares that are not cached."""

    def __init__(self, rows: Rows, store: RowStateStore, cache: ChunkCache) -> None:
        self._rows = rows
        self._store = store
        self._cache = cache
        self.measure()
        self._joined: Part | None = None
        # Slices of arrays are views, which need neither a reading thread nor a cache.
        sliced = ArrayRows | FrameRows | HeldRows | MappedRows | SparseRows
        self._in_memory = isinstance(rows, sliced)
        self._lock = threading.Lock()
        self._permutations: set[str] = set()
        self._declined: set[str] = set()

    def measure(self) -> None:
        """Update the sizes of chunks after chunks have been added."""
        self._sizes: list[int] = np.diff(self._rows.chunk_table).tolist()

    def join(self) -> Part | None:
        """Return all rows as one chunk, ``JOINED``; None unless they are one array in memory."""
        if self._joined is None and (x := self._rows.in_memory()) is not None:
            parts = [self._rows.read_weight(index) for index in range(self._rows.n_chunks)]
            weights = [part for part in parts if part is not None]
            weight = np.concatenate(weights) if weights else None
            self._joined = Part(Span(0, len(x), len(x)), x, weight)
        return self._joined

    def span(self, index: int, rows: RowSlice | None) -> Span:
        """Return the rows of a chunk that a pass asks for."""
        if index == JOINED:
            assert self._joined is not None
            n = self._joined.span.of
            if rows is None or (rows.begin == 0 and rows.end == rows.of):
                return self._joined.span
            # This is a share of each chunk, not a share of a permutation of all rows.
            return Span(rows.begin, rows.end, rows.of, rows.rng)
        n = self._sizes[index]
        if rows is None:
            return Span(0, n, n)
        begin, end = rows.begin * n // rows.of, rows.end * n // rows.of
        as_they_lie = self._rows.shuffled or end - begin == n
        return Span(begin, end, n, None if as_they_lie else rows.rng)

    def source(self, chunks: Iterable[int], rows: RowSlice | None, n_ahead: int) -> ChunkSource:
        """Return the chunks of a pass; up to ``n_ahead`` stored chunks are read in advance."""

        def read(index: int) -> Block:
            return self._read(index, self.span(index, rows))

        def recall(index: int) -> Block:
            return self._recalled(index, self.span(index, rows))

        if self._in_memory:
            return ChunkSource(recall, recall, (), chunks, 0)
        present: list[int] = []
        stored: list[int] = []
        for index in chunks:
            held = self._cache.holds(index, self.span(index, rows))
            (present if held else stored).append(index)
        return ChunkSource(read, recall, stored, present, n_ahead)

    def take(self, block: Block, span: Span, again: bool, report: PassReport) -> Part:
        """Return exactly the rows of a span, from the rows that were read for a pass.

        ``again`` is True if later passes will use the same rows, which are cached if they had to
        be copied. ``report`` records the cost. Raises the error that reading the chunk raised.
        """
        index, part = block.index, block.part
        if part is not None and part.span == span:
            return part
        if part is not None and not part.span.holds(span):
            block = self._recalled(index, span)
            part = block.part
            report.bytes_read += block.bytes_read
        if block.error is not None:
            raise block.error
        assert part is not None
        if part.span == span:
            return part
        if index == JOINED:
            return Part(span, part.x, part.weight, self._places(span, again))
        if span.order is None:
            places = slice(span.begin - part.span.begin, span.end - part.span.begin)
            x, weight = part.x[places], None if part.weight is None else part.weight[places]
            if not again or self._cache.holds(index, span):
                return Part(span, x, weight)
            # Copy, because a view would keep everything that was read in memory.
            taken = Part(span, readonly(x.copy()), None if weight is None else weight.copy())
            self._cache.put(index, taken)
        else:
            taken = self._picked(index, span, part, again)
        report.copied += taken.nbytes
        return taken

    def _picked(self, index: int, span: Span, part: Part, again: bool) -> Part:
        """Return the rows that a share of a chunk's permutation selects."""
        order, settled, known = self._order(index, span)
        positions = _ascending(order[span.begin : span.end], span.of)
        places = positions if part.rows is None else np.searchsorted(part.rows, positions)
        weight = None if part.weight is None else part.weight[places]
        if isinstance(part.x, SparseBlock):
            x = part.x[places]
        else:
            # `take` is several times faster than x[places] (measured).
            x = readonly(part.x.take(places, axis=0))
        taken = Part(span, x, weight, readonly(positions))
        # Do not cache parts of a cached share, or alternating shares (which do not begin at 0).
        kept = again and part.rows is None and span.begin == 0
        cached = kept and self._cache.put(index, taken)
        if not cached and not known:
            self._keep_order(index, span, order, settled)
        return taken

    def _keep_order(self, index: int, span: Span, order: NDArray[np.int32], settled: int) -> None:
        kept = {"rows": order, "settled": np.array([settled])}
        self._store.put(_name(span), 0, index, 0, kept)

    def locate(self, index: int, part: Part, rows: RowSlice) -> NDArray[np.int64]:
        """Return the positions of another share's rows among the rows that a pass has read."""
        span = self.span(index, rows)
        if span.order is None:
            first = 0 if index == JOINED else part.span.begin
            return np.arange(span.begin - first, span.end - first)
        if index == JOINED:
            return self._places(span, again=False)
        asked = Span(0, part.span.end, span.of, span.order)
        order, settled, known = self._order(index, asked)
        if not known:
            self._keep_order(index, asked, order, settled)
        own = _ascending(order[span.begin : span.end], span.of)
        return own if part.rows is None else np.searchsorted(part.rows, own)

    def _places(self, span: Span, again: bool) -> NDArray[np.int64]:
        """Return the ascending global indices of the rows in a share of every chunk."""
        assert span.order is not None
        name = f"places {span.order.seed} {span.order.stream} {span.begin} {span.end} {span.of}"
        known = self._kept(name, JOINED) if again else None
        if known is not None:
            return readonly(known["rows"])
        table = self._rows.chunk_table
        together = self._whole_order(span)
        if together is None:
            found = [
                start + self._share(index, span.begin * n // span.of, span.end * n // span.of, span)
                for index, (start, n) in enumerate(
                    zip(table[:-1].tolist(), self._sizes, strict=True)
                )
            ]
            places = np.concatenate(found)
        else:
            share = share_of_chunks(together, table, span.begin, span.end, span.of)
            places = _ascending(share, len(together))
        if again:
            self._store.put(name, 0, JOINED, 0, {"rows": places})
        return readonly(places)

    def _share(self, index: int, begin: int, end: int, of: Span) -> NDArray[np.int64]:
        """Return the ascending positions, within a chunk, of the rows in a share."""
        n = self._sizes[index]
        if self._rows.shuffled or end - begin == n:
            return np.arange(begin, end)
        own = Span(begin, end, n, of.order)
        order, settled, is_kept = self._order(index, own)
        if not is_kept:
            self._keep_order(index, own, order, settled)
        return _ascending(order[begin:end], n)

    def _whole_order(self, span: Span) -> NDArray[Any] | None:
        """Return the global indices of all rows, in the seeded order of each chunk.

        For many chunks and many shares, this is faster than selecting each share of each chunk
        separately. Positions far beyond the share are not drawn.
        """
        rng = span.order
        assert rng is not None
        name = f"whole order {rng.seed} {rng.stream}"
        known = self._kept(name, JOINED)
        if known is not None and int(known["settled"][0]) >= span.end:
            return known["rows"]
        if name in self._declined:
            return None
        table = self._rows.chunk_table
        out = np.arange(table[-1], dtype=np.int32 if table[-1] < 2**31 else np.int64)
        ahead = min(span.of, max(SETTLED_AHEAD * span.end, SETTLED_AT_ONCE * self._rows.n_chunks))
        for index, n in enumerate([] if self._rows.shuffled else self._sizes):
            order, _, _ = self._order(index, Span(0, n * ahead // span.of, n, rng), ahead=1)
            out[table[index] : table[index + 1]] = table[index] + order
        self._store.put(name, 0, JOINED, 0, {"rows": out, "settled": np.array([ahead])})
        if self._store.get(name, JOINED, 0) is None:
            self._declined.add(name)
        return out

    def _kept(self, name: str, index: int) -> Arrays | None:
        """Return the stored arrays of a permutation, or None; register the name at first use."""
        with self._lock:
            if name not in self._permutations:
                self._permutations.add(name)
                self._store.begin(name, 0, 0)
        return self._store.get(name, index, 0)

    def _order(
        self, index: int, span: Span, ahead: int = SETTLED_AHEAD
    ) -> tuple[NDArray[np.int32], int, bool]:
        """Return a chunk's permutation, the number of drawn positions, and True if it was stored.

        Only ``ahead`` times the needed number of positions are drawn (settled), so that the cost of
        a small batch is proportional to its number of rows.
        """
        assert span.order is not None
        known = self._kept(_name(span), index)
        if known is None:
            order, settled = np.arange(span.of, dtype=np.int32), 0
        else:
            order, settled = known["rows"], int(known["settled"][0])
            if settled >= span.end:
                return order, settled, True
            order = order.copy()
        # Draw ahead: a generator costs as much as thousands of draws, and batch sizes double.
        n_settled = min(span.of, max(ahead * span.end, SETTLED_AT_ONCE))
        uniforms = span.order.generator(0, "rows", index).random(n_settled)
        shuffle_places(order, uniforms[settled:], settled)
        return order, n_settled, False

    def _recalled(self, index: int, span: Span) -> Block:
        """Return a block from the cache, or read the block if the cache has dropped it."""
        if index == JOINED:
            return Block(index, span, self._joined, cached=True)
        part = self._cache.get(index, span)
        return self._read(index, span) if part is None else Block(index, span, part, cached=True)

    def _read(self, index: int, span: Span) -> Block:
        try:
            part, n_bytes = self._load(index, span)
        except Exception as error:
            return Block(index, span, error=error)
        return Block(index, span, part, bytes_read=n_bytes)

    def _load(self, index: int, span: Span) -> tuple[Part, int]:
        """Return rows that include the rows of ``span``, and the number of bytes read."""
        if self._in_memory and span.of:
            everything = Span(0, span.of, span.of)
            return Part(everything, self._rows.read(index), self._rows.read_weight(index)), 0
        if span.begin == span.end:
            return Part(span, self._no_rows(), rows=np.empty(0, np.int64)), 0
        if span.order is not None or span.whole:
            begin, end = 0, span.of
        else:
            begin, end = self._rows.stretch(index, span.begin, span.end)
        kept = self._grown(index, begin, span)
        if kept is not None:
            begin = kept.span.end
        whole = end - begin == span.of
        x = self._rows.read(index) if whole else self._rows.read_part(index, begin, end)
        part = Part(Span(begin, end, span.of), x, self._rows.read_weight(index, begin, end))
        n_bytes = x.nbytes
        if kept is not None:
            part = _joined(kept, part)
        self._cache.put(index, part)
        return part, n_bytes

    def _grown(self, index: int, begin: int, span: Span) -> Part | None:
        """Return a cached share if only the rows after it are missing and can be read alone."""
        kept = self._cache.share(index)
        if kept is None or kept.span.order is not None:
            return None
        edge = kept.span.end
        if not kept.span.begin <= begin <= edge:
            return None
        alone = edge < span.end and self._rows.stretch(index, edge, span.end)[0] == edge
        return kept if alone else None

    def _no_rows(self) -> Table:
        d, dtype = self._rows.n_features, self._rows.dtype
        if not self._rows.is_sparse:
            return readonly(np.empty((0, d), dtype))
        indices, indptr = np.empty(0, np.int32), np.zeros(1, np.int64)
        return SparseBlock(np.empty(0, dtype), indices, indptr, d)


def _ascending(positions: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Sort distinct numbers below ``n``: few numbers by comparison, many numbers by marking."""
    if len(positions) * SORTED_SHARE < n:
        return np.sort(positions).astype(np.int64)
    marked = np.zeros(n, np.bool_)
    marked[positions] = True
    return np.flatnonzero(marked)


def _name(span: Span) -> str:
    """Return the name under which a permutation is kept."""
    assert span.order is not None
    return f"permutation {span.order.seed} {span.order.stream}"


def _joined(kept: Part, more: Part) -> Part:
    """Return the rows of two consecutive parts in one array.

    The first call allocates an array for the whole chunk, so that each row is copied only once.
    """
    weight, room = None, kept.room
    if kept.weight is not None and more.weight is not None:
        weight = np.concatenate([kept.weight, more.weight])
    span = Span(kept.span.begin, more.span.end, more.span.of)
    if isinstance(kept.x, SparseBlock) or isinstance(more.x, SparseBlock):
        return Part(span, stack_rows([kept.x, more.x]), weight)
    n, end = len(kept.x), span.end - span.begin
    if room is None:
        room = empty_rows(span.of - span.begin, kept.x.shape[1], kept.x.dtype)
        room[:n] = kept.x
    # Arrays of kept rows end before position n, so they do not change.
    room[n:end] = more.x
    return Part(span, readonly(room[:end]), weight, room=room)
