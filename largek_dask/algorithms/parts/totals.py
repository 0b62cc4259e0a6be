"""Totals: exact sums of an assignment, and how totals are added.

Sums are exact, so they depend neither on the order of the rows nor on that of the processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table, rows_at
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint
from largek_dask.kernels.threads import Threads

__all__ = ["Additive", "AssignmentTotal", "Tally", "count_rows"]

LOOKED_UP = 8
"""Most bytes of rows that have changed cluster, per row of the block, up to which these are
looked up first. Of 1,000,000 rows of 18 features, 8,000 of which have, that takes 1.8 instead of
3.1 ms; with 3 kB per row it takes longer (measured)."""
LOOKED_UP_BYTES = 1 << 20
"""Bytes of these rows that are copied side by side at a time."""

LEAST_COUNTED = 1 << 15
"""Minimum rows that a thread adds up."""
WORTH_COUNTING = 8
"""Rows per cluster above which it pays to add up on several threads, each in its own sums."""

A = TypeVar("A", bound="Additive")


@dataclass
class Additive:
    """A total that is added to another one field by field.

    A field is one of these: a number; exact sums, or anything else with ``merge``; an array, or
    None if empty; a dict of these, by chunk or by name. What is added is never changed, nor later
    through this one.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays when this total is sent."""
        return sum(_nbytes(getattr(self, field.name)) for field in fields(self))

    def merge(self: A, other: A) -> A:
        """Add another total of the same kind to this one, and return it."""
        for field in fields(self):
            value = _added(getattr(self, field.name), getattr(other, field.name))
            setattr(self, field.name, value)
        return self

    @staticmethod
    def combine(a: A, b: A) -> A:
        """Add ``b`` into ``a``."""
        return a.merge(b)


def _added(mine: Any, theirs: Any) -> Any:
    if mine is None:
        assert not hasattr(theirs, "merge"), "it would be changed by what is added next"
        return theirs
    if theirs is None:
        return mine
    if isinstance(mine, dict):
        for key, value in theirs.items():
            mine[key] = _added(mine.get(key), value)
        return mine
    return mine.merge(theirs) if hasattr(mine, "merge") else mine + theirs


def _nbytes(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if size is not None:
        return int(size)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple):
        return 0
    return sum(map(_nbytes, value))


@dataclass
class Tally(Additive):
    """Figures of one step, over all rows that it sees.

    Algorithms with more figures declare more fields.
    """

    n_rows: int = 0
    """Rows that were assigned."""
    n_changed: int = 0
    """Rows of positive weight whose label changed, or that had none before."""
    n_evaluated: int = 0
    """Number of distances computed."""


T = TypeVar("T", bound=Tally)


class AssignmentTotal(Generic[T]):
    """Sufficient statistics of rows as they are labelled, and the tally of one step.

    Parameters
    ----------
    k, d : int
    grid : FixedPoint
        Steps of coordinates and weights.
    new_tally : callable
        Makes an empty tally; it travels with the total.
    by_cluster : bool
        Keep the squares of each cluster; False: of all rows together.

    Notes
    -----
    ``sums`` and ``squares`` describe the rows as they are labelled now and may be retained between
    passes. The tally belongs to one step: a total that was not touched in this step still carries
    an older one, which no longer counts (:meth:`begin`).
    """

    __slots__ = ("by_cluster", "new_tally", "squares", "step", "sums", "tally")

    def __init__(
        self,
        k: int,
        d: int,
        grid: FixedPoint,
        new_tally: Callable[[], T] = Tally,  # type: ignore[assignment]
        *,
        by_cluster: bool = False,
    ) -> None:
        self.sums = ClusterSums(k, d, grid)
        self.by_cluster = by_cluster
        self.squares = ExactSums(k if by_cluster else 1)
        """``weight * ||x - shift||^2``, added up."""
        self.step = -1
        self.new_tally = new_tally
        self.tally = new_tally()

    @property
    def nbytes(self) -> int:
        """Bytes of this total when it is sent."""
        return self.sums.nbytes + self.squares.nbytes + self.tally.nbytes

    def empty(self) -> AssignmentTotal[T]:
        """Return an empty total of the same kind and step."""
        k, d = self.sums.sums.shape
        grid, by_cluster = self.sums.grid, self.by_cluster
        other = AssignmentTotal(k, d, grid, self.new_tally, by_cluster=by_cluster)
        other.step = self.step
        return other

    def begin(self, step: int) -> None:
        """Discard the tally of an earlier step."""
        if step != self.step:
            self.step, self.tally = step, self.new_tally()

    def assign(
        self,
        x: Table,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32] | None,
        new: NDArray[np.int32],
        counted: bool = False,
    ) -> NDArray[np.bool_]:
        """Count rows for their new clusters instead of their old ones.

        Parameters
        ----------
        x : (n, d)
        weight : (n,) float64 or None
        old : (n,) int32 or None
            Clusters before; -1 or None: none.
        new : (n,) int32
            Clusters now; -1: none.
        counted : bool
            The total holds the rows as ``old`` describes them; False: it holds none of them.

        Returns
        -------
        changed : (n,) bool
            Rows whose cluster changed. A row of weight 0 is absent: its label must not hold back a
            stop.
        """
        if counted and old is not None:
            self._move_sums(x, weight, old, new)
            if self.by_cluster:
                self._move_squares(x, weight, old, new)
        else:
            self.sums.add(x, new, weight)
            squares = row_squares(x, self.sums.grid.shift)
            self.squares.add(squares, weight, new if self.by_cluster else None)
        changed: NDArray[np.bool_] = new >= 0 if old is None else new != old
        if weight is not None:
            changed &= weight > 0
        self.tally.n_rows += len(new)
        self.tally.n_changed += int(np.count_nonzero(changed))
        return changed

    def _move_sums(
        self,
        x: Table,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32],
        new: NDArray[np.int32],
    ) -> None:
        """Move all rows between sums on the way, or only those that differ, if these are few."""
        differ = np.flatnonzero(old != new)
        row_bytes = 0 if isinstance(x, SparseBlock) else x.shape[1] * x.dtype.itemsize
        if not 0 < row_bytes * len(differ) <= LOOKED_UP * len(new):
            self.sums.move(x, old, new, weight)
            return
        step = max(1, LOOKED_UP_BYTES // row_bytes)
        for begin in range(0, len(differ), step):
            rows = differ[begin : begin + step]
            own = None if weight is None else weight[rows]
            self.sums.move(rows_at(x, rows), old[rows], new[rows], own)

    def _move_squares(
        self,
        x: Table,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32],
        new: NDArray[np.int32],
    ) -> None:
        differ = np.flatnonzero(old != new)
        squares = row_squares(x, self.sums.grid.shift, differ)
        weight = None if weight is None else weight[differ]
        self.squares.add(-squares, weight, old[differ])
        self.squares.add(squares, weight, new[differ])

    @staticmethod
    def combine(a: AssignmentTotal[T], b: AssignmentTotal[T]) -> AssignmentTotal[T]:
        """Add ``b`` into ``a``; only the tally of the later step counts."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        if b.step >= a.step:
            a.begin(b.step)
            a.tally.merge(b.tally)
        return a


def count_rows(
    x: Table,
    weight: NDArray[np.float64] | None,
    old: NDArray[np.int32] | None,
    labels: NDArray[np.int32],
    total: AssignmentTotal[T],
    counted: bool,
    threads: Threads,
) -> None:
    """Update a total for rows' new labels.

    Parameters
    ----------
    x, weight
        Rows and their weights.
    old : (n,) int32 or None
        Their labels before.
    labels : (n,) int32
    total : AssignmentTotal[T]
    counted : bool
        The total holds the rows with their labels before.
    threads : Threads
        Sums are exact, so they may be added up in any order.
    """
    n = len(labels)
    step = max(LEAST_COUNTED, -(-n // threads.n))
    if counted and old is not None and step < n:
        n_changed = np.count_nonzero(labels != old)
        step = step if n_changed >= WORTH_COUNTING * len(total.sums.counts) else n

    def count(begin: int) -> AssignmentTotal[T]:
        part = total if begin == 0 else total.empty()
        at = slice(begin, begin + step)
        own = None if weight is None else weight[at]
        part.assign(x[at], own, None if old is None else old[at], labels[at], counted)
        return part

    for part in threads.map(count, range(0, max(n, 1), step))[1:]:
        AssignmentTotal.combine(total, part)
