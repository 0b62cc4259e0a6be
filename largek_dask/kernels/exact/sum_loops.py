"""Compiled loops that round rows to a grid and move exact sums between clusters."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.emit import add_row, move_row
from largek_dask.kernels.exact.fixed_point import LOW_BITS, LOW_MASK, LOW_SCALE, FixedPoint
from largek_dask.kernels.exact.numbers import MAGIC, MAGIC_BITS
from largek_dask.kernels.jit import njit

_MAX_STEPS = 2.0**50
"""Maximum number of steps in one weight: adding ``MAGIC`` rounds only values up to 2^51."""
_HALF = LOW_BITS // 2
_HALF_MASK = (1 << _HALF) - 1
ONES, INTEGERS, REALS = 0, 1, 2
"""Kinds of row weights."""
AHEAD = 1 << 10
"""Prefetch distance: number of features to add before a prefetched row is needed."""
_NO_WEIGHT = readonly(np.empty(0))


def weights_of(
    weight: NDArray[np.float64] | None, n: int, grid: FixedPoint
) -> tuple[NDArray[np.float64], int]:
    """Return the weights of n rows, and their kind. The array is empty if all weights are 1."""
    if weight is None and grid.integer_weights:
        return _NO_WEIGHT, ONES
    weight = np.ones(n) if weight is None else weight
    return readonly(weight), INTEGERS if grid.integer_weights else REALS


def refusal(row: int, weight: NDArray[np.float64], grid: FixedPoint) -> ValueError:
    return ValueError(
        f"row {row} weighs {weight[row]!r}, and the grid of these sums was chosen for "
        f"{'integer' if grid.integer_weights else 'other'} weights"
    )


def merge_low(high: NDArray[np.int64], low: NDArray[np.int64], other: NDArray[np.int64]) -> None:
    """Add the low limbs of another accumulator, and carry to the high limbs."""
    low += other
    high += low >> LOW_BITS
    low &= LOW_MASK


@njit
def _steps(weight, kind, scale):
    """Return a weight in steps of the grid, or -1 if the grid cannot represent the weight."""
    if kind == ONES:
        return np.int64(scale)
    if not (0.0 <= weight * scale <= _MAX_STEPS):
        return np.int64(-1)
    if kind == INTEGERS:
        steps = np.int64(weight)
        return steps if np.float64(steps) == weight else np.int64(-1)
    steps = np.float64(weight * scale + MAGIC).view(np.int64) - MAGIC_BITS
    return steps if steps > 0 or weight == 0.0 else np.int64(-1)


@njit
def whole_steps(value):
    return np.float64(value + MAGIC).view(np.int64) - MAGIC_BITS


@njit
def steps_below(value):
    """Return the remainder of a value after rounding to whole steps, in steps of the low limb."""
    rest = value - ((value + MAGIC) - MAGIC)
    return np.float64(rest * LOW_SCALE + MAGIC).view(np.int64) - MAGIC_BITS


@njit
def first_refused(weight, kind, scale, wide):
    """Return the index of the first row whose weight the grid cannot represent, or -1."""
    for i in range(weight.shape[0]):
        if kind == REALS and wide:
            if not _is_held(weight[i] * scale):
                return i
        elif _steps(weight[i], kind, scale) < 0:
            return i
    return -1


@njit
def _is_held(value):
    """Return True if wide sums can represent a weight that is given in steps."""
    in_range = 0.0 <= value <= _MAX_STEPS
    return in_range and (value == 0.0 or whole_steps(value) > 0 or steps_below(value) > 0)


@njit
def carry(high, low, at, steps, low_steps):
    """Add to a sum with two limbs, and keep the low limb in [0, 2^50)."""
    t = low[at] + low_steps
    high[at] += steps + (t >> LOW_BITS)
    low[at] = t & LOW_MASK


@njit
def times(steps, low_steps, weight):
    """Multiply a value with two limbs by an integer weight; the low limb may need a carry."""
    upper, lower = (low_steps >> _HALF) * weight, (low_steps & _HALF_MASK) * weight
    return steps * weight + (upper >> _HALF), ((upper & _HALF_MASK) << _HALF) + lower


@njit
def _add_weight(weight, kind, scale, a, b, high, low):
    """Move a weight between clusters; return its steps (1 for real weights), or -1 if invalid."""
    if kind != REALS:
        w = _steps(weight, kind, scale)
        if w >= 0:
            if a >= 0:
                high[a] -= w
            if b >= 0:
                high[b] += w
        return w
    t = weight * scale
    if not _is_held(t):
        return np.int64(-1)
    if a >= 0:
        carry(high, low, a, -whole_steps(t), -steps_below(t))
    if b >= 0:
        carry(high, low, b, whole_steps(t), steps_below(t))
    return np.int64(1)


@njit
def _change_ones(x, old, new, shift, scale, w, sums, weights):
    """Move dense rows with a weight of `w` steps each, in sums with one limb."""
    n, d = x.shape
    soon = 1 + AHEAD // max(d, 1)
    for i in range(n):
        a, b = np.int64(old[i]), np.int64(new[i])
        if a == b:
            continue
        if a >= 0:
            weights[a] -= w
        if b >= 0:
            weights[b] += w
        if a < 0:
            later = min(i + soon, n - 1)
            ahead = max(np.int64(new[later]), np.int64(0))
            add_row(x, i, shift, scale, sums, b, later, ahead)
        elif b >= 0:
            move_row(x, i, shift, scale, sums, a, b)
        else:
            for f in range(d):
                sums[a, f] -= whole_steps((np.float64(x[i, f]) - shift[f]) * scale)


@njit
def _change_narrow(rows, old, new, weight, kind, scale, weight_scale, totals, _):
    """Move dense rows from their old to their new clusters, in sums with one limb."""
    (x, shift), (sums, weights) = rows, totals
    n, d = x.shape
    if kind == ONES:
        _change_ones(x, old, new, shift, scale, _steps(0.0, kind, weight_scale), sums, weights)
        return -1
    row = np.empty(d, np.int64)
    for i in range(n):
        a, b = old[i], new[i]
        if a == b:
            continue
        w = _steps(weight[i], kind, weight_scale)
        if w < 0:
            return i
        # Round the whole row first, so that the loops are vectorized.
        if kind == REALS:
            for f in range(d):
                row[f] = whole_steps(weight[i] * (np.float64(x[i, f]) - shift[f]) * scale)
        else:
            for f in range(d):
                row[f] = whole_steps((np.float64(x[i, f]) - shift[f]) * scale) * w
        if a >= 0:
            weights[a] -= w
            for f in range(d):
                sums[a, f] -= row[f]
        if b >= 0:
            weights[b] += w
            for f in range(d):
                sums[b, f] += row[f]
    return -1


@cache
def changes(sparse: bool, wide: bool) -> Any:
    """Compile a kernel that moves rows from their old to their new clusters.

    Returns
    -------
    callable
        ``run(rows, old, new, weight, kind, scale, weight_scale, totals, low)``. Dense `rows` are
        ``(x, shift)``; sparse `rows` are ``(data, indices, indptr)``, with a shift of 0, so that
        values that are not stored add nothing. `totals` and `low` are pairs of sums and weights, of
        the high and of the low limb. Returns -1, or the first row whose weight the grid cannot
        represent: then neither this row nor any later row has been moved.
    """
    if not sparse and not wide:
        return _change_narrow

    @njit(refcounts=False)
    def run(rows, old, new, weight, kind, scale, weight_scale, totals, low):
        (sums, weights), (low_sums, low_weights) = totals, low
        if sparse:
            data, indices, indptr = rows
        else:
            x, shift = rows
        for i in range(old.shape[0]):
            a, b = old[i], new[i]
            if a == b:
                continue
            own = 0.0 if kind == ONES else weight[i]
            if wide:
                w = _add_weight(own, kind, weight_scale, a, b, weights, low_weights)
            else:
                w = _steps(own, kind, weight_scale)
                if w >= 0:
                    if a >= 0:
                        weights[a] -= w
                    if b >= 0:
                        weights[b] += w
                    w = np.int64(1) if kind == REALS else w
            if w < 0:
                return i
            factor = own if kind == REALS else 1.0
            begin, end = (indptr[i], indptr[i + 1]) if sparse else (0, x.shape[1])
            for p in range(begin, end):
                if sparse:
                    f, value = indices[p], np.float64(data[p])
                else:
                    f, value = p, np.float64(x[i, p]) - shift[p]
                t = factor * value * scale
                if wide:
                    steps, low_steps = times(whole_steps(t), steps_below(t), w)
                    if a >= 0:
                        carry(sums[a], low_sums[a], f, -steps, -low_steps)
                    if b >= 0:
                        carry(sums[b], low_sums[b], f, steps, low_steps)
                else:
                    steps = whole_steps(t) * w
                    if a >= 0:
                        sums[a, f] -= steps
                    if b >= 0:
                        sums[b, f] += steps
        return -1

    return run
