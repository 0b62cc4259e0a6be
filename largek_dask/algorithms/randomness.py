"""Selections of rows (shares, samples, projections), and randomness independent of order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.projection import Directions


@dataclass(frozen=True, slots=True)
class Rng:
    """Randomness derived by counter, so that it depends on no order of execution.

    The same ``(seed, stream, step, purpose, chunk)`` gives the same numbers on any worker, in
    any process, before and after a resume.
    """

    seed: int
    stream: int = 0
    """Number of the start (``n_init``) that draws."""

    def generator(self, step: int, purpose: str, chunk: int = 0) -> np.random.Generator:
        """Return a generator of its own for this step, purpose and chunk."""
        key = (self.stream, step, chunk, *purpose.encode())
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True, slots=True)
class RowSlice:
    """A share of every chunk's rows, in the order of that chunk's one seeded permutation.

    Chunk ``c`` with ``n_c`` rows contributes the rows ``permutation_c[a:b]`` with
    ``a = begin * n_c // of`` and ``b = end * n_c // of``. A nested batch is ``begin=0``. Rows that
    a store holds in random order are taken as they lie (``Rows.shuffled``).
    """

    rng: Rng
    begin: int
    end: int
    of: int


@dataclass(frozen=True, slots=True)
class RowSample:
    """About ``n`` rows drawn without replacement, independent of chunks.

    Rows of weight 0 are left out. Samples that differ in ``n`` alone are prefixes of one another,
    so that rows have to be read only once.
    """

    rng: Rng
    purpose: str
    """Samples of different purposes are drawn independently."""
    n: int
    largest: int = 0
    """Rows of the largest sample that will be requested, if more than ``n``."""
    ascending: bool = False
    """By index, not in random order."""


@dataclass(frozen=True, slots=True)
class SpacedRows:
    """At most ``most`` rows of a slice, evenly spaced by index.

    Rows of weight 0 are left out. (The first rows would all belong to the first chunks.)
    """

    rows: RowSlice
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedRows:
    """Rows of positive weight, by index, projected onto some directions.

    A table of one feature per direction, with statistics of its own.
    """

    directions: Directions
    within: RowSample | None = None
    """The rows; None: all."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProjectedRows)
            and self.within == other.within
            and self.directions.same(other.directions)
        )

    def __hash__(self) -> int:
        return hash(self.directions.vectors.tobytes())


class TakenRows(NamedTuple):
    """Rows in one piece of memory, read-only."""

    x: Any
    """(m, d)"""
    weight: NDArray[np.float64] | None
    """(m,); None if every row weighs 1."""
    rows: NDArray[np.int64]
    """(m,) global indices; of a subset's rows, those in the table or subset it was taken from."""


def numbers_of(rows: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Return (n,) pseudorandom numbers in (0, 1] that depend on a row's index and the seed alone.

    G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    z = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53


def draws_of(rows: NDArray[np.int64], key: int, n: int, k: int) -> NDArray[np.int32]:
    """Draw n numbers below k for each row, (rows, n), by its index alone, not by chunks."""
    out = np.empty((len(rows), n), np.int32)
    for q in range(n):
        out[:, q] = np.minimum(numbers_of(rows, key + q) * k, k - 1)
    return out
