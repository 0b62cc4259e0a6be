"""Plain twins of what mixtures are computed with, slow and easy to check by eye."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate

import numpy as np

from largek_dask.kernels.exact import transcendental

# transcendental.py


def exp(t):
    """The exponential of a float as a decimal number of 45 digits."""
    with localcontext(prec=45, Emin=-999999, Emax=999999):
        return Decimal(t).exp()


def log(v):
    """The natural logarithm of a float above 0 as a decimal number of 45 digits."""
    with localcontext(prec=45, Emin=-999999, Emax=999999):
        return Decimal(v).ln()


# coresets


def coreset_probabilities(x, weight, center=None) -> list[Fraction]:
    """Of each row, of a lightweight coreset about ``center``; without one in proportion to weight.

    Bachem, Lucic and Krause, KDD 2018, algorithm 1, with weights; nothing is rounded.
    """
    w = [Fraction(v) for v in np.asarray(weight, np.float64).tolist()]
    by_weight = [v / sum(w) for v in w]
    if center is None:
        return by_weight
    at = [Fraction(float(v)) for v in center]
    squares = [
        sum((Fraction(float(v)) - c) ** 2 for v, c in zip(row, at, strict=True)) for row in x
    ]
    total = sum(v * s for v, s in zip(w, squares, strict=True))
    if not total:
        return by_weight
    by_square = [v * s / total for v, s in zip(w, squares, strict=True)]
    return [(p + q) / 2 for p, q in zip(by_weight, by_square, strict=True)]


def rows_at(places, lines) -> list[int]:
    """Rows at ``places`` in [0, 1), where each of ``lines`` takes an equal part of that.

    A line is the rows' masses one after the other.
    """
    edges = []
    for line in lines:
        total = sum(line) * len(lines)
        edges += [mass / total for mass in line]
    ends = list(accumulate(edges))
    n = len(lines[0])
    return [next(i for i, end in enumerate(ends) if place < end) % n for place in places]


# soft_sums.py


def responsibilities(joint, unit):
    """Whole steps of 1 / unit, the most likely one takes what rounding leaves; and log-sum-exp.

    With the operations of the kernel on numbers of its own: its exponentials and logarithms, which
    have a test of their own.
    """
    joint = np.array(joint)
    best = float(joint.max())
    values = transcendental.exp(joint - best).tolist()
    total = 0.0
    for value in values:
        total += value
    steps = [round(value / total * unit) for value in values]
    steps[int(joint.argmax())] += unit - sum(steps)
    return steps, best + float(transcendental.log(np.array(total)))


def soft_sums(x, weight, candidates, squares, packed, grid, covariance):
    """All sums in integers and fractions: a dictionary of what SoftSums keeps."""
    k, d = packed.means.shape
    double = grid.shift.dtype == np.float64
    unit = 2**44 if double else 2**24
    # few steps, as of integers, are too coarse for parts of them
    wide = grid.wide or double or grid.bits + grid.extent < 34
    about = np.array(packed.means, np.float64)
    shift = grid.shift.astype(np.float64)
    extents = np.full(d, grid.extent) if grid.extents is None else grid.extents
    far = 2.0**extents
    if covariance == "diag":
        about = np.minimum(np.maximum(about, shift - far), shift + far)
    bits = grid.bits + grid.extent - extents
    square_bits = bits - extents - 3
    out = {
        "sums": np.zeros((k, d), object),
        "masses": np.zeros(k, object),
        "bound": Fraction(0),
        "squares": np.zeros((k, d) if covariance == "diag" else k, object),
        "entries": [],
    }

    def steps_of(value, wide):
        """In steps of the low limb where there is one."""
        whole = round(value)
        return whole * 2**50 + round((value - whole) * 2**50) if wide else whole

    for i in range(len(x)):
        w = 1.0 if weight is None else float(weight[i])
        if w == 0:
            continue
        known = [q for q, c in enumerate(candidates[i]) if c >= 0]
        joint = [
            packed.constants[candidates[i, q]] - packed.halves[candidates[i, q]] * squares[i, q]
            for q in known
        ]
        steps, evidence = responsibilities(joint, unit)
        out["bound"] += Fraction(evidence) * Fraction(w)
        difference = x[i].astype(np.float64) - shift
        for q, step in zip(known, steps, strict=True):
            if step == 0:
                continue
            c, share = candidates[i, q], step / unit
            out["entries"].append((i, c, Fraction(step, unit) * Fraction(w)))
            times = int(w) if grid.integer_weights else 1
            factor = share if grid.integer_weights else share * w
            row = [steps_of(v * factor, wide) * times for v in (difference * 2.0**bits).tolist()]
            out["sums"][c] += np.array(row, object)
            if grid.integer_weights:
                out["masses"][c] += Fraction(step, unit) * int(w)
            else:
                mass = steps_of(share * w * 2.0**grid.weight_bits, True)
                out["masses"][c] += Fraction(mass) / Fraction(2) ** (50 + grid.weight_bits)
            if covariance == "diag":
                apart = x[i].astype(np.float64) - about[c]
                steps = apart * apart * (factor * 2.0**square_bits)
                row = [steps_of(v, True) * times for v in steps.tolist()]
                out["squares"][c] += np.array(row, object)
            else:
                out["squares"][c] += Fraction(share * float(squares[i, q])) * Fraction(w)
    return out


# afk_mc2.py


def metropolis_matrix(law, q) -> np.ndarray:
    """Probabilities to go from one row to another by a chain that tends to ``law``.

    Bachem et al., NIPS 2016, algorithm 1; rows are proposed by ``q``. One that ``law`` never gives
    is always left.
    """
    n = len(law)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            ratio = law[j] * q[i] / (law[i] * q[j]) if law[i] else 1.0
            out[i, j] = q[j] * min(1.0, ratio)
        out[i, i] += 1 - out[i].sum()
    return out


def mh_centers(x, weight, first, proposed, q, uniforms) -> list[int]:
    """Rows that are centres, where ``proposed`` has a line of rows for every further one."""
    centers = [first]
    for rows, own_q, own_uniforms in zip(proposed, q, uniforms, strict=True):
        differences = x[rows].astype(np.float64)[:, None] - x[centers].astype(np.float64)
        law = weight[rows] * (differences**2).sum(axis=2).min(axis=1)
        state = 0
        for i in range(1, len(rows)):
            accept = law[i] * own_q[state] > own_uniforms[i] * law[state] * own_q[i]
            if law[state] == 0 or accept:
                state = i
        centers.append(rows[state])
    return centers


# vc-GMM


def iso_em(x, means, variance, n_steps):
    """EM for components of one variance and equal weights: means, variance and F of each step."""
    x, means, bounds = x.astype(np.float64), means.astype(np.float64), []
    n, d = x.shape
    for _ in range(n_steps):
        squares = ((x[:, None] - means) ** 2).sum(2)
        joint = -0.5 * squares / variance - 0.5 * d * np.log(2 * np.pi * variance)
        joint -= np.log(len(means))
        top = joint.max(1, keepdims=True)
        shares = np.exp(joint - top)
        bounds.append(float((np.log(shares.sum(1)) + top[:, 0]).sum()))
        shares /= shares.sum(1, keepdims=True)
        means = shares.T @ x / shares.sum(0)[:, None]
        variance = (shares * ((x[:, None] - means) ** 2).sum(2)).sum() / (n * d)
    return means, variance, bounds


def union_search(x, near, drawn, packed, before):
    """Candidates, squares, how many were met, and squares of pairs, row by row."""
    x, means = x.astype(packed.means.dtype).astype(np.float64), packed.means.astype(np.float64)
    k, width = len(means), before.shape[1]
    candidates = np.full(before.shape, -1, np.int32)
    squares, total, pairs = np.full(before.shape, np.inf), 0, {}
    for i, own in enumerate(before.tolist()):
        members = list(dict.fromkeys(c for c in own if c >= 0))
        if own[0] < 0:
            continue
        others = [c for m in members for c in near[m].tolist()] + drawn[i].tolist()
        met = list(dict.fromkeys(members + others))
        found = ((x[i] - means[met]) ** 2).sum(1)
        joint = packed.constants[met] - packed.halves[met] * found
        best = sorted(range(len(met)), key=lambda p: -joint[p])[:width]
        candidates[i, : len(best)] = np.array(met)[best]
        squares[i, : len(best)] = found[best]
        total += len(met)
        nearest = met[best[0]]
        for other, square in zip(met, found, strict=True):
            if other != nearest:
                pairs.setdefault(nearest * k + other, []).append(square)
    return candidates, squares, total, pairs


# candidates


def squares_of(row, packed, components):
    """Squares of one row and some components, as log joints are made of them."""
    row = row.astype(packed.means.dtype).astype(np.float64)
    apart = (row - packed.means[components].astype(np.float64)) ** 2
    return (apart * packed.precisions[components] if packed.covariance == "diag" else apart).sum(1)


def best_candidates(row, packed, listed, before, n_best):
    """The best of a list and of the candidates before: components and squares."""
    members = list(dict.fromkeys(c for c in before if c >= 0))
    known = members + [c for c in sorted(set(listed)) if c not in members]
    if not known:
        return [], []
    squares = squares_of(row, packed, known)
    with np.errstate(invalid="ignore"):
        joints = packed.constants[known] - packed.halves[known] * squares
    alive = [p for p in range(len(known)) if packed.constants[known[p]] > -np.inf]
    order = sorted(alive, key=lambda p: (-joints[p], known[p] not in members, known[p]))[:n_best]
    return [known[p] for p in order], [squares[p] for p in order]


def near_components(packed, m):
    """(k, m) by the log joint that a row of the one may expect of the other, itself first."""
    k, d = packed.means.shape
    means = packed.means.astype(np.float64)
    variances = np.broadcast_to(packed.variances, (k, d))
    out = np.empty((k, m), np.int32)
    for c in range(k):
        away = ((variances[c] + (means[c] - means) ** 2) / variances).sum(1)
        expected = packed.log_weights - 0.5 * (np.log(2 * np.pi * variances).sum(1) + away)
        expected[c] = np.inf
        out[c] = np.lexsort((np.arange(k), -expected))[:m]
    return out


# log-likelihoods


def log_joints(x, packed):
    """(n, k) of all rows and components; retired ones have minus infinity."""
    joints = np.full((len(x), packed.n_components), -np.inf)
    alive = np.flatnonzero(packed.constants > -np.inf)
    for i, row in enumerate(x):
        with np.errstate(over="ignore"):
            squares = squares_of(row, packed, alive)
            joints[i, alive] = packed.constants[alive] - packed.halves[alive] * squares
    return joints


def log_likelihoods(x, packed):
    """Labels and log-likelihoods."""
    joints = log_joints(x, packed).astype(np.longdouble)
    best = joints.max(1)
    total = np.exp(joints - best[:, None]).sum(1)
    return joints.argmax(1), (best + np.log(total)).astype(np.float64)


def posteriors(x, packed, least):
    """(n, k) probabilities of at least this much, 0 elsewhere; rows add up to 1."""
    joints = log_joints(x, packed).astype(np.longdouble)
    shares = np.exp(joints - joints.max(1)[:, None])
    shares /= shares.sum(1)[:, None]
    shares[shares <= least] = 0
    return (shares / shares.sum(1)[:, None]).astype(np.float64)


def shares_of(x, weight, candidates, packed):
    """(n, C') responsibilities of candidates, and (k,) what F loses without each component."""
    x, means = x.astype(float), packed.means.astype(float)
    k, d = means.shape
    variances = np.broadcast_to(packed.variances, (k, d))
    known = np.maximum(candidates, 0)
    joint = ((x[:, None] - means[known]) ** 2 / variances[known]).sum(-1) * -0.5
    joint -= 0.5 * np.log(2 * np.pi * variances).sum(1)[known]
    joint = np.where(candidates >= 0, joint + packed.log_weights[known], -np.inf)
    found = np.isfinite(joint).any(1)
    whole = np.logaddexp.reduce(joint, 1)
    shares, losses = np.zeros(joint.shape), np.zeros(k)
    shares[found] = np.exp(joint[found] - whole[found, None])
    for q in range(joint.shape[1]):
        at = np.isfinite(joint[:, q])
        without = np.logaddexp.reduce(np.delete(joint, q, 1)[at], 1, initial=-np.inf)
        lost = whole[at] - without if weight is None else weight[at] * (whole[at] - without)
        np.add.at(losses, candidates[at, q], lost)
    return shares, losses


def split_in_two(x, weight, share, mean, variance, floor, *, steps, last_steps, power_steps, least):
    """One component in two: gain for each unit of its mass, means, variances, shares.

    ``variance`` is (1,) or (d,). Every second row judges.
    """
    y, fits, d = x.astype(float) - mean.astype(float), np.arange(len(x)) % 2 == 0, x.shape[1]
    u = y / np.sqrt(variance)
    old = (u**2).sum(1)
    best, found = -np.inf, (-np.inf, np.zeros((2, d)), np.zeros((2, len(variance))), np.zeros(2))

    def maximise(first, own, which):
        r = weight * own * np.stack([first, 1 - first]) * which
        mass = r.sum(1)
        safe = np.where(mass > 0, mass, 1.0)[:, None]
        mu = r @ y / safe
        var = np.stack([r[h] @ (y - mu[h]) ** 2 for h in range(2)]) / safe
        if len(variance) == 1:
            var = var.mean(1, keepdims=True)
        return mu, np.maximum(var, floor), mass

    def expect(mu, var, mass):
        with np.errstate(divide="ignore", invalid="ignore"):
            times = d / len(variance)
            base = np.log(mass / mass.sum()) - 0.5 * times * np.log(var / variance).sum(1)
            joint = base + 0.5 * old[:, None]
            joint = joint - 0.5 * ((y[:, None] - mu) ** 2 / var).sum(-1)
            rise = np.logaddexp(*joint.T)
            first = np.exp(joint[:, 0] - rise)
            value = np.logaddexp(np.log1p(-share), np.log(share) + rise)
            own = np.exp(np.log(share) + rise - value)
        return first, own, value

    way = u[np.flatnonzero(fits)[old[fits].argmax()]]
    for _ in range(power_steps):
        way = (weight * share * fits * (u @ (way / np.linalg.norm(way)))) @ u
    within = np.average(old, weights=weight * share * fits)
    for first in (u @ way > 0, old < within):
        first, own = first.astype(float), share
        for _ in range(steps):
            mu, var, mass = maximise(first, own, fits)
            first, own, value = expect(mu, var, mass)
        gain = (weight * value)[fits].sum()
        if mass.min() < least or (var <= floor).all(1).any() or not gain > best:
            continue
        best = gain
        judged = (weight * value)[~fits].sum() / (weight * share)[~fits].sum()
        for _ in range(last_steps):
            mu, var, mass = maximise(first, own, True)
            first, own, _ = expect(mu, var, mass)
        order = [0, 1] if mass[0] >= mass[1] else [1, 0]
        found = judged, (mean + mu)[order], var[order], (mass / mass.sum())[order]
    return found
