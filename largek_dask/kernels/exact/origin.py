"""An origin among most of the rows, if few that lie far out draw the mean away from them.

Products |x|² - 2 x·c + |c|² lose the digits by which lengths exceed distances, and sums of
rows those of the subtracted origin, so it should lie among the rows. The mean does,
unless rows far out dominate it: one at 1e8 next to 10^5 rows of unit size puts it a thousand units
away from all of these, and leaves most of them in doubt (:mod:`.doubts`). The middle of a few
hundred rows is not affected by such a row.

These rows are the distinct ones with the smallest hashes of their content: the same for every
order and chunking, and for a row of weight 3 and three equal rows.
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

__all__ = ["DistinctRows", "Middle", "is_far"]

MOST_ROWS = 256
FEWEST_ROWS = 16
"""Fewer distinct rows do not suffice; of very long rows no more are kept."""
_VALUES = 1 << 18
"""Numbers that are kept, where that is `FEWEST_ROWS` or more."""
_FOUND = 1024
"""Candidates after which the limit is lowered."""
_RECENT = 1024
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}
"""Types as which the numbers of a row are hashed, by their bytes."""

FAR = 2.0**10
"""Ratio above which float32 leaves only 14 of 24 bits to the differences of rows."""
_IN_DOUBT = 2.0**-6
"""Squared lengths at which a row is in doubt in any case, times γ, relative to most rows."""
_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
_HARMFUL = 2.0**-14
"""Products are good enough where γ times the squared lengths is below this."""


class DistinctRows:
    """The distinct rows with the smallest hashes, at most `size`.

    Rows whose 64-bit hashes agree pass for one row.

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
        # where the row of each hash is: rows stay in their places while others go
        self._places = np.empty(0, np.int64)
        self._rows = np.empty((self.size, n_features), dtype)
        # hashes that have been met: tables of few distinct rows meet each of them often
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
    """Middle and spread of most rows, by a sample.

    Parameters
    ----------
    rows : (m, d)
        At least `FEWEST_ROWS`, distinct.
    """

    __slots__ = ("_rows", "point", "square")

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows = readonly(rows)
        # A number that occurs, not one between two: of integers an integer.
        self.point = readonly(np.sort(rows, axis=0)[(len(rows) - 1) // 2] + rows.dtype.type(0))
        """(d,) median of every feature."""
        self.square = float(np.sort(row_squares(self._rows, self.point))[len(rows) // 2])
        """Squared distance to it within which half of the rows lie."""

    @property
    def spread(self) -> float:
        """Root mean squared distance of a feature of half of the rows from the middle."""
        return math.sqrt(self.square / self._rows.shape[1])

    def serves_better(self, origin: NDArray[Any]) -> bool:
        """Return True if products about the middle resolve rows that those about `origin` do not.

        About the mean of the rows squared lengths are smallest in sum, so the middle replaces it
        only if few rows dominate the mean: if rows that are in doubt about either count alike
        at any distance, lengths about the middle have to be less than half as large.
        """
        d, dtype = self._rows.shape[1], self._rows.dtype
        if d <= DIRECT_FEATURES:
            # No products: digits may be lost in the difference from the origin in a sum.
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

    Far and wide are mean and standard deviation, or median and a normal distribution's deviation
    for its quartiles: few rows at other places hide neither. A constant feature is exact
    in any type.

    Parameters
    ----------
    rows : (m, d)
        A sample of distinct rows.
    """
    if not len(rows):
        return False
    # (so that no square overflows)
    exponent = int(np.frexp(float(np.abs(rows).max()))[1])
    x = np.ldexp(np.sort(rows, axis=0).astype(np.float64), -exponent)
    low, middle, high = (x[(len(x) - 1) * quarter // 4] for quarter in (1, 2, 3))
    for center, spread in ((x.mean(axis=0), x.std(axis=0)), (middle, (high - low) / _QUARTILES)):
        # (rounding leaves equal numbers a deviation)
        varies = (x[0] < x[-1]) & (spread > 0)
        if (np.abs(center[varies]) > FAR * spread[varies]).any():
            return True
    return False


@lru_cache(maxsize=16)
def _factors(n_words: int) -> NDArray[np.uint64]:
    """Return odd 64-bit factors of the words of a row, by Weyl's sequence through splitmix64."""
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
        # the sum's low bits depend on little: splitmix64 spreads them
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
