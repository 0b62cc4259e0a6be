"""Merge clusters, two at a time, to get partitions into every smaller number of clusters.

Each step merges the pair that raises the objective least (J. H. Ward, Hierarchical grouping to
optimize an objective function, JASA 1963). It needs only the centres and weights of the clusters,
not the rows. As rows are not reassigned, the cost of a merge is exact, and the costs give a curve
of the objective against the number of clusters, in steps of one. The curve lies above the optimum,
and the cost jumps where separate groups have to be merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.distances import pack_centers, squared_distances
from largek_dask.kernels.exact.transcendental import log as logarithms
from largek_dask.model.suggest_k import window

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Merges:
    """Sequence of pairwise merges of clusters."""

    centers: Floats
    """(k, d) initial centres."""
    counts: Floats
    """(k,) weights of the initial clusters."""
    kept: NDArray[np.int64]
    """(m,) index of the cluster that each merge keeps: the lower index of the pair."""
    gone: NDArray[np.int64]
    """(m,) index of the cluster that each merge removes."""
    losses: Floats
    """(m,) increase of the sum of ``w ||x - c||^2`` by each merge."""

    def centers_of(self, n_clusters: int) -> Floats:
        """Return (l, d) centres of l clusters, for l from k - m to k."""
        centers, counts = self.centers.copy(), self.counts.copy()
        n = len(centers) - n_clusters
        for i, j in zip(self.kept[:n].tolist(), self.gone[:n].tolist(), strict=True):
            _merge(centers, counts, i, j)
        return np.delete(centers, self.gone[:n], axis=0)

    def curve(self, inertia: float) -> Floats:
        """Return (m + 1,) objectives of k, k - 1, ... clusters, given the ``inertia`` of k."""
        return np.cumsum(np.concatenate([[inertia], self.losses]))


def merge_down(
    centers: NDArray[Any], counts: Floats, shift: NDArray[Any], n_clusters: int
) -> Merges:
    """Merge clusters with these centres (k, d) and weights (k,) until ``n_clusters`` are left.

    A cluster of weight 0 is merged at no cost. ``shift`` is the origin that kernels subtract.
    """
    begun = np.asarray(centers, np.float64), np.asarray(counts, np.float64)
    partners = _Partners(begun[0].copy(), begun[1].copy(), np.asarray(shift, np.float64))
    merges = [partners.merge() for _ in range(len(centers) - n_clusters)]
    kept, gone, losses = zip(*merges, strict=True) if merges else ((), (), ())
    return Merges(
        *begun, np.array(kept, np.int64), np.array(gone, np.int64), np.array(losses, np.float64)
    )


def _merge(centers: Floats, counts: Floats, i: int, j: int) -> None:
    """Merge cluster j into cluster i."""
    both = counts[i] + counts[j]
    if both > 0:
        centers[i] = (counts[i] * centers[i] + counts[j] * centers[j]) / both
    counts[i] = both


class _Partners:
    """Cheapest partner of each cluster, updated after each merge."""

    def __init__(self, centers: Floats, counts: Floats, shift: Floats) -> None:
        self.centers, self.counts, self.shift = centers, counts, shift
        self.present = np.ones(len(centers), np.bool_)
        self.partner = np.zeros(len(centers), np.int64)
        self.least = np.full(len(centers), np.inf)
        for i in range(len(centers)):
            self._update(i)

    def _update(self, i: int) -> None:
        losses = self._losses(i)
        self.partner[i] = np.argmin(losses)
        self.least[i] = losses[self.partner[i]]

    def _losses(self, i: int) -> Floats:
        """Return (k,) costs of merging cluster i with each cluster; inf for removed clusters."""
        packed = pack_centers(self.centers[i : i + 1], self.shift)
        gaps = squared_distances(self.centers, packed, np.zeros(len(self.centers), np.int32))
        both = self.counts[i] + self.counts
        losses: Floats = np.divide(
            self.counts[i] * self.counts, both, out=np.zeros(len(both)), where=both > 0
        )
        losses *= gaps
        losses[~self.present] = np.inf
        losses[i] = np.inf
        return losses

    def merge(self) -> tuple[int, int, float]:
        """Merge the pair that raises the objective least; among equal pairs, the first."""
        one = int(np.argmin(self.least))
        i, j = sorted((one, int(self.partner[one])))
        loss = float(self.least[one])
        _merge(self.centers, self.counts, i, j)
        self.present[j] = False
        self.least[j] = np.inf
        losses = self._losses(i)
        orphans = np.flatnonzero(self.present & np.isin(self.partner, (i, j)))
        nearer = losses < self.least
        self.partner[nearer], self.least[nearer] = i, losses[nearer]
        for orphan in {i, *orphans.tolist()}:
            self._update(orphan)
        return i, j, loss


def bent_sizes(
    merges: Merges, inertia: float, least: int, most: int, bend: float, n: int
) -> list[int]:
    """Return up to n numbers of clusters at which a curve of merges bends, the largest bend first.

    The curve bends at a number of clusters if the fall before this number is at least ``bend``
    times the fall after it. Only numbers from ``least`` to ``most`` are returned, and numbers
    within two windows of a larger bend are left out. ``inertia`` is the objective before the first
    merge. The position of a bend is the largest jump of the losses in the window.
    """
    k = len(merges.centers)
    curve = merges.curve(inertia)
    found: list[tuple[float, int]] = []
    for size in range(max(2, least), most + 1):
        w = window(size)
        if size - w < k - len(merges.losses) or size + w > k:
            continue
        below, at, above = (curve[k - size + step] for step in (w, 0, -w))
        if above <= 0:
            continue
        logs = logarithms(np.array([below / at, at / above]))
        ratio = float(logs[0] / logs[1]) if logs[1] > 0 else np.inf
        if ratio >= bend:
            found.append((-ratio, size))
    chosen: list[int] = []
    for _, size in sorted(found):
        if len(chosen) < n and all(abs(size - other) > 2 * window(size) for other in chosen):
            chosen.append(_sharpest(merges.losses, k, size))
    return chosen


def _sharpest(losses: Floats, k: int, size: int) -> int:
    """Return the number in the window at which the cost of a merge rises by the largest factor."""
    w = window(size)
    near = [at for at in range(size - w, size + w + 1) if at >= 2 and 0 < k - at < len(losses)]

    def jump(at: int) -> float:
        before, now = losses[k - at - 1], losses[k - at]
        return float(now / before) if before > 0 else (np.inf if now > 0 else 0.0)

    return max(near, key=lambda at: (jump(at), -abs(at - size)), default=size)
