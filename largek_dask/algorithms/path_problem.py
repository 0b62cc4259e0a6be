"""Partitions into all numbers of clusters up to k, as a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import TableShape
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.path_arrays import PathArrays, path_of_one
from largek_dask.algorithms.path_memory import check_path_memory
from largek_dask.algorithms.problem import Final
from largek_dask.algorithms.selection import TakenRows
from largek_dask.errors import ParameterError

__all__ = ["PathProblem", "length_of_search"]

BEYOND, SHARE = 5, 10
"""Partitions searched beyond the requested number: this many, or one per this many."""


@dataclass(frozen=True, slots=True)
class PathProblem(KMeansProblem):
    """Problem of algorithms that find every partition up to ``n_clusters``."""

    def check(self, table: TableShape) -> None:
        """Refuse sparse rows, starting centres, and more partitions than memory holds."""
        if table.is_sparse:
            raise ParameterError(
                "every partition up to k is found of dense rows only, and these are sparse: use "
                "algorithm='auto', or make them dense (X.toarray()) if they are few."
            )
        if not isinstance(self.init, str) or self.init != "auto":
            raise ParameterError(
                "init must be 'auto' where every partition up to k is found, as each begins with "
                "the one before. Use another algorithm to begin with centres of your own."
            )
        check_path_memory(self.n_clusters, table.n_features, 2, searched=length_of_search)

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> PathArrays:
        """Return the partition into one cluster."""
        return path_of_one(rows, shift)

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        """Explain why partitions end before ``n_clusters``."""
        n_found = len(final.arrays.centers)
        if n_found >= self.n_clusters:
            return KMeansProblem.complaint(self, final, had_time=had_time, last=last)
        where = f"partitions end at {n_found} clusters, of {self.n_clusters} that were asked for"
        if last.get("distinct"):
            return f"the rows have only {n_found} distinct values: {where}. Ask for fewer clusters."
        return f"the fit was stopped: {where}. Give it more time, or go on from its checkpoint."


def length_of_search(k: int) -> int:
    """Return the number of clusters of the last partition to search."""
    return k + max(BEYOND, k // SHARE)
