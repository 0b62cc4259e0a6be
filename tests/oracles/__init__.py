"""Plain numpy equivalents of computations in the package, slow and easy to verify."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def assign(x, centers):
    """Nearest centre of each row (ties: the lowest index) and the sum of squared distances."""
    d2 = np.stack([((x - c) ** 2).sum(axis=1) for c in centers], axis=1)
    return d2.argmin(axis=1), float(d2.min(axis=1).sum())


def means(x, labels, fallback):
    """Mean of each cluster's rows; a cluster without rows keeps its fallback."""
    out = np.array(fallback, np.float64)
    for j in np.unique(labels):
        out[j] = x[labels == j].mean(axis=0)
    return out


def exact_sums(values, weights, cells, n_cells):
    """Sums of weight * value a cell as fractions: no rounding at all."""
    totals = [Fraction(0)] * n_cells
    for value, weight, cell in zip(values, weights, cells, strict=True):
        if cell >= 0:
            totals[cell] += Fraction(float(value)) * Fraction(float(weight))
    return totals


def fixed_point_sums(x, labels, weights, n_clusters, grid):
    """(k, d) sums and (k,) weights of rows rounded to a grid, in Python integers.

    Those of a wide grid in steps of the low limb.
    """

    def steps_of(value):
        whole = round(value)
        return whole * 2**50 + round((value - whole) * 2**50) if grid.wide else whole

    shift = grid.shift.astype(np.float64)
    sums = [[0] * len(shift) for _ in range(n_clusters)]
    totals = [0] * n_clusters
    for row, label, weight in zip(x, labels, weights, strict=True):
        if label < 0:
            continue
        difference = row.astype(np.float64) - shift
        scale = Fraction(2) ** grid.bits
        if grid.integer_weights:
            steps = [int(weight) * steps_of(Fraction(v) * scale) for v in difference]
        else:
            steps = [steps_of(Fraction(v) * scale) for v in weight * difference]
        sums[label] = [a + b for a, b in zip(sums[label], steps, strict=True)]
        totals[label] += steps_of(Fraction(weight) * Fraction(2) ** grid.weight_bits)
    return sums, totals


def row_hash(row):
    """Hash of a row of one of the native types, in Python integers."""
    mask = 2**64 - 1

    def spread(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    words = row.view({1: "u1", 2: "u2", 4: "u4", 8: "u4"}[row.itemsize]).tolist()
    factors = [spread(i * 0x9E3779B97F4A7C15 & mask) | 1 for i in range(1, len(words) + 1)]
    return spread(sum(w * f for w, f in zip(words, factors, strict=True)) & mask)


def row_square(difference):
    """Squared length, the features added to eight sums by their number modulo eight."""
    sums = [0.0] * 8
    for f, value in enumerate(difference.tolist()):
        sums[f % 8] += value * value
    a, b, c, d, e, f, g, h = sums
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


def squared_distances(x, centers):
    """(n, k) squared distances in float64, by their definition."""
    x, centers = np.asarray(x, np.float64), np.asarray(centers, np.float64)
    return ((x[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)


def nested_batches(x, centers, batch_of, b0, rho, n_steps):
    """Nested mini-batches row by row (Newling and Fleuret, Algorithm 5, without bounds).

    ``batch_of(b)`` gives the indices of the rows of a batch of b. Yields, a step, the size of the
    batch, its rows, their labels and the centres after the step.
    """
    k, d = centers.shape
    centers = centers.astype(np.float64).copy()
    label = np.full(len(x), -1)
    sums, v = np.zeros((k, d)), np.zeros(k)
    b = min(b0, len(x))
    for _ in range(n_steps):
        sse = np.zeros(k)
        rows = batch_of(b)
        for i in rows:
            if label[i] >= 0:  # its old vote is taken back
                sums[label[i]] -= x[i]
                v[label[i]] -= 1
            d2 = ((x[i] - centers) ** 2).sum(axis=1)
            j = label[i] = int(d2.argmin())
            sums[j] += x[i]
            v[j] += 1
            sse[j] += d2[j]
        before = centers.copy()
        filled = v > 0
        centers[filled] = sums[filled] / v[filled, None]
        p = np.sqrt(((centers - before) ** 2).sum(axis=1))
        ratios = [
            np.sqrt(sse[j] / (v[j] * (v[j] - 1))) / p[j] if p[j] > 0 else np.inf
            for j in range(k)
            if v[j] > 1
        ]
        yield b, rows, label[rows].copy(), centers.copy()
        if min(ratios, default=np.inf) > rho:
            b = min(2 * b, len(x))


def bounds_hold(x, centers, labels, upper, lower, group_of):
    """Whether upper and lower bounds are bounds, row by row and group by group.

    ``upper`` is compared with the distance to the row's own centre, ``lower[:, g]`` with that to
    the nearest other centre of group g; both may be off by the rounding of float64.
    """
    distances = np.sqrt(squared_distances(x, centers))
    every = np.arange(len(x))
    above = distances[every, labels] <= upper * (1 + 1e-12)
    others = distances.copy()
    others[every, labels] = np.inf
    below = [
        (lower[:, g] <= others[:, group_of == g].min(axis=1) * (1 + 1e-12))
        for g in range(lower.shape[1])
    ]
    return bool(above.all() and np.all(below))


def exact_column_sums(x):
    """Sums of the columns of (n, d) floats as fractions."""
    return [sum((Fraction(v) for v in column), Fraction(0)) for column in x.T.tolist()]


def moved_means(means, batch_means, share):
    """``means`` moved towards ``batch_means`` by a share of the way, cluster by cluster."""
    out = means.copy()
    for j in np.flatnonzero(share):
        out[j] += share[j] * (batch_means[j] - means[j])
    return out


def row_order(rng, index, n):
    """The seeded permutation of a chunk of n rows: Fisher and Yates's shuffle from the front."""
    order = np.arange(n)
    for i, u in enumerate(rng.generator(0, "rows", index).random(n).tolist()):
        j = i + int(u * (n - i))
        order[i], order[j] = order[j], order[i]
    return order


def greedy_rows(x, weight, uniforms):
    """Rows that greedy k-means++ begins with."""
    k, m = uniforms.shape
    d2, mass, picks = np.full(len(x), np.inf), weight, []
    for t in range(k):
        edges = np.cumsum(mass)
        if edges[-1] == 0:
            return np.array(picks + [picks[0]] * (k - t))
        last = np.searchsorted(edges, edges[-1])
        rows = np.searchsorted(edges, uniforms[t, : m if t else 1] * edges[-1], side="right")
        left = [
            (weight * np.minimum(d2, squared_distances(x, x[row : row + 1])[:, 0])).sum()
            for row in np.minimum(rows, last)
        ]
        picks.append(int(np.minimum(rows, last)[int(np.argmin(left))]))
        d2 = np.minimum(d2, squared_distances(x, x[picks[-1] : picks[-1] + 1])[:, 0])
        mass = weight * d2
    return np.array(picks)
