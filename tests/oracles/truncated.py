"""Plain numpy twins of the truncated search and its friends, row by row."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.oracles import squared_distances


def search_lists(x, groups, lists, centers, labels, upper, lower, keep=False):
    """New labels, distances, rows moved and distances computed; `groups` names each row's list."""
    labels, upper, lower = labels.copy(), upper.astype(np.float64), lower.astype(np.float64)
    d2 = squared_distances(x, centers)
    moved = evaluated = 0
    for i, g in enumerate(groups):
        listed = lists[g] if g >= 0 else []
        if len(listed) == 0:
            continue
        evaluated += len(listed)
        ranked = sorted((d2[i, j], j) for j in listed)
        best, label = ranked[0]
        second = ranked[1][0] if len(ranked) > 1 else np.inf
        changed = label != labels[i]
        moved += changed
        labels[i], upper[i] = label, np.sqrt(best)
        lower[i] = 0.0 if changed and not keep else np.sqrt(second)
    return labels, upper, lower, moved, evaluated


def losses(labels, upper, lower, weight, max_loss, scale, k):
    """Sums of rounded losses in Python integers."""
    out = [0] * k
    for j, u, low, w in zip(labels, upper, lower, weight, strict=True):
        if j >= 0:
            loss = min(max(float(low) ** 2 - float(u) ** 2, 0.0), max_loss) * float(w)
            out[j] += int(Fraction(loss) * Fraction(scale) + Fraction(1, 2))
    return out


def neighbours(centers, m):
    """The m nearest centres of every centre, itself first, ties to the lowest index."""
    d2 = squared_distances(centers, centers)
    np.fill_diagonal(d2, -1)
    return d2.argsort(axis=1, kind="stable")[:, :m]


def cell_means(x, cells, sizes, seeds, n_steps, weight):
    """Lloyd steps inside every cell; `seeds` are the rows where centres begin."""
    centers = x[seeds].astype(np.float64)
    labels = np.full(len(x), -1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    for _ in range(n_steps):
        for c, rows in enumerate(cells):
            own = np.arange(offsets[c], offsets[c + 1])
            if len(own) == 0:
                continue
            d2 = squared_distances(x[rows], centers[own])
            labels[rows] = own[d2.argmin(axis=1)]
            away, met = d2.min(axis=1) * weight[rows], labels.copy()
            for j in own:
                mine = rows[met[rows] == j]
                if weight[mine].sum() > 0:
                    share = weight[mine, None] / weight[mine].sum()
                    centers[j] = (x[mine].astype(np.float64) * share).sum(axis=0)
                elif away.max() > 0:
                    far = away.argmax()
                    centers[j], labels[rows[far]], away[far] = x[rows[far]], j, 0
    return centers, labels


def split_gain(x, weight, halves):
    """How much the cost of rows about their mean falls if each goes to the nearer half's mean."""
    total, mean = weight.sum(), None
    mean = (x * weight[:, None]).sum(axis=0) / total
    before = (weight * ((x - mean) ** 2).sum(axis=1)).sum()
    side = squared_distances(x, halves).argmin(axis=1)
    after = 0.0
    for h in (0, 1):
        w = weight[side == h]
        if w.sum() > 0:
            own = x[side == h]
            m = (own * w[:, None]).sum(axis=0) / w.sum()
            after += (w * ((own - m) ** 2).sum(axis=1)).sum()
    return before - after
