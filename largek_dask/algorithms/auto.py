"""Choose the default algorithm.

The choice depends only on the shape of the table and the number of clusters, so the same data and
seed give identical results on every machine and cluster. The rules come from measurements
(``benchmarks/auto.py``) and are explained in DESIGN.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from largek_dask.algorithms.base import Algorithm, TableShape
from largek_dask.algorithms.choices import EFFORTS, Effort
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.partition_path import PartitionPath
from largek_dask.algorithms.truncated import Truncated
from largek_dask.algorithms.truncated.schedule import DENSE_CLUSTERS
from largek_dask.errors import ParameterError

FEW_CLUSTERS = 8
"""Maximum number of clusters for which a fit on sparse rows makes several starts. The result
depends mostly on the start if k is small."""
MANY_ROWS = 100_000
"""Number of sparse rows above which few clusters are fitted by nested batches, which cost a
fraction of exact fits and give similar results."""
FEW_ROWS = 1_000
"""Maximum number of sparse rows for which several exact fits are run."""
EVERY_CLUSTERS = 25
"""Maximum k for which ``effort="best"`` runs ``PartitionPath``, which finds a partition for every
number of clusters up to k."""
RESTARTS: dict[str, int] = {"fast": 1, "balanced": 4, "best": 16}
"""Number of starts on sparse rows, by effort; the best result is kept."""
ROUNDS: dict[str, int | Literal["auto"]] = {"fast": 2, "balanced": "auto", "best": "auto"}
"""Value of ``Truncated.rounds``, by effort."""
SEARCHES: dict[str, int] = {"fast": 1, "balanced": 1, "best": 3}
"""Number of truncated searches, by effort; the best result is kept."""


class Choice(NamedTuple):
    """Algorithm to run, number of starts, and reason for the choice."""

    algorithm: Algorithm[Any, Any]
    n_init: int
    """Minimum number of starts."""
    reason: str
    """Explanation of the choice, for display."""


@dataclass(frozen=True)
class Auto:
    """Automatic choice of an algorithm by the shape of the data and the number of clusters.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        How long to look for a lower inertia after the first good result.

    Examples
    --------
    >>> from largek_dask.algorithms.auto import Auto
    >>> from largek_dask.data.sources import open_rows
    >>> import numpy as np
    >>> Auto().choose(open_rows(np.zeros((10_000, 4), np.float32)), 1_000).reason
    'each row meets only the centres near its own, and centres are moved'
    """

    effort: Effort = "balanced"
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            known = ", ".join(map(repr, EFFORTS))
            raise ParameterError(f"effort must be one of {known}, got {self.effort!r}.")

    def choose(self, table: TableShape, n_clusters: int, init: object = "auto") -> Choice:
        """Choose the algorithm for a table of this shape.

        Parameters
        ----------
        table : TableShape
            ``Rows`` or ``Passes``.
        n_clusters : int
        init : str or array
            ``init`` of the fit.
        """
        if n_clusters == 1:
            return Choice(Lloyd(), 1, "one cluster: its mean")
        if table.is_sparse:
            return self._of_sparse_rows(table.n_rows, n_clusters)
        has_no_start = isinstance(init, str) and init == "auto"
        if self.effort == "best" and n_clusters <= EVERY_CLUSTERS and has_no_start:
            path = PartitionPath("best", aim="last")
            return Choice(path, 1, "few clusters: partitions into 2, 3, … clusters in turn")
        search = Truncated(rounds=ROUNDS[self.effort])
        few = n_clusters <= DENSE_CLUSTERS
        how = "all centres" if few else "only the centres near its own"
        return Choice(search, SEARCHES[self.effort], f"each row meets {how}, and centres are moved")

    def _of_sparse_rows(self, n: int, n_clusters: int) -> Choice:
        starts = RESTARTS[self.effort]
        if n <= FEW_ROWS or (n_clusters <= FEW_CLUSTERS and n <= MANY_ROWS):
            return Choice(Lloyd(), starts, f"little to compute: {starts} exact fits")
        if n_clusters <= FEW_CLUSTERS:
            return Choice(NMBatch(), starts, f"few clusters: {starts} starts on nested batches")
        if self.effort == "fast":
            return Choice(NMBatch(), 1, "sparse rows: nested batches of them")
        search = Truncated(rounds=ROUNDS[self.effort])
        return Choice(search, SEARCHES[self.effort], "sparse rows, and centres are moved")
