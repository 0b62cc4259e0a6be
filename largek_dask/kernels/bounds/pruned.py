"""Exact nearest centres: choose between boxes, a prefix of directions, and the dense search.

With up to `BOXED_FEATURES` features centres are grouped in boxes (:mod:`~.boxes`); with more they
are first compared in a few directions (:mod:`~.prefix`). Labels are those of the dense search. The
choice depends on counted work, in a trial on a few rows and then in each piece, never on a clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.arguments import check_rows, converted, two_outputs
from largek_dask.kernels.blocks import SparseBlock, Table
from largek_dask.kernels.bounds.boxes import LEAST_REACH as LEAST_BOXED
from largek_dask.kernels.bounds.boxes import MOST_REACH as MOST_BOXED
from largek_dask.kernels.bounds.boxes import Boxes
from largek_dask.kernels.bounds.prefix import (
    LEAST_REACH,
    MOST_REACH,
    Prefix,
    least_work,
    principal_directions,
)
from largek_dask.kernels.dense.panels import PAD
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two
from largek_dask.kernels.exact.squares import row_squares

__all__ = ["expect_rows", "nearest_pruned", "nearest_two_pruned", "spares_most"]

BOXED_FEATURES = 32
FEWEST_CENTERS, FEWEST_DIRECT = 4_096, 1_536
"""With fewer centres (of up to eight features) every row meets all: measured, half as many of 32
features take 0.9 to 1.1 of a dense pass, 1,000 of up to eight features more than one."""
SIZES, FIRST = (8, 16, 32, 64, 128), 2
"""Numbers of directions (at most half the features), and the index of the one tried first."""
LEAST_WORK = 2.0**36
"""Rows times centres times features that are to come, or have come, before kernels are compiled:
about two seconds of a dense pass."""
LEAST_PASS = 2.0**32
"""Rows times centres times features of one set of centres, before anything is made of them."""
MOST_SPARED = 31
"""Where nothing was spared the next set of centres is met densely, then the next three, and so on
up to this many, unless rows are as many as `LEAST_WORK` takes."""

FOUND = 2.0**34
"""Work for which directions are kept, about thirty times that of finding them."""
TRIED = 256
"""Rows of a trial."""
PIECE = 4_096
"""Rows after each of which it is seen what was spared: more and more, up to so many."""
WORTH = 0.75
"""Rows that take more than this share of what a dense pass takes are left to it ..."""
RESTED, MOST_RESTED = 1 << 14, 1 << 20
"""... as are the next rows, each time twice as many."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


class _Past:
    """Experience of a process with passes over centres of one shape."""

    __slots__ = ("compared", "directions", "found", "in_vain", "rows", "size", "spared", "work")

    def __init__(self) -> None:
        self.work = 0.0
        """Rows times centres times features so far."""
        self.rows = 0
        """Rows that the latest set of centres has met."""
        self.in_vain = 0
        """Sets of centres, one after the other, where nothing was spared."""
        self.spared = 0
        """Sets of centres to come that are met densely."""
        self.size = 0
        """Directions that were best for the set before; 0: none has paid."""
        self.compared = 0.0
        """Work when numbers of directions were compared."""
        self.directions: Array | None = None
        """Principal ones of a set before."""
        self.found = 0.0
        """Work when they were found."""


_PASTS: dict[tuple[int, int], _Past] = {}
"""By the shape of the centres."""


class _Course:
    """State of a pass with one set of centres, which decides on the next search.

    Threads share it and may both change a number: that costs some rows' time, never a label.
    """

    __slots__ = ("expected", "failures", "past", "pays", "resting", "seen")

    def __init__(self, centers: Array) -> None:
        self.past = _PASTS.setdefault(centers.shape, _Past())
        self.seen = 0
        """Rows that have come."""
        self.expected = self.past.rows
        """Rows in all, as far as they are known: at first as many as the set before has met."""
        self.past.rows = 0
        self.pays = False
        """Something has been spared."""
        self.resting = 0
        """Rows that are left to the dense search without a try."""
        self.failures = 0

    def failed(self) -> None:
        """Too little has been spared."""
        if not self.failures and not self.pays:
            self.past.in_vain += 1
            self.past.spared = min((1 << self.past.in_vain) - 1, MOST_SPARED)
        self.resting = min(RESTED << self.failures, MOST_RESTED)
        self.failures = min(self.failures + 1, 10)

    def paid(self) -> None:
        """Enough has been spared."""
        self.pays, self.failures = True, 0
        self.past.in_vain = self.past.spared = 0

    def is_due(self, n_rows: int, k: int, d: int) -> bool:
        """Count rows that have come; whether there is, or was, enough work to make anything."""
        self.seen += n_rows
        self.past.rows += n_rows
        self.expected = max(self.expected, self.seen)
        self.past.work += float(n_rows) * k * d
        expected = float(self.expected) * k * d
        return expected >= LEAST_PASS and max(expected, self.past.work) >= LEAST_WORK

    def is_spared(self, k: int, d: int) -> bool:
        """Whether this set of centres is met densely, for what the sets before it were like."""
        # Beside a pass that long it is nothing to try.
        if float(self.expected) * k * d >= LEAST_WORK or not self.past.spared:
            return False
        self.past.spared -= 1
        return True


def expect_rows(n_rows: int, packed: PackedCenters) -> None:
    """Say how many rows are going to be labelled, in all, so that a trial does as they will do."""
    course = packed.cache.get(_Course)
    course.expected = max(course.expected, course.seen + n_rows)


def nearest_pruned(x: Table, packed: PackedCenters) -> tuple[Labels, int]:
    """Return the nearest centre of each row, skipping most centres where that is faster.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type, or sparse ones.
    packed : PackedCenters

    Returns
    -------
    labels : int32 array (n,)
        To the bit those of :func:`~largek_dask.kernels.distances.nearest`.
    n_evaluated : int
        Distances computed in all features. It may depend on who else labels rows with these
        centres at the same time.
    """
    labels = np.empty(check_rows(x, packed.n_features), np.int32)
    return labels, _search(x, packed, (labels,))


def nearest_two_pruned(x: Table, packed: PackedCenters) -> tuple[Labels, Array, Labels, Array]:
    """Return :func:`~largek_dask.kernels.distances.nearest_two`, faster where most is skipped."""
    out = two_outputs(check_rows(x, packed.n_features), packed.dtype)
    _search(x, packed, out)
    return out


def _search(x: Table, packed: PackedCenters, out: tuple[Array, ...]) -> int:
    """Write the nearest centre, or the nearest two, of all rows; how many distances it took."""
    n, (k, d) = len(x), packed.centers.shape
    # (boxes find the nearest alone, and a prefix compares the two best of several tiles)
    one_only = d <= BOXED_FEATURES or k <= PAD
    if isinstance(x, SparseBlock) or (len(out) > 1 and one_only) or not _is_open(packed):
        return _meet_all(x, packed, out)
    course = packed.cache.get(_Course)
    if not n or not course.is_due(n, k, d):
        return _meet_all(x, packed, out)
    n_evaluated = 0
    for rows, block in converted(x, packed.dtype):
        found, parts = packed.cache.get(_searcher, packed, course, block), _some(out, rows)
        if found is None:
            n_evaluated += _meet_all(block, packed, parts)
        else:
            n_evaluated += _label(block, packed, course, found, parts)
    return n_evaluated


def _some(out: tuple[Array, ...], rows: slice) -> tuple[Array, ...]:
    return tuple(part[rows] for part in out)


def _meet_all(x: Table, packed: PackedCenters, out: tuple[Array, ...]) -> int:
    """Write what the dense search, or that of sparse rows, finds; how many distances it takes."""
    if len(out) == 1:
        nearest(x, packed, *out)
    else:
        for part, found in zip(out, nearest_two(x, packed), strict=True):
            part[:] = found
    return len(x) * packed.n_clusters


def spares_most(k: int, d: int) -> bool:
    """Whether :func:`nearest_pruned` takes at most a quarter of a dense pass on structured rows."""
    return d > BOXED_FEATURES and 4 * least_work(k, d, SIZES[FIRST]) <= k * d


def _is_open(packed: PackedCenters) -> bool:
    """Whether anything may be spared, with so many centres of so many features."""
    k, d = packed.n_clusters, packed.n_features
    if d <= BOXED_FEATURES:
        return k >= (FEWEST_DIRECT if packed.direct else FEWEST_CENTERS)
    return least_work(k, d, SIZES[0]) < WORTH * k * d


def _searcher(
    centers: Array, packed: PackedCenters, course: _Course, x: Array
) -> Boxes | Prefix | None:
    """What searches among some centres for the rows of a pass, of which these are the first."""
    k, d = centers.shape
    far = max(float(np.abs(part).max()) for part in (centers, packed.shift))
    if course.is_spared(k, d) or not far <= MOST_BOXED / 2:
        return None
    if d <= BOXED_FEATURES:
        boxes = Boxes(packed)
        return boxes if boxes.reach >= LEAST_BOXED else None
    return _best_prefix(packed, course, x[:TRIED])


def _best_prefix(packed: PackedCenters, course: _Course, x: Array) -> Prefix | None:
    """The prefix that labels some rows with the least work; None for extreme centres.

    It takes as many directions as were best for the centres before. At first, and each time that
    the work has doubled, it goes on to fewer, or to more, while these are better.
    """
    (k, d), past = packed.centers.shape, course.past
    moved, squares = packed.values, row_squares(packed.centers, packed.shift)
    if not LEAST_REACH**2 <= squares.max() <= MOST_REACH**2:
        return None
    sizes = [size for size in SIZES if 2 * size <= d and least_work(k, d, size) < WORTH * k * d]
    at = min(len(sizes) - 1, sizes.index(past.size) if past.size else FIRST)
    work = max(past.work - past.found, float(course.expected) * k * d)
    kept = past.directions if work < FOUND else None
    if kept is None:
        past.found = past.work
    directions = principal_directions(moved, sizes[at], past.directions) if kept is None else kept
    tried: dict[int, tuple[float, Prefix]] = {}
    labels, left = np.empty(len(x), np.int32), np.empty(len(x), np.int64)

    def work_of(size: int) -> float:
        nonlocal directions
        if size not in tried:
            if size > len(directions):
                directions = principal_directions(moved, size, directions)
            prefix = Prefix(packed, directions[:size])
            _, n_left, _, work = prefix.search(x, 0, len(x), np.inf, (labels,), left)
            tried[size] = work + n_left * prefix.dense, prefix
        return tried[size][0]

    if not past.size or past.work >= 2 * past.compared:
        past.compared = past.work
        for step in (-1, 1):
            while 0 <= at + step < len(sizes) and work_of(sizes[at + step]) < work_of(sizes[at]):
                at += step
    pays = work_of(sizes[at]) < WORTH * len(x) * k * d
    if not pays and kept is not None:  # the directions may be those of other rows
        past.directions = None
        return _best_prefix(packed, course, x)
    past.size, past.directions = sizes[at] if pays else 0, directions
    if not pays:
        course.failed()
    return tried[sizes[at]][1]


def _label(
    x: Array,
    packed: PackedCenters,
    course: _Course,
    searcher: Boxes | Prefix,
    out: tuple[Array, ...],
) -> int:
    """Label rows of the compute dtype, piece by piece; the distances computed."""
    n, at, size = len(x), 0, PIECE if course.pays else TRIED
    a_row = searcher.dense
    left, n_left, n_evaluated = np.empty(n, np.int64), 0, 0
    while at < n:
        if course.resting > 0:
            rows = slice(at, min(at + course.resting, n))
            n_evaluated += _meet_all(x[rows], packed, _some(out, rows))
            course.resting -= rows.stop - at
            at, size = rows.stop, TRIED
            continue
        end = min(at + size, n)
        budget = WORTH * a_row * (end - at)
        at, more, evaluated, work = searcher.search(x, at, end, budget, out, left[n_left:])
        n_left, n_evaluated = n_left + more, n_evaluated + evaluated
        # rows that are left to the dense search have been looked at in vain
        if at < end or work + more * a_row > budget:
            course.failed()
        else:
            course.paid()
            size = min(2 * size, PIECE)
    if n_left:
        rows_left = left[:n_left]
        found = tuple(np.empty(n_left, part.dtype) for part in out)
        n_evaluated += _meet_all(x[rows_left], packed, found)
        for part, values in zip(out, found, strict=True):
            part[rows_left] = values
    return n_evaluated
