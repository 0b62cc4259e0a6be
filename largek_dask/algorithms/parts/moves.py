"""Moves of centres: the cheapest are removed to split the clusters with the largest gains.

Lloyd steps never move a centre past another one, so a region with too few centres at the start
keeps too few. A move takes the centre whose removal costs least, when each of its rows goes to the
second nearest centre, and uses this centre to split another cluster.

The gain of a split is estimated on a sample: on rows that the split was not fitted to
(:mod:`~largek_dask.algorithms.parts.splits`), or on the same rows if unsuccessful moves are undone
(:mod:`~largek_dask.algorithms.truncated`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.distances import pack_centers, scores, squared_distances

Gaps = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Function that returns the squared distances from some centres to all centres."""

PAIRED_VALUES = 1 << 16
"""Approximate number of centre coordinates compared in one call."""
GAPS_AT_ONCE = 1 << 22
"""Approximate number of distances between centres held at once. All distances of 12,800 centres to
32,000 centres take 1.6 GB, and sorting them takes twice that."""


@dataclass(frozen=True, slots=True)
class Splits:
    clusters: NDArray[np.int64]
    gains: NDArray[np.float64]
    halves: NDArray[Any]
    """(m, 2, d) centres of both halves: the rows that stay in the cluster, and the rows that
    leave."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Clusters to split, and centres to move into the new halves."""

    split: NDArray[np.int64]
    """(m,) indices of clusters to split; each keeps one half of its rows."""
    removed: NDArray[np.int64]
    """(m,) indices of centres that give up their rows and take over the other halves."""
    halves: NDArray[Any]
    gain: float

    @property
    def clusters(self) -> NDArray[np.int64]:
        """(2 m,) indices of the split clusters, followed by the removed ones."""
        return np.concatenate([self.split, self.removed])

    def apply(self, centers: NDArray[Any]) -> NDArray[Any]:
        """Return (k, d) centres after the moves."""
        moved = centers.copy()
        moved[self.split], moved[self.removed] = self.halves[:, 0], self.halves[:, 1]
        return moved


def choose_moves(
    splits: Splits,
    losses: NDArray[np.float64],
    cheapest: NDArray[np.int64],
    near: NDArray[np.integer[Any]],
    *,
    most: int,
    factor: float = 1.0,
    split_takers: bool,
) -> Moves:
    """Pair the best splits with the cheapest removals, as long as the gain exceeds the loss.

    Parameters
    ----------
    splits : Splits
    losses : (k,) float64
        Cost of removing each centre, in the unit of the gains; infinity for centres that must stay.
    cheapest : (c,) int64
        Clusters that may be removed, in ascending order of their losses.
    near : (c, m) integers
        For each of ``cheapest``, the nearest other centres, which take over its rows and so cannot
        be removed themselves.
    most : int
        Maximum number of moves.
    factor : float
        Minimum ratio of the gain of a move to its loss.
    split_takers : bool
        True if clusters that take over rows may be split.
    """
    candidates = iter(enumerate(cheapest.tolist()))
    # Estimates remain valid as long as locked clusters do not change.
    locked, gone = np.zeros(len(losses), np.bool_), np.zeros(len(losses), np.bool_)
    chosen: list[int] = []
    removed: list[int] = []
    gain = 0.0
    for i in np.argsort(-splits.gains, kind="stable").tolist():
        j = int(splits.clusters[i])
        if len(chosen) == most or not splits.gains[i] > 0:
            break
        if (gone if split_takers else locked)[j]:
            continue
        at, r = next(((at, r) for at, r in candidates if not locked[r] and r != j), (-1, -1))
        if r < 0 or not splits.gains[i] > factor * losses[r]:
            break
        chosen.append(i)
        removed.append(r)
        gain += splits.gains[i] - losses[r]
        gone[r] = True
        locked[[j, r]] = locked[near[at]] = True
    which = np.array(chosen, np.int64)
    return Moves(splits.clusters[which], np.array(removed, np.int64), splits.halves[which], gain)


def nearest_others(
    centers: NDArray[Any],
    which: NDArray[np.int64],
    shift: NDArray[Any],
    m: int,
    gaps: Gaps | None = None,
) -> NDArray[np.int64]:
    """Return the indices of the m nearest other centres of each centre in ``which``.

    If given, ``gaps`` computes the distances instead of ``centers``.
    """
    k = len(centers)
    found = np.empty((len(which), min(m, k - 1)), np.int64)
    packed = pack_centers(centers, shift) if gaps is None else None
    step = max(1, GAPS_AT_ONCE // k)
    for begin in range(0, len(which), step):
        these = which[begin : begin + step]
        if packed is not None:
            distances = scores(centers[these], packed)
        else:
            assert gaps is not None
            distances = gaps(these)
        distances[np.arange(len(these)), these] = np.inf
        found[begin : begin + step] = _least(distances, found.shape[1])
    return found


def _least(values: NDArray[Any], m: int) -> NDArray[np.int64]:
    """Return (n, m) column indices of the m smallest values of each row, ascending."""
    n = len(values)
    if m == 0:
        return np.empty((n, 0), np.int64)
    most = np.partition(values, m - 1, axis=1)[:, m - 1 : m]
    # Positions of the m smallest values and of ties; NaN sorts last, as in numpy.
    rows, places = np.nonzero(~(values > most))
    order = np.lexsort((places, values[rows, places], rows))
    starts = np.searchsorted(rows, np.arange(n))
    least: NDArray[np.int64] = places[order[starts[:, None] + np.arange(m)]]
    return least


def losses_of_merging(
    centers: NDArray[Any],
    counts: NDArray[np.float64],
    shift: NDArray[Any],
    gaps: Gaps | None = None,
) -> NDArray[np.float64]:
    """Return (k,) upper bounds of the cost of removing each centre, by merging pairs of clusters.

    After a merge, the centre moves to the joint mean. Assigning each row to its second nearest
    centre, without moving centres, would overestimate the cost up to twofold (J. H. Ward,
    Hierarchical grouping to optimize an objective function, JASA 1963). For ``gaps`` see
    :func:`nearest_others`.
    """
    (k, d), packed = centers.shape, pack_centers(centers, shift)
    losses = np.empty(k)
    step = max(1, PAIRED_VALUES // (k * d if gaps is None else k))
    for begin in range(0, k, step):
        these = np.arange(begin, min(begin + step, k))
        if gaps is None:
            labels = np.repeat(these.astype(np.int32), k)
            apart = squared_distances(np.tile(centers, (len(these), 1)), packed, labels)
        else:
            apart = gaps(these)
        own = counts[these, None]
        both = own + counts
        merged = np.divide(own * counts, both, out=np.zeros(both.shape), where=both > 0)
        merged *= apart.reshape(both.shape)
        merged[np.arange(len(these)), these] = np.inf
        losses[these] = merged.min(axis=1)
    return losses
