"""Moves of centres in the truncated search, and the lists with which they are carried out.

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

__all__ = ["LOCKED", "Moves", "choose_moves", "lists_of", "lists_with_moves", "reach_of"]

LOCKED = 8
"""Nearest centres of a removed one that stay: they take over its rows."""
REFUGE = 15
"""Nearest centres, of those that stay, that rows of a removed one may go to."""

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


def lists_of(table: Labels, length: int) -> tuple[NDArray[np.int64], Labels]:
    """Offsets and centres of lists of the nearest centres: (k + 1,) and flat, each ascending."""
    k, width = table.shape
    length = min(length, width)
    flat = np.sort(table[:, :length], axis=1).reshape(-1)
    return np.arange(k + 1, dtype=np.int64) * length, flat


def lists_with_moves(
    table: Labels, length: int, before: Labels, moves: Moves
) -> tuple[NDArray[np.int64], Labels]:
    """Lists for the pass that carries moves out.

    Rows of a split cluster meet its two halves. Rows of a removed centre meet its nearest ones
    that stay, and both halves of those that are split.

    Parameters
    ----------
    table, before : (k, m) int32
        Nearest centres after the moves, and before.
    length : int
        Of the lists of clusters that nothing happens to.
    moves : Moves
    """
    offsets, flat = lists_of(table, length)
    width = int(offsets[1])
    partner = np.full(len(table), -1)
    partner[moves.split] = moves.removed
    gone = np.zeros(len(table), np.bool_)
    gone[moves.removed] = True
    special: dict[int, Labels] = {}
    for j, r in zip(moves.split.tolist(), moves.removed.tolist(), strict=True):
        special[j] = np.array(sorted((j, r)), np.int32)
        stay = before[r, 1:]
        stay = stay[~gone[stay]][:REFUGE]
        if not len(stay):
            stay = np.array([j], np.int32)
        halves = partner[stay]
        special[r] = np.unique(np.concatenate([stay, halves[halves >= 0]])).astype(np.int32)
    lengths = np.full(len(table), width)
    touched = np.array(sorted(special), np.int64)
    lengths[touched] = [len(special[j]) for j in touched.tolist()]
    listed = np.empty(int(lengths.sum()), np.int32)
    plain = np.ones(len(table), np.bool_)
    plain[touched] = False
    listed[np.repeat(plain, lengths)] = flat.reshape(len(table), width)[plain].reshape(-1)
    if special:
        listed[np.repeat(~plain, lengths)] = np.concatenate([special[j] for j in touched.tolist()])
    return np.concatenate([[0], np.cumsum(lengths)]), listed


def reach_of(
    drift: NDArray[np.float64],
    offsets: NDArray[np.int64],
    listed: Labels,
    strange: NDArray[np.bool_] | None,
    moved: NDArray[np.int64] | None,
) -> NDArray[np.float64]:
    """(k,) the farthest that a centre of each list has gone.

    Infinity for clusters whose rows have not met that list: those of ``strange``, and whose list
    holds one of the centres ``moved``, which have gone across the data.
    """
    gone = drift
    if moved is not None and len(moved):
        gone = drift.copy()
        gone[moved] = np.inf
    reach: NDArray[np.float64] = np.maximum.reduceat(gone[listed], offsets[:-1])
    if strange is not None:
        reach[strange] = np.inf
    return reach
