"""Choose an origin among most of the rows, also if a few outliers dominate the mean.

Products |x|² - 2 x·c + |c|² lose the digits by which lengths exceed distances, and sums of rows
those of the origin that is subtracted, so it should lie among the rows. The mean does, unless
outliers dominate it: one row at 1e8 and 10^5 rows of unit size have their mean a thousand units
away from the latter, which leaves most of them in doubt (:mod:`.doubts`). The median of a few
hundred rows is not affected.

These are the distinct rows with the smallest hashes: the same for every order and chunking, and
for a row of weight 3 as for three equal rows.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import native_blocks
from largek_dask.kernels.tile import DIRECT_FEATURES

MOST_ROWS = 256
FEWEST_ROWS = 16
"""Minimum number of distinct rows to choose an origin; very long rows are sampled this often."""
_VALUES = 1 << 18
"""Maximum number of values kept, if that is at least `FEWEST_ROWS` rows."""
_FOUND = 1024
"""Rows found before the limit of hashes is lowered."""
_RECENT = 1024
"""Slots of the cache of recent hashes."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}
"""Types to which numbers are cast for hashing, by their bytes."""

FAR = 2.0**10
"""Ratio above which float32 leaves only 14 of 24 bits to the differences of rows."""
_IN_DOUBT = 2.0**-6
"""Squared lengths, times γ and relative to most rows, above which a row is in doubt anyway."""
_QUARTILES = 1.349
"""Interquartile range of the standard normal distribution."""
_HARMFUL = 2.0**-14
"""γ times the squared lengths, relative to most rows, below which products are precise enough."""


class DistinctRows:
    """The distinct rows with the smallest hashes, at most `size`.

    Rows with equal 64-bit hashes count as one row.

    Parameters
    ----------
    n_features : int
    dtype : numpy dtype
        Compute dtype: that of the rows that are kept.
    """

    __slots__ = ("_hashes", "_places", "_recent", "_rows", "size")

    def __init__(self, n_features: int, dtype: np.dtype[Any]) -> None:
        self.size = max(FEWEST_ROWS, min(MOST_ROWS, _VALUES // n_features))
        self._hashes = np.empty(0, np.uint64)
        # Index of each hash's row, so that rows need not be moved.
        self._places = np.empty(0, np.int64)
        self._rows = np.empty((self.size, n_features), dtype)
        # Hashes met lately: tables of few distinct rows have each of them often.
        self._recent = np.full(_RECENT, _ALL)

    @property
    def rows(self) -> NDArray[Any]:
        """(m, d) rows in ascending order of their hashes."""
        return self._rows[self._places]

    def add(self, x: NDArray[Any]) -> None:
        """Add (n, d) finite rows that count."""
        for _, block in native_blocks(x):
            block = readonly(np.ascontiguousarray(block))
            words = block.view(_WORDS[block.itemsize])
            factors = _factors(words.shape[1])
            hashes, at = np.empty(_FOUND, np.uint64), np.empty(_FOUND, np.int64)
            begin = 0
            while begin < len(block):
                limit = self._hashes[-1] if len(self._hashes) == self.size else _ALL
                with np.errstate(over="ignore"):
                    count, begin = _find(words, begin, factors, limit, self._recent, hashes, at)
                if count:
                    self._keep(hashes[:count], block[at[:count]])

    def merge(self, other: DistinctRows) -> None:
        """Add another sample's rows into this one."""
        self._keep(other._hashes, other.rows)

    def _keep(self, hashes: NDArray[np.uint64], rows: NDArray[Any]) -> None:
        n_before = len(self._hashes)
        together, first = np.unique(np.concatenate([self._hashes, hashes]), return_index=True)
        kept = first[: self.size]
        enters = kept >= n_before
        places = np.empty(len(kept), np.int64)
        places[~enters] = self._places[kept[~enters]]
        free = np.setdiff1d(np.arange(self.size), places[~enters], assume_unique=True)
        places[enters] = free[: np.count_nonzero(enters)]
        self._rows[places[enters]] = rows[kept[enters] - n_before]
        self._hashes, self._places = together[: self.size], places


class Middle:
    """Median and spread of a sample of rows.

    Parameters
    ----------
    rows : (m, d)
        At least `FEWEST_ROWS`, distinct.
    """

    __slots__ = ("_rows", "point", "square")

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = readonly(rows)
        # A value that occurs, not the mean of two, so that it is an integer for integer data.
        self.point = readonly(np.sort(rows, axis=0)[(len(rows) - 1) // 2] + rows.dtype.type(0))
        """(d,) median of each feature."""
        self.square = float(np.sort(row_squares(self._rows, self.point))[len(rows) // 2])
        """Median of the squared distances of the rows to it."""

    @property
    def spread(self) -> float:
        """Median distance of the rows to the point, per feature."""
        return math.sqrt(self.square / self._rows.shape[1])

    def serves_better(self, origin: NDArray[Any]) -> bool:
        """Return True if products about the median resolve rows that those about `origin` do not.

        The sum of squared lengths is smallest about the mean, so the median replaces it only if
        outliers dominate the mean: with lengths capped where rows are in doubt anyway, lengths
        about the median must be less than half as large.
        """
        d, dtype = self._rows.shape[1], self._rows.dtype
        if d <= DIRECT_FEATURES:
            # There are no products; only sums about the origin may lose digits.
            dtype = np.dtype(np.float64)
        gamma = (d + 6) * float(np.finfo(dtype).eps) / 2
        most = self.square * _IN_DOUBT / gamma
        with_it, with_this = (
            math.fsum(np.minimum(row_squares(self._rows, about), most).tolist()) / len(self._rows)
            for about in (origin, self.point)
        )
        return gamma * with_it > _HARMFUL * self.square and 2 * with_this < with_it


def is_far(rows: NDArray[Any]) -> bool:
    """Return True if a feature of some rows is more than `FAR` times as far from 0 as it is wide.

    That is by mean and standard deviation, or by median and interquartile range, so that outliers
    do not hide it. A constant feature is exact in any type.

    Parameters
    ----------
    rows : (m, d)
        A sample of distinct rows.
    """
    if not len(rows):
        return False
    # Scale, so that no square overflows.
    exponent = int(np.frexp(float(np.abs(rows).max()))[1])
    x = np.ldexp(np.sort(rows, axis=0).astype(np.float64), -exponent)
    low, middle, high = (x[(len(x) - 1) * quarter // 4] for quarter in (1, 2, 3))
    for center, spread in ((x.mean(axis=0), x.std(axis=0)), (middle, (high - low) / _QUARTILES)):
        # Rounding may give equal numbers a deviation above 0.
        varies = (x[0] < x[-1]) & (spread > 0)
        if (np.abs(center[varies]) > FAR * spread[varies]).any():
            return True
    return False


@lru_cache(maxsize=16)
def _factors(n_words: int) -> NDArray[np.uint64]:
    """Return odd 64-bit factors of the words of a row, drawn by splitmix64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n_words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return readonly((z ^ (z >> np.uint64(31))) | np.uint64(1))


@njit
def _find(words, begin, factors, limit, recent, hashes, at):
    """Find rows from `begin` on whose hash is below the limit, until `hashes` is full.

    Return how many there are, and the first row that has not been hashed.
    """
    n, width = words.shape
    count = 0
    for i in range(begin, n):
        total = np.uint64(0)
        for f in range(width):
            total += np.uint64(words[i, f]) * factors[f]
        # splitmix64's finalizer mixes all bits of the sum
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total ^= total >> np.uint64(31)
        if total >= limit:
            continue
        slot = np.int64(total & np.uint64(1023))
        if recent[slot] == total:
            continue
        recent[slot] = total
        hashes[count], at[count] = total, i
        count += 1
        if count == hashes.size:
            return count, i + 1
    return count, n
