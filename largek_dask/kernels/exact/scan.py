"""Compiled loops of the first scan: extent and exact sum of each column, and hashes of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from largek_dask.kernels.exact.numbers import (
    BLOCK_ROWS,
    BLOCK_VALUES,
    add_one,
    peel,
    two_product_error,
)
from largek_dask.kernels.jit import njit

_ABS_BITS = 0x7FFFFFFFFFFFFFFF
_SIZE_BITS = np.uint32(0x7FFFFFFF)
"""Mask of all bits of a float32 except the sign. Masked bits, as integers, sort by absolute
value."""
_MOST_BITS = np.uint32(0xFFFFFFFF)
_ONE = np.uint32(1)
_ZERO = np.float32(0)
_PART_BITS = 38
"""Number of bits in each of the two parts into which a float32 value is split."""


@njit
def scan_float32(x, limbs, low, high, words, factors, hashes):
    """Update the extents and exact sums of columns with (n, w) float32 rows, and hash the rows.

    Return False, before all rows are added, if a value is NaN or infinite. ``words`` (m, d) are the
    bits of the hashed rows, of which each row of ``x`` contains m / n; see ``hash_rows``.

    Rows are processed in blocks of at most 2^15 rows. If all values of a block are below 2^e, each
    value is split into a multiple of 2^(e - 38) and a remainder of at most half of this unit. The
    sum of 2^15 multiples stays below 2^53 units and is exact in float64. The sum of the remainders
    is exact as well if all remainders are multiples of 2^(e - 76). The last bit of a float32 is at
    least 2^-24 times its leading bit, so this fails only for values that are 2^51 times smaller
    than another value. Such values are added one at a time.
    """
    n, width = x.shape
    step = min(BLOCK_ROWS, max(4, BLOCK_VALUES // width))
    first, rest = np.zeros(width), np.zeros(width)
    largest, was, added, group = _ZERO, np.int64(0), 0, words.shape[0] // n
    for begin in range(0, n, step):
        block = x[begin : begin + step]
        least = _extent_of_float32(block, block.view(np.uint32), low, high)
        for f in range(width):
            largest = max(largest, max(high[f], -low[f]))
        rows = slice(begin * group, (begin + len(block)) * group)
        hash_rows(words[rows], factors, hashes[rows])
        # All values are below 2^exponent and are multiples of 2^last.
        exponent = (np.float64(largest).view(np.int64) >> 52) - 1022
        last = max((np.int64(least) + 1) >> 23, np.int64(1)) - 150
        has_small = last < exponent - 2 * _PART_BITS
        if (largest == _ZERO or has_small) and not _are_finite(block.reshape(-1)):
            return False
        if largest == _ZERO:
            continue
        added += len(block)
        if added > BLOCK_ROWS or exponent != was:
            _add_each(first, limbs)
            _add_each(rest, limbs)
            first[:] = 0.0
            rest[:] = 0.0
            was, added = exponent, len(block)
        # Adding 1.5 * 2^52 units rounds a value to whole units.
        magic = np.int64((exponent - _PART_BITS + 52 + 1023) << 52).view(np.float64) * 1.5
        if has_small:
            limit = np.uint32(exponent - 2 * _PART_BITS + 150) << np.uint32(23)
            _add_parts(
                _without_small(block, block.view(np.uint32), limit, limbs), magic, first, rest
            )
        else:
            _add_parts(block, magic, first, rest)
        if not _are_finite(rest):
            return False
    _add_each(first, limbs)
    _add_each(rest, limbs)
    return True


@njit
def hash_rows(words, factors, out):
    """Write a 64-bit hash of each row of (n, d) unsigned integers to ``out`` (n,)."""
    for i in range(words.shape[0]):
        total = np.uint64(0)
        for f in range(words.shape[1]):
            total += np.uint64(words[i, f]) * factors[f]
        # The finalizer of splitmix64 mixes all bits of the sum.
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = total ^ (total >> np.uint64(31))


@njit
def _extent_of_float32(x, bits, low, high):
    """Update column extents, and return the bits of the smallest nonzero magnitude, minus 1.

    Four rows are processed at a time, so that the extents are loaded and stored once for all four.
    """
    n, width = x.shape
    least = _MOST_BITS  # subtracting 1 maps zeros to this maximum
    whole = n // 4 * 4
    for i in range(0, whole, 4):
        for f in range(width):
            a, b, c, d = x[i, f], x[i + 1, f], x[i + 2, f], x[i + 3, f]
            # Adding 0 turns -0 into 0, and avoids masked stores, which are three times slower.
            low[f] = min(min(low[f], min(a, b)), min(c, d)) + _ZERO
            high[f] = max(max(high[f], max(a, b)), max(c, d)) + _ZERO
            p = np.uint32((bits[i, f] & _SIZE_BITS) - _ONE)
            q = np.uint32((bits[i + 1, f] & _SIZE_BITS) - _ONE)
            r = np.uint32((bits[i + 2, f] & _SIZE_BITS) - _ONE)
            s = np.uint32((bits[i + 3, f] & _SIZE_BITS) - _ONE)
            least = min(least, min(min(p, q), min(r, s)))
    for i in range(whole, n):
        for f in range(width):
            low[f] = min(low[f], x[i, f]) + _ZERO
            high[f] = max(high[f], x[i, f]) + _ZERO
            least = min(least, np.uint32((bits[i, f] & _SIZE_BITS) - _ONE))
    return least


@njit
def _are_finite(values):
    # Only finite numbers give 0.
    total = np.float64(0)
    for i in range(values.shape[0]):
        total += np.float64(values[i]) * 0.0
    return total == 0.0


@njit
def _without_small(x, bits, limit, limbs):
    """Add the values whose magnitude is below ``limit``, as bits; return the others, in a copy."""
    out, some = np.empty_like(x), np.zeros(x.shape[1], np.uint32)
    for i in range(x.shape[0]):
        for f in range(x.shape[1]):
            out[i, f] = x[i, f] if (bits[i, f] & _SIZE_BITS) >= limit else _ZERO
            some[f] |= np.uint32(out[i, f] != x[i, f])
    for f in range(x.shape[1]):
        if some[f] == 0:
            continue
        for i in range(x.shape[0]):
            if out[i, f] != x[i, f]:
                add_one(limbs, 0, f % limbs.shape[1], np.float64(x[i, f]))
    return out


@njit
def _add_parts(x, magic, first, rest):
    """Add both parts of every value to the sums of its column, without rounding."""
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
def _add_each(values, limbs):
    """Add the values of flattened rows to the limbs of their columns."""
    n_columns = limbs.shape[1]
    for i in range(values.shape[0]):
        value = np.float64(values[i])
        if value != 0.0:
            add_one(limbs, 0, i % n_columns, value)


@njit
def scan_floats(x, limbs, low, high):
    """Update the extents and exact sums of columns with (n, w) finite rows."""
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
                # Adding 0 turns -0 into 0, and avoids masked stores, which are three times slower.
                low[f] = min(low[f], value) + 0.0
                high[f] = max(high[f], value) + 0.0
                largest = max(largest, np.float64(value).view(np.int64) & _ABS_BITS)
        peel(values[:rows], limbs, largest)


@njit
def scan_weighted(x, weight, limbs, low, high):
    """Update column extents and exact weighted sums, and return the number of overflows."""
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
    """Update the extents and sums of columns with (n, w) integers of at most 16 bits."""
    n, width = x.shape
    block = np.empty(width, np.int32)
    for begin in range(0, n, BLOCK_ROWS):
        block[:] = 0  # int32 can hold sums of 2^15 values below 2^16
        for i in range(begin, min(n, begin + BLOCK_ROWS)):
            for f in range(width):
                value = x[i, f]
                block[f] += value
                low[f] = min(low[f], value)
                high[f] = max(high[f], value)
        for f in range(width):
            sums[f] += block[f]
