"""Algorithm 5.1 of DCD-Bundle as it is printed, with whole matrices, in plain numpy.

Where the paper is silent it is as the module says: coordinates that no correction has moved keep
D = 1, t of Step 6 halves an interval whose upper end does not descend, and Step 5 advances k.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

EPS_L, EPS_R, GAMMA, M_C, MU_MIN = 1e-4, 0.25, 0.5, 7, 1e-10


def inverse(S, U, mu_max):
    """D of equation 24: the diagonal B that is nearest to ``B s = u`` for all s and u, inverted."""
    diagonal = np.ones(len(S[0]))
    for i in range(len(diagonal)):
        b, q = sum(s[i] * u[i] for s, u in zip(S, U, strict=True)), sum(s[i] ** 2 for s in S)
        if q > 0:
            diagonal[i] = np.clip(1 / max(b / q, 1 / mu_max), MU_MIN, mu_max)
    return np.diag(diagonal)


def least(vectors, locality, D):
    """The multipliers of equation 30: the best of the solutions on each set of positive ones."""
    G = np.array([[u @ D @ v for v in vectors] for u in vectors])
    b, best = np.array(locality), (np.inf, None)
    scale = max(abs(G).max(), abs(b).max())
    G, b = G / scale, b / scale  # no solution depends on it
    for size in (1, 2, 3):
        for own in map(list, combinations(range(3), size)):
            system = np.ones((size + 1, size + 1))
            system[:size, :size], system[size, size] = G[np.ix_(own, own)], 0
            found = np.linalg.lstsq(system, np.append(-b[own], 1), rcond=None)[0][:size]
            if (found >= -1e-12).all() and abs(found.sum() - 1) < 1e-9:
                shares = np.zeros(3)
                shares[own] = found
                best = min(best, (shares @ G @ shares + 2 * b @ shares, tuple(shares)))
    return np.array(best[1])


def bundle(parts, x, n, eps, mu_max):
    """Yield ``(x, ξ̃, β̃, diag D_1, d, w, t)`` at Step 3 of each iteration, at most n.

    Parameters
    ----------
    parts : callable
        f, the gradient of f_1 and a subgradient of f_2, at a flat x.
    """
    x = np.array(x, float).ravel()
    f, g_1, g_2 = parts(x)  # Step 0
    D_1, S, U_1, U_2, k = np.eye(len(x)), [], [], [], 1
    while True:
        m, at_m = k, g_1 - g_2  # Step 1
        xi, beta, t = at_m, 0.0, np.nan
        d = -D_1 @ xi  # Step 2
        while True:
            w = xi @ D_1 @ xi + 2 * beta  # Step 3
            yield x, xi, beta, np.diag(D_1), d, w, t
            if w <= eps * abs(f) or k == n:
                return
            f_y, g_1y, g_2y = parts(x + d)  # Step 4
            S, U_1, U_2 = [*S, d], [*U_1, g_1y - g_1], [*U_2, g_2y - g_2]
            S, U_1, U_2 = S[-M_C:], U_1[-M_C:], U_2[-M_C:]
            if f_y - f <= -EPS_L * w:  # Step 5
                D_1 = inverse(S, U_1, mu_max)
                x, f, g_1, g_2, k = x + d, f_y, g_1y, g_2y, k + 1
                break
            alpha = f - f_y + (g_1y - g_2y) @ d  # Step 6
            low, high, t = 0.0, 1.0, 1.0
            while True:
                f_t, g_1t, g_2t = parts(x + t * d)
                new = g_1t - g_2t
                locality = max(abs(f - f_t + t * new @ d), GAMMA * (t * d) @ (t * d))
                if -locality + d @ new >= -EPS_R * w:
                    break
                if f_t - f <= -EPS_L * t * w:
                    low = t
                else:
                    high = t
                t = (low + high) / 2
            shares = least((at_m, new, xi), (0, locality, beta), D_1)
            xi = shares @ np.array([at_m, new, xi])
            beta = shares[1] * locality + shares[2] * beta
            if m == k:  # Step 7
                D_1 = inverse(S, U_1, mu_max)
            k += 1
            d = -D_1 @ xi
            if alpha < 0:  # Steps 7b and 8
                D_2 = inverse(S, U_2, mu_max)
                p = max(np.diag(D_2) / (np.diag(D_1) + np.diag(D_2)))
                d = -(p * D_1 - (1 - p) * D_2) @ xi
