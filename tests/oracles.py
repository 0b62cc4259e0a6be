"""Plain numpy twins of what the package computes, slow and easy to check by eye."""

from __future__ import annotations

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
