"""Plain numpy twins of local work on partitions: every row, every centre, every step, no bound."""

from __future__ import annotations

import numpy as np

from tests.oracles.dcd import squares


def distances(x, centers):
    """(n, k) squared distances, features in order."""
    return np.stack([squares(x, c) for c in centers], axis=1)


def summed(values):
    """Sum over the first axis, in its order."""
    return np.cumsum(values, axis=0)[-1] if len(values) else np.zeros(values.shape[1:])


def counts_of(weight, labels, k):
    """(k,) weight of the rows of each cluster."""
    return np.array([summed(weight[labels == j]) for j in range(k)], float)


def means_of(x, weight, labels, centers):
    """The means of the rows of each cluster; a cluster without any keeps its centre."""
    means = centers.copy()
    for j in range(len(centers)):
        own = labels == j
        if own.any():
            means[j] = summed(weight[own, None] * x[own]) / summed(weight[own])
    return means


def costs_of(x, weight, labels, centers):
    """(k,) what the rows of each cluster cost with these centres."""
    costs = np.zeros(len(centers))
    for j in range(len(centers)):
        own = labels == j
        costs[j] = summed(weight[own] * squares(x[own], centers[j]))
    return costs


def objective(x, weight, labels, k):
    """What a partition costs, its centres the means of their rows."""
    means = means_of(x, weight, labels, np.zeros((k, x.shape[1])))
    return costs_of(x, weight, labels, means).sum()


def nearest(d, labels):
    """The nearest centre of each row: its own of several, or else the first of them."""
    found = d.argmin(axis=1)
    own = d[np.arange(len(d)), labels]
    return np.where(own <= d.min(axis=1), labels, found)


def lloyd(x, weight, labels, centers, most_steps=1000, calm=0):
    """Lloyd's algorithm from a partition: labels, centres, steps."""
    step = 0
    while True:
        before, centers = centers, means_of(x, weight, labels, centers)
        if step == most_steps or (step > 0 and (centers == before).all()):
            break
        step += 1
        found = nearest(distances(x, centers), labels)
        changed = (found != labels).sum()
        labels = found
        if changed == 0:
            break
        if changed <= calm:
            most_steps = step
    return labels, centers, step


def changes(x, weight, labels, centers, i):
    """(k,) what the objective gains where row i goes; nothing where that is rounding."""
    k, a, w = len(centers), labels[i], weight[i]
    gains = np.zeros(k)
    own = labels == a
    if own.sum() == 1:
        return gains
    counts = counts_of(weight, labels, k)
    if counts[a] <= w:
        return gains
    d = distances(x[i : i + 1], centers)[0]
    saved = w * counts[a] / (counts[a] - w) * d[a]
    gains = saved - w * counts / (counts + w) * d
    gains[gains <= 1e-12 * saved + 1e-28 * w * (x[i] ** 2).sum()] = 0.0
    gains[a] = 0.0
    return gains


def count_moves(x, weight, labels, k):
    """Rows whose move lowers the objective."""
    means = means_of(x, weight, labels, np.zeros((k, x.shape[1])))
    return sum(changes(x, weight, labels, means, i).max() > 0 for i in range(len(x)))


def move_rows(x, weight, labels, centers, most_sweeps=100):
    """Hartigan's moves of single rows in their order: labels, moves, and what they gain."""
    labels, moves, gained = labels.copy(), 0, 0.0
    means = means_of(x, weight, labels, centers)
    for _ in range(most_sweeps):
        before = moves
        for i in range(len(x)):
            gains = changes(x, weight, labels, means, i)
            if gains.max() > 0:
                labels[i] = gains.argmax()
                means = means_of(x, weight, labels, means)
                moves += 1
                gained += gains.max()
        if moves == before:
            break
    return labels, moves, gained
