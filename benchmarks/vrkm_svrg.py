"""SVRG for k-means without position correction: figure 3 of the paper, as printed and mended.

Y. Zhao et al., Large-scale k-means clustering via variance reduction. Without line 4 of its
Algorithm 3, line 13 adds ∇f̃ of the snapshot's centres C̃ to every step, in rounds of b rows of
the epoch's order that share C_t:

    C <- C - η (Γ + b G),   Γ_j = n_j c_j - ñ_j c̃_j - ΔS_j

with ñ_j and n_j the round's rows under their snapshot labels and under C_t, and ΔS_j the sum of
those that came minus those that went. As printed G_j = c̃_j - S_j / v_j, a mean over the cluster's
rows; but a row is drawn as often as any other of the n, so that the part of Γ that G stands for has
the mean v_j / n of that. Both are here: where the batch gradient is 0, after the position
correction, they are the same, which hides the difference. The package has neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

__all__ = ["batch_gradient", "step_of_round", "steps_of_svrg", "sums_of"]

ROUNDS = 100
"""Rounds of an epoch."""

Real = NDArray[np.float64]


def sums_of(x: NDArray[Any], labels: NDArray[np.integer[Any]], k: int) -> tuple[Real, Real]:
    """(k, d) sums and (k,) numbers of the rows of each cluster."""
    m = len(x)
    members = csr_matrix((np.ones(m), (labels, np.arange(m))), shape=(k, m))
    sums: Real = np.asarray(members @ x.astype(np.float64, copy=False))
    return sums, np.bincount(labels, minlength=k).astype(np.float64)


def batch_gradient(snapshot: Real, sums: Real, counts: Real, *, scaled: bool) -> Real:
    """G of the snapshot's centres (k, d); 0 for a cluster without rows.

    Parameters
    ----------
    snapshot : (k, d)
        Centres C̃ that the rows were assigned to.
    sums, counts : (k, d) and (k,)
        Of the rows of each cluster.
    scaled : bool
        v_j / n times the mean over the cluster, what a row drawn from all has as its mean; False:
        the mean over the cluster, as printed.
    """
    weight = counts / counts.sum() if scaled else np.where(counts > 0, 1.0, 0.0)
    means = sums / np.maximum(counts, 1.0)[:, None]
    gradient: Real = weight[:, None] * (snapshot - means)
    return gradient


def step_of_round(
    centers: Real,
    snapshot: Real,
    gradient: Real,
    rows: NDArray[Any],
    before: NDArray[np.integer[Any]],
    labels: NDArray[np.integer[Any]],
    eta: float,
) -> Real:
    """Centres (k, d) after a round.

    Parameters
    ----------
    centers, snapshot, gradient : (k, d)
        C_t, C̃ and G.
    rows : (b, d)
        Those of the round.
    before, labels : (b,)
        Their nearest centres in C̃ and in C_t.
    eta : float
        Step size.
    """
    k, moved = len(centers), before != labels
    came, _ = sums_of(rows[moved], labels[moved], k)
    went, _ = sums_of(rows[moved], before[moved], k)
    n_before, n_now = (np.bincount(of, minlength=k)[:, None] for of in (before, labels))
    gamma = n_now * centers - n_before * snapshot - (came - went)
    after: Real = centers - eta * (gamma + len(rows) * gradient)
    return after


def steps_of_svrg(
    x: NDArray[np.float32], start: NDArray[Any], seed: int, eta: float, *, scaled: bool
) -> Iterator[Real]:
    """Centres after every epoch, of two passes: a scan, and as many rows in rounds.

    It ends when a centre is not finite.

    Parameters
    ----------
    x : (n, d)
    start : (k, d)
        First centres.
    seed : int
        Of the order in which rows are taken.
    eta : float
        Step size.
    scaled : bool
        See :func:`batch_gradient`.
    """
    from largek_dask.kernels.distances import nearest, pack_centers

    n, k = len(x), len(start)
    shift = x.mean(axis=0, dtype=np.float64).astype(np.float32)

    def labels_of(rows: NDArray[np.float32], centers: Real) -> NDArray[np.int32]:
        return nearest(rows, pack_centers(centers.astype(np.float32), shift))

    rng = np.random.default_rng(seed)
    centers = start.astype(np.float64)
    while np.isfinite(centers).all() and np.abs(centers).max() < np.finfo(np.float32).max:
        labels, snapshot = labels_of(x, centers), centers
        gradient = batch_gradient(snapshot, *sums_of(x, labels, k), scaled=scaled)
        for chosen in np.array_split(rng.permutation(n), min(ROUNDS, n)):
            rows = x[chosen]
            with np.errstate(over="ignore", invalid="ignore"):
                now = labels_of(rows, centers)
                centers = step_of_round(centers, snapshot, gradient, rows, labels[chosen], now, eta)
            if not np.isfinite(centers).all():
                break
        yield centers
