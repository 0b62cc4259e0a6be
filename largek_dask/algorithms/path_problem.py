"""Problem of finding partitions into 1 to k clusters, and the memory it needs."""

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
"""Number of partitions searched beyond the requested number: at least 5, and one for every 10
requested."""
COPIES = 6
"""Number of copies of each centre: before and after a step, sent, packed in two forms, and in a
checkpoint."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class PathProblem(KMeansProblem):
    """Problem of algorithms that find every partition up to ``n_clusters``."""

    def check(self, table: TableShape) -> None:
        """Reject sparse rows, starting centres, and more partitions than fit into memory."""
        if table.is_sparse:
            raise ParameterError(
                "algorithms that find every partition up to k accept dense rows only, and these "
                "rows are sparse: use algorithm='auto', or make few rows dense with X.toarray()."
            )
        if not isinstance(self.init, str) or self.init != "auto":
            raise ParameterError(
                "init must be 'auto' for algorithms that find every partition up to k, as each "
                "starts from the previous one. Use another algorithm to start from given centres."
            )
        check_path_memory(self.n_clusters, table.n_features)

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> PathArrays:
        return path_of_one(rows, shift)

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        """Explain why there are fewer partitions than ``n_clusters``."""
        n_found = len(final.arrays.centers)
        if n_found >= self.n_clusters:
            return KMeansProblem.complaint(self, final, had_time=had_time, last=last)
        where = f"partitions end at {n_found} clusters, of {self.n_clusters} that were asked for"
        if last.get("distinct"):
            return f"the rows have only {n_found} distinct values: {where}. Use fewer clusters."
        return f"the fit was stopped: {where}. Give it more time, or resume from its checkpoint."


def length_of_search(k: int) -> int:
    """Return the number of clusters of the largest partition to search."""
    return k + max(BEYOND, k // SHARE)


def path_memory(k: int, d: int) -> int:
    """Return the memory in bytes of a search for k clusters, without the rows.

    Each centre has several copies in float64, plus 64-bit sums and a weight in two limbs, as in
    wide grids. Sums are held four times: for two threads, merged, and while partitions are read one
    after another.
    """
    return rows_of_path(length_of_search(k)) * 8 * (COPIES * d + 2 * 4 * (d + 1))


def available_memory() -> int:
    """Return the memory in bytes available to this process, within its control group's limit."""
    available = int(psutil.virtual_memory().available)
    if CGROUP_LIMIT.exists() and (text := CGROUP_LIMIT.read_text().strip()).isdigit():
        available = min(available, int(text))
    return available


def check_path_memory(k: int, d: int) -> None:
    """Raise ``NotEnoughMemoryError`` if a search for k clusters does not fit into memory."""
    limit = available_memory()
    if path_memory(k, d) <= limit:
        return
    fits = bisect_right(range(k), limit, key=lambda n: path_memory(n, d)) - 1
    advice = f"Use at most {fits} clusters" if fits > 0 else "Use a machine with more memory"
    held = length_of_search(k)
    raise NotEnoughMemoryError(
        f"All partitions into 1 to {held} clusters have {rows_of_path(held)} centres of {d} "
        f"features, which need about {path_memory(k, d) / 1e6:,.0f} MB, but "
        f"{limit / 1e6:,.0f} MB are available. {advice}, or use an algorithm that finds a single "
        "partition."
    )
