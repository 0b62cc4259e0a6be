"""Moves of centres in the truncated search.

A move takes a centre that is hardly missed (each of its rows would lose little by going to its
second nearest) and splits a cluster with it. Many are made at a time, from the estimates of one
pass; the passes that follow show what they were worth together, and what was not worth it is
undone (:mod:`~largek_dask.algorithms.truncated`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.distances import pack_centers, squared_distances

__all__ = ["LOCKED", "Moves", "choose_moves", "losses_of_merging", "overstep"]

LOCKED = 8
"""Nearest centres of a removed one that stay: they take over its rows."""

BEYOND = 0.8
"""How much farther than to the mean of its rows a centre goes. Below 1 the rows cost no more than
before even if none of them changes its cluster, and where clusters have no borders to speak of,
centres that follow each other through the data come to rest after fewer passes."""

Labels = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Moves:
    """Clusters that are split, and the centres that they are split with."""

    split: NDArray[np.int64]
    """(m,) clusters that keep one half each."""
    removed: NDArray[np.int64]
    """(m,) centres that take over the other half, and leave their own rows."""
    halves: NDArray[Any]
    """(m, 2, d)"""
    gain: float
    """Estimate of what they gain together."""

    def apply(self, centers: NDArray[Any]) -> NDArray[Any]:
        """(k, d) centres after the moves."""
        moved = centers.copy()
        moved[self.split], moved[self.removed] = self.halves[:, 0], self.halves[:, 1]
        return moved


def choose_moves(
    losses: NDArray[np.float64],
    gains: NDArray[np.float64],
    halves: NDArray[Any],
    table: Labels,
    most: int,
    factor: float,
) -> Moves:
    """Pair the cheapest removals with the best splits.

    Parameters
    ----------
    losses : (k,) float64
        What removing each centre would cost.
    gains : (k,) float64
        What splitting each cluster would gain.
    halves : (k, 2, d)
    table : (k, m) int32
        Nearest centres of each centre, itself first.
    most : int
        Moves at most.
    factor : float
        A gain has to exceed the loss this many times.
    """
    cheapest = iter(np.argsort(losses, kind="stable").tolist())
    locked, gone = np.zeros(len(losses), np.bool_), np.zeros(len(losses), np.bool_)
    near = table[:, 1 : LOCKED + 1]
    split: list[int] = []
    removed: list[int] = []
    total = 0.0
    for j in np.argsort(-gains, kind="stable").tolist():
        if len(split) >= most or not gains[j] > 0:
            break
        if gone[j]:
            continue
        r = next((r for r in cheapest if not locked[r] and r != j), None)
        if r is None or not gains[j] > factor * losses[r]:
            break
        split.append(j)
        removed.append(r)
        total += gains[j] - losses[r]
        gone[r] = True
        # What was found out about these holds while they stay.
        locked[[j, r]] = locked[near[r]] = True
    chosen = np.array(split, np.int64)
    return Moves(chosen, np.array(removed, np.int64), halves[chosen], total)


def losses_of_merging(
    centers: NDArray[Any], counts: NDArray[np.float64], shift: NDArray[Any]
) -> NDArray[np.float64]:
    """(k,) what removing each centre costs at most if all its rows go to one other, and it to them.

    Means follow their rows. Where each row goes to its second nearest centre and none of these
    moves, two clusters that become one lose up to twice as much (J. H. Ward, Hierarchical grouping
    to optimize an objective function, JASA 1963).
    """
    k, packed = len(centers), pack_centers(centers, shift)
    losses = np.full(k, np.inf)
    for j in range(k):
        labels = np.full(k, j, np.int32)
        gaps = squared_distances(centers, packed, labels).astype(np.float64)
        both = counts[j] + counts
        merged = np.divide(counts[j] * counts, both, out=np.zeros(k), where=both > 0) * gaps
        merged[j] = np.inf
        losses[j] = merged.min()
    return losses


def overstep(before: NDArray[Any], means: NDArray[Any], moves: Moves | None) -> NDArray[Any]:
    """Centres (k, d) beyond the means of their rows, seen from where they were (over-relaxation).

    Those that have just been moved across the data go to the mean.
    """
    beyond: NDArray[Any] = means + means.dtype.type(BEYOND) * (means - before)
    if moves is not None:
        moved = np.concatenate([moves.split, moves.removed])
        beyond[moved] = means[moved]
    return beyond
