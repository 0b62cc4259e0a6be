"""Selections of rows, and random numbers that do not depend on the order of execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.projection import Directions


@dataclass(frozen=True, slots=True)
class Rng:
    """Counter-based random numbers that do not depend on the order of execution.

    The same ``(seed, stream, step, purpose, chunk)`` gives the same numbers in any process, before
    and after a resume.
    """

    seed: int
    stream: int = 0
    """Index of the start (``n_init``)."""

    def generator(self, step: int, purpose: str, chunk: int = 0) -> np.random.Generator:
        """Return the generator for this step, purpose and chunk."""
        key = (self.stream, step, chunk, *purpose.encode())
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Share of every chunk's rows, taken from a seeded permutation of each chunk.

    Chunk ``c`` with ``n_c`` rows contributes the rows ``permutation_c[a:b]`` with
    ``a = begin * n_c // of`` and ``b = end * n_c // of``. Nested batches have ``begin=0``. Rows
    that are stored in random order are not permuted again (``Rows.shuffled``).
    """

    rng: Rng
    begin: int
    end: int
    of: int


@dataclass(frozen=True, slots=True)
class RowSample:
    """Sample of about ``n`` rows, drawn without replacement and independently of the chunks.

    Rows of weight 0 are excluded. If two samples differ only in ``n``, the smaller is a prefix of
    the larger, so rows are read only once.
    """

    rng: Rng
    purpose: str
    """Samples of different purposes are drawn independently."""
    n: int
    largest: int = 0
    """Size of the largest sample that will be requested, if larger than ``n``."""
    ascending: bool = False
    """True to return rows in ascending order of index instead of random order."""
    any_order: bool = False
    """True if passes over the sample may visit its rows in another order; see
    ``Passes.places``."""


@dataclass(frozen=True, slots=True)
class SpacedRows:
    """Sample of at most ``most`` rows of a slice, evenly spaced by index.

    Rows of weight 0 are excluded. Rows are spaced because the first rows would all belong to the
    first chunks.
    """

    rows: RowSlice
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedRows:
    """Rows of positive weight, ascending by index, projected onto some directions.

    Projected rows form a table with one feature per direction and separate statistics.
    """

    directions: Directions
    within: RowSample | None = None
    """Sample of rows to project; None means all rows."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProjectedRows)
            and self.within == other.within
            and self.directions.same(other.directions)
        )

    def __hash__(self) -> int:
        return hash(self.directions.vectors.tobytes())


class TakenRows(NamedTuple):
    """Rows in contiguous, read-only memory."""

    x: Any
    weight: NDArray[np.float64] | None
    """(m,) weights; None if every row weighs 1."""
    rows: NDArray[np.int64]
    """(m,) global indices; for a subset, indices in the table or subset it was taken from."""


def numbers_of(rows: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Return (n,) pseudorandom numbers in (0, 1], each a function of row index and seed.

    G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    z = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53


def draws_of(rows: NDArray[np.int64], key: int, n: int, k: int) -> NDArray[np.int32]:
    """Return (rows, n) random integers below k, which depend only on the row index and the key."""
    out = np.empty((len(rows), n), np.int32)
    for q in range(n):
        out[:, q] = np.minimum(numbers_of(rows, key + q) * k, k - 1)
    return out
