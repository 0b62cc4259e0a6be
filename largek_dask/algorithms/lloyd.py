"""Lloyd's algorithm: exact k-means, one pass over all rows a step.

S. Lloyd, Least squares quantization in PCM, IEEE Trans. Inf. Theory 28 (1982); the starting
point and the yardstick of all four papers this package implements.

What is kept per row is its label. Centroid sums are exact, so a pass touches the sums of only
those rows whose label has changed, and the result is that of a full summation, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import (
    Chunk,
    Info,
    KMeansProblem,
    ModelArrays,
    Passes,
    Rng,
    RowState,
)
from largek_dask.algorithms.relocation import relocate_empty
from largek_dask.algorithms.seeding import initial_centers
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers
from largek_dask.kernels.movement import squared_movement
from largek_dask.kernels.sums import ClusterSums, FixedPoint, Squares

__all__ = ["AssignTotal", "Lloyd", "LloydState", "assign_chunk"]


class AssignTotal:
    """Sufficient statistics of an assignment of all rows, exact and mergeable.

    ``sums`` and ``squares`` describe the rows as they are labelled now and may be retained
    between passes. ``n_changed`` belongs to one step: a total that was not touched in this step
    still carries an older step's count, which ``combine`` ignores.
    """

    __slots__ = ("n_changed", "squares", "step", "sums")

    def __init__(self, k: int, d: int, grid: FixedPoint) -> None:
        self.sums = ClusterSums(k, d, grid)
        self.squares = Squares(1)
        self.step = -1
        self.n_changed = 0

    def count_changed(self, step: int, n: int) -> None:
        """Add ``n`` changed labels to the count of ``step``."""
        if step != self.step:
            self.step, self.n_changed = step, 0
        self.n_changed += n

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return self.sums.nbytes + self.squares.nbytes

    @staticmethod
    def combine(a: AssignTotal, b: AssignTotal) -> AssignTotal:
        """Add ``b`` into ``a``."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        if b.step > a.step:
            a.step, a.n_changed = b.step, b.n_changed
        elif b.step == a.step:
            a.n_changed += b.n_changed
        return a


def assign_chunk(chunk: Chunk, total: AssignTotal, centers: PackedCenters, step: int) -> None:
    """Label a chunk's rows by their nearest centre and bring the sums up to date."""
    labels = nearest(chunk.x, centers)
    old = None if chunk.state is None else chunk.state["labels"]
    if old is not None and chunk.counted:
        total.sums.move(chunk.x, old, labels, chunk.weight)
    else:
        total.sums.add(chunk.x, labels, chunk.weight)
        total.squares.add_squares(chunk.x, total.sums.grid.shift, chunk.weight)
    # A row of weight 0 is absent: what happens to its label must not hold back a stop.
    changed = np.ones(len(labels), bool) if old is None else labels != old
    if chunk.weight is not None:
        changed &= chunk.weight > 0
    total.count_changed(step, int(np.count_nonzero(changed)))
    chunk.keep(labels=labels)


@dataclass(frozen=True, slots=True)
class LloydState:
    """Between two steps of Lloyd's algorithm."""

    step: int
    centers: NDArray[Any]
    """(k, d) centres that the next step assigns rows to."""
    previous: NDArray[Any] | None
    """(k, d) centres of the last assignment: a lost chunk's labels are rebuilt from them."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster in the last assignment."""
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""


@dataclass(frozen=True)
class Lloyd:
    """Exact k-means: every step assigns every row, then moves every centre to its rows' mean.

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

    problem: KMeansProblem | None = field(default=None, repr=False, kw_only=True)

    def init(self, passes: Passes, rng: Rng) -> LloydState:
        """Starting centres, no rows assigned yet."""
        assert self.problem is not None
        centers = initial_centers(passes, rng, self.problem.n_clusters, self.problem.init)
        return LloydState(0, centers, None, np.zeros(len(centers)), passes.statistics.shift)

    def step(self, passes: Passes, rng: Rng, state: LloydState) -> tuple[LloydState, Info]:
        """Assign all rows to ``state.centers``, move the centres to their rows' means."""
        assert self.problem is not None
        k, d = state.centers.shape
        step = state.step + 1
        packed = pack_centers(state.centers, state.shift)
        total: AssignTotal = passes.reduce(
            assign_chunk,
            packed,
            step,
            start=partial(AssignTotal, k, d, passes.statistics.grid),
            combine=AssignTotal.combine,
            state=RowState("labels", step, _replay(state), retain=True),
        )
        centers = total.sums.means(state.centers)
        counts = total.sums.counts
        # Mean variance of the features: what scikit-learn's `tol` is relative to.
        variance = total.squares.value / (passes.statistics.total_weight * d)
        extra = {}
        empty = np.flatnonzero(counts == 0)
        n_moved = 0
        if len(empty) and self.problem.empty_clusters == "relocate":
            centers, n_moved = relocate_empty(passes, packed, centers, empty)
            extra = {"relocated": float(n_moved)}
        info = Info(
            cost=total.sums.cost(state.centers, total.squares),
            rows=passes.n_rows,
            n_changed=total.n_changed,
            shift=squared_movement(centers, state.centers) / variance if variance > 0 else 0.0,
            converged=total.n_changed == 0 and n_moved == 0,
            extra=extra,
        )
        return LloydState(step, centers, state.centers, counts, state.shift), info

    def model(self, state: LloydState) -> ModelArrays:
        """The centres that the next step would assign rows to."""
        return ModelArrays(state.centers, state.counts, state.shift)


def _replay(state: LloydState) -> tuple[tuple[Any, ...], ...]:
    """Broadcasts that rebuild the labels of the last assignment."""
    if state.previous is None:
        return ()
    return ((pack_centers(state.previous, state.shift), state.step),)
