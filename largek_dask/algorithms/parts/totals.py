"""Totals of an assignment as exact sums, and their addition.

Sums are exact, so they do not depend on the order of rows or processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table, rows_at
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.threads import Threads

LOOKED_UP = 8
"""Rows that changed cluster are copied before they are moved between sums if they take at most
this many bytes per row of the block. With 8,000 of 1,000,000 rows of 18 features this
takes 1.8 instead of 3.1 ms; with 3 kB per row it takes longer (measured)."""
LOOKED_UP_BYTES = 1 << 20
"""Number of bytes of changed rows that are copied at a time."""

LEAST_COUNTED, LEAST_COMPARED = 1 << 15, 1 << 18
WORTH_COUNTING = 8
"""Minimum number of rows per cluster for which separate sums per thread are faster."""

A = TypeVar("A", bound="Additive")


@dataclass
class Additive:
    """Total that is added field by field.

    Fields may be numbers, arrays, None, objects with ``merge`` such as exact sums, or dicts of
    such values. Adding a total neither changes it nor shares its data.
    """

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(getattr(self, field.name)) for field in fields(self))

    def merge(self: A, other: A) -> A:
        """Add another total of the same kind to this one."""
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
        assert not hasattr(theirs, "merge"), "the next addition would change it"
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
    """Statistics of one step; subclasses may add fields."""

    n_rows: int = 0
    n_changed: int = 0
    """Number of rows of positive weight whose label changed, or that had no label before."""
    n_evaluated: int = 0


class MovedRows(NamedTuple):
    """Rows of a block whose label has changed."""

    rows: NDArray[np.int64]
    """(m,) positions in the block, in any order."""
    before: NDArray[np.int32]
    """(m,) labels before the change."""

    def labels_before(self, new: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the labels (n,) of all rows before the change."""
        old = new.copy()
        old[self.rows] = self.before
        return old


T = TypeVar("T", bound=Tally)


class AssignmentTotal(Generic[T]):
    """Sufficient statistics of labelled rows, and the tally of one step.

    ``sums`` and ``squares`` describe the rows under their present labels and may be retained
    between passes. The tally belongs to one step: a total that was not updated in this step has an
    outdated tally, which is ignored (:meth:`begin`).
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
        """Sums of ``weight * ||x - shift||^2``."""
        self.step = -1
        self.new_tally = new_tally
        self.tally = new_tally()

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes + self.squares.nbytes + self.tally.nbytes

    def empty(self) -> AssignmentTotal[T]:
        k, d = self.sums.sums.shape
        grid, by_cluster = self.sums.grid, self.by_cluster
        other = AssignmentTotal(k, d, grid, self.new_tally, by_cluster=by_cluster)
        other.step = self.step
        return other

    def begin(self, step: int) -> None:
        """Discard the tally if it belongs to another step."""
        if step != self.step:
            self.step, self.tally = step, self.new_tally()

    def assign(
        self,
        x: Table,
        weight: NDArray[np.float64] | None,
        old: NDArray[np.int32] | None,
        new: NDArray[np.int32],
        counted: bool = False,
    ) -> NDArray[np.int64]:
        """Move rows (n, d) from their old to their new clusters; -1 means no cluster.

        The total already includes the rows in their old clusters if ``counted`` is True, and
        otherwise none of the rows. Return the rows whose cluster changed. Rows of weight 0 never
        count as changed, so that they cannot prevent convergence.
        """
        changed = np.flatnonzero(new >= 0 if old is None else new != old)
        if counted and old is not None:
            return self.move(x, weight, MovedRows(changed, old[changed]), new)
        self.sums.add(x, new, weight)
        squares = row_squares(x, self.sums.grid.shift)
        self.squares.add(squares, weight, new if self.by_cluster else None)
        return self._tallied(new, weight, changed)

    def move(
        self, x: Table, weight: NDArray[np.float64] | None, moved: MovedRows, new: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Move rows that the total already includes; return those that count as changed."""
        self._move_sums(x, weight, moved, new)
        if self.by_cluster:
            squares = row_squares(x, self.sums.grid.shift, moved.rows)
            own = None if weight is None else weight[moved.rows]
            self.squares.add(-squares, own, moved.before)
            self.squares.add(squares, own, new[moved.rows])
        return self._tallied(new, weight, moved.rows)

    def _tallied(
        self, new: NDArray[np.int32], weight: NDArray[np.float64] | None, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        rows = rows if weight is None else rows[weight[rows] > 0]
        self.tally.n_rows += len(new)
        self.tally.n_changed += len(rows)
        return rows

    def _move_sums(
        self, x: Table, weight: NDArray[np.float64] | None, moved: MovedRows, new: NDArray[np.int32]
    ) -> None:
        """Move rows between sums; if only few rows change cluster, copy these first."""
        row_bytes = 0 if isinstance(x, SparseBlock) else x.shape[1] * x.dtype.itemsize
        if not 0 < row_bytes * len(moved.rows) <= LOOKED_UP * len(new):
            self.sums.move(x, moved.labels_before(new), new, weight)
            return
        step = max(1, LOOKED_UP_BYTES // row_bytes)
        for begin in range(0, len(moved.rows), step):
            rows, old = moved.rows[begin : begin + step], moved.before[begin : begin + step]
            own = None if weight is None else weight[rows]
            self.sums.move(rows_at(x, rows), old, new[rows], own)

    @staticmethod
    def combine(a: AssignmentTotal[T], b: AssignmentTotal[T]) -> AssignmentTotal[T]:
        """Add ``b`` to ``a``; the tally of an earlier step is discarded."""
        a.sums.merge(b.sums)
        a.squares.merge(b.squares)
        if b.step >= a.step:
            a.begin(b.step)
            a.tally.merge(b.tally)
        return a


def count_rows(
    x: Table,
    weight: NDArray[np.float64] | None,
    old: NDArray[np.int32] | MovedRows | None,
    labels: NDArray[np.int32],
    total: AssignmentTotal[T],
    counted: bool,
    threads: Threads,
) -> None:
    """Run :meth:`AssignmentTotal.assign` on several threads.

    ``old`` are the labels before the change, or the rows whose label has changed.
    """
    n = len(labels)
    if counted and old is not None:
        moved = old if isinstance(old, MovedRows) else _compared(old, labels, threads)
        if threads.n == 1 or len(moved.rows) < WORTH_COUNTING * len(total.sums.counts):
            total.move(x, weight, moved, labels)
            return
    before = old.labels_before(labels) if isinstance(old, MovedRows) else old
    step = max(LEAST_COUNTED, -(-n // threads.n))

    def count(begin: int) -> AssignmentTotal[T]:
        part = total if begin == 0 else total.empty()
        at = slice(begin, begin + step)
        own = None if weight is None else weight[at]
        part.assign(x[at], own, None if before is None else before[at], labels[at], counted)
        return part

    for part in threads.map(count, range(0, max(n, 1), step))[1:]:
        AssignmentTotal.combine(total, part)


def _compared(old: NDArray[np.int32], new: NDArray[np.int32], threads: Threads) -> MovedRows:
    step = max(LEAST_COMPARED, -(-len(new) // threads.n))

    def compare(begin: int) -> NDArray[np.int64]:
        at = slice(begin, begin + step)
        return begin + np.flatnonzero(old[at] != new[at])

    rows = np.concatenate(threads.map(compare, range(0, max(len(new), 1), step)))
    return MovedRows(rows, old[rows])
