"""Stochastic updates of centres, by single rows or by rounds of rows.

Source: Y. Zhao et al., "Large-scale k-means clustering via variance reduction", Algorithms 1, 3 and
4.

All computation is in float64. Squared distances are sums of ``(x - c)^2`` in feature order. Vector
registers hold several centres, so the vector width does not affect results. Ties go to the first
centre.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.jit import njit

_NO_WEIGHT = readonly(np.empty(0))
_NO_GRADIENT = readonly(np.empty((0, 0)))


def sgd_rows(
    x: NDArray[Any],
    weight: NDArray[np.float64] | None,
    order: NDArray[np.int64],
    means: NDArray[np.float64],
    votes: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    """Update running means (k, d) with one row at a time (Algorithm 1 with m = 1).

    Parameters
    ----------
    x : (n, d) float32 or float64
    weight : (n,), optional
        Positive weights of the rows' votes.
    order : (t,) int64
        Rows in order; they may repeat.
    means, votes : (k, d), (k,)
        Running means, and the total weight of votes for each mean so far.

    Returns
    -------
    means, votes
        State after the last row.
    cost : float
        Sum of the weighted squared distances of rows to their nearest centres, each computed just
        before the row moves its centre.
    weight : float
        Total weight of these rows.
    """
    means, votes = np.array(means, np.float64, order="C"), votes.copy()
    weight = _NO_WEIGHT if weight is None else weight
    cost, gathered = _sgd_rows(
        readonly(x), readonly(weight), readonly(order), means, _columns(means), votes
    )
    return means, votes, float(cost), float(gathered)


def vrkm_rows(
    x: NDArray[Any],
    weight: NDArray[np.float64] | None,
    labels: NDArray[np.int32],
    order: NDArray[np.int64],
    snapshot: NDArray[np.float64],
    eta: float,
    gradient: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], int]:
    """Update centres with the variance-reduced gradients of one row at a time.

    This is the inner loop of Algorithm 4, or of Algorithm 3 if ``gradient`` is given.

    Parameters
    ----------
    x : (n, d) float32 or float64
    weight : (n,), optional
        Factor of a row's gradient.
    labels : (n,) int32
        Label of each row in the snapshot.
    order : (t,) int64
        Rows in order; they may repeat.
    snapshot : (k, d)
        Centres after the position correction, where the epoch starts.
    eta : float
        Learning rate for a row of weight 1.
    gradient : (k, d), optional
        Batch gradient of the snapshot, applied to every centre unless a row's own gradient is 0.

    Returns
    -------
    centers : (k, d)
        Centres after the last row; infinite or NaN if ``eta`` is too large.
    n_moved : int
        Number of rows whose nearest centre differed from their label in the snapshot.
    """
    snapshot = np.ascontiguousarray(snapshot, np.float64)
    centers = snapshot.copy()
    n_moved = _vrkm_rows(
        readonly(x), readonly(_NO_WEIGHT if weight is None else weight), readonly(labels),
        readonly(order), readonly(snapshot), eta,
        readonly(_NO_GRADIENT if gradient is None else np.ascontiguousarray(gradient)), centers,
        _columns(centers),
    )  # fmt: skip
    return centers, int(n_moved)


def _columns(centers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array(centers.T, order="C")


@njit
def _sgd_rows(x, weight, order, means, columns, votes):
    d, k = columns.shape
    row, scores = np.empty(d), np.empty(k)
    cost, gathered = 0.0, 0.0
    for t in range(order.shape[0]):
        i = order[t]
        for f in range(d):
            row[f] = x[i, f]
        own = weight[i] if weight.shape[0] > 0 else 1.0
        j = _nearest(row, columns, scores)
        cost += own * scores[j]
        gathered += own
        votes[j] += own
        _pull(means, columns, j, own / votes[j], row)
    return cost, gathered


@njit
def _pull(centers, columns, j, share, target):
    for f in range(centers.shape[1]):
        value = centers[j, f] - share * (centers[j, f] - target[f])
        centers[j, f] = value
        columns[f, j] = value


@njit
def _vrkm_rows(x, weight, labels, order, snapshot, eta, gradient, centers, columns):
    d, k = columns.shape
    row, scores = np.empty(d), np.empty(k)
    n_moved = 0
    for t in range(order.shape[0]):
        i = order[t]
        for f in range(d):
            row[f] = x[i, f]
        step = eta * weight[i] if weight.shape[0] > 0 else eta
        a, b = labels[i], _nearest(row, columns, scores)
        n_moved += a != b
        if gradient.shape[0] > 0:
            if a != b or _differ(centers[b], snapshot[b]):
                _step_all(row, a, b, step, snapshot, gradient, centers, columns)
        elif a == b:
            # The gradient (c - x) - (c~ - x) is 0 if the centre has not moved since the snapshot.
            _pull(centers, columns, b, step, snapshot[b])
        else:
            _pull(centers, columns, b, step, row)
            for f in range(d):
                value = centers[a, f] + step * (snapshot[a, f] - row[f])
                centers[a, f] = value
                columns[f, a] = value
    return n_moved


@njit
def _differ(a, b):
    differ = False
    for f in range(a.shape[0]):
        differ |= a[f] != b[f]
    return differ


@njit
def _step_all(row, a, b, step, snapshot, gradient, centers, columns):
    """Apply line 13 of Algorithm 3 of Zhao et al. for one row.

    The batch gradient moves every centre, and the gradient of the row moves one or two centres.
    """
    for j in range(centers.shape[0]):
        for f in range(row.shape[0]):
            own = 0.0
            if j == a and j == b:
                own = centers[j, f] - snapshot[j, f]
            elif j == b:
                own = centers[j, f] - row[f]
            elif j == a:
                own = row[f] - snapshot[j, f]
            value = centers[j, f] - step * (own + gradient[j, f])
            centers[j, f] = value
            columns[f, j] = value


@njit
def _nearest(row, columns, scores):
    """Return the index of the nearest centre; ``scores`` receives all squared distances.

    Four features are processed at a time to load and store sums less often, but are added in
    feature order.
    """
    d, k = columns.shape
    whole = d // 4 * 4
    scores[:] = 0.0
    for f in range(0, whole, 4):
        x0, x1, x2, x3 = row[f], row[f + 1], row[f + 2], row[f + 3]
        c0, c1, c2, c3 = columns[f], columns[f + 1], columns[f + 2], columns[f + 3]
        for j in range(k):
            d0, d1, d2, d3 = x0 - c0[j], x1 - c1[j], x2 - c2[j], x3 - c3[j]
            scores[j] = (((scores[j] + d0 * d0) + d1 * d1) + d2 * d2) + d3 * d3
    for f in range(whole, d):
        x0, c0 = row[f], columns[f]
        for j in range(k):
            d0 = x0 - c0[j]
            scores[j] += d0 * d0
    best = 0
    for j in range(1, k):
        if scores[j] < scores[best]:
            best = j
    return best


def snapshot_gradient(snapshot: NDArray[np.float64], sums: ClusterSums) -> NDArray[np.float64]:
    """Return (k, d) batch gradients: the cluster means of ``c~ - x`` (Algorithm 3, line 7).

    `snapshot` contains the centres after the position correction, which are the means of all
    nonempty clusters. `sums` contains the sums of all rows by their labels in the snapshot. Sums
    are exact, so the gradient is only the rounding error of the means (equation 9).
    """
    grid, filled = sums.grid, sums.weights > 0
    weight = sums.weights[filled, None].astype(np.float64)
    step, shift = 2.0 ** (grid.weight_bits - grid.bits), grid.shift.astype(np.float64)
    out = np.zeros(snapshot.shape)
    out[filled] = (weight * (snapshot[filled] - shift) - sums.totals[filled] * step) / weight
    return out


def round_step(
    centers: NDArray[np.float64],
    snapshot: NDArray[np.float64],
    known: NDArray[np.float64],
    change: ClusterSums,
    eta: float,
    gradient: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    r"""Return the centres ``c - eta * Gamma`` after one round of rows.

    All rows of a round use the same centres. Let :math:`\tilde n_j` be the weight of the round's
    rows in cluster j by their labels in the snapshot, and :math:`n_j` the weight by their current
    labels. Let :math:`\Delta S_j` be the sum of the rows that entered the cluster minus the sum of
    the rows that left. Then the sum of all gradients is

    .. math:: \Gamma_j = n_j c_j - \tilde n_j \tilde c_j - \Delta S_j
              = n_j (c_j - \tilde c_j) + (n_j - \tilde n_j) \tilde c_j - \Delta S_j .

    The second form is exactly 0 for clusters that have not changed since the snapshot.

    Parameters
    ----------
    centers, snapshot : (k, d)
        Centres with which the rows were labelled, and centres after the position correction.
    known : (k,)
        Weight of the round's rows in each cluster, by their labels in the snapshot.
    change : ClusterSums
        Change of the sums when the round's rows move from these labels to their current labels.
    eta : float
        Learning rate for a row of weight 1.
    gradient : (k, d), optional
        Batch gradient of the snapshot, added once, times the round's weight (Algorithm 3).
    """
    grid = change.grid
    entered = change.weights * 2.0**-grid.weight_bits
    weight, moved = (known + entered)[:, None], snapshot - grid.shift.astype(np.float64)
    with np.errstate(all="ignore"):  # overflows if eta is too large: see `has_diverged`
        gamma = weight * (centers - snapshot)
        gamma += entered[:, None] * moved - change.totals * 2.0**-grid.bits
        if gradient is not None:
            gamma += np.cumsum(known)[-1] * gradient  # added in order
        return centers - eta * gamma


def has_diverged(centers: NDArray[np.float64], snapshot: NDArray[np.float64], most: float) -> bool:
    """Return True if any coordinate is not finite or has moved by more than ``most``."""
    with np.errstate(all="ignore"):
        return not bool((np.abs(centers - snapshot) <= most).all())
