"""What a pass of the truncated search does to rows, wherever they are.

An :class:`Order` says all that a pass needs to know beside the rows and what is kept of them. The
same functions carry it out on a chunk and on all rows in one piece: what becomes of a row depends
on the row, its state and the orders since the last anchor, never on where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.truncated_lists import Recipe
from largek_dask.kernels.bounds.lists import (
    Lists,
    decay,
    order_by_label,
    removal_losses,
    search_all,
    search_lists,
)
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two, pack_centers
from largek_dask.kernels.threads import ALONE, Threads

__all__ = ["Order", "RowArrays", "advance"]

PARTS_A_THREAD = 8
"""Shares of a pass: so that threads end together, and a stop need not wait for all of it."""
LEAST_ROWS = 1 << 18
"""Rows from which on a thread is worth waking for what takes a nanosecond or two a row."""
BLOCK_ROWS = 4_096
"""Rows that a thread takes at a time where all centres are looked through."""

MADE = ("packed", "packed_coarse", "lists")
"""Of an order: what is made of the rest."""


Array = NDArray[Any]
Labels = NDArray[np.int32]


@dataclass(frozen=True)
class Order:
    """One pass: what the rows meet, and what is done to their state before.

    Pickles without what is packed, and is packed again where it arrives.
    """

    kind: Literal["cells", "lists", "all", "unsettled"]
    """"cells": every row meets the centres of its nearest coarse cell, whatever it was before.
    "all": every row meets all centres. Both are anchors: what they leave depends on nothing kept.
    "lists": rows meet the list of their cluster. "unsettled": rows not settled meet all."""
    centers: Array
    """(k, d) centres that rows are assigned to."""
    shift: Array
    """(d,) origin about which the kernels compute."""
    listed: Labels | None = None
    """Centres of the lists, one list after the other, ascending in each."""
    offsets: NDArray[np.int64] | None = None
    """Where lists begin, one a cluster or one a cell; None: all lists of clusters are as long."""
    coarse: Array | None = None
    """(cells, d) coarse centres."""
    ways: NDArray[np.float64] | None = None
    """(2, k) how far each centre has gone since the pass before, and the farthest that a centre of
    its list has gone; infinity: the list is another one."""
    skip: bool = True
    """Pass over settled rows."""
    save: bool = False
    """Keep the labels from before this pass, to be able to go back to them."""
    restore: bool = False
    """Go back to the labels that were kept; all rows are looked at, so that distances are new."""
    max_loss: float = 0.0
    """Find what removing each cluster would cost; no row's part is taken for more than that."""
    loss_steps: float = 0.0
    """How many steps a loss of 1 is (``kernels.truncated.loss_scale``)."""
    recipe: Recipe | None = None
    """How the lists are made, where they are not here."""
    far: float = 0.0
    """Rows whose squared distance to their centre is larger are far away; 0: nobody asks."""

    @property
    def is_anchor(self) -> bool:
        """Whether the state after it depends on the rows and this order alone."""
        return self.kind in ("cells", "all")

    @cached_property
    def packed(self) -> PackedCenters:
        """The centres as kernels want them."""
        return pack_centers(self.centers, self.shift)

    @cached_property
    def packed_coarse(self) -> PackedCenters:
        """The coarse centres as kernels want them."""
        assert self.coarse is not None
        return pack_centers(self.coarse, self.shift)

    @cached_property
    def lists(self) -> Lists:
        """The lists as kernels want them."""
        if self.listed is None:
            assert self.recipe is not None
            return Lists(*self.recipe.again())
        offsets = self.offsets
        if offsets is None:
            k = len(self.centers)
            offsets = np.arange(k + 1, dtype=np.int64) * (len(self.listed) // k)
        return Lists(offsets, self.listed)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in MADE}
        return state if self.listed is None else {**state, "recipe": None}

    def to_keep(self) -> Order:
        """The same order in little room."""
        kept = replace(self, far=0.0) if self.far else self
        return kept if kept.recipe is None else replace(kept, listed=None, offsets=None)

    def forget(self) -> None:
        """Let go of what can be made again."""
        for name in MADE:
            self.__dict__.pop(name, None)
        if self.recipe is not None:
            self.recipe.forget()


@dataclass(slots=True)
class RowArrays:
    """What is kept of rows."""

    labels: Labels
    """(n,) cluster; -1: the row is absent (weight 0)."""
    upper: Array
    """(n,) distance to the own centre, or more."""
    lower: Array
    """(n,) distance to the best other centre that the row has met, or less."""
    saved: Labels | None = None
    """(n,) labels to go back to."""

    @classmethod
    def new(cls, n: int, dtype: np.dtype[Any]) -> RowArrays:
        """Of rows without a cluster."""
        return cls(np.full(n, -1, np.int32), np.zeros(n, dtype), np.zeros(n, dtype))

    def named(self) -> dict[str, NDArray[Any]]:
        """As row state."""
        arrays = {"labels": self.labels, "upper": self.upper, "lower": self.lower}
        return arrays if self.saved is None else {**arrays, "saved": self.saved}


def advance(
    x: Array,
    weight: NDArray[np.float64] | None,
    rows: RowArrays,
    order: Order,
    threads: Threads = ALONE,
) -> tuple[int, NDArray[np.int64] | None]:
    """Carry an order out on the state of rows, in place.

    Parameters
    ----------
    x : (n, d)
        Rows of any real type.
    weight : (n,) float64 or None
        Rows that weigh 0 are absent.
    rows : RowArrays
        Written to. Before an anchor its values do not matter.
    order : Order
    threads : Threads
        What ends the pass leaves the rows half done.

    Returns
    -------
    n_evaluated : int
        Distances computed, those to coarse centres included.
    losses : (2, k) int64 or None
        What removing each cluster would cost, if the order asks for it; and what its rows cost now.
    """
    if order.kind == "cells":
        evaluated = _meet_cells(x, rows, order, threads)
    elif order.kind == "all":
        evaluated = _meet_all(x, rows, order, threads)
    else:
        _take_up(rows, order, threads)
    before = rows.labels.copy() if order.kind == "lists" and order.max_loss > 0 else None
    if order.kind == "lists":
        evaluated = _search(x, rows.labels, rows, order, threads)
    elif order.kind == "unsettled":
        evaluated = _meet_unsettled(x, rows, order, threads)
    if weight is not None:
        rows.labels[weight == 0] = -1
    losses = _losses(weight, rows, order, threads) if order.max_loss > 0 else None
    if before is not None:
        # Kept until here: the best other centre is one of another cluster's list.
        rows.lower[rows.labels != before] = 0
    return evaluated, losses


def _losses(
    weight: NDArray[np.float64] | None, rows: RowArrays, order: Order, threads: Threads
) -> NDArray[np.int64]:
    """What removing each cluster would cost, and what its rows cost now."""
    limits = order.max_loss, order.loss_steps

    def lose(span: tuple[int, int]) -> NDArray[np.int64]:
        at = slice(*span)
        out = np.zeros((2, len(order.centers)), np.int64)
        labels, upper, lower = rows.labels[at], rows.upper[at], rows.lower[at]
        own = None if weight is None else weight[at]
        removal_losses(labels, upper, lower, own, *limits, out[0])
        removal_losses(labels, np.zeros_like(upper), upper, own, *limits, out[1])
        return out

    parts = threads.map(lose, _spans(len(rows.labels), threads.n, 1, LEAST_ROWS))
    return sum(parts, np.zeros((2, len(order.centers)), np.int64))


def _meet_cells(x: Array, rows: RowArrays, order: Order, threads: Threads) -> int:
    n, coarse = len(x), order.packed_coarse
    cells = np.empty(n, np.int32)

    def choose(span: tuple[int, int]) -> None:
        nearest(x[slice(*span)], coarse, cells[slice(*span)])

    threads.map(choose, _spans(n, threads.n))
    rows.saved = None
    rows.labels[:] = -1
    evaluated = _search(x, cells, rows, order, threads)
    # What was met is the list of the cell, not that of the cluster.
    rows.lower[:] = 0
    return evaluated + n * coarse.n_clusters


def _meet_all(x: Array, rows: RowArrays, order: Order, threads: Threads) -> int:
    rows.saved = None

    def look(span: tuple[int, int]) -> int:
        return search_all(x, order.packed, rows.labels, rows.upper, rows.lower, *span)[1]

    return sum(threads.map(look, _spans(len(x), threads.n)))


def _take_up(rows: RowArrays, order: Order, threads: Threads) -> None:
    """What is kept of the rows, as of the centres that there are now."""
    if order.restore:
        assert rows.saved is not None
        rows.labels[:] = rows.saved
    else:
        assert order.ways is not None
        drift, reach = order.ways

        def widen(span: tuple[int, int]) -> None:
            at = slice(*span)
            decay(rows.labels[at], rows.upper[at], rows.lower[at], drift, reach)

        threads.map(widen, _spans(len(rows.labels), threads.n, 1, LEAST_ROWS))
    if order.save:
        rows.saved = rows.labels.copy()


def _meet_unsettled(x: Array, rows: RowArrays, order: Order, threads: Threads) -> int:
    """All centres, for the rows that are not settled within their lists."""
    # NaN counts as not settled
    left = np.flatnonzero(~(rows.upper < rows.lower) & (rows.labels >= 0))

    def look(span: tuple[int, int]) -> None:
        these = left[slice(*span)]
        labels, first, _, second = nearest_two(x[these], order.packed)
        rows.labels[these] = labels
        rows.upper[these], rows.lower[these] = np.sqrt(first), np.sqrt(second)

    spans = [
        (begin, min(begin + BLOCK_ROWS, len(left))) for begin in range(0, len(left), BLOCK_ROWS)
    ]
    threads.map(look, spans)
    return len(left) * order.packed.n_clusters


def _search(
    x: Array,
    groups: Labels,
    rows: RowArrays,
    order: Order,
    threads: Threads,
) -> int:
    """Rows meet the list of their group, of a cluster or a cell."""
    lists = order.lists
    # Settled rows are left out while sorting, which is faster than to meet them afterwards.
    loose = order.skip and order.kind == "lists"
    upper, lower = (rows.upper, rows.lower) if loose else (None, None)
    places, starts = order_by_label(groups, lists.n_groups, upper, lower, threads.n)
    keep = order.max_loss > 0

    def look(span: tuple[int, int]) -> int:
        return search_lists(
            x, places, starts, lists, order.packed, rows.labels, rows.upper, rows.lower,
            begin=span[0], end=span[1], keep=keep,
        )[1]  # fmt: skip

    # Shares of about equal work, cut between groups.
    work = np.cumsum(np.diff(starts) * lists.lengths)
    parts = threads.n * PARTS_A_THREAD
    inner = np.searchsorted(work, np.arange(1, parts) * (work[-1] / parts))
    cuts = np.unique([0, *inner, lists.n_groups]).tolist()
    return sum(threads.map(look, list(pairwise(cuts))))


def _spans(
    n: int, n_threads: int, a_thread: int = PARTS_A_THREAD, least: int = BLOCK_ROWS
) -> list[tuple[int, int]]:
    """(begin, end) of shares of n rows, so many a thread."""
    step = max(least, -(-n // (n_threads * a_thread)))
    return [(begin, min(begin + step, n)) for begin in range(0, n, max(step, 1))]
