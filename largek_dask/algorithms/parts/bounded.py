"""Which bounds an exact fit keeps, from when on, and within how much memory.

Bounds spare distances and cost memory and a test a row; the dense kernels are so fast that this
pays only for many centres, and only once few rows change their cluster. All that decides here are
counts: the labels are the same whatever is chosen, so the choice reaches no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from largek_dask.algorithms.base import TableShape
from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.groups import BoundedCenters, Drift, Groups, group_centers
from largek_dask.kernels.bounds.pruned import spares_most
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
"""Bounds that are kept from the first step on."""
_NAMES = ("auto", None, *KINDS)
_CALM, _CALM_PRUNED = 0.02, 0.0005
_CALM_GROUPS = 8
LEAST_WORK = 16_000
"""Multiplications a row (centres times features) from which on bounds pay (measured: 100 centres
of 64 features are 1.7 times faster without them, 50 of 784 are 1.2 times faster with them)."""
CENTERS_A_GROUP = 32
MOST_GROUPS = 16


def check_bounds(bounds: object) -> None:
    """Refuse what names no kind of bounds.

    Raises
    ------
    ParameterError
        With the names there are.
    """
    if bounds not in _NAMES:
        told = ", ".join(repr(name) for name in _NAMES)
        raise ParameterError(f"bounds must be one of {told}, got {bounds!r}.")


def group_count(
    bounds: Bounds | None, n_rows: int, n_features: int, n_clusters: int, budget: int | None
) -> int:
    """Lower bounds that a row shall have; 0: no bounds at all.

    Parameters
    ----------
    bounds : {"auto", None, "hamerly", "elkan", "groups"}
        "hamerly" is 1, "elkan" one for each centre, "groups" a group for about 32 centres but not
        more than 16. "auto" is as many of those as the budget has room for, and none where all
        distances of a row cost less than the tests would.
    n_rows, n_features, n_clusters : int
    budget : int or None
        Bytes that the row state of all rows may take; None: no limit.
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
    """Bounds begin when fewer than this share of the rows change their cluster (measured).

    Where a step without bounds meets few of the centres in all features, they pay once next to
    nothing changes: until then 500 and 1,000 clusters of images took twice as long with bounds. Few
    bounds a row spare little until hardly any row changes: with 50 centres of 784 features,
    in two groups, steps became cheaper than without bounds when 0.5 % of the rows changed; with
    1,000 centres they did at 2 %.
    """
    calm = _CALM_PRUNED if spares_most(n_clusters, n_features) else _CALM
    return calm * min(1.0, n_groups / _CALM_GROUPS)


def groups_for(bounds: Bounds | None, table: TableShape, k: int, budget: int | None) -> int:
    """:func:`group_count` for the rows of a table; 0 for sparse ones, which have no bounds as yet.

    Raises
    ------
    ParameterError
        Bounds are asked for, and the rows are sparse.
    """
    if not table.is_sparse:
        return group_count(bounds, table.n_rows, table.n_features, k, budget)
    if bounds not in ("auto", None):
        raise ParameterError(
            f"bounds={bounds!r} needs dense rows, and these are sparse; use 'auto' or None."
        )
    return 0


def row_bytes(n_groups: int) -> int:
    """Bytes of row state a row: its label and, with bounds, an upper one and the lower ones."""
    return 4 + (4 + 4 * n_groups if n_groups else 0)


@dataclass(frozen=True, slots=True)
class BoundsState:
    """What a state of an algorithm holds for its bounds: all but the rows' own."""

    groups: Groups
    drift: Drift
    """How far centres have moved, as of those that rows are assigned to next."""

    def advance(self, old: PackedCenters, new: PackedCenters) -> BoundsState:
        """After a step of the centres."""
        return BoundsState(self.groups, self.drift.advance(old, new, self.groups))


def begin_bounds(centers: NDArray[Any], shift: NDArray[Any], n_groups: int) -> BoundsState | None:
    """Bounds from the next assignment on; None where there are to be no groups."""
    if not n_groups:
        return None
    groups = group_centers(centers, shift, n_groups)
    return BoundsState(groups, Drift.zero(groups))


def with_bounds(
    packed: PackedCenters, bounds: BoundsState | None
) -> PackedCenters | BoundedCenters:
    """What rows are assigned to in a pass."""
    return packed if bounds is None else BoundedCenters(packed, bounds.groups, bounds.drift)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an algorithm's history holds of a pass: enough to assign the rows once more."""

    centers: NDArray[Any]
    """(k, d)"""
    bounds: BoundsState | None
    """None: all distances are computed, and rows get no bounds."""

    def pack(self, shift: NDArray[Any]) -> PackedCenters | BoundedCenters:
        """What rows were assigned to."""
        return with_bounds(pack_centers(self.centers, shift), self.bounds)
