"""Compiled loops of exact sums: rows are rounded to a grid and move between clusters.

Every loop returns -1, or the first row whose weight the grid cannot represent:
then neither that row nor any after it has been moved.
"""

from __future__ import annotations

import numpy as np

from largek_dask.kernels.emit import add_row, move_row
from largek_dask.kernels.exact.fixed_point import LOW_BITS, LOW_MASK, LOW_SCALE
from largek_dask.kernels.jit import njit

__all__ = [
    "INTEGERS",
    "ONES",
    "REALS",
    "carry",
    "change",
    "change_sparse",
    "change_sparse_wide",
    "change_wide",
    "first_refused",
    "round_rows",
    "round_rows_wide",
    "steps_below",
    "times",
    "whole_steps",
]

_MAGIC = 6755399441055744.0  # 1.5 * 2^52
_MAGIC_BITS = 0x4338000000000000  # its bit pattern
_MAX_STEPS = 2.0**50  # of one weight: inside the magic range
_HALF = LOW_BITS // 2
_HALF_MASK = (1 << _HALF) - 1
ONES, INTEGERS, REALS = 0, 1, 2
"""Kinds of row weights."""
AHEAD = 1 << 10
"""Features to add before the prefetched row and sums are needed."""


@njit
def _steps(weight, kind, scale):
    """Return a row's weight in steps of the grid; -1 if the grid cannot represent it."""
    if kind == ONES:
        return np.int64(scale)
    if not (0.0 <= weight * scale <= _MAX_STEPS):
        return np.int64(-1)
    if kind == INTEGERS:
        steps = np.int64(weight)
        return steps if np.float64(steps) == weight else np.int64(-1)
    steps = np.float64(weight * scale + _MAGIC).view(np.int64) - _MAGIC_BITS
    return steps if steps > 0 or weight == 0.0 else np.int64(-1)


@njit
def whole_steps(value):
    """Return a value rounded to whole steps."""
    return np.float64(value + _MAGIC).view(np.int64) - _MAGIC_BITS


@njit
def _change_ones(x, old, new, shift, scale, w, sums, weights):
    """Do the same as `change`, for rows of `w` steps of weight each."""
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
def change(x, old, new, weight, kind, shift, scale, weight_scale, sums, weights):
    """Take rows out of their old clusters and put them into their new ones."""
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
        if kind == REALS:
            for f in range(d):
                t = weight[i] * (np.float64(x[i, f]) - shift[f]) * scale + _MAGIC
                row[f] = np.float64(t).view(np.int64) - _MAGIC_BITS
        else:
            for f in range(d):
                t = (np.float64(x[i, f]) - shift[f]) * scale + _MAGIC
                row[f] = (np.float64(t).view(np.int64) - _MAGIC_BITS) * w
        if a >= 0:
            weights[a] -= w
            for f in range(d):
                sums[a, f] -= row[f]
        if b >= 0:
            weights[b] += w
            for f in range(d):
                sums[b, f] += row[f]
    return -1


@njit
def change_sparse(
    data, indices, indptr, old, new, weight, kind, scale, weight_scale, sums, weights
):
    """Do the same as `change` about the origin, where numbers that are not stored add nothing."""
    for i in range(indptr.shape[0] - 1):
        a, b = old[i], new[i]
        if a == b:
            continue
        w = _steps(0.0 if kind == ONES else weight[i], kind, weight_scale)
        if w < 0:
            return i
        if a >= 0:
            weights[a] -= w
        if b >= 0:
            weights[b] += w
        for p in range(indptr[i], indptr[i + 1]):
            value = np.float64(data[p])
            if kind == REALS:
                t = weight[i] * value * scale + _MAGIC
                steps = np.float64(t).view(np.int64) - _MAGIC_BITS
            else:
                t = value * scale + _MAGIC
                steps = (np.float64(t).view(np.int64) - _MAGIC_BITS) * w
            if a >= 0:
                sums[a, indices[p]] -= steps
            if b >= 0:
                sums[b, indices[p]] += steps
    return -1


@njit
def steps_below(value):
    """Return the rest of a value below whole steps, in steps of a low limb."""
    rest = value - ((value + _MAGIC) - _MAGIC)
    return np.float64(rest * LOW_SCALE + _MAGIC).view(np.int64) - _MAGIC_BITS


@njit
def first_refused(weight, kind, scale, wide):
    """Return the first row whose weight the grid cannot represent, or -1."""
    for i in range(weight.shape[0]):
        if kind == REALS and wide:
            if not _is_held(weight[i] * scale):
                return i
        elif _steps(weight[i], kind, scale) < 0:
            return i
    return -1


@njit
def _is_held(value):
    """Return True if wide sums can represent a weight, given in steps."""
    in_range = 0.0 <= value <= _MAX_STEPS
    return in_range and (value == 0.0 or whole_steps(value) > 0 or steps_below(value) > 0)


@njit
def carry(high, low, at, steps, low_steps):
    """Add to one sum of two limbs; its lower one stays in [0, 2^50)."""
    t = low[at] + low_steps
    high[at] += steps + (t >> LOW_BITS)
    low[at] = t & LOW_MASK


@njit
def times(steps, low_steps, weight):
    """Return both limbs of a value times an integer weight, as far as the lower may be carried."""
    upper, lower = (low_steps >> _HALF) * weight, (low_steps & _HALF_MASK) * weight
    return steps * weight + (upper >> _HALF), ((upper & _HALF_MASK) << _HALF) + lower


@njit
def _add_weight(weight, kind, scale, a, b, high, low):
    """Move a row's weight from one cluster to another; return integer weights in steps, or -1."""
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
def change_wide(
    x, old, new, weight, kind, shift, scale, weight_scale, sums, weights, low, low_weights
):
    """Do the same as `change`, in two limbs."""
    n, d = x.shape
    for i in range(n):
        a, b = old[i], new[i]
        if a == b:
            continue
        own = 0.0 if kind == ONES else weight[i]
        w = _add_weight(own, kind, weight_scale, a, b, weights, low_weights)
        if w < 0:
            return i
        factor = own if kind == REALS else 1.0
        for f in range(d):
            t = factor * (np.float64(x[i, f]) - shift[f]) * scale
            steps, low_steps = times(whole_steps(t), steps_below(t), w)
            if a >= 0:
                carry(sums[a], low[a], f, -steps, -low_steps)
            if b >= 0:
                carry(sums[b], low[b], f, steps, low_steps)
    return -1


@njit
def change_sparse_wide(
    data, indices, indptr, old, new, weight, kind, scale, weight_scale, sums, weights, low,
    low_weights,
):  # fmt: skip
    """Do the same as `change_sparse`, in two limbs."""
    for i in range(indptr.shape[0] - 1):
        a, b = old[i], new[i]
        if a == b:
            continue
        own = 0.0 if kind == ONES else weight[i]
        w = _add_weight(own, kind, weight_scale, a, b, weights, low_weights)
        if w < 0:
            return i
        factor = own if kind == REALS else 1.0
        for p in range(indptr[i], indptr[i + 1]):
            t = factor * np.float64(data[p]) * scale
            steps, low_steps = times(whole_steps(t), steps_below(t), w)
            if a >= 0:
                carry(sums[a], low[a], indices[p], -steps, -low_steps)
            if b >= 0:
                carry(sums[b], low[b], indices[p], steps, low_steps)
    return -1


@njit
def round_rows(x, weight, kind, shift, scale, weight_scale, steps, weights):
    """Write rows of known weights as added to a cluster, and the weights, in whole steps."""
    n, d = x.shape
    for i in range(n):
        w = _steps(weight[i], kind, weight_scale)
        weights[i] = w
        if w == 0:
            # a row that is absent may hold NaN
            for f in range(d):
                steps[i, f] = 0
            continue
        factor = weight[i] if kind == REALS else 1.0
        for f in range(d):
            t = factor * (np.float64(x[i, f]) - shift[f]) * scale + _MAGIC
            steps[i, f] = np.float64(t).view(np.int64) - _MAGIC_BITS
        if kind == INTEGERS:
            for f in range(d):
                steps[i, f] *= w


@njit
def round_rows_wide(
    x, weight, kind, shift, scale, weight_scale, steps, weights, low_steps, low_weights
):
    """Do the same as `round_rows`, in two limbs."""
    n, d = x.shape
    for i in range(n):
        own, w = weight[i], np.int64(1)
        if kind == REALS:
            t = own * weight_scale
            weights[i], low_weights[i] = whole_steps(t), steps_below(t)
        else:
            w = _steps(own, kind, weight_scale)
            weights[i], low_weights[i] = w, 0
        factor = own if kind == REALS else 1.0
        for f in range(d):
            if own == 0.0:
                steps[i, f], low_steps[i, f] = 0, 0
            else:
                t = factor * (np.float64(x[i, f]) - shift[f]) * scale
                steps[i, f], low_steps[i, f] = times(whole_steps(t), steps_below(t), w)
