"""Which algorithm a fit takes where nobody has chosen one.

The choice depends on the shape of the table and the number of clusters alone, so that the same data
and seed give the same bits on every machine and cluster. Where the rules come from is measured in
``benchmarks/auto.py`` and said in DESIGN.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from largek_dask.algorithms.base import Algorithm, KMeansProblem, TableShape
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.truncated import Truncated
from largek_dask.errors import ParameterError

__all__ = ["EFFORTS", "Auto", "Choice"]

Effort = Literal["fast", "balanced", "best"]
EFFORTS = ("fast", "balanced", "best")

FEW_CLUSTERS = 16
"""Up to so many clusters every row may as well meet all centres: lists of neighbours spare nothing,
and what decides on the result is the start."""
MANY_ROWS = 2_000
"""Rows a cluster from which on few clusters are found on nested batches first."""
FEW_ROWS = 5_000
"""Rows that several starts cost next to nothing on."""
RESTARTS: dict[str, int] = {"fast": 1, "balanced": 4, "best": 16}
"""Starts of an exact fit, each from other centres."""
ROUNDS: dict[str, int | Literal["auto"]] = {"fast": 2, "balanced": "auto", "best": "auto"}
"""Rounds of moves."""
SEARCHES: dict[str, int] = {"fast": 1, "balanced": 1, "best": 3}
"""Searches, of which the best is kept."""


class Choice(NamedTuple):
    """What is run."""

    algorithm: Algorithm[Any]
    n_init: int
    """Starts, at least."""
    reason: str
    """In words."""


@dataclass(frozen=True)
class Auto:
    """The algorithm that suits the data: truncated search, exact k-means or nested batches.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        How long to look for a lower inertia once the first good result is there.

    Examples
    --------
    >>> from largek_dask.algorithms.auto import Auto
    >>> from largek_dask.data.sources import open_rows
    >>> import numpy as np
    >>> Auto().choose(open_rows(np.zeros((10_000, 4), np.float32)), 100).reason
    'each row meets only the centres near its own'
    """

    effort: Effort = "balanced"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            told = ", ".join(map(repr, EFFORTS))
            raise ParameterError(f"effort must be one of {told}, got {self.effort!r}.")

    def choose(self, table: TableShape, n_clusters: int) -> Choice:
        """The algorithm for a table of this shape.

        Parameters
        ----------
        table : TableShape
            ``Rows`` or ``Passes``.
        n_clusters : int
        """
        n = table.n_rows
        if table.is_sparse:
            return Choice(NMBatch(), 1, "sparse rows: nested batches of them")
        if n_clusters <= FEW_CLUSTERS and n > max(FEW_ROWS, MANY_ROWS * n_clusters):
            return Choice(NMBatch(), 1, "many rows in few clusters: nested batches of them")
        if n_clusters <= FEW_CLUSTERS or n <= FEW_ROWS:
            starts = RESTARTS[self.effort]
            return Choice(Lloyd(), starts, f"little to compute: the best of {starts} exact fits")
        rounds = ROUNDS[self.effort]
        return Choice(
            Truncated(rounds=rounds),
            SEARCHES[self.effort],
            "each row meets only the centres near its own",
        )
