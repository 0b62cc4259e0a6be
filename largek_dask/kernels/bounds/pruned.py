"""Find exact nearest centres with boxes, with projections, or with the dense search.

With up to `BOXED_FEATURES` features, centres are grouped in boxes (:mod:`~.boxes`). With more
features, centres are first compared in a few directions (:mod:`~.prefix`). Labels equal those of
the dense search. The search is chosen by the number of operations, never by measured time: first in
a trial on a few rows, and then again after each piece of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from largek_dask.kernels.compiling import check_now
from largek_dask.kernels.dense.panels import PAD
from largek_dask.kernels.distances import PackedCenters, nearest, nearest_two
from largek_dask.kernels.exact.squares import row_squares

BOXED_FEATURES = 32
FEWEST_CENTERS, FEWEST_DIRECT = 4_096, 1_536
"""Minimum number of centres for pruning, in general and with up to eight features. In measurements
with 2,048 centres of 32 features, pruning took 0.9 to 1.1 times as long as a dense pass; with 1,000
centres of up to eight features, pruning took longer than a dense pass."""
SIZES, FIRST = (8, 16, 32, 64, 128), 2
"""Numbers of directions to try (at most half the features), and the index of the first to try."""
LEAST_WORK = 2.0**36
"""Minimum product of rows, centres and features, expected or already searched, before kernels are
compiled; a dense pass with this product takes about two seconds."""
LEAST_PASS = 2.0**32
"""Minimum product of rows, centres and features for which a pruned search is prepared."""
MOST_SKIPPED = 31
"""Maximum number of sets of centres that are searched densely after pruning was too slow: 1 after
the first failure, then 3, 7 and so on. Sets with at least `LEAST_WORK` are not skipped."""

KEPT_WORK = 2.0**34
"""Work after which directions are computed again, about thirty times the cost of computing them."""
TRIED = 256
"""Number of rows used to try a pruned search."""
PIECE = 4_096
"""Maximum number of rows to search before the choice of search is reviewed."""
WORTH = 0.75
"""Pruning fails if it takes more than this fraction of the work of the dense search."""
RESTED, MOST_RESTED = 1 << 14, 1 << 20
"""Initial and maximum number of rows that are searched densely after a failure; each further
failure doubles the number."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _History:
    """Record of the passes of this process over centres of one shape.

    Work is measured as rows times centres times features.
    """

    work: float = 0.0
    """Total work so far."""
    rows: int = 0
    """Number of rows that were labelled with the latest set of centres."""
    failures: int = 0
    """Number of consecutive sets of centres for which pruning was too slow."""
    skipped: int = 0
    """Number of further sets of centres to be searched densely."""
    size: int = 0
    """Best number of directions for the previous set of centres; 0 if all were too slow."""
    compared: float = 0.0
    """Value of ``work`` when numbers of directions were last compared."""
    directions: Array | None = None
    """Principal directions of an earlier set of centres."""
    found: float = 0.0
    """Value of ``work`` when ``directions`` was computed."""


_HISTORIES: dict[tuple[int, int], _History] = {}


class _PassState:
    """State of a pass with one set of centres, which determines the next search.

    Threads share this state without a lock: a lost update may cost some time, but changes no label.
    """

    __slots__ = ("expected", "failures", "history", "pays", "resting", "seen")

    def __init__(self, centers: Array) -> None:
        self.history = _HISTORIES.setdefault(centers.shape, _History())
        self.seen = 0
        self.expected = self.history.rows
        """Expected number of rows, at first the number for the previous set of centres."""
        self.history.rows = 0
        self.pays = False
        """True if pruning was fast enough for some rows."""
        self.resting = 0
        """Number of rows to search densely before the next trial."""
        self.failures = 0

    def fail(self) -> None:
        """Use the dense search for the next rows, and perhaps for the next sets of centres."""
        if not self.failures and not self.pays:
            self.history.failures += 1
            self.history.skipped = min((1 << self.history.failures) - 1, MOST_SKIPPED)
        self.resting = min(RESTED << self.failures, MOST_RESTED)
        self.failures = min(self.failures + 1, 10)

    def succeed(self) -> None:
        self.pays, self.failures = True, 0
        self.history.failures = self.history.skipped = 0

    def is_due(self, n_rows: int, k: int, d: int) -> bool:
        """Count further rows; return True if there is enough work to prepare a pruned search."""
        self.seen += n_rows
        self.history.rows += n_rows
        self.expected = max(self.expected, self.seen)
        self.history.work += float(n_rows) * k * d
        expected = float(self.expected) * k * d
        return expected >= LEAST_PASS and max(expected, self.history.work) >= LEAST_WORK

    def is_skipped(self, k: int, d: int) -> bool:
        """Return True if pruning failed before and these centres are searched densely."""
        # A trial costs little compared to a pass this long.
        if float(self.expected) * k * d >= LEAST_WORK or not self.history.skipped:
            return False
        self.history.skipped -= 1
        return True


def expect_rows(n_rows: int, packed: PackedCenters) -> None:
    """Announce how many rows will be labelled, so that a trial on few rows uses the same search."""
    state = packed.cache.get(_PassState)
    state.expected = max(state.expected, state.seen + n_rows)


def nearest_pruned(x: Table, packed: PackedCenters) -> tuple[Labels, int]:
    """Return the nearest centre of each row, skipping most centres where that is faster.

    Returns
    -------
    labels : int32 array (n,)
        The labels of :func:`~largek_dask.kernels.distances.nearest`.
    n_evaluated : int
        Number of distances computed in all features. It may depend on other threads that label rows
        with these centres at the same time.
    """
    labels = np.empty(check_rows(x, packed.n_features), np.int32)
    return labels, _search(x, packed, (labels,))


def nearest_two_pruned(x: Table, packed: PackedCenters) -> tuple[Labels, Array, Labels, Array]:
    """Return the results of :func:`~.distances.nearest_two`, pruned where that is faster."""
    out = two_outputs(check_rows(x, packed.n_features), packed.dtype)
    _search(x, packed, out)
    return out


def _search(x: Table, packed: PackedCenters, out: tuple[Array, ...]) -> int:
    """Write the nearest centre, or the two nearest, of each row; return the number of distances."""
    n, (k, d) = len(x), packed.centers.shape
    # Boxes find only the nearest centre; a prefix needs several tiles to find the two nearest.
    one_only = d <= BOXED_FEATURES or k <= PAD
    if isinstance(x, SparseBlock) or (len(out) > 1 and one_only) or not _may_pay(packed):
        return _search_densely(x, packed, out)
    state = packed.cache.get(_PassState)
    if not n or not state.is_due(n, k, d):
        return _search_densely(x, packed, out)
    n_evaluated = 0
    for rows, block in converted(x, packed.dtype):
        searcher, parts = packed.cache.get(_searcher, packed, state, block), _part(out, rows)
        if searcher is None:
            n_evaluated += _search_densely(block, packed, parts)
        else:
            n_evaluated += _label(block, packed, state, searcher, parts)
    return n_evaluated


def _part(out: tuple[Array, ...], rows: slice) -> tuple[Array, ...]:
    return tuple(part[rows] for part in out)


def _search_densely(x: Table, packed: PackedCenters, out: tuple[Array, ...]) -> int:
    """Run the dense or sparse search; return the number of distances."""
    if len(out) == 1:
        nearest(x, packed, *out)
    else:
        for part, values in zip(out, nearest_two(x, packed), strict=True):
            part[:] = values
    return len(x) * packed.n_clusters


def _may_pay(packed: PackedCenters) -> bool:
    k, d = packed.n_clusters, packed.n_features
    if d <= BOXED_FEATURES:
        return k >= (FEWEST_DIRECT if packed.direct else FEWEST_CENTERS)
    return least_work(k, d, SIZES[0]) < WORTH * k * d


def _searcher(
    centers: Array, packed: PackedCenters, state: _PassState, x: Array
) -> Boxes | Prefix | None:
    """Return a pruned search for a pass that begins with the rows x, or None for dense search."""
    k, d = centers.shape
    far = max(float(np.abs(part).max()) for part in (centers, packed.shift))
    if state.is_skipped(k, d) or not far <= MOST_BOXED / 2:
        return None
    if d <= BOXED_FEATURES:
        boxes = Boxes(packed)
        return boxes if boxes.reach >= LEAST_BOXED else None
    return _best_prefix(packed, state, x[:TRIED])


def _best_prefix(packed: PackedCenters, state: _PassState, x: Array) -> Prefix | None:
    """Return the prefix that labels the rows x with the least work, or None for extreme centres.

    The prefix has the number of directions that was best for the previous centres. At first, and
    whenever the work has doubled, fewer and more directions are tried as long as they reduce the
    work.
    """
    (k, d), history = packed.centers.shape, state.history
    moved, squares = packed.values, row_squares(packed.centers, packed.shift)
    if not LEAST_REACH**2 <= squares.max() <= MOST_REACH**2:
        return None
    sizes = [size for size in SIZES if 2 * size <= d and least_work(k, d, size) < WORTH * k * d]
    at = min(len(sizes) - 1, sizes.index(history.size) if history.size else FIRST)
    work = max(history.work - history.found, float(state.expected) * k * d)
    kept = history.directions if work < KEPT_WORK else None
    if kept is None:
        history.found = history.work
        directions = principal_directions(moved, sizes[at], history.directions)
    else:
        directions = kept
    tried: dict[int, tuple[float, Prefix]] = {}
    labels, left = np.empty(len(x), np.int32), np.empty(len(x), np.int64)

    def work_of(size: int) -> float:
        nonlocal directions
        if size not in tried:
            if size > len(directions):
                directions = principal_directions(moved, size, directions)
            prefix = Prefix(packed, directions[:size])
            _, n_left, _, work = prefix.search(x, 0, len(x), (labels,), left)
            tried[size] = work + n_left * prefix.dense, prefix
        return tried[size][0]

    if not history.size or history.work >= 2 * history.compared:
        history.compared = history.work
        for step in (-1, 1):
            while 0 <= at + step < len(sizes) and work_of(sizes[at + step]) < work_of(sizes[at]):
                at += step
    pays = work_of(sizes[at]) < WORTH * len(x) * k * d
    if not pays and kept is not None:  # The directions may be outdated.
        history.directions = None
        return _best_prefix(packed, state, x)
    history.size, history.directions = sizes[at] if pays else 0, directions
    if not pays:
        state.fail()
    return tried[sizes[at]][1]


def _label(
    x: Array,
    packed: PackedCenters,
    state: _PassState,
    searcher: Boxes | Prefix,
    out: tuple[Array, ...],
) -> int:
    """Label rows piece by piece; return the number of distances."""
    n, at, size = len(x), 0, PIECE if state.pays else TRIED
    left, n_left, n_evaluated = np.empty(n, np.int64), 0, 0
    while at < n:
        check_now()
        if state.resting > 0:
            rows = slice(at, min(at + state.resting, n))
            n_evaluated += _search_densely(x[rows], packed, _part(out, rows))
            state.resting -= rows.stop - at
            at, size = rows.stop, TRIED
            continue
        end = min(at + size, n)
        budget, place = WORTH * searcher.dense * (end - at), left[n_left:]
        if isinstance(searcher, Boxes):
            at, more, evaluated, work = searcher.search(x, at, end, out, place, budget)
        else:
            at, more, evaluated, work = searcher.search(x, at, end, out, place)
        n_left, n_evaluated = n_left + more, n_evaluated + evaluated
        # Rows left to the dense search are searched twice, so both costs count.
        if at < end or work + more * searcher.dense > budget:
            state.fail()
        else:
            state.succeed()
            size = min(2 * size, PIECE)
    if n_left:
        rows_left = left[:n_left]
        found = tuple(np.empty(n_left, part.dtype) for part in out)
        n_evaluated += _search_densely(x[rows_left], packed, found)
        for part, values in zip(out, found, strict=True):
            part[rows_left] = values
    return n_evaluated
