"""Near-duplicates inside clusters, from all pairs of rows in float64."""

from __future__ import annotations

import numpy as np


def similarities(x, z):
    """(m, n) cosine similarities, at most 1."""
    x, z = (np.asarray(rows, np.float64) for rows in (x, z))
    x, z = (rows / np.abs(rows).max(axis=1, keepdims=True) for rows in (x, z))
    lengths = np.sqrt((x * x).sum(axis=1)[:, None] * (z * z).sum(axis=1))
    return np.minimum((x[:, None] * z).sum(axis=2) / lengths, 1)


def nearest_earlier(x, numbers):
    """Most similar earlier row of every row of an ordered list (by ``numbers``), and similarity.

    Similarities that differ by rounding only are ties.
    """
    found, similar = np.full(len(x), -1), np.full(len(x), np.nan)
    for i in range(1, len(x)):
        own = similarities(x[i : i + 1], x[:i])[0]
        similar[i] = own.max()
        found[i] = min(numbers[:i][own >= own.max() - 1e-13])
    return found, similar


def near_duplicates(x, labels, distances, threshold, order):
    """``kept``, ``duplicate_of`` and ``similarity`` of all rows; rows of label -1 are kept."""
    n = len(x)
    duplicate_of, similar = np.full(n, -1), np.full(n, np.nan)
    sign = {"farthest": -1, "nearest": 1, "id": 0}[order]
    for label in np.unique(labels[labels >= 0]):
        numbers = np.flatnonzero(labels == label)
        numbers = numbers[np.argsort(sign * distances[numbers], kind="stable")]
        found, own = nearest_earlier(x[numbers], numbers)
        duplicate_of[numbers], similar[numbers] = found, own
    kept = ~(similar >= threshold)
    duplicate_of[kept] = -1
    return kept, duplicate_of, similar
