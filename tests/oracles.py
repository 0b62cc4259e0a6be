"""Plain numpy twins of what the package computes, slow and easy to check by eye."""

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
    """(k, d) sums and (k,) weights of rows rounded to a grid, in Python integers."""
    shift = grid.shift.astype(np.float64)
    sums = [[0] * len(shift) for _ in range(n_clusters)]
    totals = [0] * n_clusters
    for row, label, weight in zip(x, labels, weights, strict=True):
        if label < 0:
            continue
        difference = row.astype(np.float64) - shift
        scale = Fraction(2) ** grid.bits
        if grid.integer_weights:
            steps = [int(weight) * round(Fraction(v) * scale) for v in difference]
        else:
            steps = [round(Fraction(v) * scale) for v in weight * difference]
        sums[label] = [a + b for a, b in zip(sums[label], steps, strict=True)]
        totals[label] += round(Fraction(weight) * Fraction(2) ** grid.weight_bits)
    return sums, totals


def squared_distances(x, centers):
    """(n, k) squared distances in float64, by their definition."""
    x, centers = np.asarray(x, np.float64), np.asarray(centers, np.float64)
    return ((x[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
