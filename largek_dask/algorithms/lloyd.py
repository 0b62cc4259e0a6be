"""Lloyd's algorithm: exact k-means, one pass over all rows per step.

S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28 (1982). All four papers
implemented in this package compare with this algorithm.

The labels of all rows are stored, and sums are exact. A pass therefore updates the sums only for
rows with a new label, and the result is bit-identical to a full summation. Distance bounds
(Hamerly, Elkan, groups of centres) are not stored, because an exact search that skips most centres
(:mod:`largek_dask.kernels.bounds.pruned`) takes less time than testing and updating bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Algorithm, Chunk, Footprint, Info, Passes, PlannedTable, Rng
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.movement import squared_movement


def assign_chunk(
    chunk: Chunk, total: AssignmentTotal[Tally], centers: PackedCenters, step: int
) -> None:
    """Label a chunk's rows by their nearest centre and update the sums."""
    labels, _ = nearest_pruned(chunk.x, centers)
    old = None if chunk.state is None else chunk.state["labels"]
    total.begin(step)
    total.assign(chunk.x, chunk.weight, old, labels, chunk.counted)
    chunk.keep(labels=labels)


@dataclass(frozen=True, slots=True)
class LloydState:
    centers: NDArray[Any]
    counts: NDArray[np.float64]
    shift: NDArray[Any]
    history: History[NDArray[Any]] = field(default_factory=History)
    """Centres of the last assignment, from which lost labels are recomputed."""

    @property
    def step(self) -> int:
        return self.history.generation


@dataclass(frozen=True)
class Lloyd(Algorithm[LloydState, KMeansProblem]):
    """Exact k-means: each step assigns all rows, then moves each centre to the mean of its rows.

    With the same starting centres the result does not depend on how the rows are chunked, on
    the number of threads or workers, or on the machine's vector width.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.Lloyd(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def init(self, passes: Passes, rng: Rng) -> LloydState:
        centers = initial_centers(passes, rng, self.problem.n_clusters, self.problem.init)
        return LloydState(centers, np.zeros(len(centers)), passes.statistics.shift)

    def footprint(self, table: PlannedTable) -> Footprint:
        return Footprint(row_bytes=4, passes_before=self.problem.passes_to_start())

    def step(self, passes: Passes, rng: Rng, state: LloydState) -> tuple[LloydState, Info]:
        """Assign all rows to ``state.centers``, then move the centres to their rows' means."""
        k, d = state.centers.shape
        last, step = state.history.last, state.step + 1
        packed = pack_centers(state.centers, state.shift)
        total: AssignmentTotal[Tally] = passes.reduce(
            assign_chunk,
            packed,
            step,
            start=partial(AssignmentTotal, k, d, passes.statistics.grid),
            combine=AssignmentTotal.combine,
            state=state.history.next_state(
                "labels", lambda last: (pack_centers(last, state.shift), state.step), retain=True
            ),
        )
        centers = total.sums.means(state.centers)
        counts, tally = total.sums.counts, total.tally
        # scikit-learn's `tol` is relative to the mean variance of the features.
        variance = total.squares.value / (passes.statistics.total_weight * d)
        extra: dict[str, float] = {}
        empty = np.flatnonzero(counts == 0)
        n_moved = 0
        if len(empty) and self.problem.empty_clusters == "relocate":
            centers, n_moved, _ = relocate_empty(passes, packed, centers, empty)
            extra["relocated"] = float(n_moved)
        info = Info(
            cost=total.sums.cost(state.centers, total.squares.value),
            rows=passes.n_rows,
            n_changed=tally.n_changed,
            shift=squared_movement(centers, state.centers) / variance if variance > 0 else 0.0,
            converged=(tally.n_changed == 0 and n_moved == 0) or returns(centers, last),
            extra=extra,
        )
        # Lost labels can be rebuilt from these centres alone, without earlier passes.
        history = state.history.then(state.centers, anchor=True)
        return LloydState(centers, counts, state.shift, history), info

    def model(self, state: LloydState) -> CenterArrays:
        return CenterArrays(state.centers, state.counts, state.shift)
