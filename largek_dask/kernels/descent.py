"""Lloyd's algorithm with few changes: on rows in memory, from a settled partition.

A search over partitions takes a settled one, adds a centre or takes one out, and lets Lloyd's
algorithm settle it again, thousands of times. Most clusters are then far from the change. So work
is local: sums and costs are computed only for clusters whose rows have changed, and rows are read
only in clusters that have moved, or that a moved centre could take a row from. The others need not
even update bounds. Within the former, Hamerly's bounds (G. Hamerly, Making k-means even
faster, SDM 2010) leave rows out, and a row that they do not settle meets the centres within twice
its cluster's radius only (J. Newling, F. Fleuret, Fast k-means with accurate bounds, ICML 2016).

Everything is float64, about the mean of the rows. Sums are made in the order of the rows, of all
rows of a cluster at a time, so centres and costs are functions of the labels to the bit, for any
path that leads to them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.jit import njit

__all__ = [
    "Nearest",
    "Rows",
    "Settled",
    "add_center",
    "distance_of",
    "drop_center",
    "label_rows",
    "settle",
]

Floats = NDArray[np.float64]

_LITTLE = 1e-300
_BLOCK = 256
"""Rows whose distances to a centre are computed side by side."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows in memory, about their mean; read-only."""

    x: Floats
    """(n, d), C-contiguous."""
    columns: Floats
    """(d, n), the same transposed."""
    weight: Floats
    """(n,) positive weights."""

    @classmethod
    def of(cls, x: Floats, weight: Floats | None = None) -> Rows:
        """Take rows as they are: (n, d), float64, already about their mean."""
        weight = np.ones(len(x)) if weight is None else weight
        x = np.ascontiguousarray(x, np.float64)
        columns = np.ascontiguousarray(x.T)
        return cls(readonly(x), readonly(columns), readonly(np.ascontiguousarray(weight, float)))

    def __len__(self) -> int:
        return len(self.x)


@dataclass(slots=True, eq=False)
class Settled:
    """A partition of rows, and the row state from which changes begin.

    To change one, take a :meth:`copy` first.
    """

    centers: Floats
    """(k, d)"""
    counts: Floats
    """(k,) weight of the rows of each cluster."""
    costs: Floats
    """(k,) weighted sum of squared distances of each cluster's rows to its centre."""
    labels: NDArray[np.int32]
    """(n,)"""
    upper: Floats
    """(n,) upper bounds of the distances of rows to their centres."""
    lower: Floats
    """(n,) lower bounds of the distances of rows to other centres."""
    stale: NDArray[np.bool_]
    """(k,) clusters that have changed since rows were last labelled."""

    @property
    def cost(self) -> float:
        """Objective: the sum over all clusters."""
        return float(_added(readonly(self.costs)))

    def copy(self) -> Settled:
        """Return a copy that may be changed."""
        return Settled(*(getattr(self, field.name).copy() for field in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """The two nearest centres of every row."""

    first: Floats
    """(n,) squared distances to the nearest."""
    label: NDArray[np.int32]
    """(n,) the nearest of the others; 0 if there is no other."""
    second: Floats
    """(n,) squared distances to that; infinity if there is no other."""


def label_rows(rows: Rows, centers: Floats) -> tuple[Settled, Nearest]:
    """Label all rows by all centres; ties go to the lower index. Nothing moves.

    Parameters
    ----------
    rows : Rows
    centers : (k, d) float64
        About the same origin. If they are not the means of their rows all clusters are stale:
        mark them so before settling.
    """
    n, k = len(rows), len(centers)
    labels = np.zeros(n, np.int32)
    found = Nearest(np.empty(n), np.zeros(n, np.int32), np.empty(n))
    centers = np.array(centers, np.float64, order="C")
    _two_nearest(
        rows.columns, readonly(centers), labels, found.first, found.label, found.second
    )  # fmt: skip
    counts, costs = np.zeros(k), np.zeros(k)
    _take_stock(rows.weight, readonly(labels), readonly(found.first), counts, costs)
    upper, lower = np.sqrt(found.first), np.sqrt(found.second)
    return Settled(centers, counts, costs, labels, upper, lower, np.zeros(k, np.bool_)), found


def add_center(rows: Rows, partition: Settled, center: Floats) -> Settled:
    """Add one centre, with the rows that are nearer to it; nothing moves yet."""
    new, centers = partition.copy(), readonly(partition.centers)
    new.centers = np.concatenate([new.centers, center[None]])
    new.counts, new.costs = np.append(new.counts, 0.0), np.append(new.costs, 0.0)
    new.stale = np.append(new.stale, True)
    point = readonly(np.array(center, np.float64))
    _add(rows.columns, rows.x, point, centers, new.labels, new.upper, new.lower, new.stale)
    return new


def drop_center(rows: Rows, partition: Settled, which: int) -> Settled:
    """Remove one centre; its rows go to their next nearest, the last one takes over its number."""
    left = partition.copy()
    centers = readonly(partition.centers)
    _drop(rows.x, centers, which, left.labels, left.upper, left.lower, left.stale)
    k = len(centers) - 1
    for values in (left.centers, left.counts, left.costs, left.stale):
        values[which] = values[k]
    left.centers, left.counts = left.centers[:k].copy(), left.counts[:k].copy()
    left.costs, left.stale = left.costs[:k].copy(), left.stale[:k].copy()
    return left


def settle(rows: Rows, partition: Settled, most_steps: int = 1000, calm: int = 0) -> int:
    """Let Lloyd's algorithm settle a partition, in place.

    A cluster that loses all its rows keeps its centre; its count is 0.

    Parameters
    ----------
    rows : Rows
    partition : Settled
    most_steps : int
        Maximum steps, even if labels still change. Centres are the means of their rows then, too,
        but rows need not be with the nearest; clusters that moved last are stale.
    calm : int
        It also ends once at most this many rows change in a step.

    Returns
    -------
    int
        Number of steps.
    """
    p = partition
    return int(
        _settle(
            rows.x, rows.weight, most_steps, calm, p.centers, p.counts, p.costs,
            p.labels, p.upper, p.lower, p.stale,
        )
    )  # fmt: skip


@njit
def _added(values):
    total = 0.0
    for value in values:
        total += value
    return total


@njit
def distance_of(x, i, centers, j):
    """Return the squared distance of a row to a centre, its features in order."""
    total = 0.0
    for f in range(x.shape[1]):
        t = x[i, f] - centers[j, f]
        total += t * t
    return total


@njit
def _two_nearest(columns, centers, labels, first, others, next_):
    """Find the nearest two centres of all rows, by blocks of rows; ties to the lower index."""
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
def _take_stock(weight, labels, squares, counts, costs):
    for i in range(weight.shape[0]):
        counts[labels[i]] += weight[i]
        costs[labels[i]] += weight[i] * squares[i]


@njit
def _distances(columns, begin, center, found):
    """Compute squared distances of rows from ``begin`` on to one centre."""
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
                # Only now compute the distance to the row's own centre: the bound may be
                # loose, so it neither shows which is nearer nor is less than that distance.
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
    moved = np.zeros(k)
    gaps = np.empty((k, k))
    own, others, seen = np.zeros(k), np.zeros(k), np.zeros((k, k))
    radius, far = np.zeros(k), np.empty(k)
    active, ever = np.zeros(k, np.bool_), np.zeros(k, np.bool_)
    near, n_near = np.empty((k, k), np.int32), np.zeros(k, np.int64)
    waiting, space = np.empty((2, x.shape[0]), np.int32), np.empty((d + 3, _BLOCK))
    for i in range(x.shape[0]):
        radius[labels[i]] = max(radius[labels[i]], upper[i])
    moved[:] = -1.0
    _measure(centers, moved, gaps)
    step = 0
    while True:
        for j in range(k):
            ever[j] = ever[j] or stale[j]
        _means(x, weight, labels, stale, centers, counts, moved)
        for j in range(k):
            if step == 0 and stale[j]:
                # Its rows have not been searched since it moved, or was made.
                moved[j] = max(moved[j], _LITTLE)
            stale[j] = moved[j] > 0.0
            own[j] += moved[j]
        if step == most_steps or moved.max() == 0.0:
            break
        stale[:] = False
        step += 1
        _measure(centers, moved, gaps)
        _choose(moved, gaps, own, others, seen, radius, active, near, n_near, far)
        changed = _look(
            x, centers, gaps, active, near, n_near, far, own, others,
            labels, upper, lower, radius, stale, waiting, space,
        )  # fmt: skip
        if changed == 0:
            break
        if changed <= calm:
            most_steps = step
    for a in range(k):
        # Rows that were far from it may have come nearer without being read.
        others[a] += (own - seen[a]).max()
    for i in range(x.shape[0]):
        upper[i] += own[labels[i]]
        lower[i] -= others[labels[i]]
    _cost(x, weight, labels, ever, centers, costs)
    return step


@njit
def _means(x, weight, labels, stale, centers, counts, moved):
    """Set centres of stale clusters to the means of their rows; record how far they moved."""
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
    """Update distances between centres, for those that have moved."""
    k = centers.shape[0]
    for a in range(k):
        if moved[a] != 0.0:
            for b in range(k):
                v = np.sqrt(distance_of(centers, a, centers, b))
                gaps[a, b] = v
                gaps[b, a] = v
            gaps[a, a] = np.inf


@njit
def _choose(moved, gaps, own, others, seen, radius, active, near, n_near, far):
    """Find clusters whose rows may change, centres that could take them, and other distances.

    A row within r of its centre is nearer to that than to any centre that lies 2 r from it. So
    lower bounds fall only by the movement of the centres near a cluster, each since it was last
    taken into account there.
    """
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
                        near[a, m] = b
                        m += 1
                        farthest = max(farthest, own[b] - seen[a, b])
                        seen[a, b] = own[b]
                    else:
                        far[a] = min(far[a], gaps[a, b])
            n_near[a] = m
            others[a] += farthest


@njit
def _look(
    x, centers, gaps, active, near, n_near, far, own, others, labels, upper, lower, radius, stale,
    waiting, space,
):  # fmt: skip
    """Update labels of the rows of active clusters; return the number of changes."""
    k = centers.shape[0]
    half = np.empty(k)
    for a in range(k):
        half[a] = 0.5 * gaps[a].min()
        if active[a]:
            radius[a] = 0.0
    ends = _doubtful(active, half, own, others, labels, upper, lower, radius, waiting)
    changed, begin = 0, 0
    for a in range(k):
        while begin < ends[a]:
            rows = waiting[0, begin : min(begin + _BLOCK, ends[a])]
            begin += len(rows)
            m = _near_own(
                x, centers, a, rows, half[a], own[a], others[a], upper, lower, radius, space
            )
            if m > 0:
                changed += _near_others(
                    centers, a, rows[:m], near[a, : n_near[a]], far[a], own, others,
                    labels, upper, lower, radius, stale, space,
                )  # fmt: skip
    return changed


@njit
def _doubtful(active, half, own, others, labels, upper, lower, radius, waiting):
    """Find rows of active clusters that bounds do not settle, by cluster; return where each ends.

    ``waiting`` is (2, n): the rows are its first line.
    """
    k = active.shape[0]
    ends, m = np.zeros(k + 1, np.int64), 0
    found, ordered = waiting[1], waiting[0]
    for i in range(labels.shape[0]):
        a = labels[i]
        if active[a]:
            u = upper[i] + own[a]
            if u > max(half[a], lower[i] - others[a]):
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
def _near_own(x, centers, a, rows, half, own, others, upper, lower, radius, space):
    """Compute a cluster's distances to its centre; put rows in doubt first, return their number."""
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
        upper[row] = u - own
        if u > max(half, lower[row] - others):
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
def _near_others(
    centers, a, rows, near, far, own, others, labels, upper, lower, radius, stale, space
):
    """Label rows of one cluster by the centres that could take them; return the changes."""
    d, m = centers.shape[1], rows.shape[0]
    columns, best, found, next_ = space[:d], space[d, :m], space[d + 1, :m], space[d + 2, :m]
    at = np.full(m, a, np.int32)
    next_[:] = np.inf
    for j in near:
        _distances(columns, 0, centers[j], found)
        for i in range(m):
            v = found[i]
            next_[i] = best[i] if v < best[i] else min(v, next_[i])
            at[i] = j if v < best[i] else at[i]
            best[i] = min(v, best[i])
    changed = 0
    for i in range(m):
        row, b = rows[i], at[i]
        # No centre that was left out is nearer than this.
        left = min(np.sqrt(next_[i]), far - (upper[row] + own[a]))
        u = np.sqrt(best[i])
        if b != a:
            changed += 1
            labels[row] = b
            stale[a] = stale[b] = True
            upper[row] = u - own[b]
        lower[row] = left + others[b]
        radius[b] = max(radius[b], u)
    return changed


@njit
def _cost(x, weight, labels, which, centers, costs):
    """Compute the costs of some clusters."""
    for j in range(costs.shape[0]):
        if which[j]:
            costs[j] = 0.0
    for i in range(x.shape[0]):
        a = labels[i]
        if which[a]:
            costs[a] += weight[i] * distance_of(x, i, centers, a)
