"""Arrays of a model with all partitions into up to k clusters.

The partitions are stored one after another in one array. Rows l (l - 1) / 2 to l (l + 1) / 2 - 1
are the centres of the partition into l clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.kernels.blocks import dense_rows

FIGURES = ("movement", "ties", "moves", "swap")
"""Columns of ``PathArrays.stationarity``, which measure how close a partition is to a local
optimum."""


def rows_of_path(length: int) -> int:
    """Return the number of centres of all partitions into 1 to ``length`` clusters."""
    return length * (length + 1) // 2


def centers_in(path: NDArray[Any], n_clusters: int) -> NDArray[Any]:
    """Return the (l, d) centres of the partition into l clusters, as a view."""
    return path[rows_of_path(n_clusters - 1) : rows_of_path(n_clusters)]


def packed(partitions: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate the centres of the partitions into 1, 2, 3, ... clusters."""
    assert [len(centers) for centers in partitions] == list(range(1, len(partitions) + 1))
    return np.concatenate(partitions)


def path_of_one(rows: TakenRows, shift: NDArray[Any]) -> PathArrays:
    """Return the partition into one cluster, whose centre is the mean of a few rows."""
    x = dense_rows(rows.x).astype(np.float64)
    center = np.average(x, axis=0, weights=rows.weight).astype(shift.dtype)[None]
    found = PathArrays.of(center, None, np.full(1, np.inf), np.zeros(1), shift)
    return replace(found, stability=np.ones(1))


@dataclass(frozen=True, slots=True)
class PathArrays(CenterArrays):
    """Centres of all partitions into 1 to k clusters.

    ``centers`` and ``counts`` are those of the last partition.
    """

    path: NDArray[Any]
    """(k (k + 1) / 2, d) packed centres of all partitions, in the compute dtype and the coordinates
    of the data."""
    counts_of_path: NDArray[np.float64]
    """(k (k + 1) / 2,) weight of the rows of each cluster of all partitions."""
    inertia: NDArray[np.float64]
    """(k,) exact objective of each partition: the sum of ``w ||x - c||^2`` over all rows x and
    their nearest centres c. If the fit of a large table was stopped, all values but the last are
    estimates from a sample."""
    lower_bound: NDArray[np.float64]
    """(k,) lower bounds of the inertia of all partitions into 1, 2, ... k clusters."""
    stationarity: NDArray[np.float64]
    """(k, 4) measures in the order of ``FIGURES``; NaN if unknown.

    movement
        Largest distance between a centre and the mean of its rows.
    ties
        Number of rows with two nearest centres.
    moves
        Number of rows whose move to another cluster would lower the objective.
    swap
        Smallest change of the objective by any examined swap of a centre for a row, with no centre
        moved afterwards; negative if a swap lowers the objective."""
    stability: NDArray[np.float64]
    """(k,) adjusted Rand index between partitions of two halves of a sample; NaN if unknown."""

    @classmethod
    def of(
        cls,
        path: NDArray[Any],
        counts: NDArray[np.float64] | None,
        inertia: NDArray[np.float64],
        bounds: NDArray[np.float64],
        shift: NDArray[Any],
    ) -> PathArrays:
        length, path = len(inertia), path.astype(shift.dtype)
        counts = np.zeros(len(path)) if counts is None else counts
        return cls(
            centers=centers_in(path, length),
            counts=centers_in(counts, length),
            shift=shift,
            path=path,
            counts_of_path=counts,
            inertia=inertia,
            lower_bound=np.minimum(bounds[:length], inertia),
            stationarity=np.full((length, len(FIGURES)), np.nan),
            stability=np.full(length, np.nan),
        )

    def after_last_pass(
        self, centers: NDArray[Any], counts: NDArray[np.float64], inertia: float
    ) -> Self:
        """Return a copy with the results of the last pass for the last partition.

        The ``stationarity`` of the last partition becomes NaN if the pass moved a centre.
        """
        n_before = rows_of_path(len(self.centers) - 1)
        last = self.stationarity[-1:]
        if not np.array_equal(centers, self.centers):
            last = np.full_like(last, np.nan)
        return replace(
            self,
            centers=centers,
            counts=counts,
            path=np.concatenate([self.path[:n_before], centers]),
            counts_of_path=np.concatenate([self.counts_of_path[:n_before], counts]),
            # Estimates from a sample, which remain if the search was stopped, may be too low.
            inertia=np.append(np.maximum(self.inertia[:-1], inertia), inertia),
            stationarity=np.concatenate([self.stationarity[:-1], last]),
        )
