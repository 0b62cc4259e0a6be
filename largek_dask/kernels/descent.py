"""Lloyd's algorithm on rows in memory, after a small change of a converged partition.

A search over partitions repeats these steps thousands of times: add a centre to a converged
partition, or remove a centre, and run Lloyd's algorithm until it converges again. Most clusters are
far from the change, so the work is local. Sums and costs are computed only for clusters whose rows
have changed. Rows are read only in clusters that have moved, or from which a moved centre could
take a row. In these clusters, Hamerly's bounds (G. Hamerly, Making k-means even faster, SDM 2010)
skip most rows. Every other row is compared only with the centres within twice the radius of its
cluster (J. Newling, F. Fleuret, Fast k-means with accurate bounds, ICML 2016).

All computation is in float64, relative to the mean of the rows. The sum of a cluster is always
computed from all its rows, in row order, so equal labels give bit-identical centres and costs.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.jit import njit

Floats = NDArray[np.float64]

_LITTLE = 1e-300
_BLOCK = 256
"""Number of rows whose distances to a centre are computed together."""

# Named groups of kernel arguments.
Bounds = namedtuple("Bounds", "labels upper lower radius drift loss")
"""State of rows and clusters. The distance bounds of a row are `upper` plus the `drift` of the
row's cluster, and `lower` minus the cluster's `loss`; drift and loss accumulate from the first step
on."""
Near = namedtuple("Near", "gaps active lists sizes far seen")
"""Distances between centres, clusters whose rows may change, and per cluster: the centres that
could take its rows, the distance to the nearest unlisted centre, and the drift that `loss`
includes."""


@dataclass(frozen=True, slots=True, eq=False)
class CenteredRows:
    """Read-only rows in memory, relative to their mean."""

    x: Floats
    """(n, d) rows, C-contiguous."""
    columns: Floats
    """(d, n) transpose of ``x``."""
    weight: Floats
    """(n,) positive weights."""

    @classmethod
    def of(cls, x: Floats, weight: Floats | None = None) -> CenteredRows:
        """Create an object from (n, d) rows whose mean has already been subtracted."""
        weight = np.ones(len(x)) if weight is None else weight
        x = np.ascontiguousarray(x, np.float64)
        columns = np.ascontiguousarray(x.T)
        return cls(readonly(x), readonly(columns), readonly(np.ascontiguousarray(weight, float)))

    def __len__(self) -> int:
        return len(self.x)


@dataclass(slots=True, eq=False)
class PartitionState:
    """Partition of rows with distance bounds; :func:`settle` updates the partition in place."""

    centers: Floats
    """(k, d) centres."""
    counts: Floats
    """(k,) total weight of each cluster."""
    costs: Floats
    """(k,) weighted sum of squared distances of each cluster's rows to the cluster's centre."""
    labels: NDArray[np.int32]
    """(n,) cluster of each row."""
    upper: Floats
    """(n,) upper bounds on the distances of rows to their centres."""
    lower: Floats
    """(n,) lower bounds on the distances of rows to all other centres."""
    stale: NDArray[np.bool_]
    """(k,) True for clusters that have changed since rows were last labelled."""

    @property
    def cost(self) -> float:
        """Objective: the sum of the costs of all clusters."""
        return float(np.cumsum(self.costs)[-1])

    def copy(self) -> PartitionState:
        return PartitionState(*(getattr(self, field.name).copy() for field in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class TwoNearest:
    """The two nearest centres of every row."""

    first: Floats
    """(n,) squared distances to the nearest centre."""
    label: NDArray[np.int32]
    """(n,) index of the second nearest centre; 0 if there is only one centre."""
    second: Floats
    """(n,) squared distances to the second nearest centre; infinity if there is only one."""


def label_rows(rows: CenteredRows, centers: Floats) -> tuple[PartitionState, TwoNearest]:
    """Label each row with the nearest of (k, d) centres; ties go to the lower index.

    Before :func:`settle`, mark all clusters as stale if centres are not the means of their rows.
    """
    n, k = len(rows), len(centers)
    labels = np.zeros(n, np.int32)
    near = TwoNearest(np.empty(n), np.zeros(n, np.int32), np.empty(n))
    centers = np.array(centers, np.float64, order="C")
    _two_nearest(rows.columns, readonly(centers), labels, near.first, near.label, near.second)
    counts: Any = np.bincount(labels, rows.weight, k)  # bincount adds in row order
    costs: Any = np.bincount(labels, rows.weight * near.first, k)
    bounds = np.sqrt(near.first), np.sqrt(near.second)
    return PartitionState(centers, counts, costs, labels, *bounds, np.zeros(k, np.bool_)), near


def add_center(rows: CenteredRows, partition: PartitionState, center: Floats) -> PartitionState:
    """Return the partition with one more centre, which takes the rows nearest to it.

    Centres do not move yet.
    """
    new, centers = partition.copy(), readonly(partition.centers)
    new.centers = np.concatenate([new.centers, center[None]])
    new.counts, new.costs = np.append(new.counts, 0.0), np.append(new.costs, 0.0)
    new.stale = np.append(new.stale, True)
    point = readonly(np.array(center, np.float64))
    _add(rows.columns, rows.x, point, centers, new.labels, new.upper, new.lower, new.stale)
    return new


def drop_center(rows: CenteredRows, partition: PartitionState, which: int) -> PartitionState:
    """Return the partition without centre ``which``; the last centre takes over the index.

    The rows of the dropped centre move to the nearest remaining centre.
    """
    left = partition.copy()
    centers = readonly(partition.centers)
    _drop(rows.x, centers, which, left.labels, left.upper, left.lower, left.stale)
    k = len(centers) - 1
    for values in (left.centers, left.counts, left.costs, left.stale):
        values[which] = values[k]
    left.centers, left.counts = left.centers[:k].copy(), left.counts[:k].copy()
    left.costs, left.stale = left.costs[:k].copy(), left.stale[:k].copy()
    return left


def settle(
    rows: CenteredRows, partition: PartitionState, most_steps: int = 1000, calm: int = 0
) -> int:
    """Run Lloyd's algorithm in place until it converges; return the number of steps.

    The algorithm stops early after `most_steps` steps, or when at most `calm` rows change clusters
    in a step. Centres are then the means of their rows, but rows may be nearer to another centre,
    and clusters that moved in the last step are stale. A cluster that loses all rows keeps its
    centre and has a count of 0.
    """
    p = partition
    state = p.centers, p.counts, p.costs, p.labels, p.upper, p.lower, p.stale
    return int(_settle(rows.x, rows.weight, most_steps, calm, *state))


@njit
def distance_of(x, i, centers, j):
    """Return the squared distance of a row to a centre, summed in feature order."""
    total = 0.0
    for f in range(x.shape[1]):
        t = x[i, f] - centers[j, f]
        total += t * t
    return total


@njit
def _two_nearest(columns, centers, labels, first, others, next_):
    n = columns.shape[1]
    found = np.empty(_BLOCK)
    for begin in range(0, n, _BLOCK):
        m = min(_BLOCK, n - begin)
        a, b = labels[begin : begin + m], others[begin : begin + m]
        da, db = first[begin : begin + m], next_[begin : begin + m]
        da[:] = np.inf
        db[:] = np.inf
        for j in range(centers.shape[0]):
            _distances(columns, begin, centers[j], found[:m])
            for i in range(m):
                v = found[i]
                nearest, second = v < da[i], v < db[i]
                b[i] = a[i] if nearest else (np.int32(j) if second else b[i])
                db[i] = da[i] if nearest else (v if second else db[i])
                a[i] = np.int32(j) if nearest else a[i]
                da[i] = v if nearest else da[i]


@njit
def _distances(columns, begin, center, found):
    m = found.shape[0]
    for f in range(columns.shape[0]):
        c, values = center[f], columns[f, begin : begin + m]
        if f == 0:
            for i in range(m):
                t = values[i] - c
                found[i] = t * t
        else:
            for i in range(m):
                t = values[i] - c
                found[i] += t * t


@njit
def _add(columns, x, center, centers, labels, upper, lower, stale):
    n, k = columns.shape[1], centers.shape[0]
    found = np.empty(_BLOCK)
    for begin in range(0, n, _BLOCK):
        m = min(_BLOCK, n - begin)
        _distances(columns, begin, center, found[:m])
        for i in range(m):
            row = begin + i
            reach = max(upper[row], lower[row])
            if found[i] < reach * reach:
                # Compute the distance to the row's centre, because the upper bound may be loose.
                own = distance_of(x, row, centers, labels[row])
                u, v = np.sqrt(own), np.sqrt(found[i])
                if found[i] < own:
                    stale[labels[row]] = True
                    labels[row] = k
                    upper[row], lower[row] = v, min(lower[row], u)
                else:
                    upper[row], lower[row] = u, min(lower[row], v)


@njit
def _drop(x, centers, which, labels, upper, lower, stale):
    k = centers.shape[0]
    for i in range(x.shape[0]):
        if labels[i] == which:
            best, at, next_ = np.inf, 0, np.inf
            for j in range(k):
                if j == which:
                    continue
                v = distance_of(x, i, centers, j)
                if v < best:
                    best, at, next_ = v, j, best
                elif v < next_:
                    next_ = v
            stale[at] = True
            labels[i] = which if at == k - 1 else at
            upper[i], lower[i] = np.sqrt(best), np.sqrt(next_)
        elif labels[i] == k - 1:
            labels[i] = which


@njit
def _settle(x, weight, most_steps, calm, centers, counts, costs, labels, upper, lower, stale):
    k, d = centers.shape
    gaps, seen, ever = np.empty((k, k)), np.zeros((k, k)), np.zeros(k, np.bool_)
    drift, loss, radius = np.zeros(k), np.zeros(k), np.zeros(k)
    bounds = Bounds(labels, upper, lower, radius, drift, loss)
    near = Near(
        gaps, np.zeros(k, np.bool_), np.empty((k, k), np.int32), np.zeros(k, np.int64), np.empty(k),
        seen,
    )  # fmt: skip
    waiting, space = np.empty((2, x.shape[0]), np.int32), np.empty((d + 3, _BLOCK))
    for i in range(x.shape[0]):
        radius[labels[i]] = max(radius[labels[i]], upper[i])
    moved = np.full(k, -1.0)
    _measure(centers, moved, gaps)
    step = 0
    while True:
        for j in range(k):
            ever[j] = ever[j] or stale[j]
        _means(x, weight, labels, stale, centers, counts, moved)
        for j in range(k):
            if step == 0 and stale[j]:
                # The cluster's rows have not been searched since the centre moved or was added.
                moved[j] = max(moved[j], _LITTLE)
            stale[j] = moved[j] > 0.0
            drift[j] += moved[j]
        if step == most_steps or moved.max() == 0.0:
            break
        stale[:] = False
        step += 1
        _measure(centers, moved, gaps)
        _choose(moved, near, bounds)
        changed = _relabel(x, centers, near, bounds, stale, waiting, space)
        if changed == 0:
            break
        if changed <= calm:
            most_steps = step
    for a in range(k):
        # Centres that were far from the cluster may have moved closer without being considered.
        loss[a] += (drift - seen[a]).max()
    for i in range(x.shape[0]):
        upper[i] += drift[labels[i]]
        lower[i] -= loss[labels[i]]
    _cost(x, weight, labels, ever, centers, costs)
    return step


@njit
def _means(x, weight, labels, stale, centers, counts, moved):
    """Move the centres of stale clusters to the means of the rows; record the distances moved."""
    k, d = centers.shape
    sums, mass = np.zeros((k, d)), np.zeros(k)
    if stale.any():
        for i in range(x.shape[0]):
            a = labels[i]
            if stale[a]:
                w = weight[i]
                mass[a] += w
                for f in range(d):
                    sums[a, f] += w * x[i, f]
    for j in range(k):
        moved[j] = 0.0
        if stale[j]:
            counts[j] = mass[j]
            if mass[j] > 0.0:
                gap = 0.0
                for f in range(d):
                    mean = sums[j, f] / mass[j]
                    t = mean - centers[j, f]
                    gap += t * t
                    centers[j, f] = mean
                moved[j] = np.sqrt(gap)


@njit
def _measure(centers, moved, gaps):
    """Update the distances between pairs of centres of which at least one has moved."""
    k = centers.shape[0]
    for a in range(k):
        if moved[a] != 0.0:
            for b in range(k):
                v = np.sqrt(distance_of(centers, a, centers, b))
                gaps[a, b] = v
                gaps[b, a] = v
            gaps[a, a] = np.inf


@njit
def _choose(moved, near, bounds):
    """Find the clusters whose rows may change, and the centres that could take these rows.

    A row at a distance r from its centre is at least as near to this centre as to any centre that
    is 2 r or more away from it. So the lower bounds of a cluster shrink only by the movement of
    nearby centres.
    """
    gaps, active, lists, sizes, far, seen = near
    radius, drift, loss = bounds.radius, bounds.drift, bounds.loss
    k = moved.shape[0]
    for a in range(k):
        radius[a] += moved[a]
    for a in range(k):
        active[a] = moved[a] > 0.0
        for b in range(k):
            if moved[b] > 0.0 and gaps[a, b] < 2.0 * radius[a]:
                active[a] = True
        if active[a]:
            m, farthest = 0, 0.0
            far[a] = np.inf
            for b in range(k):
                if b != a:
                    if gaps[a, b] < 2.0 * radius[a]:
                        lists[a, m] = b
                        m += 1
                        farthest = max(farthest, drift[b] - seen[a, b])
                        seen[a, b] = drift[b]
                    else:
                        far[a] = min(far[a], gaps[a, b])
            sizes[a] = m
            loss[a] += farthest


@njit
def _relabel(x, centers, near, bounds, stale, waiting, space):
    """Update labels of the rows of active clusters; return the number of changes."""
    k = centers.shape[0]
    half = np.empty(k)
    for a in range(k):
        half[a] = 0.5 * near.gaps[a].min()
        if near.active[a]:
            bounds.radius[a] = 0.0
    ends = _doubtful(near.active, half, bounds, waiting)
    changed, begin = 0, 0
    for a in range(k):
        while begin < ends[a]:
            rows = waiting[0, begin : min(begin + _BLOCK, ends[a])]
            begin += len(rows)
            m = _meet_own(x, centers, a, rows, half[a], bounds, space)
            if m > 0:
                listed = near.lists[a, : near.sizes[a]]
                changed += _meet_others(
                    centers, a, rows[:m], listed, near.far[a], bounds, stale, space
                )
    return changed


@njit
def _doubtful(active, half, bounds, waiting):
    """Find the rows of active clusters whose labels are uncertain, sorted by cluster.

    The row indices are written to the first row of the (2, n) array ``waiting``. The result
    contains the end position of each cluster.
    """
    labels, upper, lower, radius, drift, loss = bounds
    k = active.shape[0]
    ends, m = np.zeros(k + 1, np.int64), 0
    found, ordered = waiting[1], waiting[0]
    for i in range(labels.shape[0]):
        a = labels[i]
        if active[a]:
            u = upper[i] + drift[a]
            if u > max(half[a], lower[i] - loss[a]):
                found[m] = i
                m += 1
                ends[a + 1] += 1
            else:
                radius[a] = max(radius[a], u)
    for a in range(k):
        ends[a + 1] += ends[a]
    for p in range(m):
        a = labels[found[p]]
        ordered[ends[a]] = found[p]
        ends[a] += 1
    return ends


@njit
def _meet_own(x, centers, a, rows, half, bounds, space):
    """Compute distances to the own centre; move rows in doubt to the front; return their number."""
    _, upper, lower, radius, drift, loss = bounds
    d = x.shape[1]
    m = rows.shape[0]
    columns, found = space[:d], space[d, :m]
    for i in range(m):
        for f in range(d):
            columns[f, i] = x[rows[i], f]
    _distances(columns, 0, centers[a], found)
    left = 0
    for i in range(m):
        row, u = rows[i], np.sqrt(found[i])
        upper[row] = u - drift[a]
        if u > max(half, lower[row] - loss[a]):
            if left < i:
                rows[left] = row
                found[left] = found[i]
                for f in range(d):
                    columns[f, left] = columns[f, i]
            left += 1
        else:
            radius[a] = max(radius[a], u)
    return left


@njit
def _meet_others(centers, a, rows, listed, far, bounds, stale, space):
    """Compare rows of one cluster with the listed centres; return the number of label changes."""
    labels, upper, lower, radius, drift, loss = bounds
    d, m = centers.shape[1], rows.shape[0]
    columns, best, found, next_ = space[:d], space[d, :m], space[d + 1, :m], space[d + 2, :m]
    at = np.full(m, a, np.int32)
    next_[:] = np.inf
    for j in listed:
        _distances(columns, 0, centers[j], found)
        for i in range(m):
            v = found[i]
            next_[i] = best[i] if v < best[i] else min(v, next_[i])
            at[i] = j if v < best[i] else at[i]
            best[i] = min(v, best[i])
    changed = 0
    for i in range(m):
        row, b = rows[i], at[i]
        # Lower bound on the distance to every other centre.
        left = min(np.sqrt(next_[i]), far - (upper[row] + drift[a]))
        u = np.sqrt(best[i])
        if b != a:
            changed += 1
            labels[row] = b
            stale[a] = stale[b] = True
            upper[row] = u - drift[b]
        lower[row] = left + loss[b]
        radius[b] = max(radius[b], u)
    return changed


@njit
def _cost(x, weight, labels, which, centers, costs):
    for j in range(costs.shape[0]):
        if which[j]:
            costs[j] = 0.0
    for i in range(x.shape[0]):
        a = labels[i]
        if which[a]:
            costs[a] += weight[i] * distance_of(x, i, centers, a)
