"""What a nested batch adds up: one vote a row, exact sums, and whether the batch is large enough.

Equation numbers are those of J. Newling, F. Fleuret, Nested Mini-Batch K-Means, NIPS 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.parts.totals import AssignmentTotal, Tally
from largek_dask.kernels.bounds import bounds
from largek_dask.kernels.bounds.groups import BoundedCenters
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two
from largek_dask.kernels.exact.movement import center_terms, squared_movements
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import FixedPoint

__all__ = [
    "NestedTotal",
    "center_shifts",
    "cluster_sse",
    "growth_ratio",
    "nested_chunk",
    "nested_total",
]

_NOTHING = {"labels": -1, "upper": np.inf, "lower": -np.inf}
"""What says nothing of a row: no label, and bounds that every test fails."""


@dataclass(kw_only=True)
class NestedTally(Tally):
    """What one step on a batch finds out."""

    n_moved: int = 0
    """Rows that changed their label and had been in the batch before."""
    losses: ExactSums
    """What every centre's removal would cost, in a step that looks for it."""

    @classmethod
    def of(cls, k: int) -> NestedTally:
        """Of k clusters, empty."""
        return cls(losses=ExactSums(k))


NestedTotal = AssignmentTotal[NestedTally]


def nested_total(k: int, d: int, grid: FixedPoint) -> NestedTotal:
    """An empty total of a batch."""
    return AssignmentTotal(k, d, grid, partial(NestedTally.of, k), by_cluster=True)


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
        total.tally.losses.add(margins, chunk.weight, labels)
    changed = total.assign(chunk.x, chunk.weight, old, labels, chunk.counted)
    total.tally.n_moved += int(np.count_nonzero(changed & (old >= 0)))
    total.tally.n_evaluated += n_evaluated
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
