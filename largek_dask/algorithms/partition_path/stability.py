"""Stability of partitions: agreement between partitions of two halves of a sample.

Two halves of a sample are clustered separately, and the centres of each half label the whole
sample. If there are k groups, both halves find them, and the labels agree. If k is one too many,
the halves split different groups, or split the same group differently.

A. Ben-Hur, A. Elisseeff, I. Guyon, A stability based method for discovering structure in clustered
data, 2002; T. Lange et al., Stability-based validation of clustering solutions, Neural Computation
16, 2004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.partition_path.operators import Operators
from largek_dask.algorithms.partition_path.stages import PathSearch, Plan, pieces
from largek_dask.kernels.descent import CenteredRows
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.threads import ALONE, Threads

MOST_ROWS = 4_096
"""Number of sampled rows in both halves together."""
PLAN = Plan(drawn=64)
"""Search plan for each half: the cheapest plan."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SplitHalves:
    """Two halves of a sample, the partitions found on each half, and their stability."""

    stability: Floats
    """(k,) adjusted Rand index between the labels from the centres of the two halves; 1 for one
    cluster, NaN if a half has fewer distinct rows than clusters."""
    rows: Sequence[Floats]
    """Rows (m, d) of each half; empty if there are too few rows for two halves."""
    paths: Sequence[Sequence[Floats]]
    """For each half, the centres (l, d) of its partitions into l = 1, 2, ... clusters."""


def compare_halves(
    x: Floats, weight: Floats | None, rng: Rng, n_clusters: int, threads: Threads = ALONE
) -> SplitHalves:
    """Compare partitions into 1 to k clusters of two halves of a sample of rows (n, d).

    A row of integer weight w counts like w equal rows. If weights are not integers, at most n rows
    are drawn. At least one weight must be positive.
    """
    sample = x[_draw(weight, len(x), rng)]
    stability = np.full(n_clusters, np.nan)
    stability[0] = 1.0
    half = len(sample) // 2
    if half == 0:
        return SplitHalves(stability, (), ())
    halves = sample[:half], sample[half:]
    paths = [_search(each, rng, n_clusters, threads) for each in halves]
    shift = sample.sum(axis=0) / len(sample)
    for size in range(1, min(map(len, paths))):
        stability[size] = agreement_of(sample, [path[size] for path in paths], shift)
    return SplitHalves(stability, halves, paths)


def _search(x: Floats, rng: Rng, k: int, threads: Threads) -> list[Floats]:
    center = x.sum(axis=0) / len(x)
    search = PathSearch.begin(
        PLAN, Operators(CenteredRows.of(x - center, np.ones(len(x))), threads)
    )
    for step, piece in enumerate(pieces(PLAN, k, k, len(x))):
        search.run(piece, rng, step)
    return [centers + center for centers in search.partitions]


def agreement_of(
    x: Any, centers: Sequence[NDArray[Any]], shift: NDArray[np.floating[Any]]
) -> float:
    """Return the adjusted Rand index of the labels that two sets of centres give to the rows."""
    one, other = (
        nearest(x, pack_centers(np.asarray(each, shift.dtype), shift)) for each in centers
    )
    return rand_of_labels(one, other)


def rand_of_labels(one: NDArray[np.integer[Any]], other: NDArray[np.integer[Any]]) -> float:
    """Return the adjusted Rand index (Hubert and Arabie, "Comparing partitions", 1985, eq. 5).

    The arguments are two labellings (n,) of the same rows by integers from 0. The index is between
    -0.5 and 1, and equals 1 for identical partitions, even if there is only one part or one part
    per row.
    """
    width = int(other.max()) + 1
    cells = np.bincount(one.astype(np.int64) * width + other)
    sizes = [each[each > 0].tolist() for each in (cells, np.bincount(one), np.bincount(other))]
    if len(sizes[0]) == len(sizes[1]) == len(sizes[2]):
        return 1.0
    n = len(one)
    # Python integers, because products of numbers of pairs exceed 64 bits.
    both, first, second = (sum(size**2 for size in each) - n for each in sizes)
    # (Σ over cells - expectation) / (maximum - expectation), both multiplied by 2 * pairs.
    pairs = n * (n - 1)
    expected = 2 * first * second
    return float((2 * both * pairs - expected) / ((first + second) * pairs - expected))


def _draw(weight: Floats | None, n: int, rng: Rng) -> NDArray[np.int64]:
    """Draw rows in proportion to their weight, in random order.

    Draws are evenly spaced along a random order of all rows. If n rows are drawn and weights are
    equal, each row is drawn once.
    """
    generator = rng.generator(0, "stability")
    order = generator.permutation(n)
    if weight is None:
        return order[:MOST_ROWS]
    mass = np.cumsum(weight[order])
    are_integers = bool((weight == np.floor(weight)).all())
    count = int(min(MOST_ROWS, mass[-1] if are_integers else np.count_nonzero(weight)))
    at = (np.arange(count) + generator.random()) * (mass[-1] / count)
    # Rounding may select the last rows, whose weights may be 0.
    last = int(np.flatnonzero(weight[order])[-1])
    drawn: NDArray[np.int64] = order[np.minimum(np.searchsorted(mass, at, side="right"), last)]
    return generator.permutation(drawn)
