"""Fixed-point grid for exact sums of rows, and a proof that these sums cannot overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOW_BITS = 50
LOW_SCALE, LOW_MASK = 2.0**LOW_BITS, (1 << LOW_BITS) - 1
_MAX_INTEGER_TOTAL = 36
_DIGITS = {4: 24, 8: 32}  # required bits below the extent, by item size
_DIGITS_OF_MANY = 16  # bits required for differences between most rows


@dataclass(frozen=True, eq=False, slots=True)
class FixedPoint:
    """Fixed-point grid for sums: steps of 2^-bits for features, 2^-weight_bits for weights.

    Sums cannot overflow. Let A be the maximum of |x - shift|, W the total weight and N the number
    of rows. Let 2^a, 2^v and 2^m be the smallest powers of two above A, W and the largest weight.

    * A row is rounded to ``q = round((x - shift) 2^bits)`` with ``bits <= 50 - a``, so
      ``|q| <= 2^50``, inside the range |q| < 2^51 where adding 1.5 * 2^52 in float64 rounds to the
      nearest integer.
    * A row of integer weight w adds ``w q``. With ``bits <= 61 - v - a``, the total is at most
      ``W (A 2^bits + 1/2) <= 2^61 + 2^(v-1) < 2^62``, since weights are treated as integers only if
      v <= 36. This also leaves 25 bits for a row, and the total weight is at most 2^36.
    * Other weights add ``round(w (x - shift) 2^bits)`` with ``bits <= 50 - m - a`` (the same magic
      range) and ``bits <= 60 - v - a``: a total of at most ``2^60 (1 + 2^-51) + N / 2 < 2^62`` for
      N < 2^61. The same holds for the weights themselves, ``round(w 2^weight_bits)`` with
      ``weight_bits <= min(50 - m, 60 - v)``.
    * Integer data with an integer shift need no rounding: bits = 0 whenever ``A <= 2^50`` and
      ``W A <= 2^62``.

    If weights differ widely, such a grid is too coarse for light rows. Let the lightest weight be
    at least 2^l, so that it has ``D = weight_bits + l`` bits. Then the error of a cluster's mean is
    at most ``2^(a - D)``: the n_c rows of a cluster weigh at least n_c 2^l, and each row and weight
    is rounded by at most half a step. If D is less than required (24 bits in float32, 32 in
    float64), sums are *wide*: the remainder of a row after rounding, which is at most half a step,
    is rounded to steps of 2^-(bits + 50) and added to a low limb. The low limb stays in [0, 2^50)
    and the excess is carried, so both limbs are the digits of one integer and do not depend on the
    order either. A row adds at most ``2^49 + 2^50 < 2^63`` to a low limb before the carry. Carries
    add up to less than N / 2 + 1, so the bounds above hold with N instead of N / 2. Now ``D =
    weight_bits + 50 + l``.

    A few outliers can also make the grid too coarse for all other rows: with one row at 1e15 and
    10^5 rows of size 1, the step is 8. So sums are also wide if fewer than 16 bits are left for the
    differences between most rows. A row of integer weight w then adds each of its two limbs w
    times, so it still counts as w equal rows. The product ``|w low| <= 2^36 2^49`` is added in two
    parts.

    A cluster's sum is a sum over a subset of the rows, so the same bounds hold. Intermediate sums
    may wrap around, for example if a row is added twice before it is removed once. Addition modulo
    2^64 is associative and commutative, so the final value is correct whenever it is in range. The
    bounds hold only for the rows for which the grid was chosen.
    """

    shift: NDArray[Any]
    """(d,) origin in data coordinates, in the compute dtype."""
    bits: int
    """The step of feature values is 2^-bits."""
    weight_bits: int
    """The step of weights is 2^-weight_bits, which is 1 for integer weights."""
    integer_weights: bool
    """True if weights are integers with a total below 2^36. A row of weight w then counts as w
    equal rows."""
    extent: int
    """Every ``|x - shift|`` is at most 2^extent."""
    extents: NDArray[np.int64] | None = None
    """(d,) extent of each feature, or None if all features have the same step."""
    wide: bool = False
    """True if sums have a second limb with 50 more bits, for data with outliers or widely different
    weights."""

    @classmethod
    def choose(
        cls,
        shift: NDArray[Any],
        max_abs: float,
        *,
        n_rows: int,
        total_weight: float | None = None,
        max_weight: float = 1.0,
        min_weight: float | None = None,
        integer_weights: bool = True,
        integer_data: bool = False,
        spread: float | None = None,
    ) -> FixedPoint:
        """Return the finest grid that cannot overflow, with wide sums only if necessary.

        Parameters
        ----------
        shift : (d,) compute dtype
        max_abs : float
            Finite max|x - shift| over the rows that count.
        n_rows : int
            Number of rows that count.
        total_weight, max_weight : float
            Sum (rounded) and maximum of the weights; the sum is ``n_rows`` by default.
        min_weight : float, optional
            Minimum of the weights, above 0; the maximum by default.
        integer_weights : bool
            Every weight is an integer.
        integer_data : bool
            All values of the rows and of the shift are integers.
        spread : float, optional
            Typical difference between most rows in a feature; unknown by default.
        """
        total = float(n_rows) if total_weight is None else total_weight
        a, v, m = power_above(max_abs), power_above(total), power_above(max_weight)
        integer_weights = integer_weights and v <= _MAX_INTEGER_TOTAL
        if integer_weights:
            weight_bits = 0
            bits = 0 if integer_data and a <= 50 and a + v <= 62 else min(50 - a, 61 - v - a)
        else:
            weight_bits = _clip(min(50 - m, 60 - v))
            bits = min(50 - m - a, 60 - v - a)
        grid = cls(shift, _clip(bits), weight_bits, integer_weights, a)
        lightest = max_weight if min_weight is None else min_weight
        digits = grid.bits + (0 if integer_weights else power_above(lightest))
        exact = integer_data and integer_weights and bits >= 0
        coarse = False
        if spread is not None and spread > 0 and not exact:
            coarse = digits + power_above(spread) < _DIGITS_OF_MANY
        unequal = not integer_weights and grid.least_weight(max_abs) > lightest
        return replace(grid, wide=coarse or unequal)

    def least_weight(self, max_abs: float) -> float:
        """Return the smallest total weight of a cluster whose mean has the required precision."""
        if self.integer_weights:
            return 1.0
        digits = min(self.bits + power_above(max_abs), self.weight_bits) + LOW_BITS * self.wide
        return 2.0 ** max(_DIGITS[self.shift.itemsize] - digits, -1074)


def power_above(value: float) -> int:
    """Return the smallest integer e with value < 2^e, or 0 if the value is 0.

    If ``value`` was rounded, the exact number is also at most 2^e.
    """
    return int(np.frexp(value)[1]) if value > 0 else 0


def _clip(bits: int) -> int:
    """Clip ``bits`` so that 2^bits and 2^-bits are normal float64 numbers."""
    return max(-1000, min(1000, bits))
