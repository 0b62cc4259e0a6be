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
