"""Exact column sums of sparse float32 rows, with one integer addition per stored number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, readonly
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.jit import njit

__all__ = ["SparseScan"]

_SINGLE = np.int32(0x7FFFFFFF)
_INFINITE = 0x7F800000
_ONE = np.int32(1)
_NONE = np.int32(0)
_ROOM = 62
"""Bits that a column's sum may take."""
_HALF = 31
_MOST_ROWS = 1 << 31


class SparseScan:
    """Extent and exact sums of sparse float32 rows, gathered as integers.

    A float32 of at most 2^e whose last bit is at least 2^l is an integer of at most e - l bits in
    units of 2^l, and a column has at most one number per row. So n rows add up in 64 bits as long
    as ``e - l + log2(n) <= 62``; rows for which that fails are left to the caller.
    """

    __slots__ = ("_high", "_low", "_n_added", "_power", "_sums", "_top")

    def __init__(self, n_features: int) -> None:
        self._sums = np.zeros(n_features, np.int64)
        self._low, self._high = np.inf, -np.inf
        self._n_added = 0
        self._power = -1000
        """Sums count units of 2^-power."""
        self._top = -1000
        """No number added was above 2^top."""

    def add(self, x: SparseBlock, sums: ExactSums) -> bool:
        """Add (n, d) float32 rows; sums without room for them go to ``sums`` first.

        Return False, and add nothing, if a number is not finite or the numbers differ too much in
        size.
        """
        data = x.data[x.stored]
        highest, lowest, largest, least = _extent(
            readonly(data).view(np.int32), readonly(data).view(np.uint32)
        )
        if largest >= _INFINITE:
            return False
        if largest > 0:
            # biased exponents: 127 is that of 1, subnormal numbers count as those of 1
            top = max(largest >> 23, 1) - 126
            power = 150 - max((int(least) + 1) >> 23, 1)
            if self._n_added + len(x) > _MOST_ROWS or not self._fits(top, power, len(x)):
                self._hand_over_sums(sums)
                if not self._fits(top, power, len(x)):
                    return False
            wanted = max(self._power, power)
            if wanted > self._power:
                # finer units: exact, and by the test above there is room
                if self._n_added:
                    self._sums <<= wanted - self._power
                self._power = wanted
            self._top = max(self._top, top)
            self._n_added += len(x)
            _add(readonly(data), readonly(x.indices[x.stored]), 2.0**self._power, self._sums)
        low, high = np.array([lowest, highest], np.uint32).view(np.float32).tolist()
        # Without a negative number the largest unsigned integer is that of the highest.
        self._low, self._high = min(0.0, low, self._low), max(self._high, high)
        return True

    def hand_over(self, sums: ExactSums) -> tuple[NDArray[Any], NDArray[Any]]:
        """Move the sums into ``sums``; return the extent (d,) (d,), one for all columns, with 0."""
        self._hand_over_sums(sums)
        return np.full(len(self._sums), self._low), np.full(len(self._sums), self._high)

    def _fits(self, top: int, power: int, n: int) -> bool:
        """Return True if ``n`` more rows of numbers up to 2^top in units of 2^-power have room."""
        bits = max(self._top, top) + max(self._power, power)
        return bits + (self._n_added + n).bit_length() <= _ROOM

    def _hand_over_sums(self, sums: ExactSums) -> None:
        if self._n_added:
            cells = np.arange(len(self._sums))
            for part, power in (
                (self._sums >> _HALF, self._power - _HALF),
                (self._sums & ((1 << _HALF) - 1), self._power),
            ):
                sums.add(part.astype(np.float64) * 2.0**-power, None, cells)
        self._sums[:] = 0
        self._n_added = 0
        self._power = self._top = -1000


@njit
def _extent(bits, unsigned):
    """Return bits of the largest number (0 included), the lowest, the largest size, the least.

    The lowest one's as an unsigned integer, that of the least nonzero size less one. Sizes
    of float32 numbers are in the order of their bits, and integers are compared many at a time.
    """
    highest, lowest = _NONE, np.uint32(0)
    largest, least = _NONE, _SINGLE  # zero, less one and without its sign, is the largest
    for i in range(bits.shape[0]):
        size = bits[i] & _SINGLE
        highest, lowest = max(highest, bits[i]), max(lowest, unsigned[i])
        largest = max(largest, size)
        least = min(least, (size - _ONE) & _SINGLE)
    return highest, lowest, largest, least


@njit
def _add(data, indices, scale, sums):
    for i in range(data.shape[0]):
        sums[indices[i]] += np.int64(np.float64(data[i]) * scale)
