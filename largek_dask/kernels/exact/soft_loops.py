"""Compiled loops of :mod:`~largek_dask.kernels.exact.soft_sums`.

The contributions of rows to components are stored as *entries* ``(row, component, share)``. The
shares of a row are positive multiples of 1 / unit and add up to 1.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from largek_dask.kernels.exact.fixed_point import LOW_BITS, LOW_MASK
from largek_dask.kernels.exact.numbers import MAGIC
from largek_dask.kernels.exact.sum_loops import (
    INTEGERS,
    ONES,
    REALS,
    carry,
    steps_below,
    times,
    whole_steps,
)
from largek_dask.kernels.exact.transcendental import exp_of, log_of
from largek_dask.kernels.jit import njit

_LANES = 256
"""Number of rows per block, for which log joints fit in the first-level cache."""
DIGIT = 22
"""Number of bits in the low digit of a mass, if weights are integers."""
_DIGIT_MASK = (1 << DIGIT) - 1


@njit
def respond(
    candidates, squares, weight, constants, halves, unit, rows, components, shares, energy,
    likelihoods,
):  # fmt: skip
    """Write the responsibilities of candidates as entries, and return the number of entries.

    For each row, ``likelihoods`` receives the logarithm of the sum of joint densities. For each
    entry, ``energy`` receives the share times the squared distance. The most responsible candidate
    absorbs the rounding error. Rows of weight 0 are not read and have no entries.
    """
    n, width = candidates.shape
    joint = np.empty((width, _LANES))
    best, total = np.empty(_LANES), np.empty(_LANES)
    lead, left = np.empty(_LANES, np.int64), np.empty(_LANES)
    used = 0
    for begin in range(0, n, _LANES):
        m = min(_LANES, n - begin)
        for i in range(m):
            absent = weight.shape[0] > 0 and weight[begin + i] == 0.0
            for q in range(width):
                c = -1 if absent else candidates[begin + i, q]
                value = -np.inf
                if c >= 0:
                    value = constants[c] - halves[c] * squares[begin + i, q]
                joint[q, i] = value
        _normalize(joint, m, unit, best, total, lead, left)
        for i in range(m):
            likelihoods[begin + i] = best[i] + log_of(total[i])
        for i in range(m):
            if weight.shape[0] > 0 and weight[begin + i] == 0.0:
                continue
            joint[lead[i], i] += left[i]
            for q in range(width):
                if joint[q, i] > 0.0:
                    share = joint[q, i] / unit
                    rows[used], components[used] = begin + i, candidates[begin + i, q]
                    shares[used], energy[used] = share, share * squares[begin + i, q]
                    used += 1
    return used


@njit
def _normalize(joint, m, unit, best, total, lead, left):
    """Convert log joints to responsibilities in steps; ``left`` receives ``unit`` minus the sum."""
    width = joint.shape[0]
    for i in range(m):
        best[i], lead[i], total[i], left[i] = joint[0, i], 0, 0.0, unit
    for q in range(1, width):
        for i in range(m):
            more = joint[q, i] > best[i]
            best[i] = joint[q, i] if more else best[i]
            lead[i] = q if more else lead[i]
    for q in range(width):
        for i in range(m):
            # No log joint is finite if all candidates are retired.
            value = exp_of(joint[q, i] - (best[i] if best[i] > -np.inf else 0.0))
            joint[q, i] = value
            total[i] += value
    for q in range(width):
        for i in range(m):
            share = joint[q, i] / (total[i] if total[i] > 0.0 else 1.0) * unit
            share = (share + MAGIC) - MAGIC
            joint[q, i] = share
            left[i] -= share


@njit
def add_masses(components, shares, weight, kind, scale, high, low):
    """Add weighted shares to masses with two limbs, or with two digits if weights are integers."""
    for p in range(components.shape[0]):
        c = components[p]
        if kind == REALS:
            value = shares[p] * weight[p] * scale
            carry(high, low, c, whole_steps(value), steps_below(value))
        else:
            steps = np.int64(shares[p] * scale)
            w = np.int64(1) if kind == ONES else np.int64(weight[p])
            high[c] += (steps >> DIGIT) * w
            low[c] += (steps & _DIGIT_MASK) * w


@cache
def adding(wide: bool) -> Any:
    """Compile a kernel that adds shares of rows to component sums with one or two limbs."""

    @njit
    def add_rows(x, rows, components, shares, weight, kind, shift, scale, sums, low):
        d = x.shape[1]
        row = np.empty(d)
        last = -1
        for p in range(rows.shape[0]):
            if rows[p] != last:
                last = rows[p]
                for f in range(d):
                    row[f] = (np.float64(x[last, f]) - shift[f]) * scale[f]
            factor = shares[p] * weight[p] if kind == REALS else shares[p]
            w = np.int64(weight[p]) if kind == INTEGERS else np.int64(1)
            c = components[p]
            if wide:
                for f in range(d):
                    _add_limbs(sums, low, c, f, row[f] * factor, w)
            elif kind == INTEGERS:
                for f in range(d):
                    sums[c, f] += whole_steps(row[f] * factor) * w
            else:
                for f in range(d):
                    sums[c, f] += whole_steps(row[f] * factor)

    return add_rows


@njit
def add_squares(x, rows, components, shares, weight, kind, about, scale, squares, low):
    """Add squares of ``x - about[component]``, times the shares, to sums with two limbs."""
    for p in range(rows.shape[0]):
        i, c = rows[p], components[p]
        factor = shares[p] * weight[p] if kind == REALS else shares[p]
        w = np.int64(weight[p]) if kind == INTEGERS else np.int64(1)
        for f in range(x.shape[1]):
            difference = np.float64(x[i, f]) - about[c, f]
            _add_limbs(squares, low, c, f, difference * difference * (factor * scale[f]), w)


@njit
def _add_limbs(high, low, c, f, value, w):
    """Add ``w`` times a value, which is given in steps, to a sum with two limbs."""
    whole, part = whole_steps(value), steps_below(value)
    if w != 1:
        whole, part = times(whole, part, w)
    part += low[c, f]
    high[c, f] += whole + (part >> LOW_BITS)
    low[c, f] = part & LOW_MASK


@njit
def corrections(sums, masses, step, shift, old, new, out):
    """Compute the change of sums of squares when their reference moves from ``old`` to ``new``."""
    for c in range(old.shape[0]):
        for f in range(old.shape[1]):
            about = np.float64(old[c, f])
            moved = np.float64(new[c, f]) - about
            mean = np.float64(sums[c, f]) * step[f] - masses[c] * (about - shift[f])
            out[c, f] = moved * (masses[c] * moved - 2.0 * mean)
