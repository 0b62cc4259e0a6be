"""Exact sums of float64 values, whose bits do not depend on the order of addition.

A finite float64 is an integer times 2^-1074. :class:`ExactSums` stores every sum as such an
integer, split into limbs of 32 bits on one absolute grid of powers of two: limb ``l`` counts units
of 2^(32 l - 1088). Integers add exactly in any order, so the result is the true sum, rounded once.

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
"""1.5 * 2^52: sums with it are rounded to whole numbers."""
MAGIC_BITS = 0x4338000000000000
"""Bits of MAGIC as an integer. The bits of MAGIC plus a whole number exceed them by that number."""
_ABS_BITS = 0x7FFFFFFFFFFFFFFF

LIMB = 32
"""Bits per limb."""
ORIGIN = 1088
"""The lowest limb counts units of 2^-ORIGIN (below the smallest float64, a multiple of LIMB)."""

UNIT = ORIGIN // LIMB
"""The limb that counts units of 1."""
N_LIMBS = 2 * UNIT + 3
"""Number of limbs of a table that can represent any float64."""
BLOCK_VALUES = 1 << 15
"""Values per block, which stays in the second-level cache while :func:`peel` works on it."""
BLOCK_ROWS = 1 << 15
"""Maximum rows per block: the sum of one layer of a column stays below 2^61."""
_WIDTH = 64
"""Values of one cell are peeled as a square array with this side."""

_MASK = (1 << LIMB) - 1
_MAX_PENDING = 1 << 29
# Beyond these limits a product's rounding error is not exact, and is omitted.
_LARGEST, _SMALLEST = 2.0**960, 2.0**-900
_SPLITTER = 134217729.0  # 2^27 + 1


@njit
def two_product_error(a, b, product):
    """Return ``a * b - product`` exactly, for the rounded ``product`` (Veltkamp, Dekker 1971).

    The result is zero if the operands are too large, or the product too small, for it to be exact.
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
    """Add a value to one cell of a window that starts at limb ``low``.

    Return False, and add nothing, if the value is not finite.
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
    place = exponent + 14  # 2^-1074 in units of 2^-ORIGIN
    limb = (place >> 5) - low
    shift = place & 31
    # arithmetic shifts round down, so lower parts are never negative
    upper = mantissa >> (32 - shift)
    limbs[limb, cell] += (mantissa - (upper << (32 - shift))) << shift
    limbs[limb + 1, cell] += upper & 0xFFFFFFFF
    limbs[limb + 2, cell] += upper >> 32
    return True


@njit
def peel(values, limbs, largest):
    """Add (r, w) values exactly to the limbs of their columns; ``values`` is overwritten.

    Values are added layer by layer: a layer is the values rounded to integers in units of one limb,
    by adding and subtracting 1.5 * 2^52. The remainder is exact (a multiple of the value's last
    bit, and not larger than the value), and the next layer is taken from it. The first unit is such
    that integers are at most 2^46; later integers are at most 2^31, so a column of 2^15 rows stays
    below 2^61. Return the number of values that were not finite.
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
    # units near the limits of float64: add one value after the other
    skipped = 0
    for i in range(n):
        for f in range(width):
            if values[i, f] != 0.0 and not add_one(limbs, 0, f % d, values[i, f]):
                skipped += 1
    return skipped


@njit
def _add(limbs, low, values, weight, cells):
    """Add (n,) values times weights to their cells; return the number of nonfinite products."""
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
    """Add (n,) values times weights to the only column of a table (see :func:`peel`).

    Return the number of products that were not finite.
    """
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
    """Return the lowest and highest biased exponent of the finite nonzero values."""
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
    """Exact sums of float64 values in ``n_cells`` cells.

    The limbs are a window that grows with the exponents that occur. An addition adds less than 2^32
    to a limb, and carries are propagated at least every 2^29 additions, so a limb stays below 2^62.
    The window ends two limbs above the largest value, so its top limb counts units of more than
    2^32 times the largest value and cannot overflow before 2^94 additions.
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
                # a product's lowest bit is the product of the lowest bits (bias 1023, 52 bits)
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
        """Add ``counts[cell]`` units of 2^(LIMB * limb - ORIGIN) to every cell."""
        self._cover(limb, limb + 3)
        self._book(1)
        upper = counts >> LIMB
        at = limb - self._low
        self._limbs[at] += counts & _MASK
        self._limbs[at + 1] += upper & _MASK
        self._limbs[at + 2] += upper >> LIMB

    def add_table(self, limbs: NDArray[np.int64], low: int = 0) -> None:
        """Add a (limbs, n_cells) table of units that begins at limb ``low`` (see :func:`peel`)."""
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
        """Add another accumulator's sums to this one, and return it."""
        self.n_not_finite += other.n_not_finite
        if len(other._limbs):
            self._cover(other._low, other._low + len(other._limbs))
            self._carry()
            other._carry()
            at = other._low - self._low
            self._limbs[at : at + len(other._limbs)] += other._limbs
        return self

    def integers(self) -> tuple[list[int], int]:
        """Return the sums as ``integers * 2**exponent``, exactly."""
        self._carry()
        totals = [0] * self.n_cells
        for limb in self._limbs[::-1]:
            totals = [(t << LIMB) + v for t, v in zip(totals, limb.tolist(), strict=True)]
        return totals, LIMB * self._low - ORIGIN

    def over(self, divisor: Fraction) -> NDArray[np.float64]:
        """Return (n_cells,) finite sums divided by a positive number, each quotient rounded once.

        Sums that float64 can represent exactly, such as nearly all sums of float32 numbers, avoid
        Python integers, which would be slow: sparse rows may have millions of cells.
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
        """(n_cells,) sums, each rounded once; NaN if a value was not finite."""
        if self.n_not_finite:
            return np.full(self.n_cells, np.nan)
        totals, exponent = self.integers()
        return np.array([_scaled(t, exponent) for t in totals], np.float64)

    @property
    def value(self) -> float:
        """The sum over all cells, rounded once; NaN if a value was not finite."""
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
                # The old top limb may be negative; no other limb is.
                self._pending = 1
                self._carry()

    def _book(self, n: int) -> None:
        if self._pending + 2 * n > _MAX_PENDING:
            self._carry()
        self._pending += 2 * n

    def _carry(self) -> None:
        """Bring every limb but the top one into [0, 2^32)."""
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
    """Return ``number * 2**exponent`` rounded once."""
    try:
        return number / (1 << -exponent) if exponent < 0 else float(number << exponent)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
