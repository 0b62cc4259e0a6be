"""Keep a figure of every step for charts, in bounded memory."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

__all__ = ["A_START", "MOST", "Point", "Points", "Series", "key_of"]

MOST = 512
"""Maximum number of regular points; there are up to three more."""
Points = NDArray[np.float64]
"""One point per row."""
Point = tuple[float, ...]
"""``(key, x, y)``."""
A_START = float(2**32)
"""Keys reserved for each start."""
MOST_KEY = float(2**53)
KEY, X, Y = range(3)
WIDTH = 3


class Series:
    """A figure against time: every s-th point, the lowest, the highest and the last.

    s is the smallest power of two that leaves at most ``most`` points.

    Examples
    --------
    >>> series = Series()
    >>> for step in range(100_000):
    ...     series.add(step, x=0.1 * step, y=abs(step - 70_000))
    >>> found = series.points()[:, 2]
    >>> len(found) <= 515, found[0].item(), found.min().item(), found[-1].item()
    (True, 70000.0, 0.0, 29999.0)
    """

    __slots__ = ("_ends", "_kept", "_most", "_n", "_stride")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept = array("d")
        """Every s-th point, concatenated."""
        self._ends: list[Point] = []
        """The lowest, the highest and the last point."""
        self._n, self._stride = 0, 1

    def __bool__(self) -> bool:
        return bool(self._ends)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return 8 * (len(self._kept) + WIDTH * len(self._ends))

    def add(self, key: float, x: float, y: float) -> None:
        """Add a point after all others; all numbers are finite, and :meth:`cut` compares keys."""
        point = (float(key), float(x), float(y))
        if self._n % self._stride == 0:
            if len(self._kept) >= self._most * WIDTH:
                self._keep(self._table()[::2])
                self._stride *= 2
            if self._n % self._stride == 0:
                self._kept.extend(point)
        self._n += 1
        low, high, _ = self._ends or (point, point, point)
        self._ends = [point if y < low[Y] else low, point if y > high[Y] else high, point]

    def cut(self, key: float) -> None:
        """Remove the points beyond ``key``, which will be added again."""
        if not self._ends or self._ends[-1][KEY] <= key:
            return
        points = self.points()
        known = [tuple(point) for point in points[points[:, KEY] <= key].tolist()]
        table = self._table()
        self._keep(table[table[:, KEY] <= key])
        self._n = len(self._kept) // WIDTH * self._stride
        self._ends = []
        if known:
            by_value = sorted(known, key=lambda point: point[Y])
            self._ends = [by_value[0], by_value[-1], known[-1]]

    def points(self) -> Points:
        """Return all points that are kept, in order."""
        ends = np.array(self._ends, np.float64).reshape(-1, WIDTH)
        table = np.concatenate([self._table(), ends])
        return table[np.unique(table[:, KEY], return_index=True)[1]]

    def regular(self, most: int = MOST) -> Points:
        """Return the points at equal distances, at most this many, and the last one.

        Series to which the same steps were added have them at the same steps.
        """
        table = self._table()
        table = table[:: max(1, -(-len(table) // most))]
        if self._ends and table[-1, KEY] < self._ends[-1][KEY]:
            table = np.concatenate([table, [self._ends[-1]]])
        return table

    def last(self) -> Point | None:
        """Return the last point."""
        return self._ends[-1] if self._ends else None

    def extremes(self) -> tuple[Point, Point] | None:
        """Return the first lowest and the first highest point."""
        return (self._ends[0], self._ends[1]) if self._ends else None

    def before(self, x: float) -> Point | None:
        """Return the last known point at or before ``x``."""
        points = self.points()
        known = points[points[:, X] <= x]
        return tuple(known[-1].tolist()) if len(known) else None

    def _table(self) -> Points:
        return np.array(self._kept, np.float64).reshape(-1, WIDTH)

    def _keep(self, table: Points) -> None:
        self._kept = array("d", table.tobytes())


def key_of(start: float, step: float) -> float:
    """Return the key of a step; steps of a later start are beyond all of an earlier one."""
    return min(MOST_KEY, max(0.0, start) * A_START + min(max(0.0, step), A_START - 1))
