"""Seeded samples of the rows, in the driver's process.

Which rows are drawn depends on the seed and the number of rows alone, not on chunks. Rows of a
smaller sample are the first ones of a larger one: where they have to be read, that is done once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, Rng
from largek_dask.algorithms.truncated_engines import Held
from largek_dask.kernels.blocks import Table, stack_rows

__all__ = ["SAMPLE", "Sample", "drop_sample", "picked", "take_sample"]

SAMPLE = "truncated sample"
"""Where samples lie among what passes keep."""

Array = NDArray[Any]
Places = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(slots=True)
class Sample:
    """Rows of a seeded sample, in its own order."""

    rows: Places
    """(m,) global indices; all of positive weight."""
    held: Held
    key: tuple[Any, ...] = ()
    places: NDArray[np.int32] | None = None
    """(m,) where the rows are in ``held.x``, if that is the whole table; None: they are all of it.
    """
    far: bool = False
    """It holds the rows that are far from all centres too, and rows stand for different numbers."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Rows that samples are the first ones of."""

    key: tuple[Any, ...]
    rows: Places
    """(m,) global indices; all of positive weight."""
    x: Table | None
    """(m, d); None: they lie in this process anyway, and are taken from there."""
    weight: Weights | None
    """(m,)"""


class PickedRows:
    """Rows picked out of chunks, with their weights."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: dict[int, tuple[Any, Weights]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return sum(x.nbytes + weight.nbytes for x, weight in self.parts.values())

    @staticmethod
    def combine(a: PickedRows, b: PickedRows) -> PickedRows:
        """Add ``b`` into ``a``."""
        a.parts.update(b.parts)
        return a


def pick_chunk(chunk: Chunk, total: PickedRows, wanted: Places, dtype: np.dtype[Any]) -> None:
    """Pick this chunk's rows out of the ascending global indices ``wanted``."""
    begin, end = np.searchsorted(wanted, [chunk.start, chunk.start + len(chunk.x)])
    rows = wanted[begin:end] - chunk.start
    weight = np.ones(len(rows)) if chunk.weight is None else chunk.weight[rows]
    total.parts[chunk.index] = chunk.x[rows].astype(dtype), weight


def take_sample(
    passes: Passes,
    rng: Rng,
    n: int,
    purpose: str,
    *,
    ascending: bool,
    largest: int | None = None,
    in_place: bool = False,
) -> Sample:
    """About ``n`` rows drawn without replacement, those that weigh nothing left out.

    Once drawn, the sample stays among what the passes keep.

    Parameters
    ----------
    passes : Passes
    rng : Rng
    n : int
    purpose : str
        Names the draw, and where the sample is kept.
    ascending : bool
        By index, not in random order.
    largest : int, optional
        Rows of the largest sample of this purpose, which smaller ones are the first rows of.
    in_place : bool
        Rows that lie in this process as they are wanted are not copied (fresh memory is dear), and
        ``places`` of the sample says where they are.
    """
    name = f"{SAMPLE}: {purpose}"
    largest = n if largest is None else max(n, largest)
    key = (rng, n, largest, ascending)
    known: Sample | None = passes.scratch.get(name)
    if known is not None and known.key == key:
        return known
    draw: Draw | None = passes.scratch.get(f"{name}, drawn")
    if draw is None or draw.key != (rng, largest, ascending):
        draw = _draw(passes, rng, largest, purpose, ascending)
        passes.scratch[f"{name}, drawn"] = draw
    rows, weight = draw.rows[:n], None if draw.weight is None else draw.weight[:n]
    places: NDArray[np.int32] | None = None
    if draw.x is not None:
        x = draw.x[:n]
    elif in_place and weight is None and _as_wanted(passes):
        x, places = passes.whole()[0], rows.astype(np.int32)  # type: ignore[index]
    else:
        x = _taken(passes, rows)
    held = Held(x, weight, passes.driver_threads, passes.raise_if_stopped)
    sample = Sample(rows, held, key, places)
    passes.scratch[name] = sample
    return sample


def drop_sample(passes: Passes, purpose: str) -> None:
    """Let a sample go that is not needed any more."""
    passes.scratch.pop(f"{SAMPLE}: {purpose}", None)
    passes.scratch.pop(f"{SAMPLE}: {purpose}, drawn", None)


def _draw(passes: Passes, rng: Rng, n: int, purpose: str, ascending: bool) -> Draw:
    key = (rng, n, ascending)
    everything, count = passes.n_rows, passes.statistics.n_rows
    enough = min(n, count) // 2
    # As many more as there are rows that do not count.
    n = min(everything, -(-n * everything // max(1, count)))
    while True:
        if n == everything and ascending:
            rows = np.arange(everything)
        else:
            rows = rng.generator(0, purpose).choice(everything, n, replace=False)
            if ascending:
                rows.sort()
        x, weight = _pick(passes, rows)
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
    return Draw(key, rows, x, weight)


def picked(passes: Passes, rows: Places) -> tuple[Any, Weights | None]:
    """Rows by global index, each once, of the compute dtype; and their weights."""
    x, weight = _pick(passes, rows)
    return (_taken(passes, rows) if x is None else x), weight


def _pick(passes: Passes, rows: Places) -> tuple[Any, Weights | None]:
    """Rows by global index, each once, if they are not in this process; and weights."""
    whole = passes.whole()
    if whole is not None:
        return None, None if whole[1] is None else whole[1][rows]
    wanted = np.sort(rows)
    touched = np.unique(np.searchsorted(passes.chunk_table, wanted, side="right") - 1)
    picked: PickedRows = passes.reduce(
        pick_chunk,
        wanted,
        passes.statistics.dtype,
        start=PickedRows,
        combine=PickedRows.combine,
        chunks=touched.tolist(),
    )
    # Where the rows of each chunk, one chunk after the other, belong.
    order, begin = np.argsort(rows), 0
    weight = np.empty(len(rows))
    if passes.is_sparse:
        parts, weights = zip(*(picked.parts[index] for index in sorted(picked.parts)), strict=True)
        weight[order] = np.concatenate(weights)
        return stack_rows(parts)[np.argsort(order)], weight
    x = np.empty((len(rows), passes.n_features), passes.statistics.dtype)
    for index in sorted(picked.parts):
        own, of = picked.parts.pop(index)
        places = order[begin : begin + len(own)]
        x[places], weight[places] = own, of
        begin += len(own)
    return x, weight


def _as_wanted(passes: Passes) -> bool:
    """The whole table lies in this process, of the type to compute with."""
    whole = passes.whole()
    return whole is not None and whole[0].dtype == passes.statistics.dtype


def _taken(passes: Passes, rows: Places) -> Array:
    """Rows of the table that lies in this process."""
    whole = passes.whole()
    assert whole is not None
    x = whole[0]
    if len(rows) == len(x) and rows[0] == 0 and (np.diff(rows) == 1).all():
        return x
    return x.take(rows, axis=0).astype(passes.statistics.dtype, copy=False)
