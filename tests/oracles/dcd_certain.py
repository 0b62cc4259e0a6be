"""Plain twins of what is certain of a path: one dimension, the spectrum, and a simple path."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np


def optima_in_one(values, weights, k):
    """Least objectives of 1 to k clusters on a line, by all ends of all intervals, exactly."""
    x, w = [Fraction(v) for v in values], [Fraction(v) for v in weights]
    n = len(x)
    sums = [(Fraction(0),) * 3]
    for value, mass in zip(x, w, strict=True):
        a, b, c = sums[-1]
        sums.append((a + mass, b + mass * value, c + mass * value * value))

    def cost(j, m):
        a, b, c = (high - low for high, low in zip(sums[m], sums[j], strict=True))
        return c - b * b / a

    best = [None] + [cost(0, m) for m in range(1, n + 1)]
    out = [best[n]]
    for size in range(2, min(k, n) + 1):
        best = [None] * size + [
            min(best[j] + cost(j, m) for j in range(size - 1, m)) for m in range(size, n + 1)
        ]
        out.append(best[n])
    return out


def objective_of(x, weights, labels):
    """Sum of w ||x - mean||^2 of labelled rows, exactly."""
    total = Fraction(0)
    for label in set(labels):
        rows = [i for i, own in enumerate(labels) if own == label]
        mass = sum(Fraction(weights[i]) for i in rows)
        for f in range(x.shape[1]):
            own = [Fraction(x[i, f]) for i in rows]
            terms = list(zip(rows, own, strict=True))
            first = sum(Fraction(weights[i]) * v for i, v in terms)
            total += sum(Fraction(weights[i]) * v * v for i, v in terms) - first**2 / mass
    return total


def optimum(x, weights, k):
    """The least objective of at most k clusters, by trying all labels."""
    n = len(x)
    weights = np.asarray(weights, float)
    least = np.inf
    best = None
    mean = (weights[:, None] * x).sum(axis=0) / weights.sum()
    y = x - mean
    for rest in product(range(k), repeat=n - 1):
        labels = np.array((0, *rest))
        value = 0.0
        for j in range(k):
            held = labels == j
            if held.any():
                w = weights[held][:, None]
                m = (w * y[held]).sum(axis=0) / w.sum()
                value += float((w * (y[held] - m) ** 2).sum())
        if value < least:
            least, best = value, labels
    return objective_of(x, weights, list(best))


def scatter(x, weights):
    """The scatter matrix about the mean, in fractions."""
    n, d = x.shape
    rows = [[Fraction(float(v)) for v in row] for row in x]
    w = [Fraction(float(v)) for v in weights]
    mass = sum(w)
    mean = [sum(w[i] * rows[i][f] for i in range(n)) / mass for f in range(d)]
    return [
        [
            sum(w[i] * (rows[i][a] - mean[a]) * (rows[i][b] - mean[b]) for i in range(n))
            for b in range(d)
        ]
        for a in range(d)
    ]


def simple_path(rows, weights, k, seed=0, starts=4, steps=30):
    """Centres of 1 to k clusters: the best of several greedy k-means++ starts, then Lloyd."""
    r = np.random.default_rng(seed)
    rows = np.asarray(rows, float)
    path = []
    for size in range(1, min(k, len(np.unique(rows, axis=0))) + 1):
        found = [_start_and_lloyd(rows, weights, size, r, steps) for _ in range(starts)]
        path.append(min(found, key=lambda pair: pair[0])[1])
    return path


def squares(rows, centers):
    """(n, k) squared distances, in the form that loses no digits far from the origin."""
    return ((rows[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)


def _start_and_lloyd(rows, weights, size, r, steps):
    centers = rows[r.choice(len(rows), p=weights / weights.sum())][None]
    nearest = squares(rows, centers)[:, 0]
    while len(centers) < size:
        mass = weights * nearest
        drawn = rows[r.choice(len(rows), 4, p=mass / mass.sum())]
        among = np.minimum(nearest[:, None], squares(rows, drawn))
        best = int((weights[:, None] * among).sum(axis=0).argmin())
        centers, nearest = np.concatenate([centers, drawn[best : best + 1]]), among[:, best]
    for _ in range(steps):
        labels = squares(rows, centers).argmin(axis=1)
        mass = np.bincount(labels, weights, minlength=size)
        means = (
            np.stack([np.bincount(labels, weights * f, minlength=size) for f in rows.T], axis=1)
            / np.maximum(mass, 1e-300)[:, None]
        )
        means = np.where(mass[:, None] > 0, means, centers)
        if np.array_equal(means, centers):
            break
        centers = means
    return float((weights * squares(rows, centers).min(axis=1)).sum()), centers


def inertia_of(rows, weights, path):
    """(k,) objectives of a path's centres."""
    return np.array([float((weights * squares(rows, c).min(axis=1)).sum()) for c in path])
