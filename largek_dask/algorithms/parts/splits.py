"""Splits and moves of centres, evaluated on rows that were not used to fit the splits.

A split always lowers the cost of the rows it was fitted to, and moves based on such estimates make
the result worse. (:mod:`largek_dask.kernels.dense.splits` estimates gains on all rows of a cluster,
for a search that undoes unsuccessful moves.)

All clusters are split at once: each gets two centres, and every row is compared only with the two
centres of its cluster.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.parts.moves import Moves, Splits, choose_moves, nearest_others
from largek_dask.kernels.blocks import Table, dense_rows, rows_at
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers, squared_distances
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.threads import on_threads

SPLIT_ROWS = 256
"""Maximum number of rows per cluster on which a split is fitted and evaluated."""
LEAST_SPLIT_ROWS = 16
"""Minimum number of rows of a cluster whose gain is estimated."""
SPLIT_STEPS = 4
LEAST_PIECE = 2_048
MOVED_SHARE = 10
"""At most one in this many centres moves at a time."""
LOCKED = 4
"""Number of centres nearest to a removed centre that must stay unchanged."""


def held_out_moves(
    sample: Passes,
    centers: NDArray[Any],
    counts: NDArray[np.float64],
    sse: NDArray[np.float64],
    losses: NDArray[np.float64],
) -> Moves:
    """Return moves that lower the cost, based on splits of a sample of rows of positive weight.

    ``counts`` and ``sse`` are the weights and sums of squared distances of the clusters; ``losses``
    (k,) are the costs of removing each centre.
    """
    k, grid = len(centers), sample.statistics.grid
    x, weight, rows = sample.take()
    weight = np.ones(len(x)) if weight is None else weight
    # Try the clusters with the largest cost, except for empty ones.
    wanted = np.argsort(-sse, kind="stable")[: max(4, 4 * k // MOVED_SHARE)]
    wanted = np.sort(wanted[counts[wanted] > 0])
    splits = held_out_splits(x, weight, centers, wanted, grid, rows, sample.threads.n)
    splits = replace(splits, gains=splits.gains * counts[wanted])
    losses = np.where(counts > 0, losses, np.inf)
    most = max(1, k // MOVED_SHARE)
    cheapest = np.argsort(losses, kind="stable")[: 4 * most]
    near = nearest_others(centers, cheapest, grid.shift, LOCKED)
    return choose_moves(splits, losses, cheapest, near, most=most, split_takers=False)


def split_up(
    sample: Passes, centers: NDArray[Any], counts: NDArray[np.float64], n_clusters: int
) -> NDArray[Any]:
    """Split the clusters with the largest gains until there are ``n_clusters`` centres.

    The sample has no rows of weight 0, and ``counts`` (k,) are the weights of the clusters.
    ``n_clusters`` is at most 2 k. Fewer centres are returned if too few clusters have rows. The
    first k centres are the given ones, or the centres of the first halves of split clusters.
    """
    x, weight, rows = sample.take()
    weight = np.ones(len(x)) if weight is None else weight
    grid, n_threads = sample.statistics.grid, sample.threads.n
    filled = np.flatnonzero(counts > 0)
    splits = held_out_splits(x, weight, centers, filled, grid, rows, n_threads)
    gains = splits.gains * counts[filled]
    chosen = np.sort(np.argsort(-gains, kind="stable")[: n_clusters - len(centers)])
    more = np.concatenate([centers, splits.halves[chosen, 1]])
    more[filled[chosen]] = splits.halves[chosen, 0]
    return more


def held_out_splits(
    x: Table,
    weight: NDArray[np.float64],
    centers: NDArray[Any],
    clusters: NDArray[np.int64],
    grid: FixedPoint,
    order: NDArray[np.int64] | None = None,
    n_threads: int = 1,
) -> Splits:
    """Split each of the given clusters in two, on a sample of rows (n, d) of positive weight.

    The first rows of each cluster in the ``order`` (n,) are used. ``grid`` is the grid for all
    rows. Gains are reductions of squared distances per unit of weight, or -inf if there are too few
    rows. The second half, which gets the moved centre, starts at the row farthest from the centre.
    """
    labels = _labels(x, pack_centers(centers, grid.shift), n_threads)
    segment = np.full(len(centers), -1)
    segment[clusters] = np.arange(len(clusters))
    rows = np.flatnonzero(segment[labels] >= 0)
    if order is not None:
        rows = rows[np.argsort(order[rows], kind="stable")]
    rows = rows[np.argsort(segment[labels[rows]], kind="stable")]
    rank = _rank_in(segment[labels[rows]], len(clusters))
    rows, rank = rows[rank < SPLIT_ROWS], rank[rank < SPLIT_ROWS]
    edges = np.searchsorted(segment[labels[rows]], np.arange(len(clusters) + 1))
    # Any grouping of clusters gives the same splits.
    inner = np.searchsorted(edges, np.arange(1, n_threads) * len(rows) // n_threads)
    cuts = np.unique([0, *np.minimum(inner, len(clusters)), len(clusters)]).tolist()

    def split(cut: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        these = slice(*cut)
        at = slice(edges[these.start], edges[these.stop])
        own = edges[these.start : these.stop + 1] - at.start
        return _split(
            rows_at(x, rows[at]), weight[rows[at]], rank[at], own, centers[clusters[these]], grid
        )

    parts = on_threads(n_threads, split, list(pairwise(cuts)))
    gains, pairs = zip(*parts, strict=True)
    return Splits(clusters, np.concatenate(gains), np.concatenate(pairs))


def _labels(x: Table, packed: PackedCenters, n_threads: int) -> NDArray[np.int32]:
    step = max(LEAST_PIECE, -(-len(x) // n_threads))
    begins = range(0, max(1, len(x)), step)

    def label(begin: int) -> NDArray[np.int32]:
        return nearest_pruned(x[begin : begin + step], packed)[0]

    return np.concatenate(on_threads(n_threads, label, begins))


def _split(
    x: Table,
    weight: NDArray[np.float64],
    rank: NDArray[np.int64],
    edges: NDArray[np.int64],
    centers: NDArray[Any],
    grid: FixedPoint,
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return gains (m,) and centres of both halves (m, 2, d) for these clusters.

    Rows ``edges[i] : edges[i + 1]`` belong to cluster i; ``rank`` is each row's position in its
    cluster.
    """
    m = len(centers)
    of = np.repeat(np.arange(m, dtype=np.int32), np.diff(edges))
    # The split is fitted to every second row and evaluated on the others.
    fits = rank % 2 == 0
    fitting = np.where(fits, of, -1).astype(np.int32)
    whole = _means(x, fitting, weight, centers, grid)
    two = np.stack([_farthest(x, whole, of, fits, edges, grid), whole], axis=1)
    two[:, 1] = _farthest(x, two[:, 0], of, fits, edges, grid)
    flat = two.reshape(-1, two.shape[-1])
    for _ in range(SPLIT_STEPS):
        packed = pack_centers(flat, grid.shift)
        chosen = _nearer_of_two(x, packed, of)
        flat = _means(x, np.where(fits, chosen, -1).astype(np.int32), weight, flat, grid)
    packed = pack_centers(flat, grid.shift)
    chosen = _nearer_of_two(x, packed, of)
    after = squared_distances(x, packed, chosen)
    before = squared_distances(x, pack_centers(whole, grid.shift), of)
    held_out = np.where(fits, -1, of)
    gains, mass = ExactSums(m), ExactSums(m)
    gains.add(before - after, weight, held_out)
    mass.add(np.ones(len(x)), weight, held_out)
    enough = np.diff(edges) >= LEAST_SPLIT_ROWS
    share = np.divide(gains.values, mass.values, out=np.full(m, -np.inf), where=enough)
    return share, flat.reshape(two.shape)[:, ::-1]


def _rank_in(segments: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the position of each row within its segment; segments are ascending."""
    edges = np.searchsorted(segments, np.arange(n))
    rank: NDArray[np.int64] = np.arange(len(segments)) - edges[segments]
    return rank


def _means(x: Any, labels: Any, weight: Any, fallback: Any, grid: FixedPoint) -> NDArray[Any]:
    sums = ClusterSums(len(fallback), x.shape[1], grid)
    sums.add(x, labels, None if (weight == 1).all() else weight)
    return sums.means(fallback)


def _nearer_of_two(x: Table, packed: PackedCenters, of: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return (n,) the nearer of centres ``2 of`` and ``2 of + 1``; ties go to ``2 of``."""
    first, second = (squared_distances(x, packed, 2 * of + i) for i in range(2))
    return 2 * of + (second < first)


def _farthest(
    x: Table,
    points: NDArray[Any],
    of: NDArray[np.int32],
    fits: NDArray[np.bool_],
    edges: NDArray[np.int64],
    grid: FixedPoint,
) -> NDArray[Any]:
    """Return (m, d) rows: for each cluster, the fitted row farthest from the given point."""
    distances = np.where(fits, squared_distances(x, pack_centers(points, grid.shift), of), -1.0)
    out = points.copy()
    filled = np.flatnonzero(np.diff(edges) > 0)
    order = np.lexsort((np.arange(len(x)), -distances, of))
    out[filled] = dense_rows(x[order[edges[filled]]])
    return out
