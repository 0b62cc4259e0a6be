"""Algorithms as their papers print them, row by row in float64."""
# ruff: noqa: E741 (l is the paper's letter)

from __future__ import annotations

import numpy as np


def nmbatch(x, weight, c, batch_of, b0, rho, n_steps, bounded=True):
    """Newling and Fleuret, Algorithms 1, 2, 3 and 5, bounds included; ties to the lowest index.

    ``batch_of(b)`` gives the rows of M_t. Yields, an iteration, b, a of these rows, S / v, the
    ratio of line 36, and how many distances were computed.
    """
    n, k, c = len(x), len(c), c.astype(np.float64)
    S, v, sse = c.copy(), np.ones(k), np.zeros(k)
    a, dist, l = np.full(n, -1), np.zeros(n), np.zeros((n, k))
    p, b = np.zeros(k), min(b0, n)
    for _ in range(n_steps):
        rows, met = batch_of(b), 0
        for i in rows:
            each = np.sqrt(((x[i] - c) ** 2).sum(1))
            if a[i] >= 0 and bounded:
                l[i] -= p
            if a[i] >= 0:
                sse[a[i]] -= weight[i] * dist[i] ** 2
                S[a[i]] -= weight[i] * x[i]
                v[a[i]] -= weight[i]
            if a[i] < 0 or not bounded:
                l[i], a[i], met = each, each.argmin(), met + k
                dist[i] = each[a[i]]
            else:
                dist[i], met = each[a[i]], met + 1
                for j in range(k):
                    if j == a[i] or l[i, j] >= dist[i]:
                        continue
                    l[i, j], met = each[j], met + 1
                    if (each[j], j) < (dist[i], a[i]):
                        a[i], dist[i] = j, each[j]
            sse[a[i]] += weight[i] * dist[i] ** 2
            S[a[i]] += weight[i] * x[i]
            v[a[i]] += weight[i]
        c_old, c = c, S / v[:, None]
        p = np.sqrt(((c - c_old) ** 2).sum(1))
        votes = (v > 1) & (p > 0)
        sigma = np.sqrt(sse[votes].clip(0) / (v * (v - 1))[votes])
        ratio = (sigma / p[votes]).min(initial=np.inf)
        yield b, a[rows].copy(), c.copy(), ratio, met
        if ratio > rho:
            b = min(2 * b, n)
