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


def e_step(y, mu, sigma2, g, K, drawn, width):
    """Algorithm 2 of vc-GMM: the new K_n, all components that rows have met, and the next g_c."""
    k, G = g.shape
    met, d2, sets = [], [], []
    for n in range(len(y)):
        members = list(dict.fromkeys(c for c in K[n] if c >= 0))
        union = members + [c for m in members for c in g[m].tolist()] + drawn[n]
        met.append(list(dict.fromkeys(union)))
        d2.append(((y[n] - mu[met[n]]) ** 2).sum(1))
        sets.append([met[n][i] for i in np.argsort(d2[n], kind="stable")[:width]])
    following = g.copy()
    for c in range(k):
        sums: dict[int, list[float]] = {}
        for n in range(len(y)):
            if sets[n][0] == c:
                for other, square in zip(met[n], d2[n], strict=True):
                    sums.setdefault(other, []).append(square)
        sums.pop(c, None)
        best = sorted(sums, key=lambda other: (np.mean(sums[other]), other))[: G - 1]
        following[c] = [c, *best, *(b for b in g[c, 1:].tolist() if b not in best)][:G]
    return sets, following, sum(map(len, met)), np.array([found.min() for found in d2])


def m_step(y, gamma, mu, sigma2, K):
    """Equations 3, 4 and 6: F, means and variance from posteriors among K_n."""
    (n, d), k = y.shape, len(mu)
    q, F = np.zeros((n, k)), 0.0
    for i in range(n):
        joint = -0.5 * ((y[i] - mu[K[i]]) ** 2).sum(1) / sigma2
        joint -= 0.5 * d * np.log(2 * np.pi * sigma2) + np.log(k)
        share = np.exp(joint - joint.max())
        F += gamma[i] * (np.log(share.sum()) + joint.max())
        q[i, K[i]] = gamma[i] * share / share.sum()
    mass = q.sum(0)
    means = np.where(mass[:, None] > 0, q.T @ y / np.maximum(mass, 1e-300)[:, None], mu)
    squares = sum((q[:, c] * ((y - means[c]) ** 2).sum(1)).sum() for c in range(k))
    return F, means, squares / (d * gamma.sum())
