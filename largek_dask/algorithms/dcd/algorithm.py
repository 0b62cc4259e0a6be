"""DCD-Bundle: the recommended form, and the published one.

N. Karmitsa, A. Bagirov, S. Taheri, New diagonal bundle method for clustering problems in large data
sets, European Journal of Operational Research 263 (2017). The method is :mod:`~.published`, with
:mod:`~.bundle` inside; the form to use is :mod:`~.path_search`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Footprint, Info, Passes, Rng, TableShape
from largek_dask.algorithms.choices import EFFORTS, Effort
from largek_dask.algorithms.dcd.arrays import PathArrays, path_of_one
from largek_dask.algorithms.dcd.path_search import PathSearch, SearchState
from largek_dask.algorithms.dcd.published import Published, PublishedState
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.selection import TakenRows
from largek_dask.errors import ParameterError

__all__ = ["DCDBundle"]

Metric = Literal["lloyd", "printed"]
Aim = Literal["all", "last"]


@dataclass(frozen=True)
class DCDBundle(Algorithm[SearchState | PublishedState]):
    """Every partition into up to k clusters in one fit, near the lowest there is.

    The objective is a difference of two convex functions, and the published method lowers it by a
    bundle method with a diagonal metric, from l - 1 to l clusters. In the metric that fits the
    problem, m / (2 n_j), its step is Lloyd's; so this takes Lloyd's steps, with bounds, and spends
    its time on starting points: up and down through the numbers of clusters, moves of single rows,
    swaps, recombination. ``km.path_`` has all partitions, what is certain of each, and the numbers
    of clusters on which halves of the rows agree.

    Rows are searched in the driver's process: up to 131,072 of up to 2^23 values themselves, else a
    sample that holds the rows farthest out. All rows then meet all partitions in one reading per
    pass. Of one feature partitions are optimal.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        "fast" goes up, "balanced" also down and on while neighbours gain, "best" swaps and
        recombines as well.
    aim : {"all", "last"}
        Partitions that the stages of "best" lower: every one, or the last one, in a fraction of
        the time. (The others are returned as well.)
    metric : {"lloyd", "printed"}
        "printed" is the published method, which has no effort; see :meth:`paper`.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.DCDBundle(), random_state=0).fit(x)
    >>> km.path_.inertia.round(6).tolist()
    [100.0, 50.0, 0.0]
    """

    effort: Effort = "balanced"
    aim: Aim = "all"
    metric: Metric = "lloyd"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem
    takes_starts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            told = ", ".join(map(repr, EFFORTS))
            raise ParameterError(f"effort must be one of {told}, got {self.effort!r}.")
        if self.aim not in ("all", "last"):
            raise ParameterError(f"aim must be 'all' or 'last', got {self.aim!r}.")
        if self.metric not in ("lloyd", "printed"):
            raise ParameterError(f"metric must be 'lloyd' or 'printed', got {self.metric!r}.")
        if self.metric == "printed" and (self.effort, self.aim) != ("balanced", "all"):
            raise ParameterError(
                "effort and aim belong to metric='lloyd': the published method has none, got "
                f"effort={self.effort!r} and aim={self.aim!r}."
            )

    @classmethod
    def paper(cls) -> DCDBundle:
        """Return the published method: Algorithms 5.1, 5.2 and 7.1, and nothing else."""
        return cls(metric="printed")

    @property
    def _form(self) -> Algorithm[Any]:
        if self.metric == "printed":
            return Published(problem=self.problem)
        return PathSearch(self.effort, self.aim, problem=self.problem)

    def init(self, passes: Passes, rng: Rng) -> SearchState | PublishedState:
        """Return the partition into one cluster."""
        state: SearchState | PublishedState = self._form.init(passes, rng)
        return state

    def step(
        self, passes: Passes, rng: Rng, state: SearchState | PublishedState
    ) -> tuple[SearchState | PublishedState, Info]:
        """Run a piece of a search, a pass over all rows, or add one cluster."""
        return self._form.step(passes, rng, state)

    def model(self, state: SearchState | PublishedState) -> PathArrays:
        """Return all partitions so far, of the form that the state belongs to."""
        form: Algorithm[Any] = Published() if isinstance(state, PublishedState) else PathSearch()
        arrays = form.model(state)
        assert isinstance(arrays, PathArrays)
        return arrays

    def check(self, table: TableShape) -> None:
        """Raise an error if the form cannot handle such a table."""
        self._form.check(table)

    def footprint(
        self, table: TableShape, itemsize: int, n_threads: int | None, budget: int | None
    ) -> Footprint:
        """Return that of the form."""
        return self._form.footprint(table, itemsize, n_threads, budget)

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> PathArrays:
        """Return the partition into one cluster."""
        return path_of_one(rows, shift)

    def report(
        self, passes: Passes, rng: Rng, state: SearchState | PublishedState
    ) -> Mapping[str, float | str]:
        """Return the evaluations of the published form."""
        return self._form.report(passes, rng, state)
