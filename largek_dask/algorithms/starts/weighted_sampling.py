"""Rows drawn by their exact mass: by weight, or half of them by weight times squared distance.

A draw is a place on a line along which the rows lie one after the other, each as long as its mass.
Masses are integers, and each row's is rounded by itself: so their sums are exact, the line is the
same however the rows are cut into chunks, and every process finds the same row at a place.
With a centre there are two such lines of equal length, one by weight and one by weight times
squared distance; a row's probability is its share of both. It is computed from the integers
themselves: so estimates divided by it are unbiased in spite of the rounding.

The sum of squares, and with it the scale of the integers, is unknown before the rows are read; so
one pass adds masses up at a few scales, of which the finest that fits is then taken. A second pass
looks up places, only in the chunks that hold any. At most a chunk and the drawn rows are in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import frexp, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.errors import DataError
from largek_dask.kernels.distances import PackedCenters, pack_centers, squared_distances

__all__ = ["DrawnRows", "draw_by_mass", "draws_by_mass"]

COARSEST = 45
"""Bits of the bound of all masses together at the coarsest scale."""
RUNG = 16
"""Bits from one scale to the next."""
N_RUNGS = 9
"""Scales: the sum may lie 2^128 below its bound until less than 2^45 is left of it. Between them
are the number of rows, and the squares of their extent relative to their spread."""
FULL = 1 << 62
"""Upper limit of the sum of all masses."""
PLACE_BITS = 62
"""Random bits of a place."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRows:
    """Rows drawn with replacement."""

    rows: NDArray[np.int64]
    """(n,) global indices, in the order of the draws."""
    probabilities: NDArray[np.float64]
    """(n,) probability that one draw hits this row."""
    by_line: NDArray[np.float64]
    """(lines, n) contribution of each line to them."""


def draw_by_mass(
    passes: Passes,
    generator: np.random.Generator,
    n: int,
    center: NDArray[Any] | None = None,
    *,
    spaced: bool = False,
) -> DrawnRows:
    """Draw ``n`` rows with replacement; rows of weight 0 are never drawn.

    Parameters and errors are those of :func:`draws_by_mass`.
    """
    [drawn] = draws_by_mass(passes, [generator], n, center, spaced=spaced)
    return drawn


def draws_by_mass(
    passes: Passes,
    generators: Sequence[np.random.Generator],
    n: int,
    center: NDArray[Any] | None = None,
    *,
    spaced: bool = False,
) -> list[DrawnRows]:
    """Draw ``n`` rows once per generator, in the passes that one draw takes.

    Parameters
    ----------
    passes : Passes
        Takes two passes.
    generators : sequence of numpy Generator
        Rows depend on these alone, not on chunks, threads or workers.
    n : int
    center : (d,), optional
        A point among the rows. A row's probability is then ``w / 2W + w d2 / 2 sum(w d2)`` with
        its squared distance to it; ``w / W`` without one, or if all rows lie on it.
    spaced : bool
        Draw ``i`` is in the ``i``-th of n equal parts of the line (of two lines one behind the
        other); else all draws are independent.

    Raises
    ------
    DataError
        No row has positive weight.
    """
    statistics = passes.statistics
    packed = None
    if center is not None:
        packed = pack_centers(center.astype(statistics.dtype)[None], statistics.shift)
    # Bounds, as powers of two, of the weight of all rows and of the squared distance of any of them
    # to a point among them: nothing overflows, and to multiply by them is exact.
    bounds = (
        frexp(statistics.total_weight)[1],
        2 * frexp(2 * statistics.max_abs)[1] + passes.n_features.bit_length(),
    )
    sums: MassSums = passes.reduce(
        mass_chunk, packed, bounds, start=MassSums, combine=MassSums.combine
    )
    lines = [_line(sums, passes.chunk_table, which) for which in range(1 if packed is None else 2)]
    if not lines[0].mass:
        raise DataError("no row can be drawn: at least one weight of the rows must be above 0.")
    lines = [line for line in lines if line.mass]
    masses = [line.mass for line in lines]
    places = [_places(generator, n, masses, spaced) for generator in generators]
    found = _look_up(passes, packed, bounds, lines, _together(places, n))
    return [
        DrawnRows(found.rows[own], found.probabilities[own], found.by_line[:, own])
        for own in (slice(begin, begin + n) for begin in range(0, n * len(places), n))
    ]


# --- masses -----------------------------------------------------------------------------------


def _shares(
    chunk: Chunk, packed: PackedCenters | None, bounds: tuple[int, int]
) -> list[tuple[NDArray[np.float64], NDArray[np.bool_] | None]]:
    """Return each row's share of the bound of each line, and the rows that must have a mass."""
    weight = np.ones(len(chunk.x)) if chunk.weight is None else chunk.weight
    by_weight = weight * _power(-bounds[0])
    # A row of any positive weight must be drawable, otherwise estimates would be biased.
    out: list[tuple[NDArray[np.float64], NDArray[np.bool_] | None]] = [(by_weight, weight > 0)]
    if packed is not None:
        squares = squared_distances(chunk.x, packed, np.zeros(len(chunk.x), np.int32))
        out.append((squares * _power(-bounds[1]) * by_weight, None))
    return out


def _power(exponent: int) -> float:
    return ldexp(1.0, max(-1074, min(exponent, 1023)))


def _masses(
    share: NDArray[np.float64], present: NDArray[np.bool_] | None, rung: int
) -> NDArray[np.float64]:
    """Return masses as whole numbers."""
    masses = np.rint(share * 2.0 ** (COARSEST + RUNG * rung))
    return masses if present is None else np.maximum(masses, present)


@dataclass
class MassSums(Additive):
    """Sums of the rows' masses per chunk and line, from the coarsest scale on."""

    chunks: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


def mass_chunk(
    chunk: Chunk, total: MassSums, packed: PackedCenters | None, bounds: tuple[int, int]
) -> None:
    """Add up the masses of a chunk's rows at every scale at which they may fit."""
    total.chunks[chunk.index] = tuple(
        _sums_of_masses(share, present) for share, present in _shares(chunk, packed, bounds)
    )


def _sums_of_masses(
    share: NDArray[np.float64], present: NDArray[np.bool_] | None
) -> tuple[int, ...]:
    sums: list[int] = []
    for rung in range(N_RUNGS):
        masses = _masses(share, present, rung)
        # Rounded, but a sum this far above the limit does not fit with any rounding.
        if not masses.sum() < 1.5 * FULL:
            break
        sums.append(int(masses.astype(np.int64).sum()))
    return tuple(sums)


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """All rows one after the other, each as long as its mass at one scale."""

    which: int
    """0: by weight, 1: by squared distance."""
    rung: int
    edges: NDArray[np.int64]
    """(n_chunks + 1,) borders of chunks."""

    @property
    def mass(self) -> int:
        """Mass of all rows."""
        return int(self.edges[-1])


def _line(sums: MassSums, chunk_table: NDArray[np.int64], which: int) -> Line:
    """Return the line at the finest scale that fits."""
    chunks = {index: lines[which] for index, lines in sums.chunks.items()}
    rungs = range(min(map(len, chunks.values()), default=0))
    fitting = [rung for rung in rungs if sum(chunk[rung] for chunk in chunks.values()) < FULL]
    if chunks and not fitting:
        raise ValueError("these rows weigh more than the statistics of their table say")
    edges = np.zeros(len(chunk_table), np.int64)
    rung = fitting[-1] if fitting else 0
    for index, chunk in chunks.items():
        edges[index + 1] = chunk[rung]
    return Line(which, rung, np.cumsum(edges))


# --- places -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Places on a line, ascending."""

    draws: NDArray[np.int64]
    """(m,) indices of their draws."""
    at: NDArray[np.int64]
    """(m,) from 0 to the line's mass."""


def _places(
    generator: np.random.Generator, n: int, masses: Sequence[int], spaced: bool
) -> list[Places]:
    """Return the places of the draws on each line.

    All lines together, each as long as the others, are cut into parts; a draw lies in one of them,
    at the position given by its random bits.
    """
    parts = n if spaced else 1
    bits = generator.integers(1 << PLACE_BITS, size=n) * len(masses)
    part = np.arange(n) * len(masses) if spaced else np.zeros(n, np.int64)
    part += bits >> PLACE_BITS
    bits &= (1 << PLACE_BITS) - 1
    lines = part // parts
    out = []
    for which, mass in enumerate(masses):
        draws = np.flatnonzero(lines == which)
        # floor((part + bits / 2^62) mass / parts), whose products are longer than 64 bits
        own, rest = part[draws] - which * parts, _high_bits(bits[draws], mass)
        at = own * (mass // parts) + (own * (mass % parts) + rest) // parts
        order = np.argsort(at, kind="stable")
        out.append(Places(draws[order], at[order]))
    return out


def _high_bits(bits: NDArray[np.int64], mass: int) -> NDArray[np.int64]:
    """Return ``bits * mass >> PLACE_BITS`` of numbers of at most that many bits each."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    numbers = bits.astype(np.uint64)
    upper, lower = numbers >> half, numbers & low
    mass_upper, mass_lower = np.uint64(mass >> 32), np.uint64(mass & 0xFFFFFFFF)
    middle = upper * mass_lower + lower * mass_upper + (lower * mass_lower >> half)
    highest = upper * mass_upper + (middle >> half)
    up = np.uint64(64 - PLACE_BITS)
    out: NDArray[np.uint64] = (highest << up) | ((middle & low) >> (half - up))
    return out.astype(np.int64)


def _together(several: Sequence[list[Places]], n: int) -> list[Places]:
    """Merge the places of all draws per line, numbering one generator's after another's."""
    out = []
    for of_line in zip(*several, strict=True):
        draws = np.concatenate([places.draws + i * n for i, places in enumerate(of_line)])
        at = np.concatenate([places.at for places in of_line])
        order = np.argsort(at, kind="stable")
        out.append(Places(draws[order], at[order]))
    return out


@dataclass
class FoundRows(Additive):
    """The rows at the places in each chunk, line after line, and their probabilities by line."""

    chunks: dict[int, tuple[tuple[NDArray[np.int64], NDArray[np.float64]], ...]] = field(
        default_factory=dict
    )


def look_up_chunk(
    chunk: Chunk,
    total: FoundRows,
    packed: PackedCenters | None,
    bounds: tuple[int, int],
    lines: Sequence[Line],
    places: Sequence[NDArray[np.int64]],
) -> None:
    """Find the rows at the places that lie in this chunk."""
    shares = _shares(chunk, packed, bounds)
    masses = [_masses(*shares[line.which], line.rung).astype(np.int64) for line in lines]
    found = []
    for line, mass, at in zip(lines, masses, places, strict=True):
        begin, end = line.edges[chunk.index : chunk.index + 2]
        own = at[slice(*np.searchsorted(at, [begin, end]))]
        rows = np.searchsorted(np.cumsum(mass), own - begin, side="right")
        by_line = [
            mass_of[rows] / float(len(lines) * of.mass)
            for of, mass_of in zip(lines, masses, strict=True)
        ]
        found.append((chunk.start + rows, np.stack(by_line)))
    total.chunks[chunk.index] = tuple(found)


def _look_up(
    passes: Passes,
    packed: PackedCenters | None,
    bounds: tuple[int, int],
    lines: Sequence[Line],
    places: Sequence[Places],
) -> DrawnRows:
    touched = {
        int(chunk)
        for line, own in zip(lines, places, strict=True)
        for chunk in np.unique(np.searchsorted(line.edges, own.at, side="right") - 1)
    }
    found: FoundRows = passes.reduce(
        look_up_chunk,
        packed,
        bounds,
        lines,
        [own.at for own in places],
        start=FoundRows,
        combine=FoundRows.combine,
        chunks=sorted(touched),
    )
    n = sum(len(own.at) for own in places)
    rows, by_line = np.empty(n, np.int64), np.empty((len(lines), n))
    for which, own in enumerate(places):
        # Chunks lie on a line in their order.
        parts = [found.chunks[index][which] for index in sorted(touched)]
        rows[own.draws] = np.concatenate([part[0] for part in parts])
        by_line[:, own.draws] = np.concatenate([part[1] for part in parts], axis=1)
    # One after the other: there are two.
    return DrawnRows(rows, np.add.accumulate(by_line)[-1], by_line)
