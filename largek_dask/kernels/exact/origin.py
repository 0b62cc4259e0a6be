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
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import native_blocks
from largek_dask.kernels.tile import DIRECT_FEATURES

MOST_ROWS = 256
FEWEST_ROWS = 16
"""Minimum number of distinct rows in a sample from which an origin is chosen."""
_VALUES = 1 << 18
"""Maximum number of values in a sample, unless ``FEWEST_ROWS`` rows have more values."""
_FOUND = 1024
"""Maximum number of candidate rows before the limit for hashes is lowered."""
_RECENT = 1024
"""Number of slots in the cache of recent hashes."""
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
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

    __slots__ = ("_hashes", "_places", "_recent", "_rows", "size")

    def __init__(self, n_features: int, dtype: np.dtype[Any]) -> None:
        self.size = max(FEWEST_ROWS, min(MOST_ROWS, _VALUES // n_features))
        self._hashes = np.empty(0, np.uint64)
        # Row index of each hash, so that sorting the hashes does not move rows.
        self._places = np.empty(0, np.int64)
        self._rows = np.empty((self.size, n_features), dtype)
        # Recent hashes are skipped: data with few distinct rows repeat the same hashes.
        self._recent = np.full(_RECENT, _ALL)

    @property
    def rows(self) -> NDArray[Any]:
        """(m, d) rows in ascending order of their hashes."""
        return self._rows[self._places]

    def add(self, x: NDArray[Any]) -> None:
        """Add (n, d) finite rows of positive weight."""
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
        """Add the rows of another sample."""
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


@njit
def _find(words, begin, factors, limit, recent, hashes, at):
    """Find rows with hashes below the limit, from row `begin` until `hashes` is full.

    Return the number of rows found, and the index of the first row that was not hashed.
    """
    n, width = words.shape
    count = 0
    for i in range(begin, n):
        total = np.uint64(0)
        for f in range(width):
            total += np.uint64(words[i, f]) * factors[f]
        # The finalizer of splitmix64 mixes all bits of the sum.
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
