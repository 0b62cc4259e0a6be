"""Bounds of the distances of rows to centres, from one assignment to the next.

A row keeps its label, an upper bound of the distance to its centre, and a lower bound for each
group of other centres. Bounds save distances and cost memory and a test per row; the dense kernels
are so fast that this pays only for many centres, and only once few rows change their cluster.
Labels are the same with and without bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, PlannedTable
from largek_dask.kernels.bounds import bounds as kernels
from largek_dask.kernels.bounds.groups import BoundedCenters, Drift, Groups, group_centers
from largek_dask.kernels.bounds.pruned import nearest_pruned, prunes_most
from largek_dask.kernels.distances import PackedCenters, pack_centers

__all__ = [
    "Assignment",
    "BoundsState",
    "begin_bounds",
    "calm_share",
    "group_count",
    "label_rows",
    "row_bytes",
    "with_bounds",
]

CALM, CALM_PRUNED = 0.02, 0.0005
CALM_GROUPS = 8
LEAST_WORK = 16_000
"""Multiplications per row (centres times features) above which bounds pay (measured: 100 centres
of 64 features are 1.7 times faster without them, 50 of 784 are 1.2 times faster with them)."""
CENTERS_PER_GROUP = 32
MOST_GROUPS = 16


def group_count(table: Passes | PlannedTable, k: int) -> int:
    """Return the number of lower bounds per row for k centres; 0: no bounds.

    One per 32 centres but at most 16, halved until the row state of all rows is within its limit.
    Sparse rows have none, nor have rows whose distances cost less than the tests would.
    """
    if table.is_sparse or k * table.n_features < LEAST_WORK:
        return 0
    limit, groups = table.state_limit, min(MOST_GROUPS, -(-k // CENTERS_PER_GROUP))
    while groups > 0 and limit is not None and table.n_rows * row_bytes(groups) > limit:
        groups //= 2
    return groups


def calm_share(n_groups: int, n_clusters: int, n_features: int) -> float:
    """Return the share of rows that change cluster below which bounds begin (measured).

    If a step without bounds computes few distances in all features, bounds pay only once hardly
    any row changes: until then 500 and 1,000 clusters of images took twice as long with bounds.
    Few bounds per row save little until then, too: with 50 centres of 784 features, in two groups,
    steps became cheaper than without bounds when 0.5 % of the rows changed; with 1,000 centres
    they did at 2 %.
    """
    calm = CALM_PRUNED if prunes_most(n_clusters, n_features) else CALM
    return calm * min(1.0, n_groups / CALM_GROUPS)


def row_bytes(n_groups: int) -> int:
    """Return bytes of row state per row: label and, with bounds, one upper and the lower ones."""
    return 4 + (4 + 4 * n_groups if n_groups else 0)


@dataclass(frozen=True, slots=True)
class BoundsState:
    """Bounds in an algorithm's state, without those of the rows."""

    groups: Groups
    drift: Drift
    """Movement of the centres, up to those that rows are assigned to next."""

    def advance(self, old: PackedCenters, new: PackedCenters) -> BoundsState:
        """Return the bounds after a step of the centres."""
        return BoundsState(self.groups, self.drift.advance(old, new, self.groups))


def begin_bounds(centers: NDArray[Any], shift: NDArray[Any], n_groups: int) -> BoundsState | None:
    """Return bounds from the next assignment on; None without groups."""
    if not n_groups:
        return None
    groups = group_centers(centers, shift, n_groups)
    return BoundsState(groups, Drift.zero(groups))


def with_bounds(
    packed: PackedCenters, bounds: BoundsState | None
) -> PackedCenters | BoundedCenters:
    """Return the centres for a pass, with bounds if there are any."""
    return packed if bounds is None else BoundedCenters(packed, bounds.groups, bounds.drift)


@dataclass(frozen=True, slots=True)
class Assignment:
    """History entry of a pass: enough to repeat its assignment."""

    centers: NDArray[Any]
    """(k, d)"""
    bounds: BoundsState | None
    """None: all distances are computed, and rows get no bounds."""

    def pack(self, shift: NDArray[Any]) -> PackedCenters | BoundedCenters:
        """Return the centres of the pass, with bounds if there are any."""
        return with_bounds(pack_centers(self.centers, shift), self.bounds)


def label_rows(
    x: Any, centers: PackedCenters | BoundedCenters, before: Mapping[str, NDArray[Any]] | None
) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the nearest centre of each row, with bounds if the centres have them.

    Parameters
    ----------
    x : (n, d)
    centers : PackedCenters or BoundedCenters
    before : mapping or None
        Row state of these rows. If it is None or has no bounds, all distances are computed.

    Returns
    -------
    kept : dict
        Row state: ``labels`` and, with bounds, ``upper`` and ``lower``.
    n_evaluated : int
        Number of distances computed. Without bounds all count, also those skipped for centres in
        boxes, whose number depends on threads and workers.
    """
    if isinstance(centers, PackedCenters):
        labels, _ = nearest_pruned(x, centers)
        return {"labels": labels}, len(x) * centers.n_clusters
    if before is None or "lower" not in before:
        labels, upper, lower, n_evaluated = kernels.start(x, centers)
    else:
        labels, upper, lower = (before[name].copy() for name in ("labels", "upper", "lower"))
        n_evaluated = kernels.assign(x, centers, labels, upper, lower)
    return {"labels": labels, "upper": upper, "lower": lower}, n_evaluated
