"""Stability of partitions: whether those of two samples of the rows agree.

Two halves of a sample are clustered by themselves, and the whole sample is labelled with the
centres of either. If there are k groups both find them, and the labels agree; if k is one too
many, the halves split different groups, or the same one elsewhere (A. Ben-Hur, A. Elisseeff and
I. Guyon, "A stability based method for discovering structure in clustered data", 2002; T. Lange et
al., "Stability-based validation of clustering solutions", Neural Computation 16, 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.parts.agreement import rand_of_labels
from largek_dask.kernels.distances import nearest, pack_centers

__all__ = ["MOST_ROWS", "Halves", "agreement_of", "compare_halves", "split_half_stability"]

MOST_ROWS = 4_096
"""Rows of the sample, both halves together."""

FindPath = Callable[[NDArray[np.float64], NDArray[np.float64], int], Sequence[NDArray[Any]]]
"""``find_path(rows, weights, k)``: centres (l, d) for l = 1, 2, ..., k, or up to fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """Two halves of a sample, and the partitions found on each."""

    stability: NDArray[np.float64]
    """(k,) adjusted Rand index of the labels of the whole sample, by the nearest centres of either
    half; 1 for one cluster, NaN if a half has fewer rows, or its path ends before."""
    rows: Sequence[NDArray[np.float64]]
    """Rows of each half, (m, d); none if there are too few for halves."""
    paths: Sequence[Sequence[NDArray[Any]]]
    """Centres (l, d) for l = 1, 2, ... by half."""


def split_half_stability(
    x: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
    find_path: FindPath,
    rng: Rng,
    n_clusters: int,
) -> NDArray[np.float64]:
    """Return how far partitions of two halves of a sample agree: see :class:`Halves`."""
    return compare_halves(x, weight, find_path, rng, n_clusters).stability


def compare_halves(
    x: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
    find_path: FindPath,
    rng: Rng,
    n_clusters: int,
) -> Halves:
    """Find the partitions of two halves of a sample, for 1 to k clusters.

    Parameters
    ----------
    x : (n, d) float64
        Rows that are held in memory.
    weight : (n,) float64 or None
        A row of weight 3 is drawn as three rows are; with weights that are no integers, no more
        than n rows are drawn. Not all 0.
    find_path : callable
        Called with each half (all rows of it weigh 1) and k.
    rng : Rng
        Draws the sample and the halves.
    n_clusters : int
        k
    """
    rows = _sample(weight, len(x), rng)
    sample = x[rows]
    out = np.full(n_clusters, np.nan)
    out[0] = 1.0
    half = len(rows) // 2
    if half == 0:
        return Halves(out, (), ())
    parts = sample[:half], sample[half:]
    paths = [find_path(part, np.ones(len(part)), n_clusters) for part in parts]
    shift = sample.sum(axis=0) / len(sample)
    for size in range(1, min(n_clusters, *map(len, paths))):
        out[size] = agreement_of(sample, [path[size] for path in paths], shift)
    return Halves(out, parts, paths)


def agreement_of(
    x: Any, centers: Sequence[NDArray[Any]], shift: NDArray[np.floating[Any]]
) -> float:
    """Return the adjusted Rand index of the labels of rows by two sets of centres."""
    one, other = (
        nearest(x, pack_centers(np.asarray(each, shift.dtype), shift)) for each in centers
    )
    return rand_of_labels(one, other)


def _sample(weight: NDArray[np.float64] | None, n: int, rng: Rng) -> NDArray[np.int64]:
    """Return rows in random order, evenly spaced by weight along a random order of all rows.

    Even spacing takes every row as often as it weighs, to the next integer: all rows once if
    as many are requested and weights are equal.
    """
    generator = rng.generator(0, "stability")
    order = generator.permutation(n)
    if weight is None:
        return order[:MOST_ROWS]
    mass = np.cumsum(weight[order])
    whole = bool((weight == np.floor(weight)).all())
    count = int(min(MOST_ROWS, mass[-1] if whole else np.count_nonzero(weight)))
    at = (np.arange(count) + generator.random()) * (mass[-1] / count)
    # rounding may lead to the end, where rows may weigh nothing
    last = int(np.flatnonzero(weight[order])[-1])
    drawn: NDArray[np.int64] = order[np.minimum(np.searchsorted(mass, at, side="right"), last)]
    return generator.permutation(drawn)
