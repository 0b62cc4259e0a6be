"""Increase of a mixture's likelihood from splitting a component in two.

Each component is split separately, using a sample of the rows in which it has a share. EM fits two
halves that divide the component's weight, while all other components remain fixed. The halves are
fitted to every second row of the sample and evaluated on the other rows. On the fitted rows, any
split seems to increase the likelihood, especially if one half has few rows and a variance close to
0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.emit import square_distance, weighted_square_distance
from largek_dask.kernels.exact.transcendental import exp_of, log_of
from largek_dask.kernels.jit import njit
from largek_dask.kernels.mixtures import PackedMixture, log_joint
from largek_dask.kernels.threads import Threads

MOST_ROWS = 256
"""Maximum number of rows per component. If there are more rows, evenly spaced rows are used."""
_STEPS = 8
_LAST_STEPS = 2
"""Number of additional EM steps on all sampled rows, after the gain has been evaluated."""
_POWER_STEPS = 3
_LEAST_MASS = 4.0
"""Minimum mass of each half on the fitted rows, in units of the mean row weight."""
_LITTLE = 1e-9
"""Below this share, the loss -log(1 - share) is approximated by the share."""
_PART = 16

Array = NDArray[Any]
Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ComponentSplits:
    """Result of splitting m components in two halves each."""

    gains: Real
    """(m,) increase of the log-likelihood per unit of the component's mass; minus infinity if the
    component cannot be split."""
    means: Array
    """(m, 2, d) means in the compute dtype."""
    variances: Real
    """(m, 2, 1) or (m, 2, d) variances."""
    shares: Real
    """(m, 2) fractions of the component's weight for the two halves, the larger fraction first."""


def shares_of(
    x: Array, weight: Real | None, candidates: NDArray[np.int32], packed: PackedMixture
) -> tuple[Real, Real]:
    """Return responsibilities of candidates, and the loss from removing each component.

    Parameters
    ----------
    x : (n, d)
    weight : (n,) float64 or None
    candidates : (n, C') int32
        Components to which a row may belong; -1 for no component.
    packed : PackedMixture

    Returns
    -------
    shares : (n, C')
    losses : (k,)
        Decrease of the free energy of these rows if the component is removed and all others stay
        unchanged; infinity for the only candidate of a row.
    """
    shares, losses = np.zeros(candidates.shape), np.zeros(packed.n_components)
    _shares(
        readonly(x), readonly(np.ones(len(x)) if weight is None else weight), readonly(candidates),
        readonly(packed.means), readonly(packed.precisions), packed.covariance == "diag",
        readonly(packed.constants), readonly(packed.halves), shares, losses,
    )  # fmt: skip
    return shares, losses


@njit
def _shares(x, weight, candidates, means, precisions, diag, constants, halves, shares, losses):
    n, width = candidates.shape
    d = x.shape[1]
    rows, centers = x.reshape(n * d), means.reshape(means.size)
    weights = precisions.reshape(precisions.size)
    joint, small, others = np.empty(width), np.empty(width), np.empty(width)
    for i in range(n):
        best = -1
        for q in range(width):
            c = np.int64(candidates[i, q])
            joint[q] = -np.inf
            if c >= 0:
                if diag:
                    square = weighted_square_distance(
                        rows, i * d, centers, c * d, weights, c * d, d
                    )
                else:
                    square = square_distance(rows, i * d, centers, c * d, d)
                joint[q] = log_joint(constants[c], halves[c], square)
            if joint[q] > -np.inf and (best < 0 or joint[q] > joint[best]):
                best = q
        if best < 0:
            continue
        highest, total = joint[best], 0.0
        for q in range(width):
            small[q] = exp_of(joint[q] - highest)
        for q in range(width):
            total += small[q]
        for q in range(width):
            others[q] = log_of(total - small[q])
        whole = log_of(total)
        for q in range(width):
            if joint[q] > -np.inf:
                shares[i, q] = small[q] / total
                # All other densities may underflow relative to the best density.
                if q == best:
                    lost = joint[best] + whole - _log_sum(joint, q)
                elif shares[i, q] < _LITTLE:
                    lost = shares[i, q]
                else:
                    lost = whole - others[q]
                losses[candidates[i, q]] += weight[i] * lost


@njit
def _log_sum(joint, without):
    """Return the logarithm of the sum of exponentials of all numbers except one."""
    best, total = -np.inf, 0.0
    for q in range(joint.shape[0]):
        if q != without:
            best = max(best, joint[q])
    if best == -np.inf:
        return best
    for q in range(joint.shape[0]):
        if q != without:
            total += exp_of(joint[q] - best)
    return best + log_of(total)


def split_components(
    x: Array,
    weight: Real | None,
    rows: NDArray[np.int64],
    shares: Real,
    starts: NDArray[np.int64],
    which: NDArray[np.int64],
    packed: PackedMixture,
    floor: float | Real,
    row: float,
    threads: Threads,
) -> ComponentSplits:
    """Split each of the given components in two.

    Parameters
    ----------
    x : (n, d) compute dtype
    weight : (n,) float64 or None
    rows, shares : (p,) int64, float64
        Component c has shares ``shares[starts[c] : starts[c + 1]]`` in the same slice of ``rows``.
    starts : (k + 1,) int64
    which : (m,) int64
        Components to split.
    packed : PackedMixture
        Mixture in which each component has its own variance or variances.
    floor : float or array (1,) or (d,)
        Lower limit of variances.
    row : float
        Mean weight of the rows.
    threads : Threads
        The result does not depend on it.
    """
    (m,), d = which.shape, x.shape[1]
    width = packed.variances.shape[1]
    gains, parts = np.full(m, -np.inf), np.zeros((m, 2))
    means, variances = np.zeros((m, 2, d)), np.zeros((m, 2, width))
    given = np.ones(len(x)) if weight is None else weight
    least = readonly(np.full(width, floor))

    def work(begin: int) -> None:
        at = slice(begin, begin + _PART)
        _split(
            readonly(x), readonly(given), readonly(rows), readonly(shares), readonly(starts),
            readonly(which[at]), readonly(packed.means), readonly(packed.variances), least,
            row * _LEAST_MASS, gains[at], means[at], variances[at], parts[at],
        )  # fmt: skip

    threads.map(work, range(0, m, _PART))
    return ComponentSplits(gains, means.astype(packed.means.dtype), variances, parts)


@njit
def _split(
    x, weight, rows, shares, starts, which, centers, before, floor, least, gains, means, variances,
    parts,
):  # fmt: skip
    d, width = x.shape[1], before.shape[1]
    y, old = np.empty((MOST_ROWS, d)), np.empty(MOST_ROWS)
    share, row_weight = np.empty(MOST_ROWS), np.empty(MOST_ROWS)
    first, own = np.empty(MOST_ROWS), np.empty(MOST_ROWS)
    rises, values = np.empty((2, MOST_ROWS)), np.empty(MOST_ROWS)
    mu, var, part = np.empty((2, d)), np.empty((2, width)), np.empty(2)
    scale, way, nought = np.empty(d), np.empty((2, d)), np.zeros(d)
    flat = y.reshape(MOST_ROWS * d)
    for i in range(which.shape[0]):
        c = which[i]
        begin, n = starts[c], starts[c + 1] - starts[c]
        count = min(n, MOST_ROWS)
        # Rows at even positions fit the halves, and rows at odd positions evaluate the halves.
        fitted = (count + 1) // 2
        for f in range(d):
            scale[f] = 1.0 / before[c, f if width > 1 else 0]
        for place in range(count):
            at = begin + place * n // count
            p = place // 2 + (fitted if place % 2 == 1 else 0)
            share[p], row_weight[p] = shares[at], weight[rows[at]]
            for f in range(d):
                y[p, f] = np.float64(x[rows[at], f]) - np.float64(centers[c, f])
            old[p] = weighted_square_distance(flat, p * d, nought, 0, scale, 0, d)
        best = -np.inf
        for start in range(2):
            if start == 0:
                _across(y, row_weight, share, old, scale, count, fitted, way, first)
            else:
                _within(row_weight, share, old, count, fitted, first)
            own[:count] = share[:count]
            found = 0.0
            for _ in range(_STEPS):
                _maximise(y, row_weight, first, own, fitted, floor, mu, var, part)
                found, _ = _expect(
                    y, row_weight, share, old, before[c], mu, var, part, 0, fitted, rises, values,
                    first, own,
                )  # fmt: skip
            enough = min(part[0], part[1]) >= least
            if not (enough and found > best and _is_wide(var, floor)):
                continue
            best = found
            gains[i], judged = _expect(
                y, row_weight, share, old, before[c], mu, var, part, fitted, count, rises, values,
                first, own,
            )  # fmt: skip
            gains[i] /= judged
            for _ in range(_LAST_STEPS):
                _maximise(y, row_weight, first, own, count, floor, mu, var, part)
                _expect(
                    y, row_weight, share, old, before[c], mu, var, part, 0, count, rises, values,
                    first, own,
                )  # fmt: skip
            heavy = 0 if part[0] >= part[1] else 1
            for h in range(2):
                at = h if heavy == 0 else 1 - h
                parts[i, h] = part[at] / (part[0] + part[1])
                for f in range(d):
                    means[i, h, f] = np.float64(centers[c, f]) + mu[at, f]
                for f in range(width):
                    variances[i, h, f] = var[at, f]


@njit
def _across(y, weight, share, old, scale, count, fitted, way, first):
    """Initialize the halves on both sides of the mean, along the direction of largest variance."""
    d = y.shape[1]
    far = 0
    for p in range(fitted):
        if old[p] > old[far]:
            far = p
    for f in range(d):
        way[0, f] = y[far, f]
    for step in range(_POWER_STEPS + 1):
        length = 0.0
        for f in range(d):
            length += way[0, f] * way[0, f] * scale[f]
        length = np.sqrt(length) if length > 0.0 else 1.0
        for f in range(d):
            way[0, f] /= length
            way[1, f] = 0.0
        for p in range(count):
            along = 0.0
            for f in range(d):
                along += y[p, f] * way[0, f] * scale[f]
            first[p] = 1.0 if along > 0.0 else 0.0
            if p < fitted:
                along *= weight[p] * share[p]
                for f in range(d):
                    way[1, f] += along * y[p, f]
        if step < _POWER_STEPS:
            for f in range(d):
                way[0, f] = way[1, f]


@njit
def _within(weight, share, old, count, fitted, first):
    """Initialize one half with the rows near the mean, and the other half with distant rows."""
    total, mass = 0.0, 0.0
    for p in range(fitted):
        total += weight[p] * share[p] * old[p]
        mass += weight[p] * share[p]
    for p in range(count):
        first[p] = 1.0 if old[p] * mass < total else 0.0


@njit
def _maximise(y, weight, first, own, count, floor, mu, var, part):
    """Compute means, variances and masses of two halves from the first `count` rows."""
    d, width = y.shape[1], var.shape[1]
    rows, means = y.reshape(y.size), mu.reshape(mu.size)
    mu[:] = 0.0
    var[:] = 0.0
    part[:] = 0.0
    for p in range(count):
        for h in range(2):
            r = weight[p] * own[p] * (first[p] if h == 0 else 1.0 - first[p])
            part[h] += r
            for f in range(d):
                mu[h, f] += r * y[p, f]
    for h in range(2):
        mass = part[h] if part[h] > 0.0 else 1.0
        for f in range(d):
            mu[h, f] /= mass
    for p in range(count):
        for h in range(2):
            r = weight[p] * own[p] * (first[p] if h == 0 else 1.0 - first[p])
            if width == 1:
                var[h, 0] += r * square_distance(rows, p * d, means, h * d, d)
                continue
            for f in range(d):
                t = y[p, f] - mu[h, f]
                var[h, f] += r * t * t
    for h in range(2):
        mass = part[h] if part[h] > 0.0 else 1.0
        for f in range(width):
            var[h, f] = max(var[h, f] / (mass if width > 1 else mass * d), floor[f])


@njit
def _expect(y, weight, share, old, before, mu, var, part, begin, end, rises, values, first, own):
    """Run the E-step, and return the gain of the rows and their mass in the component.

    For rows ``begin`` to ``end - 1``, ``own`` receives the share of both halves in the row, and
    ``first`` the fraction of this share that belongs to the first half.
    """
    d, width = y.shape[1], var.shape[1]
    base, scale = np.empty(2), np.empty((2, d))
    rows, means, scales = y.reshape(y.size), mu.reshape(mu.size), scale.reshape(scale.size)
    whole = part[0] + part[1]
    for h in range(2):
        base[h] = log_of(part[h] / whole) if whole > 0.0 else -np.inf
        times = 1.0 if width > 1 else np.float64(d)
        for f in range(width):
            base[h] -= 0.5 * times * log_of(var[h, f] / before[f])
        for f in range(d):
            scale[h, f] = 0.5 / var[h, f if width > 1 else 0]
        for p in range(begin, end):
            square = weighted_square_distance(rows, p * d, means, h * d, scales, h * d, d)
            rises[h, p] = base[h] + 0.5 * old[p] - square
    _share_out(share, rises[0], rises[1], begin, end, values, first, own)
    gain, judged = 0.0, 0.0
    for p in range(begin, end):
        gain += weight[p] * values[p]
        judged += weight[p] * share[p]
    return gain, judged if judged > 0.0 else 1.0


@njit
def _share_out(share, one, other, begin, end, values, first, own):
    """Write the gains of rows, given log joints of both halves relative to the component."""
    for p in range(begin, end):
        a, b, r = one[p], other[p], share[p]
        high = max(a, b)
        small = exp_of(min(a, b) - high)
        first[p] = (1.0 if a >= b else small) / (1.0 + small)
        rise = high + log_of(1.0 + small)
        # Compute log(1 - r + r exp(rise)) without overflow.
        times = exp_of(-abs(rise))
        left = (1.0 - r) * (times if rise > 0.0 else 1.0)
        had = r * (1.0 if rise > 0.0 else times)
        total = had + left
        # The sum may underflow if the row belongs only to this component.
        own[p] = had / total if total > 0.0 else 1.0
        value = log_of(total)
        values[p] = rise + value if rise > 0.0 else max(rise, value)


@njit
def _is_wide(var, floor):
    for h in range(2):
        above = False
        for f in range(var.shape[1]):
            above = above or var[h, f] > floor[f]
        if not above:
            return False
    return True
