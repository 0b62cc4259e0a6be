"""Exact sums of float64 values, independent of the order of addition.

A finite float64 is an integer times 2^-1074. :class:`ExactSums` stores every sum as such an
integer, split into limbs of 32 bits: limb ``l`` counts units of 2^(32 l - 1088). Integers can be
added exactly in any order, so the result is the true sum, rounded once.

Source: R. M. Neal, "Fast exact summation using small and large superaccumulators" (2015).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.jit import njit

MAGIC = 6755399441055744.0
"""1.5 * 2^52: adding this number rounds a float64 to an integer."""
MAGIC_BITS = 0x4338000000000000
"""Bit pattern of ``MAGIC`` as an integer. The bit pattern of ``MAGIC + n`` is ``MAGIC_BITS +
n``."""
_ABS_BITS = 0x7FFFFFFFFFFFFFFF

LIMB = 32
ORIGIN = 1088
"""The lowest limb counts units of 2^-ORIGIN, which is less than the smallest float64."""

UNIT = ORIGIN // LIMB
"""Index of the limb that counts units of 1."""
N_LIMBS = 2 * UNIT + 3
"""Number of limbs that can represent any float64."""
BLOCK_VALUES = 1 << 15
"""Number of values in a block that fits in the second-level cache."""
BLOCK_ROWS = 1 << 15
"""Maximum number of rows per block, so that column sums in :func:`peel` stay below 2^61."""
_WIDTH = 64
"""Side of the square array in which the values of one cell are passed to :func:`peel`."""

_MASK = (1 << LIMB) - 1
_MAX_PENDING = 1 << 29
# Outside these limits, the rounding error of a product is not exact and is ignored.
_LARGEST, _SMALLEST = 2.0**960, 2.0**-900
_SPLITTER = 134217729.0  # 2^27 + 1


@njit
def two_product_error(a, b, product):
    """Return the exact rounding error ``a * b - product`` of a product (Veltkamp, Dekker 1971).

    Return 0 if the error could not be exact, because a number is too large or the product too
    small.
    """
    size = abs(product)
    if not (_SMALLEST < size < _LARGEST) or abs(a) > _LARGEST or abs(b) > _LARGEST:
        return 0.0
    t = _SPLITTER * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLITTER * b
    b_high = t - (t - b)
    b_low = b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit
def add_one(limbs, low, cell, value):
    """Add a value to one cell of a table whose first row is limb ``low``.

    Return False without adding anything if the value is not finite.
    """
    bits = np.float64(value).view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    if exponent == 0x7FF:
        return False
    mantissa = bits & 0xFFFFFFFFFFFFF
    if exponent > 0:
        mantissa |= 0x10000000000000
        exponent -= 1
    if bits < 0:
        mantissa = -mantissa
    place = exponent + 14  # 2^-1074 is 2^14 units of 2^-ORIGIN
    limb = (place >> 5) - low
    shift = place & 31
    # Arithmetic shifts round down, so lower parts are never negative.
    upper = mantissa >> (32 - shift)
    limbs[limb, cell] += (mantissa - (upper << (32 - shift))) << shift
    limbs[limb + 1, cell] += upper & 0xFFFFFFFF
    limbs[limb + 2, cell] += upper >> 32
    return True


@njit
def peel(values, limbs, largest):
    """Add (r, w) values exactly to the limbs of their columns, and overwrite ``values``.

    Values are added limb by limb, starting with the highest limb. Adding and subtracting 1.5 * 2^52
    rounds each value to a whole number of units of the limb, and the remainder is passed to the
    next lower limb. The remainder is exact, because it is a multiple of the value's last bit and
    not larger than the value. The integers are at most 2^46 for the first limb and at most 2^31 for
    other limbs, so the sum of a column of 2^15 rows stays below 2^61. Return the number of values
    that were not finite.
    """
    if largest == 0:
        return 0
    n, width = values.shape
    d = limbs.shape[1]
    layer = np.empty(width, np.int64)
    limb = ((largest >> 52) + 51) >> 5
    while True:
        power = 32 * limb - 1088
        if power < -900 or power > 900:
            break
        unit = np.int64((power + 1023) << 52).view(np.float64)
        scale = np.int64((1023 - power) << 52).view(np.float64)
        layer[:] = 0
        rest: Any = 0
        for i in range(n):
            for f in range(width):
                value = values[i, f]
                t = value * scale + MAGIC
                layer[f] += np.float64(t).view(np.int64) - MAGIC_BITS
                value -= (t - MAGIC) * unit
                values[i, f] = value
                rest |= np.float64(value).view(np.int64)
        for f in range(width):
            upper = layer[f] >> 32
            limbs[limb, f % d] += layer[f] & 0xFFFFFFFF
            limbs[limb + 1, f % d] += upper & 0xFFFFFFFF
            limbs[limb + 2, f % d] += upper >> 32
        if rest & _ABS_BITS == 0:
            return 0
        limb -= 1
    # Near the limits of float64, add one value at a time.
    skipped = 0
    for i in range(n):
        for f in range(width):
            if values[i, f] != 0.0 and not add_one(limbs, 0, f % d, values[i, f]):
                skipped += 1
    return skipped


@njit
def _add(limbs, low, values, weight, cells):
    """Add weighted values to their cells, and return the number of nonfinite products."""
    skipped = 0
    for i in range(values.shape[0]):
        cell = cells[i] if cells.shape[0] > 0 else 0
        if cell < 0:
            continue
        value = values[i]
        if weight.shape[0] > 0:
            if weight[i] == 0.0:
                continue
            product = value * weight[i]
            rest = two_product_error(value, weight[i], product)
            if rest != 0.0:
                add_one(limbs, low, cell, rest)
            value = product
        if value != 0.0 and not add_one(limbs, low, cell, value):
            skipped += 1
    return skipped


@njit
def _add_together(limbs, values, weight):
    """Add weighted values to a table with one cell, and return the number of nonfinite products."""
    n, skipped = values.shape[0], 0
    products, rests = np.empty((_WIDTH, _WIDTH)), np.empty((_WIDTH, _WIDTH))
    step = _WIDTH * _WIDTH
    flat, flat_rests = products.reshape(step), rests.reshape(step)
    for begin in range(0, n, step):
        size = min(step, n - begin)
        rows = (size + _WIDTH - 1) // _WIDTH
        largest: Any = 0
        largest_rest: Any = 0
        for i in range(size):
            value = values[begin + i]
            if weight.shape[0] > 0:
                own = weight[begin + i]
                value = value if own != 0.0 else 0.0
                product = value * own
                rest = two_product_error(value, own, product)
                flat_rests[i] = rest
                largest_rest = max(largest_rest, np.float64(rest).view(np.int64) & _ABS_BITS)
                value = product
            flat[i] = value
            largest = max(largest, np.float64(value).view(np.int64) & _ABS_BITS)
        flat[size : rows * _WIDTH] = 0.0
        skipped += peel(products[:rows], limbs, largest)
        if largest_rest > 0:
            flat_rests[size : rows * _WIDTH] = 0.0
            skipped += peel(rests[:rows], limbs, largest_rest)
    return skipped


@njit
def _exponents(values):
    """Return the lowest and highest biased exponents of the finite nonzero values."""
    lowest: Any = 0x7FF
    highest: Any = 0
    for i in range(values.shape[0]):
        bits = np.float64(values[i]).view(np.int64)
        exponent = (bits >> 52) & 0x7FF
        if bits & 0x7FFFFFFFFFFFFFFF != 0 and exponent != 0x7FF:
            lowest = min(lowest, exponent)
            highest = max(highest, exponent)
    return lowest, highest


_NO_WEIGHT = readonly(np.empty(0))
_NO_CELLS = readonly(np.empty(0, np.int64))


class ExactSums:
    """Exact sums of float64 values, one sum per cell.

    The limbs cover a window of exponents that grows as needed. An addition adds less than 2^32 to a
    limb, and carries are propagated at least every 2^29 additions, so a limb stays below 2^62. The
    window extends two limbs above the largest value, so its top limb counts units of more than 2^32
    times this value and cannot overflow before 2^94 additions.
    """

    __slots__ = ("_limbs", "_low", "_pending", "n_cells", "n_not_finite")

    def __init__(self, n_cells: int = 1) -> None:
        self.n_cells = n_cells
        self.n_not_finite = 0
        """Number of values that were infinite or NaN."""
        self._low = UNIT
        self._limbs: NDArray[np.int64] = np.zeros((0, n_cells), np.int64)
        self._pending = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the limbs."""
        return self._limbs.nbytes

    def add(
        self,
        values: NDArray[np.float64],
        weight: NDArray[np.float64] | None = None,
        cells: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Add ``weight * values`` exactly.

        Parameters
        ----------
        values : (n,) float64
        weight : (n,) float64, optional
            Products with the values are exact as well; values of weight 0 are ignored.
        cells : (n,) integers, optional
            Cell of each value, cell 0 by default; values with a negative cell are ignored.
        """
        if cells is None and self.n_cells == 1:
            limbs = np.zeros((N_LIMBS, 1), np.int64)
            known = _NO_WEIGHT if weight is None else readonly(weight)
            self.n_not_finite += _add_together(limbs, readonly(values), known)
            self.add_table(limbs)
            return
        lowest, highest = map(int, _exponents(readonly(values)))
        if lowest <= highest:
            lowest, highest = max(lowest, 1) - 1, max(highest, 1) - 1
            if weight is not None:
                least, most = map(int, _exponents(readonly(weight)))
                # The lowest bit of a product is the product of the lowest bits of its factors.
                lowest = max(lowest + min(least, most) - 1023 - 53, 0)
                highest = min(highest + most - 1022, 2046)
            self._cover((lowest + 14) >> 5, ((max(highest, 0) + 14) >> 5) + 4)
        elif not len(self._limbs):
            self._cover(self._low, self._low + 3)
        self._book(len(values))
        self.n_not_finite += _add(
            self._limbs, self._low, readonly(values),
            _NO_WEIGHT if weight is None else readonly(weight),
            _NO_CELLS if cells is None else readonly(cells),
        )  # fmt: skip

    def add_units(self, limb: int, counts: NDArray[np.int64]) -> None:
        """Add ``counts[cell]`` units of one limb to every cell."""
        self._cover(limb, limb + 3)
        self._book(1)
        upper = counts >> LIMB
        at = limb - self._low
        self._limbs[at] += counts & _MASK
        self._limbs[at + 1] += upper & _MASK
        self._limbs[at + 2] += upper >> LIMB

    def add_table(self, limbs: NDArray[np.int64], low: int = 0) -> None:
        """Add a (limbs, n_cells) table, as from :func:`peel`, whose first row is limb ``low``."""
        used = np.flatnonzero(limbs.any(axis=1))
        if not len(used):
            return
        first, n = int(used[0]), int(used[-1] - used[0]) + 1
        table = limbs[first : first + n]
        self._cover(low + first, low + first + n + 2)
        self._book(3)
        upper = table >> LIMB
        at = low + first - self._low
        self._limbs[at : at + n] += table & _MASK
        self._limbs[at + 1 : at + 1 + n] += upper & _MASK
        self._limbs[at + 2 : at + 2 + n] += upper >> LIMB

    def merge(self, other: ExactSums) -> ExactSums:
        """Add the sums of another accumulator in place, and return ``self``."""
        self.n_not_finite += other.n_not_finite
        if len(other._limbs):
            self._cover(other._low, other._low + len(other._limbs))
            self._carry()
            other._carry()
            at = other._low - self._low
            self._limbs[at : at + len(other._limbs)] += other._limbs
        return self

    def integers(self) -> tuple[list[int], int]:
        """Return integers and an exponent: the exact sums are ``integers * 2**exponent``."""
        self._carry()
        totals = [0] * self.n_cells
        for limb in self._limbs[::-1]:
            totals = [(t << LIMB) + v for t, v in zip(totals, limb.tolist(), strict=True)]
        return totals, LIMB * self._low - ORIGIN

    def over(self, divisor: Fraction) -> NDArray[np.float64]:
        """Divide the finite sums by a positive number, and round each quotient once.

        Sums that float64 can represent exactly are divided by numpy, because sparse rows may have
        millions of cells, and Python integers would be slow.
        """
        self._carry()
        totals, inexact = np.zeros(self.n_cells), np.zeros(self.n_cells, np.bool_)
        exponent, denominator = LIMB * self._low - ORIGIN, float(divisor)
        # Overflow and underflow are detected from the results.
        with np.errstate(all="ignore"):
            for limb in self._limbs[::-1]:
                high, low = totals * 2.0**LIMB, limb.astype(np.float64)
                totals = high + low
                inexact |= (totals - high != low) | (totals - low != high)
                inexact |= low.astype(np.int64) != limb
            sizes = np.ldexp(np.abs(totals), exponent)
            quotients = sizes / denominator
            for size in (sizes, quotients):
                inexact |= ~((size > 1 / _LARGEST) & (size < _LARGEST)) & (totals != 0)
        out: NDArray[np.float64] = np.copysign(quotients, totals)
        if Fraction(denominator) != divisor:
            inexact[:] = True
        left = np.flatnonzero(inexact)
        if len(left):
            sums, _ = self.integers()
            # Python rounds the quotient of two integers only once.
            above, below = (Fraction(2) ** exponent / divisor).as_integer_ratio()
            out[left] = [sums[cell] * above / below for cell in left.tolist()]
        return out

    @property
    def values(self) -> NDArray[np.float64]:
        """(n_cells,) sums, each rounded once, or NaN if any value was not finite."""
        if self.n_not_finite:
            return np.full(self.n_cells, np.nan)
        totals, exponent = self.integers()
        return np.array([_scaled(t, exponent) for t in totals], np.float64)

    @property
    def value(self) -> float:
        """Sum over all cells, rounded once, or NaN if any value was not finite."""
        if self.n_not_finite:
            return float("nan")
        totals, exponent = self.integers()
        return _scaled(sum(totals), exponent)

    def _cover(self, low: int, high: int) -> None:
        """Extend the window to the limbs ``low <= l < high``."""
        if not len(self._limbs):
            self._low, self._limbs = low, np.zeros((high - low, self.n_cells), np.int64)
            return
        below, above = max(self._low - low, 0), max(high - self._low - len(self._limbs), 0)
        if below or above:
            self._carry()
            self._limbs = np.pad(self._limbs, ((below, above), (0, 0)))
            self._low -= below
            if above:
                # Only the old top limb may be negative.
                self._pending = 1
                self._carry()

    def _book(self, n: int) -> None:
        if self._pending + 2 * n > _MAX_PENDING:
            self._carry()
        self._pending += 2 * n

    def _carry(self) -> None:
        """Propagate carries, so that all limbs except the top limb are in [0, 2^32)."""
        if self._pending:
            for lower, upper in zip(self._limbs[:-1], self._limbs[1:], strict=True):
                upper += lower >> LIMB
                lower &= _MASK
            self._pending = 0

    def __getstate__(self) -> tuple[int, int, int, NDArray[np.int64]]:
        self._carry()
        return self.n_cells, self.n_not_finite, self._low, self._limbs

    def __setstate__(self, state: tuple[int, int, int, NDArray[np.int64]]) -> None:
        self.n_cells, self.n_not_finite, self._low, self._limbs = state
        self._pending = 0


def _scaled(number: int, exponent: int) -> float:
    """Return ``number * 2**exponent``, rounded once."""
    try:
        return number / (1 << -exponent) if exponent < 0 else float(number << exponent)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
