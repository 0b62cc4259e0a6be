"""Draw rows exactly by mass: by weight, or half of them by weight times squared distance.

All rows form a line on which each row is a segment as long as its mass, and a draw is a position on
this line. Masses are integers, rounded separately for each row. Sums are therefore exact, the line
does not depend on chunks, and every process finds the same row at a position.

With a centre, there are two lines, by weight and by weight times squared distance. Half of the
draws are on each line, and the probability of a row is the mean of its shares of both.
Probabilities are computed from the integers, so estimates divided by them are unbiased in spite of
rounding.

The sum of squares, which determines the scale of the integers, is unknown before the rows are read.
One pass therefore adds up masses at several scales, and the finest scale that fits is used. A
second pass finds the rows and reads only chunks with drawn rows. At most one chunk and the drawn
rows are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes
from largek_dask.algorithms.parts.chunk_results import ChunkResults
from largek_dask.errors import DataError
from largek_dask.kernels.distances import PackedCenters, pack_centers, squared_distances

COARSEST = 45
"""Number of bits of the bound of the total mass at the coarsest scale."""
SCALE_BITS = 16
N_SCALES = 9
"""Number of scales. At the finest scale, a total mass 2^128 times below its bound still has 45
bits. The bound may be too high by the number of rows and by the squared ratio of extent to
spread."""
FULL = 1 << 62
POSITION_BITS = 62

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DrawnRows:
    rows: Integers
    """(n,) global indices, in the order of the draws."""
    probabilities: Floats
    """(n,) probability that a single draw selects this row."""


def draw_by_mass(
    passes: Passes,
    generator: np.random.Generator,
    n: int,
    center: NDArray[Any] | None = None,
    *,
    spaced: bool = False,
) -> DrawnRows:
    """Draw ``n`` rows with replacement, in two passes.

    The result depends on the generator, not on chunks, threads or workers. With a ``center`` (d,)
    within the extent of the rows, the probability of a row is ``w / 2W + w d2 / 2 sum(w d2)``,
    where ``d2`` is its squared distance to the centre. Without a centre, or if all rows coincide
    with it, the probability is ``w / W``.

    If ``spaced``, draw ``i`` is in the ``i``-th of n equal parts of the line (or of both lines
    joined); otherwise all draws are independent. Raises ``DataError`` if no row has positive
    weight.
    """
    statistics = passes.statistics
    packed = None
    if center is not None:
        packed = pack_centers(center.astype(statistics.dtype)[None], statistics.shift)
    # Division by these bounds, powers of two, is exact, and nothing overflows afterwards.
    bounds = (
        frexp(statistics.total_weight)[1],
        2 * frexp(2 * statistics.max_abs)[1] + passes.n_features.bit_length(),
    )
    sums: ChunkResults = passes.reduce(
        mass_chunk, packed, bounds, start=ChunkResults, combine=ChunkResults.combine
    )
    lines = [_line(sums, passes.chunk_table, which) for which in range(1 if packed is None else 2)]
    if not lines[0].mass:
        raise DataError("all rows have weight 0; at least one row must have a positive weight.")
    lines = [line for line in lines if line.mass]
    positions = _positions(generator, n, [line.mass for line in lines], spaced=spaced)
    return _look_up(passes, packed, bounds, lines, positions)


def _shares(
    chunk: Chunk, packed: PackedCenters | None, bounds: tuple[int, int]
) -> list[tuple[Floats, NDArray[np.bool_] | None]]:
    """Return, for each line, masses divided by the bound, and a mask of rows with positive mass."""
    scales = [ldexp(1.0, max(-1074, min(-bound, 1023))) for bound in bounds]
    weight = np.ones(len(chunk.x)) if chunk.weight is None else chunk.weight
    by_weight = weight * scales[0]
    # Every row of positive weight needs a positive mass; otherwise estimates are biased.
    out: list[tuple[Floats, NDArray[np.bool_] | None]] = [(by_weight, weight > 0)]
    if packed is not None:
        squares = squared_distances(chunk.x, packed, np.zeros(len(chunk.x), np.int32))
        out.append((squares * scales[1] * by_weight, None))
    return out


def _masses(share: Floats, present: NDArray[np.bool_] | None, scale: int) -> Floats:
    """Return masses as integers, at least 1 for the rows in ``present``."""
    masses = np.rint(share * 2.0 ** (COARSEST + SCALE_BITS * scale))
    return masses if present is None else np.maximum(masses, present)


def mass_chunk(
    chunk: Chunk, total: ChunkResults, packed: PackedCenters | None, bounds: tuple[int, int]
) -> None:
    """Add up the masses of a chunk on each line, at every scale at which they may fit."""
    by_line = []
    for share, present in _shares(chunk, packed, bounds):
        sums: list[int] = []
        for scale in range(N_SCALES):
            masses = _masses(share, present, scale)
            # Float sums are rounded, but a sum this far above the limit cannot fit.
            if not masses.sum() < 1.5 * FULL:
                break
            sums.append(int(masses.astype(np.int64).sum()))
        by_line.append(tuple(sums))
    total.chunks[chunk.index] = tuple(by_line)


@dataclass(frozen=True, slots=True, eq=False)
class MassLine:
    """Line on which each row is a segment as long as its mass at one scale."""

    which: int
    """Kind of mass: 0 for weight, 1 for weight times squared distance."""
    scale: int
    edges: Integers
    """(n_chunks + 1,) positions of the chunk boundaries."""

    @property
    def mass(self) -> int:
        return int(self.edges[-1])


def _line(sums: ChunkResults, chunk_table: Integers, which: int) -> MassLine:
    chunks = {index: lines[which] for index, lines in sums.chunks.items()}
    scales = range(min(map(len, chunks.values()), default=0))
    fitting = [scale for scale in scales if sum(own[scale] for own in chunks.values()) < FULL]
    if chunks and not fitting:
        raise ValueError("the rows weigh more than the statistics of their table allow")
    edges = np.zeros(len(chunk_table), np.int64)
    for index, own in chunks.items():
        edges[index + 1] = own[fitting[-1]]
    return MassLine(which, fitting[-1] if fitting else 0, np.cumsum(edges))


def _positions(
    generator: np.random.Generator, n: int, masses: Sequence[int], *, spaced: bool
) -> list[tuple[Integers, Integers]]:
    """Return, for each line, the (m,) indices of draws and their (m,) positions, ascending.

    The lines are scaled to equal lengths, joined, and cut into equal parts. The random bits of a
    draw give its position within its part.
    """
    bits = generator.integers(1 << POSITION_BITS, size=n) * len(masses)
    parts = n if spaced else 1
    part = np.arange(n) * len(masses) * spaced + (bits >> POSITION_BITS)
    bits &= (1 << POSITION_BITS) - 1
    out = []
    for which, mass in enumerate(masses):
        draws = np.flatnonzero(part // parts == which)
        # Compute floor((part + bits / 2^62) mass / parts) without exceeding 64 bits.
        own, rest = part[draws] - which * parts, _high_bits(bits[draws], mass)
        at = own * (mass // parts) + (own * (mass % parts) + rest) // parts
        order = np.argsort(at, kind="stable")
        out.append((draws[order], at[order]))
    return out


def _high_bits(bits: Integers, mass: int) -> Integers:
    """Return ``bits * mass >> POSITION_BITS``, where both factors have at most 62 bits."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    numbers = bits.astype(np.uint64)
    upper, lower = numbers >> half, numbers & low
    mass_upper, mass_lower = np.uint64(mass >> 32), np.uint64(mass & 0xFFFFFFFF)
    middle = upper * mass_lower + lower * mass_upper + (lower * mass_lower >> half)
    highest = upper * mass_upper + (middle >> half)
    up = np.uint64(64 - POSITION_BITS)
    out: NDArray[np.uint64] = (highest << up) | ((middle & low) >> (half - up))
    return out.astype(np.int64)


def look_up_chunk(
    chunk: Chunk,
    total: ChunkResults,
    packed: PackedCenters | None,
    bounds: tuple[int, int],
    lines: Sequence[MassLine],
    positions: Sequence[Integers],
) -> None:
    """Find the rows at the positions in this chunk, and their probabilities."""
    shares = _shares(chunk, packed, bounds)
    masses = [_masses(*shares[line.which], line.scale).astype(np.int64) for line in lines]
    found = []
    for line, mass, at in zip(lines, masses, positions, strict=True):
        begin, end = line.edges[chunk.index : chunk.index + 2]
        own = at[slice(*np.searchsorted(at, [begin, end]))]
        rows = np.searchsorted(np.cumsum(mass), own - begin, side="right")
        parts = (
            other[rows] / float(len(lines) * of.mass)
            for of, other in zip(lines, masses, strict=True)
        )
        found.append((chunk.start + rows, sum(parts)))
    total.chunks[chunk.index] = tuple(found)


def _look_up(
    passes: Passes,
    packed: PackedCenters | None,
    bounds: tuple[int, int],
    lines: Sequence[MassLine],
    positions: Sequence[tuple[Integers, Integers]],
) -> DrawnRows:
    touched = {
        int(chunk)
        for line, (_, at) in zip(lines, positions, strict=True)
        for chunk in np.unique(np.searchsorted(line.edges, at, side="right") - 1)
    }
    found: ChunkResults = passes.reduce(
        look_up_chunk,
        packed,
        bounds,
        lines,
        [at for _, at in positions],
        start=ChunkResults,
        combine=ChunkResults.combine,
        chunks=sorted(touched),
    )
    n = sum(len(draws) for draws, _ in positions)
    rows, probabilities = np.empty(n, np.int64), np.empty(n)
    for which, (draws, _) in enumerate(positions):
        # Chunks and positions are both in ascending order along the line.
        parts = [own[which] for own in found.in_order()]
        rows[draws] = np.concatenate([part[0] for part in parts])
        probabilities[draws] = np.concatenate([part[1] for part in parts])
    return DrawnRows(rows, probabilities)
