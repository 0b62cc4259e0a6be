"""Plain numpy twins of VRKM, one row after the other: Algorithms 1, 3 and 4 as they are printed."""

from __future__ import annotations

import numpy as np


def nearest(row, centers):
    """The first of the nearest centres, features added in order; and its squared distance."""
    squared = np.zeros(len(centers))
    for f in range(len(row)):
        squared += (row[f] - centers[:, f]) ** 2
    label = int(np.argmin(squared))
    return label, squared[label]


def partition(x, centers):
    """The nearest centre of every row."""
    return np.array([nearest(row, centers)[0] for row in x])


def corrected(x, weight, labels, centers, shift):
    """Algorithm 2: means about an origin; clusters without rows keep their centre."""
    out = centers.copy()
    for j in range(len(centers)):
        own = weight[labels == j]
        if own.sum() > 0:
            total = (own[:, None] * (x[labels == j] - shift)).sum(axis=0)
            out[j] = total / own.sum() + shift
    return out


def sgd_rows(x, weight, order, means, votes):
    """Algorithm 1 with m = 1, lines 3 to 11; a row votes with its weight."""
    means, votes, cost = means.copy(), votes.copy(), 0.0
    for i in order:
        j, squared = nearest(x[i], means)
        cost += weight[i] * squared
        votes[j] += weight[i]
        means[j] -= weight[i] / votes[j] * (means[j] - x[i])
    return means, votes, cost


def vrkm_rows(x, weight, labels, order, snapshot, eta, gradient=None):
    """Algorithm 3, lines 9 to 15, or without a gradient Algorithm 4, lines 6 to 12."""
    centers, n_moved = snapshot.copy(), 0
    for i in order:
        b, a = nearest(x[i], centers)[0], labels[i]
        n_moved += a != b
        if a == b and np.array_equal(centers[b], snapshot[b]):
            continue
        gamma = np.zeros_like(centers)
        if a == b:
            # (c - x) - (c~ - x)
            gamma[b] = centers[b] - snapshot[b]
        else:
            gamma[b] = centers[b] - x[i]
            gamma[a] = -(snapshot[a] - x[i])
        if gradient is not None:
            gamma += gradient
        centers = centers - eta * weight[i] * gamma
    return centers, n_moved


def epochs(x, centers, eta, draws, shift, weight=None, with_gradient=False):
    """Algorithm 4 (or 3), one epoch after the other; weights count in units of their mean.

    Yields
    ------
    snapshot, inner : (k, d)
        Centres after the position correction, and after the inner loop.
    """
    weight = np.ones(len(x)) if weight is None else weight
    step = eta * (len(x) / weight.sum())
    for order in draws:
        labels = partition(x, centers)
        snapshot = corrected(x, weight, labels, centers, shift)
        gradient = None
        if with_gradient:
            gradient = np.zeros_like(snapshot)
            for j in range(len(snapshot)):
                own = weight[labels == j]
                if own.sum() > 0:
                    total = (own[:, None] * (x[labels == j] - shift)).sum(axis=0)
                    gradient[j] = (own.sum() * (snapshot[j] - shift) - total) / own.sum()
        centers, _ = vrkm_rows(x, weight, labels, order, snapshot, step, gradient)
        yield snapshot, centers


def gamma_of_round(x, weight, old, new, centers, snapshot):
    """All gradients of a round, row by row."""
    out = np.zeros_like(centers)
    for row, w, a, b in zip(x, weight, old, new, strict=True):
        out[b] += w * (centers[b] - row)
        out[a] -= w * (snapshot[a] - row)
    return out


def has_diverged(centers, snapshot, most):
    """Whether a coordinate is not finite, or has moved by more than ``most``."""
    with np.errstate(all="ignore"):
        moved = centers - snapshot
    return not (-most <= moved.min() and moved.max() <= most)


def epochs_of_rounds(x, weight, centers, eta, rounds, shift):
    """Epochs whose rows share their centres, round by round.

    Parameters
    ----------
    rounds : list of lists of arrays
        Of each epoch the rows of each of its rounds.

    Yields
    ------
    snapshot, inner : (k, d)
    """
    step = eta * (len(x) / weight.sum())
    for rows_of in rounds:
        labels = partition(x, centers)
        snapshot = corrected(x, weight, labels, centers, shift)
        centers = snapshot.copy()
        for rows in rows_of:
            part = x[rows], weight[rows], labels[rows], partition(x[rows], centers)
            centers = centers - step * gamma_of_round(*part, centers, snapshot)
        yield snapshot, centers
