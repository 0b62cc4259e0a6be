"""Plain numpy twins of what DCD-Bundle is made of: every row, every centre, no bound."""

from __future__ import annotations

import math

import numpy as np


def squares(x, y):
    """(n,) squared distances of rows to a point, features in order."""
    total = np.zeros(len(x))
    for f in range(x.shape[1]):
        total += (x[:, f] - y[f]) * (x[:, f] - y[f])
    return total


def two_nearest(x, centers):
    """Labels and squared distances, of the nearest and of the second nearest centre."""
    d = np.stack([squares(x, c) for c in centers], axis=1)
    first = d.argmin(axis=1)
    rest = d.copy()
    rest[np.arange(len(x)), first] = np.inf
    second = rest.argmin(axis=1) if d.shape[1] > 1 else np.full(len(x), -1)
    return first, d.min(axis=1), second, rest.min(axis=1)


def weighted_sum(values, weight):
    """The sum of values, each as often as its (whole) weight says, rounded once."""
    return math.fsum(np.repeat(values, weight.astype(int)))


def gain(x, weight, r, y):
    """z(y), B(y), and its weighted sums."""
    saved = r - squares(x, y)
    inside = saved > 0
    sums = [weighted_sum(x[inside, f], weight[inside]) for f in range(x.shape[1])]
    return weighted_sum(np.maximum(saved, 0), weight), inside, np.array(sums)


def descend(x, weight, r, y, steps):
    """The mean of B(y), again and again."""
    for _ in range(steps):
        _, inside, sums = gain(x, weight, r, y)
        if not inside.any():
            break
        mean = sums / weight[inside].sum()
        if (mean == y).all():
            break
        y = mean
    return y, gain(x, weight, r, y)[0]


def swap_cost(x, weight, centers, j, y):
    """What the objective changes by if centre j goes and y comes."""
    kept = np.delete(centers, j, axis=0)
    before = two_nearest(x, centers)[1]
    after = two_nearest(x, np.concatenate([kept, y[None]]))[1]
    return weighted_sum(after - before, weight)


def clustering(x, weight, centers):
    """f_1, f_2, the gradient of f_1, and a subgradient of f_2: rows with their first centre."""
    w = np.ones(len(x)) if weight is None else weight
    m = w.sum()
    d = np.stack([squares(x, c) for c in centers], axis=1)
    nearest = d.argmin(axis=1)
    f1 = (w[:, None] * d).sum() / m
    f2 = (w * (d.sum(axis=1) - d.min(axis=1))).sum() / m
    pull = 2 / m * w[:, None, None] * (centers[None] - x[:, None])
    gradient = pull.sum(axis=0)
    pull[np.arange(len(x)), nearest] = 0
    return f1, f2, gradient, pull.sum(axis=0)


def auxiliary(x, weight, centers, y):
    """Both parts of the auxiliary function, their gradients, and how many rows are in B(y)."""
    w = np.ones(len(x)) if weight is None else weight
    m = w.sum()
    r = two_nearest(x, centers)[1]
    d = squares(x, y)
    pull = 2 / m * w[:, None] * (y - x)
    outside = d >= r
    f1, f2 = (w * (r + d)).sum() / m, (w * np.maximum(r, d)).sum() / m
    return f1, f2, pull.sum(axis=0), pull[outside].sum(axis=0), int((~outside).sum())
