"""Keep a figure of every step for charts, in bounded memory.

Random samples lose the first value, the last, the lowest and the highest. So a series keeps buckets
in order of time, each with these four points; when there are too many, neighbours are merged.
"""

from __future__ import annotations

import math
from array import array

import numpy as np
from numpy.typing import NDArray

__all__ = ["A_START", "BUCKETS", "Point", "Points", "Series", "key_of"]

BUCKETS = 256
"""Maximum number of buckets, so at most 1,024 points."""
Points = NDArray[np.float64]
"""One point per row."""
Point = tuple[float, ...]
"""``(n, key, x, y, *beside)``; ``n`` is the number of points added before it."""
A_START = float(2**32)
"""Keys reserved for each start."""
MOST_KEY = float(2**53)
N, KEY, X, Y = range(4)
FIRST, LOW, HIGH, LAST = range(4)
HEAD = 3
"""Numbers of a bucket before its points: how many it has, the sum of their values, and ``n`` of the
first point after its last gap, or 0.
"""


class Series:
    """A figure against time, in at most ``buckets`` (even) buckets.

    Its state depends on what was added in which order, not on when it was read. A point has
    ``beside`` further coordinates.

    Examples
    --------
    >>> series = Series()
    >>> for step in range(100_000):
    ...     series.add(step, x=0.1 * step, y=abs(step - 70_000))
    >>> found = series.points()[:, 3]
    >>> len(found) <= 1024, found[0].item(), found.min().item(), found[-1].item()
    (True, 70000.0, 0.0, 29999.0)
    """

    __slots__ = ("_begins", "_buckets", "_count", "_done", "_is_single", "_n", "_open", "_stride",
                 "_sum", "_width")  # fmt: skip

    def __init__(self, beside: int = 0, buckets: int = BUCKETS) -> None:
        self._width = 4 + beside
        self._buckets = buckets
        self._done = array("d")
        """Full buckets, concatenated; each has only its gap and its point before any are merged."""
        self._open: list[Point] = []
        """First, lowest, highest and last point of the open bucket, if it has any."""
        self._count, self._sum = 0, 0.0
        """Number of points of the open bucket, and the sum of their values."""
        self._begins = 0.0
        """First point of the open bucket after its last gap, or 0."""
        self._stride = 1
        """Points of a full bucket."""
        self._is_single = True
        """Whether no buckets have been merged, so that few points take a fourth of the bytes."""
        self._n = 0

    def __bool__(self) -> bool:
        return bool(self._open or self._done)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return 8 * (len(self._done) + self._width * len(self._open))

    def add(self, key: float, x: float, y: float, *beside: float) -> None:
        """Add a point after all others; all numbers are finite, and :meth:`cut` compares keys."""
        point: Point = (float(self._n), float(key), float(x), float(y), *map(float, beside))
        self._n += 1
        y = point[Y]
        if not self._open:
            self._open = [point] * 4
        else:
            if y < self._open[LOW][Y]:
                self._open[LOW] = point
            if y > self._open[HIGH][Y]:
                self._open[HIGH] = point
            self._open[LAST] = point
        self._count += 1
        self._sum += y
        if self._count >= self._stride:
            self._close()

    def interrupt(self) -> None:
        """Begin a gap: no line leads to the next point."""
        self._begins = float(self._n if self else 0)

    def cut(self, key: float) -> None:
        """Remove the points beyond ``key``, which will be added again.

        A bucket on both sides keeps its known points of this side.
        """
        last = self.last()
        if last is None or last[KEY] <= key:
            return
        if self._open:
            self._close(merge=False)
        table = self._table()
        kept = int(np.searchsorted(table[:, HEAD + KEY], key, side="right"))
        self._begins = 0.0
        if kept:
            begins = float(table[kept - 1, 2])
            points = table[kept - 1, HEAD:].reshape(4, self._width)
            if points[LAST, KEY] > key:
                known = sorted({tuple(point) for point in points.tolist() if point[KEY] <= key})
                by_value = sorted(known, key=lambda point: point[Y])
                self._open = [known[0], by_value[0], by_value[-1], known[-1]]
                self._count = len(known)
                self._sum = sum(point[Y] for point in known)
                # A gap after the kept points precedes the next one.
                self._begins = begins
                kept -= 1
        self._keep(table[:kept])
        if self._open and self._count >= self._stride:
            self._close()

    def points(self, most: int = BUCKETS) -> Points:
        """Return the points of at most ``most`` buckets in order; a row of NaN marks each gap."""
        table = self._coarse(most)
        points = table[:, HEAD:].reshape(-1, 4, self._width)
        order = np.argsort(points[:, :, N], axis=1, kind="stable")
        points = np.take_along_axis(points, order[:, :, None], axis=1)
        numbers = points[:, :, N]
        is_new = np.ones(numbers.shape, bool)
        is_new[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        # The gap precedes the first point of the bucket that is not before it.
        after = (table[:, 2:3] > 0) & (numbers >= table[:, 2:3])
        begins = after & (np.cumsum(after, axis=1) == 1)
        return _interrupted(points[is_new], begins[is_new])

    def means(self, most: int = BUCKETS) -> Points:
        """Return the mean of each bucket at its last point; rows as in :meth:`points`.

        A gap within a bucket is moved before it.
        """
        table = self._coarse(most)
        points = table[:, HEAD + LAST * self._width :].copy()
        with np.errstate(over="ignore", invalid="ignore"):
            means = table[:, 1] / table[:, 0]
        points[:, Y] = np.where(np.isfinite(means), means, points[:, Y])
        begins = table[:, 2] > 0
        begins[:1] = False
        return _interrupted(points, begins)

    def last(self) -> Point | None:
        """Return the last point."""
        if self._open:
            return self._open[LAST]
        return tuple(self._done[-self._width :]) if self._done else None

    def extremes(self) -> tuple[Point, Point] | None:
        """Return the first lowest and the first highest point."""
        points = self.points()
        if not len(points):
            return None
        low, high = np.nanargmin(points[:, Y]), np.nanargmax(points[:, Y])
        return tuple(points[low].tolist()), tuple(points[high].tolist())

    def before(self, x: float) -> Point | None:
        """Return the last known point at or before ``x``."""
        points = self.points()
        known = points[points[:, X] <= x]
        return tuple(known[-1].tolist()) if len(known) else None

    # --- buckets ----------------------------------------------------------------------------------

    def _close(self, merge: bool = True) -> None:
        """Append the open bucket, and merge neighbours if there are too many."""
        if self._is_single:
            self._done.append(self._begins)
            self._done.extend(self._open[LAST])
        else:
            self._done.extend((self._count, self._sum, self._begins))
            for point in self._open:
                self._done.extend(point)
        self._open, self._count, self._sum, self._begins = [], 0, 0.0, 0.0
        if merge and len(self._done) >= self._buckets * self._size:
            merged = _merged(self._table(), self._width)
            self._is_single = False
            self._keep(merged)
            self._stride *= 2

    @property
    def _size(self) -> int:
        """Numbers of a stored bucket."""
        return 1 + self._width if self._is_single else HEAD + 4 * self._width

    def _table(self) -> NDArray[np.float64]:
        """Copy the full buckets to a table: one row each, head and four points."""
        held = np.array(self._done, np.float64).reshape(-1, self._size)
        if not self._is_single:
            return held
        begins, points = held[:, :1], held[:, 1:]
        ones, values = np.ones_like(begins), points[:, Y : Y + 1]
        return np.concatenate([ones, values, begins, points, points, points, points], axis=1)

    def _keep(self, table: NDArray[np.float64]) -> None:
        if self._is_single:
            table = np.ascontiguousarray(table[:, HEAD - 1 : HEAD + self._width])
        self._done = array("d", table.tobytes())

    def _coarse(self, most: int) -> NDArray[np.float64]:
        """Return all buckets as in :meth:`_table`, merged until there are at most this many."""
        table = self._table()
        if self._open:
            flat = [number for point in self._open for number in point]
            row = np.array([[self._count, self._sum, self._begins, *flat]])
            table = np.concatenate([table, row])
        while len(table) > most:
            table = _merged(table, self._width)
        return table


def _interrupted(points: Points, begins: NDArray[np.bool_]) -> Points:
    """Insert a row of NaN before each point after a gap."""
    places = np.flatnonzero(begins)
    return np.insert(points, places, math.nan, axis=0) if len(places) else points


def key_of(start: float, step: float) -> float:
    """Return the key of a step; steps of a later start are beyond all of an earlier one."""
    return min(MOST_KEY, max(0.0, start) * A_START + min(max(0.0, step), A_START - 1))


def _merged(table: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Merge neighbours; the last of an odd number stays, and so does the last of several gaps."""
    pairs = len(table) // 2
    a, b = table[: 2 * pairs : 2], table[1 : 2 * pairs : 2]
    found = a.copy()
    with np.errstate(over="ignore"):
        found[:, :2] += b[:, :2]
    found[:, 2] = np.maximum(a[:, 2], b[:, 2])
    for place, is_better in ((LOW, np.less), (HIGH, np.greater)):
        begin = HEAD + place * width
        better = is_better(b[:, begin + Y], a[:, begin + Y])
        found[better, begin : begin + width] = b[better, begin : begin + width]
    found[:, HEAD + LAST * width :] = b[:, HEAD + LAST * width :]
    return np.concatenate([found, table[2 * pairs :]])
