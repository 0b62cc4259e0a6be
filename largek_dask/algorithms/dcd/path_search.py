"""Every partition into up to k clusters, near the lowest there is: the search as an algorithm.

Rows that fit into the process that drives the fit are searched there (:mod:`.stages`), in float64.
Of larger tables a weighted sample is, which always holds the rows that lie farthest out; all rows
are then assigned to all partitions in one reading a pass (:mod:`.passes`), and each partition ends
where Lloyd's algorithm stands still. In one dimension partitions are the optimal ones.

In the end the objective of each partition is counted, exactly, and what is certain of it is found:
a lower bound, and how still it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Info, Outlook, Passes, Rng, TableShape
from largek_dask.algorithms.choices import Effort
from largek_dask.algorithms.dcd.arrays import FIGURES, PathArrays, centers_in, packed, rows_of_path
from largek_dask.algorithms.dcd.memory import check_path_memory
from largek_dask.algorithms.dcd.passes import PathState, begin_path, count_pass, path_step
from largek_dask.algorithms.dcd.samples import Sample, draw_far, draw_sample
from largek_dask.algorithms.dcd.search import Search, standstill
from largek_dask.algorithms.dcd.stability import split_half_stability
from largek_dask.algorithms.dcd.stages import PLANS, Book, Plan, pieces
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.parts.spectrum import lower_bounds
from largek_dask.errors import ParameterError
from largek_dask.kernels.descent import Rows
from largek_dask.kernels.one_dimension import at_least, distinct, optimal_partitions
from largek_dask.kernels.threads import ALONE

__all__ = ["PathSearch", "SearchState"]

MOST_ROWS, MOST_VALUES = 1 << 17, 1 << 23
"""Rows, and their values, that are searched themselves: 64 MB, and as much transposed."""
ROWS_A_CLUSTER, LEAST_ROWS = 256, 1 << 15
"""Rows of a sample for each cluster of the last partition, and at least."""
BEYOND, SHARE = 5, 10
"""How far beyond the number asked for partitions are searched: so many, or one in so many."""
MOST_DISTINCT = 1 << 20
"""Distinct values of one dimension that are solved exactly."""
MOST_CLUSTERS = 128
"""Clusters up to which they are."""
STABLE_CLUSTERS = 32
"""Partitions of two halves are compared up to so many clusters: beyond nobody asks which."""

Floats = NDArray[np.float64]
STABILITY = Plan(down=False, drawn=40, kept=2, steps=2)
"""How the partitions of a half of a sample are found."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """Between two steps."""

    step: int
    wanted: int
    """Clusters of the last partition that is asked for."""
    shift: NDArray[Any]
    """(d,) origin of the kernels, compute dtype."""
    origin: Floats
    """(d,) what is taken off the rows that are searched: their mean."""
    work: int
    """Pieces of work that are done."""
    partitions: Floats
    """(l (l + 1) / 2, d) packed centres of all partitions so far, about ``origin``."""
    costs: Floats
    """(l,) objectives of these, of the rows that are searched."""
    tried: NDArray[np.int64]
    """(3, l) ``changes``, ``grown`` and ``shrunk`` of the book of the search."""
    members: Floats
    """Packed centres of populations."""
    member_sizes: NDArray[np.int64]
    """Clusters of each member."""
    member_costs: Floats
    """Objective of each."""
    n_settled: int
    """Partitions that have been settled, or given up on their way."""
    n_steps: int
    """Lloyd steps that were taken."""
    is_whole: bool
    """All rows are searched themselves."""
    is_exact: bool
    """Partitions are optimal: there is one dimension."""
    n_distinct: int | None
    """Distinct rows, where the path ends for lack of others; else None."""
    sample: tuple[NDArray[np.int64], Floats] | None
    """Rows of the sample that is searched instead, and what their weights are multiplied by."""
    passes: PathState | None
    """Passes over all rows; None before."""
    bounds: Floats
    """(wanted,) lower bounds."""
    found: PathArrays | None
    """All that there is to say, once it is counted."""

    @property
    def length(self) -> int:
        """Partitions so far that are asked for."""
        return min(self.wanted, len(self.costs))


@dataclass(frozen=True)
class PathSearch(Algorithm[SearchState]):
    """All partitions into up to k clusters; a step is a piece of a stage, or a pass.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
        Which stages there are.
    """

    effort: Effort = "balanced"
    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    # --- what is known before -----------------------------------------------------------------

    def check(self, table: TableShape) -> None:
        """Refuse sparse rows, starting centres, and more partitions than memory holds."""
        refuse_what_it_cannot(table, self.problem)

    @property
    def state_copies(self) -> int:
        """Partitions up to the last, in float64 about the origin and as they are given back."""
        k = 1 if self.problem is None else self.problem.n_clusters
        return 2 + 3 * (length_of_search(k) + 1) // 2 * (2 if PLANS[self.effort].members else 1)

    def outlook(self, table: TableShape, k: int) -> Outlook:
        """What is read: once where rows are held, else for a sample and every path pass."""
        held = searched_themselves(table)
        rows = min(table.n_rows, rows_of_sample(k)) if not held else table.n_rows
        before = 2 if held else 6
        return Outlook(before, 1, rows, "all partitions are counted in the end, in one reading")

    # --- steps --------------------------------------------------------------------------------

    def init(self, passes: Passes, rng: Rng) -> SearchState:
        """The partition into one cluster, and lower bounds."""
        assert self.problem is not None
        wanted, statistics = self.problem.n_clusters, passes.statistics
        d = passes.n_features
        whole = searched_themselves(passes)
        sample = None
        if not whole and d > 1:
            drawn = draw_sample(passes, rng, rows_of_sample(wanted), max(64, wanted))
            sample = drawn.rows, drawn.factors
        none = np.zeros(0)
        return SearchState(
            step=0,
            wanted=wanted,
            shift=statistics.shift,
            origin=statistics.mean,
            work=0,
            partitions=np.zeros((1, d)),
            costs=np.array([np.inf]),
            tried=np.array([[0], [-1], [-1]]),
            members=np.zeros((0, d)),
            member_sizes=np.zeros(0, np.int64),
            member_costs=none,
            n_settled=0,
            n_steps=0,
            is_whole=whole,
            is_exact=False,
            n_distinct=None,
            sample=sample,
            passes=None,
            bounds=lower_bounds(passes, wanted),
            found=None,
        )

    def step(self, passes: Passes, rng: Rng, state: SearchState) -> tuple[SearchState, Info]:
        """One piece of work."""
        assert self.problem is not None
        plan = PLANS[self.effort]
        work = list(pieces(plan, length_of_search(state.wanted)))
        rows = passes.n_rows
        if state.work == 0 and passes.n_features == 1 and state.wanted <= MOST_CLUSTERS:
            solved = solve_line(passes, state)
            if solved is not None:
                state = replace(solved, work=len(work))
                return self._told(state, rows)
        if state.work < len(work) and not state.is_exact:
            state, rows = self._search(passes, rng, state, work)
        elif not (state.is_whole or state.is_exact) and not _at_rest(state):
            state = self._pass(passes, state)
        else:
            state = count(passes, rng, state)
        return self._told(state, rows)
'''
'''
