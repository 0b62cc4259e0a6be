"""What a nested batch adds up: one vote a row, exact sums, and whether the batch is large enough.

Equation numbers are those of J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.kernels.bounds import bounds
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two
from largek_dask.kernels.exact.movement import center_terms, squared_movements
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import Squares, row_squares
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint

__all__ = ["NestedTotal", "center_shifts", "cluster_sse", "growth_ratio", "nested_chunk"]

_NOTHING = {"labels": -1, "upper": np.inf, "lower": -np.inf}
"""What says nothing of a row: no label, and bounds that every test fails."""


class NestedTotal:
    """Exact statistics of the rows of a batch as they are labelled; may be retained.

    The counts of a step (``n_rows`` and so on) belong to that step alone: a total that was not
    touched in it still carries an older step's, which ``combine`` ignores.
    """

    __slots__ = (
        "loss",
        "n_changed",
        "n_evaluated",
        "n_moved",
        "n_rows",
        "squares",
        "step",
        "sums",
    )

    def __init__(self, k: int, d: int, grid: FixedPoint) -> None:
        self.sums = ClusterSums(k, d, grid)
        self.squares = Squares(k)
        """Sums of ``weight * ||x - shift||^2`` a cluster."""
        self.step = -1
        self.n_rows = 0
        """Rows that were assigned."""
        self.n_changed = 0
        """Rows of positive weight whose label changed or that entered."""
        self.n_moved = 0
        """Those of them that had been in the batch before."""
        self.n_evaluated = 0
        """Distances that were computed."""
        self.loss = ExactSums(k)
        """What every centre's removal would cost, in a step that looks for it."""

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return self.sums.nbytes + self.squares.nbytes + self.loss.nbytes

    def begin(self, step: int) -> None:
        """Start the counts of a step anew, if they are an older step's."""
        if step != self.step:
            self.step = step
            self.n_rows = self.n_changed = self.n_moved = self.n_evaluated = 0
            self.loss = ExactSums(self.loss.n_cells)

    def vote(
        self,
        x: NDArray[Any],
        old: NDArray[np.int32],
        new: NDArray[np.int32],
        weight: NDArray[np.float64] | None,
    ) -> None:
        """Take the rows' old votes back (-1: there is none) and let them vote anew."""
        self.sums.move(x, old, new, weight)
        differ = np.flatnonzero(old != new)
        squares = row_squares(x, self.sums.grid.shift, differ)
        weight = None if weight is None else weight[differ]
        self.squares.remove(squares, weight, old[differ])
        self.squares.add(squares, weight, new[differ])

    @staticmethod
    def combine(a: NestedTotal, b: NestedTotal) -> NestedTotal:
        """Add ``b`` into ``a``."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        if b.step >= a.step:
            a.begin(b.step)
            a.n_rows += b.n_rows
            a.n_changed += b.n_changed
            a.n_moved += b.n_moved
            a.n_evaluated += b.n_evaluated
            a.loss.merge(b.loss)
        return a


def nested_chunk(
    chunk: Chunk,
    total: NestedTotal,
    centers: PackedCenters | BoundedCenters,
    step: int,
    looks: bool,
) -> None:
    """Label the batch's rows of a chunk by their nearest centre and let each vote once.

    Where ``looks``, also find what it would cost to remove each centre.
    """
    total.begin(step)
    carried = _carried(chunk)
    old = carried["labels"]
    if isinstance(centers, BoundedCenters):
        kept, margins, n_evaluated = _bounded(chunk.x, centers, carried, looks)
    else:
        labels, margins = assigned(chunk.x, centers, looks)
        kept, n_evaluated = {"labels": labels}, len(labels) * centers.n_clusters
    labels = kept["labels"]
    if margins is not None:
        total.loss.add(margins, chunk.weight, labels)
    total.vote(chunk.x, old if chunk.counted else np.full_like(old, -1), labels, chunk.weight)
    differ = labels != old
    # A row of weight 0 is absent: what happens to its label must not hold back a stop.
    if chunk.weight is not None:
        differ &= chunk.weight > 0
    total.n_rows += len(labels)
    total.n_changed += int(np.count_nonzero(differ))
    total.n_moved += int(np.count_nonzero(differ & (old >= 0)))
    total.n_evaluated += n_evaluated
    if chunk.rows is not None:
        kept["rows"] = chunk.rows.astype(np.int32)
    chunk.keep(**kept)


def assigned(
    x: NDArray[Any], centers: PackedCenters, looks: bool
) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Nearest centre of each row and, where ``looks``, by how much the second is farther.

    The latter is a difference of squared distances: what the row would cost more if its centre
    were removed.
    """
    if not looks:
        return nearest(x, centers), None
    labels, first, _, second = nearest_two(x, centers)
    return labels, (second - first).astype(np.float64)


def _carried(chunk: Chunk) -> dict[str, NDArray[Any]]:
    """Labels, and bounds if there are any, of the step before, for the rows of now.

    Rows that enter now have the label -1 and bounds that hold whatever comes.
    """
    n, state = len(chunk.x), chunk.state
    if state is None:
        return {"labels": np.full(n, -1, np.int32)}
    names = [name for name in ("labels", "upper", "lower") if name in state]
    if len(state["labels"]) == n:
        return {name: state[name] for name in names}
    # The batch has grown: its rows of before lie among those of now, in the same order.
    before = state["rows"]
    places = before if chunk.rows is None else np.searchsorted(chunk.rows, before)
    out = {}
    for name in names:
        old = state[name]
        out[name] = np.full((n, *old.shape[1:]), _NOTHING[name], old.dtype)
        out[name][places] = old
    return out


def _bounded(
    x: NDArray[Any], centers: BoundedCenters, carried: dict[str, NDArray[Any]], looks: bool
) -> tuple[dict[str, NDArray[Any]], NDArray[np.float64] | None, int]:
    """What to keep of each row, its margin where ``looks``, and the distances computed."""
    old = carried["labels"]
    n, k = len(x), centers.packed.n_clusters
    if "lower" not in carried:
        upper = np.full(n, _NOTHING["upper"], np.float32)
        lower = np.full((n, centers.n_groups), _NOTHING["lower"], np.float32)
        enters = np.ones(n, np.bool_)
    else:
        upper, lower, enters = carried["upper"].copy(), carried["lower"].copy(), old < 0
    if looks:
        labels, margins = assigned(x, centers.packed, True)
        # Bounds are of the other centres than the own one: those of another label say nothing.
        other = labels != old
        upper[other], lower[other] = _NOTHING["upper"], _NOTHING["lower"]
        return {"labels": labels, "upper": upper, "lower": lower}, margins, n * k
    if enters.all():
        labels, upper, lower, n_evaluated = bounds.start(x, centers)
    elif not enters.any():
        labels = old.copy()
        n_evaluated = bounds.assign(x, centers, labels, upper, lower)
    else:
        labels, n_evaluated = old.copy(), 0
        for rows in (np.flatnonzero(enters), np.flatnonzero(~enters)):
            if enters[rows[0]]:
                *part, count = bounds.start(x[rows], centers)
            else:
                part = [labels[rows], upper[rows], lower[rows]]
                count = bounds.assign(x[rows], centers, *part)
            labels[rows], upper[rows], lower[rows] = part
            n_evaluated += count
    return {"labels": labels, "upper": upper, "lower": lower}, None, n_evaluated


def cluster_sse(total: NestedTotal, centers: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) weighted squared distances of each cluster's rows to its row of ``centers``.

    Features are added one after the other, so that no vector width shows.
    """
    grid = total.sums.grid
    dot, norm = center_terms(centers, grid.shift, total.sums.totals)
    found = total.squares.values - 2.0 * (dot * 2.0**-grid.bits) + norm * total.sums.counts
    # Rounding may leave a little less than nothing where all rows lie on the centre.
    out: NDArray[np.float64] = np.maximum(found, 0.0)
    return out


def center_shifts(new: NDArray[Any], old: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) distances p(j) by which the centres moved, features added one after the other."""
    return np.sqrt(squared_movements(new, old))


def growth_ratio(
    sse: NDArray[np.float64],
    counts: NDArray[np.float64],
    moved: NDArray[np.float64],
    unit: float = 1.0,
) -> float:
    """Smallest sigma_C(j) / p(j) over the clusters that vote (equation 4); infinity if none does.

    Parameters
    ----------
    sse, counts, moved : (k,) float64
        Squared distances within each cluster, its weight, and its centre's movement p(j).
    unit : float
        What counts as one row: v(j) is the weight in this unit, so that it does not matter
        in which one the weights are given.
    """
    v = counts / unit
    votes = (v > 1) & (moved > 0)
    v = v[votes]
    ratios = np.sqrt(sse[votes] / unit / (v * (v - 1))) / moved[votes]
    return float(ratios.min(initial=np.inf))
