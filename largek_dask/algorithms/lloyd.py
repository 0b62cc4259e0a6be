"""Lloyd's algorithm: exact k-means, one pass over all rows per step.

S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28 (1982), with which all
four papers that this package implements compare.

Each row keeps its label and, once few rows change theirs, bounds that save most of its distances
(:mod:`largek_dask.kernels.bounds`) and change no label. Sums are exact, so a pass updates them by
the rows whose label has changed, and they equal full sums, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Algorithm,
    Chunk,
    Footprint,
    Info,
    Passes,
    PlannedTable,
    Rng,
)
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.bounded import (
    Assignment,
    BoundsState,
    begin_bounds,
    calm_share,
    group_count,
    label_rows,
    row_bytes,
    with_bounds,
)
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.relocation import relocate_empty, returns
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.movement import squared_movement

__all__ = ["Lloyd", "LloydState", "assign_chunk"]


def assign_chunk(
    chunk: Chunk,
    total: AssignmentTotal[Tally],
    centers: PackedCenters | BoundedCenters,
    step: int,
) -> None:
    """Label a chunk's rows by their nearest centre and update the sums."""
    kept, n_evaluated = label_rows(chunk.x, centers, chunk.state)
    old = None if chunk.state is None else chunk.state["labels"]
    total.begin(step)
    total.assign(chunk.x, chunk.weight, old, kept["labels"], chunk.counted)
    total.tally.n_evaluated += n_evaluated
    chunk.keep(**kept)


@dataclass(frozen=True, slots=True)
class LloydState:
    """State between two steps of Lloyd's algorithm."""

    centers: NDArray[Any]
    """(k, d) centres that the next step assigns rows to."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last assignment."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""
    bounds: BoundsState | None
    """None: the next assignment computes all distances and leaves no bounds."""
    history: History[Assignment] = field(default_factory=History)
    """The last assignment, from which lost labels are recomputed."""

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.history.generation


@dataclass(frozen=True)
class Lloyd(Algorithm[LloydState, KMeansProblem]):
    """Exact k-means: every step assigns every row, then moves every centre to its rows' mean.

    With the same starting centres the result does not depend on how the rows are chunked, on
    the number of threads or workers, on the machine's vector width, or on the bounds.

    Parameters
    ----------
    bounds : {"auto", None}
        "auto": once few rows change their cluster, keep bounds for groups of centres, which save
        most distances, if there are many centres and row state has room. None: compute all
        distances in every step.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.Lloyd(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    bounds: Literal["auto"] | None = "auto"
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        if self.bounds not in ("auto", None):
            raise ParameterError(f"bounds must be 'auto' or None, got {self.bounds!r}.")

    def init(self, passes: Passes, rng: Rng) -> LloydState:
        """Return the state at the starting centres, with no rows assigned yet."""
        centers = initial_centers(passes, rng, self.problem.n_clusters, self.problem.init)
        return LloydState(centers, np.zeros(len(centers)), passes.statistics.shift, None)

    def footprint(self, table: PlannedTable) -> Footprint:
        """Estimate memory: labels, and as many bounds as row state has room for."""
        n_groups = group_count(table, self.problem.n_clusters) if self.bounds else 0
        return Footprint(
            row_bytes=row_bytes(n_groups), passes_before=self.problem.passes_to_start()
        )

    def step(self, passes: Passes, rng: Rng, state: LloydState) -> tuple[LloydState, Info]:
        """Assign all rows to ``state.centers``, move the centres to their rows' means."""
        k, d = state.centers.shape
        last, step = state.history.last, state.step + 1
        packed = pack_centers(state.centers, state.shift)
        total: AssignmentTotal[Tally] = passes.reduce(
            assign_chunk,
            with_bounds(packed, state.bounds),
            step,
            start=partial(AssignmentTotal, k, d, passes.statistics.grid),
            combine=AssignmentTotal.combine,
            state=state.history.next_state(
                "labels", lambda last: (last.pack(state.shift), state.step), retain=True
            ),
        )
        centers = total.sums.means(state.centers)
        counts, tally = total.sums.counts, total.tally
        # Mean variance of the features: what scikit-learn's `tol` is relative to.
        variance = total.squares.value / (passes.statistics.total_weight * d)
        n_groups = 0 if state.bounds is None else state.bounds.groups.n_groups
        extra = {
            "distances": tally.n_evaluated / (passes.n_rows * k),
            "row_state_bytes": float(row_bytes(n_groups)),
        }
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
            converged=(tally.n_changed == 0 and n_moved == 0)
            or returns(centers, None if last is None else last.centers),
            extra=extra,
        )
        bounds = self._next_bounds(passes, state, packed, centers, tally.n_changed)
        # Labels depend on the centres alone, so earlier passes are not needed.
        history = state.history.then(Assignment(state.centers, state.bounds), anchor=True)
        return LloydState(centers, counts, state.shift, bounds, history), info

    def _next_bounds(
        self,
        passes: Passes,
        state: LloydState,
        packed: PackedCenters,
        centers: NDArray[Any],
        n_changed: int,
    ) -> BoundsState | None:
        """Advance the bounds, or begin with them once few rows change their cluster."""
        if state.bounds is not None:
            return state.bounds.advance(packed, pack_centers(centers, state.shift))
        n_groups = group_count(passes, len(centers)) if self.bounds else 0
        if n_changed > calm_share(n_groups, *centers.shape) * passes.n_rows:
            return None
        return begin_bounds(centers, state.shift, n_groups)

    def model(self, state: LloydState) -> CenterArrays:
        """Return the centres that the next step would assign rows to."""
        return CenterArrays(state.centers, state.counts, state.shift)
