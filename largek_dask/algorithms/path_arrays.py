"""Arrays of a model that holds every partition up to its own.

Partitions are packed one after the other: the centres of the one into l clusters are rows
l (l - 1) / 2 up to l (l + 1) / 2 of one array.
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
"""Measures of how stationary a partition is, in the order of ``PathArrays.stationarity``."""


def rows_of_path(length: int) -> int:
    """Return the number of centres of all partitions into 1 to ``length`` clusters."""
    return length * (length + 1) // 2


def centers_in(path: NDArray[Any], n_clusters: int) -> NDArray[Any]:
    """Return (l, d) centres of the partition into l clusters, a view."""
    return path[rows_of_path(n_clusters - 1) : rows_of_path(n_clusters)]


def packed(partitions: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Pack the centres of partitions into 1, 2, 3, ... clusters one after the other."""
    assert [len(centers) for centers in partitions] == list(range(1, len(partitions) + 1))
    return np.concatenate(partitions)


def path_of_one(rows: TakenRows, shift: NDArray[Any]) -> PathArrays:
    """Return the partition into one cluster, at the mean of a few rows, with unknown figures."""
    x = dense_rows(rows.x).astype(np.float64)
    center = np.average(x, axis=0, weights=rows.weight).astype(shift.dtype)[None]
    found = PathArrays.of(center, None, np.full(1, np.inf), np.zeros(1), shift)
    return replace(found, stability=np.ones(1))


@dataclass(frozen=True, slots=True)
class PathArrays(CenterArrays):
    """Centres of the last partition, and of all before it.

    ``centers`` and ``counts`` are the last rows of ``path`` and ``counts_of_path``.
    """

    path: NDArray[Any]
    """(k (k + 1) / 2, d) centres of the partitions into 1 to k clusters, compute dtype, in the
    coordinates of the data."""
    counts_of_path: NDArray[np.float64]
    """(k (k + 1) / 2,) weight of the rows of each of their clusters."""
    inertia: NDArray[np.float64]
    """(k,) exact objective of each: the sum of ``w ||x - c||^2`` over all rows, by nearest centres.
    If the fit of a large table was stopped, all but the last are estimates from a sample."""
    lower_bound: NDArray[np.float64]
    """(k,) lower bounds of the inertia of all partitions into 1, 2, ... k clusters."""
    stationarity: NDArray[np.float64]
    """(k, 4) one column for each of ``FIGURES``; NaN where unknown.

    movement
        Largest distance of a centre to the mean of its rows.
    ties
        Rows with two nearest centres.
    moves
        Rows whose move to another cluster would lower the objective.
    swap
        Smallest change of the objective by any examined swap (a centre out, a row in, nothing
        moved afterwards); negative if one lowers it.
    """
    stability: NDArray[np.float64]
    """(k,) adjusted Rand index of the partitions found on the two halves of a sample; NaN where
    unknown."""

    @classmethod
    def of(
        cls,
        path: NDArray[Any],
        counts: NDArray[np.float64] | None,
        inertia: NDArray[np.float64],
        bounds: NDArray[np.float64],
        shift: NDArray[Any],
    ) -> PathArrays:
        """Return partitions with objectives and lower bounds only; counts are 0 if None."""
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
        """Return the arrays with the last partition as the last pass left it.

        If the pass moved a centre, the partition's ``stationarity`` becomes unknown.
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
            # Estimates from a sample, if the search was stopped, may be too low.
            inertia=np.append(np.maximum(self.inertia[:-1], inertia), inertia),
            stationarity=np.concatenate([self.stationarity[:-1], last]),
        )
