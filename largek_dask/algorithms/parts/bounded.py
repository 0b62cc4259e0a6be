"""Choice of bounds for an exact fit: their kind, first step, and memory.

Bounds save distances and cost memory and a test per row; the dense kernels are so fast that this
pays only for many centres, and only once few rows change their cluster. The choice affects no
model: labels are the same with any bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, PlannedTable
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.groups import BoundedCenters, Drift, Groups, group_centers
from largek_dask.kernels.bounds.pruned import prunes_most
from largek_dask.kernels.distances import PackedCenters, pack_centers

__all__ = [
    "KINDS",
    "Assignment",
    "Bounds",
    "BoundsState",
    "begin_bounds",
    "calm_share",
    "check_bounds",
    "group_count",
    "groups_for",
    "row_bytes",
    "with_bounds",
]

Bounds = Literal["auto", "hamerly", "elkan", "groups"]

KINDS = ("hamerly", "elkan", "groups")
"""Kinds of bounds that are kept from the first step on."""
_NAMES = ("auto", None, *KINDS)
_CALM, _CALM_PRUNED = 0.02, 0.0005
_CALM_GROUPS = 8
LEAST_WORK = 16_000
"""Multiplications per row (centres times features) above which bounds pay (measured: 100 centres
of 64 features are 1.7 times faster without them, 50 of 784 are 1.2 times faster with them)."""
CENTERS_A_GROUP = 32
MOST_GROUPS = 16


def check_bounds(bounds: object) -> None:
    """Refuse an unknown kind of bounds.

    Raises
    ------
    ParameterError
        The message lists the names.
    """
    if bounds not in _NAMES:
        told = ", ".join(repr(name) for name in _NAMES)
        raise ParameterError(f"bounds must be one of {told}, got {bounds!r}.")


def group_count(
    bounds: Bounds | None, n_rows: int, n_features: int, n_clusters: int, budget: int | None
) -> int:
    """Return the number of lower bounds per row; 0: no bounds at all.

    Parameters
    ----------
    bounds : {"auto", None, "hamerly", "elkan", "groups"}
        "hamerly" is 1, "elkan" one per centre, "groups" one per about 32 centres but at most 16.
        "auto" is as many of those as the budget allows, and none if all distances of a row cost
        less than the tests would.
    n_rows, n_features, n_clusters : int
    budget : int or None
        Bytes for the row state of all rows; None: no limit.
    """
    if bounds is None:
        return 0
    if bounds == "elkan":
        return n_clusters
    groups = 1 if bounds == "hamerly" else min(MOST_GROUPS, -(-n_clusters // CENTERS_A_GROUP))
    if bounds == "auto":
        if n_clusters * n_features < LEAST_WORK:
            return 0
        while groups > 0 and budget is not None and n_rows * row_bytes(groups) > budget:
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
    calm = _CALM_PRUNED if prunes_most(n_clusters, n_features) else _CALM
    return calm * min(1.0, n_groups / _CALM_GROUPS)


def groups_for(bounds: Bounds | None, table: Passes | PlannedTable, k: int) -> int:
    """Return :func:`group_count` for a table; 0 for sparse rows, which have no bounds yet.

    Raises
    ------
    ParameterError
        Bounds are requested for sparse rows.
    """
    if not table.is_sparse:
        return group_count(bounds, table.n_rows, table.n_features, k, table.state_limit)
    if bounds not in ("auto", None):
        raise ParameterError(
            f"bounds={bounds!r} needs dense rows, and these are sparse; use 'auto' or None."
        )
    return 0


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
