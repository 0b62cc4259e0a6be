"""Truncated search with moves of centres: the fastest method here for any given cost.

Most distances that Lloyd's algorithm computes are needless: from one step to the next a row keeps
its centre, or goes to one nearby. So each row meets only the centres nearest to its own
(the truncated search of variational EM: J. Lücke, D. Forster, k-means as a
variational EM approximation of Gaussian mixture models, 2019; D. Forster, J. Lücke, Can clustering
scale sublinearly with its clusters?, AISTATS 2018), and not even those while distances kept from
earlier passes, widened by the movement of centres, prove that nothing can change (G. Hamerly,
Making k-means even faster, SDM 2010). Sums are exact and only rows that change cluster touch them.

If clusters overlap, centres keep moving in the same direction for long; so between the passes of a
round they overshoot the means of their rows.

Such steps end in the nearest local optimum. Moves leave it: they remove the centres whose rows
would lose least, and use them to split the clusters that gain most
(the swap of centres: P. Fränti, Efficiency of random swap clustering, J. Big Data 2018; many at a
time here). They are tried in rounds: some passes after the moves the cost is compared with the one
before, and if it is not lower, the round is undone.

The next step is chosen by gain per work (:mod:`~largek_dask.algorithms.truncated.schedule`): the
length of lists, when rows meet all centres, the number of passes in a round. The choice compares
exact costs, counted distances and estimates on a seeded sample; so the same data and seed give the
same steps on any machine. On data without structure, where a row's second choice may be anywhere,
lists soon become long.

A row's state (label and two distances) depends on the passes since the last anchor: these are kept,
and repeated where the state is lost (:mod:`~largek_dask.algorithms.truncated.passes`).
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
"""Cost of distances to lists for all rows at once, relative to those to all centres (measured)."""
COPIES, DENSE_COPIES = 72, 16
"""Maximum models in a checkpoint: with lists of near centres, and without."""
USUAL_STEPS = 120
"""Approximate number of steps of a search, including those on samples: from 30 to 335 on the sets
of ``benchmarks.auto``, half of them within 80 and 170."""
DISTANCES_PER_ROOT = 7.0
"""Cost of a row in a step, in distances, divided by the root of the number of clusters (seconds of
``benchmarks.auto`` and ``benchmarks.auto_scale``; 2 to 784 features, 500 to 32,000 clusters)."""

EitherState = TruncatedState | ProjectedState
"""State of a search in all features, or in few directions before it."""


@dataclass(frozen=True)
class Truncated(Algorithm[EitherState, KMeansProblem]):
    """Truncated search with moves of centres.

    Rows meet only the centres near their own, in passes of a few distances per row; in between,
    centres whose removal costs least are moved to where a split gains most, and moves that did not
    pay are undone. It ends at a lower cost than Lloyd's algorithm, and much sooner.

    Parameters
    ----------
    neighbours : int or "auto"
        Centres that a row meets in a pass, at least 2; "auto": as many as a probe finds best, and
        all of them if there are at most 128, or rows are sparse. Some passes search all of
        them in any case.
    moves : bool
        Move centres.
    rounds : int or "auto"
        Maximum rounds of moves (or of passes, without moves) over all rows; "auto": until they no
        longer pay. Rounds over samples come first and end when more rows pay better; with 0 there
        are none of them either.
    directions : int or "auto"
        Number of principal directions in which the search begins, before it continues in more of
        them and in all features. "auto": as few as hold most of the variance, with 128 features or
        more and if that saves time; 0: begin in all features, as with given centres. Projected rows
        are held in memory; if they have more than 2^26 values (256 MiB), a sample of them. If that
        is fewer than 64 rows per cluster, the search begins in all features.

    Notes
    -----
    A step is one pass. ``history_`` describes each in ``extra``: ``neighbours`` (the length of
    the lists, k if all centres were searched), ``everywhere`` (0: on one of the samples
    that the search begins on), ``moves`` (carried out in it), ``opens_round``, ``ends_round`` and
    ``back`` (the round was undone); and ``steps_per_reading``, the number of steps so far per
    reading of all rows. ``cost`` is computed from the present labels, and so is above the inertia:
    not every row is at its nearest centre. ``features`` is the number of directions in which it was
    found, or of all features. The search ends when five rounds have failed: they raised the cost,
    or lowered it by a share of less than ``tol / 50``. Sparse rows meet all centres, in all
    features.

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
        for name, value, least in (
            ("neighbours", self.neighbours, 2),
            ("rounds", self.rounds, 0),
            ("directions", self.directions, 0),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if value != "auto" and not whole:
                raise ParameterError(
                    f"{name} must be 'auto' or an integer of at least {least}, got {value!r}."
                )
        if not isinstance(self.moves, bool):
            raise ParameterError(f"moves must be True or False, got {self.moves!r}.")

    @property
    def _search(self) -> TruncatedSearch:
        return TruncatedSearch(self.problem, self.neighbours, self.moves, self.rounds)

    @property
    def _projected(self) -> ProjectedSearch:
        return ProjectedSearch(self._search, self.directions)

    def init(self, passes: Passes, rng: Rng) -> EitherState:
        """Return the state at the starting centres: by ``init``, or on two levels on a sample."""
        return self._projected.init(passes, rng) or self._search.init(passes, rng)

    def step(self, passes: Passes, rng: Rng, state: EitherState) -> tuple[EitherState, Info]:
        """Run one pass, and choose the next one."""
        if isinstance(state, ProjectedState):
            return self._projected.step(passes, rng, state)
        return self._search.step(passes, rng, state)

    def model(self, state: EitherState) -> CenterArrays:
        """Return the best model so far."""
        if isinstance(state, ProjectedState):
            return self._projected.model(state)
        return self._search.model(state)

    def labels(
        self, passes: Passes, rng: Rng, state: EitherState
    ) -> tuple[NDArray[np.int32], float, NDArray[np.float64]]:
        """Label rows by ``model(state)``, in one or two passes over few centres."""
        if isinstance(state, ProjectedState):
            state = self._projected.in_all_features(passes, state)
        return self._search.labels(passes, rng, state)

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory and work: rows meet few centres in a step, all in the last pass.

        A checkpoint has the centres, and their movements, of the passes since the last anchor.
        """
        k = self.problem.n_clusters
        full_search = "now and then, for rows whose bounds have become loose"
        if self.neighbours != "auto":
            distances = self.neighbours + ROW_WORK
        elif k <= DENSE_CLUSTERS or table.is_sparse:
            distances, full_search = float(k), "every row, at every step"
        else:
            distances = DISTANCES_PER_ROOT * sqrt(k)
        # The largest sample that is searched with its state; and, held with it, another one for
        # splits, or projected rows.
        splits, largest = split_rows(table.row_values, k), sample_sizes_of(table, k)[-1]
        kept = row_bytes(table.itemsize)
        searched = bytes_of_held(table, largest, table.itemsize, 2 * kept, 2)
        others = bytes_of_held(table, min(table.n_rows, splits), table.itemsize, 0)
        others = max(others, self._projected.held_bytes(table, table.itemsize))
        # In the labels' passes rows meet the centres of coarse cells, and then lists.
        met = sqrt(k) + NEAR_CELLS * k / sqrt(k) + max(USUAL_LENGTHS)
        label_share = min(1.0, GATHERED * (met + 2 * (ROW_WORK + PASS_WORK)) / k)
        return Footprint(
            row_bytes=kept,
            model_copies=DENSE_COPIES if self._search.setting(table).dense else COPIES,
            held_bytes=searched + others,
            passes_before=0,
            steps=USUAL_STEPS,
            distances=min(distances, float(k)),
            full_search=full_search,
            # Sparse rows meet all centres in any case.
            label_share=None if table.is_sparse else label_share,
        )
