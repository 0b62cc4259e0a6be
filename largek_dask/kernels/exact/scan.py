"""Compiled loops of the first scan: extent and exact sums of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.numbers import (
    BLOCK_ROWS,
    BLOCK_VALUES,
    ExactSums,
    add_one,
    peel,
    two_product_error,
)
from largek_dask.kernels.jit import njit

__all__ = ["WIDE", "SinglesScan", "scan_floats", "scan_integers", "scan_weighted"]

WIDE = 64
"""Rows of fewer features are scanned several at once, as if they were one."""

_ABS_BITS = 0x7FFFFFFFFFFFFFFF
_SINGLE = np.int32(0x7FFFFFFF)
_ONE = np.int32(1)
_ZERO = np.float32(0)
_SPAN = 38
"""Bits of each of the two parts in which float32 values are added."""

_FLOOR = 1 << 12
"""Above any exponent: nothing has been added yet."""

_LIMB = 27
"""The lowest limb (see ``kernels.exact``) that a float32, as a float64, touches."""
_LIMBS = 12
"""Limbs of the sums of blocks of float32 values: 2^-149 to 2^143, and a carry."""


class SinglesScan:
    """Extent and exact sums of float32 rows, in the form to which the kernel adds.

    A chunk that fits in the cache takes about 100 us, so little else is done for each.
    """

    __slots__ = ("_high", "_limbs", "_low", "_n_added", "n_features")

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        width = n_features * max(1, WIDE // n_features)
        self._limbs = np.zeros((_LIMBS, n_features), np.int64)
        self._low = np.full(width, np.inf, np.float32)
        self._high = np.full(width, -np.inf, np.float32)
        self._n_added = 0

    def add(self, x: NDArray[Any]) -> bool:
        """Add (n, d) float32 rows; return False, and add nothing, if one is not finite."""
        before = self._limbs.copy(), self._low.copy(), self._high.copy()
        width = len(self._low)
        whole = len(x) * self.n_features // width * width // self.n_features
        x = readonly(np.ascontiguousarray(x))
        good = scan_singles(x[:whole].reshape(-1, width), self._limbs, self._low, self._high)
        if good and whole < len(x):
            low, high = self._low[: self.n_features], self._high[: self.n_features]
            good = scan_singles(x[whole:], self._limbs, low, high)
        if not good:
            self._limbs, self._low, self._high = before
            return False
        self._n_added += len(x)
        return True

    @property
    def full(self) -> bool:
        """True if the limbs have to be handed over before anything is added."""
        return self._n_added >= 1 << 28

    def hand_over(self, sums: ExactSums) -> tuple[NDArray[Any], NDArray[Any]]:
        """Move the sums into ``sums``; return the extent (d,) (d,) of all rows so far."""
        sums.add_table(self._limbs, _LIMB)
        self._limbs[:] = 0
        self._n_added = 0
        shape = (-1, self.n_features)
        return self._low.reshape(shape).min(axis=0), self._high.reshape(shape).max(axis=0)


@njit
def scan_singles(x, limbs, low, high):
    """Add column extent and exact sums of (n, w) float32 rows, near the speed of memory.

    Return False if a value is not finite: the result is then useless.

    Among at most 2^15 rows with values below 2^e, a value is the sum of a multiple of
    2^(e - 38) and of a rest below half of that. A column's 2^15 first parts stay below 2^53 units
    and add without rounding in float64; so do the rests, if all are multiples of 2^(e - 76). The
    last bit of a float32 is at least 2^-24 times its leading one, so this fails only where some
    value is 2^51 times smaller than another: such a block is added one value at a time.

    Most blocks need no parts: r values below 2^e that are multiples of 2^l add without rounding
    while r is at most 2^(53 - (e - l)).
    """
    n, width = x.shape
    step = min(BLOCK_ROWS, max(4, BLOCK_VALUES // width))
    first, rest, plain = np.zeros(width), np.zeros(width), np.zeros(width)
    largest, was, added = _ZERO, np.int64(0), 0
    floor, held = np.int64(_FLOOR), 0  # of what is in `plain`
    for begin in range(0, n, step):
        block = x[begin : begin + step]
        least = _extent_of_singles(block, block.view(np.int32), low, high)
        for f in range(width):
            largest = max(largest, max(high[f], -low[f]))
        if largest == np.float32(np.inf):
            return False
        # values are below 2^exponent, and multiples of 2^last
        exponent = (np.float64(largest).view(np.int64) >> 52) - 1022
        last = max((np.int64(least) + 1) >> 23, np.int64(1)) - 150
        if largest == _ZERO or last < exponent - 2 * _SPAN:
            if not _book(block.reshape(-1), limbs):
                return False
            continue
        if _fits(exponent - last, len(block)):
            if not _fits(exponent - min(floor, last), held + len(block)):
                if not _book(plain, limbs):
                    return False
                plain[:] = 0.0
                floor, held = np.int64(_FLOOR), 0
            floor = min(floor, last)
            held += len(block)
            _sum_plain(block, plain)
            continue
        added += len(block)
        if added > BLOCK_ROWS or exponent != was:
            if not (_book(first, limbs) and _book(rest, limbs)):
                return False
            first[:] = 0.0
            rest[:] = 0.0
            was, added = exponent, len(block)
        # 1.5 * 2^52 units: sums with it are rounded to whole units
        magic = np.int64((exponent - _SPAN + 52 + 1023) << 52).view(np.float64) * 1.5
        _sum_singles(block, magic, first, rest)
    return _book(first, limbs) and _book(rest, limbs) and _book(plain, limbs)


@njit
def _fits(span, n):
    """Return True if ``n`` multiples of a unit, below 2^span, add without rounding in float64."""
    return span <= 53 and n <= (np.int64(1) << (53 - span))


@njit
def _extent_of_singles(x, bits, low, high):
    """Widen the columns' extent; return the bits of the smallest nonzero size, less one.

    NaN leaves no trace here (it does in the sums). Four rows at a time, written out, so that the
    extent is loaded and stored once for all of them.
    """
    n, width = x.shape
    least = _SINGLE  # zero, less one and without its sign, is the largest of all
    whole = n // 4 * 4
    for i in range(0, whole, 4):
        for f in range(width):
            a, b, c, d = x[i, f], x[i + 1, f], x[i + 2, f], x[i + 3, f]
            # adding 0 makes -0 a 0, and keeps LLVM from masked stores, three times slower
            low[f] = min(min(low[f], min(a, b)), min(c, d)) + _ZERO
            high[f] = max(max(high[f], max(a, b)), max(c, d)) + _ZERO
            p = ((bits[i, f] & _SINGLE) - _ONE) & _SINGLE
            q = ((bits[i + 1, f] & _SINGLE) - _ONE) & _SINGLE
            r = ((bits[i + 2, f] & _SINGLE) - _ONE) & _SINGLE
            s = ((bits[i + 3, f] & _SINGLE) - _ONE) & _SINGLE
            least = min(least, min(min(p, q), min(r, s)))
    for i in range(whole, n):
        for f in range(width):
            low[f] = min(low[f], x[i, f]) + _ZERO
            high[f] = max(high[f], x[i, f]) + _ZERO
            least = min(least, ((bits[i, f] & _SINGLE) - _ONE) & _SINGLE)
    return least


@njit
def _sum_singles(x, magic, first, rest):
    """Add the two parts of every value to their columns' sums; nothing is rounded."""
    n, width = x.shape
    whole = n // 4 * 4
    for i in range(0, whole, 4):
        for f in range(width):
            a, b = np.float64(x[i, f]), np.float64(x[i + 1, f])
            c, d = np.float64(x[i + 2, f]), np.float64(x[i + 3, f])
            p, q = (a + magic) - magic, (b + magic) - magic
            r, s = (c + magic) - magic, (d + magic) - magic
            first[f] += (p + q) + (r + s)
            rest[f] += ((a - p) + (b - q)) + ((c - r) + (d - s))
    for i in range(whole, n):
        for f in range(width):
            a = np.float64(x[i, f])
            p = (a + magic) - magic
            first[f] += p
            rest[f] += a - p


@njit
def _sum_plain(x, sums):
    """Add every value to its column's sum; the caller ensures that nothing is rounded."""
    n, width = x.shape
    whole = n // 4 * 4
    for i in range(0, whole, 4):
        for f in range(width):
            a, b = np.float64(x[i, f]), np.float64(x[i + 1, f])
            c, d = np.float64(x[i + 2, f]), np.float64(x[i + 3, f])
            sums[f] += (a + b) + (c + d)
    for i in range(whole, n):
        for f in range(width):
            sums[f] += np.float64(x[i, f])


@njit
def _book(values, limbs):
    """Add values, of one column after the other, to the limbs; False if one is not finite."""
    n_columns = limbs.shape[1]
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        if value != 0.0 and not add_one(limbs, _LIMB, i % n_columns, value, 1):
            return False
    return True


@njit
def scan_floats(x, limbs, low, high):
    """Add column extent and exact sums of finite (n, w) rows."""
    n, width = x.shape
    step = min(BLOCK_ROWS, max(1, BLOCK_VALUES // width))
    values = np.empty((min(step, n), width))
    for begin in range(0, n, step):
        rows = min(step, n - begin)
        largest: Any = 0
        for i in range(rows):
            for f in range(width):
                value = np.float64(x[begin + i, f])
                values[i, f] = value
                # adding 0 makes -0 a 0, and keeps LLVM from masked stores, three times slower
                low[f] = min(low[f], value) + 0.0
                high[f] = max(high[f], value) + 0.0
                largest = max(largest, np.float64(value).view(np.int64) & _ABS_BITS)
        peel(values[:rows], limbs, largest)


@njit
def scan_weighted(x, weight, limbs, low, high):
    """Add column extent and exact weighted sums of finite rows; return how many overflowed."""
    n, width = x.shape
    step = min(BLOCK_ROWS, max(1, BLOCK_VALUES // width))
    products = np.empty((min(step, n), width))
    rests = np.empty((min(step, n), width))
    skipped = 0
    for begin in range(0, n, step):
        rows = min(step, n - begin)
        largest: Any = 0
        largest_rest: Any = 0
        for i in range(rows):
            w = weight[begin + i]
            for f in range(width):
                value = np.float64(x[begin + i, f])
                low[f] = min(low[f], value) + 0.0
                high[f] = max(high[f], value) + 0.0
                product = value * w
                rest = two_product_error(value, w, product)
                products[i, f] = product
                rests[i, f] = rest
                largest = max(largest, np.float64(product).view(np.int64) & _ABS_BITS)
                largest_rest = max(largest_rest, np.float64(rest).view(np.int64) & _ABS_BITS)
        skipped += peel(products[:rows], limbs, largest)
        if largest_rest > 0:
            skipped += peel(rests[:rows], limbs, largest_rest)
    return skipped


@njit
def scan_integers(x, sums, low, high):
    """Add column extent and sums of (n, w) integers of at most 16 bits."""
    n, width = x.shape
    block = np.empty(width, np.int32)
    for begin in range(0, n, BLOCK_ROWS):
        block[:] = 0  # 2^15 times less than 2^16
        for i in range(begin, min(n, begin + BLOCK_ROWS)):
            for f in range(width):
                value = x[i, f]
                block[f] += value
                low[f] = min(low[f], value)
                high[f] = max(high[f], value)
        for f in range(width):
            sums[f] += block[f]
