"""Choose an origin near most of the rows, even if a few outliers dominate the mean.

The product form |x|² - 2 x·c + |c|² loses digits if lengths are much larger than distances, and
sums of rows lose digits if rows are far from the origin. So the origin should be near the rows. The
mean is near most rows unless outliers dominate the mean: with one row at 1e8 and 10^5 rows of size
1, the mean is a thousand units away from nearly all rows, and rounding errors put the nearest
centre of most rows in doubt. The median of a few hundred sampled rows is not affected.

The sample consists of the distinct rows with the smallest hashes, so it does not depend on the
order, the chunking or the weights of the rows.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.scan import hash_rows
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.jit import njit
from largek_dask.kernels.tile import DIRECT_FEATURES

MOST_ROWS = 256
FEWEST_ROWS = 16
"""Minimum number of distinct rows in a sample from which an origin is chosen."""
_VALUES = 1 << 18
"""Maximum number of values in a sample, unless ``FEWEST_ROWS`` rows have more values."""
_RECENT = 1024
"""Number of slots in the cache of recent hashes."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}
"""Integer types for hashing values, by item size."""

FAR = 2.0**10
"""Above this ratio of mean to spread, float32 has at most 14 of its 24 bits left for differences
between rows."""
_IN_DOUBT = 2.0**-6
"""Squared lengths times γ are capped at this fraction of the median squared distance, because
longer rows are in doubt in any case."""
_QUARTILES = 1.349
"""Interquartile range of the standard normal distribution."""
_HARMFUL = 2.0**-14
"""Products are precise enough if γ times the mean squared length is at most this fraction of the
median squared distance."""


class DistinctRows:
    """Sample of the distinct rows with the smallest hashes, at most `size` rows.

    Rows with equal 64-bit hashes count as one row.

    Parameters
    ----------
    n_features : int
    dtype : numpy dtype
        Compute dtype, which is also the type of the sampled rows.
    """

    __slots__ = ("_hashes", "_n", "_places", "_recent", "_rows", "size")

    def __init__(self, n_features: int, dtype: np.dtype[Any]) -> None:
        self.size = max(FEWEST_ROWS, min(MOST_ROWS, _VALUES // n_features))
        self._n = 0
        # The first `n` hashes are sorted, and `places` are the indices of their rows.
        self._hashes = np.empty(self.size, np.uint64)
        self._places = np.empty(self.size, np.int64)
        self._rows = np.empty((self.size, n_features), dtype)
        # Recent hashes are skipped: data with few distinct rows repeat the same hashes.
        self._recent = np.full(_RECENT, ~np.uint64(0))

    @property
    def rows(self) -> NDArray[Any]:
        """(m, d) rows in ascending order of their hashes."""
        return self._rows[self._places[: self._n]]

    def add(self, x: NDArray[Any], hashes: NDArray[np.uint64] | None = None) -> None:
        """Add (n, d) finite rows of positive weight, of a type that kernels are compiled for.

        Their ``hashes`` (n,) are computed if they are not given.
        """
        if hashes is None:
            hashes = np.empty(len(x), np.uint64)
            words, factors = words_of(x)
            with np.errstate(over="ignore"):
                hash_rows(words, factors, hashes)
        numbers = np.full(self.size, -1)
        known = self._hashes, self._places, self._recent
        self._n = _insert(hashes, self._n, *known, numbers)
        if (new := np.flatnonzero(numbers >= 0)).size:
            self._rows[new] = x[numbers[new]]

    def merge(self, other: DistinctRows) -> None:
        """Add the rows of another sample."""
        self.add(other.rows, other._hashes[: other._n])


class Middle:
    """Median and spread of a sample of rows.

    Parameters
    ----------
    rows : (m, d)
        At least `FEWEST_ROWS` distinct rows.
    """

    __slots__ = ("_rows", "point", "square")

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = readonly(rows)
        # Do not average two middle values: integer data need an integer origin.
        self.point = readonly(np.sort(rows, axis=0)[(len(rows) - 1) // 2] + rows.dtype.type(0))
        """(d,) median of each feature."""
        self.square = float(np.sort(row_squares(self._rows, self.point))[len(rows) // 2])
        """Median squared distance of the rows from ``point``."""

    @property
    def spread(self) -> float:
        """Median distance from ``point``, divided by the square root of the number of features."""
        return math.sqrt(self.square / self._rows.shape[1])

    def serves_better(self, origin: NDArray[Any]) -> bool:
        """Return True if the product form is more precise about the median than about `origin`.

        The median replaces the mean only if outliers dominate the mean: the average of the capped
        squared lengths must be less than half as large about the median as about `origin`.
        """
        d, dtype = self._rows.shape[1], self._rows.dtype
        if d <= DIRECT_FEATURES:
            # The direct form has no products; only sums about the origin may lose digits.
            dtype = np.dtype(np.float64)
        gamma = (d + 6) * float(np.finfo(dtype).eps) / 2
        most = self.square * _IN_DOUBT / gamma
        with_it, with_this = (
            math.fsum(np.minimum(row_squares(self._rows, about), most).tolist()) / len(self._rows)
            for about in (origin, self.point)
        )
        return gamma * with_it > _HARMFUL * self.square and 2 * with_this < with_it


def is_far(rows: NDArray[Any]) -> bool:
    """Return True if any feature is farther away from 0 than `FAR` times its spread.

    The mean is compared with the standard deviation, and the median with the interquartile range,
    so that outliers cannot hide a distant feature. Constant features are ignored, since they are
    exact in any type.

    Parameters
    ----------
    rows : (m, d)
        A sample of distinct rows.
    """
    if not len(rows):
        return False
    # Scale the values so that no square overflows.
    exponent = int(np.frexp(float(np.abs(rows).max()))[1])
    x = np.ldexp(np.sort(rows, axis=0).astype(np.float64), -exponent)
    low, middle, high = (x[(len(x) - 1) * quarter // 4] for quarter in (1, 2, 3))
    for center, spread in ((x.mean(axis=0), x.std(axis=0)), (middle, (high - low) / _QUARTILES)):
        # Rounding may give equal numbers a positive standard deviation.
        varies = (x[0] < x[-1]) & (spread > 0)
        if (np.abs(center[varies]) > FAR * spread[varies]).any():
            return True
    return False


@lru_cache(maxsize=16)
def _factors(n_words: int) -> NDArray[np.uint64]:
    """Return odd 64-bit hash factors for the words of a row, generated by splitmix64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n_words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return readonly((z ^ (z >> np.uint64(31))) | np.uint64(1))


def words_of(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """Return rows (n, d) as unsigned integers, and the factor of each column for ``hash_rows``."""
    words = readonly(np.ascontiguousarray(x)).view(_WORDS[x.itemsize])
    return words, _factors(words.shape[1])


@njit
def _insert(hashes, n, sorted_hashes, places, recent, numbers):
    """Insert hashes (m,) into the n sorted hashes, of which the smallest are kept.

    ``numbers`` (size,) are set to the index of the hash for each place that becomes that of a new
    row. Return the new value of n.
    """
    size = sorted_hashes.size
    for i in range(hashes.shape[0]):
        own = hashes[i]
        if n == size and own >= sorted_hashes[n - 1]:
            continue
        slot = np.int64(own & np.uint64(1023))
        if recent[slot] == own:
            continue
        recent[slot] = own
        at, end = 0, n
        while at < end:
            middle = (at + end) // 2
            if sorted_hashes[middle] < own:
                at = middle + 1
            else:
                end = middle
        if at < n and sorted_hashes[at] == own:
            continue
        place = n
        if n == size:
            n -= 1
            place = places[n]
        for j in range(n, at, -1):
            sorted_hashes[j], places[j] = sorted_hashes[j - 1], places[j - 1]
        sorted_hashes[at], places[at], numbers[place] = own, place, i
        n += 1
    return n
