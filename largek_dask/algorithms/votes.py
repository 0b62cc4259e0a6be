"""What a nested batch adds up: one vote a row, exact sums, and whether the batch is large enough.

Equation numbers are those of J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two
from largek_dask.kernels.exact import ExactSums
from largek_dask.kernels.sums import ClusterSums, FixedPoint, Squares, row_squares

__all__ = ["NestedTotal", "center_shifts", "cluster_sse", "growth_ratio", "nested_chunk"]


class NestedTotal:
    """Exact statistics of the rows of a batch as they are labelled; may be retained.

    The counts of a step (``n_rows`` and so on) belong to that step alone: a total that was not
    touched in it still carries an older step's, which ``combine`` ignores.
    """

    __slots__ = ("loss", "n_changed", "n_moved", "n_rows", "squares", "step", "sums")

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
        self.loss = ExactSums(k)
        """What every centre's removal would cost, in a step that looks for it."""

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return self.sums.nbytes + self.squares.nbytes + self.loss.nbytes

    def begin(self, step: int) -> None:
        """Start the counts of a step anew, if they are an older step's."""
        if step != self.step:
            self.step, self.n_rows, self.n_changed, self.n_moved = step, 0, 0, 0
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
        if len(differ) < len(x):
            x, old, new = x[differ], old[differ], new[differ]
            weight = None if weight is None else weight[differ]
        squares = row_squares(x, self.sums.grid.shift)
        self.squares.remove(squares, weight, old)
        self.squares.add(squares, weight, new)

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
            a.loss.merge(b.loss)
        return a


def nested_chunk(
    chunk: Chunk, total: NestedTotal, centers: PackedCenters, step: int, looks: bool
) -> None:
    """Label the batch's rows of a chunk by their nearest centre and let each vote once.

    Where ``looks``, also find what it would cost to remove each centre.
    """
    total.begin(step)
    old = carried_labels(chunk)
    labels, margins = assigned(chunk.x, centers, looks)
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
    if chunk.rows is None:
        chunk.keep(labels=labels)
    else:
        chunk.keep(labels=labels, rows=chunk.rows.astype(np.int32))


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


def carried_labels(chunk: Chunk) -> NDArray[np.int32]:
    """(n,) labels of the step before; -1 for rows that enter now."""
    if chunk.state is None:
        return np.full(len(chunk.x), -1, np.int32)
    labels: NDArray[np.int32] = chunk.state["labels"]
    if len(labels) == len(chunk.x):
        return labels
    # The batch has grown: its rows of before lie among those of now, in the same order.
    before = chunk.state["rows"]
    places = before if chunk.rows is None else np.searchsorted(chunk.rows, before)
    out = np.full(len(chunk.x), -1, np.int32)
    out[places] = labels
    return out


def cluster_sse(total: NestedTotal, centers: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) weighted squared distances of each cluster's rows to its row of ``centers``.

    Features are added one after the other, so that no vector width shows.
    """
    grid = total.sums.grid
    shift = grid.shift.astype(np.float64)
    away = (centers.astype(np.float64) - shift).T.copy()
    sums = total.sums.sums.T.astype(np.float64)
    dot, norm = np.zeros(len(centers)), np.zeros(len(centers))
    for c, s in zip(away, sums, strict=True):
        dot += c * s
        norm += c * c
    found = total.squares.values - 2.0 * (dot * 2.0**-grid.bits) + norm * total.sums.counts
    # Rounding may leave a little less than nothing where all rows lie on the centre.
    out: NDArray[np.float64] = np.maximum(found, 0.0)
    return out


def center_shifts(new: NDArray[Any], old: NDArray[Any]) -> NDArray[np.float64]:
    """(k,) distances p(j) by which the centres moved, features added one after the other."""
    squared = np.zeros(len(new))
    for difference in (new.astype(np.float64) - old.astype(np.float64)).T.copy():
        squared += difference * difference
    return np.sqrt(squared)


def growth_ratio(
    sse: NDArray[np.float64], counts: NDArray[np.float64], moved: NDArray[np.float64]
) -> float:
    """Smallest sigma_C(j) / p(j) over the clusters that vote (equation 4); infinity if none does.

    Parameters
    ----------
    sse, counts, moved : (k,) float64
        Squared distances within each cluster, its weight v(j), and its centre's movement p(j).
    """
    votes = (counts > 1) & (moved > 0)
    v = counts[votes]
    ratios = np.sqrt(sse[votes] / (v * (v - 1))) / moved[votes]
    return float(ratios.min(initial=np.inf))
