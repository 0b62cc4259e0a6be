"""Truncated search with moves: k-means that compares each row with only a few centres.

Most distances that Lloyd's algorithm computes are unnecessary: from one step to the next, a row
keeps its centre or changes to a centre nearby. So each row is compared only with the centres
nearest to its current centre (the truncated search of variational EM: J. Lücke, D. Forster, k-means
as a variational EM approximation of Gaussian mixture models, 2019; D. Forster, J. Lücke, Can
clustering scale sublinearly with its clusters?, AISTATS 2018). A row is skipped while bounds,
computed in earlier passes and widened by the movement of centres, prove that its label cannot
change (G. Hamerly, Making k-means even faster, SDM 2010). Sums are exact, and only rows that change
cluster update them.

If clusters overlap, centres keep moving in the same direction for many passes. Therefore, between
the passes of a round, centres move beyond the means of their rows.

These passes alone end in a local optimum. Moves escape from it: they remove the centres whose
removal costs least, and split the clusters that gain most from a split (swaps of centres: P.
Fränti, Efficiency of random swap clustering, J. Big Data 2018; here many at a time). Some passes
after the moves, the cost is compared with the cost before them, and the moves are undone unless the
cost is lower.

The next step is chosen by its gain per unit of work
(:mod:`~largek_dask.algorithms.truncated.schedule`). The choice depends on exact costs, counted
distances and estimates on a seeded sample, so the same data and seed give the same steps on any
machine.

The state of a row (a label and two distances) depends on the passes since the last anchor, which is
a pass that ignores earlier state. If row state is lost, these passes are repeated
(:mod:`~largek_dask.algorithms.truncated.passes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Footprint, Info, Passes, PlannedTable, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.gathered import bytes_of_held
from largek_dask.algorithms.problem import check_integer
from largek_dask.algorithms.truncated.lists import NEAR_CELLS
from largek_dask.algorithms.truncated.projected import ProjectedSearch, ProjectedState
from largek_dask.algorithms.truncated.schedule import (
    DENSE_CLUSTERS,
    PASS_WORK,
    ROW_WORK,
    USUAL_LENGTHS,
)
from largek_dask.algorithms.truncated.search import (
    TruncatedSearch,
    row_bytes,
    sample_sizes_of,
    split_rows,
)
from largek_dask.algorithms.truncated.state import TruncatedState
from largek_dask.errors import ParameterError

GATHERED = 2.0
"""Time per distance in a search of lists, relative to a search of all centres (measured)."""
COPIES, DENSE_COPIES = 24, 16
"""Maximum number of models in a checkpoint, for searches with lists of near centres (besides those
that are replayed when a round begins) and without."""
USUAL_STEPS = 120
"""Approximate number of steps of a search, including steps on samples. Searches on the data sets of
``benchmarks.auto`` took 30 to 335 steps, and half of them took 80 to 170."""
DISTANCES_PER_ROOT = 7.0
"""Work per row and step, in distances, divided by the square root of the number of clusters
(measured by ``benchmarks.auto`` and ``benchmarks.auto_scale``; 2 to 784 features, 500 to 32,000
clusters)."""

EitherState = TruncatedState | ProjectedState


@dataclass(frozen=True)
class Truncated(Algorithm[EitherState, KMeansProblem]):
    """Truncated search with moves of centres.

    A pass compares each row only with a few centres near its current centre. Between passes,
    centres whose removal costs least move to the clusters that gain most by a split; moves that do
    not lower the cost are undone. The search usually reaches a lower cost than Lloyd's algorithm in
    much less time.

    Parameters
    ----------
    neighbours : int or "auto"
        Number of centres that a row is compared with in a pass, at least 2. "auto": the number that
        a probe finds best, or all centres if there are at most 128 or rows are sparse. Some
        passes search all centres in any case.
    moves : bool
        Move centres.
    rounds : int or "auto"
        Maximum number of rounds of moves (or of passes, without moves) over all rows; "auto":
        continue until rounds no longer lower the cost. Rounds over samples come first; with 0 there
        are no rounds over samples either.
    directions : int or "auto"
        Number of principal directions in which the search begins; it continues in more directions
        and then in all features. "auto": the smallest number that holds most of the variance, if
        there are at least 128 features and this saves time; otherwise, these and random directions,
        a sixth of the features in all, if near rows stay near. 0: begin in all features, as with
        given centres. Projected rows are held in memory. If they have more than 2^26 values (256
        MiB), only a sample is used; if that has fewer than 64 rows per cluster, the search begins
        in all features.

    Notes
    -----
    A step is one pass. ``history_`` describes each step in ``extra``: ``neighbours`` (length of
    the lists, or k if all centres were searched), ``everywhere`` (1 for a pass over all rows, 0 for
    one over a sample), ``moves`` (number of moves carried out), ``opens_round``, ``ends_round``,
    ``back`` (1 if the round was undone), ``features`` (number of directions or features of the
    search) and ``steps_per_reading`` (steps so far per reading of all rows). ``cost`` is computed
    from the current labels and is above the inertia, because not every row is at its nearest
    centre. The search ends when five rounds have failed, that is, raised the cost or lowered it by
    a share of less than ``tol / 50``. Sparse rows are compared with all centres, in all features.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.Truncated(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    neighbours: int | Literal["auto"] = "auto"
    moves: bool = True
    rounds: int | Literal["auto"] = "auto"
    directions: int | Literal["auto"] = "auto"
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        for name, least in (("neighbours", 2), ("rounds", 0), ("directions", 0)):
            if (value := getattr(self, name)) != "auto":
                check_integer(name, value, least)
        if not isinstance(self.moves, bool):
            raise ParameterError(f"moves must be True or False, got {self.moves!r}.")

    @property
    def _search(self) -> TruncatedSearch:
        return TruncatedSearch(self.problem, self.neighbours, self.moves, self.rounds)

    @property
    def _projected(self) -> ProjectedSearch:
        return ProjectedSearch(self._search, self.directions)

    def init(self, passes: Passes, rng: Rng) -> EitherState:
        return self._projected.init(passes, rng) or self._search.init(passes, rng)

    def step(self, passes: Passes, rng: Rng, state: EitherState) -> tuple[EitherState, Info]:
        if isinstance(state, ProjectedState):
            return self._projected.step(passes, rng, state)
        return self._search.step(passes, rng, state)

    def model(self, state: EitherState) -> CenterArrays:
        if isinstance(state, ProjectedState):
            return self._projected.model(state)
        return self._search.model(state)

    def labels(
        self, passes: Passes, rng: Rng, state: EitherState
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]]:
        if isinstance(state, ProjectedState):
            state = self._projected.in_all_features(passes, state)
        return self._search.labels(passes, rng, state)

    def footprint(self, table: PlannedTable) -> Footprint:
        k = self.problem.n_clusters
        full_search = "now and then, for rows whose bounds have become loose"
        if self.neighbours != "auto":
            distances = self.neighbours + ROW_WORK
        elif k <= DENSE_CLUSTERS or table.is_sparse:
            distances, full_search = float(k), "every row, at every step"
        else:
            distances = DISTANCES_PER_ROOT * sqrt(k)
        # The driver holds the largest sample, and a sample for splits or the projected rows.
        splits, largest = split_rows(table.row_values, k), sample_sizes_of(table, k)[-1]
        kept = row_bytes(table.itemsize)
        searched = bytes_of_held(table, largest, table.itemsize, 2 * kept, 2)
        others = bytes_of_held(table, min(table.n_rows, splits), table.itemsize, 0)
        others = max(others, self._projected.held_bytes(table, table.itemsize))
        setting = self._search.setting(table)
        # ``labels`` compares rows with coarse centres, centres of near cells, and lists.
        met = sqrt(k) + NEAR_CELLS * k / sqrt(k) + max(USUAL_LENGTHS)
        label_share = min(1.0, GATHERED * (met + 2 * (ROW_WORK + PASS_WORK)) / k)
        return Footprint(
            row_bytes=kept,
            model_copies=DENSE_COPIES if setting.dense else setting.most_replayed + COPIES,
            held_bytes=searched + others,
            passes_before=0,
            steps=USUAL_STEPS,
            distances=min(distances, float(k)),
            full_search=full_search,
            label_share=None if table.is_sparse else label_share,
        )
