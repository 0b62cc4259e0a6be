"""Figures of partitions once they are found.

These are exact objectives over all rows, lower bounds, how stationary each partition is, and
whether halves of the rows agree on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng
from largek_dask.algorithms.dcd.held import distinct_rows, hold_rows, taken_rows
from largek_dask.algorithms.dcd.passes import PathCount, begin_path, count_pass, path_step
from largek_dask.algorithms.dcd.samples import Sample, draw_far
from largek_dask.algorithms.dcd.search import Search
from largek_dask.algorithms.dcd.stability import split_half_stability
from largek_dask.algorithms.dcd.stages import Book, Plan, pieces
from largek_dask.algorithms.path_arrays import FIGURES, PathArrays, centers_in, rows_of_path
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.descent import CenteredRows
from largek_dask.kernels.threads import Threads

__all__ = ["Found", "conclude", "path_of_half"]

Floats = NDArray[np.float64]

SCANNED = 16
"""Far rows whose swaps with every centre are examined."""
STABLE_CLUSTERS = 32
"""Clusters up to which halves are compared; larger numbers are not meant as an estimate."""
OF_HALVES = Plan(down=False, drawn=64)
"""Plan of the search on half of a sample."""


@dataclass(frozen=True, slots=True)
class Found:
    """Partitions found by a search."""

    path: NDArray[np.float64]
    """(l (l + 1) / 2, d) packed centres, in the coordinates of the data."""
    length: int
    """l"""
    bounds: Floats
    """(l,) lower bounds of their objectives."""
    sample: Sample | None = None
    """The rows that were searched; None: all."""
    are_means: bool = False
    """Centres are those after passes over all rows."""
    ends_distinct: bool = False
    """The last partition has a centre for each distinct row."""


def conclude(passes: Passes, rng: Rng, found: Found) -> PathArrays:
    """Compute the objectives of partitions, and what is certain of them.

    Takes two passes over all rows, one if centres are means already; more only if a cluster is left
    without rows.
    """
    statistics, length = passes.statistics, found.length
    path = found.path.astype(statistics.dtype)
    if not found.are_means:
        # Exact means, rounded once, however the search has summed.
        path = path_step(passes, begin_path(path, length)).path
    if found.ends_distinct:
        x, _ = taken_rows(passes, rng, found.sample)
        distinct = distinct_rows(x)
        if len(distinct) == length:  # (the search may have ended without a use for another centre)
            centers_in(path, length)[:] = distinct
    path, count = _falling(passes, path, count_pass(passes, path, length), length)
    rows = hold_rows(passes, rng, statistics.mean, found.sample)
    still = np.full((length, len(FIGURES)), np.nan)
    still[:, 0], still[:, 1] = count.movement, count.ties
    search = Search(rows, passes.threads)
    # On a sample they would ignore the rows that it lacks.
    for size in range(1, length + 1 if found.sample is None else 1):
        generator = rng.generator(0, "swaps looked at", size)
        centers = centers_in(path, size).astype(np.float64) - statistics.mean
        still[size - 1, 2:] = search.standstill(centers, generator, SCANNED)
    return PathArrays(
        centers=readonly(centers_in(path, length).copy()),
        counts=readonly(count.counts[rows_of_path(length - 1) :].copy()),
        shift=statistics.shift,
        path=readonly(path),
        counts_of_path=readonly(count.counts),
        inertia=readonly(count.inertia),
        lower_bound=readonly(np.minimum(found.bounds, count.inertia)),
        stationarity=readonly(still),
        stability=readonly(_stability(search, rng, length)),
    )


def _falling(
    passes: Passes, path: NDArray[np.floating], count: PathCount, length: int
) -> tuple[NDArray[np.floating], PathCount]:
    """Return partitions of which none costs more than one of fewer clusters.

    One that does is that of fewer clusters, and the row that is farthest there.
    """
    for size in range(2, length + 1):
        if count.inertia[size - 1] > count.inertia[size - 2]:
            below = centers_in(path, size - 1)
            far = passes.take(draw_far(passes, below, 1)).x
            if len(far):
                path = path.copy()
                centers_in(path, size)[:] = np.concatenate([below, far])
                count = count_pass(passes, path, length)
    return path, count


def _stability(search: Search, rng: Rng, length: int) -> Floats:
    """Return the agreement of halves, for up to ``STABLE_CLUSTERS`` clusters."""
    compared = min(length, STABLE_CLUSTERS)
    out = np.full(length, np.nan)
    rows, find_path = search.rows, partial(path_of_half, search.threads, rng)
    out[:compared] = split_half_stability(rows.x, rows.weight, find_path, rng, compared)
    return out


def path_of_half(threads: Threads, rng: Rng, x: Floats, weight: Floats, k: int) -> list[Floats]:
    """Return partitions of half of a sample into 1 to k clusters, found in the cheapest way."""
    center = x.sum(axis=0) / len(x)
    book = Book.begin(OF_HALVES, Search(CenteredRows.of(x - center, weight), threads))
    for step, piece in enumerate(pieces(OF_HALVES, k, k, len(x))):
        book.work(piece, rng, step)
    return [centers + center for centers in book.partitions]
