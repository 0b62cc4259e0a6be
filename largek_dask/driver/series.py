"""What is drawn of a figure that a fit tells step after step: small, however many steps there are.

Random samples lose what is looked for: the first value, the last, the lowest. So a series keeps
buckets in the order of time, each with its first point, its last, its lowest and its highest; where
there are too many, neighbours are merged.
"""

from __future__ import annotations

import math
from array import array

import numpy as np
from numpy.typing import NDArray

__all__ = ["A_START", "BUCKETS", "Point", "Points", "Series", "key_of"]

BUCKETS = 256
"""Buckets of a series, so at most 1,024 points."""
Points = NDArray[np.float64]
"""Points, one a row."""
Point = tuple[float, ...]
"""What is kept of a point: ``(n, key, x, y, *beside)``; ``n`` counts all that were added."""
A_START = float(2**32)
"""Keys that a start has room for."""
MOST_KEY = float(2**53)
N, KEY, X, Y = range(4)
FIRST, LOW, HIGH, LAST = range(4)
HEAD = 3
"""Numbers of a bucket before its points: how many it stands for, their sum, and ``n`` of the last
point with which the line begins anew, 0 if it does not."""


class Series:
    """A figure against time, in at most :data:`BUCKETS` buckets.

    What it holds is a function of what was added in which order, not of when it was asked. The
    first and the last point, the lowest and the highest are always among those that it gives.

    Parameters
    ----------
    beside : int
        Further coordinates of a point: where else it is drawn than at ``x``.
    buckets : int
        The most, an even number.

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
        """Buckets that are full, one after the other; of one point each, before any are merged,
        ``begins`` and the point."""
        self._open: list[Point] = []
        """First, lowest, highest and last point of the bucket that is being filled; or nothing."""
        self._count, self._sum = 0, 0.0
        """Points of the open bucket, and what their values add up to."""
        self._begins = 0.0
        """Point of the open bucket with which the line begins anew, 0 if it does not."""
        self._stride = 1
        """Points of a full bucket."""
        self._is_single = True
        """Whether no buckets have been merged yet: few points take a fourth of the bytes."""
        self._n = 0

    def __bool__(self) -> bool:
        return bool(self._open or self._done)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers that are held."""
        return 8 * (len(self._done) + self._width * len(self._open))

    def add(self, key: float, x: float, y: float, *beside: float) -> None:
        """Add a point after all others; ``key`` is what :meth:`cut` goes by.

        Parameters
        ----------
        key, x, y : float
            Finite. One that lies before the last point is drawn at its place.
        *beside : float
            As many as the series has.
        """
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
        """Let no line lead to the next point."""
        self._begins = float(self._n if self else 0)

    def cut(self, key: float) -> None:
        """Forget the points beyond ``key``: they come again.

        Of a bucket that lies on both sides what is known of this side is kept.
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
                # A gap behind what is known of it is before whatever comes next.
                self._begins = begins
                kept -= 1
        self._keep(table[:kept])
        if self._open and self._count >= self._stride:
            self._close()

    def points(self, most: int = BUCKETS) -> Points:
        """The points, in the order in which they were added.

        Parameters
        ----------
        most : int
            Buckets that they are of, each of up to four points.

        Returns
        -------
        ndarray of float, shape (n, width)
            Each as it was added, after the number of those before it; a row of NaN where the line
            is interrupted.
        """
        table = self._coarse(most)
        points = table[:, HEAD:].reshape(-1, 4, self._width)
        order = np.argsort(points[:, :, N], axis=1, kind="stable")
        points = np.take_along_axis(points, order[:, :, None], axis=1)
        numbers = points[:, :, N]
        is_new = np.ones(numbers.shape, bool)
        is_new[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        # The line begins anew with the first point of its bucket that is not before the gap.
        after = (table[:, 2:3] > 0) & (numbers >= table[:, 2:3])
        begins = after & (np.cumsum(after, axis=1) == 1)
        return _interrupted(points[is_new], begins[is_new])

    def means(self, most: int = BUCKETS) -> Points:
        """The mean of each bucket at the place of its last point; rows as in :meth:`points`.

        Of a bucket that is interrupted it is drawn at the end of it.
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
        """The last point."""
        if self._open:
            return self._open[LAST]
        return tuple(self._done[-self._width :]) if self._done else None

    def extremes(self) -> tuple[Point, Point] | None:
        """The first of the lowest points, and of the highest."""
        held = np.array(self._done, np.float64).reshape(-1, self._size)
        found: list[Point] = []
        for place, best in ((LOW, np.argmin), (HIGH, np.argmax)):
            begin = 1 if self._is_single else HEAD + place * self._width
            points = held[:, begin : begin + self._width]
            known = [tuple(points[int(best(points[:, Y]))].tolist())] if len(points) else []
            if self._open:
                known.append(self._open[place])
            if not known:
                return None
            # Of equal ones the first, which is a full bucket's.
            found.append(known[int(best([point[Y] for point in known]))])
        return found[0], found[1]

    def before(self, x: float) -> Point | None:
        """The last point known at or before ``x``."""
        points = self._points().reshape(-1, self._width)
        points = points[np.argsort(points[:, N], kind="stable")]
        beyond = np.flatnonzero(points[:, X] > x)
        number = int(beyond[0]) if len(beyond) else len(points)
        return tuple(points[number - 1].tolist()) if number else None

    def _points(self) -> NDArray[np.float64]:
        """(n, 4, width) the points of all buckets."""
        flat = [number for point in self._open for number in point]
        table = np.concatenate([self._table()[:, HEAD:].ravel(), np.array(flat)])
        return table.reshape(-1, 4, self._width)

    # --- buckets ----------------------------------------------------------------------------------

    def _close(self, merge: bool = True) -> None:
        """Put the open bucket to the others, and merge neighbours if there are too many."""
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
        """Numbers of a bucket as it is held."""
        return 1 + self._width if self._is_single else HEAD + 4 * self._width

    def _table(self) -> NDArray[np.float64]:
        """The full buckets, one a row: its head and its four points; a copy."""
        held = np.array(self._done, np.float64).reshape(-1, self._size)
        if not self._is_single:
            return held
        begins, points = held[:, :1], held[:, 1:]
        ones, values = np.ones_like(begins), points[:, Y : Y + 1]
        return np.concatenate([ones, values, begins, points, points, points, points], axis=1)

    def _keep(self, table: NDArray[np.float64]) -> None:
        """Hold these buckets instead."""
        if self._is_single:
            table = np.ascontiguousarray(table[:, HEAD - 1 : HEAD + self._width])
        self._done = array("d", table.tobytes())

    def _coarse(self, most: int) -> NDArray[np.float64]:
        """All buckets, one a row as in :meth:`_table`; of more than these neighbours are merged."""
        table = self._table()
        if self._open:
            flat = [number for point in self._open for number in point]
            row = np.array([[self._count, self._sum, self._begins, *flat]])
            table = np.concatenate([table, row])
        while len(table) > most:
            table = _merged(table, self._width)
        return table


def _interrupted(points: Points, begins: NDArray[np.bool_]) -> Points:
    """Points with a row of NaN before each that begins a line anew."""
    places = np.flatnonzero(begins)
    return np.insert(points, places, math.nan, axis=0) if len(places) else points


def key_of(start: float, step: float) -> float:
    """What series are cut by: steps of a later start are beyond all of an earlier one."""
    return min(MOST_KEY, max(0.0, start) * A_START + min(max(0.0, step), A_START - 1))


def _merged(table: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Each bucket with its neighbour; of an odd number the last stays as it is.

    Of several gaps in two that are merged the last stays.
    """
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
