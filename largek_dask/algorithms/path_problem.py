"""The problem of finding partitions into all numbers of clusters up to k, and its memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from largek_dask.algorithms.base import TableShape
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.path_arrays import PathArrays, path_of_one, rows_of_path
from largek_dask.algorithms.problem import Final
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.errors import NotEnoughMemoryError, ParameterError

BEYOND, SHARE = 5, 10
"""Partitions searched beyond the requested number: a minimum, and one per this many requested."""
COPIES = 6
"""Number of copies of each centre: before and after a step, sent, packed in two forms, in a
checkpoint."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class PathProblem(KMeansProblem):
    """Problem of algorithms that find every partition up to ``n_clusters``."""

    def check(self, table: TableShape) -> None:
        """Reject sparse rows, starting centres, and more partitions than fit into memory."""
        if table.is_sparse:
            raise ParameterError(
                "algorithms that find every partition up to k take dense rows only, and these are "
                "sparse: use algorithm='auto', or make them dense (X.toarray()) if they are few."
            )
        if not isinstance(self.init, str) or self.init != "auto":
            raise ParameterError(
                "init must be 'auto' for algorithms that find every partition up to k, as each "
                "starts from the one before. Use another algorithm to start from your own centres."
            )
        check_path_memory(self.n_clusters, table.n_features)

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
        return f"the fit was stopped: {where}. Give it more time, or resume from its checkpoint."


def length_of_search(k: int) -> int:
    """Return the number of clusters of the last partition to search."""
    return k + max(BEYOND, k // SHARE)


def path_memory(k: int, d: int) -> int:
    """Return the memory of a search for k clusters in one process in bytes, excluding the rows.

    Each centre has several copies in float64, and 64-bit sums and a weight in two limbs, as in wide
    grids: once for each of two threads, once merged, and once while partitions are read one after
    another.
    """
    return rows_of_path(length_of_search(k)) * 8 * (COPIES * d + 2 * 4 * (d + 1))


def available_memory() -> int:
    """Return the memory available to this process in bytes, limited by machine or control group."""
    available = int(psutil.virtual_memory().available)
    if CGROUP_LIMIT.exists() and (text := CGROUP_LIMIT.read_text().strip()).isdigit():
        available = min(available, int(text))
    return available


def check_path_memory(k: int, d: int) -> None:
    """Raise NotEnoughMemoryError, with the largest number that fits, if k is too large."""
    limit = available_memory()
    if path_memory(k, d) <= limit:
        return
    fits = bisect_right(range(k), limit, key=lambda n: path_memory(n, d)) - 1
    advice = f"Ask for {fits} clusters at most" if fits > 0 else "Take a machine with more memory"
    held = length_of_search(k)
    raise NotEnoughMemoryError(
        f"All partitions into 1 to {held} clusters have {rows_of_path(held)} centres of {d} "
        f"features, which need about {path_memory(k, d) / 1e6:,.0f} MB, and "
        f"{limit / 1e6:,.0f} MB are available. {advice}, or use an algorithm that holds one "
        "partition."
    )
