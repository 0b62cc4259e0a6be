"""Lists of the centres that rows are compared with, one list per cluster or coarse cell.

Lists take more memory than centres. Therefore, earlier passes are stored without their lists, but
with the centres from which any worker can recompute the same lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.parts.cached import Recomputable
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.lists import Lists, largest_of_lists, order_by_label
from largek_dask.kernels.bounds.neighbours import nearest_centers
from largek_dask.kernels.distances import nearest, pack_centers

KEPT = 15
"""Number of nearest remaining centres in the list of a removed centre."""
NEAR_CELLS = 3
"""Number of nearest coarse cells whose centres a row without a label is compared with."""

Labels = NDArray[np.int32]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Neighbours(Recomputable):
    """Nearest centres of each centre; pickles contain only the centres, not the computed table."""

    centers: NDArray[Any]
    shift: NDArray[Any]
    width: int

    def table(self, n_threads: int = 1) -> Labels:
        """Return (k, width) nearest centres of each centre, beginning with the centre itself."""
        return nearest_centers(pack_centers(self.centers, self.shift), self.width, n_threads)

    @cached_property
    def remade(self) -> Labels:
        return self.table()

    @cached_property
    def last(self) -> dict[int, tuple[Indices, Labels]]:
        """Cache of the last lists, by length, as passes often reuse them."""
        return {}

    def lists(self, table: Labels, length: int) -> tuple[Indices, Labels]:
        if length not in self.last:
            self.last.clear()
            offsets, listed = lists_of(table, length)
            self.last[length] = offsets, readonly(listed)
        return self.last[length]

    def forget(self) -> None:
        """Drop the cached table, but keep the last lists."""
        self.__dict__.pop("remade", None)


@dataclass(frozen=True)
class Recipe:
    """Inputs from which the lists of a pass are computed."""

    near: Neighbours
    length: int
    """Length of the lists of clusters that no move changes."""
    before: Neighbours | None = None
    """Neighbours before the moves of the pass; None if there are no moves."""
    split: Indices | None = None
    removed: Indices | None = None
    """(m,) removed centres; each takes over half of the split cluster at the same index."""

    def make(self, table: Labels, before: Labels | None) -> tuple[Indices, Labels]:
        """Return offsets (k + 1,) and entries of the lists, given the tables of neighbours."""
        if before is None or self.split is None or self.removed is None:
            return lists_of(table, self.length)
        return lists_with_moves(table, self.length, before, self.split, self.removed)

    def remake(self) -> tuple[Indices, Labels]:
        """Return the lists, and compute their tables unless these are cached."""
        return self.make(self.near.remade, None if self.before is None else self.before.remade)

    def forget(self) -> None:
        self.near.forget()
        if self.before is not None:
            self.before.forget()


def lists_of(table: Labels, length: int) -> tuple[Indices, Labels]:
    """Return offsets (k + 1,) and entries of the lists of nearest centres, each list ascending."""
    k, width = table.shape
    length = min(length, width)
    flat = np.sort(table[:, :length], axis=1).reshape(-1)
    return np.arange(k + 1, dtype=np.int64) * length, flat


def lists_of_cells(
    centers: NDArray[Any], coarse: NDArray[Any], shift: NDArray[Any]
) -> tuple[Indices, Labels]:
    """Return offsets (cells + 1,) and entries of the lists of coarse cells.

    A list contains the centres in the cell and in the nearest other cells. If there are no such
    centres, it contains the centre nearest to the coarse centre.
    """
    packed = pack_centers(coarse, shift)
    members, starts = order_by_label(nearest(centers, packed), len(coarse))
    lists = []
    for cells in nearest_centers(packed, min(NEAR_CELLS, len(coarse))):
        met = np.concatenate([members[starts[c] : starts[c + 1]] for c in cells])
        if not len(met):
            met = nearest(coarse[cells[:1]], pack_centers(centers, shift))
        lists.append(np.sort(met))
    return np.concatenate([[0], np.cumsum([len(met) for met in lists])]), np.concatenate(lists)


def lists_with_moves(
    table: Labels, length: int, before: Labels, split: Indices, removed: Indices
) -> tuple[Indices, Labels]:
    """Return offsets (k + 1,) and entries of the lists for a pass with moves.

    The list of a split cluster contains its own centre and the removed centre (``removed``, (m,))
    that takes over half of the cluster. The list of a removed centre contains its ``KEPT`` nearest
    remaining centres, and both halves of those that are split. ``table`` and ``before`` (k, m) are
    the nearest centres after and before the moves.
    """
    listed = lists_of(table, length)[1].reshape(len(table), -1)
    partner, gone = np.full(len(table), -1), np.zeros(len(table), np.bool_)
    partner[split], gone[removed] = removed, True
    # If all near centres are removed, the centre of the split cluster is listed instead.
    near = np.concatenate([before[removed, 1:], split[:, None].astype(np.int32)], axis=1)
    stay = ~gone[near]
    stay[:, -1] = ~stay[:, :-1].any(axis=1)
    row, column = np.nonzero(stay & (np.cumsum(stay, axis=1) <= KEPT))
    found = near[row, column]
    also = partner[found] >= 0
    owner = np.concatenate([split, split, removed[row], removed[row[also]]])
    entry = np.concatenate([split, removed, found, partner[found[also]]])
    changed = np.zeros(len(table), np.bool_)
    changed[owner] = True
    lengths = np.where(changed, np.bincount(owner, minlength=len(table)), listed.shape[1])
    offsets, is_new = np.concatenate([[0], np.cumsum(lengths)]), np.repeat(changed, lengths)
    out = np.empty(len(is_new), np.int32)
    out[~is_new] = listed[~changed].ravel()
    out[is_new] = entry[np.lexsort((entry, owner))]
    return offsets, out


def reach_of(
    drift: NDArray[np.float64],
    offsets: Indices | None,
    listed: Labels | None,
    unmet: NDArray[np.bool_] | None,
    moved: Indices | None,
) -> NDArray[np.float64]:
    """Return (k,) maximum movements of the centres in each list, or of all centres without lists.

    The result is infinity for clusters whose rows have not been compared with their list: clusters
    in the mask ``unmet`` (k,), and clusters whose list contains one of the relocated centres
    ``moved`` (m,).
    """
    if moved is not None:
        drift = drift.copy()
        drift[moved] = np.inf
    if offsets is None or listed is None:
        reach = np.full(len(drift), drift.max())
    else:
        reach = largest_of_lists(drift, Lists(offsets, listed))
    if unmet is not None:
        reach[unmet] = np.inf
    return reach
